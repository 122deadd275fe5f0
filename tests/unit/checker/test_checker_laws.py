"""Laws on a lattice against exact sums: curves between the points, corners, powers, what is moved."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, arb_poly, ctx

from dpmech.checker import losses
from dpmech.checker.losses import (
    Lattice,
    Law,
    Part,
    compose,
    hull,
    joined,
    lattice_range,
    lattices,
    law_above,
    law_below,
    rounded_down,
    rounded_up,
)
from dpmech.checker.pairs import sampled_curve

SMALL = arb(1e-40)


@pytest.fixture(autouse=True)
def precision():
    with ctx.workprec(160):
        yield


def near(found, true, tolerance=1e-40):
    return abs(found - true) < arb(tolerance)


def corners(ratios, weights, rest=0.0):
    """Sum of weight (ratio - alpha)_+ + rest: a curve whose bends are corners."""
    pairs = [(arb(r), arb(w)) for r, w in zip(ratios, weights, strict=True)]
    return lambda alpha: sum((w * (r - alpha).max(arb(0)) for r, w in pairs), arb(rest))


def normalised(ratios, shares, rest=0.0):
    """The curve of P with these shares at these ratios, and `rest` at infinity."""
    total = sum(arb(s) for s in shares) / (1 - arb(rest))
    return corners(ratios, [arb(s) / total / arb(r) for r, s in zip(ratios, shares, strict=True)], rest)


# ---- printed numbers


@pytest.mark.parametrize("text", ["1.00000", "9.99999", "123456", "0.333333", "4.94066e-324"])
def test_a_trifle_beyond_a_decimal_number_is_seen(text):
    exact = Fraction(text)
    for part in (0, -1, 1):
        with ctx.workprec(1400):
            ball = arb(exact.numerator) / exact.denominator * (1 + part * arb(2) ** -1200)
            up, down = Fraction(rounded_up(ball)), Fraction(rounded_down(ball))
        moved = exact * (1 + Fraction(part, 2**1200))
        assert down <= moved <= up
        assert up - down <= exact / 10**5 * 2
    with ctx.workprec(2121):  # more digits than are looked at
        assert rounded_up(1 + arb(2) ** -1400) == "1.00001e+0"
        assert rounded_down(1 - arb(2) ** -1400) == "9.99999e-1"
    assert rounded_up(arb(12345678), 3) == "1.24e+7"
    assert rounded_down(arb(-12345678), 3) == "-1.24e+7"


# ---- laws


def test_the_curve_of_a_law_is_its_sum():
    rng = np.random.default_rng(1)
    for first, infinite in ((-7, 0.25), (3, 0.0), (-40, 0.01)):
        masses = [arb(float(m)) for m in rng.integers(1, 9, 12) / 128.0]
        law = Law(0.25, first, arb_poly(masses), arb(infinite), above=True)
        for place in np.arange(first - 3.0, first + 15.0, 0.5):
            ratio = (arb(0.25) * float(place)).exp()
            gains = [1 - ratio * (-arb(0.25) * (first + k)).exp() for k in range(12)]
            true = sum((m * g.max(arb(0)) for m, g in zip(masses, gains, strict=True)), arb(infinite))
            assert near(law.delta(ratio), true)


@pytest.mark.parametrize("spacing", [0.3, 0.07])
def test_a_law_from_above_joins_the_dots_and_nothing_else(spacing):
    curve = sampled_curve(arb(0.2), arb(0.7))
    law = law_above(curve, spacing, (-0.2, 1.4))
    first, last = math.floor(-0.2 / spacing), math.ceil(1.4 / spacing)
    assert (law.first, len(law.masses.coeffs()) - 1, law.above) == (first, last - first, True)
    dots = [(arb(0), arb(1))]
    dots += [(alpha, curve(alpha)) for alpha in ((arb(spacing) * k).exp() for k in range(first, last + 1))]
    for (low, one), (high, other) in itertools.pairwise(dots):
        for part in (0.125, 0.5, 1.0):
            alpha = low + (high - low) * part
            assert near(law.delta(alpha), one + (other - one) * part)
            assert law.delta(alpha) >= curve(alpha) - SMALL
    assert law.infinite.overlaps(dots[-1][1])
    assert law.delta(dots[-1][0] * 3).overlaps(dots[-1][1])
    # P has mass 1, Q at most 1: the dots begin at (0, 1).
    assert near(sum(law.masses.coeffs(), law.infinite), arb(1))


@pytest.mark.parametrize("place", [-4, 0, 2])
@pytest.mark.parametrize("dot", range(8))
def test_a_law_from_below_keeps_below_a_corner_between_dots(dot, place):
    """A chord is furthest above a curve that is straight but for one corner within it."""
    spacing, seen = 0.25, 0
    for within, others in itertools.product((0.03, 0.3, 0.5, 0.9), ((), (1.7,), (0.4, 1.1, 1.9))):
        ratios = [math.exp(spacing * (place + (dot + within) / 8)), *others]
        shares = np.linspace(1.0, 0.4, len(ratios)) / len(ratios)
        curve = normalised(ratios, shares.tolist(), 0.0 if len(others) < 2 else 0.05)
        law = law_below(curve, spacing, (-1.0, 0.75))
        if law is None:
            continue
        seen += 1
        assert not law.above
        assert all(mass >= 0 for mass in law.masses.coeffs())
        for ratio in (*ratios, *np.exp(spacing * np.linspace(-5.0, 4.0, 10))):
            assert law.delta(arb(float(ratio))) <= curve(arb(float(ratio))) + SMALL
    assert seen


@pytest.mark.parametrize("seed", range(24))
def test_laws_from_below_keep_below_every_corner(seed):
    rng = np.random.default_rng(seed)
    spacing = float(rng.choice([0.1, 0.25, 0.5]))
    dots = rng.choice(np.arange(-40.0, 48.0), rng.integers(1, 7), replace=False)
    places = dots / 8 + rng.choice([0.0, 0.01, 0.5, 0.99], dots.size) / 8
    ratios = np.exp(spacing * places).tolist()
    curve = normalised(ratios, rng.dirichlet(np.full(dots.size, 0.5)).tolist(), rng.choice([0.0, 0.1]))
    law = law_below(curve, spacing, (-5.0 * spacing, 6.0 * spacing))
    for ratio in (*ratios, *np.exp(spacing * rng.uniform(-7.0, 8.0, 40))):
        if law is not None:
            assert law.delta(arb(float(ratio))) <= curve(arb(float(ratio))) + SMALL


@pytest.mark.parametrize("place", [-2, 0, 2, 4])
@pytest.mark.parametrize("dot", range(8))
def test_a_dot_that_is_hardly_known_is_kept_below(dot, place):
    """On a straight piece, ever farther from where its line begins: lines that go on are compared, too."""
    spacing, at = 0.25, (arb(0.25) * (8 * place + dot) / 8).exp()
    plain = normalised([math.exp(0.25 * -3.1), math.exp(0.25 * 6.4)], [0.3, 0.7])
    for width in (1e-5, 1e-3, 3e-2):

        def curve(alpha, width=width):
            return plain(alpha) + (arb(0, width) if near(alpha, at) else 0)

        law = law_below(curve, spacing, (-1.0, 2.0))
        assert law.delta(at) <= curve(at).lower().max(arb(0)) + SMALL
        assert law.delta(at) >= plain(at) - 0.2
        for k in range(-40, 70, 4):
            alpha = (arb(spacing) * k / 8).exp()
            assert law.delta(alpha) <= plain(alpha) + SMALL


@pytest.mark.parametrize("seed", range(4))
def test_laws_from_below_keep_below_corners_at_dots_and_near_them(seed):
    """Also where the first dot after a place is lower than those that follow."""
    rng = np.random.default_rng(seed)
    for place in (-3, -2, -1, 0):
        for between in (0.1, 0.5, 0.9):
            near_place = 8 * place + rng.integers(0, 4) + between
            dots = [-32 + rng.choice([0.2, 0.5, 0.9]), near_place, 8 * place + 1, 56]
            ratios = [(arb(0.25) * float(dot) / 8).exp() for dot in dots]
            curve = normalised(ratios, (10.0 ** rng.uniform(-3.0, 0.0, 4)).tolist())
            law = law_below(curve, 0.25, (-1.0, 1.75))
            for ratio in (
                *ratios,
                *((arb(0.25) * k / 8).exp() for k in range(8 * place - 4, 8 * place + 20)),
            ):
                assert law is None or law.delta(ratio) <= curve(ratio) + SMALL


@pytest.mark.parametrize("place", [-1, 0, 2])
@pytest.mark.parametrize("dot", [0, 3, 5, 7])
def test_lines_that_a_lower_dot_contradicts_are_taken_back(dot, place):
    """All of them: of a curve that bends everywhere, at one dot that may be much lower."""
    plain, at = sampled_curve(arb(0.5), arb(1.5)), (arb(0.125) * (8 * place + dot) / 8).exp()

    def curve(alpha):
        return plain(alpha) + (arb(0, 0.2) if near(alpha, at) else 0)

    law = law_below(curve, 0.125, (-0.7, 1.6))
    assert law is None or law.delta(at) <= curve(at).lower().max(arb(0)) + SMALL


def uncertain(seed):
    """A curve of corners, and the same known by balls, of which some are wide, at the dots of a lattice."""
    rng, exact = random.Random(seed), arb(0.25)
    dots = [rng.choice([rng.uniform(-33, 50), rng.randint(-32, 50)]) for _ in range(rng.randint(1, 5))]
    dots.append(rng.choice([56, 60.3]))
    shares = [10 ** rng.uniform(-3, 0) for _ in dots]
    ratios = [(exact * dot / 8).exp() for dot in dots]
    plain = normalised(ratios, shares)
    scale, part, blurred = 10 ** rng.uniform(-5, -1), rng.choice([0.02, 0.05, 0.1, 0.3]), {}
    for dot in range(-40, 70):
        if rng.random() < part:
            width = scale * rng.choice([1, 1, 0.3, 0.1])
            blurred[dot] = arb(width * rng.choice([1, 1, 0.9, rng.uniform(-1, 1)]), width)

    def curve(alpha):
        return plain(alpha) + blurred.get(round(float(alpha.log() * 32)), arb(0))

    return plain, curve, ratios


# The last: a line that is compared with four dots ahead only would pass above the curve at the sixth.
@pytest.mark.parametrize("seed", [*range(12), 9247])
def test_laws_from_below_are_below_what_balls_hold(seed):
    plain, curve, ratios = uncertain(seed)
    law = law_below(curve, 0.25, (-1.0, 1.75))
    for ratio in (*ratios, *((arb(0.25) * k / 8).exp() for k in range(-32, 57))):
        assert law is None or not law.delta(ratio) > plain(ratio) + SMALL


@pytest.mark.parametrize(("corner", "ends"), [(4.49, (-1.0, 2.0)), (9.5, (0.75, 3.0)), (33.2, (1.5, 4.5))])
def test_a_law_from_below_is_below_all_curves_that_balls_allow(corner, ends):
    """Straight from (0, 1) to the corner: with a slope that is hardly known, it must not begin above 1."""
    plain = corners([corner], [1.0 / corner])
    for width in (1e-7, 1e-5, 1e-4, 1e-3, 2e-3):
        law = law_below(lambda alpha, width=width: plain(alpha) + arb(0, width), 0.25, ends)
        if law is not None:
            for alpha in (1e-9, 0.1, 0.5, 0.9 * corner, corner):
                assert not law.delta(arb(alpha)) > plain(arb(alpha))
    assert law_below(lambda alpha: plain(alpha) + arb(0, 1e-7), 0.25, ends) is not None


def test_a_curve_that_ends_before_the_second_place_has_no_law_from_below():
    for within in (0.3, 0.6, 0.9):
        curve = normalised([math.exp(0.25 * (-4 + within))], [1.0])
        assert law_below(curve, 0.25, (-1.0, 1.0)) is None
    assert law_below(normalised([math.exp(0.25 * -2.5)], [1.0]), 0.25, (-1.0, 1.0)) is not None


def test_a_law_from_below_ends_at_zero_and_loses_little():
    curve = sampled_curve(arb(0.2), arb(0.7))
    spacing = 0.02
    ends = lattice_range(curve, 1e-9)
    law = law_below(curve, spacing, ends)
    assert law.infinite == 0
    assert law.first == math.floor(ends[0] / spacing)
    assert len(law.masses.coeffs()) - 1 <= math.ceil(ends[1] / spacing) - law.first
    for eps in (0.05, 0.1, 0.3, 0.6, 1.0):
        alpha = arb(eps).exp()
        assert 0 < curve(alpha) - law.delta(alpha) < 40 * spacing**2 * curve(alpha)


# ---- hulls


def lowest(points, alpha):
    """The greatest convex falling function below the points, by all chords; points in the order of alpha."""
    values = [y for x, y in points if x <= alpha]
    for (x1, y1), (x2, y2) in itertools.product(points, points):
        if x1 < alpha < x2:
            values.append(y1 + (y2 - y1) * (alpha - x1) / (x2 - x1))
    return min(values)


@pytest.mark.parametrize("seed", range(12))
def test_hulls_are_the_lowest_chords(seed):
    rng = np.random.default_rng(seed)
    steps = rng.choice([0.0, 0.2, 0.5, 0.9, 1.4, 2.0], (2, rng.integers(1, 6)))
    values = np.sort(rng.choice([0.0, 0.01, 0.1, 0.2, 0.3, 0.5], steps.shape))[:, ::-1]
    steps = np.sort(steps) if seed % 2 else steps
    forth, back = (
        [(float(s), arb(float(v))) for s, v in zip(*one, strict=True)]
        for one in zip(steps, values, strict=True)
    )
    if seed % 3 == 2:
        back = []
    curve = hull(forth, back)
    points = [(0.0, 1.0)] + [(math.exp(s), float(v)) for s, v in forth]
    points += [(math.exp(-s), 1.0 - math.exp(-s) + math.exp(-s) * float(v)) for s, v in back]
    for alpha in [*np.linspace(0.01, 9.0, 150), *(x * f for x, _ in points[1:] for f in (0.999, 1.0, 1.001))]:
        assert float(curve(arb(float(alpha)))) == pytest.approx(lowest(points, float(alpha)), abs=1e-13)


def test_hulls_of_one_claim_are_randomised_response_that_fails():
    eps, delta = 0.8, 0.03
    curve = hull([(eps, arb(delta))], [(eps, arb(delta))])
    kept = (1 - delta) * math.exp(eps) / (1 + math.exp(eps))  # and the rest of 1 - delta is the other answer
    for alpha in np.linspace(0.05, 4.0, 80):
        true = delta + max(0.0, kept - alpha * (1 - delta - kept))
        true += max(0.0, 1 - delta - kept - alpha * kept)
        assert float(curve(arb(float(alpha)))) == pytest.approx(true, abs=1e-13)


# ---- ranges


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize(("q", "mu", "allowance"), [(0.2, 0.7, 1e-9), (0.01, 3.0, 1e-6), (0.5, 0.01, 1e-3)])
def test_ranges_end_where_the_curve_is_within_what_is_allowed(q, mu, allowance, remove):
    plain = sampled_curve(arb(q), arb(mu))
    curve = plain if remove else losses.reverse(plain)
    low, high = lattice_range(curve, allowance)
    assert low < 0.0 < high

    def rest(loss):
        alpha = arb(loss).exp()
        return float(curve(alpha) - (0 if loss > 0.0 else 1 - alpha))

    assert rest(low) <= allowance < rest(low * (1.0 - 2.0**-11))
    assert rest(high) <= allowance < rest(high * (1.0 - 2.0**-11))


# ---- products


EXACT = [Fraction(1, 2), Fraction(1, 8), Fraction(0), Fraction(1, 4)]


def law_of(masses, infinite, *, above, first=-1):
    return Law(0.5, first, arb_poly([as_ball(m) for m in masses]), as_ball(infinite), above)


def as_ball(value):
    return arb(value.numerator) / value.denominator


def power(masses, infinite, times):
    """Masses and what is infinite of so many copies, in exact numbers."""
    found, rest = [Fraction(1)], Fraction(0)
    for _ in range(times):
        longer = [Fraction(0)] * (len(found) + len(masses) - 1)
        for (i, one), (j, other) in itertools.product(enumerate(found), enumerate(masses)):
            longer[i + j] += one * other
        found, rest = longer, rest + infinite - rest * infinite
    return found, rest


def assert_law(law, masses, infinite, first):
    assert law.first == first
    assert len(law.masses.coeffs()) == len(masses)
    for found, true in zip(law.masses.coeffs(), masses, strict=True):
        assert found == as_ball(true)
    assert law.infinite == as_ball(infinite)


@pytest.mark.parametrize("times", range(1, 14))
def test_powers_are_exact_where_nothing_may_be_moved(times):
    for above, infinite in ((True, Fraction(1, 8)), (False, Fraction(0))):
        law = compose(law_of(EXACT, infinite, above=above), times, -1.0)
        assert law.above is above
        assert_law(law, *power(EXACT, infinite, times), -times)


def test_no_mass_at_infinity_is_kept_from_below():
    one = law_of(EXACT, Fraction(1, 8), above=False)
    assert compose(one, 2, 0.0).infinite == 0


def test_the_allowance_is_shared_by_the_copies(monkeypatch):
    allowed = []
    kept = losses._trimmed
    monkeypatch.setattr(losses, "_trimmed", lambda law, rest: (allowed.append(rest), kept(law, rest))[1])
    compose(law_of(EXACT, Fraction(1, 8), above=True), 13, 1e-6)
    assert allowed == pytest.approx([1e-6 * copies / 13 for copies in (2, 3, 6, 12, 13)])


def test_laws_are_joined_in_turn():
    laws = [law_of(EXACT[:k], Fraction(1, 2**k), above=True, first=k) for k in (2, 3, 4)]
    found = joined(laws, -1.0)
    masses = [Fraction(0)] * 7
    for i, j, k in itertools.product(range(2), range(3), range(4)):
        masses[i + j + k] += EXACT[i] * EXACT[j] * EXACT[k]
    while not masses[-1]:
        masses.pop()
    assert_law(found, masses, 1 - Fraction(3, 4) * Fraction(7, 8) * Fraction(15, 16), 9)
    assert joined(laws[:1], 1.0) is laws[0]
    with pytest.raises(TimeoutError):
        joined(laws, 0.0, -1.0)


@pytest.mark.parametrize("above", [True, False])
def test_small_ends_are_moved_to_the_safe_side(above):
    masses = [Fraction(k, 128) for k in (1, 2, 4, 40, 8, 2, 1)]
    infinite = Fraction(1, 16) if above else Fraction(0)

    def cut(allowance):
        return losses._trimmed(law_of(masses, infinite, above=above, first=5), float(allowance))

    # Sums from either end: 1, 3, 7, 47 and 1, 3, 11, 51 of 128.
    for allowed, low, high in (
        (0.5, 0, 7),
        (1, 1, 6),
        (2, 1, 6),
        (3, 2, 5),
        (6.5, 2, 5),
        (7, 3, 5),
        (11, 3, 4),
    ):
        kept = masses[low:high]
        if above:
            kept[0] += sum(masses[:low])
        else:
            kept[-1] += sum(masses[high:])
        assert_law(cut(allowed / 128), kept, infinite + above * sum(masses[high:]), 5 + low)
    # One mass stays whatever is allowed.
    assert len(cut(10).masses.coeffs()) == 1
    assert len(cut(48 / 128).masses.coeffs()) == 1


# ---- lattices


def test_lattices_are_ever_finer(monkeypatch):
    curve = sampled_curve(arb(0.2), arb(0.7))
    monkeypatch.setattr(losses.time, "process_time", lambda: 100.0)
    parts = [Part(curve, 3), Part(curve, 5, (-0.5, 9.5))]
    found = list(lattices(parts, 1e-3, 7.0))
    ranges = [lattice_range(curve, 1e-8 / 8), (-0.5, 9.5)]
    width = max(high - low for low, high in ranges)
    assert 500 <= width / found[0].spacing < 1000
    assert math.log2(found[0].spacing).is_integer()
    for one, other in itertools.pairwise(found):
        assert other.spacing == one.spacing / 2
    assert losses._MOST_NODES / 2 <= width / found[-1].spacing < losses._MOST_NODES
    for one in found:
        assert (one.ranges, one.allowance, one.end) == (ranges, pytest.approx(1e-8), 114.0)


def test_lattices_end_with_the_time(monkeypatch):
    curve = sampled_curve(arb(0.2), arb(0.7))
    clock = iter([100.0, 106.0, 106.9, 107.0])
    monkeypatch.setattr(losses.time, "process_time", lambda: next(clock))
    assert len(list(lattices([Part(curve, 3, (-0.5, 1.0))], 1e-3, 7.0))) == 2


def test_a_lattice_composes_its_parts():
    one, other = sampled_curve(arb(0.2), arb(0.7)), sampled_curve(arb(0.1), arb(1.0))
    ranges = [(-0.25, 1.0), (-0.125, 1.5)]
    lattice = Lattice(2.0**-4, ranges, 1e-6, math.inf)
    parts = [Part(one, 3), Part(other, 2)]
    ratio = arb(0.3).exp()
    for above, law in ((True, law_above), (False, law_below)):
        found = lattice.law(parts, above=above)
        laws = [law(part.curve, 2.0**-4, ends) for part, ends in zip(parts, ranges, strict=True)]
        powers = [compose(one, part.times, 1e-6) for one, part in zip(laws, parts, strict=True)]
        true = joined(powers, 1e-6)
        assert found.above is (law is law_above)
        assert found.first == true.first
        assert near(found.delta(ratio), true.delta(ratio))
    first = lattice.law(parts[:1], above=False)  # of the first ones only
    assert near(first.delta(ratio), compose(law_below(one, 2.0**-4, ranges[0]), 3, 1e-6).delta(ratio))
    short = Lattice(2.0**-4, [(-0.01, 0.01)], 1e-6, math.inf)
    assert short.law(parts[:1], above=False).delta(ratio) == 0
    late = Lattice(2.0**-4, ranges, 1e-6, -1.0)
    for above in (True, False):
        with pytest.raises(TimeoutError):
            late.law(parts, above=above)
