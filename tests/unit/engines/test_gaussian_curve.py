import math

import mpmath as mp
import numpy as np
import pytest

from dpmech.engines.gaussian import gaussian_curve


def exact(mu, eps):
    mu, eps = mp.mpf(mu), mp.mpf(eps)
    a = mu / 2 - eps / mu
    return mp.ncdf(a) - mp.exp(eps) * mp.ncdf(a - mu)


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.05, 0.7, 3.0, 25.0, 100.0])
def test_the_curve_within_its_error_at_any_eps(mu):
    rng = np.random.default_rng(3)
    spread = mu * (1.0 + mu)
    eps = np.concatenate([rng.normal(scale=6.0 * spread, size=60), [0.0, -spread, spread, 36.0 * mu]])
    logs, errors = gaussian_curve(mu, eps)
    with mp.workdps(400):
        for at, log, error in zip(eps, logs, errors, strict=True):
            truth = exact(float(mu), float(at))
            if math.isinf(error):
                assert mp.exp(mp.mpf(float(log))) >= truth
            elif truth > mp.mpf("1e-290"):
                assert abs(mp.exp(mp.mpf(float(log))) / truth - 1) <= error
                assert error < (1e-9 if mu >= 0.05 else 1e-4)


def test_both_signs_agree():
    eps = np.array([0.1, 1.0, 5.0])
    there, _ = gaussian_curve(0.8, -eps)
    here, _ = gaussian_curve(0.8, eps)
    assert np.exp(there) == pytest.approx(1.0 - np.exp(-eps) + np.exp(-eps) * np.exp(here), rel=1e-13)
