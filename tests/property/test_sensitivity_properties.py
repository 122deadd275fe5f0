import itertools

import hypothesis
import numpy as np
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import dpmech as dm
from dpmech.mechanism import kinds
from tests.support import generators as gen
from tests.support import oracles as oracle

ROUNDING = 1 + 1e-10


def allowed_sets(n, schema):
    """Sets of steps of one example; where every step is a release of its own, those of one step."""
    match type(schema).__name__:
        case "EveryStep":
            return oracle.separated_sets(n, 1, n)
        case "MinSep":
            k = n if schema.max_participations is None else min(n, schema.max_participations)
            return oracle.separated_sets(n, schema.min_sep, k)
        case "BMinSep":
            return oracle.separated_sets(n, schema.min_sep, n)
        case "FixedEpochs":
            return oracle.epoch_sets(n, schema.epochs)
        case "BallsInBins" if not schema.fresh:
            return tuple(tuple(range(first, n, schema.bins)) for first in range(schema.bins))
        case "BallsInBins":
            epochs = [range(first, first + schema.bins) for first in range(0, n, schema.bins)]
            return tuple(itertools.product(*epochs))
        case "RandomAllocation":
            groups = (range(first, n, schema.cycle) for first in range(schema.cycle))
            return tuple(s for group in groups for s in itertools.combinations(group, schema.participations))
        case "SingleParticipation" | "Poisson" | "FixedSizeBatches" | "CyclicPoisson":
            return oracle.separated_sets(n, n, 1)
        case _:
            raise AssertionError(schema)


def matrix_of(strategy, schema):
    """Of one user, all of whose examples have the same gradient: that is their worst case."""
    return (getattr(schema, "max_examples_per_user", None) or 1) * strategy.to_dense()


@given(gen.strategy_and_participation(max_n=10))
def test_the_bracket_never_excludes_the_truth(drawn):
    strategy, schema = drawn
    matrix, sets = matrix_of(strategy, schema), allowed_sets(strategy.n, schema)
    floor, ceiling = oracle.sensitivity_floor(matrix, sets), oracle.sensitivity_ceiling(matrix, sets)
    bounds = dm.sensitivity(strategy, schema)
    assert bounds.upper * ROUNDING >= floor
    assert bounds.lower <= ceiling * ROUNDING
    if ceiling <= floor * (1 + 1e-12):
        assert bounds.lower <= floor * ROUNDING
        assert bounds.upper * ROUNDING >= floor


@given(gen.strategy_and_participation(max_n=12))
def test_the_lower_end_is_reached_and_the_upper_end_is_not_passed(drawn):
    strategy, schema = drawn
    matrix, sets = matrix_of(strategy, schema), allowed_sets(strategy.n, schema)
    bounds = dm.sensitivity(strategy, schema)
    # The lower end comes from signed columns of one set, so brute force finds at least as much.
    assert bounds.lower <= oracle.sensitivity_floor(matrix, sets[-400:]) * ROUNDING or (
        bounds.lower <= oracle.sensitivity_floor(matrix, sets) * ROUNDING
    )
    gram = matrix.T @ matrix
    if np.all(gram >= 0.0) and bounds.exact:
        truth = oracle.sensitivity_ceiling(matrix, sets)
        assert abs(bounds.upper - truth) <= 1e-9 * truth


@given(gen.strategy_and_participation(max_n=8), st.integers(0, 2**32 - 1))
def test_gradients_in_more_dimensions_stay_below(drawn, seed):
    strategy, schema = drawn
    matrix, sets = matrix_of(strategy, schema), allowed_sets(strategy.n, schema)
    rng = np.random.default_rng(seed)
    steps = sets[int(rng.integers(len(sets)))]
    reached = oracle.rank_sensitivity(matrix, steps, 3, rng, rounds=30)
    assert reached <= dm.sensitivity(strategy, schema).upper * ROUNDING


@given(gen.strategy_and_participation(max_n=10))
def test_toeplitz_and_banded_branches_are_exact(drawn):
    strategy, schema = drawn
    pattern = schema.pattern(strategy.n)
    coefs = strategy.toeplitz_coefs
    monotone = coefs is not None and coefs[-1] >= 0.0 and np.all(np.diff(coefs) <= 0.0)
    orthogonal = strategy.bands is not None and strategy.bands <= pattern.min_sep
    full = strategy.nonnegative and pattern.min_sep == 1 and pattern.max_participations == strategy.n
    assume(monotone or orthogonal or full or pattern.max_participations == 1)
    bounds = dm.sensitivity(strategy, schema)
    assert bounds.exact
    truth = oracle.sensitivity_floor(matrix_of(strategy, schema), allowed_sets(strategy.n, schema))
    assert abs(bounds.upper - truth) <= 1e-9 * truth


@given(st.integers(1, 11), gen.finite(0.0, 0.999), st.data())
def test_column_normalised_lambda_cgd_is_exact(n, lam, data):
    schema = data.draw(gen.participations(n))
    strategy = dm.ColumnNormalized(dm.LambdaCGD(n, lam))
    bounds = dm.sensitivity(strategy, schema)
    truth = oracle.sensitivity_ceiling(matrix_of(strategy, schema), allowed_sets(n, schema))
    assert bounds.lower <= truth * (1.0 + 1e-9)
    if getattr(schema, "fresh", False):  # not every set of so many steps, which the lemma is about
        assert truth <= bounds.upper
    else:
        assert bounds.exact
        assert abs(bounds.upper - truth) <= 1e-9 * truth


@given(gen.strategy_and_participation(), gen.finite(0.1, 10.0))
def test_scaling(drawn, factor):
    strategy, schema = drawn
    one = dm.sensitivity(dm.Dense(strategy.to_dense()), schema)
    other = dm.sensitivity(dm.Dense(factor * strategy.to_dense()), schema)
    assert abs(other.upper - factor * one.upper) <= 1e-9 * other.upper
    assert abs(other.lower - factor * one.lower) <= 1e-9 * other.upper


@given(gen.strategy_and_participation())
def test_structure_and_no_structure_overlap(drawn):
    strategy, schema = drawn
    one, other = dm.sensitivity(strategy, schema), dm.sensitivity(dm.Dense(strategy.to_dense()), schema)
    assert one.lower <= other.upper * ROUNDING
    assert other.lower <= one.upper * ROUNDING


@given(st.integers(2, 12), st.data())
def test_monotone_in_participations_and_separation(n, data):
    strategy = data.draw(gen.strategies(n))
    b, k = data.draw(st.integers(1, n)), data.draw(st.integers(1, n))
    bounds = dm.sensitivity(strategy, dm.MinSep(b, k))
    more = dm.sensitivity(strategy, dm.MinSep(b, k + 1))
    assert bounds.lower <= more.upper * ROUNDING
    closer = dm.sensitivity(strategy, dm.MinSep(max(1, b - 1), k))
    assert bounds.lower <= closer.upper * ROUNDING
    if bounds.exact and more.exact and closer.exact:
        assert bounds.upper <= more.upper * ROUNDING
        assert bounds.upper <= closer.upper * ROUNDING


@given(st.integers(1, 12), st.data())
def test_order_of_the_schemas(n, data):
    strategy = data.draw(gen.strategies(n))
    k = data.draw(gen.divisors(n))
    single = dm.sensitivity(strategy, dm.SingleParticipation())
    epochs = dm.sensitivity(strategy, dm.FixedEpochs(k))
    min_sep = dm.sensitivity(strategy, dm.MinSep(n // k, k))
    every = dm.sensitivity(strategy, dm.EveryStep())
    for smaller, larger in ((single, min_sep), (epochs, min_sep), (min_sep, every), (single, epochs)):
        assert smaller.lower <= larger.upper * ROUNDING
    assert dm.sensitivity(strategy, dm.BallsInBins(n // k)) == epochs


@given(gen.strategy_and_participation())
def test_replace_one_doubles(drawn):
    strategy, schema = drawn
    bounds = dm.sensitivity(strategy, schema)
    double = dm.sensitivity(strategy, schema, adjacency=dm.Adjacency.REPLACE_ONE)
    assert (double.lower, double.upper) == (2 * bounds.lower, 2 * bounds.upper)
    assert dm.sensitivity(strategy, schema, adjacency=dm.Adjacency.ZERO_OUT) == bounds


def test_every_kind_is_drawn():
    found = {type(one) for one in (find(gen.participations(6), kind) for kind in kinds())}
    assert found == set(kinds())


def find(participations, kind):
    return hypothesis.find(
        participations,
        lambda one: type(one) is kind,
        settings=settings(max_examples=5000, database=None, phases=[Phase.generate]),
    )
