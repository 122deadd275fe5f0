"""Splitting a normal or lognormal law onto nodes while keeping its mean.

A random X between two nodes is moved to one of them, with the probabilities that keep E[X]. For every convex
function f the split law has E f(X') >= E f(X): it is the law of the linear interpolant of f. The weights are
second differences of the call E(X - u)_+ above the mean and of the put E(u - X)_+ below it, so that each
keeps its relative precision far out in either tail.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.exceptions import InvalidParameterError, NumericalError

Vector = npt.NDArray[np.float64]

# Weights telescope, so that their sum is 1 up to rounding: a larger difference is a bug. No guarantee depends
# on this number; `grid.split_rounding` bounds the rounding of each weight.
SUM_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """A law on nodes, and the part beyond the last one.

    Attributes:
        weights: shape (m,), probabilities of the nodes, each >= 0.
        zero: probability of the extra node 0 (lognormal laws; 0.0 for normal ones).
        excess: for a normal law, E(e^(X - top) - 1)_+; for a lognormal law, E(X - top)_+. X above the last
            node is moved down to it, and this is the amount that the move removes.
    """

    weights: Vector
    zero: float
    excess: float


def normal_split(nodes: Vector, sd: float) -> Split:
    """Split N(0, sd^2) onto increasing nodes; below the first node X is moved up to it.

    Args:
        nodes: shape (m,), m >= 2, strictly increasing, first < 0 < last.
        sd: standard deviation, > 0.

    Returns:
        The weights, which sum to 1. For every increasing convex f with
        f(x) <= f(top) + slope * (e^(x - top) - 1) beyond the last node, `weights @ f(nodes) + slope * excess`
        is an upper bound on E f(X).

    Raises:
        InvalidParameterError: if the nodes are not as described.
        NumericalError: if the weights do not sum to 1.
    """
    if nodes.size < 2 or not nodes[0] < 0.0 < nodes[-1] or np.any(np.diff(nodes) <= 0.0):
        raise InvalidParameterError("nodes", nodes.tolist(), "strictly increasing around 0, at least two")
    scaled = nodes / sd
    weights = _second_differences(scaled, _normal_call(scaled), _normal_call(-scaled), scaled >= 0.0)
    puts = _normal_call(-scaled[:2])
    weights[0] = (puts[1] - puts[0]) / (scaled[1] - scaled[0])
    top = float(scaled[-1])
    return Split(_checked(weights), 0.0, float(_lognormal_call(np.array([top]), sd)[0]))


def lognormal_split(log_nodes: Vector, mean: float, sd: float) -> Split:
    """Split e^Y, Y ~ N(mean, sd^2), linearly in e^Y onto the nodes 0 and e^log_nodes.

    Args:
        log_nodes: shape (m,), m >= 1, strictly increasing: logarithms of the nodes above 0.
        mean: mean of Y.
        sd: standard deviation of Y, > 0.

    Returns:
        The weights; they and `zero` sum to 1. For every decreasing convex f of e^Y the split law gives an
        upper bound; for an increasing one of slope at most L beyond the last node add L * excess.

    Raises:
        InvalidParameterError: if the nodes do not increase.
        NumericalError: if the weights do not sum to 1.
    """
    if log_nodes.size < 1 or np.any(np.diff(log_nodes) <= 0.0):
        raise InvalidParameterError("log_nodes", log_nodes.tolist(), "strictly increasing, not empty")
    scaled = (log_nodes - mean) / sd
    values = np.exp(log_nodes)
    call = values * _lognormal_call(scaled, sd)
    put = values * _lognormal_put(scaled, sd)
    grid = np.concatenate([[0.0], values])
    calls = np.concatenate([[np.exp(mean + 0.5 * sd * sd)], call])
    puts = np.concatenate([[0.0], put])
    above = np.concatenate([[False], scaled >= 0.5 * sd])  # above the mean of e^Y
    weights = _second_differences(grid, calls, puts, above)
    weights[0] = puts[1] / grid[1]
    checked = _checked(weights)
    return Split(checked[1:], float(checked[0]), float(call[-1]))


def _second_differences(nodes: Vector, calls: Vector, puts: Vector, above: npt.NDArray[np.bool_]) -> Vector:
    """Weights of all nodes but the first (left 0); the last one includes all mass beyond it."""
    gaps = np.diff(nodes)
    call_slopes = (calls[:-1] - calls[1:]) / gaps
    put_slopes = (puts[1:] - puts[:-1]) / gaps
    weights = np.zeros_like(nodes)
    inner_call = call_slopes[:-1] - call_slopes[1:]
    inner_put = put_slopes[1:] - put_slopes[:-1]
    weights[1:-1] = np.where(above[1:-1], inner_call, inner_put)
    weights[-1] = call_slopes[-1] if above[-1] else 1.0 - put_slopes[-1]
    return weights


def _checked(weights: Vector) -> Vector:
    total = float(np.sum(weights))
    if not abs(total - 1.0) <= SUM_TOLERANCE:
        raise NumericalError(f"split weights sum to {total!r}, not to 1")
    return np.maximum(weights, 0.0)


def _mills(t: Vector) -> Vector:
    """P(N > t) / density(t), for t >= 0."""
    return np.asarray(np.sqrt(np.pi / 2.0) * scipy.special.erfcx(t / np.sqrt(2.0)))


def _normal_density(t: Vector) -> Vector:
    return np.asarray(np.exp(-0.5 * t * t) / np.sqrt(2.0 * np.pi))


def _normal_call(t: Vector) -> Vector:
    """E(N - t)_+ for a standard normal N."""
    far = np.maximum(t, 0.0)
    near = _normal_density(t) - t * np.asarray(scipy.special.ndtr(-t))
    return np.asarray(np.where(t > 0.0, _normal_density(far) * (1.0 - far * _mills(far)), near))


def _lognormal_call(t: Vector, sd: float) -> Vector:
    """E(e^(sd (N - t)) - 1)_+ for a standard normal N."""
    near = np.exp(np.minimum(0.5 * sd * sd - sd * t, 700.0)) * np.asarray(
        scipy.special.ndtr(sd - t)
    ) - np.asarray(scipy.special.ndtr(-t))
    far = np.maximum(t, sd)
    return np.asarray(np.where(t >= sd, _normal_density(far) * (_mills(far - sd) - _mills(far)), near))


def _lognormal_put(t: Vector, sd: float) -> Vector:
    """E(1 - e^(sd (N - t)))_+ for a standard normal N."""
    near = np.asarray(scipy.special.ndtr(t)) - np.exp(np.minimum(0.5 * sd * sd - sd * t, 700.0)) * np.asarray(
        scipy.special.ndtr(t - sd)
    )
    far = np.maximum(-t, 0.0)
    return np.asarray(np.where(t <= 0.0, _normal_density(far) * (_mills(far) - _mills(far + sd)), near))
