"""Balls-in-Bins by the convex-order programme on a dominating ring: no sampling, no confidence level."""

import math

import numpy as np

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.ring.bound import LARGEST_EPS, Direction, RingResult, ring_delta
from dpmech.accounting.balls_in_bins.ring.dominating import dominating_ring
from dpmech.accounting.balls_in_bins.ring.gram import RingGram
from dpmech.accounting.balls_in_bins.ring.grid import coarser
from dpmech.accounting.balls_in_bins.sampling import RoughSample, draw_entropy
from dpmech.accounting.methods import Deterministic
from dpmech.accounting.sigma_search import gaussian_scale
from dpmech.exceptions import NumericalError
from dpmech.numerics import BOUND, Bounds, FloatArray, Provenance, rung_below, safe_root, signed, up

__all__ = ["DeterministicAccountant"]

_CONFIRMATIONS = 6
_CLOSE = 5e-4
# Only where a search starts depends on this sample, so that its seed may be fixed.
_GUIDE = RoughSample(draw_entropy(np.random.default_rng(int(np.random.default_rng(0).integers(2**63)))))


class DeterministicAccountant(Accountant):
    """An upper bound on delta for a ring Gram matrix that dominates the strategy's, entry by entry.

    Delta is monotone in every entry of the Gram matrix, so that a bound for the ring is one for the
    strategy. How much the ring over-states is in `method`.
    """

    def __init__(
        self, profile: FloatArray, gram: BinGram, sensitivity: Bounds, method: Deterministic
    ) -> None:
        self.profile = profile
        self.gram = gram
        self.sensitivity = sensitivity
        self.settings = method
        self.by = Provenance("bins.programme", {"bins": gram.bins})
        self.guarantee = BOUND

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """An upper bound on delta; the lower end is 0."""
        del tolerance
        ring = self._ring(sigma, eps)
        return Bounds(0.0, self._search(ring, sigma, eps).delta, self.guarantee, self._described(ring))

    def upper_add(self, sigma: float, eps: float) -> float:
        """An upper bound on the ADD direction alone, within about a factor 2."""
        return ring_delta(
            self._ring(sigma, eps).scaled(sigma**-2), eps, rel_error=1.0, direction=Direction.ADD
        ).delta_add

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """An upper bound on eps; the lower end is 0."""
        guess = max(self._guess(sigma, delta), 1e-4)
        if guess > 0.95 * LARGEST_EPS:
            raise NumericalError(
                f"eps at sigma={sigma!r}, delta={delta!r} is about {guess:.3g}, beyond the {LARGEST_EPS:g} "
                "of the programme; Rdp() has a bound"
            )
        ring = self._ring(sigma, guess)
        first = self._search(ring, sigma, guess)
        if self._again(ring, sigma, 0.0, first) <= delta:
            return Bounds(0.0, 0.0, self.guarantee, self._described(ring))

        def excess(log_eps: float) -> float:
            upper = self._again(ring, sigma, math.exp(log_eps), first)
            return signed(math.log(delta) - math.log(max(upper, 1e-300)), safe=upper <= delta)

        root = safe_root(
            excess, math.log(guess), step=0.01, resolution=rung_below(max(tolerance, 1e-3), 1e-3)
        )
        return Bounds(0.0, math.exp(root), self.guarantee, self._described(ring))

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that the programme certifies; the search starts at an estimate.

        One fine run says how far a coarse grid is above it, and coarse runs then find sigma. What is returned
        has been confirmed by `delta` itself, with a search of its own.
        """
        rtol = rung_below(rtol, _CLOSE)
        sensitivity = self.sensitivity.upper
        start = _GUIDE.sigma(self.gram, eps, delta, sensitivity=sensitivity, progress=progress).sigma
        target = gaussian_scale(eps, delta)
        ring = self._ring(start, eps)
        first = self._search(ring, start, eps)
        progress(f"programme: sigma {up(start)}: delta <= {up(first.delta, 4)}")
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
        # A little higher, so that the first confirmation is likely to hold.
        return self._confirmed(log_sigma + 0.3 * max(rtol, _CLOSE), eps, delta, rtol, progress)

    def _confirmed(
        self, log_sigma: float, eps: float, delta: float, rtol: float, progress: Progress
    ) -> Solution:
        """A sigma at which `delta` holds, within about rtol of the smallest one; the first guess is near."""
        target = gaussian_scale(eps, delta)
        safe: Solution | None = None
        for _ in range(_CONFIRMATIONS):
            sigma = math.exp(log_sigma)
            if safe is not None and sigma >= safe.sigma:
                break
            bounds = self.delta(sigma, eps, tolerance=rtol)
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

    def _ring(self, sigma: float, eps: float) -> RingGram:
        """The ring at sigma 1 that fits best for privacy losses about eps at about this sigma."""
        return dominating_ring(self.profile * sigma**-2, self.gram.bins, eps=eps).scaled(sigma**2)

    def _search(self, ring: RingGram, sigma: float, eps: float) -> RingResult:
        """A bound on grids found for it."""
        return ring_delta(ring.scaled(sigma**-2), eps, rel_error=self.settings.rel_error)

    def _again(self, ring: RingGram, sigma: float, eps: float, first: RingResult) -> float:
        """A bound on the grids of an earlier search."""
        return ring_delta(
            ring.scaled(sigma**-2), eps, rel_error=self.settings.rel_error, grid=first.grids
        ).delta

    def _described(self, ring: RingGram) -> Provenance:
        """The programme, with how far the ring is above the Gram matrix of the strategy."""
        excess = float(np.sum(ring.profile() - self.profile) / np.sum(self.profile))
        facts = {"bins": self.gram.bins, "decay": float(ring.decay), "excess": excess}
        return Provenance("bins.programme", facts)

    def _guess(self, sigma: float, delta: float) -> float:
        """About the right eps."""
        return _GUIDE.epsilon(self.gram, sigma, delta, sensitivity=self.sensitivity.upper)
