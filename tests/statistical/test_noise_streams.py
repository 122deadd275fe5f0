"""Noise streams against the covariance that they promise.

The coordinates of a parameter are independent copies of one stream: 2e5 of them give the covariance of the
rows entry by entry. Every test rejects a correct library with probability at most ALPHA: for N pairs of unit
normals with any correlation, the mean of their products is within 2 sqrt(x/N) + 2 x/N of the correlation but
for probability 4 exp(-x) (the product is a difference of two squares, for which Laurent and Massart bound
the tails). Planted faults of the stated sizes must be rejected.
"""

import math

import numpy as np
import pytest
import scipy.stats

import dpmech as dm

torch = pytest.importorskip("torch")

from dpmech.optim import NoiseMode, NoiseStream  # noqa: E402 - after the check for torch

ALPHA = 1e-9
N = 6
COPIES = 200_000
CLIP = 0.5
SIGMA_FAULT = 0.05
SIGNED = np.tril(np.random.default_rng(1).normal(size=(N, N)) * 0.4, -1) + np.diag([1.0, 2, 1, 0.5, 1, 1])
STRATEGIES = [
    dm.Identity(N),
    dm.LambdaCGD(N, 0.9),
    dm.SquareRoot(N),
    dm.SquareRoot(N, 3),
    dm.InverseSquareRoot(N, 3),
    dm.BandedToeplitz(N, [1.0, 0.5, -0.25]),
    dm.BandedInverse(N, [1.0, -0.6, 0.2]),
    dm.BLT(N, [0.9, 0.4], [0.3, 0.2]),
    dm.Diagonal([3.0, 2.0, 1.0, 0.5, 1.0, 4.0]),
    dm.Dense(SIGNED),
    dm.ColumnNormalized(dm.LambdaCGD(N, 0.9)),
    dm.ColumnNormalized(dm.BLT(N, [0.9, 0.4], [0.3, 0.2])),
]
CASES = [
    (strategy, mode)
    for strategy in STRATEGIES
    for mode in NoiseMode
    if mode is not NoiseMode.RECURSION or strategy.bands is not None or "BLT" in repr(strategy)
]
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


def slack(copies, comparisons):
    x = math.log(4.0 * comparisons / ALPHA)
    return 2.0 * math.sqrt(x / copies) + 2.0 * x / copies


def draw(strategy, mode, *, seed=20, device="cpu", params=1, copies=COPIES, dtype=torch.float32):
    """Rows of the stream, shape (n, params * copies), and their scale."""
    cal = dm.calibrate_sigma(strategy, 8.0, 1e-5)
    tensors = [torch.zeros(copies, device=device, dtype=dtype) for _ in range(params)]
    stream = NoiseStream(cal, tensors, CLIP, seed, mode=mode)
    rows = [torch.cat(stream.step()).double().cpu().numpy() for _ in range(strategy.n)]
    return np.array(rows), cal.sigma * CLIP


def distance(first, second, covariance):
    """Largest difference of an empirical covariance, in units of the standard deviations."""
    scales = np.sqrt(np.diag(covariance))
    return np.max(np.abs(first @ second.T / first.shape[1] - covariance) / np.outer(scales, scales))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("strategy", "mode"), CASES, ids=lambda value: getattr(value, "name", repr(value)))
def test_the_covariance_is_that_of_the_noising_matrix(strategy, mode, device):
    rows, scale = draw(strategy, mode, device=device)
    inverse = np.linalg.inv(strategy.to_dense())
    covariance = scale**2 * inverse @ inverse.T
    limit = slack(COPIES, N * N)
    assert limit < 0.025
    assert distance(rows, rows, covariance) < limit
    assert distance(rows * (1 - SIGMA_FAULT), rows * (1 - SIGMA_FAULT), covariance) > limit
    if mode is not NoiseMode.RECURSION and strategy.bands != 1:  # and with past noise that was drawn anew
        other, _ = draw(strategy, mode, seed=21, device=device)
        mixed = np.concatenate([rows[:3], other[3:]])
        assert distance(mixed, mixed, covariance) > limit


def test_parameters_coordinates_and_seeds_are_independent():
    copies = COPIES // 2
    rows, scale = draw(dm.Identity(4), None, params=2, copies=copies)
    again, _ = draw(dm.Identity(4), None, params=2, copies=copies, seed=21)
    first, second = rows[:, :copies] / scale, rows[:, copies:] / scale
    pairs = [
        (first, second),
        (first, again[:, :copies] / scale),
        (first[:, :-1], first[:, 1:]),
        (first[:, : copies - 2**15], first[:, 2**15 :]),  # the same place in the next chunk
    ]
    for a, b in pairs:
        limit = slack(a.shape[1], 16 * len(pairs))
        assert distance(a, b, np.eye(4)) > 0.9  # on the diagonal: no row has anything in common with itself
        assert np.max(np.abs(a @ b.T / a.shape[1])) < limit
        mixed = math.sqrt(0.95) * b + math.sqrt(0.05) * a
        assert np.max(np.abs(a @ mixed.T / a.shape[1])) > limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_normal_to_the_tails(dtype):
    rows, scale = draw(dm.Identity(4), None, dtype=dtype)
    values = np.sort(rows.ravel() / scale)
    assert scipy.stats.kstest(values, "norm").pvalue > ALPHA / 3
    assert scipy.stats.kstest(values * (1 - SIGMA_FAULT), "norm").pvalue < ALPHA
    for level in (3.0, 4.0):
        expected = 2.0 * scipy.stats.norm.sf(level)
        outside = np.sum(np.abs(values) > level)
        tail = min(
            scipy.stats.binom.cdf(outside, values.size, expected),
            scipy.stats.binom.sf(outside - 1, values.size, expected),
        )
        assert tail > ALPHA / 6
    clipped = np.sum(np.abs(np.clip(values, -3.0, 3.0)) > 3.0)  # a generator without tails
    assert scipy.stats.binom.cdf(clipped, values.size, 2.0 * scipy.stats.norm.sf(3.0)) < ALPHA


def test_the_last_iterate_has_the_error_that_the_calibration_states():
    """The sum of all rows has variance sigma^2 clip^2 || 1^T C^-1 ||^2: what LambdaCGD is for."""
    strategy = dm.LambdaCGD(40, 0.9)
    rows, scale = draw(strategy, None, copies=100_000)
    limit = slack(100_000, 1)
    found = np.mean(rows.sum(axis=0) ** 2) / scale**2
    expected = float(np.sum(np.linalg.inv(strategy.to_dense()).sum(axis=0) ** 2))
    assert abs(found / expected - 1.0) < limit
    plain, plain_scale = draw(dm.Identity(40), None, copies=100_000)
    assert np.mean(plain.sum(axis=0) ** 2) / plain_scale**2 > 10 * expected
