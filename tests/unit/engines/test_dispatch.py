import dataclasses
import math
import types
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines import ScheduleAccountant
from dpmech.engines.releases import least_of_a_group
from dpmech.methods import Exact, Method, Pld
from dpmech.schemes import accountant_for, effective_method, method_among, unsampled_method

BANDED = dm.BandedToeplitz(12, [1.0, 0.5, 0.25])


@pytest.mark.parametrize("call", [dm.calibrate_sigma, dm.epsilon, dm.delta])
@pytest.mark.parametrize(
    ("strategy", "schema", "options", "words"),
    [
        (dm.LambdaCGD(12, 0.9), dm.Poisson(0.1), {}, "needs independent, equal noise at every step"),
        (BANDED, dm.Poisson(0.1), {}, "needs independent, equal noise at every step"),
        (dm.LambdaCGD(2, 0.9), dm.Poisson([0.1, 0.2]), {}, "needs independent, equal noise at every step"),
        (dm.Diagonal([1.0, 2.0]), dm.Poisson(0.1, 2), {}, "needs independent, equal noise at every step"),
        (dm.LambdaCGD(12, 0.9), dm.CyclicPoisson(0.1, 4), {}, "at most cycle=4 bands.* has 12"),
        (BANDED, dm.CyclicPoisson(0.1, 2), {}, "at most cycle=2 bands.* has 3"),
        (dm.Identity(4), dm.EveryStep(), {"method": dm.methods.Pld()}, "does not apply without sampling"),
        (dm.Identity(4), dm.MinSep(2), {"method": dm.methods.Prv()}, "does not apply without sampling"),
        (
            dm.Identity(4),
            dm.Poisson(0.1),
            {"method": dm.methods.Exact()},
            "does not apply to Poisson sampling",
        ),
        (
            dm.Identity(4),
            dm.Poisson(0.1, 2),
            {"adjacency": dm.Adjacency.REPLACE_ONE},
            "all examples of a user have none",
        ),
        (
            dm.Identity(4),
            dm.BallsInBins(2),
            {"adjacency": dm.Adjacency.REPLACE_ONE},
            "doubling is not proven",
        ),
    ],
)
def test_refusals_name_the_reason_and_what_is_covered(call, strategy, schema, options, words):
    with pytest.raises(dm.UnsupportedCombinationError, match=words) as caught:
        call(strategy, 1.0, 1e-5, participation=schema, **options)
    assert caught.value.supported


@pytest.mark.parametrize("value", ["pld", dm.methods.Pld, 3])
def test_methods_are_objects(value):
    with pytest.raises(
        dm.InvalidParameterError, match=r"method must be None or a method object such as dm.methods.Pld\(\)"
    ):
        dm.epsilon(dm.Identity(4), 1.0, 1e-5, method=value)


def test_an_unknown_method_is_refused_everywhere():
    for schema in (dm.EveryStep(), dm.Poisson(0.1), dm.CyclicPoisson(0.1, 2)):
        with pytest.raises(dm.UnsupportedCombinationError):
            dm.epsilon(dm.Identity(4), 1.0, 1e-5, participation=schema, method=Method())


@pytest.mark.parametrize("method", [None, dm.methods.Exact()])
def test_unsampled_is_exact(method):
    schema = dm.MinSep(4, 2)
    bounds = dm.epsilon(dm.LambdaCGD(12, 0.5), 3.0, 1e-5, participation=schema, method=method)
    assert bounds.exact
    sens = dm.sensitivity(dm.LambdaCGD(12, 0.5), schema).upper
    single = dm.epsilon(dm.Identity(1), 3.0 / sens, 1e-5, participation=dm.SingleParticipation())
    assert bounds.upper == pytest.approx(single.upper, rel=1e-9)


@pytest.mark.parametrize(
    ("n", "cycle", "releases"), [(12, 3, 4), (12, 5, 3), (12, 12, 1), (12, 40, 1), (13, 4, 4)]
)
def test_cyclic_poisson_composes_ceil_n_over_cycle_releases(n, cycle, releases):
    strategy = dm.BandedToeplitz(n, [1.0, -0.5, 0.25])
    norm = np.linalg.norm([1.0, -0.5, 0.25])
    bounds = dm.epsilon(strategy, 2.0 * norm, 1e-5, participation=dm.CyclicPoisson(0.2, cycle))
    expected = dm.epsilon(dm.Identity(releases), 2.0, 1e-5, participation=dm.Poisson(0.2))
    assert bounds.upper == pytest.approx(expected.upper, rel=1e-9)
    # Columns near the end are shorter: a group that has only full ones makes the bound tight.
    full = any(all(start + j * cycle <= n - 3 for j in range(releases)) for start in range(cycle))
    assert (bounds.lower > 0.0) == full
    calibration = dm.calibrate_sigma(strategy, 1.0, 1e-5, participation=dm.CyclicPoisson(0.2, cycle))
    assert calibration.sensitivity.upper == pytest.approx(norm, rel=1e-12)
    assert calibration.noise_multiplier is None
    assert calibration.achieved.upper <= 1.0


def test_cyclic_poisson_needs_bands_up_to_cycle():
    strategy = dm.BandedToeplitz(12, [1.0, 0.5, 0.25])
    assert dm.epsilon(strategy, 2.0, 1e-5, participation=dm.CyclicPoisson(0.2, 3)).upper > 0.0
    gram = strategy.to_dense().T @ strategy.to_dense()
    assert gram[0, 3] == 0.0
    assert gram[0, 2] > 0.0


@pytest.mark.parametrize("method", [None, dm.methods.Pld(), dm.methods.Prv(), dm.methods.Exact()])
def test_full_sampling_is_the_gaussian_mechanism(method):
    bounds = dm.epsilon(dm.Identity(16), 8.0, 1e-5, participation=dm.Poisson(1.0), method=method)
    expected = dm.epsilon(dm.Identity(16), 8.0, 1e-5)
    assert bounds.exact
    assert bounds.upper == pytest.approx(expected.upper, rel=1e-12)


def test_full_sampling_of_unequal_releases_is_a_bracket():
    strategy = dm.Diagonal([1.0, 2.0, 1.0, 1.0])
    bounds = dm.epsilon(strategy, 8.0, 1e-5, participation=dm.CyclicPoisson(1.0, 2))
    truth = dm.epsilon(strategy, 8.0, 1e-5, participation=dm.FixedEpochs(2))
    assert bounds.lower <= truth.lower
    assert truth.upper <= bounds.upper
    assert not bounds.exact


@pytest.mark.parametrize("adjacency", [dm.Adjacency.ADD_REMOVE, dm.Adjacency.ZERO_OUT])
def test_zero_out_is_add_remove(adjacency):
    schema = dm.Poisson(0.1)
    bounds = dm.epsilon(dm.Identity(5), 1.0, 1e-5, participation=schema, adjacency=adjacency)
    assert bounds == dm.epsilon(dm.Identity(5), 1.0, 1e-5, participation=schema)


def test_every_schema_is_checked_against_n():
    with pytest.raises(dm.InvalidParameterError, match="bins must be at most n=5"):
        dm.calibrate_sigma(dm.Identity(5), 1.0, 1e-5, participation=dm.BallsInBins(6))
    with pytest.raises(dm.InvalidParameterError, match=r"min_sep must be an integer in \[1, n=5\]"):
        dm.calibrate_sigma(dm.Identity(5), 1.0, 1e-5, participation=dm.MinSep(6))


@pytest.mark.parametrize(
    "strategy", [dm.LambdaCGD(4, 0.5), dm.SquareRoot(4), dm.Dense(np.tril(np.ones((4, 4))))], ids=repr
)
def test_a_cycle_as_long_as_the_run_takes_any_strategy(strategy):
    """Every example is sampled once at most, into one step."""
    once = dm.epsilon(strategy, 2.0, 1e-5, participation=dm.CyclicPoisson(0.1, 4))
    scaled = 2.0 / strategy.column_norms().max()
    single = dm.epsilon(dm.Identity(1), scaled, 1e-5, participation=dm.Poisson(0.1))
    assert once.upper == pytest.approx(single.upper, rel=1e-9)


@pytest.mark.parametrize(
    ("participation", "expected"),
    [
        (dm.Poisson(1.0), Exact()),
        (dm.Poisson(0.5), Pld()),
        (dm.CyclicPoisson(1.0, 4), Exact()),
        (dm.CyclicPoisson(0.5, 4), Pld()),
        (dm.BallsInBins(1), Exact()),
        (dm.BallsInBins(4), dm.methods.Certified()),
        (dm.EveryStep(), Exact()),
    ],
)
def test_nothing_random_is_accounted_exactly(participation, expected):
    assert effective_method(participation, None) == expected
    if expected == Exact():
        assert effective_method(participation, dm.methods.Rdp()) == dm.methods.Rdp()
        assert effective_method(participation, Pld()) == Exact()
    else:
        assert effective_method(participation, dm.methods.Rdp()) == dm.methods.Rdp()


def test_the_excess_of_the_program_is_at_most_ten():
    assert dm.methods.Deterministic().rel_error == 0.05
    assert dm.methods.Deterministic(10.0).rel_error == 10.0
    assert dm.methods.Deterministic(1e-3).rel_error == 1e-3
    with pytest.raises(dm.InvalidParameterError, match="rel_error"):
        dm.methods.Deterministic(0.0)
    with pytest.raises(dm.InvalidParameterError, match="rel_error"):
        dm.methods.Deterministic(10.5)


def test_the_error_of_a_sample_is_at_most_a_half():
    assert dm.methods.Importance(0.5).rel_error == 0.5
    assert dm.methods.Importance(1e-4).rel_error == 1e-4
    for bad in (0.51, 0.9e-4):
        with pytest.raises(dm.InvalidParameterError, match="rel_error"):
            dm.methods.Importance(bad)


@pytest.mark.parametrize("beta", [0.0, 1.0, 1.5, -1e-9])
def test_beta_is_a_probability(beta):
    with pytest.raises(dm.InvalidParameterError, match="beta"):
        dm.methods.Certified(beta)


@pytest.mark.parametrize("coefs", [[1.0], [1.0, 0.5], [3.0, 0.1], [0.01, 0.1]])
def test_certain_sampling_multiplies_a_release_by_a_root_rounded_outward(coefs):
    for steps in range(1, 60):
        strategy, participation = dm.BandedToeplitz(3 * steps, coefs), dm.CyclicPoisson(1.0, 3)
        one = dm.sensitivity(strategy, participation)
        whole = accountant_for(dm.Mechanism(strategy, participation), None).sensitivity
        assert whole.lower > 0.0
        lower, upper = Fraction(whole.lower) ** 2, Fraction(whole.upper) ** 2
        assert lower <= steps * Fraction(one.lower) ** 2 <= steps * Fraction(one.upper) ** 2 <= upper
        assert upper - lower <= steps * (Fraction(one.upper) ** 2 - Fraction(one.lower) ** 2) + Fraction(
            steps, 10**14
        )
        if steps in {1, 4, 49}:
            assert whole.upper == math.isqrt(steps) * one.upper


@pytest.mark.parametrize("size", [0.25, 1.0, 4.0])
def test_noise_is_equal_at_every_step_to_a_part_in_1e14(size):
    # 40 units of rounding are 0.9e-14, and 54 are 1.2e-14.
    equal, unequal = (dm.Diagonal([size, size * (1.0 + units * 2.0**-52)]) for units in (40, 54))
    found = accountant_for(dm.Mechanism(equal, dm.Poisson(0.1)), None)
    assert found.sensitivity.upper >= equal.entries.max()
    assert not isinstance(found, ScheduleAccountant)
    assert len(accountant_for(dm.Mechanism(unequal, dm.Poisson(0.1)), None).kinds) == 2
    with pytest.raises(dm.UnsupportedCombinationError, match="independent, equal noise"):
        accountant_for(dm.Mechanism(unequal, dm.Poisson(0.1, 2)), None)


@pytest.mark.parametrize(("units", "tight"), [(40, True), (54, False)])
def test_groups_are_tight_where_columns_are_equal_to_a_part_in_1e14(units, tight):
    strategy = dm.Diagonal([4.0, 4.0 * (1.0 - units * 2.0**-52)])
    found = accountant_for(dm.Mechanism(strategy, dm.CyclicPoisson(0.1, 1)), None)
    assert found.release.tight is tight


@pytest.mark.parametrize("schema", [dm.Poisson(0.1), dm.CyclicPoisson(0.1, 1)])
def test_norms_that_count_as_equal_enter_each_end_on_its_safe_side(schema):
    entries = [4.0 * (1.0 - 7 * 2.0**-53), 4.0, 4.0 * (1.0 - 40 * 2.0**-53)]
    for steps in (1, 2, 3):
        mechanism = dm.Mechanism(dm.Diagonal(entries[:steps]), schema)
        release = accountant_for(mechanism, None).release
        assert release.tight
        part = Fraction(min(entries[:steps])) / Fraction(max(entries[:steps]))
        exact = Fraction(mechanism.sensitivity.lower) * part
        assert exact * (1 - Fraction(1, 2**51)) <= Fraction(release.sensitivity.lower) <= exact
        assert release.sensitivity.upper == mechanism.sensitivity.upper


def test_of_several_groups_the_closest_one_counts():
    entries = [3.0, 4.0 * (1.0 - 20 * 2.0**-53), 4.0, 3.0, 4.0, 4.0 * (1.0 - 2.0**-50)]
    mechanism = dm.Mechanism(dm.Diagonal(entries), dm.CyclicPoisson(0.1, 3))
    release = accountant_for(mechanism, None).release
    # The first group has norms of 3; of the others the third comes closer.
    exact = mechanism.sensitivity.lower * (1.0 - 2.0**-50)
    assert exact * (1.0 - 2.0**-52) <= release.sensitivity.lower <= exact
    # A group of fewer steps costs less than one may: no lower end.
    short = accountant_for(dm.Mechanism(dm.Diagonal([3.0, 4.0, 3.0]), dm.CyclicPoisson(0.1, 2)), None).release
    assert not short.tight


def test_exact_is_for_independent_noise_only():
    found = accountant_for(dm.Mechanism(dm.Identity(6), dm.BallsInBins(3)), dm.methods.Exact())
    assert found.by.route == "bins.independent"
    assert accountant_for(dm.Mechanism(dm.Identity(6), dm.BallsInBins(3)), None).by == found.by
    # Columns that are computed without rounding are independent noise as well.
    for strategy in (dm.LambdaCGD(6, 0.0), dm.BandedInverse(6, [1.0]), dm.InverseSquareRoot(6, 1)):
        assert accountant_for(dm.Mechanism(strategy, dm.BallsInBins(3)), None).by == found.by
    # Bins of unequal noise take the program.
    unequal = dm.Mechanism(dm.Diagonal([1.0, 2.0, 3.0]), dm.BallsInBins(3))
    assert accountant_for(unequal, dm.methods.Exact()).settings.rel_error == 0.005
    for strategy in (dm.BandedToeplitz(6, [1.0, 0.5]), dm.LambdaCGD(6, 0.5)):
        with pytest.raises(dm.UnsupportedCombinationError, match=r"Exact\(\) for Identity"):
            accountant_for(dm.Mechanism(strategy, dm.BallsInBins(3)), dm.methods.Exact())


def test_what_a_method_leaves_to_chance_by_default():
    assert (dm.methods.Importance().rel_error, dm.methods.Importance().confidence) == (0.02, 0.9999)
    assert dm.methods.Certified().error == 1e-9
    assert [
        method.error
        for method in (
            dm.methods.Pld(),
            dm.methods.Prv(),
            dm.methods.Rdp(),
            dm.methods.Exact(),
            dm.methods.Deterministic(),
        )
    ] == [0.0] * 5
    for bad in (0.0, 1.0, 1.5):
        with pytest.raises(dm.InvalidParameterError, match="confidence"):
            dm.methods.Importance(confidence=bad)


def test_where_no_group_has_as_many_releases_as_one_may_have_none_is_told_to_cost_that():
    strategy = dm.BandedToeplitz(9, [1.0, 0.5])
    for releases, least in ((3, 1.0), (4, 0.0)):
        participation = types.SimpleNamespace(releases=lambda n, releases=releases: releases)
        mechanism = types.SimpleNamespace(strategy=strategy, participation=participation)
        assert least_of_a_group(mechanism, 3) == pytest.approx(least, rel=1e-12, abs=0.0)


def test_of_several_calls_each_has_a_share_of_what_is_left_to_chance():
    bins, poisson = dm.BallsInBins(4), dm.Poisson(0.1)
    assert method_among(bins, None, 6) == dm.methods.Certified(calls=6)
    assert method_among(bins, dm.methods.Certified(1e-6, calls=2), 3) == dm.methods.Certified(1e-6, calls=6)
    assert method_among(bins, None, 1) is None
    for schema, method in (
        (bins, dm.methods.Importance()),
        (bins, dm.methods.Rdp()),
        (poisson, None),
        (dm.EveryStep(), None),
    ):
        assert method_among(schema, method, 6) == method


def test_a_method_that_can_fail_is_not_selected_from_without_a_share():
    @dataclasses.dataclass(frozen=True)
    class Failing(dm.methods.Method):
        error = 1e-6

    method = Failing()
    assert method.among(1) is method
    with pytest.raises(dm.UnsupportedCombinationError, match="does not divide its error among several calls"):
        method.among(2)


def test_what_draws_nothing_stands_in_where_nothing_may_be_left_to_chance():
    assert unsampled_method(dm.BallsInBins(4)) == dm.methods.Deterministic()
    assert unsampled_method(dm.Poisson(0.1)) is None
    assert unsampled_method(dm.EveryStep()) is None


@pytest.mark.parametrize(
    ("beta", "delta", "due"),
    [(None, 1e-5, 1e-9), (None, 1e-6, 1e-9), (None, 1e-7, 1e-10), (None, None, 1e-9), (1e-3, 1e-7, 1e-3)],
)
def test_beta_is_a_thousandth_of_delta_at_most_unless_it_is_given(beta, delta, due):
    settled = dm.methods.Certified(beta, calls=3).settled(delta)
    assert settled.beta == pytest.approx(due, rel=1e-15)
    assert settled.beta <= due
    assert settled.calls == 3
    assert settled.settled(1e-300) is settled
