import itertools

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.gram import CirculantGram
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal, TuplesOfSamples
from dpmech.engines.gaussian_mixture.moments import log_moment_bound
from dpmech.engines.gaussian_mixture.points import add_point
from dpmech.engines.gaussian_mixture.tuples import best_tuple_proposal, draw_rows, tuple_proposal


def random_gram(seed, bins, size):
    rng = np.random.default_rng(seed)
    rows = np.abs(rng.standard_normal((bins, max(1, bins - 1)))) * rng.uniform(0.3, 1.5, size=(bins, 1))
    matrix = rows @ rows.T
    return size * matrix / np.max(matrix)


def loss(values, diagonal):
    return scipy.special.logsumexp(values - diagonal / 2, axis=1) - np.log(values.shape[1])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("scale", "order"), [(1.0, 2), (1.0, 4), (1.3, 3), (2.0, 1)])
def test_the_lemma_by_enumeration(seed, scale, order):
    matrix = random_gram(seed, 3, 1.5)
    gram = DenseGram(matrix)
    star = tuple_proposal(gram, scale, order)
    bins, offsets = 3, 0.5 * (scale**2 - scale) * np.diag(matrix)
    tuples = np.array(list(itertools.product(range(bins), repeat=order)))
    cliques = np.array([np.exp(offsets[i].sum()) for i in tuples])
    stars = np.zeros(len(tuples))
    slope = scale**2 * order / 2
    centre = np.diff(star.centre_cdf, prepend=0.0)
    for row, i in enumerate(tuples):
        for u, v in itertools.combinations(range(order), 2):
            cliques[row] *= np.exp(scale**2 * matrix[i[u], i[v]])
        for u in range(order):
            weights = np.exp(offsets + slope * matrix[i[u]])
            others = np.delete(i, u)
            stars[row] += centre[i[u]] * np.prod(weights[others] / weights.sum()) / order
    cliques /= bins**order
    assert stars.sum() == pytest.approx(1.0)
    ratios = np.exp(star.log_ratios(gram, tuples))
    assert ratios == pytest.approx(cliques / stars)
    assert np.max(ratios) <= np.exp(star.log_bound) * (1 + 1e-12)
    # E_Q A_s^q in closed form for q = 2, s = 1, and below the bound always
    assert cliques.sum() <= np.exp(log_moment_bound(gram, scale, order)) * (1 + 1e-12)
    if (scale, order) == (1.0, 2):
        assert cliques.sum() == pytest.approx(np.exp(matrix).mean())
        assert log_moment_bound(gram, 1.0, 2) == pytest.approx(np.log(np.exp(matrix).mean()))


def test_one_bin_is_a_gaussian_moment():
    gram = DenseGram([[0.7]])
    for scale, order in ((1.0, 5), (1.5, 2), (2.0, 1)):
        power = scale * order
        assert log_moment_bound(gram, scale, order) == pytest.approx(0.35 * power * (power - 1.0))


def test_star_draws_follow_their_law():
    matrix = random_gram(7, 3, 2.0)
    gram = DenseGram(matrix)
    star = tuple_proposal(gram, 1.2, 3)
    count = 400_000
    tuples = star.draw(gram, np.random.default_rng(0).random((count, 3)))
    centre = np.diff(star.centre_cdf, prepend=0.0)
    offsets = 0.5 * (1.2**2 - 1.2) * np.diag(matrix)
    rows = scipy.special.softmax(offsets + star.slope * matrix, axis=1)
    expected = centre[:, None, None] * rows[:, :, None] * rows[:, None, :]
    counts = np.zeros((3, 3, 3))
    np.add.at(counts, tuple(tuples.T), 1)
    errors = (counts - count * expected) / np.sqrt(count * expected * (1 - expected))
    assert np.max(np.abs(errors)) < 7.0


def test_draw_rows_inverts():
    weights = np.array([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0]])
    drawn = draw_rows(weights, np.array([[0.0, 0.2, 0.25, 0.99], [0.0, 0.3, 0.6, 0.999]]))
    assert drawn.tolist() == [[0, 0, 2, 2], [1, 1, 1, 1]]


def test_search_finds_a_good_order():
    matrix = random_gram(1, 40, 1.0)
    gram = DenseGram(matrix)
    best = best_tuple_proposal(gram, 1.0)

    def height(order):
        power = order
        return (
            log_moment_bound(gram, 1.0, order)
            - (power - 1)
            - np.log(power)
            + (power - 1) * np.log1p(-1 / power)
        )

    found = best.log_bound - (best.power - 1) - np.log(best.power)
    found += (best.power - 1) * np.log1p(-1 / best.power)
    assert found <= min(height(order) for order in range(2, 17)) + 1e-6


def remove_log_weight(proposal, values, tuples, free):
    """The weight at chosen y and tuples, through the proposal's own densities."""
    count = len(values)
    losses = loss(values, proposal.gram.diagonal)
    payoffs = np.full(count, -np.inf)
    hits = losses > proposal.eps
    payoffs[hits] = losses[hits] + np.log(-np.expm1(proposal.eps - losses[hits]))
    uniforms = np.random.default_rng(0).random((count, free))
    of_star, of_others = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
    drawn = [
        TuplesOfSamples(proposal.star, of_star, np.zeros(tuples.shape), tuples),
        TuplesOfSamples(proposal.free, of_others, uniforms, np.zeros((count, free), dtype=np.int64)),
    ]
    densities = proposal._densities(values, losses, drawn)
    return proposal.log_weights(payoffs, densities)


@pytest.mark.parametrize(
    ("seed", "bins", "size", "eps"),
    [
        (0, 1, 2.0, 1.0),
        pytest.param(1, 2, 3.0, 2.0, marks=pytest.mark.slow),
        pytest.param(2, 3, 0.5, 0.3, marks=pytest.mark.slow),  # of high order
        pytest.param(3, 5, 6.0, 8.0, marks=pytest.mark.slow),
    ],
)
def test_remove_weight_bound_holds_everywhere(seed, bins, size, eps):
    gram = DenseGram(random_gram(seed, bins, size))
    proposal = RemoveProposal.at(gram, eps)
    alphas = np.random.default_rng(seed).dirichlet(np.ones(len(proposal.names)))
    bare = np.zeros(len(proposal.names))
    for weights in (proposal.weights, alphas, bare):
        if weights is bare:
            weights[2] = 1.0  # the star alone: the bound that matters
        mixed = proposal.reweighted(weights)
        bound = mixed.log_weight_bound
        seen = -np.inf
        for block in range(12):
            with np.errstate(divide="ignore"):
                drawn = mixed.block(np.random.SeedSequence(seed, spawn_key=(block,)), 8192)
            seen = max(seen, float(np.max(mixed.log_weights(*drawn))))
        assert seen <= bound + 1e-9
        rng = np.random.default_rng(seed)
        free, order = mixed.free.order, mixed.star.order
        for trial in range(8):
            tuples = (
                rng.integers(bins, size=(1, order)) if trial % 2 else np.full((1, order), rng.integers(bins))
            )

            def negative(values, mixed=mixed, tuples=tuples, free=free):
                value = remove_log_weight(mixed, values[None], tuples.copy(), free)[0]
                return 1e3 if value == -np.inf else -value

            start = gram.matvec(np.bincount(tuples[0], minlength=bins).astype(float)) + rng.random(bins)
            found = scipy.optimize.minimize(negative, start, method="Nelder-Mead", options={"maxiter": 400})
            assert -found.fun <= bound + 1e-9


def test_a_planted_fault_in_the_bound_is_seen():
    # one bin, star alone: the bound is attained, so 2 % off in K must break it
    star = RemoveProposal.at(DenseGram([[2.0]]), 3.0)
    weights = np.zeros(len(star.names))
    weights[2] = 1.0
    mixed = star.reweighted(weights)
    faulty = RemoveProposal.at(DenseGram([[1.96]]), 3.0).reweighted(weights)
    drawn = mixed.log_weights(*mixed.block(np.random.SeedSequence(0), 100_000))
    assert np.max(drawn) <= mixed.log_weight_bound + 1e-9
    assert np.max(drawn) > faulty.log_weight_bound


@pytest.mark.parametrize(
    ("seed", "bins", "size", "eps"), [(0, 1, 2.0, 1.5), (1, 2, 3.0, 2.5), (2, 4, 0.5, 0.5), (3, 6, 4.0, 0.2)]
)
def test_add_weight_bound_holds_everywhere(seed, bins, size, eps):
    gram = DenseGram(random_gram(seed, bins, size))
    proposal = AddProposal.at(gram, eps)
    for weights in (proposal.weights, np.eye(proposal.weights.size)[0]):
        mixed = proposal.reweighted(weights)
        bound = mixed.log_weight_bound
        for block in range(40):
            drawn = mixed.block(np.random.SeedSequence(seed, spawn_key=(block,)), 8192)
            with np.errstate(divide="ignore"):
                assert np.max(mixed.log_weights(*drawn)) <= bound + 1e-9


def test_add_depth_is_a_supporting_hyperplane():
    gram = DenseGram(random_gram(5, 4, 1.0))
    point = add_point(gram, 1.2)
    assert point.depth > 0.0
    values = 4.0 * np.random.default_rng(0).standard_normal((400_000, 4))
    inside = loss(values, gram.diagonal) <= -1.2
    assert inside.sum() > 1000
    assert np.max(values[inside] @ point.direction) <= -point.depth + 1e-9
    assert point.direction.sum() == pytest.approx(1.0)


def test_circulant_tables_match_dense_ones():
    row = np.array([2.0, 0.9, 0.4, 0.2, 0.4, 0.9])
    dense = DenseGram([np.roll(row, i) for i in range(6)])
    for scale, order in ((1.0, 3), (1.5, 2), (2.0, 1)):
        one, two = tuple_proposal(CirculantGram(row), scale, order), tuple_proposal(dense, scale, order)
        assert one.log_bound == pytest.approx(two.log_bound)
        assert one.centre_cdf == pytest.approx(two.centre_cdf)
