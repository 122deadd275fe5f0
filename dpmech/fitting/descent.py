"""Smallest error of a Toeplitz family without amplification: the error of its decoder, and the descent."""

import dataclasses
import enum
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.fitting.families import Family, Point
from dpmech.fitting.gram_gradient import BinForm, Cut, column_squares, leftmost_cut, worst_cut
from dpmech.mechanism import (
    ColumnNormalized,
    Participation,
    Pattern,
    Strategy,
    Workload,
    last_iterate_error,
    max_se,
    rmse,
)
from dpmech.numerics import FloatArray, cumulative_sum, toeplitz_matmul, up, windowed_sums

_BLOCK = 64


class Objective(enum.Enum):
    """The error to minimise: the RMSE over all steps, that of the worst step, or that of the last."""

    RMSE = "rmse"
    MAX_SE = "max_se"
    LAST = "last"

    @classmethod
    def check(cls, value: object) -> "Objective":
        """Return the objective with this name, else raise InvalidParameterError."""
        try:
            return cls(value)
        except ValueError:
            accepted = "one of " + ", ".join(repr(member.value) for member in cls)
            raise InvalidParameterError("objective", value, accepted) from None


@dataclasses.dataclass(frozen=True, eq=False)
class DecoderSquare:
    """A squared error and its gradient.

    Attributes:
        value: ||B||_F^2 / n, or the squared norm of the row selected by the objective.
        by_inverse: derivative with respect to the first column of T^-1, shape (n,).
        by_scale: derivative with respect to `row_scale`, shape (n,); None if that is None.
    """

    value: float
    by_inverse: FloatArray
    by_scale: FloatArray | None


def decoder_square(
    inverse: FloatArray, row_scale: FloatArray | None, workload: Workload, objective: Objective
) -> DecoderSquare:
    """The squared error of B = A diag(row_scale) LTT(inverse) and its gradient, by analytic adjoints.

    O(n log n) if B is Toeplitz, else O(n p) for p non-zero entries of `inverse` and the prefix sum with
    any rates, and O(n^2) otherwise.

    Args:
        inverse: first column of T^-1, shape (n,).
        row_scale: shape (n,); None for ones.
        workload: A.
        objective: which rows of B count.
    """
    if row_scale is None and workload.toeplitz:
        return _toeplitz(inverse, workload, objective)
    n = inverse.size
    scale = np.ones(n) if row_scale is None else row_scale
    squares = _row_squares(inverse, scale, workload)
    row = n - 1 if objective is Objective.LAST else int(squares.argmax())
    weights = np.full(n, 1.0 / n) if objective is Objective.RMSE else (np.arange(n) == row).astype(float)
    by_inverse, by_scale = _general_gradient(inverse, scale, workload, weights)
    return DecoderSquare(float(weights @ squares), by_inverse, None if row_scale is None else by_scale)


def _toeplitz(inverse: FloatArray, workload: Workload, objective: Objective) -> DecoderSquare:
    """B is Toeplitz with first column A d; the squares of each row are a prefix of the last one's."""
    n = inverse.size
    column = workload.matmul(inverse)
    weights = (n - np.arange(n)) / n if objective is Objective.RMSE else np.ones(n)
    square = float(cumulative_sum(weights * column**2)[-1])
    return DecoderSquare(square, workload.adjoint(2.0 * weights * column), None)


def _columns(inverse: FloatArray, scale: FloatArray, start: int, width: int) -> FloatArray:
    """Columns [start, start + width) of diag(scale) LTT(inverse), shape (n, width)."""
    n = inverse.size
    lags = np.arange(n)[:, None] - np.arange(start, start + width)[None, :]
    return np.asarray(np.where(lags >= 0, inverse[np.maximum(lags, 0)], 0.0) * scale[:, None])


def _row_squares(inverse: FloatArray, scale: FloatArray, workload: Workload) -> FloatArray:
    n = inverse.size
    squares = np.zeros(n)
    for start in range(0, n, _BLOCK):
        columns = _columns(inverse, scale, start, min(_BLOCK, n - start))
        squares += np.sum(workload.matmul(columns) ** 2, axis=1)
    return squares


def _general_gradient(
    inverse: FloatArray, scale: FloatArray, workload: Workload, weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Gradient of sum_i weights_i ||B_i||^2 in the inverse and in the scales, in blocks of columns of B."""
    n = inverse.size
    by_inverse, by_scale = np.zeros(n), np.zeros(n)
    for start in range(0, n, _BLOCK):
        width = min(_BLOCK, n - start)
        columns = _columns(inverse, scale, start, width)
        back = workload.adjoint(2.0 * weights[:, None] * workload.matmul(columns))
        by_scale += np.sum(back * columns, axis=1) / scale
        scaled = back * scale[:, None]
        for offset in range(width):
            by_inverse[: n - start - offset] += scaled[start + offset :, offset]
    return by_inverse, by_scale


_HUGE = 1e10
_LARGEST = 1e8
_SHARPNESS = 1500.0
_ROUNDS = 6
_CLOSE = 2e-7
_WORTH = 1e-4
_STEPS = (4000, 400)
_FORM_STEPS = 150
_ATTEMPTS = 3
# Work (row by row of C^T C) above which the bound from the monotone envelope is optimised instead of cuts.
_CUT_WORK = 2_000_000_000


@dataclasses.dataclass(frozen=True)
class Problem:
    """The setting of a fit.

    Args:
        participation: which examples take part when; not random.
        n: number of steps.
        workload: A.
        objective: the error to minimise.
        column_normalized: whether the columns are scaled to norm 1.
    """

    participation: Participation
    n: int
    workload: Workload
    objective: Objective
    column_normalized: bool

    @property
    def pattern(self) -> Pattern:
        """The participation sets."""
        return self.participation.pattern(self.n)

    def finished(self, strategy: Strategy) -> Strategy:
        """The strategy, column-normalised if requested."""
        return ColumnNormalized(strategy) if self.column_normalized else strategy


def certified_error(problem: Problem, strategy: Strategy) -> float:
    """The error that the public functions return, with the upper end of the sensitivity."""
    measure = {Objective.RMSE: rmse, Objective.MAX_SE: max_se, Objective.LAST: last_iterate_error}
    return measure[problem.objective](strategy, problem.participation, workload=problem.workload)


class _Mode(enum.Enum):
    """How the squared sensitivity is bounded; each way is a theorem or bound of `mechanism.sensitivities`."""

    COLUMNS = "squared column norms add"
    ALL = "all columns of |C|"
    ENVELOPE = "leftmost columns of the monotone envelope"
    CUTS = "maximum over cuts"


def _mode(problem: Problem, family: Family, bands: int | None) -> _Mode:
    pattern, n = problem.pattern, problem.n
    b, k = pattern.min_sep, pattern.max_participations
    if k == 1 or (bands is not None and bands <= b):
        return _Mode.COLUMNS
    if b == 1 and k == n:
        return _Mode.ALL
    monotone = family.lower is not None or not hasattr(family, "bands")
    if (monotone and not problem.column_normalized) or n * n * k > _CUT_WORK:
        return _Mode.ENVELOPE
    return _Mode.CUTS


@dataclasses.dataclass(eq=False)
class _Loss:
    """Half the logarithm of the squared error, and its gradient in the parameters."""

    problem: Problem
    family: Family
    mode: _Mode
    cuts: list[Cut | BinForm] = dataclasses.field(default_factory=list)

    def __call__(self, x: FloatArray) -> tuple[float, FloatArray]:
        """Value and gradient; a very large value if a series overflows."""
        try:
            point = self.family.point(x)
        except NumericalError:
            return _HUGE, np.zeros_like(x)
        if max(np.abs(point.coefs).max(), np.abs(point.inverse).max()) > _LARGEST:
            return _HUGE, np.zeros_like(x)
        value, by_coefs, by_inverse = self._at(point)
        gradient = self.family.pull(x, point, by_coefs, by_inverse)
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            return _HUGE, np.zeros_like(x)
        return value, gradient

    def _at(self, point: Point) -> tuple[float, FloatArray, FloatArray]:
        squares = column_squares(point.coefs)
        scale = squares**-0.5 if self.problem.column_normalized else None
        row_scale = None if scale is None else squares**0.5
        decoder = decoder_square(point.inverse, row_scale, self.problem.workload, self.problem.objective)
        square, by_coefs, by_scale = self.sensitivity(point.coefs, scale)
        by_coefs = by_coefs / (2.0 * square)
        if scale is not None and decoder.by_scale is not None:
            # Scales are powers -1/2 and 1/2 of the squared norms, sums of squares of the coefficients.
            by_squares = decoder.by_scale / (2.0 * decoder.value) * 0.5 * squares**-0.5
            by_squares = by_squares - by_scale / (2.0 * square) * 0.5 * squares**-1.5
            by_coefs = by_coefs + 2.0 * point.coefs * np.cumsum(by_squares)[::-1]
        value = 0.5 * np.log(decoder.value) + 0.5 * np.log(square)
        return float(value), by_coefs, decoder.by_inverse / (2.0 * decoder.value)

    def sensitivity(
        self, coefs: FloatArray, scale: FloatArray | None
    ) -> tuple[float, FloatArray, FloatArray]:
        """Squared bound, and its gradient in the coefficients and the scales."""
        n, pattern = coefs.size, self.problem.pattern
        b, k = pattern.min_sep, pattern.max_participations
        none = np.zeros(n)
        if self.mode is _Mode.COLUMNS:
            if scale is not None:
                return float(min(k, -(-n // b))), none, none
            starts = np.arange(0, n, b)[:k]
            counts = np.searchsorted(starts, n - np.arange(n))
            return float(counts @ coefs**2), 2.0 * counts * coefs, none
        if self.mode is _Mode.ALL:
            factors = np.ones(n) if scale is None else scale
            total = toeplitz_matmul(np.abs(coefs), factors)
            by_coefs = 2.0 * _correlated(total, factors) * np.sign(coefs)
            return float(total @ total), by_coefs, 2.0 * _correlated(total, np.abs(coefs))
        if self.mode is _Mode.ENVELOPE:
            return _envelope(coefs, scale, pattern)
        values = [cut.at(coefs, scale) for cut in self.cuts]
        logs = np.log([one.value for one in values])
        shares = np.exp(_SHARPNESS * (logs - logs.max()))
        square = float(np.exp(logs.max() + np.log(shares.sum()) / _SHARPNESS))
        shares = shares / shares.sum() * square / np.exp(logs)
        by_coefs = sum((s * one.by_coefs for s, one in zip(shares, values, strict=True)), none)
        scales = [none if one.by_scale is None else one.by_scale for one in values]
        return square, by_coefs, sum((s * one for s, one in zip(shares, scales, strict=True)), none)


def _envelope(
    coefs: FloatArray, scale: FloatArray | None, pattern: Pattern
) -> tuple[float, FloatArray, FloatArray]:
    """The leftmost columns of the smallest non-increasing sequence above |c|, times the largest scale."""
    n = coefs.size
    sizes = np.abs(coefs)[::-1]
    running = np.maximum.accumulate(sizes)
    new = np.concatenate([[True], running[1:] > running[:-1]])
    source = (n - 1 - np.maximum.accumulate(np.where(new, np.arange(n), 0)))[::-1]
    envelope = running[::-1]
    b, k = pattern.min_sep, pattern.max_participations
    total = windowed_sums(envelope[::-1], b, k)[::-1]
    factor = 1.0 if scale is None else float(scale.max())
    by_envelope = 2.0 * factor**2 * windowed_sums(total, b, k)
    by_coefs = np.bincount(source, weights=by_envelope, minlength=n).astype(np.float64) * np.sign(coefs)
    square = float(total @ total)
    by_scale = np.zeros(n)
    if scale is not None:
        by_scale[int(scale.argmax())] = 2.0 * factor * square
    return factor**2 * square, by_coefs, by_scale


def _correlated(y: FloatArray, x: FloatArray) -> FloatArray:
    """g_t = sum_j y_(t + j) x_j."""
    return toeplitz_matmul(np.asarray(x), y[::-1])[::-1]


def fit_family(
    problem: Problem, family: Family, bands: int | None, progress: Callable[[str], None]
) -> tuple[Strategy, float]:
    """The visited member with the smallest certified error, and that error.

    From every start: minimise the bound; if it is a maximum over cuts, add the cut that attains the certified
    bound and repeat until both agree. Candidates are compared by `certified_error` only.

    Args:
        problem: the setting of the fit.
        family: the parametrisation.
        bands: bands of C if it is banded, else None.
        progress: called for every candidate.
    """
    mode = _mode(problem, family, bands)
    best: tuple[Strategy, float] | None = None
    for start in family.starts():
        loss = _Loss(problem, family, mode, [leftmost_cut(problem.n, problem.pattern)])
        x, previous = start, np.inf
        for round_ in range(_ROUNDS if mode is _Mode.CUTS else 1):
            x = _descended(loss, x, _STEPS[min(round_, 1)])
            strategy = problem.finished(family.strategy(x))
            error = certified_error(problem, strategy)
            progress(f"{type(strategy).__name__}: {up(error)}")
            if best is None or error < best[1]:
                best = (strategy, error)
            gap = np.log(error) - loss(x)[0]
            if mode is not _Mode.CUTS or gap < _CLOSE or error > previous * (1.0 - _WORTH):
                break
            previous = error
            loss.cuts.append(worst_cut(strategy, problem.pattern))
    if best is None:
        raise NumericalError(f"no starting point for {family!r}")
    return best


def fit_form(problem: Problem, family: Family, form: BinForm, start: FloatArray) -> tuple[FloatArray, float]:
    """Parameters of the smallest error if the squared sensitivity is a quadratic form.

    Args:
        problem: the setting of the fit, without column scales.
        family: the parametrisation.
        form: the quadratic form.
        start: the starting point.

    Returns:
        The parameters, and the change of the log error, at most 0.
    """
    loss = _Loss(problem, family, _Mode.CUTS, [form])
    x = _descended(loss, start, _FORM_STEPS)
    return x, loss(x)[0] - loss(start)[0]


def _descended(loss: _Loss, start: FloatArray, steps: int) -> FloatArray:
    """Parameters of a local minimum: L-BFGS-B in scaled variables, restarted if a line search fails."""
    family = loss.family
    best, scale = start, family.scale
    bounds = [(family.lower, family.upper)] * start.size
    for _ in range(_ATTEMPTS):
        factor = scale

        def scaled(z: FloatArray, factor: float = factor) -> tuple[float, FloatArray]:
            value, gradient = loss(z / factor)
            return value, gradient / factor

        found = scipy.optimize.minimize(
            scaled,
            best * factor,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": steps, "maxfun": 2 * steps, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-8},
        )
        x = np.asarray(found.x / factor, dtype=np.float64)
        if loss(x)[0] <= loss(best)[0]:
            best = x
        if found.success or found.nit > 100:
            break
        scale *= 10.0
    return best
