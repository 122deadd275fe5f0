import itertools
import math
from collections import Counter

import numpy as np
import pytest
from flint import arb, ctx
from scipy import integrate, stats

from dpmech.checker import components, mixtures
from dpmech.checker.claims import claim_of
from dpmech.checker.confidence import Bet
from dpmech.checker.documents import BadDocument, decode
from dpmech.checker.mixtures import Mixture, check_add, check_remove
from dpmech.checker.strategies import PRECISION, NotChecked
from tests.support.checker_files import certificate


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
CHECKS = [(check_remove, REMOVE), (check_add, ADD)]


def test_weights_have_the_mean_of_quadrature_and_keep_their_bound():
    rng = np.random.default_rng(1)
    for weights, true in ((mixtures._remove_weights, REMOVE), (mixtures._add_weights, ADD)):
        for sign in (1.0, -1.0):
            bound, batches = weights(PAIR, EPS, rng, sign)
            drawn = np.concatenate(list(itertools.islice(batches, 3)))
            assert drawn.max() <= bound
            assert abs(drawn.mean() - true) < 6.0 * drawn.std() / drawn.size**0.5 + 3e-6 * true


@pytest.mark.parametrize(("check", "true"), CHECKS)
def test_what_is_true_is_proved_and_what_is_not_is_refuted(check, true):
    rng = np.random.default_rng(2)
    above = check(PAIR, PAIR, EPS, 1.01 * true, 1e-9, 20.0, rng)
    assert above.verdict is True
    assert above.failure in (0.0, 1e-9)
    below = check(PAIR, PAIR, EPS, 0.99 * true, 1e-9, 20.0, rng)
    assert (below.verdict, below.failure) == (False, 1e-9)
    assert check(PAIR, None, EPS, 0.99 * true, 1e-9, 20.0, rng).verdict is None
    assert check(PAIR, PAIR, EPS, true * (1 + 1e-7), 1e-9, 0.1, rng).verdict is None
    assert check(PAIR, PAIR, EPS, true * (1 - 1e-7), 1e-9, 0.1, rng).verdict is None


def test_add_in_closed_form():
    found = check_add(PAIR, PAIR, 4.0, 1e-3, 1e-9, 1.0, np.random.default_rng(1))
    assert (found.verdict, found.failure) == (True, 0.0)
    assert "closed form" in found.number
    closed = float(found.number.split()[2])
    assert quadrature(PAIR, 4.0)[1] <= closed < 1e-3


def test_add_with_noise_so_small_that_no_half_space_helps():
    near = Mixture(np.array([[3.0], [2.0]]), np.log([0.5, 0.5]))
    value, _ = integrate.quad(
        lambda x: stats.norm.pdf(x) * max(0.0, 1 - math.exp(0.1 + near_ratio(near, x))), -12, 12, limit=400
    )
    found = check_add(near, near, 0.1, value * 1.02, 1e-9, 10.0, np.random.default_rng(3))
    assert found.verdict is True


def near_ratio(mixture, x):
    return math.log(np.exp(mixture.log_weights + mixture.terms(np.array([[x]]))).sum())


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_powers_are_the_laws_that_they_say(power):
    part = mixtures._Power(PAIR, power)
    # rho = r^m / E r^m, and E r^m by enumeration of all ordered tuples.
    moment = 0.0
    for chosen in itertools.product(range(2), repeat=power):
        pairs = sum(PAIR.gram[a, b] for a, b in itertools.combinations(chosen, 2))
        moment += math.exp(sum(PAIR.log_weights[list(chosen)]) + pairs)
    assert math.exp(-part.log_scale) == pytest.approx(moment, rel=1e-12)
    rng = np.random.default_rng(power)
    x = part.draw(rng, 200_000)
    # Means of a function under the part, and under Q with weights rho.
    plain = rng.standard_normal((400_000, 2))
    terms = PAIR.terms(plain)
    rho = np.exp(part.log_density(terms, mixtures._log_sum(PAIR.log_weights + terms)))
    for values, under in (
        (np.tanh(x[:, 0]), np.tanh(plain[:, 0]) * rho),
        (np.tanh(x[:, 1]), np.tanh(plain[:, 1]) * rho),
    ):
        error = values.std() / values.size**0.5 + under.std() / under.size**0.5
        assert abs(values.mean() - under.mean()) < 6.0 * error


@pytest.mark.parametrize("power", [1.0, 1.7, 4.2])
def test_tilts_are_the_laws_that_they_say(power):
    part = mixtures._Tilt(PAIR, power)
    grid = np.linspace(-8.0, 12.0, 801)
    x = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    terms = PAIR.terms(x)
    log_r = mixtures._log_sum(PAIR.log_weights + terms)
    logs = part.log_density(terms, log_r)
    base = stats.norm.pdf(x).prod(axis=1) * (grid[1] - grid[0]) ** 2
    assert base @ np.exp(logs) == pytest.approx(1.0, rel=1e-6)
    assert np.all(logs >= power * log_r + part.log_scale - 1e-9)
    drawn = part.draw(np.random.default_rng(4), 200_000)
    expected = base @ (np.exp(logs)[:, None] * x)
    np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=0.02)


@pytest.mark.parametrize("powers", [(1.0, 2.0), (1.0, 1.0), (3.0, 1.5), (2.0, 9.0)])
@pytest.mark.parametrize("eps", [0.0, 0.5, 3.0])
def test_the_bound_on_weights_is_one(powers, eps):
    parts = [mixtures._Tilt(PAIR, power) for power in powers]
    shares = np.array([0.3, 0.7])
    bound = mixtures._log_bound(parts, shares, eps)
    logs = eps + np.concatenate([np.logspace(-8, 1, 4000), np.linspace(10, 60, 500)])
    rho = sum(s * np.exp(p.power * logs + p.log_scale) for s, p in zip(shares, parts, strict=True))
    largest = ((np.exp(logs) - math.exp(eps)) / rho).max()
    assert largest <= math.exp(bound) * (1 + 1e-9)
    if max(powers) > 1.0:
        assert math.exp(bound) <= 1.05 * largest


def test_a_weight_above_its_bound_ends_in_no_answer(monkeypatch):
    monkeypatch.setattr(mixtures, "_log_bound", lambda parts, shares, eps: -30.0)
    with pytest.raises(ArithmeticError, match="proved bound"):
        check_remove(PAIR, PAIR, EPS, REMOVE, 1e-9, 1.0, np.random.default_rng(1))


def test_mixtures_beyond_the_limits():
    for root in ([[30.0]], [[math.nan]], [[0.0] * 20_001]):
        with pytest.raises(NotChecked):
            Mixture(np.array(root), np.zeros(1))


def test_slack_is_more_than_the_rounding_of_a_long_sum():
    rng = np.random.default_rng(11)
    mixture = Mixture(0.02 * rng.random((3, 3000)), np.log([0.2, 0.3, 0.5]))
    parts = [mixtures._Power(mixture, 3), mixtures._Tilt(mixture, 7.5)]
    for part in parts:
        x = part.draw(rng, 4)
        terms = mixture.terms(x)
        log_r = mixtures._log_sum(mixture.log_weights + terms)
        log_rho = part.log_density(terms, log_r)
        for index in range(4):
            exact = []
            for row in mixture.root:
                products = sum((arb(a) * arb(b) for a, b in zip(row, x[index], strict=True)), arb(0))
                exact.append(products - sum((arb(a) ** 2 for a in row), arb(0)) / 2)
            weights = [arb(w) for w in mixture.log_weights]
            r = sum(((w + t).exp() for w, t in zip(weights, exact, strict=True)), arb(0)).log()
            assert abs(float(r - arb(log_r[index]))) < 1e-2 * mixture.slack
            if isinstance(part, mixtures._Power):
                rho = 3 * r + arb(part.log_scale)
            else:
                terms_of_part = [(w + arb(7.5) * t).exp() for w, t in zip(weights, exact, strict=True)]
                rho = sum(terms_of_part, arb(0)).log() + arb(part.log_scale)
            assert abs(float(rho - arb(log_rho[index]))) < 1e-2 * mixture.slack
    assert mixture.slack < 1e-7
    assert Mixture(10.0 * mixture.root, mixture.log_weights).slack > 20.0 * mixture.slack
    narrow = Mixture(np.sqrt(mixture.diagonal)[:, None], mixture.log_weights)
    assert mixture.slack > 20.0 * narrow.slack


@pytest.mark.parametrize("weights", [mixtures._remove_weights, mixtures._add_weights])
def test_slack_moves_weights_to_the_safe_side(weights):
    batches = []
    for sign, slack in ((1.0, 0.01), (1.0, 0.0), (-1.0, 0.01)):
        mixture = Mixture(PAIR.root, PAIR.log_weights)
        mixture.__dict__["slack"] = slack  # in place of the cached one
        batches.append(next(weights(mixture, EPS, np.random.default_rng(9), sign)[1]))
    more, exact, less = batches
    paid = exact > 1e-3
    # A step of the density, and one of what is paid.
    assert np.all(more[paid] > exact[paid] * 1.01)
    assert np.all(less[paid] < exact[paid] * 0.99)
    assert np.all(more >= exact)
    assert np.all(exact >= less)


# ---- bets


def test_a_bet_is_lost_where_the_mean_is_not_below():
    rng = np.random.default_rng(6)
    wins = 0
    for _ in range(400):
        bet = Bet(0.1, 1.0, 0.05, upper=True)
        for _ in range(20):
            bet.add((rng.random(50) < 0.1).astype(float))
        wins += bet.won
    assert wins <= stats.binom.ppf(1 - 1e-9, 400, 0.05)
    wins = 0
    for _ in range(400):
        bet = Bet(0.1, math.inf, 0.05, upper=False)
        for _ in range(20):
            bet.add((rng.random(50) < 0.1).astype(float))
        wins += bet.won
    assert wins <= stats.binom.ppf(1 - 1e-9, 400, 0.05)


def test_bets_are_won_in_the_number_of_draws_that_they_say():
    rng = np.random.default_rng(7)
    for upper, level in ((True, 0.12), (False, 0.08)):
        bet = Bet(level, 1.0, 1e-9, upper=upper)
        while not bet.won:
            bet.add((rng.random(2000) < 0.1).astype(float))
        assert 0.3 * bet.draws < bet.draws_needed < 3.0 * bet.draws
        assert not bet.hopeless
        assert f"{bet.draws} draws with mean" in str(bet)
    hopeless = Bet(0.05, 1.0, 1e-9, upper=True)
    hopeless.add((rng.random(2000) < 0.1).astype(float))
    assert hopeless.hopeless
    assert hopeless.draws_needed == math.inf
    assert Bet(0.5, 0.4, 1e-9, upper=True).won
    assert not Bet(0.4, 0.4, 1e-9, upper=True).won
    assert not Bet(0.5, 0.4, 1e-9, upper=False).won


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_bets_refuse_what_is_no_weight(value):
    with pytest.raises(ArithmeticError):
        Bet(0.5, 1.0, 1e-9, upper=True).add(np.array([value]))


@pytest.mark.parametrize(("level", "bound"), [(0.5, math.nan), (math.nan, 1.0), (0.0, 1.0), (0.5, -1.0)])
def test_bets_refuse_what_bounds_nothing(level, bound):
    """Else a stake would have no limit, and draws below the level win with any mean."""
    with pytest.raises(ArithmeticError):
        Bet(level, bound, 1e-9, upper=True)


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
    record = {"type": "UserBallsInBins", "bins": 2, "max_examples_per_user": 2}
    check_gram(mixtures_of(strategy, record), users, [0.25, 0.5, 0.25])
    fresh = np.stack(
        [matrix[:, list(steps)].sum(axis=1) for steps in itertools.product((0, 1), (2, 3), (4, 5))]
    )
    check_gram(mixtures_of(strategy, {"type": "FreshBallsInBins", "bins": 2}), fresh, [1 / 8] * 8)


def test_waiting_examples_join_as_a_simulation_does():
    sets = components._sets_apart(6, 3, 0.3)
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
    assert components._sets_apart(4, 2, 1.0).keys() == {(0, 2), (1, 3)}
    found = mixtures_of(LAMBDA, {"type": "MinSepSampling", "min_sep": 3, "sampling_prob": 0.3})
    means = np.stack([MATRIX[:, list(steps)].sum(axis=1) for steps in sets])
    check_gram(found, means, list(sets.values()))


def test_where_chance_leaves_no_choice_there_is_no_mixture():
    assert mixtures_of(LAMBDA, {"type": "BallsInBins", "bins": 1}) is None
    assert mixtures_of(LAMBDA, {"type": "MinSepSampling", "min_sep": 1, "sampling_prob": 1.0}) is None


def test_many_steps_are_narrowed_and_stay_above():
    long = {"type": "LambdaCGD", "n": 600, "lam": 0.9}
    above, below = mixtures_of(long, {"type": "BallsInBins", "bins": 20})
    assert above.root.shape == (20, 20)
    assert below.root.shape == (20, 600)
    assert np.all(above.gram >= below.gram)
    np.testing.assert_allclose(above.gram, below.gram, rtol=1e-7, atol=1e-8 * below.gram.max())


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
        ({"type": "Identity", "n": 20_000}, {"type": "BallsInBins", "bins": 10_000}),
        (
            {"type": "Identity", "n": 400},
            {"type": "UserBallsInBins", "bins": 200, "max_examples_per_user": 9},
        ),
        ({"type": "Identity", "n": 400}, {"type": "FreshBallsInBins", "bins": 20}),
        ({"type": "Identity", "n": 40}, {"type": "MinSepSampling", "min_sep": 2, "sampling_prob": 0.5}),
        ({"type": "Identity", "n": 22}, {"type": "MinSepSampling", "min_sep": 2, "sampling_prob": 0.5}),
    ],
)
def test_too_many_components_are_not_begun(strategy, participation):
    with pytest.raises(NotChecked):
        mixtures_of(strategy, participation)


def test_powers_end_where_they_are_told_to(monkeypatch):
    monkeypatch.setattr(mixtures, "_HIGHEST_POWER", 2)
    parts = mixtures._parts(PAIR, 3.0)
    assert [type(part).__name__ for part in parts] == ["_Power", "_Power", "_Tilt", "_Tilt", "_Tilt"]
    assert [part.power for part in parts[:2]] == [1.0, 2.0]


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
        mixtures_of(strategy, {"type": "BallsInBins", "bins": 2})


@pytest.mark.parametrize(
    "participation",
    [
        {"type": "BallsInBins", "bins": 4},
        {"type": "BallsInBins", "bins": 0},
        {"type": "BallsInBins", "bins": True},
        {"type": "BallsInBins", "bins": 2, "more": 1},
        {"type": "MinSepSampling", "min_sep": 7, "sampling_prob": 0.5},
        {"type": "MinSepSampling", "min_sep": 2, "sampling_prob": 0.0},
        {"type": "MinSepSampling", "min_sep": 2, "sampling_prob": 1},
    ],
)
def test_participations_that_are_none_are_refused(participation):
    with pytest.raises(BadDocument):
        mixtures_of(LAMBDA, participation)


def test_columns_of_many_steps_are_not_added_up():
    with pytest.raises(NotChecked, match="of length 100002"):
        mixtures_of({"type": "Identity", "n": 100_002}, {"type": "BallsInBins", "bins": 2})
