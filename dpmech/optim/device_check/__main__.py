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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, and write the report.

    Args:
        arguments: of the command line; None takes those of the process.

    Returns:
        0 if no check failed, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="python -m dpmech.optim.device_check",
        description="Check private training on a device.",
    )
    parser.add_argument("--out", type=Path, help="file of the report; printed if missing")
    parser.add_argument("--device", help="such as cuda:1; the first accelerator if missing, else the CPU")
    parser.add_argument("--small", action="store_true", help="fewer numbers: seconds on a CPU")
    asked = parser.parse_args(arguments)
    # cuBLAS reads it when it starts, and repeats its sums only with it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = torch.device(asked.device) if asked.device else _first()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and Opacus, about the small models here
        checks = run_checks(device, small=asked.small)
    text = report(device, checks)
    if asked.out is None:
        sys.stdout.write(text)
    else:
        asked.out.write_text(text, encoding="utf-8")
    return int(any(check.passed is False for check in checks.values()))


def report(device: torch.device, checks: Mapping[str, Check]) -> str:
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
        "| check | result | seen | allowed |",
        "|---|---|---|---|",
        *(f"| {name} | {words[one.passed]} | {one.seen} | {one.allowed} |" for name, one in checks.items()),
        "",
    ]
    return "\n".join(lines)


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
