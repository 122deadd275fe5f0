"""Random sets of k of n steps: exactly k of each example, uniform, independent, in little memory."""

import itertools

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.exceptions import CertificateError
from dpmech.samplers import ParticipationTracker, sampler_for
from dpmech.schemes.random_allocation import RandomAllocationSampler
from dpmech.schemes.random_allocation import sampler as module

# Chance of a false alarm of one test; examples; the effect below is seen for certain.
ALPHA, SIZE = 1e-9, 40_000


def table(sampler):
    found = np.zeros((sampler.dataset_size, sampler.n), dtype=bool)
    for step, batch in enumerate(sampler):
        assert np.all(np.diff(batch) > 0)
        assert batch.dtype == np.int64
        found[batch, step] = True
    return found


def pvalue(rows, k):
    """Of a chi-square test that all sets of k steps are equally likely; 0 if a row has another size."""
    if np.any(rows.sum(axis=1) != k):
        return 0.0
    codes = rows @ (1 << np.arange(rows.shape[1]))
    sets = [sum(1 << step for step in steps) for steps in itertools.combinations(range(rows.shape[1]), k)]
    return stats.chisquare([np.count_nonzero(codes == code) for code in sets]).pvalue


@pytest.mark.parametrize(("n", "k"), [(6, 1), (6, 2), (6, 3), (6, 4), (7, 5), (8, 7)])
@pytest.mark.parametrize("rng", [1, "secure"])
def test_every_set_of_steps_is_equally_likely(n, k, rng):
    if rng == "secure":
        pytest.importorskip("cryptography")
    rows = table(RandomAllocationSampler(SIZE, k, n, rng=rng))
    assert pvalue(rows, k) > ALPHA
    # Examples are independent: so are those next to each other.
    if (n, k) == (6, 2):
        both = rows[::2, 0] & rows[1::2, 0]
        assert stats.binomtest(int(both.sum()), SIZE // 2, (k / n) ** 2).pvalue > ALPHA


@pytest.mark.parametrize("fault", ["range", "words"])
def test_planted_faults_are_found(monkeypatch, fault):
    """A range that is one too short, and one stream of words for all draws of an example."""
    own = module.groups
    if fault == "range":
        monkeypatch.setattr(module, "groups", lambda key, count, size, row: own(key, count - 1, size, row))
    else:
        monkeypatch.setattr(module, "groups", lambda key, count, size, row: own(key, count, size, 0))
    rows = table(RandomAllocationSampler(SIZE, 3, 6, rng=1))
    assert pvalue(rows, 3) < ALPHA


def in_groups(rows, k, cycle):
    """Of a chi-square test that all sets of k steps of a group are equally likely; 0 for other sets."""
    n = rows.shape[1]
    sets = [set(s) for g in range(cycle) for s in itertools.combinations(range(g, n, cycle), k)]
    codes = rows @ (1 << np.arange(n))
    counts = [np.count_nonzero(codes == sum(1 << step for step in steps)) for steps in sets]
    return stats.chisquare(counts).pvalue if sum(counts) == len(rows) else 0.0


@pytest.mark.parametrize(
    ("n", "k", "cycle"), [(6, 1, 2), (8, 2, 2), (8, 3, 2), (9, 2, 3), (6, 3, 2), (4, 1, 4)]
)
def test_groups_and_sets_of_their_steps_are_equally_likely(n, k, cycle):
    rows = table(RandomAllocationSampler(SIZE, k, n, cycle=cycle, rng=1))
    assert in_groups(rows, k, cycle) > ALPHA
    if k > 1:
        assert in_groups(table(RandomAllocationSampler(SIZE, k, n, rng=1)), k, cycle) == 0.0


def test_groups_that_share_words_with_the_sets_are_found(monkeypatch):
    own = module.groups
    monkeypatch.setattr(module, "groups", lambda key, count, size, row: own(key, count, size, 0))
    assert in_groups(table(RandomAllocationSampler(SIZE, 1, 8, cycle=2, rng=1)), 1, 2) < ALPHA


def test_all_steps_or_one():
    assert table(RandomAllocationSampler(5, 4, 4, rng=1)).all()
    assert np.all(table(RandomAllocationSampler(50, 1, 4, rng=1)).sum(axis=1) == 1)


def test_parts_of_the_dataset_do_not_matter(monkeypatch):
    """Examples are drawn together in parts; the parts do not change what is drawn."""
    whole = table(RandomAllocationSampler(1000, 3, 10, rng=2))
    monkeypatch.setattr(module, "_CELLS", 70)
    assert np.array_equal(whole, table(RandomAllocationSampler(1000, 3, 10, rng=2)))


def test_memory_is_a_number_for_each_participation():
    sampler = RandomAllocationSampler(10_000, 4, 100, rng=1)
    assert sampler._examples.nbytes == 4 * 4 * 10_000
    most = RandomAllocationSampler(10_000, 96, 100, rng=1)
    assert most._examples.nbytes == 4 * 4 * 10_000
    assert sampler.expected_batch_size == pytest.approx(400.0)
    assert most.expected_batch_size == pytest.approx(9600.0)


def test_a_tracker_refuses_more_than_k():
    participation = dm.RandomAllocation(2)
    sampler = sampler_for(participation, 60, n=6, rng=3)
    assert isinstance(sampler, RandomAllocationSampler)
    tracker = ParticipationTracker(participation, 6, 60)
    for step, batch in enumerate(sampler):
        tracker.record(step, batch)
    assert tracker.summary() == {"steps": 6, "smallest_separation": 1, "most_participations": 2}
    tracker = ParticipationTracker(participation, 6, 60)
    for step in range(2):
        tracker.record(step, [7])
    with pytest.raises(CertificateError, match="more than 2 times"):
        tracker.record(2, [7])


def test_a_tracker_refuses_another_group_and_more_than_k():
    participation = dm.RandomAllocation(2, cycle=2)
    tracker = ParticipationTracker(participation, 8, 60)
    for step, batch in enumerate(sampler_for(participation, 60, n=8, rng=3)):
        tracker.record(step, batch)
    assert tracker.summary() == {"steps": 8, "smallest_separation": 2, "most_participations": 2}
    for steps, message in (((0, 3), "two of the 2 groups"), ((0, 2, 4), "more than 2 times")):
        tracker = ParticipationTracker(participation, 8, 60)
        for step in range(steps[-1]):
            tracker.record(step, [7] if step in steps else [])
        with pytest.raises(CertificateError, match=message):
            tracker.record(steps[-1], [7])
    every = dm.RandomAllocation(4, cycle=2)
    tracker = ParticipationTracker(every, 8, 60)
    for step, batch in enumerate(sampler_for(every, 60, n=8, rng=3)):
        tracker.record(step, batch)


def test_bad_arguments_are_named():
    with pytest.raises(dm.InvalidParameterError, match=r"participations must be an integer in \[1, n=4\]"):
        RandomAllocationSampler(10, 5, 4)
    with pytest.raises(dm.InvalidParameterError, match="dataset_size"):
        RandomAllocationSampler(0, 1, 4)
    for options in ({"batch_size": 3}, {"drop_last": True}):
        with pytest.raises(dm.InvalidParameterError, match=next(iter(options))):
            sampler_for(dm.RandomAllocation(1), 12, n=4, **options)
