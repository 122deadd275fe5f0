r"""The random-matrix denoiser: shrinks private gradients of linear layers towards their low-rank part."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_real
from dpmech.optim.rules.base import check_flag, check_matrices, phis_of, stacked

# The paper's threshold: the top singular value must exceed the edge of pure noise by this factor.
THRESHOLD = 1.02


def denoise_matrices(
    matrices: Tensor, stddev: float | Tensor, *, threshold: float = THRESHOLD, norm_correction: bool = True
) -> Tensor:
    r"""Shrink the singular values of noisy matrices optimally, preserving their norms.

    With entrywise noise of standard deviation s, the singular values of pure noise reach about the edge
    s (sqrt m + sqrt n). A matrix whose largest singular value is below threshold times the edge is returned
    unchanged. In other matrices each y above the edge becomes sqrt((y^2 - s^2 (m + n))^2 - 4 m n s^4) / y,
    the Frobenius optimum for a low-rank signal; the rest become 0, and the matrix is rescaled to its old
    norm.

    The edge and the shrinkage are asymptotic: a top singular value of pure noise exceeds 1.02 edges in about
    0.8 % of 16 x 768 matrices, and the result can be worse than the input if the signal is barely above the
    edge.

    Args:
        matrices: shape (..., m, n), a floating-point dtype.
        stddev: s >= 0: a number, or a tensor of shape (...). It is sqrt(Phi_t).
        threshold: >= 1.
        norm_correction: whether to rescale, so that a better cosine in every layer implies a better cosine of
            the whole gradient.

    Returns:
        A tensor of the same shape and dtype. Computed in float64: one product and one
        eigendecomposition of min(m, n) x min(m, n) per matrix, batched.

    Raises:
        InvalidParameterError: on a bad argument.
        NumericalError: if an entry is not finite.

    References:
        spectral rmt.eq8_9, rmt.eq10, rmt.thmE1; Gavish and Donoho 2017.
    """
    check_matrices(matrices)
    gate = check_real("threshold", threshold, minimum=1.0)
    keep_norm = check_flag("norm_correction", norm_correction)
    scale = _deviations(stddev, matrices)
    tall = matrices.shape[-2] > matrices.shape[-1]
    wide = (matrices.mT if tall else matrices).double()
    rows, columns = wide.shape[-2:]
    # In units of the largest entry, whose square can neither overflow nor underflow.
    unit = wide.abs().amax(dim=(-2, -1))
    if not bool(torch.isfinite(unit).all()):
        raise NumericalError("a gradient to denoise contains a NaN or an infinity")
    safe = torch.where(unit > 0.0, unit, 1.0)
    wide = wide / safe[..., None, None]
    variance = ((scale / safe) ** 2)[..., None]
    squares, vectors = torch.linalg.eigh(wide @ wide.mT)
    edge_squared = variance * (math.sqrt(rows) + math.sqrt(columns)) ** 2
    active = (squares[..., -1:] >= gate**2 * edge_squared) & (variance > 0.0)
    # (a - b)(a + b) rather than a^2 - b^2: exactly 0 at the edge, and no cancellation above it.
    inner = squares - variance * (rows + columns)
    root = 2.0 * variance * math.sqrt(rows * columns)
    shrunk = torch.sqrt(((inner - root) * (inner + root)).clamp_min(0.0))
    factors = torch.where(
        squares > edge_squared, shrunk / squares.clamp_min(torch.finfo(torch.float64).tiny), 0.0
    )
    if keep_norm:
        before = torch.linalg.matrix_norm(wide)[..., None]
        after = torch.sqrt((factors**2 * squares.clamp_min(0.0)).sum(-1, keepdim=True))
        active = active & (after > 0.0)
        factors = factors * before / torch.where(active, after, 1.0)
    if not bool(active.any()):
        return matrices.clone()
    cleaned = (vectors * factors[..., None, :]) @ (vectors.mT @ wide) * safe[..., None, None]
    cleaned = (cleaned.mT if tall else cleaned).to(matrices.dtype)
    return torch.where(active[..., None], cleaned, matrices)


def attach_denoiser(
    optimizer: torch.optim.Optimizer,
    *,
    params: Iterable[Tensor] | None = None,
    threshold: float = THRESHOLD,
    norm_correction: bool = True,
) -> RemovableHandle:
    """Denoise the private gradients of an optimizer's matrices just before each of its steps.

    This post-processes released gradients, so it has no privacy cost; it works with any torch optimizer
    inside a PrivateOptimizer. The noise variance is read from `group["phi"]`, matrices of one
    shape are processed in one batch, and state dicts, schedulers and param groups are not changed.

    Args:
        optimizer: the inner optimizer, not the private wrapper: its gradients must already contain the noise.
        params: parameters to denoise; None is every parameter with exactly two dimensions. Exclude
            embeddings: their gradients are not a low-rank signal plus noise.
        threshold: see `denoise_matrices`.
        norm_correction: see `denoise_matrices`.

    Returns:
        A handle; `handle.remove()` detaches.

    Raises:
        InvalidParameterError: on a bad argument; at a step, if `group["phi"]` was never written, if the step
            is given a closure (which would overwrite the gradients), or on a gradient that is not dense.
        NumericalError: at a step, if a gradient is not finite.

    Examples:
        >>> import torch
        >>> layer = torch.nn.Linear(8, 4)
        >>> inner = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> handle = attach_denoiser(inner)

    References:
        spectral rmt.eq10.
    """
    if not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "steps_left"):
        raise InvalidParameterError(
            "optimizer", type(optimizer).__name__, "the inner torch optimizer of a PrivateOptimizer"
        )
    gate = check_real("threshold", threshold, minimum=1.0)
    keep_norm = check_flag("norm_correction", norm_correction)
    chosen = None if params is None else _chosen(params, optimizer)

    def hook(inner: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(value is not None for value in (*args[1:], *kwargs.values())):
            raise InvalidParameterError("closure", "a closure", "None: it would overwrite denoised gradients")
        with torch.no_grad():
            _denoise_gradients(inner, chosen, gate, keep_norm=keep_norm)

    return optimizer.register_step_pre_hook(hook)


def _chosen(params: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> frozenset[int]:
    """Identities of the chosen parameters; the optimizer keeps these parameters alive."""
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    chosen = list(params)
    for param in chosen:
        if id(param) not in held or param.ndim != 2:
            raise InvalidParameterError("params", tuple(param.shape), "matrices held by the optimizer")
    return frozenset(id(param) for param in chosen)


def _denoise_gradients(
    optimizer: torch.optim.Optimizer, chosen: frozenset[int] | None, gate: float, *, keep_norm: bool
) -> None:
    grads: list[Tensor] = []
    stddevs: list[float] = []
    for group in optimizer.param_groups:
        if "phi" not in group:
            raise InvalidParameterError("group['phi']", None, "written before each step, by PrivateOptimizer")
        for param, phi in zip(group["params"], phis_of(group), strict=True):
            if param.grad is None or param.ndim != 2 or phi == 0.0 or param.numel() == 0:
                continue
            if chosen is not None and id(param) not in chosen:
                continue
            if param.grad.layout != torch.strided:
                raise InvalidParameterError("gradient", param.grad.layout, "dense (torch.strided)")
            grads.append(param.grad)
            stddevs.append(math.sqrt(phi))
    for where, batch, tall in stacked(grads):
        stddev = torch.tensor([stddevs[i] for i in where], dtype=torch.float64, device=batch.device)
        cleaned = denoise_matrices(batch, stddev, threshold=gate, norm_correction=keep_norm)
        for i, clean in zip(where, cleaned.unbind(), strict=True):
            grads[i].copy_(clean.mT if tall[i] else clean)


def _deviations(stddev: float | Tensor, matrices: Tensor) -> Tensor:
    """Standard deviations in float64, with the batch shape of the matrices."""
    if not isinstance(stddev, Tensor):
        value = check_real("stddev", stddev, minimum=0.0)
        return torch.full(matrices.shape[:-2], value, dtype=torch.float64, device=matrices.device)
    values = stddev.to(device=matrices.device, dtype=torch.float64)
    if values.shape != matrices.shape[:-2] or not bool((torch.isfinite(values) & (values >= 0.0)).all()):
        raise InvalidParameterError(
            "stddev", stddev, f"a number >= 0, or finite values >= 0 of shape {tuple(matrices.shape[:-2])}"
        )
    return values
