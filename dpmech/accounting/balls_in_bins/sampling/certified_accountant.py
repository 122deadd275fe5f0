"""The accountant of bounds that hold with probability 1 - beta."""

import dataclasses
import math

import numpy as np

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.sampling.blocks import draw_entropy
from dpmech.accounting.balls_in_bins.sampling.certified_bound import (
    CertifiedBound,
    Pilots,
    certified_floor,
    certify_delta,
)
from dpmech.accounting.balls_in_bins.sampling.reach import _SMALLEST_EPS, delta_below
from dpmech.accounting.balls_in_bins.sampling.rough_sigma import RoughSample
from dpmech.accounting.gaussian import gaussian_epsilon
from dpmech.accounting.methods import Certified
from dpmech.exceptions import NumericalError
from dpmech.numerics import Bounds, Guarantee, Provenance, next_down, product_down, up

__all__ = ["CertifiedAccountant"]

# Tries in a fixed order: by how much higher in log sigma (or log eps), and the part of beta that each has.
_TRIES = ((0.0, 0.87), (0.004, 0.05), (0.02, 0.02), (0.08, 0.01))
# The part of beta that the lower end has.
_FLOOR_SHARE = 0.05
# How far above the right sigma, in log, a calibration aims: the least of these whose samples are few enough.
_AIMS = (0.0008, 0.001, 0.0012, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.006, 0.01, 0.02, 0.04, 0.08)
# Draws times bins that a proof may take, and how much more of them is still tried for the widest aim.
_WORK = 1.2e8
_LEAST_DRAWS = 4000.0
_HOPELESS = 20.0
# The pilot is to know delta this much better than the gap that is aimed at.
_PILOT_SHARE = 0.3
# The lower end of eps lies below its root by this many times the gap above it.
_FLOOR_GAP = 2.0
# For the slope of log delta in log eps.
_STEP = 0.01


@dataclasses.dataclass(frozen=True)
class _Aim:
    """Where a proof is tried, relative to the pilots, in the log of what is searched for.

    Attributes:
        root: where delta meets its target, about.
        above: how far above that.
        gap: by how much log delta falls over `above`.
    """

    root: float
    above: float
    gap: float


class CertifiedAccountant(Accountant):
    """An upper bound that holds with probability 1 - beta, over every probe of one call.

    Sizing uses independent samples; the bound is then drawn at points fixed before its own samples, each with
    its share of beta.
    """

    def __init__(
        self, gram: BinGram, sensitivity: Bounds, method: Certified, rng: np.random.Generator | None
    ) -> None:
        self.gram = gram
        self.sensitivity = sensitivity
        self.settings = method
        # Whoever picks the numbers picks the sigma: only those of this call may count inside delta.
        self.fresh = rng is None
        self.entropy = draw_entropy(rng)
        self.rng = np.random.default_rng(self.entropy)
        self.guarantee = method.guarantee(inside=False)
        self.by = self._by(self.guarantee)

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta, which share beta."""
        del tolerance
        sampled = max(eps, _SMALLEST_EPS)
        found = certify_delta(
            self.gram.scaled(sigma**-2),
            sampled,
            beta=self.settings.share(1),
            lower=True,
            rng=self._fresh(),
            executor=self.settings.executor,
        )
        upper = delta_below(found.upper, sampled, eps, sigma / self.sensitivity.upper)
        return self._bounds(min(found.lower, upper), upper, self.guarantee)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps, which share beta."""
        del tolerance
        unamplified = gaussian_epsilon(sigma / self.sensitivity.upper, delta, safe=True)
        guarantee = self.settings.guarantee(delta, inside=False)
        if unamplified <= _SMALLEST_EPS:
            return self._bounds(0.0, unamplified, guarantee)
        beta, gram = self.settings.share(1, delta), self.gram.scaled(sigma**-2)
        rough = self._rough().epsilon(self.gram, sigma, delta, sensitivity=self.sensitivity.upper)
        start = max(rough.eps, _SMALLEST_EPS)
        pilots = Pilots.at(gram, start, self._entropy(), self.settings.executor)
        pilots, aim = self._aimed(pilots, delta, rough.fall, beta)
        for further, share in _TRIES:
            eps = max(start * math.exp(aim.root + aim.above + further), _SMALLEST_EPS)
            if eps >= unamplified:
                eps = unamplified
                break
            moved = pilots.moved(gram, eps, self._entropy())
            if self._certified(moved, delta, product_down(share, beta)).meets(delta):
                break
        else:
            raise NumericalError(
                f"no eps up to {eps!r} could be certified at delta={delta!r} ({self.method})"
            )
        floor = start * math.exp(aim.root - _FLOOR_GAP * aim.above)
        lower = self._floor(pilots, gram, min(floor, eps), delta, beta)
        return self._bounds(lower, eps, guarantee)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Size on independent samples, then certify a little above; at most a few tries, fixed in advance.

        Beta is inside delta where the random numbers are this call's own: what is certified is then the
        delta that is left. The aim lies as little above the right sigma as a bounded number of draws can
        prove; `rtol` does not enter.
        """
        del rtol
        guarantee = self.settings.guarantee(delta, inside=self.fresh)
        goal, beta = guarantee.mechanism_delta(delta), self.settings.share(1, delta)
        rough = self._rough().sigma(
            self.gram, eps, goal, sensitivity=self.sensitivity.upper, progress=progress
        )
        pilots = Pilots.at(rough.gram, eps, self._entropy(), self.settings.executor)
        pilots, aim = self._aimed(pilots, goal, rough.fall, beta)
        for further, share in _TRIES:
            sigma = rough.sigma * math.exp(aim.root + aim.above + further)
            gram = self.gram.scaled(sigma**-2)
            moved = pilots.moved(gram, eps, self._entropy())
            bound = self._certified(moved, goal, product_down(share, beta))
            progress(f"certify: sigma {up(sigma)}: delta <= {up(bound.upper, 4)}")
            if bound.meets(goal):
                # Log delta is short of its target by about this.
                short = aim.gap + rough.fall * further
                lower = self._lower_epsilon(moved, gram, eps, delta, short + _FLOOR_GAP * aim.gap, beta)
                return Solution(
                    sigma,
                    self._bounds(lower, eps, guarantee),
                    bound.samples,
                    randomness="".join(f"{word:08x}" for word in self.entropy),
                    method=self.settings.settled(delta),
                )
        raise NumericalError(f"no sigma up to {sigma!r} could be certified ({self.method})")

    def _aimed(self, pilots: Pilots, delta: float, fall: float, beta: float) -> tuple[Pilots, _Aim]:
        """How far above the root of the pilots to look for a proof, and pilots that know that root so well.

        Raises:
            NumericalError: if no gap can be proved with so many draws as are still tried.
        """
        if not pilots.weights:
            return pilots, _Aim(0.0, 0.0, 0.0)
        first = product_down(_TRIES[0][1], beta)
        most = max(_WORK / self.gram.bins, _LEAST_DRAWS)
        mean = pilots.summary(pilots.decider).log_mean
        draws = {aim: pilots.expected_samples(mean + fall * aim, first) for aim in _AIMS}
        above = next((aim for aim in _AIMS if draws[aim] <= most), _AIMS[-1])
        if draws[above] > _HOPELESS * most:
            raise NumericalError(
                f"a proof by sampling would take some {draws[above]:.1e} draws of {self.gram.bins} bins "
                f"({self.method})"
            )
        gap = fall * above
        error = pilots.summary(pilots.decider).relative_error / (_PILOT_SHARE * gap)
        pilots = pilots.enlarged(int(min(pilots.weights[pilots.decider].size * error**2, most)))
        root = (pilots.summary(pilots.decider).log_mean - math.log(delta)) / fall
        return pilots, _Aim(root, above, gap)

    def _lower_epsilon(
        self, pilots: Pilots, gram: BinGram, eps: float, delta: float, gap: float, beta: float
    ) -> float:
        """A certified lower bound on eps at delta, where log delta is about `gap` larger than at `eps`."""
        if not pilots.weights or eps <= 2.0 * _SMALLEST_EPS:
            return 0.0
        means = []
        for factor in (1.0, 1.0 - _STEP):
            there = pilots.moved(gram, factor * eps, pilots.entropy).redrawn()
            means.append(there.summary(there.decider).log_mean)
        fall = (means[1] - means[0]) / -math.log1p(-_STEP)
        if not fall > 0.0:
            return 0.0
        return self._floor(pilots, gram, eps * math.exp(-gap / fall), delta, beta)

    def _floor(self, pilots: Pilots, gram: BinGram, eps: float, delta: float, beta: float) -> float:
        """`eps`, where delta is proved to be larger there than `delta`; else 0."""
        if not pilots.weights or eps < _SMALLEST_EPS:
            return 0.0
        found = certified_floor(
            pilots.moved(gram, eps, self._entropy()),
            delta,
            product_down(_FLOOR_SHARE, beta),
            rng=self._fresh(),
            max_samples=int(max(_WORK / self.gram.bins, _LEAST_DRAWS)),
        )
        # Below the smallest eps that is larger in float64.
        return next_down(eps) if found >= delta else 0.0

    def _certified(self, pilots: Pilots, delta: float, beta: float) -> CertifiedBound:
        return certify_delta(
            pilots.gram,
            pilots.eps,
            delta,
            beta=beta,
            rng=self._fresh(),
            executor=self.settings.executor,
            pilots=pilots,
        )

    def _rough(self) -> RoughSample:
        return RoughSample(self._entropy(), pilots=2, executor=self.settings.executor)

    def _entropy(self) -> tuple[int, ...]:
        return draw_entropy(self._fresh())

    def _fresh(self) -> np.random.Generator:
        return np.random.default_rng(self.rng.integers(2**63, size=4))

    def _bounds(self, lower: float, upper: float, guarantee: Guarantee) -> Bounds:
        return Bounds(lower, upper, guarantee, self._by(guarantee))

    def _by(self, guarantee: Guarantee) -> Provenance:
        return Provenance("bins.certified", {"bins": self.gram.bins, "beta": guarantee.error})
