"""DP-SignSGD: the sign of the private gradient, or of its average."""

from collections.abc import Mapping
from typing import Any

import torch

from dpmech.guards import check_real
from dpmech.optim.rules.base import Members, Rule, apply_decay, check_common, zeros_like_state

__all__ = ["SignSGD"]


class SignSGD(Rule):
    """p <- p - lr sign(m), with m the private gradient, or an exponential average of it.

    Every coordinate moves by exactly lr (0 where m is 0), so noise changes directions but never the size of
    a step. A NaN or infinite gradient makes the coordinate NaN; torch's `sign` alone would turn NaN into 0.
    AdamBC with betas (0, 0), floor = eps = 0 and `subtract_noise=False` makes the same steps.

    Args:
        params: parameters or groups, as for any torch optimizer.
        lr: learning rate, >= 0.
        momentum: constant of the average, in [0, 1); 0 is DP-SignSGD, more is Signum.
        weight_decay: decoupled, >= 0.
        maximize: whether to ascend.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        sde sde.def3.3; Bernstein et al. 2018 (Signum).
    """

    def __init__(
        self,
        params: Any,  # noqa: ANN401 - torch accepts several forms
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize},
        )

    def _check_group(self, group: Mapping[str, Any]) -> None:
        check_common(group)
        check_real("momentum", group["momentum"], minimum=0.0, maximum=1.0, open_maximum=True)

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
        # sign(NaN) is 0 in torch; adding 0 times the direction brings it back.
        torch._foreach_add_(updates, torch._foreach_mul(directions, 0.0))
        torch._foreach_add_(members.params, updates, alpha=-group["lr"])
