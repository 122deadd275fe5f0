"""Balls-in-Bins at full size. Run with `make bench`; nothing here gates.

The plan is n = 3900, b = 390, 10 epochs, lambda = 0.9, eps = 8 unless a test says otherwise.
"""

import math
import resource
import time

import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting.balls_in_bins import bin_gram
from dpmech.accounting.importance import estimate_delta

STRATEGY = dm.LambdaCGD(3900, 0.9)
BINS = dm.BallsInBins(390)


def once(benchmark, function):
    return benchmark.pedantic(function, rounds=1, iterations=1)


@pytest.mark.parametrize(("sigma", "level"), [(2.927, "1e-5"), (4.2485, "1e-12")])
def test_one_delta(benchmark, sigma, level):
    gram = bin_gram(STRATEGY, 390).scaled(sigma**-2)
    estimate = benchmark.pedantic(
        lambda: estimate_delta(gram, 8.0, rng=np.random.default_rng(3)), rounds=3, iterations=1
    )
    print(f"\ndelta about {level}: {estimate.delta:.4g}, relative error {estimate.relative_error:.2%}")


def test_ratio_to_plain_monte_carlo(benchmark):
    """Time of a plain Monte Carlo at equal relative error, from its measured rate and variance."""
    gram = bin_gram(STRATEGY, 390).scaled(2.927**-2)
    start = time.perf_counter()
    estimate = once(benchmark, lambda: estimate_delta(gram, 8.0, rng=np.random.default_rng(3)))
    ours = time.perf_counter() - start
    rng = np.random.default_rng(5)
    start = time.perf_counter()
    draws = 20_000
    fields = gram.sample(rng, draws) - 0.5 * gram.diagonal
    # From component 0 of P: the mean of y is the first column of K.
    losses = np.log(np.mean(np.exp(fields + gram.matvec(np.eye(390)[0])), axis=1))
    weights = np.maximum(-np.expm1(8.0 - losses), 0.0)
    seconds = (time.perf_counter() - start) / draws
    # A weight in [0, 1] with mean delta has relative variance near E[w^2] / delta^2, at most 1 / delta.
    second_moment = max(float(np.mean(weights**2)), 0.5 * estimate.delta)
    needed = second_moment / (estimate.delta * estimate.relative_error) ** 2
    slow = needed * seconds
    print(f"\nplain Monte Carlo: {needed:.3g} draws, {slow:.3g} s, ratio {slow / ours:.3g}")


@pytest.mark.parametrize("delta", [1e-5, 1e-12])
@pytest.mark.parametrize(
    "method", [dm.Importance(), dm.Certified(), dm.Deterministic(), dm.Rdp()], ids=lambda m: type(m).__name__
)
def test_calibration(benchmark, method, delta):
    cal = once(
        benchmark,
        lambda: dm.calibrate_sigma(STRATEGY, 8.0, delta, participation=BINS, method=method, rng=9),
    )
    print(f"\n{type(method).__name__} delta={delta:g}: sigma {cal.sigma:.5g}, {cal.method}")


@pytest.mark.parametrize(
    "strategy",
    [
        dm.LambdaCGD(3900, 0.975),
        dm.InverseSquareRoot(3900, 2),
        *(dm.InverseSquareRoot(3900, p) for p in (4, 16, 64)),
        *(dm.SquareRoot(3900, p) for p in (4, 16, 64)),
    ],
    ids=repr,
)
def test_deterministic_against_importance(benchmark, strategy):
    sampled = dm.calibrate_sigma(strategy, 8.0, 1e-5, participation=BINS, rng=9)
    programmed = once(
        benchmark,
        lambda: dm.calibrate_sigma(strategy, 8.0, 1e-5, participation=BINS, method=dm.Deterministic()),
    )
    print(f"\n{strategy!r}: {programmed.sigma / sampled.sigma - 1.0:+.2%} in sigma, {programmed.method}")


def test_4096_bins(benchmark):
    strategy = dm.LambdaCGD(40_960, 0.9)
    cal = once(
        benchmark,
        lambda: dm.calibrate_sigma(strategy, 8.0, 1e-5, participation=dm.BallsInBins(4096), rng=9),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\nb = 4096: sigma {cal.sigma:.5g}, peak {peak:.2f} GB")


def test_20000_bins(benchmark):
    strategy = dm.LambdaCGD(60_000, 0.9)
    bounds = once(
        benchmark,
        lambda: dm.delta(strategy, 1.5, 4.0, participation=dm.BallsInBins(20_000), rng=9),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\nb = 20000: delta in [{bounds.lower:.4g}, {bounds.upper:.4g}], peak {peak:.2f} GB")


def test_coverage_of_a_thousand_intervals(benchmark):
    """Intervals of random small problems against plain Monte Carlo with 1e7 samples."""

    def run() -> int:
        missed = 0
        for case in range(1000):
            rng = np.random.default_rng([2026, case])
            bins = int(rng.integers(2, 21))
            matrix = np.tril(rng.uniform(size=(2 * bins, 2 * bins))) + np.eye(2 * bins)
            gram = bin_gram(dm.Dense(matrix), bins)
            gram = gram.scaled(float(rng.uniform(1.0, 6.0)) / gram.diagonal.max())
            eps = float(rng.uniform(0.2, 3.0))
            estimate = estimate_delta(gram, eps, rng=rng)
            values = []
            for _ in range(10):
                fields = gram.sample(rng, 100_000) - 0.5 * gram.diagonal
                values.append(np.exp(fields).mean(axis=1))
            ratio = np.concatenate(values)
            parts = (np.maximum(ratio - math.exp(eps), 0.0), np.maximum(1.0 - math.exp(eps) * ratio, 0.0))
            best = max(parts, key=lambda part: part.mean())
            error = 6.0 * best.std() / math.sqrt(best.size)
            missed += not estimate.lower - error <= best.mean() <= estimate.upper + error
        return missed

    print(f"\n{once(benchmark, run)} of 1000 intervals missed")
