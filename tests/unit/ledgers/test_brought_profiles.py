"""Profiles that certificates bring: taken as they are, with nothing computed."""

import functools

import pytest

import dpmech as dm
from dpmech.ledgers import ledger_totals as release_profiles
from dpmech.reports import total_of
from tests.support import saved

DELTA = 1e-4


@functools.cache
def profile(seed=None):
    own = saved.certificate("bins exact")
    return dm.profile(own.mechanism, own.sigma, rel_error=0.3 if seed is None else 0.4)


def brought(seed=None):
    return saved.certificate("bins exact").certificate(profile=profile(seed))


def ledger_of(*certificates):
    ledger = dm.Ledger()
    for number, one in enumerate(certificates):
        ledger.add(f"run {number}", one, batch=f"batch {number}")
    return ledger


@pytest.fixture(autouse=True)
def _nothing_is_computed(monkeypatch):
    def refuse(*_, **__):
        pytest.fail("a profile was computed")

    monkeypatch.setattr(release_profiles, "profile", refuse)


@pytest.mark.slow
def test_a_list_composes_what_its_certificates_bring():
    ledger = ledger_of(brought(), brought())
    assert ledger.waiting == ()
    expected = profile().self_compose(2).epsilon(DELTA)
    answers = [ledger.epsilon(DELTA), ledger.epsilon(DELTA, profiles=False)]
    for found in (*answers, ledger.profile().epsilon(DELTA)):
        assert (found.lower, found.upper) == (expected.lower, expected.upper)
        assert found.guarantee == expected.guarantee
    bare = ledger_of(*[saved.certificate("bins exact")] * 2)
    assert bare.epsilon(DELTA, profiles=False).upper > expected.upper
    assert len(bare.waiting) == 2
    total = total_of(ledger, DELTA)
    assert (total["by_claims"], total["eps_upper"]) == (0, expected.upper)


def test_one_release_costs_what_it_was_certified_for():
    ledger = ledger_of(brought())
    eps = saved.certificate("bins exact").budget.eps
    for switch in (None, False):
        assert ledger.epsilon(1e-5, profiles=switch).upper == eps
    assert ledger.epsilon(1e-5, profiles=True).upper == profile().epsilon(1e-5).upper


@pytest.mark.slow
def test_equal_releases_are_one_curve_whoever_brings_it():
    """Of two profiles of one mechanism and noise scale the first one counts, for both."""
    ledger = ledger_of(brought(), brought(1))
    expected = profile().self_compose(2).delta(3.0)
    assert ledger.delta(3.0).upper == expected.upper
    other = ledger_of(saved.certificate("bins exact"), brought(1))
    for switch in (None, False):
        assert other.delta(3.0, profiles=switch).upper == profile(1).self_compose(2).delta(3.0).upper


def test_a_file_keeps_them(tmp_path):
    ledger = ledger_of(brought(), brought())
    ledger.save(tmp_path / "ledger.json")
    again = dm.Ledger.load(tmp_path / "ledger.json")
    assert again.waiting == ()
    assert again.epsilon(DELTA) == ledger.epsilon(DELTA)


def test_a_selection_takes_them():
    law = dm.ledgers.PoissonRuns(2.0)
    ledger = ledger_of(brought())
    ledger.add_tuning("tuning", brought(), law, batch="all")
    byhand = profile().compose(profile().private_selection(law))
    assert ledger.epsilon(DELTA, profiles=False).upper == byhand.epsilon(DELTA).upper
