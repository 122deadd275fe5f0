r"""Tilts of one standard normal, tabulated: exact densities for any response of a lognormal.

A site has eta ~ N(0, 1) under Q and the lognormal `a = exp(level + spread eta)`. Its tilted law has density
`t(theta a) / Z` against N(0, 1), for a positive response t. Neither t nor Z needs a closed form: level and
eta are rounded to cells before t is evaluated, so that t is a constant `t_jk` on cell k of eta at rounded
level j, and `Z_j = sum_k t_jk P(eta in cell k)` is a finite sum. Draws have exactly the stated density for
any cells; coarse cells only follow t less closely.
"""

import abc
import dataclasses
import functools
import math
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.numerics import UNIT, FloatArray, IntArray

FIRST_EDGE, LAST_EDGE, CELL = -9.0, 14.0, 0.1
LEVEL_STEP = 0.05
NODES = np.arange(FIRST_EDGE, LAST_EDGE, CELL) + 0.5 * CELL
EDGES = np.concatenate([[-np.inf], NODES[:-1] + 0.5 * CELL, [np.inf]])
LARGEST_DEGREE = 24
NEGLIGIBLE_COUNT = 1e-4
GRID = np.geomspace(1e-5, 1e4, 400)


class _Cells(NamedTuple):
    """Ends of every cell as lower tail probabilities of -|eta|, and the masses of the cells under N(0, 1)."""

    starts: FloatArray
    stops: FloatArray
    masses: FloatArray


@functools.cache  # at first use: importing scipy.special takes longer than all of dpmech
def _cells() -> _Cells:
    near = np.where(NODES < 0.0, EDGES[:-1], -EDGES[1:])
    far = np.where(NODES < 0.0, EDGES[1:], -EDGES[:-1])
    start, stop = scipy.special.ndtr(near), scipy.special.ndtr(far)
    return _Cells(start, stop, stop - start)


SIGNS = np.where(NODES < 0.0, 1.0, -1.0)


class Response(abc.ABC):
    """A positive function t of x = theta a, given by its log."""

    @abc.abstractmethod
    def log(self, x: FloatArray) -> FloatArray:
        """Log t(x) for x >= 0, elementwise."""


@dataclasses.dataclass(frozen=True)
class Fading(Response):
    """T(x) = exp(-x): tilts towards small a."""

    def log(self, x: FloatArray) -> FloatArray:
        """-x."""
        return -x


@dataclasses.dataclass(frozen=True)
class PartialExponential(Response):
    r"""T(x) = sum_{n <= degree} x^n / n!: tilts towards large a; t(a) has a mean, exp(a) has none.

    Attributes:
        degree: at least 1.
    """

    degree: int

    @classmethod
    def at(cls, strength: float, variance: float, bins: int) -> Self:
        """The degree at which the terms of `E t` stop decreasing, or are negligible for all b bins.

        Terms are `strength^n / n! exp(variance n (n - 1) / 2)`: they decrease and then increase without
        limit; the increasing terms come from a single large bin, which has separate parts.
        """
        log_term, degree = math.log(strength), 1
        while degree < LARGEST_DEGREE and log_term > math.log(NEGLIGIBLE_COUNT / bins):
            step = math.log(strength / (degree + 1)) + variance * degree
            if step >= 0.0:
                break
            log_term, degree = log_term + step, degree + 1
        return cls(degree)

    def log(self, x: FloatArray) -> FloatArray:
        """The log of the partial sum, by Horner's rule."""
        # Beyond 1e12 the largest power alone is exact up to rounding, and nothing overflows.
        capped = np.minimum(x, 1e12)
        total = np.ones_like(x)
        for n in range(self.degree, 0, -1):
            total *= capped / n
            total += 1.0
        out: FloatArray = np.log(total) + self.degree * np.log(np.maximum(x, 1e12) / 1e12)
        return out


def solved_strength(level: float, variance: float, bins: int, pull: float) -> tuple[float, Response]:
    r"""Theta and response for which a bin has approximately a given mean, with the other bins tilted, too.

    Mean field: with tau = theta e^h, A(tau) the mean of a site under t(tau a) and the field of the other bins
    `h = +-tau A pull`, the mean is A e^h. It affects only the variance.

    Args:
        level: the mean, above 1 for a partial exponential and below 1 for a fading response.
        variance: variance of log a.
        bins: b.
        pull: sum over the other bins of exp(K) - 1.
    """
    rising = level > 1.0
    spread = math.sqrt(variance)
    sites = np.exp(np.minimum(spread * NODES - 0.5 * variance, 600.0))

    def site(tau: float) -> tuple[float, float, Response]:
        response: Response = PartialExponential.at(tau, variance, bins) if rising else Fading()
        law = response.log(tau * sites)
        law = np.exp(law - law.max()) * _cells().masses
        mean = float(law @ sites / law.sum())
        field = (1.0 if rising else -1.0) * min(tau * mean * pull, 600.0)
        return math.log(mean) + field, field, response

    # As tau grows, the degree and the mean decrease: the first tau that reaches the level is needed.
    best, low = (math.inf, GRID[0]), GRID[0]
    for tau in GRID:
        short = abs(math.log(level)) - abs(site(tau)[0])
        best = min(best, (short, tau))
        if short <= 0.0:
            best = (short, math.sqrt(low * tau))
            break
        low = tau
    _, field, response = site(best[1])
    return best[1] * math.exp(-field), response


@dataclasses.dataclass(frozen=True)
class SiteTilt:
    """The table of one tilt.

    Attributes:
        lowest: the lowest rounded level.
        log_density: log t / Z at level j and cell k, shape (J, cells).
    """

    lowest: float
    log_density: FloatArray

    @classmethod
    def at(cls, response: Response, theta: float, spread: float, lowest: float, highest: float) -> Self:
        """The table over the levels of [lowest, highest]; other levels are rounded to its ends."""
        count = 1 + math.ceil((highest - lowest) / LEVEL_STEP)
        levels = lowest + LEVEL_STEP * np.arange(count)
        logs = response.log(theta * np.exp(np.minimum(levels[:, None] + spread * NODES, 600.0)))
        logs -= logs.max(axis=1, keepdims=True)
        total = np.sum(np.exp(logs) * _cells().masses, axis=1, keepdims=True)
        return cls(lowest, logs - np.log(total))

    def near_edges(
        self, levels: FloatArray, eta: FloatArray, level_error: FloatArray, eta_error: FloatArray
    ) -> npt.NDArray[np.bool_]:
        """Rows, shape (m,), with a site that errors of the given size may move across an edge of the table.

        Args:
            levels: shape (m, b).
            eta: shape (m, b).
            level_error: largest error of a level, shape (m, 1).
            eta_error: largest error of an eta, shape (m, 1).
        """
        from dpmech.engines.gaussian_mixture import tilt_kernels

        near = np.zeros(len(levels), dtype=np.bool_)
        edges = (
            (levels, level_error, self.lowest - 0.5 * LEVEL_STEP, LEVEL_STEP, self.log_density.shape[0]),
            (eta, eta_error, FIRST_EDGE, CELL, NODES.size),
        )
        for values, error, first, step, count in edges:
            # The position itself is rounded a few times.
            tilt_kernels.near_edges(values, np.ravel(error), first, step, count, 8.0 * UNIT, near)
        return near

    def log_densities(self, levels: FloatArray, eta: FloatArray) -> FloatArray:
        """Log density relative to N(0, 1), elementwise; NaN where an argument is NaN."""
        from dpmech.engines.gaussian_mixture import tilt_kernels

        found = tilt_kernels.looked_up(
            self.log_density, np.ravel(levels), self.lowest, LEVEL_STEP, np.ravel(eta), FIRST_EDGE, CELL
        )
        return np.asarray(found.reshape(eta.shape))


@dataclasses.dataclass(frozen=True)
class SiteSampler:
    """Draws from several tables at once.

    Attributes:
        lowest: the lowest level of each table.
        counts: number of levels of each table.
        firsts: first row of each table in `cumulative`.
        cumulative: cumulative probabilities of the cells, a row for each level of each table.
    """

    lowest: FloatArray
    counts: IntArray
    firsts: IntArray
    cumulative: FloatArray

    @classmethod
    def of(cls, tilts: tuple[SiteTilt, ...]) -> Self:
        """The sampler of these tables, numbered in their order."""
        counts = np.array([tilt.log_density.shape[0] for tilt in tilts])
        masses = np.concatenate([np.exp(tilt.log_density) * _cells().masses for tilt in tilts])
        cumulative = np.cumsum(masses, axis=1)
        cumulative /= cumulative[:, -1:]
        lowest = np.array([tilt.lowest for tilt in tilts])
        return cls(lowest, counts, np.cumsum(counts) - counts, cumulative)

    def draw(self, chosen: IntArray, levels: FloatArray, uniforms: FloatArray) -> FloatArray:
        """Eta under table `chosen` at these levels, all of one shape s; uniforms of shape (2, *s)."""
        rows = self.firsts[chosen] + _rows(levels, self.lowest[chosen], self.counts[chosen])
        cell = inverted(self.cumulative, rows, uniforms[0])
        starts, stops, _ = _cells()
        tail = starts[cell] + uniforms[1] * (stops[cell] - starts[cell])
        drawn: FloatArray = SIGNS[cell] * scipy.special.ndtri(np.maximum(tail, 1e-300))
        return drawn


def inverted(cumulative: FloatArray, rows: IntArray, uniforms: FloatArray) -> IntArray:
    """The first entry of a row that exceeds a uniform number, by bisection within that row.

    A single search over all rows, each shifted by its index, would round the uniform numbers to the spacing
    of floats of that size: the law of a row would depend on its position.

    Args:
        cumulative: non-decreasing rows that end with 1, shape (r, c).
        rows: row index for each number.
        uniforms: numbers in [0, 1), with the shape of `rows`.

    Returns:
        Positions in the rows, with the shape of `rows`.
    """
    from dpmech.engines.gaussian_mixture import tilt_kernels

    return np.asarray(
        tilt_kernels.inverted(cumulative, np.ravel(rows), np.ravel(uniforms)).reshape(rows.shape)
    )


def _rows(levels: FloatArray, lowest: FloatArray | float, count: IntArray | int) -> IntArray:
    """The indices of levels in a table."""
    rounded = np.rint((levels - lowest) * (1.0 / LEVEL_STEP))
    return np.clip(rounded, 0, count - 1).astype(np.int64)
