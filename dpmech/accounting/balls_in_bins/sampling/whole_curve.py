"""The whole curve of Balls-in-Bins: certified nodes, ADD beyond what draws can prove, and the tail."""

import concurrent.futures
from collections.abc import Callable

import numpy as np

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.sampling.certified_curve import CurveSettings, certified_curve
from dpmech.accounting.balls_in_bins.sampling.reach import _SMALLEST_EPS
from dpmech.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpmech.accounting.profiles import LEAST_DELTA, Curve, Nodes
from dpmech.exceptions import DpmechError

__all__ = ["whole_curve"]

# How much wider than the hull bounds by draws may be.
_GAP = 5.0
# How many nodes of ADD have no draws, and how far they are apart at least; nodes in the tail.
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
    """Both directions at nodes, all bounds true with probability at least 1 - beta.

    Args:
        gram: the Gram matrix K.
        lower: one that is nowhere above it; with None lower bounds are 0.
        multiplier: sigma over the sensitivity without amplification, rounded down.
        settled_add: a proved upper bound on ADD at an eps, without draws; None where there is none.
        rel_error: by how much, relative, the hull of nodes may be above the curve.
        beta: error probability, in (0, 1).
        entropy: seeds of every stage.
        executor: where blocks run.
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
    """Eps and bounds on ADD without draws, beyond the last node that has draws.

    Each lies where REMOVE has fallen to the bound of the one before, so that ADD stays below it.
    """
    nodes: list[tuple[float, float]] = []
    for _ in range(_MOST_SETTLED):
        above = [one for one, upper in zip(remove.eps, remove.upper, strict=True) if upper >= delta]
        eps = max(max(above, default=0.0), _LEAST_FURTHER * eps)
        try:
            delta = bound(eps)
        except (DpmechError, ArithmeticError):
            break  # what no bound is known for is bounded by the node before
        nodes.append((eps, delta))
        if delta < LEAST_DELTA:
            break
    return nodes
