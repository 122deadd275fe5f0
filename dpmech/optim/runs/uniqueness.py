"""Detects examples that occur twice in a dataset, by resolving views to the underlying examples."""

import hashlib
import operator
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from dpmech.certificates import Uniqueness
from dpmech.exceptions import DpmechError, InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.canaries import CanaryData
from dpmech.optim.runs.user_datasets import UserDataset

_Array: TypeAlias = npt.NDArray[np.int64]
Picks: TypeAlias = range | _Array


def as_array(picks: Picks) -> _Array:
    """A range as an array."""
    if isinstance(picks, range):
        return np.arange(picks.start, picks.stop, picks.step, dtype=np.int64)
    return picks


class Occurrences:
    """Collects objects with their rows, and finds an object that occurs in two rows.

    Uses a few arrays of 8 bytes per row; almost no memory for whole tensors. Objects of different
    kinds (places of a dataset, addresses, names) are never equal.
    """

    def __init__(self) -> None:
        self._numbered: dict[Hashable, list[tuple[Picks, Picks]]] = {}  # by kind, or by the base of places
        self._names: dict[Hashable, int] = {}

    def add_places(self, base: Hashable, places: Picks, rows: Picks) -> None:
        """Place `places[i]` of a base occurs in row `rows[i]`."""
        if len(places):
            self._numbered.setdefault(base, []).append((places, rows))

    def add_addresses(self, device: str, start: int, step: int, places: Picks, rows: Picks) -> None:
        """The data at the address start + step * places[i] occur in row `rows[i]`."""
        if isinstance(places, range) and step:
            ends = start + step * places.start, start + step * places.stop
            self.add_places(device, range(*ends, step * places.step), rows)
        else:
            self.add_places(device, start + step * as_array(places), rows)

    def add_objects(self, ids: list[int], rows: Picks) -> None:
        """Python objects, by `id`; they must stay alive."""
        self.add_places("objects", np.array(ids, dtype=np.uint64).astype(np.int64), rows)

    def add_names(self, names: _Array | list[Any], rows: Picks) -> None:
        """Names that are unique across all datasets; equal names are the same object.

        Raises:
            InvalidParameterError: for a name that is not equal to itself.
            TypeError: for an unhashable name.
        """
        if isinstance(names, np.ndarray):
            self.add_places("words", names, rows)
            return
        whole = as_array(rows)
        exact = np.array([_is_word(name) for name in names], dtype=np.bool_)
        words, numbers = [], []
        for name, plain in zip(names, exact, strict=True):
            if plain:
                words.append(int(name))
            elif name != name:  # noqa: PLR0124 - a NaN
                raise InvalidParameterError("example_ids", name, "ids that equal themselves")
            else:
                numbers.append(self._names.setdefault(name, len(self._names)))
        self.add_places("words", np.array(words, dtype=np.int64), whole[exact])
        self.add_places("other names", np.array(numbers, dtype=np.int64), whole[~exact])

    def first_repeat(self) -> tuple[int, int] | None:
        """Two rows with the same object; None if there are none."""
        for entries in self._numbered.values():
            for group in _meeting(entries):
                if len(group) > 1 or not isinstance(group[0][0], range):
                    pair = _repeat(group)
                    if pair is not None:
                        return min(pair), max(pair)
        return None


def _extremes(picks: Picks) -> tuple[int, int]:
    """The least and the largest."""
    if isinstance(picks, range):
        return min(picks[0], picks[-1]), max(picks[0], picks[-1])
    return int(picks.min()), int(picks.max())


def _meeting(entries: Iterable[tuple[Picks, Picks]]) -> Iterator[list[tuple[Picks, Picks]]]:
    """Groups of entries; entries of different groups have no object in common."""
    group: list[tuple[Picks, Picks]] = []
    reached = 0
    for entry in sorted(entries, key=lambda one: _extremes(one[0])[0]):
        low, high = _extremes(entry[0])
        if group and low > reached:
            yield group
            group = []
        reached = max(reached, high) if group else high
        group.append(entry)
    if group:
        yield group


def _repeat(entries: Sequence[tuple[Picks, Picks]]) -> tuple[int, int] | None:
    """Two rows with the same number, by sorting."""
    ids = np.concatenate([as_array(ids) for ids, _ in entries])
    rows = np.concatenate([as_array(rows) for _, rows in entries])
    order = np.argsort(ids, kind="stable")
    ids, rows = ids[order], rows[order]
    clash = (ids[1:] == ids[:-1]) & (rows[1:] != rows[:-1])
    if not clash.any():
        return None
    first = int(np.argmax(clash))
    return int(rows[first]), int(rows[first + 1])


def _is_word(name: object) -> bool:
    """Whether a name is, or equals, a 64-bit integer."""
    if isinstance(name, float | np.floating):
        return float(name).is_integer() and abs(float(name)) < 2**63  # neither NaN nor infinite
    return isinstance(name, int | np.integer) and -(2**63) <= int(name) < 2**63


_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def share_examples(dataset: Any, other: Any) -> bool:
    """Whether an example of one dataset also occurs in the other, as far as views can be resolved.

    An example with several parts (inputs, labels) is identified by its largest part in memory: two datasets
    may share a tensor of zeros as targets.

    Args:
        dataset: with a length and indices, without repeated examples.
        other: the same; it may repeat examples.

    Raises:
        As ExamplePlaces, except for repeated examples.
    """
    walk = _Walk(largest=True)
    rows: Picks = range(len(dataset))
    walk.follow(dataset, rows, rows)
    # With one row for all, so that repetitions within it do not count.
    walk.follow(other, range(len(other)), np.full(len(other), len(dataset), dtype=np.int64))
    return walk.found.first_repeat() is not None


class ExamplePlaces:
    """The locations of a dataset's examples, each in one, as far as can be determined; they must not change.

    Subset (made by random_split), ConcatDataset, StackDataset and CanaryData are resolved to the dataset with
    the examples. There an example is an index, modulo the length; rows of tensors and arrays are identified
    by address, so that two datasets over one tensor are detected. In a StackDataset every component
    counts: an example in two rows takes part twice. `example_ids` of a dataset replaces all of this.

    Attributes:
        uniqueness: how far it was determined. FLATTENED if every underlying dataset is a TensorDataset, a
            tensor, an array or a plain sequence; EXAMPLE_IDS if all have `example_ids`; otherwise
            NOT_CHECKED: views were resolved, but how a dataset of another class uses its indices is unknown.
        outline: classes, lengths and indices of the views, in an order that is the same in all processes. It
            depends on the data and must not be revealed.

    Raises:
        UnsupportedCombinationError: if an example occurs twice, or a view cannot be resolved.
        InvalidParameterError: for `example_ids` of another length, or that cannot be compared.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        walk = _walked(dataset)
        pair = walk.found.first_repeat()
        if pair is not None:
            raise UnsupportedCombinationError(
                f"the dataset holds examples twice, one of them under the indices {pair[0]} and {pair[1]}: "
                "it would take part twice as often as certified",
                supported="every example under one index; if two indices do belong to two examples, a "
                "dataset with example_ids",
            )
        # Without any example nothing is left open.
        kinds = walk.kinds or {Uniqueness.FLATTENED}
        self.uniqueness = next(iter(kinds)) if len(kinds) == 1 else Uniqueness.NOT_CHECKED
        self.outline = walk.outline.digest()
        self._places = walk.places.digest()
        self._held = walk.held  # objects that are alive keep their identity

    @property
    def changed(self) -> bool:
        """Whether indices, tensors or elements were replaced since."""
        try:
            now = _walked(self._dataset, compared=False)
        except DpmechError:
            return True  # it could be resolved before
        return (now.outline.digest(), now.places.digest()) != (self.outline, self._places)


def _walked(dataset: Any, *, compared: bool = True) -> "_Walk":
    walk = _Walk(compared=compared)
    rows: Picks = range(len(dataset))
    walk.follow(dataset, rows, rows)
    return walk


class _Walk:
    """Descends through views; `picks` are indices of the current dataset, `rows` those of the outermost.

    `outline` collects information that is the same in every process, and `places` that of this process:
    objects, their addresses, and how often they were written to.
    """

    def __init__(self, *, largest: bool = False, compared: bool = True) -> None:
        self.found = Occurrences()
        self._compared = compared
        self.kinds: set[Uniqueness] = set()
        self.outline, self.places = hashlib.blake2b(), hashlib.blake2b()
        self.held: list[object] = []
        self._largest = largest

    def _note(self, dataset: object, outline: object, *places: object) -> None:
        if not isinstance(outline, bytes):
            outline = repr(outline).encode()
        for digest, value in (
            (self.outline, type(dataset).__qualname__.encode()),
            (self.outline, outline),
            (self.places, repr((id(dataset), *places)).encode()),
        ):
            digest.update(len(value).to_bytes(8, "big") + value)
        self.held.append(dataset)

    def follow(self, dataset: Any, picks: Picks, rows: Picks) -> None:
        # Parts without examples count too: the extent of the check must not reveal a single example.
        own = getattr(dataset, "example_ids", None)
        if own is not None:
            self.kinds.add(Uniqueness.EXAMPLE_IDS)
            ids = _on_host(own() if callable(own) else own)
            self._note(dataset, _plain_bytes(ids))
            self._ids(dataset, ids, _within(dataset, picks), rows)
            return
        for kind in (Subset, ConcatDataset, StackDataset, TensorDataset):
            if isinstance(dataset, kind) and _overrides(dataset, kind):
                # It may use its indices in any way; inherited parts are still followed.
                self.kinds.add(Uniqueness.NOT_CHECKED)
        match dataset:
            case Subset():
                inner = _integers(dataset.indices)
                self._note(dataset, inner.tobytes())
                picks = _within(dataset, picks, len(inner))
                self.follow(dataset.dataset, _chosen(inner, picks), rows)
            case ConcatDataset():
                self._concatenated(dataset, _within(dataset, picks), rows)
            case StackDataset():
                parts = dataset.datasets
                self._note(dataset, len(parts))
                for part in parts.values() if isinstance(parts, dict) else parts:
                    self.follow(part, picks, rows)
            case CanaryData():
                self._with_canaries(dataset, _within(dataset, picks), rows)
            case TensorDataset():
                self._note(dataset, len(dataset.tensors))
                self._tensors(dataset, dataset.tensors, _within(dataset, picks), rows)
            case Tensor() | np.ndarray() if dataset.ndim != 1 or not getattr(
                dataset.dtype, "hasobject", False
            ):
                self._tensors(dataset, [dataset], _within(dataset, picks), rows)
            case np.ndarray() | list() | tuple() | range() | str() | bytes():
                self._sequence(dataset, _within(dataset, picks), rows)
            case _:
                self.kinds.add(Uniqueness.NOT_CHECKED)
                kept = [dataset._kept, dataset._starts] if isinstance(dataset, UserDataset) else []
                beneath = [id(dataset.dataset)] if kept else []
                self._note(dataset, [_length(dataset), *kept], *beneath)
                if self._largest and isinstance(dataset, UserDataset):
                    for user, row in zip(as_array(picks).tolist(), as_array(rows).tolist(), strict=True):
                        own = dataset._kept[dataset._starts[user] : dataset._starts[user + 1]]
                        places = np.array(own, dtype=np.int64)
                        self.follow(dataset.dataset, places, np.full(len(own), row, dtype=np.int64))
                elif not self._arrow(dataset, picks, rows):
                    self.found.add_places(id(dataset), _within(dataset, picks), rows)

    def _ids(self, dataset: Any, ids: Any, picks: Picks, rows: Picks) -> None:
        try:
            given = len(ids)
        except TypeError:
            ids = list(ids) if isinstance(ids, Iterable) else _refuse_ids(type(ids).__name__, "a sequence")
            given = len(ids)
        if given != len(dataset) or getattr(ids, "ndim", 1) != 1:
            _refuse_ids(f"{given} ids", "one for each of the examples")
        whole = ids if isinstance(ids, np.ndarray) else np.asarray(ids) if _all_integers(ids) else None
        if whole is not None and whole.dtype.kind in "iu" and whole.dtype != np.uint64:
            self.found.add_names(_chosen(whole.astype(np.int64, copy=False), picks), rows)
            return
        kept = ids.tolist() if isinstance(ids, np.ndarray) else ids
        try:
            self.found.add_names([kept[place] for place in picks], rows)
        except (TypeError, KeyError) as error:
            raise InvalidParameterError(
                "example_ids", type(ids).__name__, f"a sequence of hashable ids ({error})"
            ) from error

    def _concatenated(self, dataset: ConcatDataset[Any], picks: Picks, rows: Picks) -> None:
        parts: list[Any] = list(dataset.datasets)
        self._note(dataset, list(dataset.cumulative_sizes))
        ends = np.asarray(dataset.cumulative_sizes, dtype=np.int64)
        starts = np.concatenate(([0], ends[:-1]))
        if any(_length(part) != size for part, size in zip(parts, ends - starts, strict=True)):
            raise UnsupportedCombinationError(
                "parts of a ConcatDataset have other lengths than when they were joined",
                supported="datasets of constant length",
            )
        if isinstance(picks, range) and picks == range(int(ends[-1])):
            for part, start, end in zip(parts, starts.tolist(), ends.tolist(), strict=True):
                self.follow(part, range(end - start), rows[start:end])
            return
        places, owners = as_array(picks), as_array(rows)
        which = np.searchsorted(ends, places, side="right")
        order = np.argsort(which, kind="stable")
        cuts = np.searchsorted(which[order], np.arange(len(parts) + 1))
        for number, part in enumerate(parts):
            own = order[cuts[number] : cuts[number + 1]]
            self.follow(part, places[own] - starts[number], owners[own])

    def _with_canaries(self, dataset: CanaryData, picks: Picks, rows: Picks) -> None:
        self._note(dataset, [len(dataset), dataset.real_count])
        places, owners = as_array(picks), as_array(rows)
        real = places < dataset.real_count
        self.found.add_places(id(dataset), places[~real], owners[~real])
        self.follow(dataset._real, places[real], owners[real])

    def _tensors(self, dataset: object, tensors: Sequence[Any], picks: Picks, rows: Picks) -> None:
        """Rows by address; by index if they have none."""
        self.kinds.add(Uniqueness.FLATTENED)
        lines = [_memory_of(tensor) for tensor in tensors]
        for tensor in tensors:
            self._note(tensor, [str(getattr(tensor, "dtype", "")), tuple(tensor.shape)], *_place_of(tensor))
        if self._largest:
            lines = [lines[max(range(len(tensors)), key=lambda number: _row_bytes(tensors[number]))]]
        known = [(line[0], line[1], line[3][0]) for line in lines if line is not None and line[2]]
        # A constant expanded along the examples identifies none, unless there is nothing else.
        moving = [line for line in known if line[2]] or known
        for device, start, step in moving:
            self.found.add_addresses(device, start, step, picks, rows)
        if not moving:
            self.found.add_places(id(dataset), picks, rows)

    def _arrow(self, dataset: Any, picks: Picks, rows: Picks) -> bool:
        """Rows of a Hugging Face dataset by the memory of its table, which its views share."""
        table: Any = getattr(dataset, "_data", None)
        chosen: Any = getattr(dataset, "_indices", None)
        names = list(getattr(table, "column_names", None) or [])
        if not names or not hasattr(table, "column") or not hasattr(dataset, "column_names"):
            return False
        places, owners = as_array(_within(dataset, picks)), as_array(rows)
        if chosen is not None:
            places = np.asarray(chosen.column(0).to_numpy(), dtype=np.int64)[places]
        if not self._largest:  # one column, since all columns give the same result
            names = names[:1]
        for name in names:
            start = 0
            for chunk in table.column(name).chunks:
                here = (places >= start) & (places < start + len(chunk))
                memory = [buffer.address for buffer in chunk.buffers() if buffer is not None]
                if memory:
                    self.found.add_places(memory[-1], places[here] - start + chunk.offset, owners[here])
                start += len(chunk)
        return True

    def _sequence(self, dataset: Any, picks: Picks, rows: Picks) -> None:
        """Elements by object identity, and by the memory of their tensors; plain values by place."""
        self.kinds.add(Uniqueness.FLATTENED)
        places, owners = as_array(picks), as_array(rows)
        named = np.zeros(len(places), dtype=np.bool_)
        if isinstance(dataset, list | tuple | np.ndarray):
            named = np.array([not _is_plain(dataset[place]) for place in places.tolist()], dtype=np.bool_)
        ids = [id(dataset[place]) for place in places[named].tolist()]
        plain = (
            [dataset[place] for place in places[~named].tolist()] if not isinstance(dataset, range) else []
        )
        self._note(dataset, len(dataset), ids, plain)
        if named.any():
            self.held.append([dataset[place] for place in places[named].tolist()])
            self.found.add_objects(ids, owners[named])
            if self._compared:  # another tuple of the same tensor rows is the same example
                made = [_number_of(dataset[place]) for place in places[named].tolist()]
                self.found.add_objects(made, owners[named])
        if not named.all():
            self.found.add_places(id(dataset), places[~named], owners[~named])


def _plain_bytes(ids: Any) -> bytes:
    """Ids as bytes that are the same in every process, for names with a custom repr."""
    if isinstance(ids, np.ndarray) and not ids.dtype.hasobject:
        return ids.tobytes()
    return repr(list(ids) if isinstance(ids, Iterable) else ids).encode()


def _place_of(value: Any) -> tuple[object, ...]:
    """The address of an array, or the layout of a tensor and its number of writes.

    Spawned workers move storages of tensors to shared memory, so that addresses of these are not meaningful.
    """
    if isinstance(value, np.ndarray):
        return value.__array_interface__["data"][0], value.strides
    try:
        written = 0 if value.is_inference() else value._version
        return written, value.storage_offset(), value.stride()
    except (RuntimeError, NotImplementedError, AttributeError):
        return ()


def _row_bytes(value: Any) -> int:
    return int(np.prod(value.shape[1:])) * int(getattr(value, "itemsize", 0) or value.element_size())


def _is_plain(value: object) -> bool:
    """Whether equal examples may be one object without being one example, as small integers are."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _number_of(element: object) -> int:
    """A 64-bit hash that is equal for elements with the same memory and otherwise equal values.

    Equal values alone do not count: two people may have the same ones.
    """
    memory: list[object] = []
    made = _made_of(element, memory)
    return hash(made if memory else id(element)) % (1 << 64)


def _made_of(value: Any, memory: list[object]) -> Hashable:
    """A hashable description of a value; tensors and arrays, identified by address, are added to `memory`."""
    if isinstance(value, Tensor | np.ndarray):
        place = _memory_of(value)
        if place is None:
            return id(value)
        memory.append(value)
        return place
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, tuple | list):
        return tuple(_made_of(item, memory) for item in value)
    if isinstance(value, dict):
        return tuple((key, _made_of(item, memory)) for key, item in value.items())
    return value if isinstance(value, _PLAIN) else id(value)


_Memory: TypeAlias = tuple[str, int, tuple[int, ...], tuple[int, ...]]


def _memory_of(value: Any) -> _Memory | None:
    """(device, address, shape, bytes from one value to the next by dimension); None without an address."""
    if isinstance(value, np.ndarray):
        address = int(value.__array_interface__["data"][0])
        return ("cpu", address, value.shape, value.strides) if value.size else None
    try:
        strides = tuple(step * value.element_size() for step in value.stride())
        return (
            (str(value.device), value.data_ptr(), tuple(value.shape), strides) if value.data_ptr() else None
        )
    except (RuntimeError, NotImplementedError, AttributeError):
        return None  # sparse tensors, or objects that only look like tensors


def _overrides(dataset: object, kind: type) -> bool:
    """Whether a subclass overrides the access to its indices."""
    names = ("__getitem__", "__getitems__", "__len__")
    return any(getattr(type(dataset), name, None) is not getattr(kind, name, None) for name in names)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _within(dataset: object, picks: Picks, length: int | None = None) -> Picks:
    """Indices in [0, length), negative ones counted from the end."""
    if len(picks) == 0:
        return picks
    length = _length(dataset) if length is None else length
    low, high = _extremes(picks)
    if (length is None and low < 0) or (length is not None and not -length <= low <= high < length):
        raise UnsupportedCombinationError(
            f"indices outside of a {type(dataset).__name__}{' of unknown length' if length is None else ''}",
            supported="indices of existing examples, or a dataset with example_ids",
        )
    if low >= 0 or length is None:
        return picks
    places = as_array(picks)
    return np.where(places < 0, places + length, places)


def _chosen(values: _Array, picks: Picks) -> _Array:
    """`values[picks]`, without a copy if picks are a range."""
    if isinstance(picks, range):
        return values[picks.start : picks.stop : picks.step]
    return values[picks]


def _integers(indices: Any) -> _Array:
    """Indices of a Subset as an array."""
    indices = _on_host(indices)
    try:
        array = indices if isinstance(indices, np.ndarray) else np.asarray(indices)
        if array.dtype.kind not in "iub" or array.ndim != 1:
            array = np.fromiter((operator.index(index) for index in indices), np.int64, len(indices))
        return array.astype(np.int64, copy=False)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise UnsupportedCombinationError(
            "a Subset with indices that are no integers: repeated examples cannot be detected",
            supported="integer indices, or a dataset with example_ids",
        ) from None


def _on_host(values: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _all_integers(ids: Any) -> bool:
    return isinstance(ids, range) or (isinstance(ids, list | tuple) and all(type(one) is int for one in ids))


def _refuse_ids(shown: object, accepted: str) -> NoReturn:
    raise InvalidParameterError("example_ids", shown, accepted)
