import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize

import dpmech as dm
from dpmech.exceptions import InvalidParameterError, NumericalError, UnsupportedCombinationError
from dpmech.fitting import gap_of, gap_words, lower_bounds


def nuclear(matrix):
    """The nuclear norm in 40 digits."""
    with mpmath.workdps(40):
        return mpmath.fsum(mpmath.svd_r(mpmath.matrix(matrix.tolist()), compute_uv=False))


def pair_sets(n, apart, most):
    """All sets of at most two steps that are `apart` or more from each other."""
    singles = [(i,) for i in range(n)]
    return (
        singles
        + [pair for pair in itertools.combinations(range(n), 2) if pair[1] - pair[0] >= apart][
            : None if most > 1 else 0
        ]
    )


def least_error(n, sets, workload, seed):
    """The least RMSE over all lower-triangular matrices, by descent; sets of one or two steps."""

    def loss(entries):
        factor = np.zeros((n, n))
        factor[np.tril_indices(n)] = entries
        factor[np.diag_indices(n)] = np.exp(np.diag(factor))
        gram = factor.T @ factor
        squares = [
            gram[one[0], one[0]]
            if len(one) == 1
            else gram[one[0], one[0]] + gram[one[1], one[1]] + 2.0 * abs(gram[one[0], one[1]])
            for one in sets
        ]
        top = max(squares)
        smooth = top + math.log(sum(math.exp(500.0 * (s - top) / top) for s in squares)) * top / 500.0
        errors = np.linalg.norm(np.linalg.solve(factor.T, workload.T))
        return math.log(errors**2 / n * smooth), errors**2 / n * top

    chance = np.random.default_rng(seed)
    best = math.inf
    for _ in range(4):
        start = 0.3 * chance.standard_normal(n * (n + 1) // 2)
        found = minimize(lambda x: loss(x)[0], start, method="BFGS", options={"maxiter": 2000})
        best = min(best, math.sqrt(loss(found.x)[1]))
    return best


@pytest.mark.parametrize(
    ("participation", "n", "sets"),
    [
        (dm.SingleParticipation(), 4, pair_sets(4, 4, 1)),
        (dm.MinSep(2, 1), 3, pair_sets(3, 3, 1)),
        (dm.FixedEpochs(2), 4, [(0, 2), (1, 3)]),
        (dm.FixedEpochs(2), 6, [(0, 3), (1, 4), (2, 5)]),
    ],
)
def test_no_matrix_is_below_the_bound_and_the_best_one_attains_it(participation, n, sets):
    bound = dm.error_lower_bound(participation, n=n)
    found = least_error(n, sets, np.tril(np.ones((n, n))), seed=3)
    # The smooth maximum and the descent end a little above.
    assert bound <= found <= bound * 1.003


def test_with_min_sep_the_bound_holds_and_may_be_below_the_best():
    bound = dm.error_lower_bound(dm.MinSep(2, 2), n=4)
    found = least_error(4, pair_sets(4, 2, 2), np.tril(np.ones((4, 4))), seed=4)
    assert bound < found <= bound * 1.1


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_in_every_step_it_is_the_error_of_the_best_diagonal_matrix(n):
    """The sum of sqrt j over sqrt n, which no matrix beats."""
    exact = sum(math.sqrt(j) for j in range(1, n + 1)) / math.sqrt(n)
    bound = dm.error_lower_bound(n=n)
    assert exact * (1.0 - 1e-9) < bound < exact
    diagonal = dm.Diagonal([(n - j) ** 0.25 for j in range(n)])
    assert dm.rmse(diagonal) == pytest.approx(exact, rel=1e-12)
    assert bound < dm.rmse(diagonal)


@pytest.mark.parametrize("n", [3, 30, 120])
def test_single_participation_lies_between_the_nuclear_norm_of_the_workload_and_the_square_root(n):
    """Equal weights give ||A||_* / n, whose singular values are known; the square root is near."""
    values = [0.5 / math.sin((2 * j - 1) * math.pi / (4 * n + 2)) for j in range(1, n + 1)]
    bound = dm.error_lower_bound(dm.SingleParticipation(), n=n)
    root = dm.rmse(dm.SquareRoot(n), dm.SingleParticipation())
    assert sum(values) / n < bound <= root < bound * 1.2
    fit = dm.optimize(dm.Dense, dm.SingleParticipation(), n=n)
    assert bound <= fit.error < bound * 1.0001


PATTERNS = [
    None,
    dm.SingleParticipation(),
    dm.MinSep(3, 2),
    dm.MinSep(2),
    dm.FixedEpochs(3),
    dm.MinSep(4, 2, max_examples_per_user=3),
]


@pytest.mark.parametrize("participation", PATTERNS)
@pytest.mark.parametrize("adjacency", [dm.Adjacency.ADD_REMOVE, dm.Adjacency.REPLACE_ONE])
def test_random_matrices_and_all_families_are_above(participation, adjacency):
    n, chance = 12, np.random.default_rng(9)
    strategies = [
        dm.Dense(np.tril(chance.standard_normal((n, n)) * 0.4, -1) + np.diag(chance.uniform(0.5, 2.0, n)))
        for _ in range(20)
    ]
    strategies += [dm.Identity(n), dm.SquareRoot(n), dm.LambdaCGD(n, 0.8), dm.InverseSquareRoot(n, 4)]
    for workload in (None, dm.workloads.momentum(n, 0.9)):
        bound = dm.error_lower_bound(participation, n=n, adjacency=adjacency, workload=workload)
        for strategy in strategies:
            # The lower end: the sensitivity is not smaller than that.
            least = dm.sensitivity(strategy, participation, adjacency=adjacency).lower
            assert bound <= float(np.linalg.norm(dm.per_step_error(strategy, workload=workload))) / math.sqrt(
                n
            ) * max(least, attained(strategy, participation, adjacency, n)) * (1 + 1e-12)


def attained(strategy, participation, adjacency, n):
    """The sensitivity to gradients that the signs of the Gram matrix do not limit: a semidefinite optimum.

    By coordinate ascent over unit vectors, over the sets {s, s + b, ...}; from below.
    """
    own = participation or dm.EveryStep()
    pattern = own.pattern(n)
    gram = strategy.to_dense().T @ strategy.to_dense()
    chance, best = np.random.default_rng(1), 0.0
    for first in range(min(pattern.min_sep, n)):
        line = np.arange(first, n, pattern.min_sep)
        for start in range(0, line.size, pattern.max_participations):
            part = line[start : start + pattern.max_participations]
            block = gram[np.ix_(part, part)]
            vectors = chance.standard_normal((part.size, part.size))
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            for _ in range(300):
                for i in range(part.size):
                    pull = block[i] @ vectors - block[i, i] * vectors[i]
                    if np.linalg.norm(pull) > 0.0:
                        vectors[i] = pull / np.linalg.norm(pull)
            best = max(best, float(np.sum(block * (vectors @ vectors.T))))
    users = getattr(own, "max_examples_per_user", None) or 1
    return math.sqrt(best) * users * (2.0 if adjacency is dm.Adjacency.REPLACE_ONE else 1.0)


def test_the_certificate_holds_for_any_factor_and_any_second_matrix():
    chance = np.random.default_rng(5)
    workload = np.tril(np.ones((8, 8)))
    factor = chance.standard_normal((8, 8))
    exact = nuclear(workload @ factor)
    left, _, right = np.linalg.svd(workload @ factor)
    near = lower_bounds._certified(workload, factor, left @ right)
    assert near < exact
    assert float(near / exact) > 1.0 - 1e-10
    for other in (3.0 * (left @ right), left @ right + 0.1 * chance.standard_normal((8, 8))):
        assert lower_bounds._certified(workload, factor, other) < exact
        # Without the norm of the second matrix it would be wrong.
        assert np.vdot(workload @ factor, 3.0 * (left @ right)) > exact
    assert lower_bounds._certified(workload, factor, -left @ right) == 0.0
    with pytest.raises(NumericalError):
        lower_bounds._certified(workload, factor, np.full((8, 8), np.nan))


def test_the_weight_of_a_factor_is_not_below_that_of_its_rows():
    factor = np.random.default_rng(6).standard_normal((6, 6))
    sets = [np.array([0, 2, 4]), np.array([1, 3]), np.array([5])]
    with mpmath.workdps(40):
        rows = [mpmath.fsum(mpmath.mpf(x) ** 2 for x in row) for row in factor.tolist()]
        exact = mpmath.fsum(max(rows[i] for i in own) for own in sets)
    weight = lower_bounds._weight(factor, sets)
    assert exact <= weight <= exact * (1 + mpmath.mpf("1e-13"))


@pytest.mark.parametrize("participation", [one or dm.EveryStep() for one in PATTERNS])
def test_sets_are_disjoint_cover_all_steps_and_can_occur(participation):
    n = 12
    pattern = participation.pattern(n)
    sets = lower_bounds._sets(pattern, n)
    assert sorted(np.concatenate(sets).tolist()) == list(range(n))
    for own in sets:
        assert own.size <= pattern.max_participations
        assert np.all(np.diff(own) >= pattern.min_sep)


def test_a_workload_of_zeros_has_no_error_and_a_multiple_has_the_multiple():
    none = dm.workloads.learning_rate_weighted(np.zeros(5))
    assert dm.error_lower_bound(n=5, workload=none) == 0.0
    double = dm.workloads.learning_rate_weighted(np.full(5, 2.0))
    assert dm.error_lower_bound(n=5, workload=double) == pytest.approx(2.0 * dm.error_lower_bound(n=5))


def test_refusals_name_what_is_wrong():
    with pytest.raises(UnsupportedCombinationError, match="participations without sampling"):
        dm.error_lower_bound(dm.Poisson(0.1), n=5)
    with pytest.raises(InvalidParameterError, match="n must be"):
        dm.error_lower_bound(n=0)
    with pytest.raises(InvalidParameterError, match="divisor"):
        dm.error_lower_bound(dm.FixedEpochs(3), n=10)


def test_a_fit_says_how_far_it_is_from_the_best():
    participation = dm.MinSep(5, 4)
    fit = dm.optimize(dm.LambdaCGD, participation, n=20)
    ratio = fit.error / dm.error_lower_bound(participation, n=20)
    assert ratio - 1.0 <= fit.gap <= (ratio - 1.0) * (1 + 1e-6)
    assert f"\n{gap_words(fit.gap)}" in str(fit)
    sized = dm.optimize(dm.LambdaCGD, participation, n=20, eps=2.0, delta=1e-5)
    assert sized.gap == pytest.approx(fit.gap)
    assert dm.optimize(dm.LambdaCGD, participation, n=20, objective="last").gap is None
    momentum = dm.workloads.momentum(20, 0.5)
    assert dm.optimize(dm.LambdaCGD, participation, n=20, workload=momentum).gap is None
    assert gap_of(dm.Identity(300), participation) is None
    assert gap_of(dm.Identity(20), dm.Poisson(0.1)) is None
    assert gap_of(dm.Identity(20), participation, momentum) is None
    ones = dm.workloads.learning_rate_weighted(np.full(20, 1.0))
    assert gap_of(dm.Identity(20), participation, dm.workloads.prefix_sum(20)) > 0.0
    assert gap_of(dm.Identity(20), participation, ones) is None
    for other in (dm.workloads.identity(20), dm.workloads.banded(20, [1.0, 1.0]), np.tril(np.ones((20, 20)))):
        assert dm.optimize(dm.LambdaCGD, participation, n=20, workload=other).gap is None
    assert gap_words(0.1234) == "within 13 % of the best possible"


@pytest.mark.parametrize("objective", ["rmse", "max_se", "last"])
def test_steps_without_error_do_not_stop_a_fit(objective):
    """Rows of zeros: nothing is asked of these steps."""
    participation, delayed = dm.MinSep(5, 4), dm.workloads.banded(20, [0.0, 1.0])
    fit = dm.optimize(dm.Dense, participation, n=20, objective=objective, workload=delayed)
    alone = np.sqrt(np.sum((delayed.to_dense() @ np.linalg.inv(fit.strategy.to_dense())) ** 2, axis=1))
    sens = dm.sensitivity(fit.strategy, participation).upper
    error = {"rmse": np.sqrt(np.mean(alone**2)), "max_se": alone.max(), "last": alone[-1]}[objective]
    assert fit.error == pytest.approx(error * sens, rel=1e-9)


def test_the_last_row_has_to_ask_for_something():
    corner = np.zeros((20, 20))
    corner[3, :4] = 1.0
    with pytest.raises(dm.InvalidParameterError, match="last row is not 0"):
        dm.optimize(dm.LambdaCGD, dm.MinSep(5, 4), n=20, objective="last", workload=corner)
