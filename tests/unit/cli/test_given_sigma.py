"""`dpmech epsilon` and `dpmech delta`: what a noise scale gives, as the library says it."""

import pytest

import dpmech as dm
from tests.support.command_line import SIZES, done, run, told

POISSON = ("--strategy", "identity", *SIZES, "--sampling", "poisson")
LAMBDA = ("--strategy", "lambda-cgd", "--lam", "0.9", *SIZES, "--sampling", "min-sep")
RATE = dm.Poisson(10 / 120)


def test_epsilon_is_that_of_the_library_from_both_sides():
    found = told("epsilon", *POISSON, "--sigma", "1.1", "--delta", "1e-5")
    expected = dm.epsilon(dm.Identity(36), 1.1, 1e-5, participation=RATE)
    assert (found["eps_lower"], found["eps_upper"]) == (expected.lower, expected.upper)
    assert 0.0 < found["eps_lower"] < found["eps_upper"]
    assert found["guarantee"] == str(expected.guarantee) == "deterministic upper bound"
    assert (found["sigma"], found["noise_multiplier"]) == (1.1, 1.1)
    text = done("epsilon", *POISSON, "--sigma", "1.1", "--delta", "1e-5").stdout
    assert text.startswith("dpmech epsilon: identity: eps in [")
    assert "│ sigma            │ 1.1 " in text


def test_delta_is_that_of_the_library_from_both_sides():
    found = told("delta", *POISSON, "--noise-multiplier", "1.1", "--eps", "1")
    expected = dm.delta(dm.Identity(36), 1.1, 1.0, participation=RATE)
    assert (found["delta_lower"], found["delta_upper"]) == (expected.lower, expected.upper)
    zero = told("delta", *POISSON, "--sigma", "1.1", "--eps", "0")
    assert zero["delta_upper"] == dm.delta(dm.Identity(36), 1.1, 0.0, participation=RATE).upper


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_the_noise_multiplier_is_that_of_opacus_whatever_the_sensitivity(adjacency):
    plan = ("--strategy", "identity", *SIZES, "--sampling", "min-sep", "--adjacency", adjacency)
    found = told("epsilon", *plan, "--noise-multiplier", "2.1", "--delta", "1e-5")
    assert found["sensitivity"] > 1.7
    assert (found["sigma"], found["noise_multiplier"]) == (2.1, 2.1)
    assert found["sigma_use"].endswith("Opacus' loaders draw other batches, at another eps")
    again = told("epsilon", *plan, "--sigma", "2.1", "--delta", "1e-5")
    assert found | {"seconds": 0} == again | {"seconds": 0}
    text = done("epsilon", *plan, "--noise-multiplier", "2.1", "--delta", "1e-5").stdout
    assert "│ noise_multiplier │ 2.1 " in text
    assert "│ sigma            │ 2.1 " in text


def test_correlated_noise_has_no_noise_multiplier():
    refused = run("epsilon", *LAMBDA, "--noise-multiplier", "2", "--delta", "1e-5")
    assert refused.exit_code == 2
    assert "--noise-multiplier must be left out" in refused.stderr
    assert "no number for DP-SGD tools; give --sigma" in refused.stderr
    found = told("epsilon", *LAMBDA, "--sigma", "2", "--delta", "1e-5")
    assert found["noise_multiplier"] is None
    assert found["sigma_use"] == "correlated noise: use NoiseStream; no number for DP-SGD tools"
    assert "noise_multiplier" not in done("epsilon", *LAMBDA, "--sigma", "2", "--delta", "1e-5").stdout


@pytest.mark.parametrize(
    ("command", "plan"),
    [("epsilon", LAMBDA), ("delta", LAMBDA), pytest.param("epsilon", POISSON, marks=pytest.mark.slow)],
)
def test_a_certificate_of_a_given_sigma_is_verified(command, plan, tmp_path):
    path = tmp_path / "certificate.json"
    at = ("--delta", "1e-5") if command == "epsilon" else ("--eps", "1.5")
    found = told(command, *plan, "--sigma", "2.5", *at, "--out", path, "--clip-norm", "0.5")
    own = dm.Certificate.load(path)
    assert found["certificate"] == str(path)
    assert (own.sigma, own.clip_norm, own.expected_batch_size) == (2.5, 0.5, 10.0)
    if command == "epsilon":
        assert own.budget.delta == 1e-5
        assert own.budget.eps == pytest.approx(found["eps_upper"], rel=1e-4)
        assert own.budget.eps >= found["eps_lower"]
    else:
        assert own.budget.eps == 1.5
        assert own.budget.delta == found["delta_upper"]
    assert done("verify", "--rigorous", path).stdout.startswith(f"{path}: VERIFIED")


@pytest.mark.slow
def test_a_certificate_under_balls_in_bins_rests_on_no_samples(tmp_path):
    path = tmp_path / "certificate.json"
    plan = ("--strategy", "lambda-cgd", "--lam", "0.5", "--dataset-size", "40", "--batch-size", "10")
    found = told(
        *("epsilon", *plan, "--epochs", "2", "--sampling", "balls-in-bins", "--sigma", "1.5"),
        *("--delta", "1e-3", "--out", path),
    )
    assert found["guarantee"] == "deterministic upper bound"
    assert dm.verify(path, rigorous=True).ok


def test_calibrate_and_epsilon_agree(tmp_path):
    path = tmp_path / "fit.json"
    path.write_text(dm.InverseSquareRoot(36, 4).to_json())
    plan = ("--strategy-file", path, *SIZES, "--sampling", "min-sep", "--delta", "1e-5")
    cal = told("calibrate", *plan, "--eps", "2")
    assert told("epsilon", *plan, "--sigma", repr(cal["sigma"]))["eps_upper"] <= 2.0
    assert cal["noise_multiplier"] is None
    own = ("--strategy", "identity", *SIZES, "--sampling", "min-sep", "--delta", "1e-5")
    cal = told("calibrate", *own, "--eps", "2")
    assert cal["noise_multiplier"] == cal["sigma"]
    assert told("epsilon", *own, "--noise-multiplier", repr(cal["sigma"]))["eps_upper"] <= 2.0


def test_workers_change_nothing():
    call = ("epsilon", *LAMBDA, "--sigma", "2", "--delta", "1e-5")
    plain, shared = told(*call), told(*call, "--workers", "2")
    assert plain | {"seconds": 0} == shared | {"seconds": 0}


def test_a_doubtful_delta_is_noted_on_standard_error():
    call = ("epsilon", *POISSON, "--sigma", "1.1", "--delta", "0.01")
    assert "dpmech: note: delta 0.01 is above" in done(*call).stderr
    assert done(*call, "--quiet").stderr == ""
    assert "dpmech: note: delta" in done("delta", *POISSON, "--sigma", "0.4", "--eps", "0.1").stderr


def test_a_sigma_that_loses_nothing_has_no_certificate(tmp_path):
    path = tmp_path / "no.json"
    result = run("epsilon", *POISSON, "--sigma", "1e3", "--delta", "0.3", "--out", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "gives no eps > 0 there" in result.stderr
    assert not path.exists()
