import mpmath
import numpy as np
import pytest

from dpmech.engines.convex_order.exponentials import WhiteLaw, bin_transform, build_lattice
from dpmech.engines.convex_order.mixture_ring import MixtureGram
from dpmech.engines.convex_order.traces import DENSE, MOST_FULL, Traces, _power_error
from dpmech.exceptions import NumericalError

EXPONENTS = (0j, 0.4 + 0j, 0.4 - 2.0j, 1.0 - 9.0j)
LAW = WhiteLaw(np.array([0.0, 0.5, 1.0, 3.0]), np.array([0.1, 0.45, 0.25, 0.2]))


def lattice_of(parts, bins):
    return build_lattice(MixtureGram(bins, 0.5, parts, 0.0), remove=True, ripple=0.5, outside=1e-2)


def defect_of(lattice, exponent):
    return bin_transform(np.exp(lattice.sums()) / lattice.gram.bins, LAW, exponent)


def squared(lattice, defect):
    """The trace by squaring of the whole matrix."""
    step = lattice.steps[0] if len(lattice.steps) == 1 else np.kron(*lattice.steps)
    return np.trace(np.linalg.matrix_power(step * (1.0 - defect)[None, :], lattice.gram.bins))


@pytest.mark.parametrize(
    ("parts", "bins"),
    [
        (((0.8, 0.7),), 3),
        (((0.8, 0.7),), 60),
        (((0.5, 0.5), (0.9, 0.9)), 60),
        (((0.5, 0.5), (0.9, 0.95)), 200),
        # Every other eigenvalue is negative.
        (((0.8, -0.7),), 60),
        (((0.8, -0.9),), 61),
        (((0.5, 0.6), (0.9, -0.9)), 61),
        (((0.5, -0.5), (0.9, -0.9)), 60),
    ],
)
def test_traces_are_within_their_bounds(parts, bins):
    lattice = lattice_of(parts, bins)
    assert lattice.size < 150 or len(parts) == 2
    traces = Traces(lattice)
    for exponent in EXPONENTS:
        defect, errors = defect_of(lattice, exponent)
        value, error = traces.trace(defect, errors)
        assert abs(value - squared(lattice, defect)) <= error + 1e-11
        assert error < 1e-6


def test_a_basis_that_is_not_invariant_is_seen():
    lattice = lattice_of(((0.5, 0.5), (0.9, 0.95)), 200)
    traces = Traces(lattice)
    defect, errors = defect_of(lattice, 0.4 - 2.0j)
    exact = squared(lattice, defect)
    start = traces.leading.vectors.astype(complex)
    value, error = traces._bounded(defect, errors, start)
    assert abs(value - exact) <= error
    assert error > 1e-8
    # a leading eigenvector is missing: the bound must say so
    good = traces._krylov(1.0 - defect)
    value, error = traces._bounded(defect, errors, good[:, 1:])
    assert abs(value - exact) > 1e-3
    assert abs(value - exact) <= error


@pytest.mark.parametrize(
    ("parts", "white", "bins", "ripple", "exponent"),
    [
        (((0.5, 0.5), (0.9, 0.9)), 0.5, 40, 0.5, 1.0 - 9.0j),
        (((0.5, 0.9),), 0.0005, 100, 1e-3, 20.0 - 300.0j),
    ],
)
def test_where_a_subspace_is_too_small_powers_in_full_have_small_errors(parts, white, bins, ripple, exponent):
    lattice = build_lattice(MixtureGram(bins, white, parts, 0.0), remove=True, ripple=ripple, outside=1e-2)
    assert DENSE < lattice.size <= MOST_FULL
    traces = Traces(lattice)
    defect, errors = defect_of(lattice, exponent)
    exact = squared(lattice, defect)
    alone = traces._bounded(defect, errors, traces._krylov(1.0 - defect))
    assert Traces(lattice).trace(defect, errors) == alone
    for goal in (1e-15, 1e-9, 0.1):
        value, error = Traces(lattice).trace(defect, errors, goal)
        assert abs(value - exact) <= error + 1e-12
        assert error <= max(goal, 1e-9)
    assert alone[1] > 1e-7


def test_a_power_that_is_left_out_is_below_its_bound():
    lattice = lattice_of(((0.8, 0.7),), 60)
    traces = Traces(lattice)
    for exponent in (2.0 - 20.0j, 6.0 + 0j, 20.0 - 5.0j):
        defect, errors = defect_of(lattice, exponent)
        exact = squared(lattice, defect)
        for goal in (1e-2, 1e-6, 1e-12):
            value, error = traces._power(1.0 - defect, errors, goal)
            assert abs(value - exact) <= error + 1e-12
    # 0 is returned for a trace that is below the goal, and is not for one above it
    assert traces._power(1.0 - defect, errors, 0.5)[0] == 0.0
    assert traces._power(np.ones(lattice.size, dtype=complex), np.zeros(lattice.size), 1e-3)[0].real > 0.5


def test_the_ceiling_is_above_the_trace():
    lattice = lattice_of(((0.5, 0.5), (0.9, 0.9)), 60)
    traces = Traces(lattice)
    for exponent in (0j, 0.4 + 0j, 30.0 + 0j):
        defect, _ = defect_of(lattice, exponent)
        assert squared(lattice, defect).real <= traces.ceiling(defect.real)
    assert traces.ceiling(defect_of(lattice, 3000.0 + 0j)[0].real) < 1e-6


def test_too_many_eigenvalues_are_refused():
    with pytest.raises(NumericalError, match="eigenvalues"):
        Traces(lattice_of(((0.5, 0.9), (0.9, 0.95)), 20))


@pytest.mark.parametrize("exponent", [1e-9 - 1e-8j, 0.3 - 4.0j, 25.0 - 900.0j])
def test_the_transform_of_one_bin_at_many_digits(exponent):
    increments = np.geomspace(1e-12, 40.0, 9)
    values, errors = bin_transform(increments, LAW, exponent)
    with mpmath.workdps(40):
        for increment, value, error in zip(increments, values, errors, strict=True):
            exact = mpmath.fsum(
                mpmath.mpf(chance) * -mpmath.expm1(-mpmath.mpc(exponent) * mpmath.mpf(increment) * size)
                for size, chance in zip(LAW.sizes.tolist(), LAW.chances.tolist(), strict=True)
            )
            assert abs(complex(exact - mpmath.mpc(complex(value)))) <= error
            assert error <= 1e-13 * (1.0 + abs(exponent) * increment)


def test_a_power_beyond_float64_has_no_bound():
    assert _power_error(np.diag([10.0 + 0j, 0.1]), 1e-16, 390) == np.inf
    assert _power_error(np.diag([1.0 + 0j, 0.1]), 1e-16, 390) == pytest.approx(2 * 390 * 1e-16)
