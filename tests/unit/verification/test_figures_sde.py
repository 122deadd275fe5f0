import dataclasses

import numpy as np
import pytest

from verification.figures import (
    sde_digits,
    sde_loss_floors,
    sde_stationary,
    sde_threshold,
    sde_trajectories,
    sde_tuned,
)


@pytest.mark.parametrize("method", sde_stationary.METHODS)
def test_moments_agree_and_a_wrong_one_does_not(method):
    runs = 1500
    curve = sde_stationary.simulate(method, runs, 1200, points=4)
    mean, variance = curve.deviations(runs)
    assert mean < 6.2
    assert variance < 6.2 * np.sqrt(2.0 / runs)
    wrong = dataclasses.replace(curve, predicted_variances=1.5 * curve.predicted_variances)
    assert wrong.deviations(runs)[1] > 6.2 * np.sqrt(2.0 / runs) > 0.2
    wrong = dataclasses.replace(curve, predicted_means=curve.predicted_means + 3e-3)
    assert wrong.deviations(runs)[0] > 6.2


@pytest.mark.parametrize("method", sde_loss_floors.METHODS)
def test_floors_agree(method):
    simulated = sde_loss_floors.final_loss(method, 0.2, 6000, 64)
    assert simulated == pytest.approx(sde_loss_floors.floor(method, 0.2, 6000, 64), rel=0.4)


def test_powers_and_deviations_are_read_off():
    sigma = sde_loss_floors.MULTIPLIERS
    curve = sde_loss_floors.Floors(3.0 * sigma**2 + 1e-12, 2.0 * sigma**2 + 1e-12)
    assert curve.power() == pytest.approx(2.0)
    assert curve.deviation() == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("panel", sde_trajectories.PANELS, ids=lambda panel: panel.name)
def test_paths_follow_their_equation(panel):
    paths = sde_trajectories.simulate(panel, 2, 60)
    assert paths.iterates.shape == (61, 2)
    assert max(paths.deviation()) < 0.03
    np.testing.assert_array_equal(paths.iterates[0], paths.equation[0])
    wrong = sde_trajectories.Paths(paths.iterates, paths.equation[::-1])
    assert max(wrong.deviation()) > 0.5


def test_gradients_are_those_of_the_losses():
    x = np.random.default_rng(4).normal(size=(1, 6))
    for landscape in (sde_trajectories.quadratic(6), sde_trajectories.quartic(6)):
        for place in range(6):
            step = np.zeros((1, 6))
            step[0, place] = 1e-5
            slope = (landscape.loss(x + step) - landscape.loss(x - step))[0] / 2e-5
            assert landscape.gradient(x)[0, place] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_the_linear_drift_of_the_paper_is_far_off_at_its_own_start():
    assert sde_trajectories.linear_excess() > 100


@pytest.fixture(scope="module")
def problem():
    pytest.importorskip("sklearn")
    return sde_digits.digits()


def test_no_example_of_the_digits_is_clipped(problem):
    weights = np.random.default_rng(8).normal(size=(65, 10)) * 3.0
    errors = problem.errors(weights, slice(None))
    norms = [np.linalg.norm(np.outer(x, e)) for x, e in zip(problem.features, errors, strict=True)]
    assert 0.5 * problem.clip_norm < max(norms) <= problem.clip_norm
    # A prediction that is all wrong reaches the bound.
    length = np.linalg.norm(problem.features, axis=1).max()
    assert problem.clip_norm == pytest.approx(length * np.linalg.norm([1.0, -1.0]))


def test_the_loss_of_the_digits_has_this_gradient_and_minimum(problem):
    weights = np.random.default_rng(9).normal(size=(65, 10))
    gradient = problem.gradient(weights)
    for place in ((0, 0), (20, 3), (64, 9)):
        step = np.zeros_like(weights)
        step[place] = 1e-5
        slope = (problem.loss(weights + step) - problem.loss(weights - step)) / 2e-5
        assert gradient[place] == pytest.approx(slope, rel=1e-5, abs=1e-9)
    smallest, best = problem.minimum()
    assert np.abs(problem.gradient(best)).max() < 1e-6
    assert smallest < problem.loss(best + 1e-3 * weights)


def test_batch_noise_of_the_digits_is_that_of_poisson_batches(problem):
    weights = np.random.default_rng(10).normal(size=(65, 10))
    rng = np.random.default_rng(11)
    rate = sde_digits.BATCH / len(problem.features)
    sums = []
    for _ in range(3000):
        batch = rng.random(len(problem.features)) < rate
        sums.append(problem.features[batch].T @ problem.errors(weights, batch))
    trace = np.var(sums, axis=0).sum() / sde_digits.BATCH
    # The trace averages over 650 coordinates and 3000 batches: one per cent of scatter.
    assert problem.batch_noise(weights) ** 2 * 650 == pytest.approx(trace, rel=0.08)


@pytest.mark.parametrize(("method", "rel"), [("DP-SGD", 0.1), ("DP-SignSGD", 0.2)])
def test_floors_of_the_digits_agree(problem, method, rel):
    found = sde_digits.excess(problem, method, 30.0, 6000)
    assert found == pytest.approx(sde_digits.floor(problem, method, 30.0), rel=rel)
    assert found != pytest.approx(sde_digits.floor(problem, method, 45.0), rel=rel)


def test_the_loss_of_adam_grows_with_the_noise(problem):
    """As that of signs, where the noise dominates: in proportion, not with the square."""
    ends = [sde_digits.excess(problem, "DP-Adam", sigma, 1000, rate=0.02) for sigma in (20.0, 40.0)]
    assert ends[1] / ends[0] == pytest.approx(2.0, rel=0.25)


def test_powers_of_the_digits_are_read_off():
    eps = np.array(sde_digits.BUDGETS)
    curve = sde_digits.Curve(eps, 3.0 / eps**0.5, 2.0 / eps, 4.0 / eps)
    assert curve.powers() == pytest.approx((2.0, -1.0))
    assert curve.deviation() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("figure", "options"),
    [
        (sde_stationary, ["--runs", "2000", "--steps", "200"]),
        (sde_loss_floors, ["--steps", "300", "--dimension", "16"]),
        (sde_trajectories, ["--runs", "1", "--steps", "20"]),
        (sde_digits, ["--steps", "20"]),
    ],
    ids=["stationary", "floors", "trajectories", "digits"],
)
def test_the_scripts_draw_and_state_a_number(figure, options, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    if figure is sde_digits:
        pytest.importorskip("sklearn")
    path = tmp_path / "figure.png"
    status = figure.main([str(path), *options])
    assert status in {0, 1}
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert "off by at most" in capsys.readouterr().out


@pytest.mark.parametrize("power", [-1.0, 0.0])
def test_the_power_of_tuned_rates_is_found(power):
    """Losses whose best rate, between two that were tried, is sigma^power / 1000."""
    rates = 0.8 * 2.0 ** (-0.5 * np.arange(30))
    best = 1e-3 * np.array(sde_tuned.SIGMAS) ** power
    losses = np.exp(np.log(rates[None, :] / best[:, None]) ** 2)
    found = sde_tuned.Tuned(rates, losses)
    assert found.best() == pytest.approx(best, rel=1e-9)
    assert found.power() == pytest.approx(power, abs=1e-9)


def test_noise_slows_signs_and_not_sgd(problem, monkeypatch):
    """Figure 2, at two noise multipliers; powers 0 and 1, where batch noise and floors add a little."""
    monkeypatch.setattr(sde_tuned, "SEEDS", (1,))
    for method, least, most in (("DP-SGD", 0.97, 1.03), ("DP-SignSGD", 1.6, 2.4)):
        first, second = (sde_tuned.halfway(problem, method, sigma, 700) for sigma in (2.0, 4.0))
        assert least < second / first < most, method
    assert sde_tuned.halfway(problem, "DP-SGD", 3.0, 20) == np.inf


def test_a_rate_that_diverges_has_no_loss(problem):
    losses = sde_tuned.path(problem, "DP-SGD", 1e4, 4.0, 40, 1)
    assert losses.shape == (4,)
    assert np.isinf(losses[-1])


def test_a_threshold_is_where_the_advantage_changes_sign():
    """An advantage of log(sigma / 0.3), between runs at 0.2 and 0.45."""
    sigmas = np.array([0.1, 0.2, 0.45, 1.0])
    crossing = sde_threshold.Crossing(64, sigmas, np.log(sigmas / 0.3), 0.3)
    assert crossing.measured == pytest.approx(0.3, rel=1e-9)
    for never in (np.ones(4), -np.ones(4), np.array([-1.0, 1.0, -1.0, 1.0])):
        assert np.isnan(sde_threshold.Crossing(64, sigmas, never, 0.3).measured)


def test_signs_win_above_the_threshold_and_not_below(problem):
    predicted = sde_threshold.threshold(problem, 256)
    below, above = (sde_threshold.advantage(problem, 256, times * predicted, 900) for times in (0.6, 1.7))
    # By theory -0.5 and 0.5: the ratio of the floors is that of sigma where batches have little noise.
    assert below == pytest.approx(-0.5, abs=0.25)
    assert above == pytest.approx(0.5, abs=0.25)
    # Batch noise alone is enough for signs in small batches, by theory.
    assert sde_threshold.threshold(problem, sde_threshold.SMALL) == 0.0
    assert sde_threshold.threshold(problem, min(sde_threshold.BATCHES)) > 0.0


def test_normal_weights_have_the_covariance_of_poisson_batches(problem):
    """DP-SGD ends alike, as its floor depends on the covariance only; DP-SignSGD does not."""
    ends = {
        (method, normal): sde_digits.excess(
            problem, method, 0.01, 600, rate=rate, batch_size=sde_threshold.SMALL, normal=normal
        )
        for method, rate in sde_threshold.FIXED.items()
        for normal in (False, True)
    }
    assert ends["DP-SGD", True] == pytest.approx(ends["DP-SGD", False], rel=0.4)
    assert ends["DP-SignSGD", False] > 2.0 * ends["DP-SignSGD", True]
