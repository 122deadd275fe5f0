"""The command `python -m dpmech.optim.device_check`, which writes a report in Markdown."""

import argparse
import importlib.metadata
import os
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from dpmech.optim.device_check.checks import Check, run_checks
from dpmech.optim.device_check.measurements import Measured, noise, sizes_for, steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks and measurements, and write the report.

    Args:
        arguments: of the command line; None takes those of the process.

    Returns:
        0 if no check failed, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="python -m dpmech.optim.device_check",
        description="Check private training on a device, and measure what it costs.",
    )
    parser.add_argument("--out", type=Path, help="file of the report; printed if missing")
    parser.add_argument("--device", help="such as cuda:1; the first accelerator if missing, else the CPU")
    parser.add_argument("--small", action="store_true", help="few numbers and small models: seconds on a CPU")
    asked = parser.parse_args(arguments)
    # cuBLAS reads it when it starts, and repeats its sums only with it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = torch.device(asked.device) if asked.device else _first()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and Opacus, about the small models here
        checks = run_checks(device, small=asked.small)
        sizes = sizes_for(device, small=asked.small)
        text = report(device, checks, list(noise(device, sizes)), list(steps(device, sizes)))
    if asked.out is None:
        sys.stdout.write(text)
    else:
        asked.out.write_text(text, encoding="utf-8")
    return int(any(check.passed is False for check in checks.values()))


def report(
    device: torch.device, checks: Mapping[str, Check], rows: Sequence[Measured], trained: Sequence[Measured]
) -> str:
    """The report."""
    results = {name: check.passed for name, check in checks.items() if check.passed is not None}
    verdict = f"{sum(results.values())} of {len(results)} checks passed"
    failed = [name for name, passed in results.items() if not passed]
    if failed:
        verdict += f"; **failed: {', '.join(failed)}**. Do not train on private data on this device"
    words = {True: "passed", False: "**failed**", None: "not applicable"}
    lines = [
        f"# Private training on {_named(device)}",
        "",
        f"{verdict}.",
        "",
        f"dpmech {importlib.metadata.version('dpmech')}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}; "
        "`python -m dpmech.optim.device_check`.",
        "",
        "## Checks",
        "",
        "| check | result | seen | allowed |",
        "|---|---|---|---|",
        *(f"| {name} | {words[one.passed]} | {one.seen} | {one.allowed} |" for name, one in checks.items()),
        "",
        "## Noise of a step",
        "",
        "Time to add one row of noise to a sum, compared with a copy of the sum.",
        "",
        "| noise | time | a copy | ratio |",
        "|---|---|---|---|",
        *(_line(one, memory=False) for one in rows),
        "",
        "## Training steps",
        "",
        "Time of one step, compared with ordinary training of the same model.",
        "",
        "| model and way | time | not private | ratio | peak memory |",
        "|---|---|---|---|---|",
        *(_line(one, memory=True) for one in trained),
        "",
    ]
    return "\n".join(lines)


def _line(one: Measured, *, memory: bool) -> str:
    if one.seconds is None:
        cells = [one.why, "", ""]
    else:
        against = one.seconds if one.against is None else one.against
        cells = [_shown(one.seconds), _shown(against), f"{one.seconds / against:.2f}"]
    held = [] if not memory else ["" if one.memory is None else f"{one.memory / 2**30:.2f} GiB"]
    return f"| {' | '.join([one.what, *cells, *held])} |"


def _shown(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"


def _first() -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if found is None else found


def _named(device: torch.device) -> str:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if device.type == "cpu":
        return f"a CPU, {torch.get_num_threads()} threads"
    return str(device)


if __name__ == "__main__":
    sys.exit(main())
