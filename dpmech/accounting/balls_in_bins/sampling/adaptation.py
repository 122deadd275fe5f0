"""Part probabilities of a mixture from pilots: what steers the variance of weights, and their bound."""

import concurrent.futures
import math

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.proposals import Proposal
from dpmech.accounting.balls_in_bins.sampling.blocks import block_size, pilot_sample
from dpmech.accounting.balls_in_bins.sampling.confidence import summarise
from dpmech.accounting.balls_in_bins.streams import ADD, REMOVE, DirectionStages
from dpmech.numerics import FloatArray

__all__ = [
    "BARE_FLOORS",
    "FLOORS",
    "LEAST_PROBABILITY",
    "STAGES",
    "adapt",
    "adapted_weights",
    "bounding_shares",
    "pilot_size",
]


PILOT_SAMPLES = 4096
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
    """The probability of the parts that bound the weights with which a bet would win the most.

    A bet on weights below W wins as on ones of small variance only while W is small beside their mean.
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
    return max(block_size(bins), min(PILOT_SAMPLES, PILOT_SAMPLES * 512 // bins))


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
