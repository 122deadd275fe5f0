"""What is typed wrong is answered kindly: every message stands in `wrong_calls.txt`, to be read as a whole.

After a change of words, `WRITE_WRONG_CALLS=1 python -m pytest tests/unit/cli/test_wrong_calls.py` writes the
messages anew; what changed is then read line by line before it is kept.
"""

import os
import pathlib
import re
import shlex

import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech import cli

TABLE = pathlib.Path(__file__).with_name("wrong_calls.txt")
SHORT = {
    "PLAN": "--dataset-size 120 --batch-size 10 --epochs 3 --sampling min-sep --eps 2 --delta 1e-5",
    "SIZES": "--dataset-size 120 --batch-size 10 --epochs 3 --sampling min-sep",
}
ENTRY = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def entries():
    """Every call with what it is answered."""
    return [(call, answer.rstrip("\n")) for call, answer in ENTRY.findall(TABLE.read_text(encoding="utf-8"))]


PLAN = (
    "[plan]\ndataset_size = 120\nbatch_size = 10\nepochs = 3\nsampling = 'min-sep'\neps = 2\ndelta = 1e-5\n"
)
STRATEGY = "\n[[strategy]]\nname = 'lambda-cgd'\nlam = 0.9\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that calls name."""
    place = tmp_path_factory.mktemp("calls")
    plain = dm.calibrate_sigma(dm.Identity(36), 2.0, 1e-5, participation=dm.MinSep(12, 3))
    sampled = dm.calibrate_sigma(dm.Identity(36), 2.0, 1e-5, participation=dm.Poisson(1 / 12))
    plain.certificate().save(place / "certificate.json")
    sampled.certificate().save(place / "sampled.json")
    text = (place / "certificate.json").read_text()
    (place / "edited.json").write_text(text.replace('"min_sep": 12', '"min_sep": 13'))
    for name, budget in (("ledger", None), ("closed", None), ("budget", dm.PrivacyBudget(1.0, 1e-6))):
        ledger = dm.Ledger(budget=budget)
        if budget is None:
            ledger.add("taken", sampled, batch="taken")
        if name == "closed":
            ledger.close()
        ledger.save(place / f"{name}.json")
    dm.certificates.new_key(place / "key.pem")
    plain.certificate().save(place / "signed.json")
    dm.sign(place / "signed.json", place / "key.pem", "somebody")
    (place / "binary.npy").write_bytes(b"\x93NUMPY")
    (place / "rules.toml").write_text("max_eps = 8\nmax_age = 30\n")
    (place / "dated.toml").write_text("max_age_days = 30\n")
    (place / "large.toml").write_text("max_delta = 2\n")
    (place / "short.json").write_text(dm.Identity(12).to_json())
    (place / "small.csv").write_text("1,0\n0.5,1\n")
    (place / "plan.toml").write_text(PLAN + STRATEGY)
    (place / "broken.toml").write_text("[plan\n")
    (place / "typo.toml").write_text(PLAN.replace("epochs", "epoch") + STRATEGY)
    (place / "bad.toml").write_text(PLAN.replace("batch_size = 10", "batch_size = 10.5") + STRATEGY)
    (place / "incomplete.toml").write_text(PLAN.replace("eps = 2\ndelta = 1e-5\n", "") + STRATEGY)
    return place


def answered(call, folder, monkeypatch):
    """Run a call; what stands on standard error, and the exit code."""
    monkeypatch.chdir(folder)
    before = sorted(path.name for path in folder.iterdir())
    words = shlex.split(" ".join(SHORT.get(word, word) for word in call.split()))
    assert words[0] == "dpmech"
    result = CliRunner().invoke(cli.main, words[1:])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    assert sorted(path.name for path in folder.iterdir()) == before
    # Versions of packages are checksummed with the rest.
    return re.sub(r"\b[0-9a-f]{12}\.\.\.", "HASH", result.stderr.rstrip("\n")), result.exit_code


def test_there_are_many_and_none_twice():
    calls = [call for call, _ in entries()]
    assert len(calls) >= 86
    assert len(set(calls)) == len(calls)


# Exit code 1: a check failed, rather than a call was wrong.
FAILED = {
    "dpmech show edited.json",
    "dpmech report edited.json --out review.html",
    "dpmech ledger add budget.json certificate.json --name run",
    "dpmech ledger add-mechanism budget.json --name noise --kind gaussian --sigma 2 --sensitivity 1",
    "dpmech sign edited.json --key key.pem --issuer somebody",
}
# What only somebody who writes Python knows.
PYTHON = re.compile(
    r"\bdm\.|numpy|Generator|None|\bTrue\b|\bFalse\b|Traceback|\w\(\)|[A-Z]{3,}_[A-Z]+|"
    r"\b(?:LambdaCGD|Identity|SquareRoot|Banded\w+|MinSep|CyclicPoisson|BallsInBins|FixedEpochs)\b"
)


@pytest.mark.parametrize(("call", "answer"), entries(), ids=lambda value: value[:60])
def test_every_wrong_call_is_answered_as_the_table_says(call, answer, folder, monkeypatch):
    if "--figure" in call:
        pytest.importorskip("matplotlib", reason="the extra `plots` is optional")
    found, code = answered(call, folder, monkeypatch)
    if "WRITE_WRONG_CALLS" in os.environ:
        text = TABLE.read_text(encoding="utf-8")
        TABLE.write_text(text.replace(f"$ {call}\n{answer}\n", f"$ {call}\n{found}\n"), encoding="utf-8")
        return
    assert found == answer
    assert code == (1 if call in FAILED or "not JSON" in answer or "not a dpmech" in answer else 2)


@pytest.mark.parametrize(("call", "answer"), entries(), ids=lambda value: value[:60])
def test_the_answers_are_in_one_style(call, answer):
    first, *rest = answer.splitlines()
    assert rest == []
    assert re.match(r"dpmech(?: [a-z-]+){0,2}: [a-z0-9'-]", first), first
    assert PYTHON.search(answer) is None
    assert len(answer) <= 400
