"""Oracles for matrices under noise and for Newton-Schulz, by dense linear algebra. Never imports dpmech."""

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy import linalg, optimize

# An iteration matrix -> matrix of the same shape.
Map = Callable[[np.ndarray], np.ndarray]


def spectrum_of(
    values: np.ndarray, rows: int, columns: int, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Random orthonormal U (m x r), the values, and V (n x r) of a signal."""
    left = np.linalg.qr(rng.standard_normal((rows, len(values))))[0]
    right = np.linalg.qr(rng.standard_normal((columns, len(values))))[0]
    return left, np.asarray(values, dtype=float), right


def noisy_draws(
    values: np.ndarray, rows: int, columns: int, sigma: float, *, draws: int, seed: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields (U, values, V, noisy matrix) `draws` times."""
    rng = np.random.default_rng(seed)
    for _ in range(draws):
        left, sizes, right = spectrum_of(values, rows, columns, rng)
        noise = sigma * rng.standard_normal((rows, columns))
        yield left, sizes, right, (left * sizes) @ right.T + noise


def inflation(value: float, sigma: float, rows: int, columns: int) -> float:
    """F as printed."""
    return math.sqrt((value + sigma**2 * columns / value) * (value + sigma**2 * rows / value))


def inverse_inflation(observed: float, sigma: float, rows: int, columns: int) -> float:
    """The root of F(x) = observed above the threshold, by bracketing."""
    if sigma == 0.0:
        return observed
    threshold = sigma * (rows * columns) ** 0.25
    if observed <= inflation(threshold, sigma, rows, columns):
        return threshold
    excess = lambda x: inflation(x, sigma, rows, columns) - observed  # noqa: E731
    return optimize.brentq(excess, threshold, 2.0 * observed, xtol=1e-14, rtol=8.9e-16)


def top_value(matrix: np.ndarray) -> float:
    """Largest singular value, from the Gram matrix of the shorter side."""
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return math.sqrt(np.linalg.eigvalsh(short @ short.T)[-1])


def top_vectors(matrix: np.ndarray, count: int, side: str) -> np.ndarray:
    """The first singular vectors of one side as columns, from the Gram matrix of the shorter side."""
    rows, columns = matrix.shape
    short = matrix if rows <= columns else matrix.T
    size = short.shape[0]
    values, vectors = linalg.eigh(short @ short.T, subset_by_index=(size - count, size - 1))
    own = vectors[:, ::-1]
    if (side == "left") == (rows <= columns):
        return own
    return short.T @ own / np.sqrt(values[::-1])


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    """Cosine of two arrays read as vectors."""
    return float(np.sum(x * y) / (np.linalg.norm(x) * np.linalg.norm(y)))


def denoised(matrix: np.ndarray, sigma: float, kappa: float) -> np.ndarray:
    """The paper's Denoise, by one SVD and the closed form of the shrinker; 0 / 0 where it divides so."""
    rows, columns = matrix.shape
    left, observed, right = np.linalg.svd(matrix, full_matrices=False)
    edge = sigma * (math.sqrt(rows) + math.sqrt(columns))
    if observed[0] < kappa * edge:
        return matrix
    moved = observed**2 - sigma**2 * (rows + columns)
    inside = np.maximum(moved**2 - 4.0 * rows * columns * sigma**4, 0.0)
    shrunk = np.where(observed > edge, np.sqrt(inside) / np.maximum(observed, 1e-300), 0.0)
    with np.errstate(invalid="ignore"):
        return (left * (shrunk * np.linalg.norm(observed) / np.linalg.norm(shrunk))) @ right


def taylor(degree: int) -> np.ndarray:
    """Coefficients of x^(-1/2) at 1 in powers of 1 - x, by the recursion of its derivatives."""
    coefficients = [1.0]
    for s in range(1, degree + 1):
        coefficients.append(coefficients[-1] * (s - 0.5) / s)
    return np.array(coefficients)


def polynomial(values: np.ndarray, degree: int) -> np.ndarray:
    """p_k, summed term by term."""
    return sum(c * (1.0 - values) ** s for s, c in enumerate(taylor(degree)))


def iterated(start: np.ndarray, degree: int, steps: int) -> np.ndarray:
    """Newton-Schulz from a normalised start, shape (..., m, n)."""
    current = start
    identity = np.eye(start.shape[-2])
    for _ in range(steps):
        gap = identity - current @ np.swapaxes(current, -1, -2)
        factor, power = np.zeros_like(gap), identity
        for coefficient in taylor(degree):
            factor = factor + coefficient * power
            power = power @ gap
        current = factor @ current
    return current


def muon_map(degree: int, steps: int, *, scale_up: bool = False) -> Map:
    """Q of the paper, of matrices of shape (..., m, n); `scale_up` divides by the norm in any case."""

    def apply(matrix: np.ndarray) -> np.ndarray:
        tall = matrix.shape[-2] > matrix.shape[-1]
        wide = np.swapaxes(matrix, -1, -2) if tall else matrix
        norms = np.linalg.norm(wide, axis=(-2, -1), keepdims=True)
        output = iterated(wide / (norms if scale_up else np.maximum(1.0, norms)), degree, steps)
        return np.swapaxes(output, -1, -2) if tall else output

    return apply


def polar(matrix: np.ndarray) -> np.ndarray:
    """U_r V_r^T."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    kept = values > 1e-12 * max(values[0], 1e-300)
    return left[:, kept] @ right[kept]


def operator_norm(matrix: np.ndarray) -> float:
    """Largest singular value."""
    return float(np.linalg.norm(matrix, 2))


def nuclear_norm(matrix: np.ndarray) -> float:
    """Sum of singular values."""
    return float(np.linalg.svd(matrix, compute_uv=False).sum())


def least_start_value(matrix: np.ndarray) -> float:
    """Smallest non-zero singular value of M / max(1, ||M||_F)."""
    values = np.linalg.svd(matrix / max(1.0, float(np.linalg.norm(matrix))), compute_uv=False)
    return float(values[values > 1e-12 * values[0]][-1])


def operator_quality(start_value: float, degree: int, steps: int) -> float:
    """chi_q = (1 - (1 - x^2)^((k + 1)^q))^(-1/2)."""
    return 1.0 / math.sqrt(
        -math.expm1((degree + 1) ** steps * math.log1p(-(min(start_value, 1 - 1e-16) ** 2)))
    )


def batch_variance(bound: float, size: int, sigma: float, entries: int) -> float:
    """v_C^2 = C^2 / B + d sigma^2 C^2 / B^2."""
    return bound**2 / size + entries * sigma**2 * bound**2 / size**2


def average_weight(beta: float, horizon: int) -> float:
    """Gamma_T, term by term."""
    updates = np.arange(1, horizon + 1)
    powers = np.exp(updates * math.log(beta)) if beta > 0.0 else np.zeros(horizon)
    return float(np.mean(np.sqrt((1.0 - beta) / (1.0 + beta) * (1.0 + powers) / (1.0 - powers))))
