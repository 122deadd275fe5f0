"""Prices against exact fractions, and the curve that a whole budget stands for."""

import types
from fractions import Fraction

import pytest

import dpmech as dm
from dpmech.accounting.dispatch import accountant_for
from dpmech.composition.currencies import _squared_ratio


@pytest.mark.parametrize(("eps", "delta"), [(1.0, 1e-5), (0.1, 1e-9), (8.0, 1e-6)])
def test_the_curve_of_a_gaussian_budget_passes_through_it(eps, delta):
    whole = dm.GdpCurrency().filter(dm.PrivacyBudget(eps, delta))
    assert eps * (1.0 - 1e-9) <= whole.curve_epsilon(delta) <= eps * (1.0 + 1e-9)
    assert delta * (1.0 - 1e-9) <= whole.curve_delta(eps) <= delta * (1.0 + 1e-9)
    # Elsewhere it is the exact curve of that mu.
    sigma = dm.calibrate_sigma(dm.Identity(1), eps, delta).sigma
    other = dm.epsilon(dm.Identity(1), sigma, 0.1 * delta).upper
    assert whole.curve_epsilon(0.1 * delta) == pytest.approx(other, rel=1e-6)
    assert whole.curve_delta(other) == pytest.approx(0.1 * delta, rel=1e-6)


@pytest.mark.parametrize("sigma", [0.7, 1.7, 3.3])
def test_a_price_of_certain_sampling_is_not_below_its_fraction(sigma):
    for steps in range(2, 120):
        strategy, certain = dm.Identity(steps), dm.Poisson(1.0)
        accountant = accountant_for(dm.Mechanism(strategy, certain), None)
        claim = types.SimpleNamespace(sigma=sigma, participation=certain)
        price, exact = _squared_ratio(accountant, claim), Fraction(steps) / Fraction(sigma) ** 2
        assert exact <= price
        assert price <= exact * (1 + Fraction(1, 10**14))


def test_nothing_remains_where_no_noise_of_float64_would_do():
    claims = dm.ClaimCurrency().filter(dm.PrivacyBudget(1.0, 1e-5))
    spent = tuple(Fraction(limit) * (1 - Fraction(1, 10**300)) for limit in claims.limits)
    assert claims.remaining(spent).mu == 0.0
    half = tuple(Fraction(limit) / 2 for limit in claims.limits)
    assert claims.remaining(half).mu > 0.0
