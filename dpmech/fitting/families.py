"""Families of Toeplitz strategies: parameters, the strategy they define, the pull-back of gradients."""

import abc
import dataclasses

import numpy as np
import scipy

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.mechanism import (
    BLT,
    BandedInverse,
    BandedToeplitz,
    Strategy,
    inverse_square_root_coefs,
    square_root_coefs,
)
from dpmech.numerics import FloatArray, series_inverse


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """One member of a family.

    Attributes:
        coefs: first column of T, shape (n,).
        inverse: first column of T^-1, shape (n,).
    """

    coefs: FloatArray
    inverse: FloatArray


class Family(abc.ABC):
    """Maps parameters x of shape (m,) to a Toeplitz matrix T; x is unconstrained or has bounds."""

    n: int

    @property
    def lower(self) -> float | None:
        """Lower bound of every parameter, or None."""
        return None

    @property
    def upper(self) -> float | None:
        """Upper bound of every parameter, or None."""
        return None

    @property
    def scale(self) -> float:
        """The inverse of a typical change of a parameter."""
        return 100.0

    @abc.abstractmethod
    def starts(self) -> list[FloatArray]:
        """Starting points, the best guess first; the last is the Identity or close to it."""

    @abc.abstractmethod
    def point(self, x: FloatArray) -> Point:
        """The two series at x.

        Raises:
            NumericalError: if a series overflows.
        """

    @abc.abstractmethod
    def pull(self, x: FloatArray, point: Point, by_coefs: FloatArray, by_inverse: FloatArray) -> FloatArray:
        """The gradient in x, from those in the two series."""

    @abc.abstractmethod
    def strategy(self, x: FloatArray) -> Strategy:
        """The member at x."""

    @abc.abstractmethod
    def parameters(self, strategy: Strategy) -> FloatArray:
        """The x of a strategy of this class, clipped to the bounds."""


@dataclasses.dataclass(frozen=True)
class BandedFamily(Family):
    """T with p bands. If `monotone`, the parameters are the decrements of the coefficients, >= 0.

    Args:
        n: number of steps.
        bands: p in [2, n].
        monotone: keep the coefficients non-increasing and >= 0, the hypothesis of lambda_cgd Theorem 1.
    """

    n: int
    bands: int
    monotone: bool

    @property
    def lower(self) -> float | None:
        """0 for decrements."""
        return 0.0 if self.monotone else None

    def starts(self) -> list[FloatArray]:
        """The banded square root, and a point near the Identity."""
        root = square_root_coefs(self.bands)
        near = np.asarray(0.3 ** np.arange(self.bands), dtype=np.float64)
        if self.monotone:
            return [root - np.append(root[1:], 0.0), near - np.append(near[1:], 0.0)]
        return [root[1:], near[1:]]

    def _short(self, x: FloatArray) -> FloatArray:
        coefs = np.cumsum(x[::-1])[::-1] if self.monotone else np.concatenate([[1.0], x])
        if not coefs[0] > 0.0:
            raise NumericalError("the first coefficient vanished")
        return np.asarray(coefs, dtype=np.float64)

    def point(self, x: FloatArray) -> Point:
        """C from x, its inverse by recursion."""
        coefs = self._short(x)
        return Point(np.pad(coefs, (0, self.n - self.bands)), series_inverse(coefs, self.n))

    def pull(self, x: FloatArray, point: Point, by_coefs: FloatArray, by_inverse: FloatArray) -> FloatArray:
        """Through d = 1 / c: add -T(d)^T T(d)^T times the gradient in d to the gradient in c."""
        short = point.coefs[: self.bands]
        total = by_coefs[: self.bands] - _twice_solved(short, by_inverse)[: self.bands]
        return np.cumsum(total) if self.monotone else total[1:]

    def strategy(self, x: FloatArray) -> Strategy:
        """BandedToeplitz, scaled to c_0 = 1."""
        coefs = self._short(x)
        return BandedToeplitz(self.n, coefs / coefs[0])

    def parameters(self, strategy: Strategy) -> FloatArray:
        """If `monotone`, coefficients are clipped to those before them, and to 0."""
        coefs = _first(strategy.toeplitz_coefs, self.bands)
        if not self.monotone:
            return np.asarray(coefs[1:], dtype=np.float64)
        cut: FloatArray = np.minimum.accumulate(np.maximum(coefs, 0.0))
        decrements: FloatArray = cut - np.append(cut[1:], 0.0)
        return decrements


@dataclasses.dataclass(frozen=True)
class InverseFamily(Family):
    """T^-1 with p bands and first coefficient 1; the other coefficients are the parameters.

    Args:
        n: number of steps.
        bands: p in [2, n].
        nonpositive: keep the parameters <= 0, so that T >= 0.
    """

    n: int
    bands: int
    nonpositive: bool = False

    @property
    def upper(self) -> float | None:
        """0 if T has to be >= 0."""
        return 0.0 if self.nonpositive else None

    def starts(self) -> list[FloatArray]:
        """The banded inverse square root, one strong lag, and a point near the Identity."""
        strong, near = np.zeros((2, self.bands - 1))
        strong[0], near[0] = -0.9, -0.2
        return [inverse_square_root_coefs(self.bands)[1:], strong, near]

    def point(self, x: FloatArray) -> Point:
        """C^-1 from x, C by recursion."""
        inverse = np.concatenate([[1.0], x])
        return Point(series_inverse(inverse, self.n), np.pad(inverse, (0, self.n - self.bands)))

    def pull(self, x: FloatArray, point: Point, by_coefs: FloatArray, by_inverse: FloatArray) -> FloatArray:
        """Through c = 1 / d."""
        short = point.inverse[: self.bands]
        return (by_inverse[: self.bands] - _twice_solved(short, by_coefs)[: self.bands])[1:]

    def strategy(self, x: FloatArray) -> Strategy:
        """BandedInverse."""
        return BandedInverse(self.n, np.concatenate([[1.0], x]))

    def parameters(self, strategy: Strategy) -> FloatArray:
        """If `nonpositive`, positive coefficients are clipped to 0."""
        coefs = _first(strategy.inverse_coefs, self.bands)[1:]
        return np.minimum(coefs, 0.0) if self.nonpositive else coefs


@dataclasses.dataclass(frozen=True)
class BufferedFamily(Family):
    """Sums of d exponentials with weights >= 0 whose sum is below 1, hence non-increasing.

    The parameters are log(1 / (1 - decay) - 1) for each decay, then the logarithms of the weights relative
    to 1 minus their sum.

    Args:
        n: number of steps.
        buffers: d >= 1.
    """

    n: int
    buffers: int

    @property
    def scale(self) -> float:
        """1: the parameters are logarithms, which change by large amounts."""
        return 1.0

    def starts(self) -> list[FloatArray]:
        """Time constants spread from 1 to n; weights near those of the square root, and very small ones."""
        lengths = np.geomspace(2.0, max(self.n / 8.0, 3.0), self.buffers + 1)[1:]
        decays = np.log(lengths)
        return [
            np.concatenate([decays, np.full(self.buffers, weight)]) for weight in (np.log(0.4), np.log(0.01))
        ]

    def _parts(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        decays = 1.0 / (1.0 + np.exp(-np.clip(x[: self.buffers], -30.0, 30.0)))
        odds = np.exp(np.clip(x[self.buffers :], -60.0, 60.0))
        return np.minimum(decays, 1.0 - 1e-12), odds / (1.0 + odds.sum())

    def point(self, x: FloatArray) -> Point:
        """The series of the strategy."""
        factors = BLT(self.n, *self._parts(x)).factored
        return Point(factors.coefs, factors.inverse_coefs)

    def pull(self, x: FloatArray, point: Point, by_coefs: FloatArray, by_inverse: FloatArray) -> FloatArray:
        """Through the coefficients c_t = sum_j scales_j decays_j^(t-1)."""
        back = _correlated(point.inverse, _correlated(point.inverse, by_inverse))
        tail = (by_coefs - back)[1:]
        decays, scales = self._parts(x)
        lags = np.arange(self.n - 1, dtype=np.float64)
        by_scales, by_decays = np.empty(self.buffers), np.empty(self.buffers)
        for j, decay in enumerate(decays):
            powers = np.exp(np.maximum(lags * np.log(decay), -690.0))
            by_scales[j] = powers @ tail
            by_decays[j] = scales[j] * float((lags[1:] * powers[:-1]) @ tail[1:])
        by_weights = scales * (by_scales - float(scales @ by_scales))
        return np.concatenate([by_decays * decays * (1.0 - decays), by_weights])

    def strategy(self, x: FloatArray) -> Strategy:
        """BLT."""
        return BLT(self.n, *self._parts(x))

    def parameters(self, strategy: Strategy) -> FloatArray:
        """Decays and weights are clipped away from 0 and 1."""
        if not isinstance(strategy, BLT):
            raise InvalidParameterError("strategy", strategy, "a BLT")
        decays = np.clip(strategy.decays, 1e-9, 1.0 - 1e-12)
        scales = np.maximum(strategy.scales, 1e-12)
        missing = max(1.0 - float(scales.sum()), 1e-6)
        return np.concatenate([np.log(decays / (1.0 - decays)), np.log(scales / missing)])


def _first(coefs: FloatArray | None, count: int) -> FloatArray:
    """The first `count` coefficients, scaled to start with 1."""
    if coefs is None:
        raise InvalidParameterError("strategy", coefs, "a Toeplitz strategy")
    short: FloatArray = coefs[:count] / coefs[0]
    return short


def _twice_solved(short: FloatArray, gradient: FloatArray) -> FloatArray:
    """T^-T T^-T y for T = LTT(short), by two recursions that run backwards."""
    once = scipy.signal.lfilter([1.0], short, gradient[::-1])
    return np.asarray(scipy.signal.lfilter([1.0], short, once)[::-1], dtype=np.float64)


def _correlated(series: FloatArray, y: FloatArray) -> FloatArray:
    """LTT(series)^T y."""
    return np.asarray(scipy.signal.fftconvolve(series, y[::-1])[: y.size][::-1], dtype=np.float64)
