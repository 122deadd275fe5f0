"""Balls-in-Bins by the convex-order programme on a dominating ring: no sampling, no confidence level."""

import math

import numpy as np

from dpmech.accounting.accountant import DETERMINISTIC, Accountant, Progress, Solution
from dpmech.accounting.bin_gram import BinGram
from dpmech.accounting.dominating import dominating_ring
from dpmech.accounting.methods import Deterministic, Importance
from dpmech.accounting.ring import RingResult, ring_delta
from dpmech.accounting.ring_gram import RingGram
from dpmech.accounting.sampled import ImportanceAccountant
from dpmech.accounting.search import gaussian_scale, safe_root, signed
from dpmech.bounds import Bounds
from dpmech.exceptions import NumericalError
from dpmech.linalg import FloatArray

__all__ = ["DeterministicAccountant"]

_CONFIRMATIONS = 6


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
        self.method = f"Balls-in-Bins convex-order programme, {gram.bins} bins"
        self.guarantee = DETERMINISTIC

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """An upper bound on delta; the lower end is 0."""
        del tolerance
        ring = self._ring(sigma, eps)
        return Bounds(0.0, self._search(ring, sigma, eps).delta, self._described(ring))

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """An upper bound on eps; the lower end is 0."""
        guess = max(self._guide().rough_epsilon(sigma, delta), 1e-4)
        ring = self._ring(sigma, guess)
        first = self._search(ring, sigma, guess)
        if self._again(ring, sigma, 0.0, first) <= delta:
            return Bounds(0.0, 0.0, self._described(ring))

        def excess(log_eps: float) -> float:
            upper = self._again(ring, sigma, math.exp(log_eps), first)
            return signed(math.log(delta) - math.log(max(upper, 1e-300)), safe=upper <= delta)

        root = safe_root(excess, math.log(guess), step=0.01, resolution=max(tolerance, 1e-3))
        return Bounds(0.0, math.exp(root), self._described(ring))

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that the programme certifies; the search starts at an estimate.

        The grids of one search serve every probe, since any grid gives a bound; what is returned has been
        confirmed by `delta` itself, with a search of its own.
        """
        start = self._guide().calibrate(eps, delta, rtol=1e-3, progress=progress).sigma
        target = gaussian_scale(eps, delta)
        ring = self._ring(start, eps)
        first = self._search(ring, start, eps)
        progress(f"programme: sigma {start:.6g}: delta <= {first.delta:.4g}")

        def excess(log_sigma: float) -> float:
            upper = self._again(ring, math.exp(log_sigma), eps, first)
            progress(f"programme: sigma {math.exp(log_sigma):.6g}: delta <= {upper:.4g}")
            return signed(gaussian_scale(eps, upper) - target, safe=upper <= delta)

        log_sigma = math.log(start) + target - gaussian_scale(eps, first.delta)
        log_sigma = safe_root(excess, log_sigma, step=0.0015, resolution=max(rtol, 5e-4))
        for _ in range(_CONFIRMATIONS):
            sigma = math.exp(log_sigma)
            bounds = self.delta(sigma, eps, tolerance=rtol)
            progress(f"confirm: sigma {sigma:.6g}: delta <= {bounds.upper:.4g}")
            if bounds.upper <= delta:
                return Solution(sigma, Bounds(0.0, eps, bounds.method))
            log_sigma += 1.2 * (target - gaussian_scale(eps, bounds.upper)) + 0.1 * rtol
        raise NumericalError(f"sigma={sigma!r} could not be confirmed at eps={eps!r}, delta={delta!r}")

    def _ring(self, sigma: float, eps: float) -> RingGram:
        """The ring at sigma 1 that fits best for privacy losses about eps at about this sigma."""
        scaled = self.profile * sigma**-2
        tilt = (eps + math.log(self.gram.bins) + 0.5 * scaled[0]) / scaled[0]
        return dominating_ring(scaled, self.gram.bins, tilt=min(float(tilt), 100.0)).scaled(sigma**2)

    def _search(self, ring: RingGram, sigma: float, eps: float) -> RingResult:
        """A bound on grids found for it."""
        return ring_delta(ring.scaled(sigma**-2), eps, rel_error=self.settings.rel_error)

    def _again(self, ring: RingGram, sigma: float, eps: float, first: RingResult) -> float:
        """A bound on the grids of an earlier search."""
        return ring_delta(
            ring.scaled(sigma**-2), eps, rel_error=self.settings.rel_error, grid=first.grids
        ).delta

    def _described(self, ring: RingGram) -> str:
        """The method, with how far the ring is above the Gram matrix of the strategy."""
        excess = float(np.sum(ring.profile() - self.profile) / np.sum(self.profile))
        return (
            f"{self.method}, dominating ring of decay {ring.decay:.4g} "
            f"(entries over-stated by {100.0 * excess:.2g} % in the mean)"
        )

    def _guide(self) -> ImportanceAccountant:
        # Only where the search starts depends on these samples, so that their seed may be fixed.
        return ImportanceAccountant(self.gram, self.sensitivity, Importance(0.05), np.random.default_rng(0))
