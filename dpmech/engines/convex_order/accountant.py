"""Balls-in-Bins without sampling: upper bounds on delta by a cyclic dominating pair."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.convex_order.arma import ArmaGram, arma_fits, higher_fit
from dpmech.engines.convex_order.bound import LARGEST_EPS, REL_ERROR, RingResult, ring_delta
from dpmech.engines.convex_order.dynamic_program import Direction
from dpmech.engines.convex_order.grid import coarser
from dpmech.engines.convex_order.mixture_ring import (
    NEAR_LEAST,
    SMALL_GAIN,
    MixtureFits,
    MixtureGram,
    dominating_mixture,
)
from dpmech.engines.convex_order.ring import Height, RingGram, dominating_ring
from dpmech.engines.convex_order.tilted import saddle_point_delta, tilted_delta
from dpmech.engines.convex_order.transform import Transformed, mixture_bound, mixture_delta
from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.gaussian_mixture import BinGram, RoughSample, draw_entropy
from dpmech.engines.independent_sum import BlockBound
from dpmech.engines.sigma_search import gaussian_scale
from dpmech.exceptions import ContradictionError, NumericalError, WorkLimitError
from dpmech.methods import Deterministic
from dpmech.numerics import (
    BOUND,
    UNIT,
    Bounds,
    Fact,
    FloatArray,
    Provenance,
    quotient_down,
    register_words,
    rung_below,
    safe_root,
    signed,
    up,
)


def _words(facts: Mapping[str, Fact]) -> str:
    text = f"Balls-in-Bins convex-order program, {facts['bins']} bins"
    if "decay" in facts:
        excess = up(100.0 * float(facts["excess"]), 2)
        text += f", dominating ring of decay {float(facts['decay']):.4g} "
        text += f"(entries over-stated by {excess} % in the mean)"
    return text


register_words({"bins.program": _words})

_CONFIRMATIONS = 6
_CLOSE = 5e-4
# In log sigma: the cells that share matrices, and those that share a first guess of a small delta.
_FIT_CELL = 0.05
_CELL = 0.02
# Longest correlation, in bins, of which the moment bound tells enough.
_LONGEST = 20.0
# Step in sigma for the slope of the moment bound.
_STEP = 0.01
# Slopes of the Gaussian scale in log sigma; lower ones where errors, which vary less, are most of a bound.
SLOPES = (0.3, 1.6)
# Limits for Laplace transforms, whose absolute errors are 1e-12 to 1e-8 e^eps. With few bins the dynamic
# program is as fast, and more eigenvalues matter.
LEAST_BINS = 40
MOST_EPS = 20.0
MOST_DIAGONAL = 60.0
LEAST_EPS = 3.0
SMALL_DELTA = 1e-9
# Below this delta, in units of e^eps, these errors matter, and a tilt is tried first.
CLEAR_DELTA = 2e-9
# How far ln delta by moments is above the least one where a higher order is tried, and its least gain.
NEAR_HIGHER, HIGHER_PRICE = 0.03, 0.01
# Above the first share of errors in a bound, one with a tilt is tried; above the second the dynamic program,
# and above the first for a close ring with few bins, where it takes seconds.
CLEAR_SHARE, MOST_SHARE, FEW_BINS = 0.05, 0.5, 80
# Relative error of comparisons, and at which ADD is tried first; shares of the error at which REMOVE is.
ROUGH_ERROR, FINER = 0.2, (0.2, 0.5)
# This sample affects only the start of a search, so that its seed may be fixed.
_GUIDE = RoughSample(draw_entropy(np.random.default_rng(int(np.random.default_rng(0).integers(2**63)))))


Cyclic = MixtureGram | ArmaGram


def _single(gram: Cyclic) -> bool:
    return isinstance(gram, MixtureGram) and len(gram.parts) < 2


def _fine(gram: Cyclic, eps: float, rel_error: float, *, remove: bool, floor: float = 0.0) -> Transformed:
    """By transforms; a smaller error takes only a few more of them, but may need too high ones."""
    finer = FINER if _single(gram) else FINER[1:] if remove and isinstance(gram, ArmaGram) else ()
    for share in finer:
        with contextlib.suppress(NumericalError):
            return mixture_bound(gram, eps, rel_error=share * rel_error, remove=remove, floor=floor)
    return mixture_bound(gram, eps, rel_error=rel_error, remove=remove, floor=floor)


def _rough_removal(gram: Cyclic, eps: float) -> float:
    """REMOVE, for comparisons."""
    try:
        return mixture_delta(gram, eps, rel_error=ROUGH_ERROR, remove=True)
    except NumericalError:
        return math.inf


def _addition(gram: Cyclic, eps: float, rel_error: float, floor: float) -> Transformed:
    """ADD by transforms: few and low ones, or a tilt, usually show that it is below REMOVE, the floor."""
    if rel_error < ROUGH_ERROR:
        with contextlib.suppress(NumericalError):
            if _single(gram) and isinstance(gram, MixtureGram):
                rough = Transformed(
                    tilted_delta(gram, eps, rel_error=ROUGH_ERROR, remove=False, floor=floor), 0.0
                )
            else:
                rough = mixture_bound(gram, eps, rel_error=ROUGH_ERROR, remove=False, floor=floor)
            if rough.delta <= floor:
                return rough
    return _fine(gram, eps, rel_error, remove=False, floor=floor)


@dataclasses.dataclass(frozen=True)
class _Rings:
    """Dominating matrices for both directions; whether transforms are tilted, and approximate delta.

    `quick` may show in less time that ADD is below REMOVE.
    """

    remove: Cyclic
    add: Cyclic
    tilted: bool = False
    guess: float = 1.0
    quick: MixtureGram | None = None


class DeterministicAccountant(Accountant):
    """An upper bound on delta from a cyclic Gram matrix that dominates the strategy's, entry by entry.

    Its pair is the cyclic dominating pair. Delta is monotone in every entry of the Gram matrix, so that a
    bound for it holds for the strategy. `method` reports by how much its entries are larger. Lower bounds are
    those of independent blocks of bins.
    """

    evaluates: ClassVar[bool] = False

    def __init__(
        self,
        profile: FloatArray,
        gram: BinGram,
        sensitivity: Bounds,
        method: Deterministic,
        below: BlockBound,
    ) -> None:
        self.covariance = profile
        self.gram = gram
        self.below = below
        self.sensitivity = sensitivity
        self.settings = method
        self.by = Provenance("bins.program", {"bins": gram.bins})
        self.guarantee = BOUND
        self._mixtures: dict[tuple[float, float], _Rings | None] = {}
        self._searches: dict[tuple[int, float], MixtureFits] = {}
        self._fits: dict[tuple[float, float], tuple[MixtureGram, Cyclic, Cyclic] | None] = {}
        self._found: dict[tuple[_Rings, float, float], Transformed] = {}
        self._removals: dict[tuple[Cyclic, float, float], Transformed] = {}

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """An upper bound on delta, and what independent blocks of bins prove from below."""
        del tolerance
        upper, by = self._bounded(sigma, eps)
        return self._bracket(self.below.delta(sigma, eps), upper, by)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound alone."""
        del tolerance
        return self._bounded(sigma, eps)[0]

    def _bracket(self, lower: float, upper: float, by: Provenance) -> Bounds:
        """Both ends, which are proved independently of each other.

        Raises:
            ContradictionError: if they exclude each other.
        """
        if lower > upper:
            raise ContradictionError(f"the lower bound {lower!r} is above the upper bound {upper!r} ({by})")
        return Bounds(lower, upper, self.guarantee, by)

    def _bounded(self, sigma: float, eps: float) -> tuple[float, Provenance]:
        """An upper bound on delta."""
        rings = self._mixture(sigma, eps)
        if rings is not None:
            upper = min(self._transformed(rings, sigma, eps).delta, self._unamplified(sigma, eps))
            return upper, self._described(rings.remove)
        ring = self._ring(sigma, eps)
        return self._search(ring, sigma, eps).delta, self._described(ring)

    def upper_add(self, sigma: float, eps: float) -> float:
        """An upper bound on the ADD direction alone, accurate to about a factor of 2."""
        profile = self.covariance * sigma**-2
        if not self._flat(profile, eps):
            with contextlib.suppress(NumericalError):
                one = dominating_mixture(profile * (1.0 + 32.0 * UNIT), self.gram.bins, eps=eps, parts=1)
                return tilted_delta(one, eps, rel_error=0.4, remove=False)
        return ring_delta(
            self._ring(sigma, eps).scaled(sigma**-2), eps, rel_error=1.0, direction=Direction.ADD
        ).delta

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """An upper bound on eps, and what independent blocks of bins prove from below."""
        guess = max(self._guess(sigma, delta), 1e-4)
        if guess > 0.95 * LARGEST_EPS:
            raise NumericalError(
                f"eps at sigma={sigma!r}, delta={delta!r} is about {guess:.3g}, beyond the {LARGEST_EPS:g} "
                "of the program; Rdp() has a bound"
            )
        ring, at = self._bounds_at(sigma, guess)
        if at(0.0) <= delta:
            return Bounds(0.0, 0.0, self.guarantee, self._described(ring))

        def excess(log_eps: float) -> float:
            upper = at(math.exp(log_eps))
            return signed(math.log(delta) - math.log(max(upper, 1e-300)), safe=upper <= delta)

        root = safe_root(
            excess, math.log(guess), step=0.01, resolution=rung_below(max(tolerance, 1e-3), 1e-3)
        )
        lower = self.below.epsilon(sigma, delta, near=math.exp(root))
        return self._bracket(lower, math.exp(root), self._described(ring))

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that the dynamic program certifies; the search starts at an estimate.

        One fine run measures the excess of a coarse grid, and coarse runs then find sigma. The result is
        confirmed by `delta`, with a separate search.
        """
        rtol = rung_below(rtol, _CLOSE)
        target = gaussian_scale(eps, delta)
        log_start, slope = self._start(eps, delta, progress)
        start = math.exp(log_start)
        if self._mixture(start, eps) is not None:
            return self._confirmed(log_start, eps, delta, rtol, progress, slope)
        ring = self._ring(start, eps)
        first = self._search(ring, start, eps)
        progress(f"program: sigma {up(start)}: delta <= {up(first.delta, 4)}")
        grids = {direction: coarser(grid) for direction, grid in first.grids.items()}

        def coarse_scale(log_sigma: float) -> float:
            scaled = ring.scaled(math.exp(-2.0 * log_sigma))
            return gaussian_scale(eps, ring_delta(scaled, eps, grid=grids).delta)

        fine = gaussian_scale(eps, first.delta)
        aim = target - fine + coarse_scale(math.log(start))
        log_sigma = safe_root(
            lambda at: coarse_scale(at) - aim,
            math.log(start) + target - fine,
            step=0.0015,
            resolution=0.5 * max(rtol, _CLOSE),
        )
        # Slightly higher, so that the first confirmation is likely to succeed.
        return self._confirmed(log_sigma + 0.3 * max(rtol, _CLOSE), eps, delta, rtol, progress)

    def foreseen_excess(self, eps: float, delta: float) -> float:
        """How far sigma of `calibrate` will be above the smallest one, in log; an approximation, by moments.

        It takes a small part of the time of `calibrate`, and enters no guarantee.

        Returns:
            Infinite where more is needed than transforms with one exponential, or if correlations extend over
            many bins.
        """
        try:
            sigma = _GUIDE.moment_sigma(self.gram, eps, delta, sensitivity=self.sensitivity.upper)
        except OverflowError:
            return math.inf
        if self._flat(self.covariance * sigma**-2, eps) or not self._search_near(sigma, eps)[0].close:
            return math.inf
        fitted = self._fitted(sigma, eps)
        if fitted is None or fitted[0] != fitted[1] or fitted[0].constant > 0.0:
            return math.inf
        return self._excess(fitted[0], sigma, eps)

    def _excess(self, one: MixtureGram, sigma: float, eps: float) -> float:
        """The excess in log sigma of a matrix at sigma 1 over that of the strategy, by moment bounds."""
        if any(math.log(abs(decay)) > -1.0 / _LONGEST for _, decay in one.parts):
            return math.inf
        height, profile = Height(self.gram.bins, eps), self._means * sigma**-2
        here, below, ring = (
            float(np.min(height.of(entries)))
            for entries in (profile, profile * (1.0 - _STEP) ** 2, one.scaled(sigma**-2).profile())
        )
        return -math.log1p(-_STEP) * max(ring - here, 0.0) / max(here - below, 1e-300)

    @functools.cached_property
    def _means(self) -> FloatArray:
        """The mean entry at every cyclic distance; the profile has the largest one of all bins."""
        if self.gram.circulant:
            return self.covariance
        first = np.arange(self.gram.bins)
        entries, distances = self.gram.columns(first), np.arange(self.covariance.size)
        return np.asarray(entries[first[:, None], (first[:, None] + distances) % first.size].mean(axis=0))

    @staticmethod
    def clear(eps: float, delta: float) -> bool:
        """Whether transforms without a tilt serve."""
        return eps <= MOST_EPS and delta > CLEAR_DELTA * math.exp(eps)

    def _start(self, eps: float, delta: float, progress: Progress) -> tuple[float, float]:
        """Log of a sigma near the result, and the slope, by moments and transforms, or by a small sample."""
        sensitivity = self.sensitivity.upper
        if self.clear(eps, delta):
            # evaluations are faster than the sample, and one of them says as much
            with contextlib.suppress(OverflowError, NumericalError):
                sigma = _GUIDE.moment_sigma(self.gram, eps, delta, sensitivity=sensitivity)
                flat = self._flat(self.covariance * sigma**-2, eps)
                if eps >= LEAST_EPS or not (flat or not self._search_near(sigma, eps)[0].close):
                    near, slope = self._nearer(sigma, eps, delta)
                    if self._mixture(math.exp(near), eps) is not None:
                        return near, slope
        sigma = _GUIDE.sigma(self.gram, eps, delta, sensitivity=sensitivity, progress=progress).sigma
        try:
            return self._nearer(sigma, eps, delta)
        except NumericalError:
            return math.log(sigma), 1.0

    def _confirmed(
        self,
        log_sigma: float,
        eps: float,
        delta: float,
        rtol: float,
        progress: Progress,
        slope: float = 1.0,
    ) -> Solution:
        """A sigma at which `delta` holds, within about rtol of the smallest; the first guess is close.

        The slope is about that of the Gaussian scale in log sigma.
        """
        target, close = gaussian_scale(eps, delta), max(rtol, _CLOSE)
        safe: Solution | None = None
        # The last two points say more about the slope.
        last = math.nan, math.nan
        for _ in range(_CONFIRMATIONS):
            sigma = math.exp(log_sigma)
            if safe is not None and sigma >= safe.sigma:
                break
            try:
                upper, by = self._bounded(sigma, eps)
            except WorkLimitError:
                if safe is None:
                    raise
                # A valid sigma is known: keep it if the work limit prevents a closer one.
                break
            progress(f"confirm: sigma {up(sigma)}: delta <= {up(upper, 4)}")
            gap = gaussian_scale(eps, upper) - target
            if upper <= delta:
                safe = Solution(sigma, Bounds(0.0, eps, self.guarantee, by))
                if gap <= close:
                    break
            if abs(log_sigma - last[0]) > 0.1 * close:
                slope = min(max((gap - last[1]) / (log_sigma - last[0]), SLOPES[0]), SLOPES[1])
            last = log_sigma, gap
            # Slightly above the root, so that the next one is likely to hold and to be close enough.
            log_sigma -= gap / slope - (0.1 * close + 0.02 * abs(gap))
        if safe is None:
            raise NumericalError(f"sigma={sigma!r} could not be confirmed at eps={eps!r}, delta={delta!r}")
        lower = self.below.epsilon(safe.sigma, delta, near=eps)
        return dataclasses.replace(safe, achieved=self._bracket(lower, eps, safe.achieved.by))

    def _nearer(self, sigma: float, eps: float, delta: float) -> tuple[float, float]:
        """Log of a better start, and the slope there, by REMOVE for the matrix that takes less time.

        Raises:
            NumericalError: if the transforms find no bound.
        """
        slope, target, last = 1.0, gaussian_scale(eps, delta), (math.nan, math.nan)
        if delta <= CLEAR_DELTA * max(1.0, math.exp(eps)):
            return math.log(sigma), slope  # a tilt serves
        fitted = None
        for _ in range(_CONFIRMATIONS):
            flat = self._flat(self.covariance * sigma**-2, eps)
            fitted = None if flat else self._fitted(sigma, eps)
            if fitted is None or fitted[0] != fitted[1] == fitted[2]:
                return math.log(sigma), slope
            found = mixture_delta(fitted[2].scaled(sigma**-2), eps, rel_error=REL_ERROR, remove=True)
            here, gap = math.log(sigma), gaussian_scale(eps, found) - target
            if abs(here - last[0]) > _STEP:
                slope = min(max((gap - last[1]) / (here - last[0]), SLOPES[0]), SLOPES[1])
            last = here, gap
            sigma *= math.exp(-gap / slope)
            if abs(gap) < 0.5 * _STEP:
                break
        # moments say approximately what the better matrix gains
        if fitted is not None:
            height = Height(self.gram.bins, eps)
            better, worse, below = (
                float(np.min(height.of(gram.scaled(sigma**-2).profile())))
                for gram in (fitted[1], fitted[2], fitted[2].scaled((1.0 + _STEP) ** -2))
            )
            sigma *= math.exp(-_STEP * (worse - better) / (worse - below))
        return math.log(sigma), slope

    def _mixture(self, sigma: float, eps: float) -> _Rings | None:
        """Matrices for Laplace transforms, at sigma 1, fitted near that point; None if transforms fail.

        A trial run decides. Absolute errors grow with e^eps, which rules out small deltas without a tilt.
        """
        if self._flat(self.covariance * sigma**-2, eps):
            return None
        key = (sigma, eps)
        if key not in self._mixtures:
            self._mixtures[key] = self._served(sigma, eps)
        return self._mixtures[key]

    def _flat(self, profile: FloatArray, eps: float) -> bool:
        """Whether transforms are not worth trying."""
        flat = self.gram.bins < LEAST_BINS or not np.ptp(profile) > 1e-9 * profile[0]
        return flat or eps > MOST_EPS or not profile[0] <= MOST_DIAGONAL

    def _search_near(self, sigma: float, eps: float) -> tuple[MixtureFits, float]:
        """The search for matrices of the cell of a sigma, and the sigma in its middle.

        It does not depend on other calls, and what it finds is not noticeably above what is fitted at sigma.
        """
        key = (round(math.log(sigma) / _FIT_CELL), eps)
        there = math.exp(_FIT_CELL * key[0])
        if key not in self._searches:
            self._searches[key] = self._fits_at(there, eps)
        return self._searches[key], there

    def _fits_at(self, sigma: float, eps: float, *, high: bool = False) -> MixtureFits:
        raised = self.covariance * sigma**-2 * (1.0 + 32.0 * UNIT)
        return MixtureFits(raised, self.gram.bins, eps, high=high)

    def _fitted(self, sigma: float, eps: float) -> tuple[MixtureGram, Cyclic, Cyclic] | None:
        """Matrices with one exponential, and better ones for REMOVE and for ADD; None if there are none.

        There is one fit per cell of sigma.
        """
        search, there = self._search_near(sigma, eps)
        key = (there, eps)
        if key not in self._fits:
            try:
                one = search.best(1)
                found = (one, one) if search.close else self._of_two(search, there, eps)
                remove, add = (gram.scaled(there**2) for gram in found)
                self._fits[key] = one.scaled(there**2), remove, add
            except NumericalError:
                self._fits[key] = None
        return self._fits[key]

    def _of_two(self, search: MixtureFits, there: float, eps: float) -> tuple[Cyclic, Cyclic]:
        """The best ARMA matrix or with two exponentials, which are tried only if it is not close.

        It is fitted at the sigma in the middle of a cell. For REMOVE, a higher order may be better.
        """
        high = self._fits_at(there, eps, high=True)
        profile = high.target * high.top
        found: list[Cyclic] = list(arma_fits(high, profile))

        def price(gram: Cyclic) -> float:
            return float(np.min(high.height.of(gram.profile())))

        nearest = min(map(price, found), default=math.inf)
        # for small deltas a tilt serves, with one exponential
        one = search.best(1).scaled(there**2)
        clear = self._estimate(one, there, eps) > CLEAR_DELTA * max(1.0, math.exp(eps))
        if found and clear and nearest > high.least + NEAR_HIGHER:
            better = higher_fit(high, profile)
            if better is not None and price(better) < nearest - HIGHER_PRICE:
                return better, min(found, key=price)
        if nearest > high.least + NEAR_LEAST:
            found.append(search.best(2))
            if search.rises:
                # moments rank matrices with waves of high frequency too roughly
                found.append(high.best(2))
        prices = [price(gram) for gram in found]
        if max(prices) - min(prices) <= SMALL_GAIN:
            best = found[int(np.argmin(prices))]
        else:
            best = min(found, key=lambda gram: _rough_removal(gram, eps))
        return best, best

    def _served(self, sigma: float, eps: float) -> _Rings | None:
        fitted = self._fitted(sigma, eps)
        if fitted is None:
            return None
        one, two, other = fitted
        estimate = self._estimate(one, sigma, eps)
        # between the two limits both kinds serve; only the other one may have a second exponential
        small = estimate <= (CLEAR_DELTA if one == two else SMALL_DELTA) * max(1.0, math.exp(eps))
        tilted = self._near(one, sigma, eps) if small else None
        if tilted is not None:
            return tilted
        # with most paths removed, as in ADD, transforms often succeed only with a single exponential; where
        # decays are negative, ADD of one may be above REMOVE of two
        found, best = None, Transformed(math.inf, math.inf)
        few = self.gram.bins < FEW_BINS and one == two
        share = CLEAR_SHARE if few else MOST_SHARE
        turned = isinstance(two, ArmaGram) or any(decay < 0.0 for _, decay in two.parts)
        pairs = (
            *([_Rings(two, other, quick=one)] if turned else []),
            _Rings(two, one),
            _Rings(other, other),
            _Rings(one, one),
        )
        for rings in dict.fromkeys(pairs):
            try:
                removed = self._removed(rings.remove, sigma, eps)
                if not small and removed.errors > CLEAR_SHARE * removed.delta:
                    small, tilted = True, self._near(one, sigma, eps)
                if tilted is not None and self._transformed(tilted, sigma, eps).delta <= removed.delta:
                    return tilted
                if few and tilted is None and removed.errors > share * removed.delta:
                    continue
                best, found = self._transformed(rings, sigma, eps), rings
            except NumericalError:
                continue
            break
        clear = best.errors <= CLEAR_SHARE * best.delta < math.inf
        if not small and not clear:
            tilted = self._near(one, sigma, eps)
        if tilted is not None and self._transformed(tilted, sigma, eps).delta < best.delta:
            return tilted
        return found if tilted is not None or best.errors <= share * best.delta else None

    def _estimate(self, one: MixtureGram, sigma: float, eps: float) -> float:
        """Approximate delta: moments alone may be orders of magnitude above it at small eps."""
        try:
            return saddle_point_delta(one.scaled(sigma**-2), eps)
        except NumericalError:
            return math.exp(float(np.min(Height(self.gram.bins, eps).of(self.covariance * sigma**-2))))

    def _near(self, one: MixtureGram, sigma: float, eps: float) -> _Rings | None:
        """The tilted matrix, with delta in the middle of a cell as a guess; None if it has no answer."""
        there = math.exp(_CELL * round(math.log(sigma) / _CELL))
        rings = _Rings(one, one, tilted=True)
        try:
            if there != sigma:
                rings = dataclasses.replace(rings, guess=2.0 * self._transformed(rings, there, eps).delta)
            self._transformed(rings, sigma, eps)
        except NumericalError:
            return None
        return rings

    def _transformed(self, rings: _Rings, sigma: float, eps: float) -> Transformed:
        """A bound for both directions by Laplace transforms; the errors of those with a tilt are small."""
        key = (rings, sigma, eps)
        if key not in self._found:
            error, other = self._error, rings.add.scaled(sigma**-2)
            one = rings.remove.scaled(sigma**-2)
            if rings.tilted and isinstance(one, MixtureGram) and isinstance(other, MixtureGram):
                upper = tilted_delta(one, eps, rel_error=error, remove=True, guess=rings.guess)
                add = tilted_delta(other, eps, rel_error=error, remove=False, floor=upper)
                self._found[key] = Transformed(max(upper, add), 0.0)
            else:
                remove, quick = self._removed(rings.remove, sigma, eps), None
                if rings.quick is not None:
                    with contextlib.suppress(NumericalError):
                        quick = _addition(rings.quick.scaled(sigma**-2), eps, ROUGH_ERROR, remove.delta)
                found = [] if quick is None else [quick]
                if quick is None or quick.delta > remove.delta:
                    found.append(_addition(other, eps, error, remove.delta))
                self._found[key] = max(remove, min(found))
        return self._found[key]

    def _removed(self, gram: Cyclic, sigma: float, eps: float) -> Transformed:
        """A bound on REMOVE without a tilt."""
        key = (gram, sigma, eps)
        if key not in self._removals:
            self._removals[key] = _fine(gram.scaled(sigma**-2), eps, self._error, remove=True)
        return self._removals[key]

    @property
    def _error(self) -> float:
        return rung_below(self.settings.rel_error, REL_ERROR)

    def _unamplified(self, sigma: float, eps: float) -> float:
        """Bound from one Gaussian with the largest entry."""
        return gaussian_delta(quotient_down(sigma, self.sensitivity.upper), eps)[1]

    def _transformed_or_unamplified(self, rings: _Rings, sigma: float, eps: float) -> float:
        try:
            return min(self._transformed(rings, sigma, eps).delta, self._unamplified(sigma, eps))
        except NumericalError:
            return self._unamplified(sigma, eps)

    def _bounds_at(self, sigma: float, guess: float) -> tuple[RingGram | Cyclic, Callable[[float], float]]:
        """A cyclic matrix, and its upper bounds on delta as a function of eps, tight near a guess."""
        rings = self._mixture(sigma, guess)
        if rings is not None:
            return rings.remove, functools.partial(self._transformed_or_unamplified, rings, sigma)
        ring = self._ring(sigma, guess)
        first = self._search(ring, sigma, guess)
        return ring, functools.partial(self._again, ring, sigma, first=first)

    def _ring(self, sigma: float, eps: float) -> RingGram:
        """The best cyclic matrix at sigma 1 for privacy losses of about eps near this sigma."""
        return dominating_ring(self.covariance * sigma**-2, self.gram.bins, eps=eps).scaled(sigma**2)

    def _search(self, ring: RingGram, sigma: float, eps: float) -> RingResult:
        """A bound on grids that are searched for it."""
        return ring_delta(ring.scaled(sigma**-2), eps, rel_error=self.settings.rel_error)

    def _again(self, ring: RingGram, sigma: float, eps: float, first: RingResult) -> float:
        """A bound on the grids of an earlier search."""
        return ring_delta(
            ring.scaled(sigma**-2), eps, rel_error=self.settings.rel_error, grid=first.grids
        ).delta

    def _described(self, ring: RingGram | Cyclic) -> Provenance:
        """The slowest decay, and how far the matrix is above the Gram matrix of the strategy."""
        decays = [ring.decay] if isinstance(ring, RingGram) else ring.decays
        excess = float(np.sum(ring.profile() - self.covariance) / np.sum(self.covariance))
        facts = {"bins": self.gram.bins, "decay": max([0.0, *decays]), "excess": excess}
        return Provenance("bins.program", facts)

    def _guess(self, sigma: float, delta: float) -> float:
        """Approximate eps."""
        return _GUIDE.epsilon(self.gram, sigma, delta, sensitivity=self.sensitivity.upper)
