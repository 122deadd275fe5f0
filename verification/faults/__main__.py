"""python -m verification.faults: plant every fault of the corpus, and see that the checker proves none.

A fault is an alteration of the code that issues claims under which the sigma of a plan falls by half a per
cent or more. Each is planted in a forked process (Linux); the claim that comes out is decided by the checker,
which is not altered. The command fails if one is PROVED, if one can no longer be planted, or if one lowers
nothing any more. A run of all of them writes the page of the docs, and the numbers of the corpus anew.
"""

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from verification.faults._corpus import (
    CORPUS,
    STILL_TRUE,
    Change,
    Fault,
    NotThereError,
    alterations,
    by_hand,
    load,
    modules,
    save,
)
from verification.faults._page import PAGE, write_page
from verification.faults._plans import PLANS
from verification.faults._trials import Run, fault_of, run_plans
from verification.mutation._modules import COMPILED
from verification.mutation._mutants import Mutant

PROVED = "PROVED"
# Plans that one alteration meets in a search, the fastest first, take so many seconds together at most; those
# in closed form, which are tried first, so few. How many faults of one function are looked for.
_SECONDS, _CLOSED_FORM, _MOST_OF_FUNCTION = 1.2, 0.05, 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 if a fault is PROVED or cannot be planted."""
    parser = argparse.ArgumentParser(
        prog="python -m verification.faults",
        description="Plant faults in the code that issues claims, and see that the checker proves none.",
    )
    parser.add_argument("--sample", type=int, metavar="N", help="N of the corpus, drawn at random (all)")
    parser.add_argument("--seed", type=int, default=14, help="of the draw (%(default)s)")
    parser.add_argument(
        "--find",
        type=float,
        metavar="MINUTES",
        help="search for more for so long, and add them to the corpus",
    )
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="the faults (%(default)s)")
    options = parser.parse_args(arguments)
    if options.find is not None:
        return find(options.corpus, 60.0 * options.find, options.seed)
    faults = load(options.corpus)
    if options.sample is not None and options.sample < len(faults):
        return int(rerun(random.Random(options.seed).sample(faults, options.sample)) is None)
    again = rerun(faults)
    if again is None:
        return 1
    if options.corpus == CORPUS:
        save(again)
        write_page(PAGE, again, load(STILL_TRUE))
    return 0


def rerun(faults: Sequence[Fault]) -> list[Fault] | None:
    """Plant faults as the corpus states them; say what fails.

    Returns:
        The same with the numbers of today; None if one fails.
    """
    runs = run_plans({fault.plan for fault in faults})
    again, failed = [], False
    for fault in sorted(faults):
        try:
            found = fault_of(fault.change, fault.change.tree(), [fault.plan], runs, fault.library)
        except NotThereError as error:
            _say(f"GONE: {fault.change}: {error}")
            failed = True
            continue
        if found is None:
            _say(f"LOWERS NOTHING: {fault.change}: sigma of {fault.plan}")
        elif found.verdict == PROVED:
            _say(str(found))
        else:
            again.append(found)
            continue
        failed = True
    counts = Counter(fault.verdict for fault in again)
    _say(f"{len(faults)} faults: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return None if failed else again


def find(path: Path, seconds: float, seed: int) -> int:
    """Try changes that are in no list yet, those by hand first; 1 if a false claim was PROVED.

    Args:
        path: of the corpus; claims that are lower but still true go to a file beside it.
        seconds: of the clock.
        seed: of the order.
    """
    still_true = path.with_name(STILL_TRUE.name)
    lists = {path: load(path), still_true: load(still_true)}
    known = {fault.change for faults in lists.values() for fault in faults}
    of_function = Counter((one.module, one.function) for one in known)
    runs = run_plans(PLANS, record=True)
    end, tried, wrong = time.monotonic() + seconds, 0, False
    for change, names in _order(runs, seed):
        if time.monotonic() > end:
            break
        full = not change.by_hand and of_function[change.module, change.function] >= _MOST_OF_FUNCTION
        if change in known or full:
            continue
        tried += 1
        fault = fault_of(change, change.tree(), names, runs)
        if fault is None:
            continue
        of_function[change.module, change.function] += 1
        proved = fault.verdict == PROVED
        wrong |= proved and fault.library == "false"
        file = still_true if proved and fault.library != "false" else path
        lists[file].append(fault)
        save(lists[file], file)
        _say(f"{tried} tried, {len(lists[path])} found: {fault}")
    return int(wrong)


def _order(runs: Mapping[str, Run], seed: int) -> Iterable[tuple[Change, list[str]]]:
    """Changes with the plans that they meet; functions that numba compiles cannot be altered in place."""
    for change in by_hand():
        yield change, _met(change.module, change.lines(), runs, 4.0 * _SECONDS)
    drawn: list[tuple[tuple[bool, bool, str], Mutant, list[str]]] = []
    for module in modules():
        if module in COMPILED:
            continue
        for coarse, several in enumerate(alterations(module)):
            for one in several:
                few = _met(module, one.lines, runs, _CLOSED_FORM)
                if names := few or _met(module, one.lines, runs, _SECONDS):
                    drawn.append(((not few, coarse > 0, one.rank(seed)), one, names))
    drawn.sort(key=lambda entry: entry[0])
    for _, one, names in drawn:
        yield Change(*one.key), names


def _met(module: str, lines: range, runs: Mapping[str, Run], seconds: float) -> list[str]:
    """Plans that execute one of the lines, the fastest first, up to so many seconds of them."""
    names = [name for name, run in runs.items() if run.executes(module, lines)]
    names.sort(key=lambda name: runs[name].seconds)
    totals = itertools.accumulate(runs[name].seconds for name in names)
    return [name for name, total in zip(names, totals, strict=True) if total <= seconds]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
