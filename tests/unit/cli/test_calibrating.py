import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech import cli
from dpmech.numerics.printed import up
from tests.support.command_line import done, told

SMALL = ["--dataset-size", "120", "--batch-size", "10", "--epochs", "3"]
BUDGET = ["--eps", "2", "--delta", "1e-5"]
LAMBDA = ["--strategy", "lambda-cgd", "--lam", "0.9"]


def run(*arguments):
    return CliRunner().invoke(cli.main, list(arguments))


def refused(*arguments):
    """Run a command that must end with exit code 2, a message and nothing on standard output."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.output
    return result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["calibrate", "--help"], ["compare", "--help"]])
def test_help(arguments):
    result = run(*arguments)
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


def test_help_lists_commands_and_samplings():
    assert {"calibrate", "compare"} <= set(run("--help").stdout.split())
    text = run("calibrate", "--help").stdout
    for option in ("--dataset-size", "--batch-size", "--epochs", "--sampling", "--eps", "--delta", "--json"):
        assert option in text


def test_version():
    assert dm.__version__ in run("--version").stdout


def test_calibrate_table():
    result = run("calibrate", *LAMBDA, *SMALL, "--sampling", "min-sep", *BUDGET)
    assert result.exit_code == 0, result.output
    expected = dm.calibrate_sigma(dm.LambdaCGD(36, 0.9), 2.0, 1e-5, participation=dm.MinSep(12, 3))
    assert "lambda-cgd lam=0.9" in result.stdout
    assert up(expected.sigma) in result.stdout
    assert up(expected.rmse()) in result.stdout
    for word in ("steps_per_epoch", "12", "exact", "min-sep (min_sep=12, max_participations=3)"):
        assert word in result.stdout


def test_a_certificate_too_large_to_be_read_is_told(tmp_path, monkeypatch):
    call = ["calibrate", *LAMBDA, *SMALL, "--sampling", "min-sep", *BUDGET, "--out"]
    assert "--max-file-size" not in run(*call, str(tmp_path / "small.json")).stderr
    monkeypatch.setattr("dpmech.cli.files.LARGEST_FILE", 1000)
    result = run(*call, str(tmp_path / "large.json"))
    assert result.exit_code == 0, result.output
    assert "dpmech: note: the certificate has 1 MB: read it with dpmech verify --max-file-size 1" in (
        result.stderr
    )


@pytest.mark.parametrize(
    ("sampling", "schema"),
    [
        (["every-step"], dm.EveryStep()),
        (["single"], dm.SingleParticipation()),
        (["min-sep", "--min-sep", "5", "--max-participations", "2"], dm.MinSep(5, 2)),
        (["epochs"], dm.FixedEpochs(3)),
    ],
)
def test_calibrate_json_is_the_library(sampling, schema):
    result = run("calibrate", *LAMBDA, *SMALL, "--sampling", *sampling, *BUDGET, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    expected = dm.calibrate_sigma(dm.LambdaCGD(36, 0.9), 2.0, 1e-5, participation=schema)
    assert record["sigma"] == expected.sigma
    assert record["sensitivity"] == expected.sensitivity.upper
    assert record["noise_multiplier"] == expected.noise_multiplier
    assert record["rmse"] == expected.rmse()
    assert record["max_se"] == expected.max_se()
    assert record["eps_upper"] <= 2.0
    assert record["guarantee"] == str(expected.guarantee)
    assert record["plan"]["n"] == 36
    assert record["plan"]["participation"] == record["participation"] == schema.to_dict()
    assert record["strategy"] == expected.strategy.to_dict()


def test_calibrate_sampled():
    result = run("calibrate", "--strategy", "identity", *SMALL, "--sampling", "poisson", *BUDGET, "--json")
    record = json.loads(result.stdout)
    expected = dm.calibrate_sigma(dm.Identity(36), 2.0, 1e-5, participation=dm.Poisson(10 / 120))
    assert record["sigma"] == expected.sigma


def test_batches_of_at_most_so_many_examples(tmp_path):
    path = tmp_path / "cut.json"
    small = ["--dataset-size", "40", "--batch-size", "4", "--epochs", "1", "--sampling", "poisson"]
    given = [*small, "--eps", "2", "--delta", "1e-5", "--truncated-batch-size", "9"]
    result = run("calibrate", "--strategy", "identity", *given, "--adjacency", "zero_out", "--out", path)
    assert result.exit_code == 0
    certificate = dm.Certificate.load(path)
    assert certificate.participation == dm.Poisson(0.1, truncated_batch_size=9, dataset_size=40)
    assert certificate.expected_batch_size == certificate.participation.truncation.expected_batch_size < 4.0
    refused = run("calibrate", "--strategy", "identity", *given)
    assert refused.exit_code == 2
    assert "no bound is proven for add_remove" in refused.stderr


def test_batches_of_one_size(tmp_path):
    path = tmp_path / "fixed.json"
    small = ["--dataset-size", "40", "--batch-size", "4", "--epochs", "1", "--sampling", "fixed-size"]
    given = ["--strategy", "identity", *small, "--eps", "2", "--delta", "1e-5"]
    result = run("calibrate", *given, "--adjacency", "replace_one", "--method", "rdp", "--out", path)
    assert result.exit_code == 0
    certificate = dm.Certificate.load(path)
    assert certificate.participation == dm.FixedSizeBatches(40, 4)
    assert certificate.expected_batch_size == 4.0
    refused = run("calibrate", *given)
    assert refused.exit_code == 2
    assert "no bound is proven for add_remove" in refused.stderr


@pytest.mark.slow
def test_examples_that_rest(tmp_path):
    path = tmp_path / "rests.json"
    small = ["--dataset-size", "48", "--batch-size", "4", "--epochs", "1", "--sampling", "b-min-sep"]
    given = ["--strategy", "bsr", "--bands", "3", *small, "--eps", "2", "--delta", "1e-3"]
    result = run("calibrate", *given, "--separation", "3", "--method", "importance", "--out", path)
    assert result.exit_code == 0
    certificate = dm.Certificate.load(path)
    assert certificate.participation.min_sep == 3
    assert certificate.participation.sampling_prob == pytest.approx(0.1)
    assert certificate.participation.rate == pytest.approx(1 / 12)
    refused = run("calibrate", *given)
    assert refused.exit_code == 2
    assert "missing: --separation" in refused.stderr
    refused = run("calibrate", *given, "--separation", "3", "--seed", "1", "--rigorous")
    assert refused.exit_code == 2
    assert "left out with --rigorous" in refused.stderr
    refused = run("calibrate", *given, "--separation", "13")
    assert refused.exit_code == 2
    assert "at most 12" in refused.stderr


def test_cyclic_poisson_and_replace_one_options():
    result = run(
        "calibrate",
        "--strategy",
        "bandmf",
        "--coefs",
        "1,0.5",
        *SMALL,
        "--sampling",
        "cyclic-poisson",
        "--cycle",
        "4",
        *BUDGET,
        "--json",
    )
    assert json.loads(result.stdout)["plan"]["participation"] == dm.CyclicPoisson(10 / 120 * 4, 4).to_dict()
    single = run("calibrate", *LAMBDA, *SMALL, "--sampling", "epochs", *BUDGET, "--json")
    double = run(
        "calibrate", *LAMBDA, *SMALL, "--sampling", "epochs", *BUDGET, "--json", "--adjacency", "replace_one"
    )
    ratio = json.loads(double.stdout)["sigma"] / json.loads(single.stdout)["sigma"]
    assert ratio == pytest.approx(2.0, rel=1e-9)


def test_a_schedule_from_a_file_under_replace_one(tmp_path):
    probs = [0.05] * 12 + [0.1] * 24
    path = tmp_path / "probs.csv"
    path.write_text("\n".join(map(str, probs)))
    given = (
        "--strategy",
        "identity",
        *SMALL,
        "--sampling",
        "poisson",
        *BUDGET,
        "--sampling-probs",
        str(path),
    )
    result = run("calibrate", *given, "--adjacency", "replace_one", "--json")
    found = json.loads(result.stdout)
    assert found["plan"]["participation"] == dm.Poisson(probs).to_dict()
    cal = dm.calibrate_sigma(
        dm.Identity(36), 2.0, 1e-5, participation=dm.Poisson(probs), adjacency=dm.Adjacency.REPLACE_ONE
    )
    assert found["sigma"] == cal.sigma
    path.write_text("0.1\n0.2")
    refused = run("calibrate", *given)
    assert refused.exit_code == 2
    assert "36 numbers, one per step" in refused.stderr
    # Sums would be divided by another number than the mean size of the batches.
    path.write_text("\n".join(map(str, [0.05] * 36)))
    refused = run("calibrate", *given)
    assert refused.exit_code == 2
    assert "the batch size of these is 6" in refused.stderr


BASE = {"--dataset-size": "120", "--batch-size": "10", "--epochs": "3", "--sampling": "min-sep", "--eps": "2",
        "--delta": "1e-5"}  # fmt: skip


def changed(**options):
    arguments = BASE | {f"--{key.replace('_', '-')}": value for key, value in options.items()}
    return [part for key, value in arguments.items() if value is not None for part in (key, value)]


def test_balls_in_bins_refuses_or_calibrates_but_never_crashes():
    result = run("calibrate", *changed(strategy="lambda-cgd", lam="0.5", sampling="balls-in-bins"), "--json")
    assert result.exit_code in {0, 2}
    assert ("sigma" in result.stdout) == (result.exit_code == 0)


BINS = ["--strategy", "identity", *SMALL, "--sampling", "balls-in-bins"]


@pytest.mark.slow
def test_the_profile_is_kept_and_serves_risk(tmp_path, monkeypatch):
    path = tmp_path / "certificate.json"
    result = run("calibrate", *BINS, *BUDGET, "--with-profile", "--out", str(path), "--json")
    assert result.exit_code == 0, result.output
    own = dm.Certificate.load(path)
    exact = dm.delta(own.mechanism, own.sigma, 1.0)
    assert exact.lower <= own.curve.delta(1.0).upper <= 1.02 * exact.upper
    (curve, _), *_ = own.nodes.curves
    assert json.loads(result.stdout)["profile_nodes"] == len(curve.remove.eps) + len(curve.add.eps)

    def none_again(*_, **__):
        raise AssertionError("the profile is computed again")

    monkeypatch.setattr(sys.modules["dpmech.cli.risk"], "profile", none_again)
    found = json.loads(run("risk", str(path), "--json", "--fpr", "0.01").stdout)
    assert found["profile"] == str(own.nodes.by)
    assert found["risk"][0]["upper"] == own.curve.tpr(0.01).upper


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_draws_of_a_profile_are_not_those_that_sized_sigma(tmp_path):
    """With one seed for both, sigma would be small where the same draws make delta small."""
    path = tmp_path / "certificate.json"
    settings = [*LAMBDA, *SMALL, "--sampling", "balls-in-bins", *BUDGET, "--seed", "3", "--with-profile"]
    assert run("calibrate", *settings, "--out", str(path)).exit_code == 0
    own = dm.Certificate.load(path)
    assert own.nodes.guarantee.kind is dm.Kind.PROBABLE
    assert own.curve.parts != dm.profile(own.mechanism, own.sigma, rng=3).parts


def test_where_a_profile_costs_nothing_none_is_kept(tmp_path):
    path = tmp_path / "certificate.json"
    result = run(
        "calibrate", *LAMBDA, *SMALL, "--sampling", "min-sep", *BUDGET, "--with-profile", "--out", str(path)
    )
    assert result.exit_code == 0, result.output
    assert "known everywhere at once" in result.stderr
    assert dm.Certificate.load(path).nodes is None


def test_a_plan_of_steps_ends_within_an_epoch(tmp_path):
    out = tmp_path / "certificate.json"
    plan = ["--dataset-size", "120", "--batch-size", "10", "--steps", "30", "--sampling", "balls-in-bins"]
    made = run("calibrate", *LAMBDA, *plan, *BUDGET, "--json", "--out", str(out))
    assert made.exit_code == 0, made.output
    stated = json.loads(made.stdout)["plan"]
    assert (stated["n"], stated["epochs"], stated["max_steps"]) == (30, 3, 30)
    claim = dm.Certificate.load(out)
    assert claim.mechanism == dm.Mechanism(dm.LambdaCGD(30, 0.9), dm.BallsInBins(12))
    assert dm.verify(out).ok
    whole = run("calibrate", *LAMBDA, *SMALL, "--sampling", "poisson", *BUDGET)
    assert "max_steps" not in whole.output
    both = refused("calibrate", *LAMBDA, *SMALL, *plan[-4:], *BUDGET)
    assert "--steps must be left out where epochs are given, got 30" in both
    neither = refused("calibrate", *LAMBDA, *plan[:4], *plan[-2:], *BUDGET)
    assert "--epochs" in neither


@pytest.mark.parametrize("strategy", [("identity",), ("lambda-cgd", "--lam", "0.7")])
def test_a_clip_norm_gives_the_noise_of_averaged_gradients_without_a_file_too(strategy):
    call = ("calibrate", "--strategy", *strategy, *SMALL, *BUDGET, "--sampling", "min-sep")
    found = told(*call, "--clip-norm", "0.5")
    own = dm.Identity(36) if strategy == ("identity",) else dm.LambdaCGD(36, 0.7)
    rows = (np.linalg.inv(own.to_dense()) ** 2).sum(axis=1)
    unit = (found["sigma"] * 0.5 / 10.0) ** 2
    assert found["clip_norm"] == 0.5
    assert found["phi_least"] == pytest.approx(unit * rows.min(), rel=1e-9)
    assert found["phi_largest"] == pytest.approx(unit * rows.max(), rel=1e-9)
    assert "phi_largest" not in told(*call)
    shown = done(*call, "--clip-norm", "0.1").stdout
    assert "phi_least" in shown
    (line,) = (line for line in shown.splitlines() if "clip_norm" in line)
    assert line.split("│")[2].strip() == "0.1"  # as typed, not rounded up
