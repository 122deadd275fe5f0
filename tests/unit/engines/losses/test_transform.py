"""Moments at complex arguments against quadrature with many digits."""

import importlib
import math

import mpmath as mp
import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.losses.lattice import Loss
from dpmech.engines.losses.transform import exponent_of, transform

transforms = importlib.import_module("dpmech.engines.losses.transform")
INF = math.inf
# (q, s, remove, theta, outputs, frequency)
CASES = [
    (1e-3, 0.6, True, 4.0, (-INF, INF), 5.0), (0.3, 2.0, False, 4.0, (-INF, INF), 7.0),
    (1e-3, 0.6, True, 4.0, (-INF, 1.2), 9.0), (0.9, 0.3, False, 2.0, (-INF, INF), 20.0),
    (1e-6, 0.2, True, 0.5, (-INF, INF), 3.0), (0.5, 40.0, True, 200.0, (-INF, INF), 900.0),
    (0.5, 1.0, False, 3.0, (-0.4, INF), 11.0), (0.02, 1.0, True, 0.0, (2.5, INF), 4.0),
    (0.02, 1.0, False, -1.0, (-INF, -1.5), 4.0), (0.02, 0.7, True, -6.0, (-INF, INF), 30.0),
]  # fmt: skip


def exact(q, s, remove, theta, outputs, frequency):
    """The same integral on panels of 1/4 standard deviation, or a turn, at 30 digits."""
    with mp.workdps(30):
        q, s = mp.mpf(q), mp.mpf(s)
        power = mp.mpc(1 + theta, frequency) if remove else mp.mpc(-theta, -frequency)

        def integrand(x):
            ratio = 1 - q + q * mp.exp((x - mp.mpf(1) / 2) / s**2)
            return mp.exp(power * mp.log(ratio) - x * x / (2 * s * s)) / (s * mp.sqrt(2 * mp.pi))

        low = max(mp.mpf(outputs[0]), -16 * s - max(0, -power.real))
        high = min(mp.mpf(outputs[1]), 16 * s + 1 + max(0, power.real))
        count = math.ceil(max((high - low) / (s * min(1, s)), abs(frequency) * (high - low) / s**2 / 6, 8))
        nodes, weights = mp_rule()
        width = (high - low) / count
        return mp.fsum(
            weight * integrand(low + width * (k + (1 + node) / 2)) * width / 2
            for k in range(count)
            for node, weight in zip(nodes, weights, strict=True)
        )


def mp_rule(count=24):
    roots = [
        mp.findroot(lambda t: mp.legendre(count, t), mp.mpf(float(x)))
        for x in np.polynomial.legendre.leggauss(count)[0]
    ]
    slopes = [count * (x * mp.legendre(count, x) - mp.legendre(count - 1, x)) / (x * x - 1) for x in roots]
    return roots, [2 / ((1 - x * x) * d * d) for x, d in zip(roots, slopes, strict=True)]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] if place in (3, 4, 9) else [])
        for place, case in enumerate(CASES)
    ],
)
def test_moments_are_within_their_bounds(case):
    q, s, remove, theta, outputs, frequency = case
    loss = Loss(q, s, remove)
    found = transform(loss, exponent_of(loss, theta), outputs, frequency=frequency, share=1e-15)
    truth = exact(q, s, remove, theta, outputs, 0.0).real
    low, high = found.log_ends
    assert low <= mp.log(truth) <= high
    assert high - low < 1e-9
    real, turned = found.along(frequency, 2)
    scale = mp.exp(mp.mpf(found.log_moment))
    bounds = found.error(np.array([0.0, frequency]))
    assert abs(mp.mpc(complex(real)) - truth / scale) <= bounds[0] < 1e-9
    far = exact(q, s, remove, theta, outputs, frequency) / scale
    assert abs(mp.mpc(complex(turned)) - far) <= bounds[1] < 1e-9
    # A sampling probability that is off by one in a million is not covered.
    wrong = exact(q * (1 + 1e-6), s, remove, theta, outputs, frequency) / scale
    assert q < 1e-5 or abs(far) < 1e-5 or abs(mp.mpc(complex(turned)) - wrong) > bounds[1]


def test_a_rule_for_a_high_frequency_serves_all_lower_ones():
    loss = Loss(0.2, 0.8, True)
    fine = transform(loss, 3.0, (-INF, INF), frequency=400.0, share=1e-15)
    coarse = transform(loss, 3.0, (-INF, INF), frequency=40.0, share=1e-15)
    assert fine.losses.size > 2 * coarse.losses.size
    steps = np.arange(41.0)
    difference = np.abs(fine.along(1.0, 401)[:41] - coarse.along(1.0, 41))
    assert (difference <= fine.error(steps) + coarse.error(steps)).all()
    # Beyond its own frequency a rule is wrong, and no bound is claimed.
    assert abs(fine.along(1.0, 401)[400] - coarse.along(1.0, 401)[400]) > 1e-6


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1001])
def test_values_are_those_of_the_nodes_one_by_one(count):
    loss = Loss(0.1, 1.0, False)
    found = transform(loss, -2.0, (-INF, INF), frequency=3.0, share=1e-14)
    direct = [complex(np.sum(found.masses * np.exp(1j * 0.03 * k * found.losses))) for k in range(count)]
    assert found.along(0.03, count) == pytest.approx(direct, abs=1e-13)


def test_blocks_hold_every_node_once_and_masses_rise():
    found = transform(Loss(1e-4, 0.5, True), 4.0, (-INF, INF), frequency=300.0, share=1e-15)
    assert found.blocks[0] == 0
    assert found.blocks[-1] == found.losses.size == found.masses.size
    assert all(a < b for a, b in zip(found.blocks, found.blocks[1:], strict=False))
    assert (np.diff(found.masses) >= 0.0).all()
    assert found.masses.sum() == pytest.approx(1.0, rel=1e-12)


def test_what_float64_cannot_hold_is_refused(monkeypatch):
    with pytest.raises(dm.NumericalError):
        transform(Loss(0.1, 1.0, True), 2.0, (60.0, INF), frequency=0.0, share=1e-14)
    monkeypatch.setattr(transforms, "_MOST_PANELS", 4)
    with pytest.raises(dm.NumericalError, match="too fine a quadrature"):
        transform(Loss(0.1, 1.0, True), 2.0, (-INF, INF), frequency=1e4, share=1e-14)
