"""Ledgers as the library writes them and as forged; curves, prices and hulls against other computations."""

import copy
import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, arb_poly

import dpmech as dm
from dpmech.checker import BadDocument, Kind, Verdict, check_text, claims, ledgers
from dpmech.checker.losses import (
    Law,
    joined,
)
from tests.support.checker_files import plain, with_checksum

STEPS = dm.calibrate_sigma(dm.Identity(8), 2.0, 1e-4, participation=dm.Poisson(0.2))
COUNT = dm.calibrate_sigma(dm.Identity(1), 0.5, 1e-5, participation=dm.SingleParticipation())
PLAN = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 1.0, 1e-5, participation=dm.MinSep(4))
SIZES = dm.calibrate_sigma(
    dm.Identity(4),
    2.0,
    1e-4,
    participation=dm.Poisson(0.3, truncated_batch_size=9, dataset_size=12),
    adjacency=dm.Adjacency.ZERO_OUT,
)
CHOSEN = dm.PrivacyBudget(8.0, 1e-3)


def rehashed(document):
    entries = [one | {"certificate": with_checksum(one["certificate"])} for one in document["releases"]]
    return json.dumps(with_checksum(document | {"releases": entries}))


def checked(document, *, seconds=10.0, total=None):
    if isinstance(document, dm.Ledger):
        document = document.to_dict()
    return check_text(rehashed(document), seconds=seconds, rng=np.random.default_rng(1), total=total)


def non_adaptive(*entries, closed=True, adjacency=dm.Adjacency.ADD_REMOVE):
    ledger = dm.Ledger(adjacency)
    for number, entry in enumerate(entries):
        if isinstance(entry, dm.DiscreteGaussian):
            ledger.add_counts(f"counts {number}", entry)
        elif isinstance(entry, tuple):
            ledger.add_tuning(
                f"best {number}", *entry, batch=f"batch {number}" if entry[0] is STEPS else None
            )
        else:
            batch = f"batch {number}" if entry.participation.random else None
            ledger.add(f"release {number}", entry, batch=batch)
    if closed:
        ledger.close()
    return ledger


def chosen(accounting, *entries, budget=CHOSEN):
    ledger = dm.Ledger(budget=budget, accounting=accounting)
    for number, entry in enumerate(entries):
        ledger.add(
            f"release {number}", entry, batch=f"batch {number}" if entry.participation.random else None
        )
    return ledger


def found_eps(verdict):
    return float(verdict.parts[-1].reason.split()[4].strip(":"))


MIXED = non_adaptive(
    STEPS, COUNT, STEPS, PLAN, dm.DiscreteGaussian(20, releases=3), dm.DiscreteGaussian(20)
).to_dict()


# ---- Non-adaptive lists.


def test_totals_agree_with_those_of_the_library():
    ledger = non_adaptive(STEPS, COUNT, STEPS, PLAN)
    verdict = checked(ledger)
    assert verdict.kind is Kind.PROVED
    assert [part.kind for part in verdict.parts] == 6 * [Kind.PROVED]
    delta = 2e-4 + 2e-5
    exact = ledger.epsilon(delta)
    assert exact.lower <= found_eps(verdict) <= 1.005 * exact.upper
    right, wrong = 1.005 * exact.upper, 0.99 * exact.lower
    assert checked(ledger, total=(right, delta)).kind is Kind.PROVED
    refuted = checked(ledger, total=(wrong, delta))
    assert refuted.kind is refuted.parts[-1].kind is Kind.REFUTED
    assert "whole" not in str(refuted)


def test_unsampled_lists_are_decided_to_the_last_digit():
    ledger = non_adaptive(COUNT, PLAN, PLAN)
    exact = ledger.epsilon(3e-5)
    assert checked(ledger, total=(exact.upper, 3e-5)).kind is Kind.PROVED
    assert checked(ledger, total=(exact.lower * (1 - 1e-9), 3e-5)).kind is Kind.REFUTED
    assert found_eps(checked(ledger)) <= exact.upper * 1.002


def test_counts_and_equal_counts_are_one_sum():
    counts = dm.DiscreteGaussian(Fraction(5, 2), sensitivity=2, releases=6)
    verdict = checked(non_adaptive(counts, counts))
    assert verdict.kind is Kind.PROVED
    exact = counts.with_releases(12).epsilon(1e-5)
    assert exact.lower <= found_eps(verdict) <= 1.003 * exact.upper
    assert "0 releases and 12 counts" in verdict.claim


def test_claims_add_up_at_no_less_than_the_sum_of_their_deltas():
    coin = dm.calibrate_sigma(dm.Identity(1), 0.1, 0.4, participation=dm.SingleParticipation())
    verdict = checked(ledger := non_adaptive(coin, coin, coin))
    assert "at delta 0.5" in verdict.parts[-1].reason
    # At delta 1.2 eps 0.3 would be enough.
    assert 0.9 < ledger.epsilon(0.5).lower <= found_eps(verdict)
    assert checked(ledger, total=(0.3, 0.5)).kind is Kind.REFUTED


def test_an_empty_list_costs_nothing():
    assert found_eps(checked(non_adaptive())) == 0.0
    assert checked(non_adaptive(), total=(0.0, 1e-9)).kind is Kind.PROVED


LAWS = [
    dm.ledgers.NegativeBinomialRuns.of_mean(4.0),
    dm.ledgers.NegativeBinomialRuns(1.0, 0.25),
    dm.ledgers.PoissonRuns(3.0),
]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_private_selections_cost_no_less_than_by_the_library(law):
    ledger = non_adaptive((STEPS, law))
    verdict = checked(ledger)
    assert verdict.kind is Kind.PROVED
    delta = 1e-4 * max(1.0, law.mean)
    assert ledger.epsilon(delta).lower <= found_eps(verdict) <= 1.3 * ledger.epsilon(delta).upper


@pytest.mark.slow
def test_a_private_selection_costs_more_than_one_run(monkeypatch):
    verdict = checked(non_adaptive((COUNT, dm.ledgers.PoissonRuns(1.0)), COUNT), seconds=20.0)
    assert verdict.kind is Kind.PROVED
    assert non_adaptive(COUNT, COUNT).epsilon(2e-5).lower < found_eps(verdict) < 1.5
    late = checked(non_adaptive((COUNT, dm.ledgers.PoissonRuns(1.0))), seconds=1e-9)
    assert late.parts[-1].reason == "the time is up"
    monkeypatch.setattr(ledgers, "lattices", lambda *arguments: iter(()))
    late = checked(non_adaptive((COUNT, dm.ledgers.PoissonRuns(1.0))))
    assert late.parts[-1].reason == "the time is up"


def test_claims_alone_are_composed_as_claims():
    ledger = non_adaptive(SIZES, SIZES, COUNT_ZERO, adjacency=dm.Adjacency.ZERO_OUT)
    verdict = checked(ledger)
    assert verdict.kind is Kind.PROVED
    assert found_eps(verdict) <= 4.0 + 0.5
    assert checked(ledger, total=(4.5, 2.2e-4)).parts[-1].reason == "the claims add up to no more"


COUNT_ZERO = dm.calibrate_sigma(
    dm.Identity(1),
    0.5,
    1e-5,
    participation=dm.SingleParticipation(),
    adjacency=dm.Adjacency.ZERO_OUT,
)


def test_a_list_that_is_open_says_so():
    assert "older than its results" in checked(non_adaptive(COUNT, closed=False)).unchecked[0]


def test_time_that_is_up_is_not_checked():
    verdict = checked(non_adaptive(STEPS, COUNT), seconds=1e-9)
    assert verdict.kind is Kind.NOT_CHECKED
    assert "no eps up to" in verdict.parts[-1].reason


def in_bins(noise, strategy=dm.Identity(12), **profile):  # noqa: B008 - never changed
    """Two releases in bins that bring some nodes of their profile, computed for less noise than there is."""
    cal = dm.calibrate_sigma(strategy, 3.0, 1e-3, participation=dm.BallsInBins(3))
    own = cal.certificate(profile=cal.profile(**profile))
    document = non_adaptive(own, COUNT, own).to_dict()
    for place in (0, 2):
        inner = document["releases"][place]["certificate"]
        inner["claim"]["sigma"] = plain(noise * inner["claim"]["sigma"]["decimal"])
        curve = inner["evidence"]["profile"]["curves"][0]
        for name in ("remove", "add"):
            curve[name] = plain({end: values["decimal"][:60:4] for end, values in curve[name].items()})
    return document


@pytest.mark.slow
def test_claims_and_profiles_of_random_allocations(monkeypatch):
    monkeypatch.setattr(ledgers, "_EVERY", 1)
    document = in_bins(1.1)
    verdict = checked(document, seconds=20.0, total=(4.4, 2.5e-3))  # by claims alone 6.5
    assert verdict.kind is Kind.PROVED
    assert verdict.failure == 0.0
    assert found_eps(checked(document, seconds=20.0)) < 4.4


def test_claims_that_were_not_proved_are_no_part_of_a_total():
    document = in_bins(1.1, dm.LambdaCGD(12, 0.5), rel_error=0.2)
    assert "was not proved" in checked(document, seconds=1e-9).parts[-1].reason


# ---- Forged lists.


def forged(change, document=MIXED):
    document = copy.deepcopy(document)
    change(document)
    return document


def stated(name, value):
    return lambda document: document["total"].update({name: plain(value)})


def test_sums_that_are_too_small_are_refuted():
    square = MIXED["total"]["gaussian"]["decimal"]
    sampled = MIXED["total"]["sampled"]["decimal"][0]
    rho = MIXED["total"]["counts"]["decimal"][0]
    for change, words in (
        (stated("gaussian", [0.0, 0.99 * square[1]]), "mu^2 is at least"),
        (stated("sampled", [[sampled[0], sampled[1], 15.0, 1.0]]), "8 steps of 'release 2'"),
        (stated("sampled", [[sampled[0], sampled[1] * 1.01, 16.0, 1.0]]), "no sampled part"),
        (stated("sampled", [[sampled[0] * 0.99, sampled[1], 16.0, 1.0]]), "no sampled part"),
        (stated("sampled", []), "no sampled part"),
        (stated("counts", [[0.99 * rho[0], rho[1]]]), "rho of counts"),
    ):
        verdict = checked(forged(change), seconds=1e-9)
        assert (verdict.kind, verdict.parts[-2].kind) == (Kind.REFUTED, Kind.REFUTED)
        assert words in verdict.parts[-2].reason
    larger = forged(stated("gaussian", [0.0, 1.01 * square[1]]))
    assert checked(larger, seconds=1e-9).parts[-2].kind is Kind.PROVED


def entry(place, **changes):
    return lambda document: document["releases"][place].update(changes)


def setting(**changes):
    return lambda document: document["ledger"].update(changes)


def counts(**changes):
    return lambda document: document["counts"][0].update(changes)


WRONG = {
    "dropped": (lambda document: document["releases"].pop(0), "release 1 is"),
    "the same batches": (entry(2, batch="batch 0"), "or twice"),
    "the same name": (entry(2, name="release 0"), "or twice"),
    "another mode": (entry(1, mode="adaptive"), "release 2 is"),
    "no batches": (entry(0, batch=None), "names no batches"),
    "a price": (entry(0, price=plain([1.0])), "a price has"),
    "blocks": (entry(0, blocks={"a": plain(1.0), "b": plain(2.0)}), "less than certified noise"),
    "a block without noise": (entry(0, blocks={"a": plain(0.0)}), "less than certified noise"),
    "unknown entry": (entry(0, more=1), "other entries"),
    "no certificate": (entry(0, certificate=1), "no certificate"),
    "batch of another type": (entry(0, batch=1), "batch of release 1"),
    "a claim too many": (stated("claims", [[1.0, 1e-5]]), "1 claims that no release made"),
    "a total without rows": (stated("gaussian", [1.0]), "gaussian of the total"),
    "counts of the total": (stated("counts", [[1.0, 5.0]]), "another number of integers"),
    "negative betas": (stated("betas", [-1.0]), "betas"),
    "adjacency": (setting(adjacency="zero_out"), "not all of its adjacency"),
    "mode": (setting(mode="other"), "a ledger 'other'"),
    "budget": (setting(budget={}), "has the budget"),
    "closed": (setting(closed=1), "closed of the ledger"),
    "version": (lambda document: document.update(schema_version=1), "schema version"),
    "version of another type": (lambda document: document.update(schema_version=True), "schema_version"),
    "unit of counts": (counts(unit="user"), "several units"),
    "unknown unit": (counts(unit="people"), "not in order, or twice"),
    "number of counts": (counts(number=2), "not in order, or twice"),
    "name of counts": (counts(name="release 0"), "not in order, or twice"),
    "sigma of counts": (counts(sigma="1/0"), "counts 1 have sigma"),
    "sigma in words": (counts(sigma="two"), "counts 1 have sigma"),
    "a fraction of three": (counts(sigma="1/2/3"), "counts 1 have sigma"),
    "no counts": (counts(releases=0), "counts 1 have sigma"),
    "entries": (lambda document: document.update(more=1), "other entries"),
    "releases": (lambda document: document.update(releases=[1]), "no certificate"),
    "many": (lambda document: document.update(counts=1001 * document["counts"]), "1000 entries"),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG)
def test_lists_that_contradict_themselves_are_refused(change, words):
    document = forged(change)
    for one in document["releases"]:
        if isinstance(one, dict) and isinstance(one.get("certificate"), dict):
            one["certificate"] = with_checksum(one["certificate"])
    with pytest.raises(BadDocument, match=words):
        check_text(json.dumps(with_checksum(document)), seconds=1e-9)


def test_a_false_certificate_makes_a_false_ledger():
    document = copy.deepcopy(MIXED)
    claim = document["releases"][1]["certificate"]["claim"]
    claim["sigma"] = plain(0.98 * claim["sigma"]["decimal"])
    verdict = checked(document, seconds=1e-9)
    assert verdict.kind is verdict.parts[1].kind is Kind.REFUTED
    claim["eps"] = plain(1e10)
    assert checked(document, seconds=1e-9).parts[1].kind is Kind.NOT_CHECKED


def test_claims_of_the_total_have_to_be_those_of_the_certificates():
    honest = non_adaptive(SIZES, adjacency=dm.Adjacency.ZERO_OUT).to_dict()
    assert checked(honest).kind is Kind.PROVED
    for rows in ([[1.9, 1e-4]], [[2.0, 0.0]], []):
        with pytest.raises(BadDocument, match="less than the claim"):
            checked(forged(stated("claims", rows), honest))
    # A smaller delta is decided at that delta.
    verdict = checked(forged(stated("claims", [[2.0, 0.9e-4]]), honest), seconds=2.0)
    assert verdict.kind is not Kind.PROVED
    assert "delta 9e-05" in verdict.parts[0].claim


def test_laws_of_runs_that_are_none_are_refused():
    honest = non_adaptive((STEPS, dm.ledgers.NegativeBinomialRuns(1.0, 0.5))).to_dict()
    for law in (
        {"law": "poisson", "mean_runs": plain(0.0)},
        {"law": "poisson", "mean_runs": plain(1e6)},
        {"law": "poisson"},
        {"law": "other", "shape": plain(1.0), "gamma": plain(0.5)},
        {"law": "truncated negative binomial", "shape": plain(-1.0), "gamma": plain(0.5)},
        {"law": "truncated negative binomial", "shape": plain(1.0), "gamma": plain(1.0)},
        {},
    ):
        with pytest.raises(BadDocument):
            checked(forged(entry(0, runs=law), honest))


@pytest.mark.parametrize(
    ("blocks", "right"),
    [
        ((3.0,), True),
        ((2.99,), False),
        ((5.0, 3.75), True),  # 1 / 25 + 1 / 14.0625 = 1 / 9
        ((5.0, 3.74), False),
        ((3.75, 5.0), True),
        ((6.0, 6.0, 6.0, 6.0), True),
        ((6.0, 6.0, 6.0, 5.99), False),
        ((), True),
    ],
)
def test_blocks_on_one_batch_have_the_noise_of_all_together(blocks, right):
    """The inverse squares of the noise of mechanisms on one batch add up."""
    document = non_adaptive(COUNT).to_dict()
    document["releases"][0]["certificate"]["claim"]["sigma"] = plain(3.0)
    document["releases"][0]["blocks"] = {f"block {k}": plain(sigma) for k, sigma in enumerate(blocks)}
    if right:
        assert len(checked(document).parts) == 3
    else:
        with pytest.raises(BadDocument, match="less than certified noise"):
            checked(document)


def test_every_row_of_a_total_goes_to_the_releases_that_it_fits_most_closely():
    rare = dm.calibrate_sigma(dm.Identity(8), 2.0, 1e-4, participation=dm.Poisson(0.1))
    louder = dm.certify_sigma(dm.Identity(8), 1.5 * STEPS.sigma, delta=1e-4, participation=dm.Poisson(0.2))
    for releases in ((rare, STEPS, louder), (louder, STEPS, rare), (rare, louder, STEPS)):
        document = non_adaptive(*releases).to_dict()
        assert len(document["total"]["sampled"]["decimal"]) == 3
        assert checked(document, seconds=1e-9).parts[-2].kind is Kind.PROVED
    longer = dm.certify_sigma(dm.Identity(16), STEPS.sigma, delta=1e-4, participation=dm.Poisson(0.2))
    assert checked(non_adaptive(louder, longer), seconds=1e-9).parts[-2].kind is Kind.PROVED


def test_draws_for_the_total_and_for_the_claims_may_err_both(monkeypatch):
    told = Verdict(Kind.PROVED, "the total", "as told", 3e-12)
    monkeypatch.setattr(ledgers, "_together", lambda words, *given: told)
    assert checked(non_adaptive(COUNT, PLAN)).failure == 3e-12
    own = ledgers.Certifier.of

    def drawn(certifier, document, delta=1.0):
        found = own(certifier, document, delta)
        verdict = dataclasses.replace(found.verdict, failure=1e-10)
        return dataclasses.replace(found, verdict=verdict)

    monkeypatch.setattr(ledgers.Certifier, "of", drawn)
    assert checked(non_adaptive(COUNT, PLAN)).failure == pytest.approx(2e-10 + 3e-12, rel=1e-12)


# ---- Filters.


def test_a_claim_may_be_charged_a_smaller_delta_at_which_it_is_true():
    """A certificate that is drawn keeps the draws' share of delta apart."""
    document = chosen(dm.ledgers.ClaimAccounting(), COUNT).to_dict()
    release = document["releases"][0]
    release["certificate"]["claim"]["sigma"] = plain(1.2 * COUNT.sigma)
    for delta, kind in ((0.9e-5, Kind.PROVED), (1e-9, Kind.REFUTED)):
        release["price"] = plain([0.5, delta])
        verdict = checked(document)
        assert verdict.parts[0].kind is kind
        assert f"delta {delta!r}" in verdict.parts[0].claim
    assert verdict.kind is Kind.REFUTED


@pytest.mark.parametrize(
    ("accounting", "entries"),
    [
        (dm.ledgers.GdpAccounting(), (COUNT, PLAN)),
        (dm.ledgers.RenyiAccounting(), (COUNT, STEPS, PLAN, STEPS)),
        (dm.ledgers.RenyiAccounting(6), (COUNT, STEPS)),
        (dm.ledgers.ClaimAccounting(), (COUNT, STEPS)),
        (dm.ledgers.ClaimAccounting(1e-4), (COUNT, COUNT)),
    ],
    ids=repr,
)
def test_budgets_are_proved_and_forged_ones_refused(accounting, entries):
    honest = chosen(accounting, *entries).to_dict()
    verdict = checked(honest)
    assert verdict.kind is Kind.PROVED
    # A price that is too low.
    low = copy.deepcopy(honest)
    price = low["releases"][0]["price"]["decimal"]
    low["releases"][0]["price"] = plain([0.99 * price[0], *price[1:]])
    verdict = checked(low)
    assert verdict.kind is verdict.parts[-1].kind is Kind.REFUTED
    assert "'release 0' costs at least" in verdict.parts[-1].reason
    # A limit that stands for more than the budget.
    high = copy.deepcopy(honest)
    limits = high["total"]["limits"]["decimal"]
    high["total"]["limits"] = plain([1.02 * limits[0], *limits[1:]])
    assert checked(high).parts[-1].kind is (
        Kind.REFUTED if isinstance(accounting, dm.ledgers.GdpAccounting) else Kind.NOT_CHECKED
    )
    # And sums that are more than the limit, or than what is said to be spent.
    for name in ("limits", "spent"):
        broken = copy.deepcopy(honest)
        spent = broken["total"]["spent"]["decimal"]
        broken["total"][name] = plain([0.99 * spent[0], *spent[1:]])
        with pytest.raises(BadDocument, match="are more than the limit"):
            checked(broken)


def test_another_budget_may_be_asked_for():
    ledger = chosen(dm.ledgers.GdpAccounting(), COUNT)
    assert checked(ledger, total=(CHOSEN.eps * 1.01, CHOSEN.delta)).kind is Kind.PROVED
    assert checked(ledger, total=(CHOSEN.eps * 0.99, CHOSEN.delta)).kind is Kind.REFUTED
    for total in ((1.0, 0.0), (-1.0, 0.1), (math.nan, 0.1), (1.0, 1.0)):
        with pytest.raises(ValueError, match="total has to be"):
            checked(ledger, total=total)


def test_a_budget_of_nothing_is_kept_by_nothing():
    empty = chosen(dm.ledgers.GdpAccounting()).to_dict()
    assert checked(empty).kind is Kind.PROVED
    empty["total"]["limits"] = plain([0.0])
    assert checked(empty).kind is Kind.PROVED


def test_prices_without_a_theorem_are_not_checked():
    honest = chosen(dm.ledgers.RenyiAccounting(), COUNT).to_dict()
    other = chosen(dm.ledgers.ClaimAccounting(), STEPS).to_dict()
    honest["releases"] = other["releases"]
    honest["releases"][0]["price"] = plain([0.01])
    honest["total"] = plain({"limits": [0.02], "spent": [0.01]})
    honest["ledger"]["accounting"] = {"type": "GdpAccounting"}
    assert "no theorem here gives" in checked(honest).parts[-1].reason
    claims = chosen(dm.ledgers.ClaimAccounting(), STEPS).to_dict()
    claims["releases"][0]["certificate"]["claim"]["sigma"] = plain(0.5)
    assert "was not proved" in checked(claims).parts[-1].reason
    free = chosen(dm.ledgers.ClaimAccounting(), STEPS).to_dict()
    free["releases"][0]["price"] = plain([2.0, 0.0])
    assert "is charged delta 0.0 only" in checked(free).parts[-1].reason


def test_filters_that_are_none_are_refused():
    honest = chosen(dm.ledgers.RenyiAccounting(), COUNT).to_dict()
    for change, words in (
        (setting(accounting={"type": "Other"}), "a budget of"),
        (setting(accounting={"type": ["x"]}), "a budget of"),
        (setting(accounting={"type": "RenyiAccounting", "order": 1}), "the order is 1"),
        (setting(accounting={"type": "RenyiAccounting"}), "other entries"),
        (setting(budget={"eps": plain(1.0)}), "other entries"),
        (setting(budget={"eps": plain(-1.0), "delta": plain(0.1)}), "a budget of"),
        (stated("limits", [1.0, 1.0]), "limits has"),
        (entry(0, price=plain([1.0, 1.0])), "a price has"),
        (entry(0, runs={"law": "poisson", "mean_runs": plain(1.0)}), "no price under a budget"),
    ):
        with pytest.raises(BadDocument, match=words):
            checked(forged(change, honest))


# ---- Oracles.


def test_what_a_total_takes_is_limited(monkeypatch):
    noisy = non_adaptive(dm.DiscreteGaussian(20), dm.DiscreteGaussian(30), STEPS)
    monkeypatch.setattr(ledgers, "_MOST_NOISE", 49)
    assert checked(noisy).parts[-1].reason == "counts of noise 49 and more together"
    monkeypatch.setattr(ledgers, "_PATIENCE", -1)
    assert (
        checked(non_adaptive(*((COUNT, dm.ledgers.PoissonRuns(mean)) for mean in (1.0, 2.0))))
        .parts[-1]
        .reason
        == "the time is up"
    )
    with pytest.raises(TimeoutError):
        joined(2 * [Law(1.0, 0, arb_poly([1.0]), arb(0), above=True)], 0.0, 0.0)


def test_equal_selections_are_computed_once(monkeypatch):
    calls = []
    best = ledgers._best_of
    monkeypatch.setattr(ledgers, "_best_of", lambda *given: calls.append(1) or best(*given))
    law = dm.ledgers.PoissonRuns(1.0)
    checked(non_adaptive((COUNT, law), (COUNT, law)))
    assert len(calls) == 1


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("change", [lambda one: one["claim"].pop("delta"), lambda one: one.pop("claim")])
def test_malformed_certificates_beyond_the_limit_of_steps_are_refused(monkeypatch, change, place):
    document = non_adaptive(STEPS, STEPS).to_dict()
    document["releases"][place]["certificate"] = forged(change, document["releases"][place]["certificate"])
    monkeypatch.setattr(claims, "_MOST_STEPS", STEPS.strategy.n - 1)
    with pytest.raises(BadDocument, match="has other entries than"):
        checked(document)
