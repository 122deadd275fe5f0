"""Errors of series against perturbations that reach them, and integer convolutions against fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from flint import fmpz

import dpmech as dm
from dpmech.numerics import series
from dpmech.numerics.series import _coefficients, _column_error, _integer, error_of_terms, exact_residual
from dpmech.numerics.toeplitz import checked_norms


@pytest.mark.parametrize("terms", [[1.0, 0.1, 5.0, 0.0, 0.2], [3.0, 2.0, 1.0], [1e-3, 4.0, 4.0, 4.0]])
@pytest.mark.parametrize("majorant", ["same", "growing", "first"])
def test_error_of_terms_covers_the_worst_perturbation(terms, majorant):
    terms = np.array(terms)
    above = {
        "same": np.abs(terms),
        "growing": np.abs(terms) + np.arange(terms.size),
        "first": np.abs(terms) + 7.0 * (np.arange(terms.size) == 0),
    }[majorant]
    error = error_of_terms(terms, above, 1e-6)
    # All entries off by 1e-6 of their majorant: what the first m of them are off by, relative to their norm.
    worst = max(
        1e-6 * float(np.linalg.norm(above[:m])) / float(np.linalg.norm(terms[:m]))
        for m in range(1, terms.size + 1)
    )
    assert worst <= error <= 1.0001 * worst


SLOT = 2**192


def test_a_series_of_integers_is_cut_towards_zero():
    mantissas = [0, 1, -1, 5, -5, 2**53 - 1, 1 - 2**53]
    exponents = [0, 1, 11, 12, 63, 64, 65, 75, 127, -1, -2, -52, -53, -1000]
    pairs = [(mantissa, exponent) for mantissa in mantissas for exponent in exponents]
    cut = (abs(m) << e if e >= 0 else abs(m) >> -e for m, e in pairs)
    exact = sum(
        size * (1 if m > 0 else -1) * SLOT**place
        for place, (size, (m, _)) in enumerate(zip(cut, pairs, strict=True))
    )
    assert int(_integer(*(np.array(column, np.int64) for column in zip(*pairs, strict=True)))) == exact


@pytest.mark.parametrize("count", [1, 5, 16])
def test_coefficients_are_those_of_the_integer(count):
    edges = [2**size + step for size in (1, 64, 128, 175) for step in (-1, 0, 1)]
    values = [0, -1, *(sign * edge for edge in edges for sign in (1, -1))][-16:]
    whole = fmpz(sum(value * SLOT**place for place, value in enumerate(values)))
    found = _coefficients(whole, count)
    assert found.shape == (count,)
    for one, value in zip(found.tolist(), values[:count], strict=True):
        assert abs(Fraction(one) - value) <= abs(value) * Fraction(4, 2**53)


@pytest.mark.parametrize("large", [0.0, 2.0**10, 2.0**24])
@pytest.mark.parametrize("small", [0.0, 2.0**-40, 1e-300])
def test_an_exact_residual_has_every_digit(large, small):
    rng = np.random.default_rng(int(large) % 97)
    f = rng.standard_normal(20)
    f[0], f[7], f[11] = 1.5, large, small
    g = rng.standard_normal(48) * 0.5 ** np.arange(48)
    rounded, residual, left = exact_residual(f, g)
    assert np.abs(rounded - g).max() <= 2.0**-52 * np.abs(g).max()
    missed = Fraction(0)
    for t in range(48):
        product = sum(
            (Fraction(float(f[s])) * Fraction(float(rounded[t - s])) for s in range(min(t, 19) + 1)),
            Fraction(0),
        )
        truth = product - (t == 0)
        missed += max(
            Fraction(0), abs(Fraction(float(residual[t])) - truth) - abs(truth) * Fraction(1, 10**15)
        )
    assert missed <= Fraction(left)


def test_norms_of_either_end_out_of_range_are_refused():
    assert checked_norms(np.array([1e-139, 1.0, 1e139])).size == 3
    for bad in (1e-141, 1e141, math.nan):
        with pytest.raises(dm.NumericalError):
            checked_norms(np.array([1.0, bad, 1.0]))


@pytest.mark.parametrize("rho", [1e-9, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("rate", [0.3, 1.0, 1.5])
def test_a_residual_of_one_term_is_covered(rho, rate):
    # f g = 1 + s with s = -rho alone: the truth is g / (1 - rho).
    g = rate ** np.arange(30.0)
    truth = g / (1.0 - rho)
    error = _column_error(g, lambda weights: rho * float(weights[0]))
    missed = float(np.linalg.norm(truth - g) / np.linalg.norm(g))
    assert missed * (1.0 - 1e-6) <= error <= missed * 1.0001 + 1e-15


# ---- the bounds as the docstrings have them, with units large enough to be seen

UNIT, TINY, OF_PRODUCT = 2.0**-20, 2.0**-15, 2.0**-9


@pytest.fixture
def visible(monkeypatch):
    monkeypatch.setattr(series, "UNIT", UNIT)
    monkeypatch.setattr(series, "_TINY", TINY)
    monkeypatch.setattr(series, "convolution_rounding", lambda a, b: OF_PRODUCT)


@pytest.mark.usefixtures("visible")
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize("rate", [1.0, 0.8])
def test_what_a_residual_leaves_open_is_the_sum_of_its_parts(direct, exactly, rate):
    rng = np.random.default_rng(4)
    f = np.array([1.5, 0.0, -0.75, 0.25])
    g, r, d = rng.standard_normal(7), 0.01 * rng.standard_normal(7), -0.01 * rng.random(7)
    bound = series._unaccounted(f, g, r, d, direct=direct, exactly=exactly, relative=1e-3, left=0.125)
    weights = rate ** np.arange(7.0)

    def size(x):
        return float(sum(abs(value) * rate**t for t, value in enumerate(x)))

    gamma = 1.01 * (3 + 4) * UNIT  # three terms of f, the 1, and three more roundings
    parts = {
        "the residual's own rounding": 2 * UNIT * size(r),
        "what was left out of it": 0.125,
        "products that vanish": TINY * (1 + size(f)) * size(np.ones(7)),
        "coefficients that are off": 1e-3 * size(f) * size(g + d),
        "its sums": 0.0 if exactly else 2.5 * gamma**2 * size(f) * size(g),
        "the step": gamma * size(f) * size(d) if direct else size(r) ** 2 + size(f) * 7 * OF_PRODUCT,
    }
    assert bound(weights) == pytest.approx(1.01 * sum(parts.values()), rel=1e-12)


@pytest.mark.usefixtures("visible")
@pytest.mark.parametrize("signs", [(1.0, 1.0), (1.0, -0.2, 3.0), (1.0, 0.1, 0.1, -2.0)])
@pytest.mark.parametrize("rate", [0.9, 1.2, 1e7])
def test_columns_of_growing_series_are_off_by_a_weighted_residual(signs, rate):
    n = 24
    g = np.array([signs[t % len(signs)] * rate**t for t in range(n)])
    rho = 0.25

    def bound(weights):
        # Without weights nothing is known; with them a quarter.
        return rho * float(weights[-1] / weights[-1]) if weights[-1] < 1.0 or rate < 1.0 else 2.0

    error = _column_error(g, bound)
    modulus = np.abs(g)
    grows = float((modulus[n // 2 :].max() / modulus[0]) ** (1.0 / n))
    if grows <= 1.0:
        assert error == pytest.approx(rho / (1 - rho) + 1.01 * UNIT, rel=1e-12)
        return
    ceiling = [max(modulus[u] * grows ** (t - u) for u in range(t + 1)) for t in range(n)]
    scale = max(ceiling)
    squares = [math.fsum((c / scale) ** 2 for c in ceiling[: m + 1]) for m in range(n)]
    below = [math.fsum((float(c) / scale) ** 2 for c in modulus[: m + 1]) for m in range(n)]
    kept = [m for m in range(n) if below[m] > 0.0]
    by_norm = math.sqrt(max(squares[m] / below[m] for m in kept)) * (1 + n * UNIT)
    by_entry = max(c / float(value) for c, value in zip(ceiling, modulus, strict=True))
    expected = rho / (1 - rho) * min(by_norm, by_entry) + 1.01 * UNIT
    assert error == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("lags", [(1, 2), (1, 1100), (3, 1024, 1500), (1023, 1024, 2047, 2048)])
@pytest.mark.parametrize("n", [900, 3000])
def test_a_recursion_solves_for_near_and_far_coefficients(lags, n):
    rng = np.random.default_rng(len(lags))
    f = np.zeros(max(lags) + 1)
    f[0] = 1.5
    f[list(lags)] = 0.9 * rng.uniform(-1.0, 1.0, len(lags)) / len(lags)
    x = rng.standard_normal(n)
    y = series._recursion(f, x)
    assert np.convolve(f, y)[:n] == pytest.approx(x, abs=1e-12)


def test_exact_products_serve_short_series_as_well(monkeypatch):
    monkeypatch.setattr(series, "_TERMS_WORK", 0)
    monkeypatch.setattr(series, "_TERMS", 0)
    found, error = series.bounded_inverse(np.array([1.0, -0.5]), 50)
    assert found == pytest.approx(0.5 ** np.arange(50), rel=1e-15, abs=0.0)
    assert error <= 1e-15
