"""The DP-lambda-CGD paper: lemmas around the full-batch bounds (Lemmas 5, 10 and 11, Corollary 6)."""

import itertools
import math
from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_erratum, statement
from verification.lambda_cgd.optimal import dense_rmse, diagonal, full_batch, random_strategies
from verification.oracles import lambda_cgd as oracle

PAPER = "lambda_cgd"


def trivial(n: int, metric: str) -> float:
    """The error of C = I."""
    return float(n) if metric == "MaxSE" else full_batch(n)[0]


@statement("cgd.lem5", paper=PAPER)
def lemma_5(*, claim: Callable[[int, str], float] = trivial) -> Verdict:
    """C = I is optimal for b = 1, k = n in dimension 1.

    In MaxSE, which the sentence before the lemma names. It holds in every dimension and for every C: the last
    row of B gives B_n C e = n, so MaxSE >= |B_n| ||C e|| >= n.
    """
    inside, cases, least = 0.0, 0, math.inf
    for matrix in random_strategies(np.random.default_rng(7), (1, 2, 3, 6), 40):
        n = len(matrix)
        rows = np.linalg.norm(oracle.prefix_sum(n) @ np.linalg.inv(matrix), axis=1)
        ratio = float(rows.max()) * oracle.signed_sensitivity(matrix, 1, n) / claim(n, "MaxSE")
        inside, least = max(inside, 1.0 - ratio), min(least, ratio)
        cases += 1
    for n in (1, 2, 7):
        rows = np.linalg.norm(oracle.prefix_sum(n), axis=1)
        inside = max(inside, abs(float(rows.max()) * math.sqrt(n) / claim(n, "MaxSE") - 1.0))
        cases += 1
    better = dense_rmse(np.diag(diagonal(2)), float(np.linalg.norm(diagonal(2))))
    return Verdict(
        judged(inside, 1e-12),
        "The check compares I with random matrices C, whose sensitivity it computes by brute force "
        "over all signs. Deviations are relative.",
        cases,
        inside,
        f"The lemma holds for MaxSE. For RMSE at n = 2, diag(2^(1/4), 1) has {better:.4f}, compared "
        f"with {trivial(2, 'RMSE'):.4f} for I. For MaxSE, the lemma holds in every dimension and for C "
        f"of any sign; the smallest ratio found is {least:.4f}.",
    )


def best_lambda(n: int) -> float:
    """Corollary 6."""
    del n
    return 0.0


@statement("cgd.cor6", paper=PAPER)
def corollary_6(*, claim: Callable[[int], float] = best_lambda) -> Verdict:
    """Within the lambda family, lambda = 0 is optimal for RMSE and MaxSE at b = 1, k = n."""
    worst, cases = 0.0, 0
    for n, gamma in itertools.product((2, 3, 5, 10, 50, 300), (0.5, 1.0)):
        plan = oracle.Plan(n, 1, n)
        here = oracle.lambda_errors(claim(n), plan, gamma)
        grid = [oracle.lambda_errors(lam, plan, gamma) for lam in np.linspace(0.0, 0.9999, 201)]
        worst = max(worst, here / min(grid) - 1.0)
        cases += len(grid)
    return Verdict(
        judged(worst, 1e-12), "The check searches a grid over lambda. Deviations are relative.", cases, worst
    )


def relaxed(n: int) -> float:
    """Lemma 10: the infimum of ||B||_F ||C e|| over sqrt n."""
    return full_batch(n)[2]


@statement("cgd.lem10", paper=PAPER)
def lemma_10(*, claim: Callable[[int], float] = relaxed) -> Verdict:
    """The infimum over B C = A of ||B||_F ||C e|| / sqrt n is ||A e|| / sqrt n, approached by eq. 29."""
    worst, cases, blown = 0.0, 0, 0.0
    for n in (1, 2, 6):
        ones = np.ones(n)
        workload = oracle.prefix_sum(n)
        target = workload @ ones
        # A rotation that takes A e to the first axis.
        rotation = np.linalg.qr(np.column_stack([target, np.eye(n)[:, : n - 1]]))[0].T
        rotation[0] *= np.sign(rotation[0] @ target)
        for lam in (1.0, 0.1, 1e-3):
            scale = np.diag(np.where(np.arange(n) == 0, 1.0, lam))
            left, right = rotation.T @ scale, np.linalg.inv(scale) @ rotation @ workload
            worst = max(worst, float(np.abs(left @ right - workload).max()) * lam)
            product = float(np.linalg.norm(left) * np.linalg.norm(right @ ones)) / math.sqrt(n)
            worst = max(worst, abs(product / (claim(n) * math.sqrt(1 + lam**2 * (n - 1))) - 1.0))
            blown = max(blown, oracle.signed_sensitivity(right, 1, n) / float(np.linalg.norm(right @ ones)))
            cases += 1
    for matrix in random_strategies(np.random.default_rng(8), (2, 4), 60):
        n = len(matrix)
        worst = max(worst, claim(n) / dense_rmse(matrix, float(np.linalg.norm(matrix @ np.ones(n)))) - 1.0)
        cases += 1
    return Verdict(
        judged(worst, 1e-9),
        "The check evaluates the construction of eq. 29 and random C. Deviations are relative.",
        cases,
        worst,
        f"The value is not an achievable RMSE: the true sensitivity of these C grows to {blown:.0f} "
        "times ||C e||.",
    )


def printed_vector(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 27 with a matrix E, which the paper does not define: the identity, or all ones."""
    return np.eye(n), np.ones((n, n))


def vector_of_ones(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 27 with e."""
    return np.ones((n, 1)), np.ones((n, 1))


@statement("cgd.lem10_27", paper=PAPER, expected="MISPRINT")
def lemma_10_equation_27(
    *, claim: Callable[[int], tuple[np.ndarray, np.ndarray]] = printed_vector
) -> Verdict:
    """Eq. 27: ||A e|| = ||B C E||."""

    def deviation(reading: Callable[[int], tuple[np.ndarray, np.ndarray]], n: int) -> float:
        target = float(np.linalg.norm(oracle.prefix_sum(n) @ np.ones(n)))
        return min(abs(float(np.linalg.norm(oracle.prefix_sum(n) @ e, 2)) / target - 1.0) for e in reading(n))

    printed, corrected = deviation(claim, 2), max(deviation(vector_of_ones, n) for n in (1, 2, 9))
    return Verdict(
        judged_erratum(printed, corrected, 1e-12, word="MISPRINT"),
        "The check evaluates both sides with dense matrices. Deviations are relative.",
        4,
        printed,
        "E is not defined. At n = 2, the identity gives 1.618 and a matrix of ones 3.162, "
        "whereas e gives the right value 2.236.",
    )


def weighted_sum(n: int) -> float:
    """Eq. 37."""
    return float(np.sum(np.sqrt(np.arange(1, n + 1)))) / math.sqrt(n)


@statement("cgd.lem11", paper=PAPER)
def lemma_11(*, claim: Callable[[int], float] = weighted_sum) -> Verdict:
    """diag((n - j + 1)^(1/4)) attains n^(-1/2) sum_j sqrt j, the least of all diagonal strategies."""
    rng = np.random.default_rng(9)
    worst, cases = 0.0, 0
    for n in (1, 2, 3, 8, 40):
        entries = diagonal(n)
        norms = (
            float(np.linalg.norm(entries)),
            float(np.linalg.norm(oracle.prefix_sum(n) @ np.diag(1.0 / entries))),
        )
        # Eq. 36: both factors are the root of sum_j sqrt j.
        worst = max(worst, *(abs(norm**2 / (claim(n) * math.sqrt(n)) - 1.0) for norm in norms))
        for spread in (0.01, 0.3, 1.0):
            other = entries * np.exp(spread * rng.normal(size=n))
            found = dense_rmse(np.diag(other), float(np.linalg.norm(other)))
            worst = max(worst, claim(n) / found - 1.0)
            cases += 1
        cases += 2
    for matrix in random_strategies(rng, (2, 3, 5), 20):
        # Eq. 34: for C >= 0 the sensitivity is ||C e||.
        positive, n = np.abs(matrix), len(matrix)
        brute = oracle.signed_sensitivity(positive, 1, n)
        worst = max(worst, abs(float(np.linalg.norm(positive @ np.ones(n))) / brute - 1.0))
        cases += 1
    return Verdict(
        judged(worst, 1e-12),
        "The check uses dense matrices and brute force over all signs. Deviations are relative.",
        cases,
        worst,
    )


def stronger(matrix: np.ndarray) -> bool:
    """Lemma 11: C^T C >= 0 is the stronger condition, so it implies C >= 0."""
    return bool(np.all(matrix.T @ matrix >= 0.0)) <= bool(np.all(matrix >= 0.0))


def weaker(matrix: np.ndarray) -> bool:
    """C >= 0 implies C^T C >= 0."""
    return bool(np.all(matrix >= 0.0)) <= bool(np.all(matrix.T @ matrix >= 0.0))


@statement("cgd.lem11_stronger", paper=PAPER, expected="WORDING")
def lemma_11_condition(*, claim: Callable[[np.ndarray], bool] = stronger) -> Verdict:
    """C^T C >= 0 is a stronger condition than C >= 0."""
    witness = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [2.0, 1.0, 1.0]])
    matrices = [witness, *random_strategies(np.random.default_rng(10), (2, 3, 4), 40)]
    matrices += [np.abs(matrix) for matrix in matrices]
    printed = sum(not claim(matrix) for matrix in matrices)
    corrected = sum(not weaker(matrix) for matrix in matrices)
    return Verdict(
        judged_erratum(printed, corrected, 0.5, word="WORDING"),
        "The check counts counterexamples among matrices with a positive diagonal.",
        len(matrices),
        float(printed),
        "The condition is weaker: the matrix with rows (1, 0, 0), (-1, 1, 0), (2, 1, 1) has C^T C >= "
        "0 and an entry -1.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "cgd.lem5": lambda: lemma_5(claim=lambda n, metric: 1.2 * trivial(n, metric)),
    "cgd.cor6": lambda: corollary_6(claim=lambda _: 0.1),
    "cgd.lem10": lambda: lemma_10(claim=lambda n: relaxed(n + 1)),
    "cgd.lem10_27": lambda: lemma_10_equation_27(claim=vector_of_ones),
    "cgd.lem11": lambda: lemma_11(claim=lambda n: weighted_sum(n + 1)),
    "cgd.lem11_stronger": lambda: lemma_11_condition(claim=weaker),
}

NUDGES: dict[str, dict[str, Callable[[float], Verdict]]] = {
    "cgd.lem5": {"least MaxSE": nudge(lemma_5)},
    "cgd.lem10": {"infimum": nudge(lemma_10)},
    "cgd.lem11": {"error": nudge(lemma_11)},
}
