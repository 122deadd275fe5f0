"""The closed-form bound on moments of the likelihood ratio."""

import math

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.numerics import IntArray

__all__ = ["ORDERS", "log_moment_bound", "log_tail_factor"]

ORDERS = (*range(2, 17), 18, 20, 22, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256)


def log_moment_bound(gram: BinGram, scale: float, order: int, rows: IntArray | None = None) -> float:
    """Log B(s, q) >= log E_Q r^(s q), s >= 1; with `rows` only an estimate from those bins."""
    chosen = np.arange(gram.bins) if rows is None else rows
    offsets = 0.5 * (scale**2 - scale) * gram.diagonal
    log_weights = offsets[chosen]
    if order > 1:
        log_weights = log_weights + (order - 1) * gram.log_row_means(0.5 * scale**2 * order, offsets, chosen)
    return float(scipy.special.logsumexp(log_weights) - math.log(chosen.size))


def log_tail_factor(power: float, eps: float) -> float:
    """Log sup_r (r - e^eps) r^-p over r >= e^eps, p >= 1."""
    if power <= 1.0:
        return 0.0
    return -(power - 1.0) * eps - math.log(power) + (power - 1.0) * math.log1p(-1.0 / power)
