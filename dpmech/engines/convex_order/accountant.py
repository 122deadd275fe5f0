"""Balls-in-Bins without sampling: upper bounds on delta by a cyclic dominating pair."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import numpy as np

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.convex_order.bound import LARGEST_EPS, REL_ERROR, RingResult, ring_delta
from dpmech.engines.convex_order.dynamic_program import Direction
from dpmech.engines.convex_order.grid import coarser
from dpmech.engines.convex_order.mixture_ring import MixtureGram, dominating_mixture
from dpmech.engines.convex_order.ring import Height, RingGram, dominating_ring
from dpmech.engines.convex_order.tilted import tilted_delta
from dpmech.engines.convex_order.transform import mixture_delta
from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.gaussian_mixture import BinGram, RoughSample, draw_entropy
from dpmech.engines.sigma_search import gaussian_scale
from dpmech.exceptions import NumericalError, WorkLimitError
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
# Sigmas in one cell of this width, in log, share matrices where delta may be small: where the log of the
# moment bound is at most _LOOSE above that of SMALL_DELTA e^eps.
_CELL = 0.02
_LOOSE = 10.0
# Limits for Laplace transforms, whose absolute errors are about 1e-12 e^eps. With few bins the dynamic
# program is as fast, and more eigenvalues matter.
LEAST_BINS = 40
MOST_EPS = 20.0
MOST_DIAGONAL = 60.0
SECOND_EPS = 3.0
SMALL_DELTA = 1e-9
# Above this delta these errors are negligible, and no alternative is tried.
CLEAR_DELTA = 1e-6
# This sample affects only the start of a search, so that its seed may be fixed.
_GUIDE = RoughSample(draw_entropy(np.random.default_rng(int(np.random.default_rng(0).integers(2**63)))))


@dataclasses.dataclass(frozen=True)
class _Rings:
    """Dominating matrices for both directions; whether transforms are tilted, and approximate delta."""

    remove: MixtureGram
    add: MixtureGram
    tilted: bool = False
    guess: float = 1.0


class DeterministicAccountant(Accountant):
    """An upper bound on delta from a cyclic Gram matrix that dominates the strategy's, entry by entry.

    Its pair is the cyclic dominating pair. Delta is monotone in every entry of the Gram matrix, so that a
    bound for it holds for the strategy. `method` reports by how much its entries are larger.
    """

    evaluates: ClassVar[bool] = False

    def __init__(
        self, profile: FloatArray, gram: BinGram, sensitivity: Bounds, method: Deterministic
    ) -> None:
        self.covariance = profile
        self.gram = gram
        self.sensitivity = sensitivity
        self.settings = method
        self.by = Provenance("bins.program", {"bins": gram.bins})
        self.guarantee = BOUND
        self._mixtures: dict[tuple[float, float], _Rings | None] = {}
        self._found: dict[tuple[_Rings, float, float], float] = {}

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """An upper bound on delta; the lower end is 0."""
        del tolerance
        rings = self._mixture(sigma, eps)
        if rings is not None:
            upper = min(self._transformed(rings, sigma, eps), self._unamplified(sigma, eps))
            return Bounds(0.0, upper, self.guarantee, self._described(rings.remove))
        ring = self._ring(sigma, eps)
        return Bounds(0.0, self._search(ring, sigma, eps).delta, self.guarantee, self._described(ring))

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
        """An upper bound on eps; the lower end is 0."""
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
        return Bounds(0.0, math.exp(root), self.guarantee, self._described(ring))

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that the dynamic program certifies; the search starts at an estimate.

        One fine run measures the excess of a coarse grid, and coarse runs then find sigma. The result is
        confirmed by `delta`, with a separate search.
        """
        rtol = rung_below(rtol, _CLOSE)
        sensitivity = self.sensitivity.upper
        start = _GUIDE.sigma(self.gram, eps, delta, sensitivity=sensitivity, progress=progress).sigma
        target = gaussian_scale(eps, delta)
        if self._mixture(start, eps) is not None:
            return self._confirmed(math.log(start), eps, delta, rtol, progress)
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

    def _confirmed(
        self, log_sigma: float, eps: float, delta: float, rtol: float, progress: Progress
    ) -> Solution:
        """A sigma at which `delta` holds, within about rtol of the smallest; the first guess is close."""
        target = gaussian_scale(eps, delta)
        safe: Solution | None = None
        for _ in range(_CONFIRMATIONS):
            sigma = math.exp(log_sigma)
            if safe is not None and sigma >= safe.sigma:
                break
            try:
                bounds = self.delta(sigma, eps, tolerance=rtol)
            except WorkLimitError:
                if safe is None:
                    raise
                # A valid sigma is known: keep it if the work limit prevents a closer one.
                break
            progress(f"confirm: sigma {up(sigma)}: delta <= {up(bounds.upper, 4)}")
            gap = gaussian_scale(eps, bounds.upper) - target
            if bounds.upper > delta:
                log_sigma += 0.1 * rtol - 1.2 * gap
                continue
            safe = Solution(sigma, Bounds(0.0, eps, self.guarantee, bounds.by))
            if gap <= max(rtol, _CLOSE):
                break
            log_sigma -= gap - 0.3 * max(rtol, _CLOSE)
        if safe is None:
            raise NumericalError(f"sigma={sigma!r} could not be confirmed at eps={eps!r}, delta={delta!r}")
        return safe

    def _mixture(self, sigma: float, eps: float) -> _Rings | None:
        """Matrices for Laplace transforms, at sigma 1, fitted near that point; None if transforms fail.

        A trial run decides. Absolute errors grow with e^eps, which rules out small deltas without a tilt.
        """
        profile = self.covariance * sigma**-2
        if self._flat(profile, eps):
            return None
        key = (sigma, eps)
        if key not in self._mixtures:
            found = self._near(profile, sigma, eps)
            self._mixtures[key] = self._served(profile, sigma, eps) if found is None else found
        return self._mixtures[key]

    def _near(self, profile: FloatArray, sigma: float, eps: float) -> _Rings | None:
        """Tilted matrices of a nearby sigma, one per cell: the result does not depend on other calls."""
        moments = float(np.min(Height(self.gram.bins, eps).of(profile)))
        there = math.exp(_CELL * round(math.log(sigma) / _CELL))
        if moments > math.log(SMALL_DELTA) + eps + _LOOSE or there == sigma:
            return None
        rings = self._mixture(there, eps)
        if rings is None or not rings.tilted:
            return None
        near = dataclasses.replace(rings, guess=2.0 * self._transformed(rings, there, eps))
        try:
            self._transformed(near, sigma, eps)
        except NumericalError:
            return None
        return near

    def _flat(self, profile: FloatArray, eps: float) -> bool:
        """Whether transforms are not worth trying."""
        flat = self.gram.bins < LEAST_BINS or not np.ptp(profile) > 1e-9 * profile[0]
        return flat or eps > MOST_EPS or not profile[0] <= MOST_DIAGONAL

    def _served(self, profile: FloatArray, sigma: float, eps: float) -> _Rings | None:
        raised, bins = profile * (1.0 + 32.0 * UNIT), self.gram.bins
        try:
            one = dominating_mixture(raised, bins, eps=eps, parts=1).scaled(sigma**2)
        except NumericalError:
            return None
        two = one
        if eps >= SECOND_EPS:
            two = dominating_mixture(raised, bins, eps=eps, parts=2).scaled(sigma**2)
        # with most paths removed, as in ADD, transforms succeed only with a single exponential
        upper, found = math.inf, None
        for rings in dict.fromkeys((_Rings(two, one), _Rings(one, one))):
            try:
                upper, found = self._transformed(rings, sigma, eps), rings
            except NumericalError:
                continue
            break
        unit = max(1.0, math.exp(eps))
        if found is not None and upper > CLEAR_DELTA * unit:
            return found
        if not upper > SMALL_DELTA * unit:
            upper, found = math.inf, None
        rings = _Rings(one, one, tilted=True)
        try:
            return rings if self._transformed(rings, sigma, eps) < upper else found
        except NumericalError:
            return found

    def _transformed(self, rings: _Rings, sigma: float, eps: float) -> float:
        """A bound for both directions by Laplace transforms."""
        key = (rings, sigma, eps)
        if key not in self._found:
            error = rung_below(self.settings.rel_error, REL_ERROR)
            one, other = rings.remove.scaled(sigma**-2), rings.add.scaled(sigma**-2)
            if rings.tilted:
                remove = tilted_delta(one, eps, rel_error=error, remove=True, guess=rings.guess)
                add = tilted_delta(other, eps, rel_error=error, remove=False, floor=remove)
            else:
                remove = mixture_delta(one, eps, rel_error=error, remove=True)
                add = mixture_delta(other, eps, rel_error=error, remove=False, floor=remove)
            self._found[key] = max(remove, add)
        return self._found[key]

    def _unamplified(self, sigma: float, eps: float) -> float:
        """Bound from one Gaussian with the largest entry."""
        return gaussian_delta(quotient_down(sigma, self.sensitivity.upper), eps)[1]

    def _transformed_or_unamplified(self, rings: _Rings, sigma: float, eps: float) -> float:
        try:
            return min(self._transformed(rings, sigma, eps), self._unamplified(sigma, eps))
        except NumericalError:
            return self._unamplified(sigma, eps)

    def _bounds_at(
        self, sigma: float, guess: float
    ) -> tuple[RingGram | MixtureGram, Callable[[float], float]]:
        """A cyclic matrix, and its upper bounds on delta as a function of eps, tight near a guess."""
        rings = self._mixture(sigma, guess)
        if rings is not None:
            return rings.remove, partial(self._transformed_or_unamplified, rings, sigma)
        ring = self._ring(sigma, guess)
        first = self._search(ring, sigma, guess)
        return ring, partial(self._again, ring, sigma, first=first)

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

    def _described(self, ring: RingGram | MixtureGram) -> Provenance:
        """The slowest decay, and how far the matrix is above the Gram matrix of the strategy."""
        decays = [ring.decay] if isinstance(ring, RingGram) else [decay for _, decay in ring.parts]
        excess = float(np.sum(ring.profile() - self.covariance) / np.sum(self.covariance))
        facts = {"bins": self.gram.bins, "decay": max([0.0, *decays]), "excess": excess}
        return Provenance("bins.program", facts)

    def _guess(self, sigma: float, delta: float) -> float:
        """Approximate eps."""
        return _GUIDE.epsilon(self.gram, sigma, delta, sensitivity=self.sensitivity.upper)
