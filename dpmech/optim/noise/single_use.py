"""What must exist once: no copies, no second process, no two live streams with one key.

A row of noise protects one release. Whatever could make the same row twice would release two sums under it,
whose difference has no noise at all.
"""

import gc
import os
import threading
import weakref
from typing import NoReturn, SupportsIndex

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.processes import Key

__all__ = ["Uncopied", "check_process_id", "hold_key", "release_key"]

_HELD: "weakref.WeakValueDictionary[tuple[int, Key], object]" = weakref.WeakValueDictionary()
_LOCK = threading.RLock()  # a collection below may run code that comes here again


class Uncopied:
    """Base of classes whose instances refuse `copy.copy`, `copy.deepcopy` and pickling."""

    def __copy__(self) -> NoReturn:
        """Refused."""
        self._refuse("copied")

    def __deepcopy__(self, memo: dict[int, object]) -> NoReturn:
        """Refused."""
        self._refuse("copied")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refused."""
        self._refuse("pickled")

    def _refuse(self, how: str) -> NoReturn:
        raise UnsupportedCombinationError(
            f"a {type(self).__name__} was {how}: both would hand out the same lots or the same noise, and "
            "two sums released under one row tell their difference",
            supported="state_dict(), loaded into a new one when this one is no longer used",
        )


def check_process_id(made_in: int, what: str) -> None:
    """Raise UnsupportedCombinationError in another process than the one that made an object."""
    here = os.getpid()
    if here != made_in:
        raise UnsupportedCombinationError(
            f"{what} of process {made_in} is used in process {here}: both would release the same rows of "
            "noise, as after a fork",
            supported="making it in the process that uses it",
        )


def hold_key(key: Key, owner: object) -> None:
    """Note that a stream of this process draws from a key, until it is gone or gives it back.

    Raises:
        UnsupportedCombinationError: if another live stream of this process has the key.
    """
    entry = (os.getpid(), key)
    with _LOCK:
        if _taken(entry, owner):
            gc.collect()  # what only a cycle refers to is no longer used
        if _taken(entry, owner):
            raise UnsupportedCombinationError(
                "another live NoiseStream or PrivateOptimizer of this process draws the same noise (from an "
                "equal seed, or from the same saved state): two sums released under one row tell their "
                "difference",
                supported="optimizer.close() of the other one first, to go on from its state; another "
                "generator for a run of its own",
            )
        _HELD[entry] = owner


def release_key(key: Key, owner: object) -> None:
    """The key is free again, if this stream held it."""
    entry = (os.getpid(), key)
    with _LOCK:
        if _HELD.get(entry) is owner:
            del _HELD[entry]


def _taken(entry: tuple[int, Key], owner: object) -> bool:
    holder = _HELD.get(entry)
    return holder is not None and holder is not owner
