"""What `dpmech optimize` shows of fits: rows, tables and the figure."""

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from dpmech.cli.baseline import BASELINE, Baseline, error_of
from dpmech.cli.figures import save_figure
from dpmech.cli.options import ResolvedPlan
from dpmech.cli.printing import shown, width
from dpmech.cli.rows import as_data
from dpmech.cli.tables import Column, Row, stacked
from dpmech.cli.words import plain
from dpmech.fitting import Fit
from dpmech.mechanism import Strategy, noise_cost
from dpmech.numerics import times, typed
from dpmech.plans import FamilyEntry

__all__ = ["Found", "baseline_of_fits", "draw", "independent_row", "row_of", "table_of"]


@dataclasses.dataclass(frozen=True)
class Found:
    """The fit of one family, and what it took."""

    entry: FamilyEntry
    fit: Fit
    seconds: float


def row_of(found: Found, objective: str) -> dict[str, Any]:
    """A fit as plain data."""
    fit, cal = found.fit, found.fit.calibration
    cost = noise_cost(fit.strategy)
    return {
        "family": found.entry.label,
        objective: fit.error,
        "sigma": None if cal is None else cal.sigma,
        "guarantee": None if cal is None else str(cal.guarantee),
        "buffers": cost.buffers,
        "bytes_per_parameter": cost.bytes_per_parameter,
        "redrawn": cost.redrawn,
        "seconds": round(found.seconds, 1),
        "strategy": as_data(fit.strategy),
    }


def baseline_of_fits(baseline: Baseline, objective: str) -> dict[str, Any]:
    """DP-SGD under Poisson sampling in the columns of the fits; where it has no numbers, with the reason."""
    cal = baseline.calibration
    row = {
        "family": BASELINE,
        objective: None if cal is None else error_of(cal, objective),
        "sigma": None if cal is None else cal.sigma,
        "guarantee": None if cal is None else str(cal.guarantee),
        "buffers": 0,
        "bytes_per_parameter": 0,
        "redrawn": 0,
        "seconds": round(baseline.seconds, 1),
        "strategy": None if cal is None else cal.strategy.to_dict(),
    }
    return row | ({"unavailable": baseline.reason} if cal is None else {})


def independent_row(fit: Fit) -> dict[str, Any]:
    """The row of independent noise under the plan's own sampling, which every fit was compared with."""
    return {
        "family": "identity",
        fit.objective: fit.identity_error,
        "sigma": None,
        "guarantee": None,
        "buffers": 0,
        "bytes_per_parameter": 0,
        "redrawn": 0,
        "seconds": None,
        "strategy": None,
    }


_CAPTION = (
    "errors in units of the clip norm at the calibrated sigma; times less: error of the baseline over that "
    "of the row, rounded down; identity: independent noise under the plan's own sampling; buffers: vectors "
    "of the model's size that the noise keeps, 8 bytes a parameter; redrawn: vectors drawn again every step; "
    "sigma: of identity and DP-SGD that of i.i.d. noise, of other families that of correlated noise, no "
    "number for DP-SGD tools"
)


def table_of(
    baseline: dict[str, Any], rows: list[dict[str, Any]], eps: float, objective: str
) -> list[RenderableType]:
    """The families at one eps."""
    columns = (
        Column("family", "family", fixed=True),
        Column(objective, objective),
        Column("times", "times less"),
        *(Column(name, name) for name in ("sigma", "buffers", "redrawn", "seconds")),
        Column("guarantee", "guarantee", text=True),
        Column("described", "strategy", text=True),
    )
    best = min(row[objective] for row in rows)
    reference = baseline[objective]
    lines = []
    for row in (baseline, *rows):
        compared = row is not baseline and reference is not None
        cells = row | {
            "times": times(reference, row[objective], 3) if compared else None,
            "described": _described(row),
        }
        style = "italic" if row is baseline else "bold" if row[objective] == best else None
        lines.append(Row({one.key: shown(one.key, cells[one.key]) for one in columns}, style))
    title = f"best of every family at eps {typed(eps)}"
    printed = stacked(columns, lines, width(), title=title, caption=_CAPTION)
    if "unavailable" in baseline:
        printed.append(Text(f"no number for {BASELINE}: {plain(baseline['unavailable'])}"))
    return printed


def _described(row: dict[str, Any]) -> str:
    own = row["strategy"]
    if own is None or "fingerprint" in own:
        return "" if own is None else f"{own['type']}(n={own['n']})"
    return repr(Strategy.from_dict(own))


def draw(
    baselines: dict[float, dict[str, Any]],
    rows: dict[float, list[dict[str, Any]]],
    plan: ResolvedPlan,
    objective: str,
    path: Path,
) -> None:
    """Error against eps, a line for each family, into a file.

    Raises:
        InvalidParameterError: if it cannot be written.
        MissingDependencyError: without matplotlib.
    """
    from dpmech import plots  # matplotlib is optional

    known = {eps: row[objective] for eps, row in baselines.items() if row[objective] is not None}
    names = [row["family"] for row in next(iter(rows.values()))]
    errors = ({BASELINE: known} if known else {}) | {
        name: {
            eps: next(row[objective] for row in found if row["family"] == name) for eps, found in rows.items()
        }
        for name in names
    }
    drawn = plots.error_by_eps(
        errors, label=f"{objective} (clip norms)", title=f"{plan.participation!r}, n = {plan.training.n}"
    )
    save_figure(drawn, path)
