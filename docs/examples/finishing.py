"""What private runs begin and end with: one process or several; a verified record, a page for a reviewer."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import torch.distributed as dist

import dpmech as dm


def together(main: Callable[[], int]) -> int:
    """Run `main` alone, or as one of the processes of `torchrun --nproc-per-node 2 EXAMPLE.py FOLDER`."""
    several = processes() > 1
    if several:
        dist.init_process_group("gloo")
    try:
        return main()
    finally:
        if several:
            dist.destroy_process_group()


def processes() -> int:
    """How many train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def of_first(calibrate: Callable[[], dm.Calibration]) -> dm.Certificate:
    """The claim that the first process makes, for all: calibrations that draw samples differ."""
    found = [
        calibrate().certificate().to_json()
        if os.environ.get("RANK", "0") == "0"
        else None
    ]
    if processes() > 1:
        dist.broadcast_object_list(found)
    return dm.Certificate.from_json(str(found[0]))


def finish(record: dm.RunRecord, folder: pathlib.Path, accuracy: float) -> str:
    """Save what a run did, have it verified, with `report.md` for a reviewer, and say it in a few lines.

    Args:
        record: of `optimizer.run_record()`.
        folder: where the files go; made if it is not there.
        accuracy: on examples that took no part in training.

    Returns:
        The lines; nothing in processes other than the first, which write nothing either.
    """
    if os.environ.get("RANK", "0") != "0":
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    certificate, run, report = (
        folder / name for name in ("certificate.json", "run.json", "report.md")
    )
    record.certificate.save(certificate)
    record.save(run)
    command = [
        "report",
        str(run),
        "--format",
        "markdown",
        "--claim-only",
        "--quiet",
        "--out",
        str(report),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "dpmech", *command],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    verdict = done.stdout.splitlines()[0]
    return f"accuracy {accuracy:.3f}\n{record.headline}\n{verdict}\n{certificate}, {run}, {report}\n"
