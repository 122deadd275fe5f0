"""`--momentum` and `--learning-rates`: errors of the iterates of SGD, in every table that compares errors."""

import functools
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.numerics import up
from dpmech.plans import workload_of
from tests.support.command_line import BUDGET, SIZES, run, told

N = 36
FIXED = (*SIZES, *BUDGET, "--sampling", "min-sep")
BOTH = ("--momentum", "0.8", "--learning-rates", "cosine")


@functools.cache
def iterates(beta, schedule):
    """Row t: what every gradient has moved the weights by after step t; the rule of SGD, step by step."""
    rows = np.zeros((N, N))
    for j in range(N):
        velocity = weight = 0.0
        for t in range(N):
            rate = {"cosine": (1 + math.cos(math.pi * t / N)) / 2, "linear": 1 - t / N, None: 1.0}[schedule]
            velocity = beta * velocity + (t == j)
            weight += rate * velocity
            rows[t, j] = weight
    return rows


def _rates():
    return np.array([(1 + math.cos(math.pi * t / N)) / 2 for t in range(N)])


def errors(strategy, sigma, of):
    """RMSE, largest and last standard deviation of the noise in the iterates, by dense matrices."""
    rows = np.linalg.norm(of @ np.linalg.inv(strategy.to_dense()), axis=1) * sigma
    return math.sqrt(float(np.mean(rows**2))), float(rows.max()), float(rows[-1])


@pytest.mark.parametrize("schedule", ["cosine", "linear", None])
@pytest.mark.parametrize("beta", [0.0, 0.8])
def test_the_workload_is_what_sgd_does(beta, schedule):
    if beta == 0.0 and schedule is None:
        assert workload_of(N) is None
        return
    found = workload_of(N, beta or None, schedule).to_dense()
    assert found == pytest.approx(iterates(beta, schedule), rel=1e-12, abs=1e-15)


def test_compare_states_errors_of_the_iterates():
    document = told("compare", *FIXED, "--strategies", "identity,lambda-cgd:lam=0.5,blt:buffers=2", *BOTH)
    assert (document["plan"]["momentum"], document["plan"]["learning_rates"]) == (0.8, "cosine")
    for row in (document["baseline"], *document["strategies"]):
        rmse, worst, _ = errors(dm.Strategy.from_dict(row["strategy"]), row["sigma"], iterates(0.8, "cosine"))
        assert (row["rmse"], row["max_se"]) == (
            pytest.approx(rmse, rel=1e-10),
            pytest.approx(worst, rel=1e-10),
        )


@pytest.mark.parametrize("objective", ["rmse", "max_se", "last"])
def test_optimize_fits_for_the_iterates(objective):
    call = (
        "optimize",
        *FIXED,
        "--families",
        "lambda-cgd,bandmf:bands=3,blt:buffers=2",
        "--objective",
        objective,
    )
    sums, own = told(*call)["fits"][0], told(*call, *BOTH)["fits"][0]
    place = ["rmse", "max_se", "last"].index(objective)
    for plain, fitted in zip(sums["families"][1:], own["families"][1:], strict=True):
        strategies = [dm.Strategy.from_dict(row["strategy"]) for row in (plain, fitted)]
        before, after = (
            errors(strategy, row["sigma"], iterates(0.8, "cosine"))[place]
            for strategy, row in zip(strategies, (plain, fitted), strict=True)
        )
        assert fitted[objective] == pytest.approx(after, rel=1e-9)
        assert after <= before * (1 + 1e-9)  # what was fitted for sums is not better for the iterates
    identity = errors(dm.Identity(N), 1.0, iterates(0.8, "cosine"))[place]
    assert own["baseline"][objective] == pytest.approx(identity * own["baseline"]["sigma"], rel=1e-10)


def test_recommend_picks_by_the_error_of_the_iterates():
    call = (*SIZES, *BUDGET, "--sampling", "poisson,min-sep", "--max-vectors", "2", *BOTH)
    document = told("recommend", *call)
    of = iterates(0.8, "cosine")
    known = [
        errors(dm.Strategy.from_dict(row["strategy"]), row["sigma"], of)[0] for row in document["strategies"]
    ]
    assert [row["rmse"] for row in document["strategies"]] == pytest.approx(known, rel=1e-10)
    assert document["best"]["rmse"] == pytest.approx(min(known), rel=1e-8)
    found = dm.recommend(
        dataset_size=120,
        batch_size=10,
        epochs=3,
        eps=2.0,
        delta=1e-5,
        max_vectors=2,
        samplings=("poisson", "min-sep"),
        workload=dm.workloads.learning_rate_weighted(_rates(), beta=0.8),
    )
    assert dm.Strategy.from_dict(document["best"]["strategy"]) == found.strategy
    assert f"RMSE {up(document['best']['rmse'])}" in found.words


def test_the_table_says_what_its_errors_are_about():
    for command, option in (("compare", "--strategies"), ("optimize", "--families")):
        text = " ".join(run(command, *FIXED, option, "lambda-cgd", *BOTH).stdout.split())
        assert "of the iterates of SGD (momentum 0.8, learning rates cosine)" in text
    assert "iterates" not in run("compare", *FIXED, "--strategies", "identity").stdout


@pytest.mark.parametrize("shape", [(N,), (N, 1), (1, N)])
def test_rates_come_from_files(tmp_path, shape):
    path, text = tmp_path / "rates.npy", tmp_path / "rates.csv"
    np.save(path, _rates().reshape(shape))
    np.savetxt(text, _rates(), fmt="%.17g")
    expected = workload_of(N, 0.5, "cosine").to_dense()
    assert workload_of(N, 0.5, str(path)).to_dense() == pytest.approx(expected, rel=1e-14)
    assert workload_of(N, 0.5, str(text)).to_dense() == pytest.approx(expected, rel=1e-14)


def test_a_plan_file_may_say_it(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        '[plan]\ndataset_size = 120\nbatch_size = 10\nepochs = 3\nsampling = "min-sep"\neps = 2\n'
        'delta = 1e-5\nmomentum = 0.8\nlearning_rates = "cosine"\n[[strategy]]\nname = "identity"\n',
        encoding="utf-8",
    )
    (row,) = told("compare", "--plan", path)["strategies"]
    assert row["rmse"] == pytest.approx(errors(dm.Identity(N), row["sigma"], iterates(0.8, "cosine"))[0])


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ("cosin", "a .npy or CSV file, got cosin; did you mean cosine?"),
        ([1.0] * 35, "--learning-rates must be 36 numbers, one per step, got 35"),
        ([-1.0] + [1.0] * 35, "numbers >= 0, the largest in [1e-100, 1e+100]"),
        ([math.nan] + [1.0] * 35, "numbers >= 0, the largest in [1e-100, 1e+100]"),
        ([1e-200] * 36, "numbers >= 0, the largest in [1e-100, 1e+100]"),
        ([1e200] * 36, "numbers >= 0, the largest in [1e-100, 1e+100]"),
        ("a" * 5000, "or the path of a .npy or CSV file"),
        ([0.0] * 36, "numbers >= 0, the largest in [1e-100, 1e+100]"),
    ],
)  # fmt: skip
def test_bad_rates_are_refused_before_anything_is_computed(tmp_path, rates, message):
    if isinstance(rates, list):
        np.save(tmp_path / "rates.npy", np.array(rates))
        rates = tmp_path / "rates.npy"
    found = run("compare", *FIXED, "--strategies", "identity", "--learning-rates", rates)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in " ".join(found.stderr.split())


def test_published_errors_are_compared_with_what_the_file_says_they_are_about(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('[[strategy]]\nname = "identity"\npublished = 3.86\n', encoding="utf-8")
    found = run("compare", "--plan", path, *FIXED, "--momentum", "0.9")
    assert found.exit_code == 2
    assert "--momentum must be in the plan file" in found.stderr
    (row,) = told("compare", "--plan", path, *FIXED)["strategies"]
    assert row["published_rmse"] == 3.86


def test_momentum_is_below_one():
    found = run("optimize", *FIXED, "--momentum", "1")
    assert found.exit_code == 2
    assert "--momentum" in found.stderr


def test_another_workload_by_name_or_file(tmp_path):
    matrix = np.tril(np.random.default_rng(2).normal(size=(N, N)))
    np.save(tmp_path / "a.npy", matrix)
    np.savetxt(tmp_path / "a.csv", matrix, fmt="%.17g", delimiter=",")
    window = np.tril(np.ones((N, N))) - np.tril(np.ones((N, N)), -4)
    cases = ("a.npy", matrix), ("a.csv", matrix), ("identity", np.eye(N)), ("window:4", window)
    for words, expected in cases:
        given = tmp_path / words if "." in words else words
        (row,) = told("compare", *FIXED, "--strategies", "identity", "--workload", given)["strategies"]
        assert row["rmse"] == pytest.approx(np.linalg.norm(expected) / math.sqrt(N) * row["sigma"], rel=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--workload", "identiy"), "did you mean identity?"),
        (("--workload", "window:0"), "window:P with P in [1, 36]"),
        (("--workload", "window:37"), "window:P with P in [1, 36]"),
        (("--workload", "window:4", "--momentum", "0.5"), "None with momentum or learning rates"),
    ],
)
def test_bad_workloads_are_refused(given, message):
    found = run("compare", *FIXED, "--strategies", "identity", *given)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in " ".join(found.stderr.split())
