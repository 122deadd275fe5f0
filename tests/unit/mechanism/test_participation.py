import dataclasses

import numpy as np
import pytest

import dpmech as dm
from dpmech.mechanism.participation import Pattern

ALL = [
    dm.EveryStep(),
    dm.SingleParticipation(),
    dm.MinSep(3),
    dm.MinSep(3, 2),
    dm.FixedEpochs(4),
    dm.Poisson(0.1),
    dm.CyclicPoisson(0.1, 3),
    dm.BallsInBins(3),
]


def test_every_schema_is_listed_here():
    assert {type(schema) for schema in ALL} == set(dm.Participation.__subclasses__())


@pytest.mark.parametrize(
    ("schema", "n", "pattern"),
    [
        (dm.EveryStep(), 5, Pattern(1, 5)),
        (dm.SingleParticipation(), 5, Pattern(5, 1)),
        (dm.MinSep(2), 5, Pattern(2, 3)),
        (dm.MinSep(2), 6, Pattern(2, 3)),
        (dm.MinSep(2, 2), 5, Pattern(2, 2)),
        (dm.MinSep(2, 99), 5, Pattern(2, 3)),
        (dm.MinSep(5), 5, Pattern(5, 1)),
        (dm.FixedEpochs(3), 6, Pattern(2, 3, evenly_spaced=True)),
        (dm.BallsInBins(2), 6, Pattern(2, 3, evenly_spaced=True)),
        (dm.Poisson(0.5), 6, Pattern(6, 1)),
        (dm.CyclicPoisson(0.5, 2), 6, Pattern(6, 1)),
    ],
)
def test_patterns(schema, n, pattern):
    assert schema.pattern(n) == pattern


@pytest.mark.parametrize("schema", ALL, ids=repr)
def test_json_round_trip(schema):
    assert dm.Participation.from_json(schema.to_json()) == schema
    assert dm.Participation.from_dict(schema.to_dict()) == schema
    with pytest.raises(dm.InvalidParameterError, match="with exactly the fields"):
        dm.Participation.from_dict(schema.to_dict() | {"seed": 1})


@pytest.mark.parametrize(
    "data", [None, 1, {}, {"type": "Participation"}, {"type": ["MinSep"]}, {"type": "Uniform"}]
)
def test_unknown_types_are_refused(data):
    with pytest.raises(dm.InvalidParameterError, match="a mapping with type in BallsInBins, CyclicPoisson"):
        dm.Participation.from_dict(data)


@pytest.mark.parametrize("text", ["{", None, "null"])
def test_broken_json_is_refused(text):
    with pytest.raises(dm.InvalidParameterError, match="participation must be"):
        dm.Participation.from_json(text)


@pytest.mark.parametrize("schema", ALL, ids=repr)
def test_frozen_hashable_and_explicit_in_repr(schema):
    assert len({schema, dataclasses.replace(schema)}) == 1
    for field in dataclasses.fields(schema):
        assert f"{field.name}=" in repr(schema)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(schema, field.name, 1)


def test_which_schemas_are_random():
    assert {type(schema) for schema in ALL if schema.random} == {dm.Poisson, dm.CyclicPoisson, dm.BallsInBins}
    assert {type(schema) for schema in ALL if schema.per_release} == {dm.Poisson, dm.CyclicPoisson}


def test_numpy_integers_become_ints():
    schema = dm.MinSep(np.int64(3), np.int32(2))
    assert schema == dm.MinSep(3, 2)
    assert type(schema.min_sep) is int


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dm.MinSep(0), r"min_sep must be an integer >= 1, got 0"),
        (lambda: dm.MinSep(True), r"min_sep must be an integer >= 1, got True"),
        (lambda: dm.MinSep(2.0), r"min_sep must be an integer >= 1, got 2\.0"),
        (lambda: dm.MinSep("2"), r"min_sep must be an integer >= 1, got '2'"),
        (lambda: dm.MinSep(2, 0), r"max_participations must be an integer >= 1, got 0"),
        (lambda: dm.MinSep(2, True), r"max_participations must be an integer >= 1, got True"),
        (lambda: dm.FixedEpochs(0), r"epochs must be an integer >= 1, got 0"),
        (lambda: dm.FixedEpochs(True), r"epochs must be an integer >= 1, got True"),
        (lambda: dm.BallsInBins(0), r"bins must be an integer >= 1, got 0"),
        (lambda: dm.BallsInBins("3"), r"bins must be an integer >= 1, got '3'"),
        (lambda: dm.Poisson(0.0), r"sampling_prob must be a finite number in \(0, 1\], got 0\.0"),
        (lambda: dm.Poisson(1.0000001), r"sampling_prob must be a finite number in \(0, 1\], got 1\.0000001"),
        (lambda: dm.Poisson(-0.1), r"sampling_prob must be a finite number in \(0, 1\]"),
        (lambda: dm.Poisson(float("nan")), r"sampling_prob must be a finite number in \(0, 1\], got nan"),
        (lambda: dm.Poisson("0.1"), r"sampling_prob must be a finite number in \(0, 1\], got '0\.1'"),
        (lambda: dm.Poisson(True), r"sampling_prob must be a finite number in \(0, 1\], got True"),
        (lambda: dm.CyclicPoisson(0.1, 0), r"cycle must be an integer >= 1, got 0"),
        (lambda: dm.CyclicPoisson(0.0, 2), r"sampling_prob must be a finite number in \(0, 1\]"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        build()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (dm.MinSep(6), r"min_sep must be an integer in \[1, n=5\], got 6"),
        (dm.FixedEpochs(2), r"epochs must be a divisor of n=5, got 2"),
        (dm.FixedEpochs(10), r"epochs must be a divisor of n=5, got 10"),
        (dm.BallsInBins(2), r"bins must be a divisor of n=5, got 2"),
        (dm.BallsInBins(10), r"bins must be a divisor of n=5, got 10"),
    ],
)
@pytest.mark.parametrize("call", [dm.sensitivity, dm.rmse, dm.max_se])
def test_schemas_that_do_not_fit_n(schema, message, call):
    with pytest.raises(dm.InvalidParameterError, match=message):
        call(dm.Identity(5), schema)


@pytest.mark.parametrize("value", ["EveryStep", 3, dm.EveryStep])
def test_only_participations_are_participations(value):
    with pytest.raises(dm.InvalidParameterError, match="participation must be a Participation such as"):
        dm.sensitivity(dm.Identity(5), value)
