"""The noise floor that a privacy budget leaves to DP-SGD, through a real accountant."""

import dataclasses

from dpmech.analysis.noise_share.convergence import Floor, sgd_floor
from dpmech.analysis.noise_share.share import noise_variance
from dpmech.calibration import calibrate_sigma
from dpmech.engines import Method
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Identity
from dpmech.schemes.poisson import Poisson

__all__ = ["BudgetedFloor", "floor_at_budget"]


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
    """The floor that (eps, delta) leaves to Poisson-sampled DP-SGD, with the noise an accountant asks for.

    The textbook scaling sigma = c q sqrt(T ln(1/delta)) / eps has no constant c: at real operating points it
    runs from 1.2 to 16, so Phi falls between 1/B and 1/B^2 at fixed epochs, and like 1/eps^2 only where
    sigma is large. Here sigma comes from `calibrate_sigma`.

    Args:
        eps: > 0.
        delta: in (0, 1).
        dataset_size: N.
        batch_size: B, expected, in [1, N); also the divisor. Every example is sampled with B / N a step.
        steps: T >= 1.
        clip_norm: C > 0; the floor assumes that it never clips.
        step_size: gamma in (0, 1 / (2 A)].
        strong_convexity: mu in (0, A].
        expected_smoothness: A.
        dimension: d >= 1.
        sampling_variance: sigma_sub^2 >= 0.
        method: of `calibrate_sigma`.

    Returns:
        A BudgetedFloor: an upper bound, at a sigma that is at most 0.1 % above the smallest one.

    Raises:
        InvalidParameterError: on a bad argument.
        UnattainableBudgetError: if no finite sigma meets the budget.

    References:
        noise_share ov.cor.coupling, ov.thm5.
    """
    examples = check_integer("dataset_size", dataset_size, minimum=2)
    size = check_integer("batch_size", batch_size, minimum=1, maximum=examples - 1)
    horizon = check_integer("steps", steps, minimum=1)
    clip = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
    # Everything else is checked before the accountant works for seconds.
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
