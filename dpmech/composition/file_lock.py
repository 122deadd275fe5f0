"""One writer at a time: a lock that lives as long as its process, and leaves no file behind."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from dpmech.exceptions import InvalidParameterError
from dpmech.files import resolved

__all__ = ["locked"]

# Seconds that somebody else may take, and between two looks.
_PATIENCE, _PAUSE = 30.0, 0.02
# What this process holds, by thread: who has a lock already does not wait for it.
_held: set[tuple[int, Path]] = set()


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], *, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the only right to read and replace a file; within one thread it may be asked for again.

    The lock is one of the operating system on a neighbour of the file, `.NAME.lock`: it ends with the process
    that holds it, however that ends, and the neighbour is removed. Where the system has none (Windows), the
    neighbour itself is the lock.

    Args:
        path: of the file, which need not be there.
        patience: seconds to wait for another process.

    Raises:
        InvalidParameterError: if the lock cannot be had.
    """
    target = resolved(path)  # one lock for all names of a file
    lock = target.with_name(f".{target.name}.lock")
    own = threading.get_ident(), lock
    if own in _held:
        yield
        return
    handle = _acquired(lock, target, patience)
    _held.add(own)
    try:
        yield
    finally:
        _held.discard(own)
        _release(handle, lock)


def _acquired(lock: Path, target: Path, patience: float) -> int:
    end = time.monotonic() + patience
    while True:
        try:
            handle = _attempt(lock)
        except OSError as error:
            raise InvalidParameterError(
                "path", str(target), f"a file in a folder that may be written ({error.strerror})"
            ) from error
        if handle is not None:
            return handle
        if time.monotonic() > end:
            raise InvalidParameterError(
                "path",
                str(target),
                "a file that no other process is writing",
                f": {lock.name} has been held for {patience:g} seconds",
            )
        time.sleep(_PAUSE)


def _release(handle: int, lock: Path) -> None:
    if sys.platform == "win32":
        os.close(handle)  # Windows removes no file that is open
        lock.unlink(missing_ok=True)
        return
    # Removed first: who waits finds out that it is another file by now, and makes a new one.
    lock.unlink(missing_ok=True)
    os.close(handle)


def _attempt(lock: Path) -> int | None:
    """The open lock file, or None where somebody else has it."""
    if sys.platform == "win32":
        try:
            return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return None
    import fcntl

    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between opening and locking, the one before may have removed it.
        if os.path.samestat(os.fstat(handle), os.stat(lock)):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None
