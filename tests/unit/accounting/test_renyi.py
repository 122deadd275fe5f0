import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting.renyi import RenyiAccountant
from dpmech.numerics.bounds import Bounds


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_an_upper_bound_on_the_exact_gaussian(sigma, delta):
    schema = dm.SingleParticipation()
    exact = dm.epsilon(dm.Identity(1), sigma, delta, participation=schema)
    renyi = dm.epsilon(dm.Identity(1), sigma, delta, participation=schema, method=dm.Rdp())
    assert renyi.lower == 0.0
    assert exact.upper <= renyi.upper
    # The textbook conversion of alpha / (2 sigma^2) is looser still.
    rho = 0.5 / sigma**2
    assert renyi.upper <= (rho + 2 * math.sqrt(rho * math.log(1 / delta))) * 1.01


@pytest.mark.parametrize(
    ("q", "steps", "delta", "sigma", "printed"),
    [
        (0.0064, 15_600, 1e-5, 1.0, 5.151),
        (0.00256, 39_000, 1e-5, 2.0, 1.105),
        (1024 / 42_043, 410, 8e-6, 0.7189, 7.9787),
        (256 / 42_061, 120, 1e-5, 0.4672241211, 7.9989),
    ],
)
def test_published_values_under_poisson(q, steps, delta, sigma, printed):
    schema = dm.Poisson(q)
    renyi = dm.epsilon(dm.Identity(steps), sigma, delta, participation=schema, method=dm.Rdp()).upper
    pld = dm.epsilon(dm.Identity(steps), sigma, delta, participation=schema)
    assert pld.upper <= renyi
    assert renyi == pytest.approx(printed, rel=5e-3)


@pytest.mark.slow
def test_calibration_under_poisson_meets_the_budget_and_is_looser():
    schema = dm.Poisson(0.01)
    renyi = dm.calibrate_sigma(dm.Identity(100), 1.0, 1e-5, participation=schema, method=dm.Rdp())
    assert renyi.achieved.upper <= 1.0
    assert str(renyi.guarantee) == "deterministic upper bound"
    assert renyi.sigma > dm.calibrate_sigma(dm.Identity(100), 1.0, 1e-5, participation=schema).sigma


def test_correlated_noise_uses_its_sensitivity():
    strategy, schema = dm.LambdaCGD(30, 0.5), dm.MinSep(10, 3)
    sens = dm.sensitivity(strategy, schema).upper
    one = dm.epsilon(strategy, 4.0, 1e-5, participation=schema, method=dm.Rdp()).upper
    other = dm.epsilon(
        dm.Identity(1), 4.0 / sens, 1e-5, participation=dm.SingleParticipation(), method=dm.Rdp()
    ).upper
    assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("scalar", [np.float64(9.0), np.int64(9), 9])
def test_the_type_of_sigma_does_not_drop_the_count(scalar):
    schema = dm.Poisson(1.0)
    expected = dm.epsilon(dm.Identity(50), 9.0, 1e-5, participation=schema, method=dm.Rdp())
    assert dm.epsilon(dm.Identity(50), scalar, 1e-5, participation=schema, method=dm.Rdp()) == expected
    once = dm.epsilon(dm.Identity(1), 9.0, 1e-5, participation=schema, method=dm.Rdp())
    assert expected.upper > 3 * once.upper


def test_nonsense_from_the_backend_is_an_error():
    accountant = RenyiAccountant(Bounds.bracket(1.0, 1.0, dm.Provenance("given")))
    for value in (math.nan, math.inf, -1e-9):
        with pytest.raises(dm.NumericalError, match="RDP, q=1, 1 releases returned"):
            accountant._checked(value, 1.0)


def test_calibration_without_sampling():
    schema = dm.MinSep(10, 3)
    renyi = dm.calibrate_sigma(dm.LambdaCGD(30, 0.5), 1.0, 1e-5, participation=schema, method=dm.Rdp())
    exact = dm.calibrate_sigma(dm.LambdaCGD(30, 0.5), 1.0, 1e-5, participation=schema)
    assert renyi.achieved.upper <= 1.0
    assert exact.sigma < renyi.sigma < 1.3 * exact.sigma
    assert str(renyi.guarantee) == "deterministic upper bound"


def test_orders_that_do_not_converge_are_left_out_in_silence(capfd):
    bounds = dm.delta(dm.Identity(100), 1.0, 1.0, participation=dm.Poisson(0.01), method=dm.Rdp())
    assert 0.0 < bounds.upper < 1e-3
    assert capfd.readouterr().err == ""


def test_any_other_warning_of_the_backend_is_an_error(monkeypatch):
    from absl import logging

    def negative(self, delta):
        logging.warning("Returning an epsilon of zero")
        return 0.0

    monkeypatch.setattr("dp_accounting.rdp.RdpAccountant.get_epsilon", negative)
    with pytest.raises(dm.NumericalError, match="epsilon of zero"):
        dm.epsilon(dm.Identity(1), 1.0, 1e-5, participation=dm.SingleParticipation(), method=dm.Rdp())
