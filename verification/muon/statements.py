"""The DP-Muon paper (arXiv 2605.12994): clipping, the release, and Newton-Schulz."""

import math
from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_condition, statement
from verification.oracles import matrices as ref

PAPER = "muon"


def clipped(matrix: np.ndarray, bound: float) -> np.ndarray:
    """A / max(1, ||A||_F / C)."""
    return matrix / max(1.0, float(np.linalg.norm(matrix)) / bound)


@statement("muon.clip", paper=PAPER)
def clip(*, claim: Callable[[np.ndarray, float], np.ndarray] = clipped) -> Verdict:
    """Clipping leaves norms at most C, and is the point of the ball of radius C that is nearest.

    Nearest is checked by its variational inequality, <A - P, Y - P> <= 0 for every Y of the ball: for the Y
    where it is largest, in the direction of A - P, for A itself where it lies inside, and for random ones.
    """
    rng = np.random.default_rng(1)
    worst, cases = 0.0, 0
    for _ in range(500):
        matrix = 10.0 ** rng.uniform(-2, 2) * rng.standard_normal(rng.integers(1, 5, size=2))
        bound, size = 10.0 ** rng.uniform(-1, 1), float(np.linalg.norm(matrix))
        kept = claim(matrix, bound)
        gap = matrix - kept
        others = bound * rng.uniform(0.0, 1.0, (5, 1, 1)) * rng.standard_normal((5, *matrix.shape))
        others /= np.maximum(1.0, np.linalg.norm(others, axis=(1, 2), keepdims=True) / bound)
        inside = [matrix] if size <= bound else []
        toward = [gap * (bound / float(np.linalg.norm(gap)))] if np.any(gap) else []
        for other in [*others, *inside, *toward]:
            worst = max(worst, float(np.sum(gap * (other - kept))) / (size * bound))
        worst = max(worst, float(np.linalg.norm(kept)) / bound - 1.0)
        cases += 1
    return Verdict(
        judged(worst, 1e-12),
        "The check tests the variational inequality of the projection. Deviations are relative.",
        cases,
        worst,
    )


def block_release(
    gradients: np.ndarray, bounds: np.ndarray, noise: np.ndarray, sigma: float, size: int
) -> np.ndarray:
    """(1 / B) sum of clipped gradients + sigma C_W / B noise; gradients (examples, blocks, entries)."""
    norms = np.linalg.norm(gradients, axis=2)
    kept = gradients / np.maximum(1.0, norms / bounds)[..., None]
    return kept.sum(axis=0) / size + sigma * bounds[:, None] / size * noise


@statement("muon.release", paper=PAPER)
def per_matrix_release(*, claim: Callable[..., np.ndarray] = block_release) -> Verdict:
    """One example moves block W of the release by at most C_W / B, its noise is sigma C_W / B.

    So in units of its own noise every block moves by at most 1 / sigma, and all of them by sqrt(K) / sigma.
    """
    rng = np.random.default_rng(2)
    worst, cases = 0.0, 0
    for _ in range(200):
        blocks, entries, size, sigma = (int(count) for count in rng.integers(1, 6, size=4))
        bounds = 10.0 ** rng.uniform(-2, 2, blocks)
        batch = 10.0 ** rng.uniform(-2, 3) * rng.standard_normal((5, blocks, entries))
        silent, loud = np.zeros((blocks, entries)), np.ones((blocks, entries))
        base = claim(batch, bounds, silent, sigma, size)
        unit = claim(batch, bounds, loud, sigma, size) - base
        worst = max(worst, float(np.max(np.abs(unit * size / (sigma * bounds[:, None]) - 1.0))))
        # Far out every block of the removed example is at its bound: the shift is attained.
        batch[0] *= 1e12
        moved = claim(batch, bounds, silent, sigma, size) - claim(batch[1:], bounds, silent, sigma, size)
        shift = float(np.linalg.norm(moved / (sigma * bounds[:, None] / size)))
        worst = max(worst, abs(shift * sigma / math.sqrt(blocks) - 1.0))
        cases += 1
    return Verdict(
        judged(worst, 1e-9),
        "The check removes one example, and evaluates noise of unit size. Deviations are relative.",
        cases,
        worst,
    )


@statement("muon.alg1", paper=PAPER)
def algorithm_1(*, claim: Callable[[int, int], ref.Map] = ref.muon_map) -> Verdict:
    """Newton-Schulz acts on singular values alone: y <- y p(y^2), vectors and transposition unchanged."""
    rng = np.random.default_rng(3)
    worst, cases = 0.0, 0
    for _ in range(300):
        rows, columns, degree = (int(size) for size in rng.integers(1, 7, size=3))
        steps = int(rng.integers(0, 6))
        matrix = 10.0 ** rng.uniform(-1.5, 1.5) * rng.standard_normal((rows, columns))
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        values = values / max(1.0, float(np.linalg.norm(values)))
        for _ in range(steps):
            values = values * ref.polynomial(values**2, degree)
        output = claim(degree, steps)(matrix)
        worst = max(worst, float(np.linalg.norm(output - (left * values) @ right)))
        worst = max(worst, float(np.linalg.norm(claim(degree, steps)(matrix.T).T - output)))
        cases += 1
    return Verdict(
        judged(worst, 1e-10),
        "The check follows each singular value separately. Deviations are absolute.",
        cases,
        worst,
    )


def binomial_sum(values: np.ndarray, degree: int) -> np.ndarray:
    """sum_s C(2 s, s) / 4^s (1 - l)^s."""
    return sum(math.comb(2 * s, s) / 4**s * (1.0 - values) ** s for s in range(degree + 1))


@statement("muon.pkappa", paper=PAPER)
def newton_schulz_polynomial(*, claim: Callable[[np.ndarray, int], np.ndarray] = binomial_sum) -> Verdict:
    """p_k is the Taylor polynomial of l^(-1/2) at 1, and 0 <= 1 - l p_k(l)^2 <= (1 - l)^(k + 1) on [0, 1].

    dpmech relies on it in `dpmech.analysis.muon.newton_schulz`.
    """
    values = np.linspace(0.0, 1.0, 20_001)
    worst, cases = 0.0, 0
    for degree in range(1, 13):
        result = claim(values, degree)
        worst = max(worst, float(np.max(np.abs(result - ref.polynomial(values, degree)))))
        residual = 1.0 - values * result**2
        worst = max(worst, float(np.max(residual - (1.0 - values) ** (degree + 1))), -float(residual.min()))
        # Near 1 it is the inverse root up to the order of the first term left out.
        near = np.array([0.8, 0.9])
        gap = np.abs(claim(near, degree) - near**-0.5) - 0.6 * (1.0 - near) ** (degree + 1)
        worst = max(worst, float(np.max(gap)))
        cases += len(values)
    for degree, at_zero in ((1, 1.5), (2, 1.875), (3, 2.1875), (4, 2.4609375), (5, 2.70703125)):
        worst = max(worst, abs(float(claim(np.zeros(1), degree)[0]) - at_zero))
    return Verdict(
        judged(worst, 1e-12),
        "The check compares the formula with the recursion of the Taylor coefficients, and tests the "
        "scalar inequality. Deviations are absolute.",
        cases,
        worst,
    )


def printed_polynomial(values: np.ndarray) -> np.ndarray:
    """A p_k: what the analysis covers (degree 2, the quintic map)."""
    return values * ref.polynomial(values**2, 2)


def usual_quintic(values: np.ndarray) -> np.ndarray:
    """The quintic of common Muon implementations."""
    return 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5


def largest_after(iteration: Callable[[np.ndarray], np.ndarray], steps: int) -> float:
    """The largest singular value that `steps` iterations reach from [0, 1]."""
    values = np.linspace(0.0, 1.0, 100_001)
    for _ in range(steps):
        values = iteration(values)
    return float(values.max())


@statement("muon.kappa_unstated", paper=PAPER, expected="CONDITIONAL")
def implementation_degree(*, iteration: Callable[[np.ndarray], np.ndarray] = printed_polynomial) -> Verdict:
    """The routine is said to take 5 steps; its polynomial is not given, and the results need a p_k.

    Condition: the iteration is a p_k. The quintic of common implementations is not, and leaves the unit ball.
    """
    inside = largest_after(iteration, 5) - 1.0
    outside = largest_after(usual_quintic, 5) - 1.0
    return Verdict(
        judged_condition(inside, outside, 1e-12),
        "The check computes the largest singular value after 5 steps. The deviation is the excess over 1.",
        200_002,
        inside,
        f"The polynomial must be a p_k. The usual quintic reaches {1.0 + outside:.4f}, so ||O|| <= 1 fails.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "muon.clip": lambda: clip(claim=lambda a, c: a * (c / float(np.linalg.norm(a)))),
    "muon.release": lambda: per_matrix_release(
        claim=lambda g, c, z, s, b: block_release(g, c, z * np.sqrt(len(c)), s, b)
    ),
    "muon.alg1": lambda: algorithm_1(claim=lambda degree, steps: ref.muon_map(degree, steps, scale_up=True)),
    "muon.pkappa": lambda: newton_schulz_polynomial(claim=lambda x, k: binomial_sum(x, k) + 1e-6 * (1 - x)),
    "muon.kappa_unstated": lambda: implementation_degree(iteration=usual_quintic),
}


def of_algorithm_1(factor: float) -> Verdict:
    """Algorithm 1 with its output multiplied."""

    def claim(degree: int, steps: int) -> ref.Map:
        return lambda matrix: factor * ref.muon_map(degree, steps)(matrix)

    return algorithm_1(claim=claim)


NUDGES: dict[str, dict[str, Callable[[float], Verdict]]] = {
    "muon.clip": {"clipped": nudge(clip)},
    "muon.release": {"release": nudge(per_matrix_release)},
    "muon.alg1": {"output": of_algorithm_1},
    "muon.pkappa": {"polynomial": nudge(newton_schulz_polynomial)},
    "muon.kappa_unstated": {"polynomial": nudge(implementation_degree, "iteration")},
}
