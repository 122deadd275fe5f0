"""Parts that the checker draws from, against enumeration; weights, bounds and slack, exactly."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from flint import arb, ctx

from dpmech.checker import mixtures
from dpmech.checker.confidence import Work
from dpmech.checker.losses import gaussian_delta
from dpmech.checker.mixtures import Mixed, Mixture, Star, Tilt, log_sum
from dpmech.checker.strategies import PRECISION, NotChecked


@pytest.fixture(autouse=True)
def precision():
    with ctx.workprec(PRECISION), np.errstate(all="ignore"):
        yield


ROOT = np.array([[1.1, 0.0], [0.5, 0.9], [0.2, 0.3]])
P = np.array([0.3, 0.5, 0.2])
X = np.array([[0.3, -0.4], [2.0, 1.0], [-1.5, 0.2], [4.0, 3.0]])


def three():
    return Mixture(ROOT, np.log(P))


def exact_logs(x, power=1.0):
    """log sum p z^power at points x, by 30 digits."""
    with mpmath.workdps(30):
        found = []
        for point in x:
            terms = [
                mpmath.mpf(p) * mpmath.exp(power * (mpmath.fdot(row, point) - mpmath.fdot(row, row) / 2))
                for p, row in zip(P.tolist(), ROOT.tolist(), strict=True)
            ]
            found.append(float(mpmath.log(mpmath.fsum(terms))))
    return np.array(found)


# ---- sums, suprema, indices


def test_logs_of_sums():
    rows = np.array([[1000.0, 999.0, -1000.0], [-1000.0, -1001.0, -5000.0], [0.0, -1.0, 2.0]])
    expected = [
        1000 + math.log1p(math.exp(-1)),
        -1000 + math.log1p(math.exp(-1)),
        math.log(1 + math.exp(-1) + math.exp(2)),
    ]
    np.testing.assert_allclose(log_sum(rows), expected, rtol=1e-15)
    np.testing.assert_array_equal(log_sum(np.array([[3.0]])), [3.0])


@pytest.mark.parametrize("eps", [0.0, 0.5, 7.0])
@pytest.mark.parametrize("power", [1.0, 1.25, 2.0, 3.5, 40.0])
def test_the_supremum_of_a_gain_over_a_power(power, eps):
    found = mixtures.log_supremum(power, eps)
    log_r = eps + np.concatenate([np.logspace(-9, 2, 20_000), [300.0]])
    gains = log_r + np.log(-np.expm1(eps - log_r)) - power * log_r
    assert gains.max() <= found + 1e-12
    assert gains.max() == pytest.approx(found, abs=1e-6)


class Uniform:
    """Numbers in place of random ones."""

    def __init__(self, numbers):
        self.numbers = np.array(numbers)

    def random(self, shape):
        assert shape == self.numbers.shape
        return self.numbers


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9])
def test_indices_are_the_inverses_of_cumulative_sums(size):
    rng = np.random.default_rng(size)
    logs = np.log(rng.integers(1, 4, (3, size)).astype(float)) + np.array([[0.0], [900.0], [-900.0]])
    weights = np.rint(np.exp(logs - np.array([[0.0], [900.0], [-900.0]])))
    aims = np.tile(np.append(np.linspace(0.003, 0.997, 60), [0.0, 1.0 - 2.0**-53]), (3, 1))
    found = mixtures.picked(logs, Uniform(aims), aims.shape[1])
    for row, chances, aim in zip(found, weights, aims, strict=True):
        sums = np.cumsum(chances / chances.sum())
        np.testing.assert_array_equal(row[:60], np.searchsorted(sums, aim[:60], side="right"))
        assert (row[60], row[61]) == (0, size - 1)


def test_an_index_without_weight_is_not_drawn():
    logs = np.array([[-math.inf, 0.0, -math.inf, 0.0]])
    found = mixtures.picked(logs, Uniform([[0.0, 0.49, 0.5, 0.51, 0.999]]), 5)
    assert found.tolist() == [[1, 1, 3, 3, 3]]


# ---- what a mixture says of itself


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_a_mixture_knows_its_means(scale):
    one = Mixture(scale * ROOT, np.log(P) + 1e-3)
    squares = (scale * ROOT) ** 2 @ np.ones(2)
    np.testing.assert_allclose(one.diagonal, squares, rtol=1e-15)
    np.testing.assert_allclose(one.mean, P @ (scale * ROOT), rtol=1e-12)
    assert (one.mean_square, one.largest) == (pytest.approx(P @ squares), squares.max())
    np.testing.assert_allclose(one.gram, scale**2 * ROOT @ ROOT.T, rtol=1e-14)
    np.testing.assert_allclose(one.exponentials, np.exp(one.gram), rtol=1e-14)


def test_log_ratios_to_many_digits():
    one = three()
    np.testing.assert_allclose(one.log_r(one.terms(X)), exact_logs(X), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("largest", "width"), [(1e-4, 2), (1.0, 50), (399.0, 20_000)])
def test_slack_is_what_rounding_may_do_to_the_farthest_draw(largest, width):
    """Section 6.5: twice what exponents, logarithms and densities may be off by, and the scales of parts."""
    row = np.full((1, width), math.sqrt(largest / width))
    one = Mixture(np.concatenate([row, 0.5 * row]), np.log([0.5, 0.5]))
    far = 40.0 * math.sqrt(largest) + 40.0  # of a mean from 0
    reach = math.sqrt(width) + far + 90.0  # of x from 0
    unit = 2.0**-53
    least = 2.0 * (width + 8) * unit * reach * (math.sqrt(largest) + far)
    scales = 1e-10 + 1e-10 * largest
    assert one.slack > scales + least
    assert one.slack == pytest.approx(
        1e-10 + 2e-10 * largest + 4.0 * (width + 8) * unit * far * reach, rel=1e-6
    )


def test_recursions_have_slack_for_their_steps():
    class Stepped(mixtures.Pair):
        terms = log_r = parts = None

    mean = np.full(20, 0.1)
    plain, stepped = (Stepped(mean, (0.1, 1.0), steps=steps, inexact=2.0**20, cost=99) for steps in (0, 140))
    unit = 4.0 * 2.0**-53 * 80.0 * (math.sqrt(20.0) + 170.0)
    assert stepped.slack - plain.slack == pytest.approx(140 * unit, rel=1e-6)
    assert plain.slack - 3e-10 == pytest.approx(28 * unit, rel=1e-4)
    assert (plain.inexact, plain.batch) == (2.0**-33, 40_000)
    assert (plain.width, plain.mean_square, plain.largest) == (20, 0.1, 1.0)


@pytest.mark.parametrize("count", [1, 3, 200])
def test_what_inversion_may_be_off_by(count):
    """Fifty times that of one index out of so many."""
    one = Mixture(np.full((count, 1), 0.5), np.full(count, -math.log(count)))
    assert one.inexact == pytest.approx(50.0 * (count + 2.0) ** 2 * 2.0**-53)


def test_means_that_are_too_long_or_too_many_are_not_checked():
    assert Mixture(np.array([[20.0], [1.0]]), np.log([0.5, 0.5])).largest == 400.0
    with pytest.raises(NotChecked, match="20 noise scales"):
        Mixture(np.array([[1.0], [20.001]]), np.log([0.5, 0.5]))
    assert Mixture(np.zeros((1, 20_000)), np.zeros(1)).width == 20_000
    with pytest.raises(NotChecked, match="20000 dimensions"):
        Mixture(np.zeros((1, 20_001)), np.zeros(1))


def test_batches_are_limited_by_memory_and_by_their_use():
    sizes = [Mixture(np.zeros((rows, 3)), np.full(rows, -math.log(rows))).batch for rows in (2, 1000, 40_000)]
    assert sizes == [50_000, 4_000_000 // 1004, 200]


@pytest.mark.parametrize("eps", [0.01, 8.0, 300.0])
@pytest.mark.parametrize("scale", [1e-6, 0.3, 18.0])
def test_no_part_is_farther_out_than_slack_covers(eps, scale):
    """Exponents add up to 40 at most, as do shifts; and of one part a bound is known."""
    mixture = Mixture(scale * ROOT / np.linalg.norm(ROOT, axis=1).max(), np.log([1e-9, 0.5, 0.5 - 1e-9]))
    star, tilts = mixture.parts(eps)
    assert 2.0 <= star.power <= 40.0
    assert star.bounds
    for tilt in tilts:
        assert tilt._power > 0.0
        assert tilt._power + tilt._more <= 40.0
        assert np.linalg.norm(tilt._shift) <= 40.0 * (1 + 1e-12)
    assert len(tilts) == 21
    assert tilts[0].bounds
    assert (tilts[0]._power, tilts[0]._more) == (1.0, 2)
    assert not np.any(tilts[0]._shift)
    assert max(tilt._power for tilt in tilts) > 0.2


# ---- parts


def tilted(power, more, lift, root=ROOT):
    """Tuples of a tilt, the logs of their weights, and the means of x: by the moments of Gaussians."""
    gram, size = root @ root.T, len(P)
    found = []
    for chosen in itertools.product(range(size), repeat=1 + more):
        c = lift * P.copy()
        c[chosen[0]] += power
        rest = -0.5 * power * gram[chosen[0], chosen[0]]
        for index in chosen[1:]:
            c[index] += 1.0
            rest -= 0.5 * gram[index, index]
        weight = np.log(P[list(chosen)]).sum() + rest + 0.5 * c @ gram @ c
        found.append((chosen, weight, c @ root))
    return found


class Chosen:
    """In place of `picked`: gives the indices that it is told, and notes how likely they were."""

    def __init__(self, indices):
        self.indices, self.chance = list(indices), 0.0

    def __call__(self, logs, rng, count):
        assert len(logs) == 1
        own = [self.indices.pop(0) for _ in range(count)]
        self.chance += sum(float(logs[0, i]) for i in own) - count * float(log_sum(logs)[0])
        return np.array([own])


class Still:
    """Draws of 0."""

    def standard_normal(self, shape):
        return np.zeros(shape)


TILTS = [
    (1.0, 0, 0.0),
    (4.2, 0, 0.0),
    (1.0, 1, 0.0),
    (1.3, 1, 0.4),
    (1.0, 2, 0.0),
    (0.6, 2, 0.7),
    (2.5, 2, -0.3),
]


@pytest.mark.parametrize(("power", "more", "lift"), TILTS)
def test_tilts_are_what_enumeration_finds(power, more, lift, monkeypatch):
    part, laws = Tilt(three(), power, more, lift), tilted(power, more, lift)
    total = float(log_sum(np.array([[weight for _, weight, _ in laws]]))[0])
    assert part.log_scale == pytest.approx(-total, abs=1e-12)
    assert part.power == power + more
    assert part.bounds is (lift == 0.0 and power >= 1.0)
    for chosen, weight, mean in laws:
        told = Chosen(chosen)
        monkeypatch.setattr(mixtures, "picked", told)
        np.testing.assert_allclose(part.draw(Still(), 1), [mean], rtol=1e-12, atol=1e-14)
        assert not told.indices
        assert told.chance == pytest.approx(weight - total, abs=1e-11)
    terms, log_r = three().terms(X), exact_logs(X)
    u = X @ (P @ ROOT)
    expected = more * log_r + exact_logs(X, power) + lift * u - total
    np.testing.assert_allclose(part.log_density(X, terms, log_r), expected, rtol=1e-12, atol=1e-12)
    if part.bounds:
        assert np.all(expected >= part.power * log_r + part.log_scale - 1e-11)


@pytest.mark.parametrize(("power", "more", "lift"), [(38.0, 2, 0.1), (25.0, 1, 0.0), (1.0, 2, 0.0)])
def test_tilts_of_long_means_are_in_the_range_of_float64(power, more, lift, monkeypatch):
    root = 17.0 * ROOT
    mixture, laws = Mixture(root, np.log(P)), tilted(power, more, lift, root)
    part, total = Tilt(mixture, power, more, lift), float(log_sum(np.array([[w for _, w, _ in laws]]))[0])
    assert part.log_scale == pytest.approx(-total, rel=1e-12)
    for chosen, weight, mean in laws:
        told = Chosen(chosen)
        monkeypatch.setattr(mixtures, "picked", told)
        np.testing.assert_allclose(part.draw(Still(), 1), [mean], rtol=1e-12)
        assert told.chance == pytest.approx(weight - total, rel=1e-12, abs=1e-8)


@pytest.mark.parametrize("power", [0.5, 0.999, 1.0, 1.5])
def test_tilts_of_less_than_one_have_no_bound(power):
    assert Tilt(three(), power, 1, 0.0).bounds is (power >= 1.0)
    assert Tilt(three(), power, 1, 0.25).bounds is False


@pytest.mark.parametrize("order", [2, 3, 5])
def test_stars_are_what_enumeration_finds(order, monkeypatch):
    star, gram = Star(three(), order), ROOT @ ROOT.T
    pulls = np.exp(0.5 * order * gram) @ P  # C_c
    bound = P @ pulls ** (order - 1)
    assert star.log_scale == pytest.approx(-math.log(bound), abs=1e-12)
    assert (star.power, star.bounds) == (float(order), True)
    for chosen in itertools.product(range(3), repeat=order):
        centre, *others = chosen
        chance = P[centre] * np.prod([P[s] * math.exp(0.5 * order * gram[centre, s]) for s in others]) / bound
        told = Chosen(chosen)
        monkeypatch.setattr(mixtures, "picked", told)
        x, tuples = star.draw(Still(), 1)
        assert tuples.tolist() == [list(chosen)]
        assert told.chance == pytest.approx(math.log(chance), abs=1e-11)
        np.testing.assert_allclose(x, [ROOT[list(chosen)].sum(axis=0)], rtol=1e-12)
        # With the centre in any place, over the part of r^m that the tuple has.
        sums = gram[np.ix_(chosen, chosen)].sum(axis=1) - np.diag(gram)[list(chosen)]
        law = np.prod(P[list(chosen)]) / bound * np.exp(0.5 * order * sums).mean()
        whole = np.prod(P[list(chosen)]) * math.exp(0.5 * sums.sum())
        found = star.log_density(np.array([chosen]), np.array([0.37]))
        assert found == pytest.approx([order * 0.37 + math.log(law / whole)], abs=1e-11)
        assert found[0] >= order * 0.37 + star.log_scale


def test_means_of_equal_rows_do_not_exceed_the_bound():
    """The inequality of means is an equation here, which rounding must not break."""
    star = Star(Mixture(np.full((3, 2), 0.7), np.log(P)), 7)
    found = star.log_density(np.array([[0, 1, 2, 2, 1, 0, 1]]), np.array([0.5]))
    assert found[0] >= 3.5 + star.log_scale
    assert found[0] == pytest.approx(3.5 + star.log_scale, abs=1e-13)


# ---- draws of REMOVE


class Part:
    """A part that draws fixed points, and says a density that tells it from others."""

    def __init__(self, shift, power=1.0, log_scale=0.0, *, bounds=True):
        self.shift, self.power, self.log_scale, self.bounds = shift, power, log_scale, bounds

    def draw(self, rng, size):
        return np.arange(float(size))[:, None] + self.shift

    def log_density(self, x, terms, log_r):
        return 0.01 * x[:, 0] + self.shift + 0.001 * terms[:, 0] + 0.1 * log_r


class Tuples(Part):
    def draw(self, rng, size):
        return super().draw(rng, size), np.arange(size)[:, None] + np.array([[100, 200]])

    def complete(self, terms, rng):
        return np.tile(np.arange(len(terms))[:, None], (1, 2)) - 1000

    def log_density(self, tuples, log_r):
        return tuples.sum(axis=1) + 0.5 * log_r


class Line:
    """A pair whose log r is x / 4 - 1."""

    slack, batch, mean_square = 0.125, 60, 0.5

    def __init__(self, star, tilts):
        self.chosen = star, tilts

    def terms(self, x):
        return 3.0 * x

    def log_r(self, terms):
        return terms[:, 0] / 12.0 - 1.0

    def parts(self, eps):
        return self.chosen


class Counts:
    def multinomial(self, size, shares):
        return np.floor(size * np.asarray(shares) + 1e-9).astype(int)


def removal(star, tilts, shares, eps):
    """One with given shares."""
    made = mixtures._Removal.__new__(mixtures._Removal)
    made._mixture, made._eps, made._shares = Line(star, tilts), eps, np.array(shares)
    made._star, made._tilts = star, tilts
    return made


@pytest.mark.parametrize("with_star", [True, False])
def test_what_is_drawn_has_the_density_of_every_part(with_star):
    eps = 0.2
    star, tilts = (Tuples(0.25) if with_star else None), [Part(0.5), Part(0.75)]
    shares = [0.4, 0.2, 0.4] if with_star else [0.4, 0.6]
    made = removal(star, tilts, shares, eps)
    log_r, logs = made.drawn(Counts(), 60)
    counts = [24, 12, 24] if with_star else [24, 36]
    x = np.concatenate(
        [np.arange(n) + s for n, s in zip(counts, (0.25, 0.5, 0.75)[not with_star :], strict=True)]
    )
    all_r = x / 4.0 - 1.0
    paid = all_r > eps - 4.0 * 0.125
    np.testing.assert_allclose(log_r, all_r[paid])
    expected = [0.01 * x + part.shift + 0.003 * x + 0.1 * all_r for part in tilts]
    if with_star:
        own = 2.0 * np.arange(24.0) + 300.0
        tuples = np.concatenate([own[paid[:24]], 2.0 * np.arange(paid[24:].sum()) - 2000.0])
        star_logs = np.full(60, np.nan)
        star_logs[paid] = tuples + 0.5 * all_r[paid]
        expected.insert(0, star_logs)
    np.testing.assert_allclose(logs, np.stack(expected, axis=1)[paid])
    assert 0 < paid[:24].sum() < 24


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_weights_of_remove_are_the_worst_that_slack_allows(sign):
    """Log r and log rho may both be off by it: in the direction that makes the weight larger, or smaller."""
    eps, shares = 0.5, np.array([0.25, 0.75])
    made = removal(None, [Part(0.5), Part(0.75)], shares, eps)
    log_r, logs = made.drawn(Counts(), 60)
    found = next(made.weights(Counts(), sign))
    assert found.shape == (60,)
    assert not np.any(found[len(log_r) :])
    log_rho = np.log(np.exp(logs) @ shares)
    ratio = np.exp(log_r + sign * 0.125)
    worst = np.maximum(ratio - math.exp(eps), 0.0) / np.exp(log_rho - sign * 0.125)
    np.testing.assert_allclose(found[: len(log_r)], worst, rtol=1e-12, atol=1e-15)
    if sign:
        for one, other in itertools.product((-0.125, 0.0, 0.125), repeat=2):
            moved = np.maximum(np.exp(log_r + one) - math.exp(eps), 0.0) / np.exp(log_rho + other)
            assert np.all(sign * (found[: len(log_r)] - moved) >= -1e-12)


def test_where_nothing_is_paid_weights_are_zero():
    made = removal(None, [Part(0.5), Part(0.75)], [0.5, 0.5], 80.0)
    np.testing.assert_array_equal(next(made.weights(Counts(), 1.0)), np.zeros(60))


def test_the_bound_is_the_least_of_those_of_the_parts():
    eps = 0.7
    parts = [
        Part(0.0, 2.0, 0.25),
        Part(0.0, 3.0, -1.5),
        Part(0.0, 2.0, 99.0, bounds=False),
        Part(0.0, 1.0, 0.5),
    ]
    for order in itertools.permutations(range(4)):
        chosen, shares = [parts[i] for i in order], np.array([0.1, 0.2, 0.3, 0.4])
        made = removal(chosen[0], chosen[1:], shares, eps)
        log_r = eps + np.logspace(-9, 1, 30_000)
        gains = np.log(np.expm1(log_r - eps)) + eps
        alone = [
            (gains - part.power * log_r - part.log_scale).max() - math.log(share)
            for part, share in zip(chosen, shares, strict=True)
            if part.bounds and part.power > 1.0
        ]
        alone += [
            -0.5 - math.log(share) for part, share in zip(chosen, shares, strict=True) if part.power == 1.0
        ]
        assert made.log_bound() == pytest.approx(min(alone), abs=1e-6)
    made = removal(None, parts[:2], np.array([0.5, 0.5]), eps)
    assert made._log_bounds().tolist() == [
        mixtures.log_supremum(2.0, eps) - 0.25,
        mixtures.log_supremum(3.0, eps) + 1.5,
    ]


@pytest.mark.parametrize("eps", [0.3, 1.5, 4.0])
def test_shares_make_a_law_whose_weights_keep_their_bound(eps):
    mixture = three()
    mixture.batch = 3000
    made = mixtures._Removal(mixture, eps, np.random.default_rng(1))
    shares = made._shares
    assert np.all(shares > 0.0)
    assert shares.sum() == pytest.approx(1.0, abs=1e-12)
    assert len(shares) == len(made._tilts) + (made._star is not None) < 22
    best = np.argmin(made._log_bounds())
    assert shares[best] >= 0.2
    # Nearly nothing is lost against all parts with equal shares, for what is paid for.
    drawn = np.concatenate(list(itertools.islice(made.weights(np.random.default_rng(9), 0.0), 1)))
    star, tilts = mixture.parts(eps)
    equal = removal(star, tilts, np.full(22, 1 / 22), eps)
    equal._mixture = mixture
    plain = np.concatenate(list(itertools.islice(equal.weights(np.random.default_rng(9), 0.0), 1)))
    assert drawn.mean() == pytest.approx(plain.mean(), rel=0.2)
    assert (drawn**2).mean() < 1.2 * (plain**2).mean()
    assert drawn.max() <= math.exp(made.log_bound())


@pytest.mark.parametrize(("batch", "size"), [(200, 4000), (2200, 4400), (50_000, 10_000)])
def test_shares_are_chosen_by_some_thousand_draws(batch, size):
    class Told(Exception):
        pass

    class Asked(mixtures._Removal):
        def drawn(self, rng, size):
            raise Told(size)

    mixture = three()
    mixture.batch = batch
    with pytest.raises(Told, match=f"^{size}$"):
        Asked(mixture, 1.0, np.random.default_rng(1))


# ---- draws of ADD


class Fixed:
    """Draws at given places."""

    def __init__(self, x):
        self.x = x

    def standard_normal(self, shape):
        assert shape == self.x.shape
        return self.x


@pytest.mark.parametrize("eps", [0.1, 1.2, 5.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_weights_of_add_are_the_worst_that_slack_allows(sign, eps):
    mixture = three()
    mixture.slack, mixture.batch = 0.01, 400
    base = np.random.default_rng(4).normal(0.0, 2.0, (400, 2))
    draws = mixtures._Addition(mixture, eps, None)
    found = next(draws.weights(Fixed(base), sign))
    tau, square = P @ ROOT, float((P @ ROOT) @ (P @ ROOT))
    reach = eps - 0.5 * float(P @ (ROOT**2).sum(axis=1)) - 1e-9
    move = max(reach, 0.0) / square * tau
    x = base - move
    log_r, log_rho = exact_logs(x), -x @ move - move @ move / 2
    worst = np.maximum(1.0 - np.exp(eps + log_r - sign * 0.01), 0.0) / np.exp(log_rho - sign * 0.01)
    np.testing.assert_allclose(found, worst, rtol=1e-9, atol=1e-12)
    # The bound is the density where the half-space begins, beyond which nothing is paid.
    bound = draws.log_bound()
    assert bound == pytest.approx(-0.5 * max(reach, 0.0) ** 2 / square, rel=1e-12, abs=1e-15)
    sides = -x @ tau
    assert np.all(np.maximum(1.0 - np.exp(eps + log_r), 0.0)[sides < reach] == 0.0)
    exact = np.maximum(1.0 - np.exp(eps + log_r), 0.0) / np.exp(log_rho)
    assert np.all(exact <= math.exp(bound))


@pytest.mark.parametrize("eps", [1.2, 3.0, 6.0])
def test_add_in_closed_form_is_what_the_half_space_holds(eps):
    mixture = three()
    mixture.slack = 1e-3
    found = mixtures._Addition(mixture, eps, None).closed()
    tau = P @ ROOT
    with mpmath.workdps(30):
        spread = mpmath.sqrt(mpmath.fdot(tau, tau))
        start = (
            eps - mpmath.mpf(0.5) * float(P @ (ROOT**2).sum(axis=1)) - mpmath.mpf("1e-9") - mpmath.mpf(0.001)
        )
        gain = lambda u: (1 - mpmath.exp(start - u)) * mpmath.npdf(u / spread) / spread  # noqa: E731
        true = mpmath.quad(gain, [start, start + spread, start + 5 * spread, start + 15 * spread])
    assert float(found) >= float(true)
    assert float(found) == pytest.approx(float(true), rel=1e-6)


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_a_half_space_that_holds_zero_says_nothing(eps):
    draws = mixtures._Addition(three(), eps, None)
    assert draws._reach < 0.0
    assert draws.closed() == 1
    assert draws.log_bound() == 0.0
    mixture = three()
    mixture.slack = 1.0  # which may hide that it does
    assert mixtures._Addition(mixture, 1.3, None).closed() == 1


def test_the_half_space_is_a_trifle_larger_than_it_is():
    reach = 1.2 - 0.5 * float(P @ (ROOT**2).sum(axis=1))
    found = mixtures._Addition(three(), 1.2, None)._reach
    assert reach - 2.5e-9 < found < reach - 0.5e-9


# ---- answers


class Draws:
    """Weights that are all the same."""

    def __init__(self, weight, bound):
        self.weight, self.bound = weight, bound

    def log_bound(self):
        return math.log(self.bound)

    def weights(self, rng, sign):
        self.sign = sign
        return itertools.repeat(np.full(1000, self.weight))


class Notes:
    """A sequential test that notes what it is about."""

    made = None

    def __init__(self, level, bound, failure, *, upper):
        Notes.made = (level, bound, failure, upper)
        self.won, self.batches, self.draws, self.draws_needed = False, 0, 0, 0.0

    def add(self, batch):
        self.batches, self.draws = self.batches + 1, self.draws + batch.size


@pytest.mark.parametrize("upper", [True, False])
def test_a_bet_is_about_what_is_left_of_delta(upper, monkeypatch):
    monkeypatch.setattr(mixtures, "SequentialTest", Notes)
    monkeypatch.setattr(mixtures.time, "process_time", iter(np.arange(0.0, 1000.0)).__next__)
    draws = Draws(0.25, 4.0)
    trial, won = mixtures._played(draws, 1e-3, 0.5, Work(1e-9, 3.5, None), upper=upper)
    level = 0.5 - 4.004e-3 if upper else 0.5 + 4.004e-3
    assert Notes.made == (pytest.approx(level, rel=1e-13), pytest.approx(4.004, rel=1e-13), 1e-9, upper)
    assert (won, draws.sign) == (False, 1.0 if upper else -1.0)
    assert trial.batches == 3  # at 1, 2 and 3 seconds; 4 are too many


@pytest.mark.parametrize(("needed", "batches"), [(1.0, 9), (9_400.0, 9), (9_600.0, 1), (math.inf, 1)])
def test_a_bet_that_will_not_be_won_in_time_is_given_up(needed, batches, monkeypatch):
    """After a batch 1000 draws took 2 seconds: 9500 take twice the time that there is."""

    class Far(Notes):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.draws_needed = needed

    monkeypatch.setattr(mixtures, "SequentialTest", Far)
    monkeypatch.setattr(mixtures.time, "process_time", iter(np.arange(0.0, 1000.0)).__next__)
    trial, won = mixtures._played(Draws(0.25, 4.0), 0.0, 0.5, Work(1e-9, 9.5, None), upper=True)
    assert (won, trial.batches) == (False, batches)


def test_first_batches_are_played():
    late = mixtures._played(Draws(0.25, 4.0), 0.0, 0.5, Work(1e-9, -1.0, None), upper=True)
    assert late[0].batches == 1


def test_no_luck_in_the_first_batches_gives_up_a_claim_that_is_proved_in_time(monkeypatch):
    """Means 3 % below the level, two seconds a batch: by the gap of the mean alone two of these gave up."""

    class Coins(Draws):
        def weights(self, rng, sign):
            while True:
                yield (rng.random(5000) < 0.43).astype(float) * 2.0

    monkeypatch.setattr(mixtures.time, "process_time", lambda: next(clock))
    for seed in range(300):
        clock = itertools.count(0.0, 2.0)
        work = Work(5e-10, 60.0, np.random.default_rng(seed))
        assert mixtures._played(Coins(0.25, 2.0), 0.0, 0.887, work, upper=True)[1], seed


@pytest.mark.parametrize(("weight", "right"), [(4.0, True), (4.0039, True), (4.0041, False), (0.0, True)])
def test_a_weight_may_exceed_its_bound_by_a_thousandth(weight, right):
    class Mixed(Draws):
        def weights(self, rng, sign):
            return itertools.repeat(np.array([0.0, weight, 0.1]))

    work = Work(1e-9, 0.0, None)
    if right:
        mixtures._played(Mixed(weight, 4.0), 0.0, 0.5, work, upper=True)
    else:
        with pytest.raises(ArithmeticError, match="proved bound"):
            mixtures._played(Mixed(weight, 4.0), 0.0, 0.5, work, upper=True)


def answered(name, eps, delta, above, below=None):
    return Mixed(above, below).answer(name, eps, delta, Work(1e-9, 0.0, np.random.default_rng(1)))


def test_no_mixture_is_worse_than_its_longest_mean():
    """In closed form: from where on that is what is claimed, in both directions."""
    near = Mixture(np.array([[1.0], [0.999]]), np.log([0.5, 0.5]))
    level = float(gaussian_delta(arb(1), arb(0.01).exp()))
    for name in ("REMOVE", "ADD"):
        found = answered(name, 0.01, level * (1 + 1e-6), near)
        assert (found.verdict, found.failure) == (True, 0.0)
        assert "closed form" in found.number
        assert level <= float(found.number.split()[2]) <= level * (1 + 1e-5)
        assert answered(name, 0.01, level * (1 - 1e-12), near).failure == 1e-9


def test_the_longest_mean_is_raised_by_its_rounding():
    near = Mixture(np.array([[1.0], [0.5]]), np.log([0.5, 0.5]))
    # Between the curve of that mean and of one that is 1e-9 / 2 longer: not in closed form.
    level = [float(gaussian_delta(arb(1.0 + part), arb(2).exp())) for part in (1e-10, 4e-10, 6e-10)]
    assert answered("REMOVE", 2.0, level[1], near).failure == 1e-9
    assert answered("REMOVE", 2.0, level[2], near).failure == 0.0


def test_add_takes_the_smaller_closed_form():
    mixture = three()
    half, whole = (
        mixtures._Addition(mixture, 3.0, None).closed(),
        gaussian_delta(arb(1.21).sqrt(), arb(3).exp()),
    )
    assert float(half) < 0.1 * float(whole)
    found = answered("ADD", 3.0, float(half) * (1 + 1e-9), mixture)
    assert (found.verdict, found.failure) == (True, 0.0)
    assert answered("REMOVE", 3.0, float(half) * (1 + 1e-9), mixture).failure == 1e-9
