"""What is printed of a calibration: the same names in every command, in tables and in JSON."""

from typing import Any

from dpmech.calibration import Calibration
from dpmech.cli.baseline import BASELINE, Baseline
from dpmech.cli.printing import shown
from dpmech.exceptions import DpmechError
from dpmech.mechanism import Participation, Strategy, noise_cost
from dpmech.numerics import times

__all__ = ["as_data", "attempted", "baseline_row", "beside", "cells_of", "missing", "numbers_of"]

# Of a gain over the baseline, in the table and in JSON.
_GAIN_DIGITS = 3
# Steps of a matrix whose entries are printed; `--out-strategy` writes the others.
_LARGEST_MATRIX = 200


def as_data(strategy: Strategy) -> dict[str, Any]:
    """A strategy as `Strategy.from_dict` takes it; of a large matrix the sizes and the fingerprint alone."""
    if strategy.shape.dense and strategy.n > _LARGEST_MATRIX:
        return {"type": type(strategy).__name__, "n": strategy.n, "fingerprint": strategy.fingerprint()}
    return strategy.to_dict()


def numbers_of(cal: Calibration, seconds: float) -> dict[str, Any]:
    """A calibration as plain data."""
    cost = noise_cost(cal.strategy)
    return {
        "sigma": cal.sigma,
        "sigma_use": cal.sigma_use,
        "sensitivity": cal.sensitivity.upper,
        "noise_multiplier": cal.noise_multiplier,
        "rmse": cal.rmse(),
        "max_se": cal.max_se(),
        "eps_lower": cal.achieved.lower,
        "eps_upper": cal.achieved.upper,
        "guarantee": str(cal.guarantee),
        "method": cal.method,
        "strategy": as_data(cal.strategy),
        "participation": cal.participation.to_dict(),
        "buffers": cost.buffers,
        "redrawn": cost.redrawn,
        "seconds": round(seconds, 3),
    }


def missing(label: str, sampling: str, reason: str) -> dict[str, Any]:
    """A row without numbers, and why."""
    return {"label": label, "sampling": sampling, "unavailable": reason}


def baseline_row(baseline: Baseline) -> dict[str, Any]:
    """DP-SGD under Poisson sampling as a row."""
    if baseline.calibration is None:
        return missing(BASELINE, "poisson", baseline.reason)
    own = {"label": BASELINE, "sampling": "poisson"}
    return own | numbers_of(baseline.calibration, baseline.seconds)


def beside(row: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """How many times the baseline's error is that of a row, rounded down."""
    if "rmse" not in row or "rmse" not in baseline:
        return {"times_less_rmse": None}
    return {"times_less_rmse": float(times(baseline["rmse"], row["rmse"], _GAIN_DIGITS))}


def cells_of(record: dict[str, Any]) -> dict[str, str]:
    """Plain data as people read it; the strategy, which its label names, left out."""
    cells = {}
    for key, value in record.items():
        if key == "strategy" or value is None:
            continue
        if key == "participation" and isinstance(value, dict):
            cells[key] = shown(key, repr(Participation.from_dict(value)))
        else:
            cells[key] = shown(key, value)
    return cells


def attempted(*writes: Any) -> DpmechError | None:  # noqa: ANN401 - callables without arguments
    """Call all, and return the first error: what was computed is printed before it is told."""
    first = None
    for write in writes:
        try:
            write()
        except DpmechError as error:
            first = first or error
    return first
