"""What the sampling accountants do between their samples: shares of beta, and eps below the sampled ones."""

import math
import types

import mpmath
import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.gaussian_mixture import certified_bound as certified
from dpmech.engines.gaussian_mixture import estimate_accountant
from dpmech.engines.gaussian_mixture import samples as blocks
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.gram import CirculantGram
from dpmech.engines.gaussian_mixture.mixtures import RemoveProposal
from dpmech.engines.gaussian_mixture.rough_sigma import delta_below
from dpmech.engines.gaussian_mixture.samples import block_size, pilot_sample, weight_sample
from dpmech.engines.gaussian_mixture.streams import Stage
from dpmech.numerics.bounds import Bounds


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


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_no_fewer_samples_than_asked_for(blocks):
    gram = DenseGram([[1.0]])
    proposal = RemoveProposal.at(gram, 1.0)
    asked = (blocks - 1) * block_size(1) + 1
    sample = weight_sample(proposal, (1, 2), Stage.REMOVE_MAIN, asked)
    assert sample.log_weights.size == blocks * block_size(1)
    payoffs, densities = pilot_sample(proposal, (1, 2), Stage.REMOVE_MAIN, asked)
    assert payoffs.shape == (blocks * block_size(1),)
    assert densities.shape == (payoffs.size, len(proposal.names))


def test_a_certified_bound_counts_the_draws_of_both_directions():
    bound = certified.certify_delta(DenseGram([[1.0]]), 1.0, beta=1e-3, rng=np.random.default_rng(1))
    assert bound.samples == bound.remove.samples + bound.add.samples
    assert min(bound.remove.samples, bound.add.samples) >= block_size(1)


def test_delta_below_is_rounded_up():
    """Against 50 digits; without amplification nothing is known here, so that the slope alone bounds."""
    rng = np.random.default_rng(4)
    short, loose = [], []
    for upper, eps in zip(rng.uniform(0.0, 1e-3, 300), rng.uniform(0.0, 1e-4, 300), strict=True):
        with mpmath.workdps(50):
            exact = mpmath.mpf(upper) + mpmath.exp(eps) * mpmath.expm1(mpmath.mpf(1e-4) - mpmath.mpf(eps))
            short.append(upper + math.exp(eps) * math.expm1(1e-4 - eps) < exact)
            found = delta_below(float(upper), 1e-4, float(eps), 1e-3)
            assert found >= exact
            loose.append(float(found / exact - 1))
    assert any(short)
    assert max(loose) < 40 * 2.0**-53


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_without_amplification_the_noise_is_that_over_the_sensitivity(eps, monkeypatch):
    asked = []
    monkeypatch.setattr(
        estimate_accountant, "delta_below", lambda *given: asked.append(given) or delta_below(*given)
    )
    sensitivity = Bounds(1.0, 2.0, dm.Guarantee(dm.Kind.BOUND), dm.numerics.Provenance("two"))
    gram = CirculantGram([4.0, 0.2, 0.1, 0.2])
    accountant = estimate_accountant.ImportanceAccountant(
        gram, sensitivity, dm.methods.Importance(0.3), np.random.default_rng(1)
    )
    accountant.delta(3.0, eps, tolerance=1e-2)
    ((_, sampled, at, multiplier),) = asked
    assert (sampled, at, multiplier) == (max(eps, 1e-4), eps, 1.5)


def test_shares_of_the_parts_add_up_over_blocks(monkeypatch):
    sums = ([2.0, 1.0, 0.0], [1.0, 4.0, 0.0])
    found = [(np.zeros(3), np.log(np.maximum(one, 1e-300))) for one in sums]
    monkeypatch.setattr(blocks, "_blocks", lambda *_, **__: found)
    proposal = types.SimpleNamespace(weights=np.ones(3))
    sample = weight_sample(proposal, (1,), Stage.REMOVE_MAIN, 6)
    assert sample.shares == pytest.approx([3.0 / 8.0, 5.0 / 8.0, 0.0], abs=1e-15)
    assert sample.log_weights.size == 6
