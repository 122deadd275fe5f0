"""Pages whose code is one script: it is run as printed."""

import warnings

import pytest

from tests.support.page_blocks import parts, run_blocks
from tests.support.pages import DOCS

torch = pytest.importorskip("torch")

# What comes first on a page, up to the first section that begins anew.
NEEDS = {
    "hugging_face.md": ("transformers", "accelerate", "lightning", "trl"),
    "other_libraries.md": ("opacus",),
}


def test_fine_tuning_takes_six_lines_more_than_the_script_without_privacy():
    """Changed or new; names of folders and empty lines aside."""
    plain, private = (
        block.code.splitlines()
        for block in parts(DOCS / "hugging_face.md")["docs/hugging_face.md"]
        if "trainer.save_model" in block.code and "SFTTrainer(" in block.code
    )
    folders = {"sft-private": "sft", "private-adapter": "adapter"}
    for own, theirs in folders.items():
        private = [line.replace(own, theirs) for line in private]
    new = [line for line in private if line.strip() and line not in plain]
    gone = [line for line in plain if line not in private]
    assert len(new) == 6
    assert gone == ["trainer = trl.SFTTrainer("]


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
            if block.kind == "console":
                run_blocks([block], page)
            else:
                exec(compile(block.code, f"{page}:{block.line}", "exec"), names)
    assert len(blocks) >= 5
