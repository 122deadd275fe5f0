"""Random allocation against all sets of steps written out: laws, ratios, parts, copies and bounds."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy

import dpmech as dm
from dpmech.engines.gaussian_mixture import allocation_chain
from dpmech.engines.gaussian_mixture.allocation_chain import allocation_gram
from dpmech.engines.gaussian_mixture.chain_mixtures import ChainAdd, ChainRemove, CopiesPart, PowerPart
from dpmech.exceptions import UnsupportedCombinationError

N = 6
STRATEGIES = [
    dm.Identity(N),
    dm.BandedToeplitz(N, [1.0, 0.7]),
    dm.SquareRoot(N, 3),
    dm.Dense(np.random.default_rng(3).random((N, N)) * np.tri(N)),
]
CASES = [(strategy, k) for strategy in STRATEGIES for k in (1, 2, 3, N - 1)]


def names(case):
    return f"{type(case[0]).__name__}-{case[1]}"


def sets_of(n, k):
    return np.array([[float(t in steps) for t in range(n)] for steps in itertools.combinations(range(n), k)])


def built(case, sigma=1.3):
    strategy, k = case
    return allocation_gram(strategy, k).scaled(sigma**-2), strategy.to_dense() / sigma, sets_of(N, k)


@pytest.mark.parametrize("case", CASES, ids=names)
def test_ratios_and_parts_are_those_of_all_sets(case):
    gram, c, sets = built(case)
    rows = np.random.default_rng(1).standard_normal((20, N)) * 2.0
    values = gram.correlated(rows)
    losses = gram.losses(values)
    means = sets @ c.T
    logs = rows @ means.T - 0.5 * np.sum(means**2, axis=1)
    np.testing.assert_allclose(
        losses, scipy.special.logsumexp(logs, axis=1) - math.log(len(sets)), atol=1e-10
    )
    squares = np.sum(means**2, axis=1)
    products = 0.5 * (squares - sets @ np.sum(c**2, axis=0))  # of pairs of steps of one set
    proposal = ChainRemove.at(gram, 0.7)
    assert isinstance(proposal.parts[1], CopiesPart) or case[1] >= 3
    seen = set()
    for part in proposal.parts:
        seen.add(part.name)
        if isinstance(part, CopiesPart):
            expected = part.law.power * losses - part.law.log_total
        elif isinstance(part, PowerPart):
            assert not gram.overlapping
            multiples, chances = [], []
            for row in sets:
                joined = np.flatnonzero(row)
                for sizes in itertools.product(range(len(part.logs)), repeat=joined.size):
                    weights = np.zeros(N)
                    weights[joined] = np.array(sizes) + 1.0
                    multiples.append((part.shift + weights) @ c.T)
                    chances.append(math.exp(sum(part.logs[j, t] for j, t in zip(sizes, joined, strict=True))))
            moved, chances = np.array(multiples), np.array(chances)
            logs = rows @ moved.T - 0.5 * np.sum(moved**2, axis=1)
            expected = scipy.special.logsumexp(logs, axis=1, b=chances / chances.sum())
        else:
            moved = (part.shift + part.scale * sets) @ c.T
            chances = np.exp(sets @ part.tilt.gains + part.crossing * products)
            logs = rows @ moved.T - 0.5 * np.sum(moved**2, axis=1)
            expected = scipy.special.logsumexp(logs, axis=1, b=chances / chances.sum())
        found = part.log_density(gram, values, losses)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=part.name)
    assert {"nominal", "star", "scaled", "joined, all steps"} <= seen


@pytest.mark.parametrize("case", CASES, ids=names)
def test_logs_and_numbers_agree(case):
    """Rows of numbers, and rows that leave their range: the same recursion in logs."""
    gram, c, sets = built(case, 0.05 if case[1] < 3 else 1.3)
    rows = np.random.default_rng(2).standard_normal((10, N)) * 40.0
    means = sets @ c.T
    logs = rows @ means.T - 0.5 * np.sum(means**2, axis=1)
    expected = scipy.special.logsumexp(logs, axis=1) - math.log(len(sets))
    np.testing.assert_allclose(gram.losses(gram.correlated(rows)), expected, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("crossing", [0.0, -1.0, 0.8])
@pytest.mark.parametrize("case", [CASES[1], CASES[6], CASES[10]], ids=names)
def test_tilted_laws_have_their_total_and_marginals_and_are_drawn(case, crossing):
    gram, c, sets = built(case)
    gains = np.linspace(-1.0, 2.0, N)
    products = 0.5 * (np.sum((sets @ c.T) ** 2, axis=1) - sets @ np.sum(c**2, axis=0))
    tilted = np.exp(sets @ gains + crossing * products)
    tilt = gram.tilt(gains, crossing)
    assert math.isclose(tilt.log_total, math.log(tilted.mean()), rel_tol=1e-12)
    np.testing.assert_allclose(tilt.marginals(), tilted @ sets / tilted.sum(), rtol=1e-12)
    keys = tilt.patterns(np.random.default_rng(5), 40_000) @ 2.0 ** np.arange(N)
    found = np.array([np.count_nonzero(keys == row @ 2.0 ** np.arange(N)) for row in sets])
    expected = 40_000 * tilted / tilted.sum()
    assert found.sum() == 40_000
    assert scipy.stats.chisquare(found, expected).pvalue > 1e-9
    # The test finds a law that is off: the one without weights.
    assert scipy.stats.chisquare(found, np.full(len(sets), 40_000 / len(sets))).pvalue < 1e-9


@pytest.mark.parametrize("power", [2, 3])
@pytest.mark.parametrize(
    "case", [CASES[0], CASES[1], CASES[3], CASES[5], CASES[7], CASES[9], CASES[14]], ids=names
)
def test_copies_have_the_law_of_all_tuples_of_sets(case, power):
    gram, c, sets = built(case)
    law = gram.copies_of(power)
    means = sets @ c.T
    tuples = np.array(list(itertools.product(range(len(sets)), repeat=power)))
    logs = sum(
        np.sum(means[tuples[:, u]] * means[tuples[:, v]], axis=1) for v in range(power) for u in range(v)
    )
    exact = scipy.special.logsumexp(logs) - power * math.log(len(sets))
    assert abs(law.log_total - exact) < 1e-11
    assert 0.0 < law.error < 1e-10
    # What is drawn: how many copies join each step, by chi-square.
    counts = sum(sets[tuples[:, u]] for u in range(power))
    keys = counts @ (power + 1.0) ** np.arange(N)
    chances = np.exp(logs - scipy.special.logsumexp(logs))
    places, inverse = np.unique(keys, return_inverse=True)
    expected = 50_000 * np.bincount(inverse, weights=chances)
    drawn = law.counts(np.random.default_rng(4), 50_000) @ (power + 1.0) ** np.arange(N)
    assert np.all(np.isin(drawn, places))
    found = np.bincount(np.searchsorted(places, drawn), minlength=places.size)
    common = expected > 5.0
    assert scipy.stats.chisquare(found[common], expected[common], sum_check=False).pvalue > 1e-9
    if len(sets) > 1:
        even = 50_000 * np.bincount(inverse) / len(tuples)
        assert scipy.stats.chisquare(found[common], even[common], sum_check=False).pvalue < 1e-9


@pytest.mark.parametrize(("eps", "sigma"), [(0.7, 2.0), (4.0, 0.9)])
@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[5], CASES[9]], ids=names)
def test_no_weight_is_above_its_bound(case, eps, sigma, monkeypatch):
    gram, _, _ = built(case, sigma)
    for copies in (True, False):
        if not copies:
            monkeypatch.setattr(allocation_chain, "_MOVES", 0)
        remove, add = ChainRemove.at(gram, eps), ChainAdd.at(gram, eps)
        assert isinstance(remove.parts[1], CopiesPart) is copies
        power, log_scale = remove.parts[1].bound
        rows = np.random.default_rng(2).standard_normal((20_000, N)) * 3.0
        values = gram.correlated(rows)
        losses = gram.losses(values)
        slack = remove.parts[1].log_density(gram, values, losses) - power * losses - log_scale
        assert -1e-9 < slack.min() < 2.0
        depth = values @ add.point.direction
        assert (losses - (depth + add.point.depth - eps)).min() > -1e-9
        for proposal in (remove, add):
            payoffs, densities = proposal.block(np.random.SeedSequence(1), 4000)
            weights = proposal.log_weights(payoffs, densities)
            assert np.max(weights) <= proposal.log_weight_bound + 1e-9


@pytest.mark.parametrize("case", [CASES[1], CASES[6], CASES[10]], ids=names)
@pytest.mark.parametrize("eps", [0.5, 3.0])
def test_both_directions_have_the_mean_of_plain_draws(case, eps):
    gram, c, sets = built(case, 1.1)
    means = sets @ c.T
    rows = np.random.default_rng(7).standard_normal((400_000, N))
    rows[200_000:] += means[np.random.default_rng(8).integers(len(sets), size=200_000)]
    logs = rows @ means.T - 0.5 * np.sum(means**2, axis=1)
    losses = scipy.special.logsumexp(logs, axis=1) - math.log(len(sets))
    plain = {
        ChainRemove: np.maximum(-np.expm1(eps - losses[200_000:]), 0.0),
        ChainAdd: np.maximum(-np.expm1(eps + losses[:200_000]), 0.0),
    }
    for kind, payoffs in plain.items():
        proposal = kind.at(gram, eps)
        logs, densities = proposal.block(np.random.SeedSequence(3), 60_000)
        weights = np.exp(proposal.log_weights(logs, densities))
        error = math.hypot(payoffs.std() / payoffs.size**0.5, weights.std() / weights.size**0.5)
        assert abs(payoffs.mean() - weights.mean()) < 6.2 * error  # wrong in 1e-9
        # A density that is off by a twentieth would be seen.
        if payoffs.mean() > 1e-3:
            assert abs(payoffs.mean() - 1.05 * weights.mean()) > 2.0 * error or error > 0.02 * payoffs.mean()


def test_rounding_of_losses_and_totals_against_fifty_digits():
    case = (dm.BandedToeplitz(N, (1.0, 0.5, 0.2)), 3)
    gram, _, sets = built(case, 0.6)
    proposal = ChainRemove.at(gram, 1.0)
    values = gram.sample(np.random.default_rng(3), 20) + 0.5 * gram.diagonal
    losses = gram.losses(values)
    assert 0.0 < proposal.loss_rounding.error < 1e-11
    with mpmath.workdps(50):
        columns = [
            [mpmath.mpf(0)] * t + [mpmath.mpf(float(x)) for x in row] for t, row in enumerate(gram.banded)
        ]
        columns = [column[:N] + [mpmath.mpf(0)] * (N - len(column)) for column in columns]
        kernel = [[mpmath.fsum(a * b for a, b in zip(x, y, strict=True)) for y in columns] for x in columns]
        steps = [np.flatnonzero(row) for row in sets]
        squares = [mpmath.fsum(kernel[s][t] for s in one for t in one) for one in steps]
        for row, found in zip(values[:8], losses[:8], strict=True):
            total = mpmath.fsum(
                mpmath.exp(mpmath.fsum(mpmath.mpf(float(row[t])) for t in one) - square / 2)
                for one, square in zip(steps, squares, strict=True)
            )
            exact = mpmath.log(total / len(steps))
            assert abs(mpmath.mpf(float(found)) - exact) <= proposal.loss_rounding.error
        cross = [[mpmath.fsum(kernel[s][t] for s in one for t in two) for two in steps] for one in steps]
        law = gram.copies_of(2)
        exact = mpmath.log(mpmath.fsum(mpmath.exp(x) for row in cross for x in row) / len(steps) ** 2)
        assert abs(mpmath.mpf(law.log_total) - exact) <= law.error


def test_grams_are_around_the_strategy_and_refused_by_name():
    above, below = (allocation_gram(STRATEGIES[1], 2, lower=lower) for lower in (False, True))
    assert np.all(above.banded[:-1] > below.banded[:-1])
    assert (above.words, above.facts, above.family) == (
        "6 steps",
        {"participations": 2, "steps": 6},
        "allocation",
    )
    assert math.isclose(above.rate, 1 / 3)
    assert math.isclose(above.odds, 1 / 2)
    with pytest.raises(UnsupportedCombinationError, match="negative entries"):
        allocation_gram(dm.BandedToeplitz(N, [1.0, -0.5]), 2)
    with pytest.raises(
        UnsupportedCombinationError, match="13 bands: 2 random steps have more than 4096 states"
    ):
        allocation_gram(dm.SquareRoot(20, 13), 2)
    gram = allocation_gram(dm.Identity(100), 10)
    assert gram.copies_of(13) is None
    assert gram.copies_of(6) is None
    assert gram.scaled(900.0).copies_of(2) is None
    assert dataclasses.replace(gram).copies_of(2).power == 2


def test_numbers_beyond_float64_do_not_make_a_budget_unattainable():
    """At eps 100 the default has a bound; samples said that no sigma would do."""
    plan = {"participation": dm.RandomAllocation(3)}
    with pytest.raises(dm.NumericalError, match="a method without samples may have a bound"):
        dm.calibrate_sigma(dm.Identity(12), 100.0, 1e-5, method=dm.methods.Certified(), **plan)
    assert dm.calibrate_sigma(dm.Identity(12), 100.0, 1e-5, **plan).sigma == pytest.approx(0.1598, rel=1e-3)
