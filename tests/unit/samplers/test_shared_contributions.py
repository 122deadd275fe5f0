"""Records with several owners: nobody owns more than so many of those kept, and none could be added."""

import enum
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.drawing.contributions import Contributions
from dpmech.samplers import SharedContributions, sampler_for

RECORDS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=25)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def kept_of(records, most):
    return SharedContributions.bounded(records, most).indices.tolist()


def owned(records, kept):
    return Counter(one for record in kept for one in set(records[record]))


@given(RECORDS, st.integers(1, 4))
def test_nobody_owns_more_and_none_could_be_added(records, most):
    found = SharedContributions.bounded(records, most)
    kept = found.indices.tolist()
    counts = owned(records, kept)
    assert max(counts.values()) <= most
    assert kept == sorted(set(kept))
    assert found.users == len({one for record in records for one in record})
    assert found.dropped == len(records) - len(kept)
    for record in set(range(len(records))) - set(kept):
        assert any(counts[one] == most for one in records[record])


@given(RECORDS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_it_depends_on_who_owns_what_alone(records, most, random):
    """Not on names, on the order of the owners of a record, or on how often one is named."""
    expected = kept_of(records, most)
    names = [f"user {one}" for one in random.sample(range(100), 7)]
    renamed = [[names[one] for one in random.sample(record, len(record))] for record in records]
    assert kept_of(renamed, most) == expected
    assert kept_of([set(record) for record in records], most) == expected
    assert kept_of([(*record, record[0]) for record in records], most) == expected
    assert kept_of([np.array(record) for record in records], most) == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 4))
def test_one_owner_each_is_the_first_m_of_everyone(owners, most):
    assert kept_of([[one] for one in owners], most) == Contributions.bounded(owners, most).indices.tolist()


@given(RECORDS, st.integers(1, 4))
def test_gradients_of_zero_change_what_is_kept_of_one_person_only(records, most):
    """Under ZERO_OUT both datasets keep the same records; at most m of them differ, those of the person."""
    kept = kept_of(records, most)
    gradients = np.random.default_rng(len(records)).standard_normal(len(records))
    for person in {one for record in records for one in record}:
        zeroed = np.array([0.0 if person in record else 1.0 for record in records]) * gradients
        assert np.count_nonzero((zeroed - gradients)[kept]) <= most


def test_without_the_records_of_one_person_others_are_kept():
    """Why ADD_REMOVE is refused: of a chain of people each other record is kept, and then all the others."""
    chain = [[person, person + 1] for person in range(40)]
    assert kept_of(chain, 1) == list(range(0, 40, 2))
    without = [record for record in chain if 0 not in record]
    assert [without[place] for place in kept_of(without, 1)] == chain[1::2]


@pytest.mark.parametrize(
    "records",
    [
        [["a"], ["a", "b"], ["b"]],
        [("a",), {"a", "b"}, frozenset("b")],
        [[("x", 1)], [("x", 1), ("x", 2)], [("x", 2)]],
        [[1], [np.int64(1), 2], [np.float64(2.0)]],
        [[Colour.RED], [Colour.RED, Colour.BLUE], [Colour.BLUE]],
        np.array([[1, 1], [1, 2], [2, 2]]),
    ],
)
def test_ids_are_compared_by_value(records):
    assert kept_of(records, 1) == [0, 2]
    assert SharedContributions.bounded(records, 1).users == 2


def test_tensors_of_ids():
    torch = pytest.importorskip("torch")
    records = [torch.tensor([1]), torch.tensor([1, 2]), [torch.tensor(2)]]
    assert kept_of(records, 1) == [0, 2]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([["a"], []], r"owner_ids\[1\] must be .* got '?\[\]"),
        ([set()], r"owner_ids\[0\] must be"),
        ([], "owner_ids must be"),
        ("ab", "owner_ids must be"),
        (["ab", "b"], r"owner_ids\[0\] must be .* got '?str"),
        ([["a"], None], r"owner_ids\[1\] must be .* got '?NoneType"),
        ([["a"], 3], r"owner_ids\[1\] must be"),
        ([["a"], {"a": 1}], r"owner_ids\[1\] must be .* got '?dict"),
        ({0: ["a"]}, "owner_ids must be"),
        ({("a",)}, "owner_ids must be"),
        ([["a", 1]], "owner_ids must be .*some are text and others are not"),
        ([["1"], [1]], "some are text and others are not"),
        ([[b"a", "a"]], "some are text and others are not"),
        ([[None]], "nobody"),
        ([[float("nan"), 1.0]], "nobody"),
        ([[["a"], ["b"]]], "a list of owners"),
        ([[object()]], "equal only if they are one object"),
        (np.array([1, 2]), r"owner_ids\[0\] must be"),
    ],
)
def test_hostile_owners_are_named(records, words):
    with pytest.raises(dm.InvalidParameterError, match=words):
        SharedContributions.bounded(records, 2)


def test_bad_bounds_and_lists_where_one_owner_is_meant():
    for most in (0, 1.5, True):
        with pytest.raises(dm.InvalidParameterError, match="max_examples_per_user"):
            SharedContributions.bounded([["a"]], most)
    for ids in ([["a", "b"], ["a"]], [{"a", "b"}, {"a"}]):
        with pytest.raises(dm.InvalidParameterError, match=r"SharedContributions\.bounded bounds"):
            Contributions.bounded(ids, 1)
    together = dm.CyclicPoisson(0.5, 2, max_examples_per_user=2)
    with pytest.raises(dm.InvalidParameterError, match="a list of owners"):
        sampler_for(together, 2, n=4, user_ids=[["a", "b"], ["a"]])


def test_what_it_says_of_itself():
    found = SharedContributions.bounded([["a", "b"], ["a"], ["c"]], 1)
    assert repr(found) == "SharedContributions(3 owners, at most 1 records each; 2 kept)"
