"""Interpolated transforms of a bin against sums in 40 digits."""

import mpmath
import numpy as np
import pytest

from dpmech.engines.convex_order import interpolated
from dpmech.engines.convex_order.exponentials import WhiteLaw, bin_transform
from dpmech.engines.convex_order.interpolated import InterpolatedTransform
from dpmech.engines.convex_order.node_laws import lognormal_split

LARGEST = 2.0 - 60.0j


def law_of(root, nodes):
    logs = np.linspace(-5.0 * root, 6.0 * root, nodes) - 0.5 * root * root
    split = lognormal_split(logs, -0.5 * root * root, root)
    return WhiteLaw(np.concatenate([[0.0], np.exp(logs)]), np.concatenate([[split.zero], split.weights]))


def increments_of(count):
    return np.exp(np.random.default_rng(3).uniform(-10.0, 3.0, count))


def exactly(increment, law, exponent):
    with mpmath.workdps(40):
        terms = [
            mpmath.mpf(float(chance))
            * (1 - mpmath.exp(-mpmath.mpc(exponent) * mpmath.mpf(float(increment)) * mpmath.mpf(float(size))))
            for size, chance in zip(law.sizes, law.chances, strict=True)
        ]
        return complex(mpmath.fsum(terms))


@pytest.mark.parametrize("exponent", [LARGEST, 2.0 - 7.0j, 2.0 + 0.0j])
def test_values_are_within_their_errors(exponent):
    law, increments = law_of(0.6, 60), increments_of(6000)
    found = InterpolatedTransform(increments, law, LARGEST)
    assert found.phases > 1
    values, errors = found(exponent)
    some = [int(np.argmin(increments)), int(np.argmax(increments)), *range(0, 6000, 150)]
    truth = np.array([exactly(increments[index], law, exponent) for index in some])
    assert np.all(np.abs(values[some] - truth) <= errors[some])
    assert np.max(errors) < 1e-12
    # small values have small errors
    assert np.min(errors) < 1e-14
    # the planted fault: increments that are larger by 1e-9
    moved = InterpolatedTransform(increments * (1.0 + 1e-9), law, LARGEST)(exponent)[0]
    assert np.any(np.abs(moved[some] - truth) > errors[some])


@pytest.mark.parametrize("target", [1e-9, 1e-5])
def test_a_coarse_grid_is_within_its_bound(monkeypatch, target):
    law, increments = law_of(0.6, 60), increments_of(6000)
    monkeypatch.setattr(interpolated, "TARGET", target)
    found = InterpolatedTransform(increments, law, LARGEST)
    assert found.phases > 1
    values, errors = found(LARGEST)
    off = np.abs(values - bin_transform(increments, law, LARGEST)[0])
    assert np.all(off <= errors)
    # interpolation is most of the difference, and of the bound
    assert np.max(off) > 1e-6 * target
    assert np.max(errors) <= 1.1 * target


def test_other_laws_are_summed_directly():
    law, increments = law_of(0.6, 60), increments_of(6000)
    for sizes in (np.sort(np.random.default_rng(1).uniform(size=61)), law.sizes + 1e-3):
        other = WhiteLaw(sizes, law.chances)
        found = InterpolatedTransform(increments, other, LARGEST)
        assert found.phases == 0
        assert np.array_equal(found(LARGEST)[0], bin_transform(increments, other, LARGEST)[0])
    # so are increments that underflow, few of them, and frequencies that need a finer grid
    zeros = np.where(np.arange(6000) < 2, 0.0, increments)
    found = InterpolatedTransform(zeros, law, LARGEST)
    assert found.phases == 0
    assert found(LARGEST)[0][0] == 0.0
    assert InterpolatedTransform(increments[:40], law, LARGEST).phases == 0
    assert InterpolatedTransform(increments, law, 0.001 - 1e7j).phases == 0
