r"""Cyclic Gram matrices of second order: those of a recursion and a filter of two steps, and white noise.

v_l + f_1 v_(l-1) + f_2 v_(l-2) = xi_l around a cycle, with independent standard normal xi, and
y_l = c_0 v_l + c_1 v_(l-1) + c_2 v_(l-2) + sqrt(w) eta_l. The spectrum of y is w + |c|^2 / |f|^2. Two
exponentials of any signs or of complex decays are of this form, if their sum and the white part are positive
definite, and so are strategies of up to three bands. A difference K' - K is copositive as in `mixture_ring`.
"""

import dataclasses
import itertools
import math

import numpy as np
import scipy

from dpmech.engines.convex_order.mixture_ring import MixtureFits
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import UNIT, FloatArray


@dataclasses.dataclass(frozen=True)
class SecondOrderGram:
    """A b x b covariance, divided by sigma^2, whose spectrum is w + |c_0 + c_1 z + c_2 z^2|^2 / |f(z)|^2.

    Args:
        bins: b >= 3.
        white: w, the variance of the part that is independent between bins, > 0.
        filter: c_0, c_1, c_2.
        recursion: f_1 and f_2 of f(z) = 1 + f_1 z + f_2 z^2, whose zeros are outside the unit circle:
            |f_2| < 1 and |f_1| < 1 + f_2.

    Raises:
        InvalidParameterError: if a value is outside its range.

    Examples:
        >>> from dpmech.engines.convex_order.second_order import SecondOrderGram
        >>> SecondOrderGram(6, 0.5, (1.0, 0.0, 0.5), (0.0, 0.0)).profile().round(4).tolist()
        [1.75, 0.0, 0.5, 0.0]
    """

    bins: int
    white: float
    filter: tuple[float, float, float]
    recursion: tuple[float, float]
    constant: float = dataclasses.field(default=0.0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=3))
        object.__setattr__(self, "white", check_real("white", self.white, minimum=0.0, open_minimum=True))
        object.__setattr__(self, "filter", tuple(check_real("filter", one) for one in self.filter))
        object.__setattr__(self, "recursion", tuple(check_real("recursion", one) for one in self.recursion))
        first, second = self.recursion
        if not (abs(second) < 1.0 and abs(first) < 1.0 + second):
            raise InvalidParameterError("recursion", self.recursion, "a stable recursion")

    def _squares(self) -> tuple[FloatArray, FloatArray]:
        """|c|^2 and |f|^2 at all b frequencies."""
        turns = np.exp(-2j * math.pi * np.arange(self.bins) / self.bins)
        c, f = self.filter, self.recursion
        return (
            np.abs(c[0] + turns * (c[1] + turns * c[2])) ** 2,
            np.abs(1.0 + turns * (f[0] + turns * f[1])) ** 2,
        )

    def profile(self) -> FloatArray:
        """Entries at cyclic distances 0, 1, ..., b // 2, raised by `error`; shape (b // 2 + 1,)."""
        upper, lower = self._squares()
        values = np.fft.ifft(upper / lower).real[: self.bins // 2 + 1]
        values[0] += self.white
        return np.asarray(values + self.error)

    def shifts(self) -> tuple[float, FloatArray]:
        """The variance of v, and its covariances with y_0 at all b bins, up to `error`."""
        turns = np.exp(-2j * math.pi * np.arange(self.bins) / self.bins)
        numerator = self.filter[0] + turns * (self.filter[1] + turns * self.filter[2])
        lower = self._squares()[1]
        cross = np.fft.ifft(numerator.conj() / lower).real
        return float(np.mean(1.0 / lower)), np.asarray(cross)

    def determinant(self) -> float:
        """The determinant of the cyclic recursion, the product of f over all frequencies; > 0."""
        return math.exp(0.5 * float(np.sum(np.log(self._squares()[1]))))

    @property
    def conditioning(self) -> float:
        """The largest (1 + |f_1| + |f_2|)^2 / |f|^2 of any frequency."""
        return (1.0 + sum(abs(one) for one in self.recursion)) ** 2 / float(np.min(self._squares()[1]))

    @property
    def error(self) -> float:
        """Bound on rounding errors of `profile`, and of the shifts: a transform adds 4 log2(b) roundings."""
        size = sum(abs(one) for one in self.filter) ** 2 + 1.0
        roundings = 64.0 * (4.0 + math.log2(self.bins)) * UNIT
        least = float(np.min(self._squares()[1]))
        return roundings * (size / least * (1.0 + self.conditioning) + self.white)

    def scaled(self, factor: float) -> "SecondOrderGram":
        """Every entry times a positive factor: a change of sigma from s to t is the factor (s / t)^2."""
        factor = check_real("factor", factor, minimum=0.0, open_minimum=True)
        root = math.sqrt(factor)
        c = self.filter
        return SecondOrderGram(
            self.bins, self.white * factor, (c[0] * root, c[1] * root, c[2] * root), self.recursion
        )

    @property
    def plain(self) -> "SecondOrderGram":
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
        """Sizes of the two decays."""
        return [float(size) for size in np.abs(np.roots([1.0, *self.recursion]))]


# Least white part, relative to the diagonal, and the part of the least value of the spectrum that is white.
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


def second_order_fits(fits: MixtureFits, profile: FloatArray) -> list[SecondOrderGram]:
    """Matrices of second order whose delta is not below that of any Gram matrix with at most this profile.

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
    start: tuple[float, float] | None = None
    for prices in (fits.prices, fits.height.gradient_of(FLAT_ORDER, profile)):
        search = _Search(fits, profile, prices)
        if start is None:
            pairs = itertools.product(REFLECTIONS, REFLECTIONS)
            start = min(pairs, key=lambda pair: search.price(np.array(pair)))
        options = {"maxfev": EVALUATIONS, "xatol": 1e-3, "fatol": 1e-4}
        end = scipy.optimize.minimize(search.price, np.array(start), method="Nelder-Mead", options=options)  # type: ignore[call-overload]  # its stub wants a typed dict
        gram = search.found(np.asarray(end.x))
        if gram is not None and max(gram.decays) <= MOST_DECAY:
            found.append(gram)
    return found


class _Search:
    """The linear program for a recursion, in reflection coefficients: any two in (-1, 1) are stable."""

    def __init__(self, fits: MixtureFits, profile: FloatArray, prices: FloatArray) -> None:
        self.waves, self.profile, self.prices = fits.waves, profile, prices
        self.bins = fits.bins
        half = np.arange(self.bins // 2 + 1)
        self.cosines = np.cos(2.0 * math.pi * np.outer(np.arange(3), half) / self.bins)
        every = max(1, half.size // MOST_FREQUENCIES)
        self.some = np.unique(np.concatenate([half[::every], half[-1:]]))

    @staticmethod
    def recursion(reflections: FloatArray) -> tuple[float, float]:
        """f_1 and f_2."""
        one, two = np.clip(reflections, -MOST_REFLECTION, MOST_REFLECTION).tolist()
        return one * (1.0 + two), two

    def _solve(self, reflections: FloatArray) -> tuple[float, FloatArray, FloatArray, FloatArray] | None:
        """The price, coefficients of cosines in the numerator, |f|^2 at half the frequencies, and waves."""
        f = (1.0, *self.recursion(reflections))
        lower = self.cosines[0] * (f[0] ** 2 + f[1] ** 2 + f[2] ** 2)
        lower = lower + 2.0 * self.cosines[1] * (f[0] * f[1] + f[1] * f[2]) + 2.0 * self.cosines[2] * f[2]
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
            b_ub=np.concatenate([-target, np.full(self.some.size, -LEAST_WHITE)]),
            bounds=[(None, None)] * 3 + [(0.0, None)] * waves.shape[1],
            method="highs",
        )
        if solved.x is None:
            return None
        values = solved.x * self.profile[0]
        price = float(self.prices @ (solved.x[:3] @ shapes))
        return price, values[:3], lower, waves @ np.maximum(values[3:], 0.0)

    def price(self, reflections: FloatArray) -> float:
        """The objective of the linear program; infinite if it has no solution."""
        solved = self._solve(reflections)
        return math.inf if solved is None else solved[0]

    def found(self, reflections: FloatArray) -> SecondOrderGram | None:
        """The matrix for these coefficients, with the white part for the coarsest lattice."""
        solved = self._solve(reflections)
        if solved is None:
            return None
        _, numerator, lower, waves = solved
        spectrum = numerator @ self.cosines / lower
        f = (1.0, *self.recursion(reflections))
        own = np.array([f[0] ** 2 + f[1] ** 2 + f[2] ** 2, f[0] * f[1] + f[1] * f[2], f[2]])
        grams = []
        for share in WHITE_SHARES:
            white = share * float(np.min(spectrum))
            factor = _factor(np.array([1.0, 0.5, 0.5]) * numerator - white * own)
            if white > 0.0 and factor is not None:
                grams.append(SecondOrderGram(self.bins, white, factor, (f[1], f[2])))
        if not grams:
            return None
        return dominating(min(grams, key=width), self.profile, waves)


def width(gram: SecondOrderGram) -> float:
    """The standard deviation of v in units of that of one v, given all other v and all y."""
    return math.sqrt(gram.shifts()[0] * precision(gram))


def precision(gram: SecondOrderGram) -> float:
    """Precision of one v given all other v and all y: of the three terms of each recursion and filter."""
    own = 1.0 + sum(one * one for one in gram.recursion)
    return own + sum(one * one for one in gram.filter) / gram.white


def dominating(gram: SecondOrderGram, profile: FloatArray, waves: FloatArray) -> SecondOrderGram:
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


def _factor(numerator: FloatArray) -> tuple[float, float, float] | None:
    """c_0, c_1 and c_2 with |c|^2 = n_0 + 2 n_1 cos + 2 n_2 cos 2; None if that is not positive."""
    zero, one, two = numerator.tolist()
    if abs(two) < 1e-12 * abs(zero):
        two = 1e-12 * abs(zero)
    roots = np.roots([two, one, zero, one, two])
    inside = roots[np.argsort(np.abs(roots))][:2]
    if np.abs(inside[1]) >= 1.0 - 1e-9:
        return None
    shape = np.poly(inside).real
    size = zero / float(shape @ shape)
    if not size > 0.0:
        return None
    c = (shape * math.sqrt(size)).tolist()
    return c[0], c[1], c[2]
