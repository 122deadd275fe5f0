"""Losses below a curve: never above it, composed neither, and close where brackets are."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.profiles.atoms import LowerAtoms, atoms_below
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import Curve, Nodes


def gaussian_nodes(mu, spacing, slack):
    """Brackets of the curve of N(mu, 1) against N(0, 1), as loose as asked."""
    eps = np.arange(0.0, 8.0 * mu + 0.5 * mu * mu, spacing)
    exact = np.array([gaussian_delta(1.0 / mu, one)[1] for one in eps])
    return Nodes.of(eps, exact * (1.0 - slack), exact * (1.0 + slack))


def height(atoms, eps):
    above = atoms.losses > eps
    return float(np.sum(atoms.masses[above] * -np.expm1(eps - atoms.losses[above])))


@pytest.mark.parametrize("slack", [0.0, 1e-4, 0.05])
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_below_the_curve_everywhere(mu, slack):
    nodes = gaussian_nodes(mu, 0.1 * mu, slack)
    atoms = Curve(nodes, nodes).atoms_below(add=False)
    for eps in np.linspace(-6.0 * mu, 9.0 * mu, 211):
        exact = gaussian_delta(1.0 / mu, abs(eps))
        true = exact[1] if eps >= 0.0 else -math.expm1(eps) + math.exp(eps) * exact[1]
        assert height(atoms, eps) <= true * (1.0 + 1e-12)
    assert atoms.masses.sum() <= 1.0
    assert np.sum(atoms.masses * np.exp(-atoms.losses)) <= 1.0
    assert height(atoms, 0.5 * mu) >= (0.97 - 8.0 * slack) * gaussian_delta(1.0 / mu, 0.5 * mu)[0]


@pytest.mark.parametrize("times", [1, 3, 16])
def test_composed_below_and_close(times):
    """N(mu, 1) composed k times is N(sqrt(k) mu, 1); a curve that is 1 % too high is found out."""
    mu, eps = 0.5, 1.0
    nodes = gaussian_nodes(mu, 0.02 * mu, 1e-6)
    parts = Composition(curves=((Curve(nodes, nodes), times),))
    least, most = gaussian_delta(1.0 / (mu * math.sqrt(times)), eps)
    for add in (False, True):
        lower, upper = parts.delta(eps, add=add, tolerance=1e-4)
        assert lower <= most
        assert least <= upper
        assert upper <= lower * 1.01
    high = Nodes.of(*(np.array(one) for one in (nodes.eps, nodes.upper, nodes.upper)))
    raised = Nodes.of(
        np.array(high.eps), *(np.minimum(1.0, 1.01 * np.array(one)) for one in (high.lower, high.upper))
    )
    wrong, _ = Composition(curves=((Curve(raised, raised), times),)).delta(eps, add=False, tolerance=1e-4)
    assert wrong > most


def on_lattice(lattice, eps):
    kept = lattice.losses() > eps
    return float(np.sum(lattice.masses[kept] * -np.expm1(eps - lattice.losses()[kept])))


def test_lattices_hold_losses_that_are_dominated():
    atoms = atoms_below(np.array([0.5, 1.0]), np.array([0.3, 0.1]), np.array([0.3, 0.1]))
    lattice = atoms.lattice(0.125)
    assert lattice.infinite_mass == 0.0
    assert 0.999 * atoms.masses.sum() <= lattice.masses.sum() <= atoms.masses.sum()
    for eps in (0.0, 0.3, 0.9):
        assert on_lattice(lattice, eps) <= height(atoms, eps)


@st.composite
def any_losses(draw):
    """Values far apart, close together, on multiples of the step, and next to them."""
    step = draw(st.sampled_from([0.125, 0.1, 1.0, 3e-3]))
    whole = st.integers(-40, 40).map(lambda n: n * step)
    near = st.tuples(whole, st.sampled_from([1e-16, -1e-16, 1e-12, -1e-12])).map(lambda p: p[0] + p[1])
    losses = draw(
        st.lists(st.one_of(whole, near, st.floats(-5.0, 5.0)), min_size=1, max_size=12, unique=True)
    )
    shares = np.array(draw(st.lists(st.floats(1e-9, 1.0), min_size=len(losses), max_size=len(losses))))
    return LowerAtoms(np.sort(losses), shares / shares.sum()), step


@given(any_losses())
def test_a_lattice_is_nowhere_above_its_losses(drawn):
    """In exact arithmetic, at the corners of both curves, where the largest excess is."""
    atoms, step = drawn
    lattice = atoms.lattice(step)
    used = np.flatnonzero(lattice.masses)
    points = [Fraction(step) * (lattice.first + int(i)) for i in used]
    with mpmath.workdps(60):
        given_losses = [mpmath.mpf(float(loss)) for loss in atoms.losses]
        nodes = [mpmath.mpf(one.numerator) / one.denominator for one in points]

        def curve(losses, masses, eps):
            return mpmath.fsum(
                mpmath.mpf(float(p)) * (1 - mpmath.exp(eps - at))
                for at, p in zip(losses, masses, strict=True)
                if at > eps
            )

        for eps in [*given_losses, *nodes]:
            assert curve(nodes, lattice.masses[used], eps) <= curve(given_losses, atoms.masses, eps)


def test_a_lattice_loses_little_where_values_are_far_apart():
    """Moving every value down would lose a step's share of each; merging loses a small part of that."""
    nodes = gaussian_nodes(0.5, 0.02, 0.0)
    atoms = Curve(nodes, nodes).atoms_below(add=False)
    for step in (0.01, 0.0013):
        moved = LowerAtoms(step * np.floor(atoms.losses / step), atoms.masses)
        for eps in (0.5, 1.0):
            whole = height(atoms, eps)
            assert whole - on_lattice(atoms.lattice(step), eps) <= 0.25 * (whole - height(moved, eps))


def test_brackets_that_say_nothing():
    nothing = Nodes((0.0, 1.0), (0.0, 0.0), (1.0, 1.0))
    assert Curve(nothing, nothing).atoms_below(add=False).says_nothing
    assert atoms_below(np.zeros(0), np.zeros(0), np.zeros(0)).says_nothing
