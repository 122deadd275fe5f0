"""The accountant of bounds that hold with probability 1 - beta."""

import dataclasses
import math

import numpy as np

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.sampling.blocks import draw_entropy
from dpmech.accounting.balls_in_bins.sampling.certified_bound import CertifiedBound, Pilots, certify_delta
from dpmech.accounting.balls_in_bins.sampling.reach import _SMALLEST_EPS, delta_below
from dpmech.accounting.balls_in_bins.sampling.rough_sigma import RoughSample
from dpmech.accounting.gaussian import gaussian_epsilon
from dpmech.accounting.methods import Certified
from dpmech.exceptions import NumericalError
from dpmech.numerics import Bounds, Guarantee, Kind, Provenance, up

__all__ = ["CertifiedAccountant"]

# Further tries, by how much higher in log sigma (or log eps), and the part of beta that each try has.
_TRIES = ((0.0, 0.9), (0.004, 0.06), (0.02, 0.03), (0.08, 0.01))
# How far above the right sigma, in log, a calibration aims: the least of these whose samples are few enough.
_AIMS = (0.0008, 0.001, 0.0012, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.006, 0.01, 0.02, 0.04, 0.08)
# Draws times bins that one run may take, and how much more before the next aim is preferred.
_WORK = 1.2e8
_LEAST_DRAWS = 4000
# Beyond this many times that work nothing is tried.
_HOPELESS = 40.0
# The pilot is to know delta this much better than the gap that is aimed at.
_PILOT_SHARE = 0.3
# The lower end of an interval is looked for this much further away than the upper one.
_LOWER_FACTOR = 2.0
_LOWER_SHARE = 0.05


@dataclasses.dataclass(frozen=True)
class _Aim:
    """Where to certify: how far above the rough root in log, and the draws that it should take."""

    step: float
    gap: float
    expected: float


class CertifiedAccountant(Accountant):
    """An upper bound that holds with probability 1 - beta, over every probe of one call.

    Sizing uses independent samples; the bound is then drawn at points fixed in advance of its own samples,
    each with its share of beta.
    """

    def __init__(
        self, gram: BinGram, sensitivity: Bounds, method: Certified, rng: np.random.Generator | None
    ) -> None:
        self.gram = gram
        self.sensitivity = sensitivity
        self.settings = method
        self.rng = np.random.default_rng() if rng is None else rng
        self.by = Provenance("bins.certified", {"bins": gram.bins, "beta": method.beta})
        self.guarantee = Guarantee(Kind.PROBABLE, method.error)

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta, which share beta."""
        del tolerance
        sampled = max(eps, _SMALLEST_EPS)
        found = certify_delta(
            self.gram.scaled(sigma**-2),
            sampled,
            beta=self.settings.beta,
            lower=True,
            rng=self._fresh(),
            executor=self.settings.executor,
        )
        upper = delta_below(found.upper, sampled, eps, sigma / self.sensitivity.upper)
        return self._bounds(found.lower, upper)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps, which share beta."""
        del tolerance
        unamplified = gaussian_epsilon(sigma / self.sensitivity.upper, delta, safe=True)
        if unamplified <= _SMALLEST_EPS:
            return self._bounds(0.0, unamplified)
        gram = self.gram.scaled(sigma**-2)
        rough = self._rough().epsilon(self.gram, sigma, delta, sensitivity=self.sensitivity.upper)
        start = max(rough.eps, _SMALLEST_EPS)
        pilots = Pilots.at(gram, start, self._entropy(), self.settings.executor)
        pilots, aim = self._aimed(pilots, delta, rough.fall, 1.0 - _LOWER_SHARE)
        for further, share in _TRIES:
            eps = max(start * math.exp(aim.step + further), _SMALLEST_EPS)
            if eps >= unamplified:
                eps = unamplified
                break
            beta = (1.0 - _LOWER_SHARE) * share * self.settings.beta
            if self._certified(pilots.moved(gram, eps, self._entropy()), delta, beta).meets(delta):
                break
        else:
            raise NumericalError(f"no eps up to {eps!r} could be certified at delta={delta!r} ({self.method})")
        lower = self._lower_epsilon(pilots, gram, delta, aim, rough.fall, start)
        return self._bounds(min(lower, eps), eps)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Size on independent samples, then certify a little above; at most a few tries, fixed in advance.

        The aim lies as little above the right sigma as a bounded number of draws can prove; `rtol` does not
        enter.
        """
        del rtol
        rough = self._rough().sigma(
            self.gram, eps, delta, sensitivity=self.sensitivity.upper, progress=progress
        )
        pilots = Pilots.at(rough.gram, eps, self._entropy(), self.settings.executor)
        pilots, aim = self._aimed(pilots, delta, rough.fall, 1.0)
        for further, share in _TRIES:
            sigma = rough.sigma * math.exp(aim.step + further)
            moved = pilots.moved(self.gram.scaled(sigma**-2), eps, self._entropy())
            bound = self._certified(moved, delta, share * self.settings.beta)
            progress(f"certify: sigma {up(sigma)}: delta <= {up(bound.upper, 4)}")
            if bound.meets(delta):
                return Solution(sigma, self._bounds(0.0, eps), bound.samples)
        raise NumericalError(f"no sigma up to {sigma!r} could be certified ({self.method})")

    def _aimed(self, pilots: Pilots, delta: float, fall: float, share: float) -> tuple[Pilots, _Aim]:
        """How far above the root of the pilots to certify, and pilots that know that root well enough.

        Raises:
            NumericalError: if no gap can be proved with so many draws as one is ready to wait for.
        """
        beta = share * _TRIES[0][1] * self.settings.beta
        most = max(_WORK / self.gram.bins, _LEAST_DRAWS)

        def gap_at(aim: float) -> float:
            return -math.expm1(-fall * aim)

        def draws(aim: float) -> float:
            # The mean as it will be at the point that is aimed at.
            return sum(
                pilots.expected_samples(pilots.summary(name).log_mean + fall * aim, beta, name)
                for name in pilots.weights
            )

        if not pilots.weights:
            return pilots, _Aim(0.0, 1.0, 0.0)
        found = {aim: draws(aim) for aim in _AIMS}
        aim = next((aim for aim in _AIMS if found[aim] <= most), _AIMS[-1])
        if found[aim] > _HOPELESS * most:
            raise NumericalError(
                f"a proof by sampling would take {found[aim]:.2g} draws of {self.gram.bins} bins "
                f"({self.method})"
            )
        error = pilots.summary(pilots.decider).relative_error
        wanted = _PILOT_SHARE * gap_at(aim)
        size = pilots.weights[pilots.decider].size * (error / wanted) ** 2
        pilots = pilots.enlarged(int(min(size, most)))
        root = (max(pilots.summary(name).log_mean for name in pilots.weights) - math.log(delta)) / fall
        return pilots, _Aim(root + aim, gap_at(aim), found[aim])

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

    def _bounds(self, lower: float, upper: float) -> Bounds:
        return Bounds(lower, upper, self.guarantee, self.by)
