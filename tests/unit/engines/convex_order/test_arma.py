"""ARMA matrices: their entries, what they dominate, their traces, and delta by plain samples."""

import numpy as np
import pytest
import scipy

from dpmech.engines.convex_order import transform
from dpmech.engines.convex_order.arma import ArmaGram, arma_fits, dominating, higher_fit
from dpmech.engines.convex_order.arma_lattice import build_arma
from dpmech.engines.convex_order.arma_traces import ArmaTraces
from dpmech.engines.convex_order.mixture_ring import MixtureFits
from dpmech.engines.convex_order.pair_traces import PairTraces
from dpmech.engines.convex_order.transform import mixture_bound, mixture_delta
from dpmech.exceptions import InvalidParameterError, NumericalError
from tests.support.bins_oracles import plain_monte_carlo

GRAM = ArmaGram(12, 0.3, (0.6, 0.2, 0.4), (-0.3, 0.2))


def circulant(profile, bins):
    index = np.arange(bins)
    distance = np.abs(index[:, None] - index[None, :])
    return np.asarray(profile)[np.minimum(distance, bins - distance)]


def shift(bins, places):
    return np.roll(np.eye(bins), places, axis=0)


def covariance(gram):
    """From the recursion and the filter as matrices, without spectra."""
    bins = gram.bins
    filtered = sum(one * shift(bins, lag) for lag, one in enumerate(gram.filter))
    recursion = sum(one * shift(bins, lag) for lag, one in enumerate((1.0, *gram.recursion)))
    response = filtered @ np.linalg.inv(recursion)
    return gram.white * np.eye(bins) + response @ response.T, recursion, filtered


def banded(bins, bands):
    found = np.zeros(bins // 2 + 1)
    for gap in range(len(bands)):
        found[gap] = np.dot(bands[: len(bands) - gap], bands[gap:])
    return found / found[0]


@pytest.mark.parametrize("bins", [12, 13])
def test_entries_are_those_of_the_recursion_and_the_filter(bins):
    gram = ArmaGram(bins, 0.3, (0.6, -0.2, 0.4), (-0.9, 0.5))
    matrix, recursion, filtered = covariance(gram)
    raised = circulant(gram.profile(), bins) - matrix
    assert np.min(raised) > 0.0
    assert np.max(raised) < 1e-10
    np.testing.assert_allclose(gram.scaled(4.0).profile(), 4.0 * gram.profile(), atol=1e-10)
    assert gram.diagonal == pytest.approx(matrix[0, 0])
    assert matrix.sum() / bins**2 <= gram.mean <= matrix.sum() / bins**2 * (1.0 + 1e-6)
    assert gram.determinant() == pytest.approx(np.linalg.det(recursion))
    inverse = np.linalg.inv(recursion)
    variance, means = gram.shifts()
    assert variance == pytest.approx((inverse @ inverse.T)[0, 0])
    np.testing.assert_allclose(np.sort(means), np.sort((inverse @ inverse.T @ filtered.T)[:, 0]), atol=1e-12)


@pytest.mark.parametrize("recursion", [(0.0, 1.0), (1.3, 0.2), (-1.3, 0.2)])
def test_a_recursion_that_grows_is_refused(recursion):
    with pytest.raises(InvalidParameterError, match="stable"):
        ArmaGram(12, 0.3, (1.0, 0.0, 0.0), recursion)


@pytest.mark.parametrize("bands", [[1.0, 0.2, 0.7, 0.1, 0.4], [1.0, 0.5, 0.375, 0.3125]])
def test_the_difference_is_copositive(bands):
    bins = 40
    profile = 0.9 * banded(bins, bands)
    found = arma_fits(MixtureFits(profile, bins, 1.0, high=True), profile)
    assert found
    rng = np.random.default_rng(7)
    for gram in found:
        difference = covariance(gram)[0] - circulant(profile, bins)
        for shape in (0.05, 0.3, 1.0, 10.0):
            tries = rng.gamma(shape, size=(4000, bins))
            assert np.min(np.einsum("si,ij,sj->s", tries, difference, tries)) >= 0.0
        waves = 1.0 + np.cos(2.0 * np.pi * np.outer(np.arange(bins), np.arange(bins)) / bins)
        assert np.min(np.einsum("si,ij,sj->s", waves, difference, waves)) >= -1e-12
        # the planted fault: a matrix 20 % smaller does not dominate
        smaller = 0.8 * covariance(gram)[0] - circulant(profile, bins)
        assert np.min(np.einsum("si,ij,sj->s", waves, smaller, waves)) < 0.0 or smaller[0, 0] < 0.0


def test_a_higher_order_is_closer_and_its_difference_copositive():
    bins = 40
    profile = 0.9 * banded(bins, [1.0, 0.2, 0.7, 0.1, 0.4])
    fits = MixtureFits(profile, bins, 1.0, high=True)
    gram = higher_fit(fits, profile)
    least = min(np.min(fits.height.of(one.profile())) for one in arma_fits(fits, profile))
    assert fits.least <= np.min(fits.height.of(gram.profile())) < least - 0.01
    difference = covariance(gram)[0] - circulant(profile, bins)
    rng = np.random.default_rng(7)
    for shape in (0.05, 0.3, 1.0, 10.0):
        tries = rng.gamma(shape, size=(4000, bins))
        assert np.min(np.einsum("si,ij,sj->s", tries, difference, tries)) >= 0.0
    # the planted fault: without the part that is independent between bins
    difference -= gram.white * np.eye(bins)
    assert np.min(np.diag(difference)) < 0.0


def test_three_bands_are_matched():
    profile = 0.9 * banded(60, [1.0, 0.0, 0.5])
    gram = arma_fits(MixtureFits(profile, 60, 1.0, high=True), profile)[0]
    np.testing.assert_allclose(gram.profile(), profile, atol=0.02)


def test_what_is_missing_is_added_to_the_white_part():
    gram = ArmaGram(12, 0.3, (1.0, 0.0, 0.5), (0.0, 0.0))
    raised = gram.profile() + np.array([0.0, 0.01, 0.0, 0.0, 0.0, 0.0, 0.02])
    found = dominating(gram, raised, np.zeros(7))
    difference = covariance(found)[0] - circulant(raised, 12)
    assert np.min(np.linalg.eigvalsh(difference)) >= 0.0
    assert 0.04 < found.white - 0.3 < 0.07
    assert dominating(gram, gram.profile() - 1e-6, np.zeros(7)).white == 0.3


MANY = 0.3, (0.6, 0.2, 0.4), (-0.3, 0.2)
HIGHER = (0.3, (0.5, 0.2, 0.3, 0.1, 0.2), (0.1, -0.2, 0.05, 0.1))


def in_full(lattice, factors):
    """The step as a matrix of all states, with the factor D of every path of p + 1 values."""
    count, order = lattice.nodes.size, lattice.gram.order
    whole = np.zeros((count,) * (2 * order), dtype=np.asarray(factors).dtype)
    for path in np.ndindex(*(count,) * (order + 1)):
        whole[path[:-1] + path[1:]] = lattice.steps[path] * factors[path]
    return whole.reshape(count**order, count**order)


def increments(lattice):
    """The logarithms of increments at every path, from the filter."""
    found = np.full(lattice.steps.shape, -0.5 * lattice.gram.exponential)
    for path in np.ndindex(*found.shape):
        values = lattice.nodes[list(path)][::-1]
        found[path] += float(np.dot(lattice.gram.filter, values))
    return found


def split(lattice, values):
    """Values at the increments between those of a function on the grid, linear in the increment."""
    return np.interp(np.exp(increments(lattice)), np.exp(lattice.sums()), values)


@pytest.mark.parametrize("remove", [True, False])
def test_the_lattice_has_the_moments_of_the_law(remove):
    lattice = build_arma(ArmaGram(100, *MANY), remove=remove, ripple=1e-6, outside=1e-8)
    mass, mean, error = ArmaTraces(lattice).moments()
    assert error < 1e-8  # the processor decides how sums are rounded: 3e-9 on one, below 1e-9 on another
    assert mass == pytest.approx(1.0, abs=1e-5)
    # the window of ADD cuts off larger likelihood ratios
    assert mean == pytest.approx(1.0, abs=1e-5 if remove else 1e-3)


@pytest.mark.parametrize(
    ("bins", "white", "filter_", "recursion", "ripple", "outside"),
    [
        (100, 0.3, (0.6, 0.2, 0.4), (-0.3, 0.2), 0.05, 1e-4),
        (101, 0.3, (0.6, 0.2, 0.4), (-0.3, 0.2), 0.05, 1e-4),
        (122, 0.9, (0.4, 0.2, 0.3, 0.1), (0.1, -0.2, 0.05), 0.5, 1.0),
        (123, 0.9, (0.3, 0.1, 0.2, 0.1, 0.1), (0.1, -0.2, 0.05, 0.1), 10.0, 20.0),
    ],
)
@pytest.mark.parametrize("exponent", [0.5, 3.0 - 2.0j, 15.0j])
def test_a_trace_is_within_its_error_of_the_power_in_full(
    bins, white, filter_, recursion, ripple, outside, exponent
):
    gram = ArmaGram(bins, white, filter_, recursion)
    lattice = build_arma(gram, remove=True, ripple=ripple, outside=outside)
    factors = np.exp(-exponent * np.exp(lattice.sums()) / bins).astype(np.complex128)
    traces = ArmaTraces(lattice)
    value, error = traces.trace(1.0 - factors, np.zeros(factors.size))
    at_paths = split(lattice, factors.real) + 1j * split(lattice, factors.imag)
    power = np.linalg.matrix_power(in_full(lattice, at_paths), bins)
    assert abs(value - np.trace(power)) <= error + 1e-12
    assert error < 1e-5
    # the planted fault: one step more
    assert abs(np.trace(power @ in_full(lattice, at_paths)) - np.trace(power)) > 10.0 * error
    # errors of the factors count in full
    assert traces.trace(1.0 - factors, np.full(factors.size, 1e-3))[1] >= bins * 1e-3 * abs(value)


@pytest.mark.parametrize("order", [2, 3])
def test_the_moments_are_those_of_the_power_in_full(order):
    gram = ArmaGram(100, 0.9, (0.3, 0.1, 0.2, 0.1)[: order + 1], (0.1, -0.2, 0.05)[:order])
    lattice = build_arma(gram, remove=True, ripple=1.0, outside=2.0)
    mass, mean, error = ArmaTraces(lattice).moments()
    step = in_full(lattice, np.ones(lattice.steps.shape))
    raised = in_full(lattice, np.exp(increments(lattice)))
    power = np.linalg.matrix_power(step, 99)
    truth = lattice.norm * np.trace(power @ step), lattice.norm * np.trace(power @ raised)
    assert (mass, mean) == pytest.approx(truth, rel=error + 1e-12)
    assert error < 1e-8
    # the planted fault: increments of another bin's scale
    assert abs(lattice.norm * np.trace(power @ raised) * 1.001 - mean) > error * mean


@pytest.mark.parametrize("scale", [0.0, 1e-4])
def test_vectors_that_are_not_those_of_the_step_raise_the_error(scale, monkeypatch):
    gram = ArmaGram(100, *MANY)
    lattice = build_arma(gram, remove=True, ripple=0.05, outside=1e-4)
    factors = np.exp(-(1.0 + 2.0j) * np.exp(lattice.sums()) / gram.bins)
    at_paths = split(lattice, factors.real) + 1j * split(lattice, factors.imag)
    truth = np.trace(np.linalg.matrix_power(in_full(lattice, at_paths), gram.bins))
    traces, rng = ArmaTraces(lattice), np.random.default_rng(1)
    found = traces._vectors

    def moved(steps, residual):
        return tuple(one + scale * rng.standard_normal(one.shape) for one in found(steps, residual))

    monkeypatch.setattr(traces, "_vectors", moved)
    value, error = traces.trace(1.0 - factors, np.zeros(factors.size))
    assert abs(value - truth) <= error + 1e-12
    assert (error > 1e-6) == (scale > 0.0)


@pytest.mark.parametrize(
    ("recursion", "exponent", "ranks"),
    [((-0.3, 0.2), 60.0j, [2, 1]), ((-0.6, 0.5), 15.0j, [4, 1]), ((-0.6, 0.5), 10.0 + 80.0j, [3, 1])],
)
def test_the_rest_of_a_step_is_bounded_for_any_number_of_vectors(recursion, exponent, ranks):
    lattice = build_arma(
        ArmaGram(100, 0.3, (0.6, 0.2, 0.4), recursion), remove=True, ripple=0.05, outside=1e-4
    )
    factors = np.exp(-exponent * np.exp(lattice.sums()) / 100)
    traces = ArmaTraces(lattice)
    steps = traces.weights * factors[traces.below] + traces.shared * np.diff(factors)[traces.below]
    step = in_full(lattice, split(lattice, factors.real) + 1j * split(lattice, factors.imag))
    splits = list(traces._splits(steps, 1e-7, 0.0))
    assert [one.right.shape[1] for one in splits] == ranks
    for one in splits:
        apart = np.eye(lattice.size) - one.right @ np.linalg.solve(one.left.T @ one.right, one.left.T)
        rest = np.linalg.norm(np.linalg.matrix_power(apart @ step @ apart, 2))
        assert rest <= one.rest <= 1.05 * rest


@pytest.mark.parametrize("exponent", [1e3, 1e6, 1e8 + 1e8j])
def test_a_step_that_vanishes_has_a_small_trace_and_leaves_nothing_to_the_next(exponent):
    lattice = build_arma(ArmaGram(100, *MANY), remove=True, ripple=0.05, outside=1e-4)
    traces, errors = ArmaTraces(lattice), np.zeros(lattice.sums().size)

    def factors(at):
        return np.exp(-at * np.exp(lattice.sums()) / 100)

    value, error = traces.trace(1.0 - factors(exponent), errors)
    assert abs(value) <= 1e-30
    assert error <= 1e-6
    again = traces.trace(1.0 - factors(1.0 + 1.0j), errors)
    other = ArmaTraces(lattice).trace(1.0 - factors(1.0 + 1.0j), errors)
    assert abs(again[0] - other[0]) <= again[1] + other[1] < 1e-9


@pytest.mark.parametrize("fill", [0.0, np.nan])
def test_without_vectors_a_trace_is_bounded_by_the_mass(fill, monkeypatch):
    lattice = build_arma(ArmaGram(100, *MANY), remove=True, ripple=0.05, outside=1e-4)
    traces, found = ArmaTraces(lattice), np.full((lattice.size, 1), fill, dtype=np.complex128)
    monkeypatch.setattr(traces, "_vectors", lambda steps, residual: (found, found))
    value, error = traces.trace(np.zeros(lattice.sums().size, dtype=np.complex128), np.zeros(1))
    assert value == 0.0
    mass = np.trace(np.linalg.matrix_power(in_full(lattice, np.ones(lattice.steps.shape)), 100))
    assert mass <= error <= 1.2 * mass


@pytest.mark.parametrize("exponent", [0.5, 3.0 - 2.0j, 40.0j])
@pytest.mark.parametrize("bins", [24, 29])
def test_traces_of_few_bins_are_within_their_errors(exponent, bins):
    lattice = build_arma(ArmaGram(bins, *MANY), remove=True, ripple=0.05, outside=1e-4)
    factors = np.exp(-exponent * np.exp(lattice.sums()) / bins).astype(np.complex128)
    at_paths = split(lattice, factors.real) + 1j * split(lattice, factors.imag)
    traces = PairTraces(lattice)
    value, error = traces.trace(1.0 - factors, np.zeros(factors.size))
    power = np.linalg.matrix_power(in_full(lattice, at_paths), bins)
    assert abs(value - np.trace(power)) <= error + 1e-12
    assert error < 1e-6
    # the planted fault: one step more
    assert abs(np.trace(power @ in_full(lattice, at_paths)) - np.trace(power)) > 10.0 * error
    step, raised = (in_full(lattice, one) for one in (np.ones(at_paths.shape), np.exp(increments(lattice))))
    most = np.linalg.matrix_power(step, bins - 1)
    mass, mean, rounding = traces.moments()
    assert (mass, mean) == pytest.approx(
        (lattice.norm * np.trace(most @ step), lattice.norm * np.trace(most @ raised)), rel=rounding + 1e-12
    )


class Counted(np.ndarray):
    """Counts the multiplications of matrix products."""

    products = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        plain = [np.asarray(one) for one in inputs]
        if "out" in kwargs:
            kwargs["out"] = tuple(np.asarray(one) for one in kwargs["out"])
        found = getattr(ufunc, method)(*plain, **kwargs)
        if ufunc is np.matmul:
            Counted.products += found.size * plain[0].shape[-1]
        return found.view(Counted) if isinstance(found, np.ndarray) else found


@pytest.mark.parametrize("recursion", [(-0.3, 0.2), (-1.2, 0.5)])
@pytest.mark.parametrize(("ripple", "outside"), [(0.1, 1e-1), (0.01, 1e-8)])
def test_the_time_of_a_trace_in_full_follows_its_multiplications(ripple, outside, recursion, monkeypatch):
    gram = ArmaGram(29, 0.3, (0.6, 0.2, 0.4), recursion)
    traces = PairTraces(build_arma(gram, remove=True, ripple=ripple, outside=outside))
    full = traces._full
    monkeypatch.setattr(traces, "_full", lambda *args: full(*args).view(Counted))
    monkeypatch.setattr(Counted, "products", 0)
    defect = (0.01j * np.ones(traces.lattice.sums().size)).view(Counted)
    traces.trace(defect, np.zeros(defect.size))
    # of complex numbers, in units of 1e-10 seconds, which is a fast core
    assert 2.0 <= traces.seconds / (1e-10 * Counted.products) <= 8.0


def of_few_bins(monkeypatch):
    """A bound that takes powers in full, the numbers of traces of both kinds, and the announced work."""
    counts, work = {PairTraces: 0, ArmaTraces: 0}, []

    def counted(kind):
        trace = kind.trace

        def one(self, *args):
            counts[kind] += 1
            return trace(self, *args)

        monkeypatch.setattr(kind, "trace", one)

    for kind in counts:
        counted(kind)
    monkeypatch.setattr(
        transform, "spend", lambda seconds, memory, what: work.append((seconds, memory, what))
    )
    found = mixture_bound(ArmaGram(16, 0.6, (0.4, 0.1, 0.3), (-0.9, 0.4)), 0.3, rel_error=0.1, remove=True)
    return found, counts[PairTraces], counts[ArmaTraces], [one for one in work if "in full" in one[2]]


def test_traces_in_full_are_announced_and_computed_once(monkeypatch):
    found, full, fast, work = of_few_bins(monkeypatch)
    assert found.errors < 1e-3 * found.delta
    assert 0 < full <= fast
    # the moments, then the traces; a matrix of N^2 x N^2 complex numbers has at least 18^4 of them
    assert work[-1][0] == pytest.approx(full / 8.0 * work[0][0])
    assert all(memory >= 16.0 * 18**4 for _, memory, _ in work)


def test_traces_in_full_are_left_out_where_there_is_no_time(monkeypatch):
    least = of_few_bins(monkeypatch)[0].delta
    monkeypatch.setattr(PairTraces, "seconds", 1e3)
    found, full, _, work = of_few_bins(monkeypatch)
    assert (full, work) == (0, [])
    assert found.delta >= least


def test_increments_are_split_with_their_mean():
    lattice = build_arma(GRAM, remove=True, ripple=0.05, outside=1e-4)
    below, shares = lattice.places()
    sizes = np.exp(lattice.sums())
    assert np.min(shares) >= 0.0
    assert np.max(shares) <= 1.0
    kept = (1.0 - shares) * sizes[below] + shares * sizes[below + 1]
    np.testing.assert_allclose(kept, np.exp(increments(lattice)), rtol=1e-12)


def test_a_smaller_window_below_leaves_out_little_of_the_moments():
    gram, order = ArmaGram(24, 0.3, (0.6, 0.2, 0.4), (-0.3, 0.2)), 3
    wide = build_arma(gram, remove=True, ripple=0.05, outside=1e-6)
    bound = 1e-4
    lattice = build_arma(gram, remove=True, ripple=0.05, outside=1e-6, moment=(order, bound))
    assert lattice.nodes[0] > wide.nodes[0]
    assert lattice.nodes[-1] == wide.nodes[-1]
    # E[r^3; v_0 below the window] over all triples of bins, each a normal law
    deviation, shifts = gram.shifts()[0] ** 0.5, gram.shifts()[1]
    entries = circulant(gram.profile(), 24)
    total = inside = 0.0
    for triple in np.ndindex(24, 24, 24):
        weight = np.exp(
            entries[triple[0], triple[1]] + entries[triple[0], triple[2]] + entries[triple[1], triple[2]]
        )
        total += weight
        inside += weight * scipy.special.ndtr((lattice.nodes[0] - shifts[list(triple)].sum()) / deviation)
    assert 24 * bound * inside / total <= lattice.outside


def test_too_fine_a_lattice_is_refused():
    with pytest.raises(NumericalError, match="values of v"):
        build_arma(ArmaGram(12, 0.001, (1.0, 0.2, 0.4), (0.0, 0.0)), remove=True, ripple=0.1, outside=1e-4)


@pytest.mark.parametrize("remove", [True, False])
def test_delta_against_plain_samples(remove):
    gram, eps = ArmaGram(40, 0.3, (0.6, 0.2, 0.4), (-0.3, 0.2)), 0.3
    found = mixture_delta(gram, eps, rel_error=0.02, remove=remove)
    means, errors = plain_monte_carlo(covariance(gram)[0], eps, np.random.default_rng(5), samples=200_000)
    place = 0 if remove else 1
    least, most = means[place] - 6.12 * errors[place], means[place] + 6.12 * errors[place]
    assert least <= found <= 1.1 * most
    # the planted fault: entries 20 % smaller
    assert mixture_delta(gram.scaled(0.8), eps, rel_error=0.02, remove=remove) < least


@pytest.mark.slow
def test_delta_of_higher_order_against_plain_samples():
    gram, eps = ArmaGram(40, *HIGHER), 0.3
    found = mixture_delta(gram, eps, rel_error=0.1, remove=True)
    means, errors = plain_monte_carlo(covariance(gram)[0], eps, np.random.default_rng(5), samples=200_000)
    assert means[0] - 6.12 * errors[0] <= found <= 1.15 * (means[0] + 6.12 * errors[0])
    # the planted fault: entries 20 % smaller
    assert mixture_delta(gram.scaled(0.8), eps, rel_error=0.1, remove=True) < means[0] - 6.12 * errors[0]


@pytest.mark.parametrize("bins", [60, 100])
def test_delta_does_not_depend_on_the_order(bins):
    """A matrix of order 2 is one of order 4: other lattices of states, and with few bins other traces."""
    coefficients, recursion = (0.7, 0.2, 0.5), (0.05, -0.2)
    found = [
        mixture_delta(
            ArmaGram(bins, 0.45, (*coefficients, *(0.0,) * more), (*recursion, *(0.0,) * more)),
            1.0,
            rel_error=0.1,
            remove=True,
        )
        for more in (0, 2)
    ]
    assert found[1] == pytest.approx(found[0], rel=2e-3)
    # the planted fault: a filter that is 1 % smaller
    other = ArmaGram(bins, 0.45, (0.693, 0.198, 0.495), recursion)
    assert mixture_delta(other, 1.0, rel_error=0.1, remove=True) < 0.98 * found[0]


def test_opposite_bins_are_counted_once():
    # 1 and 3 are neighbours of 0, but only 2 is opposite to it, whose negative entry would count twice
    gram, eps = ArmaGram(4, 0.05, (0.3, 0.0, -0.29), (0.0, 0.0)), 0.5
    found = mixture_delta(gram, eps, rel_error=0.1, remove=True)
    means, errors = plain_monte_carlo(covariance(gram)[0], eps, np.random.default_rng(5), samples=2_000_000)
    assert means[0] - 6.12 * errors[0] <= found <= 1.3 * (means[0] + 6.12 * errors[0])


def test_wide_bands_are_not_searched():
    profile = 0.9 * banded(60, [1.0] * 12)
    assert arma_fits(MixtureFits(profile, 60, 1.0, high=True), profile) == []
