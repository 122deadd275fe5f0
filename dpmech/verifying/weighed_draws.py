"""What draws from a mixture say of a mean: shared by the verifier's own draws."""

import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.numerics import Bounds, FloatArray, Guarantee, Kind, Provenance

__all__ = ["better_odds", "estimated", "interval", "reaching", "shown", "weights_of"]

# Standard errors of the interval: an honest file is refused about once in a million times; and what a sample
# has to show.
_ERRORS, _RESOLVED, _EVEN = 5.0, 0.1, 0.05
# Of a pilot; and of the samples after it.
_PILOT, _COUNTS = 4000, (40_000, 160_000)
_HALVINGS, _FARTHEST = 12, 1e6


def interval(weights: FloatArray) -> tuple[float, float] | None:
    """The mean of the weights, five standard errors either way; None where they do not show it."""
    mean = float(weights.mean())
    error = float(weights.std(ddof=1)) / math.sqrt(weights.size)
    if not (mean > 0.0 and error <= _RESOLVED * mean and weights.max() <= _EVEN * weights.sum()):
        return None
    return max(0.0, mean - _ERRORS * error), mean + _ERRORS * error


def shown(
    draw: Callable[[int, FloatArray], tuple[FloatArray, FloatArray]], parts: int, *, add: bool
) -> tuple[float, float]:
    """An interval from draws that follow a pilot; where they do not show their mean, from more of them.

    Args:
        draw: takes how many draws and the odds of the parts, shape (J,), and returns weights and better odds.
        parts: J, of the mixture.
        add: which direction.

    Raises:
        NumericalError: where the largest sample does not show its mean.
    """
    _, odds = draw(_PILOT, np.full(parts, 1.0 / parts))
    for count in _COUNTS:
        weights, odds = draw(count, odds)
        ends = interval(weights)
        if ends is not None:
            return ends
    direction = "ADD" if add else "REMOVE"
    raise NumericalError(f"{_COUNTS[-1]} draws do not show the mean in the direction of {direction}")


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
    # Logs to the end: where sigma is far too small, ratios and densities are beyond what floats hold.
    mixed = scipy.special.logsumexp(logs, axis=1, b=odds)
    over = -np.expm1(np.minimum(eps + losses if add else eps - losses, 0.0))
    weights = over * np.exp(np.where(over > 0.0, (0.0 if add else losses) - mixed, -np.inf))
    return weights, (np.exp(logs - mixed[:, None]) * weights[:, None] ** 2).sum(axis=0)


def better_odds(odds: FloatArray, gains: FloatArray) -> FloatArray:
    """Probabilities that follow what each part would gain; a tenth stays as it is."""
    if gains.sum() <= 0.0:
        return odds
    better = odds * np.sqrt(gains)
    mixed: FloatArray = 0.9 * better / better.sum() + 0.1 * odds
    return mixed
