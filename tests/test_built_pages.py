"""Pages in a browser without a network: none scrolls sideways on a phone or a desk, or asks for anything."""

import shutil
import subprocess
import sys

import pytest

from tests.support.built_pages import BUILT, faults, pages, reader

DOCS = BUILT.parents[1]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One page with formulas, code and wide tables, built with the settings of all."""
    pytest.importorskip("myst_nb", reason="the extra `docs` is optional")
    source, built = (tmp_path_factory.mktemp(name) for name in ("source", "built"))
    for name in ("conf.py", "mathml.py", "command_pages.py", "references.bib"):
        shutil.copy(DOCS / name, source / name)
    shutil.copytree(DOCS / "static", source / "static")
    text = (DOCS / "balls_in_bins.md").read_text(encoding="utf-8")
    (source / "index.md").write_text(text, encoding="utf-8")
    only = ["-D", "exclude_patterns=generated", "-D", "autosummary_generate=0"]
    command = [sys.executable, "-m", "sphinx", "-q", *only, str(source), str(built)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return built


def test_a_page_fits_a_phone_and_needs_no_network(small):
    with reader() as page:
        assert faults(page, small / "index.html") == []
        assert page.locator("math").count() > 20


def test_what_is_wrong_is_seen(tmp_path):
    path = tmp_path / "bad.html"
    wide = "<article><p style='width: 900px'>wide</p></article>"
    path.write_text(f"<!doctype html>{wide}<img src='https://example.org/a.png'>", encoding="utf-8")
    with reader() as page:
        found = " ".join(faults(page, path))
    assert "phone: scrolls sideways" in found
    assert "phone: outside <p" in found
    assert "desk" not in found
    assert "https://example.org/a.png" in found


@pytest.mark.slow
def test_every_page_fits_and_needs_no_network():
    if not (BUILT / "index.html").exists():
        pytest.skip("no pages: `make docs` builds them")
    names = pages()
    assert len(names) > 100
    with reader() as page:
        found = {name: faults(page, BUILT / f"{name}.html") for name in names}
    assert {name: one for name, one in found.items() if one} == {}


@pytest.mark.slow
def test_figures_of_notebooks_are_pictures():
    built = sorted((BUILT / "notebooks").glob("*.html"))
    if not built:
        pytest.skip("no pages: `make docs` builds them")
    assert [path.name for path in built if "Figure size" in path.read_text(encoding="utf-8")] == []
