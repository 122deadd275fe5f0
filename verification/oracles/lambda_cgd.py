"""Oracles of the DP-lambda-CGD paper: fits of Table 4's strategies, and brackets of a sensitivity."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
from scipy import optimize, signal

from verification.oracles import linear as ref


@dataclasses.dataclass(frozen=True)
class Plan:
    """n steps, participations b apart, at most k of them; the defaults are those of Table 4."""

    n: int = 3900
    b: int = 390
    k: int = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """First columns of C and C^-1, and the RMSE by the formula that was minimised."""

    coefs: np.ndarray
    inverse: np.ndarray
    error: float


def reciprocal(short: np.ndarray, n: int) -> np.ndarray:
    """First n coefficients of 1 / (polynomial with these coefficients)."""
    impulse = np.zeros(n)
    impulse[0] = 1.0
    return signal.lfilter([1.0], short, impulse)


def decoder_square(inverse: np.ndarray) -> float:
    """||A C^-1||_F^2 / n for the prefix sum A."""
    n = len(inverse)
    return float(np.sum((n - np.arange(n)) * np.cumsum(inverse) ** 2)) / n


def leftmost_sum(coefs: np.ndarray, plan: Plan) -> np.ndarray:
    """Columns 0, b, 2b, ... of LTT(coefs), added."""
    total = np.zeros(plan.n)
    for start in range(0, min(plan.k * plan.b, plan.n), plan.b):
        total[start:] += coefs[: plan.n - start]
    return total


def rmse(coefs: np.ndarray, inverse: np.ndarray, plan: Plan) -> float:
    """RMSE by eq. 3: leftmost columns."""
    return float(np.sqrt(decoder_square(inverse)) * np.linalg.norm(leftmost_sum(coefs, plan)))


def _by_inverse(inverse: np.ndarray) -> np.ndarray:
    """Gradient of log decoder_square."""
    n = len(inverse)
    by_sum = 2.0 * (n - np.arange(n)) * np.cumsum(inverse) / n
    return np.cumsum(by_sum[::-1])[::-1] / decoder_square(inverse)


def _by_coefs(coefs: np.ndarray, plan: Plan) -> np.ndarray:
    """Gradient of log ||leftmost_sum||^2."""
    total = leftmost_sum(coefs, plan)
    gradient = np.zeros(plan.n)
    for start in range(0, min(plan.k * plan.b, plan.n), plan.b):
        gradient[: plan.n - start] += total[start:]
    return 2.0 * gradient / float(total @ total)


def _through_reciprocal(short: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """d(1/s) = -(1/s)^2 ds, transposed: the gradient by s of a function of 1 / s."""
    once = signal.lfilter([1.0], short, gradient[::-1])
    return -signal.lfilter([1.0], short, once)[::-1]


def fit(
    bands: int,
    plan: Plan,
    *,
    inverse: bool,
    starts: list[np.ndarray],
    weight: float = 0.0,
    floor: float = 0.0,
    steps: int = 4000,
) -> Fitted:
    """Least RMSE by eq. 3 over Toeplitz C whose inverse (or which itself) has `bands` bands, first one 1.

    Args:
        bands: number of bands.
        plan: the setting.
        inverse: whether it is C^-1 that is banded.
        starts: coefficients after the first to start from; the best end is kept.
        weight: of a penalty on the squares by which coefficients of C are below the floor.
        floor: a little above 0 it leaves none of them negative.
        steps: at most so many of L-BFGS from every start.
    """

    def series(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        short = np.concatenate([[1.0], x])
        padded = np.pad(short, (0, plan.n - bands))
        other = reciprocal(short, plan.n)
        return (short, other, padded) if inverse else (short, padded, other)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            short, coefs, decoder = series(x)
            short_of = np.minimum(coefs - floor, 0.0)
            value = np.log(decoder_square(decoder)) + 2.0 * np.log(np.linalg.norm(leftmost_sum(coefs, plan)))
            value += weight * float(short_of @ short_of)
            by_coefs = _by_coefs(coefs, plan) + 2.0 * weight * short_of
            by_decoder = _by_inverse(decoder)
            direct, indirect = (by_decoder, by_coefs) if inverse else (by_coefs, by_decoder)
            gradient = direct[1:bands] + _through_reciprocal(short, indirect)[1:bands]
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            return 1e10, np.zeros_like(x)
        return float(value), gradient

    ends = [descend(loss, start, steps) for start in starts]
    best = min(ends, key=lambda x: loss(x)[0])
    _, coefs, decoder = series(best)
    return Fitted(coefs, decoder, rmse(coefs, decoder, plan))


def descend(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, steps: int
) -> np.ndarray:
    """A local minimum by L-BFGS, restarted where its line search gives up."""
    x, scale = start, 100.0
    for _ in range(3):

        def scaled(z: np.ndarray, scale: float = scale) -> tuple[float, np.ndarray]:
            value, gradient = loss(z / scale)
            return value, gradient / scale

        found = optimize.minimize(
            scaled,
            x * scale,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": steps, "maxfun": 2 * steps, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-8},
        )
        if loss(found.x / scale)[0] <= loss(x)[0]:
            x = found.x / scale
        if found.success or found.nit > 100:
            break
        scale *= 10.0
    return x


def fit_buffers(plan: Plan, start: np.ndarray) -> Fitted:
    """Least RMSE by eq. 3 over c_0 = 1, c_t = sum_j w_j theta_j^(t-1), with w >= 0 of sum below 1.

    Args:
        plan: the setting.
        start: logits of theta, then logarithms of w_j / (1 - sum w).
    """
    impulse = np.eye(1, plan.n)[0]

    def series(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        decays, odds = 1.0 / (1.0 + np.exp(-x[: x.size // 2])), np.exp(x[x.size // 2 :])
        scales = odds / (1.0 + odds.sum())
        denominator, numerator = np.poly(decays), np.poly(decays)
        for j, scale in enumerate(scales):
            numerator[1:] += scale * np.poly(np.delete(decays, j))
        return signal.lfilter(numerator, denominator, impulse), signal.lfilter(
            denominator, numerator, impulse
        )

    def log_error(x: np.ndarray) -> float:
        return float(np.log(rmse(*series(x), plan)))

    found = optimize.minimize(
        log_error,
        start,
        method="Nelder-Mead",
        options={"maxiter": 4000, "maxfev": 4000, "xatol": 1e-7, "fatol": 1e-12, "adaptive": True},
    )
    coefs, inverse = series(found.x)
    return Fitted(coefs, inverse, rmse(coefs, inverse, plan))


def bandmf_start(bands: int) -> list[np.ndarray]:
    """Where fits of a banded C start: the square root."""
    return [ref.square_root(bands)[1:]]


def bandinv_start(bands: int) -> list[np.ndarray]:
    """Where fits of a banded inverse start: the inverse square root."""
    return [ref.inverse_square_root(bands)[1:]]


def lambda_errors(lam: float, plan: Plan, gamma: float) -> float:
    """F_gamma of eq. 21 from the columns themselves: MaxSE^2 at gamma = 1, RMSE^2 at 1/2."""
    columns = float(np.sum(leftmost_sum(lam ** np.arange(plan.n), plan) ** 2))
    return (1.0 + (1.0 - lam) ** 2 * (plan.n - 1) * gamma) * columns


def signed_sensitivity(matrix: np.ndarray, min_sep: int, count: int) -> float:
    """The largest norm of a signed sum of columns over all separated sets, by enumeration."""
    best = 0.0
    for chosen in ref.separated_sets(len(matrix), min_sep, count):
        for signs in itertools.product((1.0, -1.0), repeat=len(chosen) - 1):
            total = matrix[:, list(chosen)] @ np.array([1.0, *signs])
            best = max(best, float(total @ total))
    return float(np.sqrt(best))


def leftmost_norm(matrix: np.ndarray, min_sep: int, count: int) -> float:
    """The norm of the sum of columns 0, b, 2b, ..., `count` of them."""
    return float(np.linalg.norm(matrix[:, : count * min_sep : min_sep].sum(axis=1)))


def normalized(matrix: np.ndarray) -> np.ndarray:
    """Columns scaled to norm 1."""
    return matrix / np.linalg.norm(matrix, axis=0)


def prefix_sum(n: int) -> np.ndarray:
    """The workload A of ones."""
    return np.tril(np.ones((n, n)))


def gram(coefs: np.ndarray) -> np.ndarray:
    """C^T C for C = LTT(coefs), by cumulative sums along its diagonals."""
    n = len(coefs)
    found = np.zeros((n, n))
    for lag in range(n):
        diagonal = np.cumsum(coefs[lag:] * coefs[: n - lag])[::-1]
        np.fill_diagonal(found[lag:], diagonal)
        np.fill_diagonal(found[:, lag:], diagonal)
    return found


def best_sums(weights: np.ndarray, plan: Plan) -> np.ndarray:
    """For every row of weights >= 0: the largest sum over sets of at most k columns, b or more apart."""
    best = np.zeros_like(weights)
    for _ in range(plan.k):
        extended = weights.copy()
        extended[..., plan.b :] += best[..., : -plan.b]
        np.maximum.accumulate(extended, axis=-1, out=best)
    return best[..., -1]


def upper_sensitivity(matrix: np.ndarray, plan: Plan) -> float:
    """From a Gram matrix G: sum_(i, j) |G_ij| <= sum_i (best sum of row |G_i|) <= the best sum of those."""
    blocks = [best_sums(np.abs(block), plan) for block in np.array_split(matrix, max(1, plan.n // 60))]
    return float(np.sqrt(best_sums(np.concatenate(blocks), plan)))


def lower_sensitivity(matrix: np.ndarray, plan: Plan, offsets: list[int]) -> float:
    """The best signed sum of columns met by moving single steps, from evenly spaced sets.

    Args:
        matrix: a Gram matrix.
        plan: the setting.
        offsets: first steps of the sets to start from.
    """
    return max(_climbed(matrix, np.arange(first, plan.n, plan.b)[: plan.k], plan) for first in offsets)


def _climbed(matrix: np.ndarray, steps: np.ndarray, plan: Plan) -> float:
    signs = np.ones(len(steps))
    value, every = 0.0, np.arange(plan.n)
    while True:
        for place in range(len(steps)):
            others, kept = np.delete(steps, place), np.delete(signs, place)
            pull = kept @ matrix[others]
            free = np.all(np.abs(every[:, None] - others) >= plan.b, axis=1)
            chosen = int(np.argmax(np.where(free, 2.0 * np.abs(pull) + np.diag(matrix), -np.inf)))
            steps[place], signs[place] = chosen, 1.0 if pull[chosen] >= 0.0 else -1.0
        total = float(signs @ matrix[np.ix_(steps, steps)] @ signs)
        if total <= value * (1.0 + 1e-12):
            return float(np.sqrt(value))
        value = total
