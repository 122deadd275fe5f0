"""Distributed training: the same key in all processes, and checks that their claims agree."""

import collections
import dataclasses
import hashlib
import json
import math
import socket
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from dpmech.exceptions import CertificateError, InvalidParameterError, UnsupportedCombinationError

Key: TypeAlias = tuple[int, int]

Group: TypeAlias = "dist.ProcessGroup | None"


def processes(group: Group) -> int:
    """Number of processes in a group; of the default group for None, 1 if there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(group)


def check_processes(expected: int, group: Group) -> None:
    """Raise UnsupportedCombinationError if the number of processes changed since keys were shared."""
    current = processes(group)
    if current != expected:
        raise UnsupportedCombinationError(
            f"{expected} processes shared the keys of batches and noise, now there are {current}: they would "
            "release other sums, or the same ones under several draws of noise",
            supported="torch.distributed initialized before the private optimizer is made, and until its end",
        )


def check_current_device(params: Iterable[Tensor], group: Group) -> None:
    """Refuse NCCL where this process works on another device than its parameters.

    NCCL exchanges objects through the current device. Processes that never chose one meet on the first, and
    wait for each other.

    Raises:
        UnsupportedCombinationError: if no parameter is on the current device, or one is on the CPU.
    """
    if processes(group) == 1 or dist.get_backend(group) != "nccl":
        return
    devices = {param.device for param in params}
    current = current_device()
    if current not in devices or any(device.type != "cuda" for device in devices):
        raise UnsupportedCombinationError(
            f"the backend NCCL on {current} with parameters on {', '.join(sorted(map(str, devices)))}",
            supported='torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) and model.to("cuda") before '
            "make_private, in every process; or the backend gloo",
        )


def current_device() -> torch.device:
    """The CUDA device of this process."""
    return torch.device("cuda", torch.cuda.current_device())


def is_first(group: Group) -> bool:
    """Whether this process has rank 0 in the group."""
    return rank_of(group) == 0


def rank_of(group: Group) -> int:
    """The rank of this process in the group."""
    return 0 if processes(group) == 1 else dist.get_rank(group)


def barrier(group: Group) -> None:
    """Wait until all processes of the group are here."""
    if processes(group) > 1:
        dist.barrier(group)


def gathered(what: str, value: Any, group: Group, world: int | None = None) -> list[Any]:
    """The values of all processes of a group, by rank.

    Args:
        what: name of the exchange. Processes in another exchange are refused, and their values are not shown:
            they may be keys.
        value: of this process.
        group: the processes.
        world: their number; None determines it.

    Raises:
        UnsupportedCombinationError: in all processes, if they exchange different things.
    """
    world = processes(group) if world is None else world
    if world == 1:
        return [value]
    parts: list[Any] = [None] * world
    dist.all_gather_object(parts, (what, value), group=group)
    names = {part[0] if isinstance(part, tuple) and len(part) == 2 else "something else" for part in parts}
    if names != {what}:
        raise UnsupportedCombinationError(
            f"processes are out of step: they exchange {' and '.join(sorted(map(str, names)))}",
            supported="the same calls in the same order in every process",
        )
    return [part for _, part in parts]


def order_of_sums(group: Group) -> list[str]:
    """What the order of additions over processes depends on, in addition to their ranks; nothing under gloo.

    NCCL chooses its algorithms by the connections between devices, and differently in its versions.

    Args:
        group: the processes, which all call this at the same time.

    Returns:
        The backend, its version, and the names of the machines by rank.
    """
    if processes(group) == 1 or (backend := dist.get_backend(group)) == "gloo":
        return []
    nccl = "nccl" in backend
    version = ".".join(map(str, torch.cuda.nccl.version())) if nccl else ""  # type: ignore[no-untyped-call]
    hosts = gathered("the names of the machines", socket.gethostname(), group)
    return ["NCCL" if nccl else str(backend), version, *hosts]


def shared_key(key: Key, group: Group) -> Key:
    """The key of rank 0: noise must be the same in all processes, else each would make a separate release."""
    first: Key = gathered("the key of the noise", key, group)[0]
    return first


def check_agreement(what: str, claim: dict[str, Any], group: Group) -> None:
    """Raise CertificateError, in all processes, unless all make the same claim (plain data)."""
    if processes(group) == 1:
        return
    mine = hashlib.sha256(json.dumps(claim, sort_keys=True).encode()).hexdigest()
    if len(set(gathered(what, mine, group))) > 1:
        raise CertificateError(
            f"processes disagree on {what}: they must all be built from the same certificate, data, loss and "
            "parameters"
        )


def share(tensors: Iterable[Tensor], group: Group) -> None:
    """Overwrite tensors with those of rank 0.

    They are sent as bytes, as NCCL does not know all dtypes, and from the current device, as it knows no CPU.
    """
    if processes(group) == 1:
        return
    source = dist.get_global_rank(group, 0) if group else 0
    by_device = dist.get_backend(group) == "nccl"
    for tensor in tensors:
        if is_sharded(tensor):
            continue  # every process has its own part
        mine = tensor.detach()
        sent = mine.contiguous()  # as backends require
        if by_device and sent.device.type == "cpu":
            sent = sent.to(current_device())
        dist.broadcast(sent.view(-1).view(torch.uint8), source, group)
        if sent is not mine:
            mine.copy_(sent)


_SMALL = 1 << 16  # values; larger tensors are sent as they are
_BUCKET = 1 << 22  # values that are sent together


def add_over(tensors: list[Tensor], group: Group) -> None:
    """Replace tensors by their sums over all processes, with the same bits in each.

    Small tensors are sent together: a message takes as long for ten values as for many thousands.
    """
    if processes(group) == 1:
        return
    waiting = []
    for members in _buckets(tensors):  # the next bucket is filled while one is sent
        total = members[0] if len(members) == 1 else torch.cat([one.flatten() for one in members])
        waiting.append((members, total, dist.all_reduce(total, group=group, async_op=True)))
    for members, total, work in waiting:
        work.wait()
        if len(members) > 1:
            for one, part in zip(
                members, total.split_with_sizes([one.numel() for one in members]), strict=True
            ):
                one.copy_(part.view(one.shape))


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Small tensors of one dtype and device in lists, in an order that is the same in all processes."""
    waiting: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    held = collections.Counter[tuple[torch.dtype, torch.device]]()
    for tensor in tensors:
        if tensor.numel() > _SMALL:
            yield [tensor]
            continue
        kind = tensor.dtype, tensor.device
        waiting.setdefault(kind, []).append(tensor)
        held[kind] += tensor.numel()
        if held[kind] >= _BUCKET:
            yield waiting.pop(kind)
            held[kind] = 0
    yield from waiting.values()


@dataclasses.dataclass(frozen=True)
class Slot:
    """The local part of one parameter.

    Attributes:
        index: position among the parameters.
        shape: shape of the whole parameter.
        local_shape: shape of the part in this process; equal to `shape` if it is not sharded.
        dtype: dtype of its normal numbers: float32, or float64 for float64 parameters.
        device: device of the parameter.
        shard: index of the shard; 0 if it is not sharded. Replicas of a shard have the same index.
        shards: number of shards.
    """

    index: int
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    shard: int = 0
    shards: int = 1

    @property
    def forms_on(self) -> torch.device:
        """Device on which rows of noise are computed: its own, or the CPU if float64 may be unsupported."""
        return self.device if self.device.type in ("cpu", "cuda") else torch.device("cpu")

    @property
    def size(self) -> int:
        """Number of local values."""
        return math.prod(self.local_shape)

    def chunks(self, length: int) -> Iterator[tuple[int, int, int]]:
        """(index, first value, end) of the chunks of at most `length` values."""
        for number, start in enumerate(range(0, self.size, length)):
            yield number, start, min(start + length, self.size)

    def describe(self) -> dict[str, Any]:
        """Settings that must be equal in a resumed run, as plain data."""
        return {
            "shape": list(self.shape),
            "local_shape": list(self.local_shape),
            "dtype": str(self.dtype),
            "shard": self.shard,
        }


def make_slots(params: Iterable[Tensor]) -> tuple[list[Tensor], list[Slot]]:
    """Check parameters, and return them with their slots.

    Raises:
        InvalidParameterError: if there is none, or one is not a tensor, is given twice, has no real
            floating-point dtype, has no data or is a partial sum.
    """
    if isinstance(params, Tensor) or not isinstance(params, Iterable):
        raise InvalidParameterError("params", params, "an iterable of tensors")
    tensors = list(params)
    if not tensors:
        raise InvalidParameterError("params", tensors, "at least one tensor")
    seen: set[int] = set()
    slots = []
    for index, param in enumerate(tensors):
        name = f"params[{index}]"
        if not isinstance(param, Tensor):
            raise InvalidParameterError(name, param, "a tensor")
        if id(param) in seen:
            raise InvalidParameterError(name, tuple(param.shape), "given once")
        seen.add(id(param))
        if not param.is_floating_point():
            raise InvalidParameterError(
                f"dtype of {name}",
                param.dtype,
                "a real floating-point dtype; for complex numbers, torch.view_as_complex of a real parameter",
            )
        if param.device.type == "meta" or param.layout != torch.strided:
            raise InvalidParameterError(name, (param.device, param.layout), "a dense tensor with data")
        shard, shards = _shard(name, param)
        slots.append(
            Slot(
                index=index,
                shape=tuple(param.shape),
                local_shape=tuple(local_part(param).shape),
                dtype=noise_dtype(param),
                device=param.device,
                shard=shard,
                shards=shards,
            )
        )
    return tensors, slots


def noise_dtype(param: Tensor) -> torch.dtype:
    """Dtype of the normal numbers of a parameter: float32, or float64 for float64 parameters."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def write_grad(param: Tensor, local: Tensor) -> None:
    """Set the gradient of `param` to `local`, in its dtype and memory layout."""
    mine = local_part(param.detach())
    if mine.dtype != local.dtype or mine.stride() != local.stride():
        local = torch.empty_like(mine).copy_(local)
    param.grad = like_param(local, param)


_WHOLE = (Tensor, torch.nn.Parameter)


def is_sharded(param: Tensor) -> bool:
    """Whether a parameter is a DTensor (FSDP2, tensor parallelism), of which this process has a part."""
    if type(param) in _WHOLE or not dist.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(param, DTensor)


def local_part(param: Tensor) -> Tensor:
    """The tensor of this process: the local shard of a DTensor, else the tensor itself."""
    return param.to_local() if is_sharded(param) else param  # type: ignore[attr-defined]  # a DTensor


def like_param(local: Tensor, param: Tensor) -> Tensor:
    """Convert a local part to a tensor of the same kind as `param`."""
    if not is_sharded(param):
        return local
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local,
        param.device_mesh,  # type: ignore[attr-defined]  # a DTensor
        param.placements,  # type: ignore[attr-defined]  # the same
        run_check=False,
        shape=param.shape,
        stride=param.stride(),
    )


def own_part(whole: Tensor, param: Tensor) -> Tensor:
    """The part of a tensor that belongs to the local part of a sharded parameter of its shape."""
    for dim, placement in enumerate(param.placements):  # type: ignore[attr-defined]  # a DTensor
        if placement.is_shard():
            mesh = param.device_mesh  # type: ignore[attr-defined]  # the same
            parts = whole.chunk(mesh.size(dim), placement.dim)
            place = mesh.get_coordinate()[dim]
            whole = parts[place] if place < len(parts) else whole.narrow(placement.dim, 0, 0)
    return whole.contiguous()


def _shard(name: str, param: Tensor) -> tuple[int, int]:
    if not is_sharded(param):
        return 0, 1
    mesh, placements = param.device_mesh, param.placements  # type: ignore[attr-defined]  # a DTensor
    coordinate = mesh.get_coordinate()
    if coordinate is None or any(placement.is_partial() for placement in placements):
        raise InvalidParameterError(
            name, (mesh, placements), "sharded or replicated on a mesh that holds this process"
        )
    shard, shards = 0, 1
    for dim, placement in enumerate(placements):
        if not placement.is_replicate():
            shard = shard * mesh.size(dim) + coordinate[dim]
            shards *= mesh.size(dim)
    return shard, shards
