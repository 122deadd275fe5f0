"""Batches of ten million examples; run with `pytest tests/bench/test_bench_samplers.py --benchmark-only`."""

import pytest

import dpmech as dm
from dpmech.samplers import ParticipationTracker, sampler_for
from dpmech.schemes.balls_in_bins.sampler import BallsInBinsSampler
from dpmech.schemes.poisson.sampler import PoissonSampler

SIZE = 10_000_000


@pytest.mark.parametrize("prob", [1e-4, 0.3])
def test_a_poisson_batch(benchmark, prob):
    batch = benchmark(PoissonSampler(SIZE, prob, 1000, rng=1).indices, 3)
    assert 0.9 < batch.size / (prob * SIZE) < 1.1


@pytest.mark.parametrize("participation", [dm.BallsInBins(390), dm.CyclicPoisson(0.1, 390)], ids=repr)
def test_an_allocation(benchmark, participation):
    made = benchmark.pedantic(sampler_for, args=(participation, SIZE), kwargs={"n": 3900, "rng": 1}, rounds=3)
    assert made.indices(0).size > 0


def test_recording_batches(benchmark):
    sampler = BallsInBinsSampler(SIZE, 390, 3900, rng=1)
    tracker = ParticipationTracker(sampler.participation, sampler.n, SIZE)

    def record():
        tracker.record(tracker.steps, sampler.indices(tracker.steps))

    benchmark.pedantic(record, rounds=200)
    assert tracker.steps == 200
