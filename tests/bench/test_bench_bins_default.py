"""The default of Balls-in-Bins compared with the one by samples: the table of `docs/balls_in_bins.md`."""

import time

import pytest

import dpmech as dm

EPOCHS = 10


def fitted(family, **size):
    """A function that fits a strategy for as many steps, under a fixed order: the same in every call."""
    return lambda n: dm.optimize(family, dm.MinSep(n // EPOCHS, EPOCHS), n=n, compare=False, **size).strategy


STRATEGIES = {
    "lambda 0.5": lambda n: dm.LambdaCGD(n, 0.5),
    "lambda 0.9": lambda n: dm.LambdaCGD(n, 0.9),
    "lambda 0.975": lambda n: dm.LambdaCGD(n, 0.975),
    "BSR(4)": lambda n: dm.SquareRoot(n, 4),
    "BSR(16)": lambda n: dm.SquareRoot(n, 16),
    "BSR(64)": lambda n: dm.SquareRoot(n, 64),
    "BISR(4)": lambda n: dm.InverseSquareRoot(n, 4),
    "BISR(16)": lambda n: dm.InverseSquareRoot(n, 16),
    "BandMF(4)": fitted(dm.BandedToeplitz, bands=4),
    "BandMF(16)": fitted(dm.BandedToeplitz, bands=16),
    "BandInv(4)": fitted(dm.BandedInverse, bands=4),
    "BLT(2)": fitted(dm.BLT, buffers=2),
}
# Bins, eps, strategy; delta is 1e-5.
PLANS = [
    (390, 8.0, "lambda 0.5"),
    (390, 8.0, "lambda 0.9"),
    (390, 8.0, "lambda 0.975"),
    (390, 8.0, "BSR(4)"),
    (390, 8.0, "BSR(16)"),
    (390, 8.0, "BSR(64)"),
    (390, 8.0, "BISR(4)"),
    (390, 8.0, "BISR(16)"),
    (390, 8.0, "BandMF(4)"),
    (390, 8.0, "BandMF(16)"),
    (390, 8.0, "BandInv(4)"),
    (390, 8.0, "BLT(2)"),
    (390, 2.0, "lambda 0.9"),
    (390, 2.0, "BSR(4)"),
    (100, 8.0, "lambda 0.9"),
    (1000, 8.0, "lambda 0.9"),
]


def calibrated(strategy, bins, eps, method=None):
    start = time.process_time()
    found = dm.calibrate_sigma(strategy, eps, 1e-5, participation=dm.BallsInBins(bins), method=method)
    return found, time.process_time() - start


@pytest.mark.parametrize(("bins", "eps", "name"), PLANS)
def test_the_default_compared_with_samples(benchmark, bins, eps, name):
    strategy = STRATEGIES[name](EPOCHS * bins)
    found, seconds = benchmark.pedantic(lambda: calibrated(strategy, bins, eps), rounds=1)
    chosen = type(found.evidence.accountant).__name__
    other, there = calibrated(strategy, bins, eps, dm.methods.Certified())
    print(
        f"\n| {bins} | {eps:g} | {name} | `{chosen}()` | {found.sigma:.5g} | {seconds:.1f} "
        f"| {found.achieved.lower:.4g} | {other.sigma:.5g} | {there:.1f} | {other.achieved.lower:.4g} "
        f"| {100.0 * (found.sigma / other.sigma - 1.0):+.2f} % |",
        flush=True,
    )
    assert found.sigma <= 1.003 * other.sigma
