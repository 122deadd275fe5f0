"""Prices against exact fractions, and the curve that a whole budget stands for."""

import types
from fractions import Fraction

import mpmath
import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian import gaussian_sigma
from dpmech.engines.losses import accountants as poisson_accountant
from dpmech.ledgers import privacy_filters as accountings
from dpmech.ledgers.privacy_filters import _calibrated_epsilon, _squared_mu, _squared_ratio
from dpmech.schemes import accountant_for
from tests.support import oracles


@pytest.mark.parametrize(("eps", "delta"), [(1.0, 1e-5), (0.1, 1e-9), (8.0, 1e-6)])
def test_the_curve_of_a_gaussian_budget_passes_through_it(eps, delta):
    whole = dm.ledgers.GdpAccounting().filter(dm.PrivacyBudget(eps, delta))
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
        claim = types.SimpleNamespace(sigma=sigma)
        price, exact = _squared_ratio(accountant, claim), Fraction(steps) / Fraction(sigma) ** 2
        assert exact <= price
        assert price <= exact * (1 + Fraction(1, 10**14))


def test_nothing_remains_where_no_noise_of_float64_would_do():
    claims = dm.ledgers.ClaimAccounting().filter(dm.PrivacyBudget(1.0, 1e-5))
    spent = tuple(Fraction(limit) * (1 - Fraction(1, 10**300)) for limit in claims.limits)
    assert claims.remaining(spent).mu == 0.0
    half = tuple(Fraction(limit) / 2 for limit in claims.limits)
    assert claims.remaining(half).mu > 0.0


def test_an_order_is_at_most_ten_thousand():
    assert dm.ledgers.RenyiAccounting(10_000).order == 10_000
    with pytest.raises(dm.InvalidParameterError, match=r"order must be .*10001"):
        dm.ledgers.RenyiAccounting(10_001)


def test_curves_of_a_gaussian_budget_are_those_of_no_more_noise(monkeypatch):
    asked = []
    monkeypatch.setattr(accountings, "gaussian_epsilon", lambda sigma, *_, **__: asked.append(sigma) or 1.0)
    monkeypatch.setattr(accountings, "gaussian_delta", lambda sigma, *_: (asked.append(sigma), (0.0, 0.1))[1])
    for eps in np.linspace(0.1, 9.0, 40):
        whole = dm.ledgers.GdpAccounting().filter(dm.PrivacyBudget(2.0, 1e-5))
        whole = type(whole)(whole.accounting, whole.budget, (float(eps) ** 2 / 7.0,))
        asked.clear()
        whole.curve_epsilon(1e-6)
        whole.curve_delta(1.0)
        assert len(asked) == 2
        for sigma in asked:
            exact = 1 / Fraction(whole.limits[0])
            assert exact * (1 - Fraction(1, 10**14)) <= Fraction(sigma) ** 2 <= exact


def test_sampled_releases_are_priced_at_no_more_noise_than_they_have(monkeypatch):
    asked = []
    monkeypatch.setattr(
        poisson_accountant, "sampled_divergence", lambda q, s, order: asked.append((q, s, order)) or 0.125
    )
    filtering = dm.ledgers.RenyiAccounting(8).filter(dm.PrivacyBudget(4.0, 1e-5))
    strategy, participation = dm.BandedToeplitz(30, [1.0, 0.5, 0.3]), dm.CyclicPoisson(0.1, 3)
    release = accountant_for(dm.Mechanism(strategy, participation), None).release
    for sigma in np.linspace(0.7, 5.0, 50):
        claim = types.SimpleNamespace(mechanism=dm.Mechanism(strategy, participation), sigma=float(sigma))
        assert filtering.price("a", claim) == (1.25,)
        q, s, order = asked[-1]
        exact = Fraction(float(sigma)) / Fraction(release.sensitivity.upper)
        assert (q, order) == (0.1, 8)
        assert exact * (1 - Fraction(1, 10**14)) <= Fraction(s) <= exact


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.1, 1.0, 7.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_what_is_left_is_told_so_that_a_calibrated_release_fits(mu, delta):
    eps = _calibrated_epsilon(mu, delta)
    exact = oracles.gaussian_delta(1 / mpmath.mpf(mu), 0.0)
    if eps == 0.0:
        assert exact <= delta * (1 + 1e-3)
        return
    # Of the noise that is calibrated to it, sensitivity over sigma is at most mu, for any sensitivity.
    assert 1 / Fraction(gaussian_sigma(eps, delta)) <= Fraction(mu)
    # And a millionth more would not do.
    assert oracles.gaussian_delta(1 / mpmath.mpf(mu), eps * (1 + 1e-6)) <= delta
    assert oracles.gaussian_delta(1 / mpmath.mpf(mu), eps * (1 - 1e-6)) > delta


@pytest.mark.parametrize(
    "raised", [None, dm.NumericalError("no digits"), dm.UnattainableBudgetError(1.0, 0.1, "")]
)
def test_an_eps_is_told_once_its_noise_is_enough_and_lower_ones_are_tried_before(monkeypatch, raised):
    ulp = 2.0**-52
    # Sigmas in units of 1 / mu: too small, too near for one more rounding, and enough.
    given = iter([1.0 - 4 * ulp, 1.0, 1.0 + 6 * ulp, raised, 1.0 + 9 * ulp])
    asked = []

    def sigma(eps, delta):
        asked.append(eps)
        found = next(given)
        if isinstance(found, Exception):
            raise found
        return 2.0 * (found or 1.0)

    monkeypatch.setattr(accountings, "gaussian_sigma", sigma)
    eps = _calibrated_epsilon(0.5, 1e-5)
    exact = accountings.gaussian_epsilon(2.0, 1e-5, safe=False)
    assert eps == asked[-1]
    assert asked == pytest.approx([exact * (1.0 - 10.0**-k) for k in (12, 11, 10, 9, 8)], rel=1e-14)


def test_no_eps_is_told_where_no_noise_is_enough(monkeypatch):
    asked = []
    monkeypatch.setattr(accountings, "gaussian_sigma", lambda eps, delta: asked.append(eps) or 1.0)
    assert _calibrated_epsilon(0.5, 1e-5) == 0.0
    assert 12 <= len(asked) <= 13
    assert min(asked) > 0.0


def test_nothing_is_told_to_be_left_below_the_least_mu():
    assert _calibrated_epsilon(0.0, 1e-5) == _calibrated_epsilon(1e-15, 1e-5) == 0.0


@pytest.mark.parametrize(("eps", "delta"), [(0.05, 1e-9), (1.0, 1e-5), (6.0, 1e-3)])
def test_the_limit_of_a_budget_is_the_last_float_that_meets_it(eps, delta):
    squared = _squared_mu(eps, delta)
    with mpmath.workdps(40):
        assert oracles.gaussian_delta(1 / mpmath.sqrt(mpmath.mpf(squared)), eps) <= delta
        # What float64 adds for its own rounding is all that is lost.
        assert oracles.gaussian_delta(1 / mpmath.sqrt(mpmath.mpf(squared) * (1 + 1e-11)), eps) > delta


@pytest.mark.parametrize("slack", [0.0, 1e-6])
def test_a_claim_that_takes_all_of_eps_or_all_of_delta_leaves_nothing(slack):
    filtering = dm.ledgers.ClaimAccounting(slack).filter(dm.PrivacyBudget(2.0, 1e-5))
    eps, delta = map(Fraction, filtering.limits)
    for spent in ((eps, Fraction(0)), (Fraction(0), delta), (eps, delta)):
        assert filtering.remaining(spent).mu == 0.0
    assert filtering.remaining((eps, Fraction(0))).epsilon(1e-6) == 0.0
    assert filtering.remaining((Fraction(0), delta)).epsilon(1e-6) == 0.0


@pytest.mark.parametrize("slack", [0.0, 1e-6])
def test_what_claims_leave_is_exactly_what_is_accepted(slack):
    filtering = dm.ledgers.ClaimAccounting(slack).filter(dm.PrivacyBudget(2.0, 1e-5))
    rng = np.random.default_rng(2)
    for part in (*rng.random(40), 0.0):
        spent = (Fraction(filtering.limits[0]) * Fraction(float(part)), Fraction(0))
        left = filtering.remaining(spent)
        eps = left.epsilon(1e-6)
        price = filtering.price("a", types.SimpleNamespace(budget=dm.PrivacyBudget(eps, 1e-6)))
        assert filtering.fits(tuple(one + Fraction(other) for one, other in zip(spent, price, strict=True)))
        more = dm.PrivacyBudget(eps * (1.0 + 1e-14), 1e-6)
        price = filtering.price("a", types.SimpleNamespace(budget=more))
        assert not filtering.fits(
            tuple(one + Fraction(other) for one, other in zip(spent, price, strict=True))
        )
        assert left.epsilon(2e-5) == 0.0
        # mu is that of the Gaussian release which this is the claim of.
        exact = oracles.gaussian_delta(1 / mpmath.mpf(left.mu), eps)
        assert exact == pytest.approx(left.left[1], rel=1e-6)


@pytest.mark.parametrize(
    ("eps", "delta", "slack"), [(2.0, 1e-5, 5e-6), (0.1, 1e-9, 6e-10), (30.0, 1e-3, 1e-4)]
)
def test_the_limit_of_many_claims_is_rounded_down_from_that_of_its_best_order(eps, delta, slack):
    limit = dm.ledgers.ClaimAccounting(slack).filter(dm.PrivacyBudget(eps, delta)).limits[0]
    # 32 orders for every doubling of a - 1, from 1/16 to 2^14.
    orders = [1.0 + 2.0**-4.0 * 2.0 ** (step / 32.0) for step in range(577)]
    best = max(Fraction(accountings.budget_at(order, eps, slack)) / Fraction(order) for order in orders)
    assert best * (1 - Fraction(1, 10**13)) <= Fraction(limit) <= best * (1 + Fraction(1, 10**13))
    exact = (Fraction(accountings.budget_at(order, eps, slack)) / Fraction(order) for order in (
        1.0 + 2.0 ** (step / 32.0) for step in range(-128, 449)
    ))  # fmt: skip
    assert Fraction(limit) <= max(exact)
