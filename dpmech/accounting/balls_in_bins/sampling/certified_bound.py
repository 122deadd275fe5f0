r"""Rigorous finite-sample bounds on delta(eps) of Balls-in-Bins, by sampling.

Both directions are means of independent weights. For the upper end the weights have proved bounds: REMOVE by
the star of `proposals.tuples` (together with the nominal and scaled parts), ADD by `design_points.add_point`.
The lower end needs none. Bets (`bets`) turn weights into bounds with no asymptotics, and stop as soon as they
have proved what was asked. A pilot with its own random numbers chooses probabilities, parts and first stakes
before the samples that count are drawn.
"""

import concurrent.futures
import contextlib
import dataclasses
import math
from collections.abc import Collection, Mapping

import numpy as np

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.proposals import AddProposal, Proposal, RemoveProposal
from dpmech.accounting.balls_in_bins.sampling.adaptation import STAGES, adapt
from dpmech.accounting.balls_in_bins.sampling.bets import (
    WEIGHT_ROUNDING,
    Bets,
    LowerBets,
    UpperBets,
    rounded_bound,
)
from dpmech.accounting.balls_in_bins.sampling.blocks import draw_entropy, weight_sample, weight_stream
from dpmech.accounting.balls_in_bins.sampling.confidence import WeightSummary, summarise
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

__all__ = ["CertifiedBound", "CertifiedDirection", "Pilots", "certified_floor", "certify_delta"]


PILOT_SAMPLES = 8192
# A direction below this part of the other one is bounded without samples of its own, if it can be.
NEGLIGIBLE = 1e-3
# Where no threshold is given, this often what the pilot expects is drawn at most; with one, that often.
PATIENCE = 1.5
STUBBORN = 3.0
# Where no weight is larger than that, none is drawn; quotients would leave the range of float64.
NOTHING = 1e-290
# Of an error for both ends, the part of the lower one.
LOWER_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class CertifiedDirection:
    """One direction of a certified bound.

    Attributes:
        lower: a lower bound; 0 where none was asked for.
        upper: an upper bound.
        estimate: the mean weight of the same sample (an estimate).
        weight_bound: the proved bound on every weight.
        samples: independent weights that count; 0 where the bound on every weight is enough.
    """

    lower: float
    upper: float
    estimate: float
    weight_bound: float
    samples: int


@dataclasses.dataclass(frozen=True)
class CertifiedBound:
    """lower <= delta(eps) <= upper with probability at least 1 - beta.

    Attributes:
        eps: the privacy loss level.
        lower: the larger of the lower bounds.
        upper: the larger of the upper bounds.
        beta: the probability, over the samples, that delta is outside.
        remove: H_eps(P||Q).
        add: H_eps(Q||P).
    """

    eps: float
    lower: float
    upper: float
    beta: float
    remove: CertifiedDirection
    add: CertifiedDirection

    @property
    def samples(self) -> int:
        """Draws that count, both directions."""
        return self.remove.samples + self.add.samples

    def meets(self, threshold: float) -> bool:
        """Whether delta <= threshold is proved at level 1 - beta."""
        return self.upper <= threshold


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
    """

    gram: BinGram
    eps: float
    entropy: tuple[int, ...]
    proposals: Mapping[str, Proposal]
    weights: Mapping[str, FloatArray]
    executor: concurrent.futures.Executor | None = None

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
            "remove": RemoveProposal.at(gram, eps, parts),
            "add": AddProposal.at(gram, eps, parts),
        }
        weights: dict[str, FloatArray] = {}
        log_least = math.log(NOTHING if threshold is None else threshold) - 2.0 * WEIGHT_ROUNDING
        for name, proposal in proposals.items():
            if proposal.log_weight_bound <= log_least:
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
        for name, make in (("remove", RemoveProposal.at), ("add", AddProposal.at)):
            before = self.proposals[name]
            after: Proposal = make(gram, eps, before.names)
            proposals[name] = after.reweighted(before.weights) if after.names == before.names else after
            if name in weights:
                weights[name] = weights[name] + (proposals[name].log_weight_bound - before.log_weight_bound)
        return Pilots(gram, eps, entropy, proposals, weights, self.executor)

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
                share = _share(beta, len(self.weights))
                bets = UpperBets(proposal.log_weight_bound, share, math.exp(log_goal), log_weights)
                draws += bets.expected_samples()
        return draws


def certify_delta(
    gram: BinGram,
    eps: float,
    threshold: float | None = None,
    *,
    beta: float = 1e-9,
    rel_gap: float = 0.05,
    lower: bool = False,
    rng: np.random.Generator | None = None,
    executor: concurrent.futures.Executor | None = None,
    max_samples: int = 20_000_000,
    pilots: Pilots | None = None,
) -> CertifiedBound:
    r"""Bounds on delta(eps), true with probability at least 1 - beta, both directions.

    **Guarantee:** with probability 1 - beta over the samples (for normal draws that have the Gram matrix
    `gram`), at any sample size; the bets bound their own rounding, and that of the weights is covered by a
    hundred times what was measured (`bets.WEIGHT_ROUNDING`). Directions that need samples share beta; so do
    both ends where both are asked for. One call spends beta: a search that calls again and again must divide
    it, or test an order fixed in advance and end at the first failure. It must not be repeated until it
    passes.

    The cost grows with the ratio of the weight bound to delta, which is at most that of a moment (RDP)
    bound on delta: 7 to 200 over most of the range. It grows large where delta is tiny and b large with
    nearly independent bins; then the bound is merely wide at `max_samples`, never wrong.

    Args:
        gram: the Gram matrix K.
        eps: in [1e-4, 1e4].
        threshold: what is to be proved an upper bound; drawing ends when it is. None aims at `rel_gap`.
        beta: error probability, in (0, 1).
        rel_gap: the relative gap between a bound and delta aimed at, in [0.005, 10]; for the upper end, only
            without a threshold.
        lower: whether to bound delta from below as well.
        rng: seeds the blocks; None takes operating system entropy.
        executor: where to run blocks; None runs them here.
        max_samples: most draws in one direction.
        pilots: those of this point, drawn with other random numbers than `rng` gives; None draws them.

    Returns:
        The bounds, with their parts.

    Raises:
        InvalidParameterError: if an argument is out of range.
        NumericalError: if a weight exceeds its proved bound (a fault, never chance).

    References:
        The balls-in-bins paper, Lemma 3.2; Waudby-Smith and Ramdas 2024, arXiv:2010.09686v7.

    Examples:
        >>> import numpy as np
        >>> from dpmech.accounting.balls_in_bins.gram.dense import DenseGram
        >>> bound = certify_delta(DenseGram([[1.0]]), 1.0, rng=np.random.default_rng(1), lower=True)
        >>> 0.126937 / 1.1 < bound.lower < 0.126937 < bound.upper < 0.126937 * 1.1
        True
    """
    eps = check_real("eps", eps, minimum=1e-4, maximum=1e4)
    beta = check_real("beta", beta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
    rel_gap = check_real("rel_gap", rel_gap, minimum=0.005, maximum=10.0)
    max_samples = check_integer("max_samples", max_samples, minimum=1000)
    if threshold is not None:
        threshold = check_real("threshold", threshold, minimum=0.0, maximum=1.0, open_minimum=True)
    entropy = draw_entropy(rng)
    if pilots is None:
        pilots = Pilots.at(gram, eps, entropy, executor, threshold=None if lower else threshold)
    decider, directions = pilots.decider, dict[str, CertifiedDirection]()
    below = LOWER_SHARE * beta if lower and pilots.weights else 0.0
    share = _share(beta - below, len(pilots.weights))
    for name, proposal in pilots.proposals.items():
        if name not in pilots.weights:
            bound = rounded_bound(proposal.log_weight_bound)
            directions[name] = CertifiedDirection(0.0, bound, math.nan, bound, 0)
            continue
        summary = pilots.summary(pilots.decider)
        off = min(2.0 * summary.relative_error, 0.5)
        top = math.exp(summary.log_mean + math.log1p(off)) * (1.0 + rel_gap)
        upper = UpperBets(
            proposal.log_weight_bound, share, top if threshold is None else threshold, pilots.weights[name]
        )
        gamblers: list[Bets] = [upper]
        if below > 0.0 and name == decider and summary.log_mean > math.log(NOTHING):
            goal = math.exp(summary.log_mean) * (1.0 - off) / (1.0 + rel_gap)
            gamblers.append(LowerBets(summary.log_mean, below, goal, pilots.weights[name]))
        patience = PATIENCE if threshold is None else STUBBORN
        directions[name] = _drawn(
            proposal, name, gamblers, entropy, executor, patience=patience, max_samples=max_samples
        )
    return CertifiedBound(
        eps,
        max(one.lower for one in directions.values()),
        max(one.upper for one in directions.values()),
        beta,
        directions["remove"],
        directions["add"],
    )


def certified_floor(
    pilots: Pilots, threshold: float, beta: float, *, rng: np.random.Generator, max_samples: int
) -> float:
    """A lower bound on delta(eps), true with probability at least 1 - beta; drawing ends at the threshold.

    Args:
        pilots: of the point.
        threshold: what is to be proved a lower bound, > 0.
        beta: error probability, in (0, 1).
        rng: seeds the blocks.
        max_samples: most draws.
    """
    name = pilots.decider
    log_unit = pilots.summary(name).log_mean if pilots.weights else -math.inf
    if not log_unit > math.log(NOTHING):
        return 0.0
    gambler = LowerBets(log_unit, beta, threshold, pilots.weights[name])
    return _drawn(
        pilots.proposals[name],
        name,
        [gambler],
        draw_entropy(rng),
        pilots.executor,
        patience=STUBBORN,
        max_samples=max_samples,
    ).lower


def _share(beta: float, parts: int) -> float:
    """One of several equal shares, rounded down: they must not add up to more."""
    return math.nextafter(beta / parts, 0.0) if parts > 1 else beta


def _drawn(
    proposal: Proposal,
    name: str,
    gamblers: list[Bets],
    entropy: tuple[int, ...],
    executor: concurrent.futures.Executor | None,
    *,
    patience: float,
    max_samples: int,
) -> CertifiedDirection:
    """Bets on the main sample of a direction, until all goals are proved or patience ends."""
    expected = max(gambler.expected_samples() for gambler in gamblers)
    limit = int(min(patience * max(expected, PILOT_SAMPLES), max_samples))
    total, count = 0.0, 0
    expected = int(min(expected, limit))
    with contextlib.closing(
        weight_stream(proposal, entropy, STAGES[name].main, expected, executor)
    ) as stream:
        while count < limit and not all(gambler.proved for gambler in gamblers):
            log_weights = next(stream)
            for gambler in gamblers:
                gambler.add(log_weights)
            total, count = total + float(np.exp(log_weights).sum()), count + log_weights.size
    lowest, highest = 0.0, math.exp(proposal.log_weight_bound)
    for gambler in gamblers:
        if isinstance(gambler, UpperBets):
            highest = gambler.bound
        else:
            lowest = gambler.bound
    return CertifiedDirection(
        lower=lowest,
        upper=highest,
        estimate=total / count if count else math.nan,
        weight_bound=math.exp(proposal.log_weight_bound),
        samples=count,
    )
