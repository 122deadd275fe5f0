"""Fits at full size. Run with `make bench`; nothing here gates."""

import resource
import time

import numpy as np
import pytest

import dpmech as dm
from dpmech.fitting.decoder import Objective
from dpmech.fitting.dense_programme import fit_dense
from dpmech.fitting.descent import Problem

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


def test_general_bands_table_4(benchmark):
    """All entries of 390 bands free: the convex programme at n = 3900, from the Toeplitz optimum."""
    start = dm.optimize(dm.BandedToeplitz, TABLE, n=3900, bands=390)
    problem = Problem(TABLE, 3900, dm.workloads.prefix_sum(3900), Objective.RMSE, column_normalized=True)
    _, error = once(benchmark, lambda: fit_dense(problem, 390, start.strategy, print))
    print(f"\np = 390: {start.error * SIGMA:.4f} to {error * SIGMA:.4f}, {1 - error / start.error:.2%} less")


@pytest.mark.parametrize("bands", [4, 16, 64, 390])
def test_inverse_bands_table_4(benchmark, bands):
    fit = once(benchmark, lambda: dm.optimize(dm.BandedInverse, TABLE, n=3900, bands=bands))
    bounds = dm.sensitivity(fit.strategy, TABLE)
    print(f"\np = {bands}: {fit.error * SIGMA:.4f}, sensitivity {'exact' if bounds.exact else 'a bracket'}")


@pytest.mark.parametrize("eps", [8.0, 1.0, 0.25])
def test_amplified_lambda_against_a_dense_scan(benchmark, eps):
    schema = dm.BallsInBins(390)
    fit = once(benchmark, lambda: dm.optimize(dm.LambdaCGD, schema, n=3900, eps=eps, delta=1e-5, rng=1))
    scan = {
        lam: dm.calibrate_sigma(dm.LambdaCGD(3900, lam), eps, 1e-5, participation=schema, rng=1).rmse()
        for lam in 1.0 - np.geomspace(0.01, 0.9, 16)
    }
    best = min(scan, key=scan.get)
    print(f"\neps {eps}: lam {fit.strategy.lam:.4f} error {fit.error:.4f}; scan {best:.4f}, {scan[best]:.4f}")


def test_against_jax_privacy(benchmark):
    toeplitz = pytest.importorskip(
        "jax_privacy.matrix_factorization.toeplitz", reason="the peer needs jax, which is not a dependency"
    )
    n, bands = 2000, 32
    start = time.perf_counter()
    coefs = np.asarray(toeplitz.optimize_banded_toeplitz(n, bands), dtype=np.float64)
    peer_seconds = time.perf_counter() - start
    peer = dm.rmse(dm.BandedToeplitz(n, coefs), dm.SingleParticipation())
    fit = once(benchmark, lambda: dm.optimize(dm.BandedToeplitz, dm.SingleParticipation(), n=n, bands=bands))
    print(f"\nerror {fit.error:.6g} against {peer:.6g} of the peer, which took {peer_seconds:.1f} s")
