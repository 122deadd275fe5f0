"""The DP-Muon paper: the quality of a finite Newton-Schulz routine."""

import math
from collections.abc import Callable

import numpy as np
from mpmath import mp

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_erratum, statement
from verification.oracles import matrices as ref

PAPER = "muon"


def printed_error(start_value: float, degree: int, steps: int) -> float:
    """eps_q = 1 - sqrt(1 - (1 - x^2)^((k + 1)^q))."""
    return 1.0 - math.sqrt(
        -math.expm1((degree + 1) ** steps * math.log1p(-(min(start_value, 1 - 1e-16) ** 2)))
    )


@statement("muon.lem3_3", paper=PAPER)
def lemma_3_3(*, claim: Callable[[float, int, int], float] = printed_error) -> Verdict:
    """After q steps ||O|| <= 1 and ||O - Polar(M)|| <= eps_q; at q = 0 with equality."""
    rng = np.random.default_rng(33)
    worst, cases = 0.0, 0
    for _ in range(1_500):
        rows, columns = rng.integers(1, 9, size=2)
        rank = int(rng.integers(0, min(rows, columns) + 1))
        matrix = rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))
        matrix *= 10.0 ** rng.uniform(-3, 3)
        degree, steps = int(rng.integers(1, 5)), int(rng.integers(0, 7))
        output = ref.muon_map(degree, steps)(matrix)
        worst = max(worst, ref.operator_norm(output) - 1.0)
        if rank:
            start_value = ref.least_start_value(matrix)
            error = ref.operator_norm(output - ref.polar(matrix))
            worst = max(worst, error - claim(start_value, degree, steps))
            if steps == 0:
                worst = max(worst, abs(error - claim(start_value, degree, 0)))
        cases += 1
    return Verdict(
        judged(worst, 1e-11),
        "The check uses random matrices of every rank. Deviations are absolute.",
        cases,
        worst,
    )


def range_of_momentum(matrix: np.ndarray) -> np.ndarray:
    """Appendix B.3: the projector onto range(M)."""
    return matrix @ np.linalg.pinv(matrix)


def range_of_wide(matrix: np.ndarray) -> np.ndarray:
    """Lemma 3.3: onto range(T(M)), T transposing tall matrices."""
    return range_of_momentum(matrix.T if matrix.shape[0] > matrix.shape[1] else matrix)


@statement("muon.lem3_3_range", paper=PAPER, expected="MISPRINT")
def projector(*, claim: Callable[[np.ndarray], np.ndarray] = range_of_momentum) -> Verdict:
    """Appendix B.3 projects onto range(M_t); for tall blocks Pi - X X^T then has no meaning."""

    def mismatch(projection: Callable[[np.ndarray], np.ndarray]) -> float:
        worst = 0
        for shape in ((1, 2), (2, 2), (2, 1), (3, 2)):
            matrix = np.ones(shape) + np.eye(*shape)
            worst = max(worst, abs(len(projection(matrix)) - min(shape)))
        return float(worst)

    printed = mismatch(claim)
    return Verdict(
        judged_erratum(printed, mismatch(range_of_wide), 0.5, word="MISPRINT"),
        "The check compares the size of the projector with that of X X^T.",
        4,
        printed,
        "For a 2 x 1 block Pi is 2 x 2 and X X^T is 1 x 1. The range must be that of T(M).",
    )


def momentum_of_noise(rows: int, columns: int, seed: int) -> np.ndarray:
    """Pure noise, of any scale above the unit ball."""
    return np.random.default_rng(seed).standard_normal((rows, columns))


def order_of_convergence(degree: int) -> float:
    """Degree + 1."""
    return degree + 1.0


def residual_after(residual: mp.mpf, degree: int) -> mp.mpf:
    """1 - y^2 after a step, from 1 - y^2 before it, in many digits."""
    factor = sum(mp.binomial(2 * s, s) / mp.mpf(4) ** s * residual**s for s in range(degree + 1))
    return 1 - (1 - residual) * factor**2


@statement("muon.lem3_3_practice", paper=PAPER)
def quality_in_practice(*, order: Callable[[int], float] = order_of_convergence) -> Verdict:
    """For a fixed delta < 1 the factor chi_q tends to 1 doubly exponentially in q: of order kappa + 1 a step.

    Measured on the residual 1 - y^2 of one singular value, which never exceeds delta^(order^q). How large q
    must be depends on delta: on square layers under noise chi is still in the thousands at q = 5.
    """
    worst, cases = 0.0, 0
    with mp.workdps(1_200):
        for degree in (1, 2, 3):
            near, nearer = (residual_after(mp.mpf(10) ** -power, degree) for power in (12, 16))
            worst = max(worst, abs(float(mp.log10(near / nearer) / 4) / order(degree) - 1.0))
            for start in ("0.999", "0.9", "0.3"):
                delta = residual = mp.mpf(start)
                for step in range(1, 6):
                    residual = residual_after(residual, degree)
                    worst = max(worst, float(residual / delta ** (mp.mpf(degree + 1) ** step) - 1))
                    cases += 1
            cases += 1
    matrix = momentum_of_noise(768, 768, seed=768)
    chi = ref.operator_quality(ref.least_start_value(matrix), 2, 5)
    wide = ref.operator_quality(ref.least_start_value(momentum_of_noise(16, 768, seed=16)), 2, 5)
    weighted = 1.0 - float(np.sum(matrix * ref.muon_map(2, 5)(matrix))) / ref.nuclear_norm(matrix)
    return Verdict(
        judged(worst, 1e-6),
        "The check computes the order of the scalar iteration in multiple precision. Deviations are "
        "relative.",
        cases,
        worst,
        f"In one draw of pure noise at kappa = 2 and q = 5, chi is {chi:.0f} on 768 x 768 and "
        f"{wide:.2f} on 16 x 768. The error weighted by singular values is {weighted:.3f} on 768 x 768.",
    )


def residual_tail(shape: tuple[int, int], level: float, draws: int, seed: int) -> float:
    """Fraction of Gaussian momenta whose delta_0 = 1 - x^2 exceeds the level."""
    rng = np.random.default_rng(seed)
    matrices = 3.0 * rng.standard_normal((draws, *shape))
    values = np.linalg.svd(matrices, compute_uv=False)
    starts = values[:, -1] / np.maximum(1.0, np.linalg.norm(values, axis=1))
    return float(np.mean(1.0 - starts**2 > level))


@statement("muon.lem3_3_deterministic", paper=PAPER, expected="PROOF GAP")
def quality_is_a_constant(*, level: float = 0.9999) -> Verdict:
    """Theorem 3.4 treats delta_{0,T} < 1, hence chi_q, as a constant. Under Gaussian noise it is random.

    Every level below 1 is exceeded with positive probability (the essential supremum is 1), while no draw
    reaches 1: the bound needs the realised run, or an event of stated probability.
    """
    exceeding = residual_tail((2, 2), level, 20_000, 77)
    reached = residual_tail((2, 2), 1.0 - 1e-15, 20_000, 78)
    return Verdict(
        judged_erratum(exceeding, reached, 1e-3, word="PROOF GAP"),
        f"The check draws 20,000 Gaussian 2 x 2 momenta, and counts the fraction with delta above {level}.",
        40_000,
        exceeding,
        f"For 2 x 2 momenta {exceeding:.1%} of the draws have delta_0 above {level}; none reaches 1.",
    )


@statement("muon.scale", paper=PAPER, expected="WORDING")
def scale_invariance(*, printed_map: ref.Map | None = None) -> Verdict:
    """Section 4 applies Q to M / s and calls it the DP-Muon direction, which Algorithm 1 takes of M.

    max(1, ||M||_F) shrinks only, so Q depends on the scale below norm 1. Dividing by the norm in any case
    would make the two equal.
    """
    apply = ref.muon_map(2, 5) if printed_map is None else printed_map
    normalised = ref.muon_map(2, 5, scale_up=True)
    momentum = np.random.default_rng(46).standard_normal((4, 6))
    pairs = [(np.ones((1, 1)), 20.0), (0.5 * momentum / np.linalg.norm(momentum), 20.0)]
    printed, corrected = (
        max(ref.operator_norm(mapping(matrix) - mapping(matrix / scale)) for matrix, scale in pairs)
        for mapping in (apply, normalised)
    )
    small = float(apply(np.full((1, 1), 0.05))[0, 0])
    gap = ref.operator_norm(ref.muon_map(1, 5)(np.full((1, 1), 0.05)))
    return Verdict(
        judged_erratum(printed, corrected, 1e-9, word="WORDING"),
        "The check compares Q(M) with Q(M / 20) in operator norm.",
        len(pairs),
        printed,
        f"For the 1 x 1 matrices 1 and 0.05, Q is 1 and {small:.3f} at kappa = 2. At kappa = 1, Q of "
        f"0.05 is {gap:.3f}.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "muon.lem3_3": lambda: lemma_3_3(claim=lambda x, k, q: printed_error(x, k, q + 1)),
    "muon.lem3_3_range": lambda: projector(claim=range_of_wide),
    "muon.lem3_3_practice": lambda: quality_in_practice(order=lambda degree: 2.0 * degree + 1.0),
    "muon.lem3_3_deterministic": lambda: quality_is_a_constant(level=1.0 - 1e-12),
    "muon.scale": lambda: scale_invariance(printed_map=ref.muon_map(2, 5, scale_up=True)),
}


NUDGES: dict[str, dict[str, Callable[[float], Verdict]]] = {
    "muon.lem3_3": {"error": nudge(lemma_3_3)},
    "muon.lem3_3_practice": {"order": nudge(quality_in_practice, "order")},
}
