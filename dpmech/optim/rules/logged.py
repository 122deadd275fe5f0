"""What the state of a noise-aware rule says of a run, for logs; computed from released gradients alone."""

from collections.abc import Callable

import torch

from dpmech.numerics import FloatArray
from dpmech.optim.rules.adam import AdamBC
from dpmech.optim.rules.base import phis_of
from dpmech.optim.rules.diagnostics import clamp_fraction, noise_share
from dpmech.optim.rules.muon import Muon


def logged_values(rule: torch.optim.Optimizer, ratios: Callable[[float], FloatArray]) -> dict[str, float]:
    """The noise share of an AdamBC or of a Muon, and the clamp fraction of an AdamBC; empty for others.

    It is post-processing of released gradients, so it has no privacy cost. Of an AdamBC it takes about 16
    bytes for each parameter while it is computed.

    Args:
        rule: the rule after a step; nothing is known before.
        ratios: gives `momentum_noise_ratios` of the run's strategy for a momentum; cached by the caller.

    Returns:
        "noise_share": for AdamBC rho as `noise_share` estimates it without the strategy; for Muon the
        expected square of the noise in the momenta over their square: about 1 for pure noise, and less with
        signal. "clamp_fraction": as `clamp_fraction`.
    """
    if isinstance(rule, AdamBC):
        if not any("step" in state for state in rule.state.values()):
            return {}
        noisy = any(phi > 0.0 for group in rule.param_groups for phi in phis_of(group))
        share = {"noise_share": noise_share(rule).rho} if noisy else {}
        return share | {"clamp_fraction": clamp_fraction(rule)}
    if isinstance(rule, Muon):
        return _of_muon(rule, ratios)
    return {}


def _of_muon(rule: Muon, ratios: Callable[[float], FloatArray]) -> dict[str, float]:
    noise = measured = 0.0
    for group in rule.param_groups:
        if not group["use_muon"]:
            continue
        for param, phi in zip(group["params"], phis_of(group), strict=True):
            state = rule.state.get(param, {})
            if "momentum_buffer" not in state:
                continue
            ratio = float(ratios(group["momentum"])[state["step"] - 1])
            noise += phi * ratio * param.numel()
            measured += float(state["momentum_buffer"].double().square().sum())
    return {"noise_share": noise / measured} if noise > 0.0 and measured > 0.0 else {}
