import pytest

from dpmech.engines.convex_order.bound import ring_delta
from dpmech.engines.convex_order.ring import RingGram


def lambda_ring(lam, sigma, bins=390, epochs=10):
    start = epochs / ((1 - lam**2) * sigma**2)
    return RingGram(bins, 0.0, start * (1 + lam**bins) / (1 - lam**bins), lam, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lam", "sigma", "eps"),
    [(0.9, 2.927, 8.0), (0.975, 6.6, 8.0), (0.5, 1.42, 8.0), (0.9, 4.35, 8.0), (0.9, 7.43, 1.0)],
)
def test_bench_ring_delta(benchmark, lam, sigma, eps):
    result = benchmark.pedantic(ring_delta, (lambda_ring(lam, sigma), eps), rounds=1)
    assert 0.0 < result.delta < 1e-3
