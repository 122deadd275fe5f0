import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from dpmech.engines.gaussian_mixture.tilted_normal import (
    FIRST_EDGE,
    LAST_EDGE,
    LEVEL_STEP,
    NODES,
    Fading,
    PartialExponential,
    SiteSampler,
    SiteTilt,
    inverted,
    solved_strength,
)

ALPHA = 1e-9
TILTS = (
    SiteTilt.at(PartialExponential(5), 0.4, 0.8, -1.0, 1.0),
    SiteTilt.at(Fading(), 0.7, 1.3, -2.0, 0.0),
)


def test_partial_exponential_against_its_sum():
    x = np.array([0.0, 1e-9, 0.3, 4.0, 1e5, 1e11])
    terms = np.array([x**n / math.factorial(n) for n in range(8)])
    assert PartialExponential(7).log(x) == pytest.approx(np.log(terms.sum(axis=0)), rel=1e-12, abs=1e-15)


def test_partial_exponential_beyond_floating_point():
    expected = 24 * math.log(1e200) - math.lgamma(25)
    assert PartialExponential(24).log(np.array([1e200]))[0] == pytest.approx(expected, rel=1e-12)


def test_degree_stops_before_the_terms_rise():
    for strength, variance, bins in ((0.5, 0.25, 100), (0.1, 1.0, 400), (0.006, 2.8, 400), (3.0, 0.01, 10)):
        degree = PartialExponential.at(strength, variance, bins).degree
        n = np.arange(degree + 1)
        terms = n * math.log(strength) - scipy.special.gammaln(n + 1) + variance * n * (n - 1) / 2
        assert degree >= 1
        falling = np.diff(terms[1:]) < 0.0
        assert falling.all()


@pytest.mark.parametrize("tilt", TILTS)
@pytest.mark.parametrize("level", [-0.6, 0.0, 5.0])
def test_density_integrates_to_one(tilt, level):
    grid = np.arange(-12.0, 20.0, 0.0005) + 0.00025
    density = np.exp(tilt.log_densities(np.full(grid.size, level), grid) - grid**2 / 2) / math.sqrt(
        2 * math.pi
    )
    assert np.sum(density) * 0.0005 == pytest.approx(1.0, abs=1e-6)


def test_density_follows_the_response():
    response, theta, spread, level = PartialExponential(5), 0.4, 0.8, 0.5
    grid = np.linspace(-4.0, 6.0, 201)
    weight = response.log(theta * np.exp(level + spread * grid))
    total = scipy.integrate.quad(
        lambda x: math.exp(float(response.log(np.array(theta * math.exp(level + spread * x)))) - x * x / 2),
        -12.0,
        20.0,
        limit=200,
    )[0]
    exact = weight - math.log(total / math.sqrt(2 * math.pi))
    assert TILTS[0].log_densities(np.full(grid.size, level), grid) == pytest.approx(exact, abs=0.25)


@pytest.mark.parametrize("which", [0, 1])
def test_draws_follow_the_density(which):
    count, level = 200_000, -0.7
    sampler = SiteSampler.of(TILTS)
    uniforms = np.random.default_rng(which).random((2, count))
    drawn = sampler.draw(np.full(count, which), np.full(count, level), uniforms)
    edges = np.concatenate([[-20.0], np.linspace(-4.0, 5.0, 61), [30.0]])
    fine = np.arange(-12.0, 20.0, 0.0005) + 0.00025

    def expected(tilt):
        logs = tilt.log_densities(np.full(fine.size, level), fine) - fine**2 / 2
        shares = np.histogram(fine, edges, weights=np.exp(logs))[0]
        return shares / shares.sum()

    counts = np.histogram(drawn, edges)[0]

    def pvalue(tilt):
        law = expected(tilt)
        kept = law * count > 20
        seen, shares = counts[kept], law[kept]
        seen[-1] += counts[~kept].sum()
        shares[-1] += law[~kept].sum()
        return scipy.stats.chisquare(seen, shares * count / shares.sum()).pvalue

    assert pvalue(TILTS[which]) > ALPHA
    fault = TILTS[which].log_density.copy()
    fault[:, NODES > 0.5] += 0.1  # large eta 10 % too likely
    assert pvalue(SiteTilt(TILTS[which].lowest, fault)) < ALPHA


def test_the_law_of_a_table_does_not_depend_on_its_place():
    copies = 500
    sampler = SiteSampler.of(TILTS[:1] * copies)
    ends = sampler.cumulative[0][:-1]
    # Where rows are raised by their numbers, what lies this close to an end is taken for the end itself.
    close = np.concatenate([np.nextafter(ends, 0.0), ends, [1.0 - 2.0**-53]])
    close = close[close < 1.0]
    uniforms = np.stack([close, np.full(close.size, 0.5)])
    level = np.full(close.size, TILTS[0].lowest)
    first, last = (sampler.draw(np.full(close.size, k), level, uniforms) for k in (0, copies - 1))
    np.testing.assert_array_equal(first, last)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 230])
def test_inversion_finds_what_a_search_of_the_row_finds(width):
    rng = np.random.default_rng(width)
    rows = np.cumsum(rng.random((5, width)) * (rng.random((5, width)) < 0.7) + 1e-300, axis=1)
    rows /= rows[:, -1:]
    chosen = rng.integers(5, size=(20, 30))
    uniforms = rng.random((20, 30))
    uniforms[:5] = rows[chosen[:5], 0] * (rows[chosen[:5], 0] < 1.0)
    due = [np.searchsorted(rows[k], u, side="right") for k, u in zip(chosen.flat, uniforms.flat, strict=True)]
    assert inverted(rows, chosen, uniforms).ravel().tolist() == due


def test_what_is_no_number_has_no_place_in_a_table():
    tilt, bad = TILTS[0], np.array([0.0, np.nan, 1.0])
    good = np.zeros(3)
    for levels, eta in ((bad, good), (good, bad)):
        assert np.isnan(tilt.log_densities(levels, eta)).tolist() == [False, True, False]
    rows = np.array([[0.5, 1.0]])
    for row in (-1, 1, np.iinfo(np.int64).min):
        with pytest.raises(IndexError):
            inverted(rows, np.array([row]), np.array([0.2]))


@pytest.mark.parametrize("edge", [0, 1])
def test_a_density_is_that_of_the_cell(edge):
    """Every cell of the table, and values beyond its first and its last one."""
    tilt = TILTS[edge]
    levels = tilt.lowest + LEVEL_STEP * np.array([-30.0, 0.0, 0.4, 3.0, tilt.log_density.shape[0] + 9.0])
    eta = np.concatenate([[FIRST_EDGE - 1.0], NODES, [LAST_EDGE + 1.0]])
    found = tilt.log_densities(np.repeat(levels[:, None], eta.size, axis=1), np.tile(eta, (5, 1)))
    cells = [0, *range(NODES.size), NODES.size - 1]
    np.testing.assert_array_equal(found, tilt.log_density[np.ix_([0, 0, 0, 3, -1], cells)])


@pytest.mark.parametrize(
    ("level", "variance"), [(1.1, 0.25), (1.5, 0.25), (1.3, 1.0), (0.8, 0.25), (0.7, 1.0)]
)
def test_strength_gives_the_mean(level, variance):
    theta, response = solved_strength(level, variance, 50, 0.0)
    grid = np.linspace(-10.0, 14.0, 20001)
    values = np.exp(math.sqrt(variance) * grid - variance / 2)
    law = np.exp(response.log(theta * values) - grid**2 / 2)
    assert law @ values / law.sum() == pytest.approx(level, rel=0.03)


def test_a_level_out_of_reach_gets_the_best_there_is():
    theta, _ = solved_strength(1e6, 0.01, 50, 0.0)
    assert 0.0 < theta < math.inf
