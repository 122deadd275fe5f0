"""DpEvents, composed by the package whose language they are."""

import math
from fractions import Fraction

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

import dpmech as dm
from dpmech.schemes import schemes
from tests.support import saved

DELTA = 1e-5


def composed(event, relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE):
    """Eps of an event by the PLD accountant, which rounds up."""
    accountant = PLDAccountant(relation)
    accountant.compose(event)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("strategy", "sigma", "participation"),
    [
        (dm.Identity(1), 1.3, dm.SingleParticipation()),
        (dm.Identity(9), 5.0, dm.EveryStep()),
        (dm.LambdaCGD(36, 0.9), 9.0, dm.MinSep(12, 3)),
        (dm.ColumnNormalized(dm.SquareRoot(30)), 4.0, dm.FixedEpochs(3)),
        (dm.Identity(500), 1.1, dm.Poisson(0.02)),
        (dm.Diagonal([2.0] * 60), 3.0, dm.Poisson(0.1)),
        (dm.Identity(7), 4.0, dm.Poisson(1.0)),
        (dm.BandedToeplitz(40, [1.0, 0.5]), 2.0, dm.CyclicPoisson(0.2, 4)),
        (dm.LambdaCGD(6, 0.5), 2.0, dm.BallsInBins(1)),
    ],
    ids=repr,
)
def test_dp_accounting_finds_the_same_eps(strategy, sigma, participation):
    found = dm.epsilon(strategy, sigma, DELTA, participation=participation)
    theirs = composed(dm.interchange.to_dp_event(strategy, sigma, participation=participation))
    assert found.lower <= theirs <= found.upper * (1 + 2e-3) + 2e-4
    mechanism = dm.Mechanism(strategy, participation)
    assert dm.interchange.to_dp_event(mechanism, sigma) == dm.interchange.to_dp_event(
        strategy, sigma, participation=participation
    )


def test_sigma_is_that_of_clip_norm_one_and_holds_the_sensitivity():
    event = dm.interchange.to_dp_event(dm.Identity(4), 3.0)
    assert 1.5 * (1 - 1e-14) <= event.noise_multiplier <= 1.5
    event = dm.interchange.to_dp_event(dm.LambdaCGD(8, 0.5), 1.0, participation=dm.MinSep(4, 2))
    exact = dm.sensitivity(dm.LambdaCGD(8, 0.5), dm.MinSep(4, 2)).upper
    assert event.noise_multiplier <= 1.0 / exact
    assert event.noise_multiplier == pytest.approx(1.0 / exact, rel=1e-14)
    sampled = dm.interchange.to_dp_event(dm.Diagonal([2.0] * 5), 3.0, participation=dm.Poisson(0.25))
    assert (sampled.count, sampled.event.sampling_probability) == (5, 0.25)
    assert 1.5 * (1 - 1e-14) <= sampled.event.event.noise_multiplier <= 1.5
    # One example meets 10 of the 40 steps.
    assert (
        dm.interchange.to_dp_event(dm.Identity(40), 1.0, participation=dm.CyclicPoisson(0.2, 4)).count == 10
    )


def test_zero_out_is_their_replace_special():
    mechanism = dm.Mechanism(dm.Identity(50), dm.Poisson(0.1), dm.Adjacency.ZERO_OUT)
    found = dm.epsilon(mechanism, 1.2, DELTA)
    theirs = composed(
        dm.interchange.to_dp_event(mechanism, 1.2), dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    )
    assert found.lower <= theirs <= found.upper * (1 + 2e-3) + 2e-4


def test_claims_and_ledgers_say_their_sigma():
    cal = saved.calibration("poisson")
    event = dm.interchange.to_dp_event(cal)
    assert (
        event
        == dm.interchange.to_dp_event(cal.mechanism, cal.sigma)
        == dm.interchange.to_dp_event(cal.certificate())
    )
    ledger = dm.Ledger()
    assert dm.interchange.to_dp_event(ledger) == dp_accounting.NoOpDpEvent()
    ledger.add("one", cal, batch="one")
    ledger.add("two", saved.calibration("single"))
    found, theirs = ledger.epsilon(DELTA), composed(dm.interchange.to_dp_event(ledger))
    assert found.lower <= theirs <= found.upper * (1 + 3e-3)
    assert composed(event) < theirs
    for name in ("sigma", "participation"):
        with pytest.raises(dm.InvalidParameterError, match=f"{name} must be None with a Calibration"):
            dm.interchange.to_dp_event(cal, **{name: 1.0})


def ledger_of(*mechanisms, adjacency=dm.Adjacency.ADD_REMOVE):
    ledger = dm.Ledger(adjacency=adjacency)
    for place, (mechanism, count) in enumerate(mechanisms):
        ledger.add_mechanism(f"entry {place}", mechanism, count=count)
    return ledger


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        (dm.ledgers.Gaussian(sigma=6.0, sensitivity=2.0), 5),
        (dm.ledgers.Laplace(scale=30.0, sensitivity=3.0), 20),
        (dm.ledgers.Laplace(scale=2.0, sensitivity=0.3), 1),
        (dm.ledgers.DiscreteLaplace(20.0, 3), 10),
    ],
    ids=repr,
)
def test_mechanisms_by_their_noise_have_the_eps_of_their_events(entry, count):
    ledger = ledger_of((entry, count), (dm.ledgers.Gaussian(sigma=3.0, sensitivity=1.0), 1))
    found, event = ledger.epsilon(DELTA), dm.interchange.to_dp_event(ledger)
    assert found.lower <= composed(event) <= found.upper * (1 + 3e-3)
    alone = event.events[0]
    assert (alone.count if count > 1 else 1) == count


@pytest.mark.parametrize(("truth", "many", "count"), [(0.75, 2, 30), (0.3, 7, 10)])
def test_randomised_response_is_an_event_of_replace_one(truth, many, count):
    replaced = dm.Adjacency.REPLACE_ONE
    ledger = ledger_of((dm.ledgers.RandomizedResponse(truth, many), count), adjacency=replaced)
    event = dm.interchange.to_dp_event(ledger)
    # One by one: their accountant takes a `SelfComposedDpEvent` of it for a single answer.
    assert event == dp_accounting.ComposedDpEvent([event.events[0]] * count)
    exact = (1 - Fraction(truth)) * many / (many - 1)
    assert exact * (1 - Fraction(1, 2**52)) <= Fraction(event.events[0].noise_parameter) <= exact
    theirs = composed(event, dp_accounting.NeighboringRelation.REPLACE_ONE)
    found = ledger.epsilon(DELTA)
    assert found.lower <= theirs <= found.upper * (1 + 3e-3)


@pytest.mark.parametrize(
    ("claim", "rho"), [(dm.ledgers.ZCDP(0.01), 0.01), (dm.ledgers.PureDP(0.3), 0.3**2 / 2)]
)
def test_claims_of_zcdp_and_pure_dp_are_zcdp_events(claim, rho):
    from dp_accounting.rdp import RdpAccountant

    ledger = ledger_of((claim, 40))
    event = dm.interchange.to_dp_event(ledger)
    assert rho * (1 - 1e-15) <= event.events[0].event.rho <= rho * (1 + 1e-15)
    accountant = RdpAccountant()
    accountant.compose(event)
    # It is an upper bound, by Renyi divergences.
    assert ledger.epsilon(DELTA).upper * (1 - 1e-6) <= accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (dm.ledgers.ApproximateDP(0.5, 1e-7), "'entry 0' is, ApproximateDP.*pure and zCDP claims"),
        (
            dm.ledgers.Laplace(2.0, 1.0, adjacency=dm.Adjacency.REPLACE_ONE),
            "REPLACE_ONE.*under REPLACE_ONE randomised response",
        ),
    ],
)
def test_entries_without_an_event_are_refused(entry, words):
    with pytest.raises(dm.UnsupportedCombinationError, match=words):
        dm.interchange.to_dp_event(ledger_of((entry, 1), adjacency=entry.adjacency))


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (dm.Mechanism(dm.Identity(12), dm.BallsInBins(4)), r"no DpEvent says what BallsInBins\(bins=4\) is"),
        (dm.Mechanism(dm.LambdaCGD(12, 0.5), dm.Poisson(0.5)), "needs independent, equal noise"),
        (dm.Mechanism(dm.LambdaCGD(12, 0.5), dm.CyclicPoisson(0.5, 2)), "CyclicPoisson"),
        (
            dm.Mechanism(dm.Identity(3), dm.EveryStep(), dm.Adjacency.REPLACE_ONE),
            "do not agree on what a DpEvent means under REPLACE_ONE",
        ),
    ],
)
def test_what_no_event_says_is_refused_by_name(mechanism, words):
    with pytest.raises(dm.UnsupportedCombinationError, match=words):
        dm.interchange.to_dp_event(mechanism, 1.0)


def test_the_refusal_names_every_scheme_that_has_an_event():
    with pytest.raises(dm.UnsupportedCombinationError) as error:
        dm.interchange.to_dp_event(dm.Mechanism(dm.Identity(12), dm.BallsInBins(4)), 1.0)
    for scheme in schemes():
        assert ("event" in scheme.offers) == (scheme.offers.get("event", "-") in str(error.value))


def test_their_accountants_do_disagree_about_replace_one():
    from dp_accounting.rdp import RdpAccountant

    relations = (
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        dp_accounting.NeighboringRelation.REPLACE_ONE,
    )
    event = dp_accounting.GaussianDpEvent(2.0)
    doubled = [composed(event, relation) for relation in relations]
    assert doubled[1] > 2 * doubled[0]
    kept = []
    for relation in relations:
        accountant = RdpAccountant(neighboring_relation=relation)
        accountant.compose(event)
        kept.append(accountant.get_epsilon(DELTA))
    assert kept[0] == kept[1]


def test_bad_arguments():
    for sigma in (None, 0.0, math.nan, "1"):
        with pytest.raises(dm.InvalidParameterError, match="sigma"):
            dm.interchange.to_dp_event(dm.Identity(3), sigma)
    with pytest.raises(dm.InvalidParameterError):
        dm.interchange.to_dp_event("identity", 1.0)
