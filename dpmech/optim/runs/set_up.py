"""SetUp: the fingerprints of a run's dataset, model and loss, which identify the run of a checkpoint."""

import dataclasses
import hashlib
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from dpmech.certificates import CheckpointHistory, CheckpointMatch
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.guards import check_integer
from dpmech.optim.processes import Group, gathered
from dpmech.optim.runs.code_prints import Printer
from dpmech.optim.state import set_globals, spared

_COUNT = 16
_MOST_PARTS = 32
_Read = tuple[dict[str, bytes], bool]


def picked_examples(size: int, key: bytes, count: int = _COUNT) -> list[int]:
    """Indices of the examples to compare: all if there are few, else `count` derived from the key."""
    if size <= count:
        return list(range(size))
    chance = random.Random(key)
    return sorted(chance.sample(range(size), count))


def examples_print(
    dataset: Any, picked: list[int], key: bytes, settings: dict[str, Any]
) -> tuple[dict[str, str | None], bool]:
    """Checksums of the parts of examples (images, labels, ...), each over all the examples picked.

    Every example is read twice, each time after seeding torch, numpy and random from the key, so that random
    transforms that use these agree in all processes. Parts that still differ are omitted.

    Args:
        dataset: with a length and indices.
        picked: indices of the examples.
        key: of the checksum.
        settings: of the run's DataLoader. At most one worker is started.

    Returns:
        Hexadecimal checksums by part, None for a part that differs between the two readings; and whether
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
    with spared():
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
    """Checksums of single examples, independent of their position.

    Args:
        examples: read one by one, each after the same seeds, so that random transforms that use torch, numpy
            or random give one example the same values.
        key: of the checksums.
        collate: makes a batch of one from an example; None for the example itself.
        seconds: time limit for reading.
    """
    reader = _Reader(key)
    found: list[bytes] = []
    end = time.monotonic() + seconds
    with spared():
        reader.seed()
        for example in examples:
            read, _ = reader([example] if collate is None else [collate([example])])
            digest = hashlib.blake2b(key=key, digest_size=16)
            for name in sorted(read.keys() - {"kind"}):  # equal tuples and lists count as the same
                digest.update(name.encode() + read[name])
            found.append(digest.digest())
            if time.monotonic() > end:
                break
            reader.again()
    return found


class _Reader:
    """A collate_fn that returns the digests of an example, and seeds the reading of the next one."""

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
        """Restart from the first seeds."""
        self._calls = 0
        self.seed()

    def seed(self) -> None:
        """Seed so that both readings of an example start alike."""
        word = hashlib.blake2b(str(self._calls // 2).encode(), key=self._key, digest_size=4).digest()
        set_globals(int.from_bytes(word, "big"))


class _Start:
    """A worker_init_fn: calls that of the run, then sets the first seed."""

    def __init__(self, reader: _Reader, own: Callable[[int], None] | None) -> None:
        self._reader = reader
        self._own = own

    def __call__(self, worker: int) -> None:
        if self._own is not None:
            self._own(worker)
        self._reader.seed()


# Attributes of torch's schedulers that change during a run, or that belong to other objects.
_PROGRESS = {
    "optimizer",
    "last_epoch",
    "verbose",
    "T_cur",
    "T_i",
    "best",
    "cooldown_counter",
    "num_bad_epochs",
    "_last_lr",
    "_step_count",
    "_get_lr_called_within_step",
    "_is_initial",
    "_scale_fn_ref",
}


def scheduler_print(scheduler: Any) -> dict[str, str]:
    """Class and checksums of a scheduler's settings by name, including nested schedulers.

    Args:
        scheduler: an LRScheduler of torch. For other classes only the class is included, since it is unknown
            which of their attributes change during a run.

    Raises:
        InvalidParameterError: if it is not a scheduler.
    """
    if not isinstance(scheduler, _KINDS):
        raise InvalidParameterError("scheduler", scheduler, "a torch.optim.lr_scheduler.LRScheduler, or None")
    return dict(_parts(scheduler, ""))


def scheduler_changes(saved: dict[str, str] | None, scheduler: Any) -> str:
    """A description of the differences from a saved print; empty if there are none.

    Args:
        saved: of scheduler_print; None if the state was saved without a scheduler.
        scheduler: as for scheduler_print, or None.
    """
    now = None if scheduler is None else scheduler_print(scheduler)
    if saved is None or now is None:
        held = ["no scheduler" if kept is None else f"scheduler {kept['class']}" for kept in (saved, now)]
        return "" if saved is now else f"{held[0]} was saved, {held[1]} was passed"
    names = [name for name in sorted(saved.keys() | now.keys()) if saved.get(name) != now.get(name)]
    return f"another scheduler ({', '.join(names)})" if names else ""


def by_steps_alone(scheduler: Any) -> bool:
    """Whether its effect is determined by the compared settings and the number of its steps."""
    if type(scheduler).__module__ != lr_scheduler.__name__:
        return False
    inner = getattr(scheduler, "_schedulers", ())
    return not isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) and all(map(by_steps_alone, inner))


_KINDS = (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)


def _parts(scheduler: Any, before: str) -> Iterator[tuple[str, str]]:
    kind = type(scheduler)
    yield f"{before}class", f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__ != lr_scheduler.__name__:
        return
    for name, value in vars(scheduler).items():
        if name == "_schedulers":
            for place, inner in enumerate(value):
                yield from _parts(inner, f"{before}{place}.")
        elif name not in _PROGRESS:
            code = next(
                (one for one in (value if isinstance(value, list) else [value]) if callable(one)), None
            )
            yield f"{before}{name}", Printer(home=code).of(value).hex()


PARTS = ("dataset", "model", "loss")
_ORDER = (CheckpointMatch.SAME, CheckpointMatch.UNKNOWN, CheckpointMatch.ACCEPTED)


@dataclasses.dataclass
class _Print:
    """The fingerprint of a part.

    Attributes:
        sums: checksums by name; None for anything that cannot be compared.
        complete: whether they cover the whole part.
        coded: names of checksums that include bytecode.
    """

    sums: dict[str, str | None] = dataclasses.field(default_factory=dict)
    complete: bool = True
    coded: list[str] = dataclasses.field(default_factory=list)

    def add(self, name: str, printer: Printer, digest: bytes) -> None:
        self.sums[name] = digest.hex()
        self.complete &= printer.complete
        if printer.coded:
            self.coded.append(name)


class SetUp:
    """Fingerprints of dataset, model and loss, keyed by a secret of the run.

    They describe the run as it was built: model and loss at `describe`, the dataset when a checkpoint is
    first saved or loaded. State that code changes later (a counter, a schedule) is not included.

    Attributes:
        checkpoint_history: knowledge of the run's checkpoints; None before the first.
    """

    def __init__(self, dataset: Any, collate: Callable[..., Any], settings: dict[str, Any]) -> None:
        self.checkpoint_history: CheckpointHistory | None = None
        self._dataset = dataset
        self._settings = settings
        self._bare = {part: _Print() for part in PARTS}
        printer = Printer(home=collate)
        self._bare["dataset"].add("collate_fn", printer, printer.of(collate, frozenset()))
        self._key = b""
        self._picked: list[int] = []
        self._prints: dict[str, _Print] = {}

    def describe(self, model: nn.Module, loss: Callable[..., Any] | None) -> None:
        """Take the fingerprints of model and loss."""
        printer = Printer(model)
        self._bare["model"].add("structure", printer, printer.model(model))
        if loss is not None:
            printer = Printer(model, home=loss)
            self._bare["loss"].add("code or constants", printer, printer.of(loss, frozenset()))

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint. Secret."""
        if not self._key:
            self._use(secrets.token_bytes(32), None)
        if self.checkpoint_history is None:
            dataset, model, loss = (_kept(self._prints[part]) for part in PARTS)
            self.checkpoint_history = CheckpointHistory(dataset, model, loss)
        return {
            "key": self._key.hex(),
            "picked": self._picked,
            "python": _python(),
            "torch": str(torch.__version__),
            "prints": {part: dataclasses.asdict(self._prints[part]) for part in PARTS},
            "checkpoint_history": self.checkpoint_history.to_dict(),
        }

    def resume(self, state: dict[str, Any], accepted: Sequence[str], group: Group, world: int) -> None:
        """Compare with a saved state and continue with its key; all processes refuse if one of them must.

        Raises:
            CertificateError: if another part differs, or the state is invalid.
        """
        changed, kept = self.compare(state)
        refused = [text for part, text in changed.items() if part not in accepted]
        results = gathered("the set-up of the run", (refused, kept), group, world)
        problems = list(dict.fromkeys(text for texts, _ in results for text in texts))
        if problems:
            raise CertificateError(
                f"the checkpoint is of another run: {'; '.join(problems)}. Steps taken after it would be "
                "repeated with the same noise on other sums, and anyone with both results can subtract the "
                "noise. Accepted: the run that saved it; or accept_changed=(...) with the names of the "
                "parts, if nobody has seen anything that was released after it",
                claimed=problems,
            )
        self.checkpoint_history = _worst(known for _, known in results)

    def note_by_hand(self) -> None:
        """Note a manual change of trained parameters: steps repeated from an earlier state may differ."""
        if self.checkpoint_history is not None and self.checkpoint_history.model == CheckpointMatch.SAME:
            self.checkpoint_history = dataclasses.replace(
                self.checkpoint_history, model=CheckpointMatch.UNKNOWN
            )

    def compare(self, state: dict[str, Any]) -> tuple[dict[str, str], CheckpointHistory]:
        """Compare with the state of a checkpoint.

        Returns:
            The differences of every part that is not the same, in words; and the checkpoint history if
            accepted.

        Raises:
            CertificateError: if the state is invalid.
        """
        try:
            picked = [int(index) for index in state["picked"]]
            saved = {part: _Print(**state["prints"][part]) for part in PARTS}
            loads = check_integer("loads", state["checkpoint_history"].get("loads", 0), minimum=0)
            known: dict[str, Any] = {
                part: CheckpointMatch(state["checkpoint_history"][part]) for part in PARTS
            }
            before = CheckpointHistory(**known, loads=loads)
            key, python, release = bytes.fromhex(state["key"]), str(state["python"]), str(state["torch"])
        except (AttributeError, InvalidParameterError, KeyError, TypeError, ValueError) as error:
            raise CertificateError(f"the checkpoint has no fingerprints of its run ({error!r})") from error
        self._use(key, picked)
        changed, kept = {}, {}
        for part in PARTS:
            one, now = saved[part], self._prints[part]
            names = [
                name
                for name in sorted(one.sums.keys() | now.sums.keys())
                if one.sums.get(name, "") is not None and one.sums.get(name, "") != now.sums.get(name, "")
            ]
            coded = [name for name in names if name in {*one.coded, *now.coded}]
            if python != _python() and coded:
                changed[part] = (
                    f"the {part} ({', '.join(names)}) cannot be compared: the checkpoint was made under "
                    f"Python {python}, this is {_python()}, and fingerprints of code differ between them"
                )
            elif names:
                changed[part] = f"another {part} ({', '.join(names)})"
                if release != str(torch.__version__):
                    changed[part] += f"; it was made under torch {release}, this is {torch.__version__}"
            worst = (
                CheckpointMatch.ACCEPTED if part in changed else max(_kept(one), _kept(now), key=_ORDER.index)
            )
            kept[part] = max(worst, getattr(before, part), key=_ORDER.index)
        return changed, CheckpointHistory(**kept, loads=before.loads + 1)

    def _use(self, key: bytes, picked: list[int] | None) -> None:
        """Compute the keyed fingerprints."""
        size = len(self._dataset)
        self._key = key
        self._picked = picked_examples(size, key) if picked is None else picked
        self._prints = {
            part: _Print(
                {name: _keyed(key, digest) for name, digest in own.sums.items()}, own.complete, own.coded
            )
            for part, own in self._bare.items()
        }
        own = self._prints["dataset"]
        own.sums["length"] = _keyed(key, str(size))
        if max(self._picked, default=0) < size:
            sums, complete = examples_print(self._dataset, self._picked, key, self._settings)
            own.sums |= {f"examples{name}": value for name, value in sums.items()}
            own.complete &= complete


def _worst(all_kept: Iterable[CheckpointHistory]) -> CheckpointHistory:
    """The weakest checkpoint history of several processes."""
    known = list(all_kept)
    return CheckpointHistory(
        **{part: max((getattr(one, part) for one in known), key=_ORDER.index) for part in PARTS},
        loads=max(one.loads for one in known),
    )


def _kept(own: _Print) -> CheckpointMatch:
    return (
        CheckpointMatch.SAME
        if own.sums and own.complete and None not in own.sums.values()
        else CheckpointMatch.UNKNOWN
    )


def _keyed(key: bytes, value: str | None) -> str | None:
    return None if value is None else hashlib.blake2b(value.encode(), key=key, digest_size=32).hexdigest()


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
