"""The bound from one run against the worst mechanism there is, and scores against densities.

Coverage tests count runs whose bound exceeds the true eps and compare with the binomial quantile at
1 - ALPHA; each also rejects a planted fault.
"""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.audits.one_run import _largest_eps, _p_value

ALPHA = 1e-9
RUNS = 20_000
LEVEL = 0.95

CASES = [  # right guesses, guesses, canaries, eps, delta
    (6, 6, 10, 0.5, 1e-3),
    (9, 10, 10, 1.0, 1e-2),
    (18, 20, 30, 1.0, 1e-4),
    (28, 30, 50, 2.0, 0.05),
    (3, 3, 5, 0.1, 0.01),
    (16, 20, 20, 0.5, 1e-3),
    (24, 40, 200, 0.0, 1e-5),
    (40, 40, 40, 3.0, 0.2),
]


def shape(guesses, eps):
    """Binomial law of the right guesses, to weights that no constraint changes."""
    return scipy.stats.binom.pmf(np.arange(guesses + 1), guesses, 1.0 / (1.0 + math.exp(-eps)))


def by_linear_program(right, guesses, canaries, eps, delta):
    """The largest P(W >= right) over all laws of W that the inequality of the proof allows."""
    size = guesses + 1
    rows, limits = [], []
    for w in range(1, size):
        row = np.zeros(2 * size)
        row[w], row[w - 1], row[size + w] = w, -math.exp(eps) * (guesses - w + 1), -1.0
        rows.append(row)
        limits.append(0.0)
    rows.append(np.r_[np.zeros(size), np.ones(size)])
    limits.append(canaries * delta)
    aim = np.zeros(2 * size)
    aim[right:size] = -1.0
    total = np.r_[np.ones(size), np.zeros(size)][None]
    return -scipy.optimize.linprog(aim, rows, limits, total, [1.0]).fun


def worst_law(right, guesses, canaries, eps, delta):
    """Law of W under the mechanism that attains the bound: sometimes it answers `right` or better at once."""
    pmf = shape(guesses, eps)
    tail = pmf[right:].sum()
    share = canaries * delta * tail / (right * pmf[right])
    law = (1.0 - share) * pmf
    law[right:] += share * pmf[right:] / tail
    return law


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_p_value_is_the_optimum_of_the_proofs_program(case):
    assert _p_value(*case) == pytest.approx(by_linear_program(*case), rel=1e-7)


@given(st.data())
def test_the_p_value_is_the_optimum_wherever_it_is_not_one(data):
    guesses = data.draw(st.integers(1, 12))
    right = data.draw(st.integers(0, guesses))
    canaries = data.draw(st.integers(guesses, 50))
    eps, delta = data.draw(st.floats(0.0, 4.0)), data.draw(st.floats(1e-6, 0.2))
    found = _p_value(right, guesses, canaries, eps, delta)
    if right > guesses / (1.0 + math.exp(-eps)):
        assert found == pytest.approx(by_linear_program(right, guesses, canaries, eps, delta), rel=1e-6)
    else:
        assert found == 1.0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_p_value_is_at_most_the_published_one(case):
    right, guesses, canaries, eps, delta = case
    q = 1.0 / (1.0 + math.exp(-eps))
    tail = scipy.stats.binom.sf(right - 1, guesses, q)
    spread = max((scipy.stats.binom.sf(right - i - 1, guesses, q) - tail) / i for i in range(1, right + 1))
    published = min(1.0, tail + 2.0 * canaries * delta * spread)
    assert tail < _p_value(*case) <= published + 1e-12


@pytest.mark.parametrize(("guesses", "right"), [(4, 4), (4, 3), (2, 2)])
def test_some_private_mechanism_attains_the_p_value(guesses, right):
    """Every output of it for every coin, so that its delta is an exact sum."""
    canaries, eps, delta = 4, 0.4, 0.01
    law = worst_law(right, guesses, canaries, eps, delta)
    laws = {}
    for coins in itertools.product((0, 1), repeat=canaries):
        laws[coins] = {}
        for chosen in itertools.combinations(range(canaries), guesses):
            for answer in itertools.product((0, 1), repeat=guesses):
                hits = sum(coins[i] == a for i, a in zip(chosen, answer, strict=True))
                laws[coins][chosen, answer] = (
                    law[hits] / math.comb(guesses, hits) / math.comb(canaries, guesses)
                )
    worst = 0.0
    for coins, own in laws.items():
        assert sum(own.values()) == pytest.approx(1.0)
        for i in range(canaries):
            other = laws[(*coins[:i], 1 - coins[i], *coins[i + 1 :])]
            worst = max(worst, sum(max(own[t] - math.exp(eps) * other[t], 0.0) for t in own))
    assert worst == pytest.approx(delta, rel=1e-9)
    assert law[right:].sum() == pytest.approx(_p_value(right, guesses, canaries, eps, delta), rel=1e-9)


def test_the_p_value_is_monotone_and_stable():
    values = [_p_value(150, 200, 1000, eps, 1e-5) for eps in np.linspace(0.0, 3.0, 301)]
    assert np.all(np.diff(values) >= 0.0)
    assert values[-1] == 1.0
    falling = [_p_value(right, 200, 1000, 0.5, 1e-5) for right in range(201)]
    assert np.all(np.diff(falling) <= 0.0)
    assert 1e-5 <= falling[-1] < 1.01e-5 * 1000 / 200  # delta alone explains any success that often
    # Where the binomial tail underflows, the term in delta is still there.
    assert _p_value(20_000, 20_000, 40_000, 0.0, 1e-9) == pytest.approx(2e-9, rel=1e-9)


def most(probability, runs=RUNS):
    return scipy.stats.binom.isf(ALPHA, runs, probability)


def test_coverage_under_the_worst_mechanism_and_without_the_term_in_delta():
    """60 canaries, delta 0.01: careless audits err in 6 to 7 % of runs."""
    canaries, eps, delta = 60, 1.0, 0.01
    error = 1.0 - LEVEL
    critical, careless = (
        next(v for v in range(canaries + 1) if _p_value(v, canaries, canaries, eps, d) <= error)
        for d in (delta, 1e-300)
    )
    assert careless < critical
    rng = np.random.default_rng(3)
    for right, threshold, valid in ((critical, critical, True), (careless, careless, False)):
        law = worst_law(right, canaries, canaries, eps, delta)
        drawn = rng.choice(canaries + 1, size=RUNS, p=law / law.sum())
        bounds = {
            int(v): _largest_eps(int(v), canaries, canaries, delta if valid else 1e-300, error)
            for v in np.unique(drawn)
        }
        wrong = sum(bounds[int(v)] > eps for v in drawn)
        assert wrong == np.sum(drawn >= threshold)
        assert bool(wrong <= most(error)) is valid


def scored(answers, included, **options):
    return dm.audits.one_run_epsilon(
        answers, included, 1e-6, confidence=LEVEL, guesses=[(40, 40)], **options
    ).lower


def test_coverage_under_randomised_response():
    """The tightest case without delta; a p-value that forgets the outcome itself, P(W > v), is rejected."""
    eps, canaries, runs = 1.0, 200, 3 * RUNS  # the planted fault errs in 5.9 % of runs
    q = 1.0 / (1.0 + math.exp(-eps))
    rng = np.random.default_rng(4)
    included = rng.integers(0, 2, size=(runs, canaries), dtype=bool)
    answers = np.where(rng.random((runs, canaries)) < q, included, ~included)
    ranks = answers + 0.5 * rng.random((runs, canaries))  # fresh coins break the ties of the answers
    order = np.argsort(-ranks, axis=1)
    ordered = np.take_along_axis(included, order, axis=1)
    right = ordered[:, :40].sum(axis=1) + (~ordered[:, -40:]).sum(axis=1)
    for run in range(3):
        found = scored(ranks[run], included[run])
        assert found == _largest_eps(int(right[run]), 80, canaries, 1e-6, 1.0 - LEVEL)
    sizes = range(82)
    bounds = np.array([_largest_eps(min(v, 80), 80, canaries, 1e-6, 1.0 - LEVEL) for v in sizes])
    wrong, faulty = np.sum(bounds[right] > eps), np.sum(bounds[right + 1] > eps)
    assert 0.02 * runs < wrong <= most(1.0 - LEVEL, runs) < faulty


@pytest.mark.parametrize(("factor", "audits"), [(1.0, 300), (0.3, 100)])
def test_gaussian_canaries_are_covered_and_too_little_noise_is_found(factor, audits):
    """Audits of 1000 canaries each, under the best scores for the claimed noise."""
    eps, delta, canaries = 1.0, 1e-5, 1000
    sigma = dm.calibrate_sigma(dm.Identity(1), eps, delta).sigma
    rng = np.random.default_rng(5)
    joins = np.ones((canaries, 1), dtype=bool)
    exceeded = 0
    for _ in range(audits):
        included = rng.integers(0, 2, size=canaries, dtype=bool)
        released = included[:, None] + factor * sigma * rng.standard_normal((canaries, 1))
        scores = dm.audits.canary_scores(released, dm.Identity(1), sigma, joins)
        exceeded += dm.audits.one_run_epsilon(scores, included, delta).lower > eps
    if factor == 1.0:
        assert exceeded <= most(1.0 - LEVEL, audits)
    else:
        assert exceeded > 0.9 * audits


# ---- scores


def density_ratio(rows, strategy, sigma, patterns, weights):
    """Log of the mixture's density over that of noise alone, from densities of the release itself."""
    inverse = np.linalg.inv(strategy.to_dense())[: rows.shape[1], : rows.shape[1]]
    law = scipy.stats.multivariate_normal(np.zeros(len(inverse)), sigma**2 * inverse @ inverse.T)
    present = sum(
        weight * law.pdf(rows - pattern[: rows.shape[1]])
        for pattern, weight in zip(patterns, weights, strict=True)
    )
    return np.log(present / law.pdf(rows))


def sampled_patterns(participation, n):
    """Every set of steps with its probability."""
    if isinstance(participation, dm.BallsInBins):
        bins = participation.bins
        return [(np.arange(n) % bins == b).astype(float) for b in range(bins)], np.full(bins, 1.0 / bins)
    q, cycle = participation.sampling_prob, getattr(participation, "cycle", 1)
    patterns, weights = [], []
    for group in range(cycle):
        steps = np.arange(group, n, cycle)
        for joined in itertools.product((0.0, 1.0), repeat=len(steps)):
            pattern = np.zeros(n)
            pattern[steps] = joined
            patterns.append(pattern)
            weights.append(q ** sum(joined) * (1.0 - q) ** (len(steps) - sum(joined)) / cycle)
    return patterns, weights


@pytest.mark.parametrize("steps", [6, 4, 2])
@pytest.mark.parametrize(
    ("strategy", "participation"),
    [
        (dm.LambdaCGD(6, 0.6), dm.BallsInBins(3)),
        (dm.Identity(6), dm.Poisson(0.3)),
        (dm.Diagonal([1.0, 2.0, 1.5, 0.5, 1.0, 1.2]), dm.Poisson(1.0)),
        (dm.BandedToeplitz(6, [1.0, 0.5]), dm.CyclicPoisson(0.4, 3)),
    ],
    ids=repr,
)
def test_scores_are_log_likelihood_ratios(strategy, participation, steps):
    rng, sigma = np.random.default_rng(6), 1.3
    rows, strengths = 2.0 * rng.standard_normal((20, steps)), rng.uniform(0.5, 1.0, steps)
    patterns, weights = sampled_patterns(participation, 6)
    found = dm.audits.canary_scores(rows, strategy, sigma, participation)
    np.testing.assert_allclose(
        found, density_ratio(rows, strategy, sigma, patterns, weights), rtol=1e-8, atol=1e-9
    )
    found = dm.audits.canary_scores(rows, strategy, sigma, participation, strengths=strengths)
    weaker = [pattern[:steps] * strengths for pattern in patterns]
    np.testing.assert_allclose(
        found, density_ratio(rows, strategy, sigma, weaker, weights), rtol=1e-8, atol=1e-9
    )


def test_scores_of_known_steps():
    rng, sigma, strategy = np.random.default_rng(7), 1.3, dm.InverseSquareRoot(5, 3)
    rows, joins = rng.standard_normal((30, 5)), rng.random((30, 5)) < 0.5
    strengths = rng.uniform(0.5, 1.0, 5)
    found = dm.audits.canary_scores(rows, strategy, sigma, joins, strengths=strengths)
    expected = [
        density_ratio(row[None], strategy, sigma, [join * strengths], [1.0])
        for row, join in zip(rows, joins, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)


def test_long_sampled_runs_are_scored_in_parts():
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((3, 1100))
    found = dm.audits.canary_scores(rows, dm.Identity(1100), 2.0, dm.Poisson(0.1))
    losses = np.log1p(0.1 * np.expm1((rows - 0.5) / 4.0)).sum(axis=1)
    np.testing.assert_allclose(found, losses, rtol=1e-9)


# ---- what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": [1.0, math.nan]}, "scores"),
        ({"scores": np.zeros(3)}, "included"),
        ({"included": np.zeros(100)}, "bool of shape"),
        ({"included": np.ones(100, dtype=bool)}, "fair coins"),
        ({"delta": 0.0}, "delta"),
        ({"confidence": 1.0}, "confidence"),
        ({"guesses": 30}, "guesses"),
        ({"guesses": []}, "guesses"),
        ({"guesses": "ab"}, "guesses"),
        ({"guesses": [10]}, "guesses"),
        ({"guesses": [(60, 41)]}, "guesses"),
        ({"guesses": [(0, 0)]}, "guesses"),
        ({"guesses": [(1.0, 0)]}, "guesses"),
    ],
)
def test_bad_arguments_of_the_bound(changes, message):
    rng = np.random.default_rng(1)
    arguments = {
        "scores": np.arange(100.0),
        "included": rng.integers(0, 2, size=100, dtype=bool),
        "delta": 1e-5,
    }
    with pytest.raises(dm.InvalidParameterError, match=message):
        dm.audits.one_run_epsilon(**(arguments | changes))


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.data())
def test_right_guesses_are_counted_one_by_one(seed, canaries, data):
    rng = np.random.default_rng(seed)
    scores, included = rng.standard_normal(canaries), rng.integers(0, 2, size=canaries, dtype=bool)
    high = data.draw(st.integers(0, canaries))
    low = data.draw(st.integers(0 if high else 1, canaries - high))
    ranks = scores.argsort().argsort()  # 0 is the lowest score
    right = sum(
        (rank >= canaries - high and coin) or (rank < low and not coin)
        for rank, coin in zip(ranks, included, strict=True)
    )
    found = dm.audits.one_run_epsilon(scores, included, 1e-5, guesses=[(high, low)])
    assert str(found.by) == f"one run, {canaries} canaries, {right} of {high} + {low} guesses right"


def test_what_the_bound_says_of_itself():
    included = np.arange(100) % 2 == 0
    scores = np.where(included, 1.0, -1.0) * np.arange(1, 101)
    found = dm.audits.one_run_epsilon(scores, included, 1e-6)
    assert found.upper == math.inf
    assert found.guarantee.error == pytest.approx(0.05)
    assert str(found.by) == (
        "one run, 100 canaries, 26 of 13 + 13 guesses right, the best of 6 ways to guess with a union bound"
    )
    alone = dm.audits.one_run_epsilon(scores, included, 1e-6, guesses=[(13, 13)])
    assert str(alone.by) == "one run, 100 canaries, 26 of 13 + 13 guesses right"
    assert alone.lower > found.lower > 1.0
    # All 26 right: q^26 and the term in delta make up the error.
    assert _p_value(26, 26, 100, alone.lower, 1e-6) == pytest.approx(0.05, rel=1e-6)
    assert dm.audits.one_run_epsilon(-scores, included, 1e-6).lower == 0.0
    assert dm.audits.one_run_epsilon([3.0], np.array([True]), 1e-6, guesses=[(1, 0)]).lower == 0.0
    assert dm.audits.one_run_epsilon([3.0], np.array([True]), 1e-6).lower == 0.0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"observations": np.zeros(4)}, dm.InvalidParameterError, "observations"),
        ({"observations": np.zeros((3, 5))}, dm.InvalidParameterError, "observations"),
        ({"observations": np.full((3, 4), np.nan)}, dm.InvalidParameterError, "NaN"),
        ({"observations": [["a"] * 4]}, dm.InvalidParameterError, "observations"),
        ({"sigma": 0.0}, dm.InvalidParameterError, "sigma"),
        ({"strategy": 3}, dm.InvalidParameterError, "strategy"),
        ({"strengths": [1.0]}, dm.InvalidParameterError, "strengths"),
        ({"strengths": [1.0, 1.0, 1.0, -1.0]}, dm.InvalidParameterError, "strengths"),
        ({"participation": dm.MinSep(2)}, dm.InvalidParameterError, "the steps that each canary joins"),
        ({"participation": np.ones((3, 4))}, dm.InvalidParameterError, "participation"),
        ({"participation": np.ones((3, 2), dtype=bool)}, dm.InvalidParameterError, "participation"),
        ({"participation": dm.BallsInBins(99)}, dm.InvalidParameterError, "bins"),
        ({"participation": dm.Poisson(0.1)}, dm.UnsupportedCombinationError, "2 bands"),
        (
            {"participation": dm.CyclicPoisson(0.1, 2), "strategy": dm.LambdaCGD(4, 0.9)},
            dm.UnsupportedCombinationError,
            "no bands",
        ),
    ],
)
def test_bad_arguments_of_the_scores(changes, error, message):
    arguments = {
        "observations": np.zeros((3, 4)),
        "strategy": dm.BandedToeplitz(4, [1.0, 0.5]),
        "sigma": 1.0,
        "participation": dm.BallsInBins(2),
    } | changes
    with pytest.raises(error, match=message):
        dm.audits.canary_scores(**arguments)


def exact_p_value(right, guesses, canaries, eps, delta):
    """The formula in 50 digits, its sums term by term."""
    with mp.workdps(50):
        chance = mp.exp(mp.mpf(eps)) / (1 + mp.exp(mp.mpf(eps)))
        choices = mp.loggamma(guesses + 1) - mp.loggamma(right + 1) - mp.loggamma(guesses - right + 1)
        first = mp.exp(choices + right * mp.log(chance) + (guesses - right) * mp.log1p(-chance))
        term, tail = first, mp.mpf(0)
        for hits in range(right, guesses + 1):
            tail += term
            term *= mp.mpf(guesses - hits) / (hits + 1) * mp.exp(mp.mpf(eps))
            if term < tail * mp.mpf(10) ** -30:
                break
        return tail + canaries * mp.mpf(delta) * tail / first * (1 - tail) / right


@pytest.mark.slow
def test_the_p_value_is_rounded_up_to_a_million_guesses():
    rng = np.random.default_rng(21)
    seen = []
    for _ in range(60):
        guesses, eps = int(math.exp(rng.uniform(1.0, 13.8))), math.exp(rng.uniform(-6.0, 1.5))
        chance = 1.0 / (1.0 + math.exp(-eps))
        spread = math.sqrt(guesses * chance * (1.0 - chance))
        right = min(guesses, int(guesses * chance + rng.uniform(0.2, 9.0) * spread) + 1)
        canaries, delta = 3 * guesses, 1e-7 / guesses
        exact = exact_p_value(right, guesses, canaries, eps, delta)
        found = _p_value(right, guesses, canaries, eps, delta)
        assert min(exact, 1) <= found <= min(exact * (1 + mp.mpf(10) ** -8), 1)
        # What scipy's function itself is off by, of which the bound takes a hundred times as much.
        plain = _p_value(right, guesses, canaries, eps, 0.0)
        tail = exact_p_value(right, guesses, canaries, eps, 0.0)
        own = float(scipy.special.betainc(right, guesses - right + 1, float(scipy.special.expit(eps))))
        if tail < 0.5:
            seen.append(float(abs(own / tail - 1)) - 8 * 2.0**-53 * right)
            assert plain >= tail
    assert max(seen) <= 1e-12
