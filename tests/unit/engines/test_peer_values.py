"""Numbers that other libraries state, next to dpmech's bounds: tests/reference/peer_values.json.

A value lies inside the bounds, within the tolerance that its source states, or says why it does not: as it is
then an upper bound that is looser, or an estimate. No value that claims to be an upper bound is below a lower
end, and none that claims to be a lower bound is above an upper end.
"""

import functools
import json
import math
import pathlib

import pytest

import dpmech as dm
from dpmech.engines import RenyiAccountant
from dpmech.numerics import EXACT, Bounds, Provenance

FILE = pathlib.Path(__file__).parents[2] / "reference" / "peer_values.json"
VALUES = json.loads(FILE.read_text(encoding="utf-8"))["values"]
GIVEN = Provenance("given")
LAWS = dm.ledgers


@functools.cache
def training(sigma, sampling_prob, steps):
    """The profile of a run of Poisson-sampled Gaussian releases, or of unsampled ones."""
    if sampling_prob == 1.0:
        return LAWS.Gaussian(sigma, 1.0).profile(steps)
    participation = dm.Poisson(sampling_prob)
    return dm.profile(dm.Identity(steps), sigma, participation=participation)


def noise(one, sigma):
    """The profile of the releases of a row, with another noise scale."""
    kind, steps = one["quantity"].split(".")[0], one.get("num_queries", 1)
    if kind == "laplace":
        return LAWS.Laplace(sigma, float(one["sensitivity"])).profile(steps)
    if kind == "discrete_laplace":
        return LAWS.DiscreteLaplace(sigma, int(one["sensitivity"])).profile(steps)
    return training(sigma / one["sensitivity"], one.get("sampling_prob", 1.0), steps)


def delta(one):
    scale = one["sigma"] if "sigma" in one else one["scale"]
    return noise(one, scale).hockey_stick(one["eps"], add=one["add"])


def crossing(one, at, *, rate=False):
    """Where the noise reaches a budget, as far as its bounds at the ends of the tolerance tell."""
    ends = one["value"] - one["tolerance"], one["value"] + one["tolerance"]
    if one["delta"] == 0.0:
        exact = one["num_queries"] * one["sensitivity"] / one["eps"]
        return (1.0 / exact if rate else exact,) * 2
    least, most = (at(1.0 / end if rate else end) for end in (ends[::-1] if rate else ends))
    # More noise, a smaller delta: the tolerance contains the crossing if delta is passed between its ends.
    if least.upper >= one["delta"] >= most.lower:
        return ends
    return (math.inf, math.inf) if most.lower > one["delta"] else (0.0, 0.0)


def renyi(one):
    accountant = RenyiAccountant(Bounds(1.0, 1.0, EXACT, GIVEN), one["sampling_prob"], one["num_queries"])
    found = accountant.divergence(one["sigma"])(one["order"])
    return found * (1 - 1e-9), found  # exact up to rounding


def response(one):
    many = one["categories"]
    return LAWS.RandomizedResponse(1 - one["noise_parameter"] * (1 - 1 / many), many)


def response_renyi(one):
    order, own = one["order"], response(one)
    found = own.claim[0] if order == "infinite" else own.renyi(order)
    return found * (1 - 1e-9), found


def claims(one):
    own = LAWS.PureDP(one["eps"]) if not one["delta"] else LAWS.ApproximateDP(one["eps"], one["delta"])
    book = dm.Ledger()
    book.add_mechanism("all", own, count=one["num_queries"])
    found = book.epsilon(one["total_delta"] or 1e-300)
    # The worst mechanism with the claim attains the upper end.
    return found.upper * (1 - 1e-5), found.upper


def run(one):
    return training(one["sigma"], one["sampling_prob"], one["num_queries"])


@functools.cache
def total(sigma, sampling_prob, steps, delta):
    return training(sigma, sampling_prob, steps).epsilon(delta)


FOUND = {
    "laplace.delta": delta,
    "discrete_laplace.delta": delta,
    "gaussian.delta": delta,
    "gaussian.sigma": lambda one: crossing(
        one, lambda sigma: noise(one, sigma).hockey_stick(one["eps"], add=one["add"])
    ),
    "laplace.noise": lambda one: crossing(one, lambda scale: noise(one, scale).delta(one["eps"])),
    "gaussian.noise": lambda one: crossing(one, lambda scale: noise(one, scale).delta(one["eps"])),
    "discrete_laplace.rate": lambda one: crossing(
        one, lambda scale: noise(one, scale).delta(one["eps"]), rate=True
    ),
    "claims.eps": claims,
    "pure.eps": lambda one: LAWS.PureDP(one["eps"]).profile().epsilon(one["delta"]),
    "randomized_response.tpr": lambda one: response(one).profile().tpr(one["fpr"]),
    "gaussian.tpr": lambda one: training(one["sigma"], 1.0, 1).tpr(one["fpr"]),
    "gaussian.total_delta": lambda one: run(one).delta(one["eps"]),
    "gaussian.total_eps": lambda one: total(
        one["sigma"], one["sampling_prob"], one["num_queries"], one["delta"]
    ),
    "gaussian.remove_delta": lambda one: run(one).hockey_stick(one["eps"], add=False),
    "gaussian.remove_eps": lambda one: run(one).epsilon(one["delta"]),
    "gaussian.renyi": renyi,
    "randomized_response.renyi": response_renyi,
}


def place(one):
    found = FOUND[one["quantity"]](one)
    lower, upper = (found.lower, found.upper) if isinstance(found, Bounds) else found
    side = "above" if one["value"] > upper + one["tolerance"] else "inside"
    return ("below" if one["value"] < lower - one["tolerance"] else side), lower, upper


def check(one, where):
    side, lower, upper = where
    words = f"{one}: dpmech has [{lower!r}, {upper!r}]"
    if "reason" not in one:
        assert side == "inside", words
    elif one["reason"].startswith("an upper bound"):
        assert side == "above", words
    else:
        assert one["reason"].startswith("a lower bound")
        assert side == "below", words


QUICK, SLOW = ([one for one in VALUES if one.get("slow", False) is slow] for slow in (False, True))
QUANTITIES = sorted({one["quantity"] for one in QUICK})


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_values_of_peers_are_inside_or_on_the_side_that_their_reason_says(quantity):
    for one in QUICK:
        if one["quantity"] == quantity:
            check(one, place(one))


@pytest.mark.slow
@pytest.mark.parametrize(
    "one", SLOW, ids=lambda one: f"{one['project']}-{one['quantity']}-{one['num_queries']}"
)
def test_values_that_take_longer(one):
    check(one, place(one))


def test_the_file_has_all_values_of_all_projects():
    assert len(VALUES) == 413
    assert sum("reason" in one for one in VALUES) == 35
    assert {one["project"].split()[0] for one in VALUES} == {
        *("dp_accounting", "autodp", "fourier_accountant", "opacus", "prv_accountant")
    }


def test_a_moved_value_would_be_found():
    """Each quantity: a value that is 5 % more, beyond its tolerance, is above the bounds."""
    for quantity in QUANTITIES:
        one = next(
            (one for one in QUICK if one["quantity"] == quantity and one["value"] and "reason" not in one),
            None,
        )
        if one is not None:
            assert place(one | {"value": 1.05 * one["value"] + one["tolerance"]})[0] == "above", one
