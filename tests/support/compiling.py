"""Kernels compiled for a GPU, where there is none."""

import os
import subprocess
import sys


def printed_by(script, folder):
    """What a script prints that compiles kernels of Triton: in a process that does not interpret them."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    path = folder / "compile_kernel.py"  # a file, as triton reads the source of kernels
    path.write_text(script, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=True
    ).stdout
