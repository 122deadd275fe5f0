"""The README and the page of the command line say the same; tests/test_blocks.py runs both."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "command_line.md"


def test_the_readme_shows_the_same_answer():
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    (answer,) = re.findall(r"^dpmech epsilon: .*$", readme, re.MULTILINE)
    assert answer in PAGE.read_text(encoding="utf-8")
