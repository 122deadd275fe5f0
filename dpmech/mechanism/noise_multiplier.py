"""Opacus' noise multiplier: which noise it describes, and what to do with sigma where it describes none.

Tools for DP-SGD (independent noise, most often under Poisson sampling) take one number for the noise of all
steps, clip examples one by one, and state the eps of their own loader.
"""

import numpy as np

from dpmech.mechanism.budget import Unit
from dpmech.mechanism.mechanism import Mechanism
from dpmech.mechanism.strategies import Strategy

_INDEPENDENT = "standard deviation of the i.i.d. noise at clip norm 1"
# EveryStep covers every loader; no eps of Opacus is that of its claim.
_POISSON = f"{_INDEPENDENT}; in Opacus: noise_multiplier, where its loader takes n steps with q as here"
_NAMED = f"{_INDEPENDENT} (what Opacus calls noise_multiplier)"
_OTHER_BATCHES = f"{_NAMED}; Opacus' loaders draw other batches, at another eps"
_EXAMPLES_OF_USERS = f"{_NAMED}; Opacus states the eps of examples, not of users"
_USERS = f"{_INDEPENDENT} of a user; no number for Opacus, which clips examples"
_ADAPTIVE = "i.i.d. noise of gradients and counts together; no number for Opacus, which counts otherwise"
_DIAGONAL = (
    "independent noise, whose size is that of sigma times an entry of C^-1 at every step: use NoiseStream; "
    "no number for DP-SGD tools"
)
_CORRELATED = "correlated noise: use NoiseStream; no number for DP-SGD tools"


def noise_multiplier(mechanism: Mechanism, sigma: float, *, adaptive_clip: bool = False) -> float | None:
    """Opacus' noise multiplier: standard deviation of every step's noise over the clip norm of an example.

    It is sigma where C is the identity, whatever the participation: the sensitivity is inside sigma. That
    Opacus would state the same eps for it is not said: `sigma_use` says where it does.

    Args:
        mechanism: with C, and with whose contributions are clipped.
        sigma: standard deviation of Z in C G + sigma Z at clip norm 1.
        adaptive_clip: whether sigma is shared by gradients and the counts of an adaptive clip norm.

    Returns:
        sigma; None where the noise of different steps is correlated or of different size, where all that a
        user brings is clipped as one, and under an adaptive clip norm: no such number describes these.
    """
    described = _is_identity(mechanism.strategy) and not adaptive_clip and not _clips_users(mechanism)
    return sigma if described else None


def sigma_use(mechanism: Mechanism, *, adaptive_clip: bool = False) -> str:
    """A sentence that says what to do with the sigma of a mechanism.

    Args:
        mechanism: what runs.
        adaptive_clip: as for `noise_multiplier`. Opacus counts an example as 1 or 0, which moves its count by
            twice as much as the counts of +1/2 and -1/2 here, and divides by the size of the batch drawn.
    """
    if not _is_identity(mechanism.strategy):
        return _DIAGONAL if mechanism.strategy.inverse_bands == 1 else _CORRELATED
    if adaptive_clip:
        return _ADAPTIVE
    if _clips_users(mechanism):
        return _USERS
    if mechanism.unit is Unit.USER:
        return _EXAMPLES_OF_USERS
    return _POISSON if mechanism.participation.every_step_alike else _OTHER_BATCHES


def _clips_users(mechanism: Mechanism) -> bool:
    """Whether all that a user brings to a step is clipped as one."""
    return mechanism.unit is Unit.USER and mechanism.participation.unit is None


def _is_identity(strategy: Strategy) -> bool:
    return strategy.inverse_bands == 1 and bool(np.all(strategy.noising_row_norms() == 1.0))
