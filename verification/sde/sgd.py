"""The SDE paper on DP-SGD: drift and covariance, and bounds (Theorems B.5 to B.7)."""

import math
from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_erratum, judged_proof, statement
from verification.oracles import sde as oracle

PAPER = "sde"


def printed_rank_one(scale: float, dimension: int, batch: int) -> tuple[float, float]:
    """Eq. 23 at C = 1: coefficient of grad f grad f^T, and the trace of E[u u^T]; no average over a batch."""
    del batch
    return 1.0 / (scale * math.sqrt(dimension)), 1.0


def corrected_rank_one(scale: float, dimension: int, batch: int) -> tuple[float, float]:
    """The same with the square that the proof has, and over the batch."""
    return 1.0 / (scale**2 * dimension * batch), 1.0 / batch


def _rank_one_deviation(claim: Callable[[float, int, int], tuple[float, float]]) -> float:
    worst = 0.0
    for scale in (0.05, 1.0, 3.0):
        for dimension in (500, 5000):
            gain = oracle.confluent_mean(0.2 * scale, scale, dimension) / (0.2 * scale)
            worst = max(worst, abs(claim(scale, dimension, 1)[0] / gain**2 - 1.0))
    batch, dimension = 16, 200
    mean = np.zeros(dimension)
    mean[0] = 1.0
    rng = np.random.default_rng(51)
    averages = (
        oracle.sample_directions(rng, mean, 1.0, 3000 * batch).reshape(3000, batch, dimension).mean(axis=1)
    )
    trace = float(averages.var(axis=0).sum())
    coefficient, total = claim(1.0, dimension, batch)
    return max(worst, abs((total - coefficient) / trace - 1.0))


@statement("sde.thmB5.1", paper=PAPER, expected="MISPRINT")
def theorem_b5_clipped(
    *,
    claim: Callable[[float, int, int], tuple[float, float]] = printed_rank_one,
    right: Callable[[float, int, int], tuple[float, float]] = corrected_rank_one,
) -> Verdict:
    """Covariance of a step where every example is clipped: K^2 / (sigma^2 d) and 1/B, not as printed."""
    printed, corrected = _rank_one_deviation(claim), _rank_one_deviation(right)
    return Verdict(
        judged_erratum(printed, corrected, 0.007, word="MISPRINT"),
        "The check uses quadrature and sampling. Deviations are relative.",
        7,
        printed,
        "At sigma_gamma = 3 and d = 5000, the printed coefficient is too large by a factor of "
        f"{3 * math.sqrt(5000):.0f}. At B = 16, the trace is 1/16 of the printed one.",
    )


def unclipped_variance(scale: float, batch: int, clip: float, sigma: float) -> float:
    """Eq. 24: variance per coordinate."""
    return scale**2 / batch + (clip * sigma / batch) ** 2


@statement("sde.thmB5.2", paper=PAPER)
def theorem_b5_unclipped(
    *, claim: Callable[[float, int, float, float], float] = unclipped_variance
) -> Verdict:
    """Mean and covariance of a step where nothing is clipped."""
    rng = np.random.default_rng(52)
    worst, count = 0.0, 2_000_000
    settings = ((1.0, 8, 0.5, 2.0), (0.1, 3, 5.0, 0.1), (2.0, 5, 1.0, 0.0))
    for scale, batch, clip, sigma in settings:
        total = np.full(count, 0.7 * batch)
        for _ in range(batch):
            total += scale * rng.standard_normal(count)
        private = (total + clip * sigma * rng.standard_normal(count)) / batch
        variance = claim(scale, batch, clip, sigma)
        mean_error = abs(private.mean() - 0.7) / math.sqrt(variance / count)
        spread_error = abs(private.var() / variance - 1.0) / math.sqrt(2.0 / count)
        worst = max(worst, mean_error, spread_error)
    return Verdict(
        judged(worst, oracle.STANDARD_ERRORS),
        "The check uses sampling. Deviations are in standard errors.",
        2 * len(settings),
        worst,
    )


def equation_45(start: float, time: float, rate: float, clip: float, spread: float, dimension: int) -> float:
    """Eq. 45 at K = L = mu = sigma_gamma = 1; spread is sigma_DP / B."""
    decay = math.exp(-2.0 * clip * clip / math.sqrt(dimension) * time)
    floor = rate * dimension**1.5 * clip / (4.0 * clip) * clip**2 * (1.0 / dimension + spread**2)
    return start * decay + (1.0 - decay) * floor


def equation_47(start: float, time: float, rate: float, clip: float, spread: float, dimension: int) -> float:
    """Eq. 47, likewise."""
    decay = math.exp(-2.0 * clip * clip / math.sqrt(dimension) * time)
    floor = rate * dimension**1.5 * clip / (4.0 * clip) * (1.0 / dimension + spread**2)
    return start * decay + (1.0 - decay) * floor


def corrected_47(start: float, time: float, rate: float, clip: float, spread: float, dimension: int) -> float:
    """Exponent C / (sigma_gamma sqrt d), floor eta d^(3/2) L C sigma_gamma / (4 mu K) (1/d + ...)."""
    decay = math.exp(-2.0 * clip / math.sqrt(dimension) * time)
    floor = rate * dimension**1.5 * clip / 4.0 * (1.0 / dimension + spread**2)
    return start * decay + (1.0 - decay) * floor


def equation_6(start: float, time: float, rate: float, clip: float, spread: float, dimension: int) -> float:
    """The statement, eq. 6 and 40, with the suppressed constants at 1."""
    decay = math.exp(-clip / math.sqrt(dimension) * time)
    return start * decay + (1.0 - decay) * rate * dimension**1.5 * clip * (1.0 / dimension + spread**2)


def clipped_losses(dimension: int, rate: float, clip: float, spread: float, steps: int) -> np.ndarray:
    """Mean losses on |x|^2 / 2 from 0.1: the second moment by the exact mean direction at each length."""
    lengths = np.linspace(1e-3, 3.0, 40)
    alignment = [length * oracle.confluent_mean(length, 1.0, dimension) for length in lengths]
    square, losses = 0.2, []
    for _ in range(steps):
        losses.append(0.5 * square)
        along = float(np.interp(math.sqrt(square), lengths, alignment))
        square += -2.0 * rate * clip * along + (rate * clip) ** 2 * (1.0 + dimension * spread**2)
    return np.array(losses)


@statement("sde.thm4.1/B6.1", paper=PAPER, expected="CONFIRMED, MISPRINT IN THE PROOF")
def theorem_b6_clipped(
    *,
    claim: Callable[..., float] = equation_6,
    lines: tuple[Callable[..., float], ...] = (equation_45, equation_47),
    right: Callable[..., float] = corrected_47,
) -> Verdict:
    """Loss while all gradients are clipped, on f = |x|^2 / 2, where the constants make an equality."""
    dimension, rate, spread = 1000, 0.02, 0.05
    losses: dict[tuple[float, int], float] = {}
    for clip in (2.0, 0.5):
        found = clipped_losses(dimension, rate, clip, spread, 4001)
        losses |= {(clip, step): float(found[step]) for step in (300, 1500, 4000)}

    def values(form: Callable[..., float]) -> list[float]:
        return [
            form(0.1, rate * step, rate, clip, spread, dimension) / loss - 1.0
            for (clip, step), loss in losses.items()
        ]

    holds = -min(values(claim))
    printed = min(max(map(abs, values(line))) for line in lines)
    corrected = max(map(abs, values(right)))
    return Verdict(
        judged_proof(holds, printed, corrected, 0.006),
        "The check computes the mean losses of the iterates, and takes the better of the two "
        "misprinted lines. Deviations are relative.",
        len(losses),
        printed,
        f"At C = 2, d = 1000 and eta = 0.02, the loss after 4000 steps is {losses[2.0, 4000]:.3f}. Eq. "
        f"45 gives {equation_45(0.1, 80.0, rate, 2.0, spread, dimension):.3f}, eq. 47 "
        f"{equation_47(0.1, 80.0, rate, 2.0, spread, dimension):.3f}, and the corrected line "
        f"{corrected_47(0.1, 80.0, rate, 2.0, spread, dimension):.3f}.",
    )


def unclipped_bound(
    start: float, time: float, rate: float, dimension: int, smooth: float, mu: float, variance: float
) -> float:
    """Eq. 50."""
    decay = math.exp(-2.0 * mu * time)
    return start * decay + (1.0 - decay) * rate * dimension * smooth * variance / (4.0 * mu)


@statement("sde.thm4.1/B6.2", paper=PAPER)
def theorem_b6_unclipped(*, claim: Callable[..., float] = unclipped_bound) -> Verdict:
    """Loss while nothing is clipped, against the exact loss of the equation on quadratics."""
    rng = np.random.default_rng(62)
    worst, cases = -math.inf, 0
    for case in range(60):
        dimension = int(rng.integers(1, 12))
        h = np.exp(rng.normal(size=dimension)) if case % 3 else np.full(dimension, 1.3)
        x = rng.normal(size=dimension)
        rate, variance, time = 0.05, float(np.exp(rng.normal())), float(rng.exponential(2.0))
        loss = sum(
            0.5 * h_i * oracle.linear_flow(2.0 * h_i, rate * variance, x_i**2, time)
            for h_i, x_i in zip(h, x, strict=True)
        )
        bound = claim(0.5 * float(h @ x**2), time, rate, dimension, float(h.max()), float(h.min()), variance)
        worst = max(worst, loss / bound - 1.0)
        cases += 1
    return Verdict(
        judged(worst, 1e-8),
        "The check computes the exact loss. The deviation is the loss divided by the bound, minus 1.",
        cases,
        worst,
    )


def expanded_last_line(k1: float, k2: float, f0: float, eps: float, rest: dict[str, float]) -> float:
    """The last line of the proof of Theorem B.7, as printed."""
    eta, d, smooth, steps, clip, q, log, batch = rest.values()
    first = (2 * eps**2 * f0 + eta**2 * d * smooth * steps * k2) / (2 * eta * steps)
    return k1 * (first + eta * d * smooth * steps * clip**2 * q**2 * log / batch**2) / eps**2


def corrected_last_line(k1: float, k2: float, f0: float, eps: float, rest: dict[str, float]) -> float:
    """With the missing eps^2 and the missing 1/2."""
    eta, d, smooth, steps, clip, q, log, batch = rest.values()
    first = (2 * eps**2 * f0 + eta**2 * d * smooth * steps * k2 * eps**2) / (2 * eta * steps)
    return k1 * (first + eta * d * smooth * steps * clip**2 * q**2 * log / (2 * batch**2)) / eps**2


def equation_59(k1: float, k2: float, f0: float, eps: float, rest: dict[str, float]) -> float:
    """The line before it."""
    eta, d, smooth, steps, clip, q, log, batch = rest.values()
    privacy = (clip * q / batch) ** 2 * steps * log / eps**2
    return k1 * (f0 / (eta * steps) + 0.5 * eta * d * smooth * (k2 + privacy))


def gradient_bound(f0: float, time: float, rate: float, dimension: int, smooth: float, v: float) -> float:
    """Eq. 59 where nothing is clipped, K1 = 1 and K2 + C^2 sigma_DP^2 / B^2 = V."""
    return f0 / time + 0.5 * rate * dimension * smooth * v


@statement("sde.thm4.2/B7", paper=PAPER, expected="CONFIRMED, MISPRINT IN THE PROOF")
def theorem_b7(
    *,
    claim: Callable[..., float] = gradient_bound,
    line: Callable[..., float] = expanded_last_line,
    right: Callable[..., float] = corrected_last_line,
) -> Verdict:
    """The gradient bound: eq. 59 holds on quadratics, its expansion is misprinted."""
    rng = np.random.default_rng(70)
    printed = corrected = 0.0
    names = ("eta", "d", "smooth", "steps", "clip", "q", "log", "batch")
    ones = dict.fromkeys(names, 1.0)
    for _ in range(40):
        rest = dict(zip(names, np.exp(rng.normal(size=8)).tolist(), strict=True))
        k1, k2, f0, eps = np.exp(rng.normal(size=4)).tolist()
        truth = equation_59(k1, k2, f0, eps, rest)
        printed = max(printed, abs(line(k1, k2, f0, eps, rest) / truth - 1.0))
        corrected = max(corrected, abs(right(k1, k2, f0, eps, rest) / truth - 1.0))
    holds = -math.inf
    for case in range(40):
        dimension, rate = int(rng.integers(1, 8)), 0.02
        h, x = np.exp(rng.normal(size=dimension)), rng.normal(size=dimension)
        variance, time = float(np.exp(rng.normal())), float(rng.exponential(3.0)) + 0.1
        if case == 0:
            h, x, time = np.full(dimension, 1.3), np.zeros(dimension), 1e6  # here it is met
        # The mean over [0, time] of h^2 E x^2, E x^2 = a + (x^2 - a) e^(-2 h t).
        settled = rate * variance / (2.0 * h)
        mean = settled + (x**2 - settled) * (1.0 - np.exp(-2.0 * h * time)) / (2.0 * h * time)
        bound = claim(0.5 * float(h @ x**2), time, rate, dimension, float(h.max()), variance)
        holds = max(holds, float(h**2 @ mean) / bound - 1.0)
    return Verdict(
        judged_proof(holds, printed, corrected, 1e-9),
        "The check compares the expansion with eq. 59, and eq. 59 with exact quadratics. Deviations "
        "are relative.",
        80,
        printed,
        f"With every constant equal to 1 and eps = 2, the last line gives {line(1, 1, 1, 2, ones):g} "
        f"and eq. 59 gives {equation_59(1, 1, 1, 2, ones):g}.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "sde.thmB5.1": lambda: theorem_b5_clipped(claim=corrected_rank_one),
    "sde.thmB5.2": lambda: theorem_b5_unclipped(
        claim=lambda scale, batch, clip, sigma: unclipped_variance(scale, batch, clip, sigma) * 1.05
    ),
    "sde.thm4.1/B6.1": lambda: theorem_b6_clipped(lines=(corrected_47,)),
    "sde.thm4.1/B6.2": lambda: theorem_b6_unclipped(
        claim=lambda f, t, rate, *rest: unclipped_bound(f, t, 0.99 * rate, *rest)
    ),
    "sde.thm4.2/B7": lambda: theorem_b7(line=corrected_last_line),
}
NUDGES = {
    "sde.thmB5.1": {
        "coefficient": nudge(theorem_b5_clipped, "right", 0),
        "trace": nudge(theorem_b5_clipped, "right", 1),
    },
    "sde.thmB5.2": {"variance": nudge(theorem_b5_unclipped)},
    "sde.thm4.1/B6.1": {
        "statement": nudge(theorem_b6_clipped),
        "line put right": nudge(theorem_b6_clipped, "right"),
    },
    "sde.thm4.1/B6.2": {"bound": nudge(theorem_b6_unclipped)},
    "sde.thm4.2/B7": {"bound": nudge(theorem_b7), "line put right": nudge(theorem_b7, "right")},
}
