"""Second moments of AdamBC under noise, in open and in closed loop, by Monte Carlo over coordinates.

Every test rejects a correct library with probability at most ALPHA (means over that many coordinates are
taken to be normal), and must reject a planted fault of the stated size.
"""

import numpy as np
import pytest
import scipy.stats

torch = pytest.importorskip("torch")

import dpmech as dm  # noqa: E402
from dpmech.optim.rules.adam import AdamBC, corrected_second_moments  # noqa: E402

ALPHA = 1e-9
COORDINATES = 100_000
SCALE = 0.7  # sigma clip_norm / batch_size
BETA2 = 0.8
FAULT = 0.04  # Phi off by 4 %
CASES = {
    "independent": dm.Identity(6),
    "lambda-cgd": dm.LambdaCGD(6, 0.9),
    "bsr": dm.SquareRoot(6, 4),
    "normalized": dm.ColumnNormalized(dm.LambdaCGD(6, 0.7)),
}


def deviations(values, expected, tests):
    """z-scores of the means of the rows of `values`, and the two-sided limit over `tests` of them."""
    mean = values.mean(axis=-1) - expected
    error = values.std(axis=-1) / np.sqrt(values.shape[-1])
    return mean / error, scipy.stats.norm.isf(ALPHA / tests / 2)


def second_moments(strategy, phi_factor=1.0):
    """(corrected second moment less v_true, one row a step), for gradients that know nothing of the noise."""
    rng = np.random.default_rng(11)
    signal = rng.standard_normal((strategy.n, COORDINATES)) * np.linspace(0.5, 1.5, strategy.n)[:, None] + 0.3
    noise = SCALE * strategy.solve(rng.standard_normal((strategy.n, COORDINATES)))
    param = torch.nn.Parameter(torch.zeros(COORDINATES, dtype=torch.float64))
    optimizer = AdamBC([param], betas=(0.9, BETA2))
    excess = []
    weighted, total = 0.0, 0.0
    for t in range(strategy.n):
        param.grad = torch.tensor(signal[t] + noise[t])
        optimizer.param_groups[0]["phi"] = phi_factor * float((SCALE * strategy.noising_row_norms()[t]) ** 2)
        optimizer.step()
        weighted = BETA2 * weighted + signal[t] ** 2
        total = BETA2 * total + 1.0
        corrected = corrected_second_moments([optimizer.state[param]], BETA2, subtract_noise=True)[0]
        excess.append(corrected.numpy() - weighted / total)
    return np.array(excess)


@pytest.mark.parametrize("name", CASES)
def test_open_loop_is_unbiased(name):
    strategy = CASES[name]
    scores, limit = deviations(second_moments(strategy), 0.0, strategy.n)
    assert np.all(np.abs(scores) < limit)
    scores, _ = deviations(second_moments(strategy, 1.0 + FAULT), 0.0, strategy.n)
    assert np.abs(scores).max() > limit


def test_the_current_phi_instead_of_the_average_is_rejected():
    strategy = CASES["lambda-cgd"]
    row_norms = strategy.noising_row_norms()
    phis = (SCALE * row_norms) ** 2
    weights = BETA2 ** np.arange(strategy.n)[::-1]
    average = np.array(
        [weights[-t - 1 :] @ phis[: t + 1] / weights[-t - 1 :].sum() for t in range(strategy.n)]
    )
    excess = second_moments(strategy) + (average - phis)[:, None]
    scores, limit = deviations(excess, 0.0, strategy.n)
    assert np.abs(scores[0]) < limit
    assert np.all(np.abs(scores[1:]) > limit)


def closed_loop(strategy, curvature, rate):
    """Corrected second moment less h^2 x^2 of each step, under SGD on h x^2 / 2, with beta2 = 0."""
    rng = np.random.default_rng(12)
    noise = SCALE * strategy.solve(rng.standard_normal((strategy.n, COORDINATES)))
    x = torch.nn.Parameter(torch.full((COORDINATES,), 0.4, dtype=torch.float64))
    moments = AdamBC([x], lr=0.0, betas=(0.9, 0.0))
    descent = torch.optim.SGD([x], lr=rate)
    excess = []
    for t in range(strategy.n):
        clean = curvature * x.detach().numpy().copy()
        x.grad = torch.tensor(clean + noise[t])
        moments.param_groups[0]["phi"] = float((SCALE * strategy.noising_row_norms()[t]) ** 2)
        moments.step()
        descent.step()
        corrected = corrected_second_moments([moments.state[x]], 0.0, subtract_noise=True)[0]
        excess.append(corrected.numpy() - clean**2)
    return np.array(excess)


def test_closed_loop_cross_term():
    curvature, rate, lam = 2.0, 0.2, 0.9
    excess = closed_loop(dm.LambdaCGD(6, lam), curvature, rate)
    expected = np.full(6, 2 * rate * curvature * lam * SCALE**2)
    expected[0] = 0.0
    scores, limit = deviations(excess, expected, 6)
    assert np.all(np.abs(scores) < limit)
    scores, _ = deviations(excess, 0.0, 6)
    assert np.abs(scores[0]) < limit
    assert np.all(np.abs(scores[1:]) > limit)
    # Independent noise leaves no cross term, in closed loop either.
    scores, _ = deviations(closed_loop(dm.Identity(6), curvature, rate), 0.0, 6)
    assert np.all(np.abs(scores) < limit)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95])
def test_correlated_noise_swells_the_second_moment(lam):
    """With the sensitivity inside sigma, v is (1 + lam^2) / (1 - lam^2) times that of independent noise."""
    steps, size = 60, 20_000
    strategy = dm.LambdaCGD(steps, lam)
    kappa = dm.sensitivity(strategy, dm.SingleParticipation()).upper
    rng = np.random.default_rng(13)
    noise = kappa * strategy.solve(rng.standard_normal((steps, size)))
    param = torch.nn.Parameter(torch.zeros(size, dtype=torch.float64))
    optimizer = AdamBC([param], betas=(0.9, 0.5), subtract_noise=False, floor=0.0)
    samples = []
    for t in range(steps):
        param.grad = torch.tensor(noise[t])
        optimizer.step()
        if t >= 20:
            samples.append(optimizer.state[param]["exp_avg_sq"].numpy() / (1 - 0.5 ** (t + 1)))
    # Coordinates are independent, steps are not.
    scores, limit = deviations(np.mean(samples, axis=0)[None], (1 + lam**2) / (1 - lam**2), 1)
    assert np.all(np.abs(scores) < limit)
    scores, _ = deviations(np.mean(samples, axis=0)[None], 1.05 * (1 + lam**2) / (1 - lam**2), 1)
    assert np.all(np.abs(scores) > limit)
