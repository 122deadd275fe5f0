"""How prices and limits of a ledger are found again: each route by itself, against sums and closed forms."""

import dataclasses
import math
import types

import mpmath
import pytest

import dpmech as dm
from dpmech.exceptions import NumericalError
from dpmech.verifying import ledgers
from dpmech.verifying.ledgers import _limit_check, _log_delta, _price, renyi_integral
from tests.support import oracles, saved


def exact_divergence(q, s, order):
    with mpmath.workdps(60):
        q, s = mpmath.mpf(q), mpmath.mpf(s)
        terms = (
            mpmath.binomial(order, k) * q**k * (1 - q) ** (order - k) * mpmath.exp(k * (k - 1) / (2 * s * s))
            for k in range(order + 1)
        )
        return float(mpmath.log(mpmath.fsum(terms)) / (order - 1))


@pytest.mark.parametrize(
    ("q", "s", "order"),
    [(0.01, 1.0, 10), (0.5, 0.7, 4), (0.02, 0.6, 64), (1e-4, 5.0, 30), (1e-3, 20.0, 4), (0.3, 60.0, 2),
     (1e-5, 3.0, 8), (0.05, 30.0, 15)],
)  # fmt: skip
def test_the_moment_integral_where_it_is_large_and_where_it_is_close_to_one(q, s, order):
    assert renyi_integral(q, s, order) == pytest.approx(exact_divergence(q, s, order), rel=2e-9, abs=0.0)


def test_a_moment_that_needs_finer_steps_is_refused():
    assert renyi_integral(0.1, 1.0, 9000) > 0.0
    with pytest.raises(NumericalError, match="needs finer steps"):
        renyi_integral(0.1, 0.05, 9000)
    # The step is (order + 80 s) / 20000, and may be half of s.
    assert renyi_integral(0.1, 1.0, 9919) == pytest.approx(9919 / 2 - math.log(10.0) * 9919 / 9918, rel=1e-6)
    with pytest.raises(NumericalError, match="needs finer steps"):
        renyi_integral(0.1, 1.0, 9921)


@pytest.mark.parametrize(
    ("order", "divergence", "eps"), [(2.0, 0.3, 1.0), (17.5, 0.1, 0.2), (900.0, 2.0, 8.0)]
)
def test_the_worst_likelihood_ratio(order, divergence, eps):
    exact = (order - 1.0) * (divergence - eps) - math.log(order) + (order - 1.0) * math.log1p(-1.0 / order)
    assert _log_delta(order, divergence, eps) == pytest.approx(exact, rel=1e-12, abs=1e-12)


# prices


PLAIN = dm.calibrate_sigma(dm.LambdaCGD(9, 0.7), 0.5, 1e-6, participation=dm.MinSep(3)).certificate()
SAMPLED, BINS = saved.certificate("poisson 30"), saved.certificate("bins moments 6")


def price(certificate, currency):
    book = types.SimpleNamespace(currency=currency)
    return _price(book, types.SimpleNamespace(certificate=certificate))


def test_a_price_in_every_currency():
    squared = (PLAIN.sensitivity.upper / PLAIN.sigma) ** 2
    assert price(PLAIN, dm.GdpCurrency())[1] == pytest.approx(squared, rel=1e-15)
    assert price(PLAIN, dm.RenyiCurrency(6))[1] == pytest.approx(3.0 * squared, rel=1e-15)
    assert price(PLAIN, dm.ClaimCurrency()) == ("the claim", 0.5)
    assert price(PLAIN, dm.ClaimCurrency(1e-7)) == ("the claim", 0.125)


def test_a_price_of_sampled_releases_is_a_step_s_times_their_number():
    q, steps = SAMPLED.participation.sampling_prob, SAMPLED.strategy.n
    one = exact_divergence(q, SAMPLED.sigma / SAMPLED.sensitivity.upper, 5)
    route, found = price(SAMPLED, dm.RenyiCurrency(5))
    assert route == "integral of the moment"
    assert found == pytest.approx(steps * one, rel=1e-8, abs=0.0)
    assert price(BINS, dm.RenyiCurrency(5)) is None


def test_a_price_where_sampling_is_certain_counts_the_steps_once():
    certain = dm.calibrate_sigma(dm.Identity(9), 0.5, 1e-6, participation=dm.Poisson(1.0)).certificate()
    assert certain.sensitivity.upper == pytest.approx(3.0)
    assert price(certain, dm.GdpCurrency())[1] == pytest.approx(9.0 / certain.sigma**2, rel=1e-12)
    assert price(certain, dm.RenyiCurrency(4))[1] == pytest.approx(18.0 / certain.sigma**2, rel=1e-12)


# limits


def exact_delta(currency, limits, eps):
    """What limits stand for at eps: closed forms, and of a slack the best of many orders."""

    def at_order(order, divergence):
        return (order - 1) * (divergence - eps) - math.log(order) + (order - 1) * math.log1p(-1 / order)

    if isinstance(currency, dm.GdpCurrency):
        return float(oracles.gaussian_delta(1 / mpmath.sqrt(limits[0]), eps))
    if isinstance(currency, dm.RenyiCurrency):
        return math.exp(at_order(currency.order, limits[0]))
    orders = (1.0 + 10.0 ** (step / 5000.0 - 2.0) for step in range(35_000))
    return math.exp(min(at_order(order, order * limits[0]) for order in orders))


@pytest.mark.parametrize("budget", [dm.PrivacyBudget(2.0, 1e-5), dm.PrivacyBudget(0.1, 1e-9)])
@pytest.mark.parametrize(
    "currency",
    [dm.GdpCurrency(), dm.RenyiCurrency(), dm.RenyiCurrency(400), dm.ClaimCurrency(6e-10)],
    ids=repr,
)
def test_a_limit_is_what_its_delta_says_it_is(currency, budget):
    honest = currency.filter(budget)
    slack = currency.slack if isinstance(currency, dm.ClaimCurrency) else 0.0
    allowed = slack or budget.delta
    for factor, ok in ((0.9, True), (1.0, True), (1.0 + 1e-3, False)):
        # Limits are the largest that fit: a thousandth more is found out.
        limits = (factor * honest.limits[0], *honest.limits[1:])
        changed = dataclasses.replace(honest, limits=limits)
        check = _limit_check(types.SimpleNamespace(filter=changed))
        found = float(check.detail.partition("give delta ")[2].partition(" at eps")[0])
        exact = exact_delta(honest.currency, limits, budget.eps)
        assert found == pytest.approx(exact, rel=1e-5, abs=0.0)
        assert (check.name, check.ok) == ("limit", ok)
        assert (exact <= allowed * (1.0 + 1e-6)) is ok


@pytest.mark.parametrize(
    ("eps", "delta", "ok"), [(2.0, 1e-5, True), (2.0 + 1e-9, 1e-5, False), (1.0, 2e-5, False)]
)
def test_limits_of_claims_are_the_budget(eps, delta, ok):
    honest = dm.ClaimCurrency().filter(dm.PrivacyBudget(2.0, 1e-5))
    check = _limit_check(types.SimpleNamespace(filter=dataclasses.replace(honest, limits=(eps, delta))))
    assert check.ok is ok


def test_the_best_order_may_be_close_to_one():
    honest = dm.ClaimCurrency(1e-4).filter(dm.PrivacyBudget(30.0, 1e-3))
    check = _limit_check(types.SimpleNamespace(filter=honest))
    found = float(check.detail.partition("give delta ")[2].partition(" at eps")[0])
    assert check.ok
    assert found == pytest.approx(exact_delta(honest.currency, honest.limits, 30.0), rel=1e-5, abs=0.0)


def test_a_rest_of_delta_that_was_not_set_aside_is_found():
    honest = dm.ClaimCurrency(5e-6).filter(dm.PrivacyBudget(2.0, 1e-5))
    assert _limit_check(types.SimpleNamespace(filter=honest)).ok
    greedy = dataclasses.replace(honest, limits=(honest.limits[0], 1.001 * honest.limits[1]))
    assert not _limit_check(types.SimpleNamespace(filter=greedy)).ok


def test_a_ledger_without_a_budget_has_no_limits():
    with pytest.raises(NumericalError, match="no limits"):
        _limit_check(types.SimpleNamespace(filter=None))


def test_prices_are_held_to_a_millionth():
    for factor, ok in ((1.0 + 5e-7, True), (1.0 - 5e-7, True), (1.0 + 2e-6, False), (1.0 - 2e-6, False)):
        ledger = dm.Ledger(budget=dm.PrivacyBudget(8.0, 1e-5))
        ledger.add("plain", PLAIN)
        (release,) = ledger.releases
        charged = dataclasses.replace(release, price=(factor * release.price[0],))
        book = types.SimpleNamespace(
            mode=ledger.mode,
            budget=ledger.budget,
            currency=ledger.currency,
            filter=ledger.filter,
            releases=[charged],
        )
        checks = {check.name: check.ok for check in ledgers._total_checks(book)}
        assert checks["price"] is ok


def test_the_guarantee_of_the_total_is_what_is_asked_about(monkeypatch):
    asked = []
    monkeypatch.setattr(ledgers, "rigour_problem", lambda guarantee: asked.append(guarantee) or "")
    for budget in (None, dm.PrivacyBudget(8.0, 1e-5)):
        ledger = dm.Ledger(budget=budget)
        ledger.add("plain", PLAIN)
        assert list(ledgers._rigour_checks(ledger)) == []
    assert asked == [PLAIN.guarantee, dm.Guarantee(dm.Kind.BOUND)]
