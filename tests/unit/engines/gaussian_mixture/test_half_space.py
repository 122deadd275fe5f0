"""ADD in closed form along one direction: against quadrature, and where it is ADD itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.moments import half_space_add
from tests.support.bins_oracles import gaussian, quadrature


def gram_of(rows):
    return np.array(rows) @ np.array(rows).T


@pytest.mark.parametrize("eps", [0.0, 0.3, 2.0, 9.0])
@pytest.mark.parametrize("square", [0.25, 1.0, 12.0])
def test_of_one_bin_it_is_add(square, eps):
    found, true = half_space_add(DenseGram(np.array([[square]])), eps), gaussian(square, eps)
    assert true <= found <= true * (1.0 + 1e-6 * (1.0 + eps / math.sqrt(square)) ** 2)


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.floats(0.05, 1.5), min_size=3, max_size=3), min_size=2, max_size=2),
    st.floats(0.0, 4.0),
)
def test_of_two_bins_it_is_never_below_add(rows, eps):
    matrix = gram_of(rows) + 0.01 * np.eye(2)
    _, add = quadrature(matrix, eps)
    assert half_space_add(DenseGram(matrix), eps) >= add * (1.0 - 1e-6) - 1e-12


def test_of_three_bins_it_is_above_add_and_near_for_bins_that_are_alike():
    matrix = gram_of([[1.0, 0.5, 0.0], [0.9, 0.6, 0.1], [1.1, 0.4, 0.1]]) + 0.001 * np.eye(3)
    for eps in (0.5, 1.5, 3.0):
        _, add = quadrature(matrix, eps)
        found = half_space_add(DenseGram(matrix), eps)
        assert add <= found <= 1.3 * add
        # A level that is too deep by 6 % of eps is below the truth.
        assert half_space_add(DenseGram(matrix), 1.06 * eps) < add


def test_where_it_says_nothing_it_is_one():
    assert half_space_add(DenseGram(400.0 * np.eye(3)), 0.1) == 1.0
