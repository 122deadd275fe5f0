"""Contributions: bounds the number of examples per user by keeping some examples of every user."""

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
    """The kept examples and their users; returned by `Contributions.bounded`.

    The kept examples of a user depend only on the examples of that user and on chance. They never depend on
    the data of others, as claims about users require.

    Attributes:
        indices: indices of the kept examples, increasing, shape (k,).
        owners: for each kept example, the index of its user in [0, users), shape (k,). Secret.
        users: number of users.
        max_examples_per_user: m, the maximum number of examples kept per user.
        dropped: number of omitted examples.
        keyed: whether the examples were chosen at random; otherwise the first m of every user were kept.
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
        """Keep at most m examples of every user.

        Args:
            user_ids: the user of each example: one hashable id per example, shape (examples,), as a list, an
                array, a tensor or a column. Ids are compared by value. If examples belong to several people,
                use `SharedContributions` instead, because this function would bound nothing.
            max_examples_per_user: m >= 1.
            keyed: whether to keep m uniformly random examples of each user; otherwise the first m are kept.
            rng: source of random numbers for this choice, as for `sampler_for`.

        Raises:
            InvalidParameterError: if an argument is invalid.

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
            # Ties of 64 random bits are broken by position: probability 2^-64 per pair.
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
    """An index for each user, by first appearance, and the number of users; `name` names the argument."""
    accepted = "one hashable id for every example, at least one, without NaN, equal to that of the same user"
    # Iterating a mapping would yield its keys, and unordered collections do not match the examples.
    wrong = isinstance(user_ids, str | bytes | Mapping | Set) or not hasattr(user_ids, "__len__")
    if wrong:
        raise InvalidParameterError(name, type(user_ids).__name__, accepted)
    known: dict[Hashable, int] = {}
    try:
        # `tolist` of arrays, tensors and columns gives values that are compared by value.
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
    """Refuse ids that are text for some examples and another type for others, such as 1 and "1".

    Tables that are read in parts may hold one user's id as either, who would then count as two users.

    Raises:
        TypeError: if there are such ids, or such components at one position of composite ids.
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
    """The id in a form that equals the id of the same user elsewhere.

    A tensor is hashed by identity, like objects without `__eq__`: every example would be a separate user.

    Raises:
        TypeError: if it is not an id, or if equality of ids cannot be determined.
        RuntimeError: for a tensor with several elements, where an array raises a ValueError.
    """
    if isinstance(value, list | set):
        raise TypeError("a list of owners: SharedContributions.bounded bounds what each of several owns")
    if isinstance(value, tuple):
        return tuple(_by_value(part) for part in value)
    if isinstance(value, frozenset):
        return frozenset(_by_value(part) for part in value)
    if not isinstance(value, np.generic) and hasattr(value, "item"):
        value = value.item()
    # NaN differs from itself, and would make every such example a separate user; None identifies no user.
    if value is None or value != value:  # noqa: PLR0124
        raise TypeError(f"{value!r} is nobody")
    if type(value).__eq__ is object.__eq__ and not isinstance(value, enum.Enum):
        raise TypeError(f"two of {type(value).__name__} are equal only if they are one object")
    return value
