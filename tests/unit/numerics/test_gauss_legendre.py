import mpmath as mp
import numpy as np
import pytest

from dpmech.numerics.quadrature import gauss_legendre


@pytest.mark.parametrize("count", [2, 3, 8, 20])
def test_nodes_and_weights_are_rounded_once(count):
    nodes, weights = gauss_legendre(count)
    assert nodes.size == weights.size == count
    with mp.workdps(40):
        for node, weight in zip(nodes, weights, strict=True):
            root = mp.findroot(lambda t: mp.legendre(count, t), mp.mpf(float(node)))
            slope = mp.diff(lambda t: mp.legendre(count, t), root)
            exact = 2 / ((1 - root**2) * slope**2)
            assert abs(mp.mpf(float(node)) - root) <= mp.mpf(2) ** -53 * max(abs(root), mp.mpf(10) ** -20)
            assert abs(mp.mpf(float(weight)) - exact) <= mp.mpf(2) ** -53 * exact * (1 + mp.mpf(10) ** -9)


def test_the_weights_of_numpy_would_not_do():
    """Why there is a rule of our own: those are off by more than a bound on rounding errors counts."""
    off = np.abs(np.polynomial.legendre.leggauss(20)[1] / gauss_legendre(20)[1] - 1.0)
    assert off.max() > 100 * 2.0**-53


@pytest.mark.parametrize("count", [3, 20])
def test_polynomials_are_integrated_exactly(count):
    nodes, weights = gauss_legendre(count)
    for degree in range(2 * count):
        exact = 2.0 / (degree + 1) if degree % 2 == 0 else 0.0
        assert (
            float(weights @ nodes**degree) == np.float64(exact)
            or abs(float(weights @ nodes**degree) - exact) < 1e-15
        )
