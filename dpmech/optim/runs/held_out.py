"""Whether data to evaluate on are data that a run trains on, as far as can be told."""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset

from dpmech.exceptions import DpmechError
from dpmech.optim.runs.fingerprints import examples_print, picked_examples
from dpmech.optim.runs.uniqueness import share_examples

__all__ = ["TrainedOn"]

_LEAST, _COUNT = 8, 16  # examples that must agree, and examples that are looked at
_DEEPEST = 16
_VIEWS = (Subset, ConcatDataset, StackDataset)


class TrainedOn:
    """Finds data of a run among data to evaluate on: what is evaluated there is not private.

    Found are the dataset itself, views of it (Subset, ConcatDataset, StackDataset, wrappers with an attribute
    `dataset`, `select` and `train_test_split` of Hugging Face's datasets), other views of the same tensors,
    arrays, objects or tables that hold one of its examples, and a copy of it in the same order, by keyed
    checksums of 16 examples at random places. A copy in another order, or behind other transforms, is not.

    Args:
        dataset: what is trained on, with a length and indices.
    """

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - any dataset
        self._dataset = dataset
        self._copies: dict[int, tuple[Any, bool]] = {}  # by identity, of what is kept alive here

    def holds(self, other: Any) -> bool:  # noqa: ANN401 - what a trainer is given to evaluate on
        """Whether data to evaluate on hold an example that is trained on.

        Args:
            other: a dataset, a mapping or a list of datasets, or None.
        """
        if other is None or not hasattr(self._dataset, "__len__"):
            return False
        if any(one is self._dataset for one in _beneath(other, _DEEPEST)):
            return True
        if isinstance(other, Mapping) and not hasattr(other, "column_names"):
            return any(self.holds(one) for one in other.values())
        if isinstance(other, list | tuple) and any(isinstance(one, Dataset) for one in other):
            return any(self.holds(one) for one in other)
        if not hasattr(other, "__len__") or not hasattr(other, "__getitem__") or len(other) == 0:
            return False
        try:
            if share_examples(_peeled(self._dataset), _peeled(other)):
                return True
        except DpmechError:
            pass  # a view that cannot be followed: its examples may still be compared
        if id(other) not in self._copies:
            self._copies[id(other)] = other, self._is_copy(other)
        return self._copies[id(other)][1]

    def _is_copy(self, other: Any) -> bool:  # noqa: ANN401 - any dataset
        size = min(len(self._dataset), len(other))
        if size < _LEAST:
            return False
        key = secrets.token_bytes(32)
        picked = picked_examples(size, key, _COUNT)
        try:
            mine, theirs = (examples_print(one, picked, key, {})[0] for one in (self._dataset, other))
        except Exception:  # noqa: BLE001 - whatever a dataset raises; who reads it next shows it in its place
            return False
        compared = [(mine[name], theirs[name]) for name in mine if name in theirs]
        known = [(one, two) for one, two in compared if one is not None and two is not None]
        return mine.keys() == theirs.keys() and len(known) > 1 and all(one == two for one, two in known)


def _beneath(dataset: Any, depth: int) -> Iterator[Any]:  # noqa: ANN401 - any dataset
    """A dataset and what it says that it is a view of."""
    yield dataset
    if depth == 0:
        return
    held = getattr(dataset, "__dict__", {})
    parts = [held.get("dataset"), held.get("_dataset")]
    several = held.get("datasets")
    parts += list(several.values() if isinstance(several, Mapping) else several or ())
    for part in parts:
        if part is not None:
            yield from _beneath(part, depth - 1)


def _peeled(dataset: Any) -> Any:  # noqa: ANN401 - any dataset
    """What is beneath wrappers that hand out one example for each: transforms, columns that are removed."""
    for _ in range(_DEEPEST):
        inner = getattr(dataset, "__dict__", {}).get("dataset")
        if isinstance(dataset, _VIEWS) or inner is None or not hasattr(inner, "__len__"):
            break
        if len(inner) != len(dataset):
            break
        dataset = inner
    return dataset
