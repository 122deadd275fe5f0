"""Oracles of the noise-share paper's checks: plain recursions, dense matrices, other accountants."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import dp_accounting
import numpy as np
from dp_accounting.rdp import RdpAccountant
from scipy import stats

# Two-sided tail of a normal variable at 6.5 standard errors: the false-positive rate of one comparison.
STANDARD_ERRORS = 6.5
FALSE_POSITIVES = 8e-11

# The paper's own operating points: Qwen on E2E, B = 512, eps = 3; and B = 4096, eps = 8.
CORPUS = 42061
PHI_512 = 2.197e-8
PHI_4096 = 4.24e-10
RHO_4096 = 0.955

# The Renyi orders that Opacus uses; below 2 the series does not always converge at large sampling rates.
OPACUS_ORDERS = (*(1 + x / 10.0 for x in range(1, 100)), *map(float, range(12, 64)))
ORDERS = tuple(order for order in OPACUS_ORDERS if order >= 2.0)


def bidiagonal(lam: float, steps: int) -> np.ndarray:
    """L: ones on the diagonal, -lam below it."""
    return np.eye(steps) - lam * np.eye(steps, k=-1)


def secret_covariance(lam: float, steps: int) -> np.ndarray:
    """Covariance of z_t - lam z_(t-1), t = 1..T, with all of z_0, ..., z_T drawn: from the map itself."""
    wide = np.zeros((steps, steps + 1))
    for t in range(steps):
        wide[t, t + 1], wide[t, t] = 1.0, -lam
    return wide @ wide.T


def average_by_recursion(values: np.ndarray, beta: float) -> np.ndarray:
    """Bias-corrected moving average along the first axis, the way an optimizer runs it."""
    state = np.zeros_like(values[0], dtype=float)
    for value in values:
        state = beta * state + (1.0 - beta) * value
    return state / (1.0 - beta ** len(values))


def weights_by_recursion(beta: float, steps: int) -> np.ndarray:
    """What each of the gradients 1..t weighs in the bias-corrected average, oldest first."""
    return average_by_recursion(np.eye(steps), beta)


def second_moments(
    beta2: float, steps: int, phi: float, draws: int, mean: Callable[[np.ndarray], np.ndarray], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Bias-corrected second moments in closed loop: the clipped mean of a step is a function of past noise.

    Returns:
        The second moments and the part of them that the clipped means alone make, both of shape (draws,).
    """
    rng = np.random.default_rng(seed)
    noise = np.zeros(draws)
    total, clean = np.zeros(draws), np.zeros(draws)
    for _ in range(steps):
        signal = mean(noise)
        noise = rng.normal(scale=np.sqrt(phi), size=draws)
        total = beta2 * total + (1.0 - beta2) * (signal + noise) ** 2
        clean = beta2 * clean + (1.0 - beta2) * signal**2
    return total / (1.0 - beta2**steps), clean / (1.0 - beta2**steps)


def exact_moments(
    beta2: float, phi: float, mean: Callable[[np.ndarray], np.ndarray], nodes: int = 12
) -> tuple[float, float]:
    """The same after two steps as exact expectations, by Gauss-Hermite nodes of both noises.

    Returns:
        E of the bias-corrected second moment, and of the part that the clipped means alone make.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    first, second = np.meshgrid(np.sqrt(phi) * points, np.sqrt(phi) * points, indexing="ij")
    chances = np.outer(weights, weights)
    total, clean = np.zeros_like(first), np.zeros_like(first)
    for past, noise in ((np.zeros_like(first), first), (first, second)):
        signal = mean(past)
        total = beta2 * total + (1.0 - beta2) * (signal + noise) ** 2
        clean = beta2 * clean + (1.0 - beta2) * signal**2
    scale = 1.0 - beta2**2
    return float(np.sum(chances * total)) / scale, float(np.sum(chances * clean)) / scale


def poisson_subsets(examples: int, rate: float) -> Iterator[tuple[np.ndarray, float]]:
    """Every subset of the examples as a 0/1 vector, with its probability."""
    for bits in itertools.product((0.0, 1.0), repeat=examples):
        chosen = np.array(bits)
        size = int(chosen.sum())
        yield chosen, rate**size * (1.0 - rate) ** (examples - size)


def chi_square_grid(degrees: float, points: int = 200_001) -> np.ndarray:
    """Mid-quantiles of a chi-square variable over its degrees: averages over them are expectations."""
    return stats.chi2.ppf((np.arange(points) + 0.5) / points, degrees) / degrees


def rdp_epsilon(
    sigma: float, rate: float, steps: int, delta: float, orders: Sequence[float] = ORDERS
) -> float:
    """Eps of the Poisson-subsampled Gaussian by Renyi accounting (dp-accounting)."""
    accountant = RdpAccountant(list(orders))
    event = dp_accounting.GaussianDpEvent(sigma)
    if rate < 1.0:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    return float(accountant.compose(event, steps).get_epsilon(delta))


@functools.cache
def rdp_sigma(eps: float, delta: float, rate: float, steps: int, orders: tuple[float, ...] = ORDERS) -> float:
    """The noise multiplier at which Renyi accounting gives eps, by bisection."""
    low, high = 0.05, 2000.0
    while high / low > 1.0 + 1e-5:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if rdp_epsilon(middle, rate, steps, delta, orders) > eps else (low, middle)
    return high
