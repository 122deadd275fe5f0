"""Pilots of a certified bound: how to draw at one point, and how many draws a proof will take."""

import concurrent.futures
import dataclasses
import math
from collections.abc import Collection, Mapping

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.proposals import Proposal, add_mixture, remove_mixture
from dpmech.accounting.balls_in_bins.sampling.adaptation import STAGES, adapt
from dpmech.accounting.balls_in_bins.sampling.bets import UpperBets
from dpmech.accounting.balls_in_bins.sampling.blocks import weight_sample
from dpmech.accounting.balls_in_bins.sampling.confidence import WeightSummary, summarise
from dpmech.numerics import FloatArray

__all__ = ["NOTHING", "PILOT_SAMPLES", "Pilots", "share_of"]

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

    def redrawn(self, samples: int = PILOT_SAMPLES) -> "Pilots":
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
                bets = UpperBets(
                    proposal.log_weight_bound,
                    share,
                    math.exp(log_goal),
                    log_weights,
                    rounding=proposal.weight_rounding,
                )
                draws += bets.expected_samples()
        return draws


def share_of(beta: float, parts: int) -> float:
    """One of several equal shares, rounded down: they must not add up to more."""
    return math.nextafter(beta / parts, 0.0) if parts > 1 else beta
