"""The transform of the ratio of an epoch against quadrature, moments in closed form, and as a second
route."""

import dataclasses
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates import with_checksum
from dpmech.verifying.allocation_transform import _moments, fresh_delta
from tests.support.epochs_by_quadrature import delta


@pytest.mark.parametrize(("bins", "kappa"), [(2, 1.0), (10, 0.3), (390, 2.0)])
def test_moments_that_have_a_closed_form(bins, kappa):
    line = 1.0 + 1j * np.array([0.0, 2.0])
    second = _moments(bins, kappa, line, remove=True)[0]
    assert abs(second - (1.0 + math.expm1(kappa**2) / bins)) <= 1e-9 * abs(second)
    # E r^3 of a mean of independent lognormals.
    e1, e3 = math.exp(kappa**2), math.exp(3.0 * kappa**2)
    third = (bins * e3 + 3.0 * bins * (bins - 1) * e1 + bins * (bins - 1) * (bins - 2)) / bins**3
    assert abs(_moments(bins, kappa, line + 1.0, remove=True)[0] - third) <= 1e-9 * third


@pytest.mark.parametrize(
    ("kappas", "eps", "tilts"),
    [
        pytest.param((1.0, 1.0), 1.0, (2.0, 2.0), marks=pytest.mark.slow),
        ((0.5, 0.5), 0.3, (3.0, 3.0)),
        pytest.param((1.25, 0.8), 1.0, (2.0, 3.0), marks=pytest.mark.slow),
    ],
)
def test_two_epochs_by_quadrature(kappas, eps, tilts):
    epochs = [(kappa, 1) for kappa in kappas]
    assert fresh_delta(2, epochs, eps, tilts) == pytest.approx(delta(kappas, eps), rel=2e-5)


@pytest.mark.slow
def test_the_known_figure():
    assert fresh_delta(390, [(1 / 0.494, 10)], 7.55, (2.0, 15.0)) == pytest.approx(1.00016e-5, rel=1e-4)


@pytest.mark.slow
def test_a_certificate_is_verified_and_one_with_too_little_noise_is_not():
    cal = dm.calibrate_sigma(dm.Identity(20), 1.0, 1e-4, participation=dm.BallsInBins(10, fresh=True))
    certificate = cal.certificate(clip_norm=1.0)
    assert "In each of 2 epochs" in str(certificate)
    found = dm.verify(certificate, rigorous=True)
    assert found.ok, found.failures
    assert any("transform of the ratio of 10 bins" in route for route in found.routes)
    wrong = dm.verify(with_checksum(dataclasses.replace(certificate, sigma=0.98 * cal.sigma)))
    assert not wrong.ok
    assert any("transform of the ratio" in line for line in wrong.failures)
