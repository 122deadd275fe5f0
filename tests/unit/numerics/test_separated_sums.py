import numpy as np
import pytest

from dpmech.numerics.toeplitz import best_separated_sum, best_separated_sums, windowed_sums
from tests.support import oracles as oracle

pytestmark = pytest.mark.usefixtures("longdouble")


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
def test_best_separated_sum_is_the_best_of_all_sets(n):
    rng = np.random.default_rng(n)
    for min_sep in range(1, n + 2):
        for count in range(1, n + 2):
            weights = rng.exponential(size=n) * rng.integers(0, 2, size=n)
            expected = max(
                sum(weights[i] for i in steps) for steps in oracle.separated_sets(n, min_sep, count)
            )
            assert best_separated_sum(weights, min_sep, count) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("min_sep", "count"), [(1, 3), (1, 9), (2, 2), (3, 3), (4, 1), (2, 0)])
def test_every_row_is_summed_on_its_own(min_sep, count):
    rows = np.random.default_rng(5).exponential(size=(4, 9))
    expected = [best_separated_sum(row, min_sep, count) for row in rows]
    assert best_separated_sums(rows, min_sep, count).tolist() == expected


def test_greedy_would_be_wrong():
    assert best_separated_sum(np.array([0.0, 2.0, 3.0, 2.0, 0.0]), 2, 2) == 4.0
    assert best_separated_sum(np.array([0.0, 2.0, 3.0, 2.0, 0.0]), 2, 1) == 3.0


def test_nothing_to_choose():
    assert best_separated_sum(np.array([1.0, 2.0]), 1, 0) == 0.0
    assert best_separated_sum(np.zeros(0), 1, 3) == 0.0


@pytest.mark.parametrize("n", [1, 4, 7, 12])
def test_windowed_sums(n):
    values = np.random.default_rng(n).normal(size=n)
    for stride in range(1, n + 2):
        for count in range(1, n + 2):
            expected = [sum(values[s : s + count * stride : stride]) for s in range(n)]
            np.testing.assert_allclose(windowed_sums(values, stride, count), expected, atol=1e-14)
