"""Divergences at one order: rounded up by no less than their error model asks for, and by little more."""

import itertools

import mpmath
import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.losses.accountants import sampled_divergence
from dpmech.engines.renyi import best_order, budget_at, delta_at, epsilon_at

ULP = mpmath.mpf(2) ** -52
CASES = list(itertools.product((2, 3, 17, 400), (1e-3, 0.4, 6.0), (1e-12, 1e-5, 0.2)))


def magnitudes(order, delta):
    """Log of the factor of an order, the size of what is added up with it, and what it takes of eps."""
    a = mpmath.mpf(order)
    tail = -mpmath.log(a) + (a - 1) * mpmath.log(1 - 1 / a)
    log_delta = mpmath.log(mpmath.mpf(delta))
    return tail, (abs(tail) + abs(log_delta) + 1) / (a - 1), (tail - log_delta) / (a - 1)


@pytest.mark.parametrize(
    ("q", "s", "order"),
    [(0.01, 1.0, 10), (0.5, 0.7, 4), (1e-4, 300.0, 2), (0.999, 2.0, 2), (1e-9, 40.0, 500), (0.9, 30.0, 40),
     (0.3, 0.02, 2), (0.6, 50.0, 2), (0.02, 1.5, 64), (0.1, 1e-5, 2)],
)  # fmt: skip
def test_a_sampled_divergence_is_rounded_up_by_at_most_two_ulps(q, s, order):
    with mpmath.workdps(80):
        p, variance = mpmath.mpf(q), mpmath.mpf(s) ** 2
        moment = mpmath.mpf(1)
        for k in range(2, order + 1):
            mass = mpmath.binomial(order, k) * p**k * (1 - p) ** (order - k)
            moment += mass * mpmath.expm1(k * (k - 1) / (2 * variance))
        exact = mpmath.log(moment) / (order - 1)
        assert 0 < sampled_divergence(q, s, order) / exact - 1 <= 2 * ULP


def test_a_divergence_beyond_float64_is_refused():
    with pytest.raises(dm.NumericalError, match="float64"):
        sampled_divergence(0.1, 1e-160, 2)


@pytest.mark.parametrize(("order", "eps", "delta"), [*CASES, (2, 1e-3, 0.9)])
def test_rooms_are_rounded_down_and_eps_up_by_what_sums_may_lose(order, eps, delta):
    with mpmath.workdps(50):
        _, size, needed = magnitudes(order, delta)
        room = mpmath.mpf(eps) - needed
        lost = room - mpmath.mpf(budget_at(order, eps, delta))
        assert 4 * ULP * size + ULP * eps <= lost <= 24 * ULP * size + 6 * ULP * eps
        # The same sum the other way: a divergence taken as given, and its eps.
        exact = mpmath.mpf(eps) + needed
        found = mpmath.mpf(epsilon_at(order, eps, delta))
        if exact < 0:
            assert found == 0
        else:
            assert 4 * ULP * size + ULP * eps <= found - exact <= 24 * ULP * size + 6 * ULP * eps


@pytest.mark.parametrize(("order", "eps", "divergence"), [*CASES, (2, 200.0, 199.0)])
def test_deltas_of_one_order_are_rounded_up_by_what_exponents_may_lose(order, eps, divergence):
    with mpmath.workdps(50):
        a = mpmath.mpf(order)
        tail = magnitudes(order, 0.5)[0]
        exact = mpmath.exp((a - 1) * (mpmath.mpf(divergence) - mpmath.mpf(eps)) + tail)
        found = mpmath.mpf(delta_at(order, divergence, eps))
        size = (a - 1) * (mpmath.mpf(divergence) + mpmath.mpf(eps)) + abs(tail) + 1
        if exact > 1:
            assert found == 1
        elif exact < 1e-300:
            assert exact < found < 1e-300
        else:
            assert 3 * ULP * size <= found / exact - 1 <= 24 * ULP * size + 6 * ULP


@pytest.mark.parametrize("eps", [0.01, 0.1, 0.7, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
def test_the_best_order_has_nearly_the_room_of_the_best_of_all_integers(eps, delta):
    orders = np.arange(2.0, 20_000.0)
    needed = -np.log(orders) / (orders - 1.0) + np.log1p(-1.0 / orders) - np.log(delta) / (orders - 1.0)
    most = np.max((eps - needed) / orders)
    found = best_order(eps, delta)
    assert 0.998 * most <= budget_at(found, eps, delta) / found <= most * (1.0 + 1e-12)


def test_no_order_is_best_where_none_has_room():
    assert best_order(1e-4, 1e-12) is None
