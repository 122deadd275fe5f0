"""Compiled look-ups in the tables of tilted normals. This module imports numba; import it late.

Every number is rounded as written, and nothing depends on the number of threads.
"""

import math

import numpy as np
import numpy.typing as npt

from dpmech.engines.gaussian_mixture.chain_kernels import Array, Flags, njit

Integers = npt.NDArray[np.int64]


@njit(nogil=True, cache=True)
def inverted(cumulative: Array, rows: Integers, uniforms: Array) -> Integers:
    """The first entry of each row that exceeds a number; rows of shape (r, c), the others of shape (m,).

    Raises:
        IndexError: if there is no such row.
    """
    found = np.empty(rows.size, dtype=np.int64)
    for place in range(rows.size):
        if not 0 <= rows[place] < cumulative.shape[0]:
            raise IndexError("no such row")
        row, uniform = cumulative[rows[place]], uniforms[place]
        low, high = 0, row.size - 1  # the last entry exceeds all numbers
        while low < high:
            middle = (low + high) // 2
            if row[middle] <= uniform:
                low = middle + 1
            else:
                high = middle
        found[place] = low
    return found


@njit(nogil=True, cache=True)
def near_edges(
    values: Array, errors: Array, first: float, step: float, count: int, rounding: float, near: Flags
) -> None:
    """Set `near`, of shape (m,), where a value of a row may be across one of the inner edges of equal cells.

    Args:
        values: shape (m, b).
        errors: largest error of the values of a row, shape (m,).
        first: where the first cell starts.
        step: the width of a cell.
        count: number of cells; the first and the last one are unbounded.
        rounding: relative error of a position.
        near: the result; rows that are set already stay so.
    """
    per_step, start = 1.0 / step, abs(first) / step
    for row in range(values.shape[0]):
        error = errors[row] / step
        for column in range(values.shape[1]):
            place = (values[row, column] - first) * per_step
            nearest = np.rint(place)
            allowed = error + rounding * (abs(place) + start + 1.0)
            if 0.0 < nearest < count and abs(place - nearest) <= allowed:
                near[row] = True
                break


@njit(nogil=True, cache=True)
def looked_up(
    table: Array, levels: Array, lowest: float, level_step: float, eta: Array, first: float, cell: float
) -> Array:
    """The entries of a table, of shape (rows, cells), at each level and eta, of shape (m,); NaN at a NaN.

    Args:
        table: one row for each level.
        levels: rounded to the nearest row.
        lowest: the level of the first row.
        level_step: the distance of rows.
        eta: rounded down to a cell.
        first: where the first cell starts.
        cell: the width of a cell.
    """
    last_row, last_cell = float(table.shape[0] - 1), float(table.shape[1] - 1)
    per_level, per_cell = 1.0 / level_step, 1.0 / cell
    out = np.full(eta.size, np.nan)
    for place in range(eta.size):
        row = np.rint((levels[place] - lowest) * per_level)
        column = (eta[place] - first) * per_cell
        if not (math.isnan(row) or math.isnan(column)):
            row, column = min(max(row, 0.0), last_row), min(max(column, 0.0), last_cell)
            out[place] = table[int(row), int(column)]
    return out
