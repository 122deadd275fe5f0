"""The SDE paper on DP-SignSGD: its drift (Theorem B.10, Corollary B.11)."""

import math
from collections.abc import Callable

import numpy as np
from scipy import integrate, special

from verification.harness.nudging import nudge
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
    return Verdict(
        judged(worst, 1e-9),
        "The check uses quadrature, with absolute deviations, and sampling for two coordinates.",
        cases,
        worst,
    )


def one_vector_drift(directions: np.ndarray, batch: int, sigma: float) -> np.ndarray:
    """Eq. 115: expected sign given each draw of one normalised gradient."""
    means: np.ndarray = special.erf(batch * directions / (sigma * math.sqrt(2.0)))
    return means


def numeric_mean_sign(values: np.ndarray, width: float) -> np.ndarray:
    """E sign(value + width N(0, 1)), from the cumulated normal density on a grid."""
    grid = np.linspace(-9.0, 9.0, 36_001)
    density = np.exp(-0.5 * grid**2) / math.sqrt(2.0 * math.pi)
    below = integrate.cumulative_simpson(density, x=grid, initial=0.0)
    return 2.0 * np.interp(values / width, grid, below) - 1.0


@statement("sde.thmB10.1", paper=PAPER, expected="CONDITIONAL")
def theorem_b10_clipped(
    *, claim: Callable[[np.ndarray, int, float], np.ndarray] = one_vector_drift
) -> Verdict:
    """Mean sign of a clipped private gradient: right for one vector, not for an average over a batch."""
    rng = np.random.default_rng(101)
    count, batch, sigma = 100_000, 4, 1.5
    mean = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
    directions = oracle.sample_directions(rng, mean, 0.5, count * batch).reshape(count, batch, 5)
    single = directions[:, 0]
    inside = max(
        float(
            np.abs(numeric_mean_sign(single, sigma / size).mean(0) - claim(single, size, sigma).mean(0)).max()
        )
        for size in (1, batch)
    )
    averaged = numeric_mean_sign(directions.mean(axis=1), sigma / batch).mean(axis=0)
    claimed = claim(single, batch, sigma).mean(axis=0)
    shares = special.erf(3.0 * single[:, :2])
    covariance = float(np.cov(shares.T)[0, 1])
    return Verdict(
        judged_condition(inside, float(np.abs(averaged - claimed).max()), 1e-6),
        "The check averages the cumulative distribution of the noise over sampled directions. "
        "Deviations are absolute.",
        2,
        inside,
        "The formula requires one vector instead of an average over the batch. At B = 4 the mean sign "
        f"is {averaged[0]:.3f}, whereas the formula gives {claimed[0]:.3f}. The covariance of two "
        f"coordinates is {covariance:.4f} (d = 5), not 0.",
    )


def printed_slope(dimension: int, ratio: float) -> float:
    """Eq. 139 at K = sigma_gamma = 1, ratio = B / sigma_DP."""
    return ROOT * ratio / math.sqrt(dimension)


def corrected_slope(dimension: int, ratio: float) -> float:
    """With the spread 1/d of a coordinate of the normalised gradient."""
    return ROOT / math.sqrt(dimension) / math.sqrt(1.0 / ratio**2 + 1.0 / dimension)


def exact_slope(dimension: int, ratio: float) -> float:
    """Slope of the mean sign at gradient 0, sigma_gamma = 1: E|X| E[u_1 erf(ratio u_1 / sqrt 2)].

    The direction and the length of a Gaussian vector are independent, and u_1 has the density
    (1 - u^2)^((d - 3) / 2) up to a constant.
    """
    length = math.sqrt(2.0) * math.exp(
        special.gammaln(0.5 * (dimension + 1)) - special.gammaln(0.5 * dimension)
    )
    reach = 12.0 / math.sqrt(dimension)

    def weight(u: float) -> float:
        return math.exp(0.5 * (dimension - 3) * math.log1p(-u * u))

    mass = integrate.quad(weight, 0.0, reach, epsabs=0.0)[0]
    found = integrate.quad(
        lambda u: weight(u) * u * math.erf(ratio * u / math.sqrt(2.0)), 0.0, reach, epsabs=0.0
    )
    return float(length * found[0] / mass)


@statement("sde.corB11.1", paper=PAPER, expected="CONDITIONAL")
def corollary_b11_clipped(*, claim: Callable[[int, float], float] = printed_slope) -> Verdict:
    """Slope of the drift at small gradients while all is clipped: if B / (sigma sqrt d) is small."""

    def deviation(dimension: int, share: float) -> float:
        ratio = share * math.sqrt(dimension)
        return abs(claim(dimension, ratio) / exact_slope(dimension, ratio) - 1.0)

    inside = max(deviation(dimension, share) for dimension in (1000, 10_000) for share in (0.01, 0.05, 0.1))
    outside = deviation(10_000, 0.64)
    corrected = max(
        abs(corrected_slope(10_000, 100.0 * share) / exact_slope(10_000, 100.0 * share) - 1.0)
        for share in (0.1, 0.64, 4.0)
    )
    return Verdict(
        judged_condition(inside, outside, 0.0055),
        "The check integrates over the direction by quadrature. Deviations are relative.",
        7,
        inside,
        "The slope requires that B / (sigma_DP sqrt d) is well below 1. The slope has "
        f"an error of {inside:.1%} if this ratio is 0.1, and of {outside:.0%} if it is 0.64 (d = 1e4, "
        "B = 64, sigma_DP = 1); the error grows without bound as sigma_DP tends to 0. "
        f"The relative error of our form is about {corrected:.1g}.",
    )


def linear_sign(gradient: float, variance: float) -> float:
    """Eq. 143."""
    return ROOT * gradient / math.sqrt(variance)


def printed_spread(slope: float, rate: float) -> float:
    """Stationary E x^2 of eq. 140 at curvature 1, with eta before the diffusion."""
    return rate**2 / (2.0 * slope + rate**2 * slope**2)


def corrected_spread(slope: float, rate: float) -> float:
    """With sqrt(eta), as in eq. 108, 139 and 189."""
    return rate / (2.0 * slope + rate * slope**2)


@statement("sde.corB11.2", paper=PAPER, expected="MISPRINT")
def corollary_b11_unclipped(
    *,
    claim: Callable[[float, float], float] = printed_spread,
    right: Callable[[float, float], float] = corrected_spread,
    slope: Callable[[float, float], float] = linear_sign,
) -> Verdict:
    """Linear drift and diffusion while nothing is clipped, for gradients well below the noise."""
    worst = 0.0
    for v in (0.01, 1.0, 30.0):
        for share in (0.01, 0.1, 0.2, 0.3):
            gap = slope(share * math.sqrt(v), v) / mean_sign(share * math.sqrt(v), v) - 1.0
            # The cubic term of the error function, and half a thousandth.
            worst = max(worst, abs(gap - share**2 / 6.0) - share**4 / 50.0)

    def deviation(form: Callable[[float, float], float]) -> float:
        return max(
            abs(form(ROOT / math.sqrt(v), 1e-3) / oracle.sign_stationary_square(1.0, v, 1e-3) - 1.0)
            for v in (0.5, 4.0)
        )

    printed = deviation(claim)
    far = linear_sign(2.0, 1.0) / mean_sign(2.0, 1.0) - 1.0
    return Verdict(
        judged_erratum(printed, max(deviation(right), worst), 0.004, word="MISPRINT"),
        "The check computes the stationary distribution of the iterates, with relative deviations, "
        "and the error function.",
        14,
        printed,
        "With eta before the diffusion, the variance is too small by a factor of eta. The error of "
        f"the drift is 1.5 % at 0.3 sqrt V, and {100 * far:.0f} % at 2 sqrt V, where the condition "
        "that the proof prints does not hold.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "sde.thmB10.2": lambda: theorem_b10_unclipped(claim=lambda g, v: mean_sign(g, v * 1.001)),
    "sde.thmB10.1": lambda: theorem_b10_clipped(
        claim=lambda u, batch, s: one_vector_drift(u, batch, 1.1 * s)
    ),
    "sde.corB11.1": lambda: corollary_b11_clipped(claim=corrected_slope),
    "sde.corB11.2": lambda: corollary_b11_unclipped(claim=corrected_spread),
}
NUDGES = {
    "sde.thmB10.2": {"mean sign": nudge(theorem_b10_unclipped)},
    "sde.thmB10.1": {"drift": nudge(theorem_b10_clipped)},
    "sde.corB11.1": {"slope": nudge(corollary_b11_clipped)},
    "sde.corB11.2": {
        "variance": nudge(corollary_b11_unclipped, "right"),
        "slope": nudge(corollary_b11_unclipped, "slope"),
    },
}
