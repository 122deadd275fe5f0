"""A checksum over the content of frozen records: numbers bit by bit, arrays by their bytes."""

import dataclasses
import enum
import hashlib
from collections.abc import Iterator, Set

import numpy as np

__all__ = ["checksum_of"]

# Where work runs says nothing about what was computed.
_NO_CONTENT = frozenset({"executor"})


def checksum_of(record: object, *, without: Set[str] = frozenset()) -> str:
    """SHA-256 (hex) of the fields of a dataclass, with those of the records inside it.

    Cheap also for large arrays, whose bytes are hashed as they are. Objects of a kind that it does not know
    enter by their `repr`.

    Args:
        record: a dataclass instance.
        without: fields of `record` itself to leave out.
    """
    digest = hashlib.sha256()
    for part in _parts(record, frozenset(without)):
        # With its length, so that no two contents spell the same bytes.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(value: object, without: frozenset[str] = frozenset()) -> Iterator[bytes | memoryview]:
    if isinstance(value, enum.Enum):
        yield f"{type(value).__name__}.{value.name}".encode()
    elif dataclasses.is_dataclass(value):
        fields = [one.name for one in dataclasses.fields(value) if one.name not in without | _NO_CONTENT]
        yield f"{type(value).__name__} {len(fields)}".encode()
        for name in fields:
            yield name.encode()
            yield from _parts(getattr(value, name))
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype.str} {value.shape}".encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, tuple | list):
        yield f"sequence {len(value)}".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, bool) or value is None:
        yield repr(value).encode()
    elif isinstance(value, float):
        yield float(value).hex().encode()
    elif isinstance(value, int):
        yield f"integer {value:x}".encode()
    else:
        yield repr(value).encode()
