import pytest

import dpmech as dm
from dpmech.accounting.poisson.prv import PrvAccountant
from tests.support import oracles as oracle

GRID = [(8.0, 1e-5, 1 / 390, 3900), (0.5, 1e-6, 0.01, 1000), (0.05, 1e-6, 0.01, 1000), (2.0, 1e-8, 0.2, 50)]


@pytest.mark.parametrize(("eps", "delta", "q", "steps"), GRID)
def test_prv_and_pld_intervals_overlap(eps, delta, q, steps):
    strategy, schema = dm.Identity(steps), dm.Poisson(q)
    pld = dm.calibrate_sigma(strategy, eps, delta, participation=schema, method=dm.Pld())
    prv = dm.calibrate_sigma(strategy, eps, delta, participation=schema, method=dm.Prv(), rtol=1e-2)
    assert prv.achieved.upper <= eps
    assert "PRV" in prv.method
    assert pld.sigma / 1.001 <= prv.sigma <= pld.sigma * 1.01 * (1 + 1e-9)
    for sigma in (prv.sigma, 1.03 * pld.sigma):
        for call, level in ((dm.delta, eps), (dm.epsilon, delta)):
            one = call(strategy, sigma, level, participation=schema, method=dm.Prv())
            other = call(strategy, sigma, level, participation=schema, method=dm.Pld())
            assert one.lower <= other.upper
            assert other.lower <= one.upper
            assert one.upper < 1.3 * other.upper


@pytest.mark.parametrize(
    ("q", "sigma", "eps"), [(0.01, 1.0, 0.5), (0.3, 2.0, 0.5), (0.9, 1.0, 2.0), (0.5, 20.0, 0.03)]
)
@pytest.mark.parametrize("steps", [1, 2])
def test_prv_against_closed_form_and_quadrature(q, sigma, eps, steps):
    exact = oracle.sampled_delta if steps == 1 else oracle.sampled_delta_two_steps
    truth = max(exact(q, sigma, eps, remove=side, digits=25) for side in (True, False))
    bounds = dm.delta(dm.Identity(steps), sigma, eps, participation=dm.Poisson(q), method=dm.Prv())
    assert bounds.lower <= truth <= bounds.upper
    assert bounds.upper <= 1.3 * truth + 1e-12


def test_both_directions():
    # The ADD direction alone: its delta is above 0 at eps < -log(1 - q) only.
    bounds = dm.delta(dm.Identity(1), 1.0, 0.0, participation=dm.Poisson(0.5), method=dm.Prv())
    truth = oracle.sampled_delta(0.5, 1.0, 0.0, remove=False)
    assert bounds.lower <= truth <= bounds.upper
    accountant = dm.calibration.accountant_for(dm.Mechanism(dm.Identity(20), dm.Poisson(0.5)), dm.Prv())
    assert isinstance(accountant, PrvAccountant)
    assert {side.loss.remove for side in accountant._sides(1.0)} == {True, False}


@pytest.mark.parametrize(("call", "sigma", "level"), [(dm.delta, 5.0, 2.0), (dm.epsilon, 5.0, 1e-14)])
def test_below_its_resolution_it_raises(call, sigma, level):
    with pytest.raises(dm.NumericalError, match=r"use dm\.Pld\(\)"):
        call(dm.Identity(1000), sigma, level, participation=dm.Poisson(0.01), method=dm.Prv())


def test_a_fault_of_two_percent_is_seen():
    strategy, schema = dm.Identity(1000), dm.Poisson(0.01)
    sigma = dm.calibrate_sigma(strategy, 1.0, 1e-6, participation=schema).sigma
    low = dm.delta(strategy, 0.98 * sigma, 1.0, participation=schema, method=dm.Prv())
    more = dm.delta(strategy, sigma, 1.0, participation=dm.Poisson(0.0102), method=dm.Prv())
    assert low.lower > 1e-6
    assert more.lower > 1e-6


def test_a_single_step_more_is_seen():
    schema = dm.Poisson(0.01)
    steps = dm.epsilon(dm.Identity(10), 1.0, 1e-6, participation=schema)
    more = dm.epsilon(dm.Identity(11), 1.0, 1e-6, participation=schema, method=dm.Prv())
    assert more.lower > steps.upper
