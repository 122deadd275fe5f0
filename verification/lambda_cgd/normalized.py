"""The DP-lambda-CGD paper, Appendix A: column-normalised strategies."""

import itertools
import math
from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_condition, judged_erratum, statement
from verification.lambda_cgd.optimal import minimiser
from verification.oracles import lambda_cgd as oracle
from verification.oracles import linear as ref
from verification.oracles.lambda_cgd import leftmost_norm

PAPER = "lambda_cgd"


def rescaled(inverse: np.ndarray, norms: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Proposition 7: D (C^-1 Z)."""
    return norms * (inverse @ noise)


@statement("cgd.prop7", paper=PAPER)
def proposition_7(*, claim: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = rescaled) -> Verdict:
    """With C D^-1 as strategy the noise is that of C, row j scaled by d_j: n more multiplications."""
    rng = np.random.default_rng(11)
    worst, cases = 0.0, 0
    for n in (1, 2, 7, 40):
        matrix = np.tril(rng.normal(size=(n, n)), -1) / n + np.diag(rng.uniform(0.5, 2.0, size=n))
        norms, noise = np.linalg.norm(matrix, axis=0), rng.normal(size=n)
        direct = np.linalg.solve(matrix / norms, noise)
        found = claim(np.linalg.inv(matrix), norms, noise)
        worst = max(worst, float(np.abs(found - direct).max() / np.abs(direct).max()))
        cases += 1
    return Verdict(
        judged(worst, 1e-11),
        "The check compares both sides by a dense solve. Deviations are relative.",
        cases,
        worst,
        "The number n of steps must be known in advance, because the norms of the last columns depend on it.",
    )


def lemma_8_cases() -> list[tuple[np.ndarray, int, int, float]]:
    """Column-normalised lambda-CGD, b, k, and the sensitivity by brute force."""
    found = []
    for n, lam in itertools.product((4, 6, 7, 9), (0.0, 0.3, 0.9, 0.999)):
        matrix = oracle.normalized(ref.lower_toeplitz(lam ** np.arange(n)))
        for min_sep in range(1, n + 1):
            for count in range(1, -(-n // min_sep) + 1):
                found.append((matrix, min_sep, count, ref.brute_sensitivity(matrix, min_sep, count)))
    return found


@statement("cgd.lem8", paper=PAPER)
def lemma_8(*, claim: Callable[[np.ndarray, int, int], float] = leftmost_norm) -> Verdict:
    """Leftmost columns give the sensitivity of column-normalised lambda-CGD, for every b and k."""
    cases = lemma_8_cases()
    worst = max(abs(claim(matrix, b, k) / truth - 1.0) for matrix, b, k, truth in cases)
    # The two steps of the proof: inner products fall as the later column, or both columns, move right.
    for n, lam in itertools.product((5, 30), (0.2, 0.9, 0.999)):
        matrix = oracle.normalized(ref.lower_toeplitz(lam ** np.arange(n)))
        gram = matrix.T @ matrix
        for i, j in itertools.combinations(range(n), 2):
            worst = max(worst, gram[i, j] - gram[i, j - 1])
            worst = max(worst, gram[i, j] - gram[i - 1, j - 1] if i else 0.0)
    return Verdict(
        judged(worst, 1e-12),
        "The check compares the formula with brute force over all participation sets. Deviations are "
        "relative.",
        len(cases),
        worst,
    )


def restated_norm(matrix: np.ndarray, min_sep: int, count: int) -> float:
    """The restatement in Appendix C: columns j + b + 1, from 1, where they exist."""
    columns = [j + min_sep for j in range(count) if j + min_sep < len(matrix)]
    return float(np.linalg.norm(matrix[:, columns].sum(axis=1)))


@statement("cgd.lem8_restated", paper=PAPER, expected="MISPRINT")
def lemma_8_restated(*, claim: Callable[[np.ndarray, int, int], float] = restated_norm) -> Verdict:
    """The appendix restates Lemma 8 with columns j + b + 1."""
    cases = lemma_8_cases()
    printed = max(abs(claim(matrix, b, k) / truth - 1.0) for matrix, b, k, truth in cases)
    corrected = max(abs(leftmost_norm(matrix, b, k) / truth - 1.0) for matrix, b, k, truth in cases)
    small = oracle.normalized(ref.lower_toeplitz(0.9 ** np.arange(4)))
    truth = ref.brute_sensitivity(small, 2, 2)
    return Verdict(
        judged_erratum(printed, corrected, 1e-12, word="MISPRINT"),
        "The check compares both sets of columns with brute force over all participation sets. "
        "Deviations are relative.",
        len(cases),
        printed,
        f"At n = 4, b = k = 2, lambda = 0.9, columns 3 and 4 give {restated_norm(small, 2, 2):.3f}, "
        f"whereas columns 1 and 3 give the true value {truth:.3f}. The columns must be j b + 1.",
    )


@statement("cgd.lem8_scope", paper=PAPER, expected="BEYOND THE PAPER")
def lemma_8_scope(*, claim: Callable[[np.ndarray, int, int], float] = leftmost_norm) -> Verdict:
    """Leftmost columns for column-normalised Toeplitz matrices with decreasing, log-convex coefficients.

    Decreasing alone is not enough.
    """
    rng = np.random.default_rng(12)
    inside, cases = 0.0, 0
    for n, kind in itertools.product((5, 8), range(4)):
        if kind == 0:
            coefs = ref.square_root(n)
        elif kind == 1:
            coefs = oracle.reciprocal(ref.inverse_square_root(n), n)
        else:
            # Ratios that rise to at most 1: log-convex and decreasing.
            coefs = np.concatenate([[1.0], np.cumprod(np.sort(rng.uniform(0.1, 0.99, size=n - 1)))])
        matrix = oracle.normalized(ref.lower_toeplitz(coefs))
        for min_sep in range(1, n + 1):
            for count in range(1, -(-n // min_sep) + 1):
                truth = ref.brute_sensitivity(matrix, min_sep, count)
                inside = max(inside, abs(claim(matrix, min_sep, count) / truth - 1.0))
                cases += 1
    coefs = np.array([0.8093, 0.7716, 0.7689, 0.6549, 0.0774, 0.0109, 0.0046, 0.0046])
    matrix = oracle.normalized(ref.lower_toeplitz(coefs))
    outside = ref.brute_sensitivity(matrix, 3, 2) / claim(matrix, 3, 2) - 1.0
    return Verdict(
        judged(inside if outside > 1e-2 else math.inf, 1e-12, word="BEYOND THE PAPER"),
        "The check compares the formula with brute force over all participation sets. Deviations are "
        "relative.",
        cases + 1,
        inside,
        "The coefficients must be decreasing and log-convex; decreasing coefficients are not "
        "sufficient. With (.8093, .7716, .7689, .6549, .0774, .0109, .0046, .0046), b = 3, k = 2 the "
        f"sensitivity is {1 + outside:.3f} times that of the formula.",
    )


def plain_errors(lam: float, n: int) -> tuple[float, float]:
    """Single participation: RMSE of lambda-CGD, and of the column-normalised one by eq. 50-54."""
    squares = np.cumsum(lam ** (2.0 * np.arange(n)))[::-1]
    norms = np.sqrt(squares)
    later = (norms[:-1] - lam * norms[1:]) ** 2
    normalised = float(squares.sum() + later @ np.arange(n - 1, 0, -1.0))
    plain = float(squares[0]) * (n + (1 - lam) ** 2 * n * (n - 1) / 2)
    return math.sqrt(plain / n), math.sqrt(normalised / n)


@statement("cgd.lem9", paper=PAPER)
def lemma_9(*, claim: Callable[[float, int], tuple[float, float]] = plain_errors) -> Verdict:
    """Single participation, lambda in (0, 1): column normalisation lowers the RMSE, for n >= 2."""
    worst, cases = -math.inf, 0
    for lam, n in itertools.product((0.01, 0.3, 0.9, 0.999), (1, 2, 3, 12, 50)):
        matrix = ref.lower_toeplitz(lam ** np.arange(n))
        rows = oracle.prefix_sum(n) @ np.linalg.inv(matrix)
        scaled = oracle.prefix_sum(n) @ np.linalg.inv(oracle.normalized(matrix))
        dense = (
            float(np.linalg.norm(rows) * np.linalg.norm(matrix[:, 0])) / math.sqrt(n),
            float(np.linalg.norm(scaled)) / math.sqrt(n),
        )
        found = claim(lam, n)
        worst = max(worst, *(abs(x / y - 1.0) - 1e-12 for x, y in zip(found, dense, strict=True)))
        cases += 1
    least = 1.0
    for lam, n in itertools.product((0.1, 0.5, 0.9, 0.99, 0.9999, 0.99999), (2, 3, 10, 100, 2000)):
        before, after = claim(lam, n)
        # Lower by something: strict.
        worst = max(worst, after / before - 1.0 + 1e-14)
        least = min(least, after / before)
        # Eq. 56 and 57.
        powers, lags = lam ** (2.0 * np.arange(n)), np.arange(n)
        squares = np.cumsum(powers)[::-1]
        worst = max(worst, abs(squares.sum() / (n * squares[0] - lags @ powers) - 1.0) - 1e-12)
        norms = np.sqrt(squares)
        bound = (1 - lam) ** 2 * squares[1:] + powers[1:][::-1]
        worst = max(worst, float(((norms[:-1] - lam * norms[1:]) ** 2 - bound).max()) - 1e-12)
        cases += 1
    return Verdict(
        judged(worst, 0.0),
        "The check uses dense matrices, and closed forms up to n = 2000. The deviation is the excess "
        "over the bound.",
        cases,
        worst,
        f"The two RMSE are equal at n = 1. The smallest ratio found is {least:.4f}, at lambda = 0.99999 "
        "and n = 2000.",
    )


def ratio_of_errors(lam: float, plan: oracle.Plan) -> float:
    """RMSE of column-normalised lambda-CGD over that of lambda-CGD, from columns."""
    n = plan.n
    powers = lam ** np.arange(n)
    norms = np.sqrt(np.cumsum(powers**2)[::-1])
    total = np.zeros(n)
    for start in range(0, min(n, plan.k * plan.b), plan.b):
        total[start:] += powers[: n - start] / norms[start]
    later = (norms[:-1] - lam * norms[1:]) ** 2
    square = float(np.sum(norms**2) + later @ np.arange(n - 1, 0, -1.0)) / n
    return math.sqrt(square * float(total @ total) / oracle.lambda_errors(lam, plan, 0.5))


@statement("cgd.fig6", paper=PAPER, expected="CONDITIONAL")
def figure_6(*, claim: Callable[[float, oracle.Plan], float] = ratio_of_errors) -> Verdict:
    """Column normalisation lowers the RMSE at the best lambda; not for every lambda and k."""
    inside, ratios = -math.inf, []
    settings = (((1, 390), 0.9958), ((5, 78), 0.9961), ((10, 39), 0.9974), ((10, 390), 0.9986))
    for (k, b), known in settings:
        plan = oracle.Plan(k * b, b, k)
        ratios.append(claim(minimiser(plan, 0.5), plan))
        inside = max(inside, ratios[-1] - 1.0, abs(ratios[-1] - known) - 1e-4)
    worse = [
        claim(lam, oracle.Plan(k * b, b, k)) for k, b, lam in ((10, 1, 0.9), (30, 1, 0.999), (20, 2, 0.5))
    ]
    # The oracle of the oracle: dense matrices.
    dense = oracle.normalized(ref.lower_toeplitz(0.9 ** np.arange(10)))
    decoder = float(np.linalg.norm(oracle.prefix_sum(10) @ np.linalg.inv(dense))) / math.sqrt(10)
    exact = (
        decoder
        * leftmost_norm(dense, 1, 10)
        / math.sqrt(oracle.lambda_errors(0.9, oracle.Plan(10, 1, 10), 0.5))
    )
    inside = max(inside, abs(worse[0] / exact - 1.0) - 1e-12)
    return Verdict(
        judged_condition(inside, min(worse) - 1.0, 0.0),
        "The check compares closed forms with dense matrices. The deviation is the excess of the RMSE "
        "ratio over 1.",
        len(settings) + len(worse) + 1,
        inside,
        f"The statement requires a lambda near the best one. The RMSE ratio is then {ratios[0]:.4f} "
        f"for k = 1, b = 390, and {ratios[3]:.4f} for k = 10. Elsewhere normalisation raises the RMSE: "
        f"the ratio at b = 1 is {worse[0]:.4f} (k = 10, lambda = 0.9) and {worse[1]:.4f} (k = 30, "
        f"lambda = 0.999), and at b = 2 it is {worse[2]:.4f} (k = 20, lambda = 0.5).",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "cgd.prop7": lambda: proposition_7(claim=lambda inverse, norms, noise: inverse @ (norms * noise)),
    "cgd.lem8": lambda: lemma_8(claim=lambda matrix, b, k: leftmost_norm(matrix, b, k + 1)),
    "cgd.lem8_restated": lambda: lemma_8_restated(claim=leftmost_norm),
    "cgd.lem8_scope": lambda: lemma_8_scope(claim=ref.brute_sensitivity),
    "cgd.lem9": lambda: lemma_9(claim=lambda lam, n: plain_errors(lam, n)[::-1]),
    "cgd.fig6": lambda: figure_6(claim=lambda lam, plan: 1.01 * ratio_of_errors(lam, plan)),
}

NUDGES: dict[str, dict[str, Callable[[float], Verdict]]] = {
    "cgd.prop7": {"noise": nudge(proposition_7)},
    "cgd.lem8": {"sensitivity": nudge(lemma_8)},
    "cgd.lem8_scope": {"sensitivity": nudge(lemma_8_scope)},
    "cgd.lem9": {"plain": nudge(lemma_9, index=0), "normalised": nudge(lemma_9, index=1)},
    "cgd.fig6": {"ratio": nudge(figure_6)},
}
