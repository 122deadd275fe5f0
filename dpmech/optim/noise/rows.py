"""Rows of C^-1 Z from rows of Z: which of them a step combines, and what it must remember.

Rows are formed in float64, so that the noise is that of the C which was certified: weights or states in
float32 would be those of another C, whose sensitivity may be larger by percents. Normal numbers are data and
may have any precision.
"""

import abc
import enum
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.mechanism import Strategy
from dpmech.numerics import FloatArray
from dpmech.optim.noise.error_bound import (
    checked_error,
    combination_error,
    exponentials_error,
    substitution_error,
)

__all__ = ["NoiseMode", "Recursion", "correlate"]

Draw: TypeAlias = Callable[[int, torch.Tensor], None]


class NoiseMode(enum.Enum):
    """How a stream forms its rows; all of them give the same distribution.

    `REGENERATE` draws the rows of Z that a row of C^-1 combines again at every step: no memory, one draw
    for every entry of that row. `BUFFER` keeps them: one draw a step, one vector for every further entry.
    `RECURSION` solves C y = z: one draw a step, one vector for every further band of C or buffer of a BLT.
    """

    REGENERATE = "regenerate"
    BUFFER = "buffer"
    RECURSION = "recursion"


class Recursion(abc.ABC):
    """One way to form row t of C^-1 Z in float64, a chunk at a time.

    Attributes:
        vectors: how many state vectors every parameter needs.
        wide: whether the state is float64; else it has the dtype of the normal numbers.
        error: how much less noise than that of C the roundings can leave, relative: a proved bound.
    """

    vectors: int
    wide: bool
    error: float

    @abc.abstractmethod
    def advance(
        self,
        step: int,
        factor: float,
        draw: Draw,
        state: Sequence[torch.Tensor],
        out: torch.Tensor,
        spare: torch.Tensor,
    ) -> None:
        """Overwrite `out` with `factor` times row `step`, and move `state` one step on.

        Args:
            step: t, called once for every t in order.
            factor: the standard deviation of Z in this row; what is remembered does not depend on it.
            draw: draw(s, x) overwrites x with row s of Z.
            state: `vectors` tensors of a chunk, zero before step 0.
            out: a chunk of a vector, float64.
            spare: like `out`, in the dtype of the normal numbers; its contents are lost.
        """


class _Combination(Recursion):
    """out = sum_j w_j z_(t - j) with weights from C^-1; the past z are drawn again, or kept."""

    wide = False

    def __init__(self, rows: Callable[[int], FloatArray], width: int, error: float, *, keep: bool) -> None:
        self._rows = rows
        self.vectors = width - 1 if keep else 0
        self.error = error

    def advance(
        self,
        step: int,
        factor: float,
        draw: Draw,
        state: Sequence[torch.Tensor],
        out: torch.Tensor,
        spare: torch.Tensor,
    ) -> None:
        weights = (self._rows(step) * factor).tolist()
        draw(step, spare)
        out.copy_(spare).mul_(weights[0])
        # Sums of float64 and float32 are formed in float64.
        for lag, weight in enumerate(weights[1:], start=1):
            if weight == 0.0:
                continue
            if state:
                out.add_(state[(step - lag) % self.vectors], alpha=weight)
            else:
                draw(step - lag, spare)
                out.add_(spare, alpha=weight)
        if state:
            state[step % self.vectors].copy_(spare)


class _Substitution(Recursion):
    """Forward substitution: u_t = r_0 z_t + sum_j r_j u_(t - j), out = u_t / scale_t."""

    wide = True

    def __init__(
        self, rows: Callable[[int], FloatArray], width: int, scale: FloatArray, error: float
    ) -> None:
        self._rows = rows
        self._scale = scale
        self.vectors = width - 1
        self.error = error

    def advance(
        self,
        step: int,
        factor: float,
        draw: Draw,
        state: Sequence[torch.Tensor],
        out: torch.Tensor,
        spare: torch.Tensor,
    ) -> None:
        weights = self._rows(step).tolist()
        draw(step, spare)
        out.copy_(spare).mul_(weights[0])
        for lag, weight in enumerate(weights[1:], start=1):
            out.add_(state[(step - lag) % self.vectors], alpha=weight)
        if state:
            state[step % self.vectors].copy_(out)
        out.mul_(factor / float(self._scale[step]))


class _Exponentials(Recursion):
    """The same for coefficients 1, sum_j s_j d_j^(t - 1): one buffer a decay carries the whole past."""

    wide = True

    def __init__(self, decays: FloatArray, weights: FloatArray, scale: FloatArray, error: float) -> None:
        self._decays = decays.tolist()
        self._weights = weights.tolist()
        self._scale = scale
        self.vectors = len(self._decays)
        self.error = error

    def advance(
        self,
        step: int,
        factor: float,
        draw: Draw,
        state: Sequence[torch.Tensor],
        out: torch.Tensor,
        spare: torch.Tensor,
    ) -> None:
        draw(step, spare)
        out.copy_(spare)
        for buffer, weight in zip(state, self._weights, strict=True):
            out.add_(buffer, alpha=-weight)
        for buffer, decay in zip(state, self._decays, strict=True):
            torch.add(out, buffer, alpha=decay, out=buffer)
        out.mul_(factor / float(self._scale[step]))


def correlate(strategy: Strategy, mode: NoiseMode | None = None) -> tuple[NoiseMode, Recursion]:
    """The recursion of a strategy.

    Args:
        strategy: C.
        mode: None for the one that needs no memory where C^-1 is banded, a short recursion where C is
            banded or a BLT, and fresh draws of whole rows otherwise (t + 1 of them at step t).

    Returns:
        The mode chosen, and the recursion.

    Raises:
        InvalidParameterError: if mode is no NoiseMode.
        UnsupportedCombinationError: for RECURSION where C is neither banded nor a BLT.
        NumericalError: if roundings of float64 may leave more than 1e-6 less noise than certified.
    """
    if mode is not None and not isinstance(mode, NoiseMode):
        raise InvalidParameterError("mode", mode, "None or a dpmech.optim.NoiseMode")
    recursive = strategy.bands is not None or _exponentials(strategy) is not None
    if mode is None:
        shorter = recursive and strategy.inverse_bands is None
        mode = NoiseMode.RECURSION if shorter else NoiseMode.REGENERATE
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


def _exponentials(strategy: Strategy) -> tuple[FloatArray, FloatArray] | None:
    factors = strategy.factored
    return None if factors is None else factors.exponentials


def _combination(strategy: Strategy, *, keep: bool) -> Recursion:
    n = strategy.n
    width = n if strategy.inverse_bands is None else strategy.inverse_bands
    factors = strategy.factored
    if factors is not None:
        inverse, scale = factors.inverse_coefs[:width], factors.scales()
        error = combination_error(strategy, None)
        return _Combination(lambda step: inverse[: step + 1] / scale[step], width, error, keep=keep)
    matrix = strategy.solve(np.eye(n))
    error = combination_error(strategy, matrix)
    return _Combination(lambda step: matrix[step, step::-1][:width], width, error, keep=keep)


def _substitution(strategy: Strategy) -> Recursion:
    factors = strategy.factored
    if factors is not None and factors.exponentials is not None:
        return _Exponentials(*factors.exponentials, factors.scales(), exponentials_error(factors))
    width = strategy.n if strategy.bands is None else strategy.bands
    error = substitution_error(strategy, width)
    if factors is not None:
        coefs = _solved_for_last(factors.coefs[:width])
        return _Substitution(lambda step: coefs[: step + 1], width, factors.scales(), error)
    matrix = strategy.to_dense()
    return _Substitution(
        lambda step: _solved_for_last(matrix[step, step::-1][:width]), width, np.ones(strategy.n), error
    )


def _solved_for_last(row: FloatArray) -> FloatArray:
    """Weights of (z_t, y_(t-1), ...) in y_t, from the entries (t, t), (t, t - 1), ... of C."""
    weights: FloatArray = -row / row[0]
    weights[0] = 1.0 / row[0]
    return weights
