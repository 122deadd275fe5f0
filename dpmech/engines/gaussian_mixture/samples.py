r"""Samples of a proposal in blocks, on any executor, and estimates of the mean of their weights.

The result does not depend on the number of workers. Block j of a stage draws only from the streams with that
key (`streams`). The size of a block depends only on b, and the results are combined in the order of j.

`likelihood_interval` is asymptotic: an interval for an estimate, to be used only if the diagnostics show that
the sample covers the tail. Proved bounds on a mean are in `sequential_tests`.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Generator, Iterator

import numpy as np
import scipy

from dpmech.engines.gaussian_mixture.proposal import Proposal
from dpmech.engines.gaussian_mixture.streams import Stage, stage_seed
from dpmech.exceptions import NumericalError
from dpmech.guards import check_confidence
from dpmech.numerics import FloatArray, current_executor, spend

BlockResult = tuple[FloatArray, FloatArray]

# Blocks of few bins stay in the cache; blocks of many bins have enough draws to amortise a b x b factor.
CACHE_ENTRIES = 2**18
BLOCK_ENTRIES = 2**20
DENSE_BLOCK = 256
SMALLEST_BLOCK = 16
LARGEST_BLOCK = 4096
CHUNKS = 64
# For the cost: bytes of a number, and the number of bins up to which a draw is a product with a dense matrix.
_NUMBER, _DENSE = 8.0, 6000


@dataclasses.dataclass(frozen=True)
class Sample:
    """Weights of independent draws.

    Attributes:
        log_weights: logs, shape (n,), -inf for zero.
        shares: share of the sum of weights from each part of the mixture, shape (J,).
    """

    log_weights: FloatArray
    shares: FloatArray


def block_size(bins: int) -> int:
    """Samples in a block: at most about a million entries of y, so that a block uses at most about 100 MB."""
    wanted = max(CACHE_ENTRIES // bins, min(BLOCK_ENTRIES // bins, DENSE_BLOCK))
    return int(min(max(wanted, SMALLEST_BLOCK), LARGEST_BLOCK))


def draw_entropy(rng: np.random.Generator | None) -> tuple[int, ...]:
    """128 bits that seed every block: from `rng`, or from the operating system if it is None."""
    if rng is None:
        return tuple(int(word) for word in np.random.SeedSequence().generate_state(4))
    return tuple(int(word) for word in rng.integers(0, 2**32, size=4, dtype=np.uint64))


def _chunk(
    proposal: Proposal, entropy: tuple[int, ...], stage: Stage, blocks: range, size: int, *, detailed: bool
) -> list[BlockResult]:
    """For every block: (log f, log D) if `detailed`, else (log weights, logs of the parts' sums)."""
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
        count * size * bins * (proposal.gram.entry_seconds + 2e-10 * min(proposal.gram.product_size, _DENSE)),
        _NUMBER * (8.0 * size * bins + 2.0 * count * size * (proposal.weights.size if detailed else 1)),
        what=f"drawing {count * size} samples of {proposal.gram.words}",
    )
    step = math.ceil(count / CHUNKS)
    with _workers(executor, math.ceil(count / step)) as pool:
        if pool is None:
            return _chunk(proposal, entropy, stage, range(count), size, detailed=detailed)
        futures = [
            pool.submit(
                _chunk,
                proposal,
                entropy,
                stage,
                range(first, min(first + step, count)),
                size,
                detailed=detailed,
            )
            for first in range(0, count, step)
        ]
        return [result for future in futures for result in future.result()]


@contextlib.contextmanager
def _workers(
    executor: concurrent.futures.Executor | None, tasks: int
) -> Iterator[concurrent.futures.Executor | None]:
    """The given executor, else that of `running_on`, else threads on all cores; None if one is enough.

    Threads are enough: the work is in array operations, which run in parallel.
    """
    executor = current_executor() if executor is None else executor
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if executor is not None or min(cores, tasks) < 2:
        yield executor
        return
    with concurrent.futures.ThreadPoolExecutor(min(cores, tasks)) as threads:
        try:
            yield threads
        finally:
            threads.shutdown(wait=True, cancel_futures=True)


def pilot_sample(
    proposal: Proposal,
    entropy: tuple[int, ...],
    stage: Stage,
    samples: int,
    executor: concurrent.futures.Executor | None = None,
) -> tuple[FloatArray, FloatArray]:
    """At least `samples` draws (full blocks) with log f, shape (n,), and log D, shape (n, J)."""
    results = _blocks(proposal, entropy, stage, samples, executor, detailed=True)
    return np.concatenate([one for one, _ in results]), np.concatenate([two for _, two in results])


def weight_sample(
    proposal: Proposal,
    entropy: tuple[int, ...],
    stage: Stage,
    samples: int,
    executor: concurrent.futures.Executor | None = None,
) -> Sample:
    """At least `samples` weights (full blocks), independent of every other stage."""
    results = _blocks(proposal, entropy, stage, samples, executor, detailed=False)
    sums = np.stack([two for _, two in results])
    top = float(np.max(sums))
    shares = np.zeros(proposal.weights.size)
    if top > -math.inf:
        shares = np.exp(sums - top).sum(axis=0)
        shares /= shares.sum()
    return Sample(np.concatenate([one for one, _ in results]), shares)


def weight_stream(
    proposal: Proposal,
    entropy: tuple[int, ...],
    stage: Stage,
    expected: int,
    executor: concurrent.futures.Executor | None = None,
    levels: FloatArray | None = None,
) -> Generator[FloatArray, None, None]:
    """The log weights of blocks 0, 1, 2, ... of a stage, without end: the reader may stop after any block.

    The content of a block does not depend on where the reader stops, nor on the executor.

    Args:
        proposal: the mixture.
        entropy: seeds of the blocks.
        stage: their stage.
        expected: approximate number of samples that will be read; blocks up to that are started ahead.
        executor: where to run blocks.
        levels: several eps, shape (k,): each block has the weights of the same draws at all of them, shape
            (m, k). None for the one of the mixture, shape (m,).
    """
    work = functools.partial(_weights, proposal, levels, entropy, stage)
    return _stream(work, proposal, expected, executor)


def _weights(
    proposal: Proposal,
    levels: FloatArray | None,
    entropy: tuple[int, ...],
    stage: Stage,
    blocks: range,
    size: int,
) -> list[FloatArray]:
    drawn = _chunk(proposal, entropy, stage, blocks, size, detailed=levels is not None)
    if levels is None:
        return [weights for weights, _ in drawn]
    return [proposal.level_weights(payoffs, densities, levels) for payoffs, densities in drawn]


def _stream(
    work: Callable[[range, int], list[FloatArray]],
    proposal: Proposal,
    expected: int,
    executor: concurrent.futures.Executor | None,
) -> Generator[FloatArray, None, None]:
    """Yield the results of `work` block by block; arguments as for `weight_stream`."""
    size, bins = block_size(proposal.gram.bins), proposal.gram.bins
    cost = size * bins * (proposal.gram.entry_seconds + 2e-10 * min(proposal.gram.product_size, _DENSE))
    planned = max(1, math.ceil(expected / size))
    step = math.ceil(planned / CHUNKS)
    with _workers(executor, math.ceil(planned / step)) as pool:
        waiting: collections.deque[concurrent.futures.Future[list[FloatArray]]] = collections.deque()
        started = 0
        try:
            while True:
                # Up to half of the expected blocks may run ahead at once; after that, only a few.
                while pool is not None and (2 * started < planned or len(waiting) < CHUNKS // 8):
                    waiting.append(pool.submit(work, range(started, started + step), size))
                    started += step
                spend(
                    step * cost, _NUMBER * 8.0 * size * bins, what=f"drawing samples of {proposal.gram.words}"
                )
                if pool is None:
                    found = work(range(started, started + step), size)
                    started += step
                else:
                    found = waiting.popleft().result()
                yield from found
        finally:
            for future in waiting:
                future.cancel()


TAIL_MINIMUM = 50


@dataclasses.dataclass(frozen=True)
class WeightSummary:
    """Diagnostics of a sample of weights.

    Attributes:
        log_mean: log of the mean weight; -inf if all are 0.
        relative_error: standard error of the mean over the mean.
        effective_samples: (sum w)^2 / sum w^2.
        largest_share: the largest weight over the sum.
        tail_shape: Pareto shape fitted to the largest weights (NaN if there are too few).
        samples: the number of weights, zeros included.
    """

    log_mean: float
    relative_error: float
    effective_samples: float
    largest_share: float
    tail_shape: float
    samples: int


def summarise(log_weights: FloatArray) -> WeightSummary:
    """The summary of weights given by their logs, shape (n,), -inf for zero."""
    count = log_weights.size
    top = float(np.max(log_weights, initial=-np.inf))
    if not top > -np.inf:
        return WeightSummary(-math.inf, math.inf, 0.0, 1.0, math.nan, count)
    scaled = np.exp(log_weights - top)
    mean = float(scaled.mean())
    deviation = float(scaled.std(ddof=1)) if count > 1 else math.inf
    return WeightSummary(
        log_mean=top + math.log(mean),
        relative_error=deviation / (mean * math.sqrt(count)),
        effective_samples=float(scaled.sum() ** 2 / np.sum(scaled**2)),
        largest_share=1.0 / float(scaled.sum()),
        tail_shape=pareto_shape(scaled),
        samples=count,
    )


def pareto_shape(weights: FloatArray) -> float:
    r"""The shape k of a generalised Pareto law fitted to the largest weights; NaN below 50 of them.

    Moments of order below 1/k exist, so a variance needs k < 1/2. The fit is the quasi-Bayesian one of
    Zhang and Stephens (2009), with the tail length `min(n / 5, 3 sqrt(n))` of Vehtari et al.'s Pareto
    smoothed importance sampling (arXiv:1507.02646v9), here on non-zero weights.

    Args:
        weights: non-negative weights on any scale, shape (n,).
    """
    positive = weights[weights > 0.0]
    length = int(min(0.2 * positive.size, 3.0 * math.sqrt(positive.size)))
    if length < TAIL_MINIMUM:
        return math.nan
    ordered = np.sort(np.partition(positive, positive.size - length - 1)[-length - 1 :])
    excess = ordered[1:] - ordered[0]
    if excess[-1] <= 0.0:
        return -math.inf
    excess = excess[excess > 0.0]
    count = excess.size
    grid = 30 + int(math.sqrt(count))
    quartile = excess[max(0, int(count / 4 + 0.5) - 1)]
    slopes = 1.0 / excess[-1] + (1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3.0 * quartile)
    slopes = slopes[slopes != 0.0]
    shapes = np.mean(np.log1p(-slopes[:, None] * excess), axis=1)
    profile = count * (np.log(-slopes / shapes) - shapes - 1.0)
    weights_of = scipy.special.softmax(profile)
    slope = float(slopes @ weights_of)
    shape = float(np.mean(np.log1p(-slope * excess)))
    steadied: float = (shape * count + 5.0) / (count + 10.0)
    return steadied


def likelihood_interval(log_weights: FloatArray, confidence: float) -> tuple[float, float]:
    r"""The empirical likelihood interval for the mean weight (asymptotic; an estimate).

    The set of means m at which the likelihood ratio `max prod_i n p_i` over probabilities p with
    `sum p_i w_i = m` is at least `exp(-chi^2_1(confidence) / 2)` (Owen 1988). Unlike the normal interval it
    follows the skewness of the weights: at 99.99 % a normal interval of skewed weights misses several times
    too often above. The maximisers are `p_i = 1 / (n a (1 + t w_i))` with `a = mean 1 / (1 + t w)`, one curve
    in t, on which the log ratio is `-n log a - sum log(1 + t w_i)`: each end is one root in t.

    Args:
        log_weights: logs of independent, identically distributed weights, shape (n,), -inf for zero.
        confidence: in (0, 1).

    Returns:
        The two ends.

    Raises:
        InvalidParameterError: if `confidence` is not in (0, 1).
        NumericalError: if all weights are equal.
    """
    level = check_confidence(confidence)
    top = float(np.max(log_weights, initial=-np.inf))
    scaled = np.exp(log_weights - top) if top > -np.inf else np.zeros(log_weights.size)
    floor = float(np.min(scaled, initial=np.inf))
    width = 1.0 - floor
    if not top > -np.inf or not width > 0.0:
        raise NumericalError(f"no interval from {log_weights.size} equal weights")
    shifted = (scaled - floor) / width
    positive = shifted[shifted > 0.0]
    count, zeros = shifted.size, shifted.size - positive.size
    target = 0.5 * float(scipy.special.chdtri(1.0, 1.0 - level))

    def gain(stake: float) -> float:
        factors = 1.0 + stake * positive
        anchor = (float(np.sum(1.0 / factors)) + zeros) / count
        return count * math.log(anchor) + float(np.sum(np.log(factors))) - target

    def mean(stake: float) -> float:
        odds = 1.0 / (1.0 + stake * positive)
        return float(positive @ odds) / (float(np.sum(odds)) + zeros)

    far = 1.0
    while gain(far) < 0.0:
        far *= 4.0
    down = scipy.optimize.brentq(gain, 0.0, far, rtol=1e-9)
    near = 0.5
    while gain(near - 1.0) < 0.0:
        near *= 0.25
    up = scipy.optimize.brentq(gain, near - 1.0, 0.0, rtol=1e-9)
    ends = [math.exp(top) * (floor + width * mean(stake)) for stake in (down, up)]
    return ends[0], ends[1]
