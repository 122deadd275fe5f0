"""The accountant of independent bins against other accountants, and as users meet it."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.convex_order.bound import ring_delta
from dpmech.engines.convex_order.ring import RingGram
from dpmech.engines.independent_sum.accountant import IndependentAccountant
from dpmech.numerics import BOUND, Provenance
from tests.support.bins_oracles import identity_delta
from tests.support.quick_cases import slow_but

# (bins, sigma, eps): lower and upper bound on delta by PLD_accounting 2.0, as in
# test_identity_against_exact_values.py, which says how it was run.
ALLOCATION = {
    (50, 0.6, 4.941): (9.77875457844432e-07, 9.878534714756634e-07),
    (50, 1.0, 1.298): (1.0017604927421024e-06, 1.033027368293186e-06),
    (50, 2.0, 0.5279): (9.307281838584753e-13, 1.3367762554864947e-12),
    (390, 0.6, 4.992): (1.034764279230852e-09, 1.0440815635904272e-09),
    (390, 1.0, 0.3261): (9.20456049265255e-07, 1.1017975827471323e-06),
}


def accountant(bins, squared=1.0):
    root = math.sqrt(squared)
    return IndependentAccountant(bins, dm.Bounds(root * (1.0 - 1e-15), root, BOUND, Provenance("test")))


@pytest.mark.parametrize("case", ALLOCATION)
def test_inside_the_brackets_of_another_package(case):
    bins, sigma, eps = case
    low, high = ALLOCATION[case]
    found = accountant(bins).delta(sigma, eps, tolerance=1e-5)
    assert low < found.lower <= found.upper < high
    assert found.upper < 1.0005 * found.lower


@pytest.mark.parametrize(
    ("bins", "sigma", "eps"),
    [(50, 0.6, 2.193), (390, 2.0, 0.1382), (390, 0.6, 6.748), (1000, 1.0, 0.4017), (1000, 2.0, 0.01996)],
)
def test_both_directions_against_the_oracle(bins, sigma, eps):
    found = accountant(bins).delta(sigma, eps, tolerance=1e-5)
    # The oracle is a lattice of its own, good to a part in a thousand.
    assert max(identity_delta(sigma**-2.0, bins, eps)) == pytest.approx(found.upper, rel=2e-3)


@pytest.mark.parametrize(("bins", "sigma", "eps"), slow_but([(20, 1.0, 1.0), (100, 0.8, 0.5)], 1))
def test_the_program_is_above_and_close(bins, sigma, eps):
    ring = RingGram(bins, white=sigma**-2.0, amplitude=0.0, decay=0.0, constant=0.0)
    found = accountant(bins).delta(sigma, eps, tolerance=1e-4)
    above = ring_delta(ring, eps, rel_error=0.02).delta
    assert found.lower <= above <= 1.03 * found.upper


# Some of them, over the whole range, stay quick.
QUICK_BUDGETS = [(2, 0.5, 0.3), (2, 8.0, 1e-5), (390, 1.0, 1e-12), (390, 8.0, 1e-5), (5000, 40.0, 1e-9)]


@pytest.mark.parametrize(
    ("bins", "eps", "delta"),
    [
        pytest.param(bins, *budget, marks=[] if (bins, *budget) in QUICK_BUDGETS else pytest.mark.slow)
        for bins in (2, 390, 5000)
        for budget in [(8.0, 1e-5), (1.0, 1e-12), (0.25, 1e-5), (0.01, 1e-3), (40.0, 1e-9), (0.5, 0.3)]
    ],
)
def test_calibration_is_safe_and_tight(bins, eps, delta):
    one = accountant(bins, 10.0)
    rtol = 1e-3
    found = one.calibrate(eps, delta, rtol=rtol, progress=lambda _: None)
    assert found.method == dm.methods.Exact()
    assert one.delta(found.sigma, eps, tolerance=0.4 * rtol).upper <= delta
    assert one.delta(found.sigma / (1.0 + rtol), eps, tolerance=0.4 * rtol).lower > delta
    assert found.achieved.upper <= eps
    assert found.achieved.upper - found.achieved.lower <= rtol * eps
    # By lattices of its own, delta agrees at the upper end.
    assert one.delta(found.sigma, found.achieved.upper, tolerance=0.4 * rtol).upper <= delta


def test_tolerances_narrow_the_bounds():
    one = accountant(200)
    ends = [one.delta(1.0, 0.7, tolerance=tolerance) for tolerance in (1e-2, 1e-3, 1e-4, 1e-6)]
    for coarse, fine in itertools.pairwise(ends):
        assert coarse.lower <= fine.upper
        assert fine.lower <= coarse.upper
    assert ends[-1].upper <= ends[-1].lower * (1.0 + 1e-4)


def test_no_privacy_is_lost_where_delta_allows_it():
    assert accountant(1000).epsilon(30.0, 0.5, tolerance=4e-4).upper == 0.0


def test_little_is_known_of_what_is_next_to_nothing():
    found = accountant(1000).delta(100.0, 5.0, tolerance=4e-4)
    assert found.lower == 0.0
    assert found.upper <= 1e-290


def test_a_sensitivity_that_is_not_known_exactly_widens_the_bounds():
    exact = accountant(50)
    wide = IndependentAccountant(50, dataclasses.replace(exact.sensitivity, lower=0.999))
    one, other = exact.delta(1.0, 1.0, tolerance=1e-2), wide.delta(1.0, 1.0, tolerance=1e-2)
    assert other.lower < 0.995 * one.lower
    assert other.upper == pytest.approx(one.upper, rel=1e-2)


def test_bounds_too_far_apart_are_refused():
    exact = accountant(50)
    wide = IndependentAccountant(50, dataclasses.replace(exact.sensitivity, lower=0.9))
    with pytest.raises(dm.NumericalError, match="wider than the tolerance"):
        wide.delta(1.0, 1.0, tolerance=1e-2)
    with pytest.raises(dm.NumericalError, match="wider than the tolerance"):
        wide.epsilon(1.0, 1e-5, tolerance=1e-2)


@pytest.mark.slow
def test_it_is_the_default_and_exact_method_of_independent_bins():
    scheme = dm.BallsInBins(1000)
    found = dm.epsilon(dm.Identity(1000), 1.0, 1e-5, participation=scheme)
    assert found == dm.epsilon(dm.Identity(1000), 1.0, 1e-5, participation=scheme, method=dm.methods.Exact())
    # PLD_accounting 2.0 has [0.1356, 0.1430].
    assert 0.1388 < found.lower <= found.upper < 0.1389
    assert str(found.guarantee) == "deterministic upper bound"
    # Two epochs at sigma sqrt 2 are the same.
    twice = dm.epsilon(dm.Identity(2000), math.sqrt(2.0), 1e-5, participation=scheme)
    assert twice.upper == pytest.approx(found.upper, rel=1e-4)
    equal = dm.epsilon(dm.Diagonal(np.full(1000, 3.0)), 3.0, 1e-5, participation=scheme)
    assert equal.upper == pytest.approx(found.upper, rel=1e-4)
    assert dm.delta(dm.Identity(1000), 1.0, 4.0, participation=scheme).upper == pytest.approx(
        1.2e-26, rel=0.01
    )


def test_a_sample_agrees():
    scheme = dm.BallsInBins(100)
    found = dm.delta(dm.Identity(100), 1.0, 0.8, participation=scheme)
    drawn = dm.delta(
        dm.Identity(100), 1.0, 0.8, participation=scheme, method=dm.methods.Importance(0.02), rng=3
    )
    assert drawn.lower <= found.upper
    assert found.lower <= drawn.upper


@pytest.mark.slow
def test_certificates_are_verified_by_samples():
    found = dm.calibrate_sigma(dm.Identity(200), 1.0, 1e-5, participation=dm.BallsInBins(100))
    verified = dm.verify(found.certificate())
    assert verified.ok
    low = dataclasses.replace(found.certificate(), sigma=0.97 * found.sigma)
    assert not dm.verify(low).ok
