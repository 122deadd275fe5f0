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


def shared_key(key: Key, group: Group) -> Key:
    """The key of rank 0: noise must be the same on all processes, or every one makes its own release."""
    if processes(group) == 1:
        return key
    found: list[Any] = [None] * processes(group)
    dist.all_gather_object(found, key, group=group)
    first: Key = found[0]
    return first


def check_agreement(what: str, claim: dict[str, Any], group: Group) -> None:
    """Raise CertificateError, on all processes, unless they all make the same claim (plain data)."""
    if processes(group) == 1:
        return
    mine = hashlib.sha256(json.dumps(claim, sort_keys=True).encode()).hexdigest()
    found: list[Any] = [None] * processes(group)
    dist.all_gather_object(found, mine, group=group)
    if len(set(found)) > 1:
        raise CertificateError(
            f"processes disagree on {what}: they must all be built from the same certificate and parameters",
            claimed=mine,
            recomputed=found,
        )


def add_over(tensors: list[Tensor], group: Group) -> None:
    """Replace tensors by their sums over all processes, the same bits on each."""
    if processes(group) == 1:
        return
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
        work.wait()
