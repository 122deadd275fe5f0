"""One run against a whole curve: linear programs, small audits by enumeration, honest and faulty runs."""

import itertools
import math

import numpy as np
import pytest
import scipy

import dpmech as dm
from dpmech.audits.one_run import Tangents, _p_value, chained_bound, p_value, tail_bound
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import Curve, Nodes
from dpmech.numerics import BOUND, Provenance
from tests.support.finite_mechanisms import curve, kinks, random_pair

ONCE = {"participation": dm.SingleParticipation()}


def gaussian(mu):
    return dm.profile(dm.Identity(1), 1.0 / mu, **ONCE)


def program(right, guesses, a, allowed):
    """The largest P(W >= v) under the inequalities for all sets of numbers: a linear program."""
    count = a.size
    names = guesses + 1 + count * (guesses + 1)
    rows, limits = [], []
    for k in range(count):
        paid = np.zeros(names)
        for w in range(guesses + 1):
            slack = guesses + 1 + k * (guesses + 1) + w
            row = np.zeros(names)
            row[w] = w
            if w:
                row[w - 1] = -a[k] * (guesses - w + 1)
            row[slack], paid[slack] = -1.0, 1.0
            rows.append(row)
            limits.append(0.0)
        rows.append(paid)
        limits.append(allowed[k])
    total = np.zeros(names)
    total[: guesses + 1] = 1.0
    cost = np.zeros(names)
    cost[right : guesses + 1] = -1.0
    found = scipy.optimize.linprog(cost, np.array(rows), limits, total[None], [1.0], method="highs")
    return -found.fun


@pytest.mark.parametrize("guesses", [3, 8, 20])
def test_never_below_the_linear_program_and_near_it(guesses):
    rng = np.random.default_rng(guesses)
    near = []
    for mu in (0.3, 1.0, 2.5):
        known = Tangents.of(gaussian(mu))
        chosen = np.sort(rng.choice(known.a.size, 12, replace=False))
        a = known.a[chosen]
        for canaries, low in ((guesses, 1), (6 * guesses, 0)):
            allowed = known.allowed(canaries, 1, low)[chosen]
            for right in range(guesses // 2 + 1, guesses + 1):
                truth = program(right, guesses, a, allowed)
                found = p_value(right, guesses, a, allowed)
                assert found >= truth * (1.0 - 1e-6) - 1e-9
                near.append(found / truth)
                # Any tangents are a proof.
                places = rng.integers(0, a.size, right)
                assert chained_bound(right, guesses, places, a, allowed) >= truth * (1.0 - 1e-6) - 1e-9
    assert np.median(near) < 1.1


@pytest.mark.parametrize(("right", "guesses"), [(16, 20), (20, 20), (45, 60), (300, 400)])
def test_one_tangent_is_the_bound_by_eps_and_delta(right, guesses):
    eps, delta, canaries = 0.7, 1e-5, 2000
    found = tail_bound(right, guesses, np.array([math.exp(eps)]), np.array([canaries * delta]), 0.05)
    assert found == pytest.approx(_p_value(right, guesses, canaries, eps, delta), rel=1e-5)


def exact_profile(p, q):
    at = np.unique(np.abs(np.concatenate([kinks(p, q), [0.0]])))
    sides = [np.array([curve(*pair, one) for one in at]) for pair in ((p, q), (q, p))]
    both = Curve(*(Nodes.of(at, side * (1.0 - 1e-12), side * (1.0 + 1e-12)) for side in sides))
    return dm.PrivacyProfile(Composition(curves=((both, 1),)), BOUND, Provenance("release.none"))


def law_of_right(p, q, canaries, high, low):
    """P(W = w), by all coins and all outputs of independent mechanisms; guesses are those of the ratios."""
    law = np.zeros(high + low + 1)
    with np.errstate(divide="ignore"):
        ratio = np.log(p / q)
    for outputs in itertools.product(range(p.size), repeat=canaries):
        order = np.argsort([-ratio[one] for one in outputs], kind="stable")
        for coins in itertools.product([0, 1], repeat=canaries):
            mass = math.prod((p if coin else q)[one] for coin, one in zip(coins, outputs, strict=True))
            right = sum(coins[i] for i in order[:high]) + sum(1 - coins[i] for i in order[canaries - low :])
            law[right] += mass * 0.5**canaries
    return law


@pytest.mark.parametrize(("high", "low"), [(1, 0), (2, 0), (0, 2), (1, 1), (2, 2)])
def test_no_audit_of_a_finite_mechanism_is_right_more_often(high, low):
    rng = np.random.default_rng(11)
    near = 0
    for _ in range(4):
        p, q = random_pair(rng, 3)
        known = Tangents.of(exact_profile(p, q))
        allowed = known.allowed(4, high, low)
        law = law_of_right(p, q, 4, high, low)
        assert law.sum() == pytest.approx(1.0)
        for right in range(1, high + low + 1):
            found = p_value(right, high + low, known.a, allowed)
            truth = law[right:].sum()
            assert found >= truth * (1.0 - 1e-9)
            near += found < min(1.0, 1.5 * truth)
    assert near >= 1


def audits(count, sigma, mu, *, canaries, guesses, confidence):
    rng = np.random.default_rng(5)
    known, found = gaussian(mu), []
    for _ in range(count):
        included = rng.integers(0, 2, size=canaries, dtype=bool)
        scores = included + sigma * rng.normal(size=canaries)
        found.append(dm.audits.audit_profile(scores, included, known, guesses=guesses, confidence=confidence))
    return np.array([one.refuted for one in found])


@pytest.mark.slow
def test_honest_runs_are_refuted_as_seldom_as_promised():
    refuted = audits(200, 1.0, 1.0, canaries=300, guesses=[(20, 20)], confidence=0.8)
    assert scipy.stats.binomtest(int(refuted.sum()), 200, 0.2, alternative="greater").pvalue > 1e-6
    # The same count refutes a claim of half the mu.
    refuted = audits(50, 1.0, 0.5, canaries=300, guesses=[(20, 20)], confidence=0.8)
    assert scipy.stats.binomtest(int(refuted.sum()), 50, 0.2, alternative="greater").pvalue < 1e-6


def test_half_the_noise_is_found_where_one_eps_finds_nothing():
    """Certified at eps 2: seven audits in ten find it, where one eps finds it three times in a hundred."""
    mu = 0.5015
    assert gaussian(mu).epsilon(1e-5).upper == pytest.approx(2.0, rel=1e-3)
    refuted = audits(10, 0.5 / mu, mu, canaries=1000, guesses=None, confidence=0.95)
    assert refuted.sum() >= 4


def test_what_is_reported():
    rng = np.random.default_rng(1)
    included = rng.integers(0, 2, size=400, dtype=bool)
    found = dm.audits.audit_profile(included + 0.2 * rng.normal(size=400), included, gaussian(0.5))
    assert found.refuted
    assert found.right <= found.high + found.low
    assert str(found).startswith("the curve is refuted at confidence 95 %: ")
    told = dm.audits.audit_profile(rng.normal(size=400), included, gaussian(0.5))
    assert "not refuted" in str(told)
    assert told.p_value > 0.05
    with pytest.raises(dm.InvalidParameterError, match="profile"):
        dm.audits.audit_profile(rng.normal(size=400), included, 1.0)
    with pytest.raises(dm.InvalidParameterError, match="confidence"):
        dm.audits.audit_profile(rng.normal(size=400), included, gaussian(0.5), confidence=1.0)
