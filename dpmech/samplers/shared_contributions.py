"""SharedContributions: bounds the records per person if a record may have multiple owners."""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np

from dpmech.drawing import numbered_users
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.numerics import IntArray

_ACCEPTED = "for every record a list, tuple, set or array of the ids of its owners, of at least one"


@dataclasses.dataclass(frozen=True, eq=False)
class SharedContributions:
    """The kept records, of which nobody owns more than m; returned by `bounded`.

    **Guarantee:** only for claims under `Adjacency.ZERO_OUT`. The selection of the kept records depends on
    all owners, and therefore on other people: without the records of one person, different records of others
    would be kept. Two datasets are neighbours if they have the same records with the same owners, and the
    gradients of all records of one person are zero in one of them.

    Attributes:
        indices: indices of the kept records, increasing, shape (k,).
        users: number of owners.
        max_examples_per_user: m, the maximum number of records kept per owner.
        dropped: number of omitted records.
    """

    indices: IntArray
    users: int
    max_examples_per_user: int
    dropped: int

    @classmethod
    def bounded(
        cls,
        owner_ids: Sequence[Any],
        max_examples_per_user: int,
    ) -> Self:
        """Keep at most m records per owner: a record is kept if each of its owners has fewer than m.

        Records are processed in order, without randomness. No omitted record could be added afterwards.

        Args:
            owner_ids: the owners of each record: a collection of at least one id, shape (records,) of
                collections. Repeated ids count once. Ids are compared by value.
            max_examples_per_user: m >= 1.

        Raises:
            InvalidParameterError: if an argument is invalid.

        Examples:
            >>> kept = SharedContributions.bounded([["ann", "bob"], ["bob", "cem"], ["cem"], ["ann"]], 1)
            >>> kept.indices.tolist(), kept.users, kept.dropped
            ([0, 2], 3, 2)
        """
        most = check_integer("max_examples_per_user", max_examples_per_user, minimum=1)
        lists = _listed(owner_ids)
        numbers, users = numbered_users([one for owners in lists for one in owners], "owner_ids")
        ends = np.cumsum([len(owners) for owners in lists]).tolist()
        room, kept, start = [most] * users, [], 0
        for record, end in enumerate(ends):
            owners = set(numbers[start:end].tolist())
            start = end
            if all(room[one] for one in owners):
                kept.append(record)
                for one in owners:
                    room[one] -= 1
        return cls(np.array(kept, dtype=np.int64), users, most, len(lists) - len(kept))

    def __repr__(self) -> str:
        return (
            f"SharedContributions({self.users} owners, at most {self.max_examples_per_user} records each; "
            f"{self.indices.size} kept)"
        )


def _listed(owner_ids: object) -> list[list[Hashable]]:
    """The ids of each record's owners.

    Text would be read as letters, a mapping as its keys. A record without an owner would be unprotected.
    """
    records = owner_ids.tolist() if hasattr(owner_ids, "tolist") else owner_ids
    if not isinstance(records, list | tuple) or not records:
        raise InvalidParameterError("owner_ids", type(owner_ids).__name__, _ACCEPTED)
    found = []
    for place, given in enumerate(records):
        owners = given.tolist() if hasattr(given, "tolist") else given
        if not isinstance(owners, list | tuple | set | frozenset) or not owners:
            what = f"{given!r}" if isinstance(given, list | tuple | set | frozenset) else type(given).__name__
            raise InvalidParameterError(f"owner_ids[{place}]", what, _ACCEPTED)
        found.append(list(owners))
    return found
