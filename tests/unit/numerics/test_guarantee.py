import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.numerics import joined
from dpmech.numerics.bounds import error_of_level

KINDS = st.sampled_from(dm.Kind)


@st.composite
def guarantees(draw):
    kind = draw(KINDS)
    inside = kind is dm.Kind.PROBABLE and draw(st.booleans())
    return dm.Guarantee(kind, draw(st.floats(5e-324, 1.0)) if kind >= dm.Kind.PROBABLE else 0.0, inside)


def test_kinds_are_ordered_the_surest_first():
    assert dm.Kind.EXACT < dm.Kind.BOUND < dm.Kind.PROBABLE < dm.Kind.ESTIMATE


def test_the_four_phrases():
    said = [str(dm.Guarantee(kind, 0.5 if kind >= dm.Kind.PROBABLE else 0.0)) for kind in sorted(dm.Kind)]
    assert said == ["exact", "deterministic upper bound", "with probability 1 - beta", "estimate"]


@given(guarantees(), guarantees())
def test_joining_takes_the_less_sure_kind_and_adds_the_errors_outside_delta_upward(one, other):
    both = one & other
    assert both.kind == max(one.kind, other.kind)
    assert both == other & one
    outside = [Fraction(each.error) for each in (one, other) if not each.inside_delta]
    if both.inside_delta:
        assert sum(outside) == 0
        assert both.error == max(one.error, other.error)
        return
    exact = sum(outside)
    assert Fraction(both.error) >= min(exact, Fraction(1))
    assert both.error <= float(exact) * (1 + 1e-15) + 1e-323
    assert (both.kind < dm.Kind.PROBABLE) == (exact == 0)


@given(guarantees(), guarantees(), guarantees())
def test_joining_does_not_depend_on_the_order_but_for_rounding(one, two, three):
    left, right = (one & two) & three, one & (two & three)
    assert (left.kind, left.inside_delta) == (right.kind, right.inside_delta)
    assert left.error == pytest.approx(right.error, rel=1e-14, abs=1e-322)


INSIDE = dm.Guarantee(dm.Kind.PROBABLE, 1e-9, inside_delta=True)


def test_an_error_inside_delta_is_not_added_again():
    outside = dm.Guarantee(dm.Kind.PROBABLE, 1e-12)
    estimate = dm.Guarantee(dm.Kind.ESTIMATE, 1e-4)
    assert INSIDE & INSIDE == INSIDE
    assert INSIDE & dm.Guarantee(dm.Kind.BOUND) == INSIDE
    assert INSIDE & dm.Guarantee(dm.Kind.PROBABLE, 1e-10, True) == INSIDE
    assert INSIDE & outside == outside
    assert INSIDE & estimate == estimate
    both = joined([INSIDE, outside, outside])
    assert not both.inside_delta
    assert 2e-12 <= both.error <= 2e-12 * (1 + 1e-15)


def test_an_error_inside_delta_is_told_rounded_up():
    assert str(INSIDE) == "with probability 1 - beta, beta 1e-09, inside delta"
    third = dm.Guarantee(dm.Kind.PROBABLE, 1e-9 / 3.0, inside_delta=True)
    assert str(third) == "with probability 1 - beta, beta 3.33334e-10, inside delta"


@pytest.mark.parametrize("kind", [dm.Kind.EXACT, dm.Kind.BOUND, dm.Kind.ESTIMATE])
def test_only_a_probable_claim_has_its_error_inside_delta(kind):
    with pytest.raises(dm.InvalidParameterError, match="inside_delta"):
        dm.Guarantee(kind, 1e-4 if kind is dm.Kind.ESTIMATE else 0.0, inside_delta=True)
    with pytest.raises(dm.InvalidParameterError, match="inside_delta"):
        dm.Guarantee(dm.Kind.PROBABLE, 1e-4, inside_delta=1)


@given(st.floats(1e-300, 1.0), st.floats(1e-300, 1.0))
def test_what_is_left_of_delta_is_rounded_down_and_not_nothing(delta, error):
    inside = dm.Guarantee(dm.Kind.PROBABLE, error, inside_delta=True)
    assert dm.Guarantee(dm.Kind.PROBABLE, error).mechanism_delta(delta) == delta
    exact = Fraction(delta) - Fraction(error)
    if exact <= 0:
        with pytest.raises(dm.InvalidParameterError, match=r"beta must be below delta"):
            inside.mechanism_delta(delta)
        return
    left = inside.mechanism_delta(delta)
    assert Fraction(left) <= exact
    assert Fraction(left) + Fraction(error) <= Fraction(delta)
    assert left >= float(exact) * (1 - 2**-52)


def test_data_of_before_means_an_error_outside_delta():
    assert dm.Guarantee.from_dict({"kind": "PROBABLE", "error": 1e-9}) == dm.Guarantee(dm.Kind.PROBABLE, 1e-9)
    assert dm.Guarantee(dm.Kind.PROBABLE, 1e-9).to_dict() == {"kind": "PROBABLE", "error": 1e-9}
    assert INSIDE.to_dict() == {"kind": "PROBABLE", "error": 1e-9, "inside_delta": True}
    with pytest.raises(dm.InvalidParameterError, match="guarantee"):
        dm.Guarantee.from_dict({"kind": "PROBABLE", "inside_delta": True})
    with pytest.raises(dm.InvalidParameterError, match="inside_delta"):
        dm.Guarantee.from_dict({"kind": "PROBABLE", "error": 1e-9, "inside_delta": 1})


def test_what_rests_on_nothing_is_exact():
    assert joined([]) == dm.Guarantee(dm.Kind.EXACT)
    one = dm.Guarantee(dm.Kind.PROBABLE, 1e-17)
    assert joined([one]) == one
    assert joined([one, dm.Guarantee(dm.Kind.BOUND)]) == one


def test_only_an_estimate_is_not_rigorous():
    found = {kind: dm.Guarantee(kind, 0.5 if kind >= dm.Kind.PROBABLE else 0.0).rigorous for kind in dm.Kind}
    assert [kind for kind, rigorous in found.items() if not rigorous] == [dm.Kind.ESTIMATE]


@pytest.mark.parametrize(
    ("kind", "error"),
    [*itertools.product(["EXACT", "BOUND"], [1e-9, 1.0]), ("PROBABLE", 0.0), ("ESTIMATE", 0.0)],
)
def test_an_error_goes_with_its_kind(kind, error):
    with pytest.raises(dm.InvalidParameterError, match="error"):
        dm.Guarantee(dm.Kind[kind], error)


@pytest.mark.parametrize("kind", ["EXACT", "exact", 0, None])
def test_a_kind_is_a_kind(kind):
    with pytest.raises(dm.InvalidParameterError, match="kind must be one of EXACT, BOUND"):
        dm.Guarantee(kind)


@given(guarantees())
def test_plain_data_and_back(one):
    assert dm.Guarantee.from_dict(one.to_dict()) == one


@pytest.mark.parametrize("level", [0.5, 0.7, 0.99, 1.0 - 2.0**-53])
def test_the_error_of_a_level_of_a_half_or_more_is_exact(level):
    assert Fraction(error_of_level(level)) == 1 - Fraction(level)


def test_an_error_is_at_most_one():
    assert dm.Guarantee(dm.Kind.PROBABLE, 1.0).error == 1.0
    with pytest.raises(dm.InvalidParameterError, match="error"):
        dm.Guarantee(dm.Kind.PROBABLE, 1.5)


@pytest.mark.parametrize("level", [0.0, 1e-17, 0.1, 0.3, 0.4999, 0.5, 0.7, 1.0])
def test_the_error_of_a_level_is_the_next_float_at_most(level):
    found, exact = error_of_level(level), 1 - Fraction(level)
    assert exact <= Fraction(found) <= exact * (1 + Fraction(1, 2**51))
    assert found <= 1.0
