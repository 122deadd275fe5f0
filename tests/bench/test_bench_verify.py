"""Loading and verifying: honest certificates, and files that claim too much work.

Run as `pytest tests/bench/test_bench_verify.py --benchmark-only`.
"""

import pytest

import dpmech as dm
from tests.support.forged_files import LARGE, TOO_DEAR

HONEST = {
    "min-sep": {"participation": dm.MinSep(390, 10)},
    "balls-in-bins": {"participation": dm.BallsInBins(390), "rng": 1},
    "balls-in-bins rigorous": {"participation": dm.BallsInBins(390), "method": dm.methods.Deterministic()},
}


@pytest.fixture(params=list(HONEST))
def honest(request, tmp_path):
    cal = dm.calibrate_sigma(dm.LambdaCGD(3900, 0.9), 8.0, 1e-5, **HONEST[request.param])
    cal.certificate(1.0, 128).save(tmp_path / "certificate.json")
    return tmp_path / "certificate.json"


def test_load(benchmark, honest):
    benchmark(dm.Certificate.load, honest)


def test_verify(benchmark, honest):
    assert benchmark.pedantic(dm.verify, (honest,), rounds=3).ok


def outcome(path):
    try:
        return dm.verify(path).ok
    except dm.exceptions.WorkLimitError:
        return None


@pytest.mark.parametrize("name", list(TOO_DEAR))
def test_refuse_what_is_too_dear(benchmark, name, tmp_path):
    (tmp_path / "forged.json").write_text(TOO_DEAR[name]())
    assert benchmark.pedantic(outcome, (tmp_path / "forged.json",), rounds=3) is None


@pytest.mark.parametrize("name", list(LARGE))
def test_refuse_large_files(benchmark, name, tmp_path):
    (tmp_path / "forged.json").write_text(LARGE[name](1.0), encoding="utf-8")
    assert benchmark.pedantic(outcome, (tmp_path / "forged.json",), rounds=3) is False
