"""Opacus' noise multiplier: which noise it describes, and what to do with sigma where it describes none.

Tools for DP-SGD (independent noise, most often under Poisson sampling) take one number for the noise of all
steps.
"""

import numpy as np

from dpmech.mechanism.participation import Participation
from dpmech.mechanism.strategies import Strategy, check_strategy

__all__ = ["noise_multiplier", "sigma_use"]

_INDEPENDENT = "standard deviation of the i.i.d. noise at clip norm 1; in Opacus: noise_multiplier"
_SAMPLED = ", with q and n as here"
_DIAGONAL = (
    "independent noise, whose size is that of sigma times an entry of C^-1 at every step: use NoiseStream; "
    "no number for DP-SGD tools"
)
_CORRELATED = "correlated noise: use NoiseStream; no number for DP-SGD tools"


def noise_multiplier(strategy: Strategy, sigma: float) -> float | None:
    """Standard deviation of the noise of every step over the clip norm, which Opacus calls noise multiplier.

    It is sigma where C is the identity, whatever the participation: the sensitivity is inside sigma.

    Args:
        strategy: C.
        sigma: standard deviation of Z in C G + sigma Z at clip norm 1.

    Returns:
        sigma; None where the noise of different steps is correlated or of different size, so that no such
        number describes it.
    """
    return sigma if _is_identity(strategy) else None


def sigma_use(strategy: Strategy, participation: Participation | None = None) -> str:
    """A sentence that says what to do with the sigma of a strategy.

    Args:
        strategy: C.
        participation: where it has a sampling rate (Poisson), the sentence says that rate and number of
            steps belong to sigma too, as those of Opacus' own loader are others.
    """
    if _is_identity(strategy):
        return _INDEPENDENT + (_SAMPLED if hasattr(participation, "sampling_prob") else "")
    return _DIAGONAL if strategy.inverse_bands == 1 else _CORRELATED


def _is_identity(strategy: Strategy) -> bool:
    check_strategy(strategy)
    return strategy.inverse_bands == 1 and bool(np.all(strategy.noising_row_norms() == 1.0))
