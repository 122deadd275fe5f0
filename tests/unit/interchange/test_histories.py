"""Histories of Opacus, against another package and against our own accountant."""

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

import dpmech as dm
from dpmech.interchange import Steps, steps_of
from tests.support.quick_cases import slow_but

DELTA = 1e-5
# A noise multiplier that changed twice, and a rate that changed once.
MIXED = [(1.1, 0.02, 100), (1.5, 0.02, 50), (1.1, 0.02, 30), (0.9, 0.01, 40)]


def theirs(history):
    accountant = PLDAccountant()
    for noise, rate, steps in history:
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(event, steps)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize("history", slow_but([MIXED[:1], MIXED, [(2.0, 1.0, 3), (1.1, 0.02, 100)]], 0, 2))
def test_eps_is_that_of_another_package(history):
    found = dm.interchange.from_opacus_history(history).epsilon(DELTA)
    assert found.guarantee.kind <= dm.Kind.BOUND
    assert found.upper <= found.lower * (1 + 1e-3)
    assert found.lower <= theirs(history) <= found.upper * (1 + 3e-3)


def test_one_entry_is_our_own_accountant():
    profile = dm.interchange.from_opacus_history([(1.1, 0.02, 100)])
    own = dm.epsilon(dm.Identity(100), 1.1, DELTA, participation=dm.Poisson(0.02))
    found = profile.epsilon(DELTA)
    assert (found.lower, found.upper) == pytest.approx((own.lower, own.upper), rel=1e-9)
    assert profile.adjacency is dm.Adjacency.ADD_REMOVE


def test_steps_alike_are_one_entry():
    assert steps_of(MIXED) == (Steps(1.1, 0.02, 130), Steps(1.5, 0.02, 50), Steps(0.9, 0.01, 40))


def test_a_history_is_taken_from_wherever_it_stands():
    class Accountant:
        history = MIXED[:1]

    due = dm.interchange.from_opacus_history(MIXED[:1]).epsilon(DELTA).upper
    for source in (Accountant(), {"history": MIXED[:1], "mechanism": "prv"}, [list(MIXED[0])]):
        assert dm.interchange.from_opacus_history(source).epsilon(DELTA).upper == due


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([], "history must be a history with one step at least"),
        ({}, "an accountant of Opacus"),
        ("history", "an accountant of Opacus"),
        (3, "an accountant of Opacus"),
        ([(1.0, 0.1)], r"history\[0\] must be \(noise_multiplier, sample_rate, steps\)"),
        ([(1.0, 0.1, 1), (1.0, 1.5, 1)], r"history\[1\]: sampling_prob must be"),
        ([(1.0, 0.0, 1)], r"history\[0\]: sampling_prob must be"),
        ([(0.0, 0.1, 1)], r"history\[0\]: noise_multiplier must be"),
        ([(float("nan"), 0.1, 1)], r"history\[0\]: noise_multiplier must be"),
        ([(1.0, 0.1, 0)], r"history\[0\]: count must be"),
        ([(1.0, 0.1, 2.5)], r"history\[0\]: count must be"),
        (["abc"], r"history\[0\] must be"),
    ],
)
def test_what_is_no_history_is_refused(source, words):
    with pytest.raises(dm.InvalidParameterError, match=words):
        dm.interchange.from_opacus_history(source)
