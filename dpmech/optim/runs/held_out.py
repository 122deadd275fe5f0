"""Detects training data among evaluation data, as far as possible."""

import itertools
import random
import secrets
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, default_collate

from dpmech.exceptions import DpmechError, UnsupportedCombinationError
from dpmech.optim.runs.set_up import examples_print, picked_examples, single_prints
from dpmech.optim.runs.uniqueness import share_examples

_LEAST, _COUNT = 8, 16  # smallest number of examples to compare, and number of examples compared
_DEEPEST = 16
_VIEWS = (Subset, ConcatDataset, StackDataset)
# Number of training examples whose checksums are kept: all up to _MOST, else as many at random places. A
# sample contains only a fraction of the copies, so more of the evaluation data are compared (_MORE).
_MOST, _MORE = 4096, 256
_SECONDS = 10.0  # to read them
_SHARE = 0.25  # of the compared examples, which must be found among the training examples
_DISTINCT = (
    0.9  # fraction of training examples that must be distinct: else held-out ones may equal some by chance
)


class TrainedOn:
    """Finds training data among evaluation data: evaluations on training data are not private.

    It finds the dataset itself, any object with the dataset in an attribute (even if it returns something
    else), views of it (Subset, ConcatDataset, StackDataset, `select` and `train_test_split` of Hugging Face's
    datasets), other views of the same tensors, arrays, objects or tables that contain one of its examples,
    and copies: in the same order by keyed checksums of 16 examples at random places; in another order, or
    of a part, if a quarter of 16 of their examples (the first ones of an iterable) are
    training examples. With more than 4096 training examples, or if reading takes longer than 10 s, a sample
    is compared with 256 examples. Copies behind other transforms are not found.

    Args:
        dataset: the training data, with a length and indices.
        collate: function that makes a batch of examples; None for torch's.
    """

    def __init__(self, dataset: Any, collate: Callable[..., Any] | None = None) -> None:
        self._dataset = dataset
        self._collate = collate or default_collate
        self._copies: dict[
            tuple[int, int], tuple[Any, Any, bool | None]
        ] = {}  # by identity of objects that are kept alive
        self._told: set[str] = set()  # a Trainer makes a new object of the same data at every evaluation
        self._key = secrets.token_bytes(32)
        self._sums: dict[bool, list[bytes]] = {}

    def holds(
        self, other: Any, *, collate: Callable[..., Any] | None = None, chosen: Sequence[str] = ()
    ) -> bool:
        """Whether evaluation data contain a training example.

        Args:
            other: a dataset, a mapping or a list of datasets, or None.
            collate: function that makes a batch of its examples, since it may look them up elsewhere.
            chosen: choices that depend on the evaluation. If nothing can be compared, one warning names them
                and the possible reasons.
        """
        if other is None or not hasattr(self._dataset, "__len__"):
            return False
        if any(one is self._dataset for one in _beneath(other)):
            return True
        parts: list[Any] = []
        if isinstance(other, Mapping) and not hasattr(other, "column_names"):
            parts = list(other.values())
        elif isinstance(other, list | tuple) and any(isinstance(one, Dataset) for one in other):
            parts = list(other)
        if parts:
            return any([self.holds(one, collate=collate, chosen=chosen) for one in parts])
        if hasattr(other, "__len__") and hasattr(other, "__getitem__"):
            if len(other) == 0:
                return False
            with suppress(DpmechError):  # a view that cannot be resolved: its examples may still be compared
                if share_examples(_peeled(self._dataset), _peeled(other)):
                    return True
        place = id(other), id(collate)
        if place not in self._copies:
            self._copies[place] = other, collate, self._is_copy(other) or self._has_copies(other, collate)
        found = self._copies[place][2]
        if found is not None:
            return found
        # One text for both reasons: which of them it is may be known from the training examples only.
        text = (
            f"{type(other).__name__}, used for evaluation, cannot be compared with the training data: its "
            "examples cannot be read beforehand, as those of a dataset with a length and indices can, or too "
            "many training examples are equal. What is released is selected by it "
            f"({', '.join(chosen)}), so check that it contains no training example"
        )
        if chosen and text not in self._told:
            self._told.add(text)
            warnings.warn(text, stacklevel=2)
        return False

    def refuse(
        self,
        what: str,
        other: Any,
        *,
        chosen: Sequence[str],
        log_raw: str,
        collate: Callable[..., Any] | None = None,
    ) -> None:
        """Raise UnsupportedCombinationError if evaluation data contain a training example.

        Args:
            what: their name.
            other: as for `holds`.
            chosen: as for `holds`.
            log_raw: the setting that permits it; empty if it is on, where only choices are refused.
            collate: as for `holds`.
        """
        if not (log_raw or chosen) or not self.holds(other, collate=collate, chosen=chosen):
            return
        if log_raw:
            fault, remedy = ": the evaluation is not private", f", or {log_raw}"
        else:
            by = ", ".join(chosen)
            fault, remedy = f", and {by} would select by it, without noise, what is released", ""
        raise UnsupportedCombinationError(
            f"{what} is the training data, or holds some of it{fault}",
            supported=f"data that are not trained on{remedy}",
        )

    def _is_copy(self, other: Any) -> bool:
        """Whether it contains the same examples in the same order."""
        if not hasattr(other, "__len__") or not hasattr(other, "__getitem__"):
            return False
        size = min(len(self._dataset), len(other))
        if size < _LEAST:
            return False
        picked = picked_examples(size, self._key, _COUNT)
        try:
            mine, theirs = (examples_print(one, picked, self._key, {})[0] for one in (self._dataset, other))
        except Exception:  # noqa: BLE001 - a dataset may raise anything; the next reader raises it in its place
            return False
        compared = [(mine[name], theirs[name]) for name in mine if name in theirs]
        known = [(one, two) for one, two in compared if one is not None and two is not None]
        return mine.keys() == theirs.keys() and len(known) > 1 and all(one == two for one, two in known)

    def _has_copies(self, other: Any, collate: Callable[..., Any] | None) -> bool | None:
        """Whether many of its examples are training examples; None if they cannot be compared."""
        found = self._half_of(other, None)
        if found is True or collate in (None, default_collate, self._collate):
            return found
        try:
            kinds = {type(next(_some(one, 1, self._key))) for one in (self._dataset, other)}
        except Exception:  # noqa: BLE001 - as above
            return None
        # Examples of another type may be keys that a collate_fn looks up.
        return self._half_of(other, collate) if len(kinds) > 1 else found

    def _half_of(self, other: Any, collate: Callable[..., Any] | None) -> bool | None:
        size = len(self._dataset)
        try:
            mine = self._own_sums(collated=collate is not None)
            count = _COUNT if len(mine) == size else _MORE
            theirs = single_prints(_some(other, count, self._key), self._key, collate, _SECONDS)
        except Exception:  # noqa: BLE001 - as above
            return None
        held = set(mine)
        if not theirs or len(held) < _DISTINCT * len(mine):
            return None
        matches = sum(one in held for one in theirs)
        return matches >= max(min(2, len(theirs)), _SHARE * len(theirs) * len(mine) / size)

    def _own_sums(self, *, collated: bool) -> list[bytes]:
        if collated not in self._sums:
            some = _some(self._dataset, _MOST, self._key)
            collate = self._collate if collated else None
            self._sums[collated] = single_prints(some, self._key, collate, _SECONDS)
        return self._sums[collated]


def _some(dataset: Any, count: int, key: bytes) -> Iterator[Any]:
    """Examples at random places in random order, or the first ones of an iterable."""
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        picked = picked_examples(len(dataset), key, count)
        random.Random(key).shuffle(picked)  # reading may stop early
        yield from (dataset[index] for index in picked)
        return
    if isinstance(dataset, Iterator):
        return  # reading consumes it
    yield from itertools.islice(dataset, count)


def _beneath(dataset: Any) -> Iterator[Any]:
    """A dataset and the values of its attributes, and of the attributes of datasets among them."""
    seen: set[int] = set()
    coming = [(dataset, _DEEPEST)]
    while coming:
        one, depth = coming.pop()
        if id(one) in seen or depth < 0:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, types.ModuleType | type):
            continue
        held = getattr(one, "__dict__", {})
        yield from held.values()
        named = [held.get(name) for name in ("dataset", "_dataset") if held.get(name) is not None]
        parts = [*named, *(part for part in held.values() if isinstance(part, Dataset))]
        for part in held.values():
            inside = part.values() if isinstance(part, Mapping) else part
            if isinstance(part, Mapping | list | tuple):
                parts += [inner for inner in itertools.islice(inside, _MORE) if isinstance(inner, Dataset)]
        coming += [(part, depth - 1) for part in parts]


def _peeled(dataset: Any) -> Any:
    """The dataset beneath wrappers that return one example for each: transforms, removed columns."""
    for _ in range(_DEEPEST):
        held = getattr(dataset, "__dict__", {})
        inside = [part for part in held.values() if isinstance(part, Dataset)]
        inner = held.get("dataset", inside[0] if len(inside) == 1 else None)
        if isinstance(dataset, _VIEWS) or inner is None or not hasattr(inner, "__len__"):
            break
        if len(inner) != len(dataset):
            break
        dataset = inner
    return dataset
