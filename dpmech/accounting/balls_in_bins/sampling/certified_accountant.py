"""The accountant of bounds that hold with probability 1 - beta."""

import dataclasses
import math
from collections.abc import Callable, Collection

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
_TRIES = ((0.0, 0.87), (0.004, 0.05), (0.02, 0.02), (0.08, 0.009))
# The part of beta that the lower end has.
_FLOOR_SHARE = 0.05
# How far above the right sigma, in log, a calibration may aim.
_AIMS = (0.0008, 0.001, 0.0012, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.006, 0.01, 0.02, 0.04, 0.08)
# Draws times bins that a proof may take, and how much more of them is still tried for the widest aim.
_WORK = 1.2e8
# Fewer bins are worth no more draws than so many: what a draw costs beside them begins to count.
_FEWEST_BINS = 400
_LEAST_DRAWS = 4000.0
_HOPELESS = 20.0
# The same for bounds on delta, which are wide where that is not enough.
_PATIENT = 4.0
# An aim this much higher is as unwelcome as all of that work.
_COMFORT = 0.003
# The pilot is to know delta this much better than the gap that is aimed at.
_PILOT_SHARE = 0.3
# The lower end is looked for below the root by this many times what the upper one is above it.
_FLOOR_GAP = 3.0
# Down there delta hardly depends on eps, and no amplification is little more.
_NEAR_NOTHING = 0.01
# For the slope of log delta.
_STEP = 0.01
_LEAST_FALL = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class _Search:
    """Where a proof is tried, in the log of what is searched for (sigma or eps).

    Attributes:
        pilots: at the root, about.
        root: where delta meets its target, about.
        above: how far above that a proof is tried.
        fall: by how much log delta falls a unit.
    """

    pilots: Pilots
    root: float
    above: float
    fall: float

    @property
    def aim(self) -> float:
        """Where the first proof is tried."""
        return self.root + self.above

    def pilots_at(self, gram: BinGram, eps: float) -> Pilots:
        """The pilots for a point: what is proved there is what is handed out, with no rounding between."""
        return self.pilots.moved(gram, eps, self.pilots.entropy)


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
            max_samples=int(_PATIENT * self._most()),
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
        start = self._rough().epsilon(self.gram, sigma, delta, sensitivity=self.sensitivity.upper)

        def at(log_eps: float) -> tuple[BinGram, float]:
            return gram, math.exp(log_eps)

        search = self._search(at, math.log(max(start, _SMALLEST_EPS)), delta, beta)
        for further, share in _TRIES:
            eps = max(math.exp(search.aim + further), _SMALLEST_EPS)
            if eps >= unamplified:
                eps = unamplified
                break
            if self._certified(search.pilots_at(gram, eps), delta, product_down(share, beta)).meets(delta):
                break
        else:
            if unamplified > _NEAR_NOTHING:
                raise NumericalError(
                    f"no eps up to {eps!r} could be certified at delta={delta!r} ({self.method})"
                )
            eps = unamplified
        lower = self._floor(
            search.pilots, min(math.exp(search.root - _FLOOR_GAP * search.above), eps), delta, beta
        )
        return self._bounds(lower, eps, guarantee)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Size on independent samples, then certify a little above; at most a few tries, fixed in advance.

        Beta is inside delta where the random numbers are this call's own: what is certified is then the
        delta that is left. The aim lies as little above the right sigma as a reasonable number of draws can
        prove; `rtol` does not enter.
        """
        del rtol
        guarantee = self.settings.guarantee(delta, inside=self.fresh)
        goal, beta = guarantee.mechanism_delta(delta), self.settings.share(1, delta)
        rough = self._rough().sigma(
            self.gram, eps, goal, sensitivity=self.sensitivity.upper, progress=progress
        )

        def at(log_sigma: float) -> tuple[BinGram, float]:
            return self.gram.scaled(math.exp(-2.0 * log_sigma)), eps

        search = self._search(at, math.log(rough.sigma), goal, beta, rough.parts)
        for further, share in _TRIES:
            sigma = math.exp(search.aim + further)
            pilots = search.pilots_at(self.gram.scaled(sigma**-2), eps)
            bound = self._certified(pilots, goal, product_down(share, beta))
            progress(f"certify: sigma {up(sigma)}: delta <= {up(bound.upper, 4)}")
            if bound.meets(goal):
                # Log delta is short of its target by about the first part, and above it at the lower end.
                gap = search.fall * ((1.0 + _FLOOR_GAP) * search.above + further)
                return Solution(
                    sigma,
                    self._bounds(self._lower_epsilon(pilots, delta, gap, beta), eps, guarantee),
                    bound.samples,
                    randomness="".join(f"{word:08x}" for word in self.entropy),
                    method=self.settings.settled(delta),
                )
        raise NumericalError(f"no sigma up to {sigma!r} could be certified ({self.method})")

    def _search(
        self,
        at: Callable[[float], tuple[BinGram, float]],
        start: float,
        delta: float,
        beta: float,
        parts: Collection[str] | None = None,
    ) -> "_Search":
        """Where delta meets its target, and how far above that to look for a proof.

        Args:
            at: the Gram matrix and eps at a point.
            start: a point near the root.
            delta: the target.
            beta: of the proof.
            parts: of the mixtures, to try; None for all.

        Raises:
            NumericalError: if no gap can be proved with so many draws as are still tried.
        """
        pilots = Pilots.at(*at(start), self._entropy(), self.settings.executor, parts=parts)
        if not pilots.weights:
            return _Search(pilots, start, 0.0, 0.0)
        further = pilots.moved(*at(start + _STEP), pilots.entropy).redrawn()
        # Both have the same random numbers, so that their difference is known well.
        fall = max((pilots.log_mean - further.log_mean) / _STEP, _LEAST_FALL)
        root = start + (pilots.log_mean - math.log(delta)) / fall
        if not math.isfinite(root):
            raise NumericalError(f"no sample reached the payoff at delta={delta!r} ({self.method})")
        first = product_down(_TRIES[0][1], beta)
        most = self._most()
        draws = {aim: pilots.expected_samples(pilots.log_mean + fall * aim, first) for aim in _AIMS}
        above = min(_AIMS, key=lambda aim: (draws[aim] / most) ** 2 + aim / _COMFORT)
        if draws[above] > _HOPELESS * most:
            raise NumericalError(
                f"a proof by sampling would take some {draws[above]:.1e} draws of {self.gram.bins} bins "
                f"({self.method})"
            )
        short = pilots.relative_error / (_PILOT_SHARE * fall * above)
        size = int(min(pilots.samples * short**2, most))
        pilots = pilots.moved(*at(root), self._entropy()).redrawn(size)
        root += (pilots.log_mean - math.log(delta)) / fall
        return _Search(pilots, root, above, fall)

    def _lower_epsilon(self, pilots: Pilots, delta: float, gap: float, beta: float) -> float:
        """A certified lower bound on eps, where log delta is about `gap` above that of the pilots."""
        if not pilots.weights or pilots.eps <= 2.0 * _SMALLEST_EPS:
            return 0.0
        here, below = (
            pilots.moved(pilots.gram, factor * pilots.eps, pilots.entropy).redrawn().log_mean
            for factor in (1.0, 1.0 - _STEP)
        )
        fall = (below - here) / -math.log1p(-_STEP)
        return self._floor(pilots, pilots.eps * math.exp(-gap / fall), delta, beta) if fall > 0.0 else 0.0

    def _floor(self, pilots: Pilots, eps: float, delta: float, beta: float) -> float:
        """`eps`, where delta is proved to be larger there than `delta`; else 0."""
        if not pilots.weights or eps < _SMALLEST_EPS:
            return 0.0
        found = certified_floor(
            pilots.moved(pilots.gram, eps, self._entropy()),
            delta,
            product_down(_FLOOR_SHARE, beta),
            rng=self._fresh(),
            max_samples=int(self._most()),
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

    def _most(self) -> float:
        """Draws that a proof may take."""
        return max(_WORK / max(self.gram.bins, _FEWEST_BINS), _LEAST_DRAWS)

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
