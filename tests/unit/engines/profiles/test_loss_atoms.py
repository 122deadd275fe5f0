"""Hulls of nodes against exact curves of finite mechanisms, alone and composed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpmech as dm
from dpmech.engines.profiles.atoms import atoms_above
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import Curve, Nodes
from tests.support.finite_mechanisms import curve, kinks, product, random_pair

EPS = np.linspace(-4.0, 5.0, 16)


def nodes_of(p, q, eps):
    exact = np.array([curve(p, q, one) for one in eps])
    return Nodes.of(np.asarray(eps), exact * (1.0 - 1e-12), exact * (1.0 + 1e-12))


def exact_nodes(p, q):
    """At every kink of both directions, where the hull loses nothing."""
    at = np.unique(np.abs(np.concatenate([kinks(p, q), [0.0]])))
    return Curve(nodes_of(p, q, at), nodes_of(q, p, at))


def falls_short(curves, pairs, *, add, times=None):
    """Whether the composed curves are below the exact composition, on a grid or at kinks of its own."""
    times = [1] * len(curves) if times is None else times
    whole = Composition(curves=tuple(zip(curves, times, strict=True)))
    p, q = product([pair for pair, count in zip(pairs, times, strict=True) for _ in range(count)])
    p, q = (q, p) if add else (p, q)
    at = kinks(p, q)
    at = at[np.abs(at) < 8.0]
    for eps in (*at[:: 1 + at.size // 12], *EPS):
        upper = whole.delta(float(eps), add=add, tolerance=1e-2)[1]
        if upper < curve(p, q, float(eps)) * (1.0 - 1e-9):
            return True
    return False


@settings(max_examples=max(4, settings.default.max_examples // 6))
@given(seed=st.integers(0, 2**32 - 1), outcomes=st.integers(2, 5), count=st.integers(1, 3))
@pytest.mark.slow
@pytest.mark.exhaustive
def test_composed_profiles_are_never_below_the_exact_composition(seed, outcomes, count):
    rng = np.random.default_rng(seed)
    pairs = [random_pair(rng, outcomes) for _ in range(count)]
    # Of few some are composed with themselves.
    times = [int(rng.integers(1, 4 - count)) if count < 3 else 1 for _ in pairs]
    curves = []
    for p, q in pairs:
        eps = np.sort(rng.uniform(0.0, 5.0, 6))
        curves.append(Curve(nodes_of(p, q, eps), nodes_of(q, p, eps)))
    assert not any(falls_short(curves, pairs, add=add, times=times) for add in (False, True))


@pytest.mark.parametrize("add", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_exact_nodes_compose_exactly_and_every_node_one_per_cent_lower_is_found(add):
    rng = np.random.default_rng(5)
    lowered_nodes = 0
    for _ in range(2):
        pairs = [random_pair(rng, 3) for _ in range(2)]
        curves = [exact_nodes(p, q) for p, q in pairs]
        assert not falls_short(curves, pairs, add=add)
        p, q = product(pairs)
        p, q = (q, p) if add else (p, q)
        whole = Composition(curves=tuple((one, 1) for one in curves))
        for eps in (-1.0, 0.3, 1.1):
            lower, upper = whole.delta(eps, add=add, tolerance=1e-3)
            truth = curve(p, q, eps)
            assert lower <= truth * (1.0 + 1e-12)
            assert truth * (1.0 - 1e-12) <= upper <= truth * 1.02 + 1e-9
        name = "add" if add else "remove"
        own = getattr(curves[0], name)
        for place in range(len(own.eps)):
            if own.upper[place] < 1e-12:
                continue  # nothing, and a hundredth less of it
            lowered = tuple(0.99 * u if i >= place else u for i, u in enumerate(own.upper))
            node = Nodes(own.eps, tuple(min(a, b) for a, b in zip(own.lower, lowered, strict=True)), lowered)
            other = [Curve(**{"remove": curves[0].remove, "add": curves[0].add, name: node}), curves[1]]
            assert falls_short(other, pairs, add=add)
            lowered_nodes += 1
    assert lowered_nodes >= 4


def test_a_claim_is_what_kairouz_oh_and_viswanath_say():
    one = Curve.of_claim(1.0, 1e-3).atoms(add=False)
    for eps in (0.0, 0.5, 0.99):
        whole = math.e / (1.0 + math.e)
        truth = 1e-3 + (1.0 - 1e-3) * (whole - math.exp(eps) * (1.0 - whole))
        assert one.delta(eps) == pytest.approx(truth, rel=1e-12)
        assert one.delta(eps) >= truth * (1.0 - 1e-15)
    assert one.delta(1.0) == pytest.approx(1e-3, rel=1e-12)
    assert one.delta(40.0) == pytest.approx(1e-3, rel=1e-12)
    assert one.delta(-3.0) == pytest.approx(1.0 - math.exp(-3.0) + 1e-3 * math.exp(-3.0), rel=1e-12)


def test_what_no_curve_is_is_refused():
    with pytest.raises(dm.NumericalError, match="below what every mechanism has"):
        atoms_above(np.array([-1.0, 1.0]), np.array([0.5, 0.1]))
    with pytest.raises(dm.NumericalError, match="below what every mechanism has"):
        atoms_above(np.array([1.0]), np.array([math.nan]))
    for bad in ((), (1.0, 0.5), (-1.0, 0.5), (0.0, math.inf)):
        with pytest.raises(dm.InvalidParameterError):
            Nodes(bad, (0.0,) * len(bad), (0.5,) * len(bad))
    with pytest.raises(dm.InvalidParameterError, match="lower"):
        Nodes((0.0, 1.0), (0.5, 0.2), (0.4, 0.3))
    with pytest.raises(dm.NumericalError, match="contradict"):
        Nodes.of(np.array([0.0, 1.0]), np.array([0.1, 0.3]), np.array([0.2, 0.4]))


def test_hulls_of_one_node_of_none_that_helps_and_of_repeated_ones():
    assert atoms_above(np.array([0.5]), np.array([1.0])).delta(2.0) == 1.0
    twice = atoms_above(np.array([0.5, 0.5, 2.0]), np.array([0.4, 0.3, 0.3]))
    assert twice.delta(0.5) == pytest.approx(0.3, rel=1e-12)
    assert twice.delta(9.0) == pytest.approx(0.3, rel=1e-12)


def test_lower_bounds_between_nodes_follow_the_convex_curve():
    rng = np.random.default_rng(8)
    for _ in range(200):
        p, q = random_pair(rng, 6)
        own = nodes_of(p, q, np.sort(rng.uniform(0.0, 3.0, 8)))
        for eps in rng.uniform(0.0, 4.0, 20):
            assert own.lowest(float(eps)) <= curve(p, q, float(eps)) * (1.0 + 1e-12)
    smooth = nodes_of(*random_pair(rng, 2000), np.linspace(0.0, 3.0, 60))
    assert smooth.lowest(1.0) > 0.0


def test_lower_bounds_beside_nodes_that_nearly_coincide():
    """The line through two nodes 1e-15 apart has a slope of rounding alone."""
    rng = np.random.default_rng(3)
    for gap in (1e-15, 1e-13, 1e-12, 1e-11, 1e-9, 1e-7):
        for _ in range(30):
            # A curve that is 1 - e^eps / 40, as far as it is asked.
            last = rng.uniform(0.6, 2.0)
            eps = np.array([0.5, last - gap, last, 3.0])
            exact = 1.0 - np.exp(eps) / 40.0
            own = Nodes.of(eps, exact, exact)
            for at in (0.2, 0.55, 2.1, 2.5, 2.99):
                assert own.lowest(at) <= 1.0 - math.exp(at) / 40.0
    eps = np.array([0.5, 0.9999, 1.0, 3.0])
    exact = 1.0 - np.exp(eps) / 40.0
    # Further apart the line is of use.
    assert Nodes.of(eps, exact, exact).lowest(2.5) == pytest.approx(1.0 - math.exp(2.5) / 40.0, abs=1e-6)


def test_nodes_far_below_zero_say_nothing():
    found = atoms_above(np.array([-800.0, -760.0]), np.array([1.0, 1.0]))
    assert found.delta(0.5) == 1.0
    beside = atoms_above(np.array([-800.0, -760.0, 1.0]), np.array([1.0, 1.0, 0.2]))
    assert beside.delta(1.0) == pytest.approx(0.2, rel=1e-12)
    assert beside.delta(0.0) == atoms_above(np.array([1.0]), np.array([0.2])).delta(0.0)
