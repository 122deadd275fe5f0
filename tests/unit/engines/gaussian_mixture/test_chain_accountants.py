"""delta and sigma of b-min-sep sampling: integrals, exact accountants of special cases, plain draws."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import special

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.engines.gaussian_mixture import waiting_copies

IMPORTANCE = dm.methods.Importance(rel_error=0.02)


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
    found = dm.delta(strategy, sigma, eps, participation=dm.BMinSep(2, p), method=IMPORTANCE, rng=3)
    assert found.lower < truth < found.upper < 1.15 * truth
    # A noise scale that is 3 % off shows.
    wrong = by_integral(strategy, p, 0.97 * sigma, eps)
    fine = dm.methods.Importance(rel_error=0.007)
    found = dm.delta(strategy, sigma, eps, participation=dm.BMinSep(2, p), method=fine, rng=3)
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
    sampling = dm.BMinSep(1, p)
    found = dm.delta(strategy, sigma, eps, participation=sampling, method=IMPORTANCE, rng=1)
    assert found.lower < exact.lower <= exact.upper < found.upper < 1.15 * exact.upper


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "delta"), [(1.0, 1e-10), (8.0, 1e-10), (1.0, 1e-5), (0.3, 1e-6)])
def test_without_rest_sigma_is_that_of_poisson_sampling_down_to_1e_10(eps, delta):
    strategy, p = dm.Identity(100), 0.05
    exact = dm.calibrate_sigma(strategy, eps, delta, participation=dm.Poisson(p)).sigma
    sampling = dm.BMinSep(1, p)
    found = dm.calibrate_sigma(strategy, eps, delta, participation=sampling, method=IMPORTANCE, rng=4).sigma
    assert exact * 0.999 < found < exact * 1.02


def test_certain_coins_are_balls_in_bins():
    # Who starts at step r comes at r, r + b, ...: one of b bins for the whole run.
    strategy, b = dm.SquareRoot(24, 4), 4
    bins = dm.delta(strategy, 6.0, 1.0, participation=dm.BallsInBins(b), method=IMPORTANCE, rng=1)
    sampling = dm.BMinSep(b, 1.0)
    found = dm.delta(strategy, 6.0, 1.0, participation=sampling, method=IMPORTANCE, rng=2)
    assert max(found.lower, bins.lower) < min(found.upper, bins.upper)
    assert found.upper < 1.2 * found.lower


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "eps"), [(2.5, 8.0), (16.0, 1.0), (9.0, 2.0)])
def test_certain_coins_are_balls_in_bins_also_where_delta_is_small(sigma, eps):
    strategy, b = dm.SquareRoot(48, 8), 8
    bins = dm.delta(strategy, sigma, eps, participation=dm.BallsInBins(b), method=IMPORTANCE, rng=1)
    sampling = dm.BMinSep(b, 1.0)
    found = dm.delta(strategy, sigma, eps, participation=sampling, method=IMPORTANCE, rng=2)
    assert max(found.lower, bins.lower) < min(found.upper, bins.upper)
    assert found.upper < 1.3 * found.lower


def histories(n, b, rest_law):
    """Every set of steps that one example may take part in, with its probability, as rows of 0 and 1."""
    found = [((), rest, rest_law.rate) for rest in range(1, b)]
    found.append(((), 0, 1.0 - (b - 1) * rest_law.rate))
    for step in range(n):
        # Who is not at rest joins with the sampling probability; all others come a step nearer to it.
        onward = [(steps, max(rest - 1, 0), p * (1.0 - rest_law.sampling_prob * (rest == 0)))
                  for steps, rest, p in found]  # fmt: skip
        joined = [
            ((*steps, step), b - 1, p * rest_law.sampling_prob) for steps, rest, p in found if rest == 0
        ]
        found = onward + joined
    rows = np.zeros((len(found), n))
    for row, (steps, _, _) in zip(rows, found, strict=True):
        row[list(steps)] = 1.0
    return rows, np.array([p for _, _, p in found])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_plain_draws_agree():
    n, b, p, sigma, eps = 12, 3, 0.2, 2.0, 1.0
    strategy, rng = dm.SquareRoot(n, b), np.random.default_rng(8)
    rows, probs = histories(n, b, dm.BMinSep(b, p))
    assert probs.sum() == pytest.approx(1.0, rel=1e-12)
    assert probs @ rows == pytest.approx(np.full(n, dm.BMinSep(b, p).rate), rel=1e-12)
    means = rows @ strategy.to_dense().T / sigma
    offsets = np.log(probs) - 0.5 * np.sum(means**2, axis=1)
    hits, squares, count = 0.0, 0.0, 0
    for _ in range(100):
        drawn = rng.standard_normal((20_000, n)) + means[rng.choice(len(probs), 20_000, p=probs)]
        losses = special.logsumexp(drawn @ means.T + offsets, axis=1)
        payoffs = np.maximum(-np.expm1(eps - losses), 0.0)
        hits, squares, count = hits + payoffs.sum(), squares + (payoffs**2).sum(), count + payoffs.size
    mean = hits / count
    error = math.sqrt(squares / count - mean**2) / math.sqrt(count)
    assert error < 0.01 * mean
    found = dm.delta(strategy, sigma, eps, participation=dm.BMinSep(b, p), method=IMPORTANCE, rng=1)
    assert found.lower - 5.0 * error < mean < found.upper + 5.0 * error


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "eps"), [(1.1, 1.0), (2.0, 1.0)])
def test_certified_bounds_hold_the_exact_value(sigma, eps):
    strategy, p = dm.Identity(20), 0.1
    exact = dm.delta(strategy, sigma, eps, participation=dm.Poisson(p))
    found = dm.delta(strategy, sigma, eps, participation=dm.BMinSep(1, p), rng=1)
    assert found.guarantee.kind.name == "PROBABLE"
    assert 0.5 * exact.lower < found.lower <= exact.upper
    assert exact.lower <= found.upper < 1.3 * exact.upper
    loss = dm.epsilon(strategy, sigma, exact.upper, participation=dm.BMinSep(1, p), rng=1)
    assert loss.lower <= eps <= loss.upper < 1.2 * eps


@pytest.mark.slow
def test_a_calibration_is_proved_and_verified_by_other_draws():
    sampling, strategy = dm.BMinSep(4, 0.1), dm.SquareRoot(16, 4)
    cal = dm.calibrate_sigma(strategy, 2.0, 1e-4, participation=sampling)
    assert cal.guarantee.inside_delta
    estimate = dm.calibrate_sigma(
        strategy, 2.0, 1e-4, participation=sampling, method=dm.methods.Importance(0.007), rng=1
    )
    assert estimate.sigma * 0.99 < cal.sigma < estimate.sigma * 1.05
    assert dm.verify(cal.certificate()).ok
    assert dm.verify(estimate.certificate()).ok
    assert not dm.verify(with_checksum(dataclasses.replace(cal, sigma=0.95 * cal.sigma)).certificate()).ok


def test_where_draws_prove_nothing_the_default_says_what_there_is(monkeypatch):
    monkeypatch.setattr(waiting_copies, "_COPIES", 1)  # other parts bound no weight by e^12 deltas
    with pytest.raises(dm.NumericalError, match=r"method=Importance\(\) may give an estimate") as caught:
        dm.calibrate_sigma(dm.SquareRoot(64, 4), 0.3, 1e-12, participation=dm.BMinSep(4, 0.02))
    assert "steps" in str(caught.value)


def test_the_gaussian_is_the_unamplified_end():
    strategy = dm.SquareRoot(12, 3)
    everyone = dm.delta(strategy, 2.0, 1.0, participation=dm.MinSep(3))
    found = dm.delta(strategy, 2.0, 1.0, participation=dm.BMinSep(3, 0.2), method=IMPORTANCE, rng=1)
    assert found.upper < everyone.lower


@pytest.mark.parametrize("method", [None, IMPORTANCE])
@pytest.mark.parametrize(("apart", "n"), [(1, 40), (4, 9)])
def test_a_budget_that_every_sigma_meets_is_refused(method, apart, n):
    # By the transition matrix of an example that never joins, over the states "waits w more steps".
    p, moves = 1e-3, np.zeros((apart, apart))
    moves[0, 0] = 1.0 - p
    moves[range(1, apart), range(apart - 1)] = 1.0
    start = np.array([1.0, *[p] * (apart - 1)])
    joins = 1.0 - float(start / start.sum() @ np.linalg.matrix_power(moves, n) @ np.ones(apart))
    call = {"participation": dm.BMinSep(apart, p), "method": method, "rng": 1}
    with pytest.raises(dm.exceptions.UnattainableBudgetError, match=f"with probability {joins:g} only"):
        dm.calibrate_sigma(dm.Identity(n), 1.0, 1.001 * joins, **call)
    assert call["participation"].chance(n) == pytest.approx(joins, rel=1e-9)
