"""Sequential tests of means: what they prove, when they may stop, and on which side they are rounded."""

import math

import mpmath
import numpy as np
import pytest
import scipy.stats

from dpmech.engines.gaussian_mixture import sequential_tests as module
from dpmech.engines.gaussian_mixture.sequential_tests import (
    LARGEST_LOWER,
    LARGEST_STAKE,
    LowerTest,
    UpperTest,
    rounded_bound,
)
from dpmech.exceptions import ContradictionError, InvalidParameterError, NumericalError

# Rate of false alarms of every statistical test here.
ALPHA = 1e-9
# What weights may be off by, for tests that allow for it.
WEIGHT_ROUNDING = 1e-9
KINDS = pytest.mark.parametrize("kind", [UpperTest, LowerTest])


def log(values):
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(values, dtype=np.float64))


def trial(kind, weights, *, beta=1e-9, log_unit=0.0, goal=None, pilot=None, block=97, stakes=()):
    """A test on these weights in blocks, the stakes from a pilot and from the weights before each block.

    Args:
        stakes: those of the first blocks, instead.
    """
    pilot = np.random.default_rng(77).beta(0.4, 4.0, 100) * math.exp(log_unit) if pilot is None else pilot
    goal = (1.1 if kind is UpperTest else 0.9) * float(np.mean(pilot)) if goal is None else goal
    found = kind(log_unit, beta, goal, log(pilot), rounding=WEIGHT_ROUNDING)
    given = iter(stakes)
    for first in range(0, len(weights), block):
        found._stake = next(given, found._stake)
        found.add(log(weights[first : first + block]))
    return found


def exact_wealth(kind, found, mean, digits=50):
    """Log of the product over weights at `digits` digits, from the stakes and ratios of every block."""
    sign = 1 if kind is UpperTest else -1
    with mpmath.workdps(digits):
        return mpmath.fsum(
            mpmath.log1p(mpmath.mpf(block.stake) * sign * (mpmath.mpf(mean) - mpmath.mpf(float(ratio))))
            for block in found._blocks
            for ratio in [*block.positive, *np.zeros(block.zeros)]
        )


def mixed_weights(rng, size, *, zeros=0, huge=False):
    weights = rng.beta(0.4, 4.0, size)
    weights[:zeros] = 0.0
    rng.shuffle(weights)
    if huge:
        weights[size // 2] = 1e6
    return weights


@KINDS
@pytest.mark.parametrize("zeros", [0, 150])
def test_the_wealth_is_rounded_down(kind, zeros):
    """Where a plain sum lands above exact arithmetic as often as below."""
    rng, above = np.random.default_rng(9), []
    for case in range(4):
        weights = mixed_weights(rng, 200, zeros=zeros, huge=kind is LowerTest and case % 2)
        stakes = LARGEST_STAKE / kind._largest_mean * np.array([rng.random(), 1.0, rng.random()])
        found = trial(kind, weights, block=60, goal=rng.uniform(0.02, 0.9), stakes=stakes.tolist())
        mean = rng.uniform(0.01, 0.9)
        exact, least = exact_wealth(kind, found, mean), found._least_log(mean)
        plain = sum(
            float(np.sum(np.log1p(one.stake * found._sign * (mean - one.positive))))
            + one.zeros * math.log1p(one.stake * found._sign * mean)
            for one in found._blocks
        )
        above.append(plain > exact)
        assert len({block.stake for block in found._blocks}) > 2
        assert least <= exact
        assert exact - least < 1e-9
        assert found._gain <= exact_wealth(kind, found, found._goal)
    assert any(above)


@KINDS
def test_ratios_are_rounded_to_the_safe_side(kind):
    logs = np.concatenate([np.linspace(-700.0, 0.0, 400), [-1e-16, 0.0]])
    found = kind(1.5, 0.1, 1.0, log([0.1, 0.2]))
    found.add(logs + 1.5)
    (block,) = found._blocks
    with mpmath.workdps(50):
        for ratio, given in zip(block.positive.tolist(), (logs + 1.5).tolist(), strict=True):
            exact = mpmath.exp(mpmath.mpf(given) - mpmath.mpf(1.5))
            if kind is UpperTest:
                assert ratio >= min(exact, 1)
            else:
                assert ratio <= exact
            assert ratio == pytest.approx(float(exact), rel=1e-12)


@KINDS
@pytest.mark.parametrize("beta", [0.3, 1e-6])
@pytest.mark.parametrize("zeros", [0, 300])
def test_the_bound_is_where_the_wealth_reaches_one_over_beta(kind, beta, zeros):
    """By a loop over all weights, with stakes that change; the goal is one that is not proved."""
    weights = mixed_weights(np.random.default_rng(5), 700, zeros=zeros)
    weights *= 1.0 if kind is UpperTest else 10.0
    unit = math.exp(3.0)
    goal = (1.0 - 0.1 * kind._sign) * weights.mean() * unit
    stakes = [LARGEST_STAKE / kind._largest_mean * part for part in (0.1, 0.6, 1.0)]
    found = trial(kind, weights * unit, beta=beta, log_unit=3.0, goal=goal, stakes=stakes)
    assert not found.proved
    mean = found.bound / unit
    stakes = [block.stake for block in found._blocks for _ in range(block.positive.size + block.zeros)]
    order = [x for first in range(0, 700, 97) for x in sorted(weights[first : first + 97], reverse=True)]

    def wealth(m):
        sign = 1.0 if kind is UpperTest else -1.0
        return math.fsum(math.log1p(s * sign * (m - x)) for s, x in zip(stakes, order, strict=True))

    assert len(set(stakes)) > 1
    assert 0.0 < mean < 1.0
    # At a beta of 0.3 it may be on the wrong side.
    assert bool(mean > weights.mean()) is (kind is UpperTest) or beta == 0.3
    goal = -math.log(beta)
    inside, outside = (1.0 - 1e-7, 1.0 + 1e-7) if kind is UpperTest else (1.0 + 1e-7, 1.0 - 1e-7)
    assert wealth(mean * outside) >= goal
    assert wealth(mean * inside) < goal
    with mpmath.workdps(50):
        safe = 1 - mpmath.mpf(WEIGHT_ROUNDING) / 2 * (1 if kind is UpperTest else -1)
        assert exact_wealth(kind, found, mpmath.mpf(found.bound) / mpmath.exp(3) * safe) >= -mpmath.log(beta)


@pytest.mark.parametrize("kind", [UpperTest, LowerTest])
def test_stakes_are_in_range_and_chosen_before_their_block(kind):
    """What a block holds does not change its own stake, only later ones."""
    rng = np.random.default_rng(3)
    scale = 1.0 if kind is UpperTest else 10.0
    weights, pilot = mixed_weights(rng, 2000) * scale, mixed_weights(rng, 100) * scale
    one = trial(kind, weights, pilot=pilot)
    for changed in (3, 11):
        other = weights.copy()
        other[97 * changed : 97 * (changed + 1)] = 1.0
        two = trial(kind, other, pilot=pilot)
        stakes = [[block.stake for block in found._blocks] for found in (one, two)]
        assert stakes[0][: changed + 1] == stakes[1][: changed + 1]
        assert stakes[0][changed + 1 :] != stakes[1][changed + 1 :]
    largest = LARGEST_STAKE / kind._largest_mean
    assert all(0.0 < block.stake <= largest for block in one._blocks)
    assert largest * kind._largest_mean < 1.0


@KINDS
def test_stakes_exist_whatever_the_goal(kind):
    """A goal far from the weights leaves a stake in range; any is allowed."""
    pilot = np.random.default_rng(1).random(1000)
    for goal in (1e-300, 1e-30, 1e-9, 0.5, 1.0, 3.9, 1e9):
        for seen in (pilot, np.zeros(50), np.append(pilot, 0.999), np.full(40, 0.7)):
            found = kind(0.0, 1e-9, goal, log(seen))
            assert 0.0 < found._stake <= LARGEST_STAKE / kind._largest_mean
            assert found.expected_samples() > 0.0


def test_the_upper_bound_for_bernoulli_is_near_the_exact_one():
    n, hits, beta = 20_000, 40, 1e-6
    weights = np.zeros(n)
    weights[:hits] = 1.0
    np.random.default_rng(1).shuffle(weights)
    pilot = np.zeros(5000)
    pilot[:10] = 1.0
    exact = scipy.stats.beta.ppf(1.0 - beta, hits + 1, n - hits)
    upper = trial(UpperTest, weights, beta=beta, goal=2.0 * hits / n, pilot=pilot, block=1000).bound
    assert exact < upper < 1.25 * exact


@pytest.mark.parametrize("goal", [0.5, 1e-7])
def test_the_upper_bound_of_zeros(goal):
    """n zeros prove log(1 / beta) / n and no less: P(all zero) = (1 - mean)^n for weights of 0 and 1."""
    n, beta = 1000, 1e-9
    found = UpperTest(0.0, beta, goal, np.full(100, -np.inf))
    found.add(np.full(n, -np.inf))
    exact = -math.expm1(math.log(beta) / n)
    assert exact < found._found() < 1.1 * exact
    assert found.proved is (goal > exact)
    assert found.bound == found._found()
    assert trial(LowerTest, np.zeros(n), goal=goal).bound == 0.0


def test_the_upper_bound_is_never_above_that_of_the_weights():
    for weights in ([math.exp(-5.0)] * 3, [math.exp(-4.0)] * 1000, []):
        found = trial(UpperTest, np.array(weights), log_unit=-4.0, goal=0.99 * math.exp(-4.0))
        assert math.exp(-4.0) <= found.bound <= rounded_bound(-4.0, WEIGHT_ROUNDING)
        assert rounded_bound(-4.0, WEIGHT_ROUNDING) <= math.exp(-4.0) * (1.0 + 1.02 * WEIGHT_ROUNDING)
    trivial = UpperTest(
        -4.0,
        1e-9,
        rounded_bound(-4.0, WEIGHT_ROUNDING) * (1.0 + 1e-12),
        log([0.01]),
        rounding=WEIGHT_ROUNDING,
    )
    assert trivial.proved
    assert trivial.bound <= trivial.goal


@pytest.mark.parametrize("log_bound", [-600.0, -1.0, 0.0, 4.0])
def test_a_bound_without_weights_is_rounded_up(log_bound):
    with mpmath.workdps(50):
        assert mpmath.mpf(rounded_bound(log_bound, WEIGHT_ROUNDING)) > mpmath.exp(log_bound) * (
            1 + mpmath.mpf(WEIGHT_ROUNDING)
        )
    assert rounded_bound(-1e5, WEIGHT_ROUNDING) > 0.0


@KINDS
def test_a_goal_that_was_proved_stays_proved(kind):
    """By Ville's inequality it may have been at any time: later weights do not undo it."""
    rng = np.random.default_rng(4)
    scale = 1.0 if kind is UpperTest else 10.0
    goal = (1.0 + 0.15 * kind._sign) * scale / 11.0
    pilot = rng.beta(0.4, 4.0, 100) * scale
    found = trial(kind, rng.beta(0.4, 4.0, 6000) * scale, goal=goal, pilot=pilot)
    assert found.proved
    assert found.bound <= goal if kind is UpperTest else found.bound >= goal
    found.add(log(np.full(3000, 1.0 if kind is UpperTest else 0.0)))
    assert found._gain < found._level
    assert found.proved
    assert found.bound == goal
    assert found.samples == 9000


def test_the_lower_sequential_test_proves_no_goal_beyond_what_it_speaks_of():
    """Its wealth against 4 units says nothing of 5."""
    weights = np.full(4000, 4.5)
    for goal, holds in ((3.9, True), (4.2, False), (5.0, False), (1e3, False)):
        found = trial(LowerTest, weights, goal=goal, pilot=np.full(20, 1.0))
        assert found.proved is holds
        assert found.bound <= LARGEST_LOWER
        assert found.bound >= 0.999 * LARGEST_LOWER


def test_one_huge_weight_does_not_carry_the_lower_bound():
    """It wins little more than its logarithm."""
    weights = np.random.default_rng(8).random(2000) * 0.1
    calm = trial(LowerTest, weights, goal=0.04).bound
    weights[1000] = 1e280
    wild = trial(LowerTest, weights, goal=0.04).bound
    assert 0.0 < calm < weights[:1000].mean()
    assert wild < LARGEST_LOWER


@KINDS
def test_more_certainty_takes_more_and_more_weights_give_more(kind):
    scale = 1.0 if kind is UpperTest else 100.0
    weights = np.random.default_rng(6).beta(0.3, 30.0, size=5000) * scale
    pilot = np.random.default_rng(7).beta(0.3, 30.0, size=500) * scale
    goal = (1.0 + 0.2 * kind._sign) * float(weights.mean())
    bounds = [
        trial(kind, weights[:size], beta=beta, pilot=pilot, goal=goal).bound
        for size, beta in ((5000, 1e-2), (5000, 1e-4), (5000, 1e-6), (3000, 1e-6))
    ]
    assert bounds == sorted(bounds, reverse=kind is LowerTest)
    assert len(set(bounds)) == 4


def test_what_the_theorem_does_not_cover_is_refused():
    bad = UpperTest(-0.6, 1e-9, 0.4, log([0.1, 0.2]), rounding=WEIGHT_ROUNDING)
    for weights in ([-1.0, -0.5], [np.inf]):
        with pytest.raises(ContradictionError, match="exceeds its proved bound"):
            bad.add(np.array(weights))
    for weights in ([np.nan], [-1.0, np.nan]):
        with pytest.raises(NumericalError, match="not a number"):
            bad.add(np.array(weights))
    assert bad.samples == 0
    bad.add(np.array([-0.6 + 0.9 * WEIGHT_ROUNDING]))
    with pytest.raises(NumericalError, match="not a number"):
        LowerTest(0.0, 1e-9, 0.4, log([0.1, 0.2])).add(np.array([np.nan]))
    for kind in (UpperTest, LowerTest):
        for beta in (0.0, 1.0, -1.0, math.nan):
            with pytest.raises(InvalidParameterError, match="beta"):
                kind(0.0, beta, 0.4, log([0.1, 0.2]))


def stopped(kind, rng, beta, *, fault=None):
    """Whether a bound is wrong that was taken at the worst time: after any block, goal on the wrong side.

    Faults: "peeking" chooses a stake after seeing its block; a number scales the weights.
    """
    shape = 0.4, 4.0
    truth = shape[0] / sum(shape)
    scale = 1.0 if fault in (None, "peeking") else fault
    wrong = truth * (1.0 - 1e-9) if kind is UpperTest else truth * (1.0 + 1e-9)
    found = kind(0.0 if kind is UpperTest else math.log(truth), beta, wrong, log(rng.beta(*shape, 100)))
    for number in range(60):
        weights = np.minimum(rng.beta(*shape, 40) * scale, 1.0)
        if fault == "peeking":
            gaps = found._sign * (found._goal - weights / math.exp(found.log_unit))
            found._stake = 0.5 * LARGEST_STAKE / kind._largest_mean if gaps.mean() > 0.0 else 0.0
        found.add(log(weights))
        if found.proved:
            return True
        if number in (1, 5) and (found.bound < truth if kind is UpperTest else found.bound > truth):
            return True
    return False


@KINDS
def test_coverage_where_one_may_stop_at_any_time(kind):
    runs, beta = 150, 0.05
    rng = np.random.default_rng(12)
    wrong = sum(stopped(kind, rng, beta) for _ in range(runs))
    assert scipy.stats.binom.sf(wrong - 1, runs, beta) > ALPHA
    # It is not vacuous: what breaks the theorem is seen.
    for fault in ("peeking", 0.8 if kind is UpperTest else 1.25):
        wrong = sum(stopped(kind, rng, beta, fault=fault) for _ in range(60))
        assert scipy.stats.binom.sf(wrong - 1, 60, beta) < ALPHA, fault


@KINDS
@pytest.mark.parametrize("stake", [0.01, 0.3, "largest"])
def test_the_expected_wealth_at_the_true_mean_is_one(kind, stake, monkeypatch):
    """The martingale itself, for weights 0 and W: all 2^8 sequences, stakes that depend on the past."""
    chance, unit = 0.3, 1.0
    largest = LARGEST_STAKE / kind._largest_mean
    total, values = 0.0, []
    for code in range(2**8):
        bits = np.array([(code >> place) & 1 for place in range(8)], dtype=float)
        found = kind(0.0, 0.5, 0.3, log([0.3, 0.3]))
        for first in range(0, 8, 2):
            past = bits[:first].mean() if first else 0.5
            found._stake = largest if stake == "largest" else min(stake * (1.0 + past), largest)
            found.add(log(unit * bits[first : first + 2]))
        hits = bits.sum()
        values.append(math.exp(found._least_log(chance)))
        total += chance**hits * (1.0 - chance) ** (8 - hits) * values[-1]
    assert total == pytest.approx(1.0, abs=1e-9)
    assert min(values) >= 0.0
    assert max(values) > 1.0


def test_a_few_weights_are_remembered_for_stakes_and_all_for_the_bound(monkeypatch):
    monkeypatch.setattr(module, "MEMORY", 300)
    found = trial(UpperTest, np.random.default_rng(2).beta(0.4, 4.0, 2000))
    assert sum(part.size for part in found._seen) <= 300 + 97
    assert found.samples == 2000
