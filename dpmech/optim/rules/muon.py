"""DP-Muon and DP-MuonBC: orthogonalized private momentum, and its bias correction by antithetic probes."""

import enum
import functools
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dpmech.exceptions import HorizonError, InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer, check_real, check_vector
from dpmech.optim.deferred import sent
from dpmech.optim.rules.adam import adam_step
from dpmech.optim.rules.base import (
    Check,
    Members,
    Rule,
    apply_decay,
    below_one,
    check_betas,
    check_flag,
    check_matrices,
    not_negative,
    stacked,
    zeros_like_state,
)

# a + b l + c l^2 with Jordan's (3.4445, -4.7750, 2.0315), expanded in powers of (1 - l).
QUINTIC_COEFS: tuple[float, float, float] = (3.4445 - 4.7750 + 2.0315, 4.7750 - 2 * 2.0315, 2.0315)
MAXIMUM_DEGREE = 12
MAXIMUM_STEPS = 100


def taylor_coefs(kappa: int) -> tuple[float, ...]:
    r"""Coefficients of p_kappa, the degree-kappa Taylor polynomial of l^(-1/2) at 1, in powers of (1 - l).

    p_kappa(l) = sum over s <= kappa of C(2s, s) / 4^s (1 - l)^s. On [0, 1] it satisfies
    0 <= 1 - l p_kappa(l)^2 <= (1 - l)^(kappa + 1), so no singular value exceeds 1.

    Args:
        kappa: degree, in [1, 12].

    Raises:
        InvalidParameterError: if the degree is out of range.

    Examples:
        >>> taylor_coefs(2)
        (1.0, 0.5, 0.375)

    References:
        muon muon.pkappa.
    """
    degree = check_integer("kappa", kappa, minimum=1, maximum=MAXIMUM_DEGREE)
    return tuple(math.comb(2 * s, s) / 4.0**s for s in range(degree + 1))


def orthogonalize(
    matrices: Tensor,
    *,
    coefs: Sequence[float] = (1.0, 0.5, 0.375),
    steps: int = 5,
    shrink_only: bool = False,
    compute_dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Approximate polar factors of a batch of matrices: `steps` iterations of Y <- p(Y Y^T) Y.

    The iteration starts at each matrix divided by its Frobenius norm, transposed if tall. With
    `taylor_coefs(kappa)` the operator norm stays at most 1 and the distance to the polar factor U V^T is at
    most 1 - sqrt(1 - (1 - x^2)^((kappa + 1)^steps)) in operator norm, x the smallest non-zero singular value
    of the start. `QUINTIC_COEFS`, Muon's usual polynomial, makes small singular values grow faster, but
    exceeds 1 and does not converge; this bound does not hold for it.

    Args:
        matrices: shape (..., m, n), a floating-point dtype; a zero matrix gives zero.
        coefs: coefficients of p in powers of (1 - l), at least two.
        steps: in [0, 100].
        shrink_only: divide by max(1, Frobenius norm), as in the paper's Algorithm 1. The result then
            depends on the scale of the gradient, and small matrices are hardly orthogonalized.
        compute_dtype: dtype of the products, such as torch.bfloat16; None is the dtype of the matrices.

    Returns:
        A tensor of the same shape and dtype.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        muon muon.lem3_3, muon.scale.
    """
    check_matrices(matrices)
    series = check_coefs(coefs)
    count = check_integer("steps", steps, minimum=0, maximum=MAXIMUM_STEPS)
    tall = matrices.shape[-2] > matrices.shape[-1]
    wide = matrices.mT if tall else matrices
    start = _normalized(
        wide.reshape(-1, *wide.shape[-2:]), shrink_only=check_flag("shrink_only", shrink_only)
    )
    y = start if compute_dtype is None else start.to(compute_dtype)
    identity = torch.eye(y.shape[-2], dtype=y.dtype, device=y.device).expand(len(y), -1, -1)
    for _ in range(count):
        rest = torch.baddbmm(identity, y, y.mT, alpha=-1.0)
        # Horner's scheme in 1 - l, which is small once the iteration has converged.
        factor = series[-1] * rest
        for coef in series[-2:0:-1]:
            factor = torch.baddbmm(rest, rest, factor, beta=coef)
        y = torch.baddbmm(y, factor, y, beta=series[0])
    result = y.to(matrices.dtype).reshape(wide.shape)
    return result.mT if tall else result


def check_coefs(value: object) -> tuple[float, ...]:
    """Return `value` as at least two finite floats."""
    accepted = f"2 to {MAXIMUM_DEGREE + 1} numbers, such as taylor_coefs(2) or QUINTIC_COEFS"
    if isinstance(value, str) or not isinstance(value, Sequence) or not 2 <= len(value) <= MAXIMUM_DEGREE + 1:
        raise InvalidParameterError("coefs", value, accepted)
    return tuple(check_real("coefs", coef) for coef in value)


def _normalized(batch: Tensor, *, shrink_only: bool) -> Tensor:
    if shrink_only:
        norms: Tensor = torch.linalg.matrix_norm(batch, keepdim=True)
        return batch / norms.clamp_min(1.0)
    # By the largest entry first: squares of tiny entries would underflow in the norm.
    tiny = torch.finfo(batch.dtype).tiny
    scaled = batch / batch.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(tiny)
    norms = torch.linalg.matrix_norm(scaled, keepdim=True)
    return scaled / norms.clamp_min(tiny)


# Phi counts as constant within this tolerance: it comes from the same float64 arithmetic at every step.
CONSTANT_RTOL = 1e-9


class MuonScale(enum.Enum):
    """Factor that multiplies an orthogonalized update of an m x n parameter."""

    NONE = "none"
    """1, as in the paper."""
    RECTANGULAR = "rectangular"
    """sqrt(max(1, m / n)), the default of torch.optim.Muon."""
    MATCH_RMS = "match_rms"
    """0.2 sqrt(max(m, n)), for updates of about the size of Adam's."""

    def factor(self, rows: int, columns: int) -> float:
        """Return the factor for a shape."""
        if self is MuonScale.RECTANGULAR:
            return math.sqrt(max(1.0, rows / columns))
        return 0.2 * math.sqrt(max(rows, columns)) if self is MuonScale.MATCH_RMS else 1.0


def _check_compute_dtype(name: str, value: object) -> None:
    if value is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise InvalidParameterError(name, value, "a floating-point dtype or None")


def _check_scale(name: str, value: object) -> None:
    if value not in {member.value for member in MuonScale}:
        raise InvalidParameterError(name, value, "a MuonScale")


class Muon(Rule):
    r"""Muon on private gradients: M <- momentum M + g, then p <- p - lr scale Q(M).

    Q is `orthogonalize`. Matrices of one shape (or its transpose) are processed in one batch. Tensors with
    more than two dimensions are treated as matrices (first dimension) x (all others). Scalars and vectors are
    updated by Adam. Each group is split accordingly into one with `use_muon=True` and one with
    `use_muon=False`, so `param_groups` can be longer than the list passed in; set `use_muon` to decide for a
    group explicitly (False is advised for embeddings and output layers).

    **DP-MuonBC** (`probes` > 0). Q is nonlinear, so noise of standard deviation rho in M biases its mean by
    rho^2 / 2 times the Laplacian of Q. Each step samples `probes` Gaussian matrices U and takes
    2 Q(M) - mean of (Q(M + rho U) + Q(M - rho U)) / 2, whose bias is -rho^4 / 4 times the bi-Laplacian, at a
    fixed clipped path and where Q is smooth. Probes are independent of the data, so they have no privacy cost
    and their seed need not be secret. A step costs 1 + 2 probes orthogonalizations.

    rho^2 is `noise_ratios[t]` times Phi_t (see `momentum_noise_ratios`, required for correlated noise).
    Without ratios the noise is assumed to be independent between steps; as a check, a Phi that changes during
    the run is refused. Correlated noise nearly always changes Phi by its second step.

    Args:
        params: parameters or groups, as for any torch optimizer.
        lr: learning rate of the matrices, >= 0.
        momentum: in [0, 1).
        nesterov: orthogonalize g + momentum M instead of M.
        coefs: Newton-Schulz polynomial: `taylor_coefs(kappa)` (the paper's, with a bound) or `QUINTIC_COEFS`.
        steps: Newton-Schulz steps, in [0, 100].
        scale: a MuonScale.
        shrink_only: see `orthogonalize`; by default matrices are normalized, and the scale of g has no
            effect.
        weight_decay: decoupled, >= 0, for all tensors.
        probes: number of antithetic pairs per step; 0 is DP-Muon.
        probe_seed: integer in [0, 2^63); None generates one. It is stored in the state dict, so that a
            resumed run samples the same probes.
        noise_ratios: one positive number for each step, or None.
        compute_dtype: of the matrix products, such as torch.bfloat16; None is float32 (float64 for float64).
        aux_lr: learning rate of Adam on the other tensors; None is `lr`.
        aux_betas: betas of that Adam.
        aux_eps: eps of that Adam.
        aux_subtract_noise: whether that Adam subtracts the noise variance, as `AdamBC` does.
        aux_floor: smallest second moment of that Adam, as for `AdamBC`; > 0 if noise is subtracted and
            `aux_eps` is 0.
        maximize: whether to ascend.

    Raises:
        InvalidParameterError: on a bad argument.
        UnsupportedCombinationError: at a step, if Phi changed and `noise_ratios` is None.
        HorizonError: at a step beyond the length of `noise_ratios`.

    References:
        muon muon.alg1, muon.thm4_1, muon.lemC1.
    """

    _checks: ClassVar[Mapping[str, Check]] = {
        "momentum": below_one,
        "nesterov": check_flag,
        "shrink_only": check_flag,
        "coefs": lambda _, coefs: check_coefs(coefs),
        "steps": functools.partial(check_integer, minimum=0, maximum=MAXIMUM_STEPS),
        "probes": functools.partial(check_integer, minimum=0),
        "probe_seed": functools.partial(check_integer, minimum=0, maximum=2**63 - 1),
        "aux_lr": lambda name, rate: rate is None or not_negative(name, rate),
        "aux_betas": check_betas,
        "aux_eps": not_negative,
        "aux_subtract_noise": check_flag,
        "aux_floor": not_negative,
        "compute_dtype": _check_compute_dtype,
        "scale": _check_scale,
    }

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        nesterov: bool = False,
        coefs: Sequence[float] | None = None,
        steps: int = 5,
        scale: MuonScale = MuonScale.NONE,
        shrink_only: bool = False,
        weight_decay: float = 0.0,
        probes: int = 0,
        probe_seed: int | None = None,
        noise_ratios: Sequence[float] | np.ndarray | None = None,
        compute_dtype: torch.dtype | None = None,
        aux_lr: float | None = None,
        aux_betas: tuple[float, float] = (0.9, 0.999),
        aux_eps: float = 1e-8,
        aux_subtract_noise: bool = False,
        aux_floor: float = 0.0,
        maximize: bool = False,
    ) -> None:
        if not isinstance(scale, MuonScale):
            raise InvalidParameterError("scale", scale, "a MuonScale")
        ratios = None if noise_ratios is None else _checked_ratios(noise_ratios)
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "nesterov": nesterov,
                "coefs": taylor_coefs(2) if coefs is None else check_coefs(coefs),
                "steps": steps,
                "scale": scale.value,
                "shrink_only": shrink_only,
                "weight_decay": weight_decay,
                "probes": probes,
                "probe_seed": secrets.randbits(63) if probe_seed is None else probe_seed,
                "probe_calls": 0,
                "noise_ratios": ratios,
                "compute_dtype": compute_dtype,
                "aux_lr": aux_lr,
                "aux_betas": aux_betas,
                "aux_eps": aux_eps,
                "aux_subtract_noise": aux_subtract_noise,
                "aux_floor": aux_floor,
                "maximize": maximize,
            },
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, split into matrices and other tensors unless it sets `use_muon`."""
        group = dict(param_group)
        members = group["params"]
        if isinstance(members, Tensor):
            members = [members]
        elif isinstance(members, set):
            raise InvalidParameterError("params", "a set", "an ordered collection: state goes by position")
        members = list(members)
        group["params"] = members
        # Plain data, so that torch.load(weights_only=True) accepts the state dict.
        if isinstance(group.get("scale"), MuonScale):
            group["scale"] = group["scale"].value
        if group.get("noise_ratios") is not None:
            group["noise_ratios"] = _checked_ratios(group["noise_ratios"])
        if "use_muon" in group:
            check_flag("use_muon", group["use_muon"])
            vectors = [entry for entry in members if not _is_matrix(entry)]
            if group["use_muon"] and vectors:
                raise InvalidParameterError(
                    "use_muon", group["use_muon"], "False for a group with vectors or scalars"
                )
            super().add_param_group(group)
            return
        matrices = [entry for entry in members if _is_matrix(entry)]
        vectors = [entry for entry in members if not _is_matrix(entry)]
        if matrices or not vectors:
            super().add_param_group({**group, "params": matrices or members, "use_muon": True})
        if vectors:
            aux_lr = group.get("aux_lr", self.defaults["aux_lr"])
            rate = group.get("lr", self.defaults["lr"]) if aux_lr is None else aux_lr
            super().add_param_group({**group, "params": vectors, "use_muon": False, "lr": rate})

    def _update(self, group: dict[str, Any], members: Members) -> None:
        apply_decay(members.params, group["lr"], group["weight_decay"])
        if not group["use_muon"]:
            adam_step(
                members,
                lr=group["lr"],
                betas=group["aux_betas"],
                eps=group["aux_eps"],
                floor=group["aux_floor"],
                subtract_noise=group["aux_subtract_noise"],
            )
            return
        directions = self._directions(group, members)
        scale = MuonScale(group["scale"])
        updates: list[Tensor] = list(members.params)
        for where, batch, tall in stacked([one.flatten(1) for one in directions]):
            deviations = [self._deviation(group, members, i) for i in where] if group["probes"] else None
            outputs = self._orthogonalized(group, batch, deviations, where)
            for i, output in zip(where, outputs.unbind(), strict=True):
                updates[i] = (output.mT if tall[i] else output).reshape(members.params[i].shape)
        rates = [-group["lr"] * scale.factor(*param.flatten(1).shape) for param in members.params]
        torch._foreach_add_(members.params, torch._foreach_mul(updates, rates))
        group["probe_calls"] += 1

    def _directions(self, group: dict[str, Any], members: Members) -> list[Tensor]:
        for param, state, phi in zip(members.params, members.states, members.phis, strict=True):
            if "step" not in state:
                state["step"] = 0
                state["momentum_buffer"] = zeros_like_state(param)
                state["phi"] = phi
            state["step"] += 1
        buffers = [state["momentum_buffer"] for state in members.states]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, members.grads)
        if not group["nesterov"]:
            return buffers
        return list(torch._foreach_add(members.grads, buffers, alpha=group["momentum"]))

    def _deviation(self, group: dict[str, Any], members: Members, i: int) -> float:
        """rho: standard deviation of the noise in direction i."""
        state, phi = members.states[i], members.phis[i]
        step, ratios = state["step"], group["noise_ratios"]
        if ratios is not None:
            if step > len(ratios):
                raise HorizonError(step - 1, len(ratios))
            return math.sqrt(phi * ratios[step - 1])
        if not math.isclose(phi, state["phi"], rel_tol=CONSTANT_RTOL):
            raise UnsupportedCombinationError(
                f"the noise variance changed from {state['phi']:.6g} to {phi:.6g}, so the noise is not "
                "independent and identical at every step, as probes without noise_ratios assume",
                supported="Muon(noise_ratios=momentum_noise_ratios(strategy, momentum)) if the noise is "
                "correlated; if the clip norm changes (AdaptiveClip), a fixed clip norm or probes=0",
            )
        beta = group["momentum"]
        ratio = _independent_ratio(beta, step)
        if group["nesterov"]:
            ratio = (1.0 + beta) ** 2 + beta**4 * (_independent_ratio(beta, step - 1) if step > 1 else 0.0)
        return math.sqrt(phi * ratio)

    def _orthogonalized(
        self, group: dict[str, Any], batch: Tensor, deviations: list[float] | None, where: list[int]
    ) -> Tensor:
        def output(matrices: Tensor) -> Tensor:
            return orthogonalize(
                matrices,
                coefs=group["coefs"],
                steps=group["steps"],
                shrink_only=group["shrink_only"],
                compute_dtype=group["compute_dtype"],
            )

        if deviations is None or not any(deviations):
            return output(batch)
        # The group's index separates the groups of a run, the last entry the batches of a group.
        place = next(i for i, other in enumerate(self.param_groups) if other is group)
        entropy = [group["probe_seed"], place, group["probe_calls"], where[0]]
        seed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))
        generator = torch.Generator(device=batch.device).manual_seed(seed)
        rho = sent(torch.tensor(deviations, dtype=batch.dtype), batch.device)[:, None, None]
        pairs = (
            rho * torch.randn(batch.shape, generator=generator, dtype=batch.dtype, device=batch.device)
            for _ in range(group["probes"])
        )
        return extrapolated(output, batch, pairs)


def extrapolated(output: Callable[[Tensor], Tensor], batch: Tensor, probes: Iterable[Tensor]) -> Tensor:
    """2 output(batch) - mean over probes U of (output(batch + U) + output(batch - U)) / 2.

    Args:
        output: a map from batches of matrices to batches of the same shape.
        batch: shape (k, m, n).
        probes: at least one, each with the shape of the batch.
    """
    smoothed, count = torch.zeros_like(batch), 0
    for probe in probes:
        smoothed += output(batch + probe) + output(batch - probe)
        count += 1
    corrected: Tensor = 2.0 * output(batch) - smoothed / (2.0 * count)
    return corrected


def _independent_ratio(beta: float, step: int) -> float:
    """Variance of a momentum buffer after `step` unit-variance independent terms."""
    return (1.0 - beta ** (2 * step)) / (1.0 - beta**2)


def _checked_ratios(value: Any) -> list[float]:
    ratios: list[float] = check_vector("noise_ratios", value).tolist()
    for ratio in ratios:
        check_real("noise_ratios", ratio, minimum=0.0, open_minimum=True)
    return ratios


def _is_matrix(entry: Tensor | tuple[str, Tensor]) -> bool:
    """Whether a parameter, or a (name, parameter) pair, has two dimensions or more."""
    return (entry[1] if isinstance(entry, tuple) else entry).ndim >= 2
