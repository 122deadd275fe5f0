"""The checks of the papers are evidence only if their oracles stand apart from the library."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from verification import __main__ as runner
from verification._verdict import CHECKS, Verdict, judged, statement

ROOT = Path(__file__).parents[1]


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_oracles_do_not_import_the_library():
    for name in ("_reference.py", "lambda_cgd.py", "noise_share.py"):
        modules = list(imported_modules(ROOT / "verification" / name))
        assert not [module for module in modules if module.split(".")[0] == "dpmech"], name


def test_quick_statements_come_out_as_expected():
    done = subprocess.run(
        [sys.executable, "-m", "verification", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    records = {record["id"]: record for record in json.loads(done.stdout)}
    quick = {check.id for check in CHECKS.values() if not check.full}
    assert set(records) == quick
    assert all(records[name]["status"] == CHECKS[name].expected for name in quick)
    assert all(records[name]["cases"] > 0 for name in quick)


def test_a_broken_oracle_is_noticed(monkeypatch):
    monkeypatch.setattr(runner.lambda_cgd.ref, "brute_sensitivity", lambda *_: 1.234)
    assert CHECKS["cgd.thm1"].run().status == "REFUTED"
    assert CHECKS["cgd.lem8"].run().status == "REFUTED"
    monkeypatch.setattr(runner.lambda_cgd.ref, "gaussian_sigma", lambda *_: 0.61)
    assert CHECKS["cgd.tab4_col1"].run().status == "REFUTED"


def test_statements_register_once_and_verdicts_are_checked():
    with pytest.raises(ValueError, match="registered twice"):
        statement("cgd.thm1", paper="lambda_cgd")(lambda: None)
    with pytest.raises(ValueError, match="status must be one of"):
        Verdict("TRUE", "by decree", 1, 0.0)
    assert judged(1e-3, 1e-2) == "CONFIRMED"
    assert judged(1e-1, 1e-2) == "REFUTED"
