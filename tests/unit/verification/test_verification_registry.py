"""The registry refuses entries that lack what a reader needs, and its entries stand in the papers."""

import os
import re
from pathlib import Path

import pytest

from verification.harness.registry import (
    UNCONVERTED,
    Statement,
    nudges,
    papers,
    registry,
    unconverted,
    witnesses,
)
from verification.harness.verdict import CHECKS, UNSETTLED, InconclusiveError

ROOT = Path(__file__).parents[3]
REGISTRY = registry()
CONVERTED = {name: entry for name, entry in REGISTRY.items() if entry.converted}
NUDGES = nudges()
WITNESSES = witnesses()
WINDOW = 10
LABEL = re.compile(
    r"\b(Theorem|Lemma|Corollary|Proposition|Definition|Assumption|Remark|Table|Figure|Algorithm)s? "
    r"([A-Z]?\.?\d+(?:\.\d+)?)"
)
EQUATION = re.compile(r"\beq\. (\d+)")

ENTRY = {
    "id": "x.a",
    "paper": "x",
    "verdict": "CONFIRMED",
    "statement": "t",
    "location": "Theorem 1",
    "kind": "theorem",
    "line": 3,
    "find": ("Theorem 1",),
    "printed": "$1$",
    "hypotheses": "none",
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "REFUTED"}, "verdict must be one of"),
        ({"verdict": UNSETTLED}, "verdict must be one of"),
        ({"statement": ""}, "statement must be"),
        ({"location": ""}, "location must be"),
        ({"kind": "claim"}, "kind must be one of"),
        ({"line": 0}, "line must be"),
        ({"find": ()}, "find must be"),
        ({"find": ("six words are one too many",)}, "find must be"),
        ({"printed": ""}, "printed must be"),
        ({"hypotheses": ""}, "hypotheses must be"),
        ({"verdict": "WORDING"}, "remark must be"),
        ({"verdict": "COUNTEREXAMPLE", "remark": "r", "garbled": True}, "garbled must be"),
        ({"changes_number": True}, "changes_number must be"),
        ({"loose": {"sideways": "why"}}, "loose must be"),
        ({"loose": {"up": ""}}, "loose must be"),
    ],
)
def test_an_entry_that_lacks_something_is_refused(changes, message):
    Statement(**ENTRY)
    with pytest.raises(ValueError, match=message):
        Statement(**ENTRY | changes)


def toml(**changes):
    fields = {"id": "x.a", "paper": "x", "verdict": "CONFIRMED", "statement": "t", "location": "s"} | changes
    return "[[statement]]\n" + "".join(f'{name} = "{value}"\n' for name, value in fields.items())


def test_a_registry_with_mistakes_is_refused(tmp_path):
    (tmp_path / UNCONVERTED).write_text("x.a\n")
    (tmp_path / "x.toml").write_text(toml())
    assert registry(tmp_path) == {"x.a": Statement("x.a", "x", "CONFIRMED", "t", "s")}
    (tmp_path / "x.toml").write_text(toml() * 2)
    with pytest.raises(ValueError, match="stands twice"):
        registry(tmp_path)
    (tmp_path / "x.toml").write_text(toml(paper="y"))
    with pytest.raises(ValueError, match=r"stands in x\.toml"):
        registry(tmp_path)
    (tmp_path / "x.toml").write_text(toml(id="x.b"))
    with pytest.raises(ValueError, match=r"x\.b: an entry has `kind`"):
        registry(tmp_path)
    (tmp_path / UNCONVERTED).write_text("x.a\nx.gone\n")
    (tmp_path / "x.toml").write_text(toml())
    with pytest.raises(ValueError, match=r"names what is not in the registry: \['x\.gone'\]"):
        registry(tmp_path)
    (tmp_path / "x.toml").write_text('[paper]\ntitle = "T"\n')
    with pytest.raises(ValueError, match="title, authors, year and source"):
        papers(tmp_path)


def test_a_paper_whose_entries_are_converted_names_its_source():
    waiting = {REGISTRY[name].paper for name in unconverted()}
    for paper in {entry.paper for entry in REGISTRY.values()} - waiting:
        source = papers()[paper]
        assert source.title
        assert source.authors
        assert 2020 <= source.year <= 2030
        assert source.source


def letters(text):
    return re.sub(r"[^a-z0-9]", "", text.lower())


def texts():
    """The papers' texts by short name; they are no part of the repository."""
    folder = Path(os.environ.get("DPMECH_PAPERS", ROOT.parent / "shared" / "papers"))
    found = {}
    for path in sorted(folder.glob("*.txt")) if folder.is_dir() else ():
        text = path.read_text(encoding="utf-8")
        for name, paper in papers().items():
            if letters(paper.title) in letters(text[:3000]):
                found[name] = text.splitlines()
    return found


TEXTS = texts()


@pytest.mark.parametrize("name", sorted(CONVERTED))
def test_a_location_is_found_in_the_text_of_the_paper(name):
    entry = CONVERTED[name]
    if entry.paper not in TEXTS:
        pytest.skip("the papers' texts are not here; DPMECH_PAPERS names their folder")
    lines = TEXTS[entry.paper]
    assert entry.line <= len(lines)
    near = " ".join(" ".join(lines[max(0, entry.line - 1 - WINDOW) : entry.line + WINDOW]).split())
    for term in entry.find:
        assert term in near, f"{term!r} does not stand near line {entry.line}"
    whole = letters(" ".join(lines))
    for kind, number in LABEL.findall(entry.location):
        assert letters(kind + number) in whole
    for number in EQUATION.findall(entry.location):
        assert re.search(rf"\({number}\)|\\tag\{{{number}\}}", "\n".join(lines)), f"no equation {number}"


def outcome(claim, factor):
    try:
        return claim(factor).status
    except InconclusiveError:
        return UNSETTLED


@pytest.mark.parametrize("name", sorted(CONVERTED))
def test_an_entry_names_its_numbers_or_says_that_it_has_none(name):
    assert bool(NUDGES.get(name)) != ("no number" in CONVERTED[name].loose)
    known = {f"{claim} {way}" for claim in NUDGES.get(name, {}) for way in ("up", "down")}
    assert set(CONVERTED[name].loose) <= known | {"up", "down", "no number"}


NUDGED = [
    pytest.param(name, claim, marks=[pytest.mark.slow] if CHECKS[name].full else [], id=f"{name}-{claim}")
    for name in sorted(CONVERTED)
    for claim in NUDGES.get(name, {})
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "claim"), NUDGED)
def test_a_claim_moved_by_one_per_cent_turns_the_verdict(name, claim):
    check, loose = CHECKS[name], CONVERTED[name].loose
    assert outcome(NUDGES[name][claim], 1.0) == check.expected
    for way, factor in (("up", 1.01), ("down", 0.99)):
        turned = outcome(NUDGES[name][claim], factor) != check.expected
        assert turned == (not {way, f"{claim} {way}"} & set(loose)), f"{claim} {way}"


@pytest.mark.parametrize(
    "name", sorted(name for name, entry in CONVERTED.items() if entry.verdict == "COUNTEREXAMPLE")
)
def test_a_witness_satisfies_the_printed_hypotheses(name):
    held = WITNESSES[name]()
    assert held or CONVERTED[name].hypotheses == "none"
    assert all(held.values()), [hypothesis for hypothesis, holds in held.items() if not holds]


def test_nothing_has_a_nudge_or_a_witness_that_is_not_registered():
    assert set(NUDGES) <= set(REGISTRY)
    assert set(WITNESSES) <= {name for name, entry in REGISTRY.items() if entry.verdict == "COUNTEREXAMPLE"}
