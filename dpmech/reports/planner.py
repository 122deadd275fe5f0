"""The planning page: previews of many training plans, which need no network."""

import base64
import hashlib
import importlib.resources
from collections.abc import Sequence
from typing import Any

from dpmech.numerics import typed, up
from dpmech.reports.previews import USUAL, Preview, PreviewPlan
from dpmech.reports.rendering import environment

_SHOWN_DIGITS = 4


def planner_page(preview: Preview, *, made: str) -> str:
    """A page that needs no network; without scripts it shows tables.

    Args:
        preview: the numbers.
        made: date of the page.
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
            above=up(max(row.above for plan in preview.plans for row in plan.rows), 2),
            legend=_legend(preview),
            missing=[
                words
                for name, words in _MISSING.items()
                if all(row.sampling != name for row in preview.plans[0].rows)
            ],
            tables=[(plan, _tables(preview, plan)) for plan in preview.plans],
        )
    )


_MISSING = {
    "random-allocation": "DP-SGD under random allocation",
    "balls-in-bins": "correlated noise under Balls-in-Bins",
}
_SAMPLINGS = {
    "poisson": (
        "DP-SGD",
        "Independent noise. Every example joins every batch independently, with the same probability "
        "(Poisson sampling).",
    ),
    "random-allocation": (
        "random allocation",
        "Every example joins as many batches as there are epochs, selected uniformly at random from the run.",
    ),
    "min-sep": (
        "rows without a sampling scheme",
        "The order of the batches is fixed: every example returns once per epoch. It need not be secret.",
    ),
    "balls-in-bins": (
        "Balls-in-Bins",
        "Every example is assigned to a batch of the epoch once, at random, and joins it in every epoch. "
        "Strategies are fitted at a few values of eps, and the best one at the chosen eps is shown. Each "
        "number was proved from random samples, and holds except with probability 1e-9.",
    ),
}
_STRATEGIES = {
    "lambda-CGD": "Each step subtracts lambda times the noise of the previous step; lambda is fitted.",
    "BISR": "Banded inverse square root.",
    "BandMF": "Banded matrix factorization, fitted to the plan.",
    "BandInvMF": "Banded inverse matrix factorization, fitted to the plan.",
    "BLT": "Buffered linear Toeplitz, fitted to the plan: three buffers unless the label states a number.",
}


def _legend(preview: Preview) -> list[tuple[str, str]]:
    """What the labels of the rows mean."""
    rows = preview.plans[0].rows
    found = [one for name, one in _SAMPLINGS.items() if any(row.sampling == name for row in rows)]
    return found + [
        (name, words)
        for name, words in _STRATEGIES.items()
        if any(row.label.split(",")[0] == name for row in rows)
    ]


def _start(preview: Preview) -> float:
    """The initial eps: the largest usual value within the range, or the end of the range."""
    inside = [eps for eps in USUAL if preview.low <= eps <= min(preview.high, 8.0)]
    return inside[-1] if inside else preview.high


def _tables(preview: Preview, plan: PreviewPlan) -> Sequence[tuple[str, list[dict[str, Any]]]]:
    """For some values of eps, every row with its numbers, rounded up."""
    inside = [eps for eps in USUAL if preview.low <= eps <= preview.high] or [preview.high]
    return [
        (typed(eps), [_cells(preview, plan, place, eps) for place in range(len(plan.rows))]) for eps in inside
    ]


def _cells(preview: Preview, plan: PreviewPlan, place: int, eps: float) -> dict[str, Any]:
    row = plan.rows[place]
    found = preview.at(row, eps)
    cells: dict[str, Any] = {"label": row.label, "sampling": row.sampling}
    if found is None:
        return cells | dict.fromkeys(("sigma", "rmse", "noise"), "none")
    variant, sigma = found
    for name, factor in (("sigma", 1.0), ("rmse", variant.rmse), ("noise", variant.noise)):
        cells[name] = up(sigma * factor, _SHOWN_DIGITS)
    return cells
