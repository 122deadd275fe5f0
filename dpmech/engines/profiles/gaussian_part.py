"""A Gaussian loss between two sizes: bounds on delta at an eps, and on eps at a delta, rounding included."""

import math

import numpy as np

from dpmech.engines.gaussian import gaussian_curve, gaussian_epsilon
from dpmech.numerics import ELEMENTARY, UNIT, next_down, quotient_down, quotient_up, root_down, root_up


def gaussian_ends(square: float, eps: float) -> tuple[float, float]:
    """Lower and upper value of H at e^eps, eps >= 0, for a Gaussian loss of mean square / 2."""
    if square == 0.0:
        return 0.0, 0.0
    logs, errors = gaussian_curve(math.sqrt(square), np.array([eps]))
    log_delta, error = float(logs[0]), float(errors[0])
    # The root is off by u, and log h moves by at most (1 + |eps| / mu^2 + mu^2) times that, relative.
    own = ELEMENTARY + UNIT * (4.0 * abs(log_delta) + 4.0 * (1.0 + abs(eps) / square + square))
    value = math.exp(log_delta)
    if math.isinf(error):
        return 0.0, min(1.0, value * (1.0 + own) + 1e-320)
    return (
        max(0.0, next_down(value * (1.0 - error - own) - 1e-320)),
        min(1.0, value * (1.0 + error + own) + 1e-320),
    )


def gaussian_epsilon_ends(squares: tuple[float, float], delta: float) -> tuple[float, float]:
    """Lower and upper value of eps at delta of a Gaussian loss between these two."""
    least, most = root_down(squares[0]), root_up(squares[1])
    lower = gaussian_epsilon(quotient_up(1.0, least), delta, safe=False) if least > 0.0 else 0.0
    return lower, gaussian_epsilon(quotient_down(1.0, most), delta, safe=True) if most > 0.0 else 0.0
