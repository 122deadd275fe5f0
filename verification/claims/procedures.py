"""How the papers came by their eps, right or wrong; without dpmech, which cannot express some of it."""

import math
import warnings

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

# The default orders of Opacus.
OPACUS_ORDERS = [*(1 + step / 10.0 for step in range(1, 100)), *range(12, 64)]


def sampled_gaussian(sampling_prob: float, sigma: float) -> dp_event.DpEvent:
    """One Gaussian release, Poisson-sampled unless the probability is 1."""
    release = dp_event.GaussianDpEvent(sigma)
    return release if sampling_prob == 1.0 else dp_event.PoissonSampledDpEvent(sampling_prob, release)


def rdp_epsilon(sampling_prob: float, sigma: float, releases: int, delta: float) -> float:
    """Eps of that many independently sampled releases by RDP with Opacus' orders, as Opacus prints it."""
    accountant = RdpAccountant(OPACUS_ORDERS, NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(sampled_gaussian(sampling_prob, sigma), releases)
    return float(accountant.get_epsilon(delta))


def independent_blocks_epsilon(
    sampling_prob: float, sigma: float, steps: int, blocks: int, delta: float
) -> float:
    """The mistake: every block of every batch composed as a release with a batch of its own."""
    return rdp_epsilon(sampling_prob, sigma, blocks * steps, delta)


def joint_epsilon(
    sampling_prob: float, sigma: float, steps: int, blocks: int, delta: float, *, grid: float = 1e-3
) -> float:
    """The right way: blocks of one batch are one release at sigma / sqrt(blocks); PLD of dp-accounting."""
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=grid)
    accountant.compose(sampled_gaussian(sampling_prob, sigma / math.sqrt(blocks)), steps)
    return float(accountant.get_epsilon(delta))


def joint_sigma_for(
    eps: float, sampling_prob: float, steps: int, blocks: int, delta: float, *, grid: float = 1e-3
) -> float:
    """The sigma of every block whose joint release meets (eps, delta), by bisection to 1e-4."""
    low, high = 0.1 * math.sqrt(blocks), 10.0 * math.sqrt(blocks)
    while high / low > 1.0 + 1e-4:
        middle = math.sqrt(low * high)
        small = joint_epsilon(sampling_prob, middle, steps, blocks, delta, grid=grid) <= eps
        low, high = (low, middle) if small else (middle, high)
    return high


def opacus_sigma(
    sampling_prob: float, steps: int, eps: float, delta: float, tolerance: float = 0.01
) -> float:
    """Opacus' calibration by RDP: double an upper end of 10, then halve until eps is within the tolerance."""
    high, reached = 10.0, math.inf
    while reached > eps:
        high *= 2.0
        reached = rdp_epsilon(sampling_prob, high, steps, delta)
    low = 0.0
    while eps - reached > tolerance:
        middle = (low + high) / 2.0
        value = rdp_epsilon(sampling_prob, middle, steps, delta)
        if value < eps:
            high, reached = middle, value
        else:
            low = middle
    return high


def prv_upper_epsilon(sampling_prob: float, sigma: float, steps: int, delta: float) -> float:
    """The upper end that the PRV accountant reports with the settings of Opacus."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

        mechanism = PoissonSubsampledGaussianMechanism(
            noise_multiplier=sigma, sampling_probability=sampling_prob
        )
        accountant = PRVAccountant(
            prvs=[mechanism], max_self_compositions=[steps], eps_error=0.01, delta_error=delta / 1000.0
        )
        return float(accountant.compute_epsilon(delta, [steps])[2])


def formula_epsilon(sampling_prob: float, sigma: float, steps: int, delta: float) -> float:
    """The value q sqrt(T log(1/delta)) / sigma: a theorem's formula, its unknown constant set to 1."""
    return sampling_prob * math.sqrt(steps * np.log(1.0 / delta)) / sigma
