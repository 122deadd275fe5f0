"""How far every family is from the best matrix found, under Balls-in-Bins.

200 steps in 20 bins: 10 epochs, delta 1e-5. The best is the fit of `Dense`, a local search over all entries
>= 0: a better matrix may exist. All errors are proved bounds; they are sampled, and move by some tenths of a
per cent. Run as `python family_gaps.py FOLDER`; it writes the table and the numbers in some five minutes of
one core, and goes on with what the folder has.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

import dpmech as dm
from dpmech.numerics.printed import up

N, BINS, DELTA = 200, dm.BallsInBins(20), 1e-5
BUDGETS = (8.0, 1.0)
# Label, family, sizes; the best first.
ROWS: tuple[tuple[str, type[dm.Strategy], dict[str, int]], ...] = (
    ("`Dense`, all entries", dm.Dense, {}),
    ("`BandedToeplitz`, 20 bands", dm.BandedToeplitz, {"bands": 20}),
    ("`BandedInverse`, 16 bands", dm.BandedInverse, {"bands": 16}),
    ("`BLT`, 3 buffers", dm.BLT, {"buffers": 3}),
    ("`BLT`, 1 buffer", dm.BLT, {"buffers": 1}),
    ("`BandedInverse`, 4 bands", dm.BandedInverse, {"bands": 4}),
    ("`InverseSquareRoot`", dm.InverseSquareRoot, {"bands": 20}),
    ("`LambdaCGD`", dm.LambdaCGD, {}),
    ("`BandedToeplitz`, 4 bands", dm.BandedToeplitz, {"bands": 4}),
)


def error(
    family: type[dm.Strategy], sizes: dict[str, int], eps: float
) -> float:
    """RMSE of the best member at its calibrated sigma."""
    return dm.optimize(family, BINS, n=N, eps=eps, delta=DELTA, **sizes).error


def table(results: dict[str, float]) -> str:
    """Markdown: RMSE in clip norms, and what it is above that of the best."""
    lines = [
        "| family | "
        + " | ".join(f"RMSE at eps {eps:g} | above the best" for eps in BUDGETS)
        + " |"
    ]
    lines.append("|---" * (2 * len(BUDGETS) + 1) + "|")
    for label, *_ in ROWS:
        cells = []
        for eps in BUDGETS:
            own, best = (
                results[f"{label} / {eps:g}"],
                results[f"{ROWS[0][0]} / {eps:g}"],
            )
            cells += [
                up(own, 4),
                "" if own == best else f"{100 * (own / best - 1):.1f} %",
            ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute what is missing, and write table and numbers."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=pathlib.Path)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    numbers = given.folder / "family_gaps.json"
    results = (
        json.loads(numbers.read_text(encoding="utf-8"))
        if numbers.exists()
        else {}
    )
    for eps in BUDGETS:
        for label, family, sizes in ROWS:
            if f"{label} / {eps:g}" not in results:
                results[f"{label} / {eps:g}"] = error(family, sizes, eps)
                numbers.write_text(
                    json.dumps(results, indent=1) + "\n", encoding="utf-8"
                )
    text = table(results)
    (given.folder / "family_gaps.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
