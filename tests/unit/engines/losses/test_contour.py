"""Composed deltas against closed forms of one step, quadrature over two, and other accountants of many."""

import dataclasses
import itertools
import math

import mpmath as mp
import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.losses.accountants import PoissonAccountant
from dpmech.engines.losses.contour import Contour, FarLosses, Sketch
from dpmech.engines.losses.direction import Direction, FewLines
from dpmech.engines.losses.lattice import Loss
from dpmech.engines.losses.lattice_route import LatticeRoute
from dpmech.engines.losses.release import PoissonRelease
from dpmech.numerics import Bounds
from tests.support import oracles as oracle
from tests.support.quick_cases import slow_but

ONE = Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("one"))
# (q, sigma, eps): little and much noise, small and large eps, rates down to one in a million.
ONE_STEP = [
    (0.5, 0.3, 5.0), (0.5, 0.3, 0.01), (0.01, 1.0, 1.0), (0.01, 1.0, 0.001), (1e-6, 0.6, 0.01),
    (1e-6, 0.13, 50.0),
    (1e-3, 2.0, 0.01), (0.9, 8.0, 0.3), (0.3, 200.0, 0.001), (1e-4, 0.4, 8.0), (0.01, 3.0, 0.0),
]  # fmt: skip


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize(("q", "sigma", "eps"), ONE_STEP)
def test_one_step_against_the_closed_form(q, sigma, eps, remove):
    """The accountant has a formula for one step; the contour does not know it."""
    truth = oracle.sampled_delta(q, sigma, eps, remove=remove, digits=50)
    direction = Direction(PoissonRelease(q, 1, ONE), sigma, remove=remove)
    lower, upper, _ = direction.delta(eps, 1e-4)
    assert lower <= truth <= upper
    if truth > 1e-250:
        assert upper <= lower * 1.01
        assert direction.log_ceiling(eps) >= mp.log(truth)
    if 1e-250 < truth < 0.1 and eps > 0.0:
        low, high = direction.epsilon(float(truth), 1e-3)
        assert low <= eps * (1 + 1e-9)
        assert high >= eps * (1 - 1e-9)
        assert high <= low * 1.01


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize(
    ("q", "sigma", "eps"),
    slow_but([(0.05, 0.6, 3.0), (0.3, 2.0, 0.7), (1e-4, 0.5, 0.01), (1e-6, 0.6, 0.01), (1e-3, 1.0, 0.05),
     (0.6, 10.0, 0.1)], 0, 3, 5),
)  # fmt: skip
def test_two_steps_against_quadrature(q, sigma, eps, remove):
    truth = oracle.sampled_delta_two_steps(q, sigma, eps, remove=remove, digits=25)
    lower, upper, _ = Direction(PoissonRelease(q, 2, ONE), sigma, remove=remove).delta(eps, 1e-5)
    assert lower * (1 - 1e-12) <= truth <= upper * (1 + 1e-12)
    if truth > 1e-250:
        assert upper <= lower * (1.002 if truth > 1e-15 else 1.03)


@pytest.mark.parametrize(
    ("q", "steps", "sigma", "eps"),
    [(0.01, 1000, 1.0, 1.0), (1e-3, 3000, 0.7, 1.0), (0.5, 40, 8.0, 1.0), (0.1, 10, 1.0, 0.3),
     (1e-3, 20_000, 3.0, 0.1)],
)  # fmt: skip
def test_lattices_agree(q, steps, sigma, eps):
    release = PoissonRelease(q, steps, ONE)
    one = PoissonAccountant(release).delta(sigma, eps, tolerance=1e-4)
    other = LatticeRoute(release).delta(sigma, eps, tolerance=1e-3)
    assert one.lower <= other.upper
    assert other.lower <= one.upper
    assert one.upper <= one.lower * 1.01
    assert other.upper <= other.lower * 1.05


def test_ends_are_nested_as_the_smoothing_narrows():
    loss, eps = Loss(0.02, 0.9, True), 0.8
    contour = Contour(loss, 300, Sketch(loss, 300).line(eps))
    ends = [contour.smoothed(contour.line.width * 0.5**k).ends(eps) for k in range(6)]
    for (low, high), (lower, upper) in itertools.pairwise(ends):
        assert low < lower < upper < high
    gaps = [upper - lower for lower, upper in ends]
    # In proportion to the square of the width.
    assert gaps[-2] / gaps[-1] == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("change", [{"spacing": 2.0}, {"theta": 0.7}, {"theta": 1.3}, {"cut": 1.5}])
def test_any_line_gives_bounds(change):
    """Where the line runs decides how close they are, and nothing else."""
    loss, eps, steps = Loss(1e-3, 0.6, True), 0.5, 2
    truth = oracle.sampled_delta_two_steps(1e-3, 0.6, eps, remove=True, digits=25)
    line = Sketch(loss, steps).line(eps)
    assert math.isfinite(line.cut)
    moved = dataclasses.replace(line, **{name: getattr(line, name) * by for name, by in change.items()})
    lower, upper = Contour(loss, steps, moved).smoothed(0.1 * moved.width).ends(eps)
    assert lower <= truth <= upper
    lower, upper = (
        Contour(loss, steps, dataclasses.replace(line, cut=math.inf)).smoothed(line.width).ends(eps)
    )
    assert lower <= truth <= upper


@pytest.mark.parametrize("remove", [True, False])
def test_few_lines_serve_many_eps_of_one_step(remove):
    q, sigma = 0.2, 0.8
    direction = Direction(PoissonRelease(q, 1, ONE), sigma, remove=remove)
    lines = FewLines(direction, 1e-3)
    # In no order; the last ones are above all losses of ADD.
    levels = [0.01 * (37 * k % 60) if not remove else 0.1 * (37 * k % 60) for k in range(60)]
    for eps in levels:
        truth = oracle.sampled_delta(q, sigma, eps, remove=remove, digits=30)
        lower, upper = lines.delta(eps)
        assert lower <= truth <= upper == lines.upper(eps)
        # A thousandth of sigma is less than 2 % of delta here.
        assert upper <= lower * 1.02 or truth < 1e-12
    assert len(lines._lines) <= 20


def test_an_eps_of_its_own_gets_the_line_that_it_has_alone():
    direction = Direction(PoissonRelease(0.01, 1000, ONE), 1.0, remove=True)
    for eps in (0.0, 1.0, 3.0):
        assert FewLines(direction, 1e-3).delta(eps) == direction.delta(eps, 1e-3)[:2]
    lines = FewLines(direction, 1e-3)
    for eps in np.linspace(0.0, 4.0, 25):
        (lower, upper), (least, most, _) = lines.delta(float(eps)), direction.delta(float(eps), 1e-3)
        assert max(lower, least) <= min(upper, most)
    assert len(lines._lines) <= 8


def test_a_gap_of_the_sensitivity_narrows_no_smoothing():
    """Lower bounds are at the larger noise; no width closes the gap, and none is tried for it."""
    gap = Bounds.bracket(0.99, 1.0, dm.numerics.Provenance("gap"))
    exact, bracketed = (
        Direction(PoissonRelease(0.01, 100, one), 1.0, remove=True).resolved(1.0, 1e-3) for one in (ONE, gap)
    )
    assert bracketed.loss.tau == exact.loss.tau
    lower, upper = bracketed.ends(1.0)
    assert upper == exact.ends(1.0)[1]
    other = Direction(PoissonRelease(0.01, 100, ONE), 1.0 / 0.99, remove=True).delta(1.0, 1e-3)
    assert other[0] * 0.999 <= lower <= other[1]


def test_aliases_matter_on_a_coarse_mesh():
    """They are what the lower end would be wrong by without them."""
    loss, eps, steps = Loss(0.3, 2.0, True), 0.7, 2
    truth = oracle.sampled_delta_two_steps(0.3, 2.0, eps, remove=True, digits=25)
    line = Sketch(loss, steps).line(eps)
    coarse = Contour(loss, steps, dataclasses.replace(line, spacing=6.0 * line.spacing))
    found = coarse.smoothed(0.02 * line.width)
    lower, upper = found.ends(eps)
    assert lower <= truth <= upper
    assert lower + coarse.aliases(eps, found.tau) > truth


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize(("q", "sigma", "eps", "cut"), [(0.3, 0.8, 0.1, 0.25), (1e-4, 0.5, 0.01, 0.02)])
def test_far_losses_of_one_step(q, sigma, eps, cut, remove):
    if not remove and cut >= -math.log1p(-q):
        return
    loss = Loss(q, sigma, remove)
    line = dataclasses.replace(Sketch(loss, 1).line(eps), cut=cut, opposed=50.0)
    far = FarLosses(loss, 1, line)
    low, high = far.ends(eps)
    with mp.workdps(40):
        s, edge = mp.mpf(sigma), mp.mpf(far.edge)
        noise = mp.ncdf(-edge / s) if remove else mp.ncdf(edge / s)
        shifted = mp.ncdf((1 - edge) / s) if remove else mp.ncdf((edge - 1) / s)
        mixture = (1 - mp.mpf(q)) * noise + mp.mpf(q) * shifted
        above, below = (mixture, noise) if remove else (noise, mixture)
        truth = above - mp.exp(mp.mpf(eps)) * below
        assert low <= truth <= high
        assert low >= truth * (1 - mp.mpf(10) ** -9) - above * mp.mpf(10) ** -11
        loss_there = mp.log(1 - mp.mpf(q) + mp.mpf(q) * mp.exp((edge - mp.mpf(1) / 2) / s**2))
        assert far.level <= (loss_there if remove else -loss_there)


@pytest.mark.slow
def test_a_release_that_is_less_sensitive_below_has_a_lower_lower_end():
    wide = Bounds(0.98, 1.0, dm.Guarantee(dm.Kind.BOUND), dm.numerics.Provenance("one"))
    exact = PoissonAccountant(PoissonRelease(0.01, 500, ONE))
    loose = PoissonAccountant(PoissonRelease(0.01, 500, wide))
    lower, upper, _ = loose._bracket(1.0, 1.0, 1e-3)
    assert exact.delta(1.0 / 0.98, 1.0, tolerance=1e-4).lower == pytest.approx(lower, rel=3e-2)
    assert exact.delta(1.0, 1.0, tolerance=1e-4).upper == pytest.approx(upper, rel=3e-2)


# Budgets that lattices refused, or took a minute for.
@pytest.mark.parametrize(
    ("q", "steps", "eps", "delta"),
    slow_but(
        [(1e-6, 3, 0.01, 1e-12), (1e-3, 10, 0.01, 1e-9), (1e-6, 10**5, 0.1, 1e-12), (1e-5, 1000, 2.0, 1e-9),
         (1e-6, 10**6, 0.01, 1e-5), (1e-5, 3, 0.1, 1e-5), (1e-5, 3, 0.1, 2.9e-5), (0.5, 10**6, 50.0, 1e-12)],
        0, 5,
    ),
)  # fmt: skip
def test_budgets_that_were_refused_are_met_and_shown_to_be_tight(q, steps, eps, delta):
    schema, strategy = dm.Poisson(q), dm.Identity(steps)
    calibration = dm.calibrate_sigma(strategy, eps, delta, participation=schema)
    assert calibration.achieved.upper <= eps
    accountant = PoissonAccountant(PoissonRelease(q, steps, ONE))
    assert accountant.delta(calibration.sigma, eps, tolerance=1e-4).upper <= delta
    assert accountant.delta(calibration.sigma / 1.001, eps, tolerance=1e-4).lower > delta
    # Renyi bounds are looser, and not far off where eps is large.
    renyi = dm.delta(strategy, calibration.sigma, eps, participation=schema, method=dm.methods.Rdp()).upper
    assert renyi >= accountant.delta(calibration.sigma, eps, tolerance=1e-4).lower


def test_what_is_too_long_is_refused_and_not_begun(monkeypatch):
    from dpmech.engines.losses import contour as contours

    loss = Loss(0.1, 1.0, True)
    contour = Contour(loss, 100, Sketch(loss, 100).line(1.0))
    with pytest.raises(dm.NumericalError, match="tolerance too small"):
        contour.smoothed(1e-9)
    monkeypatch.setattr(contours, "_MOST_WORK", 10.0)
    with pytest.raises(dm.NumericalError, match="nodes: tolerance too small"):
        contour.smoothed(contour.line.width)


@pytest.mark.slow
def test_far_from_its_eps_a_line_still_bounds():
    loss = Loss(0.3, 2.0, True)
    found = Contour(loss, 2, Sketch(loss, 2).line(1.0)).smoothed(0.01)
    for eps in np.linspace(0.0, 3.0, 13):
        truth = oracle.sampled_delta_two_steps(0.3, 2.0, float(eps), remove=True, digits=15)
        lower, upper = found.ends(float(eps))
        assert lower <= truth * (1 + 1e-9)
        assert upper >= truth * (1 - 1e-9)
