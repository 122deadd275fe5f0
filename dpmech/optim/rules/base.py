"""The base class of update rules: checked gradients, noise variance Phi, bit-exact resume. And DP-SignSGD."""

import abc
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real

# Checks a hyperparameter, given its name and value.
Check: TypeAlias = Callable[[str, Any], object]
not_negative = functools.partial(check_real, minimum=0.0)
below_one = functools.partial(check_real, minimum=0.0, maximum=1.0, open_maximum=True)


@dataclasses.dataclass(frozen=True)
class Members:
    """The parameters of one group that have a gradient, with their gradients, noise variances and states.

    Attributes:
        params: the parameters.
        grads: their gradients in the state's dtype, negated if the group maximizes.
        phis: per-coordinate noise variance of this step's gradient, one float for each parameter.
        states: the optimizer's state of each parameter.
    """

    params: list[Tensor]
    grads: list[Tensor]
    phis: list[float]
    states: list[dict[str, Any]]


class Rule(torch.optim.Optimizer, abc.ABC):
    """A torch optimizer that can use the variance of the noise in its gradients.

    `group["phi"]` is that variance, per coordinate of the mean gradient: a float, or a list with one float
    for each parameter. The code that adds the noise writes it before each step; 0.0 means no noise. State is
    kept in float32, or in the parameter's dtype if that is wider, and `load_state_dict` preserves this
    (torch casts state to the parameter's dtype, which loses bits in bfloat16 runs).

    Raises:
        InvalidParameterError: on a bad hyperparameter, a sparse or complex gradient, or a bad `phi`.
    """

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, {"maximize": False, **defaults, "phi": 0.0})

    # How each hyperparameter of a rule is checked, in addition to those of all rules.
    _checks: ClassVar[Mapping[str, Check]] = {}

    def _check_group(self, group: Mapping[str, Any]) -> None:
        """Raise InvalidParameterError unless every hyperparameter of a group is in range."""
        common: dict[str, Check] = {"lr": not_negative, "weight_decay": not_negative, "maximize": check_flag}
        for name, check in (common | dict(self._checks)).items():
            check(name, group[name])

    @abc.abstractmethod
    def _update(self, group: dict[str, Any], members: Members) -> None:
        """Update the parameters of one group."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, its hyperparameters checked."""
        self._check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch's stubs have two overloads for it
        """Perform one update; returns the closure's result, or None without a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                members = self._members(group)
                if members.params:
                    self._update(group, members)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the output of `state_dict`; the state is copied, and every bit of it is preserved."""
        final: dict[str, Any] = {}
        # Registered last, so that it sees the dictionary as modified by the caller's hooks.
        handle = self.register_load_state_dict_pre_hook(lambda _, loaded: final.update(loaded))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        saved = itertools.chain.from_iterable(group["params"] for group in final["param_groups"])
        mine = itertools.chain.from_iterable(group["params"] for group in self.param_groups)
        for index, param in zip(saved, mine, strict=True):
            for key, value in final["state"].get(index, {}).items():
                if isinstance(value, Tensor):
                    self.state[param][key] = value.detach().to(
                        device=param.device, dtype=state_dtype(param), copy=True
                    )

    def _members(self, group: dict[str, Any]) -> Members:
        members = Members([], [], [], [])
        for param, phi in zip(group["params"], phis_of(group), strict=True):
            if param.grad is None:
                continue
            if param.grad.layout != torch.strided:
                raise InvalidParameterError("gradient", param.grad.layout, "dense (torch.strided)")
            if not param.is_floating_point():
                raise InvalidParameterError("parameter dtype", param.dtype, "a real floating-point dtype")
            grad = param.grad.to(state_dtype(param))
            members.params.append(param)
            members.grads.append(-grad if group["maximize"] else grad)
            members.phis.append(phi)
            members.states.append(self.state[param])
        return members


def state_dtype(param: Tensor) -> torch.dtype:
    """float32, or the parameter's dtype if that is wider."""
    return torch.promote_types(param.dtype, torch.float32)


def phis_of(group: Mapping[str, Any]) -> list[float]:
    """`group["phi"]` as one checked float for each parameter.

    Raises:
        InvalidParameterError: unless it is finite and >= 0, and a list has the group's length.
    """
    phi, count = group["phi"], len(group["params"])
    if isinstance(phi, Sequence):
        if len(phi) != count:
            raise InvalidParameterError("phi", phi, f"a float, or a list of {count} floats")
        return [check_real("phi", value, minimum=0.0) for value in phi]
    return [check_real("phi", phi, minimum=0.0)] * count


def stacked(matrices: Sequence[Tensor]) -> Iterator[tuple[list[int], Tensor, dict[int, bool]]]:
    """Matrices of one shape or its transpose, in one wide batch: (indices, batch, which are transposed)."""
    by_shape: dict[tuple[int, int, torch.dtype, torch.device], list[int]] = {}
    for i, matrix in enumerate(matrices):
        key = (min(matrix.shape), max(matrix.shape), matrix.dtype, matrix.device)
        by_shape.setdefault(key, []).append(i)
    for (short, *_), where in by_shape.items():
        tall = {i: matrices[i].shape[0] != short for i in where}
        yield where, torch.stack([matrices[i].mT if tall[i] else matrices[i] for i in where]), tall


def check_matrices(matrices: Tensor) -> None:
    """Raise InvalidParameterError unless it is a non-empty floating-point tensor of matrices."""
    if matrices.ndim < 2 or not matrices.is_floating_point() or matrices.numel() == 0:
        raise InvalidParameterError(
            "matrices", (tuple(matrices.shape), matrices.dtype), "non-empty floating-point (..., m, n)"
        )


def zeros_like_state(param: Tensor) -> Tensor:
    """A zero tensor for the state of a parameter."""
    return torch.zeros_like(param, dtype=state_dtype(param), memory_format=torch.preserve_format)


def apply_decay(params: list[Tensor], lr: float, weight_decay: float) -> None:
    """Decoupled weight decay: multiply every parameter by 1 - lr weight_decay."""
    if weight_decay != 0.0:
        torch._foreach_mul_(params, 1.0 - lr * weight_decay)


def check_flag(name: str, value: object) -> bool:
    """Return `value` if it is a bool."""
    if not isinstance(value, bool):
        raise InvalidParameterError(name, value, "True or False")
    return value


def check_betas(name: str, value: object) -> tuple[float, float]:
    """Return `value` as two floats in [0, 1)."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise InvalidParameterError(name, value, "two numbers in [0, 1)")
    first, second = (below_one(f"{name}[{i}]", beta) for i, beta in enumerate(value))
    return first, second


class SignSGD(Rule):
    """p <- p - lr sign(m), where m is the private gradient or its exponential average.

    Every coordinate moves by exactly lr (0 where m is 0), so noise changes directions but never the size of
    a step. A NaN or infinite gradient makes the coordinate NaN; torch's `sign` alone would turn NaN into 0.
    AdamBC with betas (0, 0), floor = eps = 0 and `subtract_noise=False` takes the same steps.

    Args:
        params: parameters or groups, as for any torch optimizer.
        lr: learning rate, >= 0.
        momentum: constant of the average, in [0, 1); 0 is DP-SignSGD, a larger value is Signum.
        weight_decay: decoupled, >= 0.
        maximize: whether to ascend.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        sde sde.def3.3; Bernstein et al. 2018 (Signum).
    """

    _checks: ClassVar[Mapping[str, Check]] = {"momentum": below_one}

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize}
        )

    def _update(self, group: dict[str, Any], members: Members) -> None:
        directions = members.grads
        if group["momentum"] > 0.0:
            for param, state in zip(members.params, members.states, strict=True):
                if "exp_avg" not in state:
                    state["exp_avg"] = zeros_like_state(param)
            directions = [state["exp_avg"] for state in members.states]
            torch._foreach_lerp_(directions, members.grads, 1.0 - group["momentum"])
        apply_decay(members.params, group["lr"], group["weight_decay"])
        updates = torch._foreach_sign(directions)
        # sign(NaN) is 0 in torch; adding 0 times the direction restores the NaN.
        torch._foreach_add_(updates, torch._foreach_mul(directions, 0.0))
        torch._foreach_add_(members.params, updates, alpha=-group["lr"])
