"""How far every family is from the best matrix found, under Balls-in-Bins.

The small plan has 200 steps in 20 bins (10 epochs), and the large one the 3,900 steps of 50,000 examples in
batches of 128 for 10 epochs; delta is 1e-5. The best is the fit of `Dense` for the small plan, a local search
over all entries >= 0 within 20 bands, and that of `BandedToeplitz` with one band for every bin for the large
one: better matrices may exist. All errors are proved bounds; they are sampled, and move by some tenths of a
per cent. Run as `python family_gaps.py FOLDER`; it writes the tables and the numbers in some fifteen minutes
of one core, and goes on with what the folder has.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import TypeAlias

import dpmech as dm
from dpmech.numerics.printed import up

DELTA = 1e-5
INDEPENDENT = "`Identity`, Poisson (DP-SGD)"
# Label, family, sizes; the best first.
Row: TypeAlias = tuple[str, type[dm.Strategy], dict[str, int]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan under Balls-in-Bins, and the rows of its table.

    Attributes:
        name: start of the keys of its numbers, and end of the name of its table.
        n: steps.
        bins: batches of an epoch.
        sampling_prob: of DP-SGD with the same batches.
        budgets: eps of the columns.
        rows: the families.
    """

    name: str
    n: int
    bins: int
    sampling_prob: float
    budgets: tuple[float, ...]
    rows: tuple[Row, ...]

    def error(self, row: Row, eps: float) -> float:
        """RMSE of the best member at its calibrated sigma."""
        label, family, sizes = row
        if label == INDEPENDENT:
            noise, sampled = dm.Identity(self.n), dm.Poisson(self.sampling_prob)
            return dm.calibrate_sigma(
                noise, eps, DELTA, participation=sampled
            ).rmse()
        return dm.optimize(
            family,
            dm.BallsInBins(self.bins),
            n=self.n,
            eps=eps,
            delta=DELTA,
            **sizes,
        ).error

    def key(self, row: Row, eps: float) -> str:
        """Of the number of a row."""
        return f"{self.name}{row[0]} / {eps:g}"

    def table(self, results: dict[str, float]) -> str:
        """Markdown: RMSE in clip norms, and what it is above that of the best."""
        heads = [
            f"RMSE at eps {eps:g} | above the best" for eps in self.budgets
        ]
        lines = [
            f"| family | {' | '.join(heads)} |",
            "|---" * (2 * len(self.budgets) + 1) + "|",
        ]
        for row in self.rows:
            cells = []
            for eps in self.budgets:
                own, best = (
                    results[self.key(one, eps)] for one in (row, self.rows[0])
                )
                above = f"{100 * (own / best - 1):.1f} %"
                cells += [up(own, 4), "" if own == best else above]
            lines.append(f"| {row[0]} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


SMALL = Plan(
    "",
    200,
    20,
    0.05,
    (8.0, 1.0),
    (
        ("`Dense`, 20 bands", dm.Dense, {}),
        ("`BandedToeplitz`, 20 bands", dm.BandedToeplitz, {"bands": 20}),
        ("`BandedInverse`, 16 bands", dm.BandedInverse, {"bands": 16}),
        ("`BLT`, 3 buffers", dm.BLT, {"buffers": 3}),
        ("`BLT`, 1 buffer", dm.BLT, {"buffers": 1}),
        ("`BandedInverse`, 4 bands", dm.BandedInverse, {"bands": 4}),
        ("`InverseSquareRoot`", dm.InverseSquareRoot, {"bands": 20}),
        ("`LambdaCGD`", dm.LambdaCGD, {}),
        ("`BandedToeplitz`, 4 bands", dm.BandedToeplitz, {"bands": 4}),
    ),
)
LARGE = Plan(
    "large / ",
    3900,
    390,
    128 / 50_000,
    (8.0,),
    (
        ("`BandedToeplitz`, 390 bands", dm.BandedToeplitz, {"bands": 390}),
        ("`BLT`, 3 buffers", dm.BLT, {"buffers": 3}),
        ("`BLT`, 1 buffer", dm.BLT, {"buffers": 1}),
        ("`LambdaCGD`", dm.LambdaCGD, {}),
        (INDEPENDENT, dm.Identity, {}),
    ),
)
TABLES = {"family_gaps.txt": SMALL, "family_gaps_large.txt": LARGE}


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
    for plan in TABLES.values():
        for eps, row in itertools.product(plan.budgets, plan.rows):
            key = plan.key(row, eps)
            if key not in results:
                results[key] = plan.error(row, eps)
                numbers.write_text(
                    json.dumps(results, indent=1) + "\n", encoding="utf-8"
                )
    for name, plan in TABLES.items():
        text = plan.table(results)
        (given.folder / name).write_text(text, encoding="utf-8")
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
