import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from tests.support import generators as gen
from tests.support import oracles as oracle


@st.composite
def problems(draw):
    n = draw(gen.SIZES)
    strategy = draw(gen.strategies(n))
    beta = draw(st.one_of(st.just(0.0), gen.finite(0.0, 0.95)))
    rates = draw(st.one_of(st.none(), st.lists(gen.finite(0.0, 2.0), min_size=n, max_size=n)))
    return strategy, draw(gen.joint(n)), dm.workloads.Workload(n, beta, rates)


@given(problems())
def test_errors_are_those_of_dense_algebra(problem):
    strategy, schema, workload = problem
    matrix = oracle.workload_matrix(strategy.n, workload.beta, workload.rates)
    rows = oracle.decoder_row_norms(strategy.to_dense(), matrix)
    # Inverting by hand loses digits in proportion to the condition number.
    tolerance = 1e-13 * np.linalg.cond(strategy.to_dense()) * max(rows.max(), 1e-300) + 1e-300
    errors = dm.per_step_error(strategy, workload=workload)
    np.testing.assert_allclose(errors, rows, rtol=1e-10, atol=max(tolerance, 1e-12))
    sens = dm.sensitivity(strategy, schema).upper
    mean, largest = (
        dm.rmse(strategy, schema, workload=workload),
        dm.max_se(strategy, schema, workload=workload),
    )
    assert math.isclose(
        mean, np.linalg.norm(errors) / math.sqrt(strategy.n) * sens, rel_tol=1e-12, abs_tol=1e-300
    )
    assert math.isclose(largest, errors.max() * sens, rel_tol=1e-12, abs_tol=1e-300)
    assert math.isclose(
        dm.last_iterate_error(strategy, schema, workload=workload),
        errors[-1] * sens,
        rel_tol=1e-12,
        abs_tol=1e-300,
    )
    assert mean <= largest * (1 + 1e-12)


@given(gen.strategy_and_participation(of=gen.joint), gen.finite(0.1, 10.0))
def test_rescaling_the_strategy_changes_nothing(drawn, factor):
    strategy, schema = drawn
    one, other = dm.Dense(strategy.to_dense()), dm.Dense(factor * strategy.to_dense())
    assert math.isclose(dm.rmse(one, schema), dm.rmse(other, schema), rel_tol=1e-9)
    assert math.isclose(dm.max_se(one, schema), dm.max_se(other, schema), rel_tol=1e-9)


@given(st.integers(1, 12), st.data())
def test_max_se_of_full_batches_is_at_least_n(n, data):
    assert dm.max_se(data.draw(gen.strategies(n))) >= n * (1 - 1e-10)


@given(st.integers(1, 10), st.data())
def test_the_diagonal_strategy_is_optimal_for_every_step(n, data):
    best = float(np.sum(np.sqrt(np.arange(1, n + 1)))) / math.sqrt(n)
    assert dm.rmse(data.draw(gen.strategies(n))) >= best * (1 - 1e-10)


@given(gen.SIZES, st.data())
def test_noise_variance_is_the_row_norm_of_the_inverse(n, data):
    strategy = data.draw(gen.strategies(n))
    calibration = dm.calibrate_sigma(strategy, 1.0, 1e-5)
    inverse = np.linalg.inv(strategy.to_dense())
    for step in range(n):
        expected = (calibration.sigma * 3.0 / 7.0) ** 2 * float(np.sum(inverse[step] ** 2))
        assert math.isclose(calibration.noise_variance(step, 3.0, 7.0), expected, rel_tol=1e-8)
