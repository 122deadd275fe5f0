"""Runs plans on the altered library, each alteration in a forked process (Linux), and has claims checked.

The parent imports everything and runs the plans once, so that a child finds all modules loaded and all
kernels compiled; only children are altered, so that the checker and the second opinion are not.
"""

import ast
import contextlib
import dataclasses
import importlib
import json
import math
import os
import resource
import signal
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

import coverage
import numpy as np

from dpmech.checker import BadDocument, Kind, check_file
from dpmech.exceptions import DpmechError
from verification.faults._corpus import LEAST_FALL, Change, Fault
from verification.faults._plans import PLANS, Plan
from verification.mutation._modules import PACKAGE, ROOT
from verification.mutation._trials import forget, plant

__all__ = ["NO_DOCUMENT", "Run", "fault_of", "run_plans"]

# Processor seconds that a plan may take in a child beside a multiple of its own; the clock stands for a child
# that waits. Then, memory beyond that of the parent, in bytes.
_SECONDS, _FACTOR, _PATIENCE = 1.0, 4.0, 20.0
_MEMORY = 4 << 30
# Of the checker, for draws.
_CHECKER_SECONDS = 10.0
NO_DOCUMENT = "NO DOCUMENT"


@dataclasses.dataclass(frozen=True)
class Run:
    """What a plan gives on the library as it is.

    Attributes:
        sigma: of the plan.
        seconds: processor time.
        lines: those executed, by module; none if they were not recorded.
    """

    sigma: float
    seconds: float
    lines: Mapping[str, frozenset[int]] = dataclasses.field(default_factory=dict)

    def executes(self, module: str, lines: range) -> bool:
        """Whether it runs one of the lines; with no line, any of the module."""
        return module in self.lines and (not lines or not self.lines[module].isdisjoint(lines))


def run_plans(names: Iterable[str], *, record: bool = False) -> dict[str, Run]:
    """Plans on the library as it is.

    Args:
        names: which.
        record: whether to note the lines that each executes, which takes a run more.
    """
    runs = {}
    for name in names:
        lines = _lines_of(PLANS[name]) if record else {}
        forget()
        start = time.process_time()
        sigma = PLANS[name].calibrate().sigma
        runs[name] = Run(sigma, time.process_time() - start, lines)
    return runs


def _lines_of(plan: Plan) -> dict[str, frozenset[int]]:
    forget()
    recorder = coverage.Coverage(data_file=None, source_pkgs=[PACKAGE], messages=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the package was imported before
        recorder.start()
        try:
            plan.calibrate()
        finally:
            recorder.stop()
        data = recorder.get_data()
    found = {}
    for path in data.measured_files():
        module = ".".join(Path(path).relative_to(ROOT / PACKAGE).with_suffix("").parts)
        if executed := data.lines(path):
            found[module] = frozenset(executed)
    return found


def fault_of(
    change: Change,
    tree: ast.Module,
    names: Sequence[str],
    runs: Mapping[str, Run],
    library: str | None = None,
) -> Fault | None:
    """What a change does to the claims of plans, as the checker decides.

    Args:
        change: what is altered.
        tree: the altered module.
        names: of plans, in the order in which they are run.
        runs: those plans on the library as it is.
        library: what the library as it is says of the claim, where that is known; None to ask it.

    Returns:
        The first fault that is REFUTED; else the first that is not PROVED, or PROVED; None if no sigma falls
        enough.
    """
    best = None
    left = list(names)
    while left:
        reached, claim = _claim(change.module, tree, left, runs)
        left = left[left.index(reached) + 1 :] if reached else []
        # One that states another strategy than was asked for says what it is about.
        if claim is None or not PLANS[reached].is_of(claim.certificate):
            continue
        verdict = _verdict(claim.certificate)
        said = library or _of_library(PLANS[reached], claim.sigma)
        fault = Fault(change, reached, runs[reached].sigma, claim.sigma, verdict, said)
        if verdict == Kind.REFUTED.value:
            return fault
        if best is None or (best.verdict == Kind.PROVED.value and verdict != Kind.PROVED.value):
            best = fault
    return best


@dataclasses.dataclass(frozen=True)
class _Claim:
    sigma: float
    certificate: str


def _claim(
    module: str, tree: ast.Module, names: Sequence[str], runs: Mapping[str, Run]
) -> tuple[str, _Claim | None]:
    """The plan that a child ended in ("" before the first), and its claim if its sigma fell."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = os.fork()
        if process == 0:
            _child(module, tree, names, runs, out)
        os.waitpid(process, 0)
        out.seek(0)
        *reached, last = out.read().split("\n")
    # A child that was stopped, in a plan or while it wrote, has no claim.
    claim = _Claim(**json.loads(last)) if last.endswith("}") else None
    return (reached[-1] if reached else ""), claim


def _child(
    module: str, tree: ast.Module, names: Sequence[str], runs: Mapping[str, Run], out: TextIO
) -> NoReturn:
    """Alter the library, run plans until a sigma falls, write the claim down, and end the process."""
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        warnings.simplefilter("ignore")
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
        _limit(0.0)
        planted = plant(importlib.import_module(f"{PACKAGE}.{module}"), tree)
        for name in names if planted else ():
            out.write(f"{name}\n")
            out.flush()
            _limit(runs[name].seconds)
            # What an altered library raises is no claim, whatever it is.
            with contextlib.suppress(Exception):
                found = PLANS[name].calibrate()
                if found.sigma <= (1.0 - LEAST_FALL) * runs[name].sigma:
                    claim = _Claim(found.sigma, found.certificate().to_json())
                    out.write(json.dumps(dataclasses.asdict(claim)))
                    break
    finally:
        out.flush()
        os._exit(0)


def _limit(seconds: float) -> None:
    """Have this process ended if it takes far longer than so many seconds."""
    limit = _SECONDS + _FACTOR * seconds
    signal.setitimer(signal.ITIMER_PROF, limit)
    signal.alarm(math.ceil(_PATIENCE * limit))


def _verdict(certificate: str) -> str:
    """What the checker says of a file, by draws from a seed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        path.write_text(certificate, encoding="utf-8")
        try:
            return check_file(path, seconds=_CHECKER_SECONDS, rng=np.random.default_rng(1)).kind.value
        except BadDocument:
            return NO_DOCUMENT


def _of_library(plan: Plan, sigma: float) -> str:
    """Whether the claim at a sigma is true, by the library as it is."""
    try:
        bounds = plan.delta_at(sigma)
    except DpmechError:
        return "open"
    if bounds.lower > plan.delta:
        return "false"
    return "true" if bounds.upper <= plan.delta else "open"
