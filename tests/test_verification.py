"""The checks of the papers are evidence only if their oracles stand apart from the library."""

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from verification import __main__ as runner
from verification.harness.outcomes import load_outcomes
from verification.harness.registry import PAPERS, load, registry
from verification.harness.verdict import CHECKS, InconclusiveError, Verdict

ROOT = Path(__file__).parents[1]
FLIPS = load()
REGISTRY = registry()
CITATION = re.compile(
    r"(?<!analysis\.)\b(?:ov|sde|rmt|cgd|muon)\.(?!py\b)[A-Za-z0-9_.]*[A-Za-z0-9_](?:-[0-9]+|/\w[\w.]*\w)?"
)
# cgd.tab4_amp needs an accountant of Balls-in-Bins for correlated noise, and no other library has one; the
# accountants have oracles of their own in the tests. What is judged there is the paper's table.
USES_THE_LIBRARY = {"lambda_cgd/amplified.py"}
FOLDERS = ("harness", "oracles", *PAPERS)
EVIDENCE = sorted(path for folder in FOLDERS for path in (ROOT / "verification" / folder).glob("*.py"))


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_every_folder_holds_evidence():
    assert {path.parent.name for path in EVIDENCE} == set(FOLDERS)
    apart = {"claims", "faults", "figures", "mutation", "registry"}
    folders = {path.name for path in (ROOT / "verification").iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == set(FOLDERS) | apart


def test_oracles_do_not_import_the_library():
    users = {
        f"{path.parent.name}/{path.name}"
        for path in EVIDENCE
        if any(module.split(".")[0] == "dpmech" for module in imported_modules(path))
    }
    assert users == USES_THE_LIBRARY


def test_the_papers_are_those_of_the_registry():
    named = {entry.paper for entry in REGISTRY.values()} | {check.paper for check in CHECKS.values()}
    assert named == set(PAPERS)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_registry_entry_has_a_check_and_a_flip(paper):
    entries = {name for name, entry in REGISTRY.items() if entry.paper == paper}
    assert entries == {name for name, check in CHECKS.items() if check.paper == paper}
    assert entries <= set(FLIPS) <= set(CHECKS)


def test_a_check_follows_its_registry_entry():
    sources = {
        name: Path(inspect.getsourcefile(CHECKS[name].run)).read_text(encoding="utf-8") for name in REGISTRY
    }
    assert [name for name, entry in REGISTRY.items() if CHECKS[name].paper != entry.paper] == []
    assert [name for name, entry in REGISTRY.items() if CHECKS[name].expected != entry.verdict] == []
    assert [name for name, source in sources.items() if f'"{name}"' not in source] == []


# Over three quarters of a second each.
LONG_FLIPS = {
    "muon.joint_sigma",
    "muon.tab3",
    "muon.thm2_1",
    "ov.rem12.ii",
    "ov.thm5",
    "ov.thm6.iii",
    "rmt.eq10_edge",
    "rmt.eq3_F",
    "rmt.eq6",
    "rmt.eq8_9",
    "rmt.thmE1",
    "sde.lemA1",
    "sde.lemB3",
    "sde.thm4.1/B6.2",
}
FLIP_PARAMETERS = [
    pytest.param(name, marks=[pytest.mark.slow] if CHECKS[name].full or name in LONG_FLIPS else [], id=name)
    for name in sorted(FLIPS)
]


@pytest.mark.parametrize("name", FLIP_PARAMETERS)
def test_an_altered_claim_or_oracle_changes_the_verdict(name):
    assert FLIPS[name]().status != CHECKS[name].expected


def test_the_outcomes_on_file_are_as_expected_and_say_how_they_were_found():
    """`make verification` computes those that are quick anew, `make verification-full` all."""
    outcomes = load_outcomes()
    assert set(outcomes) == set(REGISTRY)
    for name, one in outcomes.items():
        assert one["status"] == CHECKS[name].expected
        assert int(one["cases"]) > 0
        assert one["method"]
        if one["status"] not in {"CONFIRMED", "BEYOND THE PAPER"}:
            assert one["note"], f"{name} gives no condition, witness or reason"


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_is_chosen_without_its_long_checks(paper, monkeypatch, capsys):
    found = Verdict("CONFIRMED", "none", 1, 0.0)
    chosen = {name: dataclasses.replace(check, run=lambda: found) for name, check in CHECKS.items()}
    monkeypatch.setattr(runner, "CHECKS", chosen)
    runner.main(["--paper", paper, "--json"])
    records = json.loads(capsys.readouterr().out)
    quick = {check.id for check in CHECKS.values() if not check.full and check.paper == paper}
    assert {record["id"] for record in records} == quick
    assert all(set(record) >= {"id", "status", "method", "cases", "worst_margin"} for record in records)


def test_theorems_that_the_library_cites_are_checked():
    for path in sorted((ROOT / "dpmech").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            for name in CITATION.findall(ast.get_docstring(node) or ""):
                assert name in CHECKS, f"{path.name} cites {name}, which nothing checks"


ANALYSIS = sorted((ROOT / "dpmech" / "analysis").rglob("*.py"))


def test_the_analysis_is_found():
    assert len(ANALYSIS) > 12


def test_references_of_the_analysis_name_checked_statements():
    without = []
    for path in ANALYSIS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                _, found, references = (ast.get_docstring(node) or "").partition("References:")
                if found and not CITATION.search(references.partition("Examples:")[0]):
                    without.append(f"{path.parent.name}/{path.name}: {node.name}")
    assert without == []


@pytest.mark.slow
def test_the_runner_from_the_shell():
    done = subprocess.run(
        [sys.executable, "-m", "verification", "--id", "ov.kappa"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ov.kappa" in done.stdout
    assert "CONFIRMED" in done.stdout


def test_an_unexpected_verdict_fails_the_run(monkeypatch, capsys):
    altered = dict(CHECKS)
    altered["ov.kappa"] = type(CHECKS["ov.kappa"])(
        "ov.kappa", "noise_share", "WORDING", CHECKS["ov.kappa"].run, False
    )
    monkeypatch.setattr(runner, "CHECKS", altered)
    assert runner.main(["--id", "ov.kappa"]) == 1
    assert "expected WORDING" in capsys.readouterr().out


def test_an_unknown_statement_is_refused(capsys):
    with pytest.raises(SystemExit):
        runner.main(["--id", "ov.nothing"])
    assert "no statement matches" in capsys.readouterr().err


def test_statements_can_be_left_out(monkeypatch, capsys):
    chosen = {name: CHECKS[name] for name in ("ov.kappa", "ov.def.phi")}
    monkeypatch.setattr(runner, "CHECKS", chosen)
    assert runner.main(["--skip", "ov.def.phi", "--json"]) == 0
    assert [record["id"] for record in json.loads(capsys.readouterr().out)] == ["ov.kappa"]
    with pytest.raises(SystemExit):
        runner.main(["--skip", "ov.nothing"])
    assert "no statement ov.nothing" in capsys.readouterr().err


def test_a_check_that_breaks_says_which(monkeypatch):
    def broken():
        raise InconclusiveError("planted")

    altered = {"ov.kappa": type(CHECKS["ov.kappa"])("ov.kappa", "noise_share", "CONFIRMED", broken, False)}
    monkeypatch.setattr(runner, "CHECKS", altered)
    with pytest.raises(InconclusiveError) as caught:
        runner.main(["--id", "ov.kappa"])
    assert "while checking ov.kappa" in caught.value.__notes__


def test_a_run_writes_the_pages_if_it_is_told_to(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "CHECKS", {"ov.kappa": CHECKS["ov.kappa"]})
    outcomes = tmp_path / "outcomes.json"
    assert runner.main(["--docs", str(tmp_path), "--outcomes", str(outcomes)]) == 0
    assert not list(tmp_path.iterdir())
    assert runner.main(["--write", "--docs", str(tmp_path), "--outcomes", str(outcomes)]) == 0
    assert "ov.kappa" in capsys.readouterr().out
    assert json.loads(outcomes.read_text())["ov.kappa"]["status"] == "CONFIRMED"
    written = {path.name for path in tmp_path.glob("*.md")}
    assert written == {"verification.md", *(f"verification_{paper}.md" for paper in PAPERS)}
    assert "(`ov.kappa`)" in (tmp_path / "verification_noise_share.md").read_text()
