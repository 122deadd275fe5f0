"""WholeParameters: those of a model sharded by fully_shard, whole while gradients are computed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.processes import Group, is_sharded
from dpmech.optim.state import named_tensors

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class WholeParameters:
    """Gathers the parameters of a model that `fully_shard` (FSDP2) divided between processes.

    A per-example gradient is clipped by its whole norm. So every process gathers all parameters, computes
    whole gradients of its own examples on them, and frees them again; only sums of clipped gradients are
    divided. FSDP's own hooks, which would gather and reduce layer by layer, are off meanwhile.

    Without sharded parameters nothing happens.

    Args:
        model: the model.
        group: the processes that train together.

    Raises:
        UnsupportedCombinationError: for parameters that are divided in another way.
    """

    def __init__(self, model: nn.Module, group: Group) -> None:
        self._model = model
        self._owners: dict[int, Tensor] = {}  # the sharded parameter of every whole one
        self._whole: dict[int, nn.Parameter] = {}  # by the identity of the sharded one
        self._versions: dict[int, int] = {}
        self._open = False
        for name, param in model.named_parameters():
            if is_sharded(param):
                _check(model, name, param, group)
                empty = torch.empty(param.shape, dtype=param.dtype, device=param.device)
                empty.untyped_storage().resize_(0)
                whole = self._whole[id(param)] = nn.Parameter(empty, requires_grad=param.requires_grad)
                self._owners[id(whole)] = param
        if self._whole:
            parts: Any = model.modules()
            for part in filter(_is_fully_sharded, parts):  # the outermost would stay whole after evaluations
                part.set_reshard_after_forward(reshard_after_forward=True, recurse=False)

    def __bool__(self) -> bool:
        return bool(self._whole)

    def owner(self, param: Tensor) -> Tensor:
        """The parameter of the model for which one stands here: the sharded one, or itself."""
        return self._owners.get(id(param), param)

    def check(self) -> None:
        """Refuse writes into gathered parameters, which would reach the gradients of other examples.

        Raises:
            UnsupportedCombinationError: if there was one.
        """
        if any(one._version != self._versions.get(id(one), one._version) for one in self._whole.values()):
            raise UnsupportedCombinationError(
                "a call of the model writes into its parameters",
                supported="models whose parameters only steps change",
            )

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """A context in which the model has whole parameters. All processes enter it together.

        Raises:
            UnsupportedCombinationError: if parameters were sharded since this was made.
        """
        late = [
            name
            for name, param in named_tensors(self._model)
            if is_sharded(param) and id(param) not in self._whole
        ]
        if late:
            raise UnsupportedCombinationError(
                f"parameters are sharded over processes since make_private ({', '.join(late[:3])})",
                supported="fully_shard before the optimizer is made, and then make_private",
            )
        if not self._whole or self._open:
            yield
            return
        held = [getattr(part, kind) for part in self._model.modules() for kind in _HOOKS]
        hooks = [dict(one) for one in held]
        places: list[tuple[dict[str, Any], str, Tensor]] = [
            (part._parameters, name, self.owner(param))  # whole still, if an interrupt left it so
            for part in self._model.modules()
            for name, param in part._parameters.items()
            if param is not None and id(self.owner(param)) in self._whole
        ]
        try:
            self._open = True
            for one in held:
                for key in [key for key, hook in one.items() if _is_of_sharding(hook)]:
                    del one[key]
            for whole in self._whole.values():
                self._fill(whole)
            for parameters, name, param in places:
                parameters[name] = self._whole[id(param)]
            yield
            self.check()
        finally:
            self._open = False
            for parameters, name, param in places:
                parameters[name] = param
            for one, before in zip(held, hooks, strict=True):
                one.clear()
                one.update(before)
            for whole in self._whole.values():
                whole.untyped_storage().resize_(0)

    @torch.no_grad()
    def _fill(self, whole: nn.Parameter) -> None:
        owner = self._owners[id(whole)]
        whole.untyped_storage().resize_(whole.numel() * whole.element_size())
        whole.copy_(owner.detach().full_tensor())  # type: ignore[attr-defined]  # a DTensor
        whole.requires_grad_(owner.requires_grad)
        self._versions[id(whole)] = whole._version


def _is_fully_sharded(part: nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(part).__mro__)


def _is_of_sharding(hook: Any) -> bool:
    return type(getattr(hook, "__self__", None)).__module__.startswith("torch.distributed.fsdp")


def _check(model: nn.Module, name: str, param: Any, group: Group) -> None:
    """Refuse parameters that are not divided by fully_shard between all processes, in full precision."""
    states = [part._get_fsdp_state() for part in model.modules() if _is_fully_sharded(part)]  # type: ignore[operator]  # FSDPModule's
    mesh, placements = param.device_mesh, param.placements
    ranks = sorted(dist.get_process_group_ranks(group or dist.group.WORLD))
    if not states or mesh.ndim != 1 or sorted(mesh.mesh.tolist()) != ranks or not placements[0].is_shard():
        raise UnsupportedCombinationError(
            f"parameters are sharded over processes otherwise than by fully_shard ({name}: {placements} on "
            f"{mesh})",
            supported="fully_shard over all processes that train together, without tensor parallelism or "
            "replicas; or PrivateOptimizer with sums that were clipped elsewhere, "
            "ClippedSum.from_grads(..., reduced=True)",
        )
    for state in states:
        if any(type(one.offload_policy).__name__ == "CPUOffloadPolicy" for one in state._fsdp_param_groups):
            raise UnsupportedCombinationError(
                "fully_shard with a CPUOffloadPolicy: gradients are computed where the parameters are",
                supported="fully_shard without offloading",
            )
        policy = state._mp_policy
        if policy.param_dtype not in (None, param.dtype) or policy.output_dtype is not None:
            raise UnsupportedCombinationError(
                "fully_shard with a MixedPrecisionPolicy, which applies to calls that gather layer by layer",
                supported="torch.autocast around model.backward, or weights in bfloat16",
            )
