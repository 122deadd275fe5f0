"""Three plans of training, seven kinds of noise, two budgets: the table of the page on choosing a strategy.

Every number is a proved bound from `dm.calibrate_sigma`; what rests on samples moves by a few tenths of a per
cent. Strategies are fitted by `dm.optimize`, without data. Run as `python which_strategy.py FOLDER`, for some
forty minutes; it writes the table and the numbers, and goes on with what the folder has.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable, Sequence

import dpmech as dm
from dpmech.fitting import cyclic_choices
from dpmech.mechanism.noise_cost import noise_cost
from dpmech.numerics.printed import up

DELTA = 1e-5
BUDGETS = (1.0, 8.0)
PLANS = (
    ("digits", dm.TrainingPlan(dataset_size=1497, batch_size=299, epochs=10)),
    ("middle", dm.TrainingPlan(dataset_size=10_000, batch_size=100, epochs=5)),
    (
        "CIFAR-10",
        dm.TrainingPlan(dataset_size=50_000, batch_size=128, epochs=10),
    ),
)
Found = dict[str, float | int | str]


def _found(cal: dm.Calibration, chosen: str) -> Found:
    cost = noise_cost(cal.strategy)
    return {
        "rmse": cal.rmse(),
        "buffers": cost.buffers,
        "regenerated": cost.regenerated,
        "chosen": chosen,
    }


def dp_sgd(plan: dm.TrainingPlan, eps: float) -> Found:
    """Independent noise, Poisson sampling."""
    cal = dm.calibrate_sigma(
        dm.Identity(plan.steps),
        eps,
        DELTA,
        participation=dm.Poisson(plan.sampling_prob),
    )
    return _found(cal, "")


def banded_cyclic(plan: dm.TrainingPlan, eps: float) -> Found:
    """The best banded strategy under cyclic Poisson sampling, over some numbers of groups."""
    choices = cyclic_choices(
        plan.sampling_prob,
        [cycle for cycle in (2, 4, 8, 16) if cycle * plan.sampling_prob < 1.0],
    )
    fit = dm.optimize(
        dm.BandedToeplitz, choices, n=plan.steps, eps=eps, delta=DELTA
    )
    cal = dm.calibrate_sigma(
        fit.strategy, eps, DELTA, participation=fit.participation
    )
    return _found(cal, f"{fit.strategy.bands} bands")


def blt_fixed(plan: dm.TrainingPlan, eps: float) -> Found:
    """The best BLT with three buffers in fixed order."""
    participation = plan.participation("min-sep")
    fit = dm.optimize(dm.BLT, participation, n=plan.steps, buffers=3)
    return _found(
        dm.calibrate_sigma(
            fit.strategy, eps, DELTA, participation=participation
        ),
        "",
    )


def allocated(plan: dm.TrainingPlan, eps: float) -> Found:
    """Independent noise, every example in exactly as many steps as there are epochs."""
    participation = plan.participation("random-allocation")
    return _found(
        dm.calibrate_sigma(
            dm.Identity(plan.steps), eps, DELTA, participation=participation
        ),
        "",
    )


def _fitted_bins(
    family: type[dm.Strategy], plan: dm.TrainingPlan, eps: float, **options: int
) -> dm.Calibration:
    bins = dm.BallsInBins(plan.bins)
    fit = dm.optimize(
        family, bins, n=plan.steps, eps=eps, delta=DELTA, **options
    )
    return fit.calibration


def lambda_bins(plan: dm.TrainingPlan, eps: float) -> Found:
    """The best lambda under Balls-in-Bins."""
    cal = _fitted_bins(dm.LambdaCGD, plan, eps)
    return _found(cal, f"lam {cal.strategy.lam:.3g}")


def bisr_bins(plan: dm.TrainingPlan, eps: float) -> Found:
    """The inverse square root under Balls-in-Bins, with the best number of bands up to 64."""
    cal = _fitted_bins(
        dm.InverseSquareRoot, plan, eps, bands=min(64, plan.bins)
    )
    return _found(cal, f"{cal.strategy.inverse_bands} bands")


def blt_bins(plan: dm.TrainingPlan, eps: float) -> Found:
    """The best BLT with three buffers under Balls-in-Bins."""
    return _found(_fitted_bins(dm.BLT, plan, eps, buffers=3), "")


ROWS: tuple[tuple[str, str, Callable[[dm.TrainingPlan, float], Found]], ...] = (
    ("`Identity`: DP-SGD", "Poisson", dp_sgd),
    ("`Identity`", "random allocation", allocated),
    ("`BLT`, 3 buffers", "fixed order", blt_fixed),
    ("`BandedToeplitz`", "cyclic Poisson", banded_cyclic),
    ("`LambdaCGD`", "Balls-in-Bins", lambda_bins),
    ("`InverseSquareRoot`", "Balls-in-Bins", bisr_bins),
    ("`BLT`, 3 buffers", "Balls-in-Bins", blt_bins),
)


def table(results: dict[str, Found]) -> str:
    """Markdown: RMSE in clip norms, rounded up, and the cost of the noise on the largest plan."""
    heads = [f"{name}, eps {eps:g}" for name, _ in PLANS for eps in BUDGETS]
    lines = [
        f"| noise | sampling | {' | '.join(heads)} | stored vectors | regenerated vectors |",
        "|---" * (len(heads) + 4) + "|",
    ]
    for row, sampling, _ in ROWS:
        cells = []
        for name, _ in PLANS:
            for eps in BUDGETS:
                one = results[f"{row} / {sampling} / {name} / {eps:g}"]
                cells.append(
                    up(one["rmse"], 4)
                    + (f" ({one['chosen']})" if one["chosen"] else "")
                )
        cost = results[f"{row} / {sampling} / {PLANS[-1][0]} / {BUDGETS[-1]:g}"]
        lines.append(
            f"| {row} | {sampling} | {' | '.join(cells)} | {cost['buffers']} | {cost['regenerated']} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute what is missing, and write table and numbers."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=pathlib.Path)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    numbers = given.folder / "which_strategy.json"
    results = (
        json.loads(numbers.read_text(encoding="utf-8"))
        if numbers.exists()
        else {}
    )
    for name, plan in PLANS:
        for row, sampling, function in ROWS:
            for eps in BUDGETS:
                key = f"{row} / {sampling} / {name} / {eps:g}"
                if key not in results:
                    results[key] = function(plan, eps)
                    numbers.write_text(
                        json.dumps(results, indent=1) + "\n", encoding="utf-8"
                    )
    text = table(results)
    (given.folder / "which_strategy.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
