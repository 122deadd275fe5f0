"""Pages in a browser without a network: none scrolls sideways on a phone or a desk, or asks for anything."""

import shutil
import subprocess
import sys

import pytest

from tests.support.built_pages import BUILT, broken_links, faults, pages, reader

DOCS = BUILT.parents[1]
PLANTED = """# Pages

## Here

[](#here), [](other.md#there),
[](#no-anchor), [](other.md#no-place), [](no_page.md), {py:class}`dpmech.NoName`

```{toctree}
other
```

```{eval-rst}
.. py:function:: found(given: uuid.UUID, array: numpy.ndarray) -> dpmech.NoType
```
"""


# The extensions of this project, among other scripts.
EXTENSIONS = [path for path in DOCS.glob("*.py") if "def setup(app" in path.read_text(encoding="utf-8")]


def settings(source):
    """A folder with the settings of all pages; returns the command that builds pages from it."""
    for path in (DOCS / "conf.py", DOCS / "references.bib", *EXTENSIONS):
        shutil.copy(path, source / path.name)
    shutil.copytree(DOCS / "static", source / "static")
    only = ["-D", "exclude_patterns=generated", "-D", "autosummary_generate=0"]
    return [sys.executable, "-m", "sphinx", "-q", *only, str(source)]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One page with formulas, code and wide tables, built with the settings of all."""
    pytest.importorskip("myst_parser", reason="the extra `docs` is optional")
    source, built = (tmp_path_factory.mktemp(name) for name in ("source", "built"))
    command = settings(source)
    text = (DOCS.parent / "dpmech" / "schemes" / "balls_in_bins" / "page.md").read_text(encoding="utf-8")
    (source / "index.md").write_text(text, encoding="utf-8")
    done = subprocess.run([*command, str(built)], capture_output=True, text=True, check=False, timeout=300)
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
def test_the_build_names_every_link_that_leads_nowhere(tmp_path):
    pytest.importorskip("myst_parser", reason="the extra `docs` is optional")
    command = settings(tmp_path)
    (tmp_path / "index.md").write_text(PLANTED, encoding="utf-8")
    (tmp_path / "other.md").write_text("# Other\n\n## There\n\nWords.\n", encoding="utf-8")
    built = str(tmp_path / "built")
    done = subprocess.run(
        [*command, "-n", "-W", built], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1
    warned = [line for line in done.stderr.splitlines() if "not found" in line]
    planted = ("no-anchor", "no-place", "no_page.md", "dpmech.NoName", "uuid.UUID", "dpmech.NoType")
    assert [sum(one in line for line in warned) for one in planted] == [1] * len(planted)
    assert len(warned) == len(planted), warned


def test_a_broken_link_of_a_built_page_is_seen(tmp_path):
    (tmp_path / "below").mkdir()
    good = "<h1 id='top'>a</h1><a href='#top'></a><a href='below/b.html#c%20d'></a><a href='x.txt'></a>"
    bad = "<a href='#gone'></a><a href='below/b.html#gone'></a><a href='gone.html'></a><a href='y.txt'></a>"
    (tmp_path / "a.html").write_text(good + bad, encoding="utf-8")
    far = "<a href='https://example.org/#e'></a><a href='mailto:a@example.org'></a>"
    (tmp_path / "below" / "b.html").write_text(f"<i id='c d'></i><a href='../a.html'></a>{far}", "utf-8")
    (tmp_path / "x.txt").write_text("x", encoding="utf-8")
    assert broken_links(tmp_path) == [
        f"a: {one}" for one in ("#gone", "below/b.html#gone", "gone.html", "y.txt")
    ]


@pytest.mark.slow
def test_every_link_within_the_pages_leads_somewhere():
    if not (BUILT / "index.html").exists():
        pytest.skip("no pages: `make docs` builds them")
    assert broken_links() == []


@pytest.mark.slow
def test_every_page_fits_and_needs_no_network():
    if not (BUILT / "index.html").exists():
        pytest.skip("no pages: `make docs` builds them")
    names = pages()
    assert len(names) > 100
    with reader() as page:
        found = {name: faults(page, BUILT / f"{name}.html") for name in names}
    assert {name: one for name, one in found.items() if one} == {}
