"""Sampling a proposal in blocks, on any executor; the result does not depend on how many workers there are.

Block j of a stage draws from the streams of that key (`streams.py`) and from nothing else. The size
of a block depends on b alone, and the results are put together in the order of j.
"""

import concurrent.futures
import dataclasses
import math

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.proposals import Proposal
from dpmech.accounting.balls_in_bins.streams import Stage, stage_seed
from dpmech.numerics import FloatArray, current_executor, spend

__all__ = ["Sample", "adapted_weights", "block_size", "draw_entropy", "pilot_sample", "weight_sample"]

BlockResult = tuple[FloatArray, FloatArray]

BLOCK_ENTRIES = 2**20
SMALLEST_BLOCK = 16
LARGEST_BLOCK = 4096
CHUNKS = 64
ADAPT_STEPS = 300
# Of the cost: bytes of a number, and up to how many bins a draw is a product with a dense matrix.
_NUMBER, _DENSE = 8.0, 6000


@dataclasses.dataclass(frozen=True)
class Sample:
    """Weights of independent draws.

    Attributes:
        log_weights: logs, shape (n,), -inf for zero.
        shares: the share of the sum of weights that each part of the mixture carried, shape (J,).
    """

    log_weights: FloatArray
    shares: FloatArray


def block_size(bins: int) -> int:
    """Samples in a block: about a million entries of y, so that a block takes some 100 MB at most."""
    return int(min(max(BLOCK_ENTRIES // bins, SMALLEST_BLOCK), LARGEST_BLOCK))


def draw_entropy(rng: np.random.Generator | None) -> tuple[int, ...]:
    """128 bits that seed every block: from `rng`, or from the operating system where it is None."""
    if rng is None:
        return tuple(int(word) for word in np.random.SeedSequence().generate_state(4))
    return tuple(int(word) for word in rng.integers(0, 2**32, size=4, dtype=np.uint64))


def _chunk(
    proposal: Proposal, entropy: tuple[int, ...], stage: Stage, blocks: range, size: int, *, detailed: bool
) -> list[BlockResult]:
    """For every block: (log f, log D) where `detailed`, else (log weights, logs of the parts' sums)."""
    out: list[BlockResult] = []
    for block in blocks:
        payoffs, densities = proposal.block(stage_seed(entropy, stage, block), size)
        if detailed:
            out.append((payoffs, densities))
            continue
        weights = proposal.log_weights(payoffs, densities)
        hit = weights > -np.inf
        sums = np.full(proposal.weights.size, -np.inf)
        if np.any(hit):
            carried = densities[hit] + (2.0 * weights[hit] - payoffs[hit])[:, None]
            sums = scipy.special.logsumexp(carried, axis=0, b=proposal.weights)
        out.append((weights, sums))
    return out


def _blocks(
    proposal: Proposal,
    entropy: tuple[int, ...],
    stage: Stage,
    samples: int,
    executor: concurrent.futures.Executor | None,
    *,
    detailed: bool,
) -> list[BlockResult]:
    size = block_size(proposal.gram.bins)
    count = max(1, math.ceil(samples / size))
    bins = proposal.gram.bins
    spend(
        count * size * bins * (3e-7 + 2e-10 * min(bins, _DENSE)),
        _NUMBER * (8.0 * size * bins + 2.0 * count * size * (proposal.weights.size if detailed else 1)),
        what=f"drawing {count * size} samples of {bins} bins",
    )
    executor = current_executor() if executor is None else executor
    if executor is None:
        return _chunk(proposal, entropy, stage, range(count), size, detailed=detailed)
    step = math.ceil(count / CHUNKS)
    futures = [
        executor.submit(
            _chunk, proposal, entropy, stage, range(first, min(first + step, count)), size, detailed=detailed
        )
        for first in range(0, count, step)
    ]
    return [result for future in futures for result in future.result()]


def pilot_sample(
    proposal: Proposal,
    entropy: tuple[int, ...],
    stage: Stage,
    samples: int,
    executor: concurrent.futures.Executor | None = None,
) -> tuple[FloatArray, FloatArray]:
    """At least `samples` draws (whole blocks) in full: log f, shape (n,), and log D, shape (n, J)."""
    results = _blocks(proposal, entropy, stage, samples, executor, detailed=True)
    return np.concatenate([one for one, _ in results]), np.concatenate([two for _, two in results])


def weight_sample(
    proposal: Proposal,
    entropy: tuple[int, ...],
    stage: Stage,
    samples: int,
    executor: concurrent.futures.Executor | None = None,
) -> Sample:
    """At least `samples` weights (whole blocks), independent of every other stage."""
    results = _blocks(proposal, entropy, stage, samples, executor, detailed=False)
    sums = np.stack([two for _, two in results])
    top = float(np.max(sums))
    shares = np.zeros(proposal.weights.size)
    if top > -math.inf:
        shares = np.exp(sums - top).sum(axis=0)
        shares /= shares.sum()
    return Sample(np.concatenate([one for one, _ in results]), shares)


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
