"""Pilot samples: part probabilities of a mixture, and the expected number of draws of a proof."""

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
# A part that carries less than this is dropped, unless its probability is at least LARGEST_IDLE.
LEAST_CARRIED = 0.01
LARGEST_IDLE = 0.03
# Probabilities of the bounding parts to try, and the planned gap of a bound.
BOUNDING_SHARES = (0.1, 0.2, 0.35, 0.5, 0.7)
PLANNED_GAP = 1.05
# Where a rare large weight is harmless.
BARE_FLOORS = {"nominal": 0.01, "star": 0.2}
# The collective floors limit the effect of a second mode of the weights, which a pilot may miss.
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
        executor: where to run blocks.
        floors: least probability of parts, by name.
        prune: whether to drop parts that carry almost nothing; an estimate keeps them to detect rare weights.
        bounded: whether to balance the proved weight bound against the variance; `floors` are then set
            here.
        rounds: largest number of rounds; None for all.
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
    """Set the probability of the parts that bound the weights, so that a sequential test is strongest.

    A test on weights below W achieves the strength that a small variance allows only if W / mean is small.
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
        # Samples of one mixture represent the other by the ratio of densities.
        odds = np.exp(scipy.special.logsumexp(densities[hit], axis=1, b=alphas) - log_mix[hit]) / hit.size
        goal = mean * PLANNED_GAP * math.exp(-other.log_weight_bound)
        for stake in np.geomspace(1e-3, 0.999, 24).tolist():
            won = float(odds @ np.log1p(stake * (goal - ratio)))
            won += max(0.0, 1.0 - float(odds.sum())) * math.log1p(stake * goal)
            best = max(best, (won, other), key=lambda pair: pair[0])
    return best[1]


def pruned(proposal: Proposal, payoffs: FloatArray, densities: FloatArray) -> Proposal:
    """Drop the parts that carry almost nothing of the second moment of a pilot's weights."""
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
    """Draws of one pilot round: 4096, fewer for many bins, at least one block."""
    return max(block_size(bins), min(ESTIMATE_PILOTS, ESTIMATE_PILOTS * 512 // bins))


def adapted_weights(
    proposal: Proposal, payoffs: FloatArray, densities: FloatArray, floors: FloatArray
) -> FloatArray:
    """Part probabilities that minimise the second moment of the weights seen in a pilot.

    The second moment `E_Q[f^2 / sum_j alpha_j D_j]` is convex in alpha; the update is multiplicative. It
    affects only the variance: weights are unbiased for any alpha.

    Args:
        proposal: the proposal that was sampled.
        payoffs: log f, shape (n,).
        densities: log D, shape (n, J).
        floors: least probability of each part, shape (J,), summing to less than 1.

    Returns:
        alpha, shape (J,); the given probabilities if no sample had a payoff.
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
# A direction below this fraction of the other one is bounded without samples if possible.
NEGLIGIBLE = 1e-3
# If no weight exceeds this, none is drawn; quotients would leave the float64 range.
NOTHING = 1e-290


@dataclasses.dataclass(frozen=True, eq=False)
class Pilots:
    """Results of the pilots at one point: how to sample there, and the expected number of draws of a proof.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level.
        entropy: seeds of every stage.
        proposals: REMOVE and ADD, by name.
        weights: logs of pilot weights, by name; absent for a direction that its bound settles.
        executor: where to run blocks.
        settled: upper bounds on directions that need no samples, by name, if they are not weight bounds.
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
            executor: where to run blocks.
            threshold: bound to be proved; None to find a bound.
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
        """The same parts and probabilities at a nearby point; weights are scaled with their bounds."""
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
        """Drop the samples of a direction that a proved bound settles."""
        weights = {other: found for other, found in self.weights.items() if other != name}
        return dataclasses.replace(self, weights=weights, settled={**self.settled, name: upper})

    def of_decider(self) -> "Pilots":
        """Keep only the direction with the larger delta: for a slope, not for a proof."""
        name = self.decider
        return dataclasses.replace(self, weights={name: self.weights[name]})

    @property
    def decider(self) -> str:
        """The direction with the larger delta, according to the pilots."""
        return max(self.weights, key=lambda name: self.summary(name).log_mean, default="remove")

    def summary(self, name: str) -> WeightSummary:
        """Diagnostics of the pilot weights of a direction."""
        return summarise(self.weights[name])

    def regenerated(self, samples: int = PILOT_SAMPLES) -> "Pilots":
        """Draw the weights of these proposals again, at least `samples` in the direction that decides."""
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
        """Approximate log of delta."""
        return self.summary(self.decider).log_mean

    @property
    def relative_error(self) -> float:
        """Relative error of that delta."""
        return self.summary(self.decider).relative_error

    @property
    def samples(self) -> int:
        """Number of weights of that direction."""
        return self.weights[self.decider].size

    def expected_samples(self, log_goal: float, beta: float) -> float:
        """Expected number of draws to prove delta below a goal; infinite if it is not."""
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
    """One of several equal shares, rounded down so that their sum does not exceed the total."""
    return math.nextafter(beta / parts, 0.0) if parts > 1 else beta


# Distances above the required sigma, in log, for a calibration.
_AIMS = (0.0008, 0.001, 0.0012, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.006, 0.01, 0.02, 0.04, 0.08)
# Larger distances, for proofs that take many draws: where the weight bound is far above delta, fewer draws
# prove that delta is far below its target.
_FAR_AIMS = (0.12, 0.18, 0.25, 0.35, 0.5)
# The relative error of the pilot at the root, as a fraction of the gap.
PILOT_SHARE = 0.25
# Increase in log sigma that costs as much as the largest number of draws.
_COMFORT = 0.002


class FarAimError(NumericalError):
    """The target of a proof by sampling is too far above the required point; no beta was spent.

    Attributes:
        point: the target, a sigma or an eps; infinite if it is not known.
    """

    point = math.inf


@dataclasses.dataclass(frozen=True, eq=False)
class Aim:
    """The point at which to attempt a proof.

    Attributes:
        above: log distance above the point where delta is about its target.
        draws: expected number of draws.
        sizing: number of draws that locate the root accurately enough.
        pilots: pilots of that point, if it is far from the others; else None.
    """

    above: float
    draws: float
    sizing: float = 0.0
    pilots: Pilots | None = None

    def cost(self, most: float) -> float:
        """Combined cost of draws and of the distance, for `most` draws at most."""
        return ((self.draws + self.sizing) / most) ** 2 + self.above / _COMFORT


def best_aim(
    pilots: Pilots,
    fall: float,
    delta: float,
    beta: float,
    most: float,
    there: Callable[[float], Pilots],
    *,
    root: float = math.inf,
    reach: float = math.inf,
) -> Aim:
    """The aim with the least combined cost.

    Args:
        pilots: pilots near the point where delta meets its target.
        fall: decrease of log delta per unit of log sigma (or of log eps).
        delta: the target.
        beta: error probability of the proof.
        most: limit on the draws of a proof.
        there: pilots at a distance above the given ones, with independent random numbers.
        root: log of the point where delta meets its target; only a refusal states it.
        reach: largest distance, in log; if it is finite, only nearer ones are tried.

    Raises:
        FarAimError: if the best aim is above `reach`.
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
        # Log delta is not linear over such distances.
        drawn = there(above)
        best = min(
            best,
            Aim(above, drawn.expected_samples(math.log(delta), beta), pilots=drawn),
            key=lambda aim: aim.cost(most),
        )
    if best.above > reach:
        refusal = FarAimError(
            f"the target of a proof by sampling is {math.expm1(best.above):.0%} too high, or more"
        )
        refusal.point = math.exp(root + best.above)
        raise refusal
    return best
