"""Datasets whose examples belong to users: a bounded number of examples per user, or one item per user."""

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
    """The examples of a dataset, at most m per user: for claims about users whose examples are sampled.

    The participation of such a claim has `max_examples_per_user`. With m = 1, other claims about users are
    supported too: the example of a user is then all that the user contributes.

    Args:
        dataset: with a length and indices.
        user_ids: owner of each example, shape (examples,). With `several_owners` a collection of ids each.
        max_examples_per_user: m >= 1.
        keyed: as for `Contributions.bounded`; False with `several_owners`.
        rng: as for `Contributions.bounded`.
        several_owners: whether an example may belong to several users: at most m are kept of each, as by
            `SharedContributions.bounded`; only for claims under `Adjacency.ZERO_OUT`.

    Attributes:
        contributions: the examples kept; with `several_owners` a `SharedContributions`.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> kept = UserExamples([10, 11, 12, 13], ["ann", "ann", "bob", "ann"], 2)
        >>> list(kept), kept.contributions.users
        ([10, 11, 12], 2)
    """

    def __init__(
        self,
        dataset: Any,
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
                "keyed", keyed, "False, without rng, with several_owners, which samples nothing"
            )
        self.contributions: Contributions | SharedContributions
        if several_owners:
            self.contributions = SharedContributions.bounded(user_ids, max_examples_per_user)
        else:
            self.contributions = Contributions.bounded(user_ids, max_examples_per_user, keyed=keyed, rng=rng)
        _check_length(dataset, user_ids)
        super().__init__(dataset, self.contributions.indices.tolist())


class UserDataset(Dataset[Any]):
    """A dataset of users: item u contains at most m stacked examples of user u, and a mask.

    Under a claim whose users are sampled, batches consist of users. Item u is `(*parts, mask)`: each part of
    the examples is stacked to shape (m, ...), and the mask consists of m zeros and ones. If a user has fewer
    than m examples, the rest is filled with masked copies of the first.

    Args:
        dataset: with a length and indices; its examples are tensors, arrays or numbers, or tuples of these,
            of one shape.
        user_ids: owner of each example, shape (examples,).
        max_examples_per_user: m >= 1.
        keyed: as for `Contributions.bounded`.
        rng: as for `Contributions.bounded`.

    Attributes:
        contributions: the examples kept.

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
        dataset: Any,
        user_ids: Sequence[Hashable],
        max_examples_per_user: int,
        *,
        keyed: bool = False,
        rng: object = None,
    ) -> None:
        self.dataset = dataset
        self.contributions = Contributions.bounded(user_ids, max_examples_per_user, keyed=keyed, rng=rng)
        _check_length(dataset, user_ids)
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
        indices = self._kept[self._starts[user] : self._starts[user + 1]]
        size = self.contributions.max_examples_per_user
        examples = [_parts(self.dataset[index]) for index in indices]
        examples += [examples[0]] * (size - len(indices))
        mask = (torch.arange(size) < len(indices)).to(torch.get_default_dtype())
        return (*(torch.stack(part) for part in zip(*examples, strict=True)), mask)


def _check_length(dataset: Any, user_ids: Sequence[object]) -> None:
    if not hasattr(dataset, "__len__") or len(user_ids) != len(dataset):
        raise InvalidParameterError(
            "user_ids", f"{len(user_ids)} ids", "one for every example of the dataset"
        )


def _parts(example: Any) -> list[Tensor]:
    parts = example if isinstance(example, tuple | list) else (example,)
    if not all(isinstance(part, Tensor | np.ndarray | np.generic | int | float) for part in parts):
        raise InvalidParameterError(
            "dataset",
            type(example).__name__,
            "examples that are tensors, arrays or numbers, or tuples of these",
        )
    return [torch.as_tensor(part) for part in parts]


def owners_of(dataset: object, participation: Participation) -> IntArray | None:
    """The number of each example's user, shape (examples,), for a claim about the examples of users.

    None for other claims, and if examples have multiple owners, whom `SharedContributions` counts.
    """
    if participation.unit is not Unit.USER or not isinstance(dataset, UserExamples):
        return None
    kept = dataset.contributions
    return kept.owners if isinstance(kept, Contributions) else None


def check_unit(
    claim: Claim, dataset: object, unit: Literal["example", "user"] | None, *, hooks: bool
) -> UserDataset | None:
    """Refuse data of another unit than the claim; returns the dataset of users if users are sampled.

    Args:
        claim: of the run.
        dataset: of the loader.
        unit: the unit that the caller expects, or None.
        hooks: whether gradients come from Opacus' hooks.

    Raises:
        InvalidParameterError: if `unit` is invalid.
        CertificateError: if it differs from the claim's, or users have more examples than certified.
        UnsupportedCombinationError: if the dataset has another unit.
    """
    if unit not in {None, "example", "user"}:
        raise InvalidParameterError("unit", unit, "None, 'example' or 'user'")
    if unit is not None and unit != claim.unit.value:
        raise CertificateError(
            f"unit is {unit!r}, but the claim protects one {claim.unit.value}",
            claimed=claim.unit.value,
            recomputed=unit,
        )
    if claim.unit is Unit.EXAMPLE:
        if isinstance(dataset, UserDataset):
            raise UnsupportedCombinationError(
                "the items of a UserDataset are users, but the claim is about examples",
                supported="a claim of dm.Mechanism(strategy, participation, unit=dm.Unit.USER)",
            )
        return None
    if isinstance(dataset, UserExamples):
        _check_kept(claim, dataset)
        return None
    if claim.participation.unit is not None:
        allowed = claim.participation.examples
        raise UnsupportedCombinationError(
            f"the claim is about users with at most {allowed} examples, but nothing bounds those of a "
            f"{type(dataset).__name__}",
            supported=f"dpmech.optim.UserExamples(dataset, user_ids, {allowed}) as the loader's dataset",
        )
    if not isinstance(dataset, UserDataset):
        raise UnsupportedCombinationError(
            f"the claim is about users, who are sampled, but a {type(dataset).__name__} holds examples",
            supported="dpmech.optim.UserDataset(dataset, user_ids, m) as the loader's dataset, or "
            "dpmech.optim.UserExamples(dataset, user_ids, 1), with one example per user",
        )
    if hooks:
        raise UnsupportedCombinationError(
            "Opacus' hooks give the gradient of every example, but those of one user are clipped jointly",
            supported="make_private(..., loss=...), with the loss of one example",
        )
    return dataset


def _check_kept(claim: Claim, dataset: UserExamples) -> None:
    """Refuse more examples per user than the claim covers: one, if users are sampled."""
    allowed, held = claim.participation.examples, dataset.contributions.max_examples_per_user
    if isinstance(dataset.contributions, SharedContributions):
        _check_shared(claim)
    if list(dataset.indices) != dataset.contributions.indices.tolist():
        raise UnsupportedCombinationError(
            "the indices of the UserExamples have changed since they were chosen: the number of examples "
            "of a user is no longer bounded",
            supported=f"dpmech.optim.UserExamples(dataset, user_ids, {allowed}), unchanged",
        )
    if held > allowed and claim.participation.unit is None:
        raise UnsupportedCombinationError(
            f"the claim is about users, who are sampled, but a UserExamples holds up to {held} examples of a "
            "user, which would be sampled separately",
            supported="dpmech.optim.UserExamples(dataset, user_ids, 1); dpmech.optim.UserDataset(dataset, "
            "user_ids, m), if every example has one owner; a participation with max_examples_per_user",
        )
    if held > allowed:
        raise CertificateError(
            f"users have up to {held} examples, but {allowed} are certified",
            claimed=allowed,
            recomputed=held,
        )


def _check_shared(claim: Claim) -> None:
    """Refuse claims that do not hold if the choice of records depends on several people."""
    if claim.adjacency is not Adjacency.ZERO_OUT:
        raise UnsupportedCombinationError(
            f"records have multiple owners, and the claim is for {claim.adjacency.name}: removing the "
            "records of one person changes which others are kept, even of people who share none with that "
            "person",
            supported="adjacency=dm.Adjacency.ZERO_OUT, whose neighbours have the same records and owners",
        )
    if claim.participation.users_together:
        raise UnsupportedCombinationError(
            "records have multiple owners, and the claim puts all records of a person into one group: people "
            "linked by records would all be in one group",
            supported="dm.Poisson(q, max_examples_per_user=m)",
        )


def check_same_choice(dataset: object, group: Group) -> None:
    """Raise CertificateError, in all processes, if they keep different examples of users.

    An index in a batch would refer to different examples: one user could contribute more than certified.
    """
    if isinstance(dataset, UserDataset | UserExamples):
        kept = dataset.contributions
        # Owners of shared records have no numbers: the records kept determine everything.
        owners = kept.owners.tobytes() if isinstance(kept, Contributions) else b""
        places = hashlib.sha256(kept.indices.tobytes() + owners).hexdigest()
        check_agreement(
            "which examples of users are kept (keyed=True takes one rng)", {"kept": places}, group
        )
