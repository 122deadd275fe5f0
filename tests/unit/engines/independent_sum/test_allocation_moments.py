"""Random allocation by two moments: every part against enumeration, mpmath or samples."""

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest

import dpmech as dm
from dpmech.schemes import accountant_for
from dpmech.schemes.random_allocation.conditional_moments import (
    ConditionalMoments,
    _least_mean,
    _rates,
    _sum_error,
    _Sums,
)
from dpmech.schemes.random_allocation.threshold_test import ThresholdTest

DETERMINISTIC, PLD = dm.methods.Deterministic(), dm.methods.Pld()


def convolved(laws):
    return functools.reduce(np.convolve, laws)


@pytest.mark.parametrize(("k", "t"), [(2, 4), (2, 5), (3, 4)])
@pytest.mark.parametrize("add", [False, True])
def test_moments_given_the_sum_by_enumeration_of_all_pairs_of_sets(k, t, add):
    sums = _Sums.of(k, t, 1.3, 1.0, add=add)
    laws = [sums.statistic.masses(sums.step, shift=float(j))[0][:: -1 if add else 1] for j in (0, 1, 2)]
    sets = [set(one) for one in itertools.combinations(range(t), k)]
    squares = np.zeros(t * (laws[0].size - 1) + 1)
    for one, other in itertools.product(sets, sets):
        both = [(i in one) + (i in other) for i in range(t)]
        factor = math.exp(both.count(2) / sums.statistic.scale**2) / len(sets) ** 2
        squares += factor * convolved([laws[j] for j in both])
    first = (1 - laws[0].size) * t if add else 0
    present = sums._composed(((1, k), (0, t - k)), upper=True)
    places = np.arange(*sorted((sums._index(present, 0), sums._index(present, -1))))
    places = places[(places >= first) & (places < first + squares.size)]
    own, found = squares[places - first], sums._squares(places)
    near = np.abs(places * sums.step - sums.sign * sums.threshold) < 0.3
    assert near.sum() > 5
    assert np.all(found >= own * (1.0 - 1e-12))
    assert found[near] == pytest.approx(own[near], rel=1e-8)
    ones = convolved([laws[1]] * k + [laws[0]] * (t - k))[places - first]
    assert np.all(sums._masses(present, places) >= ones * (1.0 - 1e-12))
    lower = sums._composed(((1, k), (0, t - k)), upper=False)
    assert np.all(sums._masses(lower, places) <= ones * (1.0 + 1e-12))


@pytest.mark.parametrize("order", [2, 3, 8, 20, 90])
def test_powers_as_sums_of_exponentials(order):
    eta, rates = _rates(order)
    error = _sum_error(order)
    assert error < 1e-3
    with mpmath.workdps(40):
        for mean in np.geomspace(_least_mean(order), 400.0, 9):
            terms = (
                mpmath.exp(order * mpmath.mpf(float(one)) - mpmath.exp(float(one)) * mpmath.mpf(float(mean)))
                for one in rates
            )
            ratio = eta * mpmath.fsum(terms) / mpmath.gamma(order) * mpmath.mpf(float(mean)) ** order
            assert abs(ratio - 1) <= error


def far_moment(sums, order, nu):
    """E A^n e^(-nu U), or E A^-n e^(nu U), of one block of one step, by quadrature cell by cell."""
    s, z, h = sums.statistic.scale, sums.statistic.odds, sums.step
    power = order if sums.sign > 0 else -order
    y = np.linspace(-9.0 * s, 9.0 * s + order, 400_001)
    exponents = (y - 0.5) / s**2
    values = np.minimum(np.rint(np.logaddexp(0.0, math.log(z) + exponents) / h), sums._cells(0)[0].size - 1)
    logs = power * exponents - sums.sign * nu * h * values - 0.5 * (y / s) ** 2
    return float(np.exp(logs).sum() * (y[1] - y[0])) / (s * math.sqrt(2.0 * math.pi))


@pytest.mark.parametrize("order", [2, 3, 6])
@pytest.mark.parametrize("add", [False, True])
def test_moments_of_blocks_of_one_step_by_quadrature(order, add):
    """With t = k + 1, all blocks but one have one step; the other has two, by two integrals."""
    sums = _Sums.of(3, 4, 1.5, 0.5, add=add)
    object.__setattr__(sums, "steps", 3)  # blocks of one step only
    nu = 0.7 * order
    found = (sums._negative if add else sums._positive)(order, nu)
    truth = 3.0 * math.log(far_moment(sums, order, nu))
    assert truth - 1e-4 < found < truth + 0.05 * order


@pytest.mark.parametrize(("size", "order"), [(20, 90), (4500, 20), (4500, 90), (15_000, 64), (100_000, 90)])
@pytest.mark.parametrize("scale", [5.0, 100.0])
def test_moments_of_means_by_an_exact_power_series(size, order, scale):
    """E A^n at nu = 0, by J. C. P. Miller's recursion for a power of a series, in 60 digits."""
    with mpmath.workdps(60):
        s = mpmath.mpf(scale)
        one = [mpmath.exp(j * (j - 1) / (2 * s**2)) / mpmath.factorial(j) for j in range(order + 1)]
        power = [mpmath.mpf(1)]
        for n in range(1, order + 1):
            terms = ((size * j - n + j) * one[j] * power[n - j] for j in range(1, n + 1))
            power.append(mpmath.fsum(terms) / n)
        truth = float(2 * mpmath.log(power[-1] * mpmath.factorial(order) / mpmath.mpf(size) ** order))
    found = _Sums.of(2, 2 * size, scale, 0.05, add=False)._positive(order, 0.0)
    assert truth <= found < truth * (1.0 + 1e-6) + 1e-5


@pytest.mark.parametrize("order", [2, 5])
@pytest.mark.parametrize("add", [False, True])
def test_moments_of_longer_blocks_by_samples(order, add):
    """Of 5 and 6 steps. The mean of 4e5 products, at 6.1 standard errors: wrong with probability 1e-9."""
    sums = _Sums.of(2, 11, 2.0, 0.5, add=add)
    nu, s, generator = 0.5 * order, 2.0, np.random.default_rng(5)
    logs = 0.0
    for size in (5, 6):
        y = generator.normal(0.0, s, (400_000, size))
        x = np.exp((y - 0.5) / s**2)
        u = np.rint(np.log1p(sums.statistic.odds * x) / sums.step).sum(axis=1) * sums.step
        power = order if not add else -order
        logs = logs + power * np.log(x.mean(axis=1)) - sums.sign * nu * u
    weights = np.exp(logs)
    mean, error = weights.mean(), weights.std() / math.sqrt(weights.size)
    found = math.exp((sums._negative if add else sums._positive)(order, nu))
    assert mean - 6.1 * error < found < (mean + 6.1 * error) * (1.0 + 0.06 * order)
    # A planted fault, blocks with one step less, is seen.
    object.__setattr__(sums, "steps", 9)
    wrong = math.exp((sums._negative if add else sums._positive)(order, nu))
    assert not mean - 6.1 * error < wrong < (mean + 6.1 * error) * (1.0 + 0.06 * order)


def sampled(k, t, sigma, eps, *, add, count=400_000):
    """Mean and standard error of one direction, by all sets of k steps."""
    generator = np.random.default_rng(11)
    y = generator.normal(0.0, sigma, (count, t))
    if not add:
        y[:, :k] += 1.0
    x = np.exp((y - 0.5) / sigma**2)
    ratio = np.mean([np.prod(x[:, list(one)], axis=1) for one in itertools.combinations(range(t), k)], axis=0)
    a = math.exp(eps)
    weights = np.maximum(1.0 - a * ratio, 0.0) if add else np.maximum(1.0 - a / ratio, 0.0)
    return float(weights.mean()), float(weights.std() / math.sqrt(count))


@pytest.mark.parametrize(("k", "t", "sigma", "eps"), [(2, 6, 1.6, 1.0), (3, 7, 2.5, 0.6), (4, 6, 4.0, 0.4)])
@pytest.mark.parametrize("add", [False, True])
def test_directions_by_samples(k, t, sigma, eps, add):
    """At 6.1 standard errors: wrong with probability 1e-9. The bound is within a tenth of delta."""
    mean, error = sampled(k, t, sigma, eps, add=add)
    found = ConditionalMoments(k, t, 1.0).delta(sigma, eps, add=add)
    assert mean - 6.1 * error < found < 1.1 * mean + 6.1 * error
    # A bound for columns that are 5 % shorter is too small.
    assert ConditionalMoments(k, t, 0.95).delta(sigma, eps, add=add) < mean - 6.1 * error


def excess(n, k, eps, delta):
    """The calibration, and how far its sigma is above that of the lower end."""
    own = dm.RandomAllocation(k)
    cal = dm.calibrate_sigma(dm.Identity(n), eps, delta, participation=own, method=DETERMINISTIC)
    accountant = accountant_for(dm.Mechanism(dm.Identity(n), own), DETERMINISTIC)
    return cal, accountant.excess(cal.sigma, eps, delta)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "k", "eps", "delta", "blocks"),
    [(12, 3, 1.0, 1e-5, 3.3008), (100, 10, 2.0, 1e-5, 2.1117), (390, 39, 4.0, 1e-5, 2.2392)],
)
def test_sigma_is_within_a_third_of_a_percent_of_the_lower_end(n, k, eps, delta, blocks):
    cal, above = excess(n, k, eps, delta)
    assert cal.sigma < 0.997 * blocks
    assert 0.0 < above < 0.003
    assert cal.guarantee.error == 0.0
    assert cal.achieved.lower <= cal.achieved.upper <= eps
    own = dm.RandomAllocation(k)
    again = dm.delta(dm.Identity(n), cal.sigma, eps, participation=own, method=DETERMINISTIC)
    assert again.upper <= delta


@pytest.mark.slow
def test_evaluations_are_at_most_those_of_the_blocks():
    own, strategy = dm.RandomAllocation(3), dm.Identity(12)
    for method, least in ((PLD, 0.99), (DETERMINISTIC, 0.0)):
        eps = dm.epsilon(strategy, 3.3, 1e-5, participation=own, method=method)
        assert (eps.upper > 0.998) == (least > 0.0)
        delta = dm.delta(strategy, 3.3, 1.0, participation=own, method=method)
        assert delta.lower < 0.93e-5
        assert (delta.upper > 0.97e-5) == (least > 0.0)


@pytest.mark.parametrize(("sigma", "eps"), [(0.1, 1.0), (1e5, 1.0), (2.0, 21.0), (1e-300, 0.0), (3.0, 19.0)])
@pytest.mark.parametrize("add", [False, True])
def test_beyond_its_range_the_bound_is_one_or_holds(sigma, eps, add):
    found = ConditionalMoments(2, 6, 1.0).delta(sigma, eps, add=add)
    assert 0.0 <= found <= 1.0
    if not add:
        assert found >= ThresholdTest(2, 6, 1.0).delta(sigma, eps)
    if sigma < 0.2 or sigma > 1e4 or eps > 20.0:
        assert found == 1.0


@pytest.mark.slow
def test_profiles_have_lower_bounds():
    own = dm.RandomAllocation(10)
    curve = dm.profile(dm.Identity(100), 2.112, participation=own)
    sums = 10.0 / math.sqrt(100.0) / 2.112
    for eps in (0.0, 1.0, 2.0):
        truth = dm.delta(dm.Identity(1), 1.0 / sums, eps).lower
        assert curve.delta(eps).lower == pytest.approx(truth, rel=1e-6)
        assert curve.delta(eps).lower < curve.delta(eps).upper
    twice = curve.self_compose(2).epsilon(1e-5)
    assert 0.9 * twice.upper < twice.lower <= twice.upper


def test_one_participation_and_all_of_them_need_no_moments():
    for k in (1, 5):
        own = dm.RandomAllocation(k)
        found = [
            dm.epsilon(dm.Identity(5), 2.0, 1e-5, participation=own, method=one)
            for one in (DETERMINISTIC, PLD)
        ]
        assert found[0].upper == found[1].upper
