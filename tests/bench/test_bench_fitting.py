"""Fits at full size. Run with `make bench`; nothing here gates."""

import resource
import time

import numpy as np
import pytest

import dpmech as dm

TABLE = dm.MinSep(390, 10)
SIGMA = 0.60022907


def once(benchmark, function):
    return benchmark.pedantic(function, rounds=1, iterations=1)


def test_100000_steps_64_bands(benchmark):
    fit = once(benchmark, lambda: dm.optimize(dm.BandedToeplitz, dm.MinSep(1000, 100), n=100_000, bands=64))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\nerror {fit.error:.6g} against {fit.identity_error:.6g} of the identity, peak {peak:.2f} GB")


@pytest.mark.parametrize("bands", [16, 64, 390])
def test_column_normalised_table_4(benchmark, bands):
    plain = dm.optimize(dm.BandedToeplitz, TABLE, n=3900, bands=bands).error
    fit = once(
        benchmark,
        lambda: dm.optimize(dm.BandedToeplitz, TABLE, n=3900, bands=bands, column_normalized=True),
    )
    print(f"\np = {bands}: {plain * SIGMA:.4f} to {fit.error * SIGMA:.4f}, {1 - fit.error / plain:.2%} less")


@pytest.mark.parametrize("share", [10, 5, 2.5])
def test_general_bands_table_4(benchmark, share):
    """All entries within b bands free, at a fraction of the horizon: n = 10 b as in the table.

    The program is O(n^3) a step: hours at n = 3900.
    """
    bands = round(390 / share)
    n, schema = 10 * bands, dm.MinSep(bands, 10)
    toeplitz = dm.optimize(dm.BandedToeplitz, schema, n=n, bands=bands).error
    normalised = dm.optimize(dm.BandedToeplitz, schema, n=n, bands=bands, column_normalized=True).error
    unit = dm.optimize(dm.Dense, schema, n=n, bands=bands, column_normalized=True).error
    free = once(benchmark, lambda: dm.optimize(dm.Dense, schema, n=n, bands=bands).error)
    print(f"\nn = {n}: Toeplitz {toeplitz:.5g}", end="")
    for name, error in (("normalised", normalised), ("general, unit", unit), ("general", free)):
        print(f", {name} {1 - error / toeplitz:.2%} less", end="")


@pytest.mark.parametrize("bands", [4, 16, 64, 390])
def test_inverse_bands_table_4(benchmark, bands):
    fit = once(benchmark, lambda: dm.optimize(dm.BandedInverse, TABLE, n=3900, bands=bands))
    bounds = dm.sensitivity(fit.strategy, TABLE)
    print(f"\np = {bands}: {fit.error * SIGMA:.4f}, sensitivity {'exact' if bounds.exact else 'a bracket'}")


@pytest.mark.parametrize(("eps", "least", "most"), [(8.0, 0.015, 0.1), (1.0, 0.03, 0.15), (0.25, 0.06, 0.35)])
def test_amplified_lambda_against_a_dense_scan(benchmark, eps, least, most):
    """The scan is over 1 - lambda, in steps that change the error by less than a per cent near the best."""
    schema, lines = dm.BallsInBins(390), []
    start = time.process_time()
    fit = once(
        benchmark,
        lambda: dm.optimize(dm.LambdaCGD, schema, n=3900, eps=eps, delta=1e-5, rng=1, progress=lines.append),
    )
    seconds = time.process_time() - start
    scan = {
        lam: dm.calibrate_sigma(dm.LambdaCGD(3900, lam), eps, 1e-5, participation=schema, rng=1).rmse()
        for lam in 1.0 - np.geomspace(least, most, 9)
    }
    best = min(scan, key=scan.get)
    print(
        f"\neps {eps}: lam {fit.strategy.lam:.4f} error {fit.error:.4f} in {seconds:.0f} CPU s, of 9: "
        f"{best:.4f}, {scan[best]:.4f} in {time.process_time() - start - seconds:.0f} CPU s, "
        f"ratio {fit.error / scan[best]:.4f}"
    )
    print(*(f"{lam:.4f}:{error:.3f}" for lam, error in scan.items()))


@pytest.mark.parametrize(("n", "bands"), [(2000, 32), (100_000, 64)])
def test_against_jax_privacy(benchmark, n, bands):
    """Time (the peer's with its compilation) and achieved error on one problem, one after the other."""
    toeplitz = pytest.importorskip(
        "jax_privacy.matrix_factorization.toeplitz", reason="the peer needs jax, which is not a dependency"
    )
    start = time.perf_counter()
    coefs = np.asarray(toeplitz.optimize_banded_toeplitz(n, bands), dtype=np.float64)
    peer_seconds = time.perf_counter() - start
    peer = dm.rmse(dm.BandedToeplitz(n, coefs), dm.SingleParticipation())
    start = time.perf_counter()
    fit = once(benchmark, lambda: dm.optimize(dm.BandedToeplitz, dm.SingleParticipation(), n=n, bands=bands))
    seconds = time.perf_counter() - start
    print(f"\nn = {n}: error {fit.error:.6g}, {fit.error / peer:.6f} of the peer's")
    print(f"{seconds:.2f} s, {seconds / peer_seconds:.3f} of the peer's")
