"""The recursion in pairs of floats, against fractions: every step is exact, or rounded once."""

from fractions import Fraction

import numpy as np
import pytest

from dpmech.verifying.series_recursion import _product, _recursion, _sum, recursive_inverse
from tests.support.oracles import rational_inverse

PAIRS = [
    *np.random.default_rng(3).normal(size=(40, 2)),
    *np.exp(np.random.default_rng(4).normal(scale=20.0, size=(40, 2))),
    (1.0 + 2.0**-52, 1.0 - 2.0**-53),
    (-(2.0**27) - 1.0, 2.0**27 + 3.0),
    (0.0, 3.0),
]


@pytest.mark.parametrize("operation", ["product", "sum"])
def test_what_is_rounded_off_is_kept(operation):
    for pair in PAIRS:
        x, y = map(float, pair)
        if operation == "product":
            found, exact = _product(x, y), Fraction(x) * Fraction(y)
            assert found[0] == x * y
        else:
            found, exact = _sum(x, y), Fraction(x) + Fraction(y)
            assert found[0] == x + y
        assert Fraction(found[0]) + Fraction(found[1]) == exact


SERIES = {
    "poles close to one another": [1.0, -1.9, 0.9025],
    "growing": [0.7, -1.3, 0.2, 0.4],
    "gaps": [1.5, 0.0, -0.3, 0.0, 0.0, 0.8],
    "signs": [-0.3, 0.1, 0.7],
    "one": [3.0],
}


@pytest.mark.parametrize("name", SERIES)
def test_coefficients_are_rounded_once(name):
    n = 40
    exact = rational_inverse(list(map(Fraction, SERIES[name])), n)
    found = recursive_inverse(np.array(SERIES[name]), n)
    assert found.tolist() == [float(one) for one in exact]
    assert recursive_inverse(np.array(SERIES[name]), 2).tolist() == [float(one) for one in exact[:2]]


@pytest.mark.parametrize("name", SERIES)
def test_pairs_keep_twice_the_digits(name):
    f = np.array(SERIES[name])
    lags = np.flatnonzero(f)[1:]
    upper, lower = np.zeros(40), np.zeros(40)
    _recursion(float(f[0]), f[lags], lags, upper, lower)
    for high, low, exact in zip(
        upper, lower, rational_inverse(list(map(Fraction, SERIES[name])), 40), strict=True
    ):
        assert abs(Fraction(high) + Fraction(low) - exact) <= abs(exact) * Fraction(1, 10**27)
        assert high == high + low
