r"""Fitting under Balls-in-Bins: the error at the sigma that amplification leaves, not at the sensitivity.

Amplification rewards strategies that are closer to the Identity than the unamplified optimum, the more so
the smaller eps. Every Toeplitz strategy lies on a path to the Identity, its damping: coefficients c_t become
c_t tau^t, those of the inverse d_t tau^t (C and C^-1 conjugated by powers of tau), so that bands stay bands.
For LambdaCGD the path is lambda itself. The search runs over tau and over the members that paths start
from, with one set of random numbers for all of them; the winner is calibrated afresh.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar

from dpmech.accounting.methods import Importance
from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.exceptions import NumericalError, UnsupportedCombinationError
from dpmech.fitting.decoder import Objective
from dpmech.objectives import decoder_norm, decoder_row_norm, per_step_error
from dpmech.participation import BallsInBins
from dpmech.strategies import (
    BLT,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    LambdaCGD,
    Strategy,
)
from dpmech.workloads import Workload

__all__ = ["Budget", "amplified_error", "damped", "error_at", "search_damping"]

_COARSE = 0.1
_SEED = 20260101
_WIDTH = 0.02
# Where tau may go: log(1 / (1 - tau)) up to here.
_LONGEST = math.log(1e6)


@dataclasses.dataclass(frozen=True)
class Budget:
    """What the error is measured at.

    Args:
        eps: > 0.
        delta: in (0, 1).
        participation: Balls-in-Bins.
        workload: A.
        objective: which error.
    """

    eps: float
    delta: float
    participation: BallsInBins
    workload: Workload
    objective: Objective


def error_at(strategy: Strategy, sigma: float, workload: Workload, objective: Objective) -> float:
    """The error of a strategy at a sigma."""
    if objective is Objective.RMSE:
        return decoder_norm(strategy, workload=workload) * sigma
    if objective is Objective.MAX_SE:
        return decoder_row_norm(strategy, workload=workload) * sigma
    return float(per_step_error(strategy, workload=workload)[-1]) * sigma


def amplified_error(strategy: Strategy, budget: Budget) -> float:
    """The error at a rough sigma, the same random numbers for every strategy: for comparisons only."""
    cal: Calibration = calibrate_sigma(
        strategy,
        budget.eps,
        budget.delta,
        participation=budget.participation,
        rtol=2e-3,
        method=Importance(_COARSE, confidence=0.5),
        rng=_SEED,
    )
    return error_at(strategy, cal.sigma, budget.workload, budget.objective)


def damped(strategy: Strategy, tau: float) -> Strategy:
    """The strategy with its lag t scaled by tau^t, tau in [0, 1]; of the same class.

    Raises:
        UnsupportedCombinationError: for a class without free coefficients.
    """
    if isinstance(strategy, ColumnNormalized):
        return ColumnNormalized(damped(strategy.strategy, tau))
    if isinstance(strategy, LambdaCGD):
        return LambdaCGD(strategy.n, strategy.lam * tau)
    if isinstance(strategy, BandedToeplitz | BandedInverse):
        return type(strategy)(strategy.n, strategy.coefs * tau ** np.arange(strategy.coefs.size))
    if isinstance(strategy, BLT):
        return BLT(strategy.n, strategy.decays * tau, strategy.scales * tau)
    if isinstance(strategy, Dense):
        lags = np.arange(strategy.n)[:, None] - np.arange(strategy.n)[None, :]
        return Dense(np.tril(strategy.to_dense()) * tau ** np.maximum(lags, 0))
    raise UnsupportedCombinationError(
        f"{type(strategy).__name__} has no coefficients to damp",
        supported="LambdaCGD, BandedToeplitz, BandedInverse, BLT, Dense, and their column-normalised forms",
    )


def search_damping(
    strategy: Strategy, budget: Budget, progress: Callable[[str], None]
) -> list[tuple[Strategy, float]]:
    """Points on the path of one strategy with their rough errors: a scan, then Brent around the best.

    Members that the accountant cannot size (signed ones, or a sample it does not trust) are passed over.

    Args:
        strategy: the undamped end of the path.
        budget: what the error is measured at.
        progress: told about every point.
    """
    seen: dict[float, tuple[Strategy, float]] = {}

    def error(position: float) -> float:
        if position not in seen:
            member = damped(strategy, -math.expm1(-position))
            try:
                value = amplified_error(member, budget)
            except (UnsupportedCombinationError, NumericalError):
                value = math.inf
            seen[position] = (member, value)
            progress(f"damping {-math.expm1(-position):.5g}: error about {value:.5g}")
        return seen[position][1]

    longest = min(_LONGEST, math.log(4.0 * strategy.n + 10.0))
    nodes = np.linspace(0.0, longest, 7)
    values = [error(float(node)) for node in nodes]
    best = int(np.argmin(values))
    if math.isfinite(values[best]):
        low, high = nodes[max(best - 1, 0)], nodes[min(best + 1, nodes.size - 1)]
        minimize_scalar(
            lambda x: math.log(min(error(float(x)), 1e300)),
            bounds=(float(low), float(high)),
            method="bounded",
            options={"xatol": _WIDTH * max(1.0, longest / 4.0), "maxiter": 9},
        )
    return [one for one in seen.values() if math.isfinite(one[1])]
