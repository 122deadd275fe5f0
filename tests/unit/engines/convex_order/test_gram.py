import math

import numpy as np
import pytest

from dpmech.engines.convex_order.ring import RingGram
from dpmech.exceptions import InvalidParameterError


def full(ring):
    index = np.arange(ring.bins)
    distance = np.abs(index[:, None] - index[None, :])
    return ring.profile()[np.minimum(distance, ring.bins - distance)]


def test_profile_is_the_documented_formula():
    ring = RingGram(7, 0.25, 2.0, 0.6, 0.125)
    expected = [2.0 * (0.6**d + 0.6 ** (7 - d)) / (1 + 0.6**7) + 0.125 + 0.25 * (d == 0) for d in range(4)]
    np.testing.assert_allclose(ring.profile(), expected, rtol=1e-14)
    assert ring.diagonal == pytest.approx(ring.profile()[0])
    np.testing.assert_allclose(ring.scaled(3.0).profile(), 3.0 * ring.profile(), rtol=1e-14)
    assert np.linalg.eigvalsh(full(ring)).min() >= 0.25 - 1e-12


def test_the_ring_is_the_periodised_lambda_gram():
    # sum over all images of lam^|d + m b|, times k / ((1 - lam^2) sigma^2)
    start = 4 / ((1 - 0.49) * 1.69)
    ring = RingGram(9, 0.0, start * (1 + 0.7**9) / (1 - 0.7**9), 0.7, 0.0)
    for d in range(5):
        images = sum(0.7 ** abs(d + 9 * m) for m in range(-60, 61))
        assert ring.profile()[d] == pytest.approx(4 / ((1 - 0.49) * 1.69) * images, rel=1e-12)


@pytest.mark.parametrize(
    "change",
    [{"bins": 0}, {"bins": 2.0}, {"white": -1.0}, {"amplitude": math.nan}, {"decay": 1.0}, {"constant": "1"}],
)
def test_ring_gram_refuses(change):
    values = {"bins": 3, "white": 0.0, "amplitude": 1.0, "decay": 0.5, "constant": 0.0}
    with pytest.raises(InvalidParameterError):
        RingGram(**(values | change))


def test_scaled_refuses_zero():
    with pytest.raises(InvalidParameterError):
        RingGram(2, 0.0, 1.0, 0.5, 0.0).scaled(0.0)
