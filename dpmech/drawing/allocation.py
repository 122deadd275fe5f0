"""Allocation: examples put into groups uniformly and independently."""

import numpy as np
import numpy.typing as npt

from dpmech.drawing.random_words import groups
from dpmech.numerics import IntArray


class Allocation:
    """Examples put into groups uniformly and independently, sorted by group.

    A split into equal parts would not do: if one example leaves the data, others change their part.

    Args:
        key: the key of the run.
        count: number of groups.
        size: number of examples.
        epoch: whose allocation it is, >= 0; 0 for one that serves the whole run.
        owners: None; or for every example the number of its user, shape (size,), below `size`: the examples
            of a user are then in one group, drawn for the user.
    """

    def __init__(
        self, key: int, count: int, size: int, epoch: int = 0, *, owners: IntArray | None = None
    ) -> None:
        if owners is None:
            chosen = groups(key, count, size, epoch)
        else:
            chosen = groups(key, count, int(owners.max()) + 1, epoch)[owners]
        self._starts = np.concatenate(([0], np.cumsum(np.bincount(chosen, minlength=count))))
        narrow = chosen.astype(np.uint16) if count <= 1 << 16 else chosen  # sixteen bits sort in linear time
        kind: npt.DTypeLike = np.int32 if size <= 1 << 31 else np.int64
        self._sorted = np.argsort(narrow, kind="stable").astype(kind)

    def members(self, group: int) -> IntArray:
        """The examples of a group, increasing."""
        return self._sorted[self._starts[group] : self._starts[group + 1]].astype(np.int64)
