"""How far every family is from the best matrix without sampling: a proved lower bound on the error.

Without options it takes some minutes. Run as `python least_errors.py FOLDER`; it writes the table and the
numbers, and continues from the numbers in the folder.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

import dpmech as dm
from dpmech.numerics.printed import down, up

# Two plans of the page on choosing a strategy, and the largest one with a tenth of its steps.
PLANS = (
    (
        "digits: 50 steps",
        dm.TrainingPlan(dataset_size=1497, batch_size=299, epochs=10),
    ),
    (
        "middle: 500 steps",
        dm.TrainingPlan(dataset_size=10_000, batch_size=100, epochs=5),
    ),
    (
        "390 steps, 10 epochs",
        dm.TrainingPlan(dataset_size=50_000, batch_size=1280, epochs=10),
    ),
)
FAMILIES: tuple[tuple[str, type[dm.Strategy], dict[str, int]], ...] = (
    ("`Dense`, all entries within b bands", dm.Dense, {}),
    ("`BandedToeplitz`, at most 64 bands", dm.BandedToeplitz, {}),
    ("`BLT`, 3 buffers", dm.BLT, {"buffers": 3}),
    ("`BandedInverse`, 4 bands", dm.BandedInverse, {"bands": 4}),
    ("`InverseSquareRoot`", dm.InverseSquareRoot, {}),
    ("`LambdaCGD`", dm.LambdaCGD, {}),
    ("independent noise", dm.Identity, {}),
)


def error_of(
    family: type[dm.Strategy], plan: dm.TrainingPlan, options: dict[str, int]
) -> float:
    """RMSE if sigma equals the sensitivity."""
    passes = plan.participation("min-sep")
    if family is dm.Identity:
        return dm.rmse(dm.Identity(plan.steps), passes)
    return dm.optimize(family, passes, n=plan.steps, **options).error


def table(results: dict[str, float]) -> str:
    """Markdown: errors, and what they are above the bound."""
    names = [name for name, _ in PLANS]
    heads = [words for name in names for words in (name, "above the bound")]
    lines = [
        f"| family | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    bounds = {name: results[f"bound / {name}"] for name in names}
    below = [down(bounds[name], 5) for name in names]
    lines.append(
        f"| lower bound for all matrices | {' | '.join(f'{one} | ' for one in below)} |"
    )
    for family, _, _ in FAMILIES:
        cells = []
        for name in names:
            error = results[f"{family} / {name}"]
            cells += [
                up(error, 5),
                f"{up(100.0 * (error / bounds[name] - 1.0), 3)} %",
            ]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute what is missing, and write table and numbers."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=pathlib.Path)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    numbers = given.folder / "least_errors.json"
    results = (
        json.loads(numbers.read_text(encoding="utf-8"))
        if numbers.exists()
        else {}
    )

    def record(key: str, value: float) -> None:
        results[key] = value
        numbers.write_text(
            json.dumps(results, indent=1) + "\n", encoding="utf-8"
        )

    for name, plan in PLANS:
        if f"bound / {name}" not in results:
            record(
                f"bound / {name}",
                dm.error_lower_bound(
                    plan.participation("min-sep"), n=plan.steps
                ),
            )
        for label, family, options in FAMILIES:
            if f"{label} / {name}" not in results:
                record(f"{label} / {name}", error_of(family, plan, options))
    text = table(results)
    (given.folder / "least_errors.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
