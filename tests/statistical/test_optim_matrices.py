"""Mean outputs of DP-Muon and DP-MuonBC with random noise and probes, and the denoiser's false alarms.

Every test rejects a correct library with probability at most ALPHA, and must reject a planted fault.
"""

import itertools

import numpy as np
import pytest
import scipy.stats

torch = pytest.importorskip("torch")

from dpmech.optim.rules.denoiser import denoise_matrices  # noqa: E402
from dpmech.optim.rules.muon import (  # noqa: E402
    Muon,
    orthogonalize,
    taylor_coefs,
)

ALPHA = 1e-9
COPIES, ROUNDS = 1_000, 60
H = torch.tensor([[0.8, -0.3], [0.2, 0.6]], dtype=torch.float64)
RHO = 0.15


def heat(rho, points=12):
    """E Q(H + rho U) by tensor quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    weights = weights / weights.sum()
    grid = torch.tensor(list(itertools.product(nodes, repeat=4))).reshape(-1, 2, 2)
    mass = torch.tensor([np.prod(w) for w in itertools.product(weights, repeat=4)])
    return (
        (mass[:, None, None] * orthogonalize(H + rho * grid, coefs=taylor_coefs(2), steps=2)).sum(0).numpy()
    )


def outputs(probes, phi):
    """Directions of many independent runs of one step each."""
    generator = torch.Generator().manual_seed(5)
    params = [torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64)) for _ in range(COPIES)]
    optimizer = Muon(params, lr=1.0, momentum=0.0, steps=2, probes=probes, probe_seed=9)
    optimizer.param_groups[0]["phi"] = phi
    found = []
    for _ in range(ROUNDS):
        noise = torch.randn(COPIES, 2, 2, generator=generator, dtype=torch.float64)
        for param, matrix in zip(params, noise, strict=True):
            param.data.zero_()
            param.grad = H + RHO * matrix
        optimizer.step()
        found.append(-torch.stack([param.detach() for param in params]).numpy())
    return np.concatenate(found)


def score(samples, expected):
    error = samples.std(axis=0) / np.sqrt(len(samples))
    return np.abs((samples.mean(axis=0) - expected) / error).max()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_mean_directions():
    limit = scipy.stats.norm.isf(ALPHA / 2 / 4 / 2)
    exact = orthogonalize(H, coefs=taylor_coefs(2), steps=2).numpy()
    plain = outputs(0, RHO**2)
    assert score(plain, heat(RHO)) < limit
    assert score(plain, exact) > limit
    corrected = outputs(1, RHO**2)
    assert score(corrected, 2 * heat(RHO) - heat(np.sqrt(2) * RHO)) < limit
    # Even at this size of noise over half of the bias goes. Probes of a wrong size are told apart.
    bias = np.abs(plain.mean(axis=0) - exact).max()
    assert np.abs(corrected.mean(axis=0) - exact).max() < 0.5 * bias
    assert score(outputs(1, 2.0 * RHO**2), 2 * heat(RHO) - heat(np.sqrt(2) * RHO)) > limit


@pytest.mark.slow
def test_false_alarms_of_the_denoiser():
    """Pure noise passes 1, 1.01 and 1.02 edges as often as by numpy and by published rates."""
    trials = 2_000
    generator = torch.Generator().manual_seed(6)
    matrices = torch.randn(trials, 16, 768, generator=generator)
    rng = np.random.default_rng(7)
    # An independent sample by numpy's singular values, at the same size.
    tops = np.linalg.svd(rng.standard_normal((trials, 16, 768)), compute_uv=False)[:, 0]
    for threshold, share in ((1.0, 0.131), (1.02, 0.008)):
        theirs = int((tops > threshold * (np.sqrt(16) + np.sqrt(768))).sum())

        def alarms(stddev, threshold=threshold):
            changed = (
                (denoise_matrices(matrices, stddev, threshold=threshold) != matrices).flatten(1).any(dim=1)
            )
            return int(changed.sum())

        def p_value(count, theirs=theirs):
            return scipy.stats.fisher_exact([[count, trials - count], [theirs, trials - theirs]])[1]

        found = alarms(1.0)
        assert p_value(found) > ALPHA / 2
        assert found / trials == pytest.approx(share, abs=6.2 * np.sqrt(share / trials) + 0.001)
        assert p_value(alarms(0.97)) < ALPHA / 2


def test_denoising_raises_the_cosine_of_strong_low_rank_signals():
    generator = torch.Generator().manual_seed(8)
    rows, columns, rank, trials = 60, 120, 3, 200
    left = torch.linalg.qr(torch.randn(trials, rows, rank, generator=generator))[0]
    right = torch.linalg.qr(torch.randn(trials, columns, rank, generator=generator))[0]
    signal = left @ right.mT * (3.0 * (rows * columns) ** 0.25)
    noisy = signal + torch.randn(trials, rows, columns, generator=generator)

    def cosines(matrices):
        return (
            (matrices * signal).sum((1, 2)) / matrices.flatten(1).norm(dim=1) / signal.flatten(1).norm(dim=1)
        ).numpy()

    gains = cosines(denoise_matrices(noisy, 1.0)) - cosines(noisy)
    assert gains.min() > 0.2
    # The best reachable cosine follows from the overlaps of singular vectors, to the finite-size error.
    squared = 9.0 * np.sqrt(rows * columns)
    overlap = (squared**2 - rows * columns) / np.sqrt(
        (squared**2 + rows * squared) * (squared**2 + columns * squared)
    )
    assert cosines(denoise_matrices(noisy, 1.0)).mean() == pytest.approx(overlap, abs=0.01)
    planted = cosines(denoise_matrices(noisy, 1.0, threshold=1e6))
    assert planted.mean() == pytest.approx(cosines(noisy).mean())
    assert planted.mean() < overlap - 0.2
