"""The default calibration of Balls-in-Bins over its domain: what it takes, who answers, and how tight it is.

The points here are a handful of those in `docs/balls_in_bins.md`; `docs/figures/bins_map.py` runs its map.
Excess is how far sigma is above the smallest one, by delta and its slope there: exact for independent bins,
else estimated by importance sampling, to about 0.1 % of sigma.
"""

import math
import time

import numpy as np
import pytest

import dpmech as dm

STRATEGIES = {
    "Identity": dm.Identity,
    "lambda 0.5": lambda n: dm.LambdaCGD(n, 0.5),
    "lambda 0.9": lambda n: dm.LambdaCGD(n, 0.9),
    "lambda 0.99": lambda n: dm.LambdaCGD(n, 0.99),
    "BSR(4)": lambda n: dm.SquareRoot(n, 4),
    "BSR(64)": lambda n: dm.SquareRoot(n, 64),
    "BISR(64)": lambda n: dm.InverseSquareRoot(n, 64),
    "BLT(3)": lambda n: dm.BLT(n, [0.99527, 0.87344, 0.42784], [0.1293, 0.2059, 0.1672]),
}
HANDFUL = [
    (390, 8.0, 1e-5, "lambda 0.9"),
    (390, 8.0, 1e-12, "BISR(64)"),
    (390, 1.0, 1e-5, "Identity"),
    (390, 0.1, 1e-5, "lambda 0.9"),
    (20, 0.5, 1e-5, "BSR(64)"),
    (2000, 8.0, 1e-5, "lambda 0.9"),
]
EPOCHS = 10
# Sigma is lowered by so much for the slope of log delta.
STEP = 0.02


def log_delta(strategy, sigma, eps, bins):
    # A seed of its own: the same random numbers at both sigmas, none of those that sized the noise.
    method = None if isinstance(strategy, dm.Identity) else dm.methods.Importance(rel_error=0.03)
    rng = None if method is None else 7
    found = dm.delta(strategy, sigma, eps, participation=dm.BallsInBins(bins), method=method, rng=rng)
    return math.log(0.5 * (found.lower + found.upper))


def measured(benchmark, strategy, bins, eps, delta):
    start = time.process_time()
    cal = benchmark.pedantic(
        lambda: dm.calibrate_sigma(strategy, eps, delta, participation=dm.BallsInBins(bins)), rounds=1
    )
    seconds = time.process_time() - start
    try:
        here, below = (log_delta(strategy, factor * cal.sigma, eps, bins) for factor in (1.0, 1.0 - STEP))
    except dm.NumericalError as error:
        excess = f"no estimate ({error})"
    else:
        excess = f"{(math.log(delta) - here) / (below - here) * -math.log1p(-STEP):+.2%}"
    print(
        f"\nb {bins}, eps {eps:.4g}, delta {delta:.4g}, {strategy!r}: sigma {cal.sigma:.5g}, {excess}, "
        f"{seconds:.1f} CPU s, {cal.method}"
    )
    assert cal.achieved.upper <= eps


@pytest.mark.parametrize(("bins", "eps", "delta", "name"), HANDFUL)
def test_a_default_calibration(benchmark, bins, eps, delta, name):
    measured(benchmark, STRATEGIES[name](EPOCHS * bins), bins, eps, delta)


def random_plan(number):
    """Strategy, bins, eps and delta, drawn with seed (17, number)."""
    rng = np.random.default_rng([17, number])
    bins, epochs = int(np.exp(rng.uniform(np.log(20), np.log(1000)))), int(rng.integers(2, 21))
    eps, delta = float(np.exp(rng.uniform(np.log(0.25), np.log(16)))), float(10.0 ** rng.uniform(-12, -5))
    bands, lam = int(2 ** rng.integers(1, 8)), float(rng.uniform(0.3, 0.99))
    family, n = int(rng.integers(5)), bins * epochs
    bands = min(bands, n)
    strategies = (
        lambda: dm.LambdaCGD(n, lam),
        lambda: dm.SquareRoot(n, bands),
        lambda: dm.InverseSquareRoot(n, bands),
        lambda: STRATEGIES["BLT(3)"](n),
        lambda: dm.ColumnNormalized(dm.LambdaCGD(n, lam)),
    )
    return strategies[family](), bins, eps, delta


@pytest.mark.parametrize("number", range(10))
def test_plans_drawn_at_random(benchmark, number):
    measured(benchmark, *random_plan(number))
