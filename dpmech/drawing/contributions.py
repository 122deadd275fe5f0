"""Contributions: which examples of every user are kept, so that nobody has more than so many."""

import dataclasses
import enum
from collections.abc import Hashable, Mapping, Sequence, Set
from typing import Self

import numpy as np
import numpy.typing as npt

from dpmech.drawing.random_words import Use, fresh_key, words
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.numerics import IntArray


@dataclasses.dataclass(frozen=True, eq=False)
class Contributions:
    """The examples that are kept, and whose they are; made by `Contributions.bounded`.

    What is kept of a user depends on that user's examples and on chance alone, never on the data of others,
    as claims about users ask.

    Attributes:
        indices: of the examples that are kept, increasing, shape (k,).
        owners: for each of them the number of its user in [0, users), shape (k,). Secret.
        users: how many users there are.
        max_examples_per_user: m, the most that may be kept of one.
        dropped: how many examples were left out.
        keyed: whether chance chose, or the first m of every user were kept.
    """

    indices: IntArray
    owners: IntArray
    users: int
    max_examples_per_user: int
    dropped: int
    keyed: bool

    @classmethod
    def bounded(
        cls,
        user_ids: Sequence[Hashable] | npt.NDArray[np.generic],
        max_examples_per_user: int,
        *,
        keyed: bool = False,
        rng: object = None,
    ) -> Self:
        """At most m examples of every user.

        Args:
            user_ids: whose each example is: one hashable id for each, shape (examples,); a list, an array, a
                tensor, a column. Ids are compared by value. An example of several people belongs to none of
                them alone, and this bounds nothing for it; `SharedContributions` does.
            max_examples_per_user: m >= 1.
            keyed: whether chance chooses among the examples of a user, all choices equally likely; else the
                first m are kept.
            rng: of that choice, as for `sampler_for`.

        Raises:
            InvalidParameterError: on a bad argument.

        Examples:
            >>> kept = Contributions.bounded(["ann", "bob", "ann", "ann", "bob"], 2)
            >>> kept.indices.tolist(), kept.owners.tolist(), kept.users, kept.dropped
            ([0, 1, 2, 4], [0, 1, 0, 1], 2, 1)
        """
        most = check_integer("max_examples_per_user", max_examples_per_user, minimum=1)
        if not isinstance(keyed, bool):
            raise InvalidParameterError("keyed", keyed, "True or False")
        if rng is not None and not keyed:
            raise InvalidParameterError(
                "rng", rng, "None where the first examples are kept: nothing is drawn"
            )
        owners, users = numbered_users(user_ids)
        count = owners.size
        order = np.arange(count)
        if keyed:
            # Ties of 64 random bits are broken by position: 2^-64 a pair.
            order = np.argsort(words(fresh_key(rng), Use.ORDER, 0).random_raw(count), kind="stable")
        sorted_by_owner = order[np.argsort(owners[order], kind="stable")]
        counts = np.bincount(owners, minlength=users)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        rank = np.arange(count) - np.repeat(starts, counts)
        indices = np.sort(sorted_by_owner[rank < most]).astype(np.int64)
        return cls(indices, owners[indices], users, most, count - indices.size, keyed)

    def __repr__(self) -> str:
        how = "drawn" if self.keyed else "the first"
        return (
            f"Contributions({self.users} users, at most {self.max_examples_per_user} examples each, {how}; "
            f"{self.indices.size} kept)"
        )


def numbered_users(
    user_ids: Sequence[Hashable] | npt.NDArray[np.generic], name: str = "user_ids"
) -> tuple[IntArray, int]:
    """A number for each user, by first appearance, and how many there are; `name` is of the argument."""
    accepted = "one hashable id for every example, at least one, without NaN, equal to that of the same user"
    # Of a mapping the keys would be taken, and what is unordered belongs to no example.
    wrong = isinstance(user_ids, str | bytes | Mapping | Set) or not hasattr(user_ids, "__len__")
    if wrong:
        raise InvalidParameterError(name, type(user_ids).__name__, accepted)
    known: dict[Hashable, int] = {}
    try:
        # Of arrays, tensors and columns `tolist` gives what is compared by value.
        listed = user_ids.tolist() if hasattr(user_ids, "tolist") else user_ids
        values = [_by_value(value) for value in listed]
        _check_text(values)
        numbers = [known.setdefault(value, len(known)) for value in values]
        length = len(user_ids)
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise InvalidParameterError(name, type(user_ids).__name__, f"{accepted} ({error})") from error
    if not numbers or len(numbers) != length:
        raise InvalidParameterError(name, f"{len(numbers)} ids", accepted)
    return np.array(numbers, dtype=np.int64), len(known)


def _check_text(values: list[Hashable]) -> None:
    """Refuse ids that are text in some examples and something else in others, as 1 and "1" are.

    Tables that are read in pieces hold one user's id as either, who would then be two users.

    Raises:
        TypeError: if there are such ids, or such parts at one place of ids of several parts.
    """
    kinds = {
        str if isinstance(value, str) else bytes if isinstance(value, bytes) else None for value in values
    }
    if len(kinds) > 1:
        raise TypeError("some are text and others are not: 1 and '1' would be two users")
    parts = [value for value in values if isinstance(value, tuple)]
    for place in range(max(map(len, parts), default=0)):
        _check_text([value[place] for value in parts if place < len(value)])
    members = [member for value in values if isinstance(value, frozenset) for member in value]
    if members:
        _check_text(members)


def _by_value(value: Hashable) -> Hashable:
    """The id as something that equals the id of the same user elsewhere.

    A tensor is hashed by its identity, as objects without `__eq__` are: every example would be a user.

    Raises:
        TypeError: if it is no id, or if equal ids cannot be told.
        RuntimeError: for a tensor with several elements, as a ValueError is raised for an array.
    """
    if isinstance(value, list | set):
        raise TypeError("a list of owners: SharedContributions.bounded bounds what each of several owns")
    if isinstance(value, tuple):
        return tuple(_by_value(part) for part in value)
    if isinstance(value, frozenset):
        return frozenset(_by_value(part) for part in value)
    if not isinstance(value, np.generic) and hasattr(value, "item"):
        value = value.item()
    # NaN differs from itself, and would make every such example a user of its own; None is nobody.
    if value is None or value != value:  # noqa: PLR0124
        raise TypeError(f"{value!r} is nobody")
    if type(value).__eq__ is object.__eq__ and not isinstance(value, enum.Enum):
        raise TypeError(f"two of {type(value).__name__} are equal only if they are one object")
    return value
