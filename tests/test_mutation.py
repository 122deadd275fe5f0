"""The mutation run itself: what it alters, that an alteration reaches whoever imported the function."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from verification.mutation import __main__ as runner
from verification.mutation._mutants import mutants
from verification.mutation._page import Tally, write_page
from verification.mutation._trials import files_that_test, plant

ROOT = Path(__file__).parents[1]
SOURCE = '''
"""A docstring with 7 in it."""
import math

LIMIT: float = 3.0

def area(x: "2 * x", *, scale=1.5) -> float:
    if x < 0:
        raise ValueError(f"negative by {1 + 1}")
    return -math.sqrt(x) ** 2 + scale * x

class Box:
    @property
    def half(self):
        return max(LIMIT, 4) / 2
'''


def changes(function):
    return {(one.before, one.after) for one in mutants("sample", SOURCE) if one.function == function}


def test_signs_factors_exponents_and_conditions_are_altered():
    found = changes("area")
    whole = "-math.sqrt(x) ** 2 + scale * x"
    assert found >= {
        (whole, "-math.sqrt(x) ** 2 - scale * x"),
        (whole, f"-({whole})"),
        (whole, f"2.0 * ({whole})"),
        ("scale * x", "scale / x"),
        ("math.sqrt(x) ** 2", "math.sqrt(x) * 2"),
        ("math.sqrt(x)", "x"),
        ("-math.sqrt(x) ** 2", "math.sqrt(x) ** 2"),
        ("2", "3"),
        ("2", "4"),
        ("x < 0", "x >= 0"),
        ("1.5", "3.0"),
        ("0", "1"),
    }
    assert ("max(LIMIT, 4)", "min(LIMIT, 4)") in changes("Box.half")
    assert ("3.0", "6.0") in changes("")


def test_words_are_left_alone():
    texts = {one.before for one in mutants("sample", SOURCE)}
    assert "7" not in texts
    assert "1 + 1" not in texts
    assert "2 * x" not in texts


def test_signs_under_a_square_are_left_alone():
    source = "def f(x, y):\n    return abs(x - y) + (x + y) ** 2"
    assert not [one for one in mutants("sample", source) if one.after in {"-(x - y)", "-(x + y)"}]


@pytest.fixture
def sample(tmp_path, monkeypatch):
    path = tmp_path / "sample.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("sample", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sample", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("one", list(mutants("sample", SOURCE)), ids=lambda one: f"{one.before}-{one.after}")
def test_every_alteration_can_be_planted(sample, one):
    by_name, box = sample.area, sample.Box()
    assert plant(sample, one.tree)
    assert sample.area is by_name
    assert sys.modules["sample"] is sample
    if (one.before, one.after) == ("scale * x", "scale / x"):
        assert by_name(4.0) == -4.0 + 1.5 / 4.0
    if (one.before, one.after) == ("max(LIMIT, 4)", "min(LIMIT, 4)"):
        assert box.half == 1.5
    if (one.before, one.after) == ("1.5", "3.0"):
        assert by_name(4.0) == -4.0 + 3.0 * 4.0
    if (one.before, one.after) == ("3.0", "6.0"):
        assert box.half == 3.0


def test_nothing_altered_is_told(sample):

    assert not plant(sample, ast.parse(SOURCE))


def test_tests_are_those_that_import_the_module():
    names = [path.name for path in files_that_test("matrices")]
    assert "test_analysis_spectral.py" in names
    assert "test_analysis_sde.py" in names  # through sde.py
    assert "test_linalg.py" not in names


def test_every_reason_names_an_alteration_that_exists():
    known = set()
    for module in {key[0] for key in runner.load_reasons()}:
        source = (ROOT / "dpmech" / "analysis" / f"{module}.py").read_text(encoding="utf-8")
        known |= {one.key for one in mutants(module, source)}
    assert set(runner.load_reasons()) <= known
    assert all(len(why) > 10 for why in runner.load_reasons().values())


def test_a_reason_stands_once(tmp_path):
    path = tmp_path / "survivors.toml"
    entry = '[[survivor]]\nmodule = "a"\nfunction = "f"\nwhy = "because"\nchanges = [["x", "y"]]\n'
    path.write_text(entry)
    assert runner.load_reasons(path) == {("a", "f", "x", "y", 0): "because"}
    path.write_text(entry * 2)
    with pytest.raises(ValueError, match="stands twice"):
        runner.load_reasons(path)


def test_the_page_keeps_modules_that_were_not_run(tmp_path):
    page = tmp_path / "mutation.md"
    reasons = {("b", "f", "x", "y", 0): "why not"}
    known = ["a", "b", "c"]
    write_page(page, [Tally("a", 10, 9, 1, 0, 2.0), Tally("b", 4, 3, 1, 0, 1.0)], reasons, known)
    write_page(page, [Tally("b", 5, 4, 1, 0, 1.0)], reasons, known)
    text = page.read_text(encoding="utf-8")
    assert "| `a` | 10 | 9 | 1 |" in text
    assert "| `b` | 5 | 4 | 1 |" in text
    assert "| `c` | not run yet |  |  |" in text
    assert "| all | 15 | 13 | 2 |" in text
    assert "- `b.f`: `x` to `y`. why not" in text


def test_the_page_leaves_nothing_unexplained():
    page = (ROOT / "docs" / "mutation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (\d*) \| (\d*) \|$", page, re.MULTILINE)
    assert [name for name, *_ in rows] == runner.MODULES
    for name, total, killed, equivalent in rows:
        assert total == "not run yet" or int(total) == int(killed) + int(equivalent), name


@pytest.mark.slow
def test_a_run_tells_tested_formulas_from_untested_ones(tmp_path):
    command = [
        sys.executable,
        "-m",
        "verification.mutation",
        "budgeted_floor",
        "--page",
        str(tmp_path / "m.md"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 unexplained" in done.stdout
    assert "| `budgeted_floor` |" in (tmp_path / "m.md").read_text(encoding="utf-8")


def test_an_unknown_module_is_refused(capsys):
    with pytest.raises(SystemExit):
        runner.main(["nothing"])
    assert "no module nothing" in capsys.readouterr().err
