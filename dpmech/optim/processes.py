"""Several processes, one release: the same key everywhere, and a check that all claim the same."""

import hashlib
import json
from typing import Any, TypeAlias

import torch.distributed as dist
from torch import Tensor

from dpmech.exceptions import CertificateError, UnsupportedCombinationError

__all__ = [
    "Group",
    "Key",
    "add_over",
    "check_agreement",
    "check_processes",
    "gathered",
    "is_first",
    "processes",
    "shared_key",
]

Key: TypeAlias = tuple[int, int]

Group: TypeAlias = "dist.ProcessGroup | None"


def processes(group: Group) -> int:
    """Number of processes in a group; of the default group for None, 1 where there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(group)


def check_processes(expected: int, group: Group) -> None:
    """Raise UnsupportedCombinationError unless there are as many processes as when keys were shared."""
    found = processes(group)
    if found != expected:
        raise UnsupportedCombinationError(
            f"{expected} processes shared the keys of lots and noise, now there are {found}: they would "
            "release other sums, or the same ones under several draws of noise",
            supported="torch.distributed initialised before the private optimizer is made, and until its end",
        )


def is_first(group: Group) -> bool:
    """Whether this process has rank 0 in the group."""
    return processes(group) == 1 or dist.get_rank(group) == 0


def gathered(what: str, value: Any, group: Group, world: int | None = None) -> list[Any]:  # noqa: ANN401 - what torch can send
    """What all processes of a group have, by rank.

    Args:
        what: names it. Processes that are at another exchange are refused, and what they sent is not shown:
            it may be a key.
        value: of this process.
        group: the processes.
        world: how many they are; None asks.

    Raises:
        UnsupportedCombinationError: in all processes, if they exchange different things.
    """
    world = processes(group) if world is None else world
    if world == 1:
        return [value]
    found: list[Any] = [None] * world
    dist.all_gather_object(found, (what, value), group=group)
    names = {one[0] if isinstance(one, tuple) and len(one) == 2 else "something else" for one in found}
    if names != {what}:
        raise UnsupportedCombinationError(
            f"processes are out of step: they exchange {' and '.join(sorted(map(str, names)))}",
            supported="the same calls in the same order in every process",
        )
    return [one for _, one in found]


def shared_key(key: Key, group: Group) -> Key:
    """The key of rank 0: noise must be the same on all processes, or every one makes its own release."""
    first: Key = gathered("the key of the noise", key, group)[0]
    return first


def check_agreement(what: str, claim: dict[str, Any], group: Group) -> None:
    """Raise CertificateError, on all processes, unless they all make the same claim (plain data)."""
    if processes(group) == 1:
        return
    mine = hashlib.sha256(json.dumps(claim, sort_keys=True).encode()).hexdigest()
    if len(set(gathered(what, mine, group))) > 1:
        raise CertificateError(
            f"processes disagree on {what}: they must all be built from the same certificate, data, loss and "
            "parameters"
        )


def add_over(tensors: list[Tensor], group: Group) -> None:
    """Replace tensors by their sums over all processes, the same bits on each."""
    if processes(group) == 1:
        return
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
        work.wait()
