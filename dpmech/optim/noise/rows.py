r"""Rows of C^-1 Z from rows of Z: which rows a step combines, and the state that it keeps.

Rows are computed in float64, so that the noise is that of the certified C: weights or states in
float32 would be those of another C, whose sensitivity may be larger by percents. Normal numbers are data and
may have any precision.

For every recursion a bound shows how much less noise than certified float64 rounding can leave.
The certified mechanism releases C G + sigma Z, that is G + sigma C^-1 Z. A recursion in float64 applies
another matrix M instead of C^-1, which depends on the rounding. Each function here bounds the
spectral norm of F in C M = I + F (rows combined with weights from C^-1), or in M^-1 = (I + F) C (forward
substitution). Then C G + sigma (I + F) Z, or C G + sigma (I + F)^-1 Z, is released, and as

    (I + F)(I + F)^T >= (1 - |F|)^2 I,    ((I + F)^T (I + F))^-1 >= (1 + |F|)^-2 I,

it is the certified mechanism at sigma (1 - |F|) or more, with additional independent Gaussian noise: it
reveals no more, for any participation and any sampling. Scaling all noise by 1 + 2 |F| thus restores the
claim.

Entrywise |F| is at most k units of rounding of |C| |C^-1|, k the roundings of a row; for Toeplitz
matrices the spectral norm is at most the sum of absolute coefficients (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1, Theorems 8.5 and 24.2).
"""

import abc
import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy
import torch

from dpmech.exceptions import InvalidParameterError, NumericalError, UnsupportedCombinationError
from dpmech.mechanism import ScaledToeplitz, Strategy, noise_cost
from dpmech.numerics import LONGDOUBLE_UNIT, FloatArray, trimmed

LARGEST = 1e-6  # relative; above it a stream is refused

_UNIT = 2.0**-53
_SLACK = 1.0 + 1e-6  # for the float64 sums of up to 1e9 terms in the bounds themselves
_DIRECT_WORK = 50_000_000
# Roundings of a row in addition to those of its terms: the weight, its factor and its share of the scale.
_FACTORS = 8


def checked_error(error: float, strategy: Strategy, mode: str) -> float:
    """Return a bound on |F|, or raise NumericalError if it is above `LARGEST`."""
    if not error <= LARGEST:  # NaN too
        raise NumericalError(
            f"roundings of float64 may leave {error:.1e} less noise than certified, relative (at most "
            f"{LARGEST:g} is accepted), if NoiseMode.{mode} forms rows for {strategy!r}: C amplifies "
            "them; another NoiseMode, fewer steps or weaker correlation may help"
        )
    return error


def combination_error(strategy: Strategy, weights: FloatArray | None) -> float:
    """For rows sum_j w_j z_(t - j): the distance of the weights from C^-1, and the rounding of the sum.

    Args:
        strategy: C.
        weights: the matrix of weights, shape (n, n), if C has no Toeplitz form; else None.
    """
    residual, condition = _residual_and_condition(strategy, weights)
    factors = strategy.factored
    terms = strategy.n if factors is None else trimmed(factors.inverse_coefs).size
    return (residual + _gamma(terms + _FACTORS) * condition) * _SLACK


def substitution_error(strategy: Strategy, width: int) -> float:
    """For forward substitution with `width` bands: (C + D) y = z with |D| <= k units of |C|."""
    residual, condition = _residual_and_condition(strategy, None)
    return _gamma(2 * (width + _FACTORS)) * condition * _over(residual)


def exponentials_error(factors: ScaledToeplitz, decays: FloatArray, weights: FloatArray) -> float:
    """For the buffers b_j of a BLT, whose rounding errors decay slowly.

    b_j of the next step is d_j b_j + u rounded twice, so it contains a sum of rounding errors, each relative
    to a b_j and decaying with d_j: at most 2 units, times 1 / (1 - d_j) or n, times b_j. As b_j = B_j C^-1 z,
    its contribution to F is |s_j| times that sum times the absolute coefficients of B_j C^-1, for any d_j.
    """
    inverse = factors.inverse_coefs
    row = _gamma(2 * (decays.size + _FACTORS))
    total = row * _sum(inverse) + _gamma(_FACTORS) * _condition(factors)
    for decay, weight in zip(decays.tolist(), weights.tolist(), strict=True):
        memory = _memory(decay, inverse.size)
        carried = 2.0 * _gamma(2) * memory
        response = scipy.signal.lfilter([0.0, 1.0], [1.0, -decay], inverse)
        total += abs(weight) * _sum(response) * (row + carried) / (1.0 - carried)
    return total * _over(_residual(factors))


# ---- parts of the bounds


def _residual_and_condition(strategy: Strategy, inverse: FloatArray | None) -> tuple[float, float]:
    """Upper bounds on the norms of C M - I and |C| |M|, with M the computed inverse."""
    factors = strategy.factored
    if factors is not None:
        return _residual(factors), _condition(factors)
    matrix = strategy.to_dense()
    inverse = strategy.solve(np.eye(strategy.n)) if inverse is None else inverse
    return _dense_residual(matrix, inverse), _dense_product(matrix, inverse)


def _gamma(count: int) -> float:
    """Relative error of `count` successive roundings."""
    return count * _UNIT / (1.0 - count * _UNIT)


def _memory(decay: float, steps: int) -> float:
    """Upper bound on the sum of the powers of a decay in [0, 1]."""
    return float(steps) if decay == 1.0 else min(float(steps), 1.0 / (1.0 - decay))


def _sum(coefs: FloatArray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.abs(coefs).sum())


def _condition(factors: ScaledToeplitz) -> float:
    """Upper bound on the norm of |C| |C^-1|, in which the scale cancels."""
    return _sum(factors.coefs) * _sum(factors.inverse_coefs)


def _over(residual: float) -> float:
    """Factor that turns a bound in terms of the computed inverse into one for the true inverse."""
    return math.inf if not residual <= LARGEST else _SLACK / (1.0 - residual)


def _residual(factors: ScaledToeplitz) -> float:
    """Upper bound on the norm of C M - I, M from the inverse coefficients, including its rounding errors."""
    coefs, inverse, n = factors.coefs, factors.inverse_coefs, factors.n
    short, long = sorted((trimmed(coefs), trimmed(inverse)), key=np.size)
    with np.errstate(over="ignore", invalid="ignore"):
        product: np.ndarray[Any, Any]
        if short.size * n <= _DIRECT_WORK:
            wide = np.zeros(n, np.longdouble)
            wide[: long.size] = long
            product = scipy.signal.lfilter(short.astype(np.longdouble), np.ones(1, np.longdouble), wide)
            own = (short.size + 2) * LONGDOUBLE_UNIT * _condition(factors)
        elif factors.exponentials is not None:
            product, own = _exponentials_product(inverse, *factors.exponentials)
        else:
            product = scipy.signal.fftconvolve(coefs, inverse)[:n]
            # Three transforms, each with a relative error of at most 8 units per level in the 2-norm.
            size = math.log2(2 * n) * 24.0 * _UNIT
            own = size * math.sqrt(n) * (_norm(coefs) * _sum(inverse) + _sum(coefs) * _norm(inverse))
        product[0] -= 1.0
        return float(np.abs(product).sum()) + own


def _exponentials_product(
    inverse: FloatArray, decays: FloatArray, weights: FloatArray
) -> tuple[np.ndarray[Any, Any], float]:
    """C times the inverse coefficients through one filter per decay, and a bound on its errors."""
    product = inverse.astype(np.longdouble)
    own = 0.0
    for decay, weight in zip(decays.tolist(), weights.tolist(), strict=True):
        response = scipy.signal.lfilter(
            np.array([0.0, 1.0], np.longdouble), np.array([1.0, -decay], np.longdouble), inverse
        )
        product = product + weight * response
        memory = _memory(decay, inverse.size)
        own += abs(weight) * _sum(response) * (2.0 * memory + decays.size + 2.0)
    return np.asarray(product), 2.0 * LONGDOUBLE_UNIT * (own + _sum(inverse) * (decays.size + 2.0))


def _norm(coefs: FloatArray) -> float:
    return float(np.linalg.norm(coefs))


def _dense_residual(matrix: FloatArray, inverse: FloatArray) -> float:
    residual = matrix @ inverse - np.eye(len(matrix))
    return _spectral(np.abs(residual)) + _gamma(len(matrix) + 1) * _dense_product(matrix, inverse)


def _dense_product(matrix: FloatArray, inverse: FloatArray) -> float:
    """Upper bound on the norm of |C| |C^-1|, by its largest row and column sums."""
    a, b, ones = np.abs(matrix), np.abs(inverse), np.ones(len(matrix))
    return math.sqrt(float((a @ (b @ ones)).max()) * float(((ones @ a) @ b).max()))


def _spectral(absolute: FloatArray) -> float:
    return math.sqrt(float(absolute.sum(axis=0).max()) * float(absolute.sum(axis=1).max()))


Draw: TypeAlias = Callable[[int, torch.Tensor], None]


class NoiseMode(enum.Enum):
    """How a stream computes its rows; all modes give the same distribution.

    `REGENERATE` regenerates, at every step, the rows of Z that a row of C^-1 combines: no memory, one draw
    for every entry of that row. `BUFFER` stores them: one draw per step, one vector for every further entry.
    `RECURSION` solves C y = z: one draw per step, one vector for every further band of C or buffer of a BLT.
    """

    REGENERATE = "regenerate"
    BUFFER = "buffer"
    RECURSION = "recursion"


class Kind(enum.Enum):
    """What a row combines: past rows of Z, regenerated or kept, past rows before their scale, or buffers."""

    REGENERATED = 0
    KEPT = 1
    SUBSTITUTION = 2
    EXPONENTIALS = 3


@dataclasses.dataclass(frozen=True)
class Terms:
    """The numbers with which `Recursion.advance` forms a row, for a kernel that does the same.

    Attributes:
        weights: of the row; of buffers the weights, then the decays.
        scale: None if the weights are multiplied by the factor; else the row is, by factor / scale.
    """

    weights: list[float]
    scale: float | None


class Chunk(NamedTuple):
    """The memory in which a part of a row is formed.

    Attributes:
        state: `Recursion.vectors` tensors, zero before step 0.
        out: for the row, float64.
        spare: like `out`, in the dtype of the normal numbers; it is overwritten.
        product: None, or like `out`, to round every product before it is added: the row then has the same
            bits on every device. Without it, processors that can fuse the two round once.
    """

    state: Sequence[torch.Tensor]
    out: torch.Tensor
    spare: torch.Tensor
    product: torch.Tensor | None = None

    def add(self, vector: torch.Tensor, weight: float) -> None:
        """Add `weight` times a vector to `out`: sums of float64 and float32 are computed in float64."""
        if self.product is None:
            self.out.add_(vector, alpha=weight)
        else:
            self.out.add_(self.product.copy_(vector).mul_(weight))


class Recursion(abc.ABC):
    """A method to compute row t of C^-1 Z in float64, a chunk at a time.

    Attributes:
        vectors: number of state vectors of every parameter.
        wide: whether the state is float64; else it has the dtype of the normal numbers.
        error: how much less noise than that of C rounding can leave, relative: a proved bound.
        kind: what a row combines.
    """

    kind: Kind
    vectors: int
    wide: bool
    error: float

    @abc.abstractmethod
    def advance(self, step: int, factor: float, draw: Draw, chunk: Chunk) -> None:
        """Overwrite `out` of a chunk with `factor` times row `step`, and advance its state by one step.

        Args:
            step: t, called once for every t in order.
            factor: the standard deviation of Z in this row; the state does not depend on it.
            draw: draw(s, x) overwrites x with row s of Z.
            chunk: of a vector.
        """

    @abc.abstractmethod
    def terms(self, step: int) -> Terms:
        """The numbers of row `step`."""


class _Weighted(Recursion):
    """Rows with weights, of past rows of Z that are regenerated or kept, or of past rows before their scale.

    The first is out = sum_j w_j z_(t - j) with weights from C^-1. The second is forward substitution,
    u_t = w_0 z_t + sum_j w_j u_(t - j), out = u_t / scale_t.

    Args:
        kind: what is combined.
        rows: the weights of a step, the newest row first.
        width: largest number of weights.
        error: as in the base class.
        scale: for substitution, of every step.
    """

    def __init__(
        self,
        kind: Kind,
        rows: Callable[[int], FloatArray],
        width: int,
        error: float,
        scale: FloatArray | None = None,
    ) -> None:
        self._rows = rows
        self._scale = scale
        self.kind = kind
        self.vectors = 0 if kind is Kind.REGENERATED else width - 1
        self.wide = kind is Kind.SUBSTITUTION
        self.error = error

    def terms(self, step: int) -> Terms:
        """As in the base class."""
        return Terms(self._rows(step).tolist(), None if self._scale is None else float(self._scale[step]))

    def advance(self, step: int, factor: float, draw: Draw, chunk: Chunk) -> None:
        state, out, spare, _ = chunk
        weights = (self._rows(step) * (factor if self._scale is None else 1.0)).tolist()
        draw(step, spare)
        if spare.dtype == out.dtype:
            torch.mul(spare, weights[0], out=out)
        else:
            out.copy_(spare).mul_(weights[0])
        for lag, weight in enumerate(weights[1:], start=1):
            if weight == 0.0 and self._scale is None:
                continue
            if not state:
                draw(step - lag, spare)
            chunk.add(state[(step - lag) % self.vectors] if state else spare, weight)
        if state:
            state[step % self.vectors].copy_(spare if self._scale is None else out)
        if self._scale is not None:
            out.mul_(factor / float(self._scale[step]))


class _Exponentials(Recursion):
    """The same for coefficients 1, sum_j s_j d_j^(t - 1): one buffer per decay represents the past."""

    kind = Kind.EXPONENTIALS
    wide = True

    def __init__(self, decays: FloatArray, weights: FloatArray, scale: FloatArray, error: float) -> None:
        self._decays = decays.tolist()
        self._weights = weights.tolist()
        self._scale = scale
        self.vectors = len(self._decays)
        self.error = error

    def terms(self, step: int) -> Terms:
        """As in the base class."""
        return Terms(self._weights + self._decays, float(self._scale[step]))

    def advance(self, step: int, factor: float, draw: Draw, chunk: Chunk) -> None:
        state, out, spare, product = chunk
        draw(step, spare)
        out.copy_(spare)
        for buffer, weight in zip(state, self._weights, strict=True):
            chunk.add(buffer, -weight)
        for buffer, decay in zip(state, self._decays, strict=True):
            if product is None:
                torch.add(out, buffer, alpha=decay, out=buffer)
            else:
                buffer.mul_(decay).add_(out)
        out.mul_(factor / float(self._scale[step]))


def correlate(strategy: Strategy, mode: NoiseMode | None = None) -> tuple[NoiseMode, Recursion]:
    """The recursion of a strategy.

    Args:
        strategy: C.
        mode: None for that of `noise_cost`: the mode without memory if C^-1 is banded and C does not have
            fewer bands, a short recursion if C is banded or a BLT, and regeneration of full rows otherwise
            (t + 1 draws at step t).

    Returns:
        The mode chosen, and the recursion.

    Raises:
        InvalidParameterError: if mode is not a NoiseMode.
        UnsupportedCombinationError: for RECURSION if C is neither banded nor a BLT.
        NumericalError: if roundings of float64 may leave more than 1e-6 less noise than certified.
    """
    if mode is not None and not isinstance(mode, NoiseMode):
        raise InvalidParameterError("mode", mode, "None or a dpmech.optim.NoiseMode")
    factors = strategy.factored
    recursive = strategy.bands is not None or (factors is not None and factors.exponentials is not None)
    if mode is None:
        mode = NoiseMode.RECURSION if noise_cost(strategy).buffers else NoiseMode.REGENERATE
    if mode is not NoiseMode.RECURSION:
        recursion = _combination(strategy, keep=mode is NoiseMode.BUFFER)
    elif recursive:
        recursion = _substitution(strategy)
    else:
        raise UnsupportedCombinationError(
            f"C of {strategy!r} is neither banded nor a BLT",
            supported="NoiseMode.REGENERATE and NoiseMode.BUFFER",
        )
    checked_error(recursion.error, strategy, mode.name)
    return mode, recursion


def _combination(strategy: Strategy, *, keep: bool) -> Recursion:
    width = strategy.n if strategy.inverse_bands is None else strategy.inverse_bands
    kind = Kind.KEPT if keep and width > 1 else Kind.REGENERATED  # without a past nothing is kept
    factors = strategy.factored
    if factors is not None:
        inverse, scale = factors.inverse_coefs[:width], factors.scales()
        error = combination_error(strategy, None)
        return _Weighted(kind, lambda step: inverse[: step + 1] / scale[step], width, error)
    matrix = strategy.solve(np.eye(strategy.n))
    error = combination_error(strategy, matrix)
    return _Weighted(kind, lambda step: matrix[step, step::-1][:width], width, error)


def _substitution(strategy: Strategy) -> Recursion:
    factors = strategy.factored
    if factors is not None and factors.exponentials is not None:
        error = exponentials_error(factors, *factors.exponentials)
        return _Exponentials(*factors.exponentials, factors.scales(), error)
    width = strategy.n if strategy.bands is None else strategy.bands
    error = substitution_error(strategy, width)
    if factors is not None:
        coefs, scale = _solved_for_last(factors.coefs[:width]), factors.scales()
        return _Weighted(Kind.SUBSTITUTION, lambda step: coefs[: step + 1], width, error, scale)
    matrix = strategy.to_dense()

    def rows(step: int) -> FloatArray:
        return _solved_for_last(matrix[step, step::-1][:width])

    return _Weighted(Kind.SUBSTITUTION, rows, width, error, np.ones(strategy.n))


def _solved_for_last(row: FloatArray) -> FloatArray:
    """Weights of (z_t, y_(t-1), ...) in y_t, from the entries (t, t), (t, t - 1), ... of C."""
    weights: FloatArray = -row / row[0]
    weights[0] = 1.0 / row[0]
    return weights
