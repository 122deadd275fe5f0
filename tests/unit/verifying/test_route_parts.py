"""The routes of `verify` one by one: brackets of explicit columns, and deltas with what they leave open."""

import dataclasses
import itertools
import math
import types

import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting import PoissonAccountant
from dpmech.mechanism import Pattern
from dpmech.verifying import privacy_routes, sensitivity_routes
from dpmech.verifying.integrals import gaussian_integral
from dpmech.verifying.privacy_routes import repeated_routes, second_routes
from dpmech.verifying.sensitivity_routes import (
    _all_rows,
    _all_sets,
    _best_signs,
    _bracket,
    _coefficients,
    _column_norms,
    _leftmost,
    _spaced_sets,
    best_sums,
)
from tests.support import saved
from tests.support.oracles import sensitivity_ceiling, sensitivity_floor

UNIT = 2.0**-53


def columns_of(seed, n):
    return np.tril(np.random.default_rng(seed).normal(size=(n, n)))


# the sensitivity


def test_a_bracket_leaves_room_for_every_addition():
    for terms in (0, 10, 10**6):
        slack = 1e-12 + terms * UNIT
        found = _bracket(2.0, 3.0, dm.Provenance("x"), terms)
        assert found.lower == pytest.approx(2.0 * (1.0 - slack), rel=1e-15)
        assert found.upper == pytest.approx(3.0 * (1.0 + slack), rel=1e-15)
        # Ends that rounding has turned round are put right.
        turned = _bracket(3.0, 2.0, dm.Provenance("x"), terms)
        assert turned.lower < 2.0 < turned.upper


def test_signs_are_all_tried_up_to_twelve_and_those_of_the_rows_beyond():
    for size in (1, 2, 5, 12):
        columns = np.random.default_rng(size).normal(size=(20, size))
        gram = columns.T @ columns
        best = max(
            np.array(signs) @ gram @ np.array(signs) for signs in itertools.product((1.0, -1.0), repeat=size)
        )
        assert _best_signs(gram) == pytest.approx(best, rel=1e-13)
    columns = np.random.default_rng(13).normal(size=(20, 13))
    gram = columns.T @ columns
    rows = [np.where(row >= 0.0, 1.0, -1.0) for row in gram]
    best = max(signs @ gram @ signs for signs in (np.ones(13), *rows))
    assert _best_signs(gram) == pytest.approx(best, rel=1e-13)
    assert best > gram.sum()
    # Columns that agree: no row of signs is better than none changed.
    assert _best_signs(np.ones((14, 14))) == pytest.approx(14.0**2)


@pytest.mark.parametrize("scale", [1.0, 0.01])
@pytest.mark.parametrize("spaced", [True, False])
def test_every_set_of_a_few_steps(spaced, scale):
    columns = scale * columns_of(3, 9)
    pattern = Pattern(3, 3, evenly_spaced=spaced)
    sets = [s for r in (1, 2, 3) for s in itertools.combinations(range(9), r)]
    sets = [s for s in sets if all(after - before >= 3 for before, after in itertools.pairwise(s))]
    if spaced:
        sets = [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
    found = _all_sets(columns, pattern)
    assert found.upper == pytest.approx(sensitivity_ceiling(columns, sets), rel=1e-11)
    widest = max(sets, key=lambda one: np.abs((columns.T @ columns)[np.ix_(one, one)]).sum())
    floor = sensitivity_floor(columns, [widest])
    assert floor * (1.0 - 1e-11) <= found.lower <= sensitivity_floor(columns, sets) * (1.0 + 1e-11)


@pytest.mark.parametrize("scale", [1.0, 0.01])
@pytest.mark.parametrize(("n", "b"), [(20, 5), (21, 4), (16, 1)])
def test_evenly_spaced_sets_by_their_gram_matrices(n, b, scale):
    columns = scale * columns_of(5, n)
    grams = [columns[:, start::b].T @ columns[:, start::b] for start in range(b)]
    found = _spaced_sets(columns, b)
    assert found.upper == pytest.approx(math.sqrt(max(np.abs(gram).sum() for gram in grams)), rel=1e-11)
    widest = max(grams, key=lambda gram: np.abs(gram).sum())
    best = math.sqrt(max(_best_signs(gram) for gram in grams))
    assert math.sqrt(_best_signs(widest)) * (1.0 - 1e-11) <= found.lower <= best * (1.0 + 1e-11)


@pytest.mark.parametrize("scale", [1.0, 0.01])
@pytest.mark.parametrize("seed", [136, 138, 5])
def test_the_lower_end_of_a_dense_gram_matrix_is_the_best_window_of_evenly_spaced_steps(seed, scale):
    """Of the first two seeds the widest window is not the best one, for all its signs."""
    n, b, k = 14, 2, 4
    columns = scale * columns_of(seed, n)
    gram = columns.T @ columns
    windows = [gram[first : first + 7 : 2, first : first + 7 : 2] for first in range(8)]
    widest = max(windows, key=lambda part: np.abs(part).sum())
    best = max(*(part.sum() for part in windows), _best_signs(widest))
    assert bool(best > _best_signs(widest)) is (seed > 100)
    found = _all_rows(gram, b, k)
    assert found.lower == pytest.approx(math.sqrt(best), rel=1e-11)
    weights = np.array([[abs(gram[i, j]) if abs(i - j) >= b else 0.0 for j in range(n)] for i in range(n)])
    rows = np.diagonal(gram) + best_sums(weights, b, k - 1)
    assert found.upper == pytest.approx(math.sqrt(best_sums(rows[None, :], b, k)[0]), rel=1e-11)
    one = _all_rows(gram, b, 1)
    assert one.upper == pytest.approx(one.lower, rel=1e-10)
    assert one.upper == pytest.approx(math.sqrt(np.diagonal(gram).max()), rel=1e-11)


def fake(coefs, scales):
    scale = None if scales is None else np.asarray(scales, dtype=np.float64)
    factors = types.SimpleNamespace(
        coefs=coefs, scale=scale, scales=lambda: np.ones(coefs.size) if scale is None else scale
    )
    return types.SimpleNamespace(n=coefs.size, factored=factors)


def leftmost(coefs, scales, b, k):
    strategy = fake(np.asarray(coefs, dtype=np.float64), scales)
    return list(_leftmost(strategy, strategy.factored.coefs, None, b, k))


def test_the_leftmost_set_lies_under_the_least_sequence_that_does_not_rise():
    coefs, scales, b, k = [1.0, -0.2, 0.5, -0.7, 0.1, 0.3], [1.0, 0.5, 2.0, 1.0, 1.0, 3.0], 2, 3
    (found,) = leftmost(coefs, scales, b, k)
    envelope = [1.0, 0.7, 0.7, 0.7, 0.3, 0.3]
    actual, above = np.zeros(6), np.zeros(6)
    for step in (0, 2, 4):
        for row in range(step, 6):
            actual[row] += coefs[row - step] * scales[step]
            above[row] += envelope[row - step]
    assert found.lower == pytest.approx(np.linalg.norm(actual), rel=1e-11)
    assert found.upper == pytest.approx(np.linalg.norm(above) * 3.0, rel=1e-11)


def test_geometric_columns_of_one_norm_are_summed_exactly_and_no_others():
    n, ratio = 8, 0.6
    coefs = ratio ** np.arange(n)
    norms = np.sqrt(np.cumsum(coefs**2)[::-1])
    whole = leftmost(coefs, 1.0 / norms, 2, 3)
    assert len(whole) == 2
    assert whole[1].lower == pytest.approx(whole[1].upper, rel=1e-11)
    assert whole[1].lower == pytest.approx(whole[0].lower, rel=1e-11)
    assert str(whole[1].by) != str(whole[0].by)
    # Without scales; of other norms; of another sequence; of a ratio that does not fall.
    assert len(leftmost(coefs, None, 2, 3)) == 1
    assert len(leftmost(coefs, np.linspace(1.0, 1.001, n) / norms, 2, 3)) == 1
    bent = coefs + 1e-9 * (np.arange(n) == 5)
    assert len(leftmost(bent, 1.0 / np.sqrt(np.cumsum(bent**2)[::-1]), 2, 3)) == 1
    for other in (np.ones(n), (-0.6) ** np.arange(n)):
        assert len(leftmost(other, 1.0 / np.sqrt(np.cumsum(other**2)[::-1]), 2, 3)) == 1


@pytest.mark.parametrize("n", [5, 16, 17, 50])
def test_column_norms_in_blocks(n):
    coefs = np.random.default_rng(n).normal(size=n)
    scales = np.linspace(1.0, 2.0, n)
    strategy = fake(coefs, scales)
    want = [np.linalg.norm(coefs[: n - j]) * scales[j] for j in range(n)]
    np.testing.assert_allclose(_column_norms(strategy, coefs, None), want, rtol=1e-13)


def test_a_recursion_that_takes_too_long_is_left_out(monkeypatch):
    strategy = dm.BandedInverse(50, [1.0, -0.5, 0.0, 0.1])
    monkeypatch.setattr(sensitivity_routes, "_RECURSION_WORK", 150)  # three coefficients that are not 0
    np.testing.assert_allclose(_coefficients(strategy), strategy.toeplitz_coefs, rtol=1e-13)
    monkeypatch.setattr(sensitivity_routes, "_RECURSION_WORK", 149)
    assert _coefficients(strategy) is None


# the privacy loss

POISSON, BINS = saved.certificate("poisson 40").certificate(), saved.certificate("bins 24").certificate()


@pytest.mark.parametrize("lower", [0.0, 0.1])
def test_a_contour_integral_has_ends_on_either_side(lower, monkeypatch):
    asked = []
    monkeypatch.setattr(privacy_routes, "composed_delta", lambda *given: asked.append(given) or 0.25)
    achieved = dm.Bounds(lower, POISSON.achieved.upper, dm.Guarantee(dm.Kind.BOUND), POISSON.achieved.by)
    certificate = dataclasses.replace(POISSON, achieved=achieved)
    route = second_routes(certificate, dm.Bounds.bracket(0.5, 2.0, dm.Provenance("x")), None)[0]
    found = route.delta(3.0, 0.7)
    assert asked == [(POISSON.participation.sampling_prob, 1.5, POISSON.strategy.n, 0.7)]
    assert found.upper == pytest.approx(0.25 * (1.0 + 1e-7), rel=1e-12)
    assert found.lower == pytest.approx(0.25 * (1.0 - 2e-7) if lower else 0.0, rel=1e-12, abs=0.0)
    assert route.slack == 1e-7
    assert route.decides


def test_a_gaussian_integral_has_those_of_the_sensitivity():
    certificate = dm.calibrate_sigma(dm.Identity(4), 1.0, 1e-5).certificate()
    for low in (1.9, 0.0):
        (route,) = second_routes(certificate, dm.Bounds.bracket(low, 2.1, dm.Provenance("x")), None)
        found = route.delta(3.0, 0.8)
        assert found.upper == pytest.approx(gaussian_integral(3.0 / 2.1, 0.8) * (1.0 + 1e-7), rel=1e-12)
        exact = gaussian_integral(3.0 / 1.9, 0.8) * (1.0 - 1e-7) if low else 0.0
        assert found.lower == pytest.approx(exact, rel=1e-12, abs=0.0)
    assert route.delta(1e-3, 0.0).upper == 1.0


def test_a_repeated_evaluation_is_as_fine_as_the_search_was(monkeypatch):
    asked = []
    whole = PoissonAccountant.delta

    def delta(self, sigma, eps, *, tolerance):
        asked.append(tolerance)
        return whole(self, sigma, eps, tolerance=tolerance)

    monkeypatch.setattr(PoissonAccountant, "delta", delta)
    claim = dm.calibrate_sigma(dm.Identity(4), 1.0, 1e-4, participation=dm.Poisson(0.3), rtol=0.01)
    searched = set(asked)
    asked.clear()
    (route,) = repeated_routes(claim.certificate(), None)
    assert route.delta(claim.sigma, 1.0).upper <= 1e-4
    assert {*asked} == searched == {0.4 * 0.01}


def test_an_independent_sample_is_as_fine_as_the_claim_is_steep(monkeypatch):
    """A thousandth of what delta changes by with sigma, relative, between the ends that are worth it."""
    asked = []
    monkeypatch.setattr(
        privacy_routes,
        "_accountant",
        lambda _, method, __: asked.append(method) or types.SimpleNamespace(method=""),
    )
    for eps, delta in ((2.0, 1e-5), (8.0, 1e-6), (0.05, 0.3)):
        certificate = dataclasses.replace(BINS, budget=dm.PrivacyBudget(eps, delta))
        (route,) = privacy_routes._sample_routes(certificate, BINS.sensitivity, None)
        scale = [
            dm.calibrate_sigma(dm.Identity(1), eps, one).sigma for one in (delta * math.exp(-0.01), delta)
        ]
        # Relative change of delta over that of sigma.
        steepness = 0.01 / math.log(scale[0] / scale[1])
        assert asked[-1].rel_error == pytest.approx(min(max(1e-3 * steepness, 2e-3), 2e-2), rel=1e-3)
        assert asked[-1].confidence == 1.0 - 1e-6
        assert not route.decides
    assert len({method.rel_error for method in asked}) == 3


def test_neighbours_that_may_not_both_take_part_are_no_set():
    """Columns 0 and 1 outweigh every set of steps two apart, and are one step apart."""
    columns = columns_of(5, 14)
    columns[:, :2] *= 6.0
    gram = columns.T @ columns
    windows = [gram[first : first + 7 : 2, first : first + 7 : 2] for first in range(8)]
    widest = max(windows, key=lambda part: np.abs(part).sum())
    assert np.abs(gram[:2, :2]).sum() > np.abs(widest).sum()
    best = math.sqrt(max(*(part.sum() for part in windows), _best_signs(widest)))
    assert _all_rows(gram, 2, 4).lower == pytest.approx(best, rel=1e-11)
    assert _all_rows(gram, 2, 4).upper > 1.01 * best
