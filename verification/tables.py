"""python -m verification.tables NAME: a paper's table as printed, and as dpmech has it."""

import argparse
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import dpmech as dm
from dpmech.audits import audit
from dpmech.numerics import up
from dpmech.plans import published_claims, read_claims
from verification.lambda_cgd.amplified import strategy
from verification.lambda_cgd.printed_table import BINS, DELTA, EPOCHS, EPS, TABLE
from verification.spectral.tables import BATCH, BUDGET, LONE, QQP, STEPS, TABLE_1


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        name: its row and column.
        printed: as in the paper.
        ours: certified by dpmech; NaN if it refuses.
        guarantee: of ours.
    """

    name: str
    printed: float
    ours: float
    guarantee: str


Cells = Iterator[Callable[[], Cell]]


def _cgd(eps: list[float], families: list[str]) -> Cells:
    """RMSE of Table 4: eps 8 without amplification, then with Balls-in-Bins (DP-SGD: Poisson)."""
    columns = [(8.0, False), *((one, True) for one in EPS)]
    for (family, parameter), row in TABLE.items():
        for (one, sampled), printed in zip(columns, row, strict=True):
            if one in eps and family in families:
                yield functools.partial(_cgd_cell, family, parameter, one, printed, sampled=sampled)


def _cgd_cell(family: str, parameter: float, eps: float, printed: float, *, sampled: bool) -> Cell:
    participation: dm.Participation = dm.MinSep(BINS, EPOCHS)
    if sampled:
        participation = dm.Poisson(1.0 / BINS) if family == "DP-SGD" else dm.BallsInBins(BINS)
    label = family if parameter == 0 else f"{family} {parameter:g}"
    name = f"{label}, eps {eps:g}{', amplified' if sampled else ''}"
    try:
        cal = dm.calibrate_sigma(strategy(family, parameter), eps, DELTA, participation=participation, rng=1)
    except dm.UnsupportedCombinationError as error:
        return Cell(name, printed, math.nan, f"refused: {error.reason}")
    return Cell(name, printed, cal.rmse(), str(cal.guarantee))


def _audited(name: str) -> Cells:
    """The eps of published claims."""
    for claim in read_claims(published_claims()[name]):

        def cell(claim: dm.audits.PublishedClaim = claim) -> Cell:
            (found,) = audit([claim])
            ours = math.nan if found.certified is None else found.certified.upper
            stated = found.reason if found.certified is None else str(found.certified.guarantee)
            return Cell(f"{claim.name}, sigma {claim.sigma:g}", claim.claimed_eps, ours, stated)

        yield cell


def _saved() -> Cells:
    """Savings of eps in Table 1, by its speed-ups; with delta 1e-6 for QQP, from which its cells follow."""
    rows = TABLE_1 | {"QQP": (QQP[0], 1e-6, QQP[2])}
    rows["SST-2"] = (*rows["SST-2"][:2], [*rows["SST-2"][2], LONE])
    for data, (examples, delta, cells) in rows.items():
        for steps, speedup, printed in cells:
            yield functools.partial(_saving, data, examples, delta, steps, speedup, printed)


def _saving(data: str, examples: int, delta: float, steps: int, speedup: float, printed: float) -> Cell:
    sampling = dm.Poisson(BATCH / examples)
    cal = dm.calibrate_sigma(dm.Identity(STEPS), BUDGET, delta, participation=sampling)
    reached = steps * (1.0 - speedup)
    whole = math.floor(reached)
    at = [dm.executed_epsilon(cal, count).upper for count in (steps, whole, whole + 1)]
    ours = at[0] - at[1] - (reached - whole) * (at[2] - at[1])
    return Cell(
        f"{data}, step {steps}, {100 * speedup:.1f} % faster", printed, ours, "difference of two upper bounds"
    )


TABLES: dict[str, str] = {
    "lambda_cgd_4": "RMSE of 25 strategies over eps; an hour and more, with --eps 8 ten minutes",
    "muon_3": "eps of DP-Muon and its comparisons",
    "noise_share_3": "eps of DP-Adam with and without amplification",
    "sde_imdb": "eps on the plots for IMDB, a minute and more",
    "sde_stackoverflow": "eps on the plots for StackOverflow, minutes",
    "sde_quadratics": "eps on the plots for quadratics",
    "spectral_1": "savings of eps from earlier convergence",
}
_CLAIMS = {"muon_3": "dp_muon", "noise_share_3": "noise_share"}


def cells_of(name: str, eps: list[float] | None = None, families: list[str] | None = None) -> Cells:
    """Functions that compute the cells of a table, one each.

    Args:
        name: of `TABLES`.
        eps: columns of lambda_cgd_4; None for all.
        families: its rows; None for all.
    """
    if name == "lambda_cgd_4":
        known = list(dict.fromkeys(family for family, _ in TABLE))
        return _cgd(list(EPS) if eps is None else eps, known if families is None else families)
    return _saved() if name == "spectral_1" else _audited(_CLAIMS.get(name, name))


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m verification.tables", description=__doc__)
    listed = "; ".join(f"{name}: {words}" for name, words in TABLES.items())
    parser.add_argument("name", choices=TABLES, metavar="NAME", help=listed)
    parser.add_argument("--eps", type=float, action="append", choices=EPS, help="column of lambda_cgd_4")
    families = list(dict.fromkeys(family for family, _ in TABLE))
    parser.add_argument("--family", action="append", choices=families, help="rows of lambda_cgd_4")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    work = list(cells_of(options.name, options.eps, options.family))
    found = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for one in progress.track(work, description=options.name):
            found.append(one())
    if options.json:
        sys.stdout.write(json.dumps([_record(cell) for cell in found], indent=2) + "\n")
    else:
        Console(width=120).print(_table(options.name, found))
    return 0


def _record(cell: Cell) -> dict[str, Any]:
    return dataclasses.asdict(cell) | {"ours": None if math.isnan(cell.ours) else cell.ours}


def _table(name: str, cells: list[Cell]) -> Table:
    table = Table(title=f"{name}: {TABLES[name].split(';')[0]}")
    for column in ("cell", "printed", "ours", "ours over printed", "guarantee of ours"):
        table.add_column(column, justify="left" if column in ("cell", "guarantee of ours") else "right")
    for cell in cells:
        values = ("-", "-")
        if not math.isnan(cell.ours):
            values = (up(cell.ours, 5), f"{100.0 * (cell.ours / cell.printed - 1.0):+.1f} %")
        table.add_row(cell.name, f"{cell.printed:g}", *values, cell.guarantee)
    return table


if __name__ == "__main__":
    sys.exit(main())
