import math

import mpmath as mp
import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.renyi import RenyiAccountant
from dpmech.numerics.bounds import Bounds


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_an_upper_bound_on_the_exact_gaussian(sigma, delta):
    schema = dm.SingleParticipation()
    exact = dm.epsilon(dm.Identity(1), sigma, delta, participation=schema)
    renyi = dm.epsilon(dm.Identity(1), sigma, delta, participation=schema, method=dm.methods.Rdp())
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
    renyi = dm.epsilon(dm.Identity(steps), sigma, delta, participation=schema, method=dm.methods.Rdp()).upper
    pld = dm.epsilon(dm.Identity(steps), sigma, delta, participation=schema)
    assert pld.upper <= renyi
    assert renyi == pytest.approx(printed, rel=5e-3)


@pytest.mark.slow
def test_calibration_under_poisson_meets_the_budget_and_is_looser():
    schema = dm.Poisson(0.01)
    renyi = dm.calibrate_sigma(dm.Identity(100), 1.0, 1e-5, participation=schema, method=dm.methods.Rdp())
    assert renyi.achieved.upper <= 1.0
    assert str(renyi.guarantee) == "deterministic upper bound"
    assert renyi.sigma > dm.calibrate_sigma(dm.Identity(100), 1.0, 1e-5, participation=schema).sigma


def test_correlated_noise_uses_its_sensitivity():
    strategy, schema = dm.LambdaCGD(30, 0.5), dm.MinSep(10, 3)
    sens = dm.sensitivity(strategy, schema).upper
    one = dm.epsilon(strategy, 4.0, 1e-5, participation=schema, method=dm.methods.Rdp()).upper
    other = dm.epsilon(
        dm.Identity(1), 4.0 / sens, 1e-5, participation=dm.SingleParticipation(), method=dm.methods.Rdp()
    ).upper
    assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("scalar", [np.float64(9.0), np.int64(9), 9])
def test_the_type_of_sigma_does_not_drop_the_count(scalar):
    schema = dm.Poisson(1.0)
    expected = dm.epsilon(dm.Identity(50), 9.0, 1e-5, participation=schema, method=dm.methods.Rdp())
    assert (
        dm.epsilon(dm.Identity(50), scalar, 1e-5, participation=schema, method=dm.methods.Rdp()) == expected
    )
    once = dm.epsilon(dm.Identity(1), 9.0, 1e-5, participation=schema, method=dm.methods.Rdp())
    assert expected.upper > 3 * once.upper


def test_nonsense_from_the_backend_is_an_error():
    accountant = RenyiAccountant(Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("given")))
    for value in (math.nan, math.inf, -1e-9):
        with pytest.raises(dm.NumericalError, match="RDP, q=1, 1 releases returned"):
            accountant._checked(value, 1.0)


def test_calibration_without_sampling():
    schema = dm.MinSep(10, 3)
    renyi = dm.calibrate_sigma(
        dm.LambdaCGD(30, 0.5), 1.0, 1e-5, participation=schema, method=dm.methods.Rdp()
    )
    exact = dm.calibrate_sigma(dm.LambdaCGD(30, 0.5), 1.0, 1e-5, participation=schema)
    assert renyi.achieved.upper <= 1.0
    assert exact.sigma < renyi.sigma < 1.3 * exact.sigma
    assert str(renyi.guarantee) == "deterministic upper bound"


CASES = [
    (1e-3, 100_000, 1.4, 1.0), (0.5, 10**4, 3000.0, 0.1), (1e-4, 3, 0.2, 8.0), (1e-6, 1000, 0.3, 50.0),
    (0.01, 100, 1.0, 2.0), (1.0, 50, 9.0, 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("q", "steps", "sigma", "eps"), CASES)
def test_no_looser_than_dp_accounting_at_160_orders(q, steps, sigma, eps):
    """Nor tighter than what is true."""
    from dp_accounting import dp_event
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    accountant = RenyiAccountant(Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("given")), q, steps)
    orders = np.concatenate(
        [
            np.linspace(1.05, 2.0, 20),
            np.geomspace(2.05, 64.0, 80),
            np.geomspace(66.0, 1e6, 60)[:-1],
            [999_999.5],
        ]
    )
    whole = RdpAccountant(orders, NeighboringRelation.ADD_OR_REMOVE_ONE)
    whole.compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma)), steps)
    found = accountant.delta(sigma, eps, tolerance=1e-3).upper
    assert found <= float(whole.get_delta(eps)) * (1.0 + 1e-6)
    exact = dm.delta(dm.Identity(steps), sigma, eps, participation=dm.Poisson(q))
    assert found >= exact.lower
    delta = max(found, 1e-200)
    inverse = accountant.epsilon(sigma, delta, tolerance=1e-3).upper
    assert inverse <= float(whole.get_epsilon(delta)) * (1.0 + 1e-6)
    assert inverse == pytest.approx(eps, rel=1e-4) or found == 1.0


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.5, 0.3), (1e-6, 8.0)])
@pytest.mark.parametrize("order", [1.05, 7.5, pytest.param(60.0, marks=pytest.mark.slow)])
def test_divergences_are_rounded_up_from_those_of_many_digits(q, sigma, order):
    divergence = RenyiAccountant(Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("given")), q, 7).divergence(
        sigma
    )
    with mp.workdps(25):
        s, a = mp.mpf(sigma), mp.mpf(order)

        def integrand(x):
            ratio = 1 - mp.mpf(q) + mp.mpf(q) * mp.exp((x - mp.mpf(1) / 2) / s**2)
            return mp.exp(a * mp.log(ratio) - x * x / (2 * s * s)) / (s * mp.sqrt(2 * mp.pi))

        ends = [*(s * k for k in range(-14, 15, 2)), *(a + s * k for k in range(-14, 15, 2))]
        middle = [s * 14 + (a - s * 28) * k / 60 for k in range(61)] if a > 28 * s else []
        far = [a + 20 * s]
        moment = mp.quad(integrand, sorted({*ends, *middle, *far}))
        truth = 7 * mp.log(moment) / (a - 1)
        found = divergence(order)
        assert truth <= found
        # Absolute in the log of a moment that is close to 1.
        assert found <= truth * (1 + mp.mpf(10) ** -9) + 7 * mp.mpf(10) ** -11 / (a - 1)


def test_calibration_at_tiny_rates_and_eps():
    """The orders that this needs do not converge in dp-accounting."""
    schema = dm.Poisson(1e-6)
    sigma = dm.calibrate_sigma(
        dm.Identity(10**6), 0.01, 1e-12, participation=schema, method=dm.methods.Rdp()
    ).sigma
    assert sigma >= dm.calibrate_sigma(dm.Identity(10**6), 0.01, 1e-12, participation=schema).sigma
