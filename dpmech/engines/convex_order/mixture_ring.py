r"""Cyclic Gram matrices with up to two exponentials whose delta is not below that of a Gram matrix.

Such a matrix (here: ring) defines a cyclic dominating pair. Delta increases along K' - K wherever that
difference is copositive: e^T (K' - K) e >= 0 for all e >= 0 (docs/balls_in_bins_proof.md). This holds for a
matrix with entries >= 0 plus a positive semidefinite one, here a circulant of cosines with weights >= 0; so
K' may be below K at some distances if it is far enough above at others. As in `ring`, the moment bound
selects the best K'.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
import scipy

from dpmech.engines.convex_order.ring import Height, own_decay, ring_shape
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import UNIT, FloatArray, IntArray


@dataclasses.dataclass(frozen=True)
class MixtureGram:
    """A b x b covariance, divided by sigma^2, whose entries depend only on the cyclic distance of the bins.

    Every part is a covariance, and hence so is the sum.

    Args:
        bins: b >= 2.
        white: variance of the part that is independent between bins, > 0.
        parts: (amplitude, decay) of each exponential: its variance, > 0, and its correlation at distance 1
            on an infinite line, in (-1, 1) and not 0; at most two.
        constant: variance of the part that is common to all bins, >= 0.

    Raises:
        InvalidParameterError: if a value is outside its range.

    Examples:
        >>> from dpmech.engines.convex_order.mixture_ring import MixtureGram
        >>> MixtureGram(4, 0.5, ((1.0, 0.5),), 0.25).profile().round(4).tolist()
        [1.75, 0.8382, 0.7206]
    """

    bins: int
    white: float
    parts: tuple[tuple[float, float], ...]
    constant: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=2))
        object.__setattr__(self, "white", check_real("white", self.white, minimum=0.0, open_minimum=True))
        object.__setattr__(self, "constant", check_real("constant", self.constant, minimum=0.0))
        checked = []
        for amplitude, decay in self.parts:
            checked.append(
                (
                    check_real("amplitude", amplitude, minimum=0.0, open_minimum=True),
                    check_real(
                        "decay", decay, minimum=-1.0, maximum=1.0, open_minimum=True, open_maximum=True
                    ),
                )
            )
            if checked[-1][1] == 0.0:
                raise InvalidParameterError("decay", decay, "not 0", "; that is a white part")
        check_integer("len(parts)", len(checked), minimum=0, maximum=2)
        object.__setattr__(self, "parts", tuple(checked))

    def profile(self) -> FloatArray:
        """Entries at cyclic distances 0, 1, ..., b // 2; shape (b // 2 + 1,)."""
        values = np.full(self.bins // 2 + 1, self.constant)
        for amplitude, decay in self.parts:
            values += amplitude * ring_shape(self.bins, decay)
        values[0] += self.white
        return values

    def scaled(self, factor: float) -> "MixtureGram":
        """Every part times a positive factor: a change of sigma from s to t is the factor (s / t)^2."""
        factor = check_real("factor", factor, minimum=0.0, open_minimum=True)
        parts = tuple((amplitude * factor, decay) for amplitude, decay in self.parts)
        return MixtureGram(self.bins, self.white * factor, parts, self.constant * factor)

    @property
    def plain(self) -> "MixtureGram":
        """The matrix without its constant part."""
        return dataclasses.replace(self, constant=0.0)

    @property
    def slopes(self) -> float:
        """Roundings of the increments by errors of slopes, relative to UNIT."""
        return sum(a * 512.0 / (1.0 - abs(decay)) for a, decay in self.parts)

    @property
    def decays(self) -> list[float]:
        """Sizes of the decays."""
        return [abs(decay) for _, decay in self.parts]

    @property
    def exponential(self) -> float:
        """The total variance of the exponentials."""
        return sum(amplitude for amplitude, _ in self.parts)

    @property
    def mean(self) -> float:
        """1^T K 1 / b^2, rounded up."""
        total = self.white / self.bins + self.constant
        for amplitude, decay in self.parts:
            # the sum of a geometric series, twice: q^2 / (1 - lam)^2 with q^2 as in `exponentials`
            far = decay**self.bins
            total += amplitude * (1.0 + decay) / (1.0 - decay) * (1.0 - far) / (1.0 + far) / self.bins
        return total * (1.0 + 1e-12)

    @property
    def diagonal(self) -> float:
        """The entry at distance 0."""
        return self.white + self.exponential + self.constant


# Least white part, relative to the diagonal: a larger one allows a coarser lattice.
LEAST_WHITE = (0.005, 0.03)
# Cosines of all low and of some high frequencies; with up to `EVERY_WAVE` bins they may be all.
EVERY_WAVE = 256
WAVES = np.unique(np.round(np.concatenate([np.arange(16), 16.0 * 1.08 ** np.arange(40)]))).astype(np.int64)
SCAN = 18
COARSE_SCAN = 10
# Least reduction of ln delta for which an additional part is worth its time.
CONSTANT_PRICE = 0.03
SECOND_PRICE = 0.05
# Differences in ln delta that are worth no further search, and those that a local search makes up for.
SMALL_GAIN = 0.005
NEAR_LEAST = 0.1
# Limit on the relevant eigenvalues in a trace over the bins: their number grows with the decays.
MOST_LEADING = 12
DROPPED = 38.0
# Constraint violation of the solver, relative to the diagonal, and rounding of the sums of cosines.
SOLVER = 5e-7
SUMS = 1e-12


def dominating_mixture(profile: FloatArray, bins: int, *, eps: float, parts: int = 2) -> MixtureGram:
    """A ring whose delta is not below that of any Gram matrix with at most this profile.

    Args:
        profile: shape (b // 2 + 1,), the largest entry at each cyclic distance, diagonal first and largest,
            positive. K is already divided by sigma^2.
        bins: b >= 2.
        eps: the privacy loss level to optimise the ring for, >= 0.
        parts: largest number of exponentials, 1 or 2.

    Returns:
        The ring with the least moment bound found. Valid for any eps.

    Raises:
        NumericalError: if none is found.
    """
    return MixtureFits(profile, bins, eps).best(parts)


def excess(profile: FloatArray, waves: FloatArray, gram: MixtureGram) -> float:
    """Smallest entry of K' - K - (the sum of waves >= 0): if it is >= 0, K' - K is copositive."""
    return float(np.min(gram.profile() - profile - waves))


@dataclasses.dataclass(frozen=True, eq=False)
class _Fit:
    """A ring, and its price: log of the moment bound plus a penalty for the cost of its computation."""

    price: float
    gram: MixtureGram


class MixtureFits:
    """The search of `dominating_mixture` for one profile, whose parts are shared; arguments as there.

    `high` adds cosines of high frequencies: the spectrum has a peak there if entries rise.
    """

    def __init__(self, profile: FloatArray, bins: int, eps: float, *, high: bool = False) -> None:
        self.bins, self.top = bins, float(profile[0])
        self.target = profile / self.top
        self.height = Height(bins, eps)
        self.prices = self.height.gradient(profile)
        frequencies = WAVES[bins // 2 >= WAVES]
        if high:
            every = np.arange(bins // 2 + 1)
            frequencies = every if bins <= EVERY_WAVE else np.union1d(frequencies, bins // 2 - frequencies)
        self.waves = _cosines(bins, frequencies)
        self.own = own_decay(profile, bins)
        # the moment bound increases in the same order as delta: no ring has a lower one
        self.least = float(np.min(self.height.of(profile)))

    def best(self, parts: int) -> MixtureGram:
        """Try one exponential, with and without a constant part; then two, without.

        What costs more is tried only if it may pay: where the price is not yet close to the least one, and
        a negative decay where entries rise with the distance.
        """
        found = self._single
        longest = math.log(self._longest(2))
        if parts > 1 and longest > math.log(0.5) and self._above(found) > SECOND_PRICE + SMALL_GAIN:
            coarse = np.linspace(math.log(0.3), longest, COARSE_SCAN).tolist()
            # with a constant part it would take minutes
            found = _cheaper(found, self._refined(list(itertools.combinations(coarse, 2)), constant=False))
            if self.rises:
                pairs = list(itertools.product(coarse[1::2], coarse[1::2]))
                found = _cheaper(found, self._refined(pairs, constant=False, signs=(1.0, -1.0)))
        if found is None:
            raise NumericalError(f"no ring dominates a profile of {self.bins} bins")
        return found.gram

    @property
    def rises(self) -> bool:
        """Whether entries rise with the distance, as those of strategies whose bands do not decrease."""
        return bool(np.any(np.diff(self.target) > SMALL_GAIN))

    @cached_property
    def _single(self) -> _Fit | None:
        """The best fit with one exponential."""
        found = self._plain
        if self._above(found) > CONSTANT_PRICE + SMALL_GAIN:
            found = _cheaper(found, self._refined(self._starts, constant=True))
        return found

    @cached_property
    def _plain(self) -> _Fit | None:
        """The best fit with one exponential and no constant part."""
        return self._refined(self._starts, constant=False)

    @property
    def close(self) -> bool:
        """Whether one exponential is so close to the least price that a second one is not tried."""
        return self._above(self._plain) <= SECOND_PRICE + SMALL_GAIN

    @property
    def _starts(self) -> list[tuple[float, ...]]:
        lengths = np.linspace(math.log(0.3), math.log(self._longest(1)), SCAN)
        starts: list[tuple[float, ...]] = [(float(length),) for length in lengths]
        return [(_length(self.own),), *starts] if self.own > 0.0 else starts

    def _above(self, fit: _Fit | None) -> float:
        """How far the price is above the least one of any ring."""
        return math.inf if fit is None else fit.price - self.least

    def _longest(self, parts: int) -> float:
        """The longest correlation, in bins, for which few enough eigenvalues are near 1."""
        most = MOST_LEADING if parts == 2 else 4 * MOST_LEADING
        return max(most * self.bins / DROPPED, 0.4)

    def _refined(
        self, starts: Sequence[tuple[float, ...]], *, constant: bool, signs: tuple[float, ...] = (1.0, 1.0)
    ) -> _Fit | None:
        """The best of a scan, improved by a local search; then again with the prices at the result.

        Args:
            starts: logs of correlation lengths of the exponentials.
            constant: whether there is a constant part.
            signs: of the decays.
        """
        known = []
        for start in starts:
            scanned = self._solve(start, self.prices, constant=constant, signs=signs)
            if scanned is not None:
                known.append((scanned, start))
            if len(start) == 1 and self._above(scanned) < NEAR_LEAST:
                # the decay of the strategy itself, as a rule: no other is much better
                break
        if not known:
            return None
        fit, start = min(known, key=lambda pair: pair[0].price)
        top = math.log(self._longest(len(start)))
        for prices in (self.prices, self.height.gradient(fit.gram.profile())):
            price = partial(self._price, top=top, prices=prices, constant=constant, signs=signs)
            simplex = np.array([start, *(np.array(start) + 0.2 * row for row in np.eye(len(start)))])
            options = {"initial_simplex": simplex, "maxfev": 20 * len(start), "xatol": 1e-3, "fatol": 1e-3}
            end = scipy.optimize.minimize(price, np.array(start), method="Nelder-Mead", options=options)  # type: ignore[call-overload]  # its stub wants a typed dict
            lengths = tuple(np.minimum(np.asarray(end.x), top).tolist())
            better = self._solve(lengths, prices, constant=constant, signs=signs)
            if better is None or better.price > fit.price - SMALL_GAIN:
                return _cheaper(fit, better)
            fit, start = better, lengths
        return fit

    def _price(
        self,
        lengths: FloatArray,
        *,
        top: float,
        prices: FloatArray,
        constant: bool,
        signs: tuple[float, ...],
    ) -> float:
        solved = self._solve(tuple(np.minimum(lengths, top).tolist()), prices, constant=constant, signs=signs)
        return math.inf if solved is None else solved.price

    def _solve(
        self,
        lengths: tuple[float, ...],
        prices: FloatArray,
        *,
        constant: bool,
        signs: tuple[float, ...],
    ) -> _Fit | None:
        """The linear program for these decays: entries of least price such that K' - K is copositive."""
        sizes = [math.exp(-math.exp(-length)) for length in lengths]
        if not all(1e-4 < size < 1.0 - 1e-9 for size in sizes):
            return None
        decays = [sign * size for sign, size in zip(signs, sizes, strict=False)]
        shapes = [np.eye(1, self.target.size)[0], *(ring_shape(self.bins, decay) for decay in decays)]
        if constant:
            shapes.append(np.ones(self.target.size))
        columns = np.stack(shapes, axis=1)
        solved = scipy.optimize.linprog(
            np.concatenate([prices @ columns, np.zeros(self.waves.shape[1])]),
            A_ub=np.hstack([-columns, self.waves]),
            b_ub=-(self.target + SOLVER),
            bounds=[(LEAST_WHITE[len(decays) - 1], None)]
            + [(0.0, None)] * (columns.shape[1] - 1 + self.waves.shape[1]),
            method="highs",
        )
        if solved.x is None:
            return None
        values = np.maximum(solved.x, 0.0)
        parts = tuple(
            (float(value * self.top), decay)
            for value, decay in zip(values[1 : 1 + len(decays)], decays, strict=True)
            if value > 1e-6
        )
        shared = float(values[columns.shape[1] - 1]) * self.top if constant else 0.0
        gram = MixtureGram(self.bins, float(values[0] * self.top), parts, shared)
        waves = values[columns.shape[1] :] * self.top
        profile = self.target * self.top
        short = SUMS * self.top - excess(profile * (1.0 + 64.0 * UNIT), self.waves @ waves, gram)
        if short > 0.0:
            if not constant:
                return None
            gram = dataclasses.replace(gram, constant=gram.constant + 1.01 * short)
        cost = float(np.min(self.height.of(gram.profile())))
        cost += (CONSTANT_PRICE if gram.constant > 0.0 else 0.0) + SECOND_PRICE * (len(parts) - 1)
        return _Fit(cost, gram)


def _cheaper(one: _Fit | None, other: _Fit | None) -> _Fit | None:
    return min((fit for fit in (one, other) if fit is not None), key=lambda fit: fit.price, default=None)


def _length(decay: float) -> float:
    """Log of the correlation length in bins."""
    return -math.log(-math.log(decay))


def _cosines(bins: int, frequencies: IntArray) -> FloatArray:
    """cos(2 pi k d / b), shape (b // 2 + 1, waves): circulants of these are positive semidefinite."""
    phases = np.outer(np.arange(bins // 2 + 1), frequencies)
    return np.asarray(np.cos(2.0 * np.pi * (phases % bins) / bins))
