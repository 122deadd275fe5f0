"""Ladders: fixed rungs, nested intervals, and results that a tolerance moves only from rung to rung."""

import itertools
import math

import pytest

import dpmech as dm
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.numerics import Ladder, log_gap, relative_gap, rung_below
from dpmech.numerics.refinement import Settled
from tests.support.quick_cases import slow_but


def around_two(step):
    """A bracket whose ends are no function of the step alone that would nest by itself."""
    return 2.0 - step * (1.0 + 0.5 * math.sin(1.0 / step)), 2.0 + step * (1.0 + 0.5 * math.cos(1.0 / step))


def test_rungs_halve_and_the_last_one_is_the_finest():
    assert Ladder.down(1.0, 0.2).rungs == (1.0, 0.5, 0.25, 0.2)
    assert Ladder.down(1.0, 0.25).rungs == (1.0, 0.5, 0.25)
    assert Ladder.down(0.1, 0.2).rungs == (0.2,)
    assert Ladder.up(3, 24).rungs == (3, 6, 12, 24)
    assert Ladder.up(3, 23).rungs == (3, 6, 12)
    assert Ladder.up(30, 23).rungs == (30,)


@pytest.mark.parametrize("rungs", [(), (1.0, 1.0), (1.0, 0.5, 0.7), (1.0, 0.0), (math.inf, 1.0), (-1.0,)])
def test_rungs_that_are_no_ladder_are_refused(rungs):
    with pytest.raises(InvalidParameterError, match="rungs"):
        Ladder(rungs)


def test_a_tighter_goal_is_the_same_rung_and_value_or_a_nested_interval():
    ladder = Ladder.down(1.0, 1e-4)
    before = None
    for goal in [2.0 * 0.97**k for k in range(250)]:
        found = ladder.climb(around_two, relative_gap, goal=goal)
        assert found.met
        assert relative_gap(found.lower, found.upper) <= goal
        # by hand: the intersection over all rungs down to the one that was reached, and not one rung more
        ends = [around_two(rung) for rung in ladder.rungs if rung >= found.resolution]
        assert (found.lower, found.upper) == (max(a for a, _ in ends), min(b for _, b in ends))
        if len(ends) > 1:
            shorter = max(a for a, _ in ends[:-1]), min(b for _, b in ends[:-1])
            assert relative_gap(*shorter) > goal
        if before is not None:
            assert before.lower <= found.lower <= 2.0 <= found.upper <= before.upper
            assert (found.resolution == before.resolution) == (found == before)
        before = found
    assert before.resolution < 1e-2


def test_the_end_of_the_ladder_says_that_the_goal_was_missed():
    found = Ladder((1.0, 0.5)).climb(around_two, relative_gap, goal=1e-9)
    assert not found.met
    assert found.resolution == 0.5


def test_bounds_that_contradict_each_other_are_no_number():
    with pytest.raises(NumericalError, match=r"resolution 0\.5"):
        Ladder((1.0, 0.5)).climb(lambda h: (h, h + 0.1), relative_gap, goal=1e-3)
    for ends in ((math.nan, 1.0), (0.0, math.nan)):
        with pytest.raises(NumericalError, match="not a number"):
            Ladder((1.0,)).climb(lambda h, ends=ends: ends, relative_gap, goal=1e-3)
    with pytest.raises(NumericalError, match="not a number"):
        Ladder((2.0, 1.0)).settle({2.0: 1.0, 1.0: math.nan}.get, goal=0.0)


def test_settling_ends_where_a_rung_gains_too_little():
    seen = []

    def upper(nodes):
        seen.append(nodes)
        return 1.0 + 1.0 / nodes

    found = Ladder.up(1, 1024).settle(upper, goal=0.06)
    assert seen == [1, 2, 4, 8, 16]
    assert found == Settled(1.0 + 1 / 16, 16, 8, pytest.approx(math.log((1 + 1 / 8) / (1 + 1 / 16))))
    assert Ladder.up(1, 4).settle(upper, goal=0.0).resolution == 4
    assert Ladder((1.0,)).settle(upper, goal=1.0) == Settled(2.0, 1.0, 1.0, math.inf)
    assert Ladder.up(1, 1024).settle(upper, goal=0.0, stop=lambda best: best < 1.3).upper == 1.25


def test_settling_keeps_the_best_bound_and_takes_a_worse_one_for_no_gain():
    found = Ladder((3.0, 2.0, 1.0)).settle({3.0: 0.5, 2.0: 0.7, 1.0: 0.1}.get, goal=0.1)
    assert found == Settled(0.5, 2.0, 3.0, 0.0)


def test_gaps():
    assert relative_gap(1.0, 4.0) == 0.75
    assert relative_gap(0.0, 0.0) == log_gap(0.0, 0.0) == 0.0
    assert log_gap(1.0, 4.0) == pytest.approx(math.log(4.0))
    assert log_gap(0.0, 1.0) == math.inf


@pytest.mark.parametrize("goal", [0.05, 0.1, 0.0999999, 10.0, 1e-5, 0.2, 0.07, 0.05 * (1 - 2**-53)])
def test_the_rung_below_a_goal(goal):
    rung = rung_below(goal, 0.05)
    assert rung <= goal < 2.0 * rung
    assert math.log2(rung / 0.05) == round(math.log2(rung / 0.05))


@pytest.mark.parametrize(
    ("q", "steps", "sigma", "eps", "delta"),
    slow_but([(0.2, 60, 2.0, 1.0, 1e-5), (0.3, 12, 3.0, 1.5, 1e-8)], 1),
)
def test_poisson_bounds_move_only_from_rung_to_rung(q, steps, sigma, eps, delta):
    """Public bounds under ever tighter tolerances: equal or nested, never a number of their own."""
    from dpmech.engines.losses.accountants import PoissonAccountant
    from dpmech.engines.losses.release import PoissonRelease
    from dpmech.numerics import Bounds

    accountant = PoissonAccountant(
        PoissonRelease(q, steps, Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("one")))
    )
    for ask in (
        lambda tolerance: accountant.delta(sigma, eps, tolerance=tolerance),
        lambda tolerance: accountant.epsilon(sigma, delta, tolerance=tolerance),
    ):
        found = [ask(0.02 * 0.65**k) for k in range(14)]
        ends = [(one.lower, one.upper) for one in found]
        for (low, high), (lower, upper) in itertools.pairwise(ends):
            assert low <= lower <= upper <= high
            # an end moves with the rung, and then both do
            assert (low == lower) == (high == upper)
        # 14 tolerances over a factor 270 are 4 to 6 rungs, as the gap falls like the square of the step
        assert 3 <= len(set(ends)) <= 8
        assert relative_gap(*ends[-1]) < 0.1 * relative_gap(*ends[0])


def test_deterministic_bounds_depend_on_the_rung_of_the_aim():
    strategy, bins = dm.LambdaCGD(12, 0.5), dm.BallsInBins(4)
    asked = [
        dm.delta(strategy, 1.5, 1.0, participation=bins, method=dm.methods.Deterministic(rel_error)).upper
        for rel_error in (0.7, 0.4, 0.3)
    ]
    assert asked[0] == asked[1]
    assert asked[2] < asked[0]


@pytest.mark.parametrize(("goal", "rung"), [(9.0, 0.5), (0.5, 0.5), (0.3, 0.2), (0.1, 0.1), (0.01, 0.1)])
def test_the_rung_within_a_goal(goal, rung):
    assert Ladder((0.5, 0.2, 0.1)).within(goal) == Ladder((0.1, 0.2, 0.5)).within(goal) == rung


def test_importance_samples_are_sized_for_a_rung():
    """The whole interval, random numbers and all, for every error asked for between two rungs."""

    def asked(rel_error, sigma=1.5):
        method = dm.methods.Importance(rel_error)
        return dm.delta(strategy, sigma, 1.0, participation=bins, method=method, rng=3)

    strategy, bins = dm.LambdaCGD(8, 0.5), dm.BallsInBins(4)
    between = [asked(rel_error) for rel_error in (0.01, 0.011, 0.0149)]
    assert {(one.lower, one.upper) for one in between} == {(between[0].lower, between[0].upper)}
    finer, coarser = asked(0.005), asked(0.02)
    assert finer.upper - finer.lower < 0.7 * (between[0].upper - between[0].lower)
    assert coarser.upper - coarser.lower > 1.15 * (between[0].upper - between[0].lower)


@pytest.mark.parametrize(
    "method",
    [dm.methods.Importance(0.1), pytest.param(dm.methods.Deterministic(0.3), marks=pytest.mark.slow)],
    ids=repr,
)
def test_sigma_under_balls_in_bins_moves_with_the_rung_of_rtol(method):
    found = [
        dm.calibrate_sigma(
            dm.LambdaCGD(4, 0.8), 1.0, 1e-4, participation=dm.BallsInBins(2), method=method, rtol=rtol, rng=3
        ).sigma
        for rtol in (8e-3, 1e-2, 1.5e-2, 1e-3)
    ]
    assert found[0] == found[1] == found[2] != found[3]


def test_bounds_below_one_settle_too():
    bounds = {8.0: 0.5, 4.0: 0.25, 2.0: 0.24, 1.0: 0.1}
    found = Ladder((8.0, 4.0, 2.0, 1.0)).settle(bounds.get, goal=0.1)
    assert found == Settled(0.24, 2.0, 4.0, pytest.approx(math.log(0.25 / 0.24)))
    assert Ladder((2.0, 1.0)).settle({2.0: 0.5, 1.0: 0.0}.get, goal=0.1) == Settled(0.0, 1.0, 2.0, 0.0)


def test_the_smallest_goal():
    least = rung_below(1e-250, 1.0)
    assert least <= 1e-250 < 2.0 * least
    assert rung_below(1e-300, 1.0) == rung_below(0.0, 1.0) == least


def leapt(order, scale, goal, rungs=12):
    asked = []

    def interval(rung):
        asked.append(rung)
        return 1.0 - scale * rung**order, 1.0

    return Ladder.down(1.0, 0.5**rungs).leap(interval, relative_gap, goal=goal, order=2.0), asked


@pytest.mark.parametrize("goal", [0.3, 1e-2, 1e-4, 1e-6])
def test_a_leap_reaches_the_rung_that_a_climb_would(goal):
    found, asked = leapt(2.0, 0.4, goal)
    assert found.met
    assert found.upper - found.lower <= goal
    assert 0.4 * (2.0 * found.resolution) ** 2 > goal or found.resolution == 1.0
    assert len(asked) <= 3


def test_a_leap_goes_on_where_the_gap_falls_more_slowly():
    found, asked = leapt(1.0, 0.4, 1e-3)
    assert found.met
    assert 3 <= len(asked) <= 10


def test_a_leap_ends_where_the_ladder_or_the_gain_ends():
    found, asked = leapt(2.0, 0.4, 1e-12, rungs=5)
    assert not found.met
    assert found.resolution == asked[-1] == 0.5**5
    stuck, asked = leapt(0.0, 0.3, 1e-6)
    assert not stuck.met
    assert len(asked) == 2


def test_a_patient_leap_goes_on_past_rungs_without_a_gain():
    asked = []

    def interval(rung):
        asked.append(rung)
        return 1.0 - (0.01 if rung > 0.2 else 0.01 * rung**2), 1.0

    ladder = Ladder.down(1.0, 1e-3)
    assert not ladder.leap(interval, relative_gap, goal=1e-3, order=2.0).met
    asked.clear()
    found = ladder.leap(interval, relative_gap, goal=1e-3, order=2.0, patience=3)
    assert (found.met, found.resolution) == (True, asked[-1])
    assert asked == [1.0, 0.25, 0.125]
    asked.clear()
    stuck = ladder.leap(
        lambda rung: (interval(rung)[0] * 0 + 0.7, 1.0), relative_gap, goal=0.1, order=2.0, patience=3
    )
    assert not stuck.met
    assert asked == [1.0, 0.5, 0.25, 0.125]


def test_a_leap_keeps_the_last_rung_that_has_ends():
    def interval(rung):
        if rung < 0.2:
            raise dm.NumericalError("too fine")
        return 1.0 - 0.4 * rung * rung, 1.0

    found = Ladder.down(1.0, 1e-3).leap(interval, relative_gap, goal=0.05, order=1.0)
    assert (found.met, found.resolution) == (True, 0.25)
    found = Ladder.down(1.0, 1e-3).leap(interval, relative_gap, goal=1e-4, order=2.0)
    assert (found.met, found.resolution) == (False, 0.25)
    with pytest.raises(dm.NumericalError, match="too fine"):
        Ladder((0.1, 0.05)).leap(interval, relative_gap, goal=0.05, order=2.0)
    with pytest.raises(dm.NumericalError, match="no interval"):
        Ladder((0.1, 0.05)).leap(lambda rung: (2.0, 1.0), relative_gap, goal=0.05, order=2.0)
    with pytest.raises(dm.NumericalError, match="not a number"):
        Ladder((0.1, 0.05)).leap(lambda rung: (math.nan, 1.0), relative_gap, goal=0.05, order=2.0)
