"""Diagnostics of a private run, from released quantities: they have no privacy cost."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy
import torch

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Strategy, check_strategy
from dpmech.numerics import FloatArray
from dpmech.optim.rules.adam import AdamBC, corrected_second_moments
from dpmech.optim.rules.base import check_flag, phis_of
from dpmech.optim.rules.muon import Muon, orthogonalize

# Columns of C^-1 at a time where C is not Toeplitz: memory O(n BLOCK).
BLOCK = 256


def momentum_noise_ratios(strategy: Strategy, momentum: float, *, nesterov: bool = False) -> FloatArray:
    r"""Ratio of the noise variance in a momentum buffer to that in the gradient of the same step.

    The buffer M_t = sum over s <= t of momentum^(t - s) g_s has the per-coordinate noise variance
    (sigma clip_norm / batch_size)^2 ||w_t^T C^-1||^2, w_t[s] = momentum^(t - s), and the gradient Phi_t =
    (sigma clip_norm / batch_size)^2 ||C^-1[t, :]||^2. The ratio depends on neither sigma nor the clip norm.
    For Identity it is (1 - momentum^(2 (t + 1))) / (1 - momentum^2); with correlated noise it can be much
    smaller. Exact up to rounding; O(n) for Toeplitz strategies, O(n^2) otherwise.

    Args:
        strategy: C, over at least the number of steps of the run.
        momentum: in [0, 1).
        nesterov: use the direction g_t + momentum M_t instead of M_t.

    Returns:
        Ratios of variances, shape (n,), for `Muon(noise_ratios=...)`.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> import dpmech as dm
        >>> momentum_noise_ratios(dm.Identity(3), 0.5)
        array([1.    , 1.25  , 1.3125])

    References:
        muon muon.lemC1, for a general C^-1.
    """
    check_strategy(strategy)
    beta = check_real("momentum", momentum, minimum=0.0, maximum=1.0, open_maximum=True)
    lookahead = check_flag("nesterov", nesterov)
    coefs = strategy.inverse_coefs
    if coefs is not None:
        squares = np.cumsum(_direction(coefs, beta, nesterov=lookahead) ** 2)
    else:
        squares = np.zeros(strategy.n)
        for start in range(0, strategy.n, BLOCK):
            columns = np.eye(strategy.n)[:, start : start + BLOCK]
            squares += (_direction(strategy.solve(columns), beta, nesterov=lookahead) ** 2).sum(axis=1)
    ratios: FloatArray = squares / strategy.noising_row_norms() ** 2
    return ratios


def _direction(rows: FloatArray, beta: float, *, nesterov: bool) -> FloatArray:
    """The momentum buffer (or the look-ahead direction) of rows g_0, g_1, ..."""
    buffer: FloatArray = scipy.signal.lfilter([1.0], [1.0, -beta], rows, axis=0)
    return rows + beta * buffer if nesterov else buffer


# Largest number of rows of C^-1 that effective_degrees holds at once.
MAXIMUM_STEP = 8192


@dataclasses.dataclass(frozen=True)
class NoiseShare:
    """The noise share of Adam's second moment.

    Attributes:
        rho: Phi / median(v), times the median over the mean of the chi-square distribution of v: about 1
            for pure noise. An estimate, approximate if gradients contain signal.
        rho_raw: Phi / median(v), which exceeds 1 on pure noise early in a run.
        rho_mean: Phi / mean(v), without median bias, but dominated by the largest coordinates.
        stderr: standard error of `rho` on pure noise, from the number of coordinates.
        coordinates: number of coordinates.
    """

    rho: float
    rho_raw: float
    rho_mean: float
    stderr: float
    coordinates: int


def effective_degrees(beta2: float, step: int, *, strategy: Strategy | None = None) -> float:
    r"""Degrees of freedom n of Adam's second moment on pure noise: its relative variance is 2 / n.

    With weights w_s proportional to beta2^(step - s) and noise covariance K = C^-1 C^-T between steps,
    n = (sum_s w_s K_ss)^2 / sum_{s,r} w_s w_r K_sr^2. For independent noise that is
    (1 + beta2) / (1 - beta2) (1 - beta2^step) / (1 + beta2^step). Exact for Gaussian noise.

    Args:
        beta2: in [0, 1).
        step: number of updates so far, >= 1 (with a strategy, at most its n and 8192).
        strategy: C; None means independent noise of constant variance.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> effective_degrees(0.5, 1), round(effective_degrees(0.999, 10**6), 6)
        (1.0, 1999.0)

    References:
        noise_share ov.thm1.var, for a general C^-1.
    """
    beta = check_real("beta2", beta2, minimum=0.0, maximum=1.0, open_maximum=True)
    limit = None if strategy is None else min(check_strategy(strategy).n, MAXIMUM_STEP)
    count = check_integer("step", step, minimum=1, maximum=limit)
    if strategy is None:
        decay = beta**count
        return (1.0 + beta) / (1.0 - beta) * (1.0 - decay) / (1.0 + decay)
    coefs = strategy.inverse_coefs
    if coefs is not None:
        rows: FloatArray = scipy.linalg.toeplitz(coefs[:count], np.zeros(count))
    else:
        rows = strategy.solve(np.eye(strategy.n)[:, :count])[:count]
    covariance = rows @ rows.T
    weights = beta ** np.arange(count - 1, -1, -1.0)
    mean = float(weights @ np.diag(covariance))
    return mean**2 / float(weights @ covariance**2 @ weights)


def noise_share(optimizer: torch.optim.Optimizer, *, strategy: Strategy | None = None) -> NoiseShare:
    """The noise share rho of an AdamBC (with any settings), from its state after at least one step.

    It post-processes released gradients, so it has no privacy cost.

    Args:
        optimizer: an AdamBC.
        strategy: C, if the noise is correlated between steps, which increases the variance of the second
            moment.

    Raises:
        InvalidParameterError: if no parameter has been updated under noise, or for another optimizer.

    References:
        noise_share ov.thm3.def, ov.thm1.var.
    """
    ratios, debiased, sizes, degrees = [], [], 0, math.inf
    noise = moment = 0.0
    for group, states in _adam_states(optimizer):
        beta2 = group["betas"][1]
        moments = corrected_second_moments(states, beta2, subtract_noise=False)
        for state, values in zip(states, moments, strict=True):
            phi = state["phi_average"] / (1.0 - beta2 ** state["step"])
            if phi == 0.0 or values.numel() == 0:
                continue
            freedom = effective_degrees(beta2, state["step"], strategy=strategy)
            # Relative to each coordinate's noise variance: groups and clip norms may differ.
            ratios.append(values.flatten().double() / phi)
            debiased.append(ratios[-1] / _median_over_mean(freedom))
            noise += phi * values.numel()
            moment += float(values.double().sum())
            sizes += values.numel()
            degrees = min(degrees, freedom)
    if not ratios:
        raise InvalidParameterError("optimizer", optimizer, "an AdamBC that has made a step under noise")
    rho = 1.0 / float(torch.cat(debiased).median())
    # The median of N near-normal values has 1.2533 times the standard error of their mean.
    stderr = rho * math.sqrt(math.pi / 2.0) * math.sqrt(2.0 / degrees / sizes)
    return NoiseShare(rho, 1.0 / float(torch.cat(ratios).median()), noise / moment, stderr, sizes)


def clamp_fraction(optimizer: torch.optim.Optimizer) -> float:
    """Fraction of coordinates whose corrected second moment is below the floor of an AdamBC.

    Near 1 the rule is SGD with momentum and the fixed rate lr / sqrt(floor). Pure noise alone gives about
    one half, so a value near one half does not indicate signal. It has no privacy cost.

    Raises:
        InvalidParameterError: before the first step, or for another optimizer.

    References:
        noise_share ov.thm3.ii, ov.thm3.rem.floor.
    """
    below = total = 0
    for group, states in _adam_states(optimizer):
        for values in corrected_second_moments(
            states, group["betas"][1], subtract_noise=group["subtract_noise"]
        ):
            below += int((values < group["floor"]).sum())
            total += values.numel()
    if total == 0:
        raise InvalidParameterError("optimizer", optimizer, "an AdamBC that has made a step")
    return below / total


def muon_quality(optimizer: Muon) -> tuple[float, ...]:
    """Nuclear alignment <M, O> / ||M||_* of each matrix of a Muon: 1 if O is the polar factor of M.

    O is `orthogonalize` of the momentum M, without bias correction. The nuclear norm weights singular values
    by their size, whereas the operator-norm error depends on the smallest one only. It has no privacy cost.
    A zero momentum gives 0.

    Raises:
        InvalidParameterError: before the first step, or for another optimizer.

    References:
        muon muon.lem3_3.
    """
    if not isinstance(optimizer, Muon):
        raise InvalidParameterError("optimizer", type(optimizer).__name__, "a Muon")
    alignments = []
    for group, _, state in _muon_states(optimizer):
        matrix = state["momentum_buffer"].flatten(1)
        output = orthogonalize(
            matrix, coefs=group["coefs"], steps=group["steps"], shrink_only=group["shrink_only"]
        )
        nuclear = float(torch.linalg.matrix_norm(matrix, ord="nuc"))
        alignments.append(0.0 if nuclear == 0.0 else float((matrix * output).sum()) / nuclear)
    if not alignments:
        raise InvalidParameterError("optimizer", optimizer, "a Muon that has made a step on a matrix")
    return tuple(alignments)


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
        return _muon_share(rule, ratios)
    return {}


def _muon_share(rule: Muon, ratios: Callable[[float], FloatArray]) -> dict[str, float]:
    noise = measured = 0.0
    for group, phi, state in _muon_states(rule):
        buffer = state["momentum_buffer"]
        noise += phi * float(ratios(group["momentum"])[state["step"] - 1]) * buffer.numel()
        measured += float(buffer.double().square().sum())
    return {"noise_share": noise / measured} if noise > 0.0 and measured > 0.0 else {}


def _adam_states(optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(group, states of its updated parameters) of an AdamBC."""
    if not isinstance(optimizer, AdamBC):
        raise InvalidParameterError("optimizer", type(optimizer).__name__, "an AdamBC")
    pairs = []
    for group in optimizer.param_groups:
        states = [
            optimizer.state[param] for param in group["params"] if "step" in optimizer.state.get(param, {})
        ]
        if states:
            pairs.append((group, states))
    return pairs


def _muon_states(optimizer: Muon) -> Iterator[tuple[dict[str, Any], float, dict[str, Any]]]:
    """(group, Phi, state) of every matrix of a Muon that has made a step."""
    for group in optimizer.param_groups:
        for param, phi in zip(group["params"], phis_of(group), strict=True):
            state = optimizer.state.get(param, {})
            if group["use_muon"] and "momentum_buffer" in state:
                yield group, phi, state


def _median_over_mean(degrees: float) -> float:
    """Median of a chi-square distribution over its mean."""
    return float(scipy.stats.chi2.ppf(0.5, degrees)) / degrees
