"""What a private run ends with: record and certificate on disk, verified, and a page for a reviewer."""

import pathlib
import subprocess
import sys

import dpmech as dm


def finish(record: dm.RunRecord, folder: pathlib.Path, accuracy: float) -> str:
    """Save what a run did, have it verified, with `report.md` for a reviewer, and say it in a few lines.

    Args:
        record: of `optimizer.run_record()`.
        folder: where the files go; made if it is not there.
        accuracy: on examples that took no part in training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    certificate, run, report = (folder / name for name in ("certificate.json", "run.json", "report.md"))
    record.certificate.save(certificate)
    record.save(run)
    command = ["report", str(run), "--format", "markdown", "--claim-only", "--quiet", "--out", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "dpmech", *command], check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    verdict = done.stdout.splitlines()[0]
    return f"accuracy {accuracy:.3f}\n{record.headline}\n{verdict}\n{certificate}, {run}, {report}"
