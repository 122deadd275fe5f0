"""Where the pages are that people read: the documentation, the pages of sampling schemes, the README."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
# A page of the documentation includes those that stand next to the code of their scheme.
FAULTS = ROOT / "verification" / "faults" / "page.md"
INCLUDED = [*sorted((ROOT / "dpmech" / "schemes").glob("*/*.md")), FAULTS]
PAGES = [*sorted(DOCS.glob("*.md")), *INCLUDED, README]


def name(page):
    """A page by its path within the checkout."""
    return page.relative_to(ROOT).as_posix()
