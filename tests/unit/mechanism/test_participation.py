import dataclasses
import pickle

import numpy as np
import pytest

import dpmech as dm
from dpmech.mechanism import participation
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
    dm.BallsInBins(3, fresh=True),
    dm.RandomAllocation(3),
    dm.RandomAllocation(2, cycle=3),
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
        (dm.MinSep(2, None, max_examples_per_user=4), 5, Pattern(2, 3)),
        (dm.MinSep(2, 2, max_examples_per_user=4), 5, Pattern(2, 2)),
        (dm.FixedEpochs(3), 6, Pattern(2, 3, evenly_spaced=True)),
        (dm.BallsInBins(2), 6, Pattern(2, 3, evenly_spaced=True)),
        (dm.BallsInBins(2, max_examples_per_user=3), 6, Pattern(2, 3, evenly_spaced=True)),
        (dm.BallsInBins(2, fresh=True), 6, Pattern(1, 3)),
        (dm.BallsInBins(6, fresh=True), 6, Pattern(6, 1)),
        (dm.Poisson(0.5), 6, Pattern(6, 1)),
        (dm.Poisson(0.5, 3), 6, Pattern(6, 1)),
        (dm.Poisson(0.5, truncated_batch_size=3, dataset_size=9), 6, Pattern(6, 1)),
        (dm.FixedSizeBatches(9, 3), 6, Pattern(6, 1)),
        (dm.BMinSep(4, 0.5), 6, Pattern(4, 2)),
        (dm.CyclicPoisson(0.5, 2), 6, Pattern(6, 1)),
        (dm.RandomAllocation(2), 6, Pattern(1, 2)),
        (dm.RandomAllocation(6), 6, Pattern(1, 6)),
        (dm.RandomAllocation(2, cycle=2), 6, Pattern(2, 2)),
        (dm.RandomAllocation(3, cycle=2), 6, Pattern(2, 3, evenly_spaced=True)),
        (dm.CyclicPoisson(0.5, 2, max_examples_per_user=3), 6, Pattern(6, 1)),
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
    with pytest.raises(
        dm.InvalidParameterError, match="a mapping with type in BMinSep, BallsInBins, CyclicPoisson"
    ):
        dm.Participation.from_dict(data)


@pytest.mark.parametrize("text", ["{", None, "null"])
def test_broken_json_is_refused(text):
    with pytest.raises(dm.InvalidParameterError, match="participation must be"):
        dm.Participation.from_json(text)


@pytest.mark.parametrize("schema", ALL, ids=repr)
def test_frozen_hashable_and_explicit_in_repr(schema):
    assert len({schema, dataclasses.replace(schema)}) == 1
    assert eval(repr(schema), vars(dm)) == schema
    for field in dataclasses.fields(schema):
        assert (f"{field.name}=" in repr(schema)) is (getattr(schema, field.name) != field.default)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(schema, field.name, 1)


def test_which_schemas_are_random():
    assert {type(schema) for schema in ALL if schema.random} == {
        dm.Poisson,
        dm.FixedSizeBatches,
        dm.BMinSep,
        dm.CyclicPoisson,
        dm.BallsInBins,
        dm.RandomAllocation,
    }
    releases = {type(schema) for schema in ALL if schema.per_release}
    assert releases == {dm.Poisson, dm.FixedSizeBatches, dm.CyclicPoisson}
    of_users = [schema for schema in ALL if getattr(schema, "max_examples_per_user", None) is not None]
    assert {type(schema) for schema in of_users} == {dm.Poisson, dm.CyclicPoisson, dm.MinSep, dm.BallsInBins}
    assert of_users == [schema for schema in ALL if schema.unit is dm.Unit.USER]
    assert of_users == [schema for schema in ALL if schema.examples > 1]
    assert [schema for schema in ALL if schema.users_together] == [
        dm.CyclicPoisson(0.1, 3, max_examples_per_user=3)
    ]
    assert [schema for schema in ALL if schema.every_step_alike] == [dm.Poisson(0.1)]
    sized = [schema for schema in ALL if schema.add_remove_refused]
    fixed = [schema for schema in sized if schema.replace_one_refused is None]
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
        (lambda: dm.BallsInBins(0, fresh=True), r"bins must be an integer >= 1, got 0"),
        (lambda: dm.Poisson(0.0), r"sampling_prob must be a finite number in \(0, 1\], got 0\.0"),
        (lambda: dm.Poisson(1.0000001), r"sampling_prob must be a finite number in \(0, 1\], got 1\.0000001"),
        (lambda: dm.Poisson(-0.1), r"sampling_prob must be a finite number in \(0, 1\]"),
        (lambda: dm.Poisson(float("nan")), r"sampling_prob must be a finite number in \(0, 1\], got nan"),
        (lambda: dm.Poisson("0.1"), r"sampling_prob must be a finite number in \(0, 1\], got '0\.1'"),
        (lambda: dm.Poisson(True), r"sampling_prob must be a finite number in \(0, 1\], got True"),
        (lambda: dm.CyclicPoisson(0.1, 0), r"cycle must be an integer >= 1, got 0"),
        (lambda: dm.RandomAllocation(2, cycle=0), r"cycle must be an integer >= 1, got 0"),
        (
            lambda: dm.RandomAllocation(2, cycle=4).pattern(10),
            r"cycle must be a divisor of n=10, got 4; or plan 12 steps, stop early",
        ),
        (
            lambda: dm.RandomAllocation(4, cycle=4).pattern(12),
            r"participations must be an integer in \[1, n / cycle=3\], got 4",
        ),
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
        (dm.BallsInBins(10), r"bins must be at most n=5, got 10"),
        (dm.BallsInBins(2, fresh=True), r"bins must be a divisor of n=5, with fresh, got 2"),
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
        (dm.BallsInBins(3, fresh=True), 1, None, 1),
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
        (dm.MinSep, {}, dm.MinSep(39, 10)),
        (dm.MinSep, {"min_sep": 5}, dm.MinSep(5)),
        (dm.MinSep, {"max_participations": 3}, dm.MinSep(39, 3)),
        (dm.MinSep, {"min_sep": 5, "max_participations": 3}, dm.MinSep(5, 3)),
        (dm.MinSep, {"max_examples_per_user": 4}, dm.MinSep(39, 10, max_examples_per_user=4)),
        (
            dm.MinSep,
            {"min_sep": 5, "max_examples_per_user": 4},
            dm.MinSep(5, None, max_examples_per_user=4),
        ),
        (dm.FixedEpochs, {}, dm.FixedEpochs(10)),
        (dm.Poisson, {"dataset_size": 9}, dm.Poisson(0.25)),
        (dm.Poisson, {"max_examples_per_user": 3, "dataset_size": 9}, dm.Poisson(0.25, 3)),
        (
            dm.Poisson,
            {"truncated_batch_size": 3, "dataset_size": 9},
            dm.Poisson(0.25, truncated_batch_size=3, dataset_size=9),
        ),
        (dm.FixedSizeBatches, {"dataset_size": 9, "batch_size": 3}, dm.FixedSizeBatches(9, 3)),
        (dm.BMinSep, {"separation": 3}, dm.BMinSep(3, 0.5)),
        (dm.BMinSep, {"separation": 4}, dm.BMinSep(4, 1.0)),
        (dm.CyclicPoisson, {"cycle": 3}, dm.CyclicPoisson(0.75, 3)),
        (dm.CyclicPoisson, {"cycle": 4}, dm.CyclicPoisson(1.0, 4)),
        (
            dm.CyclicPoisson,
            {"cycle": 3, "max_examples_per_user": 2},
            dm.CyclicPoisson(0.75, 3, max_examples_per_user=2),
        ),
        (dm.BallsInBins, {}, dm.BallsInBins(39)),
        (dm.BallsInBins, {"max_examples_per_user": 2}, dm.BallsInBins(39, max_examples_per_user=2)),
        (dm.BallsInBins, {"fresh": False}, dm.BallsInBins(39)),
        (dm.BallsInBins, {"fresh": True}, dm.BallsInBins(39, fresh=True)),
        (dm.RandomAllocation, {}, dm.RandomAllocation(10)),
        (dm.RandomAllocation, {"cycle": 3}, dm.RandomAllocation(10, cycle=3)),
    ],
)
def test_a_plan_sizes_every_schema(kind, settings, expected):
    assert set(settings) <= {*kind.plan_settings, *kind.plan_sizes}
    assert kind.planned(10, 39, 0.25, dict.fromkeys(kind.plan_settings) | settings) == expected


def test_plans_know_each_schema_by_one_name():
    names = [kind.plan_name for kind in kinds()]
    assert names == [
        "b-min-sep",
        "balls-in-bins",
        "cyclic-poisson",
        "every-step",
        "single",
        "min-sep",
        "epochs",
        "fixed-size",
        "poisson",
        "random-allocation",
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


def test_what_registers_later_and_fails_fails_every_time(monkeypatch):
    def broken():
        raise ImportError("no such module")

    monkeypatch.setattr(participation, "_LATER", [broken])
    for _ in range(2):
        with pytest.raises(ImportError, match="no such module"):
            kinds()


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


@pytest.mark.parametrize("name", ["poisson", "BallsInBins"])
def test_names_that_are_taken_are_refused(monkeypatch, name):
    monkeypatch.setattr(Weekly, "plan_name", name)
    with pytest.raises(dm.InvalidParameterError, match="a name that no registered participation has"):
        register(Weekly)


def test_a_setting_may_be_of_several(monkeypatch):
    monkeypatch.setattr(Weekly, "plan_settings", ("cycle",))
    register(Weekly)
    try:
        assert [kind for kind in kinds() if "cycle" in kind.plan_settings] == [
            dm.CyclicPoisson,
            dm.RandomAllocation,
            Weekly,
        ]
    finally:
        forget(Weekly)


@pytest.mark.parametrize("schema", ALL, ids=repr)
def test_what_is_made_is_of_the_class_that_was_called(schema):
    kind = type(schema)
    made = kind(**{field.name: getattr(schema, field.name) for field in dataclasses.fields(schema)})
    assert (made, type(made)) == (schema, kind)
    assert "__new__" not in vars(kind)


def test_a_fresh_allocation_is_another_participation():
    assert dm.BallsInBins(3, fresh=False) == dm.BallsInBins(3) != dm.BallsInBins(3, fresh=True)
    assert type(dm.BallsInBins(3)) is dm.BallsInBins
    assert (dm.BallsInBins(3).fresh, dm.BallsInBins(3, fresh=True).fresh) == (False, True)
    for schema in (dm.BallsInBins(3), dm.BallsInBins(3, fresh=True)):
        again = pickle.loads(pickle.dumps(schema))
        assert (again, type(again)) == (schema, type(schema))


@pytest.mark.parametrize("schema", ALL, ids=repr)
def test_a_file_has_every_field(schema):
    data = schema.to_dict()
    assert data == {"type": type(schema).__name__} | dataclasses.asdict(schema)
    for name in dataclasses.asdict(schema):
        short = {key: value for key, value in data.items() if key != name}
        with pytest.raises(dm.InvalidParameterError, match="with exactly the fields"):
            dm.Participation.from_dict(short)


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
