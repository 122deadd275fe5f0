"""Help: 80 columns, an example that runs in every one, names spelled out, what is required marked."""

import pathlib
import re
import shlex
import subprocess
import sys

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

import dpmech as dm
from dpmech import cli
from tests.support.command_line import done, run

ROOT = pathlib.Path(__file__).parents[3]


def commands(group=cli.main, path=()):
    """Every command with the words that call it."""
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = [((), cli.main), *commands()]


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(("dpmech", *path)) for path, _ in ALL])
def test_help_fits_80_columns_and_has_an_example(path, command):
    text = done(*path, "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "\nExamples:\n  dpmech " in text
    assert command.examples
    assert text == done(*path, "-h").stdout


def test_lists_of_commands_are_not_cut():
    for path, command in ALL:
        if isinstance(command, click.Group):
            assert "..." not in done(*path, "--help").stdout.split("Commands:")[1].split("Examples:")[0]


def test_every_command_can_print_json_and_be_quiet():
    for path, command in commands():
        if not isinstance(command, click.Group):
            options = {option for parameter in command.params for option in parameter.opts}
            assert {"--json", "--quiet"} <= options, path


# Small, and quick: the plan of an example is another one.
SMALLER = {"50000": "120", "60000": "120", "128": "10", "256": "10", "15": "3", "1e-5": "1e-4"}
SMALLER |= {"5,10,20": "2", "128,256,512": "10", "12": "1.1"}


CLAIM = """[[claim]]
name = "run"
sampling = "single"
steps = 10
sigma = 2.0
delta = 1e-5
claimed_eps = 40.0
"""
PLAN = """[plan]
dataset_size = 120
batch_size = 10
epochs = 3
sampling = "min-sep"
eps = 2
delta = 1e-5

[[strategy]]
name = "identity"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    certificate = dm.calibrate_sigma(dm.Identity(36), 2.0, 1e-5, participation=dm.MinSep(12, 3))
    certificate.certificate(1.0, 10.0).save("certificate.json")
    ledger = dm.Ledger()
    ledger.add("first", certificate)
    ledger.save("ledger.json")
    budget = dm.Ledger(budget=dm.PrivacyBudget(8.0, 1e-5))
    budget.save("budget.json")
    dm.RunRecord(
        dm.Certificate.load("certificate.json"),
        36,
        certificate.achieved,
        dm.certificates.Randomness("system", "0" * 64, seeded=False),
        dm.certificates.Randomness("system", "1" * 64, seeded=False),
        smallest_separation=12,
        most_participations=3,
    ).save("run.json")
    (tmp_path / "fit.json").write_text(dm.LambdaCGD(120, 0.5).to_json())
    (tmp_path / "claims.toml").write_text(CLAIM)
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "answers.toml").write_text('said_by = "Ada"\n[dpfy]\ntuning = "On public data."\n')
    (tmp_path / "policy.toml").write_text("max_eps = 2\n")
    dm.certificates.new_key("reviewer.pem")
    dm.sign("certificate.json", "reviewer.pem", "somebody")
    return tmp_path


def marked(example):
    """A fit under Balls-in-Bins takes seconds; so does a recommendation without --sampling, which has it."""
    sampled = "balls-in-bins" in example or ("recommend" in example and "--sampling" not in example)
    return pytest.param(example, marks=pytest.mark.slow) if sampled else example


EXAMPLES = [marked(example) for _, command in ALL for example in command.examples]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example[7:90])
def test_examples_run(example, folder):
    words = [SMALLER.get(word, word) for word in shlex.split(example)]
    if "--new" in words:
        pathlib.Path(words[3]).unlink()
    for option in {"--out", "--out-strategy"}.intersection(words):
        pathlib.Path(words[words.index(option) + 1]).unlink(missing_ok=True)
    result = run(*words[1:])
    assert result.exit_code == 0, result.output


def test_names_are_spelled_out():
    for name in ("calibrate", "compare", "epsilon"):
        text = " ".join(done(name, "--help").stdout.split())
        for spelled in (
            "banded square root (BSR)",
            "banded inverse square root (BISR)",
            "banded matrix factorization (BandMF)",
            "banded inverse matrix factorization (BandInvMF)",
            "buffered linear Toeplitz (BLT)",
        ):
            assert spelled in text
        assert "Every example is assigned once, uniformly, to one of the bins" in text
    page = " ".join((ROOT / "docs" / "command_line.md").read_text().split())
    for short in ("BSR", "BISR", "BandMF", "BandInvMF", "BLT"):
        assert re.search(rf"[a-z] \({short}\)", page), short


def test_what_is_required_is_marked():
    text = " ".join(done("calibrate", "--help").stdout.split())
    for option in ("--dataset-size", "--batch-size", "--epochs", "--sampling", "--eps", "--delta"):
        assert re.search(rf"{option} [^-]*\[required\]", text), option
    assert "[this or --strategy-file required]" in text
    compared = " ".join(done("compare", "--help").stdout.split())
    assert compared.count("[required, here or in --plan]") == 7


def test_python_m_dpmech_is_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "dpmech", "epsilon"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith("dpmech epsilon: missing: --strategy (or --strategy-file), --sigma")


def completed(line, incomplete):
    """What bash would offer."""
    found = BashComplete(cli.main, {}, "dpmech", "_DPMECH_COMPLETE").get_completions(line.split(), incomplete)
    return [item.value for item in found]


def test_completion_knows_commands_options_and_names():
    assert completed("", "c") == ["calibrate", "compare"]
    assert "--noise-multiplier" in completed("epsilon", "--n")
    assert completed("calibrate --sampling", "ba") == ["balls-in-bins"]
    assert completed("calibrate --strategy", "b") == ["bsr", "bisr", "bandmf", "bandinv", "blt"]
    assert completed("ledger", "") == ["add", "add-counts", "add-mechanism", "remaining", "show"]
    source = CliRunner().invoke(cli.main, env={"_DPMECH_COMPLETE": "bash_source"})
    assert "_dpmech_completion" in source.stdout
    assert "_DPMECH_COMPLETE=bash_source" in (ROOT / "docs" / "command_line.md").read_text()


def test_a_group_alone_prints_its_help():
    assert "Examples:" in run("ledger").output
    assert "Examples:" in run().output
