"""The parts of the integrals by themselves: each direction, and a loss whose contour integral is known."""

import cmath
import math

import mpmath
import numpy as np
import pytest
import scipy.special

import dpmech as dm
from dpmech.verifying import integrals
from dpmech.verifying.integrals import (
    ComposedLaw,
    _fading,
    _integrand,
    _one_direction,
    composed_delta,
    directions,
    gaussian_integral,
)
from tests.support.oracles import gaussian_delta, sampled_delta

MU = 0.3


def gaussian(steps, eps, mu=MU):
    """T steps of N(mu, 1) against N(0, 1): together N(mu sqrt T, 1) against N(0, 1)."""
    x = np.linspace(-14.0, 14.0, 4001)
    log_masses = -0.5 * x**2 + math.log((x[1] - x[0]) / math.sqrt(2.0 * math.pi))
    return ComposedLaw(mu * x + 0.5 * mu**2, log_masses, steps, eps)


# one step


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("q", [1e-3, 0.3, 0.95])
@pytest.mark.parametrize("s", [1e-12, 1e-4, 0.02, 0.03, 0.4, 3.0, 50.0])
@pytest.mark.parametrize("eps", [0.0, 0.02, 0.25, 2.5])
def test_either_direction_of_one_step(sign, q, s, eps):
    exact = sampled_delta(q, s, eps, remove=sign > 0.0, digits=120)
    found = _one_direction(q, s, eps, sign)
    if exact < 1e-250:
        assert 0.0 <= found < 1e-240
    else:
        assert abs(float(mpmath.mpf(found) / exact) - 1.0) < 1e-11


def test_where_the_mixture_is_nowhere_that_unlikely_nothing_is_lost():
    q = 0.25
    last = -math.log1p(-q)
    assert _one_direction(q, 1.0, last, -1.0) == 0.0
    assert _one_direction(q, 1.0, last * (1.0 - 1e-3), -1.0) > 0.0
    assert _one_direction(q, 1.0, last, 1.0) > 0.0


@pytest.mark.parametrize("multiplier", [1e-9, 1e-3, 3e-3, 0.013, 0.02])
@pytest.mark.parametrize("eps", [0.0, 1.0, 300.0])
def test_with_hardly_any_noise_all_is_lost(multiplier, eps):
    """The normal law is far from where its loss passes eps: panels that grow from there once missed it."""
    exact = float(gaussian_delta(multiplier, eps, digits=60))
    assert exact > 0.9999
    assert gaussian_integral(multiplier, eps) == pytest.approx(exact, rel=1e-12)


# several steps


@pytest.mark.parametrize("theta", [0.0, 0.4, 3.0])
def test_the_cumulants_of_a_normal_loss(theta):
    log_moment, mean, variance = gaussian(5, 1.0)._cumulants(theta)
    assert log_moment == pytest.approx(0.5 * MU**2 * theta * (theta + 1.0), rel=1e-9, abs=1e-12)
    assert mean == pytest.approx(MU**2 * (0.5 + theta), rel=1e-9)
    assert variance == pytest.approx(MU**2, rel=1e-9)


@pytest.mark.parametrize(("steps", "eps"), [(1, 1.0), (20, 2.0), (20, 0.5), (20, 0.0), (400, 60.0)])
def test_the_saddle_point_of_a_normal_loss(steps, eps):
    one = gaussian(steps, eps)
    exact = max(eps / (steps * MU**2) - 0.5, 0.0)
    assert one.saddle == pytest.approx(exact, rel=1e-6, abs=1e-12)
    for theta in (0.0, 0.8):
        exponent = 0.5 * steps * MU**2 * theta * (theta + 1.0) - theta * eps
        assert one._exponent(theta) == pytest.approx(exponent, rel=1e-9, abs=1e-10)
    rise = 0.5 * steps * MU**2 * 0.7**2
    if exact > 0.0:
        assert one._rise(exact + 0.7, exact) == pytest.approx(rise, rel=1e-7)
        assert one._rise(exact - 0.7, exact) == pytest.approx(rise, rel=1e-7)


def test_a_loss_that_never_reaches_eps_has_no_saddle_point_and_no_delta():
    one = gaussian(3, 50.0)
    assert one.saddle is None
    assert one.on_line(1.0) == 0.0


@pytest.mark.parametrize("shift", [1.0, 0.7])
@pytest.mark.parametrize(
    ("steps", "eps"), [(1, 0.7), (4, 0.0), (4, 0.02), (30, 1.35), (30, 4.0), (400, 40.0), (10**6, 45_500.0)]
)
def test_the_contour_integral_of_a_normal_loss(steps, eps, shift):
    exact = gaussian_delta(1 / (mpmath.mpf(MU) * mpmath.sqrt(steps)), eps)
    assert gaussian(steps, eps).on_line(shift) == pytest.approx(float(exact), rel=1e-7, abs=0.0)


@pytest.mark.parametrize(("q", "s", "eps"), [(0.3, 1.5, 0.2), (0.9, 2.0, 0.5)])
def test_either_direction_of_two_steps(q, s, eps):
    """The first step is integrated out by trapezoids, the second is the closed form of its hockey stick."""
    x = np.linspace(-14.0 * s, 14.0 * s + 1.0, 100_001)
    ratio = np.log1p(q * np.expm1((x - 0.5) / s**2))
    pure = np.exp(-0.5 * (x / s) ** 2) * (x[1] - x[0]) / (s * math.sqrt(2.0 * math.pi))
    ndtr = scipy.special.ndtr
    remove, add = ([one.on_line(shift) for shift in (1.0, 0.7)] for one in directions(q, s, 2, eps))
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.exp(eps - ratio)
        cut = 0.5 + s**2 * np.log((level - 1.0 + q) / q)
        rest = (1.0 - q) * ndtr(-cut / s) + q * ndtr((1.0 - cut) / s) - level * ndtr(-cut / s)
        exact = pure * np.exp(ratio) @ np.where(level <= 1.0 - q, 1.0 - level, rest)
        assert remove == pytest.approx([exact, exact], rel=1e-7)
        level = np.exp(-eps - ratio)
        cut = 0.5 + s**2 * np.log((level - 1.0 + q) / q)
        rest = ndtr(cut / s) - ((1.0 - q) * ndtr(cut / s) + q * ndtr((cut - 1.0) / s)) / level
        exact = pure @ np.where(level <= 1.0 - q, 0.0, rest)
        assert add == pytest.approx([exact, exact], rel=1e-7)


def test_add_is_left_out_where_its_loss_has_ended():
    q, s, steps = 0.7, 1.0, 6
    last = -steps * math.log1p(-q)
    assert len(directions(q, s, steps, last * (1.0 - 1e-6))) == 2
    assert len(directions(q, s, steps, last)) == 1


@pytest.mark.parametrize("share", [0.99, 0.998, 0.9999])
def test_just_below_the_largest_loss_of_add_the_other_direction_decides(share):
    # Plans whose eps is about the number of their epochs.
    q, steps, s = 0.0128, 234, 1.0
    eps = share * -steps * math.log1p(-q)
    known = dm.delta(dm.Identity(steps), s, eps, participation=dm.Poisson(q))
    assert known.lower * (1 - 1e-6) <= composed_delta(q, s, steps, eps) <= known.upper * (1 + 1e-6)


def test_a_line_keeps_off_the_pole_but_rises_no_further_than_is_safe():
    """Rare sampling: half a standard deviation of the loss is far beyond where its cumulants grow."""
    raised = []
    for q, s, steps, eps in ((0.0096, 1.1, 2, 0.002), (0.0096, 1.1, 2, 0.02), (0.01, 1.4, 1000, 1.0)):
        for one in directions(q, s, steps, eps):
            saddle = one.saddle
            start = max(saddle, 0.5 / math.sqrt(steps * one._cumulants(saddle)[2]))
            theta = one.real_part
            raised.append(one._rise(start, saddle) > 2.0)
            assert saddle <= theta <= start
            if raised[-1]:
                assert one._rise(theta, saddle) <= 2.0
                # The last halving was needed.
                assert any(one._rise(before, saddle) > 2.0 for before in (2.0 * theta, 2.0 * theta - saddle))
            else:
                assert theta == start
    assert {*raised} == {True, False}


@pytest.mark.parametrize(("steps", "eps", "theta"), [(30, 4.0, 0.98), (4, 0.02, 0.83), (30, 4.0, 6.0)])
def test_the_mesh_keeps_aliases_below_what_is_said(steps, eps, theta):
    """Of a normal loss all is known: what 2 pi / h away is added to the integral, and Chernoff's bound."""
    mesh = gaussian(steps, eps)._mesh(theta)
    total = steps * MU**2  # its variance
    rises = [10.0 ** (-1.0 + 0.2 * place) / math.sqrt(total) for place in range(16)]
    above = min(total * (theta + 0.5 + 0.5 * t) + 40.0 / t for t in rises) - eps
    below = eps - max(total * (theta + 0.5 - 0.5 * t) - 40.0 / t for t in rises)
    assert mesh == pytest.approx(2.0 * math.pi / max(above, below + 40.0 / theta), rel=1e-6)
    chernoff = 0.5 * total * theta * (theta + 1.0)
    far = eps + 2.0 * math.pi / mesh
    added = mpmath.log(gaussian_delta(1 / mpmath.sqrt(total), far)) + theta * far
    assert added <= chernoff - 40.0
    assert theta * (eps - 2.0 * math.pi / mesh) <= chernoff - 40.0


def test_the_integrand_on_the_line():
    losses, masses = np.array([-0.3, 0.1, 0.8]), np.array([0.2, 0.5, 0.3])
    z = np.array([0.4 + 0.0j, 0.4 + 1.3j, 0.4 - 2.0j])
    for found, at in zip(_integrand(losses, masses, 3, 0.7, z), z, strict=True):
        moment = sum(mass * cmath.exp(1j * at.imag * loss) for mass, loss in zip(masses, losses, strict=True))
        want = moment**3 * cmath.exp(-0.7j * at.imag) / (at * (at + 1.0))
        assert found == pytest.approx(want, rel=1e-13)


def test_fading_is_one_over_the_first_half_and_symmetric_over_the_second():
    found = _fading(16)
    assert found[:9].tolist() == [1.0] * 9
    assert found[12] == 0.5
    np.testing.assert_allclose(found[9:12] + found[13:][::-1], 1.0, rtol=1e-12)
    assert found[10] == pytest.approx(1.0 / (1.0 + math.exp(4.0 / 3.0 - 4.0)), rel=1e-12)
    assert np.all(np.diff(found[8:]) < 0.0)


def test_what_lies_above_chernoffs_bound_is_refused(monkeypatch):
    one = gaussian(30, 4.0)
    whole = ComposedLaw._trapezoidal_sum
    # The integral over Chernoff's bound, which is to be at most 1.
    share = one.on_line(1.0) / math.exp(one._exponent(one.saddle))
    for factor, refused in ((1.0, False), (1.0 - 1e-9, False), (1.0 + 1e-5, True)):
        monkeypatch.setattr(
            ComposedLaw,
            "_trapezoidal_sum",
            lambda self, theta, mesh, factor=factor: whole(self, theta, mesh) * factor / share,
        )
        if refused:
            with pytest.raises(integrals.NumericalError, match="times Chernoff's bound"):
                one.on_line(1.0)
        else:
            assert one.on_line(1.0) == pytest.approx(math.exp(one._exponent(one.saddle)) * factor, rel=1e-9)
