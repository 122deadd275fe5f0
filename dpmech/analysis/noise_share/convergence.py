"""Convergence of DP-SGD: contraction, the floor of noise and sampling, and the floor at a budget.

The update is x <- x - gamma g with g = (sum of clipped per-example gradients of a Poisson sample + noise) /
B. Here, B is the expected batch size, F is mu-strongly convex, and clipping is inactive. The squared distance
to the optimum contracts by 1 - gamma mu per step down to a floor, which is the sum of a subsampling part and
a noise part d Phi. The bounds here separate the noise from the remaining gradient, because the noise is
independent and has mean zero. This halves the noise part of the paper. They are upper bounds: the floor
itself can be four times smaller, and it decreases with the step size.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.analysis._arguments import check_matrices
from dpmech.analysis.noise_share.moments import noise_variance
from dpmech.calibration import calibrate_sigma
from dpmech.engines import Method
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Identity
from dpmech.schemes.poisson import Poisson


@dataclasses.dataclass(frozen=True)
class Floor:
    """An upper bound on the limit of the mean squared distance to the optimum of constant-step DP-SGD.

    Attributes:
        subsampling: the part from the sampling of examples, 2 gamma sigma_sub^2 / mu.
        noise: the part from the privacy noise, gamma d Phi / mu.
    """

    subsampling: float
    noise: float

    @property
    def total(self) -> float:
        """The sum of both parts."""
        return self.subsampling + self.noise


def expected_smoothness_bound(
    smoothness: float, example_smoothness: float, *, batch_size: float, dataset_size: int
) -> float:
    """A = L + (1 - q) L_max / B: a constant with E ||g(x) - g(x*)||^2 <= 2 A (F(x) - F*).

    Both gradients share the sample and the noise. With independent samples, no such constant exists.

    Args:
        smoothness: L > 0, of the average loss.
        example_smoothness: L_max >= L, of the loss of every example; all losses are convex.
        batch_size: B, expected, in (0, N].
        dataset_size: N >= 1; q = B / N.

    Returns:
        A, an upper bound on the smallest such constant.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.asm3.
    """
    average = check_real("smoothness", smoothness, minimum=0.0, open_minimum=True)
    single = check_real("example_smoothness", example_smoothness, minimum=average)
    size, rate = _check_sampling(batch_size, dataset_size)
    return average + (1.0 - rate) * single / size


def least_squares_smoothness(features: npt.ArrayLike, *, batch_size: float) -> float:
    """The smallest A for least squares, F(x) = mean of (a_i . x - y_i)^2 / 2.

    The largest eigenvalue of (M, H), H = X^T X / N, M = (1 - q) / B * mean of ||a_i||^2 a_i a_i^T + H^2.

    Args:
        features: the rows a_i, shape (N, d), of rank d.
        batch_size: B, expected, in (0, N].

    Returns:
        A. Exact.

    Raises:
        InvalidParameterError: if an argument is invalid, or if the features are not of full rank.

    References:
        noise_share ov.asm3.
    """
    rows = check_matrices("features", features)
    if np.linalg.matrix_rank(rows) < rows.shape[1]:
        raise InvalidParameterError("features", features, "of full column rank")
    size, rate = _check_sampling(batch_size, rows.shape[0])
    hessian = rows.T @ rows / rows.shape[0]
    fourth = (rows.T * np.sum(rows**2, axis=1)) @ rows / rows.shape[0]
    spectrum = scipy.linalg.eigh((1.0 - rate) / size * fourth + hessian @ hessian, hessian, eigvals_only=True)
    return float(spectrum[-1])


def subsampling_variance(gradients: npt.ArrayLike, *, batch_size: float) -> float:
    """sigma_sub^2 = (1 - q) / B * mean of ||gradient of example i||^2, at the optimum.

    Args:
        gradients: per-example gradients at the optimum, shape (N, d), of mean 0.
        batch_size: B, expected, in (0, N].

    Returns:
        E ||g(x*)||^2 without privacy noise, under Poisson sampling with B as divisor. Exact.

    Raises:
        InvalidParameterError: if an argument is invalid, or if the mean is not 0 (relative 1e-6).

    References:
        noise_share ov.asm3.split.
    """
    rows = check_matrices("gradients", gradients)
    size, rate = _check_sampling(batch_size, rows.shape[0])
    mean_square = float(np.mean(np.sum(rows**2, axis=1)))
    if float(np.linalg.norm(rows.mean(axis=0))) > 1e-6 * np.sqrt(mean_square):
        raise InvalidParameterError("gradients", gradients, "gradients at the optimum, whose mean is 0")
    return (1.0 - rate) / size * mean_square


def contraction(step_size: float, strong_convexity: float, *, expected_smoothness: float) -> float:
    """1 - gamma mu, in [1/2, 1): the factor of the squared distance to the optimum in one step.

    Args:
        step_size: gamma in (0, 1 / (2 A)].
        strong_convexity: mu in (0, A].
        expected_smoothness: A.

    Returns:
        The factor. An upper bound, exact for the paper's recursion.

    Raises:
        InvalidParameterError: if an argument is invalid; steps above 1 / (2 A) are outside the theorem.

    References:
        noise_share ov.thm5, ov.thm5.A.
    """
    gamma, mu = _check_step(step_size, strong_convexity, expected_smoothness)
    return 1.0 - gamma * mu


def sgd_floor(
    step_size: float,
    strong_convexity: float,
    *,
    expected_smoothness: float,
    dimension: int,
    phi: float,
    sampling_variance: float = 0.0,
) -> Floor:
    """The floor gamma (2 sigma_sub^2 + d Phi) / mu of constant-step DP-SGD.

    Args:
        step_size: gamma in (0, 1 / (2 A)].
        strong_convexity: mu in (0, A].
        expected_smoothness: A.
        dimension: d >= 1, trainable parameters.
        phi: variance per coordinate of the noise in the averaged gradient, >= 0.
        sampling_variance: sigma_sub^2 >= 0, from `subsampling_variance`.

    Returns:
        An upper bound on the limit of E ||x - x*||^2. Its noise part is half of that in the paper.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm5.
    """
    gamma, mu = _check_step(step_size, strong_convexity, expected_smoothness)
    d = check_integer("dimension", dimension, minimum=1)
    noise = check_real("phi", phi, minimum=0.0)
    sampling = check_real("sampling_variance", sampling_variance, minimum=0.0)
    return Floor(2.0 * gamma * sampling / mu, gamma * d * noise / mu)


def sgd_distance_bound(
    steps: int,
    initial_distance_squared: float,
    floor: Floor,
    *,
    step_size: float,
    strong_convexity: float,
    expected_smoothness: float,
) -> float:
    """(1 - gamma mu)^k ||x_0 - x*||^2 + (1 - (1 - gamma mu)^k) floor.

    Args:
        steps: k >= 0.
        initial_distance_squared: ||x_0 - x*||^2 >= 0.
        floor: from `sgd_floor` at the same step size.
        step_size: gamma in (0, 1 / (2 A)].
        strong_convexity: mu in (0, A].
        expected_smoothness: A.

    Returns:
        An upper bound on E ||x_k - x*||^2.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm5.
    """
    k = check_integer("steps", steps, minimum=0)
    start = check_real("initial_distance_squared", initial_distance_squared, minimum=0.0)
    left = contraction(step_size, strong_convexity, expected_smoothness=expected_smoothness) ** k
    return left * start + (1.0 - left) * floor.total


def quadratic_floor(step_size: float, curvature: float, *, dimension: int, phi: float) -> float:
    """The exact floor gamma d Phi / (h (2 - gamma h)): E ||x||^2 of noisy gradient descent on h ||x||^2 / 2.

    Args:
        step_size: gamma > 0 with gamma h < 2.
        curvature: h > 0.
        dimension: d >= 1.
        phi: variance per coordinate of the gradient's noise, >= 0.

    Returns:
        The stationary value. Exact for full batches.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm5.
    """
    h = check_real("curvature", curvature, minimum=0.0, open_minimum=True)
    gamma = check_real(
        "step_size", step_size, minimum=0.0, open_minimum=True, maximum=2.0 / h, open_maximum=True
    )
    d = check_integer("dimension", dimension, minimum=1)
    return gamma * d * check_real("phi", phi, minimum=0.0) / (h * (2.0 - gamma * h))


def stationarity_bound(
    step_size: float,
    smoothness: float,
    *,
    steps: int,
    initial_gap: float,
    dimension: int,
    phi: float,
    gradient_variance: float = 0.0,
) -> float:
    """2 Delta / (gamma K) + gamma L (V + d Phi): mean squared gradient norm without convexity.

    For E g = grad F, E ||g - grad F||^2 <= V + d Phi and gamma <= 1 / L, by the descent lemma.

    Args:
        step_size: gamma in (0, 1 / L].
        smoothness: L > 0.
        steps: K >= 1.
        initial_gap: Delta = F(x_0) - inf F >= 0.
        dimension: d >= 1.
        phi: variance per coordinate of the gradient's noise, >= 0.
        gradient_variance: V >= 0, total variance of the gradient before the noise.

    Returns:
        An upper bound on the mean of E ||grad F(x_k)||^2 over k < K.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if it overflows.

    References:
        noise_share ov.rem.nonconvex.
    """
    smooth = check_real("smoothness", smoothness, minimum=0.0, open_minimum=True)
    gamma = check_real("step_size", step_size, minimum=0.0, open_minimum=True, maximum=1.0 / smooth)
    k = check_integer("steps", steps, minimum=1)
    gap = check_real("initial_gap", initial_gap, minimum=0.0)
    d = check_integer("dimension", dimension, minimum=1)
    noise = check_real("phi", phi, minimum=0.0)
    spread = check_real("gradient_variance", gradient_variance, minimum=0.0)
    bound = 2.0 * gap / (gamma * k) + gamma * smooth * (spread + d * noise)
    if not np.isfinite(bound):
        raise NumericalError("the stationarity bound left the range of float64")
    return bound


def _check_sampling(batch_size: Any, dataset_size: Any) -> tuple[float, float]:  # noqa: ANN401 - checked here
    examples = check_integer("dataset_size", dataset_size, minimum=1)
    size = check_real("batch_size", batch_size, minimum=0.0, open_minimum=True, maximum=float(examples))
    return size, size / examples


def _check_step(step_size: float, strong_convexity: float, expected_smoothness: float) -> tuple[float, float]:
    smooth = check_real("expected_smoothness", expected_smoothness, minimum=0.0, open_minimum=True)
    mu = check_real("strong_convexity", strong_convexity, minimum=0.0, open_minimum=True, maximum=smooth)
    gamma = check_real("step_size", step_size, minimum=0.0, open_minimum=True, maximum=0.5 / smooth)
    return gamma, mu


@dataclasses.dataclass(frozen=True)
class BudgetedFloor:
    """The floor of a run that is calibrated to a privacy budget.

    Attributes:
        noise_multiplier: sigma of the calibrated run.
        phi: variance per coordinate of its averaged gradient's noise.
        floor: the bound.
    """

    noise_multiplier: float
    phi: float
    floor: Floor


def floor_at_budget(
    eps: float,
    delta: float,
    *,
    dataset_size: int,
    batch_size: int,
    steps: int,
    clip_norm: float,
    step_size: float,
    strong_convexity: float,
    expected_smoothness: float,
    dimension: int,
    sampling_variance: float = 0.0,
    method: Method | None = None,
) -> BudgetedFloor:
    """The floor of Poisson-sampled DP-SGD at (eps, delta), with the noise that an accountant requires.

    In the textbook scaling sigma = c q sqrt(T ln(1/delta)) / eps, c is not a constant: at practical operating
    points, it ranges from 1.2 to 16. At a fixed number of epochs, Phi therefore decreases at a rate between
    1/B and 1/B^2, and like 1/eps^2 only if sigma is large. Here, sigma comes from `calibrate_sigma`.

    Args:
        eps: > 0.
        delta: in (0, 1).
        dataset_size: N.
        batch_size: B, expected, in [1, N); also the divisor. Every example is sampled with B / N per step.
        steps: T >= 1.
        clip_norm: C > 0; the floor assumes that it never clips.
        step_size: gamma in (0, 1 / (2 A)].
        strong_convexity: mu in (0, A].
        expected_smoothness: A.
        dimension: d >= 1.
        sampling_variance: sigma_sub^2 >= 0.
        method: as for `calibrate_sigma`.

    Returns:
        A BudgetedFloor: an upper bound, at a sigma that is at most 0.1 % above the smallest sigma.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnattainableBudgetError: if no finite sigma meets the budget.

    References:
        noise_share ov.cor.coupling, ov.thm5.
    """
    examples = check_integer("dataset_size", dataset_size, minimum=2)
    size = check_integer("batch_size", batch_size, minimum=1, maximum=examples - 1)
    horizon = check_integer("steps", steps, minimum=1)
    clip = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
    # Check everything else before the accountant, which takes seconds.
    sgd_floor(
        step_size,
        strong_convexity,
        expected_smoothness=expected_smoothness,
        dimension=dimension,
        phi=0.0,
        sampling_variance=sampling_variance,
    )
    calibration = calibrate_sigma(
        Identity(horizon), eps, delta, participation=Poisson(size / examples), method=method
    )
    phi = noise_variance(calibration.sigma, clip, size)
    floor = sgd_floor(
        step_size,
        strong_convexity,
        expected_smoothness=expected_smoothness,
        dimension=dimension,
        phi=phi,
        sampling_variance=sampling_variance,
    )
    return BudgetedFloor(calibration.sigma, phi, floor)
