"""What draws from a mixture say of a mean: shared by the verifier's own draws."""

import math
from collections.abc import Callable

import numpy as np

from dpmech.exceptions import NumericalError
from dpmech.numerics import Bounds, FloatArray, Guarantee, Kind, Provenance

__all__ = ["better_odds", "estimated", "interval", "reaching", "weights_of"]

# Standard errors of the interval: an honest file is refused about once in a million times; and what a sample
# has to show.
_ERRORS, _RESOLVED, _EVEN = 5.0, 0.1, 0.05
_HALVINGS, _FARTHEST = 12, 1e6


def interval(weights: FloatArray, *, add: bool) -> tuple[float, float]:
    """The mean of the weights, five standard errors either way.

    Raises:
        NumericalError: where they do not show their mean; of ADD it is then far smaller than that of REMOVE,
            and both ends are 0.
    """
    mean = float(weights.mean())
    if mean <= 0.0:
        return 0.0, 0.0
    error = float(weights.std(ddof=1)) / math.sqrt(weights.size)
    if not (error <= _RESOLVED * mean and weights.max() <= _EVEN * weights.sum()):
        if add:
            return 0.0, 0.0  # far smaller than the other direction, or it would be seen
        raise NumericalError(f"{weights.size} draws do not show their mean")
    return max(0.0, mean - _ERRORS * error), mean + _ERRORS * error


def estimated(ends: list[tuple[float, float]], by: str) -> Bounds:
    """The larger of both directions, as an estimate."""
    lower, upper = (max(end[side] for end in ends) for side in (0, 1))
    error = 2.0 * math.erfc(_ERRORS / math.sqrt(2.0))
    return Bounds(lower, upper, Guarantee(Kind.ESTIMATE, error), Provenance(by))


def reaching(beyond: Callable[[float], bool]) -> float:
    """About the least shift that is beyond, which 0 is not."""
    low, high = 0.0, 1e-3
    while not beyond(high) and high < _FARTHEST:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high


def weights_of(
    losses: FloatArray, logs: FloatArray, odds: FloatArray, eps: float, *, add: bool
) -> tuple[FloatArray, FloatArray]:
    """Weights of mean delta, and the part of their second moment that each part of the mixture has.

    Args:
        losses: log dP/dQ, shape (k,).
        logs: log densities of the parts against Q, shape (k, J).
        odds: their probabilities, shape (J,).
        eps: the privacy loss level.
        add: which direction.
    """
    over = np.maximum(-np.expm1(eps + losses if add else eps - losses), 0.0)
    payoffs = over if add else over * np.exp(losses)
    densities = np.exp(np.clip(logs, -700.0, 700.0))
    weights = payoffs / (densities @ odds)
    return weights, (densities * (weights**2 / (densities @ odds))[:, None]).sum(axis=0)


def better_odds(odds: FloatArray, gains: FloatArray) -> FloatArray:
    """Probabilities that follow what each part would gain; a tenth stays as it is."""
    if gains.sum() <= 0.0:
        return odds
    better = odds * np.sqrt(gains)
    mixed: FloatArray = 0.9 * better / better.sum() + 0.1 * odds
    return mixed
