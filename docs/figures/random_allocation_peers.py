"""Eps of random allocation by dpmech and PLD_accounting, in one run.

60 plans: 15 sizes, each at the noise for eps 1, 2, 4 and 8. Both packages
bound the composition of k blocks from above; the lower ends are those that
dpmech states for the mechanism, and that PLD_accounting states for the blocks.

Run as `python docs/figures/random_allocation_peers.py FOLDER` with
`PLD_accounting` of the extra `oracle`: it writes the numbers and the table, in
some fifteen minutes of one core; a run that was stopped goes on. `--redraw`
writes the table again.
"""

import argparse
import importlib.metadata
import itertools
import json
import pathlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import dpmech as dm

Ends = tuple[float, float]

# Steps, participations, delta: sizes of the code and pages of arXiv 2605.07072
# (391, 2000 and 10,000 steps), of other accountants, and of the page.
SIZES = (
    (12, 3, 1e-5),
    (30, 10, 1e-5),
    (100, 1, 1e-10),
    (100, 10, 1e-5),
    (100, 10, 1e-10),
    (200, 100, 1e-5),
    (390, 39, 1e-5),
    (391, 5, 1.25e-5),
    (1000, 1, 1e-6),
    (1000, 5, 1e-8),
    (1000, 20, 1e-10),
    (1000, 100, 1e-5),
    (2000, 100, 1e-6),
    (2000, 655, 1e-5),
    (10000, 205, 1e-5),
)
LOSSES = (1.0, 2.0, 4.0, 8.0)  # eps of the noise, by the blocks
SECONDS = 60.0  # of CPU, after which a package is stopped


class StoppedError(Exception):
    """A package took too long."""


def stop(*_: object) -> None:
    """At the end of the time."""
    raise StoppedError


def timed(function: Callable[[], Ends]) -> tuple[Ends | None, float]:
    """What a function returns, None if it was stopped; and its CPU seconds."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    begun = time.process_time()
    try:
        found = function()
    except StoppedError:
        found = None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    return found, time.process_time() - begun


def noise(n: int, k: int, delta: float, eps: float) -> float:
    """Sigma of the blocks, to four digits."""
    found = dm.calibrate_sigma(
        dm.Identity(n),
        eps,
        delta,
        participation=dm.RandomAllocation(k),
        method=dm.methods.Pld(),
    )
    return float(f"{found.sigma:.4g}")


def numbers(file: pathlib.Path) -> dict[str, Any]:
    """The version, and a row for every plan; those of the file are kept."""
    from PLD_accounting import gaussian_allocation_epsilon_range

    signal.signal(signal.SIGPROF, stop)

    def own(n: int, k: int, sigma: float, delta: float) -> Ends:
        found = dm.epsilon(
            dm.Identity(n), sigma, delta, participation=dm.RandomAllocation(k)
        )
        return found.lower, found.upper

    def peer(n: int, k: int, sigma: float, delta: float) -> Ends:
        upper, lower = gaussian_allocation_epsilon_range(
            delta=delta, sigma=sigma, num_steps=n, num_selected=k
        )
        return lower, upper

    for function in (own, peer):
        function(8, 2, 2.0, 1e-3)  # compilation
    version = importlib.metadata.version("PLD_accounting")
    found: dict[str, Any] = {"PLD_accounting": version, "rows": []}
    if file.exists():
        found = json.loads(file.read_text())
    rows = found["rows"]
    known = {(*row["size"], row["eps"]) for row in rows}
    for size, eps in itertools.product(SIZES, LOSSES):
        if (*size, eps) in known:
            continue
        n, k, delta = size
        plan = n, k, noise(n, k, delta, eps), delta
        mine, seconds = timed(lambda plan=plan: own(*plan))
        theirs, taken = timed(lambda plan=plan: peer(*plan))
        rows.append(
            {
                "size": size,
                "eps": eps,
                "plan": plan,
                "dpmech": mine,
                "seconds": seconds,
                "PLD_accounting": theirs,
                "peer_seconds": taken,
            }
        )
        sys.stderr.write(f"{rows[-1]}\n")
        file.write_text(json.dumps(found, indent=1) + "\n")
    return found


def table(found: dict[str, Any]) -> str:
    """As Markdown; ends are rounded outward, seconds to nearest."""
    lines = [
        "| t | k | sigma | delta | dpmech, eps | seconds "
        f"| PLD_accounting {found['PLD_accounting']}, eps | seconds | excess of its upper bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        n, k, sigma, delta = row["plan"]
        low, high = row["dpmech"]
        cells = [
            n,
            k,
            sigma,
            f"{delta:g}",
            ends(low, high),
            f"{row['seconds']:.1f}",
        ]
        if row["PLD_accounting"] is None:
            cells += ["stopped", f"{row['peer_seconds']:.0f}", ""]
        else:
            least, most = row["PLD_accounting"]
            excess = f"{100 * (most / high - 1):.2f} %"
            cells += [ends(least, most), f"{row['peer_seconds']:.1f}", excess]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def ends(low: float, high: float) -> str:
    """An interval, rounded outward to four decimals."""
    return f"{int(low * 1e4) / 1e4:.4f} to {-int(-high * 1e4 // 1) / 1e4:.4f}"


def main() -> None:
    """Write numbers and table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument(
        "--redraw", action="store_true", help="from the numbers"
    )
    options = parser.parse_args()
    file = options.folder / "random_allocation_peers.json"
    found = json.loads(file.read_text()) if options.redraw else numbers(file)
    file.with_suffix(".txt").write_text(table(found))


if __name__ == "__main__":
    main()
