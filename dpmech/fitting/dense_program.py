r"""The best strategy without Toeplitz structure: the convex program in X = C^T C.

For C with p <= b bands the columns of one participation set share no row, so the squared sensitivity
is the largest sum of diagonal entries of X over the sets, exactly. So it is for any number of bands if the
sets are {s, s + b, ...} and all entries of X a multiple of b off the diagonal are 0: columns of one set are
orthogonal, whatever the signs. The error is tr(M X^-1) with M = A^T A,
convex in X; entries p or more off the diagonal are 0 too. C is the lower-triangular factor with C^T C = X,
which is the Cholesky factor of X with rows and columns reversed (that of X itself would have rows, not
columns, of the required norms). Under Balls-in-Bins a linear form in X replaces the squared sensitivity,
and the program is again convex.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.fitting.descent import Objective, Problem, certified_error
from dpmech.mechanism import Dense, Strategy
from dpmech.numerics import FloatArray, up, windowed_sums

LARGEST_DENSE = 4096
_MEMORY = 12
# Of the smooth maximum over sets, for the first stages and, where sets are few, for later ones.
_SHARPNESS, _SHARPER = 200.0, (10.0, 100.0, 1000.0)
_ITERATIONS = (150, 100)
_FORM_ITERATIONS = 60
_FLAT = 1e-7


def fit_dense(
    problem: Problem, bands: int, start: Strategy, progress: Callable[[str], None]
) -> tuple[Strategy, float]:
    """The best C with at most `bands` bands, and its certified error.

    First with unit columns, where the program is convex and any descent reaches its minimum; then with
    free column norms, which helps if later columns may be larger than earlier ones.

    Args:
        problem: the setting of the fit; column normalisation stops after the first stage.
        bands: p <= b, or any number if every example takes part in one step, or in steps that are exactly b
            apart.
        start: a strategy with at most min(p, b) bands.
        progress: called for every stage.
    """
    dense = start.to_dense() / start.column_norms()
    gram = dense.T @ dense
    best: tuple[Strategy, float] | None = None
    stages = [(False, _SHARPNESS), (True, _SHARPNESS)]
    if problem.pattern.evenly_spaced:
        stages += [(True, _SHARPNESS * factor) for factor in _SHARPER]
    for free, sharpness in stages:
        if free and (problem.column_normalized or problem.pattern.max_participations == 1):
            break
        program = _Program(problem, bands, free=free, sharpness=sharpness)
        gram = _minimised(program, gram, _ITERATIONS[free])
        strategy = Dense(_factor(gram))
        error = certified_error(problem, strategy)
        progress(f"Dense, {'free' if free else 'unit'} columns: {up(error)}")
        if best is None or error < best[1]:
            best = (strategy, error)
    if best is None:
        raise NumericalError("the dense program found nothing")
    return best


def fit_dense_form(
    problem: Problem, bands: int, responsible: FloatArray, start: Strategy
) -> tuple[Callable[[float], Strategy], float]:
    """The best X if the squared sensitivity is <W, G>, W = V^T V, with G the Gram matrix of the bins.

    Negative entries of the resulting C are set to 0.

    Args:
        problem: the setting of the fit.
        bands: p.
        responsible: V, shape (m, b).
        start: a strategy with at most p bands.

    Returns:
        The strategies between the start (0) and the best one (1), and the change of the log error, at most 0.
    """
    n = problem.n
    bin_of = np.arange(n) % responsible.shape[1]
    form = (responsible.T @ responsible)[np.ix_(bin_of, bin_of)]
    program = _Program(problem, bands, free=True, form=form)
    dense = start.to_dense()
    before = dense.T @ dense
    after = _minimised(program, before, _FORM_ITERATIONS)
    gain = 0.5 * (program.value(after) - program.value(before))

    def between(share: float) -> Strategy:
        return Dense(np.maximum(_factor(before + share * (after - before)), 0.0))

    return between, gain


def _factor(gram: FloatArray) -> FloatArray:
    """The lower-triangular C with C^T C = X."""
    lower = scipy.linalg.cholesky(gram[::-1, ::-1], lower=True)
    return np.ascontiguousarray(lower.T[::-1, ::-1])


@dataclasses.dataclass(eq=False)
class _Program:
    """log error^2 + log sensitivity^2 of X, and the gradient in its free entries."""

    problem: Problem
    bands: int
    free: bool
    form: FloatArray | None = None
    sharpness: float = _SHARPNESS

    def __post_init__(self) -> None:
        n = self.problem.n
        self.workload = self.problem.workload.to_dense()
        lags = np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])
        self.mask = lags < self.bands
        if self.problem.pattern.evenly_spaced and self.form is None:
            self.mask &= (lags == 0) | (lags % self.problem.pattern.min_sep != 0)
        if not self.free:
            self.mask[np.diag_indices(n)] = False

    def value(self, gram: FloatArray) -> float:
        """Value at a positive definite X.

        Raises:
            NumericalError: if X is not positive definite.
        """
        found = self(gram)
        if found is None:
            raise NumericalError("the dense program left the positive definite matrices")
        return found[0]

    def __call__(self, gram: FloatArray) -> tuple[float, FloatArray] | None:
        """Value and gradient, or None if X is not positive definite."""
        try:
            factor = scipy.linalg.cho_factor(gram, lower=True)
        except scipy.linalg.LinAlgError:
            return None
        solved = scipy.linalg.cho_solve(factor, self.workload.T)
        errors = np.sum(self.workload.T * solved, axis=0)
        # Rows of zeros in A have no error.
        if not (np.all(errors >= 0.0) and errors.max() > 0.0):
            return None
        if self.problem.objective is Objective.MAX_SE:
            top, some, weights = errors.max(), errors > 0.0, np.zeros(errors.size)
            shares = np.exp(self.sharpness * np.log(errors[some] / top))
            value = float(np.log(top) + np.log(shares.sum()) / self.sharpness)
            weights[some] = shares / shares.sum() / errors[some]
        else:
            weights = self._weights(errors)
            value = float(np.log(weights @ errors))
            weights = weights / (weights @ errors)
        gradient = -(solved * weights) @ solved.T
        if self.form is not None:
            square = float(np.vdot(self.form, gram))
            value += float(np.log(square))
            gradient += self.form / square
        elif self.free:
            square, by_diagonal = self._sensitivity(np.diag(gram))
            value += square
            gradient[np.diag_indices_from(gradient)] += by_diagonal
        return value, np.where(self.mask, gradient, 0.0)

    def _weights(self, errors: FloatArray) -> FloatArray:
        if self.problem.objective is Objective.RMSE:
            return np.full(errors.size, 1.0 / errors.size)
        weights = np.zeros(errors.size)
        weights[-1] = 1.0
        return weights

    def _sensitivity(self, diagonal: FloatArray) -> tuple[float, FloatArray]:
        """Log of a smooth maximum over the sets {s, s + b, ...}, and its gradient."""
        pattern, n = self.problem.pattern, diagonal.size
        sums = windowed_sums(diagonal, pattern.min_sep, pattern.max_participations)
        logs = np.log(sums)
        shares = np.exp(self.sharpness * (logs - logs.max()))
        value = float(logs.max() + np.log(shares.sum()) / self.sharpness)
        by_sums = shares / shares.sum() / sums
        spread = windowed_sums(by_sums[::-1], pattern.min_sep, pattern.max_participations)[::-1]
        return value, spread[:n]


def _minimised(program: _Program, start: FloatArray, steps: int) -> FloatArray:
    """L-BFGS over X with backtracking into the positive definite matrices."""
    found = program(start)
    if found is None:
        raise NumericalError("the start of the dense program is not positive definite")
    here, (value, gradient) = start, found
    moves: list[tuple[FloatArray, FloatArray, float]] = []
    for _ in range(steps):
        direction = -_recursion(gradient, moves)
        slope = float(np.vdot(direction, gradient))
        if slope >= 0.0:
            moves.clear()
            direction, slope = -gradient, -float(np.vdot(gradient, gradient))
        step = 1.0 if moves else min(1.0, 0.1 / max(float(np.abs(gradient).max()), 1e-300))
        tried = None
        for _ in range(40):
            trial = here + step * direction
            tried = program(trial)
            if tried is not None and tried[0] <= value + 1e-4 * step * slope:
                break
            step *= 0.5
        if tried is None or tried[0] >= value:
            break
        change, turn = trial - here, tried[1] - gradient
        curvature = float(np.vdot(change, turn))
        if curvature > 0.0:
            moves = [*moves[-_MEMORY + 1 :], (change, turn, curvature)]
        gained = value - tried[0]
        here, value, gradient = trial, tried[0], tried[1]
        if gained < _FLAT:
            break
    return here


def _recursion(gradient: FloatArray, moves: list[tuple[FloatArray, FloatArray, float]]) -> FloatArray:
    """The inverse Hessian of the last moves applied to the gradient."""
    q = gradient.copy()
    factors = []
    for change, turn, curvature in reversed(moves):
        factor = float(np.vdot(change, q)) / curvature
        q -= factor * turn
        factors.append(factor)
    if moves:
        change, turn, curvature = moves[-1]
        q *= curvature / float(np.vdot(turn, turn))
    for (change, turn, curvature), factor in zip(moves, reversed(factors), strict=True):
        q += (factor - float(np.vdot(turn, q)) / curvature) * change
    return q
