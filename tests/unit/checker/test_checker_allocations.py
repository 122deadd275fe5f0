"""Random sets of k of n steps: proved by blocks of steps, refuted by the sum of all steps, else by draws."""

import itertools
import math

import numpy as np
import pytest
from flint import arb, ctx

from dpmech.checker import check_file
from dpmech.checker.claims import claim_of
from dpmech.checker.components import pair_of_sets
from dpmech.checker.decide import Kind
from dpmech.checker.documents import BadDocument, decode
from dpmech.checker.losses import gaussian_delta
from dpmech.checker.pairs import bin_laws
from dpmech.checker.strategies import PRECISION
from tests.support.checker_files import certificate, write


@pytest.fixture(autouse=True)
def _precise():
    with ctx.workprec(PRECISION):
        yield


def verdict(tmp_path, n, k, sigma, delta, eps=1.0, **others):
    strategy = others.pop("strategy", {"type": "Identity", "n": n})
    cycle = others.pop("cycle", 1)
    participation = {"type": "RandomAllocation", "participations": k, "cycle": cycle}
    file = write(tmp_path / "a.json", certificate(strategy, participation, eps, delta, sigma, **others))
    return check_file(file, seconds=20.0)


def drawn(n, k, sigma, eps, draws=200_000):
    """Delta of the pair itself, both directions, and five standard errors."""
    rng = np.random.default_rng(4)
    sets = list(itertools.combinations(range(n), k))
    found = []
    for add in (False, True):
        y = sigma * rng.standard_normal((draws, n))
        if not add:
            y += np.array([[t in s for t in range(n)] for s in sets])[rng.integers(len(sets), size=draws)]
        x = np.exp((y - 0.5) / sigma**2)
        ratio = np.mean([np.prod(x[:, list(s)], axis=1) for s in sets], axis=0)
        terms = np.maximum(1.0 - math.exp(eps) * (ratio if add else 1.0 / ratio), 0.0)
        found.append((terms.mean(), 5.0 * terms.std() / draws**0.5))
    return max(found)


@pytest.mark.parametrize(("n", "k", "sigma"), [(6, 2, 1.5), (5, 3, 2.0), (6, 5, 2.0)])
def test_what_is_proved_holds_and_what_is_refuted_does_not(tmp_path, n, k, sigma):
    true, error = drawn(n, k, sigma, 1.0)
    for delta in (0.8 * true, 0.95 * true, 1.15 * true, 1.4 * true + 1e-3):
        found = verdict(tmp_path, n, k, sigma, delta)
        if found.kind is Kind.PROVED:
            assert delta > true - error
            assert found.failure == ("draws" in found.reason) * 5e-10 * found.reason.count("draws")
        if found.kind is Kind.REFUTED:
            assert delta < true + error
            assert "by the sum of all steps" in found.reason or "draws" in found.reason
    assert verdict(tmp_path, n, k, sigma, 1.1 * true + 1e-3).kind is Kind.PROVED
    assert verdict(tmp_path, n, k, sigma, 0.9 * true - 1e-3).kind is Kind.REFUTED


def test_one_step_is_decided_from_both_sides(tmp_path):
    found = verdict(tmp_path, 6, 1, 1.0, 0.2)
    assert found.kind is Kind.PROVED
    value = float(found.reason.split("REMOVE: delta is at most ")[1].split()[0])
    bins = {"type": "BallsInBins", "fresh": True, "bins": 6}
    file = write(tmp_path / "b.json", certificate({"type": "Identity", "n": 6}, bins, 1.0, 0.2, 1.0))
    assert f"{value:.5e}"[:7] in check_file(file).reason
    assert verdict(tmp_path, 6, 1, 0.5, 0.05).kind is Kind.REFUTED


def test_all_steps_are_the_gaussian_mechanism(tmp_path):
    found = verdict(tmp_path, 6, 6, 10.0, 1e-2)
    assert found.kind is Kind.PROVED
    assert "Gaussian" in found.reason


def test_one_bin_on_a_grid_is_the_gaussian_curve():
    """Also far down: a block of one step has no other step that could be larger."""
    for square, alpha in itertools.product((0.01, 0.3, 4.0), (1.0, 2.0, 20.0)):
        true = float(gaussian_delta(arb(square).sqrt(), arb(alpha)))
        for above in (True, False):
            for law in bin_laws(1, arb(square), 1000, 1e-12, 1, above=above):
                own = float(law.delta(arb(alpha)))
                assert own >= true * (1 - 1e-9) if above else own <= true * (1 + 1e-9)
                # From below, losses are rounded down to a lattice.
                assert own == pytest.approx(true, rel=0.02 if above else 0.1, abs=1e-9)


def test_two_lengths_share_a_grid(tmp_path):
    laws = [bin_laws(bins, arb(0.3), 300, 1e-10, 5, above=True, fewest=2) for bins in (2, 3)]
    assert len({law.spacing for both in laws for law in both}) == 1
    # Of fewer bins the loss is larger.
    assert laws[0][0].delta(arb(2)) > laws[1][0].delta(arb(2))


def test_other_claims_are_refused_or_left_open(tmp_path):
    for k in (0, 7, True, 1.0):
        with pytest.raises(BadDocument):
            verdict(tmp_path, 6, k, 1.0, 0.1)
    extra = {"type": "RandomAllocation", "participations": 2, "cycle": 1, "fresh": True}
    with pytest.raises(BadDocument):
        check_file(
            write(tmp_path / "c.json", certificate({"type": "Identity", "n": 6}, extra, 1.0, 0.1, 1.0))
        )
    signed = {"type": "BandedToeplitz", "n": 6, "coefs": [1.0, -0.5]}
    found = verdict(tmp_path, 6, 2, 5.0, 0.1, strategy=signed)
    assert (found.kind, "random set of steps" in found.reason) == (Kind.NOT_CHECKED, True)
    found = verdict(tmp_path, 6, 2, 5.0, 0.1, adjacency="replace_one")
    assert (found.kind, "replace_one" in found.reason) == (Kind.NOT_CHECKED, True)


def test_of_columns_of_different_lengths_the_longest_counts(tmp_path):
    uneven = {"type": "Diagonal", "entries": [1.0] * 5 + [2.0]}
    value = drawn(6, 2, 2.0, 1.0)[0]
    assert verdict(tmp_path, 6, 2, 2.0, 1.5 * value + 1e-3).kind is Kind.PROVED
    assert verdict(tmp_path, 6, 2, 2.0, 1.5 * value + 1e-3, strategy=uneven).kind is Kind.REFUTED


SIGNED = {"type": "BandedToeplitz", "n": 12, "coefs": [1.0, -0.8]}


@pytest.mark.parametrize("strategy", [{"type": "SquareRoot", "n": 12, "bands": 2}, SIGNED])
@pytest.mark.parametrize(("k", "sigma"), [(1, 1.0), pytest.param(2, 1.5, marks=pytest.mark.slow), (5, 2.0)])
def test_groups_are_decided_as_independent_noise_over_their_steps(tmp_path, strategy, k, sigma):
    """By the largest norm of a column; the last column, which is shorter, is in the other group."""
    true, _ = drawn(6, k, sigma, 1.0)
    norm = math.sqrt(1.25 if strategy["type"] == "SquareRoot" else 1.64)
    ask = {"strategy": strategy, "cycle": 2}
    assert verdict(tmp_path, 12, k, sigma * norm, 1.1 * true + 1e-3, **ask).kind is Kind.PROVED
    assert verdict(tmp_path, 12, k, sigma * norm, 0.9 * true - 1e-3, **ask).kind is Kind.REFUTED


@pytest.mark.slow
def test_groups_by_draws(tmp_path):
    """Where grids leave it open: 2 of 3 steps at eps 3, close to the truth."""
    true, error = drawn(3, 2, 1.2, 3.0, draws=1_000_000)
    ask = {"eps": 3.0, "strategy": SIGNED, "cycle": 4}
    for delta, kind in ((1.12 * true, Kind.PROVED), (0.88 * true, Kind.REFUTED)):
        assert abs(delta - true) > error
        found = verdict(tmp_path, 12, 2, 1.2 * math.sqrt(1.64), delta, **ask)
        assert (found.kind, "draws" in found.reason) == (kind, True)


def test_a_group_is_as_many_steps_of_the_largest_and_the_least_norm(tmp_path):
    """Bounds on squares, over sigma; roots in float64 are rounded outward."""
    participation = {"type": "RandomAllocation", "participations": 2, "cycle": 4}
    claim = claim_of(decode(certificate(SIGNED, participation, 3.0, 1e-5, 1.0)))
    above, below = pair_of_sets(claim, 2, (arb(2), arb(3)))
    assert above.columns.shape == below.columns.shape == (3, 1)
    assert np.all(np.square(above.columns) >= 3.0)
    assert np.all(above.columns < math.sqrt(3.0) * 1.000001)
    assert np.all(np.square(below.columns) <= 2.0)
    assert np.all(below.columns > math.sqrt(2.0) * 0.999999)
    assert above.states.most == below.states.most == 2


def test_groups_that_no_theorem_covers(tmp_path):
    found = verdict(tmp_path, 12, 2, 5.0, 0.1, strategy={"type": "SquareRoot", "n": 12, "bands": 3}, cycle=2)
    assert (found.kind, "bands > groups" in found.reason) == (Kind.NOT_CHECKED, True)
    for k, cycle in ((2, 5), (4, 4), (1, 0), (1, 13), (1, True)):
        with pytest.raises(BadDocument):
            verdict(tmp_path, 12, k, 5.0, 0.1, cycle=cycle)
    every = verdict(tmp_path, 12, 3, 10.0, 1e-2, strategy=SIGNED, cycle=4)
    assert (every.kind, "Gaussian" in every.reason) == (Kind.PROVED, True)
