"""python -m verification.tables NAME: a paper's table as printed, and as dpmech has it."""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import sys
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import dpmech as dm
from dpmech.audits import audit
from dpmech.numerics import up
from dpmech.plans import published_claims, read_claims
from verification import text_numbers
from verification.harness.cells import Cell, Cells
from verification.lambda_cgd.amplified import MEANT, MISPRINT, strategy
from verification.lambda_cgd.printed_table import BINS, DELTA, EPOCHS, EPS, TABLE
from verification.spectral.tables import BATCH, BUDGET, LONE, QQP, STEPS, TABLE_1

# Why amplified cells of Table 4 differ from print, by family and parameter.
_DIFFERENT: dict[tuple[str, float], str] = {
    ("BandInvMF", 2): "print does not agree with its neighbour at 0.975 (cgd.tab4_amp_bandinv2)",
    ("BandInvMF", BINS): "fitted with C >= 0, as the bound needs (cgd.tab4_amp_bandinv)",
}
_NOT_PRINTED = "the fitted coefficients are not printed (cgd.tab4_amp_bandinv)"


def _different(family: str, parameter: float, eps: float, *, sampled: bool = True) -> str:
    if not sampled:
        full = (family, parameter) == ("BandInvMF", BINS)
        return "fitted with C >= 0, as eq. 3 needs (cgd.tab4_bandinv_b)" if full else ""
    if (family, parameter, eps) == MISPRINT:
        return f"misprint of {MEANT}: the error cannot fall with eps (cgd.tab4_amp_bisr16)"
    return _DIFFERENT.get((family, parameter), _NOT_PRINTED if family == "BandInvMF" else "")


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
    note = _different(family, parameter, eps, sampled=sampled)
    return Cell(name, printed, cal.rmse(), str(cal.guarantee), note)


def _audited(name: str) -> Cells:
    """The eps of published claims."""
    note = _WHY.get(name, "")
    for claim in read_claims(published_claims()[name]):

        def cell(claim: dm.audits.PublishedClaim = claim) -> Cell:
            (found,) = audit([claim])
            ours = math.nan if found.certified is None else found.certified.upper
            stated = found.reason if found.certified is None else str(found.certified.guarantee)
            label = f"{claim.name}, sigma {claim.sigma:g}"
            own = "49 blocks of a batch are one release" if claim.blocks > 1 else note
            return Cell(label, claim.claimed_eps, ours, stated, "" if found.certified is None else own)

        yield cell


def _saved() -> Cells:
    """Savings of eps in Table 1, by its speed-ups; with delta 1e-6 for QQP, from which its cells follow."""
    rows = TABLE_1 | {"QQP": (QQP[0], 1e-6, QQP[2])}
    rows["SST-2"] = (*rows["SST-2"][:2], [*rows["SST-2"][2], LONE])
    for data, (examples, delta, cells) in rows.items():
        for steps, speedup, printed in cells:
            note = "with delta 1e-6: 1e-5 is a misprint (rmt.tab1_qqp)" if data == "QQP" else ""
            if (steps, speedup, printed) == LONE:
                note = "not reproduced (rmt.tab1_lone)"
            yield functools.partial(_saving, data, examples, delta, steps, speedup, printed, note)


def _saving(
    data: str, examples: int, delta: float, steps: int, speedup: float, printed: float, note: str
) -> Cell:
    sampling = dm.Poisson(BATCH / examples)
    cal = dm.calibrate_sigma(dm.Identity(STEPS), BUDGET, delta, participation=sampling)
    reached = steps * (1.0 - speedup)
    whole = math.floor(reached)
    at = [dm.executed_epsilon(cal, count).upper for count in (steps, whole, whole + 1)]
    ours = at[0] - at[1] - (reached - whole) * (at[2] - at[1])
    label = f"{data}, step {steps}, {100 * speedup:.1f} % faster"
    return Cell(label, printed, ours, "difference of two upper bounds", note)


# What each prints, and how long it takes on one core.
TABLES: dict[str, str] = {
    "lambda_cgd_4": "RMSE of 25 strategies over eps (Table 4); hours, with --eps 8 ten minutes, with "
    "--eps 8 --family CGD half a minute",
    "lambda_cgd_text": "noise of Figure 1, and the factors of Theorem 4; seconds",
    "lambda_cgd_5": "time of a step's noise with regeneration (Table 5), on this machine; seconds",
    "muon_3": "eps and sigma of DP-Muon and its comparisons (Table 3); seconds",
    "muon_bias": "bias after Newton-Schulz over rho (Theorem 4.1); seconds",
    "noise_share_3": "eps of DP-Adam with and without amplification (Table 3); seconds",
    "noise_share_phi": "Phi, kappa and the other numbers of the text; seconds",
    "sde_1": "powers of sigma and eps in the floors of the loss (Figure 1); half a minute",
    "sde_imdb": "eps on the plots for IMDB; a minute and more",
    "sde_stackoverflow": "eps on the plots for StackOverflow; four minutes",
    "sde_quadratics": "eps on the plots for quadratics; seconds",
    "spectral_1": "savings of eps from earlier convergence (Table 1); half a minute",
}
_CLAIMS = {"noise_share_3": "noise_share"}
_LABEL = "printed is q sqrt(T ln(1/delta)) / sigma, no guarantee"
_WHY = {
    "dp_muon": "printed by Renyi accounting, which is loose",
    "noise_share": "printed is the upper end of an interval of width 0.02",
    "sde_imdb": _LABEL,
    "sde_stackoverflow": _LABEL,
    "sde_quadratics": _LABEL,
}


def cells_of(name: str, eps: list[float] | None = None, families: list[str] | None = None) -> Cells:
    """Functions that compute the cells of a table, one each.

    Args:
        name: of `TABLES`.
        eps: columns of lambda_cgd_4; None for all.
        families: its rows; None for all.
    """
    match name:
        case "lambda_cgd_4":
            known = list(dict.fromkeys(family for family, _ in TABLE))
            return _cgd(list(EPS) if eps is None else eps, known if families is None else families)
        case "lambda_cgd_text":
            return text_numbers.lambda_cgd()
        case "lambda_cgd_5":
            return text_numbers.noise_costs()
        case "muon_3":
            return itertools.chain(_audited("dp_muon"), text_numbers.muon_sigmas())
        case "muon_bias":
            return text_numbers.muon_bias()
        case "noise_share_phi":
            return text_numbers.noise_share()
        case "sde_1":
            return text_numbers.sde()
        case "spectral_1":
            return _saved()
        case _:
            return _audited(_CLAIMS.get(name, name))


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
    if options.name != "lambda_cgd_4" and (options.eps or options.family):
        parser.error(f"--eps and --family choose cells of lambda_cgd_4; leave them out for {options.name}")
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
    notes = _notes(cells)
    for column in ("cell", "printed", "ours", "ours over printed", "guarantee of ours"):
        table.add_column(column, justify="left" if column in ("cell", "guarantee of ours") else "right")
    if notes:
        table.add_column("note", justify="right")
        table.caption = "\n".join(f"{place}: {note}" for note, place in notes.items())
        table.caption_justify = "left"
    for cell in cells:
        values = ("-", "-")
        if not math.isnan(cell.ours):
            values = (up(cell.ours, 5), f"{100.0 * (cell.ours / cell.printed - 1.0):+.1f} %")
        own = [str(notes.get(cell.note, ""))] if notes else []
        table.add_row(cell.name, f"{cell.printed:g}", *values, cell.guarantee, *own)
    return table


def _notes(cells: list[Cell]) -> dict[str, int]:
    """Why cells differ, numbered."""
    return {note: place for place, note in enumerate(dict.fromkeys(one.note for one in cells if one.note), 1)}


if __name__ == "__main__":
    sys.exit(main())
