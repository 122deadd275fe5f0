"""What the deterministic accountant is made of: its ring, its eps, and the confirmations of its sigma."""

import dataclasses
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.convex_order import accountant as programmed
from dpmech.engines.convex_order.mixture_ring import MixtureGram
from dpmech.engines.convex_order.ring import RingGram
from dpmech.engines.convex_order.transform import Transformed
from dpmech.engines.gaussian import gaussian_delta, gaussian_epsilon, gaussian_sigma
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram, lower_profiles, ring_profile
from dpmech.engines.independent_sum import BlockBound
from dpmech.exceptions import NumericalError
from dpmech.numerics import BOUND, up
from tests.support.bins_oracles import gaussian


def small_accountant(rel_error=0.3):
    """Four bins of BISR, which no ring has exactly, at three epochs."""
    strategy = dm.InverseSquareRoot(12, 3)
    return programmed.DeterministicAccountant(
        ring_profile(strategy, 4),
        bin_gram(strategy, 4),
        dm.sensitivity(strategy, dm.BallsInBins(4)),
        dm.methods.Deterministic(rel_error),
        BlockBound(4, lambda most, dropped: lower_profiles(strategy, 4, most, dropped)),
    )


class TestRing:
    @pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
    def test_the_ring_is_at_sigma_one_whatever_sigma_it_was_fitted_at(self, sigma):
        one = small_accountant()
        above = one._ring(sigma, 1.0).profile() - one.covariance
        assert np.all(above >= 0.0)
        assert np.sum(above) <= 0.05 * np.sum(one.covariance)
        assert np.sum(above) > 1e-6

    def test_the_text_says_by_how_much_it_over_states(self):
        one = small_accountant()
        ring = dataclasses.replace(one._ring(1.0, 1.0), constant=0.25)
        excess = 100.0 * (np.sum(ring.profile()) - np.sum(one.covariance)) / np.sum(one.covariance)
        assert excess > 1.0
        by = one._described(ring)
        assert by.facts == {
            "bins": one.gram.bins,
            "decay": ring.decay,
            "excess": pytest.approx(0.01 * excess),
        }
        assert f"decay {ring.decay:.4g} (entries over-stated by {up(excess, 2)} % in the mean)" in str(by)


class Chosen(programmed.DeterministicAccountant):
    """Bounds by transforms with a share of errors, and one with a tilt, all of them given."""

    def __init__(self, bins, share, tilted=math.inf):
        self.gram = self.one = MixtureGram(bins, 1.0, ((1.0, 0.5),), 0.0)
        self.plain, self.tilt = Transformed(1e-6, 1e-6 * share), Transformed(tilted, 0.0)

    def _fitted(self, sigma, eps):
        del sigma, eps
        return self.one, self.one, self.one

    def _estimate(self, one, sigma, eps):
        del one, sigma, eps
        return 1e-6

    def _near(self, one, sigma, eps):
        del sigma, eps
        return programmed._Rings(one, one, tilted=True) if self.tilt.delta < math.inf else None

    def _removed(self, gram, sigma, eps):
        del gram, sigma, eps
        return self.plain

    def _transformed(self, rings, sigma, eps):
        del sigma, eps
        return self.tilt if rings.tilted else self.plain


class TestChoice:
    @pytest.mark.parametrize(
        ("bins", "share", "tilted", "found"),
        [
            (79, 0.04, math.inf, "plain"),
            (79, 0.1, math.inf, "program"),
            (80, 0.1, math.inf, "plain"),
            (80, 0.6, math.inf, "program"),
            (79, 0.1, 9e-7, "tilted"),
            # a valid bound that is smaller is kept, errors included
            (79, 0.9, 1.1e-6, "plain"),
            (80, 0.9, 1.1e-6, "plain"),
        ],
    )
    def test_bounds_with_errors_leave_it_to_the_program_where_that_is_quick(self, bins, share, tilted, found):
        rings = Chosen(bins, share, tilted)._served(1.0, 1.0)
        assert found == ("program" if rings is None else "tilted" if rings.tilted else "plain")


NOTHING_BELOW = BlockBound(2, lambda most, dropped: np.zeros((len(dropped), most)))


class Closed(programmed.DeterministicAccountant):
    """One Gaussian in the place of the program, and a guess that is off."""

    def __init__(self, off):
        self.off = off
        self.below = NOTHING_BELOW
        self.settings = dm.methods.Deterministic()
        self.guarantee = BOUND

    def _guess(self, sigma, delta):
        return self.off * gaussian_epsilon(sigma, delta, safe=True)

    def _mixture(self, sigma, eps):
        del sigma, eps  # the program alone

    def _ring(self, sigma, eps):
        del sigma, eps
        return RingGram(1, 0.0, 1.0, 0.5, 0.0)

    def _described(self, ring):
        return dm.numerics.Provenance("known", {"bins": ring.bins})


class TestEpsilon:
    @pytest.mark.parametrize("off", [0.7, 1.0, 1.2])
    @pytest.mark.parametrize("sigma", [0.8, 3.0])
    def test_it_is_closely_above_where_delta_is_the_one_asked_for(self, sigma, off):
        found = Closed(off).epsilon(sigma, 1e-5, tolerance=1e-3)
        exact = gaussian_epsilon(sigma, 1e-5, safe=True)
        assert found.lower == 0.0
        assert exact * (1.0 - 1e-9) <= found.upper <= exact * 1.0025
        assert gaussian_delta(sigma, found.upper)[0] <= 1e-5

    def test_it_is_nothing_where_delta_allows_all(self):
        found = Closed(1.0).epsilon(40.0, 0.1, tolerance=1e-3)
        assert (found.lower, found.upper) == (0.0, 0.0)

    def test_what_lies_beyond_the_program_is_refused(self):
        with pytest.raises(NumericalError, match="beyond the 500"):
            Closed(1.0).epsilon(0.02, 1e-5, tolerance=1e-3)

    def test_rings_at_sigma_one_are_taken_to_sigma(self):
        one, ring = small_accountant(), RingGram(1, 0.0, 1.3, 0.5, 0.0)
        first = one._search(ring, 2.0, 0.7)
        assert first.delta == pytest.approx(gaussian(1.3 / 4.0, 0.7), rel=1e-9)
        assert one._again(ring, 1.5, 0.4, first) == pytest.approx(gaussian(1.3 / 2.25, 0.4), rel=1e-9)


class Known(programmed.DeterministicAccountant):
    """One Gaussian, with a worse bound below `cliff`."""

    def __init__(self, cliff=0.0):
        self.cliff = cliff
        self.below = NOTHING_BELOW
        self.guarantee = BOUND

    def _bounded(self, sigma, eps):
        upper = gaussian_delta(sigma, eps)[1] if sigma >= self.cliff else 0.5
        return upper, dm.numerics.Provenance("known")


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
