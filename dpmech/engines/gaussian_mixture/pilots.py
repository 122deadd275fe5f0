"""Pilot samples: part probabilities of a mixture, and how many draws a proof will take."""

import concurrent.futures
import dataclasses
import math
from collections.abc import Callable, Collection, Mapping

import numpy as np
import scipy

from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.mixtures import add_mixture, remove_mixture
from dpmech.engines.gaussian_mixture.proposal import Proposal
from dpmech.engines.gaussian_mixture.samples import (
    WeightSummary,
    block_size,
    pilot_sample,
    summarise,
    weight_sample,
)
from dpmech.engines.gaussian_mixture.sequential_tests import UpperTest
from dpmech.engines.gaussian_mixture.streams import ADD, REMOVE, DirectionStages
from dpmech.exceptions import NumericalError
from dpmech.numerics import FloatArray

ESTIMATE_PILOTS = 4096
PILOT_EFFECTIVE = 200.0
LEAST_PROBABILITY = 0.01
ADAPT_STEPS = 300
# A part goes that carries less than this, unless its probability shows that it is of use.
LEAST_CARRIED = 0.01
LARGEST_IDLE = 0.03
# Probabilities of the bounding parts that are tried, and the gap that a bound is drawn for.
BOUNDING_SHARES = (0.1, 0.2, 0.35, 0.5, 0.7)
PLANNED_GAP = 1.05
# Where a rare large weight does no harm.
BARE_FLOORS = {"nominal": 0.01, "star": 0.2}
# The collective floors keep a second mode of the weights, which a pilot may miss, from standing out.
FLOORS = {
    "nominal": 0.1,
    "star": 0.2,
    "all bins": 0.05,
    "all bins, one 3%": 0.03,
    "all bins, one 10%": 0.03,
}
STAGES = {"remove": REMOVE, "add": ADD}


def adapt(
    proposal: Proposal,
    entropy: tuple[int, ...],
    stages: DirectionStages,
    executor: concurrent.futures.Executor | None,
    floors: dict[str, float],
    *,
    prune: bool = False,
    bounded: bool = False,
    rounds: int | None = None,
) -> Proposal:
    """The proposal with part probabilities from pilot rounds, none below its floor (0.01 by default).

    Args:
        proposal: the mixture.
        entropy: seeds of the rounds.
        stages: their stages.
        executor: where their blocks run.
        floors: the least probability of parts, by name.
        prune: whether to leave out parts that carry next to nothing; where rare weights are looked for, as
            for an estimate, they stay.
        bounded: whether to weigh the proved bound on the weights against their variance; `floors` are then
            chosen here.
        rounds: at most so many; None for all that there are.
    """
    if bounded:
        floors = BARE_FLOORS
    least = np.array([floors.get(name, LEAST_PROBABILITY) for name in proposal.names])
    size = pilot_size(proposal.gram.bins)
    for number, stage in enumerate(stages.rounds[:rounds]):
        payoffs, densities = pilot_sample(proposal, entropy, stage, size, executor)
        seen = summarise(proposal.log_weights(payoffs, densities))
        proposal = proposal.reweighted(adapted_weights(proposal, payoffs, densities, least))
        if number > 0 and seen.effective_samples >= PILOT_EFFECTIVE:
            break
        size = size if number == 0 else 2 * size
    if bounded:
        proposal = bounding_shares(proposal, payoffs, densities)
    return pruned(proposal, payoffs, densities) if prune else proposal


def bounding_shares(proposal: Proposal, payoffs: FloatArray, densities: FloatArray) -> Proposal:
    """The probability of the parts that bound the weights that make a sequential test strongest.

    A test on weights below W is as strong as with small variance only if W is small against their mean.
    """
    bounding = np.array([name in proposal.bounding for name in proposal.names])
    log_mix = scipy.special.logsumexp(densities, axis=1, b=proposal.weights)
    hit = payoffs > -np.inf
    if not np.any(hit):
        return proposal
    mean = float(np.mean(np.where(hit, np.exp(payoffs - log_mix), 0.0)))
    best = (-math.inf, proposal)
    for share in BOUNDING_SHARES:
        parts = np.where(bounding, proposal.weights, 0.0), np.where(bounding, 0.0, proposal.weights)
        sums = [float(part.sum()) for part in parts]
        if sums[1] == 0.0:
            return proposal
        alphas = share * parts[0] / sums[0] + (1.0 - share) * parts[1] / sums[1]
        other = proposal.reweighted(alphas)
        ratio = np.exp(other.log_weights(payoffs[hit], densities[hit]) - other.log_weight_bound)
        # Samples of one mixture stand for the other's by their densities.
        odds = np.exp(scipy.special.logsumexp(densities[hit], axis=1, b=alphas) - log_mix[hit]) / hit.size
        goal = mean * PLANNED_GAP * math.exp(-other.log_weight_bound)
        for stake in np.geomspace(1e-3, 0.999, 24).tolist():
            won = float(odds @ np.log1p(stake * (goal - ratio)))
            won += max(0.0, 1.0 - float(odds.sum())) * math.log1p(stake * goal)
            best = max(best, (won, other), key=lambda pair: pair[0])
    return best[1]


def pruned(proposal: Proposal, payoffs: FloatArray, densities: FloatArray) -> Proposal:
    """Without the parts that carry next to nothing of the second moment of a pilot's weights."""
    weights = proposal.log_weights(payoffs, densities)
    hit = weights > -np.inf
    if not np.any(hit):
        return proposal
    weights, densities = weights[hit], densities[hit]
    shares = np.exp(2.0 * (weights - weights.max()))[:, None] * np.exp(
        densities + (weights - payoffs[hit])[:, None]
    )
    carried = proposal.weights * shares.sum(axis=0)
    carried /= carried.sum()
    useful = (carried >= LEAST_CARRIED) | (proposal.weights >= LARGEST_IDLE)
    return proposal.restricted({name for name, kept in zip(proposal.names, useful, strict=True) if kept})


def pilot_size(bins: int) -> int:
    """Draws of one pilot round: 4096, fewer where bins are many, at least a block."""
    return max(block_size(bins), min(ESTIMATE_PILOTS, ESTIMATE_PILOTS * 512 // bins))


def adapted_weights(
    proposal: Proposal, payoffs: FloatArray, densities: FloatArray, floors: FloatArray
) -> FloatArray:
    """Part probabilities that minimise the second moment of the weights seen in a pilot.

    The second moment `E_Q[f^2 / sum_j alpha_j D_j]` is convex in alpha; the update is multiplicative. It
    steers the variance only: any alpha gives an unbiased weight.

    Args:
        proposal: the proposal that was sampled.
        payoffs: log f, shape (n,).
        densities: log D, shape (n, J).
        floors: the least probability of each part, shape (J,), summing to less than 1.

    Returns:
        alpha, shape (J,); the given probabilities where no sample had a payoff.
    """
    hit = payoffs > -np.inf
    if not np.any(hit):
        return proposal.weights
    payoffs, densities = payoffs[hit], densities[hit]
    base = 2.0 * payoffs - scipy.special.logsumexp(densities, axis=1, b=proposal.weights)
    relative = np.exp(densities - densities.max(axis=1, keepdims=True))
    base -= densities.max(axis=1)
    free = 1.0 - float(floors.sum())
    inner = np.full(floors.size, 1.0 / floors.size)
    for _ in range(ADAPT_STEPS):
        mixed = relative @ (floors + free * inner)
        logs = base - np.log(mixed)
        share = np.exp(logs - logs.max())
        gain = (share / mixed) @ relative / share.sum()
        inner = inner * np.sqrt(gain)
        inner /= inner.sum()
    out: FloatArray = floors + free * inner
    out /= out.sum()
    return out


PILOT_SAMPLES = 8192
# A direction below this part of the other one is bounded without samples of its own, if it can be.
NEGLIGIBLE = 1e-3
# Where no weight is larger than that, none is drawn; quotients would leave the range of float64.
NOTHING = 1e-290


@dataclasses.dataclass(frozen=True, eq=False)
class Pilots:
    """What pilots found at one point: how to draw there, and how many draws a proof will take.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level.
        entropy: seeds of every stage.
        proposals: REMOVE and ADD, by name.
        weights: logs of pilot weights, by name; a direction that its bound settles has none.
        executor: where blocks run.
        settled: upper bounds on directions that need no samples, by name, where they are not on every weight.
    """

    gram: BinGram
    eps: float
    entropy: tuple[int, ...]
    proposals: Mapping[str, Proposal]
    weights: Mapping[str, FloatArray]
    executor: concurrent.futures.Executor | None = None
    settled: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def at(
        cls,
        gram: BinGram,
        eps: float,
        entropy: tuple[int, ...],
        executor: concurrent.futures.Executor | None = None,
        *,
        threshold: float | None = None,
        parts: Collection[str] | None = None,
    ) -> "Pilots":
        """Pilots at one point; none for a direction whose bound is below the other, or the threshold.

        Args:
            gram: the Gram matrix.
            eps: the privacy loss level.
            entropy: seeds of every stage.
            executor: where blocks run.
            threshold: what is to be proved; None for a number.
            parts: names of the parts to try; None for all.
        """
        proposals: dict[str, Proposal] = {
            "remove": remove_mixture(gram, eps, parts),
            "add": add_mixture(gram, eps, parts),
        }
        weights: dict[str, FloatArray] = {}
        log_least = math.log(NOTHING if threshold is None else threshold)
        for name, proposal in proposals.items():
            if proposal.log_weight_bound <= log_least - 2.0 * proposal.weight_rounding:
                continue
            fitted = adapt(proposal, entropy, STAGES[name], executor, {}, prune=True, bounded=True)
            proposals[name] = fitted
            weights[name] = weight_sample(
                fitted, entropy, STAGES[name].sizing, PILOT_SAMPLES, executor
            ).log_weights
            if threshold is None:
                log_least = max(log_least, summarise(weights[name]).log_mean + math.log(NEGLIGIBLE))
        return cls(gram, eps, entropy, proposals, weights, executor)

    def moved(self, gram: BinGram, eps: float, entropy: tuple[int, ...]) -> "Pilots":
        """The same parts and probabilities at a point nearby, the weights in proportion to their bounds."""
        proposals: dict[str, Proposal] = {}
        weights = dict(self.weights)
        for name, make in (("remove", remove_mixture), ("add", add_mixture)):
            before = self.proposals[name]
            after: Proposal = make(gram, eps, before.names)
            proposals[name] = after.reweighted(before.weights) if after.names == before.names else after
            if name in weights:
                weights[name] = weights[name] + (proposals[name].log_weight_bound - before.log_weight_bound)
        return Pilots(gram, eps, entropy, proposals, weights, self.executor)

    def without(self, name: str, upper: float) -> "Pilots":
        """With no samples for a direction that a proved bound settles."""
        weights = {other: found for other, found in self.weights.items() if other != name}
        return dataclasses.replace(self, weights=weights, settled={**self.settled, name: upper})

    def of_decider(self) -> "Pilots":
        """With weights of the direction that decides alone: for a slope, not for a proof."""
        name = self.decider
        return dataclasses.replace(self, weights={name: self.weights[name]})

    @property
    def decider(self) -> str:
        """The direction with the larger delta, by the pilots."""
        return max(self.weights, key=lambda name: self.summary(name).log_mean, default="remove")

    def summary(self, name: str) -> WeightSummary:
        """What the pilot weights of a direction say."""
        return summarise(self.weights[name])

    def regenerated(self, samples: int = PILOT_SAMPLES) -> "Pilots":
        """With weights of these proposals, at least so many in the direction that decides."""
        weights = {
            name: weight_sample(
                self.proposals[name],
                self.entropy,
                STAGES[name].sizing,
                samples if name == self.decider else PILOT_SAMPLES,
                self.executor,
            ).log_weights
            for name in self.weights
        }
        return dataclasses.replace(self, weights=weights)

    @property
    def log_mean(self) -> float:
        """Log of delta, about."""
        return self.summary(self.decider).log_mean

    @property
    def relative_error(self) -> float:
        """Of that delta."""
        return self.summary(self.decider).relative_error

    @property
    def samples(self) -> int:
        """How many weights that direction has."""
        return self.weights[self.decider].size

    def expected_samples(self, log_goal: float, beta: float) -> float:
        """Draws with which delta is expected to be proved below a goal; infinite where it is not."""
        draws = 0.0
        for name, log_weights in self.weights.items():
            proposal = self.proposals[name]
            if log_goal < proposal.log_weight_bound:
                share = share_of(beta, len(self.weights))
                tests = UpperTest(
                    proposal.log_weight_bound,
                    share,
                    math.exp(log_goal),
                    log_weights,
                    rounding=proposal.weight_rounding,
                )
                draws += tests.expected_samples()
        return draws


def share_of(beta: float, parts: int) -> float:
    """One of several equal shares, rounded down: they must not add up to more."""
    return math.nextafter(beta / parts, 0.0) if parts > 1 else beta


# How far above the right sigma, in log, a calibration may aim.
_AIMS = (0.0008, 0.001, 0.0012, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.006, 0.01, 0.02, 0.04, 0.08)
# And further, where that takes many draws: the bound on the weights is far above delta there, and so far
# above the right sigma fewer show that delta is far below its target.
_FAR_AIMS = (0.12, 0.18, 0.25, 0.35, 0.5)
# The pilot at the root is to know delta this much better than the gap that is aimed at.
PILOT_SHARE = 0.25
# An aim this much higher is as unwelcome as all the draws that a proof may take.
_COMFORT = 0.002


class FarAimError(NumericalError):
    """A proof by sampling would aim too far above the right point; none was tried, and no beta was spent."""


@dataclasses.dataclass(frozen=True, eq=False)
class Aim:
    """Where a proof is tried.

    Attributes:
        above: how far above the point where delta is about its target, in log.
        draws: how many it is expected to take.
        sizing: how many draws find the root well enough for it.
        pilots: those of that point, where it is far from the others; else None.
    """

    above: float
    draws: float
    sizing: float = 0.0
    pilots: Pilots | None = None

    def cost(self, most: float) -> float:
        """How unwelcome it is, where a proof may take so many draws."""
        return ((self.draws + self.sizing) / most) ** 2 + self.above / _COMFORT


def best_aim(
    pilots: Pilots,
    fall: float,
    delta: float,
    beta: float,
    most: float,
    there: Callable[[float], Pilots],
    *,
    reach: float = math.inf,
) -> Aim:
    """The aim whose proof is worth its draws.

    Args:
        pilots: near the point where delta meets its target.
        fall: by how much log delta falls a unit of log sigma (or of log eps).
        delta: the target.
        beta: of the proof.
        most: draws that a proof may take.
        there: pilots of a point so far above those given, with random numbers of their own.
        reach: how far above that may be, in log; with a limit, only the nearer ones are looked at.

    Raises:
        FarAimError: if it is above `reach`.
    """
    near = (
        Aim(
            above,
            pilots.expected_samples(pilots.log_mean + fall * above, beta),
            pilots.samples * (pilots.relative_error / (PILOT_SHARE * fall * above)) ** 2,
        )
        for above in _AIMS
    )
    best = min(near, key=lambda aim: aim.cost(most))
    for above in _FAR_AIMS if math.isinf(reach) else ():
        if best.cost(most) <= Aim(above, 0.0).cost(most):
            break
        # Log delta is no line that far.
        drawn = there(above)
        best = min(
            best,
            Aim(above, drawn.expected_samples(math.log(delta), beta), pilots=drawn),
            key=lambda aim: aim.cost(most),
        )
    if best.above > reach:
        raise FarAimError(f"a proof by sampling would aim {math.expm1(best.above):.0%} too high, or more")
    return best
