"""The audit of released noise: false alarms at the stated level, and the faults that it finds."""

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.stats

import dpmech as dm
from dpmech.audits import noise as noise_module
from dpmech.audits.noise import (
    _coordinates,
    _enlargement,
    _of_products,
    _of_squares,
    _products,
    _repeats,
    noise_audit,
)

ALPHA = 1e-9
CLAIM = dm.calibrate_sigma(dm.LambdaCGD(50, 0.9), 2.0, 1e-5, participation=dm.MinSep(10))
UNIT = 0.5 / 128.0  # clip norm over batch size
WIDTH = 20_000  # 1e6 values in all


def noise(z, claim=CLAIM, unit=UNIT, dtype=np.float32):
    return (unit * claim.sigma * claim.strategy.solve(z)).astype(dtype)


def draws(seed, width=WIDTH, steps=50):
    return np.random.default_rng(seed).standard_normal((steps, width))


def repeated_after_a_resume(z):
    """Steps 30 to 49 have the rows of steps 0 to 19 again."""
    return np.concatenate([z[:30], z[:20]])


def one_row_again(z):
    return np.concatenate([z[:31], z[4:5], z[32:]])


def halves_alike(z):
    """Two tensors of one size with the same numbers."""
    return np.tile(z[:, : z.shape[1] // 2], 2)


FAULTS = {
    "1 % too little": (lambda z: noise(0.99 * z), "scale"),
    "1 % too much": (lambda z: noise(1.01 * z), "scale"),
    "not correlated": (lambda z: (UNIT * CLAIM.sigma * z).astype(np.float32), "lags"),
    "repeated after a resume": (lambda z: noise(repeated_after_a_resume(z)), "repeats"),
    "one row again": (lambda z: noise(one_row_again(z)), "repeats"),
    "two tensors alike": (lambda z: noise(halves_alike(z)), "coordinates"),
    "another batch size": (lambda z: noise(z, unit=0.5 / 130.0), "scale"),
    "another batch size in one step": (lambda z: np.r_[noise(z)[:20], noise(z)[20:] * 0.9], "steps"),
    "uniform": (lambda z: noise(math.sqrt(12.0) * (scipy.stats.norm.cdf(z) - 0.5)), "shape"),
    "rounded to float16": (lambda z: noise(z).astype(np.float16).astype(np.float32), "resolution"),
    "float64 rounded to float16": (lambda z: noise(z).astype(np.float16).astype(np.float64), "resolution"),
    "weaker correlation": (
        lambda z: (UNIT * CLAIM.sigma * dm.LambdaCGD(50, 0.89).solve(z)).astype(np.float32),
        "lags",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_with_a_million_values(fault):
    release, test = FAULTS[fault]
    found = noise_audit(release(draws(1)), CLAIM, units=UNIT)
    assert found.refuted
    assert test in found.findings
    assert found.values == 1_000_000


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_as_certified_is_not_refuted(dtype):
    found = noise_audit(noise(draws(2), dtype=dtype), CLAIM, units=UNIT)
    assert not found.refuted
    low, high = found.interval
    assert low < 1.0 < high < low + 0.011
    assert abs(found.ratio - 1.0) < 0.005
    assert np.abs(found.correlations).max() < 0.05
    assert len(found.p_values) == 7
    assert "not refuted at level 1e-09: " in str(found)


@pytest.mark.parametrize(
    "strategy",
    [
        dm.Identity(12),
        dm.SquareRoot(12),
        dm.BandedToeplitz(12, [1.0, 0.5]),
        dm.BLT(12, [0.9, 0.5], [0.2, 0.1]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_every_strategy_and_a_part_of_the_run(strategy):
    claim = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.MinSep(4))
    z = draws(3, width=4000, steps=12)
    assert not noise_audit(noise(z, claim)[:7], claim, units=UNIT).refuted
    assert noise_audit(0.9 * noise(z, claim)[:7], claim, units=UNIT).findings[0] == "scale"


def test_the_unit_may_change_from_step_to_step():
    units = np.linspace(0.5, 2.0, 50)
    released = noise(draws(4), unit=units[:, None])
    assert not noise_audit(released, CLAIM, units=units).refuted
    assert noise_audit(released, CLAIM, units=units[::-1]).refuted


def test_noise_rounded_afterwards_is_allowed_if_that_is_stated():
    released = noise(draws(5)).astype(np.float16).astype(np.float32)
    found = noise_audit(released, CLAIM, units=UNIT, rounding=2.0**-11)
    assert not found.refuted
    assert "resolution" not in found.p_values
    assert noise_audit(0.97 * released, CLAIM, units=UNIT, rounding=2.0**-11).findings[0] == "scale"


@pytest.mark.slow
def test_false_alarms_are_at_most_the_level():
    """At a level of 5 %, in small samples; a level that is not divided among the tests is found."""
    level, runs = 0.05, 4000
    claim = dm.calibrate_sigma(dm.LambdaCGD(8, 0.5), 2.0, 1e-5, participation=dm.MinSep(4))
    rng = np.random.default_rng(7)
    alarms, undivided = 0, 0
    for _ in range(runs):
        found = noise_audit(noise(rng.standard_normal((8, 40)), claim), claim, units=UNIT, level=level)
        alarms += found.refuted
        undivided += min(found.p_values.values()) <= level
    most = scipy.stats.binom.ppf(1.0 - ALPHA, runs, level)
    assert alarms <= most < undivided


def test_each_p_value_is_that_of_its_law():
    """Of sums of squares and of the correlation of two rows, to 15 digits of mpmath."""
    x, degrees = 150.0, 100
    above = mp.gammainc(degrees / 2, x / 2, mp.inf, regularized=True)
    assert _of_squares(np.array([x]), degrees, 0.0)[0] == pytest.approx(float(2 * above), rel=1e-12)
    cosine, width = 0.6, 30
    both = (
        2
        * mp.quad(lambda r: (1 - r**2) ** mp.mpf((width - 3) / 2), [cosine, 1])
        / mp.beta(0.5, (width - 1) / 2)
    )
    assert _repeats(cosine, 2, width, 0.0) == pytest.approx(float(both), rel=1e-12)


@pytest.mark.parametrize("lag", [1, 3])
def test_the_bound_on_products_is_above_their_law(lag):
    """Simulated sums of products exceed the value whose bound is p at most as often as p."""
    rng = np.random.default_rng(8)
    runs, count = 20_000, 200
    z = rng.standard_normal((runs, count))
    sums = np.sum(z[:, lag:] * z[:, :-lag], axis=1)
    p = _of_products(sums, np.full(runs, float(count - lag)), 1.0, 0.0)
    for level in (0.3, 0.1, 0.01):
        assert np.sum(p <= level) <= scipy.stats.binom.ppf(1.0 - ALPHA, runs, level)
    fewer = _of_products(sums, np.full(runs, 0.25 * (count - lag)), 1.0, 0.0)
    assert np.sum(fewer <= 0.01) > scipy.stats.binom.ppf(1.0 - ALPHA, runs, 0.01)


def test_products_within_rows_are_added_at_every_distance():
    z = draws(9, width=7, steps=3)
    sums = np.array([np.sum(z[:, lag:] * z[:, :-lag]) for lag in range(1, 7)])
    counts = 3.0 * np.arange(6, 0, -1)
    expected = min(1.0, 6 * _of_products(sums, counts, float(np.mean(z**2)), 0.0).min())
    assert _coordinates(z, 0.0) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("released", "options", "named"),
    [
        (np.ones((51, 4), np.float32), {}, "released"),
        (np.ones((2, 1), np.float32), {}, "released"),
        (np.zeros((2, 4), np.float32), {}, "released"),
        (np.ones((2, 4), np.float16), {}, "released"),
        (np.full((2, 4), np.nan), {}, "released"),
        (np.ones((2, 4)), {"units": 0.0}, "units"),
        (np.ones((2, 4)), {"units": [1.0, 1.0, 1.0]}, "units"),
        (np.ones((2, 4)), {"level": 0.0}, "level"),
        (np.ones((2, 4)), {"rounding": 0.1}, "rounding"),
    ],
)
def test_bad_arguments_are_named(released, options, named):
    with pytest.raises(dm.exceptions.InvalidParameterError, match=named):
        noise_audit(released, CLAIM, **options)


def test_too_coarse_values_give_no_number():
    with pytest.raises(dm.exceptions.NumericalError, match="float32 or float64"):
        noise_audit(noise(draws(1)), CLAIM, units=UNIT, rounding=0.02)


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_products_of_rows_in_blocks(at_once, monkeypatch):
    monkeypatch.setattr(noise_module, "_ROWS_AT_ONCE", at_once)
    z = draws(10, width=9, steps=7)
    gram = z @ z.T
    cosines = np.abs(gram) / np.sqrt(np.outer(np.diag(gram), np.diag(gram))) - np.eye(7)
    squares, lagged, highest = _products(z)
    np.testing.assert_allclose(squares, np.diag(gram))
    np.testing.assert_allclose(lagged, [np.trace(gram, lag) for lag in range(1, 7)], rtol=1e-12)
    assert highest == pytest.approx(cosines.max(), rel=1e-12)
    strategy = dm.BandedInverse(7, [1.0, -0.6, 0.3])
    inverse = np.linalg.inv(strategy.to_dense())
    expected = np.abs(strategy.to_dense()) @ np.linalg.norm(inverse, axis=1)
    assert _enlargement(strategy) == pytest.approx(expected.max(), rel=1e-12)
