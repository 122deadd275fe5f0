"""Accountant for bounds that hold with probability 1 - beta."""

import copy
import dataclasses
import math
from collections.abc import Callable, Collection
from typing import ClassVar

import numpy as np

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.gaussian import gaussian_epsilon
from dpmech.engines.gaussian_mixture.certified_bound import CertifiedBound, certified_floor, certify_delta
from dpmech.engines.gaussian_mixture.certified_curve import whole_curve
from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.pilots import Pilots, best_aim
from dpmech.engines.gaussian_mixture.rough_sigma import _SMALLEST_EPS, RoughSample, delta_below
from dpmech.engines.gaussian_mixture.samples import draw_entropy
from dpmech.engines.profiles import Curve
from dpmech.exceptions import NumericalError
from dpmech.methods import Certified
from dpmech.numerics import Bounds, Guarantee, Provenance, next_down, product_down, quotient_down, up

# Attempts in a fixed order: the increase in log sigma (or log eps), and the share of beta of each.
_TRIES = ((0.0, 0.85), (0.0015, 0.05), (0.005, 0.03), (0.02, 0.01), (0.08, 0.009))
# Share of beta for the lower end.
_FLOOR_SHARE = 0.05
# Factor on the limit on draws up to which a proof is still attempted.
# Below this number of bins the limit on draws stays constant, because the cost per draw dominates.
_FEWEST_BINS = 400
_LEAST_DRAWS = 4000.0
_HOPELESS = 6.0
# The same factor for bounds on delta, which are wide if the limit is too low.
_PATIENT = 4.0
# Distance of the lower end below the root, as a multiple of the distance of the upper end above it.
_FLOOR_GAP = 3.0
# Factor between the goal of a lower bound on delta and the estimate.
_DELTA_GAP = 1.05
# ADD is bounded without samples if it is below e^-3 of delta and its tests would need all the work.
_SMALL_ADD = 3.0
_NATS = 25.0
# At this eps and below, delta hardly depends on eps, and the bound without amplification is nearly as good.
_NEAR_NOTHING = 0.01
# Step in log sigma (or log eps) for the slope of log delta.
_STEP = 0.01
_LEAST_FALL = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class _Located:
    """Roughly where delta meets its target, in the log of the searched variable (sigma or eps).

    Attributes:
        pilots: pilots at the start.
        start: a point near the root.
        root: approximate point at which delta meets its target.
        fall: decrease of log delta per unit.
    """

    pilots: Pilots
    start: float
    root: float
    fall: float


@dataclasses.dataclass(frozen=True, eq=False)
class _Search:
    """The point at which to attempt a proof, in the log of the searched variable (sigma or eps).

    Attributes:
        pilots: pilots near the root.
        root: approximate point at which delta meets its target.
        above: distance above the root at which the proof is attempted.
        fall: decrease of log delta per unit.
    """

    pilots: Pilots
    root: float
    above: float
    fall: float

    @property
    def aim(self) -> float:
        """Point of the first attempt."""
        return self.root + self.above

    def pilots_at(self, gram: BinGram, eps: float) -> Pilots:
        """Pilots for a point, so that the proof is for exactly the value that is returned."""
        return self.pilots.moved(gram, eps, self.pilots.entropy)


class CertifiedAccountant(Accountant):
    """An upper bound that holds with probability 1 - beta over all evaluations of one call.

    Sizing uses independent samples; the bound is then sampled at points fixed before its own samples, each
    with its share of beta.

    Args:
        gram: Gram matrix at sigma 1, or an upper bound on it.
        sensitivity: sensitivity without amplification.
        method: beta, and where to run the sampling.
        rng: random generator; None uses random numbers generated within this call.
        lower: a lower bound on the Gram matrix, for lower ends; None sets them to 0.
        settled_add: a proved upper bound on ADD at (sigma, eps), used where sampling would take too long.
        reach: largest distance above the required sigma, in log, for a proof; infinite for no limit.
        settle_first: whether `settled_add` is cheap, and tried before the number of draws is chosen.
    """

    evaluates: ClassVar[bool] = False
    # Limit on draws times bins for a proof.
    work: ClassVar[float] = 1.2e8

    def __init__(
        self,
        gram: BinGram,
        sensitivity: Bounds,
        method: Certified,
        rng: np.random.Generator | None,
        *,
        lower: BinGram | None,
        settled_add: Callable[[float, float], float] | None = None,
        reach: float = math.inf,
        settle_first: bool = False,
    ) -> None:
        self.gram, self.lower, self.reach = gram, lower, reach
        self.settle_first = settle_first
        self.settled_add = settled_add
        self.sensitivity = sensitivity
        self.settings = method
        # Random numbers determine sigma: delta may include beta only if this call generates them.
        self.fresh = rng is None
        self.entropy = draw_entropy(rng)
        self.rng = np.random.default_rng(self.entropy)
        self.guarantee = method.guarantee(inside=False)
        self.by = self._by(self.guarantee)
        self.near: dict[tuple[float, float], _Located] = {}

    def reaching(self, reach: float) -> "CertifiedAccountant":
        """The same accountant with another `reach`; it need not locate again what this one located."""
        other = copy.copy(self)
        other.reach = reach
        return other

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; together they fail with probability beta at most."""
        del tolerance
        sampled, half = max(eps, _SMALLEST_EPS), product_down(0.5, self.settings.share(1))
        pilots = Pilots.at(self.gram.scaled(sigma**-2), sampled, self._entropy(), self.settings.executor)
        found = certify_delta(
            pilots.gram,
            sampled,
            beta=half,
            rng=self._fresh(),
            executor=self.settings.executor,
            max_samples=int(_PATIENT * self._most()),
            pilots=self._settled(pilots, sigma, None),
        )
        upper = delta_below(found.upper, sampled, eps, sigma / self.sensitivity.upper)
        lower = 0.0
        if pilots.weights:
            goal = math.exp(pilots.log_mean) * (1.0 - min(2.0 * pilots.relative_error, 0.5)) / _DELTA_GAP
            lower = self._proved_below(pilots, sigma, sampled, goal, half)
        return self._bounds(min(lower, upper), upper, self.guarantee)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; together they fail with probability beta at most."""
        del tolerance
        unamplified = gaussian_epsilon(sigma / self.sensitivity.upper, delta, safe=True)
        guarantee = self.settings.guarantee(delta, inside=False)
        if unamplified <= _SMALLEST_EPS:
            return self._bounds(0.0, unamplified, guarantee)
        beta, gram = self.settings.share(1, delta), self.gram.scaled(sigma**-2)
        start = self._rough().epsilon(self.gram, sigma, delta, sensitivity=self.sensitivity.upper)

        def at(log_eps: float) -> tuple[BinGram, float]:
            return gram, math.exp(log_eps)

        found = self._located(at, math.log(max(start, _SMALLEST_EPS)), delta)
        search = self._search(at, found, delta, beta)
        for further, share in _TRIES:
            eps = max(math.exp(search.aim + further), _SMALLEST_EPS)
            if eps >= unamplified:
                eps = unamplified
                break
            pilots = self._settled(search.pilots_at(gram, eps), sigma, delta)
            if self._certified(pilots, delta, product_down(share, beta)).meets(delta):
                break
        else:
            if unamplified > _NEAR_NOTHING:
                raise NumericalError(
                    f"no eps up to {eps!r} could be certified at delta={delta!r} ({self.method})"
                )
            eps = unamplified
        lower = self._floor(
            search.pilots, sigma, min(math.exp(search.root - _FLOOR_GAP * search.above), eps), delta, beta
        )
        return self._bounds(lower, eps, guarantee)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Size on independent samples, then certify slightly above; a few attempts, fixed in advance.

        Delta includes beta if this call generates its random numbers: the certified delta is then reduced by
        beta. The first attempt is as close above the required sigma as a reasonable number of draws can
        prove; `rtol` has no effect.
        """
        del rtol
        guarantee = self.settings.guarantee(delta, inside=self.fresh)
        goal, beta = guarantee.mechanism_delta(delta), self.settings.share(1, delta)

        def at(log_sigma: float) -> tuple[BinGram, float]:
            return self.gram.scaled(math.exp(-2.0 * log_sigma)), eps

        if (eps, goal) not in self.near:
            rough = self._rough().sigma(
                self.gram, eps, goal, sensitivity=self.sensitivity.upper, progress=progress
            )
            self.near[eps, goal] = self._located(at, math.log(rough.sigma), goal, rough.parts)
        search = self._search(at, self.near[eps, goal], goal, beta)
        for further, share in _TRIES:
            sigma = math.exp(search.aim + further)
            pilots = search.pilots_at(self.gram.scaled(sigma**-2), eps)
            pilots = self._settled(pilots, sigma, goal)
            bound = self._certified(pilots, goal, product_down(share, beta))
            progress(f"certify: sigma {up(sigma)}: delta <= {up(bound.upper, 4)}")
            if bound.meets(goal):
                # Log delta is below the goal by about the first term; at the lower end it exceeds the budget.
                gap = search.fall * ((1.0 + _FLOOR_GAP) * search.above + further) + math.log(delta / goal)
                return Solution(
                    sigma,
                    self._bounds(self._lower_epsilon(pilots, sigma, delta, gap, beta), eps, guarantee),
                    bound.samples,
                    randomness="".join(f"{word:08x}" for word in self.entropy),
                    method=self.settings.settled(delta),
                    excess=search.above + further,
                )
        raise NumericalError(f"no sigma up to {sigma!r} could be certified ({self.method})")

    def curve(self, sigma: float, *, rel_error: float) -> Curve:
        """Both directions at nodes, by `whole_curve`; all bounds share beta, which delta does not include."""
        settled = self.settled_add
        return whole_curve(
            self.gram.scaled(sigma**-2),
            None if self.lower is None else self.lower.scaled(sigma**-2),
            quotient_down(sigma, self.sensitivity.upper),
            settled_add=None if settled is None else lambda eps: settled(sigma, eps),
            rel_error=rel_error,
            beta=self.settings.share(1),
            entropy=self._entropy(),
            executor=self.settings.executor,
        )

    def nodes_label(self, nodes: int) -> tuple[Guarantee, Provenance]:
        """Delta does not include beta."""
        return self.settings.guarantee(inside=False), super().nodes_label(nodes)[1]

    def _located(
        self,
        at: Callable[[float], tuple[BinGram, float]],
        start: float,
        delta: float,
        parts: Collection[str] | None = None,
    ) -> _Located:
        """Find roughly where delta meets its target.

        Args:
            at: the Gram matrix and eps at a point.
            start: a point near the root.
            delta: the target.
            parts: names of the parts of mixtures to try; None for all.

        Raises:
            NumericalError: if no sample reaches the payoff.
        """
        pilots = Pilots.at(*at(start), self._entropy(), self.settings.executor, parts=parts)
        if not pilots.weights:
            return _Located(pilots, start, start, 0.0)
        if self.settle_first and pilots.decider != "add":
            sigma = math.sqrt(float(self.gram.diagonal[0] / pilots.gram.diagonal[0]))
            # Attempts settle it again, at exactly their sigma and eps.
            pilots = self._settled(pilots, sigma, 0.9 * delta)
        further = pilots.moved(*at(start + _STEP), pilots.entropy).of_decider().regenerated()
        # Both use the same random numbers, so that their difference is accurate.
        fall = max((pilots.log_mean - further.log_mean) / _STEP, _LEAST_FALL)
        root = start + (pilots.log_mean - math.log(delta)) / fall
        if not math.isfinite(root):
            raise NumericalError(f"no sample reached the payoff at delta={delta!r} ({self.method})")
        return _Located(pilots, start, root, fall)

    def _search(
        self, at: Callable[[float], tuple[BinGram, float]], near: _Located, delta: float, beta: float
    ) -> _Search:
        """Find where delta meets its target, and the distance above it at which to attempt a proof.

        Args:
            at: the Gram matrix and eps at a point.
            near: roughly where that is.
            delta: the target.
            beta: error probability of the proof.

        Raises:
            NumericalError: if no gap can be proved within the limit on draws.
        """
        pilots, start, root, fall = near.pilots, near.start, near.root, near.fall
        if not pilots.weights:
            return _Search(pilots, start, 0.0, 0.0)
        first = product_down(_TRIES[0][1], beta)
        most = self._most()

        def there(above: float) -> Pilots:
            return pilots.moved(*at(start + above), self._entropy()).regenerated()

        aim = best_aim(pilots, fall, delta, first, most, there, root=root, reach=self.reach)
        if aim.draws > _HOPELESS * most:
            raise NumericalError(
                f"a proof by sampling would take some {aim.draws:.1e} draws of {self.gram.words} "
                f"({self.method})"
            )
        if aim.pilots is not None:
            return _Search(aim.pilots, root, start + aim.above - root, fall)
        larger = pilots.moved(*at(root), self._entropy()).regenerated(int(min(aim.sizing, most)))
        root += (larger.log_mean - math.log(delta)) / fall
        return _Search(larger, root, aim.above, fall)

    def _lower_epsilon(self, pilots: Pilots, sigma: float, delta: float, gap: float, beta: float) -> float:
        """A certified lower bound on eps, where log delta is about `gap` above that of the pilots."""
        if self.lower is None or not pilots.weights or pilots.eps <= 2.0 * _SMALLEST_EPS:
            return 0.0
        here, below = (
            pilots.moved(pilots.gram, factor * pilots.eps, pilots.entropy).of_decider().regenerated().log_mean
            for factor in (1.0, 1.0 - _STEP)
        )
        fall = (below - here) / -math.log1p(-_STEP)
        eps = pilots.eps * math.exp(-gap / fall) if fall > 0.0 else 0.0
        return self._floor(pilots, sigma, eps, delta, beta)

    def _floor(self, pilots: Pilots, sigma: float, eps: float, delta: float, beta: float) -> float:
        """Return `eps` if delta at eps is proved to exceed `delta`; else 0."""
        if not pilots.weights or eps < _SMALLEST_EPS:
            return 0.0
        found = self._proved_below(pilots, sigma, eps, delta, product_down(_FLOOR_SHARE, beta))
        # Delta decreases in eps: no eps up to this one meets it.
        return next_down(eps) if found >= delta else 0.0

    def _proved_below(self, pilots: Pilots, sigma: float, eps: float, goal: float, beta: float) -> float:
        """A certified lower bound on delta; sampling stops once the goal is proved."""
        if self.lower is None:
            return 0.0
        return certified_floor(
            pilots.moved(self.lower.scaled(sigma**-2), eps, self._entropy()),
            goal,
            beta,
            rng=self._fresh(),
            max_samples=int(self._most()),
        )

    def _settled(self, pilots: Pilots, sigma: float, delta: float | None) -> Pilots:
        """Omit samples for ADD where they would take long and the bound without samples is small enough."""
        if self.settled_add is None or not pilots.weights or pilots.decider == "add":
            return pilots
        goal = math.exp(pilots.log_mean) if delta is None else delta
        if self.settle_first:
            upper = self.settled_add(sigma, pilots.eps)
            return pilots.without("add", upper) if upper <= goal or "add" not in pilots.weights else pilots
        if "add" not in pilots.weights or pilots.summary("add").log_mean > math.log(goal) - _SMALL_ADD:
            return pilots
        bound = pilots.proposals["add"].log_weight_bound
        # For small weights, the gain of a test per draw is about the goal divided by the weight bound.
        if math.exp(bound - math.log(goal)) < self.work / self.gram.bins / _NATS:
            return pilots
        upper = self.settled_add(sigma, pilots.eps)
        return pilots.without("add", upper) if upper <= goal else pilots

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
        """Limit on the draws of a proof."""
        return max(self.work / max(self.gram.bins, _FEWEST_BINS), _LEAST_DRAWS)

    def _rough(self) -> RoughSample:
        return RoughSample(self._entropy(), pilots=2, executor=self.settings.executor)

    def _entropy(self) -> tuple[int, ...]:
        return draw_entropy(self._fresh())

    def _fresh(self) -> np.random.Generator:
        return np.random.default_rng(self.rng.integers(2**63, size=4))

    def _bounds(self, lower: float, upper: float, guarantee: Guarantee) -> Bounds:
        return Bounds(lower, upper, guarantee, self._by(guarantee))

    def _by(self, guarantee: Guarantee) -> Provenance:
        return Provenance(f"{self.gram.family}.certified", {**self.gram.facts, "beta": guarantee.error})
