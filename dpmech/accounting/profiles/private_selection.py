r"""The price of choosing the best of a secret, random number of runs, from the whole curve of one run.

One run gives a result and its score. K is drawn, K runs are made, the best is released. Write P and Q for
the laws of one run on neighbouring datasets, h for the curve of (P, Q), f(z) = E z^K, w(s) = f'(1 - s) /
f'(1), and T(s) for the largest Q(E) of an E with P(E) <= s. **Theorem.** For every a >= 1 the curve of the
released result is at most

    E K * E_P max_s [w(s) - a w(T(s)) Q/P]_+ .

*Proof.* Coins that are independent of the data break ties, so that the runs have one best. A run gives y, and
every other one is beaten by it, with density p(y) sum_k k P(K = k) (1 - S_P(y))^(k - 1) = p(y) f'(1 -
S_P(y)), S_P(y) the probability of what is better than y. So is it under Q, and no released result is as
likely under both. f' does not fall, and S_Q(y) <= T(S_P(y)), for "better than y" is a test. So the positive
part of the difference of densities is at most p E K [w(s) - a w(T(s)) q / p]_+ at s = S_P(y). []

The maximum, as a function of z = a q / p, is convex, falls from 1 to 0, and no faster than 1 - z: the curve
of a pair of its own, that of the rank. So the bound is E K times the curve of a run and that rank, composed;
a rank of finite range, so that far in the tail the price is a factor E K and a shift of eps.

References:
    Papernot and Steinke 2022; Koskela, Redberg and Wang 2024.
"""

import functools
import math

import numpy as np

from dpmech.accounting.profiles.composition import Composition
from dpmech.accounting.profiles.loss_atoms import LossAtoms, atoms_above
from dpmech.accounting.profiles.node_placing import LEAST_DELTA
from dpmech.accounting.profiles.parts import Curve, Nodes
from dpmech.accounting.profiles.run_counts import RunCount
from dpmech.accounting.profiles.tradeoff import Stick
from dpmech.exceptions import NumericalError
from dpmech.numerics import FloatArray, next_up, total

__all__ = ["followed", "rank_atoms", "selected_curve"]

# How far a lattice may move log delta of a run.
_TOLERANCE = 1e-3
# How many values of s a maximum is taken over, and at how many z; how many values in one block.
_RANKS, _PLACES, _BLOCK = 40_000, 400, 200_000
# Weights and means are off by far less, relative.
_ROUNDING = 1e-11
# The first step along a curve, how many there may be, and where it ends.
_FIRST, _MOST, _LARGEST_EPS = 1e-3, 2000, 690.0
_LARGEST_RATIO = 1e290
# A weight below it adds less than 1e-20 to a delta, for any mean.
_HARDLY = 1e-25


def selected_curve(base: Composition, law: RunCount, rel_error: float) -> Curve:
    """The curve of the best of a secret number of independent runs.

    Args:
        base: of one run.
        law: of their number.
        rel_error: by how much, relative, hulls may be above curves, about.

    Raises:
        NumericalError: if the curve of one run cannot be followed.
    """
    curve = _curve(base, LEAST_DELTA / law.mean, rel_error)
    atoms = {add: curve.atoms(add=add) for add in (False, True)}
    mean = law.mean * (1.0 + _ROUNDING)
    sides = []
    for add in (False, True):
        rank = rank_atoms(atoms[not add], law)
        sides.append(_nodes(atoms[add], rank, mean, rel_error))
    return Curve(*sides)


def rank_atoms(other: LossAtoms, law: RunCount) -> LossAtoms:
    """The loss of the rank: its curve is above max_s [w(s) - e^eps w(T(s))]_+ at every eps.

    Args:
        other: of one run, in the other direction; it bounds T.
        law: of the number of runs.
    """
    beaten, powers = _tests(other, law)
    # From one s to the next w is at most what it is at the first, and w(T) at least what it is at the second.
    own = np.exp(law.log_weight(beaten[:-1])) * (1.0 + _ROUNDING)
    rival = np.exp(law.log_weight(powers[1:])) * (1.0 - _ROUNDING)
    own[0] = 1.0
    # An s that hardly any run has asks for nothing of z; it counts as infinite.
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.divide(own, rival, out=np.zeros_like(own), where=own > _HARDLY)
    last = min(float(ratio.max()) * (1.0 + _ROUNDING), _LARGEST_RATIO)
    places = np.append(
        np.concatenate([[1e-3], np.geomspace(0.02, max(last, 1.0 + _ROUNDING), _PLACES)[:-1]]), last
    )
    values = np.array([float(np.max(own - one * rival)) for one in places])
    values = np.clip(values * (1.0 + _ROUNDING) + 1e-15, 0.0, 1.0)
    if last < _LARGEST_RATIO:
        values[-1] = _HARDLY
    # e^eps as read by whoever takes the exponential is off by less than this, and 1 - e^eps a lower bound.
    eps = np.log(places) + _ROUNDING
    return atoms_above(eps, np.maximum(values, -np.expm1(np.minimum(eps, 0.0)) * (1.0 + 1e-14)))


def followed(stick: Stick, least: float, hull: float) -> tuple[FloatArray, FloatArray]:
    """Nodes of one direction from eps 0 to where it is below `least`, and upper bounds there.

    Raises:
        NumericalError: if the curve does not get there.
    """
    # The line in e^eps is above a curve whose log falls evenly by that square over 8.
    eps, upper, step, wanted = [0.0], [stick(0.0)[1]], _FIRST, math.sqrt(8.0 * hull)
    while upper[-1] > least and eps[-1] < _LARGEST_EPS:
        eps.append(min(eps[-1] + step, _LARGEST_EPS))
        upper.append(stick(eps[-1])[1])
        fall = math.log(max(upper[-2], 1e-300) / max(upper[-1], 1e-300)) / (eps[-1] - eps[-2])
        step = min(wanted / max(fall, 1e-9), 2.0 * step, 0.25 + 0.05 * eps[-1])
        if len(eps) > _MOST:
            raise NumericalError("a curve could not be followed to where it ends")
    return np.array(eps), np.array(upper)


def _curve(base: Composition, least: float, hull: float) -> Curve:
    """One run, at nodes down to a delta."""
    if not base.sampled and base.gaussian[1] == 0.0 and base.releases == 1:
        return base.curves[0][0]

    def side(*, add: bool) -> Nodes:
        nodes, upper = followed(functools.partial(base.delta, add=add, tolerance=_TOLERANCE), least, hull)
        return Nodes.of(nodes, np.zeros(nodes.size), upper)

    return Curve(side(add=False), side(add=True))


def _tests(other: LossAtoms, law: RunCount) -> tuple[FloatArray, FloatArray]:
    """Increasing s from 0 to 1, and upper bounds on T there: so close that both weights change little."""
    # T(s) <= h(b) + b s for every b: the curve at its own kinks.
    ratios = np.append(0.0, np.exp(other.losses))
    heights = np.append(1.0, other.deltas(other.losses))
    # Of the tangents the best changes where two neighbours meet.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        meet = -np.diff(heights) / np.diff(ratios)
    corners = np.clip(np.nan_to_num(meet, nan=0.0), 0.0, 1.0)
    fine = np.concatenate([[0.0], np.geomspace(1e-14, 1.0, _RANKS // 2), corners])
    fine = np.unique(fine)
    powers = _powers(fine, ratios, heights)
    # As many steps in the weights as in s.
    moved = np.abs(np.diff(law.log_weight(fine))) + np.abs(np.diff(law.log_weight(powers)))
    length = np.append(0.0, np.cumsum(moved))
    if length[-1] > 0.0:
        fine = np.unique(np.append(fine, np.interp(np.linspace(0.0, length[-1], _RANKS), length, fine)))
        powers = _powers(fine, ratios, heights)
    return fine, np.maximum.accumulate(powers)


def _powers(at: FloatArray, ratios: FloatArray, heights: FloatArray) -> FloatArray:
    """The least of 1 and h_j + b_j s over all j, rounded up."""
    found = np.ones(at.size)
    rows = max(1, _BLOCK // ratios.size)
    for start in range(0, at.size, rows):
        part = at[start : start + rows]
        found[start : start + rows] = np.min(heights + np.multiply.outer(part, ratios), axis=1)
    return np.minimum(found * (1.0 + 1e-14), 1.0)


def _nodes(base: LossAtoms, rank: LossAtoms, mean: float, rel_error: float) -> Nodes:
    """E K times the curve of a run and the rank, at nodes."""

    def bound(eps: float) -> tuple[float, float]:
        if base.losses.size == 0:
            return 0.0, 1.0
        curve = base.deltas(eps - rank.losses)
        # A rank beyond the last z that was looked at counts as infinite: no run hides behind it.
        whole = total(rank.masses * curve) + rank.infinite
        return 0.0, min(1.0, next_up(mean * whole * (1.0 + 1e-12)))

    nodes, upper = followed(bound, LEAST_DELTA, 0.5 * rel_error)
    return Nodes.of(nodes, np.zeros(nodes.size), upper)
