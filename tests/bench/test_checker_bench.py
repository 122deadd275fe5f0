"""CPU seconds that the checker takes to decide claims. Run with `make bench`; nothing here gates."""

import time

import pytest

from dpmech.checker import Kind, check_file
from tests.support.checker_files import certificate, write

PLAN = {"type": "LambdaCGD", "n": 3900, "lam": 0.9}
IDENTITY = {"type": "Identity", "n": 3900}
BINS = {"type": "BallsInBins", "bins": 390}
FRESH = {"type": "BallsInBins", "fresh": True, "bins": 390}
BANDED = {"type": "SquareRoot", "n": 2000, "bands": 16}
CLAIMS = {
    "bins, README": (PLAN, BINS, 8.0, 1e-5, 2.93002),
    "bins, delta 1e-12": (PLAN, BINS, 8.0, 1e-12, 4.25588),
    "bins, eps 2": (PLAN, BINS, 2.0, 1e-5, 5.50506),
    "bins, eps 1": (PLAN, BINS, 1.0, 1e-5, 7.50244),
    "bins, eps 0.5": (PLAN, BINS, 0.5, 1e-5, 11.95590),
    "orthogonal bins": (IDENTITY, BINS, 2.0, 1e-5, 1.93455),
    "fresh bins, 10 rounds": (IDENTITY, FRESH, 8.0, 1e-5, 0.486307),
    "b-min-sep sampling": (
        BANDED, {"type": "BMinSep", "min_sep": 16, "sampling_prob": 0.01}, 4.0, 1e-5, 3.4349,
    ),
    "Poisson, 3,900 steps": (
        IDENTITY, {"type": "Poisson", "sampling_prob": 128 / 50_000}, 8.0, 1e-5, 0.494154,
    ),
    "Poisson, 100,000 steps": (
        {"type": "Identity", "n": 100_000}, {"type": "Poisson", "sampling_prob": 0.001}, 2.0, 1e-6, 0.96104,
    ),
    **{
        f"min-sep, {n} steps": (
            {"type": "LambdaCGD", "n": n, "lam": 0.9},
            {"type": "MinSep", "min_sep": n // 10, "max_participations": None},
            8.0, 1e-5, 5.0,
        )
        for n in (10_000, 1_000_000)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", list(CLAIMS))
def test_a_claim_is_decided(benchmark, name, tmp_path):
    path = write(tmp_path / "certificate.json", certificate(*CLAIMS[name]))
    start = time.process_time()
    verdict = benchmark.pedantic(check_file, (path,), rounds=1)
    print(f"\n{name}: {time.process_time() - start:.1f} CPU seconds, {verdict}")
    assert verdict.kind is Kind.PROVED
