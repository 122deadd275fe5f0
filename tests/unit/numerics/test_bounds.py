import dataclasses
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.numerics import BOUND, EXACT

BY = dm.numerics.Provenance("a theorem")
PROBABLE = dm.Guarantee(dm.Kind.PROBABLE, 0.1)
POSITIVE = st.floats(0.0, 1e300, allow_subnormal=True)


def test_fields_and_derived_values():
    bounds = dm.Bounds(1.0, 1.5, PROBABLE, BY)
    assert (bounds.lower, bounds.upper, bounds.guarantee, bounds.by) == (1.0, 1.5, PROBABLE, BY)
    assert bounds.relative_gap == pytest.approx(1 / 3)
    assert not bounds.exact


def test_a_bracket_is_exact_where_its_ends_agree_to_1e_minus_9():
    assert dm.Bounds.bracket(1.0, 1.0 + 0.9e-9, BY).guarantee == EXACT
    assert dm.Bounds.bracket(1.0, 1.0 + 1.2e-9, BY).guarantee == BOUND
    assert dm.Bounds.bracket(1.0, math.inf, BY).guarantee == BOUND
    assert dm.Bounds.bracket(0.0, 0.0, BY).exact
    assert dm.Bounds.bracket(0.0, 0.0, BY).relative_gap == 0.0


@pytest.mark.parametrize(("lower", "upper"), [(2.0, 1.0), (math.nan, 1.0), (1.0, math.nan)])
def test_disorder_and_nan_are_refused(lower, upper):
    with pytest.raises(dm.InvalidParameterError, match="lower <= upper, neither NaN"):
        dm.Bounds(lower, upper, EXACT, BY)


def test_words_are_no_guarantee_and_no_provenance():
    with pytest.raises(dm.InvalidParameterError, match="guarantee must be a Guarantee"):
        dm.Bounds(0.0, 1.0, "exact", BY)
    with pytest.raises(dm.InvalidParameterError, match="by must be a Provenance"):
        dm.Bounds(0.0, 1.0, EXACT, "a theorem")


def test_what_is_printed_holds_the_interval():
    assert (
        str(dm.Bounds(1.23456789, 2.34567891, BOUND, BY)) == "[1.23456, 2.34568], deterministic upper bound"
    )
    assert repr(dm.Bounds(1.5, 2.5, BOUND, BY)).startswith("Bounds(lower=1.5, upper=2.5, ")


@given(POSITIVE, POSITIVE, st.floats(1e-300, 1e300))
def test_scaling_rounds_outward_by_less_than_two_floats(one, other, factor):
    lower, upper = sorted((one, other))
    scaled = dm.Bounds(lower, upper, PROBABLE, BY).scaled(factor)
    assert (scaled.guarantee, scaled.by) == (PROBABLE, BY)
    exact = Fraction(lower) * Fraction(factor), Fraction(upper) * Fraction(factor)
    assert Fraction(scaled.lower) <= exact[0]
    assert Fraction(math.nextafter(scaled.lower, math.inf)) > exact[0] if scaled.lower < 1e308 else True
    if math.isfinite(scaled.upper):
        assert Fraction(scaled.upper) >= exact[1]
        assert Fraction(math.nextafter(scaled.upper, -math.inf)) < exact[1] or exact[1] == 0
    else:
        assert exact[1] > Fraction(math.nextafter(math.inf, 0.0))


def test_scaling_by_a_power_of_two_changes_no_other_bit():
    assert dm.Bounds.bracket(0.1, 0.3, BY).scaled(2.0) == dm.Bounds.bracket(0.2, 0.6, BY)


@given(POSITIVE, st.floats(0.0, 0.5))
def test_a_rounded_value_lies_inside(value, relative):
    bounds = dm.Bounds.rounded(value, relative, BY)
    assert Fraction(bounds.lower) <= Fraction(value) * (1 - Fraction(relative))
    assert math.isinf(bounds.upper) or Fraction(bounds.upper) >= Fraction(value) * (1 + Fraction(relative))
    assert (bounds.lower, bounds.upper) == (value, value) or relative > 0.0


def test_widened_bounds_are_labelled_anew():
    exact = dm.Bounds.bracket(1.0, 1.0, BY)
    assert exact.widened(0.0) == exact
    assert exact.widened(1e-12).guarantee == EXACT
    assert exact.widened(1e-6).guarantee == BOUND
    wide = dm.Bounds(1.0, 2.0, PROBABLE, BY).widened(0.25)
    assert wide.guarantee == PROBABLE
    assert 0.75 * (1.0 - 1e-15) <= wide.lower <= 0.75
    assert 2.5 <= wide.upper <= 2.5 * (1.0 + 1e-15)


def test_bounds_that_both_hold_meet():
    other = dm.numerics.Provenance("another one")
    found = dm.Bounds.bracket(1.0, 3.0, BY).meet(dm.Bounds.bracket(0.5, 2.0, other))
    assert found == dm.Bounds.bracket(1.0, 2.0, other)
    point = dm.Bounds.bracket(2.0, 3.0, BY).meet(dm.Bounds.bracket(0.5, 2.0, other), BY)
    assert point == dm.Bounds(2.0, 2.0, EXACT, BY)
    unsure = dm.Bounds(1.0, 3.0, PROBABLE, BY).meet(dm.Bounds(2.0, 2.0, PROBABLE, other))
    assert unsure.guarantee == PROBABLE & PROBABLE
    assert 0.2 <= unsure.guarantee.error <= 0.2 + 1e-15


def test_plain_data_and_back():
    by = dm.numerics.Provenance("a", {"x": 1, "y": 0.5, "z": "w"}, (BY, dm.numerics.Provenance("b")))
    bounds = dm.Bounds(1.0, 2.0, PROBABLE, by)
    assert dm.Bounds.from_dict(bounds.to_dict()) == bounds
    for broken in (
        {},
        bounds.to_dict() | {"more": 1},
        bounds.to_dict() | {"guarantee": {"kind": "SURE", "error": 0}},
    ):
        with pytest.raises(dm.InvalidParameterError):
            dm.Bounds.from_dict(bounds.to_dict() | broken if broken else {})
    for broken in ({"route": 1}, {"facts": []}, {"facts": {"x": [1]}}, {"rests_on": "b"}):
        with pytest.raises(dm.InvalidParameterError):
            dm.Bounds.from_dict(bounds.to_dict() | {"by": by.to_dict() | broken})


def test_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        dm.Bounds(1.0, 2.0, BOUND, BY).upper = 0.0


def test_an_exact_value_is_known_to_a_millionth():
    assert dm.Bounds(1.0, 1.0 + 0.9e-6, EXACT, BY).exact
    for upper in (1.0 + 1.2e-6, math.inf):
        with pytest.raises(dm.InvalidParameterError, match="agree to 1e-6"):
            dm.Bounds(1.0, upper, EXACT, BY)
    assert dm.Bounds.derived(1.0, 1.0 + 0.9e-6, EXACT, BY).guarantee == EXACT
    assert dm.Bounds.derived(0.0, 1e-320, EXACT, BY).guarantee == BOUND
    assert dm.Bounds.derived(0.0, 1.0, PROBABLE, BY).guarantee == PROBABLE


@given(st.floats(0.0, 1e200), st.integers(1, 10**9))
def test_roots_of_integers_are_rounded_outward(value, count):
    found = dm.Bounds(value, value, BOUND, BY).times_root(count)
    exact = Fraction(value) ** 2 * count
    assert Fraction(found.lower) ** 2 <= exact <= Fraction(found.upper) ** 2
    assert found.upper <= math.nextafter(value * math.sqrt(count), math.inf) * (1.0 + 1e-15) + 1e-323


def test_bounds_that_contradict_each_other_do_not_meet():
    with pytest.raises(dm.NumericalError, match="contradict"):
        dm.Bounds.bracket(1.0, 2.0, BY).meet(dm.Bounds.bracket(3.0, 4.0, BY))
    rounded = dm.Bounds.bracket(1.0, 1.0, BY).meet(dm.Bounds.bracket(1.0 + 1e-12, 2.0, BY))
    assert (rounded.lower, rounded.upper) == (1.0, 1.0)
