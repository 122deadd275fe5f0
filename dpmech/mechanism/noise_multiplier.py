"""Opacus' noise multiplier: which noise it describes, and how to use sigma for other noise.

DP-SGD tools (independent noise, usually under Poisson sampling) take one number for the noise of all
steps, clip examples individually, and state the eps of their own data loader.
"""

import numpy as np

from dpmech.mechanism.budget import Unit
from dpmech.mechanism.mechanism import Mechanism
from dpmech.mechanism.strategies import Strategy

_INDEPENDENT = "standard deviation of the i.i.d. noise at clip norm 1"
# EveryStep covers every loader; no eps of Opacus equals that of its claim.
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

    It is sigma if C is the identity, for every participation: the sensitivity is included in sigma. Opacus
    need not state the same eps for it: `sigma_use` says where it does.

    Args:
        mechanism: its strategy C and its unit, which determines what is clipped.
        sigma: standard deviation of Z in C G + sigma Z at clip norm 1.
        adaptive_clip: whether gradients and the counts of an adaptive clip norm share sigma.

    Returns:
        sigma; None if the noise of different steps is correlated or differs in size, if all contributions of
        a user are clipped together, and under an adaptive clip norm: no single number describes these.
    """
    described = _is_identity(mechanism.strategy) and not adaptive_clip and not _clips_users(mechanism)
    return sigma if described else None


def sigma_use(mechanism: Mechanism, *, adaptive_clip: bool = False) -> str:
    """A sentence that says how to use the sigma of a mechanism.

    Args:
        mechanism: the mechanism.
        adaptive_clip: as for `noise_multiplier`. Opacus counts an example as 1 or 0, which changes its count
            twice as much as the counts of +1/2 and -1/2 here, and divides by the sampled batch's size.
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
    """Whether all contributions of a user to a step are clipped together."""
    return mechanism.unit is Unit.USER and mechanism.participation.unit is None


def _is_identity(strategy: Strategy) -> bool:
    return strategy.inverse_bands == 1 and bool(np.all(strategy.noising_row_norms() == 1.0))
