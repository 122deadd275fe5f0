"""Brackets of a dense strategy against all sets and signs, and sums that cancel against exact fractions."""

import itertools
import math
import types
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.mechanism import sensitivities
from dpmech.mechanism.participation import Pattern
from dpmech.numerics.bounds import Bounds


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


# ---- what is added for roundings, with units large enough to be seen

BY = dm.numerics.Provenance("sensitivity.largest_column")
UNIT, GRAM, OF_PRODUCT = 2.0**-16, 2.0**-9, 2.0**-8
OUTWARD = 4 * UNIT


def of_sum(n):
    return n * 2.0**-13


@pytest.fixture
def visible(monkeypatch):
    monkeypatch.setattr(sensitivities, "UNIT", UNIT)
    monkeypatch.setattr(sensitivities, "sum_rounding", of_sum)
    monkeypatch.setattr(sensitivities, "convolution_rounding", lambda a, b: OF_PRODUCT)


def around(lower, upper, off):
    """The ends of a bracket whose sums are off by that much, in four more roundings."""
    return (lower - off) * (1 - OUTWARD), (upper + off) * (1 + OUTWARD)


def ends(bounds):
    return bounds.lower, bounds.upper


class Signed:
    """C = [1, -1/2, 1/4] as a Toeplitz strategy, or as a dense one, with a rounding of its inner products."""

    n, gram_rounding, nonnegative, inverse_bands, bands = 6, GRAM, False, None, None

    def __init__(self, *, factored=True, scale=None):
        self.coefs = np.array([1.0, -0.5, 0.25, 0.0, 0.0, 0.0])
        self.matrix = np.array([[self.coefs[i - j] if i >= j else 0.0 for j in range(6)] for i in range(6)])
        if scale is not None:
            self.matrix = self.matrix * scale
        self.factored = types.SimpleNamespace(coefs=self.coefs, scale=scale) if factored else None

    def matmul(self, x):
        return self.matrix @ x

    def column_norms(self):
        return np.linalg.norm(self.matrix, axis=0)


@pytest.mark.usefixtures("visible")
def test_sums_of_columns_are_off_by_their_roundings():
    relative = 2 * of_sum(6)
    dense = Signed(factored=False)
    value = float(np.linalg.norm(dense.matrix[:, [0, 2, 4]].sum(axis=1)))
    size = float(dense.column_norms()[[0, 2, 4]].sum())
    expected = relative * value + GRAM * (value + size)
    assert sensitivities._together(dense, 2, 3) == pytest.approx((value, expected), rel=1e-12)
    dense.nonnegative = True  # nothing cancels: the rounding is relative to the sum
    expected = relative * value + GRAM * (value + value)
    assert sensitivities._together(dense, 2, 3) == pytest.approx((value, expected), rel=1e-12)
    size = float(np.linalg.norm(np.abs(dense.matrix)[:, [0, 2, 4]].sum(axis=1)))
    expected = relative * (value + size)
    assert sensitivities._together(Signed(), 2, 3) == pytest.approx((value, expected), rel=1e-12)
    scaled = Signed(scale=np.linspace(1.0, 2.0, 6))
    value = float(np.linalg.norm(scaled.matrix[:, [0, 2, 4]].sum(axis=1)))
    expected = relative * value + math.sqrt(6) * OF_PRODUCT
    assert sensitivities._together(scaled, 2, 3) == pytest.approx((value, expected), rel=1e-12)


@pytest.mark.usefixtures("visible")
@pytest.mark.parametrize("scale", [None, np.linspace(2.0, 1.0, 6)])
def test_the_monotone_envelope_has_the_roundings_of_both_its_ends(scale):
    strategy = Signed(scale=scale)
    lower, off = sensitivities._together(strategy, 2, 3)
    envelope = np.abs(strategy.coefs)  # non-increasing already
    columns = np.array([[envelope[i - j] if i >= j else 0.0 for j in range(6)] for i in range(6)])
    upper = float(np.linalg.norm(columns[:, [0, 2, 4]].sum(axis=1))) * (1.0 if scale is None else 2.0)
    expected = around(lower, upper, off + 2 * of_sum(6) * upper)
    assert ends(sensitivities._leftmost(strategy, 2, 3)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.usefixtures("visible")
@pytest.mark.parametrize("spread", [0.0, 2.0**-6])
def test_equal_column_norms_count_their_differences(monkeypatch, spread):
    monkeypatch.setattr(sensitivities, "_normalised_geometric", lambda strategy: True)
    monkeypatch.setattr(Signed, "column_norms", lambda strategy: np.array([2.0, 2.0, 2.0 + 2.0 * spread]))
    strategy = Signed(scale=np.ones(6))
    lower, off = sensitivities._together(strategy, 2, 3)
    expected = around(lower, lower * (1.0 + 2.02 * (spread + 2.02 * GRAM)), off)
    assert ends(sensitivities._leftmost(strategy, 2, 3)) == pytest.approx(expected, rel=1e-12)


def test_geometric_columns_of_almost_equal_norm_stay_below_what_lemma_8_is_widened_to():
    """Norms that differ by d take the worst set from the leftmost one, and it exceeds that by up to 2 d."""
    n, lam, b, k, apart = 9, 0.5, 2, 3, 1e-3
    columns = np.tril(lam ** np.subtract.outer(np.arange(n), np.arange(n)))
    columns /= np.linalg.norm(columns, axis=0)
    # Larger by d where the leftmost set {0, 2, 4} has no column.
    columns *= 1.0 + apart * (np.arange(n) % 2)
    sizes = {tuple(one): np.linalg.norm(columns[:, one].sum(axis=1)) for one in separated_sets(n, b, k)}
    leftmost, worst = sizes[0, 2, 4], max(sizes.values())
    assert leftmost < worst <= leftmost * (1.0 + 2.02 * apart)


@pytest.mark.parametrize(("off", "equal"), [(0.9e-14, True), (1.2e-14, False)])
def test_column_norms_are_equal_to_a_part_in_1e14(off, equal):
    factors = types.SimpleNamespace(inverse_coefs=np.array([1.0, -0.5]))
    strategy = types.SimpleNamespace(
        factored=factors, inverse_bands=2, n=3, column_norms=lambda: np.array([2.0, 2.0 * (1.0 + off), 2.0])
    )
    assert sensitivities._normalised_geometric(strategy) is equal


@pytest.mark.usefixtures("visible")
@pytest.mark.parametrize("evenly_spaced", [True, False])
def test_orthogonal_columns_add_a_rounding_a_term(evenly_spaced):
    strategy = Signed(factored=False)
    weights = strategy.column_norms() ** 2
    value = math.sqrt(max(weights[start::3].sum() for start in range(3)))
    rounding = 2 * GRAM + 1.01 * 2 * UNIT + of_sum(6)
    found = sensitivities._orthogonal_columns(strategy, Pattern(3, 2, evenly_spaced=evenly_spaced))
    assert ends(found) == pytest.approx(around(value, value, rounding * value), rel=1e-12)


@pytest.mark.usefixtures("visible")
@pytest.mark.parametrize("nonnegative", [True, False])
def test_sums_of_inner_products_are_off_by_what_each_is(nonnegative):
    strategy = types.SimpleNamespace(n=6, gram_rounding=GRAM, nonnegative=nonnegative)
    found = sensitivities._of_squares(strategy, Pattern(2, 3), 4.0, 9.0, "")
    # An entry is off relative to two norms, and k columns to the sum of their squares k times; where nothing
    # cancels that sum is the value. Two sums of k terms, and two more of n.
    entries = GRAM * (1 if nonnegative else 3)
    off = 1.01 * (entries + 2 * 1.01 * 3 * UNIT + 2 * of_sum(6)) * 9.0
    expected = math.sqrt(4.0 - off) * (1 - OUTWARD), math.sqrt(9.0 + off) * (1 + OUTWARD)
    assert ends(found) == pytest.approx(expected, rel=1e-12)
    assert sensitivities._of_squares(strategy, Pattern(2, 3), 0.01, 9.0, "").lower == 0.0


@pytest.mark.usefixtures("visible")
def test_one_sum_is_widened_at_both_ends():
    assert ends(sensitivities._exact(3.0, 0.0, "")) == (3.0, 3.0)
    assert ends(sensitivities._exact(3.0, 0.125, "")) == pytest.approx(around(3.0, 3.0, 0.375), rel=1e-12)
    assert sensitivities._between(1.0, 2.0, 1.5, "").lower == 0.0


def test_columns_that_are_off_move_a_sensitivity_by_a_root_of_their_number():
    strategy = types.SimpleNamespace(error=1e-5, n=9)
    found = sensitivities._widened(Bounds.bracket(1.0, 2.0, BY), strategy, 4)
    moved = 1.01 * 1e-5 * 2.0
    assert ends(found) == pytest.approx((1.0 - moved, 2.0 * (1.0 + moved)), rel=1e-12)
    # There are no more columns than steps.
    assert ends(sensitivities._widened(Bounds.bracket(1.0, 2.0, BY), strategy, 16))[0] == pytest.approx(
        1.0 - 1.01 * 1e-5 * 3.0, rel=1e-12
    )
    strategy.error = 0.99e-3 / 1.01 / 2.0
    sensitivities._widened(Bounds.bracket(1.0, 2.0, BY), strategy, 4)
    strategy.error = 1.01e-3 / 1.01 / 2.0
    with pytest.raises(dm.NumericalError, match="rounding moves its sensitivity by up to"):
        sensitivities._widened(Bounds.bracket(1.0, 2.0, BY), strategy, 4)


@pytest.mark.parametrize(("b", "k", "rounds"), [(3, 3, 3), (3, 4, 2), (1, 5, 2)])
def test_capped_sets_cost_a_pass_each(monkeypatch, b, k, rounds):
    # Where k says no more than b does, two passes do; the limit is on steps^2 times passes.
    strategy = dm.Dense(dense(1, 10))
    monkeypatch.setattr(sensitivities, "_BRACKET_WORK", 100 * rounds)
    assert sensitivities._bracket(strategy, Pattern(b, k)) is not None
    monkeypatch.setattr(sensitivities, "_BRACKET_WORK", 100 * rounds - 1)
    assert sensitivities._bracket(strategy, Pattern(b, k)) is None


@pytest.mark.parametrize(
    ("inverse", "geometric"),
    [
        ([1.0, -0.5], True),
        ([2.0, -1.8], True),
        ([0.5, -1.0], False),
        ([2.0, 1.0], False),
        ([0.5, -0.5], False),
    ],
)
def test_geometric_columns_have_a_ratio_below_one(inverse, geometric):
    factors = types.SimpleNamespace(inverse_coefs=np.array(inverse))
    strategy = types.SimpleNamespace(factored=factors, inverse_bands=2, n=3, column_norms=lambda: np.ones(3))
    assert sensitivities._normalised_geometric(strategy) is geometric


def test_evenly_spaced_sets_are_looked_at_up_to_a_number_of_columns_in_all(monkeypatch):
    strategy, pattern = dm.Dense(dense(1, 9)), Pattern(3, 3, evenly_spaced=True)
    monkeypatch.setattr(sensitivities, "_LOWER_WORK", 27)
    assert sensitivities._evenly_spaced(strategy, pattern) is not None
    monkeypatch.setattr(sensitivities, "_LOWER_WORK", 26)
    assert sensitivities._evenly_spaced(strategy, pattern) is None


@pytest.mark.parametrize(("off", "least"), [(0.5, 6.25), (4.0, 0.0)])
def test_the_lower_end_of_a_bracket_takes_the_rounding_off(monkeypatch, off, least):
    given = []
    monkeypatch.setattr(sensitivities, "_LOWER_WORK", 0)
    monkeypatch.setattr(sensitivities, "_together", lambda *_: (3.0, off))
    monkeypatch.setattr(sensitivities, "_of_squares", lambda *ends: given.append(ends[2]))
    sensitivities._bracket(dm.Dense(dense(1, 9)), Pattern(2, 3))
    assert given == [least]
