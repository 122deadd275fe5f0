"""Profiles as distributions of dp_accounting, and back: never below what is known, and close to it."""

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

import dpmech as dm
from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import Curve, SampledPart
from dpmech.engines.profiles.profile import PrivacyProfile

BOUND = dm.Guarantee(dm.Kind.BOUND)
CLAIM = Curve.of_claim(0.5, 1e-6)
SAMPLED = SampledPart(0.02, 1.0, 100, tight=True)


@pytest.mark.parametrize(
    "parts",
    [
        Composition((0.25, 0.25)),
        Composition(sampled=(SAMPLED,)),
        Composition(curves=((CLAIM, 3),)),
        Composition((0.25, 0.25), (SAMPLED,), ((CLAIM, 2),)),
    ],
)
def test_a_distribution_is_above_the_profile_and_near_it(parts):
    profile = PrivacyProfile(parts, BOUND, dm.numerics.Provenance("given"))
    distribution = profile.to_dp_accounting(step=1e-3)
    for eps in (0.0, 0.7, 1.4, 3.0):
        own, theirs = profile.delta(eps), distribution.get_delta_for_epsilon(eps)
        assert own.lower * (1.0 - 1e-9) <= theirs
        assert theirs == pytest.approx(own.upper, rel=1e-2)
    # Directions are not exchanged: one per cent is far less than what they differ by.
    if parts.sampled and not parts.curves:
        assert distribution._pmf_remove.get_delta_for_epsilon(0.7) == pytest.approx(
            profile.hockey_stick(0.7, add=False).upper, rel=1e-2
        )
        assert profile.hockey_stick(0.7, add=True).upper < 0.9 * profile.hockey_stick(0.7, add=False).upper


def test_a_distribution_comes_back_from_above():
    theirs = pld.from_gaussian_mechanism(2.0, value_discretization_interval=1e-3)
    profile = PrivacyProfile.from_dp_accounting(theirs, adjacency=dm.Adjacency.ADD_REMOVE)
    for eps in (0.0, 0.5, 1.5):
        assert gaussian_delta(2.0, eps)[0] <= profile.delta(eps).upper
        assert profile.delta(eps).upper == pytest.approx(gaussian_delta(2.0, eps)[1], rel=1e-2)
    assert profile.guarantee == BOUND
    assert profile.delta(0.5).lower == 0.0
    twice = profile.self_compose(4).epsilon(1e-6).upper
    assert 1.0 <= twice / dm.epsilon(dm.Identity(1), 1.0, 1e-6).upper <= 1.01


def test_what_is_no_upper_bound_is_refused():
    optimistic = pld.from_gaussian_mechanism(2.0, pessimistic_estimate=False)
    with pytest.raises(dm.UnsupportedCombinationError, match="optimistic"):
        PrivacyProfile.from_dp_accounting(optimistic, adjacency=dm.Adjacency.ADD_REMOVE)
    for bad in (None, 1.0, optimistic._pmf_remove):
        with pytest.raises(dm.InvalidParameterError, match="distribution"):
            PrivacyProfile.from_dp_accounting(bad, adjacency=dm.Adjacency.ADD_REMOVE)
    with pytest.raises(dm.InvalidParameterError, match="slack"):
        PrivacyProfile.from_dp_accounting(optimistic, adjacency=dm.Adjacency.ADD_REMOVE, slack=-1.0)
    with pytest.raises(dm.InvalidParameterError, match="step"):
        PrivacyProfile(Composition((0.1, 0.1)), BOUND, dm.numerics.Provenance("given")).to_dp_accounting(
            step=0.0
        )


def test_the_neighboring_relation_is_the_callers_and_required():
    theirs = pld.from_gaussian_mechanism(2.0, value_discretization_interval=1e-2)
    with pytest.raises(TypeError, match="adjacency"):
        PrivacyProfile.from_dp_accounting(theirs)
    with pytest.raises(dm.InvalidParameterError, match="adjacency"):
        PrivacyProfile.from_dp_accounting(theirs, adjacency="replace_one")
    users = PrivacyProfile.from_dp_accounting(theirs, adjacency=dm.Adjacency.ADD_REMOVE, unit=dm.Unit.USER)
    assert users.unit is dm.Unit.USER
    with pytest.raises(dm.InvalidParameterError, match="unit must be"):
        PrivacyProfile.from_dp_accounting(theirs, adjacency=dm.Adjacency.ADD_REMOVE, unit="user")
    replaced = PrivacyProfile.from_dp_accounting(theirs, adjacency=dm.Adjacency.REPLACE_ONE)
    run = dm.profile(dm.Identity(1), 2.0, participation=dm.SingleParticipation())
    assert replaced.adjacency is dm.Adjacency.REPLACE_ONE
    for one, other in ((replaced, run), (run, replaced)):
        with pytest.raises(dm.UnsupportedCombinationError, match="adjacency") as refused:
            one.compose(other)
        assert "dm.Ledger" in str(refused.value)


def test_a_composition_of_two_releases_from_one_batch_is_not_theirs_jointly():
    # What the documentation of `compose` warns of, so that its words stay true: the joint release costs more.
    batches = dm.ledgers.SharedBatch("run", dm.Identity(1), dm.Poisson(0.01))
    batches.register("one", 0.5)
    batches.register("other", 0.5)
    release = dm.profile(dm.Identity(1), 0.5, participation=dm.Poisson(0.01))
    assert release.compose(release).epsilon(1e-5).upper < 0.9 * batches.epsilon(1e-5).lower
