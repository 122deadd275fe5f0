"""Batches of at most B examples: their sizes, their law by chi-square, one shape, and faults that show."""

import collections
import itertools
import math

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.drawing.random_words import chosen
from dpmech.samplers import ParticipationTracker, sampler_for
from dpmech.schemes.poisson.sampler import PoissonSampler
from dpmech.schemes.poisson.truncated_sampler import TruncatedPoissonSampler

BATCHES = dm.Poisson(0.4, truncated_batch_size=2, dataset_size=5)
STEPS = 3000
ALPHA = 1e-9


def p_value(batches):
    """Chi-square of which sets came, against all coins and all choices."""
    law = collections.Counter()
    for coins in itertools.product((0, 1), repeat=5):
        drawn = [one for one in range(5) if coins[one]]
        kept = list(itertools.combinations(drawn, min(2, len(drawn))))
        for batch in kept:
            law[batch] += 0.4 ** len(drawn) * 0.6 ** (5 - len(drawn)) / len(kept)
    found = collections.Counter(tuple(batch) for batch in batches)
    assert set(found) <= set(law)
    places = sorted(law)
    expected = np.array([law[place] for place in places]) * len(batches)
    return stats.chisquare([found[place] for place in places], expected).pvalue


def test_every_set_comes_as_often_as_it_should():
    sampler = sampler_for(BATCHES, 5, n=STEPS, rng=4)
    assert isinstance(sampler, TruncatedPoissonSampler)
    assert p_value([batch.tolist() for batch in sampler]) > ALPHA


def test_keeping_the_first_ones_is_found_out():
    drawn = PoissonSampler(5, 0.4, STEPS, rng=4)
    assert p_value([batch[:2].tolist() for batch in drawn]) < ALPHA


def test_batches_that_are_small_enough_are_those_of_poisson_sampling():
    cut, whole = TruncatedPoissonSampler(200, 0.1, 20, 200, 40, rng=7), PoissonSampler(200, 0.1, 40, rng=7)
    full = 0
    for step in range(40):
        batch, drawn = cut.indices(step), whole.indices(step)
        assert set(batch) <= set(drawn)
        assert batch.size == min(20, drawn.size)
        assert np.all(np.diff(batch) > 0)
        full += drawn.size > 20
    assert 5 < full < 35
    assert cut.expected_batch_size == pytest.approx(
        np.minimum(np.arange(201), 20) @ stats.binom.pmf(np.arange(201), 200, 0.1)
    )
    assert cut.steps_per_epoch == 10


def test_batches_of_one_size_take_everyone_in_turn():
    sampler = TruncatedPoissonSampler(40, 1.0, 10, 40, 50, rng=1)
    assert (sampler.expected_batch_size, sampler.steps_per_epoch) == (10.0, 4)
    counts = np.zeros(40)
    for batch in sampler:
        assert batch.size == 10
        counts[batch] += 1
    assert stats.chisquare(counts).pvalue > ALPHA


def test_a_batch_in_one_shape():
    sampler = TruncatedPoissonSampler(60, 0.1, 6, 60, 30, rng=2)
    for step in range(30):
        indices, mask = sampler.padded(step)
        assert (indices.shape, mask.shape, indices.dtype, mask.dtype) == ((6,), (6,), np.int64, np.bool_)
        assert indices[mask].tolist() == sampler.indices(step).tolist()
        assert not indices[~mask].any()


def test_ties_draw_again(monkeypatch):
    from dpmech.drawing import random_words

    class Words:
        draws = iter([[5, 5, 5, 9], [1, 2, 2, 9], [3, 1, 2, 9]])

        def random_raw(self, count):
            return np.array(next(self.draws)[:count], dtype=np.uint64)

    monkeypatch.setattr(random_words, "words", lambda *_: Words())
    assert chosen(0, 0, 2, 4).tolist() == [1, 2]


def test_a_dataset_of_another_size_is_refused():
    for size in (4, 6):
        with pytest.raises(
            dm.InvalidParameterError, match="dataset_size must be 5, on which the claim depends"
        ):
            sampler_for(BATCHES, size, n=3)
        with pytest.raises(
            dm.InvalidParameterError, match="dataset_size must be 5, on which the claim depends"
        ):
            ParticipationTracker(BATCHES, 3, size)


def test_the_tracker_refuses_a_batch_that_was_not_cut_down():
    tracker = ParticipationTracker(BATCHES, 3, 5)
    tracker.record(0, [1, 4])
    with pytest.raises(dm.exceptions.CertificateError, match="the batch has more than 2 examples"):
        tracker.record(1, [0, 1, 4])
    assert tracker.steps == 1


def test_a_state_goes_on_with_the_same_batches():
    first = sampler_for(BATCHES, 5, n=20, rng=3)
    next(iter(first))
    second = sampler_for(BATCHES, 5, n=20)
    second.load_state_dict(first.state_dict())
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in second]


def test_the_largest_dataset_is_no_special_case():
    batches = dm.Poisson(2.0**-40, truncated_batch_size=9000, dataset_size=2**53)
    assert math.isclose(batches.truncation.expected_batch_size, 8192.0, rel_tol=1e-9)
