import itertools
import math
import re

import numpy as np
import pytest
from flint import arb, ctx
from scipy import integrate, stats

from dpmech.checker import check_file, decide, pairs
from dpmech.checker.confidence import Work
from dpmech.checker.decide import Kind
from dpmech.checker.documents import BadDocument
from dpmech.checker.losses import compose, gaussian_delta
from dpmech.checker.pairs import bin_laws
from dpmech.checker.strategies import PRECISION, NotChecked
from tests.support.checker_files import certificate, write


@pytest.fixture(autouse=True)
def precision():
    with ctx.workprec(PRECISION):
        yield


def two_bins(square, alpha):
    """(E (r - alpha)_+, E (1 - alpha r)_+) of two bins: one integral, of closed forms."""
    root = math.sqrt(square)

    def call(strike):  # E (z - strike)_+
        if strike <= 0.0:
            return 1.0 - strike
        d = (-math.log(strike) + square / 2) / root
        return stats.norm.cdf(d) - strike * stats.norm.cdf(d - root)

    def mean(function):
        return integrate.quad(
            lambda y: stats.norm.pdf(y) * function(math.exp(root * y - square / 2)), -12, 12, limit=400
        )[0]

    remove = mean(lambda z: call(2 * alpha - z)) / 2
    strike = 2 / alpha
    add = mean(lambda z: max(0.0, strike - z) and call(strike - z) - 1 + strike - z) * alpha / 2
    return remove, add


@pytest.mark.parametrize("square", [0.3, 2.0])
@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.7, 4.0])
def test_two_bins_lie_between_their_bounds(square, alpha):
    true = two_bins(square, alpha)
    found = {
        above: [float(law.delta(arb(alpha))) for law in bin_laws(2, arb(square), 400, 1e-10, 1, above=above)]
        for above in (True, False)
    }
    for index in range(2):
        assert found[False][index] <= true[index] * (1 + 1e-9) <= found[True][index] * (1 + 2e-9)
        assert found[True][index] == pytest.approx(true[index], rel=5e-3, abs=1e-6)
        assert found[False][index] == pytest.approx(true[index], rel=0.15, abs=2e-3)


def test_bounds_are_closer_on_a_finer_grid():
    true = two_bins(1.0, 2.0)
    for index in range(2):
        ends = [
            [
                float(bin_laws(2, arb(1.0), cells, 1e-10, 1, above=above)[index].delta(arb(2.0)))
                for above in (True, False)
            ]
            for cells in (100, 400)
        ]
        assert ends[0][0] > ends[1][0] >= true[index] >= ends[1][1] > ends[0][1]
        # From above the error falls with the square of the spacing.
        assert 8.0 < (ends[0][0] - true[index]) / (ends[1][0] - true[index]) < 32.0


def test_five_bins_in_two_rounds_agree_with_draws():
    square, alpha = 1.2, 2.0
    rng = np.random.default_rng(1)
    z = np.exp(math.sqrt(square) * rng.standard_normal((400_000, 2, 5)) - square / 2)
    r = z.mean(axis=2).prod(axis=1)
    for index, drawn in enumerate((np.maximum(r - alpha, 0.0), np.maximum(1.0 - alpha * r, 0.0))):
        bounds = [
            float(
                compose(bin_laws(5, arb(square), 600, 1e-10, 2, above=above)[index], 2, 1e-9).delta(
                    arb(alpha)
                )
            )
            for above in (True, False)
        ]
        error = 5.0 * drawn.std() / drawn.size**0.5
        assert bounds[0] >= drawn.mean() - error
        assert bounds[1] <= drawn.mean() + error
        assert bounds[0] == pytest.approx(drawn.mean(), abs=error + 1e-3 * bounds[0])
        assert bounds[1] == pytest.approx(bounds[0], rel=0.08)


def test_cells_keep_their_mass_and_mean():
    rng = np.random.default_rng(2)
    edges = np.concatenate([[0.0], np.exp(np.linspace(-2.0, 3.0, 20))])
    values = rng.exponential(3.0, 400)
    cells = np.searchsorted(edges, values, side="right") - 1
    masses, moments = (np.bincount(cells, w, len(edges)) for w in (np.full(400, 1 / 400), values / 400))
    for above in (True, False):
        law = pairs._gathered(masses, moments, edges, above=above)
        assert law.masses.sum() == pytest.approx(1.0, rel=1e-13)
        assert law.masses @ law.values + law.infinite == pytest.approx(values.mean(), rel=1e-13)
        for strike in (0.1, 1.0, 4.0, 15.0):
            own = law.masses @ np.maximum(law.values - strike, 0.0) + law.infinite
            true = np.maximum(values - strike, 0.0).mean()
            assert own >= true if above else own <= true
    tail = values[values >= edges[-1]]
    law = pairs._gathered(masses, moments, edges, above=True)
    assert law.infinite == pytest.approx((tail - edges[-1]).sum() / 400, rel=1e-12)


IDENTITY = {"type": "Identity", "n": 40}
ROUNDS = {"type": "BallsInBins", "fresh": True, "bins": 10}
ONCE = {"type": "BallsInBins", "bins": 10}


def verdict(tmp_path, strategy, participation, sigma, delta, eps=2.0):
    file = write(tmp_path / "a.json", certificate(strategy, participation, eps, delta, sigma))
    return check_file(file, seconds=20.0)


def number(reason):
    """The first one of a direction."""
    return float(re.search(r"REMOVE: delta is at (?:most|least) (\S+)", reason).group(1))


@pytest.mark.parametrize("participation", [ROUNDS, ONCE])
def test_orthogonal_bins_are_decided_without_draws(tmp_path, participation):
    for delta, how in ((0.2, "in closed form"), (0.118, "by sums on a grid")):  # 0.119 without sampling
        found = verdict(tmp_path, IDENTITY, participation, 1.4, delta)
        assert (found.kind, found.failure, how in found.reason) == (Kind.PROVED, 0.0, True)
    value = number(found.reason)
    assert verdict(tmp_path, IDENTITY, participation, 1.4, value * 1.0001).kind is Kind.PROVED
    assert verdict(tmp_path, IDENTITY, participation, 1.4 * 0.98, value).kind is Kind.REFUTED
    # By draws of r itself.
    rng, square = np.random.default_rng(3), (1.0 if participation is ROUNDS else 4.0) / 1.4**2
    rounds = 4 if participation is ROUNDS else 1
    z = np.exp(math.sqrt(square) * rng.standard_normal((300_000, rounds, 10)) - square / 2)
    drawn = np.maximum(z.mean(axis=2).prod(axis=1) - math.exp(2.0), 0.0)
    assert value == pytest.approx(drawn.mean(), abs=5.0 * drawn.std() / drawn.size**0.5 + 1e-2 * value)


def test_of_columns_of_different_lengths_the_longest_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(decide, "_CELLS", (100, 200))
    entries = [1.0] * 39 + [2.0]
    for participation in (ROUNDS, ONCE):
        found = [
            verdict(tmp_path, strategy, participation, 2.0, 0.02).reason
            for strategy in ({"type": "Diagonal", "entries": entries}, IDENTITY)
        ]
        assert number(found[0]) > 1.05 * number(found[1])
        # What is true if all were as short as the shortest one is not refuted, nor proved.
        between = number(found[1]) * 1.01
        diagonal = {"type": "Diagonal", "entries": entries}
        if participation is ROUNDS:
            assert verdict(tmp_path, diagonal, participation, 2.0, between).kind is Kind.NOT_CHECKED


def test_other_entries_of_the_participation_are_refused(tmp_path):
    for wrong in ({"bins": 10**6}, {"bins": 10, "more": 1}):
        with pytest.raises(BadDocument):
            verdict(tmp_path, IDENTITY, {"type": "BallsInBins", "fresh": True, **wrong}, 1.4, 0.5)


def test_one_bin_is_the_gaussian_mechanism(tmp_path):
    for fresh in (False, True):
        found = verdict(tmp_path, IDENTITY, {"type": "BallsInBins", "bins": 1, "fresh": fresh}, 10.0, 1e-2)
        assert "Gaussian" in found.reason


def test_time_ends_the_search(tmp_path, monkeypatch):
    value = number(verdict(tmp_path, IDENTITY, ONCE, 1.4, 0.118).reason)
    clock = itertools.count(0.0, 100.0)
    monkeypatch.setattr(decide.time, "process_time", lambda: next(clock))
    assert verdict(tmp_path, IDENTITY, ONCE, 1.4, value * 0.999).kind is Kind.NOT_CHECKED


def test_a_delta_of_more_than_a_half_is_left_to_draws(tmp_path):
    for participation in (ROUNDS, ONCE):
        assert verdict(tmp_path, IDENTITY, participation, 0.8, 0.5).kind is Kind.PROVED
    assert verdict(tmp_path, IDENTITY, ROUNDS, 0.8, 0.51).kind is Kind.NOT_CHECKED
    found = verdict(tmp_path, IDENTITY, ONCE, 0.8, 0.51)
    assert (found.kind, found.failure > 0.0) == (Kind.PROVED, True)


def test_draws_decide_what_grids_leave_open(tmp_path, monkeypatch):
    """ADD of few bins at a small delta: the grid reaches down to where all of them are small."""
    few = {"type": "Identity", "n": 8}, {"type": "BallsInBins", "bins": 4}
    found = verdict(tmp_path, *few, 0.87, 1e-7, 8.0)
    assert (found.kind, found.failure, "on a grid" in found.reason) == (Kind.PROVED, 0.0, True)
    monkeypatch.setattr(decide, "_CELLS", ())
    found = verdict(tmp_path, *few, 0.87, 1e-7, 8.0)
    assert (found.kind, "draws" in found.reason or "closed form" in found.reason) == (Kind.PROVED, True)


def test_masses_below_float64_make_no_bound(tmp_path):
    two, square, eps = {"type": "Identity", "n": 2}, 100.0, 400.0
    participation = {"type": "BallsInBins", "bins": 2}
    # One of the two bins alone has more than is asked about here.
    assert gaussian_delta(arb(square).sqrt(), 2 * arb(eps).exp()) / 2 > arb(1e-270)
    found = verdict(tmp_path, two, participation, square**-0.5, 1e-290, eps)
    assert (found.kind, "so small a delta" in found.reason) == (Kind.NOT_CHECKED, True)
    # Below, where what is lost is less than `spare`: P has the mean of the last cell, though Q has nothing.
    cells = pairs._gathered(np.array([1.0, 0.0]), np.array([1.0, 1e-3]), np.array([0.0, 2.0]), above=True)
    assert cells.infinite == 1e-3


def test_what_is_added_covers_what_is_lost():
    for square, above in itertools.product((0.3, 8.0), (True, False)):
        laws = bin_laws(3, arb(square), 200, 1e-7, 1, above=above)
        remove, add = (law.delta(arb(1e30)) for law in laws)
        assert remove >= 1e-7 if above else remove == 0
        assert add >= 1e-7 if above else add == 0
        assert all(float(mass) == 0.0 or mass > 1e-290 for mass in laws[1].masses.coeffs()) or above


def test_rounding_adds_up_over_rounds(monkeypatch):
    ratios = []

    class Told:
        def delta(self, ratio):
            ratios.append(float(ratio))
            return arb(0.1)

    for rounds in (1, 10**6):
        bins = decide.Independent(((2, rounds),), (arb(1), arb(1)))
        monkeypatch.setattr(decide.Independent, "_laws", lambda *arguments, **options: (Told(), Told()))
        bins.answer("REMOVE", 0.0, 0.2, Work(0.0, 1.0, np.random.default_rng(1)))
    assert ratios == pytest.approx([1.0 - 1.1e-9, 1.0 - 1e-4], abs=1e-7)
    assert ratios[0] < 1.0


def test_so_many_rounds_that_rounding_shows_are_not_checked():
    with pytest.raises(NotChecked, match="rounds of"):
        bin_laws(20_000, arb(1), 4000, 1e-10, 1000, above=True)
