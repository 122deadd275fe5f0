"""Tails of the binomial law: exact fractions, mpmath, and faults that the ends would show."""

import math
from fractions import Fraction

import mpmath as mp
import pytest

from dpmech.numerics import at_least, at_most


def exact(trials, prob, counts):
    q = Fraction(prob)
    return sum(math.comb(trials, k) * q**k * (1 - q) ** (trials - k) for k in counts)


@pytest.mark.parametrize("prob", [0.5, 0.1, 1e-9, 0.97, 1.0])
@pytest.mark.parametrize("trials", [1, 7, 40])
def test_small_ones_by_fractions(trials, prob):
    for count in range(-1, trials + 2):
        for found, counts in (
            (at_least(trials, prob, count), range(max(count, 0), trials + 1)),
            (at_most(trials, prob, count), range(min(count, trials) + 1)),
        ):
            true = exact(trials, prob, counts)
            assert Fraction(found[0]) <= true <= Fraction(found[1])
            assert found[1] - found[0] <= 1e-13 * found[1] + 1e-300


@pytest.mark.parametrize(
    ("trials", "prob", "count"),
    [
        (10_000, 0.01, 120),
        (10_000, 0.01, 101),
        (10_000, 0.01, 90),
        pytest.param(2_000_000, 0.3, 603_000, marks=pytest.mark.slow),
        (12_700_000_000, 4.08e-5, 522_000),
        pytest.param(12_700_000_000, 4.08e-5, 515_000, marks=pytest.mark.slow),
        (1_000_000, 1e-12, 3),
    ],
)
def test_large_ones_by_sums_in_mpmath(trials, prob, count):
    with mp.workdps(40):
        q = mp.mpf(prob)
        log = mp.loggamma(trials + 1) - mp.loggamma(count + 1) - mp.loggamma(trials - count + 1)
        first = mp.exp(log + count * mp.log(q) + (trials - count) * mp.log1p(-q))
        up = down = term = first
        for k in range(count, trials):
            term *= mp.mpf(trials - k) / (k + 1) * q / (1 - q)
            up += term
            if term < first * mp.mpf(10) ** -25 and k > (trials + 1) * q:
                break
        term = first
        for k in range(count, 0, -1):
            term *= mp.mpf(k) / (trials - k + 1) * (1 - q) / q
            down += term
            if term < first * mp.mpf(10) ** -25 and k < (trials + 1) * q:
                break
        for true, found in ((up, at_least(trials, prob, count)), (down, at_most(trials, prob, count))):
            assert found[0] <= true <= found[1]
            assert found[1] - found[0] <= 1e-10 * found[1]


def test_both_tails_leave_nothing_out():
    for count in (3, 10, 17):
        low, high = at_least(20, 0.4, count), at_most(20, 0.4, count - 1)
        assert low[0] + high[0] <= 1.0 <= low[1] + high[1]


def test_what_is_too_small_for_floats_is_no_more_than_the_smallest():
    assert at_least(10**6, 1e-6, 900_000) == (0.0, pytest.approx(0.0, abs=1e-300))
    assert at_least(10**6, 1e-6, 900_000)[1] > 0.0
