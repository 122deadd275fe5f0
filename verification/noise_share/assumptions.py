"""The noise-share paper, the assumptions of the signal ceiling: they can be met, and what they mean."""

from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_erratum, statement
from verification.oracles import noise_share as oracle

PAPER = "noise_share"


def own_mean(means: np.ndarray) -> np.ndarray:
    """The printed drift |E g_t - g| with g := E g_t: a mean is compared with itself."""
    return np.abs(means - means)


def window_mean(means: np.ndarray) -> np.ndarray:
    """With g the mean over the window."""
    return np.abs(means - means.mean())


@statement("ov.asm4", paper=PAPER, expected="WORDING")
def assumption_4(*, claim: Callable[[np.ndarray], np.ndarray] = own_mean) -> Verdict:
    """The drift slack bounds how far the mean of a step is from the mean of the window."""
    means = np.linspace(0.0, 1.0, 41)
    # An average can miss the window's mean by no more than the largest drift, and by that much.
    missed = max(
        abs(float(weights @ means) - means.mean())
        for weights in (np.eye(41)[0], np.eye(41)[-1], oracle.weights_by_recursion(0.9, 41))
    )
    printed = abs(float(claim(means).max()) - missed)
    corrected = abs(float(window_mean(means).max()) - missed)
    return Verdict(
        judged_erratum(printed, corrected, 1e-12, word="WORDING"),
        "The check compares the slack on a ramp of means with the error that an average can have. "
        "Deviations are absolute.",
        3,
        printed,
        f"On a ramp from 0 to 1, the printed slack is {claim(means).max():.1f}; measured from the mean "
        f"over the window, it is {window_mean(means).max():.1f}.",
    )


def split(weights: np.ndarray, sampling: float, phi: float) -> float:
    """The variance of the average: sum of w^2 times that of sampling, and that of the averaged noise."""
    return float(np.sum(weights**2)) * (sampling + phi)


@statement("ov.asm5", paper=PAPER)
def assumption_5(*, claim: Callable[[np.ndarray, float, float], float] = split) -> Verdict:
    """MSE = b^2 + V, V = sum w^2 v_sub + Var(sum w xi): two steps of all samples and of noise nodes."""
    gradients = np.array([0.3, -0.2, 0.9])
    rate, phi = 0.5, 0.4
    points, nodes = np.polynomial.hermite_e.hermegauss(6)
    nodes = nodes / nodes.sum()
    draws = list(oracle.poisson_subsets(3, rate))
    means = np.array([chosen @ gradients / (rate * 3) for chosen, _ in draws])
    chances = np.array([chance for _, chance in draws])
    centre = float(chances @ means)
    sampling = float(chances @ (means - centre) ** 2)
    values = (means[:, None] + np.sqrt(phi) * points[None, :]).ravel()
    law = np.outer(chances, nodes).ravel()
    worst, cases = 0.0, 0
    for weights in (np.array([0.5, 0.5]), oracle.weights_by_recursion(0.9, 2), np.array([0.0, 1.0])):
        average = weights[0] * values[:, None] + weights[1] * values[None, :]
        chance = np.outer(law, law)
        for reference in (centre, 0.1):
            error = float(np.sum(chance * (average - reference) ** 2))
            bias = float(np.sum(chance * average)) - reference
            worst = max(worst, abs((bias**2 + claim(weights, sampling, phi)) / error - 1.0))
            cases += 1
    return Verdict(
        judged(worst, 1e-12),
        "The check enumerates all possible batches, and integrates over the noise with Gauss-Hermite nodes. "
        "Deviations are relative.",
        cases,
        worst,
    )


def affine(u: np.ndarray) -> np.ndarray:
    """The degradation function of Lemma 11, at eta = 0.4."""
    return 0.2 * u


@statement("ov.asm7", paper=PAPER)
def assumption_7(*, claim: Callable[[np.ndarray], np.ndarray] = affine) -> Verdict:
    """Psi nondecreasing, convex, Psi(0) = 0, Psi'(0) = eta/2, Psi'' <= L: that of Lemma 11 is one, L = 0."""
    grid = np.linspace(0.0, 5.0, 501)
    values = claim(grid)
    first, second = np.diff(values) / 0.01, np.diff(values, 2) / 0.01**2
    worst = max(
        abs(float(values[0])),
        -float(first.min()),
        float(np.abs(second).max()) * 1e-3,
        abs(float(first[0]) - 0.2),
    )
    return Verdict(
        judged(worst, 1e-9), "The check computes differences on a grid. Deviations are absolute.", 4, worst
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "ov.asm4": lambda: assumption_4(claim=window_mean),
    "ov.asm5": lambda: assumption_5(claim=lambda w, sampling, phi: split(w, sampling, 0.99 * phi)),
    "ov.asm7": lambda: assumption_7(claim=lambda u: 0.2 * u - 0.01 * u**2),
}

NUDGES = {
    "ov.asm5": {"variance": nudge(assumption_5)},
    "ov.asm7": {"slope": nudge(assumption_7)},
}
