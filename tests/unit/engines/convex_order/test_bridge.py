import math

import numpy as np
import pytest

from dpmech.engines.convex_order import dynamic_program as bridges
from dpmech.engines.convex_order.dynamic_program import Futures, RingBridge
from dpmech.engines.convex_order.ring import RingGram


def matrix(bins, variance, decay):
    profile = RingGram(bins, 0.0, variance, decay, 0.0).profile()
    index = np.arange(bins)
    distance = np.abs(index[:, None] - index[None, :])
    return profile[np.minimum(distance, bins - distance)]


def conditional(covariance, known, values, target):
    """Mean and variance of one coordinate given others, by linear algebra."""
    block = covariance[np.ix_(known, known)]
    weights = np.linalg.solve(block, covariance[np.ix_(known, [target])])[:, 0]
    return weights @ values, covariance[target, target] - weights @ covariance[known, target]


@pytest.mark.parametrize(("bins", "decay"), [(2, 0.3), (3, 0.9), (8, 0.6), (40, 0.5), (40, 0.99)])
def test_bridge_is_the_conditional_law(bins, decay):
    variance, z = 1.7, 0.8
    covariance = matrix(bins, variance, decay)
    bridge = RingBridge(bins, variance, decay)
    for start in range(bins - 1):
        x = 0.0 if start == 0 else -0.6
        known = [0] if start == 0 else [0, start]
        values = np.array([z, x + bridge.correlation(start) * z][: len(known)])
        mean, spread = conditional(covariance, known, values, start + 1)
        slope, q = bridge.step(start)
        assert slope * x + bridge.correlation(start + 1) * z == pytest.approx(mean, rel=1e-7, abs=1e-9)
        assert q**2 == pytest.approx(spread, rel=1e-6)
        assert 0.0 <= slope <= 1.0


@pytest.mark.parametrize(("bins", "decay"), [(5, 0.8), (80, 0.5), (80, 0.97)])
def test_futures_are_the_expected_later_increments(bins, decay):
    # 80 bins at decay 0.5 reach past the distance from which the slope on x is dropped
    variance = 1.7
    covariance = matrix(bins, variance, decay)
    bridge = RingBridge(bins, variance, decay)
    x, z, offset = np.array([-1.0, 0.4, 2.0]), np.array([-2.0, 0.0, 3.0]), 1.3
    futures = Futures(bridge, x, z, offset)
    for j, at_z in enumerate(z):
        exact = sum(
            math.exp(mean + spread / 2 - offset)
            for mean, spread in (conditional(covariance, [0], np.array([at_z]), m) for m in range(1, bins))
        )
        assert futures.at_start()[j] == pytest.approx(exact, rel=1e-9)
        for bin_ in (1, bins // 2, bins - 1):
            for i, at_x in enumerate(x):
                values = np.array([at_z, at_x + bridge.correlation(bin_) * at_z])
                pairs = (conditional(covariance, [0, bin_], values, m) for m in range(bin_ + 1, bins))
                exact = sum(math.exp(mean + spread / 2 - offset) for mean, spread in pairs)
                assert futures.at(bin_)[i, j] == pytest.approx(exact, rel=1e-7, abs=1e-12)


def test_extreme_decays_neither_overflow_nor_cancel():
    for bins, decay in [(5000, 1e-3), (5000, 0.9), (4, 1.0 - 1e-9)]:
        bridge = RingBridge(bins, 1.0, decay)
        for start in (0, 1, bins - 2):
            slope, q = bridge.step(start)
            assert 0.0 <= slope <= 1.0
            assert 0.0 < q <= 1.0 + 1e-12


def test_what_is_left_out_far_away_is_made_up_for(monkeypatch):
    """With a slope of a hundredth counted as negligible, against every bin of the exact conditional law."""
    monkeypatch.setattr(bridges, "NEGLIGIBLE_SLOPE", 1e-2)
    bins, variance, decay, z = 24, 1.3, 0.5, 0.7
    bridge, x = RingBridge(bins, variance, decay), np.array([-4.0, 0.0, 9.0])
    futures = Futures(bridge, x, np.array([z]), 0.4)
    for start in (1, 5, 9):
        stop = start + 1 + futures.reach
        assert stop < bins
        for row, value in enumerate(x):
            exact = sum(
                math.exp(
                    bridge.correlation(m) * z
                    + bridge.ratio(bins - m, bins - start) * value
                    + 0.5 * bridge.bridge_variance(start, m)
                    - 0.4
                )
                for m in range(start + 1, bins)
            )
            found = float(futures.at(start)[row, 0])
            assert exact <= found <= exact * (1.06 if value >= 0.0 else 1.2)
            near = found - math.exp(1.01e-2 * max(value, 0.0)) * futures.far[stop, 0]
            if value > 0.0:
                # without the factor it is below
                assert near + futures.far[stop, 0] < exact
