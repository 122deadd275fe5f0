"""Composition where its margins decide: lopsided losses, a million steps, cells that give to others."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from dpmech.engines.losses import lattice as losses
from dpmech.engines.losses.convolution import ComposedLoss, JointMoments, LossMoments, compose, compose_all
from dpmech.engines.losses.lattice import LatticeLoss, Loss
from dpmech.numerics import merge_cells

LOPSIDED = np.array([0.6, 0.25, 0.1, 0.04, 0.01])


def convolved(masses, times):
    result = np.ones(1)
    for _ in range(times):
        result = np.convolve(result, masses)
    return result


@pytest.mark.parametrize("offset", [0.0, 2.0, -3.0])
@pytest.mark.parametrize("theta", [0.0, 1.5])
@pytest.mark.parametrize("masses", [LOPSIDED, LOPSIDED[::-1].copy()])
def test_window_holds_the_mass_of_a_lopsided_loss(offset, theta, masses):
    loss = LatticeLoss(0.5, 1, masses, 0.0, offset)
    tilted = masses * np.exp(theta * loss.losses())
    composed = convolved(tilted / tilted.sum(), 60)
    values = 60 * (offset + 0.5) + 0.5 * np.arange(composed.size)
    for log_tail in (math.log(0.2), math.log(1e-4), math.log(1e-12)):
        low, high = LossMoments.of(loss, 60).window(theta, log_tail)
        assert composed[values > high].sum() <= math.exp(log_tail)
        assert composed[values < low].sum() <= math.exp(log_tail)
        # And no more than a few standard deviations more than it has to be.
        mean = float(composed @ values)
        spread = math.sqrt(float(composed @ (values - mean) ** 2))
        assert high - mean <= 2.0 * spread * math.sqrt(-2.0 * log_tail) + 1.0
        assert mean - low <= 2.0 * spread * math.sqrt(-2.0 * log_tail) + 1.0


@pytest.mark.parametrize(("times", "p"), [(10**6, 3e-6), (10**6, 0.3), (1000, 0.01)])
@pytest.mark.parametrize("quantile", [-2.0, 0.0, 2.0, 5.0])
def test_rounding_of_many_steps_stays_within_the_bounds(times, p, quantile):
    # A loss of 0 or 1e-3: its sum is binomial, and delta a sum of few binomial terms.
    masses = np.array([1.0 - p, p])
    count = max(0, round(times * p + quantile * math.sqrt(times * p * (1.0 - p))))
    eps = 1e-3 * (count + 0.5)
    with mp.workdps(40):
        chance, rest = mp.mpf(float(masses[1])), mp.mpf(float(masses[0]))
        k = count + 1
        term = mp.binomial(times, k) * chance**k * rest ** (times - k)
        truth = mp.mpf(0)
        while k <= times and (term > truth * mp.mpf(10) ** -30 or truth == 0):
            truth -= term * mp.expm1(mp.mpf(eps) - mp.mpf(1e-3) * k)
            term *= chance * (times - k) / (rest * (k + 1))
            k += 1
    loss = LatticeLoss(1e-3, 0, masses, 0.0)
    for theta in (0.0, LossMoments.of(loss, times).tilt_for_eps(eps)):
        lower, upper = (compose(loss, times, theta, upper=upper).delta(eps) for upper in (False, True))
        assert lower <= truth <= upper


def curve(masses, losses, eps):
    return float(np.sum(masses * np.maximum(0.0, -np.expm1(eps - losses))))


def merged_lattice(total, nodes, losses):
    step = nodes[1] - nodes[0]

    def moved(mass, excess, up):
        return -mass * math.expm1(up * step) + math.exp(up * step) * excess

    return merge_cells(total, -total * np.expm1(nodes - losses), moved)


@pytest.mark.parametrize("step", [0.05, 0.7])
@pytest.mark.parametrize("seed", range(20))
def test_merged_cells_stay_below_the_curve(step, seed):
    # Cells of any mass whose merged losses are anywhere in the cell.
    rng = np.random.default_rng(seed)
    total = rng.dirichlet(np.full(12, 0.5))
    nodes = (np.arange(12) - 5) * step
    values = nodes + step * rng.uniform(-0.5, 0.5, 12)
    masses = merged_lattice(total, nodes, values)
    assert (masses >= 0.0).all()
    assert masses.sum() <= 1.0 + 1e-12
    # In e^eps the curves are straight between the losses, so that these decide.
    for eps in np.concatenate([nodes, values, [-10.0 * step, 10.0 * step]]):
        assert curve(masses, nodes, eps) <= curve(total, values, eps) + 1e-13


@pytest.mark.parametrize("step", [0.05, 0.4])
@pytest.mark.parametrize("shift", [-0.1, 0.1, 0.2, 0.4])
def test_merged_cells_of_a_bell_lose_no_mass(step, shift):
    nodes = (np.arange(41) - 20) * step
    total = np.exp(-0.5 * (nodes / (4.0 * step)) ** 2)
    total /= total.sum()
    values = nodes + shift * step
    masses = merged_lattice(total, nodes, values)
    assert masses.sum() == pytest.approx(1.0, abs=1e-5)
    if abs(shift) < 0.3:
        # Nor any of the other law's, up to what lies in the tails: no more is lost than the cells are wide.
        kept, whole = float(masses @ np.exp(-nodes)), float(total @ np.exp(-values))
        assert kept == pytest.approx(whole, rel=1e-4)
    for eps in np.linspace(-8.0 * step, 8.0 * step, 20):
        assert curve(masses, nodes, eps) <= curve(total, values, eps) + 1e-13
        assert curve(masses, nodes, eps) >= curve(total, values - step, eps) - 1e-5


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("reach", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("s", [0.3, 100.0])
def test_tail_mass_covers_what_lies_beyond_the_outputs(remove, reach, s):
    loss = Loss(0.2, s, remove, reach)
    low, high = loss.outputs()

    def outside(mean):
        return float(special.ndtr((low - mean) / s) + special.ndtr((mean - high) / s))

    mass = 0.8 * outside(0.0) + 0.2 * outside(1.0) if remove else outside(0.0)
    assert mass <= loss.tail_mass()
    if s == 100.0 and reach < 10.0:
        assert loss.tail_mass() <= 1.1 * mass


@pytest.mark.parametrize("step", [0.05, 0.8])
def test_a_lower_lattice_moves_its_cells_by_the_definition(monkeypatch, step):
    given = []
    true = losses.merge_cells

    def noted(total, surplus, moved):
        given.append((total, surplus, moved))
        return true(total, surplus, moved)

    monkeypatch.setattr(losses, "merge_cells", noted)
    losses.lower_lattice(Loss(0.3, 1.0, True), step)
    _, _, moved = given[0]
    mass, distance = np.array([0.2, 0.5, 0.3]), np.array([0.1, -0.2, 0.4]) * step
    for up in (-2, -1, 0, 1, 2):
        # P-mass minus e^node Q-mass, where the merged loss is `distance` above its node.
        found = moved(mass, -mass * np.expm1(-distance), up)
        assert found == pytest.approx(-mass * np.expm1(up * step - distance), rel=1e-12)


THREE = LatticeLoss(0.5, -2, np.array([0.3, 0.1, 0.2, 0.25, 0.0, 0.15]), 0.0)


def log_moment(theta):
    """Log E e^(theta L) of THREE, whose masses sum to one."""
    return math.log(sum(m * math.exp(theta * x) for m, x in zip(THREE.masses, THREE.losses(), strict=True)))


def test_cumulants_are_those_of_the_tilted_law():
    losses = THREE.losses()
    for theta in (0.0, 0.7, 3.0):
        weights = THREE.masses * np.exp(theta * losses)
        mean = float(weights @ losses / weights.sum())
        spread = float(weights @ (losses - mean) ** 2 / weights.sum())
        expected = (math.log(float(weights.sum())), mean, spread)
        assert LossMoments.of(THREE, 5).cumulants(theta) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("times", [1, 5, 200])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_chernoff_bounds_are_least_over_all_tilts(times, part):
    moments = LossMoments.of(THREE, times)
    tilts = np.linspace(1e-3, 40.0, 40_000)
    logs = np.array([log_moment(theta) for theta in tilts])
    eps = part * times * float(THREE.losses()[-1])
    least = float((times * logs - tilts * eps).min())
    assert moments.chernoff_log_delta(eps) == pytest.approx(min(0.0, least), rel=1e-5, abs=1e-9)
    log_delta = -part * times * 1.5
    least = float(((times * logs - log_delta) / tilts).min())
    assert moments.chernoff_eps(log_delta) == pytest.approx(max(0.0, least), rel=1e-4)
    # They bound what the sum of that many losses has.
    composed = convolved(THREE.masses, times)
    sums = times * -1.0 + 0.5 * np.arange(composed.size)
    for bound, at in ((moments.chernoff_log_delta(eps), eps), (log_delta, moments.chernoff_eps(log_delta))):
        assert curve(composed, sums, at) <= math.exp(bound) * (1.0 + 1e-9)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.02, 1e-5, 1e-12])
def test_the_saddle_point_of_a_gaussian_is_exact(mu, delta):
    eps = JointMoments((), mu**2).saddle_eps(math.log(delta))
    upper = special.ndtr(mu / 2 - eps / mu) - math.exp(eps + special.log_ndtr(-mu / 2 - eps / mu))
    assert upper == pytest.approx(delta, rel=5e-3)


def test_below_their_mean_chernoff_bounds_say_nothing():
    moments = LossMoments.of(THREE, 10)
    assert moments.chernoff_log_delta(0.0) <= 0.0
    assert moments.tilt_for_eps(10 * moments.cumulants(0.0)[1] - 1.0) == 0.0
    assert moments.chernoff_log_delta(10 * moments.cumulants(0.0)[1] - 1.0) == 0.0


@pytest.mark.parametrize("times", [1, 7, 3000])
@pytest.mark.parametrize("theta", [0.0, 0.4])
@pytest.mark.parametrize("upper", [True, False])
def test_what_a_composition_may_be_off_by_is_the_sum_of_its_roundings(times, theta, upper):
    loss = LatticeLoss(0.5, -2, THREE.masses, 1e-7)
    found = compose(loss, times, theta, upper=upper)
    length = found.losses.size
    tilted = THREE.masses * np.exp(theta * THREE.losses() - log_moment(theta))
    # Every mass stands where its index is, modulo the length.
    spectrum = np.abs(np.fft.fft(np.bincount(np.arange(tilted.size) % length, tilted, length)))
    raised = float((spectrum ** (times - 1)).sum()) / length
    ulp = 2.0**-52
    transforms = 8 * ulp * (math.log2(length) + 4) * raised * (times + 2)
    angles = 8 * math.pi * ulp * times * raised
    # With an even length one frequency of it counts twice.
    expected = transforms + angles
    assert expected * (1.0 - 1e-9) <= found.error <= expected * (1.0 + 1.001 / length)
    assert found.upper is upper
    assert found.wrapped == pytest.approx(4e-15, rel=1e-9, abs=0.0)
    assert found.infinite_mass == pytest.approx(1.0 - (1.0 - 1e-7) ** times, rel=1e-8)
    assert found.log_scale == pytest.approx(times * log_moment(theta), rel=1e-12, abs=1e-13)
    assert (found.losses[1] - found.losses[0], found.theta) == (0.5, theta)


def test_a_composed_loss_is_read_with_all_that_it_may_be_off_by():
    losses, masses = np.array([-1.0, 0.0, 1.0, 2.0]), np.array([0.4, 0.3, 0.2, 0.1])
    above_all, below_all = (
        ComposedLoss(losses, masses, 0.3, 0.3, 0.5, 1e-3, 2e-3, 5e-3, upper) for upper in (True, False)
    )
    for eps in (-0.5, 0.0, 0.25, 1.5):
        above = losses > eps
        weights = (1.0 - np.exp(eps - losses[above])) * np.exp(-0.5 * (losses[above] - eps))
        value, slack = float(masses[above] @ weights), 1e-3 * float(weights.sum()) + 2e-3
        scale = math.exp(0.3 - 0.5 * eps)
        assert below_all.delta(eps) == pytest.approx((value - slack) * scale, rel=1e-5)
        assert above_all.delta(eps) == pytest.approx((value + slack) * scale + 5e-3, rel=1e-5)


def test_the_scale_of_several_kinds_is_off_by_what_each_is():
    """Logs of opposite signs that cancel are both rounded."""
    rises = LatticeLoss(0.5, 4, np.array([0.5, 0.5]), 0.0)
    falls = LatticeLoss(0.5, -4, np.array([0.05, 0.05]), 0.9)
    logs = [float(LossMoments.of(loss, 1).cumulants(1.0)[0]) for loss in (rises, falls)]
    assert logs[0] > 1.0
    assert logs[1] < -1.0
    found = compose_all([(rises, 3), (falls, 2)], 1.0, upper=True)
    assert found.log_scale == pytest.approx(3 * logs[0] + 2 * logs[1])
    assert found.log_size == pytest.approx(3 * logs[0] - 2 * logs[1])
    near, far = (
        ComposedLoss(LOPSIDED, LOPSIDED, 0.0, size, 0.5, 0.0, 0.0, 0.0, upper=True).delta(0.0)
        for size in (0.0, 1e9)
    )
    assert far == pytest.approx(near * (1.0 + 3e9 * 2.0**-53), rel=1e-9)


def test_a_composed_loss_is_read_with_the_roundings_of_the_reading():
    """With nothing else to be off by the ends enclose the exact sum, not by a thousand times too much."""
    rng = np.random.default_rng(8)
    shares = []
    for _ in range(200):
        losses, masses = np.sort(rng.uniform(-3.0, 9.0, 40)), rng.dirichlet(np.ones(40))
        theta, eps, log_scale = rng.uniform(0.0, 30.0), rng.uniform(0.0, 6.0), rng.uniform(-40.0, 0.0)
        with mp.workdps(40):
            truth = mp.fsum(
                mp.mpf(float(m))
                * -mp.expm1(eps - mp.mpf(float(x)))
                * mp.exp(-mp.mpf(theta) * (mp.mpf(float(x)) - eps))
                for m, x in zip(masses, losses, strict=True)
                if x > eps
            ) * mp.exp(mp.mpf(log_scale) - mp.mpf(theta) * mp.mpf(eps))
            ends = [
                ComposedLoss(losses, masses, log_scale, abs(log_scale), theta, 0.0, 0.0, 0.0, upper).delta(
                    eps
                )
                for upper in (False, True)
            ]
            assert ends[0] <= truth <= ends[1]
            plain = 0.5 * (ends[0] + ends[1])
            shares.append(float(abs(plain - truth) / (ends[1] - ends[0])))
    assert max(shares) > 1e-3


@pytest.mark.parametrize("theta", [0.0, 3.0, 25.0])
def test_tilted_masses_are_rounded_to_their_side(theta):
    """Of one step, delta just below the highest loss is that one mass."""
    rng = np.random.default_rng(9)
    for _ in range(30):
        masses = rng.dirichlet(np.full(6, 0.3))
        loss = LatticeLoss(0.37, -2, masses, 0.0, float(rng.uniform(-0.3, 0.3)))
        with mp.workdps(40):
            eps = float(loss.losses()[-1]) - 1e-3
            top = mp.mpf(loss.offset) + 3 * mp.mpf(loss.step)
            truth = -mp.mpf(float(masses[-1])) * mp.expm1(mp.mpf(eps) - top)
            lower, upper = (compose(loss, 1, theta, upper=upper).delta(eps) for upper in (False, True))
            assert lower <= truth <= upper
