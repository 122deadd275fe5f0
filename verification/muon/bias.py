"""The DP-Muon paper: the noise in the momentum, the bias after Newton-Schulz, and its correction."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import sympy

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_erratum, statement
from verification.oracles import matrices as ref

PAPER = "muon"


def momentum_variance(momentum: float, updates: int) -> float:
    """(1 - m) / (1 + m) (1 + m^t) / (1 - m^t), in units of nu^2."""
    return (1.0 - momentum) / (1.0 + momentum) * (1.0 + momentum**updates) / (1.0 - momentum**updates)


@statement("muon.lemC1", paper=PAPER)
def lemma_c1(*, claim: Callable[[float, int], float] = momentum_variance) -> Verdict:
    """Noise of the normalised momentum: rho_t^2 = nu^2 (1 - m) / (1 + m) (1 + m^t) / (1 - m^t).

    The recursion M <- m M + Z is followed as a matrix acting on the noises. dpmech relies on it in
    `dpmech.analysis.muon.stationarity`.
    """
    worst, cases = 0.0, 0
    for momentum in (0.0, 0.3, 0.9, 0.95, 0.999):
        rows = np.zeros(200)
        scale = 0.0
        for updates in range(1, 201):
            rows *= momentum
            rows[updates - 1] += 1.0
            scale = momentum * scale + 1.0
            worst = max(worst, abs(claim(momentum, updates) / float(rows @ rows / scale**2) - 1.0))
            cases += 1
        limit = (1.0 - momentum) / (1.0 + momentum)
        worst = max(worst, abs(claim(momentum, 10**6) / limit - 1.0), abs(claim(momentum, 1) - 1.0))
    worst = max(worst, abs(0.3**2 * claim(0.9, 7) - 0.013422) - 1e-6)
    return Verdict(
        judged(worst, 1e-11),
        "The check runs the recursion on unit noise. Deviations are relative.",
        cases,
        worst,
    )


def printed_reduction(momentum: float) -> float:
    """(1 - m) / (1 + m)."""
    return (1.0 - momentum) / (1.0 + momentum)


@statement("muon.lemC1_scale", paper=PAPER, expected="WORDING")
def reduction_of_the_scale(
    *, claim: Callable[[float], float] = printed_reduction, right: float = 0.5
) -> Verdict:
    """Section 4: momentum reduces the "noise scale" by (1 - m) / (1 + m).

    That is the factor of the variance rho^2, displayed just above; the scale shrinks by its root, the power
    `right` of it.
    """
    printed, corrected, cases = 0.0, 0.0, 0
    for momentum in (0.0, 0.5, 0.9, 0.95):
        weights = momentum ** np.arange(3_000, dtype=float)
        scale = float(np.linalg.norm(weights) / weights.sum())
        printed = max(printed, abs(claim(momentum) - scale))
        corrected = max(corrected, abs(printed_reduction(momentum) ** right - scale))
        cases += 1
    return Verdict(
        judged_erratum(printed, corrected, 1e-9, word="WORDING"),
        "The check computes the norm of the weights. Deviations are absolute.",
        cases,
        printed,
        "At momentum 0.95 the standard deviation is multiplied by 0.160; 1 / 39 is the factor of the "
        "variance.",
    )


def heat_coefficient(order: int) -> float:
    """1 / (2^j j!)."""
    return 1.0 / (2**order * math.factorial(order))


def exact_laplacian(rows: int, columns: int) -> tuple[bool, bool]:
    """Whether Laplace(X X^T X) = 2 (m + n + 1) X and the second Laplacian is 0, symbolically."""
    matrix = sympy.Matrix(rows, columns, lambda i, j: sympy.Symbol(f"x{i}_{j}"))
    cubic = (matrix * matrix.T * matrix).applyfunc(sympy.expand)

    def laplace(entries: sympy.Matrix) -> sympy.Matrix:
        return entries.applyfunc(lambda f: sympy.expand(sum(sympy.diff(f, x, 2) for x in matrix)))

    first = laplace(cubic)
    return first == 2 * (rows + columns + 1) * matrix, laplace(first) == sympy.zeros(rows, columns)


@statement("muon.heat", paper=PAPER)
def heat_operator(*, claim: Callable[[int], float] = heat_coefficient) -> Verdict:
    """P_rho = exp(rho^2 Laplace / 2): on polynomials the series is finite and equals the Gaussian mean.

    Hence one cubic step has the bias -(rho^2 / 2) (m + n + 1) X exactly, and none after correction.
    dpmech relies on it in `dpmech.analysis.muon.newton_schulz`.
    """
    worst, cases = 0.0, 0
    for degree in range(9):
        for x, rho in itertools.product((-1.3, 0.0, 0.7), (0.0, 0.5, 2.0)):
            # E (x + rho U)^degree from the moments of U.
            truth = sum(
                math.comb(degree, 2 * j)
                * x ** (degree - 2 * j)
                * rho ** (2 * j)
                * math.prod(range(1, 2 * j, 2))
                for j in range(degree // 2 + 1)
            )
            series = sum(
                claim(j) * rho ** (2 * j) * math.perm(degree, 2 * j) * x ** (degree - 2 * j)
                for j in range(degree // 2 + 1)
            )
            worst = max(worst, abs(series - truth) / max(1.0, abs(truth)))
            cases += 1
    for shape in ((1, 1), (1, 2), (2, 2), (2, 3)):
        worst = max(worst, float(not all(exact_laplacian(*shape))))
        cases += 1
    return Verdict(
        judged(worst, 1e-12),
        "The check compares the series with the moments of the normal distribution, and verifies the "
        "Laplacian of a cubic step with SymPy.",
        cases,
        worst,
    )


def quadrature(function: ref.Map, point: np.ndarray, rho: float, nodes: int) -> np.ndarray:
    """E F(X + rho U) on the product grid of Gauss-Hermite nodes."""
    abscissas, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(*[abscissas] * point.size, indexing="ij"), axis=-1).reshape(-1, *point.shape)
    mass = np.prod(np.stack(np.meshgrid(*[weights] * point.size, indexing="ij"), axis=-1), axis=-1).ravel()
    return np.tensordot(mass, function(point + rho * grid), axes=1)


def bilaplacian(function: ref.Map, point: np.ndarray, step: float) -> np.ndarray:
    """Laplace^2 F by fourth-order central differences, applied twice."""
    stencil = {0: -2.5, 1: 4.0 / 3.0, 2: -1.0 / 12.0}

    def laplace(inner: ref.Map) -> ref.Map:
        def apply(matrix: np.ndarray) -> np.ndarray:
            total = point.size * stencil[0] * inner(matrix)
            for entry, distance, sign in itertools.product(range(point.size), (1, 2), (-1.0, 1.0)):
                offset = np.zeros(point.size)
                offset[entry] = sign * distance * step
                total = total + stencil[distance] * inner(matrix + offset.reshape(point.shape))
            return total / step**2

        return apply

    return laplace(laplace(function))(point)


def corrected_mean(plain: np.ndarray, wider: np.ndarray) -> np.ndarray:
    """2 P_rho Q - P_(sqrt 2 rho) Q."""
    return 2.0 * plain - wider


@statement("muon.thm4_1", paper=PAPER)
def theorem_4_1(
    *, claim: Callable[[np.ndarray, np.ndarray], np.ndarray] = corrected_mean, coefficient: float = -0.25
) -> Verdict:
    """The corrected direction's bias is -(rho^4 / 4) Laplace^2 Q + O(rho^6): the rho^2 term is gone.

    2 x 2, kappa = q = 2, inside the region where Q divides by the norm and where it does not. The series of
    the correction has coefficients (2 - 2^j) / (2^j j!). dpmech relies on it in
    `dpmech.analysis.muon.newton_schulz`.
    """
    apply = ref.muon_map(2, 2)
    base = np.array([[0.8, -0.3], [0.2, 0.45]])
    worst, cases = 0.0, 0
    for norm in (3.0, 0.5):
        point = base * (norm / np.linalg.norm(base))
        curvature = bilaplacian(apply, point, 0.02)
        for rho in (0.01, 0.02):
            plain = quadrature(apply, point, rho, 10)
            wider = quadrature(apply, point, math.sqrt(2.0) * rho, 10)
            bias = claim(plain, wider) - apply(point)
            predicted = coefficient * rho**4 * curvature
            # What is left is O(rho^6), that is relatively O(rho^2).
            allowed = 40.0 * rho**2 * np.linalg.norm(predicted)
            worst = max(worst, float(np.linalg.norm(bias - predicted) / allowed))
            cases += 1
    for order in range(8):
        series = 2.0 * heat_coefficient(order) - 2.0**order * heat_coefficient(order)
        worst = max(worst, abs(series - (2 - 2**order) / (2**order * math.factorial(order))) / 1e-15)
        cases += 1
    return Verdict(
        judged(worst, 1.0),
        "The check integrates by product quadrature. The deviation is the remainder, in units of 40 "
        "rho^2 times the predicted term.",
        cases,
        worst,
    )


def probe_bound(rows: int, columns: int, probes: int) -> float:
    """K_Q^2 / J with K_Q^2 = min(m, n)."""
    return min(rows, columns) / probes


@statement("muon.probe", paper=PAPER)
def probe_error(*, claim: Callable[[int, int, int], float] = probe_bound) -> Verdict:
    """E ||zeta||^2 <= K_Q^2 / J for J antithetic probes; K_Q^2 can be min(m, n), the largest ||Q||_F^2.

    The sup of ||Q||_F is approached by many steps from full rank. The mean square is a Monte Carlo mean.
    """
    rng = np.random.default_rng(106)
    worst, cases = -math.inf, 0
    for rows, columns in ((1, 3), (2, 2), (3, 4)):
        apply = ref.muon_map(2, 4)
        for probes in (1, 5):
            for rho in (0.05, 0.5, 5.0):
                point = rng.standard_normal((rows, columns))
                noise = rho * rng.standard_normal((4_000, probes, rows, columns))
                halves = 0.5 * (apply(point + noise) + apply(point - noise))
                averages = halves.mean(axis=1)
                error = averages - halves.mean(axis=(0, 1))
                worst = max(
                    worst, float(np.mean(np.sum(error**2, axis=(1, 2)))) - claim(rows, columns, probes)
                )
                cases += 1
        many = ref.muon_map(2, 12)(rng.standard_normal((rows, columns)))
        worst = max(worst, abs(float(np.sum(many**2)) - claim(rows, columns, 1)) - 1e-9)
    return Verdict(
        judged(worst, 1e-9),
        "The check averages 4,000 Monte Carlo draws. The deviation is the excess over the bound.",
        cases,
        worst,
    )


@statement("muon.obc_norm", paper=PAPER, expected="BEYOND THE PAPER")
def corrected_norm(*, limit: float = 3.0, reached: float = 2.67) -> Verdict:
    """||O_bc||_op <= 3 by the triangle inequality, and 2.67 does occur, so 1 is no bound for it."""
    rng = np.random.default_rng(107)
    apply = ref.muon_map(2, 6)
    largest = 0.0
    for rows, columns in ((1, 1), (2, 2), (2, 3)):
        point = 0.3 * rng.standard_normal((20_000, rows, columns))
        noise = rng.standard_normal(point.shape) * 10.0 ** rng.uniform(-1, 1, (20_000, 1, 1))
        output = 2.0 * apply(point) - 0.5 * (apply(point + noise) + apply(point - noise))
        largest = max(largest, float(np.linalg.norm(output, ord=2, axis=(1, 2)).max()))
    worst = max(largest - limit, reached - largest)
    return Verdict(
        judged(worst, 1e-9, word="BEYOND THE PAPER"),
        f"The check tries 60,000 random directions; the largest norm is {largest:.3f}.",
        60_000,
        worst,
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "muon.lemC1": lambda: lemma_c1(claim=lambda m, t: momentum_variance(m, t + 1)),
    "muon.lemC1_scale": lambda: reduction_of_the_scale(claim=lambda m: math.sqrt(printed_reduction(m))),
    "muon.heat": lambda: heat_operator(claim=lambda j: 1.0 / math.factorial(j)),
    "muon.thm4_1": lambda: theorem_4_1(coefficient=0.25),
    "muon.probe": lambda: probe_error(claim=lambda m, n, j: probe_bound(m, n, 20 * j)),
    "muon.obc_norm": lambda: corrected_norm(limit=2.0),
}

NUDGES: dict[str, dict[str, Callable[[float], Verdict]]] = {
    "muon.lemC1": {"variance": nudge(lemma_c1)},
    "muon.lemC1_scale": {"power": nudge(reduction_of_the_scale, "right")},
    "muon.heat": {"coefficients": nudge(heat_operator)},
    "muon.thm4_1": {"mean": nudge(theorem_4_1), "coefficient": nudge(theorem_4_1, "coefficient")},
    "muon.probe": {"bound": nudge(probe_error)},
    "muon.obc_norm": {"limit": nudge(corrected_norm, "limit"), "reached": nudge(corrected_norm, "reached")},
}
