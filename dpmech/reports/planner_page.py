"""The planner: a page that shows what a noise scale would be, and the command that certifies it."""

import base64
import hashlib
import importlib.resources
from collections.abc import Sequence
from typing import Any

from dpmech.numerics import typed, up
from dpmech.reports.previews import Preview, PreviewPlan
from dpmech.reports.rendering import environment

__all__ = ["planner_page"]

# Of the tables that need no script.
_TABLED = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_DIGITS = 4


def planner_page(preview: Preview, *, made: str) -> str:
    """One page without network; without script it shows tables.

    Args:
        preview: the numbers.
        made: when.
    """
    script = importlib.resources.files("dpmech.reports").joinpath("templates/planner.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    return (
        environment(escape=True)
        .get_template("planner.html")
        .render(
            preview=preview,
            made=made,
            data=preview.to_dict(),
            digest=digest,
            delta=typed(preview.delta),
            low=typed(preview.low),
            high=typed(preview.high),
            start=typed(_start(preview)),
            tables=[(plan, _tables(preview, plan)) for plan in preview.plans],
        )
    )


def _start(preview: Preview) -> float:
    """What the page begins with: the last of the usual ones that is in the range, or its end."""
    inside = [eps for eps in _TABLED if preview.low <= eps <= min(preview.high, 8.0)]
    return inside[-1] if inside else preview.high


def _tables(preview: Preview, plan: PreviewPlan) -> Sequence[tuple[str, list[dict[str, Any]]]]:
    """For some eps: every row with its numbers, rounded up."""
    inside = [eps for eps in _TABLED if preview.low <= eps <= preview.high] or [preview.high]
    return [
        (typed(eps), [_cells(preview, plan, place, eps) for place in range(len(plan.rows))]) for eps in inside
    ]


def _cells(preview: Preview, plan: PreviewPlan, place: int, eps: float) -> dict[str, Any]:
    row = plan.rows[place]
    sigma = preview.sigma(row, eps)
    cells: dict[str, Any] = {"label": row.label, "sampling": row.sampling}
    for name, factor in (("sigma", 1.0), ("rmse", row.rmse), ("noise", row.noise)):
        cells[name] = "none" if sigma is None else up(sigma * factor, _DIGITS)
    return cells
