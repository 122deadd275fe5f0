"""The SDE paper on DP-SignSGD: its drift (Theorem B.10, Corollary B.11)."""

import math
from collections.abc import Callable

import numpy as np
from scipy import integrate, special

from verification.harness.verdict import Verdict, judged, judged_condition, judged_erratum, statement
from verification.oracles import sde as oracle

PAPER = "sde"
ROOT = math.sqrt(2.0 / math.pi)


def mean_sign(gradient: float, variance: float) -> float:
    """Eq. 129."""
    return math.erf(gradient / math.sqrt(2.0 * variance))


@statement("sde.thmB10.2", paper=PAPER)
def theorem_b10_unclipped(*, claim: Callable[[float, float], float] = mean_sign) -> Verdict:
    """Mean of a sign, and its variance 1 - mean^2, where nothing is clipped."""
    worst, cases = 0.0, 0
    for variance in (0.2, 1.3, 4.0):
        for gradient in (-2.0, 0.0, 0.1, 0.7, 3.0):
            scale = math.sqrt(variance)

            def density(y: float, mean: float = gradient, width: float = scale) -> float:
                return math.exp(-0.5 * ((y - mean) / width) ** 2) / (width * math.sqrt(2.0 * math.pi))

            above = integrate.quad(density, 0.0, gradient + 12.0 * scale, epsabs=1e-13)[0]
            below = integrate.quad(density, gradient - 12.0 * scale, 0.0, epsabs=1e-13)[0]
            mean = claim(gradient, variance)
            worst = max(worst, abs(mean - (above - below)), abs(4.0 * above * below - (1.0 - mean**2)))
            cases += 1
    rng = np.random.default_rng(102)
    count = 200_000
    signs = np.sign([0.7, 0.4] + math.sqrt(1.3) * rng.standard_normal((count, 2)))
    product = float(np.mean(signs[:, 0] * signs[:, 1])) - claim(0.7, 1.3) * claim(0.4, 1.3)
    # The off-diagonal covariance is 0: within 6.2 standard errors, scaled to the same tolerance.
    worst = max(worst, abs(product) * math.sqrt(count) / oracle.STANDARD_ERRORS * 1e-9)
    return Verdict(judged(worst, 1e-9), "quadrature, absolute; sampling for two coordinates", cases, worst)


def one_vector_drift(directions: np.ndarray, lot: int, sigma: float) -> np.ndarray:
    """Eq. 115: expected sign given each draw of one normalised gradient."""
    means: np.ndarray = special.erf(lot * directions / (sigma * math.sqrt(2.0)))
    return means


@statement("sde.thmB10.1", paper=PAPER, expected="CONDITIONAL")
def theorem_b10_clipped(
    *, claim: Callable[[np.ndarray, int, float], np.ndarray] = one_vector_drift
) -> Verdict:
    """Mean sign of a clipped private gradient: right for one vector, not for an average over a lot."""
    rng = np.random.default_rng(101)
    count, lot, sigma = 200_000, 4, 1.5
    mean = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
    directions = oracle.sample_directions(rng, mean, 0.5, count * lot).reshape(count, lot, 5)
    noise = rng.standard_normal((count, 5))

    def deviation(private: np.ndarray, claimed: np.ndarray) -> float:
        gaps = np.sign(private) - claimed
        return float(np.max(np.abs(gaps.mean(axis=0)) / gaps.std(axis=0))) * math.sqrt(count)

    single = directions[:, 0]
    inside = max(
        deviation(single + sigma * noise, claim(single, 1, sigma)),
        deviation(single + sigma / lot * noise, claim(single, lot, sigma)),
    )
    averaged = directions.mean(axis=1) + sigma / lot * noise
    outside = deviation(averaged, claim(single, lot, sigma))
    shares = special.erf(3.0 * single[:, :2])
    covariance = float(np.cov(shares.T)[0, 1])
    return Verdict(
        judged_condition(inside, outside, oracle.STANDARD_ERRORS),
        "sampling, in standard errors",
        2,
        inside,
        f"needs one vector instead of an average over the lot: at B = 4 the mean sign is "
        f"{np.sign(averaged)[:, 0].mean():.3f}, the formula gives "
        f"{claim(single, lot, sigma)[:, 0].mean():.3f}; and the covariance of two coordinates is "
        f"{covariance:.4f}, not 0 (d = 5)",
    )


def printed_slope(dimension: int, ratio: float) -> float:
    """Eq. 139 at K = sigma_gamma = 1, ratio = B / sigma_DP."""
    return ROOT * ratio / math.sqrt(dimension)


def corrected_slope(dimension: int, ratio: float) -> float:
    """With the spread 1/d of a coordinate of the normalised gradient."""
    return ROOT / math.sqrt(dimension) / math.sqrt(1.0 / ratio**2 + 1.0 / dimension)


@statement("sde.corB11.1", paper=PAPER, expected="CONDITIONAL")
def corollary_b11_clipped(*, claim: Callable[[int, float], float] = printed_slope) -> Verdict:
    """Slope of the drift at small gradients while every gradient is clipped."""
    rng = np.random.default_rng(111)
    slopes = {}
    for dimension, ratio in ((1000, 64.0), (10_000, 64.0), (10_000, 400.0)):
        step = 2.0 / math.sqrt(dimension)
        total = 0.0
        # Antithetic pairs: the noise that is odd cancels.
        for _ in range(4):
            noise = rng.standard_normal((400_000 // dimension, dimension))
            for sign in (-1.0, 1.0):
                vectors = step + sign * noise
                vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
                total += float(special.erf(ratio / math.sqrt(2.0) * vectors).mean())
        slopes[dimension, ratio] = total / 8.0 / step

    def deviation(form: Callable[[int, float], float]) -> float:
        return max(abs(form(*setting) / slope - 1.0) for setting, slope in slopes.items())

    printed = deviation(claim)
    return Verdict(
        judged_erratum(printed, deviation(corrected_slope), 0.03, word="CONDITIONAL"),
        "sampled mean signs, relative",
        len(slopes),
        printed,
        f"d = 1e4, B = 64, sigma_DP = sigma_gamma = 1: slope {slopes[10_000, 64.0]:.4f}, printed "
        f"{claim(10_000, 64.0):.4f}, corrected {corrected_slope(10_000, 64.0):.4f}",
    )


def linear_sign(gradient: float, variance: float) -> float:
    """Eq. 143."""
    return ROOT * gradient / math.sqrt(variance)


@statement("sde.corB11.2", paper=PAPER, expected="CONDITIONAL")
def corollary_b11_unclipped(*, claim: Callable[[float, float], float] = linear_sign) -> Verdict:
    """Linear drift while nothing is clipped: for gradients well below the noise."""

    def deviation(share: float) -> float:
        return max(
            abs(claim(share * math.sqrt(v), v) / mean_sign(share * math.sqrt(v), v) - 1.0)
            for v in (0.01, 1.0, 30.0)
        )

    inside = max(deviation(share) for share in (0.01, 0.1, 0.2, 0.3))
    outside = deviation(2.0)
    return Verdict(
        judged_condition(inside, outside, 0.016),
        "error function, relative",
        12,
        inside,
        f"needs gradients below about 0.3 sqrt V: at 2 sqrt V the slope is {100 * outside:.0f} % too steep. "
        "Eq. 140 must have sqrt(eta) and dt, and C^2 sigma^2 / B^2 in its condition",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "sde.thmB10.2": lambda: theorem_b10_unclipped(claim=lambda g, v: mean_sign(g, v * 1.001)),
    "sde.thmB10.1": lambda: theorem_b10_clipped(claim=lambda u, lot, s: one_vector_drift(u, lot, 1.1 * s)),
    "sde.corB11.1": lambda: corollary_b11_clipped(claim=corrected_slope),
    "sde.corB11.2": lambda: corollary_b11_unclipped(claim=lambda g, v: 1.02 * linear_sign(g, v)),
}
