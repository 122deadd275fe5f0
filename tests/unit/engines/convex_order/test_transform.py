"""The bound by Laplace transforms against quadrature, convolution, Monte Carlo and the program."""

import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.convex_order import transform
from dpmech.engines.convex_order.bound import ring_delta
from dpmech.engines.convex_order.dynamic_program import Direction
from dpmech.engines.convex_order.exponentials import Lattice
from dpmech.engines.convex_order.mixture_ring import MixtureGram
from dpmech.engines.convex_order.ring import RingGram
from dpmech.engines.convex_order.transform import mixture_delta
from tests.support.bins_oracles import identity_delta, plain_monte_carlo, quadrature
from tests.support.quick_cases import slow_but

SIGMAS = 6.12  # two-sided 1e-9


def full(gram):
    index = np.arange(gram.bins)
    distance = np.abs(index[:, None] - index[None, :])
    return gram.profile()[np.minimum(distance, gram.bins - distance)]


def both(gram, eps, rel_error=0.02):
    return np.array(
        [mixture_delta(gram, eps, rel_error=rel_error, remove=remove) for remove in (True, False)]
    )


@pytest.mark.parametrize("eps", slow_but([0.1, 0.7, 2.0], 1))
@pytest.mark.parametrize(
    "gram",
    [
        MixtureGram(3, 0.3, ((0.9, 0.6),), 0.0),
        MixtureGram(3, 0.2, ((0.6, 0.5),), 0.4),
        MixtureGram(2, 0.5, ((0.7, 0.4),), 0.0),
        MixtureGram(3, 0.8, (), 0.3),
        # Negative decays: 1 - lam^b is above 1 for an odd number of bins.
        MixtureGram(3, 0.3, ((0.9, -0.6),), 0.0),
        MixtureGram(2, 0.5, ((0.7, -0.4),), 0.0),
    ],
)
def test_small_rings_against_quadrature(gram, eps):
    truth = np.array(quadrature(full(gram), eps))
    # Entries below 0 make ADD small, and the same error in r larger in it.
    negative = any(decay < 0.0 for _, decay in gram.parts)
    found = both(gram, eps, 0.005 if negative else 0.02)
    assert np.all(found >= truth * (1 - 1e-9))
    assert np.all(found <= truth * 1.05)


def test_a_planted_fault_is_seen():
    """The Gram matrix 3 % too small, or one bin too many: below the truth."""
    gram = MixtureGram(3, 0.3, ((0.9, 0.6),), 0.0)
    truth = np.array(quadrature(full(gram), 0.7))
    assert np.all(both(gram.scaled(0.97), 0.7) < truth)
    assert np.all(
        np.array(quadrature(full(gram), 0.7, log_bins=math.log(4))) != pytest.approx(truth, rel=0.1)
    )


def test_without_the_factor_of_the_lattice_it_may_be_too_small(monkeypatch):
    """A coarse lattice is off by more than the rest of the bound: its factor is needed."""
    gram = MixtureGram(3, 0.3, ((0.9, 0.6),), 0.0)
    monkeypatch.setattr(transform, "RIPPLE", 30.0)
    assert np.all(both(gram, 2.0) >= np.array(quadrature(full(gram), 2.0)))
    seen = []
    plain = transform.build_lattice

    def bare(*arguments, **options):
        found = plain(*arguments, **options)
        seen.append(found.log_factor)
        return Lattice(found.gram, found.nodes, found.steps, 0.0, 0.0, found.norm)

    monkeypatch.setattr(transform, "build_lattice", bare)
    both(gram, 2.0)
    assert min(seen) > 1e-3


@pytest.mark.parametrize(("square", "bins", "eps"), [(0.5, 6, 0.5), (1.5, 20, 1.0), (3.0, 200, 3.0)])
def test_independent_bins_against_a_convolution(square, bins, eps):
    truth = np.array(identity_delta(square, bins, eps))
    found = both(MixtureGram(bins, square, (), 0.0), eps)
    shown = truth > 1e-12
    assert np.all(found[shown] >= truth[shown] * (1 - 1e-4))
    assert np.all(found[shown] <= truth[shown] * 1.1)


@pytest.mark.parametrize(
    ("gram", "directions"),
    [
        (MixtureGram(60, 0.3, ((0.4, 0.5), (0.6, 0.85)), 0.0), [0]),
        (MixtureGram(60, 0.1, ((0.6, 0.9),), 0.3), [0, 1]),
        (MixtureGram(60, 0.2, ((0.5, 0.64), (0.5, -0.7)), 0.0), [0]),
        (MixtureGram(61, 0.2, ((0.5, 0.64), (0.5, -0.7)), 0.0), [0]),
    ],
)
def test_two_exponentials_and_a_shared_part_against_plain_monte_carlo(gram, directions):
    eps = 0.8
    means, errors = plain_monte_carlo(full(gram), eps, np.random.default_rng(3), samples=200_000)
    for i in directions:
        found = mixture_delta(gram, eps, rel_error=0.05, remove=i == 0)
        assert means[i] - SIGMAS * errors[i] <= found <= means[i] * 1.08 + SIGMAS * errors[i]
        smaller = mixture_delta(gram.scaled(0.8), eps, rel_error=0.05, remove=i == 0)
        assert smaller < means[i] - SIGMAS * errors[i]  # the planted fault


def test_it_agrees_with_the_program():
    program = ring_delta(RingGram(12, 0.4, 1.2, 0.8, 0.0), 2.0, rel_error=0.3, direction=Direction.REMOVE)
    found = mixture_delta(MixtureGram(12, 0.4, ((1.2, 0.8),), 0.0), 2.0, rel_error=0.02, remove=True)
    assert 0.7 * program.delta < found < 1.02 * program.delta


@pytest.mark.slow
def test_it_falls_with_eps_and_sigma():
    gram = MixtureGram(40, 0.3, ((0.9, 0.8),), 0.1)
    over_eps = [both(gram, eps) for eps in (0.2, 0.5, 1.0, 2.0)]
    over_sigma = [both(gram.scaled(factor), 0.5) for factor in (0.5, 0.8, 1.0, 1.3)]
    assert np.all(np.diff(over_eps, axis=0) < 0.0)
    assert np.all(np.diff(over_sigma, axis=0) > 0.0)


def test_add_stops_at_its_floor():
    gram = MixtureGram(40, 0.3, ((0.9, 0.8),), 0.0)
    assert mixture_delta(gram, 8.0, rel_error=0.05, remove=False, floor=1e-6) == 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("bins", "epochs", "sigma", "eps"), [(60, 4, 1.3, 4.0), (390, 10, 4.4, 1.0)])
def test_a_strategy_that_no_single_exponential_is_like(bins, epochs, sigma, eps):
    """InverseSquareRoot(16): two exponentials, against importance sampling of the strategy itself."""
    plan = {"participation": dm.BallsInBins(bins)}
    strategy = dm.InverseSquareRoot(epochs * bins, 16)
    bound = dm.delta(strategy, sigma, eps, method=dm.methods.Deterministic(), **plan)
    sampled = dm.delta(strategy, sigma, eps, method=dm.methods.Importance(0.05), rng=1, **plan)
    assert sampled.lower < bound.upper < 1.3 * sampled.upper
