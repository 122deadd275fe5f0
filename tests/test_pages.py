"""Pages import and name only what is there, and print numbers rounded to the safe side."""

import ast
import contextlib
import importlib
import importlib.util
import json
import math
import re
import types

import pytest

import dpmech as dm
from dpmech.numerics.printed import up
from tests.support.pages import PAGES, ROOT, name

CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
DOTTED = re.compile(r"`(dpmech(?:\.\w+)+)")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_a_page_imports_and_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    for block in CODE.findall(text):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and "dpmech" in ast.unparse(node):
                needs_torch = "optim" in ast.unparse(node)
                if needs_torch and importlib.util.find_spec("torch") is None:
                    continue
                exec(compile(ast.Module([node], []), page.name, "exec"), {})
        assert [one for one in re.findall(r"\bdm\.(\w+)", block) if not hasattr(dm, one)] == []
    if page.name == "changelog.md":
        return  # which names what is gone
    for dotted in set(DOTTED.findall(text)):
        names = dotted.split(".")
        if "optim" in names and importlib.util.find_spec("torch") is None:
            continue
        assert reached(names), dotted


def reached(names):
    """Whether a dotted name leads to something: a module, and then attributes."""
    for depth in range(len(names), 0, -1):
        with contextlib.suppress(ImportError):
            found = importlib.import_module(".".join(names[:depth]))
            with contextlib.suppress(AttributeError):
                for name in names[depth:]:
                    found = getattr(found, name)
                return True
            return False
    return False


def test_the_reference_has_every_public_name_once():
    listed = re.findall(
        r"^   dpmech\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(
        name for name in dm.__all__ if not isinstance(getattr(dm, name), types.ModuleType)
    )


def test_a_name_that_is_gone_is_seen():
    assert reached(["dpmech", "calibration", "epsilon"])
    assert not reached(["dpmech", "linalg"])
    assert not reached(["dpmech", "calibration", "gone"])


def test_shares_of_people_that_an_attack_identifies_are_those_of_the_figure_rounded_up():
    page = (ROOT / "docs" / "risk.md").read_text(encoding="utf-8")
    curves = json.loads((ROOT / "docs/figures/tradeoff_curves.json").read_text(encoding="utf-8"))
    for eps in (1.0, 8.0):
        rates = [one["tpr"][one["fpr"].index(0.01)] for one in curves if one["eps"] == eps]
        pair = min(0.01 * math.exp(eps) + 1e-5, 1.0 - math.exp(-eps) * (1.0 - 1e-5 - 0.01))
        cells = [f"{up(100.0 * rate, 3)} %" for rate in rates]
        cells.append(f"{up(100.0 * pair, 3 if eps == 1.0 else 4)} %")
        assert f"| {eps:g} | {' | '.join(cells)} |" in page
