"""Sampling probabilities and noise that change from step to step, against sums over who takes part."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

import dpmech as dm
from dpmech.engines import ScheduleAccountant
from dpmech.schemes import accountant_for

REPLACE = dm.Adjacency.REPLACE_ONE
PROBS, ENTRIES = [0.3, 0.1], [1.0, 0.7]


def by_quadrature(probs, sigmas, eps, *, remove, replaced):
    """Delta of two steps: the inner integral over outputs in closed form, the outer one by scipy."""
    (q, r), (s, t) = probs, sigmas

    def densities(x):
        none = (1 - q) * stats.norm.pdf(x, 0, s)
        present, other = none + q * stats.norm.pdf(x, 1, s), none + q * stats.norm.pdf(x, -1, s)
        absent = other if replaced else stats.norm.pdf(x, 0, s)
        return (present, absent) if remove else (absent, present)

    grid = np.linspace(-12 * t - 1, 12 * t + 1, 6001)
    none = (1 - r) * stats.norm.pdf(grid, 0, t)
    present, other = none + r * stats.norm.pdf(grid, 1, t), none + r * stats.norm.pdf(grid, -1, t)
    absent = other if replaced else stats.norm.pdf(grid, 0, t)
    one, two = (present, absent) if remove else (absent, present)

    def inner(x):
        p, w = densities(x)
        return float(np.maximum(p * one - math.exp(eps) * w * two, 0.0).sum() * (grid[1] - grid[0]))

    return integrate.quad(inner, -10 * s - 1, 10 * s + 1, limit=400, epsabs=1e-9, epsrel=1e-6)[0]


@pytest.mark.parametrize("adjacency", list(dm.Adjacency))
def test_two_steps_by_quadrature(adjacency):
    participation, strategy = dm.Poisson(PROBS), dm.Diagonal(ENTRIES)
    replaced = adjacency is REPLACE
    for sigma, eps in ((0.7, 0.5), (1.0, 1.0)):
        found = dm.delta(strategy, sigma, eps, participation=participation, adjacency=adjacency)
        sigmas = [sigma / entry for entry in ENTRIES]
        known = max(
            by_quadrature(PROBS, sigmas, eps, remove=remove, replaced=replaced) for remove in (True, False)
        )
        assert found.lower * (1 - 1e-3) <= known <= found.upper * (1 + 1e-3)
        assert found.upper < 1.01 * found.lower
        # Neither pairs that are mixed up nor the mean of all probabilities are that schedule.
        swapped = by_quadrature(PROBS, sigmas[::-1], eps, remove=True, replaced=replaced)
        assert abs(swapped / known - 1) > 0.01


def test_added_examples_lose_at_most_what_their_absence_tells():
    """Direction ADD: a step loses less than -log(1 - q), so delta is 0 beyond the sum, and not before."""
    most = -sum(math.log1p(-q) for q in PROBS)
    sigmas = [0.3 / entry for entry in ENTRIES]
    profile = dm.profile(dm.Diagonal(ENTRIES), 0.3, participation=dm.Poisson(PROBS))
    beyond = profile.hockey_stick(1.001 * most, add=True)
    assert beyond.lower == beyond.upper == 0.0
    below = by_quadrature(PROBS, sigmas, 0.9 * most, remove=False, replaced=False)
    found = profile.hockey_stick(0.9 * most, add=True)
    assert 0.0 < found.lower * (1 - 1e-3) <= below <= found.upper * (1 + 1e-3)
    # A search that begins beyond the sum and goes below it finds the same as one from below.
    ends = profile.parts.epsilon(below, add=True, tolerance=1e-3)
    assert ends[0] * (1 - 1e-3) <= 0.9 * most <= ends[1] * (1 + 1e-3)


@pytest.mark.parametrize("adjacency", list(dm.Adjacency))
def test_a_schedule_of_one_level_is_plain_sampling(adjacency):
    same = dm.Poisson([0.1] * 20)
    plain = dm.calibrate_sigma(dm.Identity(20), 1.0, 1e-5, participation=dm.Poisson(0.1), adjacency=adjacency)
    one = dm.calibrate_sigma(dm.Identity(20), 1.0, 1e-5, participation=same, adjacency=adjacency)
    assert one.sigma == plain.sigma
    mixed = ScheduleAccountant(dm.Mechanism(dm.Identity(20), same, adjacency), [0.1] * 20)
    found = mixed.epsilon(plain.sigma, 1e-5, tolerance=1e-3)
    assert found.lower <= plain.achieved.upper * (1 + 1e-3)
    assert found.upper == pytest.approx(plain.achieved.upper, rel=1e-3)


def test_the_order_of_steps_and_scales_of_noise_do_not_matter():
    rng = np.random.default_rng(3)
    probs, entries = np.repeat([0.02, 0.05], 30), np.tile([1.0, 0.5], 30)
    mixed = rng.permutation(60)
    cal = dm.calibrate_sigma(dm.Diagonal(entries), 2.0, 1e-5, participation=dm.Poisson(probs))
    other = dm.calibrate_sigma(
        dm.Diagonal(2.0 * entries[mixed]), 2.0, 1e-5, participation=dm.Poisson(probs[mixed])
    )
    assert other.sigma == pytest.approx(2.0 * cal.sigma, rel=2e-3)
    assert cal.achieved.upper <= 2.0
    # Between the schedules of the smallest and the largest probability at every step.
    ends = [
        dm.calibrate_sigma(dm.Diagonal(entries), 2.0, 1e-5, participation=dm.Poisson(q)).sigma
        for q in (0.02, 0.05)
    ]
    assert ends[0] < cal.sigma < ends[1]


def test_composed_like_releases_in_a_row():
    """The profile of a schedule is that of its parts, composed one after the other."""
    probs = [0.05] * 10 + [0.1] * 20
    whole = dm.profile(dm.Identity(30), 1.2, participation=dm.Poisson(probs))
    first, second = (
        dm.profile(dm.Identity(n), 1.2, participation=dm.Poisson(q)) for n, q in ((10, 0.05), (20, 0.1))
    )
    apart = first.compose(second)
    for delta in (1e-3, 1e-6):
        assert whole.epsilon(delta).upper == pytest.approx(apart.epsilon(delta).upper, rel=1e-4)


def test_another_accountant_agrees():
    pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    mechanism = dm.Mechanism(dm.Diagonal([1.0] * 40 + [0.8] * 60), dm.Poisson([0.01] * 50 + [0.02] * 50))
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dm.interchange.to_dp_event(mechanism, 0.8))
    found = dm.epsilon(mechanism, 0.8, 1e-6)
    assert found.lower * (1 - 2e-3) <= accountant.get_epsilon(1e-6) <= found.upper * (1 + 2e-3)


def test_many_kinds_and_few():
    few = dm.Poisson([0.001 * (1 + t % 60) for t in range(300)])
    accountant = accountant_for(dm.Mechanism(dm.Identity(300), few), None)
    assert len(accountant.kinds) == 60
    assert accountant.upper_delta(1.0, 2.0, tolerance=0.1) < 1e-2
    many = dm.Poisson(np.linspace(0.01, 0.02, 300))
    with pytest.raises(dm.UnsupportedCombinationError, match=r"300 different pairs.*round to fewer levels"):
        accountant_for(dm.Mechanism(dm.Identity(300), many), None)


def test_what_a_schedule_is():
    own = dm.Poisson(np.array([0.1, 0.2, 0.3]))
    assert own.sampling_prob == (0.1, 0.2, 0.3)
    assert dm.Participation.from_json(own.to_json()) == own
    assert own.prefix(3, 2) == (dm.Poisson([0.1, 0.2]), 2)
    assert (own.certain, own.every_step_alike, own.mean_prob) == (False, False, pytest.approx(0.2))
    assert "from 0.1 to 0.3" in own.requirement(3)
    assert "<20 from 0.1 to 0.1, mean 0.1>" in repr(dm.Poisson([0.1] * 20))
    for bad in ([0.1, 1.0], [0.0, 0.5], [], [0.1, float("nan")], "0.1", [[0.1]]):
        with pytest.raises(dm.InvalidParameterError, match="sampling_prob"):
            dm.Poisson(bad)
    for options in ({"max_examples_per_user": 2}, {"truncated_batch_size": 2, "dataset_size": 9}):
        with pytest.raises(dm.UnsupportedCombinationError, match="probabilities that change"):
            dm.Poisson([0.1, 0.2], **options)
    with pytest.raises(dm.InvalidParameterError, match="one probability for each of n=4 steps"):
        dm.Mechanism(dm.Identity(4), own)


def test_every_step_of_the_sampler_has_its_own_probability():
    """Sizes of 4000 examples: at most six standard deviations from their mean, and a swap is seen."""
    probs = [0.5, 0.1, 0.02]
    sampler = dm.samplers.PoissonSampler(4000, probs, 3, rng=7)
    assert sampler.expected_batch_size == pytest.approx(4000 * sum(probs) / 3)
    for q, batch in zip(probs, sampler, strict=True):
        assert abs(len(batch) - 4000 * q) < 6.2 * math.sqrt(4000 * q * (1 - q))
    assert all(abs(4000 * p - 4000 * q) > 100 for p, q in itertools.combinations(probs, 2))


def test_no_delta_is_zero_where_a_loss_may_be_larger():
    """However little is left: losses have no upper end in direction REMOVE."""
    schedule = dm.Poisson([0.01] * 5 + [0.02] * 5)
    for eps in (5.0, 500.0):
        found = dm.delta(dm.Identity(10), 200.0, eps, participation=schedule)
        assert 0.0 < found.upper < 1e-200
