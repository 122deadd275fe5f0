"""The deterministic accountant of Balls-in-Bins: what it returns stands by itself, and above the truth."""

import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting.balls_in_bins.ring import accountant as programmed
from dpmech.exceptions import NumericalError
from dpmech.numerics import up
from tests.support.generators import random_bins_problem

METHOD = dm.Deterministic(0.3)
SCHEMA = dm.BallsInBins(8)


def calibrated(**options):
    return dm.calibrate_sigma(
        dm.LambdaCGD(24, 0.6), 2.0, 1e-4, participation=SCHEMA, method=METHOD, **options
    )


class TestCalibration:
    def test_a_fresh_evaluation_confirms_sigma_and_it_is_tight(self):
        lines = []
        cal = calibrated(progress=lines.append)
        again = dm.delta(cal.strategy, cal.sigma, 2.0, participation=SCHEMA, method=METHOD)
        assert again.upper <= 1e-4
        assert str(again.by) == cal.method
        assert str(cal.guarantee) == "deterministic upper bound"
        below = dm.delta(cal.strategy, cal.sigma * 0.99, 2.0, participation=SCHEMA, method=METHOD)
        assert below.upper > 1e-4
        sampled = dm.calibrate_sigma(cal.strategy, 2.0, 1e-4, participation=SCHEMA, rng=3)
        assert sampled.sigma * 0.99 < cal.sigma < sampled.sigma * 1.04
        assert any(line.startswith("programme: ") for line in lines)
        assert lines[-1].startswith("confirm: ")

    @pytest.mark.parametrize("delta", [0.1, 0.05])
    def test_a_confirmation_that_fails_moves_up(self, delta):
        """Here the grids of the first search are a little better than those of the last one."""
        cal = dm.calibrate_sigma(
            dm.LambdaCGD(12, 0.7), 1.0, delta, participation=dm.BallsInBins(4), method=dm.Deterministic()
        )
        again = dm.delta(
            cal.strategy, cal.sigma, 1.0, participation=cal.participation, method=dm.Deterministic()
        )
        assert again.upper <= delta

    def test_a_bound_that_cannot_be_confirmed_raises(self, monkeypatch):
        monkeypatch.setattr(
            programmed.DeterministicAccountant,
            "delta",
            lambda self, sigma, eps, tolerance: dm.Bounds.bracket(
                0.0, 1.0, dm.Provenance("a bound that is of no use")
            ),
        )
        with pytest.raises(NumericalError, match="confirmed"):
            calibrated()


<<<<<<< HEAD
=======
def small_accountant(rel_error=0.3):
    """Four bins of BISR, which no ring has exactly, at three epochs."""
    strategy = dm.InverseSquareRoot(12, 3)
    return programmed.DeterministicAccountant(
        ring_profile(strategy, 4),
        bin_gram(strategy, 4),
        dm.sensitivity(strategy, dm.BallsInBins(4)),
        dm.Deterministic(rel_error),
    )


class TestRing:
    @pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
    def test_the_ring_is_at_sigma_one_whatever_sigma_it_was_fitted_at(self, sigma):
        one = small_accountant()
        above = one._ring(sigma, 1.0).profile() - one.profile
        assert np.all(above >= 0.0)
        assert np.sum(above) <= 0.05 * np.sum(one.profile)
        assert np.sum(above) > 1e-6

    def test_the_text_says_by_how_much_it_over_states(self):
        one = small_accountant()
        ring = dataclasses.replace(one._ring(1.0, 1.0), constant=0.25)
        excess = 100.0 * (np.sum(ring.profile()) - np.sum(one.profile)) / np.sum(one.profile)
        assert excess > 1.0
        by = one._described(ring)
        assert by.facts == {
            "bins": one.gram.bins,
            "decay": ring.decay,
            "excess": pytest.approx(0.01 * excess),
        }
        assert f"decay {ring.decay:.4g} (entries over-stated by {up(excess, 2)} % in the mean)" in str(by)


class TestEpsilon:
    @pytest.mark.parametrize("sigma", [0.8, 2.0])
    def test_it_is_where_the_bound_on_delta_meets_the_one_asked_for(self, sigma):
        one = small_accountant()
        eps = one.epsilon(sigma, 1e-3, tolerance=1e-3)
        assert eps.lower == 0.0
        assert one.delta(sigma, eps.upper, tolerance=1e-3).upper <= 1e-3 * 1.05
        assert one.delta(sigma, 0.97 * eps.upper, tolerance=1e-3).upper > 1e-3

    def test_it_is_nothing_where_delta_allows_all(self):
        found = small_accountant().epsilon(40.0, 0.1, tolerance=1e-3)
        assert (found.lower, found.upper) == (0.0, 0.0)


class Known(programmed.DeterministicAccountant):
    """One Gaussian, with a worse bound below `cliff`."""

    def __init__(self, cliff=0.0):
        self.cliff, self.guarantee = cliff, dm.Guarantee(dm.Kind.BOUND)

    def delta(self, sigma, eps, *, tolerance):
        del tolerance
        return dm.Bounds.bracket(
            0.0, gaussian_delta(sigma, eps)[1] if sigma >= self.cliff else 0.5, dm.Provenance("known")
        )


class TestConfirmation:
    ROOT = gaussian_sigma(1.0, 1e-5)

    @pytest.mark.parametrize("off", [-0.03, -0.001, 0.0, 0.001, 0.03])
    def test_it_ends_just_above_the_root(self, off):
        found = Known()._confirmed(math.log(self.ROOT) + off, 1.0, 1e-5, 1e-3, lambda _: None)
        assert self.ROOT * (1.0 - 1e-12) <= found.sigma <= self.ROOT * 1.0011
        assert found.achieved.upper == 1.0

    def test_a_bound_that_jumps_ends_on_the_safe_side(self):
        probes = []
        cliff = self.ROOT * 1.01
        found = Known(cliff)._confirmed(math.log(self.ROOT * 1.02), 1.0, 1e-5, 1e-3, probes.append)
        assert found.sigma >= cliff
        assert len(probes) > 1


>>>>>>> main
@pytest.mark.slow
def test_never_below_the_importance_interval():
    """12 random problems; a 99.99 % interval is above the bound by chance once in 1600 runs.

    The generators are fixed, so that it either happens or does not.
    """
    for case in range(12):
        strategy, bins, sigma, eps = random_bins_problem(np.random.default_rng([77, case]))
        participation = dm.BallsInBins(bins)
        sampled = dm.delta(strategy, sigma, eps, participation=participation, rng=case)
        bound = dm.delta(strategy, sigma, eps, participation=participation, method=dm.Deterministic(0.2))
        assert bound.upper >= sampled.lower, (strategy, bins, sigma, eps)
