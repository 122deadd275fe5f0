"""The rounding bound compared with a full enumeration of pairs of few bits, and its composition."""

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.stats

import dpmech as dm
from dpmech.optim import LatticeLoss, lattice_loss
from dpmech.optim.noise import lattice as lattice_bound
from dpmech.optim.noise.lattice import DRAWN, Pair
from dpmech.optim.noise.normals import LARGEST

NORMAL = scipy.stats.norm


def excess(one, other, eps):
    """The largest one(S) - e^eps other(S) over all sets."""
    return float(np.maximum(one - math.exp(eps) * other, 0.0).sum())


# ---- one pair


def counted(pair, step, rests):
    """Laws of the two integers: of all pairs of cells, and of real Gaussians.

    The angle lies in its cell where the low bits of u say, and roundings go as far as they may, to and fro.
    """
    u = (np.arange(2**pair.radius_bits) + 0.5) / 2**pair.radius_bits
    place = (np.arange(u.size) % 16 + 0.5) / 16
    angle = 2.0 * np.pi * (np.arange(2**pair.angle_bits)[:, None] + place) / 2**pair.angle_bits
    radius = np.sqrt(-2.0 * np.log(u))
    wrong = np.where(np.arange(u.size) % 3 == 0, 1.0, -1.0) * pair.relative * radius
    most = math.ceil(1.2 * pair.radius / step) + 2
    edges = np.arange(-most, most + 2) - 0.5
    numbers = [radius * np.cos(angle) + wrong, radius * np.sin(angle) - wrong]
    sums = [np.rint(rest + number / step).ravel() for rest, number in zip(rests, numbers, strict=True)]
    drawn, _, _ = np.histogram2d(*sums, bins=[edges, edges])
    assert drawn.sum() == angle.size
    sides = [np.diff(NORMAL.cdf((edges - rest) * step)) for rest in rests]
    return drawn / angle.size, np.outer(*sides)


FEW = [(6, 13, 0.0, 0.5), (7, 13, 1e-3, 0.25)]
MORE = [(8, 14, 1e-4, 0.25), (6, 15, 1e-3, 0.2), (9, 12, 1e-3, 0.3)]


@pytest.mark.parametrize(
    ("radius", "angle", "error", "step"), FEW + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE]
)
def test_pairs_of_few_bits_are_as_close_as_proved(radius, angle, error, step):
    pair = Pair(radius, angle, error, 0.0, step, step)
    eps, delta = pair.closeness()
    for rests in [(0.0, 0.0), (0.31, -0.17)]:
        drawn, ideal = counted(pair, step, rests)
        assert excess(drawn, ideal, eps) <= delta
        assert excess(ideal, drawn, eps) <= delta
        # Not vacuous, though most of the loss of single rays is compensated by others.
        assert excess(ideal, drawn, eps) > delta / 1000.0


def test_a_radius_of_too_few_bits_is_detected():
    eps, delta = Pair(16, 13, 0.0, 0.0, 0.25, 0.25).closeness()
    drawn, ideal = counted(Pair(6, 13, 0.0, 0.0, 0.25, 0.25), 0.25, (0.0, 0.0))
    assert excess(drawn, ideal, eps) > delta


def lost(pair, angle, rests):
    """The probability, on one ray, that the center of a cell is in another box than the point itself."""
    cells = 2**pair.radius_bits
    centres = np.sqrt(-2.0 * np.log((np.arange(cells) + 0.5) / cells))
    cuts = [np.arange(1, cells) / cells]
    sides = (math.cos(angle), math.sin(angle))
    for rest, side in zip(rests, sides, strict=True):
        lines = (np.arange(-60, 61) + 0.5 - rest) * pair.shortest / side
        cuts.append(np.exp(-(lines[(lines > 0.0) & (lines < 9.0)] ** 2) / 2.0))
    ends = np.concatenate([[0.0], np.sort(np.concatenate(cuts)), [1.0]])
    middles = (ends[1:] + ends[:-1]) / 2.0
    radius, near = (
        np.sqrt(-2.0 * np.log(middles)),
        centres[np.minimum(middles * cells, cells - 1).astype(int)],
    )
    boxes = [
        [np.rint(rest + side * r / pair.shortest) for rest, side in zip(rests, sides, strict=True)]
        for r in (radius, near)
    ]
    differs = (boxes[0][0] != boxes[1][0]) | (boxes[0][1] != boxes[1][1])
    return float(np.diff(ends)[differs].sum())


def test_no_ray_loses_more_than_proved():
    """The bound uses twice the lines, and twice the boxes, as their sides move."""
    pair = Pair(10, 40, 0.0, 0.0, 0.25, 0.25)
    _, delta = pair.closeness()
    rays = [lost(pair, angle, (0.2, -0.4)) for angle in np.linspace(0.01, 1.56, 40)]
    assert delta / 40.0 < max(rays) <= delta / 4.0
    assert lost(pair, 0.785, (0.2, -0.4)) > 1.2 * lost(pair, 0.01, (0.2, -0.4))


def grown(pair, corner, step):
    """ln of the gain of a box of the plane if its sides move, with 60 digits."""
    with mp.workdps(60):
        move, logs = mp.mpf(pair.move), []
        for start in corner:
            inside = mp.ncdf(start + step) - mp.ncdf(start)
            logs.append(mp.log((mp.ncdf(start + step + move) - mp.ncdf(start - move)) / inside))
        return float(sum(logs))


def test_boxes_that_grow_gain_no_more_than_stated():
    eps, _ = DRAWN.closeness()
    worst = 0.0
    for step in (2.0**-5, 0.045, 2.0**-4):
        for angle in np.linspace(0.0, 1.57, 9):
            corner = [-LARGEST * math.cos(angle) - step, -LARGEST * math.sin(angle) - step]
            worst = max(worst, grown(DRAWN, corner, step))
    assert 0.3 * eps < worst < eps


def test_numbers_with_too_large_errors_have_no_bound():
    with pytest.raises(dm.InvalidParameterError, match="twice the largest error"):
        Pair(10, 3, 0.0, 0.0, 0.25, 0.5).closeness()


# ---- many pairs


@pytest.mark.parametrize(
    ("eps", "delta", "count", "failure"), [(0.1, 1e-4, 200, 1e-3), (0.01, 0.0, 5000, 1e-6)]
)
def test_composition_against_the_worst_pair_of_laws(monkeypatch, eps, delta, count, failure):
    """Randomized response, with delta where one distribution has no mass: the worst case (Kairouz 2015)."""

    class Given(Pair):
        def closeness(self):
            return eps, delta

    monkeypatch.setattr(lattice_bound, "DRAWN", Given(1, 1, 0.0, 0.0))
    loss = lattice_loss(count // 100, 100, failure=failure)
    hits = np.arange(count + 1)
    one, other = (scipy.stats.binom.pmf(hits, count, 1.0 / (1.0 + math.exp(sign * eps))) for sign in (-1, 1))
    alone = 1.0 - (1.0 - delta) ** count
    assert alone + (1.0 - alone) * excess(one, other, loss.eps) <= loss.delta
    assert loss.delta == pytest.approx(count * delta + failure)
    assert (
        alone + (1.0 - alone) * excess(one, other, loss.eps / 4.0) > loss.delta
    )  # close to the required value


def test_the_loss_of_a_claim_equals_the_worst_case():
    """An event of probability zero in the neighbour's run with drawn numbers."""
    eps, delta, moved = 1.5, 1e-3, 2e-3
    neighbour = moved  # of the event, with real Gaussians
    ideal = math.exp(eps) * neighbour + delta
    total, added = LatticeLoss(0.0, moved).added_to(eps, delta)
    assert total == pytest.approx(eps, rel=1e-11)
    assert ideal + moved <= added <= (ideal + moved) * (1.0 + 1e-11)


def test_the_loss_of_a_claim_holds_for_laws_by_chance():
    rng = np.random.default_rng(1)
    for _ in range(300):
        ideal, neighbour = rng.dirichlet(np.full(5, 0.5), 2)
        drawn = [
            np.abs(law * np.exp(rng.normal(0.0, 0.1, 5)) + rng.normal(0.0, 1e-2, 5))
            for law in (ideal, neighbour)
        ]
        drawn = [law / law.sum() for law in drawn]
        eps, small = rng.uniform(0.0, 3.0), rng.uniform(0.0, 0.3)
        pairs = [(drawn[0], ideal), (ideal, drawn[0]), (drawn[1], neighbour), (neighbour, drawn[1])]
        moved = max(excess(*pair, small) for pair in pairs)
        total, delta = LatticeLoss(small, moved).added_to(eps, min(1.0, excess(ideal, neighbour, eps)))
        assert excess(*drawn, total) <= delta + 1e-15


def test_sizes_of_real_runs():
    loss = lattice_loss(10**9, 10**4)
    assert loss.eps < 2e-3
    assert loss.delta < 2e-8
    eps, delta = loss.added_to(1000.0, 0.5)
    assert (round(eps), delta) == (1000, 1.0)
    assert LatticeLoss(0.0, 0.0).added_to(1000.0, 0.5)[1] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 1), "values"), ((1, 0), "steps"), ((1.5, 2), "values"), ((1, 2**63), "steps")],
)
def test_bad_counts_are_refused(arguments, name):
    with pytest.raises(dm.InvalidParameterError, match=name):
        lattice_loss(*arguments)


@pytest.mark.parametrize("failure", [0.0, 1.0, -1.0, math.nan])
def test_bad_failures_are_refused(failure):
    with pytest.raises(dm.InvalidParameterError, match="failure"):
        lattice_loss(1, 1, failure=failure)
