import itertools

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import dpmech as dm
from dpmech.exceptions import NumericalError
from dpmech.reports import grids
from dpmech.reports.grids import COARSE, MARGIN, RATIO, Grid, calibrated_grid, gaussian_grid, grid_of

DELTA = 1e-5


def gaussian_noise(eps):
    """The least noise of one release of sensitivity 1 (Balle and Wang 2018), by a search of its own."""

    def excess(sigma):
        left = norm.cdf(0.5 / sigma - eps * sigma)
        log_right = eps + norm.logcdf(-0.5 / sigma - eps * sigma)
        return left - DELTA - np.exp(log_right)

    return brentq(excess, 1e-3, 1e4, xtol=1e-12)


def test_the_gaussian_grid_is_above_the_least_noise_and_near_it():
    grid = gaussian_grid(DELTA, 0.5, 16.0)
    assert grid.eps[0] <= 0.5
    assert grid.eps[-1] >= 16.0
    for eps in (0.5, 0.7, 1.0, 2.2, 3.14159, 8.0, 15.9, 16.0):
        assert 1.0 < grid.at(eps) / gaussian_noise(eps) < RATIO * MARGIN * 1.001
    assert RATIO * MARGIN * 1.001 < 1.03


@pytest.mark.slow
def test_a_sampled_grid_holds_and_steps_by_the_ratio():
    mechanism = dm.Mechanism(dm.Identity(20), dm.Poisson(0.1))
    said = []
    grid = grid_of(mechanism, DELTA, 1.0, 1.1, progress=said.append)
    assert list(grid.eps) == sorted(set(grid.eps))
    assert said
    for before, after in itertools.pairwise(grid.sigma):
        assert before / after == pytest.approx(RATIO, rel=1e-4)
    for eps, sigma in zip(grid.eps[1:], grid.sigma[1:], strict=True):
        # By another accountant than the one that made the grid.
        assert dm.delta(mechanism, sigma, eps, method=dm.methods.Prv()).lower <= DELTA


def test_between_pairs_the_smaller_eps_counts():
    grid = Grid((1.0, 2.0, 4.0), (3.0, 2.0, 1.0))
    assert [grid.at(eps) for eps in (0.5, 1.0, 1.999, 2.0, 4.0, 9.0)] == [None, 3.0, 3.0, 2.0, 1.0, None]


def test_where_the_accountant_stops_the_grid_ends(monkeypatch):
    real, calls = dm.epsilon, itertools.count()

    def tired(*arguments, **settings):
        if next(calls) >= 3:
            raise NumericalError("no bound")
        return real(*arguments, **settings)

    monkeypatch.setattr(grids, "epsilon", tired)
    assert len(gaussian_grid(DELTA, 1.0, 16.0).eps) <= 3
    monkeypatch.setattr(grids, "epsilon", lambda *a, **k: tired())
    with pytest.raises(NumericalError):
        gaussian_grid(DELTA, 1.0, 16.0)


def as_if_calibrated(monkeypatch, sigma_of):
    """Calibrations that take no time; the requested values of eps, in order."""
    asked = []

    class Found:
        def __init__(self, sigma):
            self.sigma = sigma

    def found(mechanism, eps, delta, *, rtol):
        asked.append(eps)
        return Found(sigma_of(eps))

    monkeypatch.setattr(grids, "calibrate_sigma", found)
    return asked


MECHANISM = dm.Mechanism(dm.Identity(4), dm.SingleParticipation())


def test_a_calibrated_grid_has_its_marks_and_short_steps(monkeypatch):
    asked = as_if_calibrated(monkeypatch, lambda eps: 3.0 * eps**-0.8)
    grid = calibrated_grid(
        MECHANISM, DELTA, 0.7, 9.0, marks=(0.5, 1.0, 4.0, 16.0), known={2.0: 3.0 * 2**-0.8}
    )
    assert {0.7, 1.0, 2.0, 4.0, 9.0} <= set(grid.eps)
    assert 2.0 not in asked
    assert len(asked) == len(set(asked)) == len(grid.eps) - 1
    assert 1.0 < grid.step <= COARSE**1.1 * 1.001
    # No more points than twice those of the fewest steps.
    assert len(asked) <= 2 * np.log(grid.sigma[0] / grid.sigma[-1]) / np.log(COARSE)
    for eps in np.geomspace(0.7, 9.0, 200):
        assert 1.005 <= grid.at(min(float(eps), 9.0)) / (3.0 * eps**-0.8) * (1 + 1e-9) <= COARSE**1.1 * 1.006


def test_noise_that_rises_by_chance_is_not_shown(monkeypatch):
    as_if_calibrated(monkeypatch, lambda eps: 1.001 if eps >= 2.0 else 1.0)
    grid = calibrated_grid(MECHANISM, DELTA, 1.0, 2.0)
    assert grid.eps == (1.0, 2.0)
    assert grid.sigma[0] == grid.sigma[1] == grid.at(2.0) == pytest.approx(1.005)


def test_points_that_are_refused_are_left_out_and_the_longer_step_is_stated(monkeypatch):
    def sigma_of(eps):
        if eps > 3.0 or 1.2 < eps < 2.0:
            raise NumericalError("no bound")
        return 3.0 / eps

    as_if_calibrated(monkeypatch, sigma_of)
    grid = calibrated_grid(MECHANISM, DELTA, 1.0, 4.0, marks=(2.0, 3.0))
    assert grid.eps[-1] == 3.0
    assert not [eps for eps in grid.eps if 1.2 < eps < 2.0]
    assert grid.step > 1.5
    assert grid.at(3.5) is None
    as_if_calibrated(monkeypatch, lambda eps: sigma_of(9.0))
    with pytest.raises(NumericalError):
        calibrated_grid(MECHANISM, DELTA, 1.0, 4.0)
