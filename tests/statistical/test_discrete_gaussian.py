"""Draws from the discrete Gaussian against its law: chi-square with a false-positive rate of ALPHA each.

Planted faults must be rejected: a Gaussian that is rounded, zero counted twice, a scale that is 5 % larger.
"""

import numpy as np
import pytest
import scipy.stats

from dpmech.drawing.discrete_gaussian import discrete_gaussian

ALPHA = 1e-9
DRAWS = 20_000


def p_value(values, sigma):
    """Of the numbers of draws at every integer; those with fewer than 20 expected are put together."""
    reach = int(12 * sigma) + 3
    y = np.arange(-reach, reach + 1)
    law = np.exp(-(y**2) / (2.0 * sigma**2))
    expected = law / law.sum() * values.size
    counts = np.bincount(np.clip(values, -reach, reach) + reach, minlength=2 * reach + 1)
    rare = expected < 20.0
    found = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    return scipy.stats.chisquare(found, wanted * found.sum() / wanted.sum()).pvalue


@pytest.mark.parametrize(
    ("sigma", "draws"),
    [(0.8, 2000), *(pytest.param(sigma, DRAWS, marks=pytest.mark.slow) for sigma in (0.8, 2.5, 40.25))],
)
def test_draws_have_their_law(sigma, draws):
    values = discrete_gaussian(sigma, draws, rng=5)
    assert p_value(values, sigma) > ALPHA


def test_planted_faults_are_rejected():
    rng = np.random.default_rng(6)
    rounded = np.rint(0.8 * rng.standard_normal(DRAWS)).astype(int)
    assert p_value(rounded, 0.8) < ALPHA
    y = np.arange(-12, 13)
    for weights in (np.where(y == 0, 2.0, 1.0) * np.exp(-(y**2) / 1.28), np.exp(-(y**2) / (1.28 * 1.05**2))):
        drawn = rng.choice(y, size=4 * DRAWS, p=weights / weights.sum())
        assert p_value(drawn, 0.8) < ALPHA
