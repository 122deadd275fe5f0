"""Datasets of a private run: examples under indices, one each, and batches that may be empty."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.optim.runs.collated import Alone, compare_rows
from dpmech.optim.runs.containers import copied, fields_of, with_fields, with_items

_OFTEN = 64  # one batch in so many is compared
_PARTS = (Tensor, np.ndarray, Mapping, tuple, list)


class OneByOne(Dataset[Any]):
    """A dataset whose examples are read one at a time, so that none follows from those that are read with it.

    `__getitems__` would be asked for a whole batch, and of Hugging Face's datasets a transform gets what is
    read at once: it may pad to the longest, centre or mix. Attributes are those of the dataset itself, as a
    `worker_init_fn` may use and set them.

    Args:
        dataset: with a length and indices.
    """

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - any dataset
        vars(self)["_read_from"] = dataset

    def __len__(self) -> int:
        return len(self._read_from)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - any example
        return self._read_from[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples of these indices; fewer where there are gaps."""
        several = getattr(self._read_from, "__getitems__", None)
        if several is None:
            return [self._read_from[index] for index in indices]
        return [one for index in indices for one in several([index])]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        if name == "_read_from":  # before a copy in a worker has its own
            raise AttributeError(name)
        return getattr(self._read_from, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._read_from, name, value)


class Collation:
    """A collate_fn that also makes a batch of no examples, shaped like one of the first example.

    It gives the number of examples with the batch: a dataset may have left some out. At the first call on
    several examples, and at call k with probability 1/k, at least 1/64, some are collated alone and compared.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], dataset: OneByOne) -> None:
        self._collate = collate
        self._dataset = dataset
        self._calls = 0  # on several examples

    def __call__(self, examples: list[Any]) -> tuple[int, Any, Alone | None]:
        """(number of examples, their batch, one that has padding there).

        Raises:
            UnsupportedCombinationError: if an example comes out otherwise than alone.
        """
        if not examples:
            return 0, _emptied(self._collate(self._some())), None
        if len(examples) == 1:
            return 1, self._collate(examples), None
        self._calls += 1
        coin = random.Random(self._calls)  # public, and the same in every run: data must not choose
        if coin.random() >= max(1.0 / self._calls, 1.0 / _OFTEN):
            return len(examples), self._collate(examples), None
        before = [copied(one) for one in examples]
        batch = self._collate(examples)
        return len(examples), batch, compare_rows(self._collate, before, batch, coin)

    def _some(self) -> list[Any]:
        """The first example that is not a gap: which one it is must not end the run."""
        failed: Exception | None = None
        for index in range(len(self._dataset)):
            try:
                found = self._dataset.__getitems__([index])
            except Exception as error:  # noqa: BLE001 - whatever a dataset raises at a gap
                failed = error
                continue
            if found:
                return found
        raise failed or IndexError("no example of the dataset can be loaded")


def _emptied(batch: Any, inside: tuple[int, ...] = ()) -> Any:  # noqa: ANN401 - any batch
    if id(batch) in inside:
        return batch

    def again(one: Any) -> Any:  # noqa: ANN401 - the same
        return _emptied(one, (*inside, id(batch)))

    match batch:
        case Tensor() | np.ndarray():
            return batch[:0] if batch.ndim else batch
        case Mapping():  # a BatchEncoding keeps its kind
            return with_items(batch, {key: again(value) for key, value in batch.items()})
        case tuple() if hasattr(batch, "_fields"):
            return type(batch)(*(again(value) for value in batch))
        case tuple() | list() if any(isinstance(value, _PARTS) for value in batch):
            return type(batch)(again(value) for value in batch)
        case list():
            return []
    held = fields_of(batch)
    if held:
        return with_fields(batch, {name: again(value) for name, value in held.items()})
    # Of one example that is in no batch. With a loss nothing looks at it; gradients of it are refused.
    return batch


def check_dataset(loader: DataLoader[Any]) -> int:
    """Number of examples of a loader's dataset; raise unless they can be picked by index."""
    dataset: Any = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise UnsupportedCombinationError(
            f"{type(dataset).__name__} is an iterable dataset: it has no examples to sample from, and nobody "
            "can say how often one takes part",
            supported="a dataset with a length and indices: list(dataset) where it fits into memory, or a "
            "Dataset over files that reads example i (of Hugging Face: load_dataset without streaming)",
        )
    return check_integer("len(dataset)", len(dataset), minimum=1)
