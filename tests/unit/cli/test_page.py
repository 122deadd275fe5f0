"""The page of the command line shows what the commands print."""

import pathlib
import re
import shlex

import pytest

from tests.support.command_line import run

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "command_line.md"
BLOCK = re.compile(r"```console\n\$ (dpmech .*?[^\\])\n(.*?)```", re.DOTALL)
NUMBER = r"(?<![\w.])\d+\.?\d*(?:e-\d+)?(?![\w.]*\w)"


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) >= 6
    for call, stated in blocks:
        result = run(*shlex.split(call.replace("\\\n", ""))[1:])
        found = result.stdout + (result.stderr if not result.stdout else "")
        # Fits and times move a little from machine to machine; words, files and what was typed do not.
        for one, other in zip(without_times(found), without_times(stated), strict=True):
            assert re.sub(NUMBER, "#", one) == re.sub(NUMBER, "#", other)
            for number, said in zip(re.findall(NUMBER, one), re.findall(NUMBER, other), strict=True):
                assert float(number) == pytest.approx(float(said), rel=2e-3)


def without_times(text):
    """Lines as words, the column and the row of seconds left out."""
    lines, column = [], None
    for line in text.strip().splitlines():
        cells = re.split(r"[│┃]", line)
        if len(cells) < 3:
            column = column if line.startswith("┡") else None
        elif "seconds" in line:
            names = [cell.strip() for cell in cells]
            if line.startswith("│"):
                continue
            column = names.index("seconds")
        elif column is not None:
            cells[column] = ""
        lines.append(" ".join(" ".join(cells).split()))
    return lines


def test_the_readme_shows_the_same_answer():
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    (answer,) = re.findall(r"^dpmech epsilon: .*$", readme, re.MULTILINE)
    assert answer in PAGE.read_text(encoding="utf-8")
