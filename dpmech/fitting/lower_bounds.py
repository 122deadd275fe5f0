r"""A lower bound on the error of every matrix, from the dual of the convex program in X = C^T C.

Let W be a mean of matrices Z, each with Z[i, j] = <g_i, g_j> for gradients of norm at most 1 in the steps of
a participation set and 0 elsewhere. The squared sensitivity of C is at least the mean of ||C G||_F^2, which
is tr(C^T C W). With W = L L^T, Cauchy and Schwarz, and ||P Q||_* <= ||P||_F ||Q||_F,

    ||A C^-1||_F sens >= ||A C^-1||_F ||C L||_F >= ||A L||_*,

the nuclear norm, for every invertible C. Disjoint participation sets with probabilities p_s give L: row i of
a set s is sqrt(p_s) times a unit vector u_i in the set's own columns. Any L is a bound, of weight
T = sum_s max ||L_i||^2 instead of 1: ||A L||_* / sqrt(T).

||B||_* is the largest <B, Q> over ||Q|| <= 1, so ||A L||_* is raised by alternating between Q (the polar
factor of A L) and L (in the direction of A^T Q, whose rows are normalised). What is certified afterwards is
<A L, Q> / ||Q||, with rounding errors, whatever L and Q are.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.exceptions import NumericalError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.mechanism import (
    Adjacency,
    EveryStep,
    Identity,
    Participation,
    Pattern,
    Strategy,
    Workload,
    check_participation,
    check_workload,
    rmse,
    sensitivity,
)
from dpmech.numerics import (
    UNIT,
    FloatArray,
    IntArray,
    next_up,
    product_down,
    product_up,
    quotient_down,
    quotient_up,
    root_up,
    sum_up,
    up,
)

_ROUNDS, _FLAT = 300, 1e-7
# Norms that are computed enter error bounds with this factor, far above their own rounding.
_SAFE = 1.0 + 1e-6


def error_lower_bound(
    participation: Participation | None = None,
    *,
    n: int,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    workload: Workload | None = None,
    progress: Callable[[str], None] | None = None,
) -> float:
    """A lower bound on the RMSE of every strategy over n steps, if sigma equals the sensitivity.

    No invertible matrix C of any structure has a smaller `dpmech.rmse`, for models with at least n
    parameters. `dpmech.optimize(dm.Dense, ...)` comes close to this bound. The ratio of the error of a
    structured family to the bound shows how much another matrix could gain. The memory is that of a few n x n
    matrices. The time grows like n^3, from one second for 100 steps to minutes for 1000 steps.

    Args:
        participation: which examples take part when, not random; None is EveryStep. Under MinSep, the bound
            uses only sets of steps that are exactly `min_sep` apart, so it may be further below the best
            error than under other participations.
        n: number of steps, >= 1.
        adjacency: ADD_REMOVE, ZERO_OUT or REPLACE_ONE.
        workload: A; None is the prefix sum.
        progress: called with a line of text from time to time.

    Returns:
        The bound in units of the clip norm, rounding errors included.

    Raises:
        InvalidParameterError: if an argument is invalid, or the participation does not fit n.
        UnsupportedCombinationError: for random participations, because their sensitivity does not determine
            sigma.
        NumericalError: if an intermediate result is not finite.

    Examples:
        >>> import dpmech as dm
        >>> least = dm.error_lower_bound(dm.MinSep(10, 5), n=50)
        >>> fit = dm.optimize(dm.BLT, dm.MinSep(10, 5), n=50)
        >>> 1.0 < fit.error / least < 1.15
        True
    """
    steps = check_integer("n", n, minimum=1)
    own = EveryStep() if participation is None else check_participation(participation)
    if own.random:
        raise UnsupportedCombinationError(
            f"a lower bound on the error under {own!r}, whose sigma is not proportional to the sensitivity",
            supported="participations without sampling: EveryStep, SingleParticipation, MinSep, FixedEpochs",
        )
    sets = _sets(own.attained_pattern(steps), steps)
    matrix = check_workload(workload, steps).to_dense()
    try:
        nuclear, weight = _raised(matrix, sets, progress)
    except scipy.linalg.LinAlgError as error:
        raise NumericalError(f"no singular values of a matrix of {steps} steps: {error}") from None
    # Users and REPLACE_ONE multiply the sensitivity; that of the Identity is a multiple of sqrt(k).
    most = max(map(len, sets))
    times = quotient_down(sensitivity(Identity(steps), own, adjacency=adjacency).lower, root_up(float(most)))
    return quotient_down(product_down(nuclear, times), root_up(product_up(weight, float(steps))))


def _sets(pattern: Pattern, n: int) -> list[IntArray]:
    """Disjoint participation sets that cover all steps: each `min_sep` apart, with at most k steps."""
    apart, most = pattern.min_sep, pattern.max_participations
    lines = [np.arange(first, n, apart, dtype=np.int64) for first in range(min(apart, n))]
    return [line[start : start + most] for line in lines for start in range(0, line.size, most)]


def _raised(
    matrix: FloatArray, sets: list[IntArray], progress: Callable[[str], None] | None
) -> tuple[float, float]:
    """A lower bound on ||A L||_* for the best L found, and an upper bound on its weight T."""
    factor = _start(matrix, sets)
    before = 0.0
    for _ in range(_ROUNDS):
        left, values, right = scipy.linalg.svd(matrix @ factor, full_matrices=False)
        polar, value = left @ right, float(values.sum())
        if progress is not None:
            progress(f"lower bound {value / math.sqrt(matrix.shape[0]):.6g}")
        if not value > before * (1.0 + _FLAT):
            break
        before = value
        pulled = matrix.T @ polar
        following = np.zeros_like(factor)
        for own in sets:
            block = pulled[np.ix_(own, own)]
            norms = np.linalg.norm(block, axis=1)
            # Rows sqrt(p) u_i with u_i = h_i / ||h_i||, and sqrt(p) in proportion to the sum of the norms.
            following[np.ix_(own, own)] = block * (norms.sum() / np.where(norms > 0.0, norms, 1.0))[:, None]
        weight = _weight(following, sets)
        if not 0.0 < weight < math.inf:
            break
        factor = following / math.sqrt(weight)
    return _certified(matrix, factor, polar), _weight(factor, sets)


def _start(matrix: FloatArray, sets: list[IntArray]) -> FloatArray:
    """Gradients with the correlations of A^T A in every set, all sets with the same probability."""
    gram = matrix.T @ matrix
    scale = np.sqrt(np.where(np.diag(gram) > 0.0, np.diag(gram), 1.0))
    factor = np.zeros_like(gram)
    for own in sets:
        block = gram[np.ix_(own, own)] / np.outer(scale[own], scale[own])
        np.fill_diagonal(block, 1.0)
        values, vectors = np.linalg.eigh(block)
        rows = vectors * np.sqrt(np.maximum(values, 0.0))
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        factor[np.ix_(own, own)] = rows / np.where(norms > 0.0, norms, 1.0)
    return factor / math.sqrt(len(sets))


def _weight(factor: FloatArray, sets: list[IntArray]) -> float:
    """An upper bound on sum_s max_i ||L_i||^2."""
    squares = np.sum(factor**2, axis=1) * (1.0 + 4.0 * (factor.shape[0] + 4.0) * UNIT)
    return sum_up(float(squares[own].max()) for own in sets)


def _certified(matrix: FloatArray, factor: FloatArray, polar: FloatArray) -> float:
    """A lower bound on ||A L||_*: <A L, Q> / ||Q||, for any Q.

    In float64 a product of matrices has error at most n u / (1 - n u) |P| |Q| in every entry, in whatever
    order it is summed; the entries of A, all >= 0, have relative error at most 4 (n + 1) u from their
    recursions; and <B, Q> has error at most n^2 u / (1 - n^2 u) times ||B||_F ||Q||_F. The norm of Q is at
    most the square root of 1 + ||Q^T Q - 1||_F.

    Raises:
        NumericalError: if a norm is not finite.
    """
    n = matrix.shape[0]
    product = matrix @ factor
    size = float(np.linalg.norm(polar)) * _SAFE
    off = 16.0 * (n + 8.0) * UNIT * float(np.linalg.norm(matrix)) * float(np.linalg.norm(factor))
    off += 2.0 * (n * n + 8.0) * UNIT * float(np.linalg.norm(product))
    inner = float(np.vdot(product, polar)) - off * size * _SAFE
    gram = polar.T @ polar
    gram[np.diag_indices(n)] -= 1.0
    square = 1.0 + float(np.linalg.norm(gram)) * _SAFE + 4.0 * (n + 8.0) * UNIT * (size**2 + 1.0)
    if not (math.isfinite(inner) and math.isfinite(square)):
        raise NumericalError(f"a lower bound on the error over {n} steps left the range of float64")
    # 0 is below every error.
    return quotient_down(inner, root_up(next_up(square))) if inner > 0.0 else 0.0


# Steps up to which `optimize` computes the bound: a few seconds.
LARGEST_AUTOMATIC = 256


def gap_of(
    strategy: Strategy, participation: Participation, workload: Workload | None = None
) -> float | None:
    """How far the RMSE of a strategy on the prefix sum is above that of the best matrix, relative, at most.

    Args:
        strategy: C.
        participation: which examples take part when.
        workload: A; None is the prefix sum.

    Returns:
        A bound, rounded up: at every sigma / sensitivity and adjacency, as all matrices scale alike. None for
        random participations, other workloads, and where the lower bound would take more than a few seconds.
    """
    others = () if workload is None else (workload.rates, workload.coefs, workload.matrix)
    usual = workload is None or (workload.beta == 0.0 and all(one is None for one in others))
    if participation.random or not usual or strategy.n > LARGEST_AUTOMATIC:
        return None
    least = _known(participation, strategy.n)
    return max(0.0, next_up(quotient_up(rmse(strategy, participation) * _SAFE_ERROR, least) - 1.0))


def gap_words(gap: float) -> str:
    """A result of `gap_of` in words, rounded up."""
    return f"within {up(100.0 * gap, 2)} % of the best possible"


# The error is computed in float64, with a relative error far below this.
_SAFE_ERROR = 1.0 + 1e-9


@functools.lru_cache(maxsize=8)
def _known(participation: Participation, n: int) -> float:
    return error_lower_bound(participation, n=n)
