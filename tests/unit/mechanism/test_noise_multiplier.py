"""The noise multiplier is the number of Opacus and no other, and is absent where no such number exists."""

import json
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates import AdaptiveClip
from dpmech.certificates.document import checksum_of_document
from dpmech.mechanism import noise_multiplier, sigma_use

INDEPENDENT = "standard deviation of the i.i.d. noise at clip norm 1"
POISSON = f"{INDEPENDENT}; in Opacus: noise_multiplier, where its loader takes n steps with q as here"
OTHER_BATCHES = (
    f"{INDEPENDENT} (what Opacus calls noise_multiplier); Opacus' loaders draw other batches, at another eps"
)
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
    assert noise_multiplier(dm.Mechanism(strategy), 1.3) == 1.3
    assert sigma_use(dm.Mechanism(strategy)) == OTHER_BATCHES
    assert sigma_use(dm.Mechanism(strategy, dm.Poisson(0.1))) == POISSON
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
    for adaptive_clip in (False, True):
        assert noise_multiplier(dm.Mechanism(strategy), 1.3, adaptive_clip=adaptive_clip) is None
        assert sigma_use(dm.Mechanism(strategy), adaptive_clip=adaptive_clip).startswith(words)
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
def test_it_is_the_noise_of_the_claim_under_its_own_sampling(participation):
    """The noise of a DP-SGD step is noise_multiplier times the clip norm; the claim holds at that noise."""
    cal = dm.calibrate_sigma(dm.Identity(12), 4.0, 1e-5, participation=participation)
    assert cal.noise_multiplier == cal.sigma == cal.certificate().noise_multiplier
    spent = dm.epsilon(dm.Identity(12), cal.noise_multiplier, 1e-5, participation=participation)
    assert spent.upper <= 4.0
    if cal.sensitivity.upper > 1.5:
        # What was printed once as the noise multiplier costs far more.
        less = cal.sigma / cal.sensitivity.upper
        assert dm.epsilon(dm.Identity(12), less, 1e-5, participation=participation).lower > 5.0


def test_a_risk_target_says_the_same():
    target = dm.AttackTarget(fpr=0.01, tpr=0.05)
    found = dm.calibrate_sigma_to(dm.Identity(4), target, participation=dm.MinSep(1, 4))
    assert found.noise_multiplier == found.sigma
    assert str(found).splitlines()[1] == OTHER_BATCHES
    assert dm.calibrate_sigma_to(dm.LambdaCGD(4, 0.5), target).noise_multiplier is None


@pytest.mark.parametrize(
    ("participation", "adjacency"),
    [
        (dm.BallsInBins(4), dm.Adjacency.ADD_REMOVE),
        (dm.BallsInBins(4, fresh=True), dm.Adjacency.ADD_REMOVE),
        (dm.MinSep(4), dm.Adjacency.REPLACE_ONE),
        (dm.FixedEpochs(2), dm.Adjacency.ADD_REMOVE),
        (dm.EveryStep(), dm.Adjacency.ADD_REMOVE),
        (dm.CyclicPoisson(0.5, 2), dm.Adjacency.ADD_REMOVE),
        (dm.Poisson(0.25, truncated_batch_size=4, dataset_size=8), dm.Adjacency.ZERO_OUT),
        (dm.FixedSizeBatches(8, 2), dm.Adjacency.REPLACE_ONE),
    ],
    ids=repr,
)
def test_only_for_poisson_samples_of_examples_a_loader_of_opacus_is_named(participation, adjacency):
    mechanism = dm.Mechanism(dm.Identity(8), participation, adjacency)
    assert noise_multiplier(mechanism, 1.3) == 1.3
    assert sigma_use(mechanism) == OTHER_BATCHES
    of_poisson = dm.Mechanism(dm.Identity(8), dm.Poisson(0.25), dm.Adjacency.ZERO_OUT)
    assert sigma_use(of_poisson) == POISSON


def test_sigma_for_bins_costs_more_in_a_poisson_loader():
    """Why the sentence says so: one epoch, one bin each, is cheaper than a coin a step."""
    cal = dm.calibrate_sigma(dm.Identity(40), 8.0, 1e-5, participation=dm.BallsInBins(40))
    there = dm.epsilon(dm.Identity(40), cal.noise_multiplier, 1e-5, participation=dm.Poisson(1 / 40))
    assert there.lower > 11.7
    assert cal.sigma_use == OTHER_BATCHES


@pytest.mark.parametrize("participation", [dm.Poisson(0.25), dm.MinSep(4), dm.BallsInBins(4)], ids=repr)
def test_users_who_are_clipped_as_one_have_no_number_in_opacus(participation):
    mechanism = dm.Mechanism(dm.Identity(8), participation, unit=dm.Unit.USER)
    assert noise_multiplier(mechanism, 1.3) is None
    assert sigma_use(mechanism) == f"{INDEPENDENT} of a user; no number for Opacus, which clips examples"


@pytest.mark.parametrize(
    "participation",
    [dm.Poisson(0.25, max_examples_per_user=3), dm.MinSep(4, max_examples_per_user=3)],
    ids=repr,
)
def test_of_users_whose_examples_are_clipped_opacus_states_another_eps(participation):
    mechanism = dm.Mechanism(dm.Identity(8), participation)
    assert noise_multiplier(mechanism, 1.3) == 1.3
    assert sigma_use(mechanism).endswith("Opacus states the eps of examples, not of users")


def test_a_claim_about_users_holds_no_number_in_its_file(tmp_path):
    path = tmp_path / "certificate.json"
    mechanism = dm.Mechanism(dm.Identity(8), dm.Poisson(0.25), unit=dm.Unit.USER)
    own = dm.calibrate_sigma(mechanism, 4.0, 1e-5).certificate()
    own.save(path)
    assert '"noise_multiplier": null' in path.read_text()
    assert dm.Certificate.load(path) == own
    assert own.sigma_use in str(own)


def test_with_an_adaptive_clip_there_is_no_number_for_opacus(tmp_path):
    """Opacus' count moves by 1: with noise `count_stddev` both sums together cost more than was claimed."""
    participation = dm.Poisson(0.25)
    cal = dm.calibrate_sigma(dm.Identity(4), 4.0, 1e-5, participation=participation)
    clip = AdaptiveClip(count_share=0.1)
    own = cal.certificate(clip_norm=clip, expected_batch_size=8.0)
    counts = clip.count_stddev(own.sigma)
    gradients = (cal.noise_multiplier**-2 - (2.0 * counts) ** -2) ** -0.5
    joint = (gradients**-2 + counts**-2) ** -0.5
    assert dm.epsilon(dm.Identity(4), joint, 1e-5, participation=participation).lower > 4.5
    assert own.noise_multiplier is None
    assert own.sigma_use == (
        "i.i.d. noise of gradients and counts together; no number for Opacus, which counts otherwise"
    )
    assert cal.sigma_use == cal.certificate(clip_norm=1.0).sigma_use == POISSON
    own.save(tmp_path / "certificate.json")
    assert dm.Certificate.load(tmp_path / "certificate.json") == own


def test_a_certificate_that_names_another_ratio_so_is_refused(tmp_path):
    path = tmp_path / "certificate.json"
    cal = dm.calibrate_sigma(dm.LambdaCGD(6, 0.9), 2.0, 1e-5)
    own = cal.certificate()
    own.save(path)
    text = path.read_text()
    assert '"noise_multiplier": null' in text
    document = own.to_dict()
    document["evidence"]["noise_multiplier"] = {"decimal": 0.5, "hex": (0.5).hex()}
    document["checksum"] = checksum_of_document(document)
    with pytest.raises(dm.exceptions.CertificateError, match="noise_multiplier"):
        dm.Certificate.from_json(json.dumps(document))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "steps", "participation", "method", "eps"),
    [
        (0.6002290, 3900, dm.MinSep(390, 10), None, 35.62),
        (0.3827646, 3900, dm.BallsInBins(390), dm.methods.Exact(), 62.60),
        (0.404, 3900, dm.Poisson(1 / 390), None, 17.16),
    ],
)
def test_the_figures_of_the_page(ratio, steps, participation, method, eps):
    """docs/faq.md: what sigma / sensitivity costs in place of the noise multiplier, rounded up."""
    found = dm.epsilon(dm.Identity(steps), ratio, 1e-5, participation=participation, method=method)
    assert math.ceil(100.0 * found.upper) / 100.0 == eps
