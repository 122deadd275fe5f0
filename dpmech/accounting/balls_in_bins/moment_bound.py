"""The closed-form bound on moments of the likelihood ratio, and what its evaluation may be off by."""

import math

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.numerics import UNIT, IntArray

__all__ = [
    "ORDERS",
    "log_moment_bound",
    "log_tail_factor",
    "moment_rounding",
    "product_rounding",
    "tail_rounding",
]

ORDERS = (*range(2, 17), 18, 20, 22, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256)


def log_moment_bound(gram: BinGram, scale: float, order: int, rows: IntArray | None = None) -> float:
    """Log B(s, q) >= log E_Q r^(s q), s >= 1; with `rows` only an estimate from those bins."""
    chosen = np.arange(gram.bins) if rows is None else rows
    offsets = 0.5 * (scale**2 - scale) * gram.diagonal
    log_weights = offsets[chosen]
    if order > 1:
        log_weights = log_weights + (order - 1) * gram.log_row_means(0.5 * scale**2 * order, offsets, chosen)
    return float(scipy.special.logsumexp(log_weights) - math.log(chosen.size))


def product_rounding(gram: BinGram) -> float:
    """How far K @ v may be off, relative to the largest entry of K, where K is no array and sum |v| <= 1."""
    return 0.0 if gram.cheap_columns else gram.product_rounding(1.0, 1.0) / float(gram.diagonal.max())


def moment_rounding(gram: BinGram, order: int) -> float:
    """Bound on the absolute error of `log_moment_bound(gram, 1.0, order)`, for the matrix that `gram` holds.

    In units of u = 2^-53, with k the largest exponent q K / 2 of a row: its product and its distance from
    the largest are off by k each, exponentials by 8, their mean (in pairs) by 64, its logarithm by 9 log
    b, the sum with the largest by k + log b; so is the sum over rows, of q - 1 times as much. In all less
    than q (8 k + 160 + 40 log b); where a mean is a product of f means, with exponents k / f each,
    exponentials and sums count f times: less than q (8 k + 160 f + 40 log b).
    """
    largest = 0.5 * order * float(gram.diagonal.max())
    sums = UNIT * order * (8.0 * largest + 160.0 * gram.row_factors + 40.0 * math.log(gram.bins))
    return sums + (order - 1) * largest * product_rounding(gram)


def tail_rounding(power: float, eps: float) -> float:
    """Bound on the absolute error of `log_tail_factor`, p > 1.

    The first term is off by 2 u of itself and sums by as much; the logarithm by 4 u of itself; the last
    term, at most 1, by 6 u of that, and by u for the quotient inside, whose error p - 1 times the slope of
    log1p makes.
    """
    return UNIT * (4.0 * (power - 1.0) * eps + 8.0 * math.log(power) + 16.0)


def log_tail_factor(power: float, eps: float) -> float:
    """Log sup_r (r - e^eps) r^-p over r >= e^eps, p >= 1."""
    if power <= 1.0:
        return 0.0
    return -(power - 1.0) * eps - math.log(power) + (power - 1.0) * math.log1p(-1.0 / power)
