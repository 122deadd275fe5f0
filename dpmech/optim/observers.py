"""Observers: objects that read the private gradient of every step, and are saved with the optimizer."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dpmech.certificates import NoiseCheck
from dpmech.optim.clipping import Blocks


class Observer(Protocol):
    """Reads the private gradient of every step, before the wrapped optimizer does."""

    def see(self, step: int, deviations: Sequence[float], clipped: Blocks) -> None:
        """Called when `param.grad` holds the private gradient of a step.

        Args:
            step: its number, from 0.
            deviations: standard deviation of the noise of every trained parameter, for a row of C^-1 with
                norm 1.
            clipped: the blocks to whose norms the examples of the step were clipped.
        """

    def state_dict(self) -> dict[str, Any]:
        """What was seen."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what was seen."""

    def noise_check(self) -> NoiseCheck | None:
        """What it says of the noise in a run record; None for nothing."""


class Observers:
    """The observers of one optimizer, in the order in which they came."""

    def __init__(self) -> None:
        self._all: list[Observer] = []
        self._saved: Sequence[Mapping[str, Any]] = ()  # of a loaded state

    def add(self, observer: Observer) -> None:
        """Add an observer, which continues with what the one in its place had seen, if a state was loaded."""
        self._all.append(observer)
        for saved in self._saved[len(self._all) - 1 : len(self._all)]:
            observer.load_state_dict(saved)

    def see(self, step: int, deviations: Sequence[float], clipped: Blocks) -> None:
        """Show all of them the gradient of a step."""
        for observer in self._all:
            observer.see(step, deviations, clipped)

    def noise_check(self) -> NoiseCheck | None:
        """What the first of them says of the noise, or the first that refutes it."""
        found = [one for one in (observer.noise_check() for observer in self._all) if one is not None]
        return min(found, key=lambda one: not one.findings, default=None)

    def state_dict(self) -> dict[str, Any]:
        """What they have seen; empty without observers."""
        return {"observed": [observer.state_dict() for observer in self._all]} if self._all else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what was saved."""
        self._saved = state.get("observed", ())
        for observer, saved in zip(self._all, self._saved, strict=False):
            observer.load_state_dict(saved)
