"""What is done with a batch without changing the mechanism: sharing it over processes, padding it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.numerics import IntArray


def shard(indices: Any, rank: int, world_size: int) -> IntArray:  # noqa: ANN401 - any sequence of integers
    """The part of a batch that one of several processes works on; the parts are a partition of it.

    Sizes differ by at most one. All processes must draw the same batch, so they need the same key: load the
    state of one into the others.

    Args:
        indices: a batch, shape (m,).
        rank: in [0, world_size - 1].
        world_size: number of processes, >= 1.

    Raises:
        InvalidParameterError: on a bad argument.
    """
    batch = check_indices(indices)
    processes = check_integer("world_size", world_size, minimum=1)
    return batch[check_integer("rank", rank, minimum=0, maximum=processes - 1) :: processes].copy()


def padded(indices: Any, multiple: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:  # noqa: ANN401 - any sequence of integers
    """A batch filled up to the next multiple with example 0, and which entries are real.

    For microbatches of a fixed size. Padding must get weight 0 before gradients are summed; then nothing
    changes. Cutting a batch to size is another mechanism: `TruncatedPoissonSampler`. An empty batch
    stays empty.

    Args:
        indices: a batch, shape (m,).
        multiple: >= 1.

    Returns:
        Indices and mask, both of shape (ceil(m / multiple) * multiple,).

    Raises:
        InvalidParameterError: on a bad argument.
    """
    batch = check_indices(indices)
    missing = -batch.size % check_integer("multiple", multiple, minimum=1)
    mask = np.ones(batch.size + missing, dtype=np.bool_)
    mask[batch.size :] = False
    return np.concatenate((batch, np.zeros(missing, dtype=np.int64))), mask


def check_indices(value: Any) -> IntArray:  # noqa: ANN401 - the guard is what gives it a type
    """Return a one-dimensional int64 array; floats, bools and other shapes are refused."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise InvalidParameterError("indices", type(value).__name__, _ACCEPTED) from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        # The indices themselves are not shown: they say who took part.
        raise InvalidParameterError("indices", f"{array.dtype} of shape {array.shape}", _ACCEPTED)
    return array.astype(np.int64)


_ACCEPTED = "a one-dimensional sequence of integers"
