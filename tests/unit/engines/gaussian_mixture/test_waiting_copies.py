"""Copies of an example under b-min-sep sampling, drawn with a look-ahead, against all their sets of steps."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy

import dpmech as dm
from dpmech.engines.gaussian_mixture.chain_kernels import draw_counts
from dpmech.engines.gaussian_mixture.chain_mixtures import ChainRemove, CopiesPart
from dpmech.engines.gaussian_mixture.chains import chain_gram
from dpmech.engines.gaussian_mixture.moments import log_tail_factor
from dpmech.engines.gaussian_mixture.waiting_copies import WaitingCopies
from dpmech.exceptions import NumericalError

N, B, P = 6, 3, 0.3
RISK = 1e-9  # of a test on draws


def sets_of_steps(n, b, p):
    """Every set of steps and its probability, by the wait at first and the gaps."""
    law = {}
    starts = np.array([1.0] + [p] * (b - 1)) / (1.0 + p * (b - 1))

    def go(t, chance, steps):
        if t >= n:
            law[steps] = law.get(steps, 0.0) + chance
            return
        go(t + 1, chance * (1.0 - p), steps)
        go(t + b, chance * p, (*steps, t))

    for wait, chance in enumerate(starts):
        go(wait, chance, ())
    return np.array([[float(t in steps) for t in range(n)] for steps in law]), np.array(list(law.values()))


STRATEGIES = [
    dm.Identity(N),
    dm.SquareRoot(N, B),
    dm.BandedToeplitz(N, [1.0, 0.7]),
    dm.Dense(np.random.default_rng(3).random((N, N)) * (np.tri(N) - np.tri(N, k=-B))),
    dm.ColumnNormalized(dm.SquareRoot(N, B)),
]
names = [type(strategy).__name__ for strategy in STRATEGIES]


def tuples_of_sets(strategy, sigma, power):
    """Counts of each tuple of sets of steps, and its mass in E_Q r^m."""
    steps, law = sets_of_steps(N, B, P)
    means = steps @ strategy.to_dense().T / sigma
    places = np.array(list(itertools.product(range(len(steps)), repeat=power)))
    total = means[places].sum(axis=1)
    own = np.sum(means**2, axis=1)[places].sum(axis=1)
    masses = np.prod(law[places], axis=1) * np.exp(0.5 * (np.sum(total**2, axis=1) - own))
    return steps[places].sum(axis=1), masses


def law_of(strategy, sigma, power):
    return WaitingCopies.of(chain_gram(strategy, B, P).scaled(sigma**-2), power)


@pytest.mark.parametrize("power", [2, 3])
@pytest.mark.parametrize("sigma", [1.3, 2.0])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=names)
def test_kept_draws_are_as_many_and_have_the_law_of_all_tuples(strategy, sigma, power):
    counts, masses = tuples_of_sets(strategy, sigma, power)
    law, size = law_of(strategy, sigma, power), 40_000
    kept = law.counts(np.random.default_rng(5), size)
    part = masses.sum() * math.exp(-law.log_total)
    assert 0.05 < part <= 1.0 + 1e-12
    assert scipy.stats.binomtest(len(kept), size, min(part, 1.0)).pvalue > RISK
    places = (power + 1.0) ** np.arange(N)
    keys, found = np.unique(counts @ places, return_inverse=True)
    expected = np.bincount(found, weights=masses) / masses.sum() * len(kept)
    seen = np.bincount(np.searchsorted(keys, kept @ places), minlength=keys.size)
    likely = expected > 5.0
    assert scipy.stats.chisquare(seen[likely], expected[likely], sum_check=False).pvalue > RISK
    # The test sees what it is for: the law without products of different steps, or with less noise.
    other = tuples_of_sets(strategy, sigma * 0.8, power)[1]
    other = np.bincount(found, weights=other) / other.sum() * len(kept)
    assert scipy.stats.chisquare(seen[likely], other[likely], sum_check=False).pvalue < RISK


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize(("sigma", "loose"), [(0.8, 4.0), (1.3, 1.2), (5.0, 0.1)])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=names)
def test_the_bound_is_above_the_power_and_close(strategy, sigma, loose, power):
    exact = math.log(tuples_of_sets(strategy, sigma, power)[1].sum())
    law = law_of(strategy, sigma, power)
    assert exact - law.error <= law.log_total <= exact + loose * (power - 1.0) + 0.01


@pytest.mark.parametrize("strategy", STRATEGIES, ids=names)
def test_rounding_of_the_bound_is_within_its_error(strategy):
    law = law_of(strategy, 1.3, 3)
    k = law.gram.banded
    with mpmath.workdps(40):
        p, alpha, beta = (mpmath.mpf(x) for x in (law.gram.sampling_prob, law.alpha, law.beta))

        def entry(t, d):
            terms = (mpmath.mpf(float(k[t, i])) * float(k[t - d, i + d]) for i in range(k.shape[1] - d))
            return mpmath.fsum(terms) if d <= t else mpmath.mpf(0)

        def log_sum(free, square, gain):
            return mpmath.log(
                mpmath.fsum(
                    mpmath.binomial(free, j)
                    * p**j
                    * (1 - p) ** (free - j)
                    * mpmath.exp(square * j * (j - 1) / 2 + j * gain)
                    for j in range(free + 1)
                )
            )

        total = mpmath.mpf(0)
        for t in range(N):
            after = mpmath.fsum(alpha + beta * entry(t + d, d) for d in range(1, B) if t + d < N)
            near = [entry(t, d) for d in range(1, B)]
            total += max(
                log_sum(3 - s, entry(t, 0), after + s * end) - alpha * s - beta * s * end
                for s in range(4)
                for end in (min(near), max(near))
            )
        starts = [mpmath.mpf(1), *[p] * (B - 1)]
        mean = mpmath.fsum(x * mpmath.exp(alpha * w) for w, x in enumerate(starts)) / mpmath.fsum(starts)
        total += 3 * mpmath.log(mean)
        assert abs(total - law.log_total) <= law.error < 1e-11


@pytest.mark.parametrize(
    ("strategy", "b", "p", "sigma", "power"),
    [
        (dm.SquareRoot(200, 16), 16, 1.0 / 49.0, 13.2, 34),
        (dm.SquareRoot(200, 16), 16, 1.0 / 49.0, 2.1, 4),
        (dm.SquareRoot(200, 8), 16, 0.3, 2.0, 5),
        (dm.ColumnNormalized(dm.SquareRoot(60, 4)), 4, 0.5, 1.0, 3),
        (dm.Identity(50), 1, 0.2, 3.0, 20),
        (dm.SquareRoot(5, 5), 12, 0.4, 1.0, 4),
        (dm.SquareRoot(40, 8), 8, 0.99, 4.0, 6),
    ],
)
def test_no_draw_weighs_more_than_the_bound(strategy, b, p, sigma, power):
    gram = chain_gram(strategy, b, p).scaled(sigma**-2)
    law = WaitingCopies.of(gram, power)
    n, count = strategy.n, 400
    out, logs = np.zeros((count, n)), np.empty(count)
    starts = np.exp(gram.log_starts + law.alpha * np.minimum(np.arange(b), n))
    uniforms = np.random.default_rng(8).random((count, power + n))
    # Also far from where draws are likely: nobody joins, and all copies that do not wait join.
    uniforms[:20, power:], uniforms[20:40, power:] = 0.0, 1.0 - 1e-16
    uniforms[40:60], uniforms[60:80, power:] = 1.0 - 1e-16, uniforms[60:80, power:] ** 0.02
    draw_counts(
        uniforms,
        np.cumsum(starts),
        gram.log_prob,
        gram.log_rest,
        gram.diagonal,
        gram.by_distance,
        law.alpha,
        law.after,
        out,
        logs,
    )
    logs += power * math.log(starts.sum())
    assert np.all(logs <= law.log_total + law.error)
    assert np.all(np.isfinite(logs))
    windows = np.lib.stride_tricks.sliding_window_view(out, min(b, n), axis=1).sum(axis=-1)
    assert windows.max() <= power  # no copy joins while it waits


def test_a_draw_above_its_bound_is_an_error():
    law = law_of(STRATEGIES[1], 1.3, 3)
    too_small = dataclasses.replace(law, log_total=law.log_total - 3.0)
    with pytest.raises(NumericalError, match="exceeds its proved weight bound"):
        too_small.counts(np.random.default_rng(1), 1000)


@pytest.mark.parametrize(
    ("gram", "power"),
    [
        (chain_gram(dm.Identity(10), 2, 0.1), 129),
        (chain_gram(dm.Identity(10), 2, 1.0), 2),
        (chain_gram(dm.Identity(10), 2, 0.1).scaled(100.0), 2),
        (chain_gram(dm.Identity(200_000), 2, 0.1), 40),
    ],
    ids=["copies", "certain", "noise", "work"],
)
def test_numbers_that_are_too_large_give_no_law(gram, power):
    assert WaitingCopies.of(gram, power) is None


def test_where_no_law_is_possible_a_scaled_part_bounds_the_weights():
    gram = chain_gram(dm.Identity(10), 2, 1.0)
    assert list(gram.copies(1.0)) == []
    assert not isinstance(ChainRemove.at(gram, 1.0).parts[1], CopiesPart)


@pytest.mark.parametrize(
    ("sigma", "eps", "least", "most"), [(13.2, 1.0, -22.0, -18.5), (2.1, 8.0, -21.0, -14.0)]
)
def test_small_deltas_have_weight_bounds_of_their_order(sigma, eps, least, most):
    gram = chain_gram(dm.SquareRoot(1000, 16), 16, 1.0 / 49.0).scaled(sigma**-2)
    law = gram.copies(eps)[0]
    bound = law.log_total + log_tail_factor(law.power, eps)
    assert least < bound < most  # delta is about e^-23
    near = [WaitingCopies.of(gram, power) for power in (law.power - 1, law.power + 1)]
    assert all(bound <= one.log_total + log_tail_factor(one.power, eps) + 1e-9 for one in near)


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "sigma"), [(1.0, 13.198), (8.0, 2.111)])
def test_small_deltas_are_certified_near_what_samples_estimate(eps, sigma):
    """`sigma` is the upper end of `Importance()` on the scheme's page."""
    cal = dm.calibrate_sigma(
        dm.SquareRoot(1000, 16),
        eps,
        1e-10,
        participation=dm.BMinSep(16, 1.0 / 49.0),
        rng=np.random.default_rng(1),
    )
    assert 0.98 * sigma < cal.sigma < 1.02 * sigma


@pytest.mark.slow
def test_without_waiting_it_is_poisson_sampling():
    exact = dm.calibrate_sigma(dm.Identity(100), 1.0, 1e-10, participation=dm.Poisson(0.05))
    cal = dm.calibrate_sigma(
        dm.Identity(100), 1.0, 1e-10, participation=dm.BMinSep(1, 0.05), rng=np.random.default_rng(2)
    )
    assert exact.sigma * 0.9999 < cal.sigma < 1.02 * exact.sigma


@pytest.mark.parametrize("prob", [0.4, 0.9])
def test_bounds_on_the_copies_of_two_bands_are_smooth_in_sigma(prob):
    """All K_(t, t-1) are alike, so that many alpha and beta are as good at a step in the middle."""
    gram = chain_gram(dm.SquareRoot(N, 2), 2, prob)
    bounds = [WaitingCopies.of(gram.scaled(sigma**-2), 3).log_total for sigma in np.linspace(1.60, 1.68, 9)]
    falls = -np.diff(bounds)
    assert np.all(falls > 0.0)
    assert falls.max() < 1.2 * falls.min()
