"""A keyed checksum of a few examples of a dataset, read as a run reads them."""

import contextlib
import hashlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from dpmech.optim.runs.fingerprints.code import Printer

__all__ = ["examples_print", "picked_examples", "single_prints"]

_COUNT = 16
_MOST_PARTS = 32
_Read = tuple[dict[str, bytes], bool]


def picked_examples(size: int, key: bytes, count: int = _COUNT) -> list[int]:
    """Which examples are looked at: all of a few, or `count` that follow from the key."""
    if size <= count:
        return list(range(size))
    chance = random.Random(key)
    return sorted(chance.sample(range(size), count))


def examples_print(
    dataset: Any,  # noqa: ANN401 - any dataset
    picked: list[int],
    key: bytes,
    settings: dict[str, Any],
) -> tuple[dict[str, str | None], bool]:
    """Checksums of the parts of examples (images, labels, ...), each over all the examples picked.

    Every example is read twice, each time after seeding torch, numpy and random by the key, so that random
    transforms which use these are the same in all processes. What differs all the same is left out.

    Args:
        dataset: with a length and indices.
        picked: indices of the examples.
        key: of the checksum.
        settings: of the DataLoader that reads, as in the run. At most one worker is started.

    Returns:
        Hexadecimal checksums by part, None for a part that differs from one reading to the next; and whether
        all of every example was covered.
    """
    kept = {
        name: value for name, value in settings.items() if name not in ("persistent_workers", "pin_memory")
    }
    kept["num_workers"] = min(1, kept.get("num_workers", 0))
    reader = _Reader(key)
    kept["worker_init_fn"] = _Start(reader, kept.get("worker_init_fn"))
    batches: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=[[index] for index in picked for _ in range(2)],
        collate_fn=reader,
        generator=torch.Generator().manual_seed(1),
        **kept,
    )
    with _numbers_kept():
        reader.seed()
        found: list[_Read] = list(batches)
    first, second = found[::2], found[1::2]
    parts = {name for read, _ in found for name in read}
    sums: dict[str, str | None] = {}
    for name in sorted(parts):
        if any(one.get(name) != other.get(name) for (one, _), (other, _) in zip(first, second, strict=True)):
            sums[name] = None
            continue
        digest = hashlib.blake2b(key=key, digest_size=32)
        for read, _ in first:
            digest.update(read.get(name, bytes(32)))
        sums[name] = digest.hexdigest()
    return sums, all(complete for _, complete in found) and None not in sums.values()


def single_prints(
    examples: Iterator[Any], key: bytes, collate: Callable[..., Any] | None, seconds: float
) -> list[bytes]:
    """Checksums of single examples, which do not depend on where they stand.

    Args:
        examples: read one by one, each after the same seeds, so that random transforms which use torch, numpy
            or random give one example the same values.
        key: of the checksums.
        collate: what makes a batch of one of an example; None for the example itself.
        seconds: after which no more are read.
    """
    reader = _Reader(key)
    found: list[bytes] = []
    end = time.monotonic() + seconds
    with _numbers_kept():
        reader.seed()
        for example in examples:
            read, _ = reader([example] if collate is None else [collate([example])])
            digest = hashlib.blake2b(key=key, digest_size=16)
            for name in sorted(read.keys() - {"kind"}):  # a tuple and a list of the same are the same
                digest.update(name.encode() + read[name])
            found.append(digest.digest())
            if time.monotonic() > end:
                break
            reader.again()
    return found


class _Reader:
    """A collate_fn that returns the digests of an example, and seeds what reads the next one."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._calls = 0

    def __call__(self, examples: list[Any]) -> _Read:
        self._calls += 1
        example = examples[0] if len(examples) == 1 else examples
        parts: dict[str, Any] = {"": example}
        if isinstance(example, tuple | list) and len(example) <= _MOST_PARTS:
            parts = {f"[{place}]": value for place, value in enumerate(example)}
        elif isinstance(example, dict) and len(example) <= _MOST_PARTS:
            parts = {f"[{name!r}]": value for name, value in example.items()}
        printer = Printer(most=1 << 62)
        kind = type(example).__name__, len(parts)
        found = {name: printer.of(value) for name, value in parts.items()} | {"kind": printer.of(kind)}
        self.seed()
        return found, printer.complete

    def again(self) -> None:
        """The next reading comes after the first seeds."""
        self._calls = 0
        self.seed()

    def seed(self) -> None:
        """Both readings of an example come after the same seeds."""
        word = hashlib.blake2b(str(self._calls // 2).encode(), key=self._key, digest_size=4).digest()
        seed = int.from_bytes(word, "big")
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - transforms use it


class _Start:
    """A worker_init_fn: that of the run, and the first seed."""

    def __init__(self, reader: _Reader, own: Callable[[int], None] | None) -> None:
        self._reader = reader
        self._own = own

    def __call__(self, worker: int) -> None:
        if self._own is not None:
            self._own(worker)
        self._reader.seed()


@contextlib.contextmanager
def _numbers_kept() -> Iterator[None]:
    """Leave the random numbers of this process where they were."""
    cpu, plain, arrays = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - as above
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        random.setstate(plain)
        np.random.set_state(arrays)  # noqa: NPY002 - as above
        if devices:
            torch.cuda.set_rng_state_all(devices)
