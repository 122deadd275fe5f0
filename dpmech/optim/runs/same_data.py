"""Checks that all processes of a run have the same data, loss and settings, without revealing any of them."""

import functools
import hashlib
import io
import secrets
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from dpmech.exceptions import CertificateError, DpmechError, UnsupportedCombinationError
from dpmech.optim.processes import Group, check_agreement, gathered, processes
from dpmech.optim.runs.code_prints import code_digest
from dpmech.optim.runs.set_up import examples_print, picked_examples
from dpmech.optim.runs.uniqueness import ExamplePlaces

# Examples compared: all up to _WHOLE, else some at random places from the shared key. If a fraction f of the
# examples differs, n random places miss it with probability at most (1 - f)^n: 0.0012 for f = 0.1, n = 64.
_WHOLE, _FIRST, _LATER = 256, 64, 8
_DEEPEST = 4


class SameData:
    """Compares the dataset of every process with those of the others: at the start and at every epoch.

    It compares checksums under a key that the processes share, which reveal nothing about the data.

    Indices of views are compared completely. Examples are read as the run reads them: all of up to 256,
    else 64 at random places, and at every later epoch 8 at others. If a fraction f of the
    examples differs, this misses it with probability at most (1 - f)^64 at the start, and (1 - f)^8 at every
    epoch. Parts of examples that differ from one reading to the next cannot be compared.

    Args:
        dataset: with a length and indices.
        settings: of the DataLoader.
        group: the processes that train together.

    Attributes:
        places: the locations of the examples.

    Raises:
        As ExamplePlaces.
    """

    def __init__(self, dataset: Any, settings: dict[str, Any], group: Group) -> None:
        self._dataset = dataset
        self._settings = settings
        self._group = group
        self._key = b""
        problem = None
        try:
            self.places = ExamplePlaces(dataset)
        except DpmechError as error:
            problem = error
        problems = gathered("errors in the data", problem and str(problem), group)
        if problem is not None:
            raise problem
        if any(problems):  # raised in all processes, so that none waits for the others
            raise CertificateError(f"in another process {next(filter(None, problems))}")

    def check(self, step: int) -> None:
        """Compare; a collective call.

        Raises:
            UnsupportedCombinationError: in all processes, if one of them changed its dataset since the start.
            CertificateError: in all processes, if they differ.
        """
        changed = self.places.changed
        sums: list[dict[str, str | None]] = []
        if processes(self._group) > 1:
            parts = gathered("the data", (changed, self._sums(step)), self._group)
            changed, sums = any(part for part, _ in parts), [part for _, part in parts]
        if changed:
            self._refuse_change()
        for name in sorted(set[str]().union(*sums)):
            values = {part.get(name, "") for part in sums}
            if len(values - {None}) > 1:
                raise CertificateError(
                    f"processes have different data ({name}): an example could take part once in each of "
                    "them, more often than certified. Accepted: the whole dataset in the same order in every "
                    "process (random_split and shuffles with a seeded generator); it is split here"
                )

    def check_here(self) -> None:
        """Raise UnsupportedCombinationError if this process changed its dataset since the start."""
        if self.places.changed:
            self._refuse_change()

    def _refuse_change(self) -> NoReturn:
        raise UnsupportedCombinationError(
            "the dataset changed since the run was set up (indices of a view, tensors or elements were "
            "replaced or modified): an example may take part more often than certified",
            supported="changes before make_private; another dataset is another run",
        )

    def _sums(self, step: int) -> dict[str, str | None]:
        """Keyed checksums by name; None for parts that cannot be compared."""
        first = not self._key
        if first:
            self._key = gathered("the key of checksums", secrets.token_bytes(32), self._group)[0]
        size = len(self._dataset)
        key = hashlib.blake2b(str(step).encode(), key=self._key, digest_size=32).digest()
        found: dict[str, str | None] = {
            "length": _keyed(key, str(size).encode()),
            "views and their indices": _keyed(key, self.places.outline),
        }
        count = size if first and size <= _WHOLE else _FIRST if first else _LATER
        try:
            sums, _ = examples_print(
                self._dataset, picked_examples(size, key, count), key, dict(self._settings)
            )
        except Exception:  # noqa: BLE001 - a dataset may raise anything; the first batch raises it in its place
            return found
        return found | {f"examples{name}": value for name, value in sums.items()}


def check_same_length(dataset: Any, group: Group) -> None:
    """Raise CertificateError, in all processes, unless their datasets have the same length.

    The lengths are not revealed: the size of the data may be private.
    """
    if len(set(gathered("the size of the data", len(dataset), group))) > 1:
        raise CertificateError(
            "processes have datasets of different sizes: they would lose step, and an example could "
            "take part in several of them. Accepted: the whole dataset in every process, which is split here"
        )


def loss_words(loss: object) -> list[str]:
    """A description of a loss or module that is the same in every process: names, code, and floats.

    Integers, strings and tensors that it refers to are omitted, since they may be ranks and devices; tensors
    that are attributes of a module are included.
    """
    return list(_words(loss, _DEEPEST))


def check_same_numbers(
    groups: Sequence[Mapping[str, Any]], weights: str, modes: list[str] | None, group: Group
) -> None:
    """Raise CertificateError, in all processes, unless learning rates, weights, ... of all of them agree.

    An absent example moves those after it to other processes, where their gradients must be the same.

    Args:
        groups: of the optimizer.
        weights: a checksum of what every process has whole.
        modes: of the model's parts (`Unchanged.modes`); None if this process had no example.
        group: the processes that train together.
    """
    numbers = [
        {name: _number(value) for name, value in options.items() if name not in {"params", "phi"}}
        for options in groups
    ]
    check_agreement("learning rates or other numbers of the optimizer", {"groups": numbers}, group)
    check_agreement("the weights, as if loaded or updated in one of them", {"weights": weights}, group)
    known = [one for one in gathered("modes of the model", modes, group) if one is not None]
    if any(one != known[0] for one in known):
        raise CertificateError(
            "processes disagree on autocast, or on which parts of the model are in train or eval mode or "
            "frozen"
        )


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    if isinstance(value, tuple | list):
        return [_number(item) for item in value]
    return value if isinstance(value, bool | int | float) else None


def _words(value: object, depth: int) -> Iterator[str]:
    if depth == 0:
        return
    match value:
        case bool() | float():
            yield repr(value)
        case types.FunctionType():
            yield value.__qualname__
            yield code_digest(value.__code__)
            for cell in value.__closure__ or ():
                content = cell.cell_contents if cell != types.CellType() else None
                yield from _words(content, depth - 1)
            for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                yield from _words(default, depth - 1)
        case types.MethodType():
            yield from _words(value.__func__, depth)
            yield from _words(value.__self__, depth - 1)
        case functools.partial():
            for part in (value.func, *value.args, *value.keywords.values()):
                yield from _words(part, depth - 1)
        case nn.Module():
            yield f"{type(value).__module__}.{type(value).__qualname__} {value.extra_repr()}"
            for name, attribute in vars(value).items():
                if isinstance(attribute, bool | float) and name != "training":
                    yield repr(attribute)
                elif isinstance(attribute, Tensor) and not attribute.is_meta:
                    written = io.BytesIO()
                    torch.save(attribute.detach().cpu().clone(), written)
                    yield hashlib.sha256(written.getbuffer()).hexdigest()
        case types.BuiltinFunctionType() | type():
            yield value.__qualname__
        case _ if callable(value):
            yield f"{type(value).__module__}.{type(value).__qualname__}"
            call: Callable[..., Any] = type(value).__call__
            if isinstance(call, types.FunctionType):
                yield code_digest(call.__code__)
            for name, attribute in sorted(getattr(value, "__dict__", {}).items()):
                if callable(attribute) or isinstance(attribute, bool | float):
                    yield name
                    yield from _words(attribute, depth - 1)


def _keyed(key: bytes, value: bytes) -> str:
    return hashlib.blake2b(value, key=key, digest_size=32).hexdigest()
