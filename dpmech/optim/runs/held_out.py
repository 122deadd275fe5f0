"""Whether data to evaluate on are data that a run trains on, as far as can be told."""

import itertools
import random
import secrets
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, default_collate

from dpmech.exceptions import DpmechError
from dpmech.optim.runs.fingerprints import examples_print, picked_examples, single_prints
from dpmech.optim.runs.uniqueness import share_examples

_LEAST, _COUNT = 8, 16  # examples that must agree, and examples that are looked at
_DEEPEST = 16
_VIEWS = (Subset, ConcatDataset, StackDataset)
# Training examples whose checksums are kept: all of so many, else so many at random places. Of a sample only
# a share of the copies is met, so more of the evaluation data are looked at.
_MOST, _MORE = 4096, 256
_SECONDS = 10.0  # to read them
_SHARE = 0.25  # of what is looked at, of which examples are met among those of the training data
_DISTINCT = (
    0.9  # share of the training examples that must differ: else held-out ones may well be equal to some
)


class TrainedOn:
    """Finds data of a run among data to evaluate on: what is evaluated there is not private.

    Found are the dataset itself, whatever holds it in an attribute (also where it hands out something else),
    views of it (Subset, ConcatDataset, StackDataset, `select` and `train_test_split` of Hugging Face's
    datasets), other views of the same tensors, arrays, objects or tables that hold one of its examples, and
    copies of it: in the same order by keyed checksums of 16 examples at random places; in another order, or
    of a part, where a quarter of 16 of their examples (the first ones of what can only be iterated over) are
    training examples. Of more than 4096 training examples, or if they take longer than 10 s to read, a sample
    is compared, with 256 examples. Copies behind other transforms are not found.

    Args:
        dataset: what is trained on, with a length and indices.
        collate: what makes a batch of examples; None for torch's.
    """

    def __init__(self, dataset: Any, collate: Callable[..., Any] | None = None) -> None:  # noqa: ANN401 - any dataset
        self._dataset = dataset
        self._collate = collate or default_collate
        self._copies: dict[
            tuple[int, int], tuple[Any, Any, bool | None]
        ] = {}  # by identity, of what is kept alive
        self._key = secrets.token_bytes(32)
        self._sums: dict[bool, list[bytes]] = {}

    def is_of(self, dataset: Any) -> bool:  # noqa: ANN401 - any dataset
        """Whether this is what is trained on."""
        return dataset is self._dataset

    def holds(
        self,
        other: Any,  # noqa: ANN401 - what a trainer is given to evaluate on
        *,
        collate: Callable[..., Any] | None = None,
        chosen: Sequence[str] = (),
    ) -> bool:
        """Whether data to evaluate on hold an example that is trained on.

        Args:
            other: a dataset, a mapping or a list of datasets, or None.
            collate: what makes a batch of its examples, where it may look them up elsewhere.
            chosen: what chooses by the evaluation: warned of where nothing can be compared.
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
            try:
                if share_examples(_peeled(self._dataset), _peeled(other)):
                    return True
            except DpmechError:
                pass  # a view that cannot be followed: its examples may still be compared
        place = id(other), id(collate)
        if place not in self._copies:
            self._copies[place] = other, collate, self._is_copy(other) or self._has_copies(other, collate)
        found = self._copies[place][2]
        if found is None and chosen:
            warnings.warn(
                f"{type(other).__name__}, which is evaluated on, cannot be compared with the training data, "
                f"and {', '.join(chosen)} choose by it what is released: see to it that no example in it is "
                "trained on; a dataset with a length and indices can be compared",
                stacklevel=2,
            )
        return bool(found)

    def _is_copy(self, other: Any) -> bool:  # noqa: ANN401 - any dataset
        """Whether it has the same examples in the same order."""
        if not hasattr(other, "__len__") or not hasattr(other, "__getitem__"):
            return False
        size = min(len(self._dataset), len(other))
        if size < _LEAST:
            return False
        picked = picked_examples(size, self._key, _COUNT)
        try:
            mine, theirs = (examples_print(one, picked, self._key, {})[0] for one in (self._dataset, other))
        except Exception:  # noqa: BLE001 - whatever a dataset raises; who reads it next shows it in its place
            return False
        compared = [(mine[name], theirs[name]) for name in mine if name in theirs]
        known = [(one, two) for one, two in compared if one is not None and two is not None]
        return mine.keys() == theirs.keys() and len(known) > 1 and all(one == two for one, two in known)

    def _has_copies(self, other: Any, collate: Callable[..., Any] | None) -> bool | None:  # noqa: ANN401 - any dataset
        """Whether many of its examples are training examples; None where they cannot be compared."""
        found = self._half_of(other, None)
        if found or collate in (None, default_collate, self._collate):
            return found
        try:
            kinds = {type(next(_some(one, 1, self._key))) for one in (self._dataset, other)}
        except Exception:  # noqa: BLE001 - as above
            return None
        # Examples of another kind are perhaps what a collate_fn looks them up by.
        return self._half_of(other, collate) if len(kinds) > 1 else found

    def _half_of(self, other: Any, collate: Callable[..., Any] | None) -> bool | None:  # noqa: ANN401 - the same
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


def _some(dataset: Any, count: int, key: bytes) -> Iterator[Any]:  # noqa: ANN401 - any dataset
    """Examples at random places in random order, or the first ones of what can only be iterated over."""
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        picked = picked_examples(len(dataset), key, count)
        random.Random(key).shuffle(picked)  # reading may end early
        yield from (dataset[index] for index in picked)
        return
    if isinstance(dataset, Iterator):
        return  # what is read of it is gone
    yield from itertools.islice(dataset, count)


def _beneath(dataset: Any) -> Iterator[Any]:  # noqa: ANN401 - any dataset
    """A dataset and what it holds in its attributes, and in those of datasets among them."""
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
            if isinstance(part, Mapping):
                parts += [
                    inner for inner in itertools.islice(part.values(), _MORE) if isinstance(inner, Dataset)
                ]
            elif isinstance(part, list | tuple):
                parts += [inner for inner in part[:_MORE] if isinstance(inner, Dataset)]
        coming += [(part, depth - 1) for part in parts]


def _peeled(dataset: Any) -> Any:  # noqa: ANN401 - any dataset
    """What is beneath wrappers that hand out one example for each: transforms, columns that are removed."""
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
