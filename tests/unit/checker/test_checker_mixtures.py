import itertools
import math
import statistics
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, ctx
from scipy import integrate, stats

from dpmech.checker import components, mixtures
from dpmech.checker.claims import claim_of
from dpmech.checker.confidence import SequentialTest, Work
from dpmech.checker.documents import BadDocument, decode
from dpmech.checker.mixtures import Mixed, Mixture, Star, Tilt, log_sum
from dpmech.checker.strategies import PRECISION, NotChecked, strategy_of
from tests.support.checker_files import certificate
from tests.support.sets_apart import sets_apart


@pytest.fixture(autouse=True)
def precision():
    with ctx.workprec(PRECISION):
        yield


PAIR = Mixture(np.array([[1.1, 0.0], [0.5, 0.9]]), np.log([0.4, 0.6]))
EPS = 0.7


def quadrature(mixture, eps):
    """(REMOVE, ADD) of a mixture in two dimensions, on a grid."""
    grid = np.linspace(-8.0, 10.0, 901)
    x = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    r = np.exp(mixture.log_weights + mixture.terms(x)).sum(axis=1)
    base = stats.norm.pdf(x).prod(axis=1) * (grid[1] - grid[0]) ** 2
    return (base @ np.maximum(r - math.exp(eps), 0.0), base @ np.maximum(1.0 - math.exp(eps) * r, 0.0))


REMOVE, ADD = quadrature(PAIR, EPS)
CHECKS = [("REMOVE", REMOVE), ("ADD", ADD)]


def test_weights_have_the_mean_of_quadrature_and_keep_their_bound():
    rng = np.random.default_rng(1)
    for kind, true in ((mixtures._Removal, REMOVE), (mixtures._Addition, ADD)):
        for sign in (1.0, -1.0):
            draws = kind(PAIR, EPS, rng)
            drawn = np.concatenate(list(itertools.islice(draws.weights(rng, sign), 3)))
            assert drawn.max() <= 1.001 * math.exp(draws.log_bound())
            assert abs(drawn.mean() - true) < 6.0 * drawn.std() / drawn.size**0.5 + 3e-6 * true


@pytest.mark.parametrize(("check", "true"), CHECKS)
def ask(check, above, below, eps, delta, seconds=20.0, seed=2):
    return Mixed(above, below).answer(check, eps, delta, Work(1e-9, seconds, np.random.default_rng(seed)))


@pytest.mark.parametrize(("check", "true"), CHECKS)
def test_what_is_true_is_proved_and_what_is_not_is_refuted(check, true):
    above = ask(check, PAIR, PAIR, EPS, 1.01 * true)
    assert above.verdict is True
    assert above.failure in (0.0, 1e-9)
    below = ask(check, PAIR, PAIR, EPS, 0.99 * true)
    assert (below.verdict, below.failure) == (False, 1e-9)
    assert ask(check, PAIR, None, EPS, 0.99 * true).verdict is None
    assert ask(check, PAIR, PAIR, EPS, true * (1 + 1e-7), seconds=0.1).verdict is None
    assert ask(check, PAIR, PAIR, EPS, true * (1 - 1e-7), seconds=0.1).verdict is None


def test_add_in_closed_form():
    found = ask("ADD", PAIR, PAIR, 4.0, 1e-3)
    assert (found.verdict, found.failure) == (True, 0.0)
    assert "closed form" in found.number
    closed = float(found.number.split()[2])
    assert quadrature(PAIR, 4.0)[1] <= closed < 1e-3


def test_add_with_noise_so_small_that_no_half_space_helps():
    near = Mixture(np.array([[3.0], [2.0]]), np.log([0.5, 0.5]))
    value, _ = integrate.quad(
        lambda x: stats.norm.pdf(x) * max(0.0, 1 - math.exp(0.1 + near_ratio(near, x))), -12, 12, limit=400
    )
    assert ask("ADD", near, near, 0.1, value * 1.02, seconds=10.0).verdict is True


def near_ratio(mixture, x):
    return math.log(np.exp(mixture.log_weights + mixture.terms(np.array([[x]]))).sum())


GRID = np.linspace(-8.0, 14.0, 881)
POINTS = np.stack(np.meshgrid(GRID, GRID), axis=-1).reshape(-1, 2)
BASE = stats.norm.pdf(POINTS).prod(axis=1) * (GRID[1] - GRID[0]) ** 2


@pytest.mark.parametrize(
    ("power", "more", "lift"),
    [(1.0, 0, 0.0), (1.7, 0, 0.0), (4.2, 0, 0.0), (1.0, 1, 0.0), (1.3, 1, 0.4), (1.0, 2, 0.0), (0.6, 2, 0.7)],
)
def test_tilts_are_the_laws_that_they_say(power, more, lift):
    part = Tilt(PAIR, power, more, lift)
    terms = PAIR.terms(POINTS)
    log_r = PAIR.log_r(terms)
    logs = part.log_density(POINTS, terms, log_r)
    assert BASE @ np.exp(logs) == pytest.approx(1.0, rel=1e-6)
    assert part.bounds is (lift == 0.0)
    if part.bounds:
        assert part.power == power + more
        assert np.all(logs >= part.power * log_r + part.log_scale - 1e-9)
    # The density says what it is made of.
    u = POINTS @ (np.exp(PAIR.log_weights) @ PAIR.root)
    plain = more * log_r + log_sum(PAIR.log_weights + power * terms) + lift * u
    np.testing.assert_allclose(logs - plain, logs[0] - plain[0], atol=1e-9)
    drawn = part.draw(np.random.default_rng(4), 200_000)
    np.testing.assert_allclose(drawn.mean(axis=0), BASE @ (np.exp(logs)[:, None] * POINTS), atol=0.02)
    np.testing.assert_allclose((drawn**2).mean(axis=0), BASE @ (np.exp(logs)[:, None] * POINTS**2), rtol=0.02)


THREE = Mixture(np.array([[1.1, 0.0], [0.5, 0.9], [0.2, 0.3]]), np.log([0.3, 0.5, 0.2]))


@pytest.mark.parametrize("power", [2, 3, 4])
def test_stars_are_the_laws_that_they_say(power):
    star = Star(THREE, power)
    tuples = np.array(list(itertools.product(range(3), repeat=power)))
    # By definition: the centre in any place, and each tuple's part of r^m / E r^m.
    pairs = THREE.gram[tuples[:, :, None], tuples[:, None, :]].sum(axis=2) - THREE.diagonal[tuples]
    p, weights = np.exp(THREE.log_weights), np.exp(THREE.log_weights[tuples].sum(axis=1))
    means = np.exp(0.5 * power * THREE.gram) @ p
    bound = p @ means ** (power - 1)
    assert math.exp(-star.log_scale) == pytest.approx(bound, rel=1e-12)
    law = weights / bound * np.exp(0.5 * power * pairs).mean(axis=1)
    assert law.sum() == pytest.approx(1.0, rel=1e-12)
    exact = weights * np.exp(0.5 * pairs.sum(axis=1))
    assert np.all(exact <= law * bound * (1 + 1e-12))
    # Density over Q and tuples, and over Q alone by the sum over tuples: a law.
    x = POINTS[::997]
    terms = THREE.terms(x)
    log_r = THREE.log_r(terms)
    over_q = np.zeros(len(x))
    for tuple_, chance, whole in zip(tuples, law, exact, strict=True):
        logs = star.log_density(np.tile(tuple_, (len(x), 1)), log_r)
        kernel = np.exp((THREE.log_weights[tuple_] + terms[:, tuple_]).sum(axis=1) - power * log_r)
        mean = THREE.root[tuple_].sum(axis=0)
        np.testing.assert_allclose(logs, power * log_r - math.log(whole / chance), atol=1e-9)
        assert np.all(logs >= power * log_r + star.log_scale - 1e-9)
        over_q += np.exp(logs) * kernel
        np.testing.assert_allclose(
            np.exp(logs) * kernel, chance * np.exp(x @ mean - mean @ mean / 2), rtol=1e-9
        )
    assert np.all(over_q > 0.0)
    # What is drawn: tuples, and x around their means.
    drawn, chosen = star.draw(np.random.default_rng(1), 100_000)
    for symmetric in (lambda t: (t == 0).sum(axis=1), lambda t: (t[:, 0] == t[:, -1]) + 0.0):
        if symmetric(tuples).max() > 1 or power == 2:
            assert symmetric(chosen).mean() == pytest.approx(law @ symmetric(tuples), abs=0.02)
    means = np.stack([THREE.root[t].sum(axis=0) for t in chosen])
    np.testing.assert_allclose((drawn - means).mean(axis=0), 0.0, atol=0.02)
    np.testing.assert_allclose((drawn - means).var(axis=0), 1.0, atol=0.02)


def test_tuples_are_completed_in_proportion():
    star, rng = Star(THREE, 3), np.random.default_rng(5)
    x = np.array([[0.3, -0.4], [2.0, 1.0]])
    terms = np.repeat(THREE.terms(x), 50_000, axis=0)
    drawn = star.complete(terms, rng)
    assert drawn.shape == (100_000, 3)
    for half, point in zip((drawn[:50_000], drawn[50_000:]), x, strict=True):
        chances = np.exp(THREE.log_weights + THREE.terms(point[None])[0])
        counts = np.bincount(half.ravel(), minlength=3)
        assert stats.chisquare(counts, 150_000 * chances / chances.sum()).pvalue > 1e-9


def test_rows_are_read_in_blocks(monkeypatch):
    whole = Star(THREE, 3)
    monkeypatch.setattr("dpmech.checker.mixtures._BATCH_NUMBERS", 4)
    assert Star(THREE, 3).log_scale == whole.log_scale


def test_the_best_star_has_the_least_bound():
    rng = np.random.default_rng(7)
    mixture = Mixture(0.2 * rng.random((100, 5)), np.full(100, -math.log(100)))
    for eps in (0.5, 1.0):
        found = Star.best(mixture, eps)
        bounds = [mixtures.log_supremum(m, eps) - Star(mixture, m).log_scale for m in range(2, 41)]
        assert mixtures.log_supremum(found.power, eps) - found.log_scale < min(bounds) + 0.1


class Plain:
    """A mixture with given parts."""

    def __init__(self, parts):
        self.chosen = parts
        self.slack, self.batch = PAIR.slack, 1000
        self.terms, self.log_r = PAIR.terms, PAIR.log_r

    def parts(self, eps):
        return None, self.chosen


@pytest.mark.parametrize("powers", [(1.0, 2.0), (1.0, 1.0), (3.0, 1.5), (2.0, 9.0)])
@pytest.mark.parametrize("eps", [0.0, 0.5, 3.0])
def test_the_bound_on_weights_is_one(powers, eps):
    parts = [Tilt(PAIR, power, 0, 0.0) for power in powers]
    removal = mixtures._Removal(Plain(parts), eps, np.random.default_rng(1))
    removal._tilts, removal._shares = parts, np.array([0.3, 0.7])
    bound = removal.log_bound()
    logs = eps + np.concatenate([np.logspace(-8, 1, 4000), np.linspace(10, 60, 500)])
    rho = sum(s * np.exp(p.power * logs + p.log_scale) for s, p in zip((0.3, 0.7), parts, strict=True))
    largest = ((np.exp(logs) - math.exp(eps)) / rho).max()
    assert largest <= math.exp(bound) * (1 + 1e-9)
    # No more than the best part alone makes of it, whose supremum is attained.
    alone = [((np.exp(logs) - math.exp(eps)) / np.exp(p.power * logs + p.log_scale)).max() for p in parts]
    assert bound <= math.log(min(alone[0] / 0.3, alone[1] / 0.7)) + 1e-4


def test_shares_that_are_left_have_a_part_that_bounds():
    removal = mixtures._Removal(PAIR, EPS, np.random.default_rng(1))
    assert removal._shares.sum() == pytest.approx(1.0)
    assert len(removal._tilts) + 1 == len(removal._shares) <= 12
    assert removal._shares[np.argmin(removal._log_bounds())] >= 0.1
    # Without draws that are paid, too.
    far = mixtures._Removal(PAIR, 60.0, np.random.default_rng(1))
    assert far._shares.sum() == pytest.approx(1.0)
    assert np.all(next(far.weights(np.random.default_rng(2), 1.0)) >= 0.0)


def test_a_star_that_explains_no_draw_is_left_out(monkeypatch):
    drawn, bounds = mixtures._Removal.drawn, mixtures._Removal._log_bounds

    def without_star(self, rng, size):
        log_r, logs = drawn(self, rng, size)
        return log_r, np.concatenate([np.full((len(logs), 1), -1e4), logs[:, 1:]], axis=1)

    with monkeypatch.context() as patched:
        patched.setattr(mixtures._Removal, "drawn", without_star)
        patched.setattr(mixtures._Removal, "_log_bounds", lambda self: np.append(math.inf, bounds(self)[1:]))
        removal = mixtures._Removal(PAIR, EPS, np.random.default_rng(1))
    assert removal._star is None
    assert len(removal._tilts) == len(removal._shares)
    batches = removal.weights(np.random.default_rng(2), 1.0)
    weights = np.concatenate([next(batches) for _ in range(20)])
    assert weights.mean() == pytest.approx(REMOVE, rel=0.05)
    assert weights.max() <= math.exp(removal.log_bound()) * (1.0 + 1e-9)


def test_a_weight_above_its_bound_ends_in_no_answer(monkeypatch):
    monkeypatch.setattr(mixtures._Removal, "log_bound", lambda self: math.log(1.2 * REMOVE))
    with pytest.raises(ArithmeticError, match="proved bound"):
        ask("REMOVE", PAIR, PAIR, EPS, REMOVE)


def test_mixtures_beyond_the_limits():
    for root in ([[30.0]], [[math.nan]], [[0.0] * 20_001]):
        with pytest.raises(NotChecked):
            Mixture(np.array(root), np.zeros(1))


def test_indices_that_are_too_inexact_prove_nothing():
    for inexact, verdicts in ((0.0, [True, False]), (3e-2, [None, None])):
        mixture = Mixture(PAIR.root, PAIR.log_weights)
        mixture.inexact = inexact
        for share, verdict in zip((1.03, 0.97), verdicts, strict=True):
            assert ask("REMOVE", mixture, mixture, EPS, share * REMOVE, seconds=1.0).verdict is verdict


def test_slack_is_more_than_the_rounding_of_a_long_sum():
    rng = np.random.default_rng(11)
    mixture = Mixture(0.02 * rng.random((3, 3000)), np.log([0.2, 0.3, 0.5]))
    parts = [Tilt(mixture, 1.0, 2, 0.0), Tilt(mixture, 7.5, 0, 0.0)]
    for part in parts:
        x = part.draw(rng, 4)
        terms = mixture.terms(x)
        log_r = mixture.log_r(terms)
        log_rho = part.log_density(x, terms, log_r)
        for index in range(4):
            exact = []
            for row in mixture.root:
                products = sum((arb(a) * arb(b) for a, b in zip(row, x[index], strict=True)), arb(0))
                exact.append(products - sum((arb(a) ** 2 for a in row), arb(0)) / 2)
            weights = [arb(w) for w in mixture.log_weights]
            r = sum(((w + t).exp() for w, t in zip(weights, exact, strict=True)), arb(0)).log()
            assert abs(float(r - arb(log_r[index]))) < 1e-2 * mixture.slack
            if part.power == 3.0:
                rho = 3 * r + arb(part.log_scale)
            else:
                terms_of_part = [(w + arb(7.5) * t).exp() for w, t in zip(weights, exact, strict=True)]
                rho = sum(terms_of_part, arb(0)).log() + arb(part.log_scale)
            assert abs(float(rho - arb(log_rho[index]))) < 1e-2 * mixture.slack
    assert mixture.slack < 1e-7
    assert Mixture(10.0 * mixture.root, mixture.log_weights).slack > 5.0 * mixture.slack
    narrow = Mixture(np.sqrt(mixture.diagonal)[:, None], mixture.log_weights)
    assert mixture.slack > 20.0 * narrow.slack


def check_sides(batches):
    more, exact, less = batches
    paid = exact > 1e-3
    # A step of the density, and one of what is paid.
    assert np.all(more[paid] > exact[paid] * 1.01)
    assert np.all(less[paid] < exact[paid] * 0.99)
    assert np.all(more >= exact)
    assert np.all(exact >= less)


SIDES = ((1.0, 0.01), (1.0, 0.0), (-1.0, 0.01))


def slackened(slack):
    mixture = Mixture(PAIR.root, PAIR.log_weights)
    mixture.slack = slack
    return mixture


def test_slack_moves_weights_of_remove_to_the_safe_side(monkeypatch):
    removal = mixtures._Removal(slackened(0.01), EPS, np.random.default_rng(9))
    drawn = removal.drawn(np.random.default_rng(8), 5000)
    assert drawn[0].min() < EPS - 0.01  # with what only rounding may pay
    monkeypatch.setattr(removal, "drawn", lambda rng, size: drawn)
    batches = []
    for sign, slack in SIDES:
        removal._mixture = slackened(slack)
        batches.append(next(removal.weights(np.random.default_rng(9), sign)))
    check_sides(batches)


def test_slack_moves_weights_of_add_to_the_safe_side():
    check_sides(
        [
            next(mixtures._Addition(slackened(slack), EPS, None).weights(np.random.default_rng(9), sign))
            for sign, slack in SIDES
        ]
    )


PLAN = {"type": "LambdaCGD", "n": 3900, "lam": 0.9}
HARD = [(8.0, 1e-12, 4.25588), (2.0, 1e-5, 5.50506), (1.0, 1e-5, 7.50244), (0.5, 1e-5, 11.9559)]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("eps", "delta", "sigma"), HARD)
def test_hundreds_of_bins_are_decided_where_many_components_count(eps, delta, sigma):
    for factor, verdict in ((1.0, True), (0.98, False)):
        claim = claim_of(
            decode(certificate(PLAN, {"type": "BallsInBins", "bins": 390}, eps, delta, factor * sigma))
        )
        pair = components.pair_of(claim)
        assert ask("REMOVE", *pair, eps, delta, seconds=120.0).verdict is verdict


# ---- sequential tests


def test_a_bet_is_lost_where_the_mean_is_not_below():
    rng = np.random.default_rng(6)
    wins = 0
    for _ in range(400):
        trial = SequentialTest(0.1, 1.0, 0.05, upper=True)
        for _ in range(20):
            trial.add((rng.random(50) < 0.1).astype(float))
        wins += trial.won
    assert wins <= stats.binom.ppf(1 - 1e-9, 400, 0.05)
    wins = 0
    for _ in range(400):
        trial = SequentialTest(0.1, math.inf, 0.05, upper=False)
        for _ in range(20):
            trial.add((rng.random(50) < 0.1).astype(float))
        wins += trial.won
    assert wins <= stats.binom.ppf(1 - 1e-9, 400, 0.05)


def test_bets_are_won_in_the_number_of_draws_that_they_say():
    rng = np.random.default_rng(7)
    for upper, level in ((True, 0.12), (False, 0.08)):
        trial = SequentialTest(level, 1.0, 1e-9, upper=upper)
        while not trial.won:
            trial.add((rng.random(2000) < 0.1).astype(float))
        assert 0.1 * trial.draws < trial.draws_needed < trial.draws
        assert f"{trial.draws} draws with mean" in str(trial)
    hopeless = SequentialTest(0.05, 1.0, 1e-9, upper=True)
    hopeless.add((rng.random(2000) < 0.1).astype(float))
    assert hopeless.draws_needed == math.inf
    certain = SequentialTest(0.5, 0.4, 1e-9, upper=True)
    assert (certain.won, str(certain)) == (True, "a bound on all draws")
    assert not SequentialTest(0.4, 0.4, 1e-9, upper=True).won
    assert not SequentialTest(0.5, 0.4, 1e-9, upper=False).won


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize(("level", "bound"), [(0.6, 1.0), (0.4, 1.0), (0.52, 30.0), (0.48, 30.0), (0.9, 1.0)])
def test_the_capital_of_a_bet_is_what_its_definition_says(upper, level, bound):
    """Draw by draw, in plain numbers; the stakes of a batch are those of the draws before it."""
    rng, trial, capital, seen = (
        np.random.default_rng(9),
        SequentialTest(level, bound, 1e-9, upper=upper),
        0.0,
        [],
    )
    assert (trial.draws, trial.mean, trial.draws_needed == math.inf) == (0, 0.0, not upper)
    for turn, size in enumerate((1, 3, 40, 200, 200), start=1):
        batch, stake = rng.random(size), 0.0
        if seen:
            gap = level - statistics.fmean(seen) if upper else statistics.fmean(seen) - level
            variance = statistics.pvariance(seen)
            most = 1.0 / (bound - level) if upper else 1.0 / level
            stake = min(gap / (variance + gap * gap), most / 2.0) if gap > 0.0 else 0.0
        gains = [math.log(1.0 + stake * (level - w if upper else w - level)) for w in batch]
        capital += math.fsum(gains) - 1e-9 * math.fsum(map(abs, gains))
        trial.add(batch)
        seen += batch.tolist()
        assert trial._capital == pytest.approx(capital, rel=1e-12, abs=1e-14)
        assert (trial.draws, trial.batches) == (len(seen), turn)
        mean, variance = statistics.fmean(seen), statistics.pvariance(seen)
        assert trial.mean == pytest.approx(mean, rel=1e-13)
        gap = level - mean if upper else mean - level
        best = gap + 3.0 * math.sqrt(variance / len(seen))
        needed = 2.0 * math.log(1e9) * variance / best**2 if best > 0.0 else math.inf
        assert trial.draws_needed == pytest.approx(needed, rel=1e-9)
    assert trial.won == (capital >= math.log(1e9))


@pytest.mark.parametrize("upper", [True, False])
def test_a_bet_is_given_up_beyond_three_standard_errors(upper):
    draws = np.tile([0.25, 0.75], 200)  # mean 0.5, standard deviation 0.25, standard error 0.0125
    for errors, hopeless in ((2.9, False), (3.1, True), (0.0, False), (-4.0, False)):
        trial = SequentialTest(0.5 + (-errors if upper else errors) * 0.0125, 1.0, 1e-9, upper=upper)
        trial.add(draws)
        assert (trial.draws_needed == math.inf) is hopeless


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_bets_refuse_what_is_no_weight(value):
    with pytest.raises(ArithmeticError):
        SequentialTest(0.5, 1.0, 1e-9, upper=True).add(np.array([value]))


@pytest.mark.parametrize(("level", "bound"), [(0.5, math.nan), (math.nan, 1.0), (0.0, 1.0), (0.5, -1.0)])
def test_bets_refuse_what_bounds_nothing(level, bound):
    """Else a stake would have no limit, and draws below the level win with any mean."""
    with pytest.raises(ArithmeticError):
        SequentialTest(level, bound, 1e-9, upper=True)


# ---- components


def mixtures_of(strategy, participation, sigma=2.0):
    return components.pair_of(claim_of(decode(certificate(strategy, participation, 1.0, 1e-5, sigma))))


LAMBDA = {"type": "LambdaCGD", "n": 6, "lam": 0.5}
MATRIX = np.array([[0.5 ** (i - j) if i >= j else 0.0 for j in range(6)] for i in range(6)])
NORMAL = {"type": "ColumnNormalized", "strategy": LAMBDA}


def grams(means, sigma=2.0):
    return means @ means.T / sigma**2


def check_gram(found, means, weights):
    above, below = found
    assert np.all(above.gram >= grams(means) * (1 - 1e-14))
    assert np.all(below.gram <= grams(means) * (1 + 1e-14))
    np.testing.assert_allclose(above.gram, grams(means), rtol=1e-7, atol=1e-8 * grams(means).max())
    np.testing.assert_allclose(below.gram, grams(means), rtol=1e-9)
    np.testing.assert_allclose(np.exp(above.log_weights), weights, rtol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "matrix"),
    [
        (LAMBDA, MATRIX),
        (NORMAL, MATRIX / np.linalg.norm(MATRIX, axis=0)),
        ({"type": "Dense", "matrix": MATRIX.tolist()}, MATRIX),
    ],
)
def test_bins_add_up_the_columns_of_their_steps(strategy, matrix):
    means = np.stack([matrix[:, i] + matrix[:, i + 2] + matrix[:, i + 4] for i in range(2)])
    check_gram(mixtures_of(strategy, {"type": "BallsInBins", "bins": 2}), means, [0.5, 0.5])
    # Users with two examples: both in one bin, or one in each.
    users = np.stack([2 * means[0], means[0] + means[1], 2 * means[1]])
    record = {"type": "BallsInBins", "bins": 2, "max_examples_per_user": 2}
    check_gram(mixtures_of(strategy, record), users, [0.25, 0.5, 0.25])


def test_an_epoch_that_is_cut_short_has_no_columns_of_the_last_bins():
    for strategy, matrix in ((LAMBDA, MATRIX), ({"type": "Identity", "n": 6}, np.eye(6))):
        means = np.stack([matrix[:, i::4].sum(axis=1) for i in range(4)])
        check_gram(mixtures_of(strategy, {"type": "BallsInBins", "bins": 4}), means, [0.25] * 4)


def test_waiting_examples_join_as_a_simulation_does():
    sets = sets_apart(6, 3, 0.3)
    assert sum(sets.values()) == pytest.approx(1.0, abs=1e-14)
    assert all(b - a >= 3 for steps in sets for a, b in itertools.pairwise(steps))
    # At every step with the same probability, which is stationary.
    rate = 0.3 / (1 + 0.3 * 2)
    for step in range(6):
        assert sum(w for steps, w in sets.items() if step in steps) == pytest.approx(rate, rel=1e-13)
    rng, seen = np.random.default_rng(8), Counter()
    for _ in range(20_000):
        free, steps = rng.choice(3, p=[1 / 1.6, 0.3 / 1.6, 0.3 / 1.6]), []
        for step in range(6):
            if step >= free and rng.random() < 0.3:
                steps.append(step)
                free = step + 3
        seen[tuple(steps)] += 1
    assert set(seen) <= set(sets)
    chi = sum((seen[one] - 20_000 * w) ** 2 / (20_000 * w) for one, w in sets.items())
    assert stats.chi2.sf(chi, len(sets) - 1) > 1e-9
    assert sets_apart(4, 2, 1.0).keys() == {(0, 2), (1, 3)}


def test_where_chance_leaves_no_choice_there_is_no_mixture():
    assert mixtures_of(LAMBDA, {"type": "BallsInBins", "bins": 1}) is None
    assert mixtures_of(LAMBDA, {"type": "BMinSep", "min_sep": 1, "sampling_prob": 1.0}) is None


def test_many_steps_are_narrowed_and_stay_above():
    long = {"type": "LambdaCGD", "n": 600, "lam": 0.9}
    above, below = mixtures_of(long, {"type": "BallsInBins", "bins": 20})
    assert above.root.shape == (20, 20)
    assert below.root.shape == (20, 600)
    assert np.all(above.gram >= below.gram)
    np.testing.assert_allclose(above.gram, below.gram, rtol=1e-7, atol=1e-8 * below.gram.max())


@pytest.mark.parametrize("strategy", [LAMBDA, NORMAL, {"type": "Dense", "matrix": MATRIX.tolist()}])
def test_sums_of_columns_are_those_of_the_bins_in_their_order(strategy):
    own = strategy_of(strategy)
    matrix = MATRIX / (np.linalg.norm(MATRIX, axis=0) if own.scale else 1.0)
    for bins in (1, 2, 3, 4, 6):  # with 4 the last epoch is cut short
        for upper in (True, False):
            found = components._columns(own, bins, upper=upper)
            np.testing.assert_allclose(
                found, [matrix[:, i::bins].sum(axis=1) for i in range(bins)], rtol=1e-13
            )


def test_means_lie_on_both_sides_of_the_exact_ones():
    claim = claim_of(decode(certificate(LAMBDA, {"type": "BallsInBins", "bins": 3}, 1.0, 1e-5, 1.7)))
    exact = np.stack([MATRIX[:, i::3].sum(axis=1) for i in range(3)]) / 1.7
    above, below = components.pair_of(claim)
    assert np.all((above.root > exact) & (above.root <= exact * (1 + 2.1e-10) + 1.1e-200))
    assert np.all((below.root <= exact) & (below.root >= exact * (1 - 2.1e-10)))
    assert np.all(above.root[exact == 0.0] > 0.0)


@pytest.mark.parametrize(
    "entries", [[1.0, 1e120], [1e-120, 1e-120], [1e-120, 1.0], [1.0, 1e99], [1e-99, 1.0]]
)
def test_columns_out_of_the_range_of_float64_are_not_checked(entries):
    strategy = strategy_of({"type": "Diagonal", "entries": entries})
    if all(1e-100 < x < 1e100 for x in entries):
        assert components._columns(strategy, 2, upper=True).shape == (2, 2)
    else:
        with pytest.raises(NotChecked, match="below 1e-100 or above 1e100"):
            components._columns(strategy, 2, upper=True)


def test_a_narrowed_root_has_larger_products_by_a_little():
    rng = np.random.default_rng(3)
    for count, width in ((1, 3), (3, 9), (6, 40)):
        root = rng.random((count, width))
        found = components._narrowed(root)
        assert found.shape == (count, count)
        rows, narrow = ([[Fraction(x) for x in row] for row in one.tolist()] for one in (root, found))

        def products(vectors):
            return [[sum(a * b for a, b in zip(x, y, strict=True)) for y in vectors] for x in vectors]

        gram, larger = products(rows), products(narrow)
        most = float(max(map(max, gram)))
        for i, j in itertools.product(range(count), repeat=2):
            extra = float(larger[i][j] - gram[i][j])
            assert 0.0 < extra <= 1.001 * (1e-9 * float(gram[i][j]) + most * (1e-10 + 1e-9 * (i == j)))
    # Not worth it.
    assert components._narrowed(np.ones((3, 6))).shape == (3, 6)


@pytest.mark.parametrize(("times", "enough"), [(1.99, False), (2.01, True)])
def test_a_factor_has_to_be_larger_by_more_than_rounding(monkeypatch, times, enough):
    """Twice what float64 may do to products of so many numbers: once to K, once to that of the factor."""
    count, width = 100, 1000
    slack = 1.01**2 * (width + count + 16) * 2.0**-53 * 250.0
    root = np.full((count, width), 0.5)  # products of 250, without rounding
    root[-1] = 0.25
    larger = np.full((count, 1), (250.0 + times * slack) ** 0.5)
    larger[-1] *= 0.500001
    monkeypatch.setattr(np.linalg, "cholesky", lambda raised: larger)
    if enough:
        assert components._narrowed(root).shape == (count, 1)
    else:
        with pytest.raises(ArithmeticError, match="rounded up"):
            components._narrowed(root)


def test_a_factor_that_is_not_above_is_refused(monkeypatch):
    monkeypatch.setattr(np.linalg, "cholesky", lambda matrix: 0.99 * np.eye(len(matrix)))
    with pytest.raises(ArithmeticError, match="rounded up"):
        mixtures_of({"type": "LambdaCGD", "n": 60, "lam": 0.9}, {"type": "BallsInBins", "bins": 2})


def test_wide_mixtures_have_no_lower_one(monkeypatch):
    monkeypatch.setattr(components, "WIDEST", 50)
    assert (
        mixtures_of({"type": "LambdaCGD", "n": 60, "lam": 0.9}, {"type": "BallsInBins", "bins": 2})[1] is None
    )


@pytest.mark.parametrize(
    ("strategy", "participation"),
    [
        ({**LAMBDA, "n": 20_000}, {"type": "BallsInBins", "bins": 10_000}),
        (
            {"type": "Identity", "n": 400},
            {"type": "BallsInBins", "bins": 200, "max_examples_per_user": 9},
        ),
        (LAMBDA, {"type": "BallsInBins", "fresh": True, "bins": 2}),
        ({**LAMBDA, "n": 40}, {"type": "BMinSep", "min_sep": 2, "sampling_prob": 0.5}),
    ],
)
def test_too_many_components_are_not_begun(strategy, participation):
    with pytest.raises(NotChecked):
        mixtures_of(strategy, participation)


def test_larger_mixtures_have_fewer_components_at_once(monkeypatch):
    for limits, more in (((2, 2), 2), ((1, 2), 1), ((1, 1), 0)):
        monkeypatch.setattr(mixtures, "_MOST_PAIRS", limits)
        star, tilts = PAIR.parts(3.0)
        assert {tilt._more for tilt in tilts} == {more}
        assert star.power >= 2.0
        assert ask("REMOVE", PAIR, PAIR, EPS, 1.02 * REMOVE).verdict is True


@pytest.mark.parametrize(
    "strategy",
    [
        {"type": "BandedToeplitz", "n": 4, "coefs": [1e-120]},
        {"type": "BandedToeplitz", "n": 4, "coefs": [1e120]},
        {"type": "Diagonal", "entries": [1e-120, 1.0, 1.0, 1.0]},
    ],
)
def test_entries_near_the_ends_of_float64_are_not_checked(strategy):
    with pytest.raises(NotChecked, match="1e-100"):
        mixtures_of(strategy, {"type": "BallsInBins", "bins": 2, "max_examples_per_user": 1})


@pytest.mark.parametrize(
    "participation",
    [
        {"type": "BallsInBins", "bins": 7},
        {"type": "BallsInBins", "bins": 0},
        {"type": "BallsInBins", "bins": True},
        {"type": "BallsInBins", "bins": 2, "more": 1},
        {"type": "BMinSep", "min_sep": 7, "sampling_prob": 0.5},
        {"type": "BMinSep", "min_sep": 2, "sampling_prob": 0.0},
        {"type": "BMinSep", "min_sep": 2, "sampling_prob": 1},
    ],
)
def test_participations_that_are_none_are_refused(participation):
    with pytest.raises(BadDocument):
        mixtures_of(LAMBDA, participation)


def test_columns_of_many_steps_are_not_added_up():
    with pytest.raises(NotChecked, match="of length 100002"):
        mixtures_of({**LAMBDA, "n": 100_002}, {"type": "BallsInBins", "bins": 2})


def test_a_ratio_that_is_not_a_number_is_no_weight_of_zero(monkeypatch):
    removal = mixtures._Removal(PAIR, EPS, np.random.default_rng(1))
    right = PAIR.log_r

    def broken(terms):
        return np.where(np.arange(len(terms)) == 7, np.nan, right(terms))

    monkeypatch.setattr(PAIR, "log_r", broken)
    work = Work(1e-9, 20.0, np.random.default_rng(2))
    with pytest.raises(ArithmeticError, match="not a number"):
        mixtures._played(removal, 0.0, 2.0 * REMOVE, work, upper=True)
