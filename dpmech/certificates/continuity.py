"""What is known of the parts of a run that began anew from checkpoints, and of its dataset."""

import dataclasses
import enum
from typing import Any

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer

__all__ = ["Continuity", "Kept", "Uniqueness"]


_PARTS = ("dataset", "model", "loss")


class Uniqueness(enum.StrEnum):
    """How it was checked that no example stands in a dataset twice.

    FLATTENED: views were followed down to tensors, arrays and plain sequences. EXAMPLE_IDS: the dataset names
    its examples. NOT_CHECKED: views were followed, down to a dataset of which nothing more is known.

    Example:
        >>> import dpmech as dm
        >>> [one.value for one in dm.Uniqueness]
        ['flattened', 'by example_ids', 'not checked']
    """

    FLATTENED = "flattened"
    EXAMPLE_IDS = "by example_ids"
    NOT_CHECKED = "not checked"


class Kept(enum.StrEnum):
    """Whether a part of a run is what it was when its first checkpoint was saved.

    SAME: by its fingerprint, at every load. ACCEPTED: it differed at a load, and the caller took the
    responsibility. UNKNOWN: some of it has no fingerprint.

    Example:
        >>> import dpmech as dm
        >>> [kept.value for kept in dm.Kept]
        ['same', 'changed, accepted by the caller', 'not wholly fingerprinted']
    """

    SAME = "same"
    ACCEPTED = "changed, accepted by the caller"
    UNKNOWN = "not wholly fingerprinted"


@dataclasses.dataclass(frozen=True)
class Continuity:
    """What is known of the parts of a run that saved or loaded checkpoints.

    Steps after a checkpoint may be taken again, with the same noise. If the sums under it are not those of
    the first time, whoever has both results subtracts the noise.

    Attributes:
        dataset: some of its examples.
        model: its structure.
        loss: of one example.
        loads: how often the run went on from a saved state.
        settings: of the optimizer. UNKNOWN if the run went on from a saved state, and learning rates or
            others changed otherwise than by a scheduler that checkpoints compare; never ACCEPTED.

    Example:
        >>> import dpmech as dm
        >>> kept = dm.Continuity(dm.Kept.SAME, dm.Kept.SAME, dm.Kept.UNKNOWN)
        >>> kept.loss.value
        'not wholly fingerprinted'
    """

    dataset: Kept
    model: Kept
    loss: Kept
    loads: int = 0
    settings: Kept = Kept.SAME

    def __post_init__(self) -> None:
        check_integer("loads", self.loads, minimum=0)
        for name in (*_PARTS, "settings"):
            if not isinstance(getattr(self, name), Kept):
                raise InvalidParameterError(name, getattr(self, name), "a Kept")
        if self.settings == Kept.ACCEPTED:
            raise InvalidParameterError("settings", self.settings, "Kept.SAME or Kept.UNKNOWN")

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `loads` only where there were any, `settings` only where they are not the same."""
        found: dict[str, Any] = {name: getattr(self, name).value for name in _PARTS}
        found |= {"settings": self.settings.value} if self.settings != Kept.SAME else {}
        return found | ({"loads": self.loads} if self.loads else {})

    def of_kind(self, kind: Kept) -> tuple[str, ...]:
        """Which of dataset, model and loss this is known of."""
        return tuple(name for name in _PARTS if getattr(self, name) == kind)
