"""The noise multiplier is the number of Opacus and no other, and is absent where no such number exists."""

import json
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates import AdaptiveClip
from dpmech.certificates.document import seal_of
from dpmech.mechanism import noise_multiplier, sigma_use

INDEPENDENT = "standard deviation of the i.i.d. noise at clip norm 1; in Opacus: noise_multiplier"
CORRELATED = "correlated noise: use NoiseStream; no number for DP-SGD tools"


@pytest.mark.parametrize(
    "strategy",
    [
        dm.Identity(6),
        dm.Diagonal([1.0] * 6),
        dm.LambdaCGD(6, 0.0),
        dm.LambdaCGD(1, 0.9),
        dm.Dense(np.eye(4)),
        dm.ColumnNormalized(dm.Diagonal([1.0, 2.0])),
    ],
    ids=repr,
)
def test_it_is_sigma_where_the_noise_is_that_of_dp_sgd(strategy):
    assert noise_multiplier(strategy, 1.3) == 1.3
    assert sigma_use(strategy) == INDEPENDENT
    np.testing.assert_array_equal(np.linalg.inv(strategy.to_dense()), np.eye(strategy.n))


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (dm.LambdaCGD(6, 0.9), CORRELATED),
        (dm.SquareRoot(6), CORRELATED),
        (dm.SquareRoot(6, 2), CORRELATED),
        (dm.BLT(6, [0.9], [0.1]), CORRELATED),
        (dm.ColumnNormalized(dm.LambdaCGD(6, 0.9)), CORRELATED),
        (dm.Diagonal([1.0, 2.0]), "independent noise, whose size is that of sigma times"),
        (dm.Diagonal([2.0, 2.0]), "independent noise, whose size is that of sigma times"),
    ],
    ids=repr,
)
def test_it_is_absent_where_no_number_describes_the_noise(strategy, words):
    assert noise_multiplier(strategy, 1.3) is None
    assert sigma_use(strategy).startswith(words)
    assert not np.array_equal(np.linalg.inv(strategy.to_dense()), np.eye(strategy.n))


@pytest.mark.parametrize(
    "participation",
    [
        dm.Poisson(0.25),
        dm.MinSep(3, 4),
        dm.EveryStep(),
        dm.FixedEpochs(4),
        dm.MinSep(3, max_examples_per_user=2),
    ],
    ids=repr,
)
def test_whoever_hands_it_to_opacus_trains_with_what_was_claimed(participation):
    """The noise of a DP-SGD step is noise_multiplier times the clip norm; the claim holds at that noise."""
    cal = dm.calibrate_sigma(dm.Identity(12), 4.0, 1e-5, participation=participation)
    assert cal.noise_multiplier == cal.sigma == cal.certificate().noise_multiplier
    spent = dm.epsilon(dm.Identity(12), cal.noise_multiplier, 1e-5, participation=participation)
    assert spent.upper <= 4.0
    if cal.sensitivity.upper > 1.5:
        # What was printed once as the noise multiplier costs far more.
        less = cal.sigma / cal.sensitivity.upper
        assert dm.epsilon(dm.Identity(12), less, 1e-5, participation=participation).lower > 5.0


def test_under_poisson_sampling_rate_and_steps_belong_to_it():
    """Opacus' own loader takes ceil(N / B) steps an epoch at one over that."""
    clip = AdaptiveClip(count_share=0.1)
    for participation in (dm.Poisson(0.25), dm.Poisson(0.25, max_examples_per_user=2)):
        cal = dm.calibrate_sigma(dm.Identity(4), 4.0, 1e-5, participation=participation)
        assert cal.sigma_use == INDEPENDENT + ", with q and n as here"
        adaptive = cal.certificate(clip_norm=clip).sigma_use
        assert 'noise_multiplier, with q and n as here, with clipping="adaptive"' in adaptive
        assert sigma_use(dm.SquareRoot(4), participation) == CORRELATED
    assert dm.calibrate_sigma(dm.Identity(4), 4.0, 1e-5).sigma_use == INDEPENDENT


def test_a_risk_target_says_the_same():
    target = dm.AttackTarget(fpr=0.01, tpr=0.05)
    found = dm.calibrate_sigma_to(dm.Identity(4), target, participation=dm.MinSep(1, 4))
    assert found.noise_multiplier == found.sigma
    assert str(found).splitlines()[1] == INDEPENDENT
    assert dm.calibrate_sigma_to(dm.LambdaCGD(4, 0.5), target).noise_multiplier is None


def test_of_an_adaptive_clip_it_is_what_opacus_takes_for_both_sums():
    """Opacus gives the gradients (z^-2 - (2 s)^-2)^(-1/2), s the deviation of the count."""
    cal = dm.calibrate_sigma(dm.Identity(4), 4.0, 1e-5)
    clip = AdaptiveClip(count_share=0.1)
    own = cal.certificate(clip_norm=clip, expected_batch_size=8.0)
    gradients = (own.noise_multiplier**-2 - (2.0 * clip.count_stddev(own.sigma)) ** -2) ** -0.5
    assert gradients == pytest.approx(clip.gradient_sigma(own.sigma), rel=1e-12)
    assert 'clipping="adaptive" and unclipped_num_std=' in own.sigma_use
    assert "unclipped_num_std" not in cal.certificate().sigma_use


def test_a_certificate_that_names_another_ratio_so_is_refused(tmp_path):
    path = tmp_path / "certificate.json"
    cal = dm.calibrate_sigma(dm.LambdaCGD(6, 0.9), 2.0, 1e-5)
    own = cal.certificate()
    own.save(path)
    text = path.read_text()
    assert '"noise_multiplier": null' in text
    document = own.to_dict()
    document["evidence"]["noise_multiplier"] = {"decimal": 0.5, "hex": (0.5).hex()}
    document["seal"] = seal_of(document)
    with pytest.raises(dm.CertificateError, match="noise_multiplier"):
        dm.Certificate.from_json(json.dumps(document))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "steps", "participation", "method", "eps"),
    [
        (0.6002290, 3900, dm.MinSep(390, 10), None, 35.62),
        (0.3827646, 3900, dm.BallsInBins(390), dm.Exact(), 62.60),
        (0.404, 3900, dm.Poisson(1 / 390), None, 17.16),
    ],
)
def test_the_figures_of_the_page(ratio, steps, participation, method, eps):
    """docs/faq.md: what sigma / sensitivity costs in place of the noise multiplier, rounded up."""
    found = dm.epsilon(dm.Identity(steps), ratio, 1e-5, participation=participation, method=method)
    assert math.ceil(100.0 * found.upper) / 100.0 == eps
