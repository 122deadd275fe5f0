"""SetUp: fingerprints of what a run was built from, by which a checkpoint knows its run again."""

import dataclasses
import hashlib
import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from dpmech.documents import Continuity, Kept
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.guards import check_integer
from dpmech.optim.processes import Group, gathered
from dpmech.optim.runs.fingerprints.code import Printer
from dpmech.optim.runs.fingerprints.data import examples_print, picked_examples

__all__ = ["PARTS", "SetUp"]

PARTS = ("dataset", "model", "loss")
_ORDER = (Kept.SAME, Kept.UNKNOWN, Kept.ACCEPTED)


@dataclasses.dataclass
class _Print:
    """The fingerprint of a part.

    Attributes:
        sums: checksums by what they are of; None for what cannot be compared.
        complete: whether they cover all that the part consists of.
        coded: which of them follow from bytecode.
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

    They are of the run as it was built: of model and loss at `describe`, of the dataset when a checkpoint is
    first saved or loaded. What code changes later of itself (a counter, a schedule) is not in them.

    Args:
        dataset: with a length and indices.
        collate: the collate_fn.
        settings: of the DataLoader.

    Attributes:
        continuity: what is known of the run's checkpoints; None before the first.
    """

    def __init__(self, dataset: Any, collate: Callable[..., Any], settings: dict[str, Any]) -> None:  # noqa: ANN401 - any dataset
        self.continuity: Continuity | None = None
        self._dataset = dataset
        self._settings = settings
        self._bare = {part: _Print() for part in PARTS}
        printer = Printer(home=collate)
        self._bare["dataset"].add("collate_fn", printer, printer.of(collate, frozenset()))
        self._key = b""
        self._picked: list[int] = []
        self._prints: dict[str, _Print] = {}

    def describe(self, model: nn.Module, loss: Callable[..., Any] | None) -> None:
        """Take the fingerprints of model and loss.

        Args:
            model: before it is wrapped.
            loss: of one example; None where it is not known here.
        """
        printer = Printer(model)
        self._bare["model"].add("structure", printer, printer.model(model))
        if loss is not None:
            printer = Printer(model, home=loss)
            self._bare["loss"].add("code or constants", printer, printer.of(loss, frozenset()))

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint. Secret."""
        if not self._key:
            self._use(secrets.token_bytes(32), None)
        if self.continuity is None:
            dataset, model, loss = (_kept(self._prints[part]) for part in PARTS)
            self.continuity = Continuity(dataset, model, loss)
        return {
            "key": self._key.hex(),
            "picked": self._picked,
            "python": _python(),
            "torch": str(torch.__version__),
            "prints": {part: dataclasses.asdict(self._prints[part]) for part in PARTS},
            "continuity": self.continuity.to_dict(),
        }

    def resume(self, state: dict[str, Any], accepted: Sequence[str], group: Group, world: int) -> None:
        """Compare with a saved state, and go on with its key; all processes refuse if one of them must.

        Args:
            state: of `state_dict`.
            accepted: names of parts that may differ.
            group: the processes that train together.
            world: how many they are.

        Raises:
            CertificateError: if another part differs, or the state is none.
        """
        changed, kept = self.compare(state)
        refused = [text for part, text in changed.items() if part not in accepted]
        found = gathered("the set-up of the run", (refused, kept), group, world)
        problems = list(dict.fromkeys(text for texts, _ in found for text in texts))
        if problems:
            raise CertificateError(
                f"the checkpoint is of another run: {'; '.join(problems)}. Steps that were taken after it "
                "would be taken again with the same noise on other sums, and who has both results subtracts "
                "the noise. Accepted: the run that saved it; or accept_changed=(...) with the names of the "
                "parts, if nothing that was released after it was seen by anyone",
                claimed=problems,
            )
        self.continuity = _worst(one for _, one in found)

    def note_by_hand(self) -> None:
        """Trained parameters were changed by hand: steps taken again from an earlier state may not repeat."""
        if self.continuity is not None and self.continuity.model == Kept.SAME:
            self.continuity = dataclasses.replace(self.continuity, model=Kept.UNKNOWN)

    def compare(self, state: dict[str, Any]) -> tuple[dict[str, str], Continuity]:
        """Compare with the state of a checkpoint.

        Returns:
            What differs of every part that is not the same, in words; and what is known if that is accepted.

        Raises:
            CertificateError: if the state is none.
        """
        try:
            picked = [int(index) for index in state["picked"]]
            saved = {part: _Print(**state["prints"][part]) for part in PARTS}
            loads = check_integer("loads", state["continuity"].get("loads", 0), minimum=0)
            before = Continuity(**{part: Kept(state["continuity"][part]) for part in PARTS}, loads=loads)
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
            found = Kept.ACCEPTED if part in changed else max(_kept(one), _kept(now), key=_ORDER.index)
            kept[part] = max(found, getattr(before, part), key=_ORDER.index)
        return changed, Continuity(**kept, loads=before.loads + 1)

    def _use(self, key: bytes, picked: list[int] | None) -> None:
        """Take the keyed fingerprints."""
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


def _worst(all_kept: Iterable[Continuity]) -> Continuity:
    """What is known where several processes know this."""
    known = list(all_kept)
    return Continuity(
        **{part: max((getattr(one, part) for one in known), key=_ORDER.index) for part in PARTS},
        loads=max(one.loads for one in known),
    )


def _kept(own: _Print) -> Kept:
    return Kept.SAME if own.sums and own.complete and None not in own.sums.values() else Kept.UNKNOWN


def _keyed(key: bytes, value: str | None) -> str | None:
    return None if value is None else hashlib.blake2b(value.encode(), key=key, digest_size=32).hexdigest()


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
