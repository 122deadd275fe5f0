import itertools
import math

import mpmath
import numpy as np
import pytest
from flint import arb, arb_poly, ctx
from scipy import integrate, stats

from dpmech.checker.losses import (
    Law,
    compose,
    gaussian_delta,
    lattice_range,
    law_above,
    law_below,
    normal_cdf,
    revealed_delta,
    reverse,
    rounded_down,
    rounded_up,
    until,
)
from dpmech.checker.pairs import Truncation, fixed_size_curve, sampled_curve, truncated_curve, user_curve
from dpmech.checker.pairs import _root as root


@pytest.fixture(autouse=True)
def precision():
    with ctx.workprec(160):
        yield


@pytest.mark.parametrize("x", [-40.0, -8.0, -0.5, 0.0, 3.0, 9.0])
def test_the_normal_law_is_that_of_mpmath(x):
    with mpmath.workdps(60):
        expected = mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2
        off = normal_cdf(arb(x)) / arb(mpmath.nstr(expected, 50)) - 1
    assert float(off.abs_upper()) < 1e-43
    assert float(normal_cdf(arb(x)).rad()) <= 1e-40 * float(normal_cdf(arb(x)).mid())


@pytest.mark.parametrize(("mu", "eps"), [(1.0, 0.0), (1.666, 8.0), (0.1, 1.0), (5.0, 1e-3), (0.05, 2.0)])
def test_the_gaussian_curve_is_its_integral(mu, eps):
    with mpmath.workdps(40):
        m, e = mpmath.mpf(mu), mpmath.mpf(eps)
        start = e / m + m / 2  # where the loss is eps
        density = lambda x, c: mpmath.exp(-((x - c) ** 2) / 2) / mpmath.sqrt(2 * mpmath.pi)  # noqa: E731
        excess = lambda x: density(x, m) - mpmath.exp(e) * density(x, 0)  # noqa: E731
        expected = mpmath.quad(excess, [start, start + 1, start + 5, start + 20])
    assert float(gaussian_delta(arb(mu), arb(eps).exp())) == pytest.approx(float(expected), rel=1e-13)


def test_printed_numbers_are_on_the_safe_side():
    third = arb(1) / 3
    assert (rounded_down(third), rounded_up(third)) == ("3.33333e-1", "3.33334e-1")
    assert rounded_up(arb(1.5), 2) == rounded_down(arb(1.5), 2) == "1.5e+0"
    assert rounded_up(arb(0)) == "0"
    assert (rounded_down(arb("nan")), rounded_up(arb("nan"))) == ("-inf", "inf")
    assert float(rounded_up(arb(10) ** -300 / 3)) >= 1e-300 / 3


Q, MU = 0.2, 0.7


def ratio_of(q, mu, x):
    return 1 - q + q * np.exp(mu * x - mu * mu / 2)


def exact_curve(q, mu, alpha, remove):
    """H by quadrature, for Poisson sampling."""

    def integrand(x):
        r = ratio_of(q, mu, x)
        return stats.norm.pdf(x) * (max(r - alpha, 0.0) if remove else max(1.0 - alpha * r, 0.0))

    points = [-12.0, 12.0]
    edge = (alpha if remove else 1.0 / alpha) - (1 - q)
    if edge > 0.0:
        points.insert(1, float(np.clip((math.log(edge / q) + mu * mu / 2) / mu, -12, 12)))
    return sum(
        integrate.quad(integrand, a, b, epsabs=1e-14, epsrel=1e-12, limit=200)[0]
        for a, b in itertools.pairwise(points)
    )


@pytest.mark.parametrize("alpha", [0.1, 0.79, 0.8, 0.801, 1.0, 1.5, 4.0, 20.0])
def test_the_curve_of_poisson_sampling_is_its_integral(alpha):
    curve = sampled_curve(arb(Q), arb(MU))
    assert float(curve(arb(alpha))) == pytest.approx(exact_curve(Q, MU, alpha, True), abs=1e-11)
    assert float(reverse(curve)(arb(alpha))) == pytest.approx(exact_curve(Q, MU, alpha, False), abs=1e-11)


def test_where_a_ball_holds_the_corner_the_curve_is_a_ball_that_holds_both():
    curve, corner = sampled_curve(arb(Q), arb(MU)), arb(0.8, 1e-9)
    found = curve(corner)
    for alpha in (0.8 - 1e-9, 0.8, 0.8 + 1e-9):
        assert found.overlaps(curve(arb(alpha)))
    assert float(found.rad()) < 1e-7


def twice(curve_of_one, q, mu, alpha, remove):
    """H of two releases: over the first one's output."""

    def integrand(x):
        r = ratio_of(q, mu, x)
        if remove:
            return stats.norm.pdf(x) * r * float(curve_of_one(arb(alpha / r)))
        return stats.norm.pdf(x) * float(curve_of_one(arb(alpha * r)))

    return integrate.quad(integrand, -10, 12, epsabs=1e-12, epsrel=1e-10, limit=400)[0]


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("eps", [0.1, 0.3])
def test_two_releases_lie_between_the_lattices(eps, remove):
    plain = sampled_curve(arb(Q), arb(MU))
    curve = plain if remove else reverse(plain)
    true = twice(curve, Q, MU, math.exp(eps), remove)
    losses, gaps = lattice_range(curve, 1e-12), []
    for spacing in (2.0**-6, 2.0**-7):
        upper = float(compose(law_above(curve, spacing, losses), 2, 1e-12).delta(arb(eps).exp()))
        lower = float(compose(law_below(curve, spacing, losses), 2, 1e-12).delta(arb(eps).exp()))
        assert lower <= true + 1e-9
        assert true <= upper + 1e-9
        gaps.append((upper - true, true - lower))
    assert gaps[1][0] < 0.4 * gaps[0][0] + 1e-10  # of second order
    assert gaps[1][1] < 0.5 * gaps[0][1] + 1e-10
    assert max(gaps[1]) < 0.1 * true


def test_curves_of_laws_are_above_and_below_at_every_point():
    curve = sampled_curve(arb(Q), arb(MU))
    losses = lattice_range(curve, 1e-9)
    above, below = law_above(curve, 0.05, losses), law_below(curve, 0.05, losses)
    for eps in np.linspace(-0.3, 2.5, 57):
        alpha = arb(float(eps)).exp()
        assert above.delta(alpha) >= curve(alpha) - arb(1e-40)
        assert below.delta(alpha) <= curve(alpha) + arb(1e-40)
    total = sum(above.masses.coeffs(), above.infinite)
    assert abs(float(total) - 1.0) < 1e-30
    assert float(compose(above, 1, 0.0).delta(arb(2))) == float(above.delta(arb(2)))


def test_curves_and_powers_end_with_the_time():
    curve = sampled_curve(arb(Q), arb(MU))
    assert until(math.inf, curve)(arb(2)).overlaps(curve(arb(2)))
    with pytest.raises(TimeoutError):
        until(-1.0, curve)(arb(2))
    law = law_above(curve, 0.05, lattice_range(curve, 1e-9))
    with pytest.raises(TimeoutError):
        compose(law, 4, 0.0, -1.0)


def test_cutting_moves_mass_to_the_safe_side():
    curve = sampled_curve(arb(Q), arb(MU))
    losses, alpha = lattice_range(curve, 1e-12), arb(1.5)
    above, below = law_above(curve, 2.0**-6, losses), law_below(curve, 2.0**-6, losses)
    for times in (2, 3, 7):
        exact, cut = compose(above, times, 0.0).delta(alpha), compose(above, times, 1e-3).delta(alpha)
        assert exact <= cut
        assert cut <= exact + arb(5e-3)
        exact, cut = compose(below, times, 0.0).delta(alpha), compose(below, times, 1e-3).delta(alpha)
        assert cut <= exact
        assert exact - arb(5e-3) <= cut


def test_laws_from_below_say_little_where_little_is_known():
    straight = lambda alpha: (1 - alpha).max(arb(0))  # noqa: E731 - equal laws: r = 1
    found = law_below(straight, 0.1, (-1.0, 1.0))
    for eps in np.linspace(-2.0, 1.0, 61):
        alpha = arb(float(eps)).exp()
        assert found.delta(alpha) <= straight(alpha) + arb(1e-40)
    blurred = lambda alpha: sampled_curve(arb(Q), arb(MU))(alpha) + arb(0, 1e-2)  # noqa: E731
    assert law_below(blurred, 0.01, (-0.2, 1.0)) is None
    assert law_below(straight, 0.1, (-0.05, 0.05)) is None  # two places are no range


@pytest.mark.parametrize("seed", range(6))
def test_laws_from_below_of_random_pairs_are_below_everywhere(seed):
    """Sums of (r - alpha)_+, whose bends are corners: the hardest for chords."""
    rng = np.random.default_rng(seed)
    ratios = np.exp(rng.normal(0.0, rng.choice([0.02, 0.3, 2.0]), rng.integers(1, 9)))
    q = rng.dirichlet(np.ones(ratios.size)) * min(1.0, 1.0 / ratios.max())
    spare = 1.0 - float(q @ ratios)  # at infinity, half of it
    curve = lambda alpha: sum(  # noqa: E731
        (arb(float(w)) * (arb(float(r)) - alpha).max(arb(0)) for w, r in zip(q, ratios, strict=True)),
        arb(0.5 * spare),
    )
    seen = 0
    for spacing, losses in itertools.product((0.3, 0.01), ((-3.0, 5.0), (-0.71, 0.93))):
        law = law_below(curve, spacing, losses)
        if law is not None:
            seen += 1
            for eps in np.linspace(losses[0] - 0.5, losses[1] + 0.5, 301):
                alpha = arb(float(eps)).exp()
                assert law.delta(alpha) <= curve(alpha) + arb(1e-40)
    assert seen


@pytest.mark.parametrize("width", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("near", [1.05, 1.3, 2.0])
def test_laws_from_below_are_below_the_lower_ends_of_wide_balls(near, width):
    """A dot that is hardly known may be lower than a slope that is certain for the others."""
    plain = sampled_curve(arb(Q), arb(MU))

    def curve(alpha):
        return plain(alpha) + (arb(0, width) if abs(float(alpha) / near - 1.0) < 2e-3 else 0)

    losses = lattice_range(plain, 1e-9)
    for spacing in (0.05, 0.01):
        law = law_below(curve, spacing, losses)
        for k in range(math.floor(losses[0] / spacing) * 8, math.ceil(losses[1] / spacing) * 8 + 1):
            alpha = (arb(spacing) * k / 8).exp()
            if law is not None:
                assert law.delta(alpha) <= curve(alpha).lower().max(arb(0)) + arb(1e-40)


@pytest.mark.parametrize(("q", "mu", "times", "eps"), [(0.01, 1.25, 100, 1.0), (0.05, 1.0, 30, 1.0)])
def test_bounds_from_below_are_close_where_only_few_places_hold_most_of_the_mass(q, mu, times, eps):
    """r is between 1 - q and 1 mostly: less than ten places of the lattice."""
    curve = sampled_curve(arb(q), arb(mu))
    losses = lattice_range(curve, 1e-12)
    spacing = 2.0 ** math.floor(math.log2((losses[1] - losses[0]) / 2000))
    upper, lower = (
        float(compose(law(curve, spacing, losses), times, 1e-12).delta(arb(eps).exp()))
        for law in (law_above, law_below)
    )
    assert 0.98 * upper < lower < upper


@pytest.mark.parametrize(("q", "mu"), [(0.5, 3.0), (0.1, 4.0), (0.7, 8.0)])
def test_laws_from_below_stay_below_the_last_points(q, mu):
    """ADD of a large mu ends abruptly, at a loss of -log(1 - q): there no chord may lie above the curve."""
    curve = reverse(sampled_curve(arb(q), arb(mu)))
    found = 0
    for allowance, cells in itertools.product((1e-4, 1e-9), (20, 60, 500)):
        losses = lattice_range(curve, allowance)
        spacing = 2.0 ** math.floor(math.log2((losses[1] - losses[0]) / cells))
        law = law_below(curve, spacing, losses)
        if law is not None:
            found += 1
            last = law.first + len(law.masses.coeffs()) - 1
            for point in np.linspace(last - 5.0, last + 1.0, 61):
                alpha = (arb(spacing) * float(point)).exp()
                assert law.delta(alpha) <= curve(alpha) + arb(1e-40)
    assert found >= 2


def test_users_and_binomial_numbers():
    above, below = user_curve(arb(Q), arb(0.3), 3, 0.0)
    weights = stats.binom.pmf(range(4), 3, Q)
    grid = np.linspace(-9, 10, 400_001)
    base = stats.norm.pdf(grid)
    ratio = sum(w * np.exp(0.3 * j * grid - (0.3 * j) ** 2 / 2) for j, w in enumerate(weights))
    for alpha in (0.4, 0.9, 1.0, 1.7, 5.0):
        expected = np.trapezoid(base * np.maximum(ratio - alpha, 0.0), grid)
        assert float(above(arb(alpha))) == pytest.approx(expected, abs=1e-9)
        assert float(below(arb(alpha))) == pytest.approx(expected, abs=1e-9)
    # One example is Poisson sampling.
    single = user_curve(arb(Q), arb(MU), 1, 0.0)[0]
    assert single(arb(2)).overlaps(sampled_curve(arb(Q), arb(MU))(arb(2)))
    # What is rare is an infinite loss above, and nothing below.
    above, below = user_curve(arb(0.01), arb(0.3), 40, 1e-6)
    true = user_curve(arb(0.01), arb(0.3), 40, 0.0)[0]
    for alpha in (0.5, 1.0, 2.0):
        assert below(arb(alpha)) < true(arb(alpha))
        assert true(arb(alpha)) <= above(arb(alpha)) + arb(1e-40)
        assert float(above(arb(alpha)) - below(arb(alpha))) < 1e-6


@pytest.mark.parametrize("mu", [30.0, 1e4, 1e10])
def test_users_with_hardly_any_noise_end_at_once(mu):
    """Whether any example joined can then be seen: H is the probability of that."""
    curve = user_curve(arb(Q), arb(mu), 3, 0.0)[0]
    for alpha in (0.9, 40.0):
        assert float(curve(arb(alpha))) == pytest.approx(1.0 - (1.0 - Q) ** 3, rel=1e-12)


def test_a_root_that_is_not_found_is_a_wide_ball(monkeypatch):
    poly = arb_poly([arb(1), arb(1)])
    assert root(poly, poly.derivative(), arb(3)).overlaps(arb(2))
    blurred = arb_poly([arb(1, 1e-3), arb(1)])
    found = root(blurred, blurred.derivative(), arb(3))
    assert found.contains(arb(2))
    assert found.contains(arb(1.999))
    with pytest.raises(ArithmeticError, match="not known well enough"):
        root(arb_poly([arb(1), arb(0, 1e-3)]), poly.derivative(), arb(3))
    wrong = arb_poly([arb(1), arb(1e9)])  # a slope that is far off: Newton's steps end before they arrive
    assert root(poly, wrong.derivative(), arb(3)).contains(arb(2))


def test_truncation_of_many_examples_at_many_bits_ends():
    size = 100_001
    with ctx.workprec(2000):
        full = Truncation(arb(0.5), 50_001, size).full
        expected = (1 - arb(math.comb(size - 1, 50_000)) / arb(2) ** (size - 1)) / 2
        assert full.overlaps(expected)
        assert full.rad() < arb(2) ** -400


@pytest.mark.parametrize(("q", "most", "size"), [(0.3, 2, 5), (1.0, 2, 5), (0.5, 1, 2)])
def test_truncation_is_what_enumeration_finds(q, most, size):
    full = kept = joined = 0.0
    for coins in itertools.product((0, 1), repeat=size):
        chance = math.prod(q if c else 1 - q for c in coins)
        drawn, others = sum(coins), sum(coins[1:])
        own = chance * coins[0] * min(1.0, most / max(drawn, 1))
        joined += own
        if others >= most:
            full += chance
            kept += own
    cut = Truncation(arb(q), most, size)
    assert float(cut.full) == pytest.approx(full, rel=1e-13)
    assert float(cut.kept) == pytest.approx(kept / full, rel=1e-13)
    assert float(cut.joined) == pytest.approx(joined, rel=1e-13)


def largest_gain(first, second, alpha, grid):
    return np.trapezoid(np.maximum(first - alpha * second, 0.0), grid)


def truncated_outputs(q, most, gradients, grid):
    """The density of one step's noised sum: all coins and all subsets, on the line, noise 1."""
    found = np.zeros_like(grid)
    for coins in itertools.product((0, 1), repeat=len(gradients)):
        chance = math.prod(q if c else 1 - q for c in coins)
        drawn = [g for g, c in zip(gradients, coins, strict=True) if c]
        subsets = [drawn] if len(drawn) <= most else list(itertools.combinations(drawn, most))
        for kept in subsets:
            found += chance / len(subsets) * stats.norm.pdf(grid - sum(kept))
    return found


@pytest.mark.parametrize("mu", [1.0, 0.6])
@pytest.mark.parametrize("others", [-1.0, 0.0, 1.0, 0.4])
def test_truncated_batches_are_dominated(others, mu):
    q, most, size, grid = 0.5, 2, 4, np.linspace(-12, 12, 24_001)
    own = truncated_outputs(q, most, [mu] + [mu * others] * (size - 1), grid)
    without = truncated_outputs(q, most, [0.0] + [mu * others] * (size - 1), grid)
    curve = truncated_curve(arb(q), arb(mu), Truncation(arb(q), most, size))
    for alpha in (0.5, 0.9, 1.0, 1.1, 2.0, 4.0):
        assert largest_gain(own, without, alpha, grid) <= float(curve(arb(alpha))) + 1e-9
        assert largest_gain(without, own, alpha, grid) <= float(reverse(curve)(arb(alpha))) + 1e-9


@pytest.mark.parametrize("mu", [1.0, 0.6])
def test_full_batches_attain_their_curve(mu):
    # Batches of one size (q = 1): the others all opposite to the example, at alpha >= 1.
    most, size, grid = 2, 4, np.linspace(-14, 14, 56_001)
    own = truncated_outputs(1.0, most, [mu] + [-mu] * (size - 1), grid)
    without = truncated_outputs(1.0, most, [0.0] + [-mu] * (size - 1), grid)
    curve = truncated_curve(arb(1), arb(mu), Truncation(arb(1), most, size))
    for alpha in (1.0, 1.5, 3.0):
        assert largest_gain(own, without, alpha, grid) == pytest.approx(float(curve(arb(alpha))), abs=1e-8)


@pytest.mark.parametrize("mu", [1.0, 0.6])
@pytest.mark.parametrize("others", [-1.0, 0.0, 1.0])
def test_batches_of_one_size_are_dominated_and_attained(others, mu):
    most, size, grid = 2, 4, np.linspace(-14, 14, 56_001)
    one = truncated_outputs(1.0, most, [mu] + [mu * others] * (size - 1), grid)
    other = truncated_outputs(1.0, most, [-mu] + [mu * others] * (size - 1), grid)
    curve, reached = fixed_size_curve(arb(most) / size, arb(mu)), []
    for alpha in (0.3, 0.8, 1.0, 1.5, 3.0):
        gains = (largest_gain(one, other, alpha, grid), largest_gain(other, one, alpha, grid))
        assert max(gains) <= float(curve(arb(alpha))) + 1e-8
        reached.append(max(gains) > float(curve(arb(alpha))) - 1e-7)
    assert all(reached) == (others != 0.0)


def test_a_ball_that_holds_one_gets_both_sides():
    curve = fixed_size_curve(arb(0.5), arb(1))
    found = curve(arb(1, 1e-12))
    for alpha in (1 - 1e-12, 1.0, 1 + 1e-12):
        assert found.overlaps(curve(arb(alpha)))


def test_a_law_without_the_budget_in_its_range():
    law = Law(0.5, 0, arb_poly([arb(0.25), arb(0.5)]), arb(0.25), above=True)
    assert float(law.delta(arb(10).exp())) == 0.25
    assert float(law.delta((arb(-10)).exp())) == pytest.approx(0.25 + 0.75, abs=1e-3)


@pytest.mark.parametrize("coins", [True, False])
@pytest.mark.parametrize("weights", [("0.9", "0.1"), ("0.64", "0.32", "0.04"), ("0.1", "0.9")])
@pytest.mark.parametrize("eps", [0.3, 30.0, 200.0, 420.0])
def test_known_participations_are_enumerated(weights, eps, coins):
    """Every sequence of three steps, and the shift of eps by the log of its probability."""
    mu, times, total = 14, 3, mpmath.mpf(0)
    with mpmath.workdps(60):
        probs = [mpmath.mpf(weight) for weight in weights]
        shifted = coins and -times * mpmath.log(probs[0]) <= eps
        slopes = [mpmath.log(probs[0] / p) / j**2 for j, p in enumerate(probs) if j]
        for numbers in itertools.product(range(len(probs)), repeat=times):
            square = sum(j * j for j in numbers)
            if square:
                at, scale = mpmath.mpf(eps), mu * mpmath.sqrt(square)
                at += max(0, -times * mpmath.log(probs[0]) + square * min(slopes)) if shifted else 0
                curve = mpmath.ncdf(scale / 2 - at / scale)
                curve -= mpmath.exp(at) * mpmath.ncdf(-scale / 2 - at / scale)
                total += mpmath.fprod(probs[j] for j in numbers) * curve
        total += 2 * times * mpmath.ncdf(-mpmath.mpf(mu) / 2) if shifted else 0
        found = revealed_delta(
            [arb(weight) for weight in weights], times, arb(mu), eps, "coins" if coins else "any"
        )
        assert float((found / arb(mpmath.nstr(total, 50)) - 1).abs_upper()) < 1e-30


def test_known_participations_are_above_the_lattice():
    """The bound from below of the product is nowhere above, and comes near."""
    curve, q, mu = sampled_curve(arb("0.2"), arb(5)), arb("0.2"), arb(5)
    law = compose(law_below(curve, 0.05, (-1.0, 60.0)), 2, 1e-12)
    for eps in (10.0, 18.0, 24.0):
        below, known = law.delta(arb(eps).exp()), revealed_delta([1 - q, q], 2, mu, eps, "coins")
        assert known / 3 < below <= known
