"""Is the lambda of least RMSE that of the best accuracy? The DP-lambda-CGD paper's Figures 3 and 4, on texts.

Softmax regression learns which of six packages a paragraph of docstrings is
from (`accuracy_tasks.py`), in 4 epochs of 100 steps at eps 4, delta 1e-5, with
the noise of `LambdaCGD`: in a fixed order, without amplification (Figure 3),
and under Balls-in-Bins (Figure 4). Every lambda has its own learning rate, and
the last weights or their average, by the accuracy on a validation part
(`accuracy_study.py`).

Run as `python lambda_sweep.py FOLDER`; table and numbers go into the folder. It
takes some five minutes of one core.
"""

import argparse
import math
import pathlib
import sys
from collections.abc import Sequence

import numpy as np
import torch
from accuracy_study import (
    DELTA,
    SEEDS,
    SGD,
    Store,
    interval,
    participation,
    tuned,
)
from accuracy_tasks import TASKS, Task
from accuracy_training import Noise, Plan

import dpmech as dm

PLAN = Plan("texts", "softmax", bins=100, epochs=4, eps=4.0)
LAMBDAS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.975)
KINDS = {"min-sep": "in a fixed order", "balls-in-bins": "Balls-in-Bins"}


def noise_of(kind: str, lam: float) -> Noise:
    """Certified at the plan's eps; C of lambda is that of a BLT with one buffer."""
    where = participation(kind, PLAN.bins, PLAN.epochs)
    strategy: dm.Strategy = dm.Identity(PLAN.steps)
    if lam:
        strategy = dm.BLT(PLAN.steps, [lam], [lam])
    cal = dm.calibrate_sigma(
        strategy, PLAN.eps, DELTA, participation=where, rng=0
    )
    if not cal.guarantee.rigorous:
        raise SystemExit(f"{kind}, lambda {lam}: this sigma is no proved bound")
    return Noise(strategy, where, cal.sigma, cal.rmse())


def result(task: Task, kind: str, lam: float, seeds: int) -> dict:
    """RMSE and test accuracies, one a seed, as plain data."""
    noise = noise_of(kind, lam)
    runs = tuned(PLAN, task, noise, SGD, seeds, noisy=True)
    best = max(runs.values(), key=lambda one: one["validation"])
    return {"rmse": noise.rmse, "rate": best["rate"], "test": best["test"]}


def name_of(kind: str, lam: float) -> str:
    """Of a result."""
    return f"{kind}, lambda {lam:g}"


def table(found: dict) -> str:
    """Markdown: a row for each lambda, the best of a column bold, and how far apart the best ones are."""
    lines = ["| lambda |", "|---|"]
    for words in KINDS.values():
        lines[0] += f" RMSE, {words} | accuracy |"
        lines[1] += "---|---|"
    columns = []
    for kind in KINDS:
        mine = [found[name_of(kind, lam)] for lam in LAMBDAS]
        errors = [one["rmse"] for one in mine]
        accuracies = [interval(np.array(one["test"])) for one in mine]
        means = [mean for mean, _ in accuracies]
        columns.append(
            # Rounded up: a bound on an error.
            _bold(
                [f"{math.ceil(100 * one) / 100:.2f}" for one in errors],
                int(np.argmin(errors)),
            )
        )
        columns.append(
            _bold(
                [
                    f"{100 * mean:.1f} ± {100 * width:.1f}"
                    for mean, width in accuracies
                ],
                int(np.argmax(means)),
            )
        )
    for place, lam in enumerate(LAMBDAS):
        cells = [f"{lam:g}", *(column[place] for column in columns)]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for kind, words in KINDS.items():
        mine = {lam: found[name_of(kind, lam)] for lam in LAMBDAS}
        chosen = min(mine, key=lambda lam: mine[lam]["rmse"])
        best = max(mine, key=lambda lam: float(np.mean(mine[lam]["test"])))
        ours, other = (np.array(mine[lam]["test"]) for lam in (best, chosen))
        mean, width = interval(ours - other)
        lines.append(
            f"{words[0].upper()}{words[1:]}: lambda {best:g} is ahead of {chosen:g}, that of the "
            f"least RMSE, by {100 * mean:.1f} ± {100 * width:.1f} points."
        )
    return "\n".join(lines) + "\n"


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
    task = TASKS[PLAN.task]()
    for kind in KINDS:
        for lam in LAMBDAS:
            store.get(
                name_of(kind, lam),
                lambda: result(task, kind, lam, given.seeds),  # noqa: B023 - called at once
            )
    text = table(store.found)
    (given.folder / "lambda_sweep.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
