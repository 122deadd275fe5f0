"""Errors of series against perturbations that reach them, and integer convolutions against fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.numerics.integer_convolution import exact_residual
from dpmech.numerics.series import _column_error, error_of_terms
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
