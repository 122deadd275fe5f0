"""Random allocation against other accountants, whose values are in tests/reference/."""

import json
import pathlib

import pytest

import dpmech as dm

FILE = pathlib.Path(__file__).parents[3] / "reference" / "random_allocation_peers.json"
FOUND = json.loads(FILE.read_text())
# An estimate is farther off than this many standard errors with probability below 1e-8 if many draws count.
ERRORS, FEW = 6.0, 100
# CPU seconds of a plan here up to which it is computed by the quick tests.
QUICK = 2.0


def plans(every):
    """The plans, with the costly ones marked as slow."""
    found = []
    for one in every:
        name = f"{one['participations']} of {one['steps']} at {one['sigma']}"
        marks = () if one["seconds"] <= QUICK else (pytest.mark.slow, pytest.mark.exhaustive)
        found.append(pytest.param(one, id=name, marks=marks))
    return found


def mechanism(one):
    return dm.Mechanism(dm.Identity(one["steps"]), dm.RandomAllocation(one["participations"]))


@pytest.mark.parametrize("one", plans(FOUND["bounds"]))
def test_no_bound_of_a_peer_is_below_the_lower_end_or_lower_than_ours(one):
    found = dm.epsilon(mechanism(one), one["sigma"], one["delta"])
    assert (found.lower, found.upper) == pytest.approx((one["lower"], one["upper"]), rel=1e-3)
    for upper in one["peers"].values():
        assert upper >= found.upper
        assert upper >= found.lower


@pytest.mark.parametrize("one", plans(FOUND["estimates"]))
def test_estimates_of_a_peer_are_between_the_ends(one):
    """Each direction is at most the upper end, and the larger one at least the lower end."""
    for row in one["rows"]:
        found = dm.delta(mechanism(one), one["sigma"], row["eps"])
        estimates = [row["remove"], row["add"]]
        assert all(delta - ERRORS * error <= found.upper for delta, error, _ in estimates)
        assert found.lower <= max(delta + ERRORS * error for delta, error, _ in estimates)
        assert max(count for _, _, count in estimates) >= FEW
