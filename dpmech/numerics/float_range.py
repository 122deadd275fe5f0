"""The range of float64 and of memory, and what is said where arguments leave it."""

import contextlib
from collections.abc import Iterator

import numpy as np

from dpmech.exceptions import DpmechError, NumericalError

__all__ = ["within_float64"]


@contextlib.contextmanager
def within_float64(what: str = "the arguments") -> Iterator[None]:
    """An overflow, a division by an underflow, or an array of a size that comes of one is said as what it is.

    Args:
        what: is computed with, in words.

    Raises:
        NumericalError: in place of what Python and numpy raise then.
    """
    try:
        # An overflow is infinite, which bounds from above; what comes of two of them is no number.
        with np.errstate(over="ignore", invalid="raise", divide="raise"):
            yield
    except DpmechError:
        raise
    except MemoryError as error:
        raise NumericalError(f"{what}: this takes more memory than there is ({error})") from error
    except (ArithmeticError, ValueError) as error:
        reason = error.args[-1] if error.args else type(error).__name__
        raise NumericalError(f"{what} leave the range of float64 ({reason})") from error
