"""Brackets of a dense strategy against all sets and signs, and sums that cancel against exact fractions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.mechanism import sensitivities


def dense(seed, n):
    rng = np.random.default_rng(seed)
    matrix = np.tril(rng.standard_normal((n, n)))
    matrix[np.diag_indices(n)] = np.abs(np.diag(matrix)) + 1.0
    return matrix


def separated_sets(n, b, k):
    for size in range(1, k + 1):
        for chosen in itertools.combinations(range(n), size):
            if all(later - earlier >= b for earlier, later in itertools.pairwise(chosen)):
                yield list(chosen)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("b", "k"), [(2, 2), (2, 3), (3, 3)])
def test_the_bracket_is_that_of_rows_and_signs(seed, b, k):
    n = 9
    matrix = dense(seed, n)
    found = dm.sensitivity(dm.Dense(matrix), dm.MinSep(b, k))
    gram = np.abs(matrix.T @ matrix)
    sets = list(separated_sets(n, b, k))
    rows = [max(gram[i, chosen].sum() for chosen in sets if i in chosen) for i in range(n)]
    upper = math.sqrt(max(sum(rows[i] for i in chosen) for chosen in sets))
    assert found.upper == pytest.approx(upper, rel=1e-9)
    truth = max(
        float(np.linalg.norm(matrix[:, chosen] @ np.array(signs)))
        for chosen in sets
        for signs in itertools.product((1.0, -1.0), repeat=len(chosen))
    )
    assert found.lower <= truth <= found.upper
    # The lower end is no less than the best signs on the evenly spaced set with the largest ceiling.
    starts = [list(range(start, n, b))[:k] for start in range(n)]
    best = max(starts, key=lambda chosen: gram[np.ix_(chosen, chosen)].sum())
    reached = max(
        float(np.linalg.norm(matrix[:, best] @ np.array(signs)))
        for signs in itertools.product((1.0, -1.0), repeat=len(best))
    )
    assert found.lower >= reached * (1.0 - 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_columns_that_cancel_are_known_to_their_rounding(seed):
    n = 24
    matrix = dense(seed, n)
    # Rows that sum to little beside their entries.
    for row in range(1, n):
        matrix[row, 0] = -math.fsum(matrix[row, 1 : row + 1]) + 1e-13
    value, off = sensitivities._together(dm.Dense(matrix), 1, n)
    exact = sum(sum(map(Fraction, row.tolist())) ** 2 for row in matrix)
    root = math.sqrt(exact)
    assert root < 0.5 * float(np.linalg.norm(matrix, axis=0).sum())
    assert abs(value - root) <= off
    assert off >= 2.0**-53 * float(np.linalg.norm(matrix, axis=0).sum())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("k", [1, 4, 7, 13])
def test_best_signs_are_best_up_to_twelve_columns(seed, k):
    matrix = dense(seed, 16)
    found = sensitivities._best_signs(dm.Dense(matrix), dm.MinSep(1, k).pattern(16), 2)
    columns = matrix[:, 2 : 2 + k]
    signs = np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=k - 1)])
    best = float((np.linalg.norm(columns @ signs.T, axis=0) ** 2).max())
    assert found <= best * (1.0 + 1e-9)
    if k <= 12:
        assert found >= best * (1.0 - 1e-9)


def test_the_leftmost_columns_are_a_lower_end_by_themselves(monkeypatch):
    monkeypatch.setattr(sensitivities, "_LOWER_WORK", 0)
    matrix = dense(1, 9)
    found = dm.sensitivity(dm.Dense(matrix), dm.MinSep(2, 3))
    together = float(np.linalg.norm(matrix[:, [0, 2, 4]].sum(axis=1)))
    assert together * (1.0 - 1e-9) <= found.lower <= found.upper


def test_column_norms_that_count_as_equal_widen_the_bracket():
    # Norms within 1e-14 of one another count as equal: each end allows for that much.
    found = dm.sensitivity(dm.ColumnNormalized(dm.LambdaCGD(20, 0.9)), dm.MinSep(2, 6))
    assert "Lemma 8" in str(found.by)
    assert found.lower > 2.0
    assert found.upper - found.lower >= 2e-14 * found.lower
