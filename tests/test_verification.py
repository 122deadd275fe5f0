"""The checks of the papers are evidence only if their oracles stand apart from the library."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from verification import __main__ as runner
from verification.harness.page import write_page
from verification.harness.registry import PAPERS, Statement, load, registry
from verification.harness.verdict import (
    CHECKS,
    InconclusiveError,
    Verdict,
    judged,
    judged_arithmetic,
    judged_condition,
    judged_erratum,
    statement,
)

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
    apart = {"claims", "figures", "mutation", "registry"}
    folders = {path.name for path in (ROOT / "verification").iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == set(FOLDERS) | apart


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_oracles_do_not_import_the_library(path):
    uses = [module for module in imported_modules(path) if module.split(".")[0] == "dpmech"]
    assert bool(uses) == (f"{path.parent.name}/{path.name}" in USES_THE_LIBRARY)


def test_the_papers_are_those_of_the_registry():
    named = {entry.paper for entry in REGISTRY.values()} | {check.paper for check in CHECKS.values()}
    assert named == set(PAPERS)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_registry_entry_has_a_check_and_a_flip(paper):
    entries = {name for name, entry in REGISTRY.items() if entry.paper == paper}
    assert entries == {name for name, check in CHECKS.items() if check.paper == paper}
    assert entries <= set(FLIPS) <= set(CHECKS)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_check_follows_its_registry_entry(name):
    check = CHECKS[name]
    assert check.paper == REGISTRY[name].paper
    assert check.expected == REGISTRY[name].expected
    assert REGISTRY[name].statement
    source = Path(inspect.getsourcefile(check.run)).read_text(encoding="utf-8")
    assert f'"{name}"' in source
    if check.expected in {"REFUTED", "CONDITIONAL"}:
        assert REGISTRY[name].erratum, "a refuted or conditional statement says what is right"


FLIP_PARAMETERS = [
    pytest.param(name, marks=[pytest.mark.slow] if CHECKS[name].full else [], id=name)
    for name in sorted(FLIPS)
]


@pytest.mark.parametrize("name", FLIP_PARAMETERS)
def test_an_altered_claim_or_oracle_changes_the_verdict(name):
    assert FLIPS[name]().status != CHECKS[name].expected


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_quick_statements_come_out_as_expected(paper, capsys):
    assert runner.main(["--paper", paper, "--json"]) == 0
    records = {record["id"]: record for record in json.loads(capsys.readouterr().out)}
    quick = {check.id for check in CHECKS.values() if not check.full and check.paper == paper}
    assert set(records) == quick
    for name, record in records.items():
        assert set(record) >= {"id", "status", "method", "cases", "worst_margin"}
        assert record["status"] == CHECKS[name].expected
        assert record["cases"] > 0
        assert record["method"]
        if record["status"] != "CONFIRMED":
            assert record["note"], f"{name} gives no condition, counterexample or reason"


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
    assert len(ANALYSIS) > 20


@pytest.mark.parametrize("path", ANALYSIS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_references_of_the_analysis_name_checked_statements(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            _, found, references = (ast.get_docstring(node) or "").partition("References:")
            assert not found or CITATION.search(references.partition("Examples:")[0]), node.name


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
        "ov.kappa", "noise_share", "REFUTED", CHECKS["ov.kappa"].run, False
    )
    monkeypatch.setattr(runner, "CHECKS", altered)
    assert runner.main(["--id", "ov.kappa"]) == 1
    assert "expected REFUTED" in capsys.readouterr().out


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


def test_the_page_keeps_the_rows_of_checks_that_were_not_run(tmp_path):
    page = tmp_path / "verification.md"
    names = ["ov.kappa", "cgd.tab4_amp"]
    entries = {name: REGISTRY[name] for name in names}
    long_one = Verdict("CONDITIONAL", "a | long_method", 7, 0.25, "a note with $ and *")
    write_page(page, entries, [(CHECKS["cgd.tab4_amp"], long_one)])
    assert "| `ov.kappa` | eq. 26" in page.read_text()
    assert "not run yet" in page.read_text()
    write_page(page, entries, [(CHECKS["ov.kappa"], Verdict("CONFIRMED", "by hand", 3, 0.5))])
    text = page.read_text()
    assert "a &#124; long\\_method | 7 | 0.25 | a note with \\$ and \\*" in text
    assert "| CONFIRMED | 1 |" in text
    assert "| CONDITIONAL | 1 |" in text
    assert "not run yet" not in text
    write_page(page, entries, [(CHECKS["ov.kappa"], Verdict("CONFIRMED", "by hand", 3, -3e-14))])
    assert "| by hand | 3 | below 1e-12 |" in page.read_text()
    with pytest.raises(ValueError, match=r"no registry entry for ov\.kappa"):
        write_page(page, {}, [(CHECKS["ov.kappa"], long_one)])


def test_a_run_over_everything_writes_the_page(tmp_path, monkeypatch, capsys):
    page = tmp_path / "verification.md"
    monkeypatch.setattr(runner, "CHECKS", {"ov.kappa": CHECKS["ov.kappa"]})
    assert runner.main(["--page", str(page)]) == 0
    assert "ov.kappa" in capsys.readouterr().out
    assert "| CONFIRMED | 1 |" in page.read_text()


def test_a_registry_with_mistakes_is_refused(tmp_path):
    entry = '[[statement]]\nid = "x.a"\npaper = "x"\nsource = "s"\nverdict = "OK"\nstatement = "t"\n'
    (tmp_path / "x.toml").write_text(entry)
    assert registry(tmp_path) == {"x.a": Statement("x.a", "x", "s", "OK", "t")}
    (tmp_path / "x.toml").write_text(entry * 2)
    with pytest.raises(ValueError, match="stands twice"):
        registry(tmp_path)
    (tmp_path / "x.toml").write_text(entry.replace('paper = "x"', 'paper = "y"'))
    with pytest.raises(ValueError, match=r"stands in x\.toml"):
        registry(tmp_path)
    (tmp_path / "x.toml").write_text(entry.replace('"OK"', '"TRUE"'))
    with pytest.raises(ValueError, match="verdict must be one of"):
        registry(tmp_path)


def test_statements_register_once_and_verdicts_are_checked():
    with pytest.raises(ValueError, match="registered twice"):
        statement("cgd.thm1", paper="lambda_cgd")(lambda: None)
    with pytest.raises(ValueError, match="expected must be one of"):
        statement("cgd.new", paper="lambda_cgd", expected="TRUE")(lambda: None)
    with pytest.raises(ValueError, match="status must be one of"):
        Verdict("TRUE", "by decree", 1, 0.0)


def test_margins_become_statuses():
    assert judged(1e-3, 1e-2) == "CONFIRMED"
    assert judged(1e-1, 1e-2) == "REFUTED"
    assert judged(float("nan"), 1e-2) == "REFUTED"
    assert judged_condition(1e-3, 1.0, 1e-2) == "CONDITIONAL"
    assert judged_condition(1e-3, 1e-3, 1e-2) == "CONFIRMED"
    assert judged_condition(1.0, 1.0, 1e-2) == "REFUTED"
    assert judged_erratum(1.0, 1e-3, 1e-2) == "REFUTED"
    assert judged_erratum(1e-3, 1e-3, 1e-2) == "CONFIRMED"
    assert judged_arithmetic(1e-3, 1e-2) == "UNVERIFIABLE"
    assert judged_arithmetic(1.0, 1e-2) == "REFUTED"
    with pytest.raises(InconclusiveError, match="corrected form is off by 1"):
        judged_erratum(1.0, 1.0, 1e-2)
    with pytest.raises(InconclusiveError, match="not a number"):
        judged_condition(1e-3, float("nan"), 1e-2)
    with pytest.raises(InconclusiveError, match="not a number"):
        judged_erratum(float("nan"), 1e-3, 1e-2)


def test_the_readme_states_the_counts_of_the_page():
    page = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    counts = dict(
        re.findall(r"^\| (CONFIRMED|CONDITIONAL|REFUTED|UNVERIFIABLE|all) \| (\d+) \|$", page, re.MULTILINE)
    )
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"checks {counts['all']} statements" in readme
    for status in ("CONFIRMED", "CONDITIONAL", "REFUTED", "UNVERIFIABLE"):
        assert f"{counts[status]} {status}" in readme
