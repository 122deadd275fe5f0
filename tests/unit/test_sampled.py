"""What the sampling accountants do between their samples: shares of beta, and eps below the sampled ones."""

import math
import types

import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting import sampled
from dpmech.accounting.gaussian import gaussian_delta
from dpmech.accounting.gram import CirculantGram
from dpmech.accounting.sampled import CertifiedAccountant, delta_below
from dpmech.bounds import Bounds


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0, 100.0])
@pytest.mark.parametrize(
    ("eps", "point"), [(0.0, 1e-4), (5e-5, 1e-4), (0.0, 0.5), (0.7, 1.0), (1.0, 1.0), (2.0, 1.0)]
)
def test_delta_below_is_a_bound_by_the_slope_of_the_divergence(multiplier, eps, point):
    true = gaussian_delta(multiplier, eps)[1]
    at_point = gaussian_delta(multiplier, max(point, eps))[1]
    bound = delta_below(at_point, point, eps, multiplier)
    assert true <= bound * (1.0 + 1e-12)
    # The cap by no amplification is out of the way for a mechanism of half the noise.
    free = delta_below(at_point, point, eps, 0.5 * multiplier)
    slack = max(0.0, math.exp(point) - math.exp(eps))
    assert true <= free * (1.0 + 1e-12)
    assert free <= min(1.0, at_point + slack) * (1.0 + 1e-9)
    assert free <= gaussian_delta(0.5 * multiplier, eps)[1] or eps >= point


def test_probes_of_one_call_share_beta(monkeypatch):
    shares = []

    def refuse(gram, eps, threshold, *, beta, rng, executor):
        shares.append(beta)
        return types.SimpleNamespace(upper=0.5, samples=10, meets=lambda delta: False)

    monkeypatch.setattr(sampled, "certify_delta", refuse)
    gram = CirculantGram([1.0, 0.2, 0.1, 0.2])
    accountant = CertifiedAccountant(
        gram, Bounds(1.0, 1.0, "one"), dm.Certified(1e-4), np.random.default_rng(1)
    )
    monkeypatch.setattr(accountant.sizing, "rough_epsilon", lambda sigma, delta: 1.0)
    monkeypatch.setattr(
        accountant.sizing, "calibrate", lambda *_, **__: types.SimpleNamespace(sigma=1.0, achieved=None)
    )
    calls = [
        lambda: accountant.epsilon(0.5, 1e-5, tolerance=1e-3),
        lambda: accountant.calibrate(1.0, 1e-5, rtol=1e-3, progress=lambda line: None),
    ]
    for call in calls:
        shares.clear()
        with pytest.raises(dm.NumericalError, match="could be certified"):
            call()
        assert len(shares) > 1
        assert math.fsum(shares) <= 1e-4 * (1.0 + 1e-12)
        assert math.fsum(shares) >= 0.99e-4
    shares.clear()
    bounds = accountant.delta(0.5, 1.0, tolerance=1e-3)
    assert shares == [1e-4]
    assert bounds.confidence == 1.0 - 1e-4
