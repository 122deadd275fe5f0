"""Datasets whose examples belong to users: the examples that are kept of each, or one item a user."""

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from dpmech.certificates import Claim
from dpmech.drawing import Contributions
from dpmech.exceptions import CertificateError, InvalidParameterError, UnsupportedCombinationError
from dpmech.mechanism import Adjacency, Participation, Unit
from dpmech.numerics import IntArray
from dpmech.optim.processes import Group, check_agreement
from dpmech.samplers import SharedContributions


class UserExamples(Subset[Any]):
    """The examples of a dataset, at most m of every user: for claims about users whose examples are sampled.

    That is under participations with `max_examples_per_user`.

    Args:
        dataset: with a length and indices.
        user_ids: whose each example is, shape (examples,). With `several_owners` a collection of ids each.
        max_examples_per_user: m >= 1.
        keyed: as for `Contributions.bounded`; False with `several_owners`.
        rng: the same.
        several_owners: whether an example may belong to several users: of each at most m are kept, as by
            `SharedContributions.bounded`, for claims under `Adjacency.ZERO_OUT` alone.

    Attributes:
        contributions: what was kept; with `several_owners` a `SharedContributions`.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> kept = UserExamples([10, 11, 12, 13], ["ann", "ann", "bob", "ann"], 2)
        >>> list(kept), kept.contributions.users
        ([10, 11, 12], 2)
    """

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401 - any dataset
        user_ids: Sequence[Any],
        max_examples_per_user: int,
        *,
        keyed: bool = False,
        rng: object = None,
        several_owners: bool = False,
    ) -> None:
        if not isinstance(several_owners, bool):
            raise InvalidParameterError("several_owners", several_owners, "True or False")
        if several_owners and (keyed is not False or rng is not None):
            raise InvalidParameterError(
                "keyed", keyed, "False, without rng, with several_owners: nothing is drawn there"
            )
        self.contributions = (
            _shared(dataset, user_ids, max_examples_per_user)
            if several_owners
            else _bounded(dataset, user_ids, max_examples_per_user, keyed=keyed, rng=rng)
        )
        super().__init__(dataset, self.contributions.indices.tolist())


class UserDataset(Dataset[Any]):
    """A dataset of users: item u holds at most m examples of user u, stacked, and a mask of those there are.

    Under a claim whose users are sampled, batches are made of users. Item u is `(*parts, mask)`: each part of
    an example stacked to shape (m, ...), the mask of m zeros and ones. Where a user has fewer than m examples
    the first stands in for the rest, and the mask leaves it out.

    Args:
        dataset: with a length and indices; its examples are tensors, arrays or numbers, or tuples of these,
            of one shape.
        user_ids: whose each example is, shape (examples,).
        max_examples_per_user: m >= 1.
        keyed: as for `Contributions.bounded`.
        rng: the same.

    Attributes:
        contributions: what was kept.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> data = torch.utils.data.TensorDataset(torch.arange(4.0), torch.tensor([0, 1, 0, 1]))
        >>> users = UserDataset(data, ["ann", "ann", "bob", "ann"], 3)
        >>> len(users), users[1]
        (2, (tensor([2., 2., 2.]), tensor([0, 0, 0]), tensor([1., 0., 0.])))
    """

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401 - any dataset
        user_ids: Sequence[Hashable],
        max_examples_per_user: int,
        *,
        keyed: bool = False,
        rng: object = None,
    ) -> None:
        self.dataset = dataset
        self.contributions = _bounded(dataset, user_ids, max_examples_per_user, keyed=keyed, rng=rng)
        kept = self.contributions
        order = np.argsort(kept.owners, kind="stable")
        self._kept = kept.indices[order].tolist()
        self._starts = np.searchsorted(kept.owners[order], np.arange(kept.users + 1)).tolist()

    def __len__(self) -> int:
        """Number of users."""
        return self.contributions.users

    def __getitem__(self, user: int) -> tuple[Tensor, ...]:
        """Parts of the user's examples, stacked, and the mask."""
        if not 0 <= user < len(self):
            raise IndexError(user)
        own = self._kept[self._starts[user] : self._starts[user + 1]]
        most = self.contributions.max_examples_per_user
        examples = [_parts(self.dataset[index]) for index in own]
        examples += [examples[0]] * (most - len(own))
        mask = (torch.arange(most) < len(own)).to(torch.get_default_dtype())
        return (*(torch.stack(part) for part in zip(*examples, strict=True)), mask)


def _bounded(
    dataset: Any,  # noqa: ANN401 - any dataset
    user_ids: Sequence[Hashable],
    max_examples_per_user: int,
    *,
    keyed: bool,
    rng: object,
) -> Contributions:
    found = Contributions.bounded(user_ids, max_examples_per_user, keyed=keyed, rng=rng)
    _check_length(dataset, user_ids)
    return found


def _shared(
    dataset: Any,  # noqa: ANN401 - any dataset
    owner_ids: Sequence[Any],
    max_examples_per_user: int,
) -> SharedContributions:
    found = SharedContributions.bounded(owner_ids, max_examples_per_user)
    _check_length(dataset, owner_ids)
    return found


def _check_length(dataset: Any, user_ids: Sequence[object]) -> None:  # noqa: ANN401 - any dataset
    if not hasattr(dataset, "__len__") or len(user_ids) != len(dataset):
        raise InvalidParameterError(
            "user_ids", f"{len(user_ids)} ids", "one for every example of the dataset"
        )


def _parts(example: Any) -> list[Tensor]:  # noqa: ANN401 - what a dataset gives
    parts = example if isinstance(example, tuple | list) else (example,)
    if not all(isinstance(part, Tensor | np.ndarray | np.generic | int | float) for part in parts):
        raise InvalidParameterError(
            "dataset",
            type(example).__name__,
            "examples that are tensors, arrays or numbers, or tuples of these",
        )
    return [torch.as_tensor(part) for part in parts]


def owners_of(dataset: object, participation: Participation) -> IntArray | None:
    """The number of each example's user, shape (examples,), where a claim says what users' examples do.

    None without such a claim, and where examples have several owners: `SharedContributions` counts for these.
    """
    if participation.unit is not Unit.USER or not isinstance(dataset, UserExamples):
        return None
    kept = dataset.contributions
    return kept.owners if isinstance(kept, Contributions) else None


def check_unit(
    claim: Claim, dataset: object, unit: Literal["example", "user"] | None, *, hooks: bool
) -> UserDataset | None:
    """Refuse data that are not of the unit that is claimed; returns the users where they are sampled.

    Args:
        claim: of the run.
        dataset: of the loader.
        unit: what the caller takes the claim for, or None.
        hooks: whether gradients come from Opacus' hooks.

    Raises:
        InvalidParameterError: if `unit` is no unit.
        CertificateError: if it is not that of the claim, or users have more examples than certified.
        UnsupportedCombinationError: if the dataset is not one of this unit.
    """
    if unit not in {None, "example", "user"}:
        raise InvalidParameterError("unit", unit, "None, 'example' or 'user'")
    if unit is not None and unit != claim.unit.value:
        raise CertificateError(
            f"unit is {unit!r}, and the claim hides one {claim.unit.value}",
            claimed=claim.unit.value,
            recomputed=unit,
        )
    if claim.unit is Unit.USER and claim.participation.unit is not None:
        most = claim.participation.examples
        if not isinstance(dataset, UserExamples):
            raise UnsupportedCombinationError(
                f"the claim is about users with at most {most} examples, and nothing bounds those of a "
                f"{type(dataset).__name__}",
                supported=f"dpmech.optim.UserExamples(dataset, user_ids, {most}) as the loader's dataset",
            )
        if isinstance(dataset.contributions, SharedContributions):
            _check_shared(claim)
        if list(dataset.indices) != dataset.contributions.indices.tolist():
            raise UnsupportedCombinationError(
                "the indices of the UserExamples are no longer those that were kept: nothing bounds how many "
                "examples of a user there are",
                supported=f"dpmech.optim.UserExamples(dataset, user_ids, {most}), unchanged",
            )
        held = dataset.contributions.max_examples_per_user
        if held > most:
            raise CertificateError(
                f"users have up to {held} examples, {most} are certified", claimed=most, recomputed=held
            )
        return None
    if claim.unit is Unit.USER:
        if not isinstance(dataset, UserDataset):
            raise UnsupportedCombinationError(
                f"the claim is about users, who are sampled, and a {type(dataset).__name__} holds examples",
                supported="dpmech.optim.UserDataset(dataset, user_ids, m) as the loader's dataset",
            )
        if hooks:
            raise UnsupportedCombinationError(
                "Opacus' hooks give the gradient of every example, and those of one user are clipped as one",
                supported="make_private(..., loss=...), with the loss of one example",
            )
        return dataset
    if isinstance(dataset, UserDataset):
        raise UnsupportedCombinationError(
            "the items of a UserDataset are users, and the claim is about examples",
            supported="a claim of dm.Mechanism(strategy, participation, unit=dm.Unit.USER)",
        )
    return None


def _check_shared(claim: Claim) -> None:
    """Refuse claims that do not hold where which records are kept depends on several people."""
    if claim.adjacency is not Adjacency.ZERO_OUT:
        raise UnsupportedCombinationError(
            f"records have several owners, and the claim is for {claim.adjacency.name}: without the records "
            "of one person others would be kept, also of people who share none with that person",
            supported="adjacency=dm.Adjacency.ZERO_OUT, whose neighbours have the same records and owners",
        )
    if claim.participation.users_together:
        raise UnsupportedCombinationError(
            "records have several owners, and the claim puts all records of a person into one group: people "
            "who are linked by records would all be in one",
            supported="dm.Poisson(q, max_examples_per_user=m)",
        )


def check_same_choice(dataset: object, group: Group) -> None:
    """Refuse processes that keep different examples of users, as where chance chose in each by itself.

    A place in a batch would be another example in every process: one user could add more than certified.

    Args:
        dataset: of the loader of this process.
        group: the processes that train together.

    Raises:
        CertificateError: in all processes, if they differ.
    """
    if isinstance(dataset, UserDataset | UserExamples):
        kept = dataset.contributions
        # Owners of shared records have no numbers: which records are kept says all.
        owners = kept.owners.tobytes() if isinstance(kept, Contributions) else b""
        places = hashlib.sha256(kept.indices.tobytes() + owners).hexdigest()
        check_agreement(
            "which examples of users are kept (keyed=True takes one rng)", {"kept": places}, group
        )
