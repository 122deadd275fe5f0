"""The SDE paper on DP-SGD: batches that mix the phases, moments on a quadratic (Theorems B.8, B.9)."""

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_erratum, statement
from verification.oracles import sde as oracle

PAPER = "sde"


def convex_combination(share: float, clipped: float, unclipped: float, gap: float, batch: int) -> float:
    """Eq. 90 for the gradient part: no variance between the phases."""
    del gap
    return (share * clipped + (1.0 - share) * unclipped) / batch


def with_between(share: float, clipped: float, unclipped: float, gap: float, batch: int) -> float:
    """With the variance of the number of clipped examples."""
    return convex_combination(share, clipped, unclipped, gap, batch) + share * (1.0 - share) * gap**2 / batch


@statement("sde.thmB8", paper=PAPER, expected="PROOF GAP")
def theorem_b8(
    *, claim: Callable[..., float] = convex_combination, right: Callable[..., float] = with_between
) -> Verdict:
    """Covariance of a batch that mixes clipped and unclipped examples, and its trace bound."""
    batch, low, high, gradient, gain = 16, 0.1, 0.12, 1.0, 0.05
    printed = corrected = 0.0
    for share in (0.0, 0.3, 0.5, 1.0):
        # The law of the number of clipped examples, then the moments given it.
        hits = np.arange(batch + 1)
        chances = stats.binom.pmf(hits, batch, share)
        means = (hits * gain + (batch - hits)) * gradient / batch
        within = (hits * low**2 + (batch - hits) * high**2) / batch**2
        square = float(chances @ (within + means**2))
        found = square - float(chances @ means) ** 2
        settings = (share, low**2, high**2, (1.0 - gain) * gradient, batch)
        printed = max(printed, abs(claim(*settings) / found - 1.0))
        corrected = max(corrected, abs(right(*settings) / found - 1.0))
    # The trace bound stands: contributions of norm C at most have a trace of C^2 / B at most.
    rng = np.random.default_rng(80)
    for clip in (3.0, 7.0, 20.0):
        vectors = 0.1 + rng.standard_normal((4000, 50))
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        trace = float((vectors * np.minimum(1.0, clip / norms)).var(axis=0).sum()) / batch
        bound = 50 * max(clip**2 / 50, 1.0 / batch)
        corrected = max(corrected, trace / bound - 1.0)
    return Verdict(
        judged_erratum(printed, corrected, 1e-9, word="PROOF GAP"),
        "The check computes moments over the number of clipped examples, with relative deviations, "
        "and traces of clipped vectors.",
        7,
        printed,
        "With half of 16 examples clipped, eq. 90 omits the variance between the phases: it gives "
        f"{convex_combination(0.5, low**2, high**2, 0.95, batch):.5f}, whereas the covariance is "
        f"{with_between(0.5, low**2, high**2, 0.95, batch):.5f}. The trace bound (62) holds, because "
        "each clipped gradient has a norm of at most C.",
    )


def moments_b9(
    x: float,
    h: float,
    time: float,
    rate: float,
    scale: float,
    batch: float,
    clip: float,
    rule: tuple[float, ...],
) -> tuple[float, float]:
    """Eq. 104, in terms of eps; rule is (q, T, delta, eps)."""
    q, steps, delta, eps = rule
    bracket = eps**2 * scale**2 / (batch * steps) + (clip * q / batch) ** 2 * math.log(1 / delta)
    return x * math.exp(-h * time), steps * rate / (2 * eps**2) * bracket * (1 - math.exp(-2 * h * time)) / h


@statement("sde.thmB9", paper=PAPER)
def theorem_b9(*, claim: Callable[..., tuple[float, float]] = moments_b9) -> Verdict:
    """Mean and variance on a quadratic, against the moment equations and the iterates of Figure C.3."""
    rng = np.random.default_rng(90)
    worst = 0.0
    for _ in range(20):
        x = float(rng.normal())
        h, time, rate = np.exp(rng.normal(size=3)).tolist()
        scale, batch, clip = np.exp(rng.normal(size=3)).tolist()
        rule = (0.1, 50.0, 1e-5, 2.0)
        sigma = rule[0] * math.sqrt(rule[1] * math.log(1 / rule[2])) / rule[3]
        variance = scale**2 / batch + (clip * sigma / batch) ** 2
        mean, spread = claim(x, h, time, rate, scale, batch, clip, rule)
        worst = max(
            worst,
            abs(mean - oracle.linear_flow(h, 0.0, x, time)) / abs(x),
            abs(spread / oracle.linear_flow(2 * h, rate * variance, 0.0, time) - 1.0),
        )
    for h, x in ((2.0, 0.01), (1.0, 0.005)):
        means, squares = oracle.sgd_walk(h, 0.26, 1e-3, x, 3000)
        sigma_rule = (1.0, 1.0, math.exp(-1.0), 10.0)  # sigma = 0.1
        mean, spread = claim(x, h, 3.0, 1e-3, 0.1, 1.0, 5.0, sigma_rule)
        # The iterates differ from the equation by a factor 1 + O(eta h).
        worst = max(
            worst, abs((squares[-1] - means[-1] ** 2) / spread - 1.0) - 0.002, abs(mean - means[-1]) - 1e-5
        )
    return Verdict(
        judged(worst, 1e-8),
        "The check integrates the moment equations by a Runge-Kutta method. Deviations are relative.",
        22,
        worst,
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "sde.thmB8": lambda: theorem_b8(claim=with_between),
    "sde.thmB9": lambda: theorem_b9(claim=lambda x, h, time, *rest: moments_b9(x, h, 1.001 * time, *rest)),
}
NUDGES = {
    "sde.thmB8": {"variance": nudge(theorem_b8, "right")},
    "sde.thmB9": {"moments": nudge(theorem_b9)},
}
