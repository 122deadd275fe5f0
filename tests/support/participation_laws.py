"""Who takes part when, enumerated from the definitions of the schemes, and the divergences that follow.

Of dpmech nothing is used here but the fields of a participation. A law is a list of (probability, counts):
counts[t] is how many examples of the unit are in the batch of step t, all with the same gradient. Where
something is fixed that the law of the scheme does not say (a group, the sets of an unsampled scheme), there
is one law for every possibility.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats

Law = list[tuple[float, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two mixtures over sums of gradients: probabilities (K,), and one row of sums for each (K, n)."""

    present: tuple[np.ndarray, np.ndarray]
    absent: tuple[np.ndarray, np.ndarray]


def laws_of(participation, n: int) -> Iterator[Law]:
    """The laws of one unit, for everything that the scheme leaves to somebody else."""
    return LAWS[type(participation).__name__](participation, n)


def pairs_of(participation, n: int, adjacency: str) -> Iterator[Pair]:
    """Neighbours in one coordinate; under replace_one the two gradients are opposite."""
    if type(participation).__name__ == "FixedSizeBatches":
        # All others have the gradient of the replacement: where the example joins, the sum is 2 larger.
        (law,) = laws_of(participation, n)
        weights, counts = _arrays(law)
        yield Pair((weights, 2.0 * counts), (np.ones(1), np.zeros((1, n))))
        return
    for law in laws_of(participation, n):
        weights, counts = _arrays(law)
        if adjacency == "replace_one":
            yield Pair((weights, counts), (weights, -counts))
        else:
            yield Pair((weights, counts), (np.ones(1), np.zeros((1, n))))


def _arrays(law: Law) -> tuple[np.ndarray, np.ndarray]:
    return np.array([p for p, _ in law]), np.array([counts for _, counts in law], dtype=float)


# ---- the laws


def _examples(participation) -> int:
    return getattr(participation, "max_examples_per_user", None) or 1


def _merged(parts: Iterator[tuple[float, tuple[int, ...]]]) -> Law:
    found: dict[tuple[int, ...], float] = {}
    for p, counts in parts:
        found[counts] = found.get(counts, 0.0) + p
    return [(p, counts) for counts, p in found.items() if p > 0.0]


def _sets(n: int, allowed: Callable[[tuple[int, ...]], bool]) -> Iterator[Law]:
    for size in range(1, n + 1):
        for steps in itertools.combinations(range(n), size):
            if allowed(steps):
                yield [(1.0, tuple(int(t in steps) for t in range(n)))]


def _every_step(participation, n):
    return _sets(n, lambda steps: True)


def _single(participation, n):
    return _sets(n, lambda steps: len(steps) == 1)


def _min_sep(participation, n):
    """Every example of a user keeps its distance, whatever the others do."""
    most = participation.max_participations or n
    sets = _sets(
        n,
        lambda steps: (
            len(steps) <= most and all(b - a >= participation.min_sep for a, b in itertools.pairwise(steps))
        ),
    )
    patterns = [counts for ((_, counts),) in sets]
    for chosen in itertools.combinations_with_replacement(patterns, _examples(participation)):
        yield [(1.0, tuple(map(sum, zip(*chosen, strict=True))))]


def _fixed_epochs(participation, n):
    length = n // participation.epochs
    return _sets(n, lambda steps: steps == tuple(range(steps[0], n, length)))


def _independent(prob: list[float], examples: int = 1) -> Law:
    """A binomial count at each step, independently."""

    def at(q):
        return [(math.comb(examples, k) * q**k * (1 - q) ** (examples - k), k) for k in range(examples + 1)]

    rows = itertools.product(*(at(q) for q in prob))
    return _merged((math.prod(p for p, _ in row), tuple(k for _, k in row)) for row in rows)


def _poisson(participation, n):
    if participation.truncated_batch_size is not None:
        yield from _truncated(participation, n)
        return
    own = participation.sampling_prob
    yield _independent(list(own) if isinstance(own, tuple) else [own] * n, _examples(participation))


def _cyclic(participation, n):
    q, cycle = participation.sampling_prob, participation.cycle
    for group in range(cycle):
        prob = [q if t % cycle == group else 0.0 for t in range(n)]
        yield _independent(prob, _examples(participation))


def _truncated(participation, n):
    """The chance to be sampled, and kept: the sum over how many others are sampled."""
    q, others = participation.sampling_prob, participation.dataset_size - 1
    kept = sum(
        math.comb(others, j)
        * q**j
        * (1 - q) ** (others - j)
        * min(1.0, participation.truncated_batch_size / (j + 1))
        for j in range(others + 1)
    )
    yield _independent([q * kept] * n)


def _fixed_size(participation, n):
    yield _independent([participation.batch_size / participation.dataset_size] * n)


def _bins(participation, n):
    if participation.fresh:
        yield from _fresh_bins(participation, n)
        return
    bins, examples = participation.bins, _examples(participation)
    choices = itertools.product(range(bins), repeat=examples)
    yield _merged(
        (bins**-examples, tuple(sum(t % bins == one for one in choice) for t in range(n)))
        for choice in choices
    )


def _fresh_bins(participation, n):
    bins = participation.bins
    choices = itertools.product(range(bins), repeat=n // bins)
    yield _merged(
        (bins ** -float(n // bins), tuple(int(t % bins == choice[t // bins]) for t in range(n)))
        for choice in choices
    )


def _random_allocation(participation, n):
    for group in range(participation.cycle):
        offered = range(group, n, participation.cycle)
        sets = list(itertools.combinations(offered, participation.participations))
        yield [(1.0 / len(sets), tuple(int(t in steps) for t in range(n))) for steps in sets]


def _b_min_sep(participation, n):
    """Coins at all steps without a cooldown, which begins in its stationary law."""
    b, p = participation.min_sep, participation.sampling_prob
    free = 1.0 / (1.0 + p * (b - 1))

    def walk(t, wait):
        if t == n:
            return [(1.0, ())]
        if wait:
            return [(q, (0, *rest)) for q, rest in walk(t + 1, wait - 1)]
        joins = [(p * q, (1, *rest)) for q, rest in walk(t + 1, b - 1)]
        return joins + [((1 - p) * q, (0, *rest)) for q, rest in walk(t + 1, 0)]

    starts = [(free, 0), *((free * p, wait) for wait in range(1, b))]
    yield _merged((start * q, counts) for start, wait in starts for q, counts in walk(0, wait))


LAWS = {
    "EveryStep": _every_step,
    "SingleParticipation": _single,
    "MinSep": _min_sep,
    "FixedEpochs": _fixed_epochs,
    "Poisson": _poisson,
    "CyclicPoisson": _cyclic,
    "FixedSizeBatches": _fixed_size,
    "BallsInBins": _bins,
    "BMinSep": _b_min_sep,
    "RandomAllocation": _random_allocation,
}

# ---- the divergence


def hockey_stick(pair: Pair, matrix: np.ndarray, sigma: float, eps: float, draws: int, error: float, seed):
    """Ends of an interval that holds delta at eps in the worse direction, but for probability `error`.

    In closed form where nothing is random, else by an empirical Bernstein bound over so many draws.

    Args:
        pair: the neighbours.
        matrix: C, dense, shape (n, n).
        sigma: of the noise.
        eps: where delta is asked for.
        draws: in each direction.
        error: of all four ends together.
        seed: of the draws.
    """
    worlds = [(weights, sums @ matrix.T / sigma) for weights, sums in (pair.present, pair.absent)]
    if all(len(weights) == 1 for weights, _ in worlds):
        norm = float(np.linalg.norm(worlds[0][1] - worlds[1][1]))
        delta = stats.norm.cdf(norm / 2 - eps / norm) - math.exp(eps) * stats.norm.cdf(-norm / 2 - eps / norm)
        return delta, delta
    rng, ends = np.random.default_rng(seed), []
    for (weights, means), (others, points) in (worlds, worlds[::-1]):
        drawn = means[rng.choice(len(weights), draws, p=weights / weights.sum())]
        drawn = drawn + rng.standard_normal(drawn.shape)
        loss = _log_density(drawn, weights, means) - _log_density(drawn, others, points)
        terms = np.maximum(-np.expm1(eps - loss), 0.0)
        logs = math.log(3.0 / (error / 4.0))
        spread = math.sqrt(2.0 * terms.var() * logs / draws) + 3.0 * logs / draws
        ends.append((terms.mean() - spread, terms.mean() + spread))
    return tuple(map(max, zip(*ends, strict=True)))


def _log_density(points, weights, means):
    """Up to a constant."""
    exponents = points @ means.T - 0.5 * (means**2).sum(axis=1) + np.log(weights)
    top = exponents.max(axis=1)
    return top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
