"""Batches of exactly B examples: which sets and which pairs of sets come, by chi-square; faults that show."""

import collections
import itertools

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.samplers import ParticipationTracker, sampler_for
from dpmech.schemes.fixed_size.sampler import FixedSizeSampler

BATCHES = dm.FixedSizeBatches(dataset_size=4, batch_size=2)
STEPS = 4000
ALPHA = 1e-9
SETS = list(itertools.combinations(range(4), 2))


def p_value(batches):
    """Chi-square of which pairs of sets came one after another, all of which are as likely."""
    found = collections.Counter(zip(batches[::2], batches[1::2], strict=True))
    return stats.chisquare([found[pair] for pair in itertools.product(SETS, SETS)]).pvalue


def test_every_set_comes_as_often_whatever_came_before():
    sampler = sampler_for(BATCHES, 4, n=STEPS, rng=4)
    assert isinstance(sampler, FixedSizeSampler)
    assert (sampler.expected_batch_size, sampler.steps_per_epoch) == (2.0, 2)
    assert p_value([tuple(batch.tolist()) for batch in sampler]) > ALPHA


def test_a_shuffled_order_is_found_out():
    rng, batches = np.random.default_rng(4), []
    for _ in range(STEPS // 2):
        order = rng.permutation(4)
        batches += [tuple(sorted(order[:2].tolist())), tuple(sorted(order[2:].tolist()))]
    # Each batch by itself has the right law.
    assert stats.chisquare([collections.Counter(batches)[one] for one in SETS]).pvalue > ALPHA
    assert p_value(batches) < ALPHA


def test_batches_of_everyone():
    assert [batch.tolist() for batch in sampler_for(dm.FixedSizeBatches(3, 3), 3, n=2)] == [[0, 1, 2]] * 2


def test_a_dataset_of_another_size_is_refused():
    for call in (
        lambda: sampler_for(BATCHES, 5, n=3),
        lambda: ParticipationTracker(BATCHES, 3, 5),
    ):
        with pytest.raises(
            dm.InvalidParameterError, match="dataset_size must be 4, on which the claim depends"
        ):
            call()


@pytest.mark.parametrize("batch", [[1], [0, 1, 3]])
def test_the_tracker_refuses_a_batch_of_another_size(batch):
    tracker = ParticipationTracker(BATCHES, 3, 4)
    tracker.record(0, [1, 3])
    with pytest.raises(dm.exceptions.CertificateError, match="the batch has not exactly 2 examples"):
        tracker.record(1, batch)
    assert tracker.steps == 1


def test_a_state_goes_on_with_the_same_batches():
    first = sampler_for(BATCHES, 4, n=20, rng=3)
    next(iter(first))
    second = sampler_for(BATCHES, 4, n=20)
    second.load_state_dict(first.state_dict())
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in second]
