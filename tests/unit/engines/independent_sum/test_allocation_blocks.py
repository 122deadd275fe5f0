"""Random allocation of k of n steps: the theorem, its bounds against enumeration, and what is refused."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.schemes import accountant_for, scheme_of
from dpmech.schemes.random_allocation.accountant import Allocated, BlocksAccountant
from tests.support.participation_laws import hockey_stick, pairs_of

SLOW = pytest.mark.slow
# Chance of a false alarm of one interval.
ALPHA = 1e-9


def allocation(n, k, adjacency=dm.Adjacency.ADD_REMOVE):
    return dm.Mechanism(dm.Identity(n), dm.RandomAllocation(k), adjacency)


def mean_over_sets(x, k):
    """The likelihood ratio by its definition: the mean of products over all sets of k steps."""
    return np.mean(
        [np.prod(x[..., list(s)], axis=-1) for s in itertools.combinations(range(x.shape[-1]), k)], 0
    )


def partitions(steps, sizes):
    """All ways to put the steps into blocks of these sizes, in order."""
    if not sizes:
        yield ()
        return
    for block in itertools.combinations(steps, sizes[0]):
        rest = tuple(step for step in steps if step not in block)
        yield from ((block, *others) for others in partitions(rest, sizes[1:]))


@st.composite
def ratios(draw):
    n = draw(st.integers(1, 6))
    k = draw(st.integers(1, n))
    return draw(st.lists(st.floats(0.01, 20.0), min_size=n, max_size=n)), k


@given(ratios())
def test_the_ratio_is_the_mean_over_partitions_of_products_of_means(drawn):
    x, k = np.array(drawn[0]), drawn[1]
    block, longer = divmod(x.size, k)
    sizes = [block + 1] * longer + [block] * (k - longer)
    products = [
        math.prod(x[list(block)].mean() for block in blocks)
        for blocks in partitions(tuple(range(x.size)), sizes)
    ]
    assert np.mean(products) == pytest.approx(mean_over_sets(x, k), rel=1e-10)


@given(ratios(), st.floats(0.3, 5.0))
def test_the_canary_has_the_ratio_of_the_definition(drawn, sigma):
    x, k = np.array(drawn[0]), drawn[1]
    norm = 1.5
    outputs = (sigma**2 * np.log(x) + norm**2 / 2.0) / norm
    canary = Allocated(k, np.arange(x.size), norm * np.eye(x.size))
    found = canary.log_ratio(outputs[None, :], sigma)[0]
    assert found == pytest.approx(math.log(mean_over_sets(x, k)), abs=1e-9)
    rng = np.random.default_rng(1)
    assert set(canary.draw(50, rng, present=True).sum(axis=1)) == {float(k)}
    assert not canary.draw(5, rng, present=False).any()


def interval(n, k, sigma, eps, *, add, draws=400_000):
    """An interval for delta of one direction, by draws of the pair itself (empirical Bernstein)."""
    rng = np.random.default_rng([n, k, add])
    y = sigma * rng.standard_normal((draws, n))
    if not add:
        chosen = np.argsort(rng.random((draws, n)), axis=1)[:, :k]
        np.put_along_axis(y, chosen, np.take_along_axis(y, chosen, 1) + 1.0, 1)
    ratio = mean_over_sets(np.exp((y - 0.5) / sigma**2), k)
    terms = np.maximum(1.0 - math.exp(eps) * (ratio if add else 1.0 / ratio), 0.0)
    logs = math.log(3.0 / (ALPHA / 2.0))
    spread = math.sqrt(2.0 * terms.var() * logs / draws) + 3.0 * logs / draws
    return terms.mean() - spread, terms.mean() + spread


CASES = [(n, k) for n in range(2, 7) for k in range(1, n)]
QUICK = {(3, 2), (5, 3)}


@pytest.mark.parametrize(
    ("n", "k"), [case if case in QUICK else pytest.param(*case, marks=SLOW) for case in CASES]
)
def test_both_directions_are_above_the_truth(n, k):
    sigma = 1.5
    parts = dm.profile(allocation(n, k), sigma, rel_error=1e-2).parts
    for eps in (0.2, 1.0):
        for add in (False, True):
            lower, upper = parts.delta(eps, add=add, tolerance=1e-3)
            least, most = interval(n, k, sigma, eps, add=add)
            assert lower <= most
            assert least <= upper <= 1.25 * most + 1e-3
            # With 20 % less noise the truth is above the bound, which is therefore not far from it.
            if k < n and eps == 0.2 and not add:
                assert interval(n, k, 0.8 * sigma, eps, add=add)[0] > upper
    found = dm.delta(allocation(n, k), sigma, 1.0)
    ends = [interval(n, k, sigma, 1.0, add=add) for add in (False, True)]
    assert found.lower <= max(most for _, most in ends)
    assert found.upper >= max(least for least, _ in ends)
    assert found.guarantee == dm.Guarantee(dm.Kind.BOUND)


def test_one_participation_is_an_allocation_to_as_many_bins():
    one, bins = allocation(8, 1), dm.Mechanism(dm.Identity(8), dm.BallsInBins(8))
    found, same = dm.delta(one, 1.0, 1.0), dm.delta(bins, 1.0, 1.0)
    assert found.lower <= same.upper
    assert same.lower <= found.upper
    assert found.upper <= 1.02 * found.lower
    spent = dm.epsilon(one, 1.0, found.upper)
    assert spent.lower > 0.99
    assert 0.0 < dm.profile(one, 1.0, rel_error=0.02).delta(1.0).lower <= found.upper


def test_all_steps_are_no_sampling():
    for found, same in (
        (
            dm.calibrate_sigma(allocation(6, 6), 1.0, 1e-5).sigma,
            dm.calibrate_sigma(dm.Identity(6), 1.0, 1e-5).sigma,
        ),
        (dm.delta(allocation(6, 6), 2.0, 1.0), dm.delta(dm.Identity(6), 2.0, 1.0)),
    ):
        assert found == same
    assert not dm.Mechanism(dm.Identity(6), dm.RandomAllocation(6)).certain


def test_blocks_of_one_step_are_gaussian_releases():
    """Of 3 in 4 steps there is one block of two steps, and two of one."""
    found = accountant_for(allocation(4, 3), None)
    assert isinstance(found, BlocksAccountant)
    assert found.curve_counts == (1,)
    parts = dm.profile(allocation(4, 3), 2.0, rel_error=0.02).parts
    # From below, the sum of all steps, of sensitivity 3 / 2, is in place of the blocks.
    assert parts.gaussian == pytest.approx((0.75**2, 0.5))
    assert parts.gaussian[1] >= 0.5
    # Less than without sampling, at least what the sum of all steps shows.
    delta = dm.delta(allocation(4, 3), 2.0, 0.5)
    assert delta.upper < dm.delta(dm.Identity(3), 2.0, 0.5).lower
    sums = dm.delta(dm.Diagonal([3.0 / 2.0]), 2.0, 0.5, participation=dm.SingleParticipation())
    assert sums.lower * (1.0 - 1e-9) <= delta.lower <= delta.upper


@pytest.mark.exhaustive
@SLOW
def test_more_participations_cost_more():
    uppers = [dm.delta(allocation(6, k), 2.0, 0.5).upper for k in range(1, 7)]
    assert uppers == sorted(uppers)
    uppers = [dm.delta(allocation(n, 2), 2.0, 0.5).upper for n in (2, 3, 5, 8)]
    assert uppers == sorted(uppers, reverse=True)


@SLOW
def test_a_calibration_is_on_the_safe_side_and_near_the_truth():
    """At small eps the bound is close: 2 % less noise is more than is allowed."""
    cal = dm.calibrate_sigma(allocation(5, 2), 0.5, 0.02, method=dm.methods.Pld())
    ends = [interval(5, 2, cal.sigma, 0.5, add=add) for add in (False, True)]
    assert max(least for least, _ in ends) <= 0.02
    worse = [interval(5, 2, 0.95 * cal.sigma, 0.5, add=add) for add in (False, True)]
    assert max(least for least, _ in worse) > 0.02
    assert cal.evidence.accountant == dm.methods.Pld()
    assert "random allocation of 2 in 5 steps" in cal.method
    assert 0.0 < cal.achieved.lower < cal.achieved.upper <= 0.5


def test_a_run_that_stops_is_charged_in_full():
    assert dm.RandomAllocation(2).prefix(6, 3) == (dm.RandomAllocation(2), 6)
    assert allocation(6, 2).prefix(3) == allocation(6, 2)


@pytest.mark.parametrize(
    ("strategy", "method", "message"),
    [
        (
            dm.LambdaCGD(6, 0.5),
            None,
            r"LambdaCGD.* correlates it; supported: method=Certified\(\) or Importance\(\)",
        ),
        (dm.SquareRoot(6, 2), dm.methods.Pld(), "SquareRoot.* correlates it"),
        (dm.Diagonal([1.0, 2.0, 1.0, 1.0, 1.0, 1.0]), dm.methods.Pld(), "more noise than others"),
        (dm.BandedToeplitz(6, [1.0, -0.5]), None, "negative"),
        (
            dm.SquareRoot(40, 13),
            dm.methods.Certified(),
            r"13 bands: 2 random steps have more than 4096 states; .*BallsInBins",
        ),
        (
            dm.Identity(6),
            dm.methods.Exact(),
            r"Exact\(\) does not apply to RandomAllocation\(participations=2\)",
        ),
        (
            dm.Identity(6),
            dm.methods.Rdp(),
            r"supported: Certified\(\), Importance\(\), and with Identity or groups method=None, Pld\(\) or "
            r"Deterministic\(\)",
        ),
    ],
)
def test_what_no_theorem_covers_is_refused(strategy, method, message):
    mechanism = dm.Mechanism(strategy, dm.RandomAllocation(2))
    with pytest.raises(dm.UnsupportedCombinationError, match=message):
        accountant_for(mechanism, method)


def test_equal_columns_are_one_size_of_noise():
    scaled = dm.Mechanism(dm.Diagonal([2.0] * 6), dm.RandomAllocation(6))
    assert dm.delta(scaled, 2.0, 1.0).upper == pytest.approx(dm.delta(allocation(6, 6), 1.0, 1.0).upper)


def test_replacing_an_example_and_fits_are_refused():
    with pytest.raises(dm.UnsupportedCombinationError, match="REPLACE_ONE"):
        allocation(6, 2, dm.Adjacency.REPLACE_ONE)
    with pytest.raises(dm.UnsupportedCombinationError, match="nothing is fitted under RandomAllocation"):
        dm.optimize(dm.LambdaCGD, dm.RandomAllocation(2), n=6)
    correlated = dm.Mechanism(dm.LambdaCGD(6, 0.5), dm.RandomAllocation(2))
    with pytest.raises(dm.UnsupportedCombinationError, match=r"no canary .* correlates noise"):
        scheme_of(correlated.participation).canary(correlated.participation, correlated)


# C of two bands, dense: equal norms, a last column that is shorter, entries < 0.
BANDED = [
    dm.ColumnNormalized(dm.SquareRoot(8, 2)),
    dm.SquareRoot(8, 2),
    dm.BandedToeplitz(8, [1.0, -0.8]),
    dm.Diagonal([1.0, 3.0, 1.5, 2.0, 1.0, 2.5, 1.2, 3.0]),
]


@pytest.mark.parametrize(
    ("strategy", "k"),
    [
        pytest.param(one, k, id=f"{type(one).__name__}-{k}", marks=[] if (one, k) == (BANDED[1], 1) else SLOW)
        for one in BANDED
        for k in (1, 2, 3)
    ],
)
def test_groups_are_above_the_enumeration_of_dense_noise(strategy, k):
    """All sets of both groups with the columns of C as they are; 20 % less noise is too little."""
    participation, sigma, eps = dm.RandomAllocation(k, cycle=2), 2.0, 0.5
    pairs, matrix = list(pairs_of(participation, 8, "add_remove")), strategy.to_dense()

    def truth(factor):
        size = float(np.linalg.norm(matrix, axis=0).max())
        ends = [hockey_stick(p, matrix, factor * sigma * size, eps, 60_000, ALPHA / 2, 5) for p in pairs]
        return tuple(map(max, zip(*ends, strict=True)))

    size = float(np.linalg.norm(matrix, axis=0).max())
    found = dm.delta(strategy, sigma * size, eps, participation=participation)
    low, high = truth(1.0)
    assert low <= found.upper
    assert found.lower <= high
    assert truth(0.7)[0] > found.upper
    # The same as that of independent noise over the steps of one group, but for norms that differ.
    same = dm.delta(dm.Identity(4), sigma, eps, participation=dm.RandomAllocation(k))
    assert found.upper == pytest.approx(same.upper, rel=1e-6)
    if strategy is BANDED[0]:
        assert found.lower == pytest.approx(same.lower, rel=1e-6)
    elif isinstance(strategy, dm.Diagonal):
        assert found.lower < 0.99 * same.lower


@SLOW
def test_samples_and_profiles_of_groups():
    strategy, plan = dm.BandedToeplitz(8, [1.0, -0.8]), {"participation": dm.RandomAllocation(2, cycle=2)}
    size = math.sqrt(1.64)
    blocks = dm.delta(strategy, 1.2 * size, 2.0, **plan)
    for method in (dm.methods.Certified(), dm.methods.Importance(0.01)):
        found = dm.delta(strategy, 1.2 * size, 2.0, method=method, rng=2, **plan)
        assert blocks.lower <= found.upper < 1.05 * blocks.upper
        plain = dm.delta(dm.Identity(4), 1.2, 2.0, method=method, rng=2, participation=dm.RandomAllocation(2))
        assert found.upper == pytest.approx(plain.upper, rel=0.02)
    curve = dm.profile(strategy, 1.2 * size, rel_error=0.02, **plan).delta(2.0)
    assert curve.lower <= blocks.upper * 1.001
    assert curve.upper == pytest.approx(blocks.upper, rel=0.05)


def test_all_turns_of_a_group_are_one_release():
    plan = {"participation": dm.RandomAllocation(4, cycle=2)}
    once = dm.delta(dm.SquareRoot(8, 2), 2.0, 1.0, **plan)
    same = dm.delta(dm.SquareRoot(8, 2), 2.0, 1.0, participation=dm.CyclicPoisson(1.0, 2))
    assert (once.lower, once.upper) == pytest.approx((same.lower, same.upper), rel=1e-12)
    with pytest.raises(dm.UnsupportedCombinationError, match="joins each of the 4 steps"):
        dm.delta(dm.SquareRoot(8, 2), 2.0, 1.0, method=dm.methods.Certified(), **plan)


@SLOW
def test_more_bands_than_groups_are_refused_and_fits_have_at_most_so_many():
    mechanism = dm.Mechanism(dm.SquareRoot(8, 3), dm.RandomAllocation(2, cycle=2))
    for ask in (accountant_for, lambda one, _: scheme_of(one.participation).canary(one.participation, one)):
        with pytest.raises(dm.UnsupportedCombinationError, match=r"at most cycle=2 bands.* has 3"):
            ask(mechanism, None)
    fit = dm.optimize(dm.BandedToeplitz, dm.RandomAllocation(2, cycle=4), n=16, eps=2.0, delta=1e-5)
    assert fit.strategy.bands == 4
    assert (
        fit.error < dm.optimize(dm.BandedToeplitz, dm.CyclicPoisson(0.5, 4), n=16, eps=2.0, delta=1e-5).error
    )


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None, "2"])
def test_bad_numbers_are_named(count):
    with pytest.raises(dm.InvalidParameterError, match="participations must be an integer"):
        dm.RandomAllocation(count)
    with pytest.raises(
        dm.InvalidParameterError, match=r"participations must be an integer in \[1, n=3\], got 4"
    ):
        dm.Mechanism(dm.Identity(3), dm.RandomAllocation(4))
    assert dataclasses.fields(dm.RandomAllocation)[0].name == "participations"


@pytest.mark.parametrize(
    ("strategy", "k", "eps"),
    [(dm.Identity(12), 3, 8.0), (dm.Identity(7), 4, 3.0), (dm.SquareRoot(8, 2), 2, 3.0)],
)
def test_samples_prove_what_the_blocks_do_not(strategy, k, eps):
    """At the sigma found the estimate agrees; below it the lower end of the blocks' interval holds, too."""
    plan = {"participation": dm.RandomAllocation(k)}
    certified = dm.calibrate_sigma(strategy, eps, 1e-5, method=dm.methods.Certified(), **plan)
    assert certified.guarantee.rigorous
    estimate = dm.calibrate_sigma(strategy, eps, 1e-5, method=dm.methods.Importance(), rng=1, **plan)
    assert abs(certified.sigma / estimate.sigma - 1.0) < 0.006
    assert 0.95 * eps < certified.achieved.lower < certified.achieved.upper <= eps
    assert dm.verify(certified.certificate()).ok
    if strategy.bands == 1:
        blocks = dm.epsilon(strategy, certified.sigma, 1e-5, **plan)
        assert blocks.lower < eps < 0.995 * blocks.upper


def test_one_participation_is_one_epoch_of_bins_and_all_of_them_are_refused():
    exact = dm.delta(dm.Identity(6), 0.9, 1.0, participation=dm.BallsInBins(6))
    for method in (dm.methods.Certified(), dm.methods.Importance(0.01)):
        found = dm.delta(dm.Identity(6), 0.9, 1.0, participation=dm.RandomAllocation(1), method=method, rng=2)
        assert found.lower * 0.999 < exact.lower < exact.upper < found.upper * 1.001
        assert found.upper < 1.2 * found.lower
        with pytest.raises(dm.UnsupportedCombinationError, match="every example joins each of the 6 steps"):
            dm.delta(allocation(6, 6), 1.0, 1.0, method=method)


def test_a_certificate_and_a_profile_add_up_in_a_ledger():
    cal = dm.calibrate_sigma(allocation(3, 3), 1.0, 1e-5)
    ledger = dm.Ledger()
    ledger.add("once", cal, batch="one")
    assert ledger.epsilon(1e-5).upper <= 1.0 + 1e-6
