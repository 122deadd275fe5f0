"""Numbers on the safe side: bounds, roots, Toeplitz algebra. Nothing here knows of privacy."""

from dpmech.numerics.arrays import FloatArray, IntArray
from dpmech.numerics.bounds import Bounds, error_of_level, union_error
from dpmech.numerics.directed import rounded_down, rounded_up
from dpmech.numerics.metering import Work, metered, spend
from dpmech.numerics.printed import between, down, percent, times, typed, up
from dpmech.numerics.refinement import Ladder, Reached, Settled, log_gap, relative_gap, rung_below
from dpmech.numerics.roots import bisect_boundary, safe_root, signed
from dpmech.numerics.separated_sums import best_separated_sum, windowed_sums
from dpmech.numerics.series import bounded_inverse, error_of_terms, series_inverse
from dpmech.numerics.toeplitz import (
    UNIT,
    checked_finite,
    checked_norms,
    convolution_rounding,
    cumulative_sum,
    is_short,
    norm,
    series_product,
    sum_rounding,
    toeplitz_matmul,
    toeplitz_solve,
    trimmed,
)

__all__ = [
    "UNIT",
    "Bounds",
    "FloatArray",
    "IntArray",
    "Ladder",
    "Reached",
    "Settled",
    "Work",
    "best_separated_sum",
    "between",
    "bisect_boundary",
    "bounded_inverse",
    "checked_finite",
    "checked_norms",
    "convolution_rounding",
    "cumulative_sum",
    "down",
    "error_of_level",
    "error_of_terms",
    "is_short",
    "log_gap",
    "metered",
    "norm",
    "percent",
    "relative_gap",
    "rounded_down",
    "rounded_up",
    "rung_below",
    "safe_root",
    "series_inverse",
    "series_product",
    "signed",
    "spend",
    "sum_rounding",
    "times",
    "toeplitz_matmul",
    "toeplitz_solve",
    "trimmed",
    "typed",
    "union_error",
    "up",
    "windowed_sums",
]
