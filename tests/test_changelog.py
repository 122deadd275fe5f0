"""The changelog and its fragments: each gets on to the page, where every heading stands once."""

import collections
import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
TYPES = {one["directory"]: one["name"] for one in SETTINGS["type"]}
NAMED = re.compile(rf"(\d+|\+[\w-]+)\.({'|'.join(TYPES)})(\.\d+)?\.md")


def test_the_sections_of_our_own_are_there():
    assert {"Privacy fixes", "Numerical changes"} <= set(TYPES.values())
    assert PAGE.count(SETTINGS["start_string"]) == 1


def test_no_heading_stands_twice():
    for release in PAGE.split("\n## ")[1:]:
        headings = collections.Counter(re.findall(r"^### (.*)$", release, flags=re.MULTILINE))
        assert max(headings.values()) == 1
        assert set(headings) <= set(TYPES.values())


def test_fragments_have_names_that_towncrier_knows():
    fragments = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name != ".gitignore"]
    assert [name for name in fragments if not NAMED.fullmatch(name)] == []
    assert not NAMED.fullmatch("15.security.md")
    assert NAMED.fullmatch("+two-words.privacy.md")


def test_a_fragment_is_rendered_under_its_section(tmp_path):
    pytest.importorskip("towncrier")
    from click.testing import CliRunner
    from towncrier.build import _main as build

    for name in ("pyproject.toml", "docs", "changelog.d"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "changelog.d").unlink()
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "15.privacy.md").write_text("A sigma that was too small.\n", encoding="utf-8")
    options = ["--draft", "--version", "9.9", "--date", "2030-01-01", "--dir", str(tmp_path)]
    text = CliRunner().invoke(build, options, catch_exceptions=False).output
    assert "## 9.9 (2030-01-01)\n\n### Privacy fixes\n\n- A sigma that was too small. (issue 15)" in text
