r"""DP-Muon's stationarity bound, term by term, and the noise of its momentum.

The bound is for one matrix block W of shape m x n, with r = min(m, n) and d = m n. A step clips per-example
gradients to C in Frobenius norm, averages a batch of B, adds noise of standard deviation sigma C / B to every
entry, averages with momentum beta, orthogonalises (`newton_schulz`) and moves by the learning rate. The bound
holds for batches of exactly B independent samples; Poisson batches, whose size varies, are not covered, nor
is DP-MuonBC, whose direction can have norm up to 3 (muon muon.thm3_4, muon.obc_norm).

`sigma` is the noise multiplier of this block alone. A whole step of K such blocks costs as much as one
release at sigma / sqrt(K), because the blocks share one sampled batch (muon.joint_sigma).
"""

import dataclasses
import math

import numpy as np

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

# After this many time constants beta^t is below 1e-17 and the weights no longer change.
_SETTLED = 40.0
_CHUNK = 1_000_000
_MAX_TERMS = 200_000_000


def momentum_weight(momentum: float, updates: int | None = None) -> float:
    """Euclidean norm of the normalised momentum weights after t updates.

    w_j is proportional to beta^(t - j), sums to 1, and sum_j w_j^2 is
    (1 - beta) / (1 + beta) (1 + beta^t) / (1 - beta^t).

    Args:
        momentum: beta in [0, 1).
        updates: t >= 1, the number of gradients in the buffer; None is the limit of many.

    Returns:
        In (0, 1]: the factor of the standard deviation of independent noise. Exact. Its *square*,
        (1 - beta) / (1 + beta) in the limit, is the factor of the variance (muon.lemC1_scale).

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.lemB5, muon.lemC1.

    Examples:
        >>> from dpmech.analysis.muon.stationarity import momentum_weight
        >>> round(momentum_weight(0.95), 4)
        0.1601
    """
    beta = check_real("momentum", momentum, minimum=0.0, maximum=1.0, open_maximum=True)
    if updates is None:
        return math.sqrt((1.0 - beta) / (1.0 + beta))
    count = check_integer("updates", updates, minimum=1)
    return float(_weight_norms(beta, np.array([float(count)]))[0])


def momentum_noise(entry_noise: float, momentum: float, updates: int | None = None) -> float:
    """rho_t: standard deviation of one entry of the normalised momentum, sum_j w_j (noise of step j).

    Args:
        entry_noise: nu = sigma C / B, standard deviation of one entry of the private mean gradient, >= 0:
            the square root of `Calibration.noise_variance`.
        momentum: mu in [0, 1).
        updates: t >= 1; None is the limit of many.

    Returns:
        rho_t, in the unit of `entry_noise`. Exact for noise that is independent over steps; for correlated
        noise the variance differs, see `analysis.noise_share.moments`.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.lemC1.
    """
    return check_real("entry_noise", entry_noise, minimum=0.0) * momentum_weight(momentum, updates)


def average_momentum_weight(momentum: float, horizon: int) -> float:
    """Gamma_T: the mean of `momentum_weight` over updates 1..T.

    Args:
        momentum: beta in [0, 1).
        horizon: T >= 1.

    Returns:
        In (0, 1]. Exact, up to rounding: one term per update until the weights have converged.

    Raises:
        InvalidParameterError: if an argument is invalid, or if the weights do not converge within 2e8 terms;
            then use `average_momentum_weight_bound`.

    References:
        muon muon.lemB5.
    """
    beta = check_real("momentum", momentum, minimum=0.0, maximum=1.0, open_maximum=True)
    total = check_integer("horizon", horizon, minimum=1)
    terms = min(total, math.ceil(_SETTLED / (1.0 - beta)))
    if terms > _MAX_TERMS:
        raise InvalidParameterError("horizon", horizon, f"at most {_MAX_TERMS} at momentum {beta!r}")
    partial = [
        float(_weight_norms(beta, np.arange(start + 1.0, min(start + _CHUNK, terms) + 1.0)).sum())
        for start in range(0, terms, _CHUNK)
    ]
    return (math.fsum(partial) + (total - terms) * momentum_weight(beta)) / total


def average_momentum_weight_bound(momentum: float, horizon: int) -> float:
    """An upper bound on Gamma_T in closed form: 1.02 / (T sqrt(1 - beta)) + sqrt(1 - beta).

    The paper leaves both constants open. The second cannot be below 1 (beta = 0). If it is 1, the first can
    be int_0^log 3 (sqrt(coth(x / 2) / 2) - 1) dx = 1.01826, by comparing the sum with the integral of the
    excess over sqrt(1 - beta), which becomes negative at t (1 - beta) = log 3.

    Arguments and errors are those of `average_momentum_weight`, without its limit on the terms.

    References:
        muon muon.lemB5.
    """
    beta = check_real("momentum", momentum, minimum=0.0, maximum=1.0, open_maximum=True)
    total = check_integer("horizon", horizon, minimum=1)
    root = math.sqrt(1.0 - beta)
    return 1.02 / (total * root) + root


def batch_noise(sigma: float, clip_norm: float, batch_size: float, *, rows: int, columns: int) -> float:
    """v_C = sqrt(C^2 / B + d sigma^2 C^2 / B^2): sampling and privacy noise of one clipped batch.

    Args:
        sigma: noise multiplier, >= 0.
        clip_norm: C > 0.
        batch_size: B > 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        An upper bound on the root mean squared Frobenius norm of the fluctuation of the gradient.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.lemB3.
    """
    noise = check_real("sigma", sigma, minimum=0.0)
    clip = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
    size = check_real("batch_size", batch_size, minimum=0.0, open_minimum=True)
    entries = check_integer("rows", rows, minimum=1) * check_integer("columns", columns, minimum=1)
    return clip * math.hypot(1.0 / math.sqrt(size), math.sqrt(entries) * noise / size)


def light_tail_clipping_residual(tail_scale: float, clip_norm: float, rank: int) -> float:
    """Bound on B_T(C) = sqrt r sup E(||G|| - C)_+ if E exp(||G||^2 / K^2) <= e.

    The bound is sqrt(r) e K^2 / (2 C) exp(-C^2 / K^2).

    Args:
        tail_scale: K > 0.
        clip_norm: C > 0.
        rank: r = min(m, n) >= 1.

    Returns:
        An upper bound on the bias that clipping causes, in nuclear norm.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.cor3_5.
    """
    tail, clip, root = _residual_arguments("tail_scale", tail_scale, clip_norm, rank)
    return root * math.e * tail**2 / (2.0 * clip) * math.exp(-((clip / tail) ** 2))


def second_moment_clipping_residual(root_mean_square: float, clip_norm: float, rank: int) -> float:
    """Bound on B_T(C) = sqrt r sup E(||G|| - C)_+ if E ||G||^2 <= G_2^2: sqrt(r) G_2^2 / (4 C).

    This is a quarter of the paper's bound, because (x - C)_+ <= x^2 / (4 C), with equality at x = 2 C.

    Args:
        root_mean_square: G_2 > 0.
        clip_norm: C > 0.
        rank: r = min(m, n) >= 1.

    Returns:
        An upper bound on the bias that clipping causes, in nuclear norm.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.corB6.
    """
    size, clip, root = _residual_arguments("root_mean_square", root_mean_square, clip_norm, rank)
    return root * size**2 / (4.0 * clip)


@dataclasses.dataclass(frozen=True)
class StationarityBound:
    """Bound on the mean nuclear norm of the gradient over a run, and its terms.

    `total` is quality x (start + curvature + clipping + noise + drift); the last three already include their
    factor 2 - eps.

    Attributes:
        start: D_0 / (lr T), from the initial gap.
        curvature: L lr / 2, from the step size.
        clipping: from the bias of clipping.
        noise: from sampling and privacy noise, after momentum.
        drift: from stale gradients in the buffer.
        quality: chi = 1 / (1 - eps), from finitely many Newton-Schulz steps.
    """

    start: float
    curvature: float
    clipping: float
    noise: float
    drift: float
    quality: float

    @property
    def total(self) -> float:
        """The bound."""
        return self.quality * math.fsum((self.start, self.curvature, self.clipping, self.noise, self.drift))


def stationarity_bound(
    *,
    horizon: int,
    learning_rate: float,
    momentum: float,
    sigma: float,
    clip_norm: float,
    batch_size: float,
    rows: int,
    columns: int,
    initial_gap: float,
    smoothness: float,
    clipping_residual: float,
    direction_error: float = 0.0,
) -> StationarityBound:
    r"""DP-Muon's bound on (1 / T) sum_t E ||grad f(W_(t-1))||_*.

    chi [D_0 / (lr T) + L lr / 2 + (2 - eps) (B_T + sqrt r v_C Gamma_T + L lr beta / (1 - beta))].
    At a fixed privacy budget, sigma grows like sqrt T, and the bound does *not* vanish with T for any
    schedule. The vanishing rates hold at a fixed sigma, that is, with an unbounded budget (muon.rate_scope).

    Args:
        horizon: T >= 1.
        learning_rate: lr > 0.
        momentum: beta in [0, 1).
        sigma: noise multiplier of this block, >= 0.
        clip_norm: C > 0.
        batch_size: B > 0, samples per batch.
        rows: m >= 1.
        columns: n >= 1.
        initial_gap: D_0 = f(W_0) - inf f, >= 0.
        smoothness: L >= 0, with ||grad f(X) - grad f(Y)||_* <= L ||X - Y||_op.
        clipping_residual: B_T >= 0, from one of the two functions above or measured.
        direction_error: eps in [0, 1) such that <M_t, O_t> >= (1 - eps) ||M_t||_* at every step: the largest
            `newton_schulz.nuclear_error` of the run, or its (much larger) `spectral_error`. No constant
            below 1 holds for every run under Gaussian noise (muon.lem3_3_deterministic): the bound is
            conditional on the run remaining below it.

    Returns:
        A `StationarityBound`: an upper bound under the assumptions. One step of one weight attains it. On
        noisy quadratics, it is loose by an order of magnitude or more.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.thm3_4, muon.lemB4, muon.lemB5.
    """
    steps = check_integer("horizon", horizon, minimum=1)
    rate = check_real("learning_rate", learning_rate, minimum=0.0, open_minimum=True)
    gap = check_real("initial_gap", initial_gap, minimum=0.0)
    lipschitz = check_real("smoothness", smoothness, minimum=0.0)
    residual = check_real("clipping_residual", clipping_residual, minimum=0.0)
    error = check_real("direction_error", direction_error, minimum=0.0, maximum=1.0, open_maximum=True)
    spread = batch_noise(sigma, clip_norm, batch_size, rows=rows, columns=columns)
    weight = average_momentum_weight(momentum, steps)
    return StationarityBound(
        start=gap / (rate * steps),
        curvature=lipschitz * rate / 2.0,
        clipping=(2.0 - error) * residual,
        noise=(2.0 - error) * math.sqrt(min(rows, columns)) * spread * weight,
        drift=(2.0 - error) * lipschitz * rate * momentum / (1.0 - momentum),
        quality=1.0 / (1.0 - error),
    )


def _weight_norms(beta: float, updates: FloatArray) -> FloatArray:
    if beta == 0.0:
        return np.ones_like(updates)
    exponents = updates * math.log(beta)
    # expm1 keeps 1 - beta^t accurate if beta^t is close to 1.
    squared = (1.0 - beta) / (1.0 + beta) * (1.0 + np.exp(exponents)) / -np.expm1(exponents)
    norms: FloatArray = np.sqrt(squared)
    return norms


def _residual_arguments(name: str, scale: float, clip_norm: float, rank: int) -> tuple[float, float, float]:
    size = check_real(name, scale, minimum=0.0, open_minimum=True)
    clip = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
    return size, clip, math.sqrt(check_integer("rank", rank, minimum=1))
