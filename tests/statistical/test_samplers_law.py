"""The law of the batches: chi-square tests at ALPHA = 1e-9, two-sided, and planted faults that they reject.

Joint laws are tested on small datasets, where every outcome has a probability that can be written down: the
batches of all steps together, over many keys or many steps. An outcome of probability 0 is a rejection by
itself. Marginal laws are tested on large ones. The counts behind each test are at least 50 a cell, and the
seeds are fixed.
"""

import collections
import itertools

import numpy as np
import pytest
import scipy.stats

from dpmech.schemes.balls_in_bins.sampler import BallsInBinsSampler
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler
from dpmech.schemes.poisson.sampler import PoissonSampler

ALPHA = 1e-9
PROB = 0.3
RUNS = 10_000
ALLOCATIONS = 20_000


def p_value(outcomes, law):
    """Two-sided chi-square p-value of a list of outcomes against {outcome: probability}."""
    counts = collections.Counter(outcomes)
    if any(law.get(outcome, 0.0) == 0.0 for outcome in counts):
        return 0.0
    total = len(outcomes)
    expected = {outcome: total * prob for outcome, prob in law.items() if prob > 0.0}
    assert abs(sum(expected.values()) - total) < 1e-6 * total
    assert min(expected.values()) >= 50
    statistic = sum((counts[outcome] - mean) ** 2 / mean for outcome, mean in expected.items())
    chi2 = scipy.stats.chi2(len(expected) - 1)
    return 2.0 * min(chi2.cdf(statistic), chi2.sf(statistic))


def batches(sampler):
    return [sampler.indices(step) for step in range(sampler.n)]


# ---- Poisson: two examples in two consecutive steps, sixteen outcomes


def poisson_law(prob):
    return {
        bits: float(np.prod([prob if bit else 1.0 - prob for bit in bits]))
        for bits in itertools.product((0, 1), repeat=4)
    }


def pairs_of_steps(run):
    """Who of two examples took part, over disjoint pairs of consecutive batches."""
    bits = np.zeros((len(run), 2), dtype=int)
    for step, batch in enumerate(run):
        bits[step, batch] = 1
    return [tuple(row) for row in bits.reshape(-1, 4).tolist()]


def fixed_size(rng):
    return [rng.choice(2, size=1, replace=False) for _ in range(2 * RUNS)]


def the_same_coin_for_all(rng):
    return [np.flatnonzero([rng.random() < PROB] * 2) for _ in range(2 * RUNS)]


def the_same_batch_twice(rng):
    drawn = [np.flatnonzero(rng.random(2) < PROB) for _ in range(RUNS)]
    return [batch for batch in drawn for _ in range(2)]


def never_empty(rng):
    drawn = []
    while len(drawn) < 2 * RUNS:
        batch = np.flatnonzero(rng.random(2) < PROB)
        if batch.size:
            drawn.append(batch)
    return drawn


def test_poisson_batches_have_the_joint_law_of_independent_coins():
    run = batches(PoissonSampler(2, PROB, 2 * RUNS, rng=101))
    assert p_value(pairs_of_steps(run), poisson_law(PROB)) > ALPHA


@pytest.mark.parametrize("fault", [fixed_size, the_same_coin_for_all, the_same_batch_twice, never_empty])
def test_batches_that_are_not_poisson_are_rejected(fault):
    run = fault(np.random.default_rng(102))
    assert p_value(pairs_of_steps(run), poisson_law(PROB)) < ALPHA


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_sampling_probability_ten_percent_off_is_rejected(factor):
    run = batches(PoissonSampler(2, factor * PROB, 2 * RUNS, rng=103))
    assert p_value(pairs_of_steps(run), poisson_law(PROB)) < ALPHA


# ---- Poisson: sizes of batches, and how often each of many examples came


SIZE, STEPS, SMALL = 2000, 5000, 0.005


def binned_binomial(count, prob, step):
    """{bin: probability} of a binomial number, in bins of `step` with light tails merged."""
    low, high = scipy.stats.binom.ppf([0.05, 0.95], count, prob)
    edges = np.arange(low, high, step)
    cdf = np.concatenate(([0.0], scipy.stats.binom.cdf(edges - 1, count, prob), [1.0]))
    return edges, dict(enumerate(np.diff(cdf).tolist()))


def binomial_p_value(values, count, prob):
    edges, law = binned_binomial(count, prob, 2)
    return p_value(np.searchsorted(edges, values, side="right").tolist(), law)


def marginals(run):
    """p-values of the sizes of batches and of the participations of examples."""
    times = np.bincount(np.concatenate(run), minlength=SIZE)
    return (
        binomial_p_value([batch.size for batch in run], SIZE, SMALL),
        binomial_p_value(times, STEPS, SMALL),
    )


def test_poisson_sizes_and_participations_are_binomial():
    assert min(marginals(batches(PoissonSampler(SIZE, SMALL, STEPS, rng=104)))) > ALPHA


def test_batches_of_one_size_and_shuffled_epochs_are_rejected():
    rng = np.random.default_rng(105)
    size = int(SIZE * SMALL)
    chosen = [rng.choice(SIZE, size=size, replace=False) for _ in range(STEPS)]
    assert marginals(chosen)[0] < ALPHA
    epochs = [np.split(rng.permutation(SIZE), SIZE // size) for _ in range(STEPS * size // SIZE)]
    shuffled = [batch for epoch in epochs for batch in epoch]
    assert len(shuffled) == STEPS
    assert max(marginals(shuffled)) < ALPHA


# ---- Balls-in-Bins: three examples, three bins, two epochs


BINS, EPOCHS, EXAMPLES = 3, 2, 3


def bins_of(run):
    """The bin of every example in every epoch, or None where it had not exactly one."""
    found = []
    for epoch in range(EPOCHS):
        seen = [[] for _ in range(EXAMPLES)]
        for place, batch in enumerate(run[epoch * BINS : (epoch + 1) * BINS]):
            for example in batch:
                seen[example].append(place)
        found += [places[0] if len(places) == 1 else None for places in seen]
    return tuple(found)


BINS_LAW = {bins * EPOCHS: BINS**-EXAMPLES for bins in itertools.product(range(BINS), repeat=EXAMPLES)}


def run_of(*allocations):
    return [np.flatnonzero(bins == place) for bins in allocations for place in range(BINS)]


def an_allocation_an_epoch(rng):
    return run_of(*rng.integers(BINS, size=(EPOCHS, EXAMPLES)))


def bins_of_equal_size(rng):
    return run_of(*[rng.permutation(EXAMPLES)] * EPOCHS)


def a_favoured_bin(rng):
    weights = np.array([1.1, 0.95, 0.95]) / BINS
    return run_of(*[rng.choice(BINS, size=EXAMPLES, p=weights)] * EPOCHS)


def an_epoch_too_many(rng):
    bins = rng.integers(BINS, size=EXAMPLES)
    second = bins.copy()
    second[0] = -1  # takes part in the first epoch only
    return run_of(bins, second)


def test_balls_in_bins_has_the_joint_law_of_one_allocation():
    rng = np.random.default_rng(106)
    outcomes = [
        bins_of(batches(BallsInBinsSampler(EXAMPLES, BINS, BINS * EPOCHS, rng=rng)))
        for _ in range(ALLOCATIONS)
    ]
    assert p_value(outcomes, BINS_LAW) > ALPHA


@pytest.mark.parametrize(
    "fault", [an_allocation_an_epoch, bins_of_equal_size, a_favoured_bin, an_epoch_too_many]
)
def test_other_allocations_are_rejected(fault):
    rng = np.random.default_rng(107)
    assert p_value([bins_of(fault(rng)) for _ in range(ALLOCATIONS)], BINS_LAW) < ALPHA


# ---- Balls-in-Bins with a new allocation every epoch: two of three examples, three bins, two epochs


FRESH_LAW = dict.fromkeys(itertools.product(range(BINS), repeat=2 * EPOCHS), BINS ** (-2.0 * EPOCHS))


def bins_of_two(run):
    first, second, _, *again = bins_of(run)
    return first, second, *again[:2]


def an_allocation_for_the_run(rng):
    return run_of(*[rng.integers(BINS, size=EXAMPLES)] * EPOCHS)


def next_to_the_bin_before(rng):
    bins = rng.integers(BINS, size=EXAMPLES)
    return run_of(bins, (bins + rng.integers(1, BINS, size=EXAMPLES)) % BINS)


@pytest.mark.slow
def test_fresh_balls_in_bins_has_the_joint_law_of_independent_allocations():
    rng = np.random.default_rng(206)
    outcomes = [
        bins_of_two(batches(BallsInBinsSampler(EXAMPLES, BINS, BINS * EPOCHS, fresh=True, rng=rng)))
        for _ in range(ALLOCATIONS)
    ]
    assert p_value(outcomes, FRESH_LAW) > ALPHA


@pytest.mark.parametrize(
    "fault", [an_allocation_for_the_run, next_to_the_bin_before, bins_of_equal_size, a_favoured_bin]
)
@pytest.mark.slow
def test_other_fresh_allocations_are_rejected(fault):
    rng = np.random.default_rng(207)
    assert p_value([bins_of_two(fault(rng)) for _ in range(ALLOCATIONS)], FRESH_LAW) < ALPHA


# ---- Balls-in-Bins: one allocation of many examples


MANY, WIDE = 100_000, 12


def bin_pairs(bins):
    """The bins of disjoint pairs of examples, neighbours and far apart."""
    half = MANY // 2
    near, far = bins.reshape(-1, 2), np.stack((bins[:half], bins[half:]), axis=1)
    return [[tuple(row) for row in pairs.tolist()] for pairs in (near, far)]


PAIR_LAW = dict.fromkeys(itertools.product(range(WIDE), repeat=2), WIDE**-2)


def realised_bins(sampler):
    bins = np.empty(MANY, dtype=int)
    for step in range(WIDE):
        bins[sampler.indices(step)] = step
    return bins


def test_bins_of_many_examples_are_uniform_and_independent_in_pairs():
    bins = realised_bins(BallsInBinsSampler(MANY, WIDE, WIDE, rng=108))
    uniform = dict.fromkeys(range(WIDE), 1.0 / WIDE)
    assert p_value(bins.tolist(), uniform) > ALPHA
    for pairs in bin_pairs(bins):
        assert p_value(pairs, PAIR_LAW) > ALPHA


def test_splits_by_position_or_into_equal_parts_are_rejected():
    uniform = dict.fromkeys(range(WIDE), 1.0 / WIDE)
    equal = np.random.default_rng(109).permutation(MANY) % WIDE
    assert p_value(equal.tolist(), uniform) < ALPHA  # more even than chance
    near, far = bin_pairs(np.arange(MANY) % WIDE)
    assert p_value(near, PAIR_LAW) == 0.0
    assert p_value(far, PAIR_LAW) == 0.0


# ---- cyclic Poisson: two examples, two groups, four steps


CYCLE_STEPS = 4


def cyclic_law(prob):
    """Of the participations of two independent examples over four steps."""
    alone = collections.Counter()
    for group in range(2):
        for coins in itertools.product((0, 1), repeat=2):
            bits = [0] * CYCLE_STEPS
            bits[group::2] = coins
            chance = np.prod([prob if coin else 1.0 - prob for coin in coins])
            alone[tuple(bits)] += 0.5 * chance
    return {(one, two): first * second for one, first in alone.items() for two, second in alone.items()}


def bits_of(run):
    bits = np.zeros((2, CYCLE_STEPS), dtype=int)
    for step, batch in enumerate(run):
        bits[batch, step] = 1
    return tuple(map(tuple, bits.tolist()))


def cyclic_outcomes(rng, prob):
    return [bits_of(batches(CyclicPoissonSampler(2, prob, 2, CYCLE_STEPS, rng=rng))) for _ in range(RUNS)]


def in_groups(groups_by_step, rng):
    coins = rng.random((CYCLE_STEPS, 2)) < 0.5
    return [np.flatnonzero((groups == step % 2) & coins[step]) for step, groups in enumerate(groups_by_step)]


def a_split_by_position(rng):
    return in_groups([np.arange(2)] * CYCLE_STEPS, rng)


def groups_of_equal_size(rng):
    return in_groups([rng.permutation(2)] * CYCLE_STEPS, rng)


def new_groups_each_cycle(rng):
    return in_groups(np.repeat(rng.integers(2, size=(2, 2)), 2, axis=0), rng)


@pytest.mark.slow
def test_cyclic_batches_have_the_joint_law_of_groups_and_coins():
    assert p_value(cyclic_outcomes(np.random.default_rng(110), 0.5), cyclic_law(0.5)) > ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_cyclic_probability_ten_percent_off_is_rejected(factor):
    outcomes = cyclic_outcomes(np.random.default_rng(111), factor * 0.5)
    assert p_value(outcomes, cyclic_law(0.5)) < ALPHA


@pytest.mark.parametrize("fault", [a_split_by_position, groups_of_equal_size, new_groups_each_cycle])
def test_other_groups_are_rejected(fault):
    rng = np.random.default_rng(112)
    assert p_value([bits_of(fault(rng)) for _ in range(RUNS)], cyclic_law(0.5)) < ALPHA
