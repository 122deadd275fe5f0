"""Error of private sums of gradients against eps: DP-SGD (Poisson sampling) and certified correlated noise.

The plan: 50,000 examples, batches of 128, 10 epochs, delta 1e-5. Every point is a proved bound from
`dm.calibrate_sigma`, and all correlated noise is fitted by `dm.optimize`, for every eps. The two rows under
Balls-in-Bins rest on samples, whose chance of a failed proof is inside delta: they move by a few tenths of a
per cent from run to run.

Run as `python error_against_eps.py FOLDER`; it writes a figure, a table and the numbers in twenty minutes.
A run that was stopped goes on with what the folder has.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable, Sequence

import dpmech as dm
from dpmech.numerics.printed import up

PLAN = dm.TrainingPlan(dataset_size=50_000, batch_size=128, epochs=10)
DELTA = 1e-5
BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
BINS = dm.BallsInBins(PLAN.bins)


def dp_sgd(eps: float) -> tuple[float, str]:
    """RMSE of independent noise under Poisson sampling, and what was chosen: nothing."""
    cal = dm.calibrate_sigma(
        dm.Identity(PLAN.steps),
        eps,
        DELTA,
        participation=dm.Poisson(PLAN.sampling_prob),
    )
    return cal.rmse(), ""


def blt(eps: float) -> tuple[float, str]:
    """The same of the best BLT with three buffers, in fixed order: nothing is amplified."""
    participation = PLAN.participation("min-sep")
    fit = dm.optimize(dm.BLT, participation, n=PLAN.steps, buffers=3)
    return dm.calibrate_sigma(
        fit.strategy, eps, DELTA, participation=participation
    ).rmse(), ""


def lambda_cgd(eps: float) -> tuple[float, str]:
    """The same of the best lambda under Balls-in-Bins."""
    fit = dm.optimize(dm.LambdaCGD, BINS, n=PLAN.steps, eps=eps, delta=DELTA)
    return fit.error, f"lam {fit.strategy.lam:.3g}"


def blt_bins(eps: float) -> tuple[float, str]:
    """The same of the best BLT with three buffers under Balls-in-Bins."""
    return dm.optimize(
        dm.BLT, BINS, n=PLAN.steps, eps=eps, delta=DELTA, buffers=3
    ).error, ""


# Name, sampling, function.
SERIES: tuple[tuple[str, str, Callable[[float], tuple[float, str]]], ...] = (
    ("DP-SGD", "Poisson sampling", dp_sgd),
    ("BLT, 3 buffers", "fixed order, not amplified", blt),
    ("LambdaCGD", "Balls-in-Bins", lambda_cgd),
    ("BLT, 3 buffers", "Balls-in-Bins", blt_bins),
)


def table(results: dict[str, dict[str, tuple[float, str]]]) -> str:
    """Markdown: RMSE in clip norms, rounded up, by eps."""
    budgets = sorted(
        {float(eps) for found in results.values() for eps in found}
    )
    lines = [
        f"| noise | sampling | {' | '.join(f'eps {eps:g}' for eps in budgets)} |"
    ]
    lines.append("|---" * (len(budgets) + 2) + "|")
    for name, sampling, _ in SERIES:
        cells = []
        for eps in budgets:
            error, chosen = results[f"{name} ({sampling})"][f"{eps:g}"]
            cells.append(up(error, 4) + (f" ({chosen})" if chosen else ""))
        lines.append(f"| {name} | {sampling} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(
    results: dict[str, dict[str, tuple[float, str]]], path: pathlib.Path
) -> None:
    """RMSE against eps, both logarithmic, in the current style; the baseline is black and dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2))
    axes = figure.subplots()
    for name, sampling, _ in SERIES:
        label = f"{name} ({sampling})"
        points = sorted(
            (float(eps), error) for eps, (error, _) in results[label].items()
        )
        axes.plot(
            [eps for eps, _ in points],
            [error for _, error in points],
            label=label,
            **(
                {"color": "black", "ls": "--", "marker": "X"}
                if name == "DP-SGD"
                else {}
            ),
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"eps at delta = {DELTA:g} (lower = stronger privacy)")
    axes.set_ylabel("RMSE of the sums, in clip norms (lower = better)")
    axes.legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute what is missing, and write figure, table and numbers."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=pathlib.Path)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    numbers = given.folder / "error_against_eps.json"
    results = (
        json.loads(numbers.read_text(encoding="utf-8"))
        if numbers.exists()
        else {}
    )
    for name, sampling, function in SERIES:
        for eps in reversed(BUDGETS):
            found = results.setdefault(f"{name} ({sampling})", {})
            if f"{eps:g}" not in found:
                found[f"{eps:g}"] = function(eps)
                numbers.write_text(
                    json.dumps(results, indent=1) + "\n", encoding="utf-8"
                )
    text = table(results)
    (given.folder / "error_against_eps.txt").write_text(text, encoding="utf-8")
    import matplotlib.style

    with matplotlib.style.context("dpmech.figures"):
        draw(results, given.folder / "error_against_eps.png")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
