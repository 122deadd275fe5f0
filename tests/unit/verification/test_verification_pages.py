"""The pages say of each statement where it stands, what is printed and what is right."""

from pathlib import Path

import pytest

from verification.harness.outcomes import load_outcomes, save_outcomes
from verification.harness.page import write_pages
from verification.harness.registry import Paper, Statement, papers, registry
from verification.harness.verdict import STATUSES, Check, Verdict

ROOT = Path(__file__).parents[3]
PAPER = Paper("x", "On Things_with | bars", ("A. Uthor",), 2026, "arXiv 1", "The size is n_x.")


def entry(name, verdict, **changes):
    fields = {
        "kind": "lemma",
        "line": 1,
        "find": ("Lemma",),
        "printed": r"$a_1 \ge b_2$",
        "hypotheses": "$n > 1$",
    }
    remark = "2 * 3 holds." if verdict != "CONFIRMED" else ""
    return Statement(name, "x", verdict, f"All of {name}.", "Lemma 1", **fields, remark=remark, **changes)


def check(name):
    return Check(name, "x", "CONFIRMED", lambda: None, False)


def written(folder, entries, outcomes):
    write_pages(folder, {one.id: one for one in entries}, {"x": PAPER}, outcomes)
    return {path.stem: path.read_text() for path in folder.glob("*.md")}


def test_outcomes_stay_until_they_are_found_again(tmp_path):
    path = tmp_path / "outcomes.json"
    assert load_outcomes(path) == {}
    first = Verdict("CONFIRMED", "by hand", 3, -3e-14)
    save_outcomes(path, {"x.a", "x.b"}, [(check("x.a"), first), (check("x.b"), first)])
    save_outcomes(path, {"x.a", "x.b"}, [(check("x.a"), Verdict("WORDING", "again", 4, 0.256, "why"))])
    found = load_outcomes(path)
    assert found["x.a"] == {
        "status": "WORDING",
        "method": "again",
        "cases": "4",
        "margin": "0.26",
        "note": "why",
    }
    assert found["x.b"]["margin"] == "below 1e-12"
    assert set(save_outcomes(path, {"x.b"}, [])) == {"x.b"}
    with pytest.raises(ValueError, match=r"no registry entry for x\.a"):
        save_outcomes(path, {"x.b"}, [(check("x.a"), first)])


def test_a_page_groups_statements_by_verdict(tmp_path):
    outcomes = {
        "x.b": {"status": "CONFIRMED", "method": "a | b", "cases": "3", "margin": "0.5", "note": "n_1"}
    }
    pages = written(tmp_path, [entry("x.a", "WORDING"), entry("x.b", "CONFIRMED")], outcomes)
    page = pages["verification_x"]
    assert page.startswith(r"# On Things\_with \| bars")
    assert page.index("## CONFIRMED") < page.index("All of x.b.") < page.index("## WORDING")
    assert "- a \\| b\n- Cases: 3; largest deviation: 0.5\n- Result: n\\_1\n" in page
    assert r"- Printed: $a_1 \ge b_2$" in page
    assert r"The size is n\_x." in page.partition("## CONFIRMED")[0]
    assert "not been run yet" in page.partition("x.a")[2]
    assert r"2 \* 3 holds." in page
    assert "## MISPRINT" not in page
    assert "(verification_x.md)" in pages["verification"]


def test_errata_are_sorted_by_consequence(tmp_path):
    kinds = (
        ("WORDING", {}),
        ("MISPRINT", {}),
        ("MISPRINT", {"changes_number": True}),
        ("COUNTEREXAMPLE", {}),
        ("CONFIRMED", {}),
    )
    entries = [entry(f"x.{place}", verdict, **changes) for place, (verdict, changes) in enumerate(kinds)]
    pages = written(tmp_path, entries, {})
    errata = pages["verification"].partition("## Errata")[2]
    assert sorted("3210", key=lambda place: errata.index(f"**x.{place}**")) == list("3210")
    assert "x.4" not in errata
    assert "(verification_x.md#counterexample):\n\n- **x.3** (Lemma 1). All of x.3.\n" in errata
    # What is right and what is printed stand once, on the page of the paper.
    own = pages["verification_x"].partition("## COUNTEREXAMPLE")[2]
    for text in (r"2 \* 3 holds.", r"Printed: $a_1 \ge b_2$"):
        assert text in own
        assert text not in errata


def test_a_damaged_text_is_named(tmp_path):
    page = written(tmp_path, [entry("x.a", "MISPRINT", garbled=True)], {})["verification_x"]
    assert "damaged" in page


def test_the_pages_on_file_are_those_of_the_registry(tmp_path):
    write_pages(tmp_path, registry(), papers(), load_outcomes())
    for path in tmp_path.glob("*.md"):
        assert path.read_text() == (ROOT / "docs" / path.name).read_text(), (
            f"python -m verification: {path.name}"
        )


def test_the_outcomes_on_file_are_the_verdicts():
    entries = registry()
    for name, outcome in load_outcomes().items():
        assert outcome["status"] == entries[name].verdict, name


def test_the_first_pages_count_no_verdicts():
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text()
        assert [word for word in STATUSES if word in text] == []
