import numpy as np
import pytest

from dpmech.engines.convex_order.mixture_ring import MixtureGram
from dpmech.exceptions import InvalidParameterError


def dense(gram):
    """The matrix itself, each exponential as a sum over all windings of the ring."""
    index = np.arange(gram.bins)
    gaps = index[:, None] - index[None, :]
    matrix = gram.white * np.eye(gram.bins) + gram.constant
    for amplitude, decay in gram.parts:
        wound = sum(decay ** np.abs(gaps + turn * gram.bins) for turn in range(-300, 301))
        matrix = matrix + amplitude * wound / wound[0, 0]
    return matrix


GRAMS = [
    MixtureGram(2, 0.3, ((0.5, 0.7),), 0.0),
    MixtureGram(7, 0.3, ((0.5, 0.7), (1.5, 0.9)), 0.2),
    MixtureGram(6, 1.0, (), 0.5),
    MixtureGram(2, 0.3, ((0.5, -0.7),), 0.0),
    MixtureGram(7, 0.3, ((0.5, 0.7), (1.5, -0.9)), 0.2),
    MixtureGram(8, 0.3, ((0.5, -0.3), (1.5, -0.9)), 0.0),
]


@pytest.mark.parametrize("gram", GRAMS)
def test_profile_diagonal_and_mean_are_those_of_the_matrix(gram):
    matrix = dense(gram)
    np.testing.assert_allclose(gram.profile(), matrix[0, : gram.bins // 2 + 1], rtol=1e-12)
    assert gram.diagonal == pytest.approx(matrix[0, 0], rel=1e-12)
    assert matrix.mean() * (1 - 1e-13) <= gram.mean <= matrix.mean() * (1 + 1e-11)
    np.testing.assert_allclose(gram.scaled(0.25).profile(), 0.25 * gram.profile(), rtol=1e-14)


@pytest.mark.parametrize(
    "arguments",
    [
        (1, 1.0, (), 0.0),
        (4, 0.0, (), 0.0),
        (4, 1.0, ((0.0, 0.5),), 0.0),
        (4, 1.0, ((1.0, 1.0),), 0.0),
        (4, 1.0, ((1.0, -1.0),), 0.0),
        (4, 1.0, ((1.0, 0.0),), 0.0),
        (4, 1.0, ((1.0, 0.5),) * 3, 0.0),
        (4, 1.0, (), -1.0),
    ],
)
def test_refused(arguments):
    with pytest.raises(InvalidParameterError):
        MixtureGram(*arguments)
