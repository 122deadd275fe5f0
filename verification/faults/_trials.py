"""Runs plans on the altered library, each alteration in a forked process (Linux), and has claims checked.

The parent imports everything and runs the plans once, so that a child finds all modules loaded and all
kernels compiled; only children are altered, so that the checker and the second opinion are not.
"""

import ast
import contextlib
import dataclasses
import importlib
import json
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

# Processor seconds that a child may take beside five times those of its plans; the clock stands for a child
# that waits. Then, memory beyond that of the parent, in bytes.
_SECONDS, _FACTOR, _PATIENCE = 3.0, 5.0, 10
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


def fault_of(change: Change, tree: ast.Module, names: Sequence[str], runs: Mapping[str, Run]) -> Fault | None:
    """What a change does to the claims of plans, as the checker decides.

    Args:
        change: what is altered.
        tree: the altered module.
        names: of plans, in the order in which they are run.
        runs: those plans on the library as it is.

    Returns:
        The first fault that is REFUTED; else the first that is not PROVED, or PROVED; None if no sigma falls
        enough.
    """
    best = None
    left = list(names)
    while left:
        claim = _claim(change.module, tree, left, runs)
        if claim is None:
            break
        verdict = _verdict(claim.certificate)
        said = _of_library(PLANS[claim.plan], claim.sigma)
        fault = Fault(change, claim.plan, runs[claim.plan].sigma, claim.sigma, verdict, said)
        if verdict == Kind.REFUTED.value:
            return fault
        if best is None or (best.verdict == Kind.PROVED.value and verdict != Kind.PROVED.value):
            best = fault
        left = left[left.index(claim.plan) + 1 :]
    return best


@dataclasses.dataclass(frozen=True)
class _Claim:
    plan: str
    sigma: float
    certificate: str


def _claim(module: str, tree: ast.Module, names: Sequence[str], runs: Mapping[str, Run]) -> _Claim | None:
    """The first claim whose sigma falls under the alteration."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = os.fork()
        if process == 0:
            _child(module, tree, names, runs, out)
        os.waitpid(process, 0)
        out.seek(0)
        text = out.read()
    # A child that was stopped while it wrote has no claim.
    return _Claim(**json.loads(text)) if text.endswith("}") else None


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
        limit = _SECONDS + _FACTOR * sum(runs[name].seconds for name in names)
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.alarm(int(_PATIENCE * limit))
        if plant(importlib.import_module(f"{PACKAGE}.{module}"), tree):
            for name in names:
                # What an altered library raises is no claim, whatever it is.
                with contextlib.suppress(Exception):
                    found = PLANS[name].calibrate()
                    if found.sigma <= (1.0 - LEAST_FALL) * runs[name].sigma:
                        json.dump(
                            {
                                "plan": name,
                                "sigma": found.sigma,
                                "certificate": found.certificate().to_json(),
                            },
                            out,
                        )
                        break
    finally:
        out.flush()
        os._exit(0)


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
