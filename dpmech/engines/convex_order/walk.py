"""The walk of one value of z through the bins: where its mass stands, and what has left the nodes."""

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

# the entries of Walk.totals, as the compiled loops address them
MASS = 0
EXCESS = 1
CHARGE = 2


class Window(NamedTuple):
    """The cells of a state that may hold mass, ends included; there are none where `row_hi` is negative.

    Attributes:
        row_lo: first node of x.
        row_hi: last node of x.
        col_lo: first node of S.
        col_hi: last node of S.
    """

    row_lo: int
    row_hi: int
    col_lo: int
    col_hi: int


@dataclasses.dataclass(eq=False)
class Walk:
    """One value of z on its way through the bins.

    Attributes:
        z: the value.
        state: shape (N, s_nodes), the joint law of x and S below 1 after a bin.
        mixed: shape (N, s_nodes), the same after the step of x to the next bin, before its increment.
        window: where whichever of the two is current may hold mass.
        law: shape (s_nodes,), the law of S of what will gain no more.
        totals: shape (3,), the probability that S reached 1 (MASS), the expected S - 1 at the end on that
            event (EXCESS), and what cut edges and emptied cells cost (CHARGE).
    """

    z: float
    state: Vector
    mixed: Vector
    window: Window
    law: Vector
    totals: Vector


def start_walk(z: float, x: Vector, s_nodes: int) -> Walk:
    """All the mass at x = 0, S = 0, waiting in `mixed` for the increment of bin 0."""
    row = int(np.argmin(np.abs(x)))
    mixed = np.zeros((x.size, s_nodes))
    mixed[row, 0] = 1.0
    return Walk(z, np.zeros_like(mixed), mixed, Window(row, row, 0, 0), np.zeros(s_nodes), np.zeros(3))
