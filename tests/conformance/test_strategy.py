import copy
import dataclasses
import functools
import inspect
import pickle
import re

import numpy as np
import pytest

import dpmech as dm
from tests.support import oracles as oracle
from tests.support.quick_cases import slow_but

SIGNED = np.array([[2.0, 0, 0, 0], [-1.0, 1.0, 0, 0], [0.5, 0.0, -3.0, 0], [0.0, 0.25, -0.5, 0.125]])

# Two or more examples of every kind, with n = 1, signs and odd sizes among them.
EXAMPLES = {
    "Identity": [dm.Identity(1), dm.Identity(5)],
    "LambdaCGD": [dm.LambdaCGD(1, 0.5), dm.LambdaCGD(2, 0.5), dm.LambdaCGD(7, 0.9), dm.LambdaCGD(6, 0.0)],
    "SquareRoot": [dm.SquareRoot(7), dm.SquareRoot(7, 3), dm.SquareRoot(5, 5), dm.SquareRoot(4, 1)],
    "InverseSquareRoot": [
        dm.InverseSquareRoot(7, 3),
        dm.InverseSquareRoot(5, 5),
        dm.InverseSquareRoot(4, 1),
        dm.InverseSquareRoot(1, 1),
    ],
    "BandedToeplitz": [
        dm.BandedToeplitz(7, [1.0, -0.5, 0.25]),
        dm.BandedToeplitz(4, [0.5, 0.25, 0.25, 0.1]),
        dm.BandedToeplitz(5, [2.0]),
    ],
    "BandedInverse": [
        dm.BandedInverse(7, [1.0, -0.5, 0.25]),
        dm.BandedInverse(4, [0.5, 0.25, -0.25, 0.1]),
        dm.BandedInverse(5, [2.0]),
    ],
    "BLT": [
        dm.BLT(8, [0.9, 0.5], [0.3, 0.2]),
        dm.BLT(6, [0.0, 0.8], [-0.3, 0.4]),
        dm.BLT(1, [0.5], [0.5]),
        dm.BLT(7, [1.0, 0.5], [0.1, -0.2]),
    ],
    "Diagonal": [dm.Diagonal([3.0, 2.0, 0.5]), dm.Diagonal([2.0])],
    "Dense": [dm.Dense(SIGNED), dm.Dense(np.tril(np.ones((5, 5)))), dm.Dense([[-2.0]])],
    "ColumnNormalized": [
        dm.ColumnNormalized(dm.LambdaCGD(7, 0.9)),
        dm.ColumnNormalized(dm.InverseSquareRoot(6, 3)),
        dm.ColumnNormalized(dm.Dense(SIGNED)),
        dm.ColumnNormalized(dm.Diagonal([3.0, 2.0, 0.5])),
        dm.ColumnNormalized(dm.ColumnNormalized(dm.BandedToeplitz(5, [1.0, -0.5]))),
    ],
}


def final_classes(kind):
    below = [found for child in kind.__subclasses__() for found in final_classes(child)]
    return below if inspect.isabstract(kind) else [kind, *below]


# What a fit returns, as it comes out of the optimiser.
FITTED = [
    dm.optimize(family, dm.MinSep(3, 2), n=7, column_normalized=normalized).strategy
    for family in (dm.LambdaCGD, dm.BandedToeplitz, dm.BandedInverse, dm.BLT, dm.Dense)
    for normalized in (False, True)
]
ALL = [strategy for examples in EXAMPLES.values() for strategy in examples] + FITTED
every_strategy = pytest.mark.parametrize("strategy", ALL, ids=repr)


def definition(strategy):
    """C by its definition, written down anew."""
    n = strategy.n
    match strategy:
        case dm.Identity():
            return np.eye(n)
        case dm.LambdaCGD():
            return oracle.toeplitz([strategy.lam**t for t in range(n)], n)
        case dm.SquareRoot():
            coefs = [np.prod([(2 * i - 1) / (2 * i) for i in range(1, t + 1)]) for t in range(n)]
            return oracle.toeplitz(coefs[: strategy.bands], n)
        case dm.InverseSquareRoot():
            coefs = [np.prod([(i - 1.5) / i for i in range(1, t + 1)]) for t in range(strategy.inverse_bands)]
            return np.linalg.inv(oracle.toeplitz(coefs, n))
        case dm.BandedToeplitz():
            return oracle.toeplitz(strategy.coefs, n)
        case dm.BandedInverse():
            return np.linalg.inv(oracle.toeplitz(strategy.coefs, n))
        case dm.BLT():
            pairs = list(zip(strategy.scales, strategy.decays, strict=True))
            return oracle.toeplitz([1.0, *(sum(s * d**t for s, d in pairs) for t in range(n - 1))], n)
        case dm.Diagonal():
            return np.diag(strategy.entries)
        case dm.Dense():
            return np.array(strategy.matrix)
        case dm.ColumnNormalized():
            inner = definition(strategy.strategy)
            return inner / np.linalg.norm(inner, axis=0)
        case _:
            raise AssertionError(f"write down the definition of {type(strategy).__name__}")


def test_every_strategy_class_has_examples():
    found = {kind.__name__ for kind in final_classes(dm.Strategy)}
    assert found == set(EXAMPLES)
    registered = {name for name, kind in dm.Strategy._registry.items() if not inspect.isabstract(kind)}
    assert registered == found
    for name, examples in EXAMPLES.items():
        assert {type(strategy).__name__ for strategy in examples} == {name}
        assert hasattr(dm, name), f"{name} is not public"


def test_every_strategy_class_is_final():
    for kind in final_classes(dm.Strategy):
        assert kind.__subclasses__() == []


@every_strategy
def test_to_dense_is_the_definition_and_lower_triangular(strategy):
    matrix = strategy.to_dense()
    assert matrix.shape == (strategy.n, strategy.n)
    assert not np.triu(matrix, 1).any()
    np.testing.assert_allclose(matrix, definition(strategy), rtol=1e-12, atol=1e-13)
    matrix[:] = 7.0
    assert not np.array_equal(strategy.to_dense(), matrix)


@every_strategy
@pytest.mark.parametrize("width", [None, 1, 3])
def test_matmul_and_solve(strategy, width):
    matrix, n = definition(strategy), strategy.n
    x = np.random.default_rng(n).normal(size=n if width is None else (n, width))
    before = x.copy()
    np.testing.assert_allclose(strategy.matmul(x), matrix @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(strategy.solve(x), np.linalg.solve(matrix, x), rtol=1e-11, atol=1e-11)
    assert np.array_equal(x, before)


@every_strategy
@pytest.mark.parametrize("method", ["matmul", "solve"])
def test_wrong_shapes_are_refused(strategy, method):
    for shape in ((strategy.n + 1,), (strategy.n, 2, 2, 1), ()):
        with pytest.raises(
            dm.InvalidParameterError, match=rf"shape of [xz] must be.*{re.escape(str(shape))}"
        ):
            getattr(strategy, method)(np.zeros(shape))


@every_strategy
def test_norms_and_gram(strategy):
    matrix = definition(strategy)
    gram = matrix.T @ matrix
    np.testing.assert_allclose(strategy.column_norms(), np.linalg.norm(matrix, axis=0), rtol=1e-12)
    inverse = np.linalg.inv(matrix)
    np.testing.assert_allclose(strategy.noising_row_norms(), np.linalg.norm(inverse, axis=1), rtol=1e-11)
    for offset in range(strategy.n):
        np.testing.assert_allclose(
            strategy.gram_diagonal(offset), np.diagonal(gram, offset), rtol=1e-12, atol=1e-13
        )
    rows = {i: np.array(row) for i, row in strategy.gram_rows()}
    assert sorted(rows) == list(range(strategy.n))
    np.testing.assert_allclose([rows[i] for i in range(strategy.n)], gram, rtol=1e-12, atol=1e-13)


@every_strategy
def test_prefix_is_the_leading_block(strategy):
    for steps in range(1, strategy.n + 1):
        prefix = strategy.prefix(steps)
        assert prefix.n == steps
        np.testing.assert_allclose(
            prefix.to_dense(), strategy.to_dense()[:steps, :steps], rtol=1e-14, atol=1e-15
        )
    assert strategy.prefix(strategy.n) == strategy
    for steps in (0, strategy.n + 1, 1.5):
        with pytest.raises(dm.InvalidParameterError, match="steps"):
            strategy.prefix(steps)


@every_strategy
def test_declared_structure_is_true(strategy):
    matrix, n = definition(strategy), strategy.n
    inverse = np.linalg.inv(matrix)
    lags = np.subtract.outer(np.arange(n), np.arange(n))
    for declared, actual in ((strategy.bands, matrix), (strategy.inverse_bands, inverse)):
        beyond = np.abs(actual[lags >= (n if declared is None else declared)])
        assert declared is None or 1 <= declared <= n
        assert not (beyond > 1e-12).any()
    diagonal = not np.tril(np.abs(matrix) > 1e-12, -1).any()
    assert (strategy.bands == 1) == diagonal
    assert (strategy.inverse_bands == 1) == diagonal
    assert strategy.nonnegative == bool((matrix >= -1e-13).all())
    factors = strategy.factored
    if factors is not None:
        np.testing.assert_allclose(
            oracle.toeplitz(factors.coefs, n) * factors.scales(), matrix, rtol=1e-12, atol=1e-13
        )


@every_strategy
def test_toeplitz_coefs_and_inverse_coefs(strategy):
    matrix, n = definition(strategy), strategy.n
    if strategy.toeplitz_coefs is None:
        assert strategy.inverse_coefs is None
        assert isinstance(strategy, dm.Dense | dm.Diagonal | dm.ColumnNormalized)
        return
    np.testing.assert_allclose(oracle.toeplitz(strategy.toeplitz_coefs, n), matrix, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        oracle.toeplitz(strategy.inverse_coefs, n), np.linalg.inv(matrix), rtol=1e-11, atol=1e-12
    )


@every_strategy
def test_json_round_trip_keeps_every_bit(strategy):
    again = dm.Strategy.from_json(strategy.to_json())
    assert type(again) is type(strategy)
    assert again == strategy
    assert hash(again) == hash(strategy)
    assert again.fingerprint() == strategy.fingerprint()
    assert again.to_json() == strategy.to_json()
    assert np.array_equal(again.to_dense(), strategy.to_dense())
    assert len({strategy, again}) == 1


@every_strategy
def test_unknown_missing_and_foreign_fields_are_refused(strategy):
    data = strategy.to_dict()
    name = type(strategy).__name__
    with pytest.raises(dm.InvalidParameterError, match=f"a {name} with exactly the fields"):
        dm.Strategy.from_dict(data | {"seed": 3})
    for field in set(data) - {"type"}:
        with pytest.raises(dm.InvalidParameterError, match=f"a {name} with exactly the fields"):
            dm.Strategy.from_dict({key: value for key, value in data.items() if key != field})
        with pytest.raises(dm.InvalidParameterError):
            dm.Strategy.from_dict(data | {field: "7"})
        with pytest.raises(dm.InvalidParameterError):
            dm.Strategy.from_dict(data | {field: True})


@pytest.mark.parametrize(
    "data", [None, 3, [], {}, {"type": "FactoredStrategy"}, {"type": []}, {"type": "dict"}]
)
def test_unknown_types_are_refused(data):
    with pytest.raises(dm.InvalidParameterError, match=r"strategy must be a mapping with type in BLT, "):
        dm.Strategy.from_dict(data)


@pytest.mark.parametrize("text", ["{", "", None, 3, "[1]", '"Identity"', '{"type": "Identity", "n": NaN}'])
def test_broken_json_is_refused(text):
    with pytest.raises(dm.InvalidParameterError, match=r"strategy|n must be"):
        dm.Strategy.from_json(text)


def altered(value):
    """Values that differ from this one as little as they can."""
    if isinstance(value, np.ndarray):
        for index in np.ndindex(value.shape):
            if value[index] != 0.0:
                changed = value.copy()
                changed[index] = np.nextafter(value[index], np.inf)
                yield changed
    elif isinstance(value, float):
        yield np.nextafter(value, 0.25)
    elif isinstance(value, int):
        yield value - 1
        yield value + 1
    elif value is None:
        yield 1
    else:
        yield dm.Identity(value.n + 1)


@every_strategy
def test_fingerprint_changes_with_any_field(strategy):
    names = [field.name for field in dataclasses.fields(strategy)]
    seen = {strategy.fingerprint()}
    count = 1
    for name in names:
        for value in altered(getattr(strategy, name)):
            arguments = [value if other == name else getattr(strategy, other) for other in names]
            try:
                changed = type(strategy)(*arguments)
            except dm.InvalidParameterError:
                continue
            count += 1
            assert changed != strategy
            seen.add(changed.fingerprint())
    assert count > 1
    assert len(seen) == count


def test_equality_is_by_kind_and_fields():
    assert dm.Identity(3) != dm.LambdaCGD(3, 0.0)
    assert dm.Identity(3) != "Identity(n=3)"
    assert dm.LambdaCGD(3, 0) == dm.LambdaCGD(np.int64(3), np.float32(0.0))
    assert len({strategy.fingerprint() for strategy in ALL}) == len(ALL)


@every_strategy
def test_immutable(strategy):
    for field in dataclasses.fields(strategy):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(strategy, field.name, 3)
        value = getattr(strategy, field.name)
        if isinstance(value, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                value[...] = 0.0
    for coefs in (strategy.toeplitz_coefs, strategy.inverse_coefs):
        if coefs is not None:
            with pytest.raises(ValueError, match="read-only"):
                coefs[0] = 2.0


@every_strategy
def test_results_are_the_callers_own(strategy):
    for call in (
        strategy.to_dense,
        strategy.column_norms,
        strategy.noising_row_norms,
        lambda: strategy.gram_diagonal(0),
    ):
        first = call()
        expected = first.copy()
        first[...] = -1.0
        assert np.array_equal(call(), expected)


@pytest.mark.parametrize(
    ("build", "given"),
    [
        (lambda array: dm.BandedToeplitz(4, array), np.array([1.0, 0.5])),
        (lambda array: dm.BandedInverse(4, array), np.array([1.0, 0.5])),
        (lambda array: dm.BLT(4, array, [0.1, 0.1]), np.array([0.5, 0.25])),
        (lambda array: dm.BLT(4, [0.1, 0.1], array), np.array([0.5, 0.25])),
        (dm.Diagonal, np.array([1.0, 0.5])),
        (dm.Dense, np.array([[1.0, 0.0], [0.5, 1.0]])),
    ],
)
def test_input_arrays_are_copied_and_left_writable(build, given):
    strategy = build(given)
    before = strategy.fingerprint(), strategy.to_dense()
    given[...] = 0.125
    assert strategy.fingerprint() == before[0]
    assert np.array_equal(strategy.to_dense(), before[1])


@every_strategy
def test_repr_names_the_kind_and_every_field(strategy):
    text = repr(strategy)
    assert text.startswith(type(strategy).__name__ + "(")
    for field in dataclasses.fields(strategy):
        assert f"{field.name}=" in text
    assert len(text) < 300


@every_strategy
def test_copies_and_pickles_are_equal(strategy):
    strategy.column_norms()
    assert copy.deepcopy(strategy) == strategy
    assert pickle.loads(pickle.dumps(strategy)) == strategy


# ---- C = I in every way the library can build it

N = 6
WAYS = [
    dm.Identity(N),
    dm.LambdaCGD(N, 0),
    dm.SquareRoot(N, 1),
    dm.InverseSquareRoot(N, 1),
    dm.BandedToeplitz(N, [1]),
    dm.BandedToeplitz(N, [1, 0, 0]),
    dm.BandedInverse(N, [1]),
    dm.BandedInverse(N, [1, 0]),
    dm.BLT(N, [0.5, 0.9], [0, 0]),
    dm.Diagonal(np.ones(N)),
    dm.Dense(np.eye(N)),
]
WAYS += [dm.ColumnNormalized(way) for way in WAYS]
one_way = pytest.mark.parametrize("way", WAYS, ids=repr)
UNSAMPLED = [dm.EveryStep(), dm.SingleParticipation(), dm.MinSep(2, 2), dm.MinSep(4), dm.FixedEpochs(3)]
COUNTS = [6, 1, 2, 2, 3]


def test_every_kind_can_be_the_identity():
    assert {type(way).__name__ for way in WAYS} == set(EXAMPLES)


@one_way
def test_identity_is_the_identity(way):
    np.testing.assert_array_equal(way.to_dense(), np.eye(N))


@one_way
@pytest.mark.parametrize(("participation", "count"), list(zip(UNSAMPLED, COUNTS, strict=True)), ids=repr)
def test_identity_sensitivity_and_errors_agree(way, participation, count):
    bounds = dm.sensitivity(way, participation)
    assert bounds.exact
    assert bounds.upper == pytest.approx(np.sqrt(count), rel=1e-12)
    expected = np.sqrt(count * np.arange(1, N + 1).mean())
    assert dm.rmse(way, participation) == pytest.approx(expected, rel=1e-12)
    assert dm.max_se(way, participation) == pytest.approx(np.sqrt(count * N), rel=1e-12)
    momentum = dm.workloads.momentum(N, 0.9)
    assert dm.rmse(way, participation, workload=momentum) == pytest.approx(
        dm.rmse(dm.Identity(N), participation, workload=momentum), rel=1e-12
    )


@functools.cache
def reference_of(n, participation):
    """The calibration of the identity and its delta elsewhere: the same for every way to write it."""
    identity = dm.Identity(n)
    return (
        dm.calibrate_sigma(identity, 1.0, 1e-5, participation=participation),
        dm.delta(identity, 2.0, 0.5, participation=participation),
    )


@one_way
@pytest.mark.parametrize("participation", [*UNSAMPLED, dm.Poisson(1.0)], ids=repr)
def test_identity_sigma_eps_and_delta_agree(way, participation):
    agree(way, participation)


@pytest.mark.parametrize("way", slow_but(WAYS, 1, 4, -1 % len(WAYS)), ids=repr)
def test_identity_agrees_under_poisson(way):
    agree(way, dm.Poisson(0.2))


def agree(way, participation):
    """Sigma, guarantee and both ends of delta are those of the identity."""
    reference, expected = reference_of(N, participation)
    calibration = dm.calibrate_sigma(way, 1.0, 1e-5, participation=participation)
    assert calibration.sigma == pytest.approx(reference.sigma, rel=1e-11)
    assert calibration.guarantee == reference.guarantee
    delta = dm.delta(way, 2.0, 0.5, participation=participation)
    assert delta.lower == pytest.approx(expected.lower, rel=1e-9)
    assert delta.upper == pytest.approx(expected.upper, rel=1e-9)


@pytest.mark.slow
@one_way
@pytest.mark.parametrize("cycle", [1, 4])
def test_identity_agrees_under_cyclic_poisson(way, cycle):
    participation = dm.CyclicPoisson(0.3, cycle)
    reference, _ = reference_of(-(-N // cycle), dm.Poisson(0.3))
    calibration = dm.calibrate_sigma(way, 1.0, 1e-5, participation=participation)
    assert calibration.sigma == pytest.approx(reference.sigma, rel=1e-11)


@pytest.mark.parametrize(
    ("make", "way_out"),
    [
        (lambda: dm.BandedToeplitz(6, (-1.0, 0.5)), "negate all coefs"),
        (lambda: dm.BandedInverse(6, (-1.0, 0.5)), "negate all coefs"),
        (lambda: dm.BandedToeplitz(2, (1.0, 0.5, 0.3)), r"coefs\[:2\]"),
        (lambda: dm.BandedInverse(2, np.array([1.0, 0.5, 0.3])), r"coefs\[:2\]"),
        (lambda: dm.SquareRoot(4, 9), "bands=4"),
        (lambda: dm.InverseSquareRoot(4, np.int64(9)), "bands=4"),
        (lambda: dm.optimize(dm.BandedToeplitz, dm.EveryStep(), n=4, bands=9), "bands=4"),
        (lambda: dm.BLT(6, (), ()), r"Identity\(n\)"),
        (lambda: dm.optimize(dm.BLT, dm.EveryStep(), n=4, buffers=0), r"Identity\(n\)"),
        (lambda: dm.BLT(6, (1.1,), (0.5,)), r"numbers in \[0, 1\]"),
    ],
)
def test_refused_sizes_name_the_way_out(make, way_out):
    with pytest.raises(dm.InvalidParameterError, match=way_out):
        make()


def test_a_decay_of_one_is_a_sum_of_all_earlier_steps():
    strategy = dm.BLT(5, [1.0], [0.25])
    assert np.array_equal(strategy.toeplitz_coefs, [1.0, 0.25, 0.25, 0.25, 0.25])
    matrix = np.eye(5) + 0.25 * np.tril(np.ones((5, 5)), -1)
    assert np.allclose(strategy.solve(matrix), np.eye(5), atol=1e-15)
    cal = dm.calibrate_sigma(strategy, 1.0, 1e-5, participation=dm.MinSep(2))
    other = dm.calibrate_sigma(dm.Dense(matrix), 1.0, 1e-5, participation=dm.MinSep(2))
    assert cal.sigma == pytest.approx(other.sigma, rel=1e-9)
    assert "PROVED" in str(dm.verify(cal.certificate()))
