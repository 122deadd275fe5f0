"""Pages whose code is one script: it is run as printed."""

import pathlib
import re
import warnings

import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).parents[1]
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
NEEDS = {"hugging_face.md": ("transformers", "accelerate", "lightning"), "other_libraries.md": ("opacus",)}


def blocks(page):
    return CODE.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("page", NEEDS)
def test_the_code_of_a_page_runs_as_printed(page, tmp_path, monkeypatch):
    for package in NEEDS[page]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__page__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, block in enumerate(blocks(page)):
            exec(compile(block, f"{page}, block {number}", "exec"), names)
    assert len(blocks(page)) >= 5
