"""Lots of exactly B examples: which sets and which pairs of sets come, by chi-square; faults that show."""

import collections
import itertools

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.samplers import ParticipationTracker, sampler_for
from dpmech.schemes.fixed_size.sampler import FixedSizeSampler

LOTS = dm.FixedSizeLots(dataset_size=4, lot_size=2)
STEPS = 4000
ALPHA = 1e-9
SETS = list(itertools.combinations(range(4), 2))


def p_value(lots):
    """Chi-square of which pairs of sets came one after another, all of which are as likely."""
    found = collections.Counter(zip(lots[::2], lots[1::2], strict=True))
    return stats.chisquare([found[pair] for pair in itertools.product(SETS, SETS)]).pvalue


def test_every_set_comes_as_often_whatever_came_before():
    sampler = sampler_for(LOTS, 4, n=STEPS, rng=4)
    assert isinstance(sampler, FixedSizeSampler)
    assert (sampler.expected_batch_size, sampler.steps_per_epoch) == (2.0, 2)
    assert p_value([tuple(lot.tolist()) for lot in sampler]) > ALPHA


def test_a_shuffled_order_is_found_out():
    rng, lots = np.random.default_rng(4), []
    for _ in range(STEPS // 2):
        order = rng.permutation(4)
        lots += [tuple(sorted(order[:2].tolist())), tuple(sorted(order[2:].tolist()))]
    # Each lot by itself has the right law.
    assert stats.chisquare([collections.Counter(lots)[one] for one in SETS]).pvalue > ALPHA
    assert p_value(lots) < ALPHA


def test_lots_of_everyone():
    assert [lot.tolist() for lot in sampler_for(dm.FixedSizeLots(3, 3), 3, n=2)] == [[0, 1, 2]] * 2


def test_a_dataset_of_another_size_is_refused():
    for call in (
        lambda: sampler_for(LOTS, 5, n=3),
        lambda: ParticipationTracker(LOTS, 3, 5),
    ):
        with pytest.raises(
            dm.InvalidParameterError, match="dataset_size must be 4, which the claim rests on"
        ):
            call()


@pytest.mark.parametrize("lot", [[1], [0, 1, 3]])
def test_the_tracker_refuses_a_lot_of_another_size(lot):
    tracker = ParticipationTracker(LOTS, 3, 4)
    tracker.record(0, [1, 3])
    with pytest.raises(dm.CertificateError, match="the lot has not exactly 2 examples"):
        tracker.record(1, lot)
    assert tracker.steps == 1


def test_a_state_goes_on_with_the_same_lots():
    first = sampler_for(LOTS, 4, n=20, rng=3)
    next(iter(first))
    second = sampler_for(LOTS, 4, n=20)
    second.load_state_dict(first.state_dict())
    assert [lot.tolist() for lot in first] == [lot.tolist() for lot in second]
