"""A strategy that dpmech does not have, added from outside, in a process where its class stays."""

import pathlib
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).parents[1] / "support" / "own_strategy.py"


def test_from_sensitivity_to_verdict(tmp_path):
    """Compared with the same matrix as `Dense`."""
    done = subprocess.run(
        [sys.executable, "-W", "error", PROGRAM, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "taken\n"
