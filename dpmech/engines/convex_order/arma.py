r"""Cyclic Gram matrices of ARMA processes: a recursion and a filter of a few steps, and white noise.

v_l + f_1 v_(l-1) + ... + f_p v_(l-p) = xi_l around a cycle, with independent standard normal xi, and
y_l = c_0 v_l + ... + c_p v_(l-p) + sqrt(w) eta_l. The spectrum of y is w + |c|^2 / |f|^2. Two exponentials of
any signs or of complex decays are of this form with p = 2, if their sum and the white part are positive
definite, and so are strategies of up to p + 1 bands. A difference K' - K is copositive as in `mixture_ring`.
"""

import dataclasses
import itertools
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines.convex_order.mixture_ring import MixtureFits
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import UNIT, FloatArray

Complex = npt.NDArray[np.complex128]


@dataclasses.dataclass(frozen=True)
class ArmaGram:
    """A b x b covariance, divided by sigma^2, whose spectrum is w + |c(z)|^2 / |f(z)|^2.

    Args:
        bins: b >= 2 p.
        white: w, the variance of the part that is independent between bins, > 0.
        filter: the coefficients of c(z) = c_0 + c_1 z + ... + c_p z^p.
        recursion: f_1, ..., f_p of f(z) = 1 + f_1 z + ... + f_p z^p, whose zeros are outside the unit
            circle; p >= 1.

    Raises:
        InvalidParameterError: if a value is outside its range, or the lengths do not fit.

    Examples:
        >>> from dpmech.engines.convex_order.arma import ArmaGram
        >>> ArmaGram(6, 0.5, (1.0, 0.0, 0.5), (0.0, 0.0)).profile().round(4).tolist()
        [1.75, 0.0, 0.5, 0.0]
    """

    bins: int
    white: float
    filter: tuple[float, ...]
    recursion: tuple[float, ...]
    constant: float = dataclasses.field(default=0.0, init=False)

    def __post_init__(self) -> None:
        check_integer("len(recursion)", len(self.recursion), minimum=1)
        check_integer("len(filter)", len(self.filter), minimum=self.order + 1, maximum=self.order + 1)
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=2 * self.order))
        object.__setattr__(self, "white", check_real("white", self.white, minimum=0.0, open_minimum=True))
        object.__setattr__(self, "filter", tuple(check_real("filter", one) for one in self.filter))
        object.__setattr__(self, "recursion", tuple(check_real("recursion", one) for one in self.recursion))
        if not max(self.decays) < 1.0 - 1e-9:
            raise InvalidParameterError("recursion", self.recursion, "a stable recursion")

    @property
    def order(self) -> int:
        """p, the number of earlier values of v that the next one depends on."""
        return len(self.recursion)

    def _at_turns(self, coefficients: tuple[float, ...]) -> Complex:
        """A polynomial at all b frequencies."""
        turns = np.exp(-2j * math.pi * np.arange(self.bins) / self.bins)
        return np.asarray(np.polyval(np.array(coefficients[::-1]), turns))

    def _squares(self) -> tuple[FloatArray, FloatArray]:
        """|c|^2 and |f|^2 at all b frequencies."""
        return np.abs(self._at_turns(self.filter)) ** 2, np.abs(self._at_turns((1.0, *self.recursion))) ** 2

    def profile(self) -> FloatArray:
        """Entries at cyclic distances 0, 1, ..., b // 2, raised by `error`; shape (b // 2 + 1,)."""
        upper, lower = self._squares()
        values = np.fft.ifft(upper / lower).real[: self.bins // 2 + 1]
        values[0] += self.white
        return np.asarray(values + self.error)

    def autocovariances(self) -> FloatArray:
        """The covariances of v_0 with all v, up to `error`; shape (b,)."""
        return np.asarray(np.fft.ifft(1.0 / self._squares()[1]).real)

    def shifts(self) -> tuple[float, FloatArray]:
        """The variance of v, and its covariances with y_0 at all b bins, up to `error`."""
        cross = np.fft.ifft(self._at_turns(self.filter).conj() / self._squares()[1]).real
        return float(self.autocovariances()[0]), np.asarray(cross)

    def determinant(self) -> float:
        """The determinant of the cyclic recursion, the product of f over all frequencies; > 0."""
        return math.exp(0.5 * float(np.sum(np.log(self._squares()[1]))))

    @property
    def conditioning(self) -> float:
        """The largest (1 + |f_1| + ... + |f_p|)^2 / |f|^2 of any frequency."""
        return (1.0 + sum(abs(one) for one in self.recursion)) ** 2 / float(np.min(self._squares()[1]))

    @property
    def error(self) -> float:
        """Bound on rounding errors of `profile`, and of the shifts: a transform adds 4 log2(b) roundings."""
        size = sum(abs(one) for one in self.filter) ** 2 + 1.0
        roundings = 64.0 * (4.0 + math.log2(self.bins)) * UNIT
        least = float(np.min(self._squares()[1]))
        return roundings * (size / least * (1.0 + self.conditioning) + self.white)

    def scaled(self, factor: float) -> "ArmaGram":
        """Every entry times a positive factor: a change of sigma from s to t is the factor (s / t)^2."""
        factor = check_real("factor", factor, minimum=0.0, open_minimum=True)
        root = math.sqrt(factor)
        return dataclasses.replace(
            self, white=self.white * factor, filter=tuple(root * one for one in self.filter)
        )

    @property
    def plain(self) -> "ArmaGram":
        """The matrix itself, which has no constant part."""
        return self

    @property
    def exponential(self) -> float:
        """The variance of the part that is not white."""
        upper, lower = self._squares()
        return float(np.mean(upper / lower))

    @property
    def diagonal(self) -> float:
        """The entry at distance 0, rounded up."""
        return self.white + self.exponential + self.error

    @property
    def mean(self) -> float:
        """1^T K 1 / b^2, rounded up: the spectrum at frequency 0."""
        upper, lower = self._squares()
        return (self.white + float(upper[0] / lower[0])) / self.bins * (1.0 + 1e-9) + self.error

    @property
    def slopes(self) -> float:
        """Roundings of the increments by errors of the variance, relative to UNIT."""
        return 4.0 * self.error / UNIT

    @property
    def decays(self) -> list[float]:
        """Sizes of the decays."""
        return [float(size) for size in np.abs(np.roots([1.0, *self.recursion]))]


# Least value of the spectrum, relative to the diagonal, and the part of it that is white.
LEAST_WHITE = 0.04
WHITE_SHARES = (0.5, 0.65, 0.8, 0.9)
MOST_FREQUENCIES = 64
REFLECTIONS = (-0.7, -0.4, -0.1, 0.2)
MOST_REFLECTION = 0.9
EVALUATIONS = 30
# Order of moments whose prices are flatter than those of the best order.
FLAT_ORDER = 4.0
# Transforms take minutes for slower decays, which approximate more than so many entries above `SMALL`.
MOST_DECAY, SMALL, MOST_LARGE = 0.75, 0.1, 8
# The same for higher order, whose lattice must be coarser.
HIGH_ORDER, HIGH_WHITE, HIGH_EVALUATIONS = 4, 0.24, 100


def arma_fits(fits: MixtureFits, profile: FloatArray) -> list[ArmaGram]:
    """Matrices with p = 2 whose delta is not below that of any Gram matrix with at most this profile.

    Args:
        fits: of the same profile.
        profile: shape (b // 2 + 1,), as for `MixtureFits`.

    Returns:
        At most two: of least cost with the prices of the best order of moments, and of a lower order. Moments
        overrate near entries where many bins increase together.
    """
    if np.sum(profile > SMALL * profile[0]) > MOST_LARGE:
        return []
    found = []
    start: tuple[float, ...] | None = None
    for prices in (fits.prices, fits.height.gradient_of(FLAT_ORDER, profile)):
        search = _Search(fits, profile, prices, 2, LEAST_WHITE)
        if start is None:
            pairs = itertools.product(REFLECTIONS, REFLECTIONS)
            start = min(pairs, key=lambda pair: search.price(np.array(pair)))
        gram = search.best(start, EVALUATIONS)
        if gram is not None:
            found.append(gram)
    return found


def higher_fit(fits: MixtureFits, profile: FloatArray) -> ArmaGram | None:
    """A matrix with p = 4, as `arma_fits`; only REMOVE is computed for it in less than 20 seconds.

    Args:
        fits: of the same profile.
        profile: shape (b // 2 + 1,), as for `MixtureFits`.

    Returns:
        The one of least cost; None if there is none.
    """
    search = _Search(fits, profile, fits.prices, HIGH_ORDER, HIGH_WHITE)
    return search.best((0.0,) * HIGH_ORDER, HIGH_EVALUATIONS)


class _Search:
    """The linear program for a recursion, in reflection coefficients: any in (-1, 1) are stable."""

    def __init__(
        self, fits: MixtureFits, profile: FloatArray, prices: FloatArray, order: int, least: float
    ) -> None:
        self.waves, self.profile, self.prices = fits.waves, profile, prices
        self.bins, self.order, self.least = fits.bins, order, least
        half = np.arange(self.bins // 2 + 1)
        self.cosines = np.cos(2.0 * math.pi * np.outer(np.arange(order + 1), half) / self.bins)
        every = max(1, half.size // MOST_FREQUENCIES)
        self.some = np.unique(np.concatenate([half[::every], half[-1:]]))

    def best(self, start: tuple[float, ...], evaluations: int) -> ArmaGram | None:
        """The matrix of least cost in a search from these coefficients; None if its decays are too slow."""
        options = {
            "maxfev": evaluations,
            "xatol": 1e-3,
            "fatol": 1e-4,
            "initial_simplex": np.array(
                [start, *(np.array(start) + 0.15 * row for row in np.eye(len(start)))]
            ),
        }
        end = scipy.optimize.minimize(self.price, np.array(start), method="Nelder-Mead", options=options)  # type: ignore[call-overload]  # its stub wants a typed dict
        gram = self.found(np.asarray(end.x))
        return gram if gram is not None and max(gram.decays) <= MOST_DECAY else None

    @staticmethod
    def recursion(reflections: FloatArray) -> FloatArray:
        """1, f_1, ..., f_p."""
        found = np.ones(1)
        for one in np.clip(reflections, -MOST_REFLECTION, MOST_REFLECTION).tolist():
            found = np.append(found, 0.0) + one * np.append(0.0, found[::-1])
        return found

    def _solve(self, reflections: FloatArray) -> tuple[float, FloatArray, FloatArray, FloatArray] | None:
        """The price, coefficients of cosines in the numerator, |f|^2 at half the frequencies, and waves."""
        lower = _lagged(self.recursion(reflections)) @ self.cosines
        spectra = self.cosines / lower
        whole = np.concatenate([spectra, spectra[:, 1 : (self.bins + 1) // 2][:, ::-1]], axis=1)
        shapes = np.fft.ifft(whole, axis=1).real[:, : lower.size]
        target = self.profile / self.profile[0]
        waves = self.waves
        inequalities = np.vstack(
            [
                np.hstack([-shapes.T, waves]),
                np.hstack([-spectra.T[self.some], np.zeros((self.some.size, waves.shape[1]))]),
            ]
        )
        solved = scipy.optimize.linprog(
            np.concatenate([shapes @ self.prices, np.zeros(waves.shape[1])]),
            A_ub=inequalities,
            b_ub=np.concatenate([-target, np.full(self.some.size, -self.least)]),
            bounds=[(None, None)] * (self.order + 1) + [(0.0, None)] * waves.shape[1],
            method="highs",
        )
        if solved.x is None:
            return None
        values = solved.x * self.profile[0]
        numerator, heights = values[: self.order + 1], values[self.order + 1 :]
        price = float(self.prices @ (solved.x[: self.order + 1] @ shapes))
        return price, numerator, lower, waves @ np.maximum(heights, 0.0)

    def price(self, reflections: FloatArray) -> float:
        """The objective of the linear program; infinite if it has no solution."""
        solved = self._solve(reflections)
        return math.inf if solved is None else solved[0]

    def found(self, reflections: FloatArray) -> ArmaGram | None:
        """The matrix for these coefficients, with the white part for the coarsest lattice."""
        solved = self._solve(reflections)
        if solved is None:
            return None
        _, numerator, lower, waves = solved
        spectrum = numerator @ self.cosines / lower
        recursion = self.recursion(reflections)
        grams = []
        for share in WHITE_SHARES:
            white = share * float(np.min(spectrum))
            factor = _factor(numerator - white * _lagged(recursion))
            if white > 0.0 and factor is not None:
                grams.append(ArmaGram(self.bins, white, factor, tuple(recursion[1:].tolist())))
        if not grams:
            return None
        return dominating(min(grams, key=width), self.profile, waves)


def width(gram: ArmaGram) -> float:
    """The standard deviation of v in units of that of one v, given all other v and all y."""
    return math.sqrt(gram.shifts()[0] * precision(gram))


def precision(gram: ArmaGram) -> float:
    """Precision of one v given all other v and all y: of the terms of each recursion and filter."""
    own = 1.0 + sum(one * one for one in gram.recursion)
    return own + sum(one * one for one in gram.filter) / gram.white


def dominating(gram: ArmaGram, profile: FloatArray, waves: FloatArray) -> ArmaGram:
    """The matrix with a white part so high that its difference to any with this profile is copositive.

    A symmetric matrix is positive semidefinite if no diagonal entry is below the sum of the sizes of the
    others in its row. Entries that are too small by a little are therefore compensated on the diagonal.
    """
    slack = 2.0 * gram.error + 1024.0 * UNIT * float(np.max(np.abs(profile)) + np.max(np.abs(waves)))
    short = np.maximum(profile + waves - gram.profile() + slack, 0.0)
    return dataclasses.replace(gram, white=gram.white + 1.001 * float(short @ _counts(gram.bins)))


def _counts(bins: int) -> FloatArray:
    """Number of bins at each cyclic distance from one bin."""
    counts = np.full(bins // 2 + 1, 2.0)
    counts[0] = 1.0
    return counts


def _lagged(coefficients: FloatArray) -> FloatArray:
    """n_0, n_1, ... with |f|^2 = n_0 + n_1 cos + n_2 cos 2 + ...."""
    found = np.correlate(coefficients, coefficients, "full")[coefficients.size - 1 :]
    return np.asarray(found * np.array([1.0] + [2.0] * (coefficients.size - 1)))


def _factor(numerator: FloatArray) -> tuple[float, ...] | None:
    """c_0, c_1, ... with |c|^2 = n_0 + n_1 cos + n_2 cos 2 + ...; None if that is not positive."""
    order = numerator.size - 1
    half = 0.5 * numerator
    if abs(half[-1]) < 1e-12 * abs(numerator[0]):
        half[-1] = 1e-12 * abs(numerator[0])
    half[0] = numerator[0]
    roots = np.roots(np.concatenate([half[::-1], half[1:]]))
    inside = roots[np.argsort(np.abs(roots))][:order]
    if np.abs(inside[-1]) >= 1.0 - 1e-9:
        return None
    shape = np.poly(inside).real
    size = float(half[0] / (shape @ shape))
    return tuple((shape * math.sqrt(size)).tolist()) if size > 0.0 else None
