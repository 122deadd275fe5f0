"""b-min-sep sampling against all participations written out: laws, ratios, parts and bounds."""

import itertools
import math

import numpy as np
import pytest
import scipy

import dpmech as dm
from dpmech.engines.gaussian_mixture.chain_kernels import log_powers
from dpmech.engines.gaussian_mixture.chain_mixtures import (
    ChainAdd,
    ChainRemove,
    CopiesPart,
    PowerPart,
    scaled_part,
)
from dpmech.engines.gaussian_mixture.chains import ChainGram, chain_gram

N, B, P = 7, 3, 0.3


def written_out(n, b, p):
    """Every set of steps and its probability, from the coins: rest counter first, then step after step."""
    law = {}
    starts = np.array([1.0] + [p] * (b - 1)) / (1.0 + p * (b - 1))
    for start, probability in enumerate(starts):
        for coins in itertools.product((0, 1), repeat=n):
            free, chance, steps = start, probability, []
            for t, heads in enumerate(coins):
                if t < free:
                    chance *= 0.5  # a coin that nobody looks at
                    continue
                chance *= p if heads else 1.0 - p
                if heads:
                    steps.append(t)
                    free = t + b
            law[tuple(steps)] = law.get(tuple(steps), 0.0) + chance
    return np.array([[float(t in steps) for t in range(n)] for steps in law]), np.array(list(law.values()))


def columns(strategy, sigma):
    return strategy.to_dense() / sigma


STRATEGIES = [
    dm.SquareRoot(N, B),
    dm.BandedToeplitz(N, [1.0, 0.7]),
    dm.Dense(np.random.default_rng(3).random((N, N)) * (np.tri(N) - np.tri(N, k=-B))),
    dm.ColumnNormalized(dm.SquareRoot(N, B)),
]


def test_the_law_written_out_is_stationary():
    steps, law = written_out(N, B, P)
    assert math.isclose(law.sum(), 1.0, rel_tol=1e-12)
    np.testing.assert_allclose(law @ steps, dm.BMinSep(B, P).rate, rtol=1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("p", [P, 1.0])
def test_ratios_and_parts_are_those_of_all_participations(strategy, p):
    steps, law = written_out(N, B, p)
    sigma = 1.3
    gram, c = chain_gram(strategy, B, p).scaled(sigma**-2), columns(strategy, sigma)
    rows = np.random.default_rng(1).standard_normal((20, N)) * 2.0
    values = gram.correlated(rows)
    np.testing.assert_allclose(values, rows @ c, rtol=1e-12, atol=1e-12)
    kernel = c.T @ c
    np.testing.assert_allclose(gram.matmat(np.eye(N)), kernel, rtol=1e-12, atol=1e-14)

    def dense(shift, scale, gains):
        """log of the density against Q of y = C (v + a pi) + sigma z, in units of sigma."""
        means = (shift + scale * steps) @ c.T
        logs = rows @ means.T - 0.5 * np.sum(means**2, axis=1)
        tilted = law * np.exp(steps @ gains)
        return scipy.special.logsumexp(logs, axis=1, b=tilted / tilted.sum())

    def copies(part):
        """The same where each step joined has a mean j times as large, with gains of its own."""
        means, masses = [], []
        for row, chance in zip(steps, law, strict=True):
            joined = np.flatnonzero(row)
            for sizes in itertools.product(range(len(part.logs)), repeat=joined.size):
                weights = np.zeros(N)
                weights[joined] = np.array(sizes) + 1.0
                means.append((part.shift + weights) @ c.T)
                masses.append(
                    chance * math.exp(sum(part.logs[j, t] for j, t in zip(sizes, joined, strict=True)))
                )
        means, masses = np.array(means), np.array(masses)
        logs = rows @ means.T - 0.5 * np.sum(means**2, axis=1)
        return scipy.special.logsumexp(logs, axis=1, b=masses / masses.sum())

    np.testing.assert_allclose(gram.losses(values), dense(np.zeros(N), 1.0, np.zeros(N)), rtol=1e-10)
    losses = dense(np.zeros(N), 1.0, np.zeros(N))
    for part in ChainRemove.at(gram, 0.7).parts:
        if isinstance(part, CopiesPart):
            expected = part.law.power * losses - part.law.log_total
        elif isinstance(part, PowerPart):
            expected = copies(part)
        else:
            expected = dense(part.shift, part.scale, part.tilt.gains)
        found = part.log_density(gram, values, gram.losses(values))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_tilted_laws_have_their_total_and_marginals_and_are_drawn():
    steps, law = written_out(N, B, P)
    gains = np.linspace(-1.0, 2.0, N)
    tilted = law * np.exp(steps @ gains)
    gram = chain_gram(dm.SquareRoot(N, B), B, P)
    tilt = gram.tilt(gains, 0.0)
    assert math.isclose(tilt.log_total, math.log(tilted.sum()), rel_tol=1e-12)
    np.testing.assert_allclose(tilt.marginals(), tilted @ steps / tilted.sum(), rtol=1e-12)
    drawn = tilt.patterns(np.random.default_rng(5), 40_000)
    keys = drawn @ 2.0 ** np.arange(N)
    found = np.array([np.count_nonzero(keys == row @ 2.0 ** np.arange(N)) for row in steps])
    expected = 40_000 * tilted / tilted.sum()
    assert found.sum() == 40_000
    assert scipy.stats.chisquare(found[expected > 5], expected[expected > 5], sum_check=False).pvalue > 1e-9
    untilted = 40_000 * law
    assert scipy.stats.chisquare(found[untilted > 5], untilted[untilted > 5], sum_check=False).pvalue < 1e-9


@pytest.mark.parametrize("eps", [0.5, 4.0])
def test_no_weight_is_above_its_bound(eps):
    gram = chain_gram(dm.SquareRoot(N, B), B, P).scaled(0.5)
    rows = np.random.default_rng(2).standard_normal((20_000, N)) * 3.0
    rows += np.abs(np.random.default_rng(3).standard_normal((20_000, 1))) * 2.0
    values = gram.correlated(rows)
    losses = gram.losses(values)
    remove = ChainRemove.at(gram, eps)
    for star in (remove.parts[1], scaled_part(gram, "star", 3.0)):
        power, log_scale = star.bound
        assert power > 1.0
        slack = star.log_density(gram, values, losses) - (power * losses + log_scale)
        assert -1e-9 < slack.min() < 2.0  # a bound, and no loose one
    add = ChainAdd.at(gram, eps)
    below = gram.correlated(-rows)
    depth = below @ add.point.direction
    losses = gram.losses(below)
    # The half-space holds all that is below its level.
    slack = -add.point.depth + (losses + eps) - depth
    assert -1e-9 < slack.min() < 2.0
    for proposal in (remove, add):
        payoffs, densities = proposal.block(np.random.SeedSequence(1), 4000)
        weights = proposal.log_weights(payoffs, densities)
        assert np.max(weights) <= proposal.log_weight_bound + 1e-9
        assert np.isfinite(weights).sum() > 100 or proposal.log_weight_bound < -100.0


def in_logs(values, p, b):
    """The recursion from the last step back, in logs throughout."""
    n = values.shape[1]
    logs = np.zeros((len(values), n + b))
    rest = math.log1p(-p) if p < 1.0 else -math.inf
    for t in range(n - 1, -1, -1):
        logs[:, t] = np.logaddexp(rest + logs[:, t + 1], math.log(p) + values[:, t] + logs[:, t + b])
    starts = np.log(np.array([1.0] + [p] * (b - 1)) / (1.0 + p * (b - 1)))
    return scipy.special.logsumexp(logs[:, :b] + starts, axis=1)


@pytest.mark.parametrize("p", [1e-3, 0.3, 0.99, 1.0 - 1e-13, 1.0])
@pytest.mark.parametrize("b", [1, 3, 16])
@pytest.mark.parametrize(
    ("drift", "size"), [(0.0, 0.5), (3.0, 1.0), (-8.0, 1.0), (0.0, 60.0), (0.0, 400.0), (-150.0, 40.0)]
)
def test_no_term_is_lost_however_far_apart_they_are(p, b, drift, size):
    n = 400
    values = drift + size * np.random.default_rng(6).standard_normal((12, n))
    # Classes of steps that never meet, where p is 1, far apart: one that grows late.
    values[:3] = np.where(np.arange(n) % b == 0, values[:3] + 3.0, values[:3] - 5.0)
    values[3] = np.where(np.arange(n) < n // 2, 150.0, -150.0)
    values[4] = np.where((np.arange(n) < n // 2) == (np.arange(n) % b == 0), 190.0, -190.0)
    gram = chain_gram(dm.Identity(n), b, p)
    found = gram.log_sums(values, 1.0, np.zeros(n), 0.0)
    size = 1.0 + np.abs(values).sum(axis=1)
    assert np.max(np.abs(found - in_logs(values, p, b)) / size) < 1e-14


@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_sums_of_powers_lose_none(size):
    rng = np.random.default_rng(7)
    values, logs = size * rng.standard_normal((5, N)), 10.0 * size * rng.standard_normal((12, N))
    found = np.empty_like(values)
    log_powers(values, logs, found)
    powers = np.arange(1.0, 13.0)[:, None, None]
    expected = scipy.special.logsumexp(logs[:, None] + powers * values, axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-12)


def test_levels_share_draws():
    gram = chain_gram(dm.SquareRoot(N, B), B, P).scaled(0.5)
    for proposal in (ChainRemove.at(gram, 0.5), ChainAdd.at(gram, 0.5)):
        payoffs, _ = proposal.block(np.random.SeedSequence(1), 500)
        further, _ = proposal.at_level(0.9).block(np.random.SeedSequence(1), 500)
        np.testing.assert_allclose(proposal.payoffs_at(payoffs, 0.9), further, rtol=1e-9, atol=1e-9)
        fewer = proposal.restricted(["scaled"])
        assert math.isclose(fewer.weights.sum(), 1.0)
        assert len(fewer.names) <= len(proposal.names)


def test_bounds_from_below_have_smaller_columns():
    strategy = dm.ColumnNormalized(dm.SquareRoot(40, 4))
    above, below = (chain_gram(strategy, 4, 0.1, lower=lower) for lower in (False, True))
    c = strategy.to_dense()
    banded = np.array([[c[t + k, t] if t + k < 40 else 0.0 for k in range(4)] for t in range(40)])
    assert np.all(below.banded <= banded)
    assert np.all(above.banded >= banded)
    np.testing.assert_allclose(above.banded, below.banded, rtol=1e-10)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (dm.SquareRoot(12, 4), "at most min_sep=3 bands"),
        (dm.LambdaCGD(12, 0.5), "at most min_sep=3 bands"),
        (dm.BandedToeplitz(12, [1.0, -0.5]), "proven for C >= 0"),
    ],
)
def test_what_no_proof_covers_is_refused(strategy, words):
    with pytest.raises(dm.UnsupportedCombinationError, match=words):
        dm.delta(strategy, 1.0, 1.0, participation=dm.BMinSep(3, 0.2))


def test_adjacency_and_methods_are_refused_that_have_no_proof():
    sampling = dm.BMinSep(3, 0.2)
    with pytest.raises(dm.UnsupportedCombinationError, match="REPLACE_ONE"):
        dm.Mechanism(dm.SquareRoot(12, 3), sampling, dm.Adjacency.REPLACE_ONE)
    for method in (dm.methods.Pld(), dm.methods.Rdp(), dm.methods.Deterministic(), dm.methods.Exact()):
        with pytest.raises(dm.UnsupportedCombinationError, match="does not apply"):
            dm.delta(dm.SquareRoot(12, 3), 1.0, 1.0, participation=sampling, method=method)


def test_a_gram_matrix_is_known_by_its_steps():
    gram = chain_gram(dm.SquareRoot(N, B), B, P)
    assert isinstance(gram, ChainGram)
    assert (gram.words, gram.facts, gram.family) == ("7 steps", {"steps": 7, "min_sep": 3}, "chains")
    assert not gram.cheap_columns
