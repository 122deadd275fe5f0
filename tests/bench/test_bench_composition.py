"""A hundred releases of different kinds in one ledger; run with `pytest tests/bench --benchmark-enable`."""

import pytest

import dpmech as dm
from dpmech.accounting.profiles import SampledPart
from tests.support.announced import whole


@pytest.mark.slow
def test_bench_a_hundred_releases(benchmark):
    sampled = [
        SampledPart(0.005 + 0.0005 * index, 1.0 + 0.02 * index, 200 + 10 * index, tight=True)
        for index in range(50)
    ]
    square = sum((10.0 + index) ** -2 for index in range(50))
    found = benchmark.pedantic(
        lambda: whole((square, square), sampled).epsilon(1e-5, renyi=False), rounds=1, iterations=1
    )
    assert isinstance(found, dm.Bounds)
    assert 10.2 < found.lower <= found.upper < 10.3
    assert found.upper / found.lower < 1.0001
