"""Batches of examples that rest: the law of their histories by chi-square, and faults that show."""

import collections
import itertools

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.samplers import ParticipationTracker, sampler_for
from dpmech.schemes.b_min_sep.sampler import BMinSepSampler
from tests.unit.engines.gaussian_mixture.test_chains import written_out

N, B, P, SIZE = 6, 3, 0.3, 20_000
ALPHA = 1e-9


def histories(batches, size=SIZE):
    """A number for the steps that each example joined."""
    found = np.zeros(size, dtype=np.int64)
    for step, batch in enumerate(batches):
        found[batch] += 1 << step
    return found


def p_value(found):
    """Chi-square of the histories of all examples, each of which has the law written out."""
    steps, law = written_out(N, B, P)
    keys = (steps @ 2.0 ** np.arange(N)).astype(np.int64)
    counts = collections.Counter(found.tolist())
    if set(counts) - set(keys.tolist()):
        return 0.0
    return stats.chisquare([counts[key] for key in keys.tolist()], law * found.size).pvalue


def test_histories_have_the_law_of_the_claim():
    sampler = sampler_for(dm.BMinSep(B, P), SIZE, n=N, rng=4)
    assert isinstance(sampler, BMinSepSampler)
    assert sampler.expected_batch_size == pytest.approx(SIZE * P / (1.0 + P * (B - 1)))
    assert sampler.steps_per_epoch == 5
    batches = list(sampler)
    assert p_value(histories(batches)) > ALPHA
    # Every batch has the same expected size, the first one too.
    rate = dm.BMinSep(B, P).rate
    assert min(stats.binomtest(len(batch), SIZE, rate).pvalue for batch in batches) > ALPHA


def test_examples_are_independent_of_each_other():
    found = histories(sampler_for(dm.BMinSep(B, P), SIZE, n=N, rng=5))
    first = found & 1
    table = [[np.count_nonzero((first[:-1] == a) & (first[1:] == b)) for a in (0, 1)] for b in (0, 1)]
    assert stats.chi2_contingency(table).pvalue > ALPHA


@pytest.mark.parametrize("fault", ["all free at first", "one step too short", "three percent more"])
def test_another_law_is_found_out(fault):
    rng = np.random.default_rng(6)
    size = 400_000 if fault == "three percent more" else SIZE
    short, more = fault == "one step too short", 1.03 if fault == "three percent more" else 1.0
    cooling_down = rng.random(size) < dm.BMinSep(B, P).waiting
    free = np.where(cooling_down & (fault != "all free at first"), rng.integers(1, B, size=size), 0)
    batches = []
    for step in range(N):
        batch = np.flatnonzero((free <= step) & (rng.random(size) < P * more))
        free[batch] = step + B - short
        batches.append(batch)
    assert p_value(histories(batches, size)) < ALPHA


def test_batches_are_asked_for_in_any_order_and_go_on_from_a_state():
    sampler = BMinSepSampler(50, 3, 0.4, 9, rng=1)
    batches = [sampler.indices(step).tolist() for step in range(9)]
    assert [sampler.indices(step).tolist() for step in (8, 2, 5)] == [batches[8], batches[2], batches[5]]
    for _ in range(4):
        next(iter(sampler))
    other = BMinSepSampler(50, 3, 0.4, 9)
    other.load_state_dict(sampler.state_dict())
    assert [batch.tolist() for batch in other] == batches[4:]
    assert BMinSepSampler(50, 3, 0.4, 9, rng="secure").generator == "aes-128-ctr"


def test_the_tracker_refuses_who_does_not_rest():
    tracker = ParticipationTracker(dm.BMinSep(3, 0.4), 9, 5)
    tracker.record(0, [1, 3])
    with pytest.raises(dm.exceptions.CertificateError, match="less than 3 steps after it last did"):
        tracker.record(1, [3])
    assert tracker.summary() == {"steps": 1, "smallest_separation": None, "most_participations": 1}


def test_certain_coins_come_every_b_steps():
    batches = [batch.tolist() for batch in BMinSepSampler(60, 3, 1.0, 9, rng=2)]
    assert batches[:3] == batches[3:6] == batches[6:]
    assert sorted(itertools.chain(*batches[:3])) == list(range(60))


def test_without_rest_it_is_poisson_sampling():
    assert [batch.tolist() for batch in BMinSepSampler(60, 1, 0.2, 5, rng=2)] == [
        batch.tolist() for batch in sampler_for(dm.Poisson(0.2), 60, n=5, rng=2)
    ]
