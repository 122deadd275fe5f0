"""The range of float64, and what is said where arguments leave it."""

import contextlib
from collections.abc import Iterator

from dpmech.exceptions import NumericalError

__all__ = ["within_float64"]


@contextlib.contextmanager
def within_float64() -> Iterator[None]:
    """An overflow or a division by an underflow is said as what it is."""
    try:
        yield
    except (OverflowError, ZeroDivisionError) as error:
        raise NumericalError(f"the arguments leave the range of float64 ({error})") from error
