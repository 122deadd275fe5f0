r"""Certified bounds on both directions of the whole curve delta(eps): one sample covers many eps.

The weight of a draw is a payoff over a density, and only the payoff depends on eps. So the draws of one
mixture give a bound at every eps of an interval, each by its own test and with its own proved bound on the
weights. Pilots divide the curve into intervals over which delta decreases by a few powers of e, and place the
nodes; with everything fixed, the main samples are drawn. All tests together fail with probability at most
beta.
"""

import concurrent.futures
import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np

from dpmech.engines.gaussian import gaussian_delta, gaussian_epsilon
from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, add_mixture, remove_mixture
from dpmech.engines.gaussian_mixture.pilots import STAGES, adapt
from dpmech.engines.gaussian_mixture.proposal import Proposal
from dpmech.engines.gaussian_mixture.rough_sigma import _SMALLEST_EPS
from dpmech.engines.gaussian_mixture.samples import pilot_sample, summarise, weight_stream
from dpmech.engines.gaussian_mixture.sequential_tests import LowerTest, SequentialTest, UpperTest, tested
from dpmech.engines.profiles import LEAST_DELTA, Curve, Nodes, placed_nodes
from dpmech.exceptions import DpmechError, NumericalError
from dpmech.numerics import FloatArray

PILOT_SAMPLES = 8192
# An interval ends where log delta has decreased by _FALL, or the relative variance has grown _SPREAD-fold.
_FALL, _SPREAD = 4.5, 2.5
# Number of eps at which a pilot is evaluated in an interval, and the least number that make an interval.
_READ, _FEWEST = 48, 4
# If a weight may exceed delta by this factor, a proof by sampling is too costly: the weight bound is used
# instead.
_LARGEST_RATIO = 1500.0
# With this ratio at its start, an interval is the last one; so it is after _HOPELESS too short attempts.
_LAST_RATIO = 300.0
_HOPELESS = 3
# Up to this ratio the requested gap is used.
_EASY = 60.0
# Limit on the draws of an interval, as a multiple of the expected number.
_PATIENCE = 1.5
_MIXTURES = {
    "remove": remove_mixture,
    "add": add_mixture,
}


@dataclasses.dataclass(frozen=True)
class CurveSettings:
    """Where to place nodes, and how tight to make bounds.

    Args:
        least_eps: the first node, > 0.
        largest_eps: largest eps that is sampled.
        least_delta: delta at which the curve may end.
        hull: largest relative height of the line between two nodes above the curve.
        upper_gap: target relative distance of an upper bound from delta.
        lower_gap: the same for lower bounds.
    """

    least_eps: float
    largest_eps: float
    least_delta: float
    hull: float
    upper_gap: float
    lower_gap: float


@dataclasses.dataclass(frozen=True, eq=False)
class _Stretch:
    """An interval of eps in one direction.

    Attributes:
        name: the direction.
        number: index of the interval, which selects its random numbers.
        proposal: the mixture, at its first node.
        levels: eps of the nodes.
        weights: logs of the pilot weights at the nodes, shape (n, k).
    """

    name: str
    number: int
    proposal: Proposal
    levels: FloatArray
    weights: FloatArray


def certified_curve(
    gram: BinGram,
    lower: BinGram | None,
    settings: CurveSettings,
    *,
    beta: float,
    entropy: tuple[int, ...],
    executor: concurrent.futures.Executor | None = None,
) -> tuple[dict[str, tuple[FloatArray, FloatArray, FloatArray]], int]:
    """Nodes of both directions; all bounds hold together with probability at least 1 - beta.

    Args:
        gram: the Gram matrix K.
        lower: a lower bound on K, for lower bounds on delta; None sets them to 0.
        settings: where to place nodes, and how tight to make bounds.
        beta: error probability, in (0, 1).
        entropy: seeds of every stage.
        executor: where to run blocks.

    Returns:
        By direction ("remove", "add") eps, lower and upper bounds, each of shape (m,); and the number of
        draws in the main samples.
    """
    stretches = {name: list(_stretches(name, gram, settings, entropy, executor)) for name in _MIXTURES}
    tests = (1 if lower is None else 2) * sum(
        one.levels.size for parts in stretches.values() for one in parts
    )
    share = math.nextafter(beta / max(tests, 1), 0.0)
    found: dict[str, tuple[FloatArray, FloatArray, FloatArray]] = {}
    samples = 0
    for name, parts in stretches.items():
        eps, least, most = ([np.zeros(0)] for _ in range(3))
        for one in parts:
            eps.append(one.levels)
            upper, drawn = _proved(
                one, one.proposal, share, settings.upper_gap, entropy, executor, upper=True
            )
            most.append(upper)
            samples += drawn
            if lower is None:
                least.append(np.zeros(one.levels.size))
                continue
            below = _moved(one.proposal, lower).rounded_to(below=True)
            bound, drawn = _proved(one, below, share, settings.lower_gap, entropy, executor, upper=False)
            least.append(bound)
            samples += drawn
        found[name] = np.concatenate(eps), np.concatenate(least), np.concatenate(most)
    return found, samples


def _stretches(
    name: str,
    gram: BinGram,
    settings: CurveSettings,
    entropy: tuple[int, ...],
    executor: concurrent.futures.Executor | None,
) -> Iterator[_Stretch]:
    """Intervals from the least eps, until delta is small enough or sampling can prove nothing."""
    start, width, number, hopeless = settings.least_eps, 0.25, 0, 0
    while start < settings.largest_eps:
        stop = min(start + width, settings.largest_eps)
        own = (*entropy, 0 if name == "remove" else 1, number)
        number += 1
        # The mixture is set up for the far end, where positive weights are rarer.
        fitted = adapt(
            _MIXTURES[name](gram, stop), own, STAGES[name], executor, {}, prune=True, bounded=True
        ).at_level(start)
        payoffs, densities = pilot_sample(fitted, own, STAGES[name].sizing, PILOT_SAMPLES, executor)
        levels = np.linspace(start, stop, _READ)
        weights = fitted.level_weights(payoffs, densities, levels)
        logs, spreads = _read(weights)
        bounds = np.array([fitted.at_level(float(eps)).log_weight_bound for eps in levels])
        good = np.isfinite(logs) & (bounds - logs <= math.log(_LARGEST_RATIO))
        good &= (logs >= logs[0] - _FALL) & (spreads <= _SPREAD * max(spreads[0], 1.0))
        reached = int(np.argmin(good)) if not good.all() else _READ
        if reached < _FEWEST:
            hopeless += 1
            width *= 0.3
            if hopeless >= _HOPELESS or logs[0] < math.log(settings.least_delta):
                return
            continue
        hopeless = 0
        stop = float(levels[reached - 1])
        nodes = placed_nodes(levels[:reached], logs[:reached], settings.hull)
        yield _Stretch(name, number, fitted, nodes, fitted.level_weights(payoffs, densities, nodes))
        if logs[reached - 1] < math.log(settings.least_delta) or bounds[0] - logs[0] > math.log(_LAST_RATIO):
            return
        fall = max((logs[0] - logs[reached - 1]) / (stop - start), 0.1)
        start, width = stop, min(0.9 * _FALL / fall, 3.0 * width)


def _read(weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Logs of the mean weights, and relative variances of a weight, at every eps."""
    summaries = [summarise(weights[:, level]) for level in range(weights.shape[1])]
    logs = np.array([one.log_mean for one in summaries])
    spreads = np.array([one.relative_error**2 * weights.shape[0] for one in summaries])
    return logs, spreads


def _moved(proposal: Proposal, gram: BinGram) -> Proposal:
    """The same parts and probabilities for a nearby Gram matrix."""
    made = _MIXTURES["add" if isinstance(proposal, AddProposal) else "remove"](
        gram, proposal.eps, proposal.names
    )
    return made.reweighted(proposal.weights) if made.names == proposal.names else made


def _proved(
    stretch: _Stretch,
    proposal: Proposal,
    beta: float,
    gap: float,
    entropy: tuple[int, ...],
    executor: concurrent.futures.Executor | None,
    *,
    upper: bool,
) -> tuple[FloatArray, int]:
    """Bounds at every eps, and the number of draws."""
    logs, spreads = _read(stretch.weights)
    count = stretch.weights.shape[0]
    tests: list[SequentialTest] = []
    for level, eps in enumerate(stretch.levels):
        pilot = stretch.weights[:, level]
        off = min(2.0 * math.sqrt(spreads[level] / count), 0.5)
        if upper:
            unit = proposal.at_level(float(eps)).log_weight_bound
            # The gain per draw is about the goal over the weight bound: large rare weights need a wider gap.
            wide = gap * max(1.0, math.exp(unit - logs[level]) / _EASY)
            goal = math.exp(logs[level]) * (1.0 + off) * (1.0 + min(wide, 1.0))
            tests.append(UpperTest(unit, beta, goal, pilot, rounding=proposal.weight_rounding))
        else:
            goal = math.exp(logs[level]) * (1.0 - off) / (1.0 + gap)
            tests.append(LowerTest(float(logs[level]), beta, goal, pilot, rounding=proposal.weight_rounding))
    expected = max(one.expected_samples() for one in tests)
    if not math.isfinite(expected):
        raise NumericalError(f"no test on a curve of {proposal.gram.bins} bins would decide")
    limit = int(_PATIENCE * max(expected, PILOT_SAMPLES))
    own = (*entropy, 2 + upper, 0 if stretch.name == "remove" else 1, stretch.number)
    stage = STAGES[stretch.name].main
    stream = weight_stream(proposal, own, stage, int(expected), executor, stretch.levels)
    drawn = tested(tests, stream, limit)
    return np.array([one.bound for one in tests]), drawn


# Ratio of the gap of sampled bounds to that of the hull.
_GAP = 5.0
# Largest number of ADD nodes without samples and the least ratio of their eps; number of nodes in the tail.
_MOST_SETTLED, _LEAST_FURTHER = 12, 1.1
_FAR_NODES = 60


def whole_curve(
    gram: BinGram,
    lower: BinGram | None,
    multiplier: float,
    *,
    settled_add: Callable[[float], float] | None,
    rel_error: float,
    beta: float,
    entropy: tuple[int, ...],
    executor: concurrent.futures.Executor | None,
) -> Curve:
    """Both directions at nodes; all bounds hold together with probability at least 1 - beta.

    Args:
        gram: the Gram matrix K.
        lower: a lower bound on K; None sets lower bounds to 0.
        multiplier: sigma over the sensitivity without amplification, rounded down.
        settled_add: a proved upper bound on ADD at an eps, without samples; None if there is none.
        rel_error: largest relative height of the hull of nodes above the curve.
        beta: error probability, in (0, 1).
        entropy: seeds of every stage.
        executor: where to run blocks.
    """
    settings = CurveSettings(
        least_eps=_SMALLEST_EPS,
        largest_eps=gaussian_epsilon(multiplier, LEAST_DELTA, safe=True),
        least_delta=LEAST_DELTA,
        hull=rel_error,
        upper_gap=_GAP * rel_error,
        lower_gap=2.0 * _GAP * rel_error,
    )
    found, _ = certified_curve(gram, lower, settings, beta=beta, entropy=entropy, executor=executor)
    sides: dict[str, Nodes] = {}
    for name, (eps, least, most) in found.items():
        last, bound = (float(eps[-1]), float(most[-1])) if eps.size else (_SMALLEST_EPS, 1.0)
        further: list[tuple[float, float]] = []
        if name == "add" and settled_add is not None:
            further = _settled(settled_add, last, bound, sides["remove"])
        far = last + np.geomspace(0.25, settings.largest_eps, _FAR_NODES)
        every = np.concatenate([eps, [one for one, _ in further], far])
        above = np.concatenate([most, [delta for _, delta in further], np.ones(far.size)])
        below = np.concatenate([least, np.zeros(len(further) + far.size)])
        every, places = np.unique(every, return_index=True)
        plain = np.array([gaussian_delta(multiplier, float(one))[1] for one in every])
        sides[name] = Nodes.of(every, below[places], np.minimum(above[places], plain))
    return Curve(sides["remove"], sides["add"])


def _settled(
    bound: Callable[[float], float], eps: float, delta: float, remove: Nodes
) -> list[tuple[float, float]]:
    """Eps and bounds on ADD without samples, beyond the last node that has samples.

    Each eps is where REMOVE has decreased to the previous bound, so that ADD stays below REMOVE.
    """
    nodes: list[tuple[float, float]] = []
    for _ in range(_MOST_SETTLED):
        above = [one for one, upper in zip(remove.eps, remove.upper, strict=True) if upper >= delta]
        eps = max(max(above, default=0.0), _LEAST_FURTHER * eps)
        try:
            delta = bound(eps)
        except (DpmechError, ArithmeticError):
            break  # beyond, the last node bounds ADD
        nodes.append((eps, delta))
        if delta < LEAST_DELTA:
            break
    return nodes
