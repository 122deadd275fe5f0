import math

import numpy as np
import pytest

import dpmech as dm
from tests.support import oracles as oracle

SIGMA = 0.6002290722  # the analytic Gaussian value for eps = 8, delta = 1e-5
SCHEMA = dm.MinSep(390, 10)

# Published RMSE x sigma at n = 3900, b = 390, k = 10, recomputed with the exact sigma.
TABLE = [
    (dm.Identity(3900), 83.828, 83.85),
    (dm.LambdaCGD(3900, 0.975), 12.724, 12.73),
    (dm.LambdaCGD(3900, 0.95), 14.732, 14.74),
    (dm.LambdaCGD(3900, 0.9), 19.714, 19.72),
    (dm.InverseSquareRoot(3900, 2), 48.435, 48.45),
    (dm.InverseSquareRoot(3900, 4), 33.463, 33.47),
    (dm.InverseSquareRoot(3900, 16), 17.943, 17.95),
    (dm.InverseSquareRoot(3900, 64), 10.501, 10.50),
    (dm.InverseSquareRoot(3900, 390), 8.452, 8.45),
    (dm.SquareRoot(3900, 2), 62.498, 62.51),
    (dm.SquareRoot(3900, 4), 46.793, 46.80),
    (dm.SquareRoot(3900, 16), 26.265, 26.27),
    (dm.SquareRoot(3900, 64), 14.883, 14.89),
    (dm.SquareRoot(3900, 390), 8.146, 8.15),
]

pytestmark = pytest.mark.usefixtures("longdouble")


@pytest.mark.parametrize(("strategy", "exact", "printed"), TABLE, ids=repr)
def test_published_table(strategy, exact, printed):
    value = dm.rmse(strategy, SCHEMA) * SIGMA
    assert value == pytest.approx(exact, abs=6e-4)
    assert value == pytest.approx(printed, rel=1e-3)
    calibration = dm.calibrate_sigma(strategy, 8.0, 1e-5, participation=SCHEMA)
    assert calibration.rmse() == pytest.approx(value, rel=1e-9)
    assert calibration.max_se() == pytest.approx(dm.max_se(strategy, SCHEMA) * SIGMA, rel=1e-9)
    assert str(calibration.guarantee) == "exact"


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("n", [1, 2, 17, 3900])
def test_lambda_cgd_closed_forms(n, lam):
    strategy = dm.LambdaCGD(n, lam)
    frobenius = math.sqrt(n + (1 - lam) ** 2 * n * (n - 1) / 2)
    largest = math.sqrt(1 + (1 - lam) ** 2 * (n - 1))
    errors = dm.per_step_error(strategy)
    assert np.linalg.norm(errors) == pytest.approx(frobenius, rel=1e-13)
    assert errors.max() == pytest.approx(largest, rel=1e-13)
    kappa = math.sqrt((1 - lam ** (2 * n)) / (1 - lam**2))
    schema = dm.SingleParticipation()
    assert dm.rmse(strategy, schema) == pytest.approx(frobenius * kappa / math.sqrt(n), rel=1e-12)
    assert dm.max_se(strategy, schema) == pytest.approx(largest * kappa, rel=1e-12)
    assert dm.last_iterate_error(strategy, schema) == pytest.approx(largest * kappa, rel=1e-12)


@pytest.mark.parametrize("n", [2, 10, 3900])
def test_diagonal_is_optimal_for_every_step(n):
    steps = np.arange(n)
    best = np.sqrt(n - steps).sum() / math.sqrt(n)
    diagonal = dm.Diagonal((n - steps) ** 0.25)
    assert dm.rmse(diagonal) == pytest.approx(best, rel=1e-12)
    assert dm.rmse(dm.Identity(n)) == pytest.approx(math.sqrt(n * (n + 1) / 2), rel=1e-12)
    for strategy in (dm.Identity(n), dm.LambdaCGD(n, 0.5), dm.SquareRoot(n), dm.InverseSquareRoot(n, 2)):
        assert dm.rmse(strategy) >= best * (1 - 1e-12)


def test_full_batch_ratios():
    n = 3900
    trivial, diagonal = dm.rmse(dm.Identity(n)), dm.rmse(dm.Diagonal((n - np.arange(n)) ** 0.25))
    assert trivial / diagonal == pytest.approx(1.060594, abs=1e-6)
    assert trivial / math.sqrt((n + 1) * (2 * n + 1) / 6) == pytest.approx(1.224666, abs=1e-6)


@pytest.mark.parametrize(("k", "b", "lam", "ratio"), [(10, 1, 0.9, 1.0228), (20, 2, 0.5, 1.0008)])
def test_published_column_normalisation_ratios(k, b, lam, ratio):
    strategy = dm.LambdaCGD(k * b, lam)
    schema = dm.MinSep(b, k)
    value = dm.rmse(dm.ColumnNormalized(strategy), schema) / dm.rmse(strategy, schema)
    assert value == pytest.approx(ratio, abs=6e-5)


def test_inverse_bands_as_long_as_the_run():
    strategy = dm.ColumnNormalized(dm.InverseSquareRoot(600, 520))
    expected = oracle.decoder_row_norms(strategy.to_dense(), np.tril(np.ones((600, 600))))
    np.testing.assert_allclose(dm.per_step_error(strategy), expected, rtol=1e-10)


@pytest.mark.parametrize("bins", [1, 2, 3, 6])
def test_balls_in_bins_error_is_that_of_its_epochs(bins):
    strategy = dm.LambdaCGD(6, 0.7)
    schema, epochs = dm.BallsInBins(bins), dm.FixedEpochs(6 // bins)
    assert dm.rmse(strategy, schema) == dm.rmse(strategy, epochs)
    assert dm.max_se(strategy, schema) == dm.max_se(strategy, epochs)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("schema", [dm.Poisson(0.1), dm.CyclicPoisson(0.1, 2)])
@pytest.mark.parametrize("call", [dm.rmse, dm.max_se, dm.last_iterate_error])
def test_amplified_errors_are_refused(call, schema, n):
    with pytest.raises(dm.UnsupportedCombinationError, match="depends on the calibrated sigma"):
        call(dm.Identity(n), schema)


@pytest.mark.parametrize("call", [dm.rmse, dm.max_se, dm.per_step_error, dm.last_iterate_error])
def test_only_strategies(call):
    with pytest.raises(dm.InvalidParameterError, match="strategy must be a Strategy"):
        call("identity")
