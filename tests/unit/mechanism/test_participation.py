import dataclasses
import pickle

import numpy as np
import pytest

import dpmech as dm
from dpmech.mechanism.participation import Pattern, forget, kinds, register
from dpmech.schemes import scheme_of
from dpmech.schemes.scheme import Structure

ALL = [
    dm.EveryStep(),
    dm.SingleParticipation(),
    dm.MinSep(3),
    dm.MinSep(3, 2),
    dm.MinSep(3, 2, max_examples_per_user=4),
    dm.FixedEpochs(4),
    dm.Poisson(0.1),
    dm.Poisson(0.1, max_examples_per_user=3),
    dm.Poisson(0.1, truncated_batch_size=4, dataset_size=20),
    dm.FixedSizeBatches(20, 4),
    dm.BMinSep(3, 0.1),
    dm.CyclicPoisson(0.1, 3),
    dm.CyclicPoisson(0.1, 3, max_examples_per_user=3),
    dm.BallsInBins(3),
    dm.BallsInBins(3, max_examples_per_user=2),
    dm.FreshBallsInBins(3),
]


def test_every_schema_is_listed_here():
    assert {type(schema) for schema in ALL} == set(kinds())


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
        (dm.UserMinSep(2, None, 4), 5, Pattern(2, 3)),
        (dm.UserMinSep(2, 2, 4), 5, Pattern(2, 2)),
        (dm.FixedEpochs(3), 6, Pattern(2, 3, evenly_spaced=True)),
        (dm.BallsInBins(2), 6, Pattern(2, 3, evenly_spaced=True)),
        (dm.UserBallsInBins(2, 3), 6, Pattern(2, 3, evenly_spaced=True)),
        (dm.FreshBallsInBins(2), 6, Pattern(1, 3)),
        (dm.FreshBallsInBins(6), 6, Pattern(6, 1)),
        (dm.Poisson(0.5), 6, Pattern(6, 1)),
        (dm.UserPoisson(0.5, 3), 6, Pattern(6, 1)),
        (dm.TruncatedPoisson(0.5, 3, 9), 6, Pattern(6, 1)),
        (dm.FixedSizeBatches(9, 3), 6, Pattern(6, 1)),
        (dm.BMinSep(4, 0.5), 6, Pattern(4, 2)),
        (dm.CyclicPoisson(0.5, 2), 6, Pattern(6, 1)),
        (dm.UserCyclicPoisson(0.5, 2, 3), 6, Pattern(6, 1)),
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
    with pytest.raises(dm.InvalidParameterError, match="a mapping with type in BMinSep, BallsInBins, CyclicPoisson"):
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
    assert {type(schema) for schema in ALL if schema.random} == {
        dm.Poisson,
        dm.UserPoisson,
        dm.TruncatedPoisson,
        dm.FixedSizeBatches,
        dm.BMinSep,
        dm.CyclicPoisson,
        dm.UserCyclicPoisson,
        dm.BallsInBins,
        dm.UserBallsInBins,
        dm.FreshBallsInBins,
    }
    releases = {type(schema) for schema in ALL if schema.per_release}
    assert releases == {
        dm.Poisson,
        dm.UserPoisson,
        dm.TruncatedPoisson,
        dm.FixedSizeBatches,
        dm.CyclicPoisson,
        dm.UserCyclicPoisson,
    }
    of_users = {dm.UserPoisson, dm.UserCyclicPoisson, dm.UserMinSep, dm.UserBallsInBins}
    assert {type(schema) for schema in ALL if schema.unit is not None} == of_users
    assert {type(schema) for schema in ALL if schema.users_together} == {dm.UserCyclicPoisson}
    sized = [schema for schema in ALL if schema.add_remove_refused]
    fixed = [schema for schema in sized if schema.replace_one_proved]
    assert [(one.batch_size, one.dataset_size) for one in fixed] == [(4, 20)]
    assert fixed == [schema for schema in ALL if schema.zero_out_refused]
    cut = [schema for schema in sized if schema not in fixed]
    assert [(one.truncation.truncated_batch_size, one.truncation.dataset_size) for one in cut] == [(4, 20)]


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
        (lambda: dm.BallsInBins(3, fresh=1), r"fresh must be True or False, got 1"),
        (lambda: dm.FreshBallsInBins(0), r"bins must be an integer >= 1, got 0"),
        (
            lambda: dm.FreshBallsInBins(3, fresh=False),
            r"fresh must be True for a FreshBallsInBins, got False",
        ),
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
        (dm.BMinSep(6, 0.1), r"min_sep must be an integer in \[1, n=5\], got 6"),
        (dm.FixedEpochs(2), r"epochs must be a divisor of n=5, got 2"),
        (dm.FixedEpochs(10), r"epochs must be a divisor of n=5, got 10"),
        (dm.BallsInBins(2), r"bins must be a divisor of n=5, got 2"),
        (dm.BallsInBins(10), r"bins must be a divisor of n=5, got 10"),
        (dm.FreshBallsInBins(2), r"bins must be a divisor of n=5, got 2"),
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


# ---- what a participation says of itself


@pytest.mark.parametrize(
    ("schema", "cycle", "bins", "releases"),
    [
        (dm.EveryStep(), None, None, 1),
        (dm.SingleParticipation(), None, None, 1),
        (dm.MinSep(3), None, None, 1),
        (dm.FixedEpochs(4), None, None, 1),
        (dm.Poisson(0.1), 1, None, 12),
        (dm.CyclicPoisson(0.1, 3), 3, None, 4),
        (dm.CyclicPoisson(0.1, 5), 5, None, 3),
        (dm.CyclicPoisson(0.1, 20), 20, None, 1),
        (dm.BallsInBins(3), None, 3, 1),
        (dm.BallsInBins(1), None, None, 1),
        (dm.FreshBallsInBins(3), 1, None, 1),
    ],
    ids=repr,
)
def test_how_chance_decides(schema, cycle, bins, releases):
    assert scheme_of(schema).structure(schema) == Structure(bins, cycle)
    assert schema.releases(12) == releases
    assert schema.unrestricted is (type(schema) is dm.EveryStep)


def test_the_releases_of_a_group_are_its_turns():
    for n in range(1, 30):
        for cycle in range(1, 12):
            turns = max(len(range(start, n, cycle)) for start in range(cycle))
            assert dm.CyclicPoisson(0.5, cycle).releases(n) == turns


@pytest.mark.parametrize("schema", ALL, ids=repr)
def test_every_schema_says_its_requirement_in_sentences(schema):
    requirement = schema.requirement(12)
    assert not requirement[0].islower()
    assert requirement.endswith(".")
    assert len({one.requirement(12) for one in ALL}) == len(ALL)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (dm.EveryStep, {}, dm.EveryStep()),
        (dm.SingleParticipation, {}, dm.SingleParticipation()),
        (dm.MinSep, {"min_sep": None, "max_participations": None}, dm.MinSep(39, 10)),
        (dm.MinSep, {"min_sep": 5, "max_participations": None}, dm.MinSep(5)),
        (dm.MinSep, {"min_sep": None, "max_participations": 3}, dm.MinSep(39, 3)),
        (dm.MinSep, {"min_sep": 5, "max_participations": 3}, dm.MinSep(5, 3)),
        (
            dm.UserMinSep,
            {"min_sep": None, "max_participations": None, "max_examples_per_user": 4},
            dm.UserMinSep(39, 10, 4),
        ),
        (
            dm.UserMinSep,
            {"min_sep": 5, "max_participations": None, "max_examples_per_user": 4},
            dm.UserMinSep(5, None, 4),
        ),
        (dm.FixedEpochs, {}, dm.FixedEpochs(10)),
        (dm.Poisson, {}, dm.Poisson(0.25)),
        (dm.UserPoisson, {"max_examples_per_user": 3}, dm.UserPoisson(0.25, 3)),
        (
            dm.TruncatedPoisson,
            {"truncated_batch_size": 3, "dataset_size": 9},
            dm.TruncatedPoisson(0.25, 3, 9),
        ),
        (dm.FixedSizeBatches, {"dataset_size": 9, "batch_size": 3}, dm.FixedSizeBatches(9, 3)),
        (dm.BMinSep, {"separation": 3}, dm.BMinSep(3, 0.5)),
        (dm.BMinSep, {"separation": 4}, dm.BMinSep(4, 1.0)),
        (dm.CyclicPoisson, {"cycle": 3}, dm.CyclicPoisson(0.75, 3)),
        (dm.CyclicPoisson, {"cycle": 5}, dm.CyclicPoisson(1.0, 5)),
        (
            dm.UserCyclicPoisson,
            {"cycle": 3, "max_examples_per_user": 2},
            dm.UserCyclicPoisson(0.75, 3, 2),
        ),
        (dm.BallsInBins, {}, dm.BallsInBins(39)),
        (dm.UserBallsInBins, {"max_examples_per_user": 2}, dm.UserBallsInBins(39, 2)),
        (dm.FreshBallsInBins, {}, dm.FreshBallsInBins(39)),
    ],
)
def test_a_plan_sizes_every_schema(kind, settings, expected):
    assert set(settings) == {*kind.plan_settings, *kind.plan_shares, *kind.plan_sizes}
    assert kind.planned(10, 39, 0.25, settings) == expected


def test_plans_know_each_schema_by_one_name():
    names = [kind.plan_name for kind in kinds()]
    assert names == [
        "b-min-sep",
        "balls-in-bins",
        "user-balls-in-bins",
        "balls-in-bins-fresh",
        "cyclic-poisson",
        "user-cyclic",
        "every-step",
        "single",
        "min-sep",
        "user-min-sep",
        "epochs",
        "fixed-size",
        "poisson",
        "user-poisson",
        "truncated-poisson",
    ]


@dataclasses.dataclass(frozen=True)
class Weekly(dm.Participation):
    day: int
    plan_name = "weekly"

    def pattern(self, n):
        return Pattern(7, -(-n // 7), evenly_spaced=True)

    def requirement(self, n):
        return f"Every example on day {self.day}."

    @classmethod
    def planned(cls, epochs, steps_per_epoch, sampling_prob, settings):
        return cls(1)


def test_accounted_by_release_it_must_say_how_many(monkeypatch):
    assert Weekly(1).releases(12) == 1
    monkeypatch.setattr(Weekly, "per_release", True)
    with pytest.raises(dm.UnsupportedCombinationError, match="does not say how many of 12 steps count"):
        Weekly(1).releases(12)
    # Its sensitivity is that of one release: not one Gaussian mechanism.
    with pytest.raises(dm.UnsupportedCombinationError, match="no sampling scheme has the participation"):
        dm.calibrate_sigma(dm.Mechanism(dm.Identity(12), Weekly(1)), 1.0, 1e-5)


def test_registered_for_a_while():
    before = kinds()
    with pytest.raises(dm.InvalidParameterError, match="participation must be a mapping with type in"):
        dm.Participation.from_json(Weekly(3).to_json())
    assert register(Weekly) is Weekly
    try:
        assert kinds() == (*before, Weekly)
        assert dm.Participation.from_json(Weekly(3).to_json()) == Weekly(3)
        with pytest.raises(dm.InvalidParameterError, match="a name that no registered participation has"):
            register(Weekly)
    finally:
        forget(Weekly)
    assert kinds() == before
    with pytest.raises(dm.InvalidParameterError, match="kind must be a registered participation"):
        forget(Weekly)


@pytest.mark.parametrize("kind", [int, Pattern, type("Bare", (), {}), dm.Participation])
def test_what_is_no_participation_is_not_registered(kind):
    with pytest.raises(dm.InvalidParameterError, match="a frozen dataclass that is a Participation"):
        register(kind)


@pytest.mark.parametrize(
    ("field", "value"),
    [("plan_name", "poisson"), ("plan_name", "BallsInBins"), ("plan_settings", ("cycle",))],
)
def test_names_that_are_taken_are_refused(monkeypatch, field, value):
    monkeypatch.setattr(Weekly, field, value)
    with pytest.raises(dm.InvalidParameterError, match="a name that no registered participation has"):
        register(Weekly)


def test_a_fresh_allocation_by_either_name():
    assert dm.BallsInBins(3, fresh=True) == dm.FreshBallsInBins(3)
    assert type(dm.BallsInBins(3, fresh=True)) is dm.FreshBallsInBins
    assert dm.BallsInBins(3, fresh=False) == dm.BallsInBins(3) != dm.FreshBallsInBins(3)
    assert type(dm.BallsInBins(3)) is dm.BallsInBins
    assert (dm.BallsInBins(3).fresh, dm.FreshBallsInBins(3).fresh) == (False, True)
    for schema in (dm.BallsInBins(3), dm.FreshBallsInBins(3)):
        again = pickle.loads(pickle.dumps(schema))
        assert (again, type(again)) == (schema, type(schema))


def test_files_from_before_fresh_allocations_still_load():
    assert dm.Participation.from_json('{"bins": 3, "type": "BallsInBins"}') == dm.BallsInBins(3)
    assert dm.BallsInBins(3).to_dict() == {"type": "BallsInBins", "bins": 3}


def test_a_pattern_that_allows_more_than_can_occur_is_a_bound():
    """Bins drawn anew: steps 0 and 1, of one epoch, are never joined together."""
    strategy, participation = dm.LambdaCGD(4, 0.5), dm.BallsInBins(2, fresh=True)
    matrix = strategy.to_dense()
    sets = [(first, second) for first in (0, 1) for second in (2, 3)]
    truth = max(np.linalg.norm(matrix[:, list(one)].sum(axis=1)) for one in sets)
    found = dm.sensitivity(strategy, participation)
    assert found.lower < truth < found.upper
    assert found.guarantee == dm.Guarantee(dm.Kind.BOUND)
    assert dm.sensitivity(dm.Identity(4), participation).exact  # whatever the steps
    assert dm.sensitivity(strategy, dm.BallsInBins(4, fresh=True)).exact  # one epoch
