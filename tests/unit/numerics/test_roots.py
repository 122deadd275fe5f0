import math

import pytest

import dpmech as dm
from dpmech.engines.accountant import Accountant
from dpmech.engines.gaussian import gaussian_delta, gaussian_epsilon, gaussian_sigma
from dpmech.engines.sigma_search import sigma_near, smallest_sigma
from dpmech.numerics import bisect_boundary, safe_root
from dpmech.numerics.bounds import Bounds

EXACT = gaussian_sigma(1.0, 1e-5)


class Plain(Accountant):
    """The Gaussian mechanism behind the interface, with a widened bracket and a count of probes."""

    def __init__(self, widen=0.0, lower=True, eps_shift=0.0):
        self.widen, self.lower, self.eps_shift, self.probes = widen, lower, eps_shift, 0
        self.by, self.guarantee = dm.numerics.Provenance("plain"), dm.Guarantee(dm.Kind.EXACT)
        self.sensitivity = Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("one"))

    def delta(self, sigma, eps, *, tolerance):
        self.probes += 1
        low, high = gaussian_delta(sigma, eps)
        return Bounds.bracket(
            low * (1 - self.widen) if self.lower else 0.0,
            min(1.0, high * (1 + self.widen)),
            dm.numerics.Provenance("plain"),
        )

    def epsilon(self, sigma, delta, *, tolerance):
        value = gaussian_epsilon(sigma, delta, safe=True) + self.eps_shift
        return Bounds.bracket(0.0, value, dm.numerics.Provenance("plain"))

    def calibrate(self, eps, delta, *, rtol, progress):
        raise NotImplementedError


def solve(accountant, rtol=1e-3, start=1.0, step=0.01, progress=lambda line: None):
    return smallest_sigma(accountant, 1.0, 1e-5, rtol=rtol, start=start, step=step, progress=progress)


@pytest.mark.parametrize("rtol", [1e-6, 1e-4, 1e-3, 0.1, 0.5])
@pytest.mark.parametrize("start", [1e-4, 0.5, EXACT, EXACT * 1.0005, 30.0, 1e6])
def test_safe_and_within_rtol_from_any_start(rtol, start):
    sigma = solve(Plain(), rtol, start).sigma
    assert sigma * (1 + 1e-12) >= EXACT
    assert sigma <= EXACT * (1 + rtol)


@pytest.mark.parametrize("rtol", [1e-4, 1e-3, 0.1])
@pytest.mark.parametrize("start", [1e-4, 0.5, EXACT * 0.999, EXACT, EXACT * 1.0005, 30.0, 1e6])
def test_a_search_nearby_is_safe_and_within_rtol_from_any_start(rtol, start):
    accountant = Plain()
    sigma = sigma_near(accountant, 1.0, 1e-5, rtol=rtol, start=start, progress=lambda line: None).sigma
    assert sigma * (1 + 1e-12) >= EXACT
    assert sigma <= EXACT * (1 + 0.5 * rtol)
    # Two of the probes prove the result.
    if abs(start / EXACT - 1.0) <= 1e-3:
        assert accountant.probes <= 5


def test_a_search_nearby_that_does_not_end_is_followed_by_one_with_a_bracket():
    class Stuck(Plain):
        def upper_delta(self, sigma, eps, *, tolerance):
            return 1.0 if sigma < EXACT else 0.5e-5

    sigma = sigma_near(Stuck(), 1.0, 1e-5, rtol=0.1, start=1.0, progress=lambda line: None).sigma
    assert EXACT <= sigma <= EXACT * 1.1


def test_few_probes_from_a_good_guess():
    accountant = Plain()
    solve(accountant, start=EXACT * 1.005)
    assert accountant.probes <= 10


def test_progress_hears_of_every_probe():
    lines = []
    solve(Plain(), progress=lines.append)
    assert len(lines) >= 3
    assert all(line.startswith("sigma ") and "delta <= " in line for line in lines)


def test_bounds_too_far_apart_raise():
    with pytest.raises(dm.NumericalError, match=r"could not be shown to be within rtol=0\.001"):
        solve(Plain(widen=0.2))


def test_without_lower_bound_the_certified_sigma_is_returned():
    assert EXACT <= solve(Plain(lower=False)).sigma <= EXACT * (1 + 1e-3)


def test_disagreement_of_eps_and_delta_raises():
    with pytest.raises(dm.NumericalError):
        solve(Plain(eps_shift=0.1))


def test_unattainable():
    accountant = Plain()
    accountant.delta = lambda sigma, eps, *, tolerance: Bounds.bracket(
        0.5, 0.5, dm.numerics.Provenance("constant")
    )
    with pytest.raises(dm.UnattainableBudgetError, match="sigma would exceed 1e15"):
        solve(accountant)


def test_zero_delta_counts_as_safe():
    accountant = Plain()
    truth = accountant.delta

    def vanishing(sigma, eps, *, tolerance):
        return (
            Bounds.bracket(0.0, 0.0, dm.numerics.Provenance("none"))
            if sigma > 2 * EXACT
            else truth(sigma, eps, tolerance=tolerance)
        )

    accountant.delta = vanishing
    assert EXACT <= solve(accountant, start=100.0).sigma <= EXACT * 1.001


@pytest.mark.parametrize("fault", [math.nan])
def test_nan_raises(fault):
    accountant = Plain()
    accountant.delta = lambda sigma, eps, *, tolerance: Bounds.bracket(
        0.0, fault, dm.numerics.Provenance("broken")
    )
    with pytest.raises(dm.InvalidParameterError, match="neither NaN"):
        solve(accountant)


@pytest.mark.parametrize("shift", [0.0, 2.2e-4, 2.5e-4, 3e-4])
def test_a_sigma_whose_epsilon_is_just_above_is_raised_a_little(shift):
    # delta certifies a sigma whose eps is above the budget by less than the resolution of the search.
    solution = solve(Plain(eps_shift=shift))
    assert solution.achieved.upper <= 1.0
    assert EXACT <= solution.sigma <= EXACT * (1 + 1e-3)


@pytest.mark.parametrize("place", ["start", "bracket", "inside"])
def test_a_bound_that_is_no_number_never_ends_a_search(place):
    """NaN compares as not below zero: it would pass for a safe point."""
    bad = {"start": (0.9, 1.1), "bracket": (-2.0, 0.5), "inside": (0.2, 0.35)}[place]

    def excess(x):
        return math.nan if bad[0] <= x <= bad[1] else x - 0.3

    with pytest.raises(dm.NumericalError, match="not a number"):
        safe_root(excess, 1.0, step=1.0 if place != "inside" else 2.0, resolution=1e-6)


@pytest.mark.parametrize("root", [1e-12, 0.3, 7.77, 1e6])
def test_a_comparison_is_halved_down_to_the_last_digits(root):
    for safe in (True, False):
        asked = []

        def above(x, asked=asked):
            asked.append(x)
            return x < root

        found = bisect_boundary(above, 0.0, 1e7, safe=safe)
        assert found == pytest.approx(root, rel=1e-13)
        assert (found >= root) is safe
        assert len(asked) < 120
