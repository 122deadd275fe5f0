r"""Newton-Schulz orthogonalization of batches of matrices, without a singular value decomposition."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.optim.rules.base import check_flag

__all__ = ["QUINTIC_COEFS", "orthogonalize", "taylor_coefs"]

# a + b l + c l^2 with Jordan's (3.4445, -4.7750, 2.0315), in powers of (1 - l).
QUINTIC_COEFS: tuple[float, float, float] = (3.4445 - 4.7750 + 2.0315, 4.7750 - 2 * 2.0315, 2.0315)
MAXIMUM_DEGREE = 12
MAXIMUM_STEPS = 100


def taylor_coefs(kappa: int) -> tuple[float, ...]:
    r"""Coefficients of p_kappa, the degree-kappa Taylor polynomial of l^(-1/2) at 1, in powers of (1 - l).

    p_kappa(l) = sum over s <= kappa of C(2s, s) / 4^s (1 - l)^s. On [0, 1] it satisfies
    0 <= 1 - l p_kappa(l)^2 <= (1 - l)^(kappa + 1), so no singular value ever passes 1.

    Args:
        kappa: degree, in [1, 12].

    Raises:
        InvalidParameterError: on a bad degree.

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
    r"""The polar factors of a batch of matrices, approximately: `steps` times Y <- p(Y Y^T) Y.

    The start is each matrix over its Frobenius norm, transposed where it is tall. With `taylor_coefs(kappa)`
    the operator norm stays at most 1 and the distance to the polar factor U V^T is at most
    1 - sqrt(1 - (1 - x^2)^((kappa + 1)^steps)) in operator norm, x the smallest non-zero singular value of
    the start. `QUINTIC_COEFS`, the usual polynomial of Muon, grows small singular values faster, passes 1,
    does not converge, and no such bound covers it.

    Args:
        matrices: shape (..., m, n), a floating-point dtype; a zero matrix gives zero.
        coefs: those of p in powers of (1 - l), at least two.
        steps: in [0, 100].
        shrink_only: divide by max(1, Frobenius norm), as the paper's Algorithm 1 prints it. Then the result
            depends on the scale of the gradient, and small matrices are hardly orthogonalized at all.
        compute_dtype: that of the products, such as torch.bfloat16; None is the matrices' own.

    Returns:
        A tensor of the same shape and dtype.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        muon muon.lem3_3, muon.scale.
    """
    if matrices.ndim < 2 or not matrices.is_floating_point() or matrices.numel() == 0:
        raise InvalidParameterError(
            "matrices", (tuple(matrices.shape), matrices.dtype), "non-empty floating-point (..., m, n)"
        )
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
        # Horner in the rest 1 - l: it is small once the iteration has converged.
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
