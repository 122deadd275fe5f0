"""Equal scores: whoever sorts the canaries before the audit must not gain from it."""

import itertools

import numpy as np
import pytest

import dpmech as dm
from dpmech.audits.one_run import guessed


def fewest(scores, included, high, low):
    """The fewest right guesses over all rankings that agree with the scores, by trying every one."""
    counts = []
    for order in itertools.permutations(range(len(scores))):
        ranked = list(order)
        if any(scores[a] < scores[b] for a, b in itertools.pairwise(ranked)):
            continue
        top = sum(included[one] for one in ranked[:high])
        bottom = sum(not included[one] for one in ranked[len(ranked) - low :])
        counts.append(top + bottom)
    return min(counts)


def test_ties_count_as_in_the_worst_ranking():
    rng = np.random.default_rng(3)
    for _ in range(40):
        scores = rng.integers(0, 3, size=6).astype(float)
        included = rng.integers(0, 2, size=6).astype(bool)
        high = int(rng.integers(0, 5))
        low = int(rng.integers(0 if high else 1, 7 - high))
        _, [(right, *_)] = guessed(scores, included, [(high, low)])
        assert right == fewest(scores, included, high, low)


@pytest.mark.parametrize("members_first", [True, False])
def test_scores_that_tell_nothing_find_nothing(members_first):
    included = np.repeat([members_first, not members_first], 500)
    scores = np.zeros(1000)
    assert dm.audits.one_run_epsilon(scores, included, 1e-5).lower == 0.0
    claimed = dm.profile(dm.Identity(1), 10.0, participation=dm.SingleParticipation())  # mu = 0.1
    verdict = dm.audits.audit_profile(scores, included, claimed)
    assert not verdict.refuted
    assert verdict.p_value == 1.0


def test_the_order_in_which_canaries_are_listed_does_not_matter():
    rng = np.random.default_rng(5)
    included = rng.integers(0, 2, size=600).astype(bool)
    scores = np.round(included + 0.5 * rng.normal(size=600), 1)
    for order in (rng.permutation(600), np.argsort(included), np.argsort(~included)):
        assert guessed(scores, included, None) == guessed(scores[order], included[order], None)


def test_scores_without_ties_are_ranked_as_they_are():
    included = np.array([True, False, True, True, False, False])
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    _, counts = guessed(scores, included, [(2, 1), (3, 0), (0, 3), (3, 3)])
    assert [(right, high, low) for right, high, low in counts] == [(2, 0, 3), (2, 2, 1), (2, 3, 0), (4, 3, 3)]
