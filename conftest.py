"""What pytest collects."""

import importlib.util

# Doctests of the torch part are collected where torch is installed.
_NEED_TORCH = ["dpmech/optim/*", "tests/support/drawn_noise.py", "tests/support/training.py"]
collect_ignore_glob = [] if importlib.util.find_spec("torch") else _NEED_TORCH
