"""The spectral denoising paper: why a better aligned gradient helps (Theorem E.1, Appendix I)."""

from collections.abc import Callable

import numpy as np

from verification.harness.verdict import Verdict, judged, judged_erratum, statement
from verification.oracles import matrices as ref

PAPER = "spectral"

Blocks = list[np.ndarray]


def safe_cosine(x: np.ndarray, y: np.ndarray) -> float:
    """The cosine, 0 where a vector is zero."""
    return ref.cosine(x, y) if np.any(x) and np.any(y) else 0.0


def whole_cosine(x: Blocks, y: Blocks) -> float:
    """The cosine of the concatenations."""
    return ref.cosine(np.concatenate(x), np.concatenate(y))


def at_equal_norm(better: np.ndarray, worse: np.ndarray) -> np.ndarray:
    """Hypothesis (ii): the better aligned block at the norm of the worse one."""
    return better * (np.linalg.norm(worse) / np.linalg.norm(better))


@statement("rmt.thmE1", paper=PAPER)
def theorem_e1(*, matched: Callable[[np.ndarray, np.ndarray], np.ndarray] = at_equal_norm) -> Verdict:
    """Blocks of equal norm whose cosines do not fall make a whole whose cosine does not fall.

    Negative cosines included; zero blocks count 0. Without equal norms it is false: both block cosines of
    (1, 0 | 1, 0) rise from (1, .1 | 1, 1) to (10, .9 | 1, .95), the total falls from .815 to .767.
    dpmech relies on it in `dpmech.analysis.spectral.denoising`.
    """
    rng = np.random.default_rng(51)
    worst, cases = 0.0, 0
    for _ in range(4_000):
        target, before, after = [], [], []
        for size in rng.integers(1, 6, size=rng.integers(1, 6)):
            goal = rng.standard_normal(size) * (rng.uniform() > 0.1)
            pair = sorted(rng.standard_normal((2, size)), key=lambda block: safe_cosine(block, goal))
            target.append(goal)
            before.append(pair[0])
            after.append(matched(pair[1] * 10.0 ** rng.uniform(-1, 1), pair[0]))
        if any(np.any(goal) for goal in target):
            worst = max(worst, whole_cosine(before, target) - whole_cosine(after, target))
            cases += 1
    return Verdict(judged(worst, 1e-12), "random blocks, fall of the cosine", cases, worst)


def first_order(gradient: np.ndarray, one: np.ndarray, other: np.ndarray) -> float:
    """-g^T (D_1 - D_2), per unit of the step size."""
    return -float(gradient @ (one - other))


def random_quadratic(size: int, rng: np.random.Generator) -> np.ndarray:
    """A positive definite Hessian."""
    root = rng.standard_normal((size, size))
    return root @ root.T + 0.1 * np.eye(size)


@statement("rmt.sec3_1_descent", paper=PAPER)
def one_step(*, claim: Callable[[np.ndarray, np.ndarray, np.ndarray], float] = first_order) -> Verdict:
    """Of two steps of one length the better aligned one loses more, to first order in the step size."""
    rng = np.random.default_rng(31)
    worst, cases = 0.0, 0
    for _ in range(300):
        size = int(rng.integers(2, 7))
        hessian, point = random_quadratic(size, rng), rng.standard_normal(size)
        gradient = hessian @ point
        one, other = (step / np.linalg.norm(step) for step in rng.standard_normal((2, size)))
        if ref.cosine(one, gradient) < ref.cosine(other, gradient):
            one, other = other, one
        # The remainder is a^2 (D_1^T H D_1 - D_2^T H D_2) / 2 exactly, so it halves when a does.
        for step_size in (1e-3, 1e-4):
            losses = [0.5 * (point - step_size * d) @ hessian @ (point - step_size * d) for d in (one, other)]
            remainder = 0.5 * step_size * float(one @ hessian @ one - other @ hessian @ other)
            gap = (losses[0] - losses[1]) / step_size - claim(gradient, one, other) - remainder
            worst = max(worst, abs(gap) / np.linalg.norm(gradient) / np.linalg.norm(hessian))
        worst = max(worst, claim(gradient, one, other))
        cases += 1
    return Verdict(judged(worst, 1e-9), "random quadratics, relative to first order", cases, worst)


def progress(
    gradient: np.ndarray, step: np.ndarray, hessian: np.ndarray, scale: np.ndarray, rate: float
) -> float:
    """The progress a g^T P s - a^2 / 2 s^T P H P s."""
    moved = scale * step
    return rate * float(gradient @ moved) - 0.5 * rate**2 * float(moved @ hessian @ moved)


@statement("rmt.propI1_identity", paper=PAPER)
def proposition_i1_identity(*, claim: Callable[..., float] = progress) -> Verdict:
    """Progress of a preconditioned step on a quadratic, exactly, against the two function values."""
    rng = np.random.default_rng(91)
    worst, cases = 0.0, 0
    for _ in range(1_000):
        size = int(rng.integers(1, 7))
        hessian, point = random_quadratic(size, rng), rng.standard_normal(size)
        scale, step, rate = rng.uniform(0.1, 10.0, size), rng.standard_normal(size), rng.uniform(0.01, 1.0)
        after = point - rate * scale * step
        start, end = 0.5 * point @ hessian @ point, 0.5 * after @ hessian @ after
        gap = abs(start - end - claim(hessian @ point, step, hessian, scale, rate))
        worst = max(worst, gap / (abs(start) + abs(end)))
        cases += 1
    return Verdict(judged(worst, 1e-12), "function values, relative", cases, worst)


def printed_bound(cosine: float, sizes: float, low: float, high: float) -> float:
    """p_min |g| |s| cos, the linear term of the printed bound."""
    del high
    return low * sizes * cosine


def corrected_bound(cosine: float, sizes: float, low: float, high: float) -> float:
    """|g| |s| [(p_min + p_max) / 2 cos - (p_max - p_min) / 2]."""
    return sizes * (0.5 * (low + high) * cosine - 0.5 * (high - low))


def excess_over_progress(bound: Callable[..., float], *, cases: int) -> float:
    """Largest relative excess of a bound over g^T P s, the witness first."""
    rng = np.random.default_rng(92)
    problems = [(np.array([3.0, -1.0]), np.array([1.0, 2.0]), np.array([1.0, 10.0]))]
    for _ in range(cases - 1):
        size = int(rng.integers(1, 7))
        problems.append((*rng.standard_normal((2, size)), rng.uniform(0.1, 10.0, size)))
    worst = 0.0
    for gradient, step, scale in problems:
        sizes = float(np.linalg.norm(gradient) * np.linalg.norm(step))
        value = bound(ref.cosine(gradient, step), sizes, scale.min(), scale.max())
        worst = max(worst, (value - float(gradient @ (scale * step))) / (sizes * scale.max()))
    return worst


@statement("rmt.propI1_bound", paper=PAPER, expected="COUNTEREXAMPLE")
def proposition_i1_bound(*, claim: Callable[..., float] = printed_bound) -> Verdict:
    """Progress is claimed to be at least a p_min |g| |s| cos minus a curvature term.

    The step g^T P s >= p_min g^T s fails where some g_i s_i < 0. The second-order term is right, so the
    linear one is judged. The corrected form replaces p_min cos; it is met where |g_i| is proportional to
    |s_i|. dpmech has it in `dpmech.analysis.spectral.alignment`.
    """
    printed, corrected = (excess_over_progress(form, cases=5_000) for form in (claim, corrected_bound))
    gradient, step, scale = np.array([3.0, -1.0]), np.array([1.0, 2.0]), np.array([1.0, 10.0])
    delta = progress(gradient, step, np.eye(2), scale, 1e-3)
    bound = 1e-3 * claim(ref.cosine(gradient, step), float(np.sqrt(50.0)), 1.0, 10.0) - 0.5e-6 * 100.0 * 5.0
    return Verdict(
        judged_erratum(printed, corrected, 1e-12, word="COUNTEREXAMPLE"),
        "random g, s, P, excess over |g| |s| p_max",
        5_000,
        printed,
        f"g = (3, -1), s = (1, 2), P = diag(1, 10), H = I, a = 1e-3: gain {delta:.5f}, bound {bound:+.5f}",
    )


def printed_gap(sizes: float, low: float, high: float) -> float:
    """p_min |g| r, times the difference of the cosines."""
    del high
    return low * sizes


def corrected_gap(sizes: float, low: float, high: float) -> float:
    """(p_min + p_max) / 2 |g| r."""
    return 0.5 * (low + high) * sizes


@statement("rmt.corI2", paper=PAPER, expected="COUNTEREXAMPLE")
def corollary_i2(*, claim: Callable[[float, float, float], float] = printed_gap) -> Verdict:
    """Two lower bounds of the progress of one length are claimed to differ by a p_min |g| r (cos_1 - cos_2).

    What differs so is no lower bound (Prop. I.1). Judged against the difference of valid bounds, whose slope
    is (p_min + p_max) / 2. Nor does the larger cosine make the larger progress.
    """
    rng = np.random.default_rng(93)
    printed, corrected, cases = 0.0, 0.0, 0
    for _ in range(1_000):
        low, sizes = rng.uniform(0.1, 1.0), rng.uniform(0.1, 10.0)
        high = low * rng.uniform(1.0, 10.0)
        one, other = rng.uniform(-1.0, 1.0, size=2)
        gap = corrected_bound(one, sizes, low, high) - corrected_bound(other, sizes, low, high)
        for form, kind in ((claim, "printed"), (corrected_gap, "corrected")):
            off = abs(gap - form(sizes, low, high) * (one - other)) / (sizes * high)
            printed, corrected = (
                (max(printed, off), corrected) if kind == "printed" else (printed, max(corrected, off))
            )
        cases += 1
    gradient, scale = np.ones(2), np.array([10.0, 0.1])
    steps = [np.array([np.cos(angle), np.sin(angle)]) for angle in (1.2, 0.2)]
    cosines = [ref.cosine(gradient, step) for step in steps]
    gains = [float(gradient @ (scale * step)) for step in steps]
    return Verdict(
        judged_erratum(printed, corrected, 1e-12, word="COUNTEREXAMPLE"),
        "difference of valid bounds, over |g| r p_max",
        cases,
        printed,
        f"g = (1, 1), P = diag(10, .1): cosines {cosines[0]:.3f} > {cosines[1]:.3f}, "
        f"progress {gains[0]:.2f} < {gains[1]:.2f}",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "rmt.thmE1": lambda: theorem_e1(matched=lambda better, _: better),
    "rmt.sec3_1_descent": lambda: one_step(claim=lambda g, one, other: -float(g @ (one + other))),
    "rmt.propI1_identity": lambda: proposition_i1_identity(
        claim=lambda g, s, h, p, a: a * float(g @ (p * s)) - a**2 * float((p * s) @ h @ (p * s))
    ),
    "rmt.propI1_bound": lambda: proposition_i1_bound(claim=corrected_bound),
    "rmt.corI2": lambda: corollary_i2(claim=corrected_gap),
}
