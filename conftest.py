"""What pytest collects."""

import importlib.util

# Doctests of the torch part are collected where torch is installed.
collect_ignore_glob = (
    [] if importlib.util.find_spec("torch") else ["dpmech/optim/*", "tests/support/drawn_noise.py"]
)
