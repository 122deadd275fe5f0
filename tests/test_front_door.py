"""What a reader meets first: the number and length of pages, the width of their code, and their words."""

import io
import pathlib
import re
import tokenize

import pytest

from tests.support.pages import DOCS, PAGES, README, ROOT, name

README_LINES, PAGES_MOST, PAGE_LINES, COLUMNS = 120, 35, 850, 80
# Code that is typed; what programs print is as wide as they print it.
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TYPED = {"python", "pycon", "console", "sh", "shell", "toml", "yaml"}
# Words that a reader of the field would have to read twice; in prose, not in code.
WORDS = re.compile(
    r"\blots?\b|physical batch(?!_)|\bpromis(?:e|es|ed|ing)\b|\bow(?:e|es|ed)\b|\bdut(?:y|ies)\b|"
    r"second route|\bcurrenc(?:y|ies)\b|\brests for\b|\bprogrammes?\b|\bbets?\b|\bgamblers?\b|"
    r"wrongly (?:suspects|finds|accus)|\bseal(?:s|ed)?\b|\bnormalisers?\b|\bthrow[ns]?\b|\bthrowing\b|"
    r"several owners|\bdear(?:er|est)?\b|\bbesides?\b|\bmend(?:s|ed|ing)?\b|\bwhole numbers?\b|"
    r"\bsure(?:r|st)?\b|delta\) alone|\btimes less\b|\bturn(?:s|ed)? (?:it )?round\b|\bwhoever\b|"
    r"\bat hand\b|\bdrawn again\b",
    re.IGNORECASE,
)
# History names what is gone; reasons of survivors quote the code.
ELSEWHERE = {"docs/changelog.md", "docs/mutation.md"}


def prose(text):
    """A page without code, formulas and addresses, its lines kept."""

    def blank(match):
        return "\n" * match[0].count("\n")

    text = FENCE.sub(blank, text)
    return re.sub(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|<!--.*?-->", blank, text, flags=re.DOTALL)


def typed(text):
    """Lines of code that a reader types, with their number."""
    for fence in FENCE.finditer(text):
        kind, start = fence[1].strip(), text.count("\n", 0, fence.start(2)) + 1
        goes_on = False
        for place, line in enumerate(fence[2].splitlines()):
            prompt = line.startswith(("$ ", ">>> ", "... ")) or goes_on
            goes_on = kind == "console" and prompt and line.endswith("\\")
            if kind in TYPED and (prompt or kind not in {"console", "pycon"}):
                yield start + place, line


def wide(text):
    return [number for number, line in typed(text) if len(line) > COLUMNS]


def test_there_are_few_pages_and_none_is_endless():
    pages = sorted(DOCS.rglob("*.md"))
    written = [page for page in pages if not {"generated", "_build"} & set(page.relative_to(DOCS).parts)]
    assert len(written) <= PAGES_MOST, [name(page) for page in written]
    assert len(README.read_text(encoding="utf-8").splitlines()) <= README_LINES
    long = {name(page): len(page.read_text(encoding="utf-8").splitlines()) for page in PAGES}
    assert {page: lines for page, lines in long.items() if lines > PAGE_LINES} == {}


def test_every_page_of_a_scheme_is_included_by_one_page():
    stubs = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    for page in (page for page in PAGES if "schemes" in page.parts):
        include = f"```{{include}} ../{name(page)}\n"
        assert sum(text.startswith(include) for text in stubs) == 1, name(page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_fits_80_columns(page):
    assert wide(page.read_text(encoding="utf-8")) == []


def test_shown_scripts_fit_80_columns():
    shown = {
        (page.parent / path).resolve()
        for page in PAGES
        for path in re.findall(r"\{literalinclude\} (\S+)", page.read_text(encoding="utf-8"))
    }
    assert len(shown) >= 2
    lines = {path.name: path.read_text(encoding="utf-8").splitlines() for path in shown}
    assert {one: line for one, several in lines.items() for line in several if len(line) > COLUMNS} == {}


@pytest.mark.parametrize("page", [page for page in PAGES if name(page) not in ELSEWHERE], ids=name)
def test_pages_have_the_words_of_the_field(page):
    lines = enumerate(prose(page.read_text(encoding="utf-8")).splitlines(), 1)
    assert [(number, found[0]) for number, line in lines for found in WORDS.finditer(line)] == []


# A sequential test bets, as its literature says.
CODE_WORDS = {"bet", "bets"}


def spoken(text):
    """Strings and comments of a module, with their lines: docstrings, help, errors and what is printed."""
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield token.start[0], re.sub(r"`[^`]*`|\{[^{}]*\}", "", token.string)


def private_words(path):
    text = path.read_text(encoding="utf-8")
    parts = spoken(text) if path.suffix == ".py" else enumerate(text.splitlines(), 1)
    found = [(line, match[0]) for line, part in parts for match in WORDS.finditer(part)]
    return [one for one in found if one[1].lower() not in CODE_WORDS]


def test_docstrings_help_errors_and_templates_have_the_words_of_the_field():
    package, examples = ROOT / "dpmech", DOCS / "examples"
    paths = [*package.rglob("*.py"), *examples.rglob("*.py"), *(package / "reports").rglob("*.html")]
    paths += [*(package / "reports").rglob("*.js"), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    assert len(paths) > 300
    assert {name(path): found for path in paths if (found := private_words(path))} == {}


def test_a_private_word_in_a_docstring_or_an_error_is_seen(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""Draws a lot."""\n\nlot = f"whoever has {lot}"  # beside `lot`\n', encoding="utf-8")
    assert private_words(module) == [(1, "lot"), (3, "whoever"), (3, "beside")]


def test_a_wide_line_and_a_private_word_are_seen():
    long = "x = 1  # " + "-" * COLUMNS
    assert wide(f"```python\n{long}\n```\n") == [2]
    assert wide(f"```console\n$ dpmech {long} \\\n    {long}\n{long}\n```\n") == [2, 3]
    assert wide(f"```text\n{long}\n```\n\n{long}\n") == []
    assert wide(f"```pycon\n>>> {long}\n{long}\n```\n") == [2]
    assert WORDS.findall(prose("A lot is drawn.\n\n```python\nlot = 1\n```\n")) == ["lot"]
    assert WORDS.findall(prose("Whoever has\n`whole numbers` and 3.1 times less is sure.")) == [
        "Whoever",
        "times less",
        "sure",
    ]
    assert not WORDS.findall(prose("A slot is measured, and assured."))


def test_the_landing_page_has_the_figure_three_entries_and_the_ten_lines():
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    assert page.count("{figure}") == page.count("{include}") == 1
    assert page.count("\n| **") == 3
    assert not re.search(r"^## ", page, re.MULTILINE)


def test_the_readme_names_how_long_its_commands_take():
    text = README.read_text(encoding="utf-8")
    assert re.search(r"\$ make demo +# .*\d+ min", text)
    assert re.search(r"\$ make test +# .*\d+ minutes", text)
    assert "ower error = better, lower eps = stronger privacy" in text
    assert pathlib.Path(ROOT / "docs" / "figures" / "error_against_eps.png").is_file()


NAMED = re.compile(r"docs/(\w+\.md)(?:#([\w-]+))?")


def anchors(page):
    """What can be linked on a page, in order, as headings become anchors, with those of what it includes."""
    text = page.read_text(encoding="utf-8")
    for included in re.findall(r"^```\{include\} (\S+\.md)$", text, re.MULTILINE):
        if (page.parent / included).suffix == ".md" and not included.endswith("README.md"):
            text += (page.parent / included).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


# Pages that are written from lists, whose headings nobody links.
LISTS = {"verification.md", "checker.md", "mutation.md", "changelog.md"}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=name)
def test_no_two_headings_of_a_page_have_one_anchor(page):
    found = [one for one in anchors(page) if one != "reference"]
    assert page.name in LISTS or len(found) == len(set(found)), sorted(found)


def nowhere(text):
    """Pages, or places of pages, that a text names and that are not there."""
    return [
        f"{page}#{anchor}" if anchor else page
        for page, anchor in NAMED.findall(text)
        if not (DOCS / page).is_file() or (anchor and anchor not in anchors(DOCS / page))
    ]


def test_pages_that_code_and_texts_name_are_there():
    texts = [
        README,
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "changelog.d").glob("*.md"),
        *(ROOT / ".github").rglob("*.md"),
    ]
    code = [path for folder in ("dpmech", "verification", "tests") for path in (ROOT / folder).rglob("*.py")]
    named = {
        path: nowhere(path.read_text(encoding="utf-8"))
        for path in [*texts, *code]
        if path != pathlib.Path(__file__)
    }
    assert {name(path): found for path, found in named.items() if found} == {}
    assert sum("docs/" in path.read_text(encoding="utf-8") for path in code) > 10
    assert nowhere("docs/gone.md and docs/faq.md#no-such-place, docs/poisson.md#truncated-batches") == [
        "gone.md",
        "faq.md#no-such-place",
    ]
