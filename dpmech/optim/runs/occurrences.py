"""Under which rows of a dataset the same things stand: numbered places, addresses, names."""

import dataclasses
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmech.exceptions import InvalidParameterError

__all__ = ["Occurrences", "Picks", "as_array"]

_Array: TypeAlias = npt.NDArray[np.int64]
Picks: TypeAlias = range | _Array


def as_array(picks: Picks) -> _Array:
    """A range as an array."""
    if isinstance(picks, range):
        return np.arange(picks.start, picks.stop, picks.step, dtype=np.int64)
    return picks


class Occurrences:
    """Collects what stands in which row, and finds a thing that stands in two.

    A few arrays of 8 bytes a row; next to nothing for tensors that stand there whole. Things of different
    kinds (places of a dataset, addresses, names) are never the same.
    """

    def __init__(self) -> None:
        self._places: dict[int, tuple[int | None, list[tuple[Picks, Picks]]]] = {}
        self._lines: dict[str, list[_Line]] = {}
        self._named: list[tuple[Picks, Picks]] = []
        self._objects: list[tuple[Picks, Picks]] = []
        self._numbers: dict[Hashable, int] = {}
        self._other: list[tuple[Picks, Picks]] = []

    def add_places(self, base: int, length: int | None, places: Picks, rows: Picks) -> None:
        """Place `places[i]` of a base stands in row `rows[i]`; places in [0, length)."""
        if len(places):
            self._places.setdefault(base, (length, []))[1].append((places, rows))

    def add_addresses(self, device: str, start: int, step: int, places: Picks, rows: Picks) -> None:
        """What begins at the address start + step * places[i] stands in row `rows[i]`."""
        if len(places):
            self._lines.setdefault(device, []).append(_Line(start, step, places, rows))

    def add_objects(self, ids: list[int], rows: Picks) -> None:
        """Python objects, by `id`; they must stay alive."""
        self._objects.append((np.array(ids, dtype=np.uint64).astype(np.int64), rows))

    def add_names(self, names: _Array | list[Any], rows: Picks) -> None:
        """Names that hold for all datasets together; equal ones are one thing.

        Raises:
            InvalidParameterError: for a name that does not equal itself.
            TypeError: for one that is not hashable.
        """
        if isinstance(names, np.ndarray):
            self._named.append((names, rows))
            return
        whole = as_array(rows)
        exact = np.array([_is_word(name) for name in names], dtype=np.bool_)
        self._named.append(
            (np.array([int(n) for n, ok in zip(names, exact, strict=True) if ok], np.int64), whole[exact])
        )
        numbers = []
        for name, plain in zip(names, exact, strict=True):
            if plain:
                continue
            if name != name:  # noqa: PLR0124 - a NaN
                raise InvalidParameterError("example_ids", name, "ids that equal themselves")
            numbers.append(self._numbers.setdefault(name, len(self._numbers)))
        self._other.append((np.array(numbers, dtype=np.int64), whole[~exact]))

    def first_repeat(self) -> tuple[int, int] | None:
        """Two rows in which the same thing stands; None if there are none."""
        for pair in self._pairs():
            if pair is not None:
                return min(pair), max(pair)
        return None

    def _pairs(self) -> Iterator[tuple[int, int] | None]:
        for length, entries in self._places.values():
            if len(entries) == 1 and isinstance(entries[0][0], range):
                continue
            total = sum(len(places) for places, _ in entries)
            if length is not None and length <= 4 * total + 1024:
                yield _by_table(entries, length)
            else:
                yield _by_sorting(entries)
        for lines in self._lines.values():
            for group in _meeting(lines):
                if len(group) > 1 or not group[0].distinct:
                    yield _by_address(group)
        for entries in (self._named, self._objects, self._other):
            yield _by_sorting(entries)


@dataclasses.dataclass(frozen=True)
class _Line:
    """Rows of one tensor, evenly spaced in memory."""

    start: int
    step: int
    places: Picks
    rows: Picks

    @property
    def distinct(self) -> bool:
        """Whether no two addresses are the same, as far as that is plain to see."""
        return len(self.places) == 1 or (self.step != 0 and isinstance(self.places, range))

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest address."""
        if isinstance(self.places, range):
            first, last = self.places[0], self.places[-1]
        else:
            first, last = int(self.places.min()), int(self.places.max())
        both = self.start + self.step * first, self.start + self.step * last
        return min(both), max(both)

    def addresses(self) -> _Array:
        return self.start + self.step * as_array(self.places)


def _meeting(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Groups of lines; lines of different groups have no address in common."""
    group: list[_Line] = []
    reached = -1
    for line in sorted(lines, key=lambda one: one.ends[0]):
        low, high = line.ends
        if group and low > reached:
            yield group
            group = []
        group.append(line)
        reached = max(reached, high) if len(group) > 1 else high
    if group:
        yield group


def _by_table(entries: Sequence[tuple[Picks, Picks]], length: int) -> tuple[int, int] | None:
    """By a table of the row in which every place stands."""
    owner = np.full(length, -1, dtype=np.int64)
    for places, rows in entries:
        own, where = as_array(places), as_array(rows)
        before = owner[own]
        clash = (before >= 0) & (before != where)
        if not clash.any():
            owner[own] = where  # of several rows with one place one is left, and the others differ
            before = owner[own]
            clash = before != where
        if clash.any():
            first = int(np.argmax(clash))
            return int(before[first]), int(where[first])
    return None


def _by_address(lines: list[_Line]) -> tuple[int, int] | None:
    """By a table over the grid that all addresses lie on, where it is not much longer than their number."""
    low = min(line.ends[0] for line in lines)
    grid = math.gcd(*(line.step for line in lines), *(line.ends[0] - low for line in lines))
    length = (max(line.ends[1] for line in lines) - low) // grid + 1 if grid else 1
    if grid and length <= 4 * sum(len(line.places) for line in lines) + 1024:
        return _by_table([((line.addresses() - low) // grid, line.rows) for line in lines], length)
    return _by_sorting((line.addresses(), line.rows) for line in lines)


def _by_sorting(entries: Iterable[tuple[Picks, Picks]]) -> tuple[int, int] | None:
    """By sorting, where numbers are not those of places."""
    given = [(as_array(ids), as_array(rows)) for ids, rows in entries]
    if not given:
        return None
    ids = np.concatenate([one for one, _ in given])
    rows = np.concatenate([one for _, one in given])
    order = np.argsort(ids, kind="stable")
    ids, rows = ids[order], rows[order]
    clash = (ids[1:] == ids[:-1]) & (rows[1:] != rows[:-1])
    if not clash.any():
        return None
    first = int(np.argmax(clash))
    return int(rows[first]), int(rows[first + 1])


def _is_word(name: object) -> bool:
    """Whether a name is, or equals, an integer of 64 bits."""
    if isinstance(name, float | np.floating):
        return float(name).is_integer() and abs(float(name)) < 2**63  # neither NaN nor infinite
    return isinstance(name, int | np.integer) and -(2**63) <= int(name) < 2**63
