"""Closed forms of DP-lambda-CGD: dense matrices, enumerated participations, and the calibration."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.analysis import lambda_cgd
from dpmech.exceptions import InvalidParameterError


def dense(lam, n):
    """C, its inverse by elimination, and the prefix sum."""
    lower = np.array([[lam ** (t - s) if t >= s else 0.0 for s in range(n)] for t in range(n)])
    return lower, np.linalg.inv(lower), np.tril(np.ones((n, n)))


def enumerated(lam, n, b, k):
    """Largest norm of a sum of columns of C, over all sets of at most k steps at least b apart."""
    matrix = dense(lam, n)[0]
    return max(
        float(np.linalg.norm(matrix[:, list(chosen)].sum(axis=1)))
        for size in range(1, k + 1)
        for chosen in itertools.combinations(range(n), size)
        if all(later - earlier >= b for earlier, later in itertools.pairwise(chosen))
    )


@given(st.floats(0.0, 0.999), st.integers(1, 10), st.integers(1, 5), st.integers(1, 4))
def test_sensitivity_is_the_largest_over_all_participations(lam, n, b, k):
    assert lambda_cgd.sensitivity(lam, n, b, k) == pytest.approx(enumerated(lam, n, b, k), rel=1e-9)


@given(st.floats(0.0, 0.9999), st.integers(1, 60), st.integers(1, 20), st.integers(1, 9))
def test_errors_are_those_of_dense_matrices(lam, n, b, k):
    _, inverse, sums = dense(lam, n)
    rows = np.sum((sums @ inverse) ** 2, axis=1)
    assert lambda_cgd.sum_variance(lam, n) == pytest.approx(rows[-1], rel=1e-9)
    scale = lambda_cgd.sensitivity(lam, n, b, k)
    assert lambda_cgd.rmse(lam, n, b, k) == pytest.approx(scale * math.sqrt(rows.mean()), rel=1e-9)
    assert lambda_cgd.max_se(lam, n, b, k) == pytest.approx(scale * math.sqrt(rows.max()), rel=1e-9)


def test_a_calibration_has_these_errors_times_its_noise_multiplier():
    n, b, k = 400, 40, 7
    cal = dm.calibrate_sigma(dm.LambdaCGD(n, 0.8), 4.0, 1e-6, participation=dm.MinSep(b, k))
    scale = lambda_cgd.sensitivity(0.8, n, b, k)
    assert dm.sensitivity(dm.LambdaCGD(n, 0.8), dm.MinSep(b, k)).upper == pytest.approx(scale, rel=1e-6)
    assert cal.rmse() == pytest.approx(cal.sigma / scale * lambda_cgd.rmse(0.8, n, b, k), rel=1e-6)
    assert cal.max_se() == pytest.approx(cal.sigma / scale * lambda_cgd.max_se(0.8, n, b, k), rel=1e-6)


@pytest.mark.parametrize("objective", ["rmse", "max_se"])
@pytest.mark.parametrize(
    "plan", [(1, 1, 1), (2, 2, 1), (40, 4, 10), (57, 5, 3), (3900, 390, 10), (10**6, 10**6, 1)]
)
def test_no_lambda_of_a_fine_grid_is_better_than_the_best(plan, objective):
    error = getattr(lambda_cgd, objective)
    best = lambda_cgd.best_lambda(*plan, objective=objective)
    least = min(error(1.0 - gap, *plan) for gap in np.geomspace(1e-7, 1.0, 3000))
    assert error(best, *plan) <= least * (1.0 + 1e-9)


def test_where_everybody_takes_part_in_every_step_independent_noise_is_best():
    assert lambda_cgd.best_lambda(50, 1, 50) == 0.0
    assert lambda_cgd.best_lambda(50, 1, 50, objective="max_se") == 0.0


def test_the_fit_for_any_strategy_finds_the_same_lambda():
    fit = dm.optimize(dm.LambdaCGD, dm.MinSep(20, 5), n=100)
    assert fit.strategy.lam == pytest.approx(lambda_cgd.best_lambda(100, 20, 5), abs=2e-3)


@given(st.integers(1, 40), st.integers(1, 400))
def test_the_named_lambda_keeps_the_bound(k, b):
    bound, lam = lambda_cgd.max_se_bound(k * b, k)
    assert lambda_cgd.max_se(lam, k * b, b, k) <= bound * (1.0 + 1e-12)


def test_the_bound_is_sharp_for_one_participation():
    bound, lam = lambda_cgd.max_se_bound(10**12, 1)
    assert lambda_cgd.max_se(lam, 10**12, 10**12, 1) == pytest.approx(bound, rel=2e-3)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: lambda_cgd.sensitivity(1.0, 3, 1, 1), "lam"),
        (lambda: lambda_cgd.sensitivity(-0.1, 3, 1, 1), "lam"),
        (lambda: lambda_cgd.rmse(0.5, 0, 1, 1), "steps"),
        (lambda: lambda_cgd.max_se(0.5, 3, 0, 1), "min_sep"),
        (lambda: lambda_cgd.max_se(0.5, 3, 1, 0), "participations"),
        (lambda: lambda_cgd.sum_variance(0.5, 0), "step"),
        (lambda: lambda_cgd.best_lambda(3, 1, 1, objective="mean"), "objective"),
        (lambda: lambda_cgd.max_se_bound(10, 3), "steps"),
        (lambda: lambda_cgd.max_se_bound(2, 3), "participations"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises(InvalidParameterError, match=name):
        call()
