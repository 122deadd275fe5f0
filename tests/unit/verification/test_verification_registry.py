"""The registry refuses entries that lack what a reader needs, and its entries stand in the papers."""

import os
import re
from pathlib import Path

import pytest

from verification.harness.registry import (
    Statement,
    nudges,
    papers,
    registry,
    witnesses,
)
from verification.harness.verdict import CHECKS, UNSETTLED, InconclusiveError

ROOT = Path(__file__).parents[3]
REGISTRY = registry()
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
    def value(held):
        return f"[{', '.join(map(value, held))}]" if isinstance(held, tuple) else repr(held)

    return "[[statement]]\n" + "".join(f"{name} = {value(one)}\n" for name, one in (ENTRY | changes).items())


def test_a_registry_with_mistakes_is_refused(tmp_path):
    (tmp_path / "x.toml").write_text(toml())
    assert registry(tmp_path) == {"x.a": Statement(**ENTRY)}
    (tmp_path / "x.toml").write_text(toml() * 2)
    with pytest.raises(ValueError, match="stands twice"):
        registry(tmp_path)
    (tmp_path / "x.toml").write_text(toml(paper="y"))
    with pytest.raises(ValueError, match=r"stands in x\.toml"):
        registry(tmp_path)
    for wrong in (toml(erratum="e"), toml().replace("find = ", "found = "), toml().replace("kind", "sort")):
        (tmp_path / "x.toml").write_text(wrong)
        with pytest.raises(ValueError, match=r"x\.a lacks a field or has another one"):
            registry(tmp_path)
    for wrong in ('[paper]\ntitle = "T"\n', toml()):
        (tmp_path / "x.toml").write_text(wrong)
        with pytest.raises(ValueError, match="title, authors, year, source and symbols"):
            papers(tmp_path)


def test_every_paper_names_its_source():
    sources = papers()
    assert {entry.paper for entry in REGISTRY.values()} == set(sources)
    for source in sources.values():
        assert source.title
        assert source.authors
        assert 2020 <= source.year <= 2030
        assert source.source
        assert source.symbols


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


def misplaced(entry, lines):
    """What of a location does not stand in these lines."""
    near = " ".join(" ".join(lines[max(0, entry.line - 1 - WINDOW) : entry.line + WINDOW]).split())
    wrong = [term for term in entry.find if term not in near]
    whole = letters(" ".join(lines))
    wrong += [
        f"{kind} {number}"
        for kind, number in LABEL.findall(entry.location)
        if letters(kind + number) not in whole
    ]
    text = "\n".join(lines)
    numbers = EQUATION.findall(entry.location)
    wrong += [
        f"eq. {number}" for number in numbers if not re.search(rf"\({number}\)|\\tag\{{{number}\}}", text)
    ]
    return wrong if entry.line <= len(lines) else [*wrong, f"line {entry.line}"]


@pytest.mark.parametrize("paper", sorted(papers()))
def test_locations_are_found_in_the_text_of_the_paper(paper):
    if paper not in TEXTS:
        pytest.skip("the papers' texts are not here; DPMECH_PAPERS names their folder")
    wrong = {name: misplaced(entry, TEXTS[paper]) for name, entry in REGISTRY.items() if entry.paper == paper}
    assert wrong
    assert {name: terms for name, terms in wrong.items() if terms} == {}


def test_a_wrong_location_is_seen():
    lines = ["**Theorem 1.** *Let*", "$$x \\leq 2 \\quad (3)$$", *[""] * 30, "Table 4"]
    right = ENTRY | {"location": "Theorem 1, eq. 3", "line": 2, "find": ("x \\leq 2",)}
    assert misplaced(Statement(**right), lines) == []
    assert misplaced(Statement(**right | {"location": "Theorem 2"}), lines) == ["Theorem 2"]
    assert misplaced(Statement(**right | {"location": "eq. 4"}), lines) == ["eq. 4"]
    assert misplaced(Statement(**right | {"find": ("Table 4",)}), lines) == ["Table 4"]
    assert misplaced(Statement(**right | {"line": 50, "find": ("Table 4",)}), lines) == ["Table 4", "line 50"]


def outcome(claim, factor):
    try:
        return claim(factor).status
    except InconclusiveError:
        return UNSETTLED


def test_an_entry_names_its_numbers_or_says_that_it_has_none():
    said = {name: set(entry.loose) for name, entry in REGISTRY.items()}
    assert [name for name in said if bool(NUDGES.get(name)) == ("no number" in said[name])] == []
    unknown = {
        name: loose
        - {f"{claim} {way}" for claim in NUDGES.get(name, {}) for way in ("up", "down")}
        - {"up", "down", "no number"}
        for name, loose in said.items()
    }
    assert {name: loose for name, loose in unknown.items() if loose} == {}


NUDGED = [
    pytest.param(name, claim, marks=[pytest.mark.slow] if CHECKS[name].full else [], id=f"{name}-{claim}")
    for name in sorted(REGISTRY)
    for claim in NUDGES.get(name, {})
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "claim"), NUDGED)
def test_a_claim_moved_by_one_per_cent_turns_the_verdict(name, claim):
    check, loose = CHECKS[name], REGISTRY[name].loose
    assert outcome(NUDGES[name][claim], 1.0) == check.expected
    for way, factor in (("up", 1.01), ("down", 0.99)):
        turned = outcome(NUDGES[name][claim], factor) != check.expected
        assert turned == (not {way, f"{claim} {way}"} & set(loose)), f"{claim} {way}"


@pytest.mark.parametrize(
    "name",
    sorted({name for name, entry in REGISTRY.items() if entry.verdict == "COUNTEREXAMPLE"} | set(WITNESSES)),
)
def test_a_witness_satisfies_the_printed_hypotheses(name):
    held = WITNESSES[name]()
    assert held or REGISTRY[name].hypotheses == "none"
    assert all(held.values()), [hypothesis for hypothesis, holds in held.items() if not holds]


def test_nothing_has_a_nudge_or_a_witness_that_is_not_registered():
    assert set(NUDGES) <= set(REGISTRY)
    judged = {"COUNTEREXAMPLE", "CONDITIONAL"}
    assert set(WITNESSES) <= {name for name, entry in REGISTRY.items() if entry.verdict in judged}
