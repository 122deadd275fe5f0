"""Is the lambda of least RMSE that of the best accuracy? The DP-lambda-CGD paper's Figures 3 and 4, on texts.

Softmax regression learns which of six packages a paragraph of docstrings is
from (`accuracy_tasks.py`), in 4 epochs of 100 steps at eps 4, delta 1e-5, with
the noise of `LambdaCGD`: in a fixed order, without amplification (Figure 3),
and under Balls-in-Bins (Figure 4). Then in one epoch at eps 8, by SGD and by
Adam, as in Table 3 of the noise-share paper. Every lambda has its own learning
rate, and the last weights or their average, by the accuracy on a validation
part (`accuracy_study.py`).

Run as `python lambda_sweep.py FOLDER`; table and numbers go into the folder. It
takes some ten minutes of one core.
"""

import argparse
import dataclasses
import math
import pathlib
import sys
from collections.abc import Sequence

import numpy as np
import torch
from accuracy_study import (
    BINS,
    DELTA,
    SEEDS,
    SGD,
    Store,
    interval,
    participation,
    tuned,
)
from accuracy_tasks import TASKS, Task
from accuracy_training import Noise, Plan, Rule

import dpmech as dm

LAMBDAS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.975)
ADAM = Rule("Adam", 0.000125, adam=(0.9, 0.999), subtract=False)


@dataclasses.dataclass(frozen=True)
class Column:
    """What one column of accuracies has in common.

    Args:
        words: for the table.
        kind: of participation.
        epochs: of 100 steps.
        eps: at DELTA.
        rule: of the updates.
    """

    words: str
    kind: str
    epochs: int = 4
    eps: float = 4.0
    rule: Rule = SGD

    @property
    def plan(self) -> Plan:
        """Of all its runs."""
        return Plan("texts", "softmax", BINS[0], self.epochs, self.eps)


TABLES = {
    "lambda_sweep": (
        Column("in a fixed order", "min-sep"),
        Column("Balls-in-Bins", "balls-in-bins"),
    ),
    "lambda_sweep_once": (
        Column("one epoch, SGD", "min-sep", 1, 8.0),
        Column("one epoch, Adam", "min-sep", 1, 8.0, ADAM),
    ),
}


def noise_of(column: Column, lam: float) -> Noise:
    """Certified at the column's eps; C of lambda is that of a BLT with one buffer."""
    plan = column.plan
    where = participation(column.kind, plan.bins, plan.epochs)
    strategy: dm.Strategy = dm.Identity(plan.steps)
    if lam:
        strategy = dm.BLT(plan.steps, [lam], [lam])
    cal = dm.calibrate_sigma(
        strategy, plan.eps, DELTA, participation=where, rng=0
    )
    if not cal.guarantee.rigorous:
        raise SystemExit(
            f"{column.words}, lambda {lam}: this sigma is no proved bound"
        )
    return Noise(strategy, where, cal.sigma, cal.rmse())


def result(task: Task, column: Column, lam: float, seeds: int) -> dict:
    """RMSE and test accuracies, one a seed, as plain data."""
    noise = noise_of(column, lam)
    runs = tuned(column.plan, task, noise, column.rule, seeds, noisy=True)
    best = max(runs.values(), key=lambda one: one["validation"])
    return {"rmse": noise.rmse, "rate": best["rate"], "test": best["test"]}


def name_of(column: Column, lam: float) -> str:
    """Of a result."""
    return f"{column.words}, lambda {lam:g}"


def table(found: dict, columns: Sequence[Column]) -> str:
    """Markdown: a row for each lambda, the best of a column bold, and how far apart the best ones are."""
    lines = ["| lambda |", "|---|"]
    cells, remarks = [], []
    for column in columns:
        lines[0] += f" RMSE, {column.words} | accuracy |"
        lines[1] += "---|---|"
        mine = [found[name_of(column, lam)] for lam in LAMBDAS]
        tests = [np.array(one["test"]) for one in mine]
        errors = [one["rmse"] for one in mine]
        means = [one.mean() for one in tests]
        chosen, best = int(np.argmin(errors)), int(np.argmax(means))
        # Rounded up: a bound on an error.
        cells.append(
            _bold(
                [f"{math.ceil(100 * one) / 100:.2f}" for one in errors], chosen
            )
        )
        cells.append(_bold([_with_width(one) for one in tests], best))
        words = column.words[0].upper() + column.words[1:]
        ahead = f"ahead of independent noise by {_with_width(tests[best] - tests[0])} points"
        if best == chosen:
            said = f"{LAMBDAS[best]:g} has the lowest RMSE and the highest accuracy, {ahead}."
        else:
            gain = _with_width(tests[best] - tests[chosen])
            said = (
                f"{LAMBDAS[best]:g} is ahead of lambda {LAMBDAS[chosen]:g}, which has the lowest RMSE, "
                f"by {gain} points, and {ahead}."
            )
        remarks.append(f"{words}: lambda {said}")
    for place, lam in enumerate(LAMBDAS):
        row = [f"{lam:g}", *(column[place] for column in cells)]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", *remarks]) + "\n"


def _with_width(values: np.ndarray) -> str:
    mean, width = interval(values)
    return f"{100 * mean:.1f} ± {100 * width:.1f}"


def _bold(cells: list[str], best: int) -> list[str]:
    return [
        f"**{cell}**" if place == best else cell
        for place, cell in enumerate(cells)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is not in the folder, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    store = Store(given.folder / "lambda_sweep.json")
    task = TASKS["texts"]()
    for name, columns in TABLES.items():
        for column in columns:
            for lam in LAMBDAS:
                store.get(
                    name_of(column, lam),
                    lambda: result(task, column, lam, given.seeds),  # noqa: B023 - called at once
                )
        text = table(store.found, columns)
        (given.folder / f"{name}.txt").write_text(text, encoding="utf-8")
        sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
