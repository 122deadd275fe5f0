"""How long the law of a sum takes for independent bins, and how far its ends are apart."""

import pytest

import dpmech as dm


@pytest.mark.parametrize("delta", [1e-5, 1e-12])
@pytest.mark.parametrize("eps", [8.0, 1.0, 0.25])
def test_calibration_of_independent_bins(benchmark, eps, delta):
    found = benchmark.pedantic(
        lambda: dm.calibrate_sigma(dm.Identity(3900), eps, delta, participation=dm.BallsInBins(390)), rounds=1
    )
    gap = found.achieved.upper / found.achieved.lower - 1.0
    print(f"\neps {eps}, delta {delta}: sigma {found.sigma:.5f}, ends {gap:.2e} apart")
    assert found.achieved.upper <= eps
    assert gap <= 1e-3


@pytest.mark.parametrize("bins", [1000, 30_000])
def test_eps_of_independent_bins(benchmark, bins):
    found = benchmark.pedantic(
        lambda: dm.epsilon(dm.Identity(bins), 1.0, 1e-5, participation=dm.BallsInBins(bins)), rounds=1
    )
    print(f"\n{bins} bins: eps in [{found.lower:.6f}, {found.upper:.6f}]")
    assert found.upper <= found.lower * 1.001
