"""Random allocation from below: the law of the test's sum, and bounds against exact ones for k = 1."""

import math
import pathlib
import re

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpmech as dm
from dpmech.schemes import accountant_for
from dpmech.schemes.random_allocation.threshold_test import ThresholdTest, _Plan


def plan(few, many, scale, odds):
    """A test that is planned for eps at delta 1e-6."""

    def gain(present, absent):
        return math.log(max(math.exp(present) - 1e-6, 1e-300)) - absent

    planned = ThresholdTest(few, few + many, 1.0)._planned(scale, odds, gain)
    assert isinstance(planned, _Plan)
    return planned


@pytest.mark.parametrize("scale", [0.06, 0.4, 1.0, 7.0])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_masses_of_values_by_many_digits(scale, shift):
    one, odds = plan(2, 9, scale, 0.2), mpmath.mpf(0.2)
    step = one.statistic.largest() / 40.0
    masses, errors = one.statistic.masses(step, shift=shift)
    mpmath.mp.dps = 40

    def below(value):
        """The probability that log(1 + z x) is below it; edges of float64 are off by rounding alone."""
        edge = mpmath.mpf(0.5) + mpmath.mpf(scale) ** 2 * mpmath.log(mpmath.expm1(value) / odds)
        return mpmath.ncdf((edge - shift) / scale)

    ends = [mpmath.mpf(step) * (j + 0.5) for j in range(masses.size - 1)]
    laws = [mpmath.mpf(0), *map(below, ends), mpmath.mpf(1)]
    for j, (mass, error) in enumerate(zip(masses, errors, strict=True)):
        truth = float(laws[j + 1] - laws[j])
        assert mass == pytest.approx(truth, rel=1e-9, abs=1e-14)
        assert error <= 1e-9 * mass + 1e-13
    assert masses.sum() == pytest.approx(1.0, abs=1e-13)
    assert np.all(masses >= -errors)


@pytest.mark.parametrize(("few", "many", "scale"), [(1, 1, 1.0), (2, 3, 0.7), (3, 1, 2.0), (5, 20, 1.2)])
def test_error_rates_are_on_their_sides_of_direct_convolutions(few, many, scale, monkeypatch):
    one = plan(few, many, scale, 0.6 * few / many)
    step = one.statistic.largest() / 150.0
    monkeypatch.setattr(_Plan, "_step", lambda plan: step)
    pure, shifted = (one.statistic.masses(step, shift=shift)[0].astype(np.longdouble) for shift in (0.0, 1.0))

    def tails(*factors):
        law = np.ones(1, np.longdouble)
        for masses, count in factors:
            for _ in range(count):
                law = np.convolve(law, masses)
        return np.cumsum(law[::-1])[::-1].astype(float)

    present, absent = tails((shifted, few), (pure, many)), tails((pure, few + many))
    rates = one.rates()
    assert len(rates) > 3
    for low, high in rates:
        # The threshold is where the sum under Q has this tail.
        index = int(np.argmin(np.abs(absent - high)))
        assert absent[index] <= high
        assert low <= present[index]
        if present[index] > 1e-9:
            assert high < absent[index] * (1.0 + 1e-6)
            assert low > present[index] * (1.0 - 1e-6)


ONE = [(2, 1.0, 1e-3), (2, 5.0, 1e-6), (10, 0.8, 1e-5), (10, 3.0, 1e-9), (300, 0.6, 1e-5), (300, 1.5, 1e-7)]


@pytest.mark.parametrize(("steps", "sigma", "delta"), ONE)
def test_one_participation_against_the_exact_law_of_its_sum(steps, sigma, delta):
    exact = dm.epsilon(dm.Identity(steps), sigma=sigma, delta=delta, participation=dm.BallsInBins(steps))
    found = ThresholdTest(1, steps, 1.0).epsilon(sigma, delta)
    assert 0.98 * exact.lower < found <= exact.upper
    # A test that saw 5 % more than there is would be above the truth.
    assert ThresholdTest(1, steps, 1.05).epsilon(sigma, delta) > exact.upper
    truth = dm.delta(dm.Identity(steps), sigma=sigma, eps=exact.upper, participation=dm.BallsInBins(steps))
    assert 0.1 * truth.lower < ThresholdTest(1, steps, 1.0).delta(sigma, exact.upper) <= truth.upper


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(2, 60), st.data())
def test_never_above_the_composition_of_blocks(steps, data):
    count = data.draw(st.integers(1, steps - 1))
    sigma, eps = data.draw(st.floats(0.3, 30.0)), data.draw(st.floats(0.0, 6.0))
    mechanism = dm.Mechanism(dm.Identity(steps), dm.RandomAllocation(count))
    upper = accountant_for(mechanism, None).upper_delta(sigma, eps, tolerance=0.05)
    assert 0.0 <= ThresholdTest(count, steps, 1.0).delta(sigma, eps) <= upper


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(2, 300), st.data())
def test_eps_and_delta_are_of_one_curve(steps, data):
    count = data.draw(st.integers(1, steps - 1))
    sigma, delta = data.draw(st.floats(0.3, 30.0)), 10.0 ** data.draw(st.floats(-12.0, -0.5))
    test = ThresholdTest(count, steps, 1.0)
    eps = test.epsilon(sigma, delta)
    # What either finds is a bound; they look at other tests, about as good.
    assert 0.0 <= eps < math.inf
    if eps > 0.01:
        assert test.delta(sigma, 0.9 * eps) > 0.1 * delta


@pytest.mark.parametrize("sigma", [1e-12, 0.049, 0.051, 1e5, 1e7, 1e300])
def test_extremes_give_bounds_or_nothing(sigma):
    test = ThresholdTest(7, 900, 1.0)
    for delta in (0.999, 1e-300):
        assert 0.0 <= test.epsilon(sigma, delta) < math.inf
    for eps in (0.0, 699.0, 1e4):
        assert 0.0 <= test.delta(sigma, eps) <= 1.0
    assert (test.epsilon(sigma, 1e-5) > 0.0) == (0.05 <= sigma < 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "count", "eps", "delta", "short"),
    [(30, 3, 2.0, 1e-5, 0.04), (1000, 10, 8.0, 1e-6, 0.06)],
)
def test_the_interval_of_a_calibration_is_narrow(steps, count, eps, delta, short):
    cal = dm.calibrate_sigma(
        dm.Identity(steps), eps=eps, delta=delta, participation=dm.RandomAllocation(count)
    )
    assert (1.0 - short) * cal.achieved.upper < cal.achieved.lower <= cal.achieved.upper <= eps


PAGE = pathlib.Path(__file__).parents[4] / "dpmech" / "schemes" / "random_allocation" / "page.md"
ROWS = [
    tuple(float(cell) for cell in row)
    for row in re.findall(
        r"^\| (\d+) \| (\d+) \| (\d+) \| (\S+) \| (\S+) \| (\S+) % \|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
]


def test_the_page_has_rows():
    assert len(ROWS) == 8


@pytest.mark.parametrize(("steps", "count", "eps", "sigma", "below", "excess"), ROWS)
def test_the_page_states_the_lower_end_and_what_no_proof_could_save(steps, count, eps, sigma, below, excess):
    test = ThresholdTest(int(count), int(steps), 1.0)
    # Cut, not rounded, after the digits that are printed.
    assert below <= test.epsilon(sigma, 1e-5) < below * 1.002
    # With so much less noise the budget is exceeded, whatever the proof.
    assert test.epsilon(sigma / (1.0 + excess / 100.0), 1e-5) > eps


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "count", "eps", "sigma", "below", "excess"), ROWS[:4])
def test_the_page_states_the_sigma_of_the_bound(steps, count, eps, sigma, below, excess):
    del below, excess
    own = dm.RandomAllocation(int(count))
    cal = dm.calibrate_sigma(dm.Identity(int(steps)), eps, 1e-5, participation=own, method=dm.methods.Pld())
    assert cal.sigma == pytest.approx(sigma, abs=1.5e-3)
