"""The DP-Muon paper (arXiv 2605.12994): clipping, the release, and Newton-Schulz."""

import math
from collections.abc import Callable

import numpy as np

from verification.harness.verdict import Verdict, judged, judged_condition, judged_erratum, statement
from verification.oracles import matrices as ref

PAPER = "muon"


def clipped(matrix: np.ndarray, bound: float) -> np.ndarray:
    """A / max(1, ||A||_F / C)."""
    return matrix / max(1.0, float(np.linalg.norm(matrix)) / bound)


@statement("muon.clip", paper=PAPER)
def clip(*, claim: Callable[[np.ndarray, float], np.ndarray] = clipped) -> Verdict:
    """Per-matrix clipping is the projection onto the Frobenius ball of radius C."""
    rng = np.random.default_rng(1)
    worst, cases = 0.0, 0
    for _ in range(500):
        matrix = 10.0 ** rng.uniform(-2, 2) * rng.standard_normal(rng.integers(1, 5, size=2))
        bound, size = 10.0 ** rng.uniform(-1, 1), float(np.linalg.norm(matrix))
        projected = matrix if size <= bound else matrix * (bound / size)
        worst = max(worst, float(np.linalg.norm(claim(matrix, bound) - projected)) / size)
        cases += 1
    return Verdict(judged(worst, 1e-14), "projection onto the ball, relative", cases, worst)


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
        lot = 10.0 ** rng.uniform(-2, 3) * rng.standard_normal((5, blocks, entries))
        silent, loud = np.zeros((blocks, entries)), np.ones((blocks, entries))
        base = claim(lot, bounds, silent, sigma, size)
        unit = claim(lot, bounds, loud, sigma, size) - base
        worst = max(worst, float(np.max(np.abs(unit * size / (sigma * bounds[:, None]) - 1.0))))
        # Far out every block of the removed example is at its bound: the shift is attained.
        lot[0] *= 1e12
        moved = claim(lot, bounds, silent, sigma, size) - claim(lot[1:], bounds, silent, sigma, size)
        shift = float(np.linalg.norm(moved / (sigma * bounds[:, None] / size)))
        worst = max(worst, abs(shift * sigma / math.sqrt(blocks) - 1.0))
        cases += 1
    return Verdict(judged(worst, 1e-9), "removing one example, noise of unit size, relative", cases, worst)


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
    return Verdict(judged(worst, 1e-10), "singular values one by one, absolute", cases, worst)


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
    return Verdict(judged(worst, 1e-12), "Taylor recursion and the scalar inequality, absolute", cases, worst)


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
        "largest singular value after 5 steps, over 1",
        200_002,
        inside,
        f"needs a p_k; the usual quintic reaches {1.0 + outside:.4f}, so ||O|| <= 1 fails",
    )


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
    return Verdict(judged(worst, 1e-11), "random matrices of every rank, absolute", cases, worst)


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
        "size of the projector against that of X X^T",
        4,
        printed,
        "a 2 x 1 block: Pi is 2 x 2, X X^T is 1 x 1; it must be range(T(M))",
    )


def momentum_of_noise(rows: int, columns: int, seed: int) -> np.ndarray:
    """Pure noise, of any scale above the unit ball."""
    return np.random.default_rng(seed).standard_normal((rows, columns))


@statement("muon.lem3_3_practice", paper=PAPER, expected="COUNTEREXAMPLE")
def quality_in_practice(*, shape: tuple[int, int] = (768, 768)) -> Verdict:
    """The text treats chi_q as close to 1. On the square layers of GPT-2 under noise it is in the thousands.

    The corrected form: it is close to 1 for wide blocks (16 x 768), and weighted by singular values the
    error is .27 on the square one.
    """
    matrix = momentum_of_noise(*shape, seed=768)
    chi = ref.operator_quality(ref.least_start_value(matrix), 2, 5)
    wide = ref.operator_quality(ref.least_start_value(momentum_of_noise(16, 768, seed=16)), 2, 5)
    weighted = 1.0 - float(np.sum(matrix * ref.muon_map(2, 5)(matrix))) / ref.nuclear_norm(matrix)
    return Verdict(
        judged_erratum(chi - 1.0, wide - 1.0, 0.05, word="COUNTEREXAMPLE"),
        "one draw of pure noise, kappa = 2, q = 5, chi - 1",
        2,
        chi - 1.0,
        f"{shape[0]} x {shape[1]}: chi = {chi:.0f}; 16 x 768: {wide:.2f}; weighted by singular values the "
        f"error is {weighted:.3f} there, not {1.0 - 1.0 / chi:.4f}",
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
        f"20,000 Gaussian 2 x 2 momenta, fraction with delta above {level}",
        40_000,
        exceeding,
        f"2 x 2: {exceeding:.1%} of draws have delta_0 above {level}; none reaches 1",
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
        "Q(M) against Q(M / 20), operator norm",
        len(pairs),
        printed,
        f"the 1 x 1 matrix 1 against 0.05: Q = 1 against {small:.3f} at kappa = 2 and {gap:.3f} at kappa = 1",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "muon.clip": lambda: clip(claim=lambda a, c: a * (c / float(np.linalg.norm(a)))),
    "muon.release": lambda: per_matrix_release(
        claim=lambda g, c, z, s, b: block_release(g, c, z * np.sqrt(len(c)), s, b)
    ),
    "muon.alg1": lambda: algorithm_1(claim=lambda degree, steps: ref.muon_map(degree, steps, scale_up=True)),
    "muon.pkappa": lambda: newton_schulz_polynomial(claim=lambda x, k: binomial_sum(x, k) + 1e-6 * (1 - x)),
    "muon.kappa_unstated": lambda: implementation_degree(iteration=usual_quintic),
    "muon.lem3_3": lambda: lemma_3_3(claim=lambda x, k, q: printed_error(x, k, q + 1)),
    "muon.lem3_3_range": lambda: projector(claim=range_of_wide),
    "muon.lem3_3_practice": lambda: quality_in_practice(shape=(16, 768)),
    "muon.lem3_3_deterministic": lambda: quality_is_a_constant(level=1.0 - 1e-12),
    "muon.scale": lambda: scale_invariance(printed_map=ref.muon_map(2, 5, scale_up=True)),
}
