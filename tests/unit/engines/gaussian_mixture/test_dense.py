import math
import pickle

import numpy as np
import pytest

from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.dominating_pair import _structured, folded
from dpmech.engines.gaussian_mixture.gram import CirculantGram, FactorGram, fft_rounding
from dpmech.exceptions import InvalidParameterError

ROW = np.array([2.0, 0.9, 0.4, 0.2, 0.4, 0.9])
CIRCULANT = np.array([np.roll(ROW, i) for i in range(6)])
M = np.abs(np.random.default_rng(0).standard_normal((5, 12)))


def correlate(x):
    return x @ M.T


def expand(v):
    return v @ M


def not_the_transpose(v):
    return 1.01 * (v @ M)


def pairs():
    factor = FactorGram(5, 12, correlate, expand, scale=0.3)
    return [
        (DenseGram(CIRCULANT), CIRCULANT),
        (CirculantGram(ROW), CIRCULANT),
        (factor, 0.3 * M @ M.T),
        (DenseGram(np.ones((4, 4))), np.ones((4, 4))),
        (DenseGram([[1.5]]), np.array([[1.5]])),
        (CirculantGram([1.5]), np.array([[1.5]])),
        (CirculantGram([1.5, 0.5]), np.array([[1.5, 0.5], [0.5, 1.5]])),
    ]


@pytest.mark.parametrize("case", range(7))
@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_products_agree_with_the_matrix(case, factor):
    gram, matrix = pairs()[case]
    gram, matrix = pickle.loads(pickle.dumps(gram.scaled(factor))), factor * matrix
    bins = gram.bins
    rng = np.random.default_rng(case)
    values = rng.standard_normal((bins, 3))
    assert gram.diagonal == pytest.approx(np.diag(matrix))
    assert gram.matmat(values) == pytest.approx(matrix @ values)
    assert gram.matvec(values[:, 0]) == pytest.approx(matrix @ values[:, 0])
    indices = rng.integers(bins, size=4)
    assert gram.columns(indices) == pytest.approx(matrix[indices])
    for width in (1, 3, 40):
        tuples = rng.integers(bins, size=(7, width))
        sums = matrix[tuples].sum(axis=1)
        assert gram.column_sums(tuples) == pytest.approx(sums)
        assert gram.tuple_fields(tuples) == pytest.approx(np.take_along_axis(sums, tuples, axis=1))
    for offsets in (np.zeros(bins), rng.random(bins)):
        expected = np.log(np.exp(offsets + 1.7 * matrix).mean(axis=1))
        assert gram.log_row_means(1.7, offsets, np.arange(bins)) == pytest.approx(expected)
    assert str(bins) in repr(gram)


@pytest.mark.parametrize("case", range(7))
def test_samples_have_the_covariance(case):
    gram, matrix = pairs()[case]
    drawn = gram.sample(np.random.default_rng(1), 200_000)
    assert drawn.shape == (200_000, gram.bins)
    scale = np.sqrt(np.outer(np.diag(matrix), np.diag(matrix)))
    # an empirical covariance has standard deviation at most sqrt(2 / n) of the scale; 6.2 of them is 1e-9
    assert np.max(np.abs(drawn.T @ drawn / 200_000 - matrix) / scale) < 6.5 * np.sqrt(2 / 200_000)


@pytest.mark.parametrize("case", range(7))
def test_scaling_keeps_the_normals(case):
    gram, _ = pairs()[case]
    one = gram.sample(np.random.default_rng(3), 5)
    two = gram.scaled(4.0).sample(np.random.default_rng(3), 5)
    assert two == pytest.approx(2.0 * one)


@pytest.mark.parametrize(
    ("matrix", "text"),
    [
        ([[1.0, 0.2], [0.3, 1.0]], "symmetric"),
        ([[1.0, -0.2], [-0.2, 1.0]], "non-negative"),
        ([[0.0]], "positive diagonal"),
        ([[1.0, 2.0], [2.0, 1.0]], "semidefinite"),
    ],
)
def test_dense_refusals(matrix, text):
    with pytest.raises(InvalidParameterError, match=text):
        DenseGram(matrix)


@pytest.mark.parametrize(
    ("row", "text"),
    [([1.0, 0.5, 0.2], "symmetric"), ([0.0, 0.0], "positive first"), ([1.0, 2.0, 2.0], "semidefinite")],
)
def test_circulant_refusals(row, text):
    with pytest.raises(InvalidParameterError, match=text):
        CirculantGram(row)


@pytest.mark.parametrize("shape", ["prefix sums", "late", "root"])
def test_the_rounding_of_two_convolutions_holds(shape):
    """Term by term as it is proved, with the norms of the very vectors, and against long double."""
    n, bins = 400, 200
    coefs = {
        "prefix sums": np.ones(n),
        "late": np.concatenate([[1.0], np.zeros(n - 2), [100.0]]),
        "root": 1.0 / np.sqrt(1.0 + np.arange(n)),
    }[shape]
    mean = folded(coefs, bins)
    rows = np.array([np.concatenate([np.zeros(i), mean[: n - i]]) for i in range(bins)])
    gram = _structured(mean, bins, 1e-12).scaled(0.3)
    top, each = float(np.max(np.sum(rows**2, axis=1))), fft_rounding(n + bins)
    for v in (np.ones(bins), np.eye(bins)[0], np.random.default_rng(0).standard_normal(bins)):
        total, norm = float(np.abs(v).sum()), float(np.linalg.norm(v))
        bound = gram.product_rounding(total, norm)
        first = each * math.sqrt(top * n) * norm
        second = each * (float(np.linalg.norm(v @ rows)) + first)
        assert bound >= 0.3 * math.sqrt(top) * (first + second)
        exact = 0.3 * (rows.astype(np.longdouble) @ (v.astype(np.longdouble) @ rows))
        exact += 0.3 * (1e-12 * top) * v.sum()  # what is raised
        assert np.max(np.abs(gram.matvec(v) - exact)) <= bound


def test_factor_refusals():
    with pytest.raises(InvalidParameterError, match="transpose"):
        FactorGram(5, 12, correlate, not_the_transpose)
    with pytest.raises(InvalidParameterError, match="5 positive numbers"):
        FactorGram(5, 12, correlate, expand, diagonal=[1.0])
    with pytest.raises(InvalidParameterError, match="factor"):
        FactorGram(5, 12, correlate, expand).scaled(0.0)


def test_factor_takes_a_diagonal():
    gram = FactorGram(5, 12, correlate, expand, diagonal=np.diag(M @ M.T))
    assert gram.diagonal == pytest.approx(np.diag(M @ M.T))
    assert not gram.cheap_columns
    assert not gram.circulant


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_a_spectrum_may_be_negative_by_rounding_alone(scale):
    # The spectrum of (1, c, c, ...) is 1 + (b - 1) c and 1 - c.
    nearly = np.full(6, 1.0 + 1e-10)
    nearly[0] = 1.0
    assert CirculantGram(scale * nearly).bins == 6
    clearly = np.full(6, 1.0 + 1e-7)
    clearly[0] = 1.0
    with pytest.raises(InvalidParameterError, match="positive semidefinite"):
        CirculantGram(scale * clearly)
