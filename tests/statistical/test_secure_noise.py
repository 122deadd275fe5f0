"""Normal numbers from the cipher against the normal law.

Every test rejects a correct library with probability at most ALPHA, and a planted fault must be rejected: one
number in fifty taken from a law of twice the width, tails that are cut, and pairs that share their radius.
"""

import numpy as np
import pytest
import scipy.stats

torch = pytest.importorskip("torch")

from dpmech.optim.noise.secure_normals import SecureNormals  # noqa: E402 - after the check for torch

ALPHA = 1e-9
CHUNKS = 8
NORMAL = scipy.stats.norm


@pytest.fixture(scope="module")
def values():
    """262,144 numbers; the key is fixed, so that the test says the same every time."""
    source = SecureNormals((3, 4))
    out = torch.empty(CHUNKS, source.chunk, dtype=torch.float64)
    for number, chunk in enumerate(out):
        source.fill(chunk, 5, 1, 0, number)
    return out.numpy().ravel()


def kolmogorov(values):
    return scipy.stats.kstest(values, "norm").pvalue


def wider(values):
    faulty = values.copy()
    faulty[::50] *= 2.0
    return faulty


def moment(values, power):
    """How far an empirical moment is from that of the law, in its standard deviations."""
    mean, square = (NORMAL.moment(order) for order in (power, 2 * power))
    return abs(np.mean(values**power) - mean) / np.sqrt((square - mean**2) / values.size)


def test_the_law_is_normal(values):
    assert kolmogorov(values) > ALPHA
    assert kolmogorov(values + 0.02) < ALPHA
    assert kolmogorov(0.97 * values) < ALPHA


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_moments_are_those_of_the_law(values, power):
    """8 standard deviations: 1e-15 for the mean; fourth powers of 2.6e5 numbers have tails a little wider."""
    assert moment(values, power) < 8.0
    assert moment(values + 0.03 if power % 2 else wider(values), power) > 8.0


def test_tails_are_there(values):
    """Numbers beyond 3: a binomial count."""
    prob = 2.0 * NORMAL.sf(3.0)
    outside = int(np.sum(np.abs(values) > 3.0))
    assert scipy.stats.binomtest(outside, values.size, prob).pvalue > ALPHA
    assert scipy.stats.binomtest(0, values.size, prob).pvalue < ALPHA
    faulty = int(np.sum(np.abs(wider(values)) > 3.0))
    assert scipy.stats.binomtest(faulty, values.size, prob).pvalue < ALPHA


def test_the_two_of_a_pair_are_independent(values):
    """Squares too: r^2 must be exponential, and the angle uniform, of all pairs of neighbours."""
    first, second = values[0::2], values[1::2]
    for one, other in ((first, second), (first[1:], second[:-1])):
        squares = (one**2 + other**2) / 2.0
        assert scipy.stats.kstest(squares, "expon").pvalue > ALPHA / 4
        angles = np.arctan2(other, one) / (2.0 * np.pi) + 0.5
        assert scipy.stats.kstest(angles, "uniform").pvalue > ALPHA / 4
    shared = (first**2 + first**2) / 2.0
    assert scipy.stats.kstest(shared, "expon").pvalue < ALPHA
