"""Moments of Balls-in-Bins: the lemma's formula digit by digit, and never below integrals of two bins."""

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.gram import CirculantGram, FactorGram
from dpmech.engines.gaussian_mixture.moments import (
    ORDERS,
    AllocationRenyiAccountant,
    log_moment_bound,
    log_tail_factor,
    moment_rounding,
    rough_log_delta,
    tail_rounding,
)
from dpmech.numerics import Bounds, Provenance
from tests.support.bins_oracles import gaussian, quadrature

TWO = np.array([[1.1, 0.3], [0.3, 0.8]])
SIGMA = 1.3


def equal(bins, square, common=0.0):
    return square * ((1.0 - common) * np.eye(bins) + common)


def uneven(bins, square):
    """Rows of their own: entries fall off at another rate from bin to bin."""
    places = np.cumsum(np.linspace(0.3, 2.0, bins))
    return square * np.exp(-np.abs(places[:, None] - places[None, :])) + np.diag(np.linspace(0.0, 0.2, bins))


def accountant(matrix):
    """With the Gram matrix at sigma 1, and the sensitivity that its diagonal has."""
    top = math.sqrt(matrix.diagonal().max())
    return AllocationRenyiAccountant(DenseGram(matrix), Bounds.bracket(top, top, Provenance("given")))


def log_moment(matrix, order):
    """Log mean_i (mean_m e^(a K_im / 2))^(a - 1): the lemma for E r^a."""
    rows = scipy.special.logsumexp(0.5 * order * matrix, axis=1) - math.log(len(matrix))
    return float(scipy.special.logsumexp((order - 1) * rows) - math.log(len(matrix)))


def log_remove(matrix, eps):
    return min(
        log_moment(matrix, a) - (a - 1) * eps - math.log(a) + (a - 1) * math.log(1 - 1 / a) for a in ORDERS
    )


def log_add(matrix, eps):
    """By Jensen, at the best real order: the exponent as a function of the order, minimised by hand."""
    trace, mean = float(np.trace(matrix)) / len(matrix), float(matrix.mean())

    def at(step):
        a = 1.0 + math.exp(step)
        return (a - 1) * ((trace + (a - 1) * mean) / 2 - eps) - math.log(a) + (a - 1) * math.log(1 - 1 / a)

    start = min(np.linspace(-10.0, 10.0, 400), key=at)
    return scipy.optimize.minimize_scalar(at, bracket=(start - 0.1, start + 0.1), tol=1e-12).fun


@pytest.mark.parametrize(
    ("matrix", "eps", "deciding"),
    [
        (equal(5, 4.0), 4.0, "remove"),  # the least order decides, where the lemma is an equality
        (equal(5, 0.5), 1.0, "remove"),
        (uneven(6, 0.8), 3.0, "remove"),
        (equal(2, 0.1), 0.3, "add"),
        (equal(3, 1.0, 0.9), 0.2, "Gaussian"),
    ],
)
def test_delta_is_the_larger_direction_and_no_more_than_one_gaussian(matrix, eps, deciding):
    found = accountant(SIGMA**2 * matrix).delta(SIGMA, eps, tolerance=1e-3)
    assert found.lower == 0.0
    parts = {"remove": math.exp(log_remove(matrix, eps)), "add": math.exp(log_add(matrix, eps))}
    capped = gaussian(matrix.diagonal().max(), eps)
    decided = {"Gaussian": capped, **parts}
    assert min(max(parts.values()), capped) == pytest.approx(decided[deciding], rel=1e-12)
    if deciding == "remove":
        assert 0.0 < found.upper / parts["remove"] - 1.0 <= 1e-11
    elif deciding == "add":
        assert 0.0 < found.upper / parts["add"] - 1.0 <= 1e-8
    else:
        assert found.upper == pytest.approx(decided[deciding], rel=1e-9)


@pytest.mark.parametrize("order", [2, 3, 5, 12])
@pytest.mark.parametrize("square", [0.05, 0.6, 2.5])
@pytest.mark.parametrize("sigma", [0.7, 1.3])
def test_divergences_are_those_of_the_formula_rounded_up(order, square, sigma):
    for matrix in (equal(40, square), uneven(6, square), equal(3, square, 0.9)):
        found = accountant(sigma**2 * matrix).renyi(sigma, order)
        trace, mean = float(np.trace(matrix)) / len(matrix), float(matrix.mean())
        top = matrix.diagonal().max()
        remove = log_moment(matrix, order) / (order - 1)
        exact = min(max(remove, (trace + (order - 1) * mean) / 2), order * top / 2)
        assert exact * (1.0 - 1e-14) <= found <= exact * (1.0 + 1e-12) + 1e-13 * (1.0 + order * top)


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_two_bins_are_never_below_their_integrals(scale):
    matrix = scale * TWO
    bound = accountant(matrix)
    for eps in (0.1, 0.7, 1.5):
        truth = max(quadrature(matrix, eps))
        assert truth <= bound.delta(1.0, eps, tolerance=1e-3).upper <= 8.0 * truth
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    draws = np.linalg.cholesky(matrix) @ np.stack([one.ravel() for one in np.meshgrid(nodes, nodes)])
    chances = np.outer(weights, weights).ravel() / weights.sum() ** 2
    ratio = np.exp(draws - 0.5 * np.diag(matrix)[:, None]).mean(axis=0)
    for order in (2, 3, 6):
        exact = max(
            math.log(chances @ ratio**order) / (order - 1),
            math.log(chances @ ratio ** (1 - order)) / (order - 1),
        )
        assert exact <= bound.renyi(1.0, order) <= 1.5 * exact


@pytest.mark.parametrize("eps", [0.5, 3.0])
def test_where_to_look_is_the_moment_bound_from_up_to_64_rows(eps):
    for matrix in (equal(5, 0.5), uneven(6, 0.8), equal(90, 0.4)):
        assert rough_log_delta(DenseGram(matrix), eps) == pytest.approx(log_remove(matrix, eps), rel=1e-9)
    # The first and the last row are among them.
    lone = np.diag(np.array([6.0, *np.full(98, 0.1), 6.0]))
    assert rough_log_delta(DenseGram(lone), eps) > log_remove(lone, eps)


def test_eps_and_sigma_meet_delta_and_are_the_smallest_that_do():
    bound = accountant(equal(5, 1.0))
    for delta in (1e-3, 1e-8):
        eps = bound.epsilon(0.9, delta, tolerance=1e-3).upper
        assert bound.delta(0.9, eps, tolerance=1e-3).upper <= delta
        assert bound.delta(0.9, eps * (1.0 - 3e-6), tolerance=1e-3).upper > delta
    assert bound.epsilon(200.0, 0.01, tolerance=1e-3).upper == 0.0
    found = bound.calibrate(1.0, 1e-4, rtol=1e-3, progress=lambda _: None)
    assert bound.delta(found.sigma, 1.0, tolerance=1e-3).upper <= 1e-4
    assert bound.delta(found.sigma * (1.0 - 2e-3), 1.0, tolerance=1e-3).upper > 1e-4


def exact_log_moment(entries, order):
    """The lemma in 50 digits, of the numbers that the matrix holds."""
    bins = len(entries)
    rows = [mp.fsum(mp.exp(mp.mpf(order) / 2 * mp.mpf(float(k))) for k in row) / bins for row in entries]
    return mp.log(mp.fsum(one ** (order - 1) for one in rows) / bins)


def exact_tail(power, eps):
    power, eps = mp.mpf(power), mp.mpf(eps)
    return -(power - 1) * eps - mp.log(power) + (power - 1) * mp.log1p(-1 / power)


def grams():
    rng = np.random.default_rng(12)
    for bins in (1, 2, 7, 40):
        for scale in (1e-4, 0.3, 30.0):
            points = rng.uniform(0.0, 1.0, size=(bins, bins + 2))
            yield DenseGram(points @ points.T).scaled(scale)
            row = np.exp(-np.minimum(np.arange(bins), bins - np.arange(bins)) * rng.uniform(0.1, 2.0))
            yield CirculantGram(row).scaled(scale)


def test_the_rounding_of_moments_holds_and_is_not_a_thousand_times_what_is_seen():
    shares = []
    with mp.workdps(50):
        for gram in grams():
            entries = gram.columns(np.arange(gram.bins))
            for order in (2, 5, 33, 256):
                exact = exact_log_moment(entries, order)
                seen = abs(mp.mpf(log_moment_bound(gram, 1.0, order)) - exact)
                bound = moment_rounding(gram, order)
                assert seen <= bound
                shares.append(float(seen / bound))
    assert max(shares) > 1e-2
    assert np.median(shares) > 1e-4


def test_products_by_transforms_have_their_own_rounding():
    rng = np.random.default_rng(3)
    points = rng.uniform(0.0, 1.0, size=(6, 9))
    gram = FactorGram(6, 9, lambda x: x @ points.T, lambda v: v @ points)
    dense = DenseGram(points @ points.T)
    assert moment_rounding(gram, 8) - moment_rounding(dense, 8) == pytest.approx(
        7 * 4.0 * gram.product_rounding(1.0, 1.0), rel=1e-6
    )
    assert gram.diagonal.max() == pytest.approx(dense.diagonal.max(), rel=1e-12)


def test_the_rounding_of_the_factor_of_tails_holds():
    rng = np.random.default_rng(7)
    shares = []
    with mp.workdps(50):
        for _ in range(500):
            power, eps = 1.0 + math.exp(rng.uniform(-12.0, 12.0)), math.exp(rng.uniform(-10.0, 5.0))
            seen = abs(mp.mpf(log_tail_factor(power, eps)) - exact_tail(power, eps))
            assert seen <= tail_rounding(power, eps)
            shares.append(float(seen / tail_rounding(power, eps)))
    assert max(shares) > 1e-2


def test_averages_are_rounded_up():
    with mp.workdps(50):
        for gram in grams():
            entries = gram.columns(np.arange(gram.bins))
            trace, mean = AllocationRenyiAccountant._averages(gram)
            exact_trace = mp.fsum(mp.mpf(float(one)) for one in gram.diagonal) / gram.bins
            exact_mean = mp.fsum(mp.mpf(float(one)) for one in entries.ravel()) / gram.bins**2
            assert exact_trace <= trace <= exact_trace * (1 + mp.mpf(10) ** -13)
            assert exact_mean <= mean <= exact_mean * (1 + mp.mpf(10) ** -13)


@pytest.mark.parametrize("order", [2, 3, 17, 100])
def test_a_divergence_is_above_its_formula_to_the_last_digit(order):
    for matrix in (TWO, equal(5, 0.7, 0.2), uneven(9, 0.4)):
        bound = accountant(matrix).renyi(1.0, order)
        with mp.workdps(50):
            remove = exact_log_moment(matrix, order) / (order - 1)
            terms = [mp.mpf(float(one)) for one in matrix.ravel()]
            trace = mp.fsum(mp.mpf(float(one)) for one in matrix.diagonal()) / len(matrix)
            add = (trace + (order - 1) * mp.fsum(terms) / len(matrix) ** 2) / 2
            plain = mp.mpf(order) / 2 * mp.mpf(float(matrix.diagonal().max()))
            exact = min(max(remove, add), plain)
            assert exact <= bound <= exact * (1 + mp.mpf(10) ** -11)


def test_delta_is_above_its_formula_to_the_last_digit():
    for matrix in (TWO, equal(5, 0.7, 0.2), uneven(9, 0.4)):
        for eps in (0.3, 2.0, 5.0):
            upper = accountant(matrix).delta(1.0, eps, tolerance=0.0).upper
            with mp.workdps(50):
                remove = min(exact_log_moment(matrix, a) + exact_tail(a, eps) for a in ORDERS)
                # The best order for ADD is searched: what it gives at any order is no less than at the best.
                assert upper >= min(mp.exp(remove), mp.mpf(gaussian(float(matrix.diagonal().max()), eps)))


@pytest.mark.parametrize(("bins", "order"), [(1, 2), (3, 2), (40, 17)])
def test_the_rounding_of_a_moment_is_what_its_steps_add_up_to(bins, order):
    """Per order: eight times the largest exponent, 160 for exponentials and their mean, 40 logarithms."""
    gram = DenseGram(np.diag(np.linspace(0.5, 3.0, bins)))
    exponent = 0.5 * order * float(gram.diagonal.max())
    steps = 8.0 * exponent + 160.0 + 40.0 * math.log(bins)
    assert moment_rounding(gram, order) == pytest.approx(2.0**-53 * order * steps, rel=1e-12, abs=0.0)
