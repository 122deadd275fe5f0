"""Cells of a paper's table: what is printed, and what dpmech has."""

import dataclasses
from collections.abc import Callable, Iterator


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number.

    Attributes:
        name: its row and column.
        printed: as in the paper.
        ours: by dpmech; NaN if there is none.
        guarantee: of ours, or why there is none.
        note: why the two differ, where they do; "" otherwise.
    """

    name: str
    printed: float
    ours: float
    guarantee: str
    note: str = ""


Cells = Iterator[Callable[[], Cell]]
