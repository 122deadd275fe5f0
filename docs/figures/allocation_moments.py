"""Sigma of random allocation by blocks and by two moments.

Run as `python docs/figures/allocation_moments.py FOLDER`: it writes
`allocation_moments.txt`, in about two minutes of one core.
"""

import pathlib
import sys
import time

import dpmech as dm
from dpmech.numerics import down, up

# Steps, participations, eps, delta.
PLANS = (
    (12, 3, 1.0, 1e-5),
    (100, 10, 2.0, 1e-5),
    (100, 10, 4.0, 1e-6),
    (390, 39, 1.0, 1e-5),
    (390, 39, 4.0, 1e-5),
)
HEAD = """\
| t | k | eps | delta | sigma by blocks | by moments | lower bound on eps | CPU s |
|---|---|---|---|---|---|---|---|
"""


def row(steps: int, count: int, eps: float, delta: float) -> str:
    """One plan; the time is that by moments, which includes that by blocks."""
    plan = dm.RandomAllocation(count)
    blocks, moments = dm.methods.Pld(), dm.methods.Deterministic()
    noise = dm.Identity(steps)
    first = dm.calibrate_sigma(
        noise, eps, delta, participation=plan, method=blocks
    )
    start = time.process_time()
    found = dm.calibrate_sigma(
        noise, eps, delta, participation=plan, method=moments
    )
    seconds = time.process_time() - start
    numbers = (up(first.sigma, 5), up(found.sigma, 5))
    return (
        f"| {steps} | {count} | {eps:g} | {delta:g} | {' | '.join(numbers)} "
        f"| {down(found.achieved.lower, 5)} | {seconds:.0f} |\n"
    )


def main(folder: str) -> None:
    """Write the table into a folder."""
    table = HEAD + "".join(row(*plan) for plan in PLANS)
    path = pathlib.Path(folder, "allocation_moments.txt")
    path.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
