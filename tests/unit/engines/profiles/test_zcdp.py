"""Rho of zero-concentrated DP against Renyi divergences of many digits."""

import mpmath as mp
import pytest

import dpmech as dm


def renyi(order, q, sigma):
    """Of one Poisson-sampled Gaussian release against none, at an integer order, by the binomial theorem."""
    with mp.workdps(60):
        terms = (
            mp.binomial(order, k)
            * mp.mpf(1 - mp.mpf(q)) ** (order - k)
            * mp.mpf(q) ** k
            * mp.exp(mp.mpf(k * (k - 1)) / (2 * mp.mpf(sigma) ** 2))
            for k in range(order + 1)
        )
        return mp.log(mp.fsum(terms)) / (order - 1)


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 7), (0.3, 2.5, 40), (0.9, 0.4, 1)])
def test_it_is_the_supremum_over_orders(q, sigma, steps):
    found = dm.profile(dm.Identity(steps), sigma, participation=dm.Poisson(q)).zcdp
    ratios = [steps * renyi(order, q, sigma) / order for order in (2, 10, 100, 1000)]
    assert all(ratio <= found.upper for ratio in ratios)
    assert ratios == sorted(ratios)
    # What is missing at this order is log(1 / q) / (order - 1) a step, and no more.
    assert found.lower <= ratios[-1] - steps * mp.log(mp.mpf(q)) / 999
    assert found.upper * (1.0 - 1e-12) < found.lower
    # A rho that is one per cent less is refuted at some order.
    assert steps * renyi(4000, q, sigma) / 4000 > 0.99 * found.upper - steps * abs(mp.log(q)) / 3999


def test_without_sampling_it_is_half_of_mu_squared():
    run = dm.profile(dm.LambdaCGD(36, 0.9), 3.0, participation=dm.MinSep(12, 3))
    least, most = run.gaussian_mu(1e-12).lower, run.gaussian_mu(1e-12).upper
    assert run.zcdp.upper == pytest.approx(0.5 * most**2, rel=1e-6)
    assert 0.5 * least**2 <= run.zcdp.upper
    square = dm.Mechanism(dm.LambdaCGD(36, 0.9), dm.MinSep(12, 3)).sensitivity.upper ** 2 / 9.0
    assert run.zcdp.lower <= 0.5 * square <= run.zcdp.upper * (1.0 + 1e-15)


def test_rho_adds_up_and_implies_eps():
    one = dm.profile(dm.Identity(4), 5.0)
    other = dm.profile(dm.Identity(50), 2.0, participation=dm.Poisson(0.1))
    both = one.compose(other, other)
    rho = both.zcdp.upper
    assert rho == pytest.approx(0.5 * (4 / 25 + 100 / 4), rel=1e-12)
    # Bun and Steinke 2016, Proposition 1.3.
    implied = rho + 2.0 * float(mp.sqrt(rho * mp.log(1e5)))
    assert both.epsilon(1e-5).upper <= implied


def test_a_release_that_may_be_less_sensitive_has_no_lower_end():
    strategy = dm.BandedToeplitz(40, [1.0, 0.5])
    run = dm.profile(strategy, 2.0, participation=dm.CyclicPoisson(0.2, 4))
    assert 0.0 <= run.zcdp.lower <= run.zcdp.upper
    assert run.zcdp.upper == pytest.approx(0.5 * 10 * 1.25 / 4.0, rel=1e-9)


def test_nodes_have_none():
    run = dm.profile(dm.Identity(4), 2.0, participation=dm.BallsInBins(2))
    with pytest.raises(dm.UnsupportedCombinationError, match="no rho follows from the nodes"):
        _ = run.zcdp
