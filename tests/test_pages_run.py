"""Pages whose code is one script: it is run as printed."""

import warnings

import pytest

from tests.support.page_blocks import parts
from tests.support.pages import DOCS

torch = pytest.importorskip("torch")

# What comes first on a page, up to the first section that begins anew.
NEEDS = {"hugging_face.md": ("transformers", "accelerate", "lightning"), "other_libraries.md": ("opacus",)}


@pytest.mark.slow
@pytest.mark.parametrize("page", NEEDS)
def test_the_code_of_a_page_runs_as_printed(page, tmp_path, monkeypatch):
    for package in NEEDS[page]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names, blocks = {"__name__": "__page__"}, parts(DOCS / page)[f"docs/{page}"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in blocks:
            exec(compile(block.code, f"{page}:{block.line}", "exec"), names)
    assert len(blocks) >= 5
