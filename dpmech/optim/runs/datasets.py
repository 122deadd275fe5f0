"""Datasets of a private run: examples read by index, one at a time, and batches that may be empty."""

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.optim.runs.collated import Alone, compare_rows
from dpmech.optim.runs.containers import copied, with_parts
from dpmech.optim.state import generators_of, marks_of_globals, seed, seed_globals

_OFTEN = 64  # at least one batch in 64 is compared, on average
_PARTS = (Tensor, np.ndarray, Mapping, tuple, list)


class Part(list[int]):
    """The indices of a microbatch, with a secret of its step for what is drawn as they are read and collated.

    Args:
        indices: of the examples.
        secret: 32 bytes.
        place: of the microbatch in its step.
    """

    def __init__(self, indices: Iterable[int] = (), secret: bytes = b"", place: str = "") -> None:
        super().__init__(indices)
        self.secret = secret
        self.place = place


class _Draws:
    """Seeds generators for every example that is read, by its index, and for the collate function.

    An example whose reading seeds a generator would decide what others draw (`random.seed(index)`), and then
    what is drawn as the batch is collated. From a generator that a dataset holds, of a known seed, an absent
    example would shift the draws of all that are read later, in other batches too.

    Args:
        roots: from which generators are searched, in addition to the global ones.
    """

    def __init__(self, *roots: Any) -> None:
        self._roots = roots
        self._process: int | None = None  # in which generators were searched
        self._own: list[Any] = []
        self._used = False  # whether reading draws or seeds

    def read(self, part: Part, read: Callable[[int], list[Any]]) -> list[Any]:
        """The examples of a microbatch; the collate function draws by another seed."""
        if self._process != os.getpid():
            self._process, self._own = os.getpid(), generators_of(self._roots)
            self._used = bool(self._own)
        found: list[Any] = []
        if not self._used:
            before = marks_of_globals()
            found = [example for index in part for example in read(index)]
            self._used = marks_of_globals() != before
        if self._used:  # once, the part is read again
            found = []
            for index in part:
                self._seed(part, f"example {index}")
                found += read(index)
        self._seed(part, f"collated {part.place}")
        return found

    def _seed(self, part: Part, use: str) -> None:
        secrets = [
            hashlib.blake2b(f"{use} {number}".encode(), key=part.secret, digest_size=32).digest()
            for number in range(len(self._own) + 1)
        ]
        seed_globals(secrets[0])
        for generator, secret in zip(self._own, secrets[1:], strict=True):
            seed(generator, secret)


class OneByOne(Dataset[Any]):
    """A dataset whose examples are read one at a time, so that none depends on others in its batch.

    `__getitems__` would receive a whole batch, and a transform of a Hugging Face dataset receives all
    examples that are read together: it may pad to the longest, center or mix. Attributes are those of the
    wrapped dataset, so that a `worker_init_fn` can read and set them.

    Args:
        dataset: a dataset that can be indexed.
        collate: the collate function, which may hold generators of random numbers.
    """

    def __init__(self, dataset: Any, collate: Any = None) -> None:
        vars(self)["_read_from"] = dataset
        vars(self)["_draws"] = _Draws(dataset, collate)

    def __len__(self) -> int:
        return len(self._read_from)

    def __getitem__(self, index: int) -> Any:
        return self._read_from[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples at these indices; fewer if there are gaps."""
        several = getattr(self._read_from, "__getitems__", None)

        def read(index: int) -> list[Any]:
            found = [self._read_from[index]] if several is None else list(several([index]))
            if len(found) > 1:  # here, as gaps at other indices would hide them in the size of a batch
                raise UnsupportedCombinationError(
                    "the dataset returns more examples than were requested: those of one index would be "
                    "clipped separately",
                    supported="one example for every index",
                )
            return found

        if isinstance(indices, Part):
            return self._draws.read(indices, read)  # type: ignore[no-any-return]  # by __getattr__
        return [example for index in indices for example in read(index)]

    def __getattr__(self, name: str) -> Any:
        if name in {"_read_from", "_draws"}:  # before a copy in a worker has set it
            raise AttributeError(name)
        return getattr(self._read_from, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._read_from, name, value)


class Collation:
    """A collate_fn that also makes a batch of no examples, shaped like a batch of the first example.

    It also returns the number of examples, because a dataset may omit some. At the first call on several
    examples, and at call k with probability 1/k, at least 1/64, some are collated alone and compared.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], dataset: OneByOne) -> None:
        self._collate = collate
        self._dataset = dataset
        self._calls = 0  # counts calls on several examples

    def __call__(self, examples: list[Any]) -> tuple[int, Any, Alone | None]:
        """(number of examples, their batch, one of them that is padded in it).

        Raises:
            UnsupportedCombinationError: if an example differs from the same example collated alone.
        """
        if not examples:
            return 0, _emptied(self._collate(self._some())), None
        if len(examples) == 1:
            return 1, self._collate(examples), None
        self._calls += 1
        coin = random.Random(self._calls)  # public and the same in every run: independent of the data
        if coin.random() >= max(1.0 / self._calls, 1.0 / _OFTEN):
            return len(examples), self._collate(examples), None
        before = [copied(example) for example in examples]
        batch = self._collate(examples)
        return len(examples), batch, compare_rows(self._collate, before, batch, coin)

    def _some(self) -> list[Any]:
        """The first example that is not a gap: a missing example must not end the run."""
        failed: Exception | None = None
        for index in range(len(self._dataset)):
            try:
                examples = self._dataset.__getitems__([index])
            except Exception as error:  # noqa: BLE001 - a dataset may raise anything at a gap
                failed = error
                continue
            if examples:
                return examples
        raise failed or IndexError("no example of the dataset can be loaded")


def _emptied(batch: Any, inside: tuple[int, ...] = ()) -> Any:
    if id(batch) in inside:
        return batch
    if isinstance(batch, Tensor | np.ndarray):
        return batch[:0] if batch.ndim else batch
    if type(batch) is list and not any(isinstance(value, _PARTS) for value in batch):
        return []
    # A value that is no container is from an example that is in no batch. With a loss it is ignored;
    # gradients of it are refused.
    return with_parts(batch, lambda one: _emptied(one, (*inside, id(batch))))


def check_dataset(loader: DataLoader[Any]) -> int:
    """Number of examples of a loader's dataset; raise unless the dataset can be indexed."""
    dataset: Any = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise UnsupportedCombinationError(
            f"{type(dataset).__name__} is an iterable dataset: its examples cannot be sampled, and how often "
            "each takes part is unknown",
            supported="a dataset with a length and indices: list(dataset) if it fits into memory, or a "
            "Dataset over files that reads example i (of Hugging Face: load_dataset without streaming)",
        )
    return check_integer("len(dataset)", len(dataset), minimum=1)
