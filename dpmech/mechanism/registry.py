"""Registry: what other packages know about each kind of participation, one line a kind."""

from typing import Generic, TypeVar

from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism.participation import Participation

__all__ = ["Registry"]

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """One entry for each kind of participation that somebody registered; none is inherited.

    Args:
        what: an entry is, in words.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[type[Participation], Entry] = {}

    def add(self, kind: type[Participation], entry: Entry) -> None:
        """Register an entry.

        Raises:
            InvalidParameterError: if the kind is no participation, or has one.
        """
        if not (isinstance(kind, type) and issubclass(kind, Participation)):
            raise InvalidParameterError("kind", kind, "a class of participations")
        if kind in self._entries:
            raise InvalidParameterError("kind", kind, f"one without {self._what}")
        self._entries[kind] = entry

    def remove(self, kind: type[Participation]) -> None:
        """Undo `add`; for what registered a kind for a while.

        Raises:
            InvalidParameterError: if it is not registered.
        """
        if kind not in self._entries:
            raise InvalidParameterError("kind", kind, f"one with {self._what}")
        del self._entries[kind]

    def find(self, participation: Participation) -> Entry | None:
        """The entry of its kind, or None."""
        return self._entries.get(type(participation))
