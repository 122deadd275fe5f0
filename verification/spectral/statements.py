"""The spectral denoising paper (arXiv 2510.01137): the release, and what noise does to a spectrum."""

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_condition, judged_erratum, statement
from verification.oracles import matrices as ref

PAPER = "spectral"
SHAPES = ((100, 400), (400, 100), (300, 900))


def threshold(sigma: float, rows: int, columns: int) -> float:
    """The detection threshold sigma (m n)^(1/4)."""
    return sigma * (rows * columns) ** 0.25


def edge(sigma: float, rows: int, columns: int) -> float:
    """The noise edge sigma (sqrt m + sqrt n)."""
    return sigma * (math.sqrt(rows) + math.sqrt(columns))


def random_problems(count: int, seed: int) -> list[tuple[float, float, int, int]]:
    """(value above 0, sigma, m, n) over many orders of magnitude."""
    rng = np.random.default_rng(seed)
    shapes = rng.integers(1, 2000, size=(count, 2))
    sigmas = 10.0 ** rng.uniform(-4, 3, count)
    sizes = 10.0 ** rng.uniform(-2, 2, count)
    return [
        (float(size) * threshold(float(s), int(m), int(n)), float(s), int(m), int(n))
        for size, s, (m, n) in zip(sizes, sigmas, shapes, strict=True)
    ]


def gaussian_delta(sigma: float, eps: float) -> float:
    """Phi(1 / (2 s) - eps s) - e^eps Phi(-1 / (2 s) - eps s)."""
    half = 1.0 / (2.0 * sigma)
    return float(stats.norm.cdf(half - eps * sigma) - math.exp(eps) * stats.norm.cdf(-half - eps * sigma))


@statement("rmt.def2_2", paper=PAPER)
def definition_2_2(*, claim: Callable[[float, float], float] = gaussian_delta) -> Verdict:
    """(eps, delta)-DP bounds P(E) - e^eps P'(E) by delta for every event E, both ways.

    On a finite space all events are tried; the largest excess is the sum of positive parts. On the line the
    best event of the Gaussian mechanism is a half line, integrated numerically.
    """
    rng = np.random.default_rng(22)
    worst, cases = 0.0, 0
    for _ in range(20):
        p, q = rng.dirichlet(np.ones(8), size=2)
        eps = rng.uniform(0.0, 1.5)
        events = (np.arange(256)[:, None] >> np.arange(8)) & 1
        best = (events @ (p - math.exp(eps) * q)).max()
        worst = max(worst, abs(best - np.maximum(p - math.exp(eps) * q, 0.0).sum()))
        cases += 256
    grid = np.linspace(-60.0, 60.0, 1_200_001)
    for sigma in (0.7, 1.0, 3.0):
        for eps in (0.1, 1.0, 4.0):
            density = stats.norm.pdf(grid, 1.0, sigma) - math.exp(eps) * stats.norm.pdf(grid, 0.0, sigma)
            worst = max(worst, abs(np.trapezoid(np.maximum(density, 0.0), grid) - claim(sigma, eps)))
            cases += 1
    return Verdict(
        judged(worst, 1e-8),
        "The check enumerates all 256 events, and uses quadrature. Deviations are absolute.",
        cases,
        worst,
    )


def clipped(gradient: np.ndarray, clip_norm: float) -> np.ndarray:
    """The clipped gradient g / max(1, ||g|| / C)."""
    return gradient / max(1.0, float(np.linalg.norm(gradient)) / clip_norm)


@statement("rmt.eq2", paper=PAPER, expected="CONDITIONAL")
def equation_2(*, clip: Callable[[np.ndarray, float], np.ndarray] = clipped) -> Verdict:
    """The release of DP-SGD: clip, sum, add noise, divide by B.

    Condition: B is public. Divided by the realised size of a Poisson batch, an example whose gradient is zero
    changes the scale of the noise, which the accountant of the Gaussian sum (shift 0 here) does not see.
    """
    rng = np.random.default_rng(2)
    inside, cases = 0.0, 0
    for _ in range(500):
        bound = 10.0 ** rng.uniform(-2, 2)
        gradient = 10.0 ** rng.uniform(-3, 3) * rng.standard_normal(rng.integers(1, 9))
        result = clip(gradient, bound)
        inside = max(inside, np.linalg.norm(result) / bound - 1.0)
        inside = max(inside, 1.0 - ref.cosine(result, gradient))
        inside = max(inside, np.linalg.norm(clip(result, bound) - result) / bound)
        if np.linalg.norm(gradient) <= bound:
            inside = max(inside, np.linalg.norm(result - gradient))
        cases += 1
    # Batches of one and of two, equal clipped sums, 10 coordinates: scales 1 and 1/2, eps = 1.
    eps, ratio, size = 1.0, 0.5, 10
    radius = 2.0 * (size * math.log(1.0 / ratio) - eps) / (1.0 / ratio**2 - 1.0)
    outside = stats.chi2.cdf(radius / ratio**2, size) - math.exp(eps) * stats.chi2.cdf(radius, size)
    return Verdict(
        judged_condition(inside, float(outside), 1e-12),
        "The check uses random gradients, and computes the exact divergence of two normal distributions. "
        "Deviations for the gradients are relative.",
        cases,
        inside,
        "The denominator B must be public: batches of 1 and 2 with equal sums differ by delta = "
        f"{outside:.3f} at eps = 1.",
    )


def entry_noise(sigma: float, clip_norm: float, denominator: int) -> float:
    """sigma_DP C / B."""
    return sigma * clip_norm / denominator


@statement("rmt.sigma_rel", paper=PAPER)
def noise_of_one_entry(*, claim: Callable[[float, float, int], float] = entry_noise) -> Verdict:
    """One entry of the released mean has standard deviation sigma_DP C / |batch|.

    The release of Algorithm 1 from examples, step by step: Poisson batch, clipped gradients, their sum,
    noise, division by the size of the batch. The noise runs through all Gauss-Hermite nodes.
    """
    rng = np.random.default_rng(26)
    points, weights = np.polynomial.hermite_e.hermegauss(8)
    weights = weights / weights.sum()
    worst, cases = 0.0, 0
    for sigma in (0.5, 1.0, 7.0):
        for clip_norm in (0.1, 10.0):
            for rate in (0.05, 0.5):
                gradients = 3.0 * clip_norm * rng.standard_normal((60, 4))
                batch = gradients[rng.random(60) < rate]
                total = np.sum([clipped(gradient, clip_norm) for gradient in batch], axis=0)
                entries = np.array([(total[0] + sigma * clip_norm * point) / len(batch) for point in points])
                mean = float(weights @ entries)
                spread = math.sqrt(float(weights @ (entries - mean) ** 2))
                worst = max(worst, abs(claim(sigma, clip_norm, len(batch)) / spread - 1.0))
                cases += 1
    return Verdict(
        judged(worst, 1e-9),
        "The check computes the release from examples, and integrates over the noise with "
        "Gauss-Hermite nodes. Deviations are relative.",
        cases,
        worst,
        "The statement holds conditional on the batch. Whether its size may be the divisor is a "
        "separate question (rmt.eq2).",
    )


@statement("rmt.eq3_F", paper=PAPER)
def equation_3(*, claim: Callable[[float, float, int, int], float] = ref.inflation) -> Verdict:
    """F of eq. 3: its five identities, and the singular values of noisy low-rank matrices.

    dpmech relies on it in `dpmech.analysis.spectral`. Margins are in units of each part's
    tolerance.
    """
    worst, cases = 0.0, 0
    for value, sigma, m, n in random_problems(5_000, 3):
        result = claim(value, sigma, m, n)
        worst = max(worst, (value - result) / value / 1e-12)
        worst = max(worst, abs(claim(value, sigma, n, m) / result - 1.0) / 1e-12)
        worst = max(worst, abs(claim(3.0 * value, 3.0 * sigma, m, n) / (3.0 * result) - 1.0) / 1e-12)
        bend = threshold(sigma, m, n)
        worst = max(worst, abs(claim(bend, sigma, m, n) / edge(sigma, m, n) - 1.0) / 1e-12)
        # Lowest at the threshold: below, it falls; above, it rises.
        for far in (0.9, 0.99, 1.01, 1.1):
            least = claim(bend, sigma, m, n) - claim(far * bend, sigma, m, n)
            worst = max(worst, least / edge(sigma, m, n) / 1e-12)
        cases += 1
    for rows, columns in SHAPES:
        for multiple, tolerance in ((2.0, 0.005), (3.0, 0.005), (0.5, 0.05)):
            value = multiple * threshold(1.0, rows, columns)
            count = 200 if rows * columns < 50_000 else 30
            draws = ref.noisy_draws(np.array([value]), rows, columns, 1.0, draws=count, seed=rows)
            mean = float(np.mean([ref.top_value(noisy) for *_, noisy in draws]))
            limit = claim(value, 1.0, rows, columns) if multiple > 1.0 else edge(1.0, rows, columns)
            worst = max(worst, abs(mean / limit - 1.0) / tolerance)
            cases += count
    return Verdict(
        judged(worst, 1.0),
        "The check tests identities to 1e-12, and means of the largest singular value to 0.5 % above the "
        "threshold and to 5 % below it. Deviations are in units of these tolerances.",
        cases,
        worst,
    )


@statement("rmt.eq3_at_least", paper=PAPER, expected="WORDING")
def inflated_to_at_least(
    *,
    floor: Callable[[float, float, int, int], float] = ref.inflation,
    right: Callable[[float, float, int, int], float] = ref.inflation,
) -> Verdict:
    """The text below eq. 3 says that signal values are inflated to at least F; right: to about F."""
    rows, columns = 100, 400
    value = 2.0 * threshold(1.0, rows, columns)
    draws = list(ref.noisy_draws(np.array([value]), rows, columns, 1.0, draws=100, seed=31))
    tops = np.array([ref.top_value(noisy) for *_, noisy in draws])
    shortfall = float(np.max(floor(value, 1.0, rows, columns) / tops - 1.0))
    corrected = abs(float(tops.mean()) / right(value, 1.0, rows, columns) - 1.0)
    below = float(np.mean(tops < ref.inflation(value, 1.0, rows, columns)))
    return Verdict(
        judged_erratum(shortfall, corrected, 0.006, word="WORDING"),
        "The check draws random 100 x 400 matrices with a signal at twice the threshold. Deviations are "
        "relative.",
        len(tops),
        shortfall,
        f"{below:.0%} of the draws are below F, the lowest by {shortfall:.1%}; F is their limit.",
    )


def larger_root(observed: float, sigma: float, rows: int, columns: int) -> float:
    """sqrt((a + sqrt(a^2 - 4 m n s^4)) / 2), a = y^2 - s^2 (m + n)."""
    moved = observed**2 - sigma**2 * (rows + columns)
    inside = max(moved**2 - 4.0 * rows * columns * sigma**4, 0.0)
    return math.sqrt((moved + math.sqrt(inside)) / 2.0)


@statement("rmt.Finv", paper=PAPER, expected="BEYOND THE PAPER")
def inverse(*, claim: Callable[[float, float, int, int], float] = larger_root) -> Verdict:
    """F^-1 in closed form is the larger root; at the threshold it loses half the digits."""
    worst, cases = 0.0, 0
    for value, sigma, m, n in random_problems(3_000, 4):
        inside = max(value, (1.0 + 1e-3) * threshold(sigma, m, n))
        observed = ref.inflation(inside, sigma, m, n)
        worst = max(worst, abs(claim(observed, sigma, m, n) / inside - 1.0))
        worst = max(
            worst, abs(claim(observed, sigma, m, n) / ref.inverse_inflation(observed, sigma, m, n) - 1.0)
        )
        worst = max(worst, abs(claim(inside, 0.0, m, n) / inside - 1.0))
        cases += 1
    return Verdict(
        judged(worst, 1e-8, word="BEYOND THE PAPER"),
        "The check computes a round trip, and compares the result with a bracketed root. Deviations "
        "are relative.",
        cases,
        worst,
    )


def left_overlap(value: float, sigma: float, rows: int, columns: int) -> float:
    """Eq. 4 and 6: of left singular vectors."""
    if value <= threshold(sigma, rows, columns):
        return 0.0
    return (value**4 - rows * columns * sigma**4) / (value**4 + rows * value**2 * sigma**2)


def right_overlap(value: float, sigma: float, rows: int, columns: int) -> float:
    """Eq. 5 and 6: of right singular vectors."""
    if value <= threshold(sigma, rows, columns):
        return 0.0
    return (value**4 - rows * columns * sigma**4) / (value**4 + columns * value**2 * sigma**2)


def overlap_margin(
    claim: Callable[..., float], *, side: str, multiples: tuple[float, ...], scale: int = 1, draws: int = 30
) -> tuple[float, int]:
    """Worst deviation of squared overlaps from the claim, and the cases; i = j and i != j."""
    worst, cases = 0.0, 0
    for rows, columns in ((100 * scale, 400 * scale), (400 * scale, 100 * scale)):
        bend = threshold(1.0, rows, columns)
        values = np.array(multiples) * bend
        totals = np.zeros((len(values), len(values)))
        for left, _, right, noisy in ref.noisy_draws(values, rows, columns, 1.0, draws=draws, seed=45):
            signal = left if side == "left" else right
            totals += (signal.T @ ref.top_vectors(noisy, len(values), side)) ** 2
            cases += 1
        limits = np.diag([claim(float(value), 1.0, rows, columns) for value in values])
        worst = max(worst, float(np.max(np.abs(totals / draws - limits))))
    return worst, cases


@statement("rmt.eq4", paper=PAPER)
def equation_4(*, claim: Callable[[float, float, int, int], float] = left_overlap) -> Verdict:
    """Squared cosine of left singular vectors above the threshold; cross terms vanish."""
    worst, cases = overlap_margin(claim, side="left", multiples=(4.0, 3.0, 2.0), scale=4, draws=8)
    return Verdict(
        judged(worst, 0.006),
        "The check draws random 400 x 1600 matrices. Deviations are absolute.",
        cases,
        worst,
    )


@statement("rmt.eq5", paper=PAPER)
def equation_5(*, claim: Callable[[float, float, int, int], float] = right_overlap) -> Verdict:
    """Squared cosine of right singular vectors above the threshold; eq. 4 of the transpose."""
    worst, cases = overlap_margin(claim, side="right", multiples=(4.0, 3.0, 2.0), scale=4, draws=8)
    for value, sigma, m, n in random_problems(1_000, 5):
        worst = max(worst, abs(claim(value, sigma, m, n) - left_overlap(value, sigma, n, m)))
        cases += 1
    return Verdict(
        judged(worst, 0.006),
        "The check draws random 400 x 1600 matrices, and compares the formula with eq. 4 for the "
        "transposed matrix. Deviations are absolute.",
        cases,
        worst,
    )


@statement("rmt.eq6", paper=PAPER)
def equation_6(
    *, left: Callable[..., float] = left_overlap, right: Callable[..., float] = right_overlap
) -> Verdict:
    """Below the threshold both overlaps vanish; at finite size a few per cent are left, and they shrink."""
    worst, cases, sizes = 0.0, 0, []
    for side, claim in (("left", left), ("right", right)):
        for scale, draws in ((1, 30), (4, 8)):
            margin, tried = overlap_margin(claim, side=side, multiples=(0.5,), scale=scale, draws=draws)
            worst, cases = max(worst, margin * scale), cases + tried
            sizes.append(margin)
        worst = max(worst, abs(claim(threshold(1.0, 30, 70), 1.0, 30, 70)))
    return Verdict(
        judged(worst, 0.045),
        "The check draws random matrices with a signal at half the threshold. Deviations are absolute; "
        "those at 400 x 1600 are multiplied by 4.",
        cases,
        worst,
        f"The left squared cosine is {sizes[0]:.3f} at 100 x 400 and {sizes[1]:.3f} at 400 x 1600.",
    )


def unit_scale(value: float, ratio: float) -> float:
    """Eq. 7: noise of variance 1 / n, shape ratio m / n."""
    if value <= ratio**0.25:
        return 1.0 + math.sqrt(ratio)
    return math.sqrt((value + 1.0 / value) * (value + ratio / value))


@statement("rmt.eq7", paper=PAPER)
def equation_7(*, claim: Callable[[float, float], float] = unit_scale) -> Verdict:
    """Eq. 7 is eq. 3 in units of sigma sqrt(n)."""
    worst, cases = 0.0, 0
    for value, sigma, m, n in random_problems(3_000, 7):
        unit = sigma * math.sqrt(n)
        seen = value > threshold(sigma, m, n)
        limit = ref.inflation(value, sigma, m, n) if seen else edge(sigma, m, n)
        worst = max(worst, abs(limit / unit / claim(value / unit, m / n) - 1.0))
        cases += 1
    return Verdict(
        judged(worst, 1e-12), "The check changes the units. Deviations are relative.", cases, worst
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "rmt.def2_2": lambda: definition_2_2(claim=lambda s, eps: gaussian_delta(s, eps * 1.0001)),
    "rmt.eq2": lambda: equation_2(clip=lambda g, c: clipped(g, 1.001 * c)),
    "rmt.sigma_rel": lambda: noise_of_one_entry(claim=lambda s, c, b: s * c / math.sqrt(b)),
    "rmt.eq3_F": lambda: equation_3(claim=lambda x, s, m, n: math.hypot(x, s * math.sqrt(m + n))),
    "rmt.eq3_at_least": lambda: inflated_to_at_least(floor=lambda x, *_: x),
    "rmt.Finv": lambda: inverse(claim=lambda y, s, m, n: math.sqrt(max(y**2 - s**2 * (m + n), 0.0))),
    "rmt.eq4": lambda: equation_4(claim=right_overlap),
    "rmt.eq5": lambda: equation_5(claim=left_overlap),
    "rmt.eq6": lambda: equation_6(left=lambda x, s, m, n: left_overlap(max(x, 2.0 * s), s, m, n) + 0.05),
    "rmt.eq7": lambda: equation_7(claim=lambda x, ratio: unit_scale(x, 1.01 * ratio)),
}
NUDGES = {
    "rmt.def2_2": {"delta": nudge(definition_2_2)},
    "rmt.eq2": {"clipped gradient": nudge(equation_2, "clip")},
    "rmt.sigma_rel": {"sigma": nudge(noise_of_one_entry)},
    "rmt.eq3_F": {"F": nudge(equation_3)},
    "rmt.eq3_at_least": {"F": nudge(inflated_to_at_least, "right")},
    "rmt.Finv": {"inverse": nudge(inverse)},
    "rmt.eq4": {"overlap": nudge(equation_4)},
    "rmt.eq5": {"overlap": nudge(equation_5)},
    "rmt.eq7": {"limit": nudge(equation_7)},
}
