"""Weights of split laws against integrals of hat functions, to many digits, far out in both tails."""

import itertools

import mpmath
import numpy as np
import pytest

from dpmech.engines.convex_order.node_laws import (
    SUM_TOLERANCE,
    _checked,
    _lognormal_call,
    _lognormal_put,
    _normal_call,
    lognormal_split,
    normal_split,
)
from dpmech.exceptions import InvalidParameterError, NumericalError

NODES = np.array([-9.0, -4.0, -1.5, -0.25, 0.4, 1.0, 3.5, 8.0, 12.0])
LOG_NODES = np.array([-14.0, -4.0, -1.1, -0.2, 0.3, 0.9, 2.0, 6.0, 11.0])


def normal_part(low, high, mean, sd, power):
    """E e^(power Y) on {low < Y < high}, Y ~ N(mean, sd^2), without cancellation."""
    low, high = ((mpmath.mpf(end) - mean - power * sd**2) / sd for end in (low, high))
    if low > 0:
        low, high = -high, -low
    factor = mpmath.exp(power * mean + power**2 * sd**2 / 2)
    return factor * (mpmath.erfc(-high / mpmath.sqrt(2)) - mpmath.erfc(-low / mpmath.sqrt(2))) / 2


def linear_part(low, high, sd):
    """E Y on {low < Y < high}, Y ~ N(0, sd^2)."""
    ends = (mpmath.exp(-((mpmath.mpf(end) / sd) ** 2) / 2) for end in (low, high))
    return sd * (next(ends) - next(ends)) / mpmath.sqrt(2 * mpmath.pi)


def hats(grid, mass, mean):
    """Weights that keep the mean between neighbours; the ends take what lies beyond them."""
    weights = [mpmath.mpf(0)] * len(grid)
    for index, (low, high) in enumerate(itertools.pairwise(grid)):
        share = (mean(index) - low * mass(index)) / (high - low)
        weights[index] += mass(index) - share
        weights[index + 1] += share
    return weights


def exact_normal(nodes, sd):
    with mpmath.workdps(60):
        sd = mpmath.mpf(sd)
        grid = [mpmath.mpf(node) for node in nodes.tolist()]
        pairs = list(itertools.pairwise(grid))
        weights = hats(
            grid,
            lambda i: normal_part(*pairs[i], mpmath.mpf(0), sd, 0),
            lambda i: linear_part(*pairs[i], sd),
        )
        weights[0] += normal_part(-mpmath.inf, grid[0], mpmath.mpf(0), sd, 0)
        weights[-1] += normal_part(grid[-1], mpmath.inf, mpmath.mpf(0), sd, 0)
        above = normal_part(grid[-1], mpmath.inf, mpmath.mpf(0), sd, 1) * mpmath.exp(-grid[-1])
        return weights, above - normal_part(grid[-1], mpmath.inf, mpmath.mpf(0), sd, 0)


def exact_lognormal(log_nodes, mean, sd):
    with mpmath.workdps(60):
        mean, sd = mpmath.mpf(mean), mpmath.mpf(sd)
        logs = [-mpmath.inf, *map(mpmath.mpf, log_nodes.tolist())]
        grid = [mpmath.exp(one) for one in logs]
        pairs = list(itertools.pairwise(logs))
        weights = hats(
            grid,
            lambda i: normal_part(*pairs[i], mean, sd, 0),
            lambda i: normal_part(*pairs[i], mean, sd, 1),
        )
        beyond = normal_part(logs[-1], mpmath.inf, mean, sd, 0)
        weights[-1] += beyond
        return weights, normal_part(logs[-1], mpmath.inf, mean, sd, 1) - grid[-1] * beyond


@pytest.mark.parametrize("sd", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("nodes", [NODES, NODES[2:7], NODES[3:5]], ids=len)
def test_a_normal_law_is_split_by_hat_functions(nodes, sd):
    split = normal_split(nodes, sd)
    weights, excess = exact_normal(nodes, sd)
    np.testing.assert_allclose(split.weights, np.array(weights, dtype=float), rtol=2e-9, atol=1e-300)
    assert split.excess == pytest.approx(float(excess), rel=2e-9)
    assert split.zero == 0.0


@pytest.mark.parametrize(("mean", "sd"), [(0.0, 1.0), (-0.125, 0.5), (-1.125, 1.5), (0.5, 0.3)])
@pytest.mark.parametrize("nodes", [LOG_NODES, LOG_NODES[1:7], LOG_NODES[5:], LOG_NODES[4:5]], ids=len)
def test_a_lognormal_law_is_split_by_hat_functions_of_its_exponential(nodes, mean, sd):
    split = lognormal_split(nodes, mean, sd)
    weights, excess = exact_lognormal(nodes, mean, sd)
    found = np.concatenate([[split.zero], split.weights])
    np.testing.assert_allclose(found, np.array(weights, dtype=float), rtol=2e-9, atol=1e-300)
    assert split.excess == pytest.approx(float(excess), rel=2e-9)


@pytest.mark.parametrize("t", [-30.0, -8.0, -0.5, 0.0, 0.2, 0.3, 0.9, 1.2, 5.0, 30.0])
@pytest.mark.parametrize("sd", [0.25, 1.1])
def test_calls_and_puts_keep_their_relative_precision(t, sd):
    with mpmath.workdps(700):
        point, spread = mpmath.mpf(t), mpmath.mpf(sd)
        above = normal_part(point, mpmath.inf, mpmath.mpf(0), mpmath.mpf(1), 0)
        call = linear_part(point, mpmath.inf, mpmath.mpf(1)) - point * above
        raised = mpmath.exp(spread**2 / 2 - spread * point)
        lognormal = raised * mpmath.ncdf(spread - point) - above
        put = 1 - above - raised * (1 - mpmath.ncdf(spread - point))
        for found, exact in (
            (_normal_call(np.array([t])), call),
            (_lognormal_call(np.array([t]), sd), lognormal),
            (_lognormal_put(np.array([t]), sd), put),
        ):
            assert float(found[0]) == pytest.approx(float(exact), rel=1e-10, abs=1e-300)


def test_weights_that_do_not_sum_to_one_are_refused():
    fine = np.array([0.25, 0.5, 0.25, -1e-17])
    assert np.all(_checked(fine) == [0.25, 0.5, 0.25, 0.0])
    for factor in (1.0 - 1.5 * SUM_TOLERANCE, 1.0 + 1.5 * SUM_TOLERANCE, np.nan):
        with pytest.raises(NumericalError, match="sum to"):
            _checked(factor * fine)


@pytest.mark.parametrize(
    "nodes",
    [[1.0], [0.0, 1.0], [-1.0, 0.0], [-1.0, 0.5, 0.5, 2.0], [-1.0, 0.5, 0.2], [1.0, 2.0], [-2.0, -1.0]],
)
def test_nodes_of_a_normal_law_increase_around_zero(nodes):
    with pytest.raises(InvalidParameterError, match="increasing around 0"):
        normal_split(np.array(nodes), 1.0)


@pytest.mark.parametrize("nodes", [[], [0.5, 0.5], [0.5, 0.1]])
def test_nodes_of_a_lognormal_law_increase(nodes):
    with pytest.raises(InvalidParameterError, match="strictly increasing"):
        lognormal_split(np.array(nodes), 0.0, 1.0)
