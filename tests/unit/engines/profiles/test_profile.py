import math
from fractions import Fraction

import pytest

import dpmech as dm
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import Curve, SampledPart

RUN = {"participation": dm.Poisson(0.02)}


def test_under_poisson_sampling_a_profile_says_what_the_accountant_says():
    one = dm.profile(dm.Identity(300), 1.0, **RUN)
    for eps in (0.3, 2.0):
        found, own = one.delta(eps), dm.delta(dm.Identity(300), 1.0, eps, **RUN)
        assert found.lower <= own.upper
        assert own.lower <= found.upper <= own.upper * 1.02
    assert one.epsilon(1e-6).upper == pytest.approx(
        dm.epsilon(dm.Identity(300), 1.0, 1e-6, **RUN).upper, rel=1e-3
    )


def test_runs_of_one_kind_are_more_steps():
    one = dm.profile(dm.Identity(300), 1.0, **RUN)
    truth = dm.epsilon(dm.Identity(900), 1.0, 1e-6, **RUN)
    for found in (one.self_compose(3), one.compose(one, one)):
        eps = found.epsilon(1e-6)
        assert eps.lower <= truth.upper
        assert truth.lower <= eps.upper == pytest.approx(truth.upper, rel=1e-3)
        assert eps.guarantee.kind is dm.Kind.BOUND


def test_unsampled_runs_add_their_squares():
    one = dm.profile(dm.LambdaCGD(50, 0.9), 5.0, participation=dm.MinSep(10, 5))
    assert str(one.guarantee) == "exact"
    own = dm.sensitivity(dm.LambdaCGD(50, 0.9), dm.MinSep(10, 5)).upper
    truth = dm.epsilon(dm.Identity(1), 5.0 / own / 2.0, 1e-6, participation=dm.SingleParticipation())
    assert one.self_compose(4).epsilon(1e-6).upper == pytest.approx(truth.upper, rel=1e-6)


def test_independent_bins_have_nodes_in_both_directions():
    bins = {"participation": dm.BallsInBins(10)}
    one = dm.profile(dm.Identity(100), 1.0, rel_error=0.05, **bins)
    truth = dm.epsilon(dm.Identity(100), 1.0, 1e-5, **bins)
    found = one.epsilon(1e-5)
    assert found.lower <= truth.upper
    assert truth.lower <= found.upper <= truth.upper * 1.02
    assert one.self_compose(2).epsilon(2e-5).upper < 1.9 * truth.upper


def test_an_upper_bound_of_the_larger_direction_serves_both():
    bins = {"participation": dm.BallsInBins(3)}
    one = dm.profile(dm.LambdaCGD(12, 0.5), 2.0, method=dm.methods.Rdp(), rel_error=0.05, **bins)
    moments = dm.delta(dm.LambdaCGD(12, 0.5), 2.0, 1.0, method=dm.methods.Rdp(), **bins).upper
    assert moments * (1.0 - 1e-9) <= one.delta(1.0).upper <= moments * 1.06
    assert one.hockey_stick(1.0, add=True).upper == one.hockey_stick(1.0, add=False).upper


def test_what_does_not_compose_is_refused():
    one = dm.profile(dm.Identity(1), 2.0)
    other = dm.profile(dm.Identity(1), 2.0, adjacency=dm.Adjacency.ZERO_OUT)
    with pytest.raises(dm.UnsupportedCombinationError, match="ZERO_OUT"):
        one.compose(other)
    with pytest.raises(dm.InvalidParameterError, match="others"):
        one.compose((1.0, 1e-5))
    with pytest.raises(dm.InvalidParameterError, match="times"):
        one.self_compose(0)
    assert one.compose() is one
    assert one.self_compose(1) is one
    with pytest.raises(dm.InvalidParameterError, match="rel_error"):
        dm.profile(dm.Identity(1), 2.0, rel_error=0.9)


def test_errors_of_samples_count_once_a_profile():
    sure = dm.Guarantee(dm.Kind.PROBABLE, 1e-9)
    parts = Composition(curves=((Curve.of_claim(1.0, 1e-5), 1),))
    one, other = (
        dm.PrivacyProfile(parts, sure, dm.numerics.Provenance("profile.nodes", {"nodes": 1}))
        for _ in range(2)
    )
    assert one.self_compose(5).guarantee == sure
    assert one.compose(one).guarantee == sure
    assert one.compose(other).guarantee.error == pytest.approx(2e-9)
    assert one.compose(other).parts.releases == 2


def test_very_many_runs_take_no_longer_than_two():
    one = dm.profile(dm.Identity(1), 2.0, participation=dm.SingleParticipation())
    many = one.self_compose(10**15).parts
    own = Fraction(one.parts.gaussian[0]) * 10**15
    assert Fraction(many.gaussian[0]) <= own
    assert Fraction(many.gaussian[1]) >= Fraction(one.parts.gaussian[1]) * 10**15
    assert many.gaussian[1] == pytest.approx(float(own), rel=1e-12)


def test_the_least_sensitivity_of_sampled_parts_is_rounded_down():
    """The gap and one less the gap may each be off by a float."""
    for gap in (0.1, 1e-3, 1.0 / 3.0, 3e-16, 0.6, 0.9):
        part = SampledPart(0.01, 1.7, 5, tight=False, gap=gap)
        least = (1 - Fraction(math.nextafter(gap, 1.0))) / Fraction(math.nextafter(1.7, 2.0))
        assert Fraction(part.release.sensitivity.lower) <= least


def test_a_profile_by_divergences_reaches_as_far_as_they_do():
    """It ended where one of the releases alone is negligible, and was flat from there on."""
    strategy, participation = dm.Identity(2000), dm.Poisson(0.05)
    found = dm.profile(strategy, 0.8, participation=participation, method=dm.methods.Rdp(), rel_error=0.2)
    for eps in (10.0, 20.0, 40.0):
        exact = dm.delta(strategy, 0.8, eps, participation=participation, method=dm.methods.Rdp()).upper
        assert exact <= found.delta(eps).upper <= 1.3 * exact


def test_a_direction_is_zero_only_where_no_loss_is_that_large():
    run = dm.profile(dm.Identity(10), 200.0, participation=dm.Poisson(0.01))
    assert 0.0 < run.hockey_stick(500.0, add=False).upper < 1e-290
    assert run.hockey_stick(500.0, add=True).upper == 0.0
