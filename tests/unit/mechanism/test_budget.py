import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy

import dpmech as dm


def test_budget_keeps_floats():
    budget = dm.PrivacyBudget(np.float32(0.5), np.float64(1e-5))
    assert budget == dm.PrivacyBudget(0.5, 1e-5)
    assert type(budget.eps) is float
    assert dm.PrivacyBudget(8, 1e-5).eps == 8.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.eps = 1.0


@pytest.mark.parametrize("eps", [0, 0.0, -1.0, math.nan, math.inf, "8", None, True])
def test_bad_eps(eps):
    with pytest.raises(dm.InvalidParameterError, match=r"eps must be a finite number in \(0, inf\), got"):
        dm.PrivacyBudget(eps, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 1.5, math.nan, math.inf, "1e-5", None, True])
def test_bad_delta(delta):
    with pytest.raises(dm.InvalidParameterError, match=r"delta must be a finite number in \(0, 1\), got"):
        dm.PrivacyBudget(8.0, delta)


def test_adjacency_members():
    assert [member.value for member in dm.Adjacency] == ["add_remove", "zero_out", "replace_one"]
    assert dm.Adjacency.check(dm.Adjacency.ZERO_OUT) is dm.Adjacency.ZERO_OUT


@pytest.mark.parametrize("value", ["add_remove", None, 1])
def test_adjacency_is_no_string(value):
    with pytest.raises(dm.InvalidParameterError, match=r"Adjacency\.ADD_REMOVE.*Adjacency\.REPLACE_ONE"):
        dm.sensitivity(dm.Identity(3), adjacency=value)


@pytest.mark.parametrize("eps", [1e-9, 0.1, 1.0, 8.0, 40.0, 699.0, 701.0, 1e6])
def test_attack_rate_is_the_smaller_of_two_lines_rounded_up(eps):
    rates = [0.0, 1e-310, 1e-12, 0.01, 0.5, 0.9, 1.0 - 1e-14, 1.0]
    for delta, fpr in itertools.product([1e-300, 1e-12, 1e-5, 0.3, 1.0 - 1e-12], rates):
        with mpmath.workdps(60):
            grown = mpmath.exp(mpmath.mpf(eps))
            lines = grown * fpr + delta, 1 - (1 - mpmath.mpf(delta) - mpmath.mpf(fpr)) / grown
            exact = min(*lines, 1)
            found = dm.PrivacyBudget(eps, delta).attack_rate(fpr)
            assert exact <= found <= 1.0, (delta, fpr)
            if eps <= 700.0:
                assert found <= exact * (1 + mpmath.mpf(2) ** -46), (delta, fpr)


@pytest.mark.parametrize("sigma", [0.5, 2.0, 10.0])
def test_no_test_of_two_gaussians_exceeds_the_attack_rate(sigma):
    # The best test of N(1, sigma^2) against N(0, sigma^2), and the delta that they have at each eps.
    rates = np.geomspace(1e-6, 0.999, 40)
    best = scipy.stats.norm.cdf(scipy.stats.norm.ppf(rates) + 1.0 / sigma)
    closest = np.full(rates.shape, np.inf)
    for eps in np.geomspace(0.01, 5.0 / sigma + 1.0 / sigma**2, 100):
        upper = scipy.stats.norm.cdf(0.5 / sigma - eps * sigma)
        delta = upper - math.exp(eps) * scipy.stats.norm.cdf(-0.5 / sigma - eps * sigma)
        left = np.array([dm.PrivacyBudget(eps, delta).attack_rate(rate) for rate in rates])
        assert np.all(left >= best * (1.0 - 1e-9))
        closest = np.minimum(closest, left / best)
    assert np.median(closest) < 1.01


@pytest.mark.parametrize("fpr", [-1e-9, 1.1, math.nan, "0.01", None])
def test_attack_rate_refuses_other_rates(fpr):
    with pytest.raises(dm.InvalidParameterError, match=r"fpr must be"):
        dm.PrivacyBudget(1.0, 1e-5).attack_rate(fpr)
