"""Costs of importance sampling at the sizes it is made for: `pytest tests/bench --benchmark-only`."""

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture.certified_bound import certify_delta
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram
from dpmech.engines.gaussian_mixture.estimate import estimate_delta
from dpmech.engines.gaussian_mixture.gram import CirculantGram
from tests.support.bins_oracles import identity_delta, strategy_gram


@pytest.fixture(scope="module")
def gram():
    return DenseGram(strategy_gram(3900, 390, 0.9))


def once(benchmark, call):
    return benchmark.pedantic(call, rounds=3, iterations=1)


@pytest.mark.parametrize(("sigma", "delta"), [(2.927, 1e-5), (4.25, 1e-12)])
def test_one_delta(benchmark, gram, sigma, delta):
    result = once(
        benchmark, lambda: estimate_delta(gram.scaled(sigma**-2), 8.0, rng=np.random.default_rng(0))
    )
    plain = (1.0 / delta) / result.relative_error**2  # draws of Q for the same standard error, at least
    benchmark.extra_info.update(samples=result.samples, plain_over_importance=plain / result.samples)
    assert result.relative_error < 0.025
    assert result.delta == pytest.approx(delta, rel=0.5)


def test_one_delta_at_small_eps(benchmark, gram):
    result = once(benchmark, lambda: estimate_delta(gram.scaled(7.43**-2), 1.0, rng=np.random.default_rng(0)))
    assert result.lower < 1.153e-5 < result.upper


def test_certified(benchmark, gram):
    bound = once(benchmark, lambda: certify_delta(gram.scaled(2.927**-2), 8.0, rng=np.random.default_rng(0)))
    assert 9.9e-6 < bound.upper < 1.2e-5


def test_identity_of_a_thousand_bins(benchmark):
    gram = DenseGram(np.eye(1000) / 0.6**2)
    result = once(benchmark, lambda: estimate_delta(gram, 4.0, rng=np.random.default_rng(0)))
    assert 1e-9 < result.lower < result.upper < 2e-9


def test_twenty_thousand_bins(benchmark):
    bins, lam = 20_000, 0.9
    distance = np.minimum(np.arange(bins), bins - np.arange(bins))
    row = 3 / (1 - lam**2) * (lam**distance + lam ** (bins - distance)) / (1 - lam**bins)
    gram = CirculantGram(row / 1.5**2)
    result = benchmark.pedantic(lambda: estimate_delta(gram, 8.0, rng=np.random.default_rng(0)), rounds=1)
    assert result.relative_error < 0.025


EXACT = [
    (50, 1.0, 1.298),
    (50, 2.0, 0.5279),
    (390, 0.6, 4.992),
    (390, 2.0, 0.1704),
    (1000, 0.6, 0.369),
    (1000, 0.6, 2.074),
    (1000, 0.6, 4.077),
    (1000, 0.6, 5.822),
    (1000, 1.0, 0.06753),
    (1000, 1.0, 0.1718),
    (1000, 1.0, 0.4017),
    (1000, 1.0, 0.8708),
    (1000, 2.0, 0.01996),
    (1000, 2.0, 0.05947),
    (1000, 2.0, 0.08475),
    (1000, 2.0, 0.105),
]


@pytest.mark.parametrize(("bins", "sigma", "eps"), EXACT)
def test_independent_bins(benchmark, bins, sigma, eps):
    """The interval contains the law of the sum of lognormals; nearly all of it at delta = 1e-12."""
    truth = max(identity_delta(sigma**-2.0, bins, eps))
    row = np.zeros(bins)
    row[0] = sigma**-2.0
    result = benchmark.pedantic(
        lambda: estimate_delta(CirculantGram(row), eps, rng=np.random.default_rng(bins)), rounds=1
    )
    assert result.lower <= truth * 1.001
    assert result.upper >= truth * 0.999
    print(f"\nb {bins}, sigma {sigma}: delta {truth:.4g} in [{result.lower:.4g}, {result.upper:.4g}]")


@pytest.mark.parametrize(("bins", "sigma", "eps"), EXACT[:2])
def test_every_bound_on_independent_bins_lies_above(benchmark, bins, sigma, eps):
    truth = max(identity_delta(sigma**-2.0, bins, eps))
    for method in (dm.methods.Rdp(), dm.methods.Certified()):
        upper = dm.delta(
            dm.Identity(bins), sigma, eps, participation=dm.BallsInBins(bins), method=method, rng=1
        ).upper
        assert upper >= truth * 0.999
        print(f"\n{type(method).__name__}: {upper / truth:.4g} times the truth")
    exact = benchmark.pedantic(
        lambda: dm.delta(
            dm.Identity(bins), sigma, eps, participation=dm.BallsInBins(bins), method=dm.methods.Exact()
        ),
        rounds=1,
    )
    assert truth * 0.999 <= exact.upper <= truth * 1.02
    print(f"\nExact: {exact.upper / truth:.5g} times the truth")


@pytest.mark.parametrize("sigma", [4.35, 5.0])
def test_two_bands_at_small_eps(benchmark, sigma):
    gram = bin_gram(dm.SquareRoot(3900, 2), 390).scaled(sigma**-2)
    result = benchmark.pedantic(lambda: estimate_delta(gram, 0.25, rng=np.random.default_rng(0)), rounds=1)
    print(f"\nBSR(2), sigma {sigma}: delta {result.delta:.4g}, {result.carriers}")
    assert result.relative_error < 0.025
