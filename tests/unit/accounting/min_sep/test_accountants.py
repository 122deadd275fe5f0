"""delta and sigma of b-min-sep sampling: integrals, exact accountants of special cases, plain draws."""

import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting import chain_gram, judge_delta
from dpmech.mechanism import RestLaw
from dpmech.verifying.chain_draws import ChainDraws

IMPORTANCE = dm.Importance(rel_error=0.02)


def by_integral(strategy, p, sigma, eps):
    """delta for two steps and b = 2, both directions, by sums over a fine grid of outputs."""
    c = strategy.to_dense() / sigma
    rate = p / (1.0 + p)
    axis = np.linspace(-12.0, 12.0, 801)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    base = np.exp(-0.5 * (x**2 + y**2)) / (2.0 * math.pi) * (axis[1] - axis[0]) ** 2
    ratio = np.full(x.shape, 1.0 - 2.0 * rate)
    for column in c.T:
        ratio += rate * np.exp(column[0] * x + column[1] * y - 0.5 * column @ column)
    removed = float(np.sum(base * np.maximum(ratio - math.exp(eps), 0.0)))
    return max(removed, float(np.sum(base * np.maximum(1.0 - math.exp(eps) * ratio, 0.0))))


@pytest.mark.parametrize(("sigma", "eps"), [(0.9, 1.0), pytest.param(0.6, 4.0, marks=pytest.mark.slow)])
def test_two_steps_are_an_integral(sigma, eps):
    strategy, p = dm.BandedToeplitz(2, [1.0, 0.6]), 0.4
    truth = by_integral(strategy, p, sigma, eps)
    found = dm.delta(strategy, sigma, eps, participation=dm.MinSepSampling(2, p), method=IMPORTANCE, rng=3)
    assert found.lower < truth < found.upper < 1.15 * truth
    # A noise scale that is 3 % off shows.
    wrong = by_integral(strategy, p, 0.97 * sigma, eps)
    fine = dm.Importance(rel_error=0.007)
    found = dm.delta(strategy, sigma, eps, participation=dm.MinSepSampling(2, p), method=fine, rng=3)
    assert not found.lower < wrong < found.upper


@pytest.mark.parametrize(
    ("sigma", "eps"),
    [
        (0.9, 1.0),
        pytest.param(1.3, 2.0, marks=pytest.mark.slow),
        pytest.param(3.0, 1.0, marks=pytest.mark.slow),
    ],
)
def test_without_rest_it_is_poisson_sampling(sigma, eps):
    strategy, p = dm.Identity(20), 0.1
    exact = dm.delta(strategy, sigma, eps, participation=dm.Poisson(p))
    sampling = dm.MinSepSampling(1, p)
    found = dm.delta(strategy, sigma, eps, participation=sampling, method=IMPORTANCE, rng=1)
    assert found.lower < exact.lower <= exact.upper < found.upper < 1.15 * exact.upper


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "delta"), [(1.0, 1e-10), (8.0, 1e-10), (1.0, 1e-5), (0.3, 1e-6)])
def test_without_rest_sigma_is_that_of_poisson_sampling_down_to_1e_10(eps, delta):
    strategy, p = dm.Identity(100), 0.05
    exact = dm.calibrate_sigma(strategy, eps, delta, participation=dm.Poisson(p)).sigma
    sampling = dm.MinSepSampling(1, p)
    found = dm.calibrate_sigma(strategy, eps, delta, participation=sampling, method=IMPORTANCE, rng=4).sigma
    assert exact * 0.999 < found < exact * 1.02


def test_certain_coins_are_balls_in_bins():
    # Who starts at step r comes at r, r + b, ...: one of b bins for the whole run.
    strategy, b = dm.SquareRoot(24, 4), 4
    bins = dm.delta(strategy, 6.0, 1.0, participation=dm.BallsInBins(b), method=IMPORTANCE, rng=1)
    sampling = dm.MinSepSampling(b, 1.0)
    found = dm.delta(strategy, 6.0, 1.0, participation=sampling, method=IMPORTANCE, rng=2)
    assert max(found.lower, bins.lower) < min(found.upper, bins.upper)
    assert found.upper < 1.2 * found.lower


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "eps"), [(2.5, 8.0), (16.0, 1.0), (9.0, 2.0)])
def test_certain_coins_are_balls_in_bins_also_where_delta_is_small(sigma, eps):
    strategy, b = dm.SquareRoot(48, 8), 8
    bins = dm.delta(strategy, sigma, eps, participation=dm.BallsInBins(b), method=IMPORTANCE, rng=1)
    sampling = dm.MinSepSampling(b, 1.0)
    found = dm.delta(strategy, sigma, eps, participation=sampling, method=IMPORTANCE, rng=2)
    assert max(found.lower, bins.lower) < min(found.upper, bins.upper)
    assert found.upper < 1.3 * found.lower


@pytest.mark.slow
def test_plain_draws_agree():
    n, b, p, sigma, eps = 12, 3, 0.2, 2.0, 1.0
    strategy, rng = dm.SquareRoot(n, b), np.random.default_rng(8)
    own = ChainDraws(strategy.to_dense(), RestLaw(b, p), rng)
    c = strategy.to_dense() / sigma
    kernel, hits, squares, count = c.T @ c, 0.0, 0.0, 0
    for _ in range(100):
        rows = rng.standard_normal((20_000, n)) + own._patterns(20_000) @ c.T
        payoffs = np.maximum(-np.expm1(eps - own._losses(rows @ c, kernel)), 0.0)
        hits, squares, count = hits + payoffs.sum(), squares + (payoffs**2).sum(), count + payoffs.size
    mean = hits / count
    error = math.sqrt(squares / count - mean**2) / math.sqrt(count)
    assert error < 0.01 * mean
    found = dm.delta(strategy, sigma, eps, participation=dm.MinSepSampling(b, p), method=IMPORTANCE, rng=1)
    assert found.lower - 5.0 * error < mean < found.upper + 5.0 * error


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "eps"), [(1.1, 1.0), (2.0, 1.0)])
def test_certified_bounds_hold_the_exact_value(sigma, eps):
    strategy, p = dm.Identity(20), 0.1
    exact = dm.delta(strategy, sigma, eps, participation=dm.Poisson(p))
    found = dm.delta(strategy, sigma, eps, participation=dm.MinSepSampling(1, p), rng=1)
    assert found.guarantee.kind.name == "PROBABLE"
    assert 0.5 * exact.lower < found.lower <= exact.upper
    assert exact.lower <= found.upper < 1.3 * exact.upper
    loss = dm.epsilon(strategy, sigma, exact.upper, participation=dm.MinSepSampling(1, p), rng=1)
    assert loss.lower <= eps <= loss.upper < 1.2 * eps


@pytest.mark.slow
def test_a_calibration_is_proved_and_verified_by_other_draws():
    sampling, strategy = dm.MinSepSampling(4, 0.1), dm.SquareRoot(16, 4)
    cal = dm.calibrate_sigma(strategy, 2.0, 1e-4, participation=sampling)
    assert cal.guarantee.inside_delta
    estimate = dm.calibrate_sigma(
        strategy, 2.0, 1e-4, participation=sampling, method=dm.Importance(0.007), rng=1
    )
    assert estimate.sigma * 0.99 < cal.sigma < estimate.sigma * 1.05
    assert dm.verify(cal.certificate()).ok
    assert dm.verify(estimate.certificate()).ok
    gram = chain_gram(strategy, 4, 0.1)
    for factor, holds in ((1.0, True), (0.95, False)):
        there = gram.scaled((factor * cal.sigma) ** -2)
        found = judge_delta(there, 2.0, 1e-4, beta=1e-9, rng=np.random.default_rng(5))
        assert found.holds is holds


def test_where_draws_prove_nothing_the_default_says_what_there_is():
    with pytest.raises(dm.NumericalError, match=r"method=Importance\(\) gives an estimate") as caught:
        dm.calibrate_sigma(dm.SquareRoot(64, 4), 0.3, 1e-12, participation=dm.MinSepSampling(4, 0.02))
    assert "steps" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_the_second_route_is_the_integral(sigma):
    strategy, p = dm.BandedToeplitz(2, [1.0, 0.6]), 0.4
    draws = ChainDraws(strategy.to_dense(), RestLaw(2, p), np.random.default_rng(1))
    truth = by_integral(strategy, p, sigma, 0.5)
    found = draws.delta(sigma, 0.5)
    assert found.lower < truth < found.upper < 1.2 * truth


def test_the_second_route_sees_a_sigma_that_hides_nothing():
    # Ratios are beyond e^700 here. Whoever joins one of the two steps is seen: 2 p / (1 + p) of all.
    draws = ChainDraws(dm.BandedToeplitz(2, [1.0, 0.6]).to_dense(), RestLaw(2, 0.5), np.random.default_rng(1))
    found = draws.delta(0.005, 8.0)
    assert found.lower < 2.0 / 3.0 < found.upper < 0.75


def test_the_second_route_sums_all_histories():
    n, b, p = 5, 3, 0.3
    draws = ChainDraws(np.eye(n), RestLaw(b, p), np.random.default_rng(1))
    terms = np.random.default_rng(2).standard_normal((4, n))
    gram = chain_gram(dm.Identity(n), b, p)
    np.testing.assert_allclose(draws._log_ratios(terms), gram.log_sums(terms, 1.0, np.zeros(n)), rtol=1e-10)
    assert np.mean(draws._patterns(20_000)) == pytest.approx(RestLaw(b, p).rate, rel=0.02)


@pytest.mark.slow
def test_a_sigma_that_is_3_percent_too_small_is_found_out():
    strategy, sampling = dm.SquareRoot(64, 8), dm.MinSepSampling(8, 0.1)
    cal = dm.calibrate_sigma(strategy, 8.0, 1e-6, participation=sampling, method=dm.Importance(0.007), rng=1)
    draws = ChainDraws(strategy.to_dense(), RestLaw(8, 0.1), np.random.default_rng(1))
    assert draws.delta(cal.sigma, 8.0).lower <= 1e-6
    assert draws.delta(0.97 * cal.sigma, 8.0).lower > 1e-6


def test_the_gaussian_is_the_unamplified_end():
    strategy = dm.SquareRoot(12, 3)
    everyone = dm.delta(strategy, 2.0, 1.0, participation=dm.MinSep(3))
    found = dm.delta(strategy, 2.0, 1.0, participation=dm.MinSepSampling(3, 0.2), method=IMPORTANCE, rng=1)
    assert found.upper < everyone.lower
