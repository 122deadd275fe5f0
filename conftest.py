"""What pytest collects."""

import gc
import importlib.util
from collections.abc import Generator

import pytest

pytest_plugins = ["tests.support.times"]

# Doctests of the torch part are collected where torch is installed.
_NEED_TORCH = [
    "dpmech/optim/*",
    "tests/property/neighbours/*",
    "tests/support/*",
]
collect_ignore_glob = [] if importlib.util.find_spec("torch") else _NEED_TORCH
# Has no doctests; how it is compiled must be chosen before it is imported.
collect_ignore_glob.append("dpmech/optim/noise/kernels.py")
# So are those of trainers.
for _package, _folder in (("transformers", "hf"), ("lightning", "lightning")):
    if importlib.util.find_spec(_package) is None:
        collect_ignore_glob.append(f"dpmech/optim/{_folder}/*")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Twenty thousand tests stay until the end: nobody looks for garbage among them, again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
