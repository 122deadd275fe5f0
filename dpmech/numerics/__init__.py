"""Numbers on the safe side: bounds, roots, Toeplitz algebra. Nothing here knows of privacy."""

from dpmech.numerics.arrays import FloatArray, IntArray
from dpmech.numerics.bounds import Bounds
from dpmech.numerics.guarantee import BOUND, EXACT, Guarantee, Kind, error_of_level, joined
from dpmech.numerics.metering import Work, metered, spend
from dpmech.numerics.printed import between, down, percent, times, typed, up
from dpmech.numerics.provenance import Fact, Provenance
from dpmech.numerics.refinement import Ladder, Reached, Settled, log_gap, relative_gap, rung_below
from dpmech.numerics.roots import bisect_boundary, safe_root, signed
from dpmech.numerics.rounding import (
    LONGDOUBLE_BITS,
    LONGDOUBLE_UNIT,
    UNIT,
    next_down,
    next_up,
    outward,
    product_down,
    product_up,
    rounded_down,
    rounded_up,
    sum_down,
    sum_up,
)
from dpmech.numerics.separated_sums import best_separated_sum, windowed_sums
from dpmech.numerics.series import bounded_inverse, error_of_terms, series_inverse
from dpmech.numerics.toeplitz import (
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
    "BOUND",
    "EXACT",
    "LONGDOUBLE_BITS",
    "LONGDOUBLE_UNIT",
    "UNIT",
    "Bounds",
    "Fact",
    "FloatArray",
    "Guarantee",
    "IntArray",
    "Kind",
    "Ladder",
    "Provenance",
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
    "joined",
    "log_gap",
    "metered",
    "next_down",
    "next_up",
    "norm",
    "outward",
    "percent",
    "product_down",
    "product_up",
    "relative_gap",
    "rounded_down",
    "rounded_up",
    "rung_below",
    "safe_root",
    "series_inverse",
    "series_product",
    "signed",
    "spend",
    "sum_down",
    "sum_rounding",
    "sum_up",
    "times",
    "toeplitz_matmul",
    "toeplitz_solve",
    "trimmed",
    "typed",
    "up",
    "windowed_sums",
]
