"""Any Gram matrix from below: blocks of bins against exact values, sampled bounds, and planted faults."""

import math

import mpmath
import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

import dpmech as dm
from dpmech.engines.gaussian_mixture.dominating_pair import lower_profiles
from dpmech.engines.independent_sum import BlockBound, blocks
from dpmech.exceptions import NumericalError
from tests.support.generators import random_bins_problem

BUDGET = (8.0, 1e-5)


def bound(strategy, bins):
    return BlockBound(bins, lambda most, dropped: lower_profiles(strategy, bins, most, dropped))


def toeplitz_bound(entries):
    """Of a Gram matrix with these entries at each distance."""
    bins = len(entries)

    def read(most, dropped):
        return np.array([[entries[d] if d < bins - left else 0.0 for d in range(most)] for left in dropped])

    return BlockBound(bins, read)


def two_bins(gram, sigma, eps):
    """Delta of both directions of two bins, by mpmath: an integral over one coordinate of a closed form."""
    mpmath.mp.dps = 20
    (a, c), (_, d) = gram
    # y = (sqrt a u, c / sqrt a u + rest v), u and v standard normal under Q.
    a, c, d = (mpmath.mpf(one) / mpmath.mpf(sigma) ** 2 for one in (a, c, d))
    root, slope = mpmath.sqrt(a), c / mpmath.sqrt(a)
    rest = mpmath.sqrt(d - slope**2)
    level = mpmath.e**eps

    def payoff(u, *, remove):
        """E over v of (r - e^eps)_+ or (1 - e^eps r)_+, closed form: r = A + B e^(rest v - rest^2 / 2)."""
        first = mpmath.exp(root * u - a / 2) / 2
        second = mpmath.exp(slope * u - slope**2 / 2) / 2
        target = level - first if remove else 1 / level - first
        if target <= 0:
            return first + second - level if remove else mpmath.mpf(0)
        cut = (mpmath.log(target / second) + rest**2 / 2) / rest
        if remove:
            return second * mpmath.ncdf(rest - cut) - target * mpmath.ncdf(-cut)
        return level * (target * mpmath.ncdf(cut) - second * mpmath.ncdf(cut - rest))

    def whole(remove):
        # The payoff has a kink where the first term alone is at the level.
        kink = (mpmath.log(2 * (level if remove else 1 / level)) + a / 2) / root
        places = sorted([mpmath.mpf(one) for one in np.linspace(-14.0, 14.0 + float(root), 57)] + [kink])
        return mpmath.quad(lambda u: mpmath.npdf(u) * payoff(u, remove=remove), places, maxdegree=6)

    return float(max(whole(True), whole(False)))


class TestBlockEntry:
    @pytest.mark.parametrize("decay", [0.3, 0.9, 0.99])
    @pytest.mark.parametrize("size", [1, 2, 3, 8, 40])
    def test_it_is_the_least_value_of_the_form(self, decay, size):
        entries = decay ** np.arange(size)
        found = blocks.block_entry(entries)
        # The best weights of a stationary chain are known.
        assert found == pytest.approx((1.0 + decay) / (size - (size - 2) * decay), rel=1e-5)
        matrix = scipy.linalg.toeplitz(entries)
        weights = np.random.default_rng(size).dirichlet(np.ones(size), 200)
        assert np.min(np.einsum("ij,jk,ik->i", weights, matrix, weights)) >= found * (1.0 - 1e-14)

    @pytest.mark.parametrize(
        "entries", [[1.0, 0.9, 0.0], [1.0, 0.0, 0.9], [1.0, 0.99, 0.99, 0.1], [0.0, 0.0], [1.0, 1.0]]
    )
    def test_what_is_no_covariance_gets_a_bound_all_the_same(self, entries):
        entries = np.array(entries)
        found = blocks.block_entry(entries)
        weights = np.random.default_rng(0).dirichlet(np.full(entries.size, 0.5), 2000)
        matrix = scipy.linalg.toeplitz(entries)
        assert 0.0 <= found <= np.min(np.einsum("ij,jk,ik->i", weights, matrix, weights)) + 1e-15

    def test_it_uses_more_than_the_smallest_entry(self):
        assert blocks.block_entry(np.array([1.0, 0.9])) == pytest.approx(0.95, rel=1e-5)


class TestEntries:
    @pytest.mark.parametrize(
        ("strategy", "bins"),
        [
            (dm.LambdaCGD(24, 0.7), 8),
            (dm.SquareRoot(24, 6), 8),
            (dm.ColumnNormalized(dm.LambdaCGD(24, 0.7)), 8),
            (dm.Dense(np.tril(np.random.default_rng(1).uniform(size=(24, 24)))), 8),
        ],
    )
    def test_they_are_those_of_the_matrix_rounded_down(self, strategy, bins):
        dense = np.asarray(strategy.to_dense())
        means = dense.reshape(dense.shape[0], -1, bins).sum(axis=1)
        gram = means.T @ means
        dropped = [0, 1, 3]
        found = lower_profiles(strategy, bins, bins, dropped)
        for row, left in enumerate(dropped):
            for d in range(bins):
                kept = np.diagonal(gram, d)[: max(bins - left - d, 0)]
                truth = kept.min() if kept.size else 0.0
                assert found[row, d] <= truth
                assert found[row, d] == pytest.approx(truth, rel=1e-12, abs=1e-12)


class TestAgainstExactValues:
    @pytest.mark.parametrize("c", [0.0, 0.3, 0.9])
    @pytest.mark.parametrize(("sigma", "eps"), [(0.7, 1.0), (0.4, 3.0), (2.0, 0.1), (1.0, 0.0)])
    def test_two_bins_by_quadrature(self, c, sigma, eps):
        truth = two_bins([[1.0, c], [c, 1.0]], sigma, eps)
        found = toeplitz_bound([1.0, c]).delta(sigma, eps)
        assert 0.2 * truth < found <= truth * (1.0 + 1e-9)
        # Entries that are too large by 5 % would give too large a delta where bins are independent.
        if c == 0.0:
            assert found > 0.99 * truth
            assert toeplitz_bound([1.05, 0.0]).delta(sigma, eps) > truth

    @pytest.mark.parametrize("entry", [0.5, 0.9])
    def test_a_block_with_too_large_an_entry_is_found(self, entry, monkeypatch):
        """The mean of the entries is no bound for the mean of the terms of a block: a fault of the order."""
        truth = two_bins([[1.0, entry], [entry, 1.0]], 0.4, 3.0)
        assert toeplitz_bound([1.0, entry]).delta(0.4, 3.0) <= truth
        monkeypatch.setattr(blocks, "block_entry", lambda entries: float(entries[0]))
        assert toeplitz_bound([1.0, entry]).delta(0.4, 3.0) > truth

    def test_bins_that_are_left_out_are_charged(self):
        """Of three bins the last has no noise in common and a small entry: two bins, and one that is 1."""
        sigma, eps = 0.5, 1.5
        one = blocks._Blocks(2, 1.0 / 3.0, 1.0)
        # A likelihood ratio of (1 + r_1 + r_2) / 3, by simulation.
        rng = np.random.default_rng(5)
        normals = rng.standard_normal((2, 2_000_000)) / sigma
        ratio = (1.0 + np.exp(normals - 0.5 / sigma**2).sum(axis=0)) / 3.0
        truth = np.maximum(ratio - math.exp(eps), 0.0)
        error = truth.std() / math.sqrt(truth.size)
        assert one.delta(sigma, eps) == pytest.approx(truth.mean(), abs=5.0 * error)
        eps_found = one.epsilon(sigma, one.delta(sigma, eps))
        assert eps_found == pytest.approx(eps, rel=5e-3)
        # Without the charge it would be noticeably higher.
        assert blocks._Blocks(2, 0.0, 1.0).delta(sigma, eps) > truth.mean() + 20.0 * error

    @pytest.mark.parametrize(("bins", "sigma", "eps"), [(2, 0.7, 2.0), (10, 0.8, 3.0), (300, 0.6, 4.0)])
    def test_independent_bins_are_met(self, bins, sigma, eps):
        exact = dm.delta(dm.Identity(bins), sigma, eps, participation=dm.BallsInBins(bins))
        found = bound(dm.Identity(bins), bins).delta(sigma, eps)
        assert 0.99 * exact.lower < found <= exact.upper

    @pytest.mark.parametrize(("bins", "sigma"), [(2, 0.5), (12, 2.0)])
    def test_equal_bins_are_one_gaussian(self, bins, sigma):
        found = toeplitz_bound([1.0] * bins)
        truth = dm.delta(dm.Identity(1), sigma, 1.0)
        assert 0.99 * truth.lower < found.delta(sigma, 1.0) <= truth.upper


class TestAgainstUpperBounds:
    @pytest.mark.slow
    @settings(max_examples=12)
    @given(st.integers(0, 10**6))
    def test_never_above_an_upper_bound(self, seed):
        strategy, bins, sigma, eps = random_bins_problem(np.random.default_rng([41, seed]))
        method = dm.methods.Deterministic(0.3)
        found = dm.delta(strategy, sigma, eps, participation=dm.BallsInBins(bins), method=method)
        assert 0.0 <= found.lower <= found.upper

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("strategy", "bins", "share"),
        [
            (dm.LambdaCGD(3900, 0.5), 390, 0.99),
            (dm.LambdaCGD(3900, 0.9), 390, 0.9),
            (dm.SquareRoot(3900, 16), 390, 0.97),
            (dm.SquareRoot(60, 6), 6, 0.5),
        ],
    )
    def test_it_is_close_below_samples_bounds(self, strategy, bins, share):
        cal = dm.calibrate_sigma(
            strategy, *BUDGET, participation=dm.BallsInBins(bins), method=dm.methods.Deterministic()
        )
        sampled = dm.epsilon(
            strategy,
            cal.sigma,
            BUDGET[1],
            participation=dm.BallsInBins(bins),
            method=dm.methods.Certified(),
            rng=2,
        )
        assert share * sampled.upper < cal.achieved.lower <= sampled.upper
        assert cal.achieved.upper == BUDGET[0]


class TestItsEnds:
    @pytest.mark.parametrize("sigma", [1e-9, 1e-3, 0.05, 30.0, 1e6, 1e200])
    @pytest.mark.parametrize("eps", [0.0, 1.0, 499.0, 700.0])
    def test_extremes_give_bounds_or_nothing(self, sigma, eps):
        one = bound(dm.LambdaCGD(80, 0.6), 40)
        assert 0.0 <= one.delta(sigma, eps) <= 1.0
        for delta in (0.999, 1e-5, 1e-290):
            assert 0.0 <= one.epsilon(sigma, delta, near=eps) < math.inf

    def test_nothing_is_known_without_entries(self):
        one = toeplitz_bound([0.0, 0.0])
        assert one.delta(1.0, 1.0) == one.epsilon(1.0, 1e-5, near=1.0) == 0.0

    def test_work_beyond_a_limit_leaves_the_upper_end(self):
        def read(most, dropped):
            raise dm.exceptions.WorkLimitError("the Gram matrix", (9.0, 9.0), (1.0, 1.0))

        assert BlockBound(5, read).delta(1.0, 1.0) == 0.0

    def test_a_contradiction_with_the_upper_end_is_refused(self, monkeypatch):
        """As if one of the proofs were wrong."""
        monkeypatch.setattr(BlockBound, "delta", lambda self, sigma, eps: 0.5)
        with pytest.raises(NumericalError, match="above the upper bound"):
            dm.delta(
                dm.LambdaCGD(4, 0.3),
                3.0,
                1.0,
                participation=dm.BallsInBins(2),
                method=dm.methods.Deterministic(0.3),
            )

    def test_larger_deltas_have_smaller_eps(self):
        one = bound(dm.LambdaCGD(80, 0.6), 40)
        found = [one.epsilon(1.0, delta, near=3.0) for delta in (1e-9, 1e-6, 1e-3)]
        assert found == sorted(found, reverse=True)
        assert found[-1] > 0.0
