"""`dm.recommend`: never worse than what is tried by hand, within the limit, and refused in words."""

import functools
import inspect
import itertools

import pytest

import dpmech as dm
from dpmech.fitting import FamilySizes, Search, choices, chosen, tried
from dpmech.mechanism import noise_cost

SIZES = {"dataset_size": 200, "batch_size": 10, "epochs": 2}
PLAN = dm.TrainingPlan(**SIZES)
BUDGET = {"eps": 4.0, "delta": 1e-5}
UNSAMPLED = ("poisson", "min-sep")


@functools.cache
def best(max_vectors, samplings=UNSAMPLED):
    return dm.recommend(**SIZES, **BUDGET, max_vectors=max_vectors, samplings=samplings)


def cost(strategy):
    found = noise_cost(strategy)
    return found.buffers + found.regenerated


@functools.cache
def by_hand(max_vectors):
    """The RMSE of everything that takes exactly so many vectors."""
    k, fixed = max_vectors, PLAN.participation("min-sep")
    if k == 0:
        schemas = PLAN.participation("poisson"), fixed
        return [
            dm.calibrate_sigma(dm.Identity(PLAN.steps), 4.0, 1e-5, participation=own).rmse()
            for own in schemas
        ]
    sizes = [
        (dm.BandedToeplitz, {"bands": k + 1}),
        (dm.BandedInverse, {"bands": k + 1}),
        (dm.Dense, {"bands": k + 1}),
        (dm.BLT, {"buffers": k}),
    ]
    sizes += [(dm.LambdaCGD, {})] if k == 1 else []
    return [dm.optimize(kind, fixed, n=PLAN.steps, **own, **BUDGET).error for kind, own in sizes]


@pytest.mark.parametrize("max_vectors", [0, 1, 3])
def test_it_is_never_worse_than_a_candidate_calibrated_by_hand(max_vectors):
    found = best(max_vectors)
    errors = [error for count in range(max_vectors + 1) for error in by_hand(count)]
    assert found.calibration.rmse() == pytest.approx(min(errors), rel=1e-6)
    assert found.calibration == dm.calibrate_sigma(
        found.strategy, 4.0, 1e-5, participation=found.participation
    )
    assert found.calibration.budget == dm.PrivacyBudget(4.0, 1e-5)
    assert found.calibration.guarantee.rigorous


@pytest.mark.parametrize("max_vectors", range(5))
def test_the_limit_is_kept(max_vectors):
    found = best(max_vectors)
    assert cost(found.strategy) <= max_vectors
    for trial in found.trials:
        assert trial.vectors == cost(trial.calibration.strategy) <= max_vectors


def test_more_vectors_are_never_worse():
    errors = [best(count).calibration.rmse() for count in range(5)]
    assert all(more <= fewer * (1 + 1e-6) for fewer, more in itertools.pairwise(errors))
    assert errors[0] > 1.1 * errors[-1]


def test_independent_noise_is_tried_under_every_sampling():
    found = best(2)
    alone = {one.participation: one for one in found.trials if one.choice == dm.Identity(PLAN.steps)}
    assert set(alone) == {PLAN.participation(name) for name in UNSAMPLED}
    assert all(found.calibration.rmse() <= one.calibration.rmse() for one in alone.values())
    none = best(0)
    assert [type(one.choice) for one in none.trials] == [dm.Identity] * 2
    assert (none.strategy, none.participation) == (dm.Identity(PLAN.steps), PLAN.participation("poisson"))


def test_at_a_small_eps_it_is_dp_sgd_under_poisson_sampling():
    found = dm.recommend(**SIZES, eps=0.05, delta=1e-5, max_vectors=3, samplings=UNSAMPLED)
    assert (found.strategy, found.participation) == (dm.Identity(PLAN.steps), PLAN.participation("poisson"))


def test_what_is_tried_follows_from_the_sampling():
    kinds = [getattr(one, "family", type(one)) for one in choices(dm.CyclicPoisson(0.2, 4), 40, 9)]
    assert kinds == [dm.Identity, dm.BandedToeplitz, dm.Dense]
    assert choices(dm.CyclicPoisson(0.2, 4), 40, 9)[1].bands == 4
    assert choices(dm.CyclicPoisson(0.2, 4), 40, 1)[1].bands == 2
    for alone in (
        dm.Poisson(0.1),
        dm.CyclicPoisson(0.1, 1),
        dm.RandomAllocation(2),
        dm.BallsInBins(20, fresh=True),
    ):
        assert choices(alone, 40, 9) == [dm.Identity(40)]
    assert choices(dm.MinSep(20), 40, 0) == [dm.Identity(40)]
    assert choices(dm.EveryStep(), 1, 9) == [dm.Identity(1)]
    families = FamilySizes(dm.LambdaCGD), FamilySizes(dm.BLT, buffers=1)
    assert choices(dm.MinSep(20), 300, 1)[1:] == [*families]
    assert choices(dm.MinSep(20), 40, 1)[1:] == [*families, FamilySizes(dm.Dense, bands=2)]


def test_bands_reach_from_one_participation_to_the_next():
    def bands(own, n, most):
        return [one.bands for one in choices(own, n, most)[1:] if one.family is dm.BandedToeplitz]

    for own in (dm.BallsInBins(390), dm.MinSep(390, 10)):
        assert [bands(own, 3900, most) for most in (63, 200, 389, 1000)] == [[64], [201], [390], [390]]
    assert bands(dm.BallsInBins(20), 200, 100) == [20]
    assert bands(dm.EveryStep(), 200, 100) == [64]
    assert bands(dm.SingleParticipation(), 3900, 3000) == [512]
    plan, own = {"dataset_size": 800, "batch_size": 8, "epochs": 2}, dm.MinSep(100, 2)
    found = dm.recommend(**plan, eps=16.0, delta=1e-5, max_vectors=99, samplings=["min-sep"])
    by_hand = dm.optimize(dm.BandedToeplitz, own, n=200, bands=100, eps=16.0, delta=1e-5)
    assert found.calibration.rmse() <= by_hand.error * (1 + 1e-9)


@pytest.mark.parametrize("samplings", [("min-sep",), ("epochs",)])
def test_matrices_are_fitted_to_few_steps(samplings):
    plan = {"dataset_size": 100, "batch_size": 20, "epochs": 6}
    errors = []
    for most in (4, 29):
        found = dm.recommend(**plan, eps=8.0, delta=1e-5, max_vectors=most, samplings=samplings)
        assert isinstance(found.strategy, dm.Dense)
        assert cost(found.strategy) <= most
        errors.append(found.calibration.rmse())
        for family, sizes in ((dm.BandedToeplitz, {"bands": 5}), (dm.Dense, {"bands": 5})):
            fit = dm.optimize(family, found.participation, n=30, eps=8.0, delta=1e-5, **sizes)
            assert errors[-1] <= fit.error * (1 + 1e-9)
    # All entries gain where an example takes part at equal distances alone.
    assert (errors[1] < 0.99 * errors[0]) == (samplings == ("epochs",))


def test_all_entries_are_fitted_only_to_few_steps_and_within_the_limit():
    def dense(own, n, most):
        return [one.bands for one in choices(own, n, most)[1:] if one.family is dm.Dense]

    bins = dm.BallsInBins(20)
    assert [dense(bins, 200, most) for most in (1, 9, 50, 198, 199)] == [[2], [10], [20], [20], [None]]
    assert dense(bins, 260, 500) == dense(dm.EveryStep(), 40, 50) == []
    assert dense(dm.CyclicPoisson(0.2, 4), 40, 2) == [3]


@pytest.mark.slow
def test_a_cycle_is_fitted():
    own = PLAN.participation("cyclic-poisson", cycle=4)
    found = dm.recommend(**SIZES, **BUDGET, max_vectors=9, samplings=[own, "poisson", own])
    banded = dm.optimize(dm.BandedToeplitz, own, n=PLAN.steps, bands=4, **BUDGET)
    assert len(found.trials) == 4
    assert found.calibration.rmse() <= banded.error * (1 + 1e-9)


def test_a_refusal_is_a_trial_and_not_the_end():
    found = dm.recommend(**SIZES, **BUDGET, max_vectors=1, samplings=("fixed-size", "poisson"))
    refused = found.trials[0]
    assert refused.calibration is None
    assert isinstance(refused.refusal, dm.UnsupportedCombinationError)
    assert str(refused.refusal) in str(refused)
    assert found.participation == PLAN.participation("poisson")
    with pytest.raises(dm.UnsupportedCombinationError, match="FixedSizeBatches"):
        dm.recommend(**SIZES, **BUDGET, max_vectors=1, samplings=("fixed-size",))


def test_equal_errors_go_to_the_fewer_vectors():
    own = PLAN.participation("min-sep")
    alike = dm.LambdaCGD(PLAN.steps, 0.0), dm.Identity(PLAN.steps)
    trials = [tried(one, own, PLAN.steps, 4.0, 1e-5, Search()) for one in alike]
    assert chosen(trials, 1).strategy == chosen(trials[::-1], 1).strategy == dm.Identity(PLAN.steps)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_vectors": -1}, "max_vectors must be an integer >= 0, got -1"),
        ({"max_vectors": 1.5}, "max_vectors must be an integer >= 0, got 1.5"),
        ({"samplings": "poisson"}, "samplings must be one or more names or participations"),
        ({"samplings": ()}, "samplings must be one or more names or participations"),
        ({"samplings": 3}, "samplings must be one or more names or participations"),
        ({"samplings": [3]}, "samplings must be names or participations, got 3"),
        ({"samplings": ["poisson", dm.Poisson(0.01)]}, "with an expected batch of 10 of 200 examples"),
        ({"samplings": [dm.BallsInBins(40)]}, "with an expected batch of 10 of 200 examples"),
        ({"method": 3}, "method must be None or a method of dm.methods, got 3"),
        ({"samplings": ("shuffle",)}, "no theorem in dpmech covers amplification by shuffling"),
        ({"samplings": ("cyclic-poisson",)}, "cycle must be given"),
        ({"epochs": 0}, "epochs must be an integer >= 1"),
        ({"batch_size": 201}, "batch_size must be an integer"),
        ({"eps": 0.0}, "eps must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"adjacency": "both"}, "adjacency must be"),
    ],
)
def test_bad_calls(given, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        dm.recommend(**SIZES | BUDGET | {"max_vectors": 1, "samplings": UNSAMPLED} | given)


def test_only_numbers_of_the_plan_enter():
    required = [
        name for name, one in inspect.signature(dm.recommend).parameters.items() if one.default is one.empty
    ]
    assert required == ["dataset_size", "batch_size", "epochs", "eps", "delta", "max_vectors"]


def test_it_is_printed_with_its_cost():
    first, *rest = str(best(2)).splitlines()
    assert first == best(2).words
    assert "the noise stores 2 vectors of the model's size (16 bytes a parameter), and regenerates 0" in first
    assert "x lower than with independent noise" in first
    assert len(rest) == len(best(2).trials)
    assert "lower" not in best(0).words


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [50, 200])
def test_under_balls_in_bins_it_is_not_worse_than_any_candidate(batch_size):
    sizes = SIZES | {"batch_size": batch_size}
    plan = dm.TrainingPlan(**sizes)
    call = {**sizes, **BUDGET, "max_vectors": 1, "samplings": ("poisson", "balls-in-bins"), "rng": 3}
    found = dm.recommend(**call)
    if batch_size == 200:
        assert dm.recommend(**call).calibration == found.calibration
    bins = plan.participation("balls-in-bins")
    alone = [
        dm.calibrate_sigma(dm.Identity(plan.steps), 4.0, 1e-5, participation=own, rng=4).rmse()
        for own in (bins, plan.participation("poisson"))
    ]
    scan = [
        dm.calibrate_sigma(dm.LambdaCGD(plan.steps, lam), 4.0, 1e-5, participation=bins, rng=5).rmse()
        for lam in (0.3, 0.6, 0.8, 0.9)
    ]
    # Proved sigmas of independent samples differ by some tenths of a per cent.
    assert found.calibration.rmse() <= 1.01 * min(alone + scan)


@pytest.mark.slow
def test_inverse_square_roots_are_fitted_over_their_bands():
    for own, n in ((dm.MinSep(20, 2), 40), (dm.BallsInBins(10), 20)):
        fit = dm.optimize(dm.InverseSquareRoot, own, n=n, bands=9, **BUDGET, rng=1)
        errors = {
            bands: dm.calibrate_sigma(
                dm.InverseSquareRoot(n, bands), 4.0, 1e-5, participation=own, rng=bands
            ).rmse()
            for bands in (1, 2, 4, 8, 9)
        }
        assert isinstance(fit.strategy, dm.InverseSquareRoot)
        assert fit.strategy.inverse_bands in errors
        assert fit.error <= 1.01 * min(errors.values())
