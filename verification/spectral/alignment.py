"""The spectral denoising paper: why a better aligned gradient helps (Theorem E.1, Appendix I)."""

from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
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
    dpmech relies on it in `dpmech.analysis.spectral`.
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
    return Verdict(
        judged(worst, 1e-12),
        "The check uses random blocks. The deviation is the decrease of the cosine.",
        cases,
        worst,
    )


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
    return Verdict(
        judged(worst, 1e-9),
        "The check uses random quadratics. Deviations are relative to the first-order term.",
        cases,
        worst,
    )


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
    return Verdict(
        judged(worst, 1e-12), "The check compares function values. Deviations are relative.", cases, worst
    )


def printed_bound(cosine: float, sizes: float, low: float, high: float) -> float:
    """p_min |g| |s| cos, the linear term of the printed bound."""
    del high
    return low * sizes * cosine


def corrected_bound(cosine: float, sizes: float, low: float, high: float) -> float:
    """|g| |s| [(p_min + p_max) / 2 cos - (p_max - p_min) / 2]."""
    return sizes * (0.5 * (low + high) * cosine - 0.5 * (high - low))


# The witness: gradient, step and preconditioner of a quadratic with H = I, step size 1e-3.
GRADIENT, STEP, SCALE, RATE = np.array([3.0, -1.0]), np.array([1.0, 2.0]), np.array([1.0, 10.0]), 1e-3
HESSIAN = np.eye(2)


def excess_over_progress(bound: Callable[..., float], *, cases: int) -> float:
    """Largest relative excess of a bound over g^T P s; the witness first, then where the right one is met."""
    rng = np.random.default_rng(92)
    problems = [(GRADIENT, STEP, SCALE), (np.array([2.0, 1.0]), np.array([2.0, -1.0]), np.array([1.0, 10.0]))]
    for _ in range(cases - 2):
        size = int(rng.integers(1, 7))
        problems.append((*rng.standard_normal((2, size)), rng.uniform(0.1, 10.0, size)))
    worst = -np.inf
    for gradient, step, scale in problems:
        sizes = float(np.linalg.norm(gradient) * np.linalg.norm(step))
        value = bound(ref.cosine(gradient, step), sizes, scale.min(), scale.max())
        worst = max(worst, (value - float(gradient @ (scale * step))) / (sizes * scale.max()))
    return worst


@statement("rmt.propI1_bound", paper=PAPER, expected="COUNTEREXAMPLE")
def proposition_i1_bound(
    *, claim: Callable[..., float] = printed_bound, right: Callable[..., float] = corrected_bound
) -> Verdict:
    """Progress is claimed to be at least a p_min |g| |s| cos minus a curvature term.

    The step g^T P s >= p_min g^T s fails where some g_i s_i < 0. The second-order term is right, so the
    linear one is judged. The corrected form replaces p_min cos; it is met where |g_i| is proportional to
    |s_i|. dpmech has it in `dpmech.analysis.spectral`.
    """
    printed, corrected = (excess_over_progress(form, cases=5_000) for form in (claim, right))
    delta = progress(GRADIENT, STEP, HESSIAN, SCALE, RATE)
    sizes = float(np.linalg.norm(GRADIENT) * np.linalg.norm(STEP))
    bound = RATE * claim(ref.cosine(GRADIENT, STEP), sizes, SCALE.min(), SCALE.max())
    bound -= 0.5 * RATE**2 * SCALE.max() ** 2 * float(STEP @ STEP)
    return Verdict(
        judged_erratum(max(printed, bound - delta), corrected, 1e-12, word="COUNTEREXAMPLE"),
        "The check uses random g, s and P. The deviation is the excess of p_min |g| |s| cos(g, s) over "
        "g^T P s, in units of |g| |s| p_max.",
        5_000,
        printed,
        "With g = (3, -1), s = (1, 2), P = diag(1, 10), H = I and alpha = 1e-3, the decrease is "
        f"{delta:.5f} and the bound {bound:+.5f}.",
    )


def _witness() -> dict[str, bool]:
    offset = np.linalg.solve(HESSIAN, GRADIENT)
    return {
        "H positive definite": bool(np.all(np.linalg.eigvalsh(HESSIAN) > 0)),
        "g = H (x - x*)": bool(np.allclose(HESSIAN @ offset, GRADIENT)),
        "p_min I <= P <= p_max I with 0 < p_min <= p_max": bool(0.0 < SCALE.min() <= SCALE.max() < np.inf),
        "P = 1 / (sqrt v + eps) at Adam's eps for some v": bool(np.all(1.0 / SCALE >= 1e-8)),
        "alpha > 0": RATE > 0.0,
    }


def stated_gap(sizes: float, low: float, high: float) -> float:
    """p_min |g| r, times the difference of the cosines."""
    del high
    return low * sizes


@statement("rmt.corI2", paper=PAPER)
def corollary_i2(*, claim: Callable[[float, float, float], float] = stated_gap) -> Verdict:
    """The bounds of Prop. I.1, as defined, differ by a p_min |g| r (cos_1 - cos_2) for steps of one length.

    From vectors: both bounds are evaluated with their curvature term. What differs so is no lower bound of
    the progress (rmt.propI1_bound), so a larger cosine need not gain more.
    """
    rng = np.random.default_rng(93)
    worst, cases = 0.0, 0
    for _ in range(1_000):
        size = int(rng.integers(2, 7))
        low = rng.uniform(0.1, 1.0)
        high, rate, length = low * rng.uniform(1.0, 10.0), rng.uniform(0.01, 1.0), rng.uniform(0.1, 10.0)
        hessian = random_quadratic(size, rng)
        top = float(np.linalg.eigvalsh(hessian)[-1])
        gradient = rng.standard_normal(size)
        bounds, cosines = [], []
        for step in rng.standard_normal((2, size)):
            moved = length * step / np.linalg.norm(step)
            cosines.append(ref.cosine(gradient, moved))
            bounds.append(
                rate * low * float(gradient @ moved) - 0.5 * rate**2 * top * high**2 * float(moved @ moved)
            )
        sizes = float(np.linalg.norm(gradient)) * length
        gap = rate * claim(sizes, low, high) * (cosines[0] - cosines[1])
        scale = abs(bounds[0]) + abs(bounds[1]) + rate * low * sizes
        worst = max(worst, abs(bounds[0] - bounds[1] - gap) / scale)
        cases += 1
    gradient, scales = np.ones(2), np.array([10.0, 0.1])
    steps = [np.array([np.cos(angle), np.sin(angle)]) for angle in (1.2, 0.2)]
    larger, smaller = [ref.cosine(gradient, step) for step in steps]
    gains = [float(gradient @ (scales * step)) for step in steps]
    return Verdict(
        judged(worst, 1e-12),
        "The check computes the defined bounds from vectors. Deviations are relative.",
        cases,
        worst,
        "The identity has no consequence, because the bound itself fails. For g = (1, 1) and P = "
        f"diag(10, .1), the cosine {larger:.3f} is larger than {smaller:.3f}, but the decrease "
        f"{gains[0]:.2f} is smaller than {gains[1]:.2f}.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "rmt.thmE1": lambda: theorem_e1(matched=lambda better, _: better),
    "rmt.sec3_1_descent": lambda: one_step(claim=lambda g, one, other: -float(g @ (one + other))),
    "rmt.propI1_identity": lambda: proposition_i1_identity(
        claim=lambda g, s, h, p, a: a * float(g @ (p * s)) - a**2 * float((p * s) @ h @ (p * s))
    ),
    "rmt.propI1_bound": lambda: proposition_i1_bound(claim=corrected_bound),
    "rmt.corI2": lambda: corollary_i2(claim=lambda sizes, low, high: 0.5 * (low + high) * sizes),
}
NUDGES = {
    "rmt.sec3_1_descent": {"loss difference": nudge(one_step)},
    "rmt.propI1_identity": {"progress": nudge(proposition_i1_identity)},
    "rmt.propI1_bound": {"bound": nudge(proposition_i1_bound, "right")},
    "rmt.corI2": {"gap": nudge(corollary_i2)},
}
WITNESSES = {"rmt.propI1_bound": _witness}
