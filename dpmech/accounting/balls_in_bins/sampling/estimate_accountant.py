"""Balls-in-Bins by sampling: the estimate with its interval, and the rigorous finite-sample bound."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.moments import rough_log_delta
from dpmech.accounting.balls_in_bins.proposals import AddProposal, Proposal, RemoveProposal
from dpmech.accounting.balls_in_bins.sampling.blocks import draw_entropy, weight_sample
from dpmech.accounting.balls_in_bins.sampling.confidence import summarise
from dpmech.accounting.balls_in_bins.sampling.estimate import FLOORS, adapt, estimate_delta, pilot_size
from dpmech.accounting.balls_in_bins.sampling.reach import _SMALLEST_EPS, check_reach, delta_below
from dpmech.accounting.balls_in_bins.sampling.results import Estimate, SamplingPlan
from dpmech.accounting.balls_in_bins.streams import ADD, REMOVE, DirectionStages
from dpmech.accounting.gaussian import gaussian_epsilon, gaussian_log_delta, gaussian_sigma
from dpmech.accounting.methods import Importance
from dpmech.accounting.sigma_search import gaussian_scale
from dpmech.exceptions import UnattainableBudgetError
from dpmech.numerics import Bounds, Guarantee, Kind, Provenance, safe_root, signed, up

__all__ = ["ImportanceAccountant"]

Adapted = dict[tuple[DirectionStages, tuple[str, ...]], npt.NDArray[np.float64]]

_COARSE_RESOLUTION = 0.04
_MOMENT_EXCESS = 3.0


class ImportanceAccountant(Accountant):
    """An estimate with a two-sided confidence interval; a calibrated sigma uses its upper end.

    Within one call the same random numbers serve every sigma and eps, so that delta is smooth. Delta at
    the true root is one random event, whatever path the search takes to it; two where a sample had to be
    enlarged, and each has its share of the error.
    """

    def __init__(
        self, gram: BinGram, sensitivity: Bounds, method: Importance, rng: np.random.Generator | None
    ) -> None:
        self.gram = gram
        self.sensitivity = sensitivity
        self.settings = method
        self.rng = np.random.default_rng() if rng is None else rng
        self.by = Provenance("bins.importance", {"bins": gram.bins, "confidence": method.confidence})
        self.guarantee = Guarantee(Kind.ESTIMATE, method.error)

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Confidence interval for delta, as wide as the method's rel_error makes it."""
        del tolerance
        sampled = max(eps, _SMALLEST_EPS)
        estimate = self._estimator(sigma, sampled)(sigma, sampled)
        upper = delta_below(estimate.upper, sampled, eps, sigma / self.sensitivity.upper)
        return self._interval(estimate.lower, upper, estimate)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Confidence interval for eps: where the ends of the interval for delta cross `delta`."""
        unamplified = gaussian_epsilon(sigma / self.sensitivity.upper, delta, safe=True)
        if unamplified <= _SMALLEST_EPS:
            by = dataclasses.replace(self.by, rests_on=(Provenance("bins.unamplified"),))
            return Bounds(0.0, unamplified, self.guarantee, by)
        guess = max(self.rough_epsilon(sigma, delta), _SMALLEST_EPS)
        estimate = self._estimator(sigma, guess)
        if guess == _SMALLEST_EPS and estimate(sigma, guess).upper <= delta:
            return self._interval(0.0, guess, estimate(sigma, guess))

        def excess(log_eps: float) -> float:
            if log_eps <= math.log(_SMALLEST_EPS):
                return -1.0
            check_reach(log_eps, sigma, delta)
            upper = estimate(sigma, math.exp(log_eps)).upper
            return signed(math.log(delta) - math.log(max(upper, 1e-300)), safe=upper <= delta)

        upper = math.exp(safe_root(excess, math.log(guess), step=0.02, resolution=max(tolerance, 1e-3)))
        lower = self._lower_epsilon(estimate, sigma, delta, upper)
        return self._interval(lower, upper, estimate(sigma, upper))

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Size roughly on one sample, then on an independent one at full accuracy."""
        guess = self.rough_sigma(eps, delta, progress) * (1.0 + 0.1 * self.settings.rel_error)
        estimate = self._estimator(guess, eps)
        target = gaussian_scale(eps, delta)

        def excess(log_sigma: float) -> float:
            upper = estimate(math.exp(log_sigma), eps).upper
            progress(f"sigma {up(math.exp(log_sigma))}: delta <= {up(upper, 4)}")
            return signed(gaussian_scale(eps, upper) - target, safe=upper <= delta)

        sigma = math.exp(safe_root(excess, math.log(guess), step=0.0015, resolution=max(rtol, 5e-4)))
        lower = self._lower_epsilon(estimate, sigma, delta, eps)
        final = estimate(sigma, eps)
        return Solution(sigma, self._interval(lower, eps, final), final.samples)

    def rough_sigma(self, eps: float, delta: float, progress: Progress) -> float:
        """A sigma within about 1 % of the right one, from a small sample of its own."""
        seed = int(self.rng.integers(2**63))
        adapted: Adapted = {}
        target = gaussian_scale(eps, delta)
        probes: list[tuple[float, float]] = []

        def by_moments(log_sigma: float) -> float:
            # The moment bound is about 20 times too high; its orders end, so that it does not vanish.
            value = rough_log_delta(self.gram.scaled(math.exp(-2.0 * log_sigma)), eps) - _MOMENT_EXCESS
            value = min(value, gaussian_log_delta(math.exp(log_sigma) / self.sensitivity.upper, eps)[0])
            return gaussian_scale(eps, math.exp(max(value, -700.0))) - target

        def by_sample(log_sigma: float) -> float:
            sigma = math.exp(log_sigma)
            value = self._rough(sigma, eps, seed, adapted)
            progress(f"rough: sigma {up(sigma, 4)}: delta about {up(value, 3)}")
            probes.append((log_sigma, gaussian_scale(eps, value) - target))
            return probes[-1][1]

        unamplified = math.log(gaussian_sigma(eps, delta) * self.sensitivity.upper)
        try:
            start = min(unamplified, safe_root(by_moments, unamplified, step=0.1, resolution=0.01))
            safe_root(by_sample, start, step=0.03, resolution=_COARSE_RESOLUTION)
        except OverflowError:
            raise UnattainableBudgetError(eps, delta, "sigma would exceed 1e15") from None
        return math.exp(_interpolated(probes))

    def rough_epsilon(self, sigma: float, delta: float) -> float:
        """An eps within about 1 % of the right one; 0 where it is about 1e-4 or less."""
        seed = int(self.rng.integers(2**63))
        adapted: Adapted = {}
        gram = self.gram.scaled(sigma**-2)
        smallest = math.log(_SMALLEST_EPS)
        probes: list[tuple[float, float]] = []

        def by_moments(log_eps: float) -> float:
            if log_eps <= smallest:
                return -1.0
            value = rough_log_delta(gram, math.exp(log_eps)) - _MOMENT_EXCESS
            alone = gaussian_log_delta(sigma / self.sensitivity.upper, math.exp(log_eps))[0]
            return math.log(delta) - max(min(value, alone), -1e6)

        def by_sample(log_eps: float) -> float:
            if log_eps <= smallest:
                return -1.0
            check_reach(log_eps, sigma, delta)
            value = self._rough(sigma, math.exp(log_eps), seed, adapted)
            probes.append((log_eps, math.log(delta) - math.log(max(value, 1e-300))))
            return probes[-1][1]

        unamplified = gaussian_epsilon(sigma / self.sensitivity.upper, delta, safe=True)
        if unamplified <= 2.0 * _SMALLEST_EPS:
            return 0.0
        start = min(
            math.log(unamplified), safe_root(by_moments, math.log(unamplified), step=0.1, resolution=0.01)
        )
        root = safe_root(by_sample, start, step=0.05, resolution=_COARSE_RESOLUTION)
        return math.exp(_interpolated(probes)) if root > smallest + 0.1 else 0.0

    def _rough(self, sigma: float, eps: float, seed: int, adapted: Adapted) -> float:
        """Delta to about 20 %, with no interval: it only says where to look.

        The first probe adapts the probabilities of the parts; later ones, near it, take them over.
        """
        gram = self.gram.scaled(sigma**-2)
        entropy = draw_entropy(np.random.default_rng(seed))
        executor = self.settings.executor
        values: list[float] = []
        proposals: tuple[Proposal, ...] = (RemoveProposal.at(gram, eps), AddProposal.at(gram, eps))
        for stages, proposal in zip((REMOVE, ADD), proposals, strict=True):
            if values and proposal.log_weight_bound < values[0]:
                continue
            known = adapted.get((stages, proposal.names))
            chosen = (
                adapt(proposal, entropy, stages, executor, FLOORS)
                if known is None
                else proposal.reweighted(known)
            )
            adapted[stages, proposal.names] = chosen.weights
            weights = weight_sample(chosen, entropy, stages.sizing, 4 * pilot_size(gram.bins), executor)
            values.append(summarise(weights.log_weights).log_mean)
        return math.exp(max(values))

    def _estimator(self, sigma: float, eps: float) -> Callable[[float, float], Estimate]:
        """Estimates on one sample, planned at the given point; other points reuse its random numbers."""
        settings = self.settings
        rng = np.random.default_rng(self.rng.integers(2**63, size=4))
        plan: list[SamplingPlan] = []
        known: dict[tuple[float, float], Estimate] = {}

        def estimate(at_sigma: float, at_eps: float) -> Estimate:
            key = (at_sigma, at_eps)
            if key not in known:
                known[key] = estimate_delta(
                    self.gram.scaled(at_sigma**-2),
                    at_eps,
                    rel_error=settings.rel_error,
                    confidence=settings.confidence,
                    rng=rng,
                    executor=settings.executor,
                    plan=plan[0] if plan else None,
                )
                plan[:] = [known[key].plan]
            return known[key]

        estimate(sigma, eps)
        return estimate

    def _lower_epsilon(
        self, estimate: Callable[[float, float], Estimate], sigma: float, delta: float, upper: float
    ) -> float:
        """The lower end of the interval for eps: where the lower end for delta still exceeds `delta`."""
        short = math.log(delta) - math.log(max(estimate(sigma, upper).lower, 1e-300))
        gap = 0.01 * upper
        for _ in range(6):
            eps = upper - gap
            if eps <= _SMALLEST_EPS:
                return 0.0
            missing = math.log(delta) - math.log(max(estimate(sigma, eps).lower, 1e-300))
            if missing <= 0.0:
                return eps
            gap *= max(1.5, 1.1 * short / max(short - missing, 1e-3))
        return 0.0

    def _interval(self, lower: float, upper: float, estimate: Estimate) -> Bounds:
        by = dataclasses.replace(self.by, facts={**self.by.facts, **estimate.carriers})
        return Bounds(lower, upper, self.guarantee, by)


def _interpolated(probes: list[tuple[float, float]]) -> float:
    """The root of the line through the two probes nearest to it."""
    (x, fx), (y, fy) = sorted(probes, key=lambda probe: abs(probe[1]))[:2]
    return x if fx == fy else x - fx * (y - x) / (fy - fx)
