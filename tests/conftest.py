import os
import sys

import numpy as np
import pytest
from hypothesis import settings

# Every test under tests/statistical, and every one of the sampling schemes, may reject a correct library with
# at most this probability.
ALPHA = 1e-9

# Workers of pytest-xdist and shells set it, and what is printed would follow them.
os.environ.pop("COLUMNS", None)

settings.register_profile("ci", derandomize=True, max_examples=100, deadline=None)
settings.register_profile("quick", derandomize=True, max_examples=20, deadline=None)
settings.register_profile("nightly", derandomize=False, max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def keys_of_one_test():
    """No test is refused a seed because one that failed, or its module, still refers to an optimizer."""
    yield
    used = sys.modules.get("dpmech.optim.noise.stream")
    if used is not None:
        used._HELD.clear()


@pytest.fixture(params=["longdouble", "longdouble is float64"])
def longdouble(request, monkeypatch):
    """Runs a test twice: as it is, and as on processors whose long double is float64."""
    if request.param == "longdouble is float64":
        monkeypatch.setattr(np, "longdouble", np.float64)


def pytest_report_collectionfinish(items):
    count = sum("statistical" in item.path.parts or item.path.name == "test_scheme.py" for item in items)
    return f"statistical suite: {count} tests, false-positive rate at most {count * ALPHA:.1e} per run"
