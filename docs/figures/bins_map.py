"""The map of the default calibration of Balls-in-Bins: 504 points, what each gives and takes.

Eight strategies, 20, 390 and 2000 bins, ten epochs, seven eps and three delta. Points are run in an order
drawn once, so that whatever has been run is a fair sample of the rest.

`python docs/figures/bins_map.py FILE --minutes 60` runs points that FILE lacks and adds a line of JSON for
each; any number of processes may share a file with `--share 0/2`, `--share 1/2`. Without `--minutes` it
prints the tables of `docs/balls_in_bins.md`.
"""

import argparse
import fcntl
import itertools
import json
import math
import pathlib
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator

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
EPS = (0.01, 0.1, 0.5, 1.0, 2.0, 8.0, 50.0)
DELTAS = (1e-5, 1e-9, 1e-12)
EPOCHS = 10
# A point that takes longer by the clock is given up, and said to be.
LONGEST = 1800

Point = tuple[int, float, float, str]


def points() -> list[Point]:
    """All of them, in the order in which they are run."""
    every = list(itertools.product(BINS, EPS, DELTAS, STRATEGIES))
    random.Random(17).shuffle(every)
    return every


def known(path: pathlib.Path) -> dict[Point, dict[str, object]]:
    """What a file has: an entry a point, the last one where there are several."""
    if not path.exists():
        return {}
    entries = [
        json.loads(line)
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return {
        (one["bins"], one["eps"], one["delta"], one["strategy"]): one
        for one in entries
    }


def entry(point: Point) -> dict[str, object]:
    """One default calibration: sigma, by whom, how far above the smallest it was aimed, CPU seconds."""
    bins, eps, delta, name = point
    found: dict[str, object] = {
        "bins": bins,
        "eps": eps,
        "delta": delta,
        "strategy": name,
    }
    start = time.process_time()
    try:
        mechanism = dm.Mechanism(
            STRATEGIES[name](EPOCHS * bins), dm.BallsInBins(bins)
        )
        solution = accountant_for(mechanism, None).calibrate(
            eps, delta, rtol=1e-3, progress=lambda _: None
        )
    except (dm.DpmechError, TimeoutError) as error:
        found["refused"] = f"{type(error).__name__}: {error}"[:200]
    else:
        by = (
            "default"
            if solution.method is None
            else type(solution.method).__name__
        )
        found |= {
            "sigma": solution.sigma,
            "by": by,
            "kind": solution.achieved.guarantee.kind.name,
        }
        found |= {
            "excess": math.expm1(solution.excess),
            "lower_eps": solution.achieved.lower,
        }
    return found | {"cpu_s": round(time.process_time() - start, 2)}


def run(path: pathlib.Path, minutes: float, share: tuple[int, int]) -> None:
    """Points that `path` lacks, one after the other, until the time is over."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {LONGEST} s")

    signal.signal(signal.SIGALRM, late)
    end = time.monotonic() + 60.0 * minutes
    for point in points()[share[0] :: share[1]]:
        if time.monotonic() > end:
            return
        if point in known(path):
            continue
        signal.alarm(LONGEST)
        line = json.dumps(entry(point))
        signal.alarm(0)
        with path.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(line + "\n")
        sys.stderr.write(line + "\n")


def tables(path: pathlib.Path) -> Iterator[str]:
    """A summary of who answered and how long it took; then sigma at every point."""
    have = known(path)
    yield f"{len(have)} of {len(points())} points."
    yield "\n| bins | delta | points | refused | CPU s: median, most | excess aimed at: median, most |"
    yield "|---|---|---|---|---|---|"
    for bins, delta in itertools.product(BINS, DELTAS):
        here = [
            one
            for (b, _, d, name), one in have.items()
            if (b, d) == (bins, delta) and name != "Identity"
        ]
        if here:
            seconds = [float(str(one["cpu_s"])) for one in here]
            above = [
                float(str(one["excess"])) for one in here if "excess" in one
            ]
            yield (
                f"| {bins} | {delta:g} | {len(here)} | {sum('refused' in one for one in here)} | "
                f"{statistics.median(seconds):.2g}, {max(seconds):.2g} | "
                f"{100 * statistics.median(above):.2f} %, {100 * max(above):.2g} % |"
            )
    for bins, delta in itertools.product(BINS, DELTAS):
        yield (
            f"\n| {bins} bins, delta {delta:g} | "
            + " | ".join(f"eps {eps:g}" for eps in EPS)
            + " |"
        )
        yield "|---" * (len(EPS) + 1) + "|"
        for name in STRATEGIES:
            row = [have.get((bins, eps, delta, name)) for eps in EPS]
            cells = [
                ""
                if one is None
                else "refused"
                if "refused" in one
                else up(float(str(one["sigma"])), 4)
                for one in row
            ]
            yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Run points, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--share", default="0/1")
    given = parser.parse_args()
    first, parts = (int(one) for one in given.share.split("/"))
    if given.minutes > 0.0:
        run(given.file, given.minutes, (first, parts))
    sys.stdout.write("\n".join(tables(given.file)) + "\n")


if __name__ == "__main__":
    main()
