"""Sums on a lattice: laws with known sums, and plans whose contour integral does not settle."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates import Certificate
from dpmech.exceptions import NumericalError
from dpmech.verifying import lattice_sums
from dpmech.verifying.integrals import ComposedLaw, composed_delta, composed_integral, directions
from dpmech.verifying.lattice_sums import LATTICE_ERROR, composed, lattice_sum, sampled_delta
from tests.support.oracles import gaussian_delta


def gaussian(steps, eps, mu=0.3):
    """T steps of N(mu, 1) against N(0, 1): together N(mu sqrt T, 1) against N(0, 1)."""
    x = np.linspace(-14.0, 14.0, 40_001)
    log_masses = -0.5 * x**2 + math.log((x[1] - x[0]) / math.sqrt(2.0 * math.pi))
    return ComposedLaw(mu * x + 0.5 * mu**2, log_masses, steps, eps)


@pytest.mark.parametrize(("steps", "eps"), [(2, 0.0), (2, 1.5), (9, 1e-7), (9, 4.0), (1000, 20.0)])
def test_gaussian_steps_together_are_one(steps, eps):
    true = float(gaussian_delta(1.0 / (0.3 * math.sqrt(steps)), eps))
    assert lattice_sum([gaussian(steps, eps)]) == pytest.approx(true, rel=0.1 * LATTICE_ERROR)


def test_a_few_atoms_by_all_their_sums():
    losses, masses = np.array([-0.31, 0.0, 0.07, 1.9]), np.array([0.2, 0.7, 0.06, 0.04])
    for steps, eps in itertools.product((2, 3), (0.5, 1.0)):
        true = sum(
            math.prod(masses[list(places)]) * max(0.0, -math.expm1(eps - losses[list(places)].sum()))
            for places in itertools.product(range(4), repeat=steps)
        )
        found = lattice_sum([ComposedLaw(losses, np.log(masses), steps, eps)])
        assert found == pytest.approx(true, rel=LATTICE_ERROR)


@pytest.mark.parametrize(
    ("q", "s", "steps", "eps"), [(0.05, 1.0, 2, 0.5), (0.01, 1.4, 1000, 1.0), (0.3, 2.0, 7, 0.3)]
)
def test_it_says_what_the_contour_integral_does(q, s, steps, eps):
    found = lattice_sum(directions(q, s, steps, eps, finer=10))
    assert found == pytest.approx(composed_delta(q, s, steps, eps), rel=0.1 * LATTICE_ERROR)
    assert lattice_sum(directions(q, 1.001 * s, steps, eps, finer=10)) < found * (1.0 - 20 * LATTICE_ERROR)


def test_the_larger_direction_decides_whichever_comes_first():
    small, large = gaussian(4, 1.0, 0.2), gaussian(4, 1.0, 0.5)
    true = float(gaussian_delta(1.0, 1.0))
    for both in ((small, large), (large, small)):
        assert lattice_sum(both) == pytest.approx(true, rel=LATTICE_ERROR)
    # No loss of two steps lies above eps.
    assert lattice_sum([ComposedLaw(np.array([-0.1, 0.1]), np.log([0.5, 0.5]), 2, 0.3)]) == 0.0


def test_where_the_contour_integral_settles_it_is_taken(monkeypatch):
    monkeypatch.setattr(lattice_sums, "lattice_sum", lambda laws: 0.25)
    assert composed(lambda finer: [gaussian(9, 1.0)]) == pytest.approx(
        float(gaussian_delta(1.0 / 0.9, 1.0)), rel=1e-7
    )
    asked = []
    found = composed(lambda finer: asked.append(finer) or directions(1e-4, 1.0, 2, 0.1))
    assert (found, asked) == (0.25, [1, lattice_sums.FINER])
    assert sampled_delta(0.1, 1.0, 1, 0.5) == composed_delta(0.1, 1.0, 1, 0.5)


def test_what_lattices_do_not_resolve_is_refused(monkeypatch):
    monkeypatch.setattr(lattice_sums, "_LAST", lattice_sums._FIRST)
    with pytest.raises(NumericalError, match="lattices of 9 sampled steps"):
        lattice_sum([gaussian(9, 1.0)])
    monkeypatch.setattr(lattice_sums, "_LEAST", 0.9)
    with pytest.raises(NumericalError, match="sampled steps above eps"):
        lattice_sum([gaussian(9, 1.0)])


def test_what_is_too_fine_for_lattices_is_integrated_on_more_nodes(monkeypatch):
    true = float(gaussian_delta(1.0 / 0.9, 1.0))
    monkeypatch.setattr(lattice_sums, "_MOST_NODES", 1)
    monkeypatch.setattr(lattice_sums, "_LAST", lattice_sums._FIRST)
    assert composed(lambda finer: [gaussian(9, 1.0)]) == pytest.approx(true, rel=1e-7)


def test_two_rare_steps_against_the_accountant():
    q, s, eps = 0.001, 0.7, 0.2
    laws = [dataclasses.replace(one, most_nodes=lattice_sums._MOST_NODES) for one in directions(q, s, 2, eps)]
    with pytest.raises(NumericalError, match="did not settle"):
        composed_integral(laws)
    known = dm.delta(dm.Identity(2), s, eps, participation=dm.Poisson(q))
    assert (
        known.lower * (1 - LATTICE_ERROR) <= sampled_delta(q, s, 2, eps) <= known.upper * (1 + LATTICE_ERROR)
    )


PLANS = [
    pytest.param(
        dm.Mechanism(
            dm.Identity(2),
            dm.Poisson(0.007, max_lot_size=1, dataset_size=16),
            dm.Adjacency.ZERO_OUT,
        ),
        (1.4, 0.006),
        id="lots",
    ),
    pytest.param(dm.Mechanism(dm.Identity(2), dm.Poisson(0.004, 5)), (1.0, 1e-4), id="users"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "budget"), PLANS)
def test_honest_certificates_of_a_few_rare_steps_are_confirmed_and_edited_ones_are_not(mechanism, budget):
    certificate: Certificate = dm.calibrate_sigma(mechanism, *budget).certificate()
    found = dm.verify(certificate)
    assert found.ok, found.failures
    weaker = dataclasses.replace(certificate, sigma=0.98 * certificate.sigma)
    assert not dm.verify(weaker).ok
    # A lower end that says more than runs are known to lose.
    ends = dataclasses.replace(
        certificate.achieved, lower=min(1.02 * certificate.achieved.lower, certificate.achieved.upper)
    )
    if mechanism.adjacency is dm.Adjacency.ZERO_OUT:
        forged = dm.verify(dataclasses.replace(certificate, achieved=ends))
        assert not forged.ok
        assert "stated below by" in forged.failures[0]
