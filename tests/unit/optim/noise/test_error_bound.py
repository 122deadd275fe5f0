"""The error bounds of the noise compared with exact residuals, and keys and weights at their limits."""

import types
from fractions import Fraction

import numpy as np
import pytest
import torch

import dpmech as dm
from dpmech.numerics.series import series_inverse
from dpmech.optim.noise import rows as noise_error
from dpmech.optim.noise.normals import noise_key
from dpmech.optim.noise.rows import Chunk, Kind, _Weighted
from dpmech.optim.noise.secure_normals import _check_key


def exact_residual(coefs, inverse):
    """The sum of moduli of the first coefficients of their product minus 1."""
    f, g = list(map(Fraction, coefs)), [Fraction(float(x)) for x in inverse]
    total = Fraction(0)
    for t in range(len(f)):
        total += abs(sum(f[s] * g[t - s] for s in range(t + 1)) - (t == 0))
    return float(total)


def blt(n, off):
    """C of a BLT as its buffers compute it, and its inverse with every other entry off, relative."""
    decays, weights = np.array([0.9, 0.5]), np.array([0.3, 0.2])
    coefs = np.array([1.0, *(float(weights @ decays**t) for t in range(n - 1))])
    inverse = series_inverse(coefs, n) * (1.0 + off * (np.arange(n) % 2))
    return types.SimpleNamespace(n=n, coefs=coefs, inverse_coefs=inverse, exponentials=(decays, weights))


@pytest.mark.parametrize("off", [0.0, 1e-12, 1e-6])
@pytest.mark.parametrize("route", ["direct", "transform", "exponentials"])
def test_residuals_are_not_below_the_exact_ones(monkeypatch, off, route):
    factors = blt(48, off)
    if route != "direct":
        monkeypatch.setattr(noise_error, "_DIRECT_WORK", 0)
    if route == "transform":
        factors.exponentials = None
    bound = noise_error._residual(factors)
    coefs = [Fraction(float(x)) for x in factors.coefs]
    if route == "exponentials":
        # The buffers compute powers without rounding.
        decays, weights = ([Fraction(float(x)) for x in part] for part in factors.exponentials)
        powers = [sum(w * d**t for d, w in zip(decays, weights, strict=True)) for t in range(47)]
        coefs = [Fraction(1), *powers]
    truth = exact_residual(coefs, factors.inverse_coefs)
    assert truth <= bound
    assert bound <= 1.01 * truth + 1e-11
    if route == "exponentials":
        product, own = noise_error._exponentials_product(factors.inverse_coefs, *factors.exponentials)
        product[0] -= 1.0
        assert abs(float(np.abs(product).sum()) - truth) <= own <= 1e-13


@pytest.mark.parametrize("route", ["combination", "substitution", "exponentials"])
def test_a_bound_is_above_one_rounding_of_every_weight(route):
    # Rows whose weights are each off by a rounding are off by at least that much of |C| |C^-1|.
    strategy = dm.BLT(200, [0.9, 0.5], [0.3, 0.2])
    factors = strategy.factored
    bound = {
        "combination": lambda: noise_error.combination_error(strategy, None),
        "substitution": lambda: noise_error.substitution_error(strategy, 200),
        "exponentials": lambda: noise_error.exponentials_error(factors, *factors.exponentials),
    }[route]()
    matrix = np.array([[factors.coefs[i - j] if i >= j else 0.0 for j in range(200)] for i in range(200)])
    signs = np.sign(np.linalg.inv(matrix))
    moved = 2.0**-53 * np.abs(np.linalg.inv(matrix)) * signs
    assert np.linalg.norm(matrix @ moved, 2) <= bound <= 1e-10


# ---- the bounds as in the docstrings, with dense matrices and units large enough to be visible

UNIT, WIDE, SLACK, FACTORS = 2.0**-11, 2.0**-13, 1.0 + 1e-6, 8


@pytest.fixture
def visible(monkeypatch):
    monkeypatch.setattr(noise_error, "_UNIT", UNIT)
    monkeypatch.setattr(noise_error, "LONGDOUBLE_UNIT", WIDE)


def gamma(count):
    return float(Fraction(count) * Fraction(UNIT) / (1 - Fraction(count) * Fraction(UNIT)))


def lower(coefs):
    n = len(coefs)
    return np.array([[coefs[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def product_norm(matrix, inverse):
    """Upper bound on the spectral norm of |C| |C^-1|: the root of its largest row and column sums."""
    both = np.abs(matrix) @ np.abs(inverse)
    return np.sqrt(both.sum(axis=0).max() * both.sum(axis=1).max())


def remembered(decays, n):
    """Number of steps over which a buffer keeps rounding errors: all, or fewer due to its decay."""
    return [n if 1.0 / (1.0 - decay) > n else 1.0 / (1.0 - decay) for decay in decays]


def responses(decays, inverse):
    """The sum of moduli of one buffer after a unit impulse: b_t = d b_(t-1) + y_(t-1)."""
    n = len(inverse)
    return [
        sum(abs(sum(decay ** (t - 1 - s) * inverse[s] for s in range(t))) for t in range(n))
        for decay in decays
    ]


def halves(n):
    """C = [1, -1/2] and its inverse, both without any rounding."""
    coefs = np.array([1.0, -0.5] + [0.0] * (n - 2))
    return types.SimpleNamespace(n=n, coefs=coefs, inverse_coefs=0.5 ** np.arange(n), exponentials=None)


@pytest.mark.usefixtures("visible")
def test_many_roundings_are_more_than_their_sum():
    for count in (1, 8, 100, 1024):
        assert noise_error._gamma(count) == pytest.approx(gamma(count), rel=1e-14)


@pytest.mark.usefixtures("visible")
@pytest.mark.parametrize("route", ["direct", "transform"])
def test_an_exact_inverse_leaves_the_roundings_of_the_product(monkeypatch, route):
    factors = halves(24)
    sums = 1.5, float(factors.inverse_coefs.sum())
    if route == "direct":
        # Sums of two terms, and two more roundings, of |C| |C^-1|.
        expected = (2 + 2) * WIDE * sums[0] * sums[1]
    else:
        monkeypatch.setattr(noise_error, "_DIRECT_WORK", 0)
        norms = np.sqrt(1.25), float(np.linalg.norm(factors.inverse_coefs))
        # Three transforms of 48 numbers at 8 units a level, in the 2-norm; the sum of moduli of n numbers
        # is at most sqrt(n) times that.
        expected = 3 * 8 * UNIT * np.log2(48) * np.sqrt(24) * (norms[0] * sums[1] + sums[0] * norms[1])
    assert noise_error._residual(factors) == pytest.approx(expected, rel=1e-9)
    assert noise_error._condition(factors) == pytest.approx(sums[0] * sums[1], rel=1e-14)


@pytest.mark.usefixtures("visible")
@pytest.mark.parametrize("n", [3, 12])
def test_errors_of_products_through_filters_are_those_of_their_steps(n):
    decays, weights = np.array([0.875, 0.5]), np.array([0.25, -0.5])
    inverse = np.array([(-0.5) ** t for t in range(n)])
    product, own = noise_error._exponentials_product(inverse, decays, weights)
    exact = np.array([1.0, *(float(weights @ decays**t) for t in range(n - 1))])
    assert product.astype(float) == pytest.approx(lower(exact) @ inverse, abs=1e-15)
    # Each buffer rounds twice per step and accumulates the errors; then it is weighted and added.
    expected = sum(
        abs(weight) * response * (2 * memory + 2 + 2)
        for weight, response, memory in zip(
            weights, responses(decays, inverse), remembered(decays, n), strict=True
        )
    )
    assert own == pytest.approx(2 * WIDE * (expected + np.abs(inverse).sum() * (2 + 2)), rel=1e-12)


@pytest.mark.parametrize("n", [3, 40])
def test_buffers_carry_their_roundings_as_long_as_they_remember(visible, monkeypatch, n):
    monkeypatch.setattr(noise_error, "_residual", lambda factors: 1e-7)
    decays, weights = np.array([0.875, 0.5]), np.array([0.25, 0.5])
    coefs = np.array([1.0, *(float(weights @ decays**t) for t in range(n - 1))])
    inverse = series_inverse(coefs, n)
    factors = types.SimpleNamespace(n=n, coefs=coefs, inverse_coefs=inverse, exponentials=(decays, weights))
    row = gamma(2 * (2 + FACTORS))
    total = row * np.abs(inverse).sum() + gamma(FACTORS) * np.abs(coefs).sum() * np.abs(inverse).sum()
    for weight, response, memory in zip(
        weights, responses(decays, inverse), remembered(decays, n), strict=True
    ):
        # 2 roundings per step, accumulated in the buffer; relative to its contents including them.
        carried = 2 * gamma(2) * memory
        total += weight * response * (row + carried) / (1 - carried)
    assert noise_error.exponentials_error(factors, *factors.exponentials) == pytest.approx(
        total * SLACK / (1 - 1e-7), rel=1e-12
    )


@pytest.mark.parametrize("width", [1, 5])
def test_substitution_rounds_twice_a_band(visible, monkeypatch, width):
    monkeypatch.setattr(noise_error, "_residual", lambda factors: 1e-7)
    strategy = types.SimpleNamespace(factored=halves(24))
    expected = gamma(2 * (width + FACTORS)) * 1.5 * float(strategy.factored.inverse_coefs.sum())
    found = noise_error.substitution_error(strategy, width)
    assert found == pytest.approx(expected * SLACK / (1 - 1e-7), rel=1e-12)
    monkeypatch.setattr(noise_error, "_residual", lambda factors: 2e-6)
    assert noise_error.substitution_error(strategy, width) == np.inf


@pytest.mark.usefixtures("visible")
def test_rows_of_toeplitz_weights_round_once_a_weight_and_their_factors(monkeypatch):
    monkeypatch.setattr(noise_error, "_residual", lambda factors: 0.125)
    factors = halves(24)
    factors.inverse_coefs[20:] = 0.0
    expected = 0.125 + gamma(20 + FACTORS) * 1.5 * float(factors.inverse_coefs.sum())
    found = noise_error.combination_error(types.SimpleNamespace(factored=factors), None)
    assert found == pytest.approx(expected * SLACK, rel=1e-12)


@pytest.mark.usefixtures("visible")
@pytest.mark.parametrize("given", [True, False])
def test_dense_bounds_are_those_of_row_and_column_sums(given):
    rng = np.random.default_rng(3)
    n = 7
    matrix = np.tril(rng.standard_normal((n, n))) + 3.0 * np.eye(n)
    # An inexact inverse, so that the residual is visible.
    inverse = np.tril(np.linalg.inv(matrix) * (1.0 + 1e-7 * rng.standard_normal((n, n))))
    strategy = types.SimpleNamespace(
        n=n, factored=None, to_dense=lambda: matrix, solve=lambda x: None if given else inverse @ x
    )
    residual = np.abs(matrix @ inverse - np.eye(n))
    size = np.sqrt(residual.sum(axis=0).max() * residual.sum(axis=1).max())
    assert np.linalg.norm(residual, 2) <= size
    assert noise_error._spectral(residual) == pytest.approx(size, rel=1e-12)
    assert noise_error._dense_product(matrix, inverse) == pytest.approx(
        product_norm(matrix, inverse), rel=1e-12
    )
    own = gamma(n + 1) * product_norm(matrix, inverse)
    assert noise_error._dense_residual(matrix, inverse) == pytest.approx(size + own, rel=1e-12)
    expected = (size + own + gamma(n + FACTORS) * product_norm(matrix, inverse)) * SLACK
    found = noise_error.combination_error(strategy, inverse if given else None)
    assert found == pytest.approx(expected, rel=1e-12)


def test_visible_dense_residuals_are_counted():
    matrix = np.tril(np.random.default_rng(3).standard_normal((7, 7))) + 3.0 * np.eye(7)
    inverse = np.linalg.inv(matrix)
    inverse[3, 1] += 0.25
    moved = np.abs(matrix @ inverse - np.eye(7))
    expected = np.sqrt(moved.sum(axis=0).max() * moved.sum(axis=1).max())
    assert noise_error._dense_residual(matrix, inverse) == pytest.approx(expected, rel=1e-12)


def test_keys_of_one_torch_generator_differ():
    generator = torch.Generator().manual_seed(7)
    keys = [noise_key(generator) for _ in range(300)]
    assert len(set(keys)) == 300
    assert len({first for first, _ in keys}) == 1
    assert max(second for _, second in keys) > 2**60
    assert all(0 <= word < 2**64 for key in keys for word in key)


def test_saved_keys_may_be_any_two_words():
    last = 2**64 - 1
    assert _check_key([last, 0]) == (last, 0)
    for bad in ([last + 1, 0], [0, last + 1], [0, -1], [1], [1, 2, 3]):
        with pytest.raises(dm.InvalidParameterError, match="key"):
            _check_key(bad)


@pytest.mark.parametrize("keep", [True, False])
def test_weights_of_exactly_one_and_zero_are_applied(keep):
    weights = np.array([1.0, -2.0, 1.0, 0.0, 1.0])
    kind = Kind.KEPT if keep else Kind.REGENERATED
    rows = _Weighted(kind, lambda step: weights[: step + 1], 5, 0.0)
    state = [torch.zeros(3, dtype=torch.float64) for _ in range(rows.vectors)]
    z = np.random.default_rng(1).standard_normal((9, 3))

    def draw(step, out):
        out.copy_(torch.from_numpy(z[step]))

    for step in range(9):
        out, spare = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        rows.advance(step, 1.0, draw, Chunk(state, out, spare))
        expected = sum(weights[lag] * z[step - lag] for lag in range(min(step, 4) + 1))
        assert out.numpy() == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("n", [7, 40_000])
def test_buffers_with_a_decay_of_one_have_a_small_bound(n):
    """Rounding of the buffers is bounded for decays that do not fall."""
    factors = dm.BLT(n, [1.0, 0.9], [0.01, 0.2])._factors()
    bound = noise_error.exponentials_error(factors, *factors.exponentials)
    assert 0.0 < bound < 1e-6
