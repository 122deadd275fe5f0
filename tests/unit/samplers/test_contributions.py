"""Which examples of every user are kept: against a count by hand, and what may decide it."""

import decimal
import enum
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.drawing.contributions import Contributions
from dpmech.samplers import sampler_for
from dpmech.schemes.poisson.sampler import PoissonSampler


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def by_hand(ids, most):
    seen, kept = Counter(), []
    for place, one in enumerate(ids):
        seen[one] += 1
        if seen[one] <= most:
            kept.append(place)
    return kept


@pytest.mark.parametrize("most", [1, 2, 5, 40])
@pytest.mark.parametrize("keyed", [False, True])
def test_nobody_has_more_than_so_many(most, keyed):
    ids = np.random.default_rng(3).integers(12, size=120)
    kept = Contributions.bounded(ids, most, keyed=keyed, rng=7 if keyed else None)
    counts = Counter(ids[kept.indices].tolist())
    assert counts == {one: min(most, own) for one, own in Counter(ids.tolist()).items()}
    assert np.all(np.diff(kept.indices) > 0)
    assert (kept.users, kept.dropped) == (12, 120 - kept.indices.size)
    first = {one: kept.owners[place] for place, one in enumerate(ids[kept.indices].tolist())}
    assert [first[one] for one in ids[kept.indices].tolist()] == kept.owners.tolist()
    if not keyed:
        assert kept.indices.tolist() == by_hand(ids, most)


class Unlike:
    """A table: as many rows as it says, and other things when it is gone through."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter(["name", "age"])


def test_a_table_is_no_list_of_ids():
    with pytest.raises(dm.InvalidParameterError, match="2 ids"):
        Contributions.bounded(Unlike(), 1)


@pytest.mark.parametrize(
    "ids",
    [
        ["1", "1", "2", "1"],
        np.array([1, 1, 2, 1]),
        [np.int64(1), 1, np.int32(2), np.array(1)],
        [("a", np.array(1)), ("a", 1), ("a", 2), ("a", np.int8(1))],
        [frozenset([np.int64(1)]), frozenset([1]), frozenset([2]), frozenset([np.int8(1)])],
        [("a",), ("a",), ("a", 2), ("a",)],
        [True, 1, 2, 1.0],
        [Colour.RED, Colour.RED, Colour.BLUE, Colour.RED],
    ],
)
def test_ids_are_compared_by_value(ids):
    found = Contributions.bounded(ids, 2)
    assert (found.users, found.indices.tolist()) == (2, [0, 1, 2])


def test_tensors_of_ids_are_those_of_their_numbers():
    """A tensor is hashed by its identity: taken as it is, every example would be a user."""
    torch = pytest.importorskip("torch")
    whole = torch.tensor([1, 1, 2, 1])
    for ids in (whole, list(whole), [("a", one) for one in whole]):
        found = Contributions.bounded(ids, 2)
        assert (found.users, found.indices.tolist()) == (2, [0, 1, 2])
    for ids in (whole.reshape(2, 2), list(whole.reshape(2, 2)), whole[0], torch.tensor([1.0, math.nan])):
        with pytest.raises(dm.InvalidParameterError, match="user_ids"):
            Contributions.bounded(ids, 1)


def test_what_is_kept_of_one_does_not_depend_on_others():
    ids = ["ann", "bob", "ann", "cem", "ann", "bob", "ann"]
    kept = Contributions.bounded(ids, 2).indices.tolist()
    without = [place for place, one in enumerate(ids) if one != "cem"]
    again = Contributions.bounded([ids[place] for place in without], 2).indices.tolist()
    assert [place for place in kept if ids[place] != "cem"] == [without[place] for place in again]


def test_chance_prefers_no_example():
    counts = np.zeros(6)
    for seed in range(600):
        counts[Contributions.bounded(["a"] * 6, 2, keyed=True, rng=seed).indices] += 1
    assert counts.sum() == 1200
    assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((["a"], 0), "max_examples_per_user"),
        (([], 1), "user_ids"),
        (("abc", 1), "user_ids"),
        ((["a", None], 1), "user_ids"),
        ((np.array([1.0, np.nan]), 1), "user_ids"),
        (([["a"], ["b"]], 1), "user_ids"),
        # One user's id, read as text in one place and as a number in another, would be two users.
        (([1, 2, "1"], 1), "some are text and others are not"),
        (([b"1", "1"], 1), "some are text and others are not"),
        (([("a", 1), ("b", "1")], 1), "some are text and others are not"),
        (([("a", ("x", 1)), ("b", ("y", "1"))], 1), "some are text and others are not"),
        (([frozenset([1]), frozenset(["1"])], 1), "some are text and others are not"),
        (([frozenset([np.nan]), frozenset([np.nan])], 1), "nan is nobody"),
        (([decimal.Decimal("sNaN"), 1], 1), "user_ids"),
        (([object(), object()], 1), "two of object are equal only if they are one object"),
        (([("a", np.nan), ("a", np.nan)], 1), "nan is nobody"),
        (([np.zeros(2), np.zeros(2)], 1), "user_ids"),
        # Example by example a user would be what stands for it.
        (({0: "ann", 1: "ann"}, 1), "user_ids"),
        (({"ann", "bob"}, 1), "user_ids"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(dm.InvalidParameterError, match=words):
        Contributions.bounded(*arguments)
    with pytest.raises(dm.InvalidParameterError, match="rng must be None"):
        Contributions.bounded(["a"], 1, rng=1)


def test_batches_of_users_examples_are_those_of_examples():
    users = dm.Poisson(0.2, max_examples_per_user=3)
    sampler = sampler_for(users, 50, n=6, rng=1)
    assert type(sampler) is PoissonSampler
    plain = PoissonSampler(50, 0.2, 6, rng=1)
    assert [batch.tolist() for batch in sampler] == [batch.tolist() for batch in plain]
    assert (sampler.participation, sampler.expected_batch_size) == (users, 10.0)
    # A state of one is none of the other: users are part of what was certified.
    with pytest.raises(dm.exceptions.CertificateError, match="another configuration"):
        sampler_for(users, 50, n=6, rng=1).load_state_dict(plain.state_dict())
