"""The map of the default calibration of Balls-in-Bins: sigma, and who found it.

Eight strategies, 20, 390 and 2000 bins, ten epochs, eps 1 and 8, and two delta.

`python docs/figures/bins_map.py FOLDER` writes bins_map.json and bins_map.txt,
and keeps the points that the folder has.
"""

import collections
import itertools
import json
import math
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import dpmech as dm
from dpmech.numerics import up
from dpmech.schemes import accountant_for

STRATEGIES: dict[str, Callable[[int], dm.Strategy]] = {
    "Identity": dm.Identity,
    "lambda 0.5": lambda n: dm.LambdaCGD(n, 0.5),
    "lambda 0.9": lambda n: dm.LambdaCGD(n, 0.9),
    "lambda 0.99": lambda n: dm.LambdaCGD(n, 0.99),
    "BSR(4)": lambda n: dm.SquareRoot(n, 4),
    "BSR(64)": lambda n: dm.SquareRoot(n, 64),
    "BISR(64)": lambda n: dm.InverseSquareRoot(n, 64),
    "BLT(3)": lambda n: dm.BLT(
        n, [0.99527, 0.87344, 0.42784], [0.1293, 0.2059, 0.1672]
    ),
}
BINS = (20, 390, 2000)
BUDGETS = tuple(itertools.product((1.0, 8.0), (1e-5, 1e-9)))
EPOCHS = 10


def commit() -> str:
    """The commit of the working tree."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    folder = pathlib.Path(__file__).parent
    return subprocess.run(
        command, check=True, cwd=folder, text=True, stdout=subprocess.PIPE
    ).stdout.strip()


def row(bins: int, eps: float, delta: float, name: str) -> dict[str, Any]:
    """One default calibration: sigma, by whom, its aim, and CPU seconds."""
    start = time.process_time()
    mechanism = dm.Mechanism(
        STRATEGIES[name](EPOCHS * bins), dm.BallsInBins(bins)
    )
    found = accountant_for(mechanism, None).calibrate(
        eps, delta, rtol=1e-3, progress=lambda _: None
    )
    return {
        "plan": [bins, eps, delta, name],
        "sigma": found.sigma,
        "by": type(found.method).__name__,
        # above the smallest sigma, as the accountant's own samples tell
        "excess": math.expm1(found.excess),
        "seconds": round(time.process_time() - start, 1),
        "commit": commit(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown; sigma, excess and seconds are rounded up."""
    have = {tuple(one["plan"]): one for one in rows}
    heads = [f"eps {eps:g}, delta {delta:g}" for eps, delta in BUDGETS]
    lines = [f"| bins, strategy | {' | '.join(heads)} | CPU s |"]
    lines.append("|---" * (len(heads) + 2) + "|")
    for bins, name in itertools.product(BINS, STRATEGIES):
        found = [have[bins, *budget, name] for budget in BUDGETS]
        sigmas = " | ".join(up(one["sigma"], 4) for one in found)
        seconds = sorted(one["seconds"] for one in found)
        lines.append(
            f"| {bins}, {name} | {sigmas} "
            f"| {up(seconds[0], 2)} to {up(seconds[-1], 2)} |"
        )
    others = [one for one in rows if one["plan"][-1] != "Identity"]
    kinds = collections.Counter(one["by"] for one in others)
    counts = collections.Counter(one["commit"] for one in rows)
    commits = ", ".join(
        f"{one} ({counts[one]} points)" for one in sorted(counts)
    )
    aims = [one["excess"] for one in others if one["excess"] > 0.0]
    seconds = sorted(one["seconds"] for one in others)
    lines.append(
        f"\nOf the {len(others)} calibrations of strategies other than "
        f"`Identity`, {kinds['Deterministic']} used\n`Deterministic`. "
        f"The largest intended excess is {up(100.0 * max(aims), 2)} %. "
        f"Half of them took at\nmost {up(seconds[len(others) // 2], 2)} "
        f"CPU seconds, and all of them at most {up(seconds[-1], 3)}.\n"
        f"Commits: {commits}."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what the folder lacks, then write the table."""
    folder = pathlib.Path(sys.argv[1])
    file = folder / "bins_map.json"
    rows: list[dict[str, Any]] = []
    if file.exists():
        rows = json.loads(file.read_text(encoding="utf-8"))
    known = {tuple(one["plan"]) for one in rows}
    # those of eps 8 take less time
    for (eps, delta), bins, name in itertools.product(
        BUDGETS[::-1], BINS, STRATEGIES
    ):
        if (bins, eps, delta, name) not in known:
            rows.append(row(bins, eps, delta, name))
            sys.stderr.write(f"{rows[-1]}\n")
            text = ",\n ".join(json.dumps(one) for one in rows)
            file.write_text(f"[{text}]\n", encoding="utf-8")
    (folder / "bins_map.txt").write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
