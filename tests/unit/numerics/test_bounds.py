import dataclasses
import math
from fractions import Fraction

import pytest

import dpmech as dm
from dpmech.numerics.bounds import error_of_level, union_error


def test_fields_and_derived_values():
    bounds = dm.Bounds(1.0, 1.5, "a theorem")
    assert (bounds.lower, bounds.upper, bounds.method, bounds.error) == (1.0, 1.5, "a theorem", 0.0)
    assert bounds.confidence is None
    assert bounds.midpoint == 1.25
    assert bounds.relative_gap == pytest.approx(1 / 3)
    assert not bounds.exact


def test_exact_within_1e9_and_only_without_confidence():
    assert dm.Bounds(1.0, 1.0 + 0.9e-9, "m").exact
    assert not dm.Bounds(1.0, 1.0 + 1.2e-9, "m").exact
    assert not dm.Bounds(1.0, 1.0, "m", error=0.01).exact
    assert not dm.Bounds(1.0, math.inf, "m").exact
    assert dm.Bounds(0.0, 0.0, "m").exact
    assert dm.Bounds(0.0, 0.0, "m").relative_gap == 0.0


@pytest.mark.parametrize(("lower", "upper"), [(2.0, 1.0), (math.nan, 1.0), (1.0, math.nan)])
def test_disorder_and_nan_are_refused(lower, upper):
    with pytest.raises(dm.InvalidParameterError, match="lower <= upper, neither NaN"):
        dm.Bounds(lower, upper, "m")


def test_scaled_keeps_the_rest():
    scaled = dm.Bounds(1.0, 2.0, "m", error=0.1).scaled(2.0)
    assert scaled == dm.Bounds(2.0, 4.0, "m", error=0.1)


def test_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        dm.Bounds(1.0, 2.0, "m").upper = 0.0


@pytest.mark.parametrize("level", [0.5, 0.7, 0.99, 1.0 - 2.0**-53])
def test_the_error_of_a_level_of_a_half_or_more_is_exact(level):
    assert Fraction(error_of_level(level)) == 1 - Fraction(level)


@pytest.mark.parametrize("level", [0.0, 1e-300, 0.1, 0.25, 0.3, 0.4999999999999999])
def test_the_error_of_a_level_below_a_half_is_rounded_up(level):
    exact = 1 - Fraction(level)
    assert exact <= Fraction(error_of_level(level)) <= exact + Fraction(1, 2**52)
    assert error_of_level(level) <= 1.0


def test_errors_of_several_statements_add_up_and_outward():
    assert union_error([]) == union_error([0.0, 0.0]) == 0.0
    assert union_error([0.0, 1e-9]) == 1e-9
    for errors in ([0.1, 0.2], [1e-9] * 3, [1e-9, 0.3, 0.0, 1e-17]):
        exact = sum(map(Fraction, errors))
        assert exact <= Fraction(union_error(iter(errors))) <= exact * (1 + Fraction(1, 2**50))
    assert union_error([0.7, 0.6]) == 1.0
