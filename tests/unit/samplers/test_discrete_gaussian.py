"""Exact draws: the laws of the coins by following all choices, and what is refused."""

import math
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.drawing.discrete_gaussian import _coin_exp, _floor_root, _laplace, discrete_gaussian


class Unfinished(Exception):
    """More choices are asked for than were fixed."""


class Choices:
    """Hands out fixed choices, and then says of how many the next one is."""

    def __init__(self, fixed):
        self._left = list(fixed)

    def __call__(self, bound):
        if not self._left:
            raise Unfinished(bound)
        return self._left.pop(0)


def followed(draw, depth):
    """{result: probability} of all sequences of at most `depth` choices, exactly; what is left is missing."""
    found = {}
    waiting = [((), Fraction(1))]
    while waiting:
        fixed, prob = waiting.pop()
        try:
            result = draw(Choices(fixed))
        except Unfinished as stopped:
            if len(fixed) < depth:
                bound = stopped.args[0]
                waiting += [((*fixed, choice), prob / bound) for choice in range(bound)]
        else:
            found[result] = found.get(result, 0) + prob
    return found


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 2), Fraction(2, 3), Fraction(1)])
def test_a_coin_has_its_odds(exponent):
    found = followed(lambda below: _coin_exp(exponent, below), 5)
    missing = 1 - sum(found.values())
    assert 0 <= missing < Fraction(1, 100)
    assert found.get(True, 0) <= math.exp(-exponent) * (1 + 1e-15)
    assert found.get(False, 0) <= 1 - math.exp(-exponent) + 1e-15


def test_a_coin_beyond_one_is_a_product():
    found = followed(lambda below: _coin_exp(Fraction(3, 2), below), 6)
    assert found[True] <= math.exp(-1.5) <= found[True] + 1 - sum(found.values())


def test_laplace_numbers_are_symmetric():
    found = followed(lambda below: _laplace(1, below), 11)
    missing = 1 - sum(found.values())
    assert found[1] == found[-1]
    for y in (-2, -1, 0, 1, 2):
        law = math.tanh(0.5) * math.exp(-abs(y))
        assert found.get(y, 0) <= law <= found.get(y, 0) + missing
    assert missing < 0.4


def test_roots_are_exact():
    for value in (Fraction(1, 25), Fraction(99, 100), Fraction(4), Fraction(80, 9), Fraction(10**12 - 1)):
        root = _floor_root(value)
        assert root**2 <= value < (root + 1) ** 2


def test_seeds_repeat_and_the_operating_system_does_not():
    assert np.array_equal(discrete_gaussian(9, 20, rng=1), discrete_gaussian(9, 20, rng=1))
    assert not np.array_equal(discrete_gaussian(900, 20), discrete_gaussian(900, 20))
    assert discrete_gaussian(3, 0).shape == (0,)
    assert discrete_gaussian(Fraction(1, 2), 3).dtype == np.int64


@pytest.mark.parametrize("kwargs", [{"sigma": 0.0}, {"sigma": 3, "size": -1}, {"sigma": 3, "rng": "secure"}])
def test_what_is_refused(kwargs):
    with pytest.raises(dm.InvalidParameterError):
        discrete_gaussian(**kwargs)
