"""Realised batches against a brute-force reading of the pattern, which knows nothing of the tracker."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.samplers import ParticipationTracker, padded, sampler_for, shard
from dpmech.schemes.fixed_order.sampler import SequentialSampler

SEEDS = st.integers(0, 2**32)
PROBS = st.one_of(st.just(1.0), st.floats(0.01, 1.0))


@st.composite
def plans(draw):
    """(participation, n, options): every schema, epochs that do and do not end with the run."""
    batches, epochs = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    n = batches * epochs
    shorter = draw(st.integers(batches, n))
    drop_last = draw(st.booleans())
    return draw(
        st.sampled_from(
            [
                (dm.EveryStep(), shorter, {"batch_size": draw(st.integers(1, 8)), "drop_last": drop_last}),
                (dm.SingleParticipation(), n, {"drop_last": drop_last}),
                (dm.MinSep(batches), shorter, {"drop_last": drop_last}),
                (dm.MinSep(batches, epochs), shorter, {"drop_last": drop_last}),
                (dm.FixedEpochs(epochs), n, {"drop_last": drop_last}),
                (dm.Poisson(draw(PROBS)), n, {}),
                (dm.CyclicPoisson(draw(PROBS), draw(st.integers(1, 8))), n, {}),
                (dm.BallsInBins(batches), shorter, {}),
                (dm.RandomAllocation(draw(st.integers(1, epochs)), cycle=batches), n, {}),
            ]
        )
    )


@st.composite
def samplers(draw):
    """A sampler over a dataset of any size: of one example, and smaller than the number of batches."""
    participation, n, options = draw(plans())
    needed = 1
    if options.get("drop_last"):
        needed = options.get("batch_size") or participation.pattern(n).min_sep
    size = draw(st.integers(needed, needed + 20))
    return sampler_for(participation, size, n=n, rng=draw(SEEDS), **options)


def realised(sampler):
    """(dataset_size, n) booleans: who took part when."""
    matrix = np.zeros((sampler.dataset_size, sampler.n), dtype=bool)
    for step in range(sampler.n):
        matrix[sampler.indices(step), step] = True
    return matrix


def within(participation, n, steps, now):
    """Whether one example may have taken part in exactly `steps` after `now` steps of n."""
    match participation:
        case dm.EveryStep() | dm.Poisson():
            return True
        case dm.SingleParticipation():
            return len(steps) <= 1
        case dm.MinSep(min_sep, k):
            apart = all(b - a >= min_sep for a in steps for b in steps if a < b)
            return apart and (k is None or len(steps) <= k)
        case dm.FixedEpochs(epochs):
            stride = n // epochs
        case dm.BallsInBins(bins):
            stride = bins
        case dm.CyclicPoisson(_, cycle):
            return len({step % cycle for step in steps}) <= 1
        case dm.RandomAllocation(k, cycle=cycle) if cycle == 1 or k < n // cycle:
            return len(steps) <= k and len({step % cycle for step in steps}) <= 1
        case dm.RandomAllocation(cycle=cycle):
            stride = cycle
    possible = [[s for s in range(first, now, stride)] for first in range(stride)]
    return list(steps) in [[], *possible]


def pattern_holds(participation, matrix, now):
    n = matrix.shape[1]
    return all(within(participation, n, np.flatnonzero(row[:now]).tolist(), now) for row in matrix)


# ---- batches


@given(samplers())
def test_batches_are_increasing_indices_and_the_pattern_holds(sampler):
    for step in range(sampler.n):
        batch = sampler.indices(step)
        assert batch.dtype == np.int64
        assert np.all(np.diff(batch) > 0)
        assert batch.size == 0 or 0 <= batch[0] <= batch[-1] < sampler.dataset_size
    assert pattern_holds(sampler.participation, realised(sampler), sampler.n)


@given(samplers())
def test_iteration_hands_out_every_batch_once(sampler):
    expected = [sampler.indices(step).tolist() for step in range(sampler.n)]
    assert len(sampler) == sampler.n
    first = next(iter(sampler)).tolist()
    assert (sampler.steps_taken, len(sampler)) == (1, sampler.n - 1)
    assert [first, *(batch.tolist() for batch in sampler)] == expected
    assert (sampler.steps_taken, len(sampler), list(sampler)) == (sampler.n, 0, [])


@given(samplers())
def test_an_epoch_takes_everybody_once(sampler):
    if sampler.participation.random and not isinstance(sampler.participation, dm.BallsInBins):
        return
    counts = realised(sampler)[:, : sampler.steps_per_epoch].sum(axis=1)
    config = sampler.state_dict()["configuration"]
    size = config.get("batch_size") or sampler.dataset_size // sampler.steps_per_epoch
    left_out = sampler.dataset_size - size * sampler.steps_per_epoch if config.get("drop_last") else 0
    if sampler.n >= sampler.steps_per_epoch:
        assert sorted(counts) == [0] * left_out + [1] * (sampler.dataset_size - left_out)


@given(samplers())
def test_sequential_batches_have_nearly_equal_sizes(sampler):
    if isinstance(sampler, SequentialSampler):
        sizes = [sampler.indices(step).size for step in range(sampler.n)]
        mean = sampler.expected_batch_size
        assert all(np.floor(mean) <= size <= np.ceil(mean) for size in sizes)
        config = sampler.state_dict()["configuration"]
        if config["drop_last"]:
            assert set(sizes) == {config["batch_size"] or sampler.dataset_size // sampler.steps_per_epoch}
            assert mean == sizes[0]
        if config["batch_size"] is not None:
            assert max(sizes) <= config["batch_size"]


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 4), st.booleans(), SEEDS)
def test_reshuffled_epochs_take_everybody_once(size, batch_size, epochs, drop_last, seed):
    drop_last = drop_last and batch_size <= size
    sampler = SequentialSampler(
        size, dm.EveryStep(), 40, batch_size=batch_size, drop_last=drop_last, reshuffle=True, rng=seed
    )
    batches = sampler.steps_per_epoch
    sizes = {sampler.indices(step).size for step in range(40)}
    assert max(sizes) - min(sizes) <= (0 if drop_last else 1)
    for epoch in range(min(epochs, 40 // batches)):
        seen = np.concatenate([sampler.indices(epoch * batches + batch) for batch in range(batches)])
        assert len(set(seen.tolist())) == seen.size == (batch_size * batches if drop_last else size)


# ---- processes, padding


@given(samplers(), st.integers(1, 7))
def test_the_parts_of_all_processes_make_up_the_batch(sampler, world_size):
    for step in range(sampler.n):
        batch = sampler.indices(step)
        parts = [shard(batch, rank, world_size) for rank in range(world_size)]
        assert sorted(np.concatenate(parts).tolist()) == batch.tolist()
        sizes = [part.size for part in parts]
        assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 9))
def test_padding_keeps_the_batch_and_fills_it_up(batch, multiple):
    indices, mask = padded(batch, multiple)
    assert indices[mask].tolist() == batch
    assert indices.size % multiple == 0
    assert 0 <= indices.size - len(batch) < multiple
    assert set(indices[~mask].tolist()) <= {0}


# ---- resuming


@given(samplers(), st.data())
def test_a_resumed_run_sees_the_batches_that_were_left(sampler, data):
    done = data.draw(st.integers(0, sampler.n))
    expected = [sampler.indices(step).tolist() for step in range(sampler.n)]
    for _, batch in zip(range(done), sampler, strict=False):
        assert batch.tolist() == expected[sampler.steps_taken - 1]
    state = json.loads(json.dumps(sampler.state_dict()))
    config = state["configuration"]
    options = {name: config[name] for name in ("batch_size", "drop_last") if name in config}
    again = sampler_for(sampler.participation, sampler.dataset_size, n=sampler.n, **options)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected[done:]
    assert again.fingerprint() == sampler.fingerprint()
    assert again.seeded == sampler.seeded


# ---- the tracker


@given(samplers(), st.data())
def test_the_tracker_accepts_every_sampler(sampler, data):
    stop = data.draw(st.integers(0, sampler.n))
    tracker = ParticipationTracker(sampler.participation, sampler.n, sampler.dataset_size)
    for step, batch in zip(range(stop), sampler, strict=False):
        tracker.record(step, batch[::-1])
    again = ParticipationTracker(sampler.participation, sampler.n, sampler.dataset_size)
    again.load_state_dict(tracker.state_dict())
    for step in range(stop, sampler.n):
        again.record(step, sampler.indices(step))
    assert again.steps == sampler.n
    facts = again.summary()
    if sampler.participation.per_release:
        assert facts == {"steps": sampler.n}
    else:
        times = [np.flatnonzero(row) for row in realised(sampler)]
        gaps = [int(gap) for row in times for gap in np.diff(row)]
        # Bounds that follow from the pattern: what happened depends on who is there.
        assert facts["steps"] == sampler.n
        assert max(len(row) for row in times) <= facts["most_participations"]
        assert min(gaps, default=sampler.n) >= (facts["smallest_separation"] or sampler.n)


@given(samplers(), st.data())
def test_the_tracker_refuses_exactly_the_first_batch_outside_the_pattern(sampler, data):
    matrix = realised(sampler)
    for _ in range(data.draw(st.integers(1, 3))):
        example = data.draw(st.integers(0, sampler.dataset_size - 1))
        step = data.draw(st.integers(0, sampler.n - 1))
        matrix[example, step] ^= True
    tracker = ParticipationTracker(sampler.participation, sampler.n, sampler.dataset_size)
    for step in range(sampler.n):
        batch = np.flatnonzero(matrix[:, step])
        if pattern_holds(sampler.participation, matrix, step + 1):
            tracker.record(step, batch)
        else:
            before = tracker.state_dict()
            with pytest.raises(dm.exceptions.CertificateError, match=f"^step {step}: "):
                tracker.record(step, batch)
            after = tracker.state_dict()
            assert before["steps"] == after["steps"] == step
            assert np.array_equal(before["last"], after["last"])
            assert np.array_equal(before["counts"], after["counts"])
            return
    assert pattern_holds(sampler.participation, matrix, sampler.n)
