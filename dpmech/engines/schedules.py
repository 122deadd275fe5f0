"""Poisson-sampled releases whose sampling probability or noise changes from step to step."""

import collections
import contextlib
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import scipy

from dpmech.engines.accountant import Progress, Solution, too_wide
from dpmech.engines.gaussian import gaussian_sigma
from dpmech.engines.losses import ComposedAccountant, RevealedSchedule, sampled_divergence
from dpmech.engines.sigma_search import sigma_near
from dpmech.exceptions import NumericalError, UnattainableBudgetError, UnsupportedCombinationError
from dpmech.mechanism import Adjacency, Mechanism
from dpmech.numerics import (
    BOUND,
    UNIT,
    Bounds,
    Provenance,
    quotient_down,
    register_words,
    rounded_up,
)

if TYPE_CHECKING:
    import dp_accounting

    from dpmech.engines.profiles import Composition, PrivacyProfile

register_words(
    {"lattice.schedule": "PLD on lattices, {kinds} kinds of Poisson-sampled releases, {steps} steps"}
)

# Lattices of all kinds are in memory at once.
_MOST_KINDS = 64
# A column with one entry: rounding of its square, root and scale.
_NORM = 8.0 * UNIT
_NOTHING, _WIDEST = 1e-300, 0.01
_FARTHEST = 1e6  # from the first guess at sigma, as a factor


class ScheduleAccountant(ComposedAccountant):
    """Releases of several kinds, each with its own sampling probability and noise, composed on lattices.

    Every release attains its own sensitivity, so that lower bounds hold as well. With very little noise,
    equal in all steps, the bounds are those of steps whose participants are revealed.

    Args:
        mechanism: C is diagonal; adjacency REPLACE_ONE replaces one example.
        probs: q in (0, 1) of every step.

    Raises:
        UnsupportedCombinationError: for correlated noise, and for more than 64 pairs of q and noise.
    """

    immediate: ClassVar[bool] = True

    def __init__(self, mechanism: Mechanism, probs: Sequence[float]) -> None:
        strategy = mechanism.strategy
        if strategy.bands != 1:
            raise UnsupportedCombinationError(
                f"{mechanism.participation!r} needs independent noise, which {strategy!r} does not have",
                supported="Identity and Diagonal; for correlated noise CyclicPoisson with a banded strategy",
            )
        norms = strategy.column_norms().tolist()
        kinds = collections.Counter(zip(probs, norms, strict=True))
        if len(kinds) > _MOST_KINDS:
            raise UnsupportedCombinationError(
                f"{mechanism.participation!r} with {strategy!r} has {len(kinds)} different pairs of sampling "
                "probability and noise",
                supported=f"at most {_MOST_KINDS} of them: round to fewer levels on the safe side, "
                "probabilities up, and noise down (entries of a Diagonal up)",
            )
        self.kinds = tuple((q, norm, times) for (q, norm), times in kinds.items())
        self.replaced = mechanism.adjacency is Adjacency.REPLACE_ONE
        self.sensitivity = mechanism.sensitivity
        self.steps = mechanism.steps
        self.by = Provenance("lattice.schedule", {"kinds": len(kinds), "steps": self.steps})
        self.guarantee = BOUND
        if not self.replaced and min(norms) == max(norms):
            alike = tuple((q, times) for q, _, times in self.kinds)
            ends = min(probs), max(probs)
            self.revealed = RevealedSchedule(self.steps, ends, self.sensitivity, kinds=alike)

    @property
    def joined(self) -> Bounds:
        """All releases together have at least this sensitivity."""
        return self.sensitivity.times_root(self.steps)

    def resolved_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        whole, lower, upper, slope = self._composition(sigma), 0.0, 0.0, 1.0
        for add, ceiling in self._ranked(whole, eps):
            if ceiling > upper:
                slope = max(slope, whole.tilt(eps, add=add) * eps)
                ends = whole.delta(eps, add=add, tolerance=0.5 * tolerance * slope)
                lower, upper = max(lower, ends[0]), max(upper, ends[1])
        allowed = max(tolerance, _WIDEST) * slope
        if upper > _NOTHING and not (lower > 0.0 and math.log(upper / lower) <= allowed):
            raise too_wide("delta", sigma, lower, upper, self.method)
        # Chernoff's bound, which decides what is computed, omits outputs of less than that probability.
        return Bounds(lower, max(upper, _NOTHING), self.guarantee, self.by)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound, without requirements on the lower one."""
        whole, upper = self._composition(sigma), 0.0
        for add, ceiling in self._ranked(whole, eps):
            if ceiling > upper:
                goal = 0.5 * tolerance * max(1.0, whole.tilt(eps, add=add) * eps)
                upper = max(upper, whole.upper_delta(eps, add=add, tolerance=goal))
        return max(upper, _NOTHING)

    def _ranked(self, whole: "Composition", eps: float) -> list[tuple[bool, float]]:
        """The directions, and twice Chernoff's bound on each, the larger one first.

        The moments in it come from quadrature, whose error is far below that factor.
        """
        found = [(add, whole.rough_log_delta(eps, add=add)) for add in self._directions]
        return [(add, 2.0 * math.exp(log)) for add, log in sorted(found, key=lambda pair: -pair[1])]

    def resolved_epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        whole, lower, upper = self._composition(sigma), 0.0, 0.0
        for add in self._directions:
            # Where delta of the second direction is no larger at the lower bound, neither is its eps.
            if upper == 0.0 or 2.0 * math.exp(whole.rough_log_delta(lower, add=add)) > delta:
                near = max(lower, 1e-3)
                goal = 0.5 * tolerance * max(1.0, whole.tilt(near, add=add) * near)
                ends = whole.epsilon(delta, add=add, tolerance=goal)
                lower, upper = max(lower, ends[0]), max(upper, ends[1])
        if upper - lower > max(tolerance, _WIDEST) * upper + 1e-9:
            raise too_wide("eps", sigma, lower, upper, self.method)
        return Bounds(lower, upper, self.guarantee, self.by)

    def resolved_sigma(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Secant steps on the upper bound, from the central limit theorem and Chernoff's bound."""
        chance = -math.expm1(math.fsum(times * math.log1p(-q) for q, _, times in self.kinds))
        if delta >= chance:
            raise UnattainableBudgetError(
                eps,
                delta,
                f"every sigma > 0 meets it, as an example takes part with probability {chance:g} only",
            )
        with self._advised():
            start = self._guess(eps, delta)
            return sigma_near(self, eps, delta, rtol=rtol, start=start, progress=progress)

    def start_for_mu(self, mu: float) -> float:
        """The sigma given by the central limit theorem."""
        pairs = [(q, norm, times) for q, norm, times in self.kinds]

        def excess(log_sigma: float) -> float:
            # Chi^2 of one release, of the difference of two gradients where one is replaced.
            total = 0.0
            for q, norm, times in pairs:
                exponent = min((norm / math.exp(log_sigma)) ** 2, 600.0)
                one = 4.0 * math.sinh(exponent) if self.replaced else math.expm1(exponent)
                total += times * q * q * one
            return math.log(total) - 2.0 * math.log(mu)

        low = high = math.log(self.sensitivity.upper)
        while excess(low) < 0.0 and low > -40.0:
            low -= 1.0
        while excess(high) > 0.0:
            high += 1.0
        return math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-4)))

    def renyi(self, sigma: float, order: int) -> float | None:
        """The sum of the divergences of all releases; None if an example is replaced."""
        if self.replaced:
            return None
        parts = self._composition(sigma).sampled
        each = (
            Fraction(sampled_divergence(part.sampling_prob, part.sigma_over_sensitivity, order)) * part.steps
            for part in parts
        )
        return rounded_up(sum(each, Fraction(0)))

    def dp_event(self, sigma: float) -> "dp_accounting.DpEvent":
        """The composition of the sampled releases of every kind, with their noise rounded down."""
        import dp_accounting

        events = [
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(
                    part.sampling_prob, dp_accounting.GaussianDpEvent(part.sigma_over_sensitivity)
                ),
                part.steps,
            )
            for part in self._composition(sigma).sampled
        ]
        return dp_accounting.ComposedDpEvent(events)

    def profile(self, sigma: float, adjacency: Adjacency, *, rel_error: float) -> "PrivacyProfile":
        """Known without evaluation, independent of rel_error."""
        from dpmech.engines.profiles import PrivacyProfile

        del rel_error
        return PrivacyProfile(self._composition(sigma), self.guarantee, self.by, adjacency)

    @property
    def _directions(self) -> tuple[bool, ...]:
        """The directions, as for `Composition`: only one where an example is replaced."""
        return (False,) if self.replaced else (False, True)

    def _composition(self, sigma: float) -> "Composition":
        from dpmech.engines.profiles import Composition, SampledPart

        return Composition(
            sampled=tuple(
                SampledPart(
                    q,
                    quotient_down(sigma, norm * (1.0 + _NORM)),
                    times,
                    tight=True,
                    gap=4.0 * _NORM,
                    replaced=self.replaced,
                )
                for q, norm, times in self.kinds
            )
        )

    def _guess(self, eps: float, delta: float) -> float:
        """Where Chernoff's bound meets the budget, a few per cent above sigma; the search ends below."""
        start = self.start_for_mu(1.0 / gaussian_sigma(eps, delta))

        def excess(log_sigma: float) -> float:
            whole = self._composition(math.exp(log_sigma))
            return max(whole.rough_log_delta(eps, add=add) for add in self._directions) - math.log(delta)

        low = high = math.log(start)
        step = 0.1
        while excess(low) < 0.0 and high - low < math.log(_FARTHEST):
            low, step = low - step, 2.0 * step
        step = 0.1
        while excess(high) > 0.0:
            high, step = high + step, 2.0 * step
        return math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-3)) if low < high else low)

    @contextlib.contextmanager
    def _advised(self) -> Iterator[None]:
        """Add advice to errors of lattices."""
        try:
            yield
        except NumericalError as error:
            raise NumericalError(
                f"{error}; for very little noise, schedules need equal noise in all steps, and ADD_REMOVE or "
                "ZERO_OUT: more noise in any step, or one sampling probability, helps"
            ) from error


def one_kind(mechanism: Mechanism, probs: Sequence[float]) -> bool:
    """Whether all steps have one probability, and equal noise up to rounding."""
    norms = mechanism.strategy.column_norms()
    return min(probs) == max(probs) and bool(np.min(norms) >= np.max(norms) * (1.0 - 1e-14))
