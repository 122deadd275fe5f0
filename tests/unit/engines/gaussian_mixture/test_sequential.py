"""Factors as a recursion against the dense products that they replace."""

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture import dense_gram as dense
from dpmech.engines.gaussian_mixture import dense_gram as sequential
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram, SequentialFactor
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram
from dpmech.engines.gaussian_mixture.gram import factor_rounding

BINS = 150
SHORT = [
    dm.LambdaCGD(3 * BINS, 0.9),
    dm.SquareRoot(3 * BINS, 4),
    dm.BLT(3 * BINS, (0.9, 0.5), (0.3, 0.2)),
    dm.Identity(3 * BINS),
]


def covariance(strategy):
    """The Gram matrix of the bins from the dense strategy, at sigma 1."""
    matrix = strategy.to_dense()
    means = sum(matrix[:, first : first + BINS] for first in range(0, strategy.n, BINS))
    return means.T @ means


@pytest.mark.parametrize("strategy", SHORT, ids=repr)
def test_products_are_those_of_the_factor(strategy):
    exact = covariance(strategy)
    factor = np.linalg.cholesky(exact)
    found = SequentialFactor.of(factor)
    size = np.sqrt(exact.max())
    rows = np.random.default_rng(1).standard_normal((70, BINS))
    assert np.allclose(found.applied(rows.copy()), rows @ factor.T, rtol=0, atol=1e-12 * size)
    assert np.allclose(found.transpose_applied(rows.copy()), rows @ factor, rtol=0, atol=1e-12 * size)
    made = found.applied(np.eye(BINS)).T
    assert np.max(np.abs(made @ made.T - exact)) <= 0.1 * factor_rounding(BINS) * exact.max()
    assert np.array_equal(np.triu(made, 1), np.zeros((BINS, BINS)))
    assert sum(table.size for table in found.tables) < 0.4 * BINS**2


def test_rows_are_worked_on_in_place_a_few_at_a_time(monkeypatch):
    factor = np.linalg.cholesky(covariance(SHORT[0]))
    found = SequentialFactor.of(factor)
    rows = np.random.default_rng(2).standard_normal((23, BINS))
    whole = [found.applied(rows.copy()), found.transpose_applied(rows.copy())]
    monkeypatch.setattr(sequential, "BATCH_ENTRIES", 5 * BINS)
    again = rows.copy()
    assert found.applied(again) is again
    assert np.allclose(again, whole[0], rtol=0, atol=1e-13)
    assert np.allclose(found.transpose_applied(rows), whole[1], rtol=0, atol=1e-13)


def test_a_factor_without_structure_or_of_few_columns_is_left_alone():
    rng = np.random.default_rng(3)
    assert SequentialFactor.of(np.linalg.cholesky(np.eye(BINS) + np.tri(BINS) @ np.tri(BINS).T)) is not None
    noise = np.tril(rng.standard_normal((BINS, BINS)))
    assert SequentialFactor.of(noise) is None
    assert SequentialFactor.of(np.eye(sequential.FEWEST - 1)) is None


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_a_gram_matrix_draws_and_multiplies_by_it(factor):
    exact = covariance(SHORT[0])
    gram = bin_gram(SHORT[0], BINS).scaled(factor)
    assert gram._sequential is not None
    normals = np.random.default_rng(4).standard_normal((9, BINS))
    drawn = gram.sample(np.random.default_rng(4), 9)
    size = np.sqrt(factor * exact.max())
    expected = np.sqrt(factor) * normals @ np.linalg.cholesky(exact).T
    assert np.allclose(drawn, expected, rtol=0, atol=1e-12 * size)
    for columns in (3, dense.SEVERAL, 40):
        values = np.random.default_rng(5).random((BINS, columns))
        assert np.allclose(gram.matmat(values), factor * exact @ values, rtol=1e-11)
        assert np.array_equal(values, np.random.default_rng(5).random((BINS, columns)))


def test_a_recursion_that_misses_the_matrix_is_not_used(monkeypatch):
    exact = covariance(SHORT[0])
    of = SequentialFactor.of
    assert DenseGram(exact)._sequential is not None
    monkeypatch.setattr(SequentialFactor, "of", lambda factor: of(factor * (1.0 + 1e-12)))
    assert DenseGram(exact)._sequential is None


def test_a_singular_matrix_has_none():
    assert DenseGram(np.ones((BINS, BINS)))._sequential is None
