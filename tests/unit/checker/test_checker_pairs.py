"""Curves of one release, and laws of sums on a grid, against exact numbers and integrals of many digits."""

import inspect
import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from flint import arb, ctx

from dpmech.checker import pairs
from dpmech.checker.losses import reverse
from dpmech.checker.pairs import (
    Truncation,
    bin_laws,
    counts_curve,
    fixed_size_curve,
    replaced_curve,
    sampled_curve,
    truncated_curve,
    user_curve,
)
from dpmech.checker.strategies import NotChecked


@pytest.fixture(autouse=True)
def precision():
    counts_curve.cache_clear()  # of curves that were made with fewer bits
    with ctx.workprec(160), mpmath.workdps(40):
        yield


def number(ball):
    """Its midpoint, with the digits that it has."""
    return mpmath.mpf(ball.mid().str(40, radius=False))


def holds(ball, true, within=1e-28):
    """Whether it is small, and contains a number of 35 digits."""
    return ball.rad() < within and abs(number(ball) - true) < 1e-32 + float(ball.rad())


def exact(first, second, alpha):
    """The integral of (first - alpha second)_+ of mixtures (means, weights) whose ratio rises.

    It hardly depends on where the integral begins, if that is near where first = alpha second: an error there
    enters by its square, after one step of Newton's method by its fourth power.
    """
    plain = [[np.array([float(x) for x in column]) for column in law] for law in (first, second)]

    def log_density(law, x):
        return np.logaddexp.reduce(
            np.log(law[1], where=law[1] > 0.0, out=np.full(len(law[1]), -np.inf))
            + law[0] * x
            - law[0] ** 2 / 2
        )

    def log_ratio(x):
        return log_density(plain[0], x) - log_density(plain[1], x) - float(mpmath.log(alpha))

    low, high = -60.0, 60.0
    if log_ratio(low) > 0.0:
        return mpmath.fsum(first[1]) - alpha * mpmath.fsum(second[1])
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if log_ratio(middle) > 0.0 else (middle, high)
    start = mpmath.mpf(low)
    parts = [
        [(w * mpmath.npdf(start, m), m - start) for m, w in zip(*law, strict=True)] for law in (first, second)
    ]
    gaps, slopes = ([sum(d * x**k for d, x in law) for law in parts] for k in (0, 1))
    start -= (gaps[0] - alpha * gaps[1]) / (slopes[0] - alpha * slopes[1])
    tails = [[w * mpmath.ncdf(m - start) for m, w in zip(*law, strict=True)] for law in (first, second)]
    return mpmath.fsum(tails[0]) - alpha * mpmath.fsum(tails[1])


ALPHAS = ["0.3", "0.8125", "1", "1.25", "50"]


@pytest.mark.parametrize(("q", "mu"), [("0.25", "0.75"), ("0.125", "4"), ("1", "1.5")])
def test_poisson_sampling_to_many_digits(q, mu):
    law = [0, mpmath.mpf(mu)], [1 - mpmath.mpf(q), mpmath.mpf(q)]
    curve = sampled_curve(arb(q), arb(mu))
    for alpha in ALPHAS:
        assert holds(curve(arb(alpha)), exact(law, ([0], [1]), mpmath.mpf(alpha)))


@pytest.mark.parametrize("mu", [0.75, 50.0])
def test_a_ball_across_the_corner_holds_the_whole_curve(mu):
    """With hardly any noise the curve is min(q, ...) there: far above 1 - alpha, which it is below."""
    curve = sampled_curve(arb(0.25), arb(mu))
    found = curve(arb(0.75, 0.125))
    for alpha in (0.626, 0.7, 0.75, 0.8, 0.874):
        assert found.contains(curve(arb(alpha)))
    assert found.rad() < 0.3


def test_a_probability_that_is_a_ball_makes_a_ball_of_all_its_curves():
    """Some of which have their corner below a number, and some above."""
    for alpha in (0.7, 0.8, 0.86):
        found = sampled_curve(arb(0.25, 0.125), arb(50))(arb(alpha))
        for q in (0.126, 0.2, 0.25, 0.3, 0.374):
            assert found.contains(sampled_curve(arb(q), arb(50))(arb(alpha)))


def test_two_curves_are_joined_at_one():
    curve = pairs._joined(lambda alpha: arb(5), lambda alpha: arb(3))
    assert [float(curve(arb(x))) for x in (0.5, 1.0 - 2.0**-53, 1.0, 1.5, 9.0)] == [3, 3, 5, 5, 5]
    for ball in (arb(1, 0.25), arb(1.125, 0.25), arb(0.875, 0.25), arb(1, 4)):
        assert curve(ball).contains(arb(3))
        assert curve(ball).contains(arb(5))


def test_a_ball_across_one_holds_both_sides():
    for curve in (
        fixed_size_curve(arb(0.5), arb(1)),
        truncated_curve(arb(0.5), arb(1), Truncation(arb(0.5), 2, 5)),
    ):
        found = curve(arb(1, 0.125))
        for alpha in (0.876, 0.95, 1.0, 1.05, 1.124):
            assert found.contains(curve(arb(alpha)))


# ---- users


def binomial(count, q):
    return [math.comb(count, j) * q**j * (1 - q) ** (count - j) for j in range(count + 1)]


@pytest.mark.parametrize(
    ("q", "mu", "examples"), [("0.25", "0.75", 3), ("0.125", "2", 5), ("0.5", "0.25", 2)]
)
def test_users_to_many_digits(q, mu, examples):
    weights = [mpmath.mpf(w.numerator) / w.denominator for w in binomial(examples, Fraction(q))]
    law = [j * mpmath.mpf(mu) for j in range(examples + 1)], weights
    above, below = user_curve(arb(q), arb(mu), examples, 0.0)
    for alpha in ("0.01", *ALPHAS):
        true = exact(law, ([0], [1]), mpmath.mpf(alpha))
        assert holds(above(arb(alpha)), true, 1e-18)
        assert holds(below(arb(alpha)), true, 1e-18)


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_what_of_a_user_is_rare_is_left_out(kept):
    """Just as many as may be: and two at least."""
    q = Fraction(1, 8)
    weights = binomial(6, q)
    rest = sum(weights[kept + 1 :])
    spare = float(rest) * (1 + 1e-9) if kept > 1 else 1.0
    law = [j * mpmath.mpf(0.75) for j in range(kept + 1)], [float(w) for w in weights[: kept + 1]]
    above, below = user_curve(arb(0.125), arb(0.75), 6, spare)
    for alpha in ("0.2", "0.8", "2"):
        lower = exact(law, ([0], [1]), mpmath.mpf(alpha))
        assert abs(number(below(arb(alpha))) - lower) < 1e-15
        assert (
            abs(number(above(arb(alpha)) - below(arb(alpha))) - rest.numerator / mpmath.mpf(rest.denominator))
            < 1e-30
        )
    if kept > 1:  # one more
        tight = user_curve(arb(0.125), arb(0.75), 6, float(rest) * (1 - 1e-9))
        more = sum(weights[kept + 2 :])
        assert float((tight[0](arb(2)) - tight[1](arb(2))).mid()) == pytest.approx(float(more), rel=1e-12)


@pytest.mark.parametrize(
    "coefficients", [(1.0, 1.0), (0.5, 0.25, 3.0), (0.25, 1e-9, 1e-3, 1e-12), (0.1, 1e5, 1.0)]
)
def test_roots_are_found_to_many_bits(coefficients):
    poly = pairs.arb_poly([arb(c) for c in coefficients])
    for target in (1e-7, 0.1, 1.0, 1e3, 1e30):
        value = poly(arb(target))
        found = pairs._root(poly, poly.derivative(), value)
        assert found.contains(arb(target))
        assert found.rad() < arb(target) * arb(2) ** -60


def test_where_a_root_cannot_be_enclosed_its_ball_begins_at_zero():
    blurred = pairs.arb_poly([arb(0.5, 1e-3), arb(1), arb(1)])
    for root in (0.1, 0.3, 0.6):
        found = pairs._root(blurred, blurred.derivative(), 0.5 + arb(root) + arb(root) ** 2)
        assert found.rad() < 1.0
        for part in (-1e-3, 0.0, 1e-3):  # of all polynomials that the balls hold
            exact = (-1 + (1 + 4 * (arb(root) + arb(root) ** 2 - part)).sqrt()) / 2
            assert found.contains(exact)


# ---- truncated batches


def tail(count, q, least):
    """P(Bin(count, q) >= least), in whole numbers but for the last division."""
    yes, no = q.numerator, q.denominator - q.numerator
    ways = sum(math.comb(count, j) * yes**j * no ** (count - j) for j in range(least, count + 1))
    return Fraction(ways, q.denominator**count)


@pytest.mark.parametrize(("most", "size"), [(2, 5), (4, 5), (1, 2), (480, 1000), (560, 1400)])
@pytest.mark.parametrize("q", [Fraction(3, 8), Fraction(1, 2)])
def test_truncation_to_many_digits(q, most, size):
    full, over = tail(size - 1, q, most), tail(size, q, most + 1)
    share = over * most / size
    cut = Truncation(arb(q.numerator) / q.denominator, most, size)
    true = full, share / full, q * (1 - full) + share
    for found, value in zip((cut.full, cut.kept, cut.joined), true, strict=True):
        ratio = found * value.denominator / value.numerator
        assert ratio.contains(arb(1))
        assert ratio.rad() < 1e-30


def test_truncation_of_all():
    cut = Truncation(arb(1), 3, 8)
    assert (cut.full, cut.kept, cut.joined) == (1, arb(3) / 8, arb(3) / 8)


@pytest.mark.parametrize(("q", "mu"), [("0.5", "0.75"), ("0.25", "3"), ("1", "0.5")])
def test_truncated_batches_to_many_digits(q, mu):
    """By the two pairs of the proof, each integrated by itself."""
    cut, q, mu = Truncation(arb(q), 2, 5), mpmath.mpf(q), mpmath.mpf(mu)
    full, p = number(cut.full), number(cut.kept)
    curve = truncated_curve(arb(str(q)), arb(str(mu)), cut)
    sampled = [0, mu], [1 - q, q]
    none, once, twice = ([0], [1]), ([0, mu], [1 - p, p]), ([0, 2 * mu], [1 - p, p])
    for text in ALPHAS:
        alpha = mpmath.mpf(text)
        # Below 1: (x)_+ = x + (-x)_+, and the ratio of `once` to `none` rises.
        back = alpha < 1
        rest = 1 - alpha + alpha * exact(once, none, 1 / alpha) if back else exact(twice, once, alpha)
        true = (1 - full) * exact(sampled, none, alpha) + full * rest
        assert holds(curve(arb(text)), true)


@pytest.mark.parametrize(("q", "mu"), [("0.5", "0.75"), ("0.25", "3")])
def test_batches_of_one_size_to_many_digits(q, mu):
    q, mu = mpmath.mpf(q), mpmath.mpf(mu)
    curve, law, none = fixed_size_curve(arb(str(q)), arb(str(mu))), ([0, 2 * mu], [1 - q, q]), ([0], [1])
    for text in ALPHAS:
        alpha = mpmath.mpf(text)
        back = alpha < 1
        true = 1 - alpha + alpha * exact(law, none, 1 / alpha) if back else exact(law, none, alpha)
        assert holds(curve(arb(text)), true)
        assert holds(reverse(curve)(arb(text)), 1 - alpha + alpha * number(curve(1 / arb(text))), 1e-26)


# ---- counts


@pytest.mark.parametrize(
    ("sigma", "shift"), [(Fraction(5, 2), 1), (Fraction(1, 3), 2), (Fraction(1), 6), (Fraction(4), 30)]
)
def test_counts_to_many_digits(sigma, shift):
    width, square = mpmath.mpf(sigma.numerator) / sigma.denominator, None
    square = 2 * width**2
    reach = 50 * math.ceil(sigma) + shift
    law = {y: mpmath.exp(-(mpmath.mpf(y) ** 2) / square) for y in range(-reach - shift, reach + shift + 1)}
    total = mpmath.fsum(law.values())
    curve = counts_curve(sigma, shift)
    thresholds = range(-reach // 4, reach // 4, max(1, reach // 12))
    ties = [
        mpmath.exp((2 * m - shift) * shift / square)
        for m in thresholds
        if abs(2 * m * shift) < 900 * width**2
    ]
    # What float64 cannot tell from a tie, too.
    beside = [tie * (1 + mpmath.mpf(part)) for tie in ties for part in ("1e-15", "-1e-15", "0.01")]
    for alpha in [mpmath.mpf(1), mpmath.mpf("0.37"), mpmath.mpf("8.5"), *ties, *beside]:
        gains = (law[y - shift] - alpha * law[y] for y in range(-reach, reach + 1))
        true = mpmath.fsum(gain for gain in gains if gain > 0) / total
        found = curve(arb(mpmath.nstr(alpha, 45)))
        assert abs(number(found) - true) < mpmath.mpf("1e-37") * (1 + alpha)
        assert found.rad() < 1e-37 * (1 + float(alpha))


def test_counts_far_out_are_what_the_tail_leaves():
    sigma, shift = Fraction(2), 3
    curve = counts_curve(sigma, shift)
    for loss in (-400.0, -120.0, 60.0, 130.0, 400.0, 3000.0):
        found = curve(arb(loss).exp())
        assert found.is_finite()
        assert (found - (1 if loss < 0 else 0)).contains(0) or float(found) < 1e-100


@pytest.mark.parametrize(
    ("sigma", "bits"), [(Fraction(1, 2), 3000), (Fraction(40), 160), (Fraction(3), 2500)]
)
def test_tails_of_counts_hold_what_is_beyond_the_last_weight(sigma, bits):
    """By as many digits as show what is left out; and no more than half as much again as a series has."""
    with ctx.workprec(bits), mpmath.workprec(bits + 100):
        counts_curve.cache_clear()
        at_least = inspect.getclosurevars(counts_curve(sigma, 1)).nonlocals["at_least"]
        counts_curve.cache_clear()
        square = 2 * (mpmath.mpf(sigma.numerator) / sigma.denominator) ** 2
        reach, far = math.ceil(40 * sigma) + 1, math.ceil(80 * sigma) + 50
        weights = {y: mpmath.exp(-(mpmath.mpf(y) ** 2) / square) for y in range(far + 1)}
        sums = dict(
            zip(
                range(far, -far - 1, -1),
                itertools.accumulate(weights[abs(y)] for y in range(far, -far - 1, -1)),
                strict=True,
            )
        )
        for m in (
            reach + 30,
            reach + 2,
            reach + 1,
            reach,
            reach - 1,
            1,
            0,
            -1,
            2 - reach,
            1 - reach,
            -reach,
            -reach - 1,
            -reach - 9,
        ):
            true = arb(mpmath.nstr(sums[m] / sums[-far], bits // 3))
            found = at_least(m)
            if m <= reach + 1:
                assert found.contains(true)
            assert found.upper() >= true.lower()
            if m > reach:
                assert found.upper() <= arb(mpmath.nstr(sums[reach + 1] / sums[-far], 30)) * 1.5
            else:
                assert found.rad() <= arb(mpmath.nstr(3 * sums[reach + 1] / sums[-far], 30)) + arb(2) ** (
                    20 - bits
                )


@pytest.mark.parametrize(
    ("sigma", "shift", "allowed"), [(Fraction(1, 50), 2, True), (Fraction(1, 50), 3, False)]
)
def test_counts_that_move_by_a_hundred_times_their_noise_are_not_checked(sigma, shift, allowed):
    if allowed:
        assert float(counts_curve(sigma, shift)(arb(1))) == pytest.approx(1.0)
    else:
        with pytest.raises(NotChecked, match="counts of noise"):
            counts_curve(sigma, shift)


# ---- grids


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize(("bins", "square", "cells"), [(2, 0.5, 40), (3, 2.0, 70), (6, 0.1, 130)])
def test_laws_of_bins_are_what_the_sums_on_the_grid_say(bins, square, cells, above):
    spare, rounds = 1e-7, 1000
    there, back = bin_laws(bins, arb(square), cells, spare, rounds, above=above)
    spacing, first = there.spacing, there.first
    count = cells + 2
    edges = np.concatenate([[0.0], bins * np.exp((first + np.arange(count)) * spacing)])
    one = pairs._start(arb(square), edges, above=above)
    total = one
    for digit in bin(bins)[3:]:
        total = pairs._added(total, total, edges, spacing, above=above)
        total = pairs._added(total, one, edges, spacing, above=above) if digit == "1" else total
    relative = 8.0 * bins * (cells + 3.0) ** 2 * 2.0**-53
    factor = 1.0 + relative if above else 1.0 - relative
    least = 0.0 if above else 1e-290
    masses = [arb(factor) * arb(m if m > least else 0.0) for m in total.masses.tolist()]
    assert len(masses) == count + 1
    ratios = [(arb(spacing) * (first + k)).exp() for k in range(count)]
    for k, mass in enumerate(there.masses.coeffs()):
        assert mass.overlaps(masses[k + 1] * ratios[k])
    assert all(mass == 0 for mass in masses[1 + len(there.masses.coeffs()) :])
    # Q's masses at 1 / r, from above where r is, from below one place further down.
    assert (back.spacing, back.first, back.above, there.above) == (spacing, 1 - first - count, above, above)
    found = {k: mass for k, mass in enumerate(back.masses.coeffs(), back.first) if mass != 0}
    moved = 0 if above else 1
    expected = {-(first + k + moved): masses[k + 1] for k in range(-1 if moved else 0, count - moved)}
    expected = {k: mass for k, mass in expected.items() if mass != 0}
    assert found == expected
    infinite = (
        [1.01 * (total.infinite / bins + spare), 1.01 * (float(masses[0]) + spare)] if above else [0.0, 0.0]
    )
    assert [float(there.infinite), float(back.infinite)] == pytest.approx(infinite, rel=1e-12)
    if above:
        assert there.infinite >= arb(1.01) * (arb(total.infinite) / bins + arb(spare)) * (1 - arb(1e-15))
    # P has mass 1, as Q has: what is rounded up is more than nothing, and little.
    for law in (there, back):
        whole = sum(law.masses.coeffs(), law.infinite)
        assert 1 < whole < 1.001 if above else 0.8 < whole < 1


@pytest.mark.parametrize(("bins", "square"), [(2, 0.5), (3, 1.0), (5, 0.3), (7, 0.3)])
def test_as_many_bins_are_added_as_there_are(bins, square):
    """The second moment of r under Q, 1 + (e^square - 1) / b, from both sides."""
    true = 1.0 + math.expm1(square) / bins
    found = []
    for above in (True, False):
        law = bin_laws(bins, arb(square), 300, 1e-12, 1, above=above)[0]
        loss = [law.spacing * k for k in range(law.first, law.first + len(law.masses.coeffs()))]
        found.append(sum(float(m) * math.exp(at) for m, at in zip(law.masses.coeffs(), loss, strict=True)))
    assert found[1] < true < found[0]
    assert found == pytest.approx([true, true], rel=0.08)


def test_grids_reach_from_where_r_hardly_is_to_what_is_spared():
    bins, square, spare = 4, 0.5, 1e-9
    for cells in (50, 200):
        there, _ = bin_laws(bins, arb(square), cells, spare, 1, above=True)
        low, count = there.spacing * there.first, cells + 2
        high = there.spacing * (there.first + count - 1)
        assert low == pytest.approx(math.log(0.01 * math.sqrt(math.expm1(square)) / bins), abs=there.spacing)
        # Under P one z has a mean of log z that is larger by its square.
        reach = math.sqrt(2 * square * math.log(bins / spare)) + square / 2 - math.log(bins)
        assert high == pytest.approx(max(reach, 0.0) + 3.0, abs=2.1 * there.spacing)


def test_rounds_are_as_many_as_rounding_allows():
    relative = 8.0 * 2 * 43.0**2 * 2.0**-53
    most = math.floor(1e-3 / relative)
    bin_laws(2, arb(0.5), 40, 1e-7, most, above=True)
    with pytest.raises(NotChecked, match="rounds of 2 bins"):
        bin_laws(2, arb(0.5), 40, 1e-7, most + 1, above=True)


@pytest.mark.parametrize("spare", [1e-150, 1e-250])
def test_what_products_below_float64_lose_is_less_than_what_is_spared(spare):
    """Up to the largest r that there is a grid for: 2^-1021 of the relative error, times it."""
    bins, cells = 2, 400

    def highest(square):
        """Log of the largest r."""
        low = -math.sqrt(2.0 * square * math.log(1.0 / spare) / bins) - 0.5 * square
        low = min(low, math.log(0.01 * math.sqrt(math.expm1(square)))) - math.log(bins)
        reach = math.sqrt(2.0 * square * math.log(bins / spare)) + 0.5 * square - math.log(bins)
        spacing = (reach + 3.0 - low) / cells
        return (math.floor(low / spacing) + cells + 1) * spacing

    def room(square):
        lost = math.log(8.0 * bins * (cells + 3.0) ** 2) - (53.0 + 1021.0) * math.log(2.0) + highest(square)
        return math.log(spare) - lost

    low, high = 0.5, 600.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if room(middle) > 0.0 else (low, middle)
    near = [low * (1.0 + part) for part in np.linspace(-0.1, 0.1, 201)]
    within = min((square for square in near if room(square) > 0.0), key=room)
    beyond = max((square for square in near if room(square) < 0.0), key=room)
    assert -0.5 < room(beyond) < 0.0 < room(within) < 0.5
    law = bin_laws(bins, arb(within), cells, spare, 1, above=True)[0]
    assert law.spacing * (law.first + cells + 1) == pytest.approx(highest(within), rel=1e-12)
    with pytest.raises(NotChecked, match="so small a delta"):
        bin_laws(bins, arb(beyond), cells, spare, 1, above=True)


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("square", [0.1, 2.0, 30.0])
def test_cells_have_the_probabilities_of_a_log_normal_number(square, above):
    edges = np.concatenate([[0.0], np.exp(np.linspace(-9.0, 12.0, 43))])
    root = mpmath.sqrt(square)
    bounds = [-mpmath.inf, *(mpmath.log(mpmath.mpf(float(e))) / root for e in edges[1:]), mpmath.inf]
    masses, moments = (
        [
            mpmath.ncdf(b + s) - mpmath.ncdf(a + s)
            if b + s < 0
            else mpmath.ncdf(-a - s) - mpmath.ncdf(-b - s)
            for a, b in itertools.pairwise(bounds)
        ]
        for s in (root / 2, -root / 2)
    )
    found = pairs._start(arb(square), edges, above=above)
    columns = []
    gathered = pairs._gathered
    try:
        pairs._gathered = lambda one, other, *_, **__: columns.extend([one, other])
        pairs._start(arb(square), edges, above=above)
    finally:
        pairs._gathered = gathered
    for column, true in zip(columns, (masses, moments), strict=True):
        np.testing.assert_allclose(column, [float(t) for t in true], rtol=1e-15, atol=1e-300)
        assert all(column >= 0.0)
    own = gathered(*columns, edges, above=above)
    np.testing.assert_array_equal(found.masses, own.masses)
    np.testing.assert_array_equal(found.values, own.values)
    assert found.infinite == own.infinite
    assert found.infinite == (pytest.approx(columns[1][-1] - columns[0][-1] * edges[-1]) if above else 0.0)


def test_what_is_infinite_of_one_bin_is_so_of_their_mean(monkeypatch):
    start, spare = pairs._start, 1e-9

    def more(square, edges, *, above):
        found = start(square, edges, above=above)
        return pairs._Sum(found.masses, found.values, 0.0625)

    monkeypatch.setattr(pairs, "_start", more)
    for bins in (2, 3):
        law = bin_laws(bins, arb(0.5), 60, spare, 1, above=True)[0]
        assert float(law.infinite) == pytest.approx(1.01 * (0.0625 + spare), rel=1e-6)
        assert law.infinite >= arb(1.01) * (arb(0.0625) + spare)
        assert bin_laws(bins, arb(0.5), 60, spare, 1, above=False)[0].infinite == 0


@pytest.mark.parametrize(("spacing", "count"), [(0.05, 150), (1.0, 70)])
@pytest.mark.parametrize("above", [True, False])
def test_sums_are_gathered_pair_by_pair(above, spacing, count):
    """Of more cells than are taken at once."""
    rng = np.random.default_rng(3)
    edges = np.concatenate([[0.0], np.exp(-3.0 + spacing * np.arange(count - 1))])
    one, other = (
        pairs._Sum(rng.dirichlet(np.full(count, 0.3)), edges * rng.uniform(1.0, 1.04, count), rest)
        for rest in (0.25, 0.5)
    )
    one.masses[3], one.values[0] = 0.0, 1e-9
    one.masses /= one.masses.sum()
    found = pairs._added(one, other, edges, spacing, above=above)
    values, weights = np.add.outer(one.values, other.values), np.outer(one.masses, other.masses)
    masses, moments, cells = (
        np.zeros(count),
        np.zeros(count),
        np.searchsorted(edges, values, side="right") - 1,
    )
    np.add.at(masses, cells, weights)
    np.add.at(moments, cells, weights * values)
    true = pairs._gathered(masses, moments, edges, above=above)
    np.testing.assert_allclose(found.masses, true.masses, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(found.values, true.values, rtol=1e-11)
    assert found.infinite == pytest.approx(true.infinite + 0.75, rel=1e-12)
    # Masses and means of all: none is lost.
    assert found.masses.sum() == pytest.approx(1.0, rel=1e-12)
    mean = one.masses @ one.values + other.masses @ other.values
    assert found.masses @ found.values + found.infinite == pytest.approx(mean + 0.75, rel=1e-12)


def test_cells_are_split_by_their_means():
    edges = np.array([0.0, 1.0, 2.0, 4.0])
    masses, moments = np.array([0.25, 0.5, 0.0, 0.25]), np.array([0.0625, 0.75, 0.0, 1.5])
    found = pairs._gathered(masses, moments, edges, above=True)
    np.testing.assert_array_equal(found.masses, [0.25 * 0.75, 0.0625 + 0.25, 0.25, 0.25])
    np.testing.assert_array_equal(found.values, edges)
    assert found.infinite == 0.5  # 1.5 - 0.25 * 4
    found = pairs._gathered(masses, moments, edges, above=False)
    np.testing.assert_array_equal(found.masses, masses)
    np.testing.assert_array_equal(found.values, [0.25, 1.5, 2.0, 6.0])
    assert found.infinite == 0.0
    # Means that rounding has moved out of their cell leave no negative mass.
    found = pairs._gathered(masses, np.array([-1e-20, 1.0 + 1e-15, 0.0, 1.0 - 1e-16]), edges, above=True)
    assert np.all(found.masses >= 0.0)
    assert found.infinite == 0.0


@pytest.mark.parametrize(("q", "mu"), [("0.1", "1.5"), ("0.7", "0.4"), ("0.01", "6")])
@pytest.mark.parametrize("alpha", ["0.3", "1", "1.2", "4"])
def test_a_replaced_example_against_forty_digits(q, mu, alpha):
    curve = replaced_curve(arb(q), arb(mu))
    q, mu, alpha = map(mpmath.mpf, (q, mu, alpha))

    def excess(x):
        none = (1 - q) * mpmath.npdf(x)
        return none + q * mpmath.npdf(x - mu) - alpha * (none + q * mpmath.npdf(x + mu))

    low, high = -mpmath.mpf(60), mpmath.mpf(60)
    for _ in range(160):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    true = (1 - q) * (1 - alpha) * mpmath.ncdf(-low)
    true += q * (mpmath.ncdf(mu - low) - alpha * mpmath.ncdf(-mu - low))
    found = curve(arb(mpmath.nstr(alpha, 40)))
    assert abs(number(found) - true) < 1e-28
    # The same in the other direction, and more than an example that is removed.
    assert abs(number(reverse(curve)(arb(mpmath.nstr(alpha, 40)))) - true) < 1e-28
    removed = sampled_curve(arb(mpmath.nstr(q, 40)), arb(mpmath.nstr(mu, 40)))
    assert number(removed(arb(mpmath.nstr(alpha, 40)))) < true
