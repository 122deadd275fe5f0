"""Sampling errors inside delta: once for every calibration, never once for every run under it."""

import dataclasses
import functools
import json
import math
from fractions import Fraction

import pytest

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.ledgers.ledger_totals import known_profile
from tests.support.non_adaptive import whole

BETA, DELTA = 2e-6, 1e-5
LEFT = DELTA - BETA


@functools.cache
def sized(eps, delta):
    return dm.calibrate_sigma(
        dm.LambdaCGD(6, 0.5), eps, delta, participation=dm.BallsInBins(3), method=dm.methods.Rdp()
    )


def probable(beta, *, inside):
    """A guarantee whose error is a sum, rounded up by a float at most."""
    return dm.Guarantee(dm.Kind.PROBABLE, math.nextafter(beta, 1.0), inside)


def claim(draw, *, beta=BETA, eps=1.0, delta=DELTA, inside=True):
    """What a certified calibration on the random numbers of that name says; nothing is drawn for it."""
    cal = sized(eps, delta)
    sure = dm.Guarantee(dm.Kind.PROBABLE, beta, inside)
    achieved = dm.Bounds(0.0, eps, sure, dm.numerics.Provenance("bins.certified", {"bins": 3, "beta": beta}))
    evidence = dataclasses.replace(
        cal.evidence,
        accountant=dm.methods.Certified(beta),
        randomness=None if draw is None else f"{draw:032x}",
        rng_supplied=not inside,
    )
    return with_checksum(dataclasses.replace(cal, achieved=achieved, evidence=evidence))


def ledger_of(claims, **options):
    ledger = dm.Ledger(**options)
    for number, one in enumerate(claims):
        ledger.add(f"run {number}", one, batch=f"batch {number}")
    return ledger


def test_one_claim_is_what_it_says():
    ledger = ledger_of([claim(1)])
    assert ledger.epsilon(DELTA).upper == 1.0
    assert ledger.delta(1.0).upper == DELTA
    assert ledger.guarantee == dm.Guarantee(dm.Kind.PROBABLE, BETA, inside_delta=True)
    with pytest.raises(dm.UnattainableBudgetError):
        ledger.epsilon(DELTA * (1 - 1e-12))
    with pytest.raises(dm.UnattainableBudgetError, match="calibrations alone may go wrong"):
        ledger.epsilon(0.9 * BETA)


@pytest.mark.parametrize("runs", [2, 5])
def test_runs_under_one_calibration_share_one_bad_event(runs):
    ledger = ledger_of([claim(1)] * runs)
    # At eps = runs the pure parts are spent: what is left is that some claim fails, or the one draw was bad.
    exact = 1 - (1 - Fraction(LEFT)) ** runs + Fraction(BETA)
    found = ledger.delta(1.001 * runs, profiles=False).upper
    assert exact * (1 - Fraction(1, 10**13)) <= Fraction(found) <= exact * (1 + Fraction(1, 10**13))
    assert found < runs * DELTA * (1 - 0.9 * (1 - 1 / runs) * BETA / DELTA)
    assert ledger.guarantee == dm.Guarantee(dm.Kind.PROBABLE, BETA, inside_delta=True)
    assert f"sampling error {BETA:g} of 1 calibrations, once each" in str(
        ledger.delta(1.001 * runs, profiles=False).by
    )


def test_draws_of_their_own_add_up():
    ledger = ledger_of([claim(1), claim(2), claim(2)])
    exact = 1 - (1 - Fraction(LEFT)) ** 3 + 2 * Fraction(BETA)
    assert ledger.delta(3.1, profiles=False).upper == pytest.approx(float(exact), rel=1e-12)
    assert ledger.guarantee == probable(2 * BETA, inside=True)


def test_one_draw_for_two_claims_is_bad_in_two_ways():
    ledger = ledger_of([claim(1), claim(1, eps=2.0)])
    assert ledger.guarantee == probable(2 * BETA, inside=True)


def test_numbers_without_a_name_are_never_the_same():
    ledger = ledger_of([claim(None, inside=False)] * 3)
    assert ledger.guarantee == probable(3 * BETA, inside=False)
    # Named ones that were supplied leave beta outside, and are one event all the same.
    assert ledger_of([claim(1, inside=False)] * 3).guarantee == dm.Guarantee(dm.Kind.PROBABLE, BETA)


def test_outside_and_inside_keep_apart():
    ledger = ledger_of([claim(1), claim(2, inside=False)])
    assert ledger.guarantee == dm.Guarantee(dm.Kind.PROBABLE, BETA)
    exact = 1 - (1 - Fraction(LEFT)) * (1 - Fraction(DELTA)) + Fraction(BETA)
    assert ledger.delta(2.1, profiles=False).upper == pytest.approx(float(exact), rel=1e-12)


def test_claims_join_releases_whose_loss_is_known():
    """Against the composition of the claim without its sampling error, by the same lattices."""
    left = probable(BETA, inside=True).mechanism_delta(DELTA)
    gaussian = dm.calibrate_sigma(dm.Identity(1), 0.5, 1e-6)
    ledger = dm.Ledger()
    ledger.add("measured", gaussian)
    ledger.add("trained", claim(1), batch="batch")
    known = whole(known_profile(gaussian.certificate()).parts.gaussian, claims=((1.0, left),))
    for total in (1.5e-5, 1e-4):
        found = ledger.epsilon(total, profiles=False).upper
        bare = known.epsilon(total - BETA, renyi=False).upper
        assert found == pytest.approx(bare, rel=1e-5)
        assert found > known.epsilon(total, renyi=False).upper
    bare = known.delta(1.2, renyi=False).upper
    assert ledger.delta(1.2, profiles=False).upper == pytest.approx(bare + BETA, rel=1e-12)


def test_a_filter_charges_a_draw_with_the_first_release_that_rests_on_it():
    budget = dm.PrivacyBudget(10.0, 3 * LEFT + 2 * BETA + 1e-12)
    ledger = ledger_of([claim(1), claim(1), claim(2)], budget=budget, accounting=dm.ledgers.ClaimAccounting())
    prices = [release.price[1] for release in ledger.releases]
    assert prices == [DELTA, pytest.approx(LEFT, rel=1e-12), DELTA]
    assert all(Fraction(price) + Fraction(BETA) <= Fraction(DELTA) for price in prices[1:2])
    assert ledger.guarantee == probable(2 * BETA, inside=True)
    assert ledger.would_exceed(claim(1))
    roomy = ledger_of(
        [claim(1)], budget=dm.PrivacyBudget(10.0, DELTA + LEFT), accounting=dm.ledgers.ClaimAccounting()
    )
    assert roomy.would_exceed(claim(2))
    assert not roomy.would_exceed(claim(1))


def test_prices_by_noise_alone_do_not_rest_on_the_draw():
    ledger = ledger_of(
        [claim(1)] * 2, budget=dm.PrivacyBudget(8.0, 1e-4), accounting=dm.ledgers.RenyiAccounting(8)
    )
    assert ledger.guarantee == dm.Guarantee(dm.Kind.BOUND)


@pytest.mark.parametrize("budget", [None, dm.PrivacyBudget(10.0, 1e-3)])
def test_a_file_keeps_it(budget, tmp_path):
    options = {} if budget is None else {"budget": budget, "accounting": dm.ledgers.ClaimAccounting()}
    ledger = ledger_of([claim(1), claim(1), claim(2)], **options)
    path = tmp_path / "ledger.json"
    ledger.save(path)
    again = dm.Ledger.load(path)
    assert again.to_json() == ledger.to_json()
    switch = {} if budget else {"profiles": False}
    assert again.delta(3.0, **switch) == ledger.delta(3.0, **switch)
    assert again.guarantee == ledger.guarantee
    said = f"with probability 1 - beta, beta = {ledger.guarantee.error!r} in all, inside delta; 3 releases"
    assert again.headline.startswith(said)
    total = json.loads(path.read_text())["total"]
    if budget is None:
        assert total["betas"]["decimal"] == [BETA, BETA]
    again.add("run 3", claim(2), batch="batch 3")
    again.save(path)
    assert again.guarantee == ledger.guarantee


def test_a_ledger_without_them_says_nothing_of_them():
    ledger = ledger_of([claim(None, inside=False)])
    assert "betas" not in ledger.to_dict()["total"]
