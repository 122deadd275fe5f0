"""Oracles of the SDE paper: quadrature, exact walks of the sign update, moment equations, sampling."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from mpmath import mp
from scipy import integrate, optimize, special, stats

# Deviations of averages are counted in standard errors; a true statement passes this with probability
# 6e-10 at most (two-sided normal).
STANDARD_ERRORS = 6.2


def gaussian_mean_direction(norm: float, scale: float, dimension: int, power: int = 1) -> float:
    """E[X_1 / |X|^power] for X ~ N((norm, 0, ...), scale^2 I), by a one-dimensional integral.

    |x|^-k = 1 / Gamma(k/2) int_0^inf t^(k/2 - 1) e^(-t |x|^2) dt, and the Gaussian mean of X_1 e^(-t |X|^2)
    is elementary.
    """
    with mp.workdps(25):
        m, s, k = mp.mpf(norm), mp.mpf(scale), mp.mpf(power)

        def integrand(root: Any) -> Any:  # noqa: ANN401 - mpmath has no types
            t = root**2
            wide = 1 + 2 * t * s**2
            return 2 * root ** (k - 1) * wide ** (-mp.mpf(dimension) / 2 - 1) * mp.exp(-t * m**2 / wide)

        knee = 1 / (s * mp.sqrt(dimension + (m / s) ** 2))
        total = mp.quad(integrand, [0, knee, 3 * knee, 10 * knee, 100 * knee, mp.inf])
        return float(m * total / mp.gamma(k / 2))


def student_mean_direction(norm: float, scale: float, dimension: int, freedom: float) -> float:
    """E[X_1 / |X|] for a multivariate Student t: the Gaussian value averaged over the chi-square variable."""
    if math.isinf(freedom):
        return gaussian_mean_direction(norm, scale, dimension)

    def integrand(share: float) -> float:
        # share is the chi-square variable over its degrees of freedom.
        density = math.exp(
            0.5 * freedom * math.log(0.5 * freedom)
            - math.lgamma(0.5 * freedom)
            + (0.5 * freedom - 1.0) * math.log(share)
            - 0.5 * freedom * share
        )
        return density * confluent_mean(norm, scale / math.sqrt(share), dimension)

    edges = [0.0, 0.05, 0.3, 1.0, 3.0, 10.0, 80.0]
    return math.fsum(
        integrate.quad(integrand, low, high, limit=200, epsabs=1e-13, epsrel=1e-10)[0]
        for low, high in itertools.pairwise(edges)
    )


def confluent_mean(norm: float, scale: float, dimension: int, power: int = 1) -> float:
    """The same mean by the paper's eq. 12, with Kummer's function in 25 digits."""
    with mp.workdps(25):
        half, k = mp.mpf(dimension) / 2, mp.mpf(power)
        factor = mp.gamma(half + 1 - k / 2) / ((2 * mp.mpf(scale) ** 2) ** (k / 2) * mp.gamma(half + 1))
        z = mp.mpf(norm) ** 2 / (2 * mp.mpf(scale) ** 2)
        return float(factor * mp.hyp1f1(k / 2, half + 1, -z) * norm)


def student_factor(freedom: float) -> float:
    """K(nu) in 25 digits."""
    if math.isinf(freedom):
        return 1.0
    with mp.workdps(25):
        nu = mp.mpf(freedom)
        return float(mp.sqrt(2 / nu) * mp.gamma((nu + 1) / 2) / mp.gamma(nu / 2))


def sample_directions(
    rng: np.random.Generator, mean: np.ndarray, scale: float, count: int, freedom: float = math.inf
) -> np.ndarray:
    """`count` draws of X / |X|, shape (count, d)."""
    draws = scale * rng.standard_normal((count, mean.size))
    if not math.isinf(freedom):
        draws /= np.sqrt(rng.chisquare(freedom, (count, 1)) / freedom)
    draws += mean
    return draws / np.linalg.norm(draws, axis=1, keepdims=True)


def sign_walk(
    curvature: float, variance: float, rate: float, start: float, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Exact mean and second moment of x at steps 0..T under x -= rate sign(curvature x + noise).

    The iterates live on start + rate * integers, so their law is a vector.
    """
    return walk_up(lambda x: special.ndtr(-curvature * x / math.sqrt(variance)), rate, start, steps)


def walk_up(
    rising: Callable[[np.ndarray], np.ndarray], rate: float, start: float, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same for any walk that goes up by `rate` with probability rising(x), and else down."""
    position = start + rate * np.arange(-steps, steps + 1)
    chances = rising(position)
    law = np.zeros(position.size)
    law[steps] = 1.0
    means, squares = [start], [start**2]
    for _ in range(steps):
        moved = np.zeros_like(law)
        moved[1:] += (law * chances)[:-1]
        moved[:-1] += (law * (1.0 - chances))[1:]
        law = moved
        means.append(float(law @ position))
        squares.append(float(law @ position**2))
    return np.array(means), np.array(squares)


def sign_stationary_square(curvature: float, variance: float, rate: float) -> float:
    """Exact second moment of the sign walk in the end, by detailed balance on rate * integers."""
    spread = math.sqrt(rate * math.sqrt(math.pi * variance / 8.0) / curvature) + rate
    width = curvature / math.sqrt(variance)
    return settled_square(lambda x: special.log_ndtr(-width * x), rate, spread)


def settled_square(log_rising: Callable[[np.ndarray], np.ndarray], rate: float, spread: float) -> float:
    """The same for a walk that is symmetric about 0: it falls at x with the chance that it rises at -x."""
    reach = math.ceil(12.0 * spread / rate)
    position = rate * np.arange(-reach, reach + 1)
    rising = log_rising(position)
    falling = rising[::-1]
    log_law = np.concatenate([[0.0], np.cumsum(rising[:-1] - falling[1:])])
    law = np.exp(log_law - log_law.max())
    return float(law @ position**2 / law.sum())


def clipped_mean_sign(dimension: int, ratio: float, points: np.ndarray) -> np.ndarray:
    """Mean sign of one coordinate of a clipped private gradient, at its gradients `points`, sigma_gamma = 1.

    E erf(ratio u / sqrt 2) for u = (g + z) / length, where the other coordinates make up the length: their
    gradients are taken as 0, their squared length as chi-square of d - 1 degrees.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    chi = stats.chi2.ppf((np.arange(41) + 0.5) / 41, dimension - 1)
    vectors = points[:, None, None] + nodes[None, :, None]
    directions = vectors / np.sqrt(vectors**2 + chi[None, None, :])
    signs = special.erf(ratio / math.sqrt(2.0) * directions).mean(axis=2)
    means: np.ndarray = signs @ (weights / weights.sum())
    return means


def sgd_walk(
    curvature: float, variance: float, rate: float, start: float, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Exact mean and second moment at steps 0..T under x -= rate (curvature x + noise)."""
    shrink = 1.0 - rate * curvature
    means, spread = [start], [0.0]
    for _ in range(steps):
        means.append(shrink * means[-1])
        spread.append(shrink**2 * spread[-1] + rate**2 * variance)
    return np.array(means), np.array(means) ** 2 + np.array(spread)


def linear_flow(decay: float, source: float, start: float, time: float) -> float:
    """y(time) for y' = -decay y + source, by a Runge-Kutta method."""
    solved = integrate.solve_ivp(
        lambda _, y: -decay * y + source, (0.0, time), [start], method="DOP853", rtol=1e-11, atol=1e-14
    )
    return float(solved.y[0, -1])


def minimum_over_rates(bound: Callable[[float], float]) -> tuple[float, float]:
    """The learning rate at which a bound is smallest, and its value there."""

    def shifted(log_rate: float) -> float:
        return math.log(bound(math.exp(log_rate)))

    grid = np.linspace(-30.0, 10.0, 400)
    best = int(np.argmin([shifted(point) for point in grid]))
    found = optimize.minimize_scalar(
        shifted,
        bounds=(grid[max(best - 1, 0)], grid[min(best + 1, 399)]),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return math.exp(found.x), math.exp(found.fun)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Smallest eps of one Gaussian release at delta, by bisection in 40-digit arithmetic."""
    with mp.workdps(40):
        s = mp.mpf(sigma)

        def excess(eps: Any) -> Any:  # noqa: ANN401 - mpmath has no types
            return mp.ncdf(1 / (2 * s) - eps * s) - mp.exp(eps) * mp.ncdf(-1 / (2 * s) - eps * s) - delta

        low, high = mp.mpf(0), mp.mpf(200)
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(high)


def sampled_epsilon(sigma: float, probability: float, steps: int, delta: float, grid: float) -> float:
    """Upper bound on eps of Poisson sampling from another accountant: an FFT of privacy losses."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(
        sigma, sampling_prob=probability, value_discretization_interval=grid, use_connect_dots=True
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))
