"""Mechanisms without a certificate in ledgers: their curves, what all of them cost together, their prices."""

import json
import math

import numpy as np
import pytest
import scipy
from flint import arb

import dpmech as dm
from dpmech.checker import BadDocument, Kind, check_text, ledgers
from dpmech.checker.documents import decode
from tests.support.checker_files import plain, with_checksum

own = dm.ledgers
REPLACE = dm.Adjacency.REPLACE_ONE
LOSSES = (-2.0, -0.7, -0.3, -0.01, 0.0, 0.05, 0.2, 0.299, 0.5, 1.0, 3.0)


def book(*entries, adjacency=dm.Adjacency.ADD_REMOVE, **settings):
    ledger = dm.Ledger(adjacency=adjacency, **settings)
    for place, (mechanism, count) in enumerate(entries):
        ledger.add_mechanism(f"entry {place}", mechanism, count=count)
    return ledger


def edited(ledger, change):
    document = json.loads(ledger.to_json())
    change(document)
    return json.dumps(with_checksum(document))


def curve_of(mechanism):
    """The checker's curve of one release, from the file."""
    adjacency = mechanism.adjacency
    document = decode(json.loads(book((mechanism, 1), adjacency=adjacency).to_json()))
    found = list(ledgers._others(document["mechanisms"], set(), set(), adjacency.value))
    (part,) = ledgers._other_parts(found, 1e-6)
    assert part.times == 1
    return lambda loss: float(part.curve(arb(loss).exp()).upper())


def of_masses(p, q, loss):
    return float(np.maximum(p - math.exp(loss) * q, 0.0).sum())


@pytest.mark.parametrize(("scale", "shift"), [(10.0, 3), (4.0, 1), (25.0, 8)])
def test_discrete_laplace_noise_against_sums(scale, shift):
    y = np.arange(-2000, 2001 + shift)
    q = np.exp(-np.abs(y) / scale) * math.tanh(0.5 / scale)
    p = np.exp(-np.abs(y - shift) / scale) * math.tanh(0.5 / scale)
    curve = curve_of(own.DiscreteLaplace(scale, shift))
    for loss in LOSSES:
        assert curve(loss) == pytest.approx(of_masses(p, q, loss), abs=1e-13)
        assert curve(loss) == pytest.approx(of_masses(q, p, loss), abs=1e-13)


def test_laplace_noise_against_an_integral():
    curve = curve_of(own.Laplace(10.0, 3.0))
    for loss in LOSSES:
        exact = scipy.integrate.quad(
            lambda x, loss=loss: max(0.0, math.exp(-abs(x - 0.3)) - math.exp(loss - abs(x))) / 2.0,
            -40.0,
            40.0,
            points=[0.0, 0.3, 0.15 + loss / 2.0],
            limit=400,
        )[0]
        # Chords of a thousand dots lie above.
        assert exact - 1e-9 <= curve(loss) <= exact + 1e-6


def test_large_shifts_of_discrete_laplace_noise_take_some_of_the_points():
    curve, continuous = curve_of(own.DiscreteLaplace(20_000.0, 4999)), curve_of(own.Laplace(20_000.0, 4999.0))
    for loss in (-0.2, 0.0, 0.1, 0.2, 0.24):
        assert continuous(loss) - 1e-6 <= curve(loss) <= continuous(loss) + 1e-4


@pytest.mark.parametrize(("truth", "many"), [(0.75, 2), (0.3, 7)])
def test_randomised_response_against_its_law(truth, many):
    rest = (1.0 - truth) / (many - 1)
    p, q = np.full((2, many), rest)
    p[0] = q[1] = truth
    curve = curve_of(own.RandomizedResponse(truth, many))
    for loss in LOSSES:
        assert curve(loss) == pytest.approx(of_masses(p, q, loss), abs=1e-13)


def test_claims_are_randomised_response_that_may_fail():
    pure, failing = curve_of(own.PureDP(0.3)), curve_of(own.ApproximateDP(0.3, 1e-3))
    high = 1.0 / (1.0 + math.exp(-0.3))
    p, q = np.array([high, 1.0 - high]), np.array([1.0 - high, high])
    for loss in LOSSES:
        exact = of_masses(p, q, loss)
        assert pure(loss) == pytest.approx(exact, abs=1e-13)
        assert failing(loss) == pytest.approx(1e-3 + (1.0 - 1e-3) * exact, abs=1e-12)


@pytest.mark.parametrize("rho", [1e-4, 0.02, 3.0])
def test_a_zcdp_claim_is_above_what_satisfies_it(rho):
    """A Gaussian mechanism does, as does randomised response of eps^2 = 2 rho."""
    curve, mu, eps = curve_of(own.ZCDP(rho)), math.sqrt(2.0 * rho), math.sqrt(2.0 * rho)
    high = 1.0 / (1.0 + math.exp(-eps))
    for loss in (-2.0 * mu, -0.5 * mu, 0.0, 0.5 * mu, mu, 3.0 * mu, rho + 4.0 * mu):
        gaussian = scipy.special.ndtr(mu / 2 - loss / mu) - math.exp(loss) * scipy.special.ndtr(
            -mu / 2 - loss / mu
        )
        response = of_masses(np.array([high, 1 - high]), np.array([1 - high, high]), loss)
        assert max(gaussian, response) - 1e-12 <= curve(loss) <= 1.0
    # The bound by moments, at the best order, and never much above it.
    loss = rho + 4.0 * mu
    orders = 1.0 + np.geomspace(1e-3, 1e6, 20_001)
    logs = (orders - 1) * (orders * rho - loss) - np.log(orders - 1) - orders * np.log(orders / (orders - 1))
    best = math.exp(logs.min())
    assert best * (1 - 1e-9) <= curve(loss) <= 1.2 * best


MIXED = (
    (own.Laplace(20.0, 1.0), 10),
    (own.Gaussian(6.0, 2.0), 2),
    (own.Gaussian(9.0, 1.0), 1),
    (own.ZCDP(0.003), 4),
    (own.ZCDP(0.002), 1),
    (own.ApproximateDP(0.05, 1e-9), 3),
)


def test_all_mechanisms_together():
    ledger = book(*MIXED)
    eps = ledger.epsilon(1e-5).upper
    # The library's own bound is this close, and nothing is shown of one that is too small.
    assert check_text(ledger.to_json(), total=(1.01 * eps, 1e-5)).kind is Kind.PROVED
    assert check_text(ledger.to_json(), seconds=2.0, total=(0.95 * eps, 1e-5)).kind is Kind.NOT_CHECKED
    found = check_text(ledger.to_json())
    assert found.kind is Kind.PROVED
    # At the deltas of the claims, and a tenth more.
    assert "at delta 3.3" in found.parts[-1].reason
    assert "0 releases and 0 counts and 6 mechanisms" in found.claim
    alone = check_text(book((own.PureDP(0.1), 1)).to_json())
    assert "at delta 1e-05" in alone.parts[-1].reason
    replaced = book((own.RandomizedResponse(0.6), 5), adjacency=REPLACE)
    assert check_text(replaced.to_json()).kind is Kind.PROVED


def test_mechanisms_and_releases_together():
    from tests.support import saved

    ledger = book((own.Laplace(20.0, 1.0), 10))
    ledger.add("training", saved.calibration("min-sep"))
    eps = ledger.epsilon(1e-4).upper
    assert check_text(ledger.to_json(), total=(1.01 * eps, 1e-4)).kind is Kind.PROVED
    # From below, the training alone refutes.
    assert check_text(ledger.to_json(), total=(0.1, 1e-6)).kind is Kind.REFUTED
    for change in (
        lambda one: one["ledger"].update(adjacency="zero_out"),
        lambda one: one["mechanisms"].append(dict(one["mechanisms"][0], number=2)),
        lambda one: one["mechanisms"][0].update(name="training"),
        lambda one: one["mechanisms"][0]["mechanism"].update(unit="user"),
    ):
        with pytest.raises(BadDocument):
            check_text(edited(ledger, change))


def changed(**law):
    return lambda one: one["mechanisms"][0]["mechanism"].update(law)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one["mechanisms"][0].update(number=2),
        lambda one: one["mechanisms"][0].update(count=0),
        lambda one: one["mechanisms"][0].update(count=10**9 + 1),
        lambda one: one["mechanisms"][0]["mechanism"].pop("kind"),
        lambda one: one["mechanisms"][0]["mechanism"].pop("scale"),
        lambda one: one.update(schema_version=2),
        lambda one: one.update(mechanisms=one["mechanisms"] * 1001),
        changed(kind="unknown"),
        changed(kind=None),
        changed(unit="group"),
        changed(scale=plain(0.0)),
        changed(scale=plain(2e9)),
        changed(sensitivity=plain(-1.0)),
        changed(sensitivity=1),
    ],
)
def test_other_mechanisms_are_refused(change):
    with pytest.raises(BadDocument):
        check_text(edited(book((own.Laplace(20.0, 1.0), 1)), change))


@pytest.mark.parametrize(
    ("mechanism", "law"),
    [
        (own.RandomizedResponse(0.75, 2), {"truth_prob": plain(0.5)}),
        (own.RandomizedResponse(0.75, 2), {"truth_prob": plain(1.0)}),
        (own.RandomizedResponse(0.75, 2), {"categories": 1}),
        (own.ApproximateDP(0.1, 1e-6), {"delta": plain(1.0)}),
        (own.ApproximateDP(0.1, 1e-6), {"delta": plain(0.0)}),
        (own.DiscreteLaplace(10.0, 2), {"sensitivity": 100_001}),
    ],
)
def test_parameters_out_of_range_are_refused(mechanism, law):
    ledger = book((mechanism, 1), adjacency=mechanism.adjacency)
    assert check_text(ledger.to_json()).kind is Kind.PROVED
    with pytest.raises(BadDocument, match="mechanism 1 is"):
        check_text(edited(ledger, changed(**law)))


def test_randomised_response_replaces_an_answer():
    ledger = book((own.RandomizedResponse(0.75, 2), 1), adjacency=REPLACE)
    with pytest.raises(BadDocument, match="mechanism 1 is"):
        check_text(edited(ledger, lambda one: one["ledger"].update(adjacency="add_remove")))


BUDGET = dm.PrivacyBudget(20.0, 1e-5)
METHODS = [
    (own.GdpAccounting(), [(own.Gaussian(50.0, 1.0), 3)]),
    (
        own.RenyiAccounting(8),
        [
            (own.Gaussian(50.0, 1.0), 3),
            (own.ZCDP(0.01), 2),
            (own.Laplace(20.0, 1.0), 5),
            (own.PureDP(0.1), 3),
        ],
    ),
    (own.ClaimAccounting(0.0), [(own.ApproximateDP(0.1, 1e-8), 3), (own.Laplace(20.0, 1.0), 3)]),
    (own.ClaimAccounting(1e-6), [(own.ApproximateDP(0.1, 1e-8), 3), (own.PureDP(0.1), 3)]),
]


@pytest.mark.parametrize(("method", "entries"), METHODS, ids=repr)
def test_prices_of_mechanisms(method, entries):
    ledger = book(*entries, budget=BUDGET, accounting=method)
    assert check_text(ledger.to_json()).kind is Kind.PROVED

    def cheaper(document):
        price = document["mechanisms"][0]["price"]
        document["mechanisms"][0]["price"] = plain([0.99 * price["decimal"][0], *price["decimal"][1:]])

    assert check_text(edited(ledger, cheaper)).kind is Kind.REFUTED

    def many(document):
        document["mechanisms"][-1].update(count=10**6)

    assert check_text(edited(ledger, many)).kind is not Kind.PROVED


@pytest.mark.parametrize(
    ("place", "law", "words"),
    [
        (0, {"kind": "pure_dp", "unit": "example", "eps": plain(0.001)}, "no theorem"),
        (
            1,
            {"kind": "approximate_dp", "unit": "example", "eps": plain(0.001), "delta": plain(1e-9)},
            "no theorem",
        ),
        (2, {"kind": "zcdp", "unit": "example", "rho": plain(1e-6)}, "no theorem"),
        (
            3,
            {"kind": "approximate_dp", "unit": "example", "eps": plain(0.1), "delta": plain(2e-8)},
            "no theorem",
        ),
    ],
)
def test_what_has_no_price_is_not_checked(place, law, words):
    method, entries = METHODS[place]
    ledger = book(*entries, budget=BUDGET, accounting=method)
    found = check_text(edited(ledger, lambda one: one["mechanisms"][0].update(mechanism=law)))
    assert found.kind is Kind.NOT_CHECKED
    assert words in found.parts[-1].reason
