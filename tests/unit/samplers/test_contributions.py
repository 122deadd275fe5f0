"""Which examples of every user are kept: against a count by hand, and what may decide it."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.samplers import Contributions, PoissonSampler, UserPoissonSampler, sampler_for


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
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(dm.InvalidParameterError, match=words):
        Contributions.bounded(*arguments)
    with pytest.raises(dm.InvalidParameterError, match="rng must be None"):
        Contributions.bounded(["a"], 1, rng=1)


def test_lots_of_users_examples_are_those_of_examples():
    users = dm.Poisson(0.2, max_examples_per_user=3)
    sampler = sampler_for(users, 50, n=6, rng=1)
    assert isinstance(sampler, UserPoissonSampler)
    plain = PoissonSampler(50, 0.2, 6, rng=1)
    assert [lot.tolist() for lot in sampler] == [lot.tolist() for lot in plain]
    assert (sampler.participation, sampler.expected_batch_size) == (users, 10.0)
    # A state of one is none of the other: users are part of what was certified.
    with pytest.raises(dm.CertificateError, match="another type"):
        sampler_for(users, 50, n=6, rng=1).load_state_dict(plain.state_dict())
