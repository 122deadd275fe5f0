"""Losses below a curve: never above it, composed neither, and close where brackets are."""

import math

import numpy as np
import pytest

from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.profiles.atoms import atoms_below
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


def test_lattices_move_losses_down():
    atoms = atoms_below(np.array([0.5, 1.0]), np.array([0.3, 0.1]), np.array([0.3, 0.1]))
    lattice = atoms.lattice(0.125)
    assert lattice.infinite_mass == 0.0
    assert 0.999 * atoms.masses.sum() <= lattice.masses.sum() <= atoms.masses.sum()
    for eps in (0.0, 0.3, 0.9):
        kept = lattice.losses() > eps
        on = float(np.sum(lattice.masses[kept] * -np.expm1(eps - lattice.losses()[kept])))
        assert on <= height(atoms, eps)


def test_brackets_that_say_nothing():
    nothing = Nodes((0.0, 1.0), (0.0, 0.0), (1.0, 1.0))
    assert Curve(nothing, nothing).atoms_below(add=False).says_nothing
    assert atoms_below(np.zeros(0), np.zeros(0), np.zeros(0)).says_nothing
