"""Adam for private gradients: the noise variance is subtracted from the second moment, or only floored."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.rules.base import (
    Check,
    Members,
    Rule,
    apply_decay,
    below_one,
    check_betas,
    check_flag,
    not_negative,
    zeros_like_state,
)


class AdamBC(Rule):
    r"""Adam with the variance of the privacy noise subtracted from the second moment.

    With bias-corrected moments m and v of the private gradients and the bias-corrected average Phi of the
    noise variances Phi_t of the steps so far (same beta_2) one step is

        p <- p - lr m / (sqrt(max(v - Phi, floor)) + eps).

    E[v] = v_true + Phi for gradients that do not depend on past noise, correlated noise included; so the
    corrected second moment is unbiased except where the floor applies. In training with correlated noise
    the gradient depends on past noise, which leaves a cross term: on a quadratic of curvature h under SGD
    with LambdaCGD noise, 2 lr h lam (sigma clip_norm / batch_size)^2 per step.

    Without noise (phi = 0) and with floor = 0 it is torch's Adam, or AdamW with the default decay.

    `subtract_noise=False` with a floor is the floor-only control, with `floor=0.0` DP-Adam (DP-AdamW), and
    with `low_pass` in addition DP-Adam with a low-pass first moment.

    Args:
        params: parameters or groups, as for any torch optimizer.
        lr: learning rate, >= 0.
        betas: averaging constants of the first and the second moment, each in [0, 1).
        eps: added to the root, >= 0, in units of the gradient.
        floor: smallest corrected second moment, >= 0, in units of the gradient squared. Where the noise
            dominates, about half of the coordinates fall below it and move by lr m / sqrt(floor): it acts
            as a learning rate, so choose it near Phi. The default is the smallest in Table 1 of Wang (2026).
        weight_decay: >= 0.
        decoupled_weight_decay: whether parameters shrink by lr weight_decay (AdamW, the default), or
            weight_decay times the parameter is added to the gradient (Adam). That term contains no noise.
        subtract_noise: whether Phi is subtracted.
        low_pass: constant in [0, 1) of a second average over m, also bias-corrected; 0 disables it.
        maximize: whether to ascend.

    Raises:
        InvalidParameterError: on a bad argument; at a step, if noise is subtracted with floor = eps = 0,
            which would divide by zero.

    References:
        noise_share ov.thm1, ov.thm3.i, ov.thm3.rem.floor; Tang et al. 2024 (DP-AdamBC).
    """

    _checks: ClassVar[Mapping[str, Check]] = {
        "betas": check_betas,
        "eps": not_negative,
        "floor": not_negative,
        "low_pass": below_one,
        "subtract_noise": check_flag,
        "decoupled_weight_decay": check_flag,
    }

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        floor: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = True,
        subtract_noise: bool = True,
        low_pass: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "floor": floor,
                "weight_decay": weight_decay,
                "decoupled_weight_decay": decoupled_weight_decay,
                "subtract_noise": subtract_noise,
                "low_pass": low_pass,
                "maximize": maximize,
            },
        )

    def _update(self, group: dict[str, Any], members: Members) -> None:
        if group["decoupled_weight_decay"]:
            apply_decay(members.params, group["lr"], group["weight_decay"])
        elif group["weight_decay"] != 0.0:
            decayed = torch._foreach_add(members.grads, members.params, alpha=group["weight_decay"])
            members = dataclasses.replace(members, grads=list(decayed))
        names = ("lr", "betas", "eps", "floor", "subtract_noise", "low_pass")
        adam_step(members, **{name: group[name] for name in names})


def adam_step(
    members: Members,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    floor: float,
    subtract_noise: bool,
    low_pass: float = 0.0,
) -> None:
    """One update of the parameters and their states in place; see AdamBC."""
    states, (beta1, beta2) = members.states, betas
    for param, state, phi in zip(members.params, states, members.phis, strict=True):
        if "step" not in state:
            state["step"] = 0
            state["exp_avg"] = zeros_like_state(param)
            state["exp_avg_sq"] = zeros_like_state(param)
            state["phi_average"] = 0.0
            if low_pass > 0.0:
                state["low_pass"] = zeros_like_state(param)
        state["step"] += 1
        state["phi_average"] = beta2 * state["phi_average"] + (1.0 - beta2) * phi
    first = [state["exp_avg"] for state in states]
    second = [state["exp_avg_sq"] for state in states]
    torch._foreach_lerp_(first, members.grads, 1.0 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, members.grads, members.grads, 1.0 - beta2)

    if subtract_noise and floor == 0.0 and eps == 0.0 and any(state["phi_average"] > 0.0 for state in states):
        raise InvalidParameterError("(floor, eps)", (floor, eps), "not both zero where noise is subtracted")
    # Everything is scaled by the root of the debiasing factor, undone in the step's scale: fewer passes.
    debias = [1.0 - beta2 ** state["step"] for state in states]
    roots = _without_noise(states, subtract_noise=subtract_noise)
    # At least the dtype's smallest normal number: a coordinate that never had a gradient gives 0 / tiny = 0.
    floors = [
        max(floor * part, torch.finfo(root.dtype).tiny) for part, root in zip(debias, roots, strict=True)
    ]
    torch._foreach_clamp_min_(roots, floors)
    torch._foreach_sqrt_(roots)
    torch._foreach_add_(roots, [eps * math.sqrt(part) for part in debias])

    first_debias = [1.0 - beta1 ** state["step"] for state in states]
    if low_pass > 0.0:
        smooth = [state["low_pass"] for state in states]
        torch._foreach_lerp_(smooth, torch._foreach_div(first, first_debias), 1.0 - low_pass)
        first = smooth
        first_debias = [1.0 - low_pass ** state["step"] for state in states]
    scales = [-lr * math.sqrt(part) / factor for part, factor in zip(debias, first_debias, strict=True)]
    torch._foreach_addcdiv_(members.params, first, roots, scales)


def _without_noise(states: list[dict[str, Any]], *, subtract_noise: bool) -> list[Tensor]:
    """Second moments before debiasing, minus the average of Phi if requested; new tensors."""
    shares = [state["phi_average"] if subtract_noise else 0.0 for state in states]
    return list(torch._foreach_sub([state["exp_avg_sq"] for state in states], shares))


def corrected_second_moments(
    states: list[dict[str, Any]], beta2: float, *, subtract_noise: bool
) -> list[Tensor]:
    """Bias-corrected second moments, minus the bias-corrected Phi average if requested; before any floor."""
    moments = _without_noise(states, subtract_noise=subtract_noise)
    torch._foreach_div_(moments, [1.0 - beta2 ** state["step"] for state in states])
    return moments
