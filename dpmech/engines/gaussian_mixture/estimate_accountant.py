"""Accountant for estimates by importance sampling with confidence intervals."""

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.gaussian import gaussian_epsilon
from dpmech.engines.gaussian_mixture.estimate import REL_ERRORS, Estimate, SamplingPlan, estimate_delta
from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.rough_sigma import _SMALLEST_EPS, RoughSample, check_reach, delta_below
from dpmech.engines.gaussian_mixture.samples import draw_entropy
from dpmech.engines.sigma_search import gaussian_scale
from dpmech.methods import Importance
from dpmech.numerics import (
    Bounds,
    Guarantee,
    Kind,
    Provenance,
    register_words,
    rung_below,
    safe_root,
    signed,
    up,
)

register_words({"bins.unamplified": "bounded without sampling"})


class ImportanceAccountant(Accountant):
    """An estimate with a two-sided confidence interval; calibration uses the upper end.

    Within one call, every sigma and eps uses the same random numbers, so that delta is smooth. Delta at the
    true root is therefore one random event, independent of the search path; it is two if a sample had to be
    enlarged, each with its own share of the error.
    """

    evaluates: ClassVar[bool] = False

    def __init__(
        self, gram: BinGram, sensitivity: Bounds, method: Importance, rng: np.random.Generator | None
    ) -> None:
        self.gram = gram
        self.sensitivity = sensitivity
        self.settings = method
        self.rng = np.random.default_rng() if rng is None else rng
        self.by = Provenance(f"{gram.family}.importance", {**gram.facts, "confidence": method.confidence})
        self.guarantee = Guarantee(Kind.ESTIMATE, method.error)

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Confidence interval for delta; its width follows from the method's rel_error."""
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

        upper = math.exp(safe_root(excess, math.log(guess), step=0.02, resolution=_rung(tolerance, 1e-3)))
        lower = self._lower_epsilon(estimate, sigma, delta, upper)
        return self._interval(lower, upper, estimate(sigma, upper))

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Find a rough sigma with one sample, then calibrate with an independent one at full accuracy."""
        rough = self._rough().sigma(
            self.gram, eps, delta, sensitivity=self.sensitivity.upper, progress=progress
        )
        guess = rough.sigma * (1.0 + 0.1 * REL_ERRORS.within(self.settings.rel_error))
        estimate = self._estimator(guess, eps)
        target = gaussian_scale(eps, delta)

        def excess(log_sigma: float) -> float:
            upper = estimate(math.exp(log_sigma), eps).upper
            progress(f"sigma {up(math.exp(log_sigma))}: delta <= {up(upper, 4)}")
            return signed(gaussian_scale(eps, upper) - target, safe=upper <= delta)

        sigma = math.exp(safe_root(excess, math.log(guess), step=0.0015, resolution=_rung(rtol, 5e-4)))
        lower = self._lower_epsilon(estimate, sigma, delta, eps)
        final = estimate(sigma, eps)
        return Solution(sigma, self._interval(lower, eps, final), final.samples)

    def rough_epsilon(self, sigma: float, delta: float) -> float:
        """An eps within about 1 % of the solution; 0 if it is about 1e-4 or less."""
        return self._rough().epsilon(self.gram, sigma, delta, sensitivity=self.sensitivity.upper)

    def _rough(self) -> RoughSample:
        """A small independent sample to start searches from."""
        seed = int(self.rng.integers(2**63))
        return RoughSample(draw_entropy(np.random.default_rng(seed)), executor=self.settings.executor)

    def _estimator(self, sigma: float, eps: float) -> Callable[[float, float], Estimate]:
        """Estimates from one sample, planned at the given point; other points reuse its random numbers."""
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
        """Lower end of the interval for eps: where the lower end for delta still exceeds `delta`."""
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


def _rung(tolerance: float, finest: float) -> float:
    """Resolution of a root search, rounded to a ladder, so that the search steps depend on the rung only."""
    return rung_below(max(tolerance, finest), finest)
