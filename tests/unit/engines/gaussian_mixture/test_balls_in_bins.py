"""Gram matrices of bin means, the accountants built on them, and what is refused."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

import dpmech as dm
from dpmech.engines.gaussian_mixture.certified_bound import CertifiedBound, CertifiedDirection
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram, ring_profile
from dpmech.engines.gaussian_mixture.gram import CirculantGram, FactorGram
from tests.support.bins_oracles import gaussian

RNG = np.random.default_rng(7)


def brute_gram(strategy, bins):
    matrix = strategy.to_dense()
    means = np.stack([matrix[:, i::bins].sum(axis=1) for i in range(bins)])
    return means @ means.T


def nonnegative_strategies(n):
    square = np.tril(RNG.uniform(size=(n, n))) + np.eye(n)
    plain = [
        dm.Identity(n),
        dm.LambdaCGD(n, 0.7),
        dm.LambdaCGD(n, 0.999),
        dm.SquareRoot(n),
        dm.SquareRoot(n, 2),
        dm.InverseSquareRoot(n, 3),
        dm.BandedToeplitz(n, [1.0, 0.2, 0.6]),
        dm.BLT(n, [0.9], [0.3]),
        dm.Diagonal(np.arange(1.0, n + 1.0)),
        dm.Dense(square),
    ]
    return plain + [dm.ColumnNormalized(strategy) for strategy in plain]


def as_matrix(gram):
    return np.stack([gram.matvec(unit) for unit in np.eye(gram.bins)], axis=1)


class TestGram:
    @pytest.mark.parametrize(("n", "bins"), [(12, 1), (12, 3), (12, 4), (12, 12), (30, 5)])
    def test_equals_the_brute_force_matrix(self, n, bins):
        for strategy in nonnegative_strategies(n):
            truth = brute_gram(strategy, bins)
            assert np.allclose(as_matrix(bin_gram(strategy, bins)), truth, atol=1e-12 * truth.max()), strategy

    @pytest.mark.parametrize("limit", [6000, 4])
    @pytest.mark.parametrize(
        "strategy", [dm.InverseSquareRoot(40, 3), dm.Identity(40), dm.LambdaCGD(40, 0.9)]
    )
    def test_what_an_error_of_the_columns_may_hide_is_above_every_entry(self, strategy, limit, monkeypatch):
        """Columns that are off as far as `error` allows: a Gram matrix nowhere smaller bounds their delta."""
        error, bins = 1e-6, 8
        monkeypatch.setattr("dpmech.engines.gaussian_mixture.dominating_pair._DENSE_BINS", limit)
        monkeypatch.setattr(type(strategy), "error", property(lambda _: error))
        matrix = strategy.to_dense()
        # Every column of a bin is moved in the direction of another bin's mean.
        for other in range(bins):
            mean = matrix[:, other::bins].sum(axis=1)
            norms = np.linalg.norm(matrix, axis=0)
            moved = matrix + error * np.outer(mean / np.linalg.norm(mean), norms)
            means = np.stack([moved[:, i::bins].sum(axis=1) for i in range(bins)])
            found = as_matrix(bin_gram(strategy, bins))
            assert np.all(found >= (means @ means.T) * (1.0 - 1e-12) - 1e-12)
        assert np.all(found <= brute_gram(strategy, bins) + 1e-5 * found.max())

    @pytest.mark.parametrize(("n", "bins"), [(12, 1), (12, 4), (12, 12), (30, 5), (30, 6)])
    def test_ring_profile_is_the_largest_entry_at_each_distance(self, n, bins):
        for strategy in nonnegative_strategies(n):
            truth = brute_gram(strategy, bins)
            largest = np.zeros(bins // 2 + 1)
            for i in range(bins):
                for j in range(bins):
                    distance = min(abs(i - j), bins - abs(i - j))
                    largest[distance] = max(largest[distance], truth[i, j])
            profile = ring_profile(strategy, bins)
            assert np.all(profile >= largest * (1.0 - 1e-14)), strategy
            assert np.allclose(profile, largest, rtol=1e-9, atol=1e-12 * truth.max()), strategy

    def test_identity_reduces_to_independent_bins(self):
        gram = bin_gram(dm.Identity(30), 5)
        assert isinstance(gram, CirculantGram)
        assert np.allclose(as_matrix(gram), 6.0 * np.eye(5), atol=1e-12)

    def test_structured_products_equal_the_dense_ones(self, monkeypatch):
        strategy = dm.InverseSquareRoot(60, 4)
        dense = as_matrix(bin_gram(strategy, 20))
        monkeypatch.setattr("dpmech.engines.gaussian_mixture.dominating_pair._DENSE_BINS", 10)
        structured = bin_gram(strategy, 20)
        assert isinstance(structured, FactorGram)
        assert np.allclose(as_matrix(structured), dense, atol=1e-12 * dense.max())
        assert np.allclose(structured.diagonal, np.diagonal(dense), rtol=1e-12)
        with pytest.raises(dm.UnsupportedCombinationError, match="Toeplitz strategies"):
            bin_gram(dm.ColumnNormalized(strategy), 20)

    def test_scaling_divides_by_sigma_squared(self):
        gram = bin_gram(dm.LambdaCGD(12, 0.5), 4)
        assert np.allclose(as_matrix(gram.scaled(0.25)), as_matrix(gram) / 4.0)


class TestRefusals:
    @pytest.mark.parametrize(
        "strategy", [dm.BandedToeplitz(12, [1.0, -0.1]), dm.BandedInverse(12, [1.0, 0.3])]
    )
    def test_signed_strategies(self, strategy):
        with pytest.raises(dm.UnsupportedCombinationError, match="negative entries"):
            dm.delta(strategy, 2.0, 1.0, participation=dm.BallsInBins(4))
        with pytest.raises(dm.UnsupportedCombinationError, match="negative entries"):
            ring_profile(strategy, 4)

    def test_fresh_bins_that_do_not_divide_n(self):
        with pytest.raises(dm.InvalidParameterError, match=r"divisor of n=12, with fresh, got 5.* 15 steps"):
            dm.calibrate_sigma(dm.Identity(12), 1.0, 1e-5, participation=dm.BallsInBins(5, fresh=True))

    def test_replace_one(self):
        with pytest.raises(dm.UnsupportedCombinationError, match="REPLACE_ONE"):
            dm.epsilon(
                dm.Identity(12),
                1.0,
                1e-5,
                participation=dm.BallsInBins(4),
                adjacency=dm.Adjacency.REPLACE_ONE,
            )

    @pytest.mark.parametrize("method", [dm.methods.Pld(), dm.methods.Prv()])
    def test_methods_of_other_samplers(self, method):
        with pytest.raises(dm.UnsupportedCombinationError, match="does not apply"):
            dm.delta(dm.Identity(12), 1.0, 1.0, participation=dm.BallsInBins(4), method=method)

    def test_exact_is_for_identity_only(self):
        with pytest.raises(dm.UnsupportedCombinationError, match="Exact"):
            dm.delta(
                dm.LambdaCGD(12, 0.5), 1.0, 1.0, participation=dm.BallsInBins(4), method=dm.methods.Exact()
            )

    @pytest.mark.parametrize(
        ("build", "name"),
        [
            (lambda: dm.methods.Importance(rel_error=0.0), "rel_error"),
            (lambda: dm.methods.Importance(confidence=1.0), "confidence"),
            (lambda: dm.methods.Importance(executor=3), "executor"),
            (lambda: dm.methods.Certified(beta=0.0), "beta"),
            (lambda: dm.methods.Deterministic(rel_error=-1.0), "rel_error"),
        ],
    )
    def test_method_settings(self, build, name):
        with pytest.raises(dm.InvalidParameterError, match=name):
            build()


class TestMethods:
    """All methods on one small problem, against an integral over two bins."""

    strategy = dm.LambdaCGD(6, 0.5)
    participation = dm.BallsInBins(2)

    def truth(self, sigma, eps):
        """Both directions for y ~ N(0, K): over one coordinate in closed form, over the other numerically."""
        gram = brute_gram(self.strategy, 2) / sigma**2
        factor = np.linalg.cholesky(gram)
        z = np.linspace(-12.0, 12.0, 4001)
        density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi) * (z[1] - z[0])
        # At z the ratio is first + second * exp(slope w), w standard normal.
        first = 0.5 * np.exp(factor[0, 0] * z - gram[0, 0] / 2.0)
        second, slope = 0.5 * np.exp(factor[1, 0] * z - gram[1, 1] / 2.0), factor[1, 1]
        lift = second * math.exp(0.5 * slope**2)

        def crossing(level):
            with np.errstate(divide="ignore"):
                return np.log(np.maximum(level - first, 0.0) / second) / slope

        high, low = math.exp(eps), math.exp(-eps)
        w = crossing(high)
        remove = density @ ((first - high) * ndtr(-w) + lift * ndtr(slope - w))
        w = crossing(low)
        add = density @ ((1.0 - high * first) * ndtr(w) - high * lift * ndtr(w - slope))
        return float(max(remove, add))

    @pytest.mark.parametrize(("sigma", "eps"), [(3.0, 0.5), (2.0, 2.0), (5.0, 0.1)])
    def test_every_interval_and_bound_is_on_its_side(self, sigma, eps):
        truth = self.truth(sigma, eps)
        estimate = dm.delta(
            self.strategy, sigma, eps, participation=self.participation, method=dm.methods.Importance(), rng=5
        )
        assert estimate.lower <= truth <= estimate.upper
        assert estimate.guarantee.error == pytest.approx(1e-4, rel=1e-9)
        assert estimate.upper / estimate.lower < 1.25
        for method, looseness in (
            (dm.methods.Certified(), 1.5),
            (dm.methods.Deterministic(), 1.25),
            (dm.methods.Rdp(), 100.0),
        ):
            bound = dm.delta(
                self.strategy, sigma, eps, participation=self.participation, method=method, rng=5
            )
            assert truth <= bound.upper * (1.0 + 1e-5), method
            assert bound.upper <= looseness * truth, method

    def test_calibration_is_on_the_safe_side_and_close(self):
        eps, delta = 1.0, 1e-3
        sizes = {}
        for method in (
            dm.methods.Importance(),
            dm.methods.Certified(),
            dm.methods.Deterministic(),
            dm.methods.Rdp(),
        ):
            cal = dm.calibrate_sigma(
                self.strategy, eps, delta, participation=self.participation, method=method, rng=11
            )
            sizes[type(method).__name__] = cal
            assert self.truth(cal.sigma, eps) <= delta * (1.0 + 1e-5), method
            assert cal.achieved.upper <= eps
        importance = sizes["Importance"].sigma
        assert self.truth(importance * 0.99, eps) > delta
        assert sizes["Certified"].sigma <= 1.03 * importance
        assert sizes["Deterministic"].sigma <= 1.02 * importance
        unamplified = dm.calibrate_sigma(self.strategy, eps, delta, participation=dm.FixedEpochs(3))
        assert all(cal.sigma <= unamplified.sigma * (1.0 + 1e-3) for cal in sizes.values())
        assert [
            str(sizes[name].guarantee) for name in ("Importance", "Certified", "Deterministic", "Rdp")
        ] == [
            "estimate",
            "with probability 1 - beta",
            "deterministic upper bound",
            "deterministic upper bound",
        ]

    @pytest.mark.slow
    def test_epsilon_inverts_delta(self):
        sigma, delta = 2.5, 1e-3
        for method in (None, dm.methods.Certified(), dm.methods.Deterministic(), dm.methods.Rdp()):
            bounds = dm.epsilon(
                self.strategy, sigma, delta, participation=self.participation, method=method, rng=3
            )
            assert self.truth(sigma, bounds.upper) <= delta * (1.0 + 1e-5), method
            if method is None:
                assert self.truth(sigma, bounds.lower) >= delta * (1.0 - 1e-5)

    @pytest.mark.parametrize(
        "factor", [pytest.param(1.0, marks=pytest.mark.slow), pytest.param(0.97, marks=pytest.mark.slow), 0.5]
    )
    @pytest.mark.slow
    def test_epsilon_near_its_floor(self, factor):
        """No eps below 1e-4 is looked at, and none is claimed without its own interval."""
        sigma = 2000.0
        delta = factor * self.truth(sigma, 1e-4)
        bounds = dm.epsilon(self.strategy, sigma, delta, participation=self.participation, rng=3)
        assert bounds.upper >= 1e-4
        assert self.truth(sigma, bounds.upper) <= delta * (1.0 + 1e-5)
        assert bounds.upper < 2e-3
        assert bounds.lower == 0.0 or self.truth(sigma, bounds.lower) >= delta * (1.0 - 1e-5)

    def test_no_privacy_loss_to_speak_of(self):
        bounds = dm.epsilon(self.strategy, 1e5, 1e-3, participation=self.participation, rng=3)
        assert bounds.lower == 0.0
        assert bounds.upper < 1e-4  # what holds without sampling, so that no sample is drawn

    @pytest.mark.parametrize("eps", [0.0, 9e-5])
    @pytest.mark.parametrize(
        ("method", "sigma"),
        [
            (None, 2000.0),
            (None, 20000.0),
            (dm.methods.Certified(1e-3), 2000.0),
            (dm.methods.Deterministic(0.3), 2000.0),
            (dm.methods.Rdp(), 20000.0),
        ],
        ids=repr,
    )
    def test_delta_below_the_eps_that_is_sampled(self, method, sigma, eps):
        """At eps = 1e-4 delta is up to 500 times smaller than at 0."""
        strategy, schema = dm.Identity(2), dm.BallsInBins(2)
        found = dm.delta(strategy, sigma, eps, participation=schema, method=method, rng=1)
        # For two independent bins at so large a sigma the log ratio is normal with variance 1 / (2 sigma^2).
        truth = gaussian(0.5 * sigma**-2, eps)
        assert found.lower <= truth * (1.0 + 1e-3)
        assert found.upper >= truth * (1.0 - 1e-3)
        assert (
            dm.delta(strategy, sigma, 1e-4, participation=schema, method=method, rng=1).upper <= found.upper
        )

    @pytest.mark.parametrize(
        ("method", "eps", "delta"),
        [
            (None, 0.007, 1e-5),
            pytest.param(None, 0.04, 1e-9, marks=pytest.mark.slow),
            pytest.param(None, 0.005, 1e-5, marks=pytest.mark.slow),
            pytest.param(dm.methods.Certified(), 0.005, 1e-5, marks=pytest.mark.slow),
            pytest.param(dm.methods.Deterministic(), 0.04, 1e-9, marks=pytest.mark.slow),
        ],
        ids=repr,
    )
    def test_budgets_beyond_the_orders_of_the_moment_bound(self, method, eps, delta):
        strategy, schema = dm.Identity(40), dm.BallsInBins(20)
        cal = dm.calibrate_sigma(strategy, eps, delta, participation=schema, method=method, rng=1)
        moments = dm.calibrate_sigma(strategy, eps, delta, participation=schema, method=dm.methods.Rdp())
        assert 0.2 * moments.sigma < cal.sigma < moments.sigma
        assert dm.delta(strategy, cal.sigma, eps, participation=schema, rng=2).lower <= delta

    @pytest.mark.slow
    @pytest.mark.exhaustive
    def test_epsilon_of_sigmas_that_no_sample_reaches(self):
        four, schema = dm.Identity(4), dm.BallsInBins(2)
        for method in (dm.methods.Certified(), dm.methods.Deterministic()):
            with pytest.raises(dm.NumericalError, match=r"only Rdp\(\) has a bound"):
                dm.epsilon(four, 0.001, 1e-5, participation=schema, method=method, rng=1)
        moments = dm.epsilon(four, 0.001, 1e-5, participation=schema, method=dm.methods.Rdp())
        assert dm.epsilon(four, 0.001, 1e-5, participation=schema) == moments
        with pytest.raises(dm.NumericalError, match=r"only Rdp\(\) has a bound"):
            dm.epsilon(four, 0.05, 1e-5, participation=schema, method=dm.methods.Deterministic())
        for method in (None, dm.methods.Certified()):
            huge = dm.epsilon(four, 1e8, 1e-5, participation=schema, method=method)
            assert (huge.lower, huge.upper) == (0.0, 0.0)

    def test_one_bin_is_not_random_and_takes_signed_strategies(self):
        strategy = dm.BandedToeplitz(6, [1.0, -0.5])
        cal = dm.calibrate_sigma(strategy, 1.0, 1e-5, participation=dm.BallsInBins(1))
        every = dm.calibrate_sigma(strategy, 1.0, 1e-5, participation=dm.FixedEpochs(6))
        assert (cal.sigma, cal.guarantee) == (every.sigma, every.guarantee)
        with pytest.raises(dm.UnsupportedCombinationError, match="negative entries"):
            dm.calibrate_sigma(strategy, 1.0, 1e-5, participation=dm.BallsInBins(2))

    def test_certification_is_tried_a_few_times_and_then_refused(self, monkeypatch):
        probes = []

        def never(gram, eps, threshold, **settings):
            probes.append((eps, settings["beta"]))
            part = CertifiedDirection(1.0, 1)
            return CertifiedBound(part, part)

        monkeypatch.setattr("dpmech.engines.gaussian_mixture.certified_accountant.certify_delta", never)
        for call in (
            lambda: dm.epsilon(
                self.strategy,
                2.5,
                1e-3,
                participation=self.participation,
                method=dm.methods.Certified(3e-9),
                rng=1,
            ),
            lambda: dm.calibrate_sigma(
                self.strategy,
                1.0,
                1e-3,
                participation=self.participation,
                method=dm.methods.Certified(3e-9),
                rng=1,
            ),
        ):
            probes.clear()
            with pytest.raises(dm.NumericalError, match="could be certified"):
                call()
            assert len(probes) == 5
            assert sum(Fraction(beta) for _, beta in probes) < Fraction(3e-9)
            assert sum(beta for _, beta in probes) > 0.9 * 3e-9

    def test_a_seed_reproduces_and_entropy_does_not(self):
        values = [
            dm.delta(self.strategy, 3.0, 0.5, participation=self.participation, rng=rng).upper
            for rng in (1, 1, None, None)
        ]
        assert values[0] == values[1]
        assert values[2] != values[3]


class TestEdges:
    def test_one_bin_is_the_unsampled_mechanism(self):
        strategy = dm.LambdaCGD(12, 0.5)
        cal = dm.calibrate_sigma(strategy, 1.0, 1e-5, participation=dm.BallsInBins(1))
        assert str(cal.guarantee) == "exact"
        assert cal.sigma == dm.calibrate_sigma(strategy, 1.0, 1e-5, participation=dm.FixedEpochs(12)).sigma

    @pytest.mark.slow
    def test_as_many_bins_as_steps(self):
        cal = dm.calibrate_sigma(dm.LambdaCGD(40, 0.5), 1.0, 1e-3, participation=dm.BallsInBins(40), rng=2)
        single = dm.calibrate_sigma(dm.LambdaCGD(40, 0.5), 1.0, 1e-3, participation=dm.SingleParticipation())
        assert 0.2 * single.sigma < cal.sigma < single.sigma

    def test_lambda_near_one(self):
        cal = dm.calibrate_sigma(dm.LambdaCGD(40, 0.9999), 2.0, 1e-4, participation=dm.BallsInBins(20), rng=2)
        fixed = dm.calibrate_sigma(dm.LambdaCGD(40, 0.9999), 2.0, 1e-4, participation=dm.FixedEpochs(2))
        assert cal.sigma <= fixed.sigma

    @pytest.mark.slow
    def test_more_bins_need_less_noise(self):
        sigmas = [
            dm.calibrate_sigma(
                dm.LambdaCGD(2 * b, 0.5), 1.0, 1e-4, participation=dm.BallsInBins(b), rng=4
            ).sigma
            for b in (2, 8, 32)
        ]
        assert sigmas[0] > sigmas[1] > sigmas[2]


class TestTable4:
    """Amplified entries of Table 4 in the DP-lambda-CGD paper, within the paper's own sampling error."""

    @pytest.mark.slow
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("strategy", "eps", "printed"),
        [
            (dm.LambdaCGD(3900, 0.9), 8.0, 13.25),
            (dm.InverseSquareRoot(3900, 64), 8.0, 6.81),
            (dm.SquareRoot(3900, 16), 2.0, 28.59),
        ],
    )
    def test_entry(self, strategy, eps, printed):
        cal = dm.calibrate_sigma(
            strategy, eps, 1e-5, participation=dm.BallsInBins(390), method=dm.methods.Importance(0.03), rng=17
        )
        assert abs(cal.rmse() / printed - 1.0) <= 0.035
