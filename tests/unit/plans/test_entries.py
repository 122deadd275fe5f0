import dataclasses

import numpy as np
import pytest

import dpmech as dm
from dpmech.cli.options import resolve, resolve_each
from dpmech.cli.results import baseline_of
from dpmech.mechanism import forget, register
from dpmech.plans.names import STRATEGIES, owners, samplings
from dpmech.plans.training_plans import Entry, TrainingPlan, build_strategy, parse_entries, read_plan

PLAN = TrainingPlan(50_000, 128, 10)


def test_steps_are_whole_batches():
    assert (PLAN.steps_per_epoch, PLAN.steps) == (390, 3900)
    assert TrainingPlan(128, 128, 3).steps == 3
    assert TrainingPlan(100, 8, 40).steps_per_epoch == 12


def test_a_plan_is_printed_with_what_follows_from_it():
    assert str(TrainingPlan(1497, 150, 20)) == (
        "TrainingPlan(dataset_size=1497, batch_size=150, epochs=20): 180 steps, 9 an epoch; "
        "expected batch 150 under Poisson sampling, 166.334 under Balls-in-Bins"
    )


def test_the_plan_is_public_and_its_sizes_agree_with_what_it_plans():
    assert dm.TrainingPlan is TrainingPlan
    assert dm.BallsInBins(PLAN.bins) == PLAN.participation("balls-in-bins")
    assert dm.Poisson(PLAN.sampling_prob) == PLAN.participation("poisson")
    assert PLAN.sampling_prob == 128 / 50_000
    assert PLAN.bins * PLAN.epochs == PLAN.steps


def test_plans_of_steps():
    plan = TrainingPlan.of_steps(50_000, 128, 1000)
    assert plan == TrainingPlan(50_000, 128, 3, 1000)
    assert (plan.steps, plan.steps_per_epoch, plan.epochs) == (1000, 390, 3)
    assert repr(plan) == "TrainingPlan(dataset_size=50000, batch_size=128, epochs=3, max_steps=1000)"
    # Whole epochs are the plan of these epochs, and fewer steps than one are one that is cut short.
    assert TrainingPlan.of_steps(50_000, 128, 780) == TrainingPlan(50_000, 128, 2)
    assert TrainingPlan.of_steps(50_000, 128, 7).epochs == 1
    bins = plan.participation("balls-in-bins")
    assert bins.pattern(plan.steps).max_participations == 3
    assert plan.participation("min-sep") == dm.MinSep(390, 3)
    with pytest.raises(
        dm.InvalidParameterError, match=r"max_steps must be an integer in .781, 1170., got 780"
    ):
        TrainingPlan(50_000, 128, 3, 780)
    for sampling in ("random-allocation", "epochs"):
        with pytest.raises(
            dm.InvalidParameterError,
            match=rf"steps must be a multiple of the 390 .* with {sampling}, got 1000",
        ):
            plan.participation(sampling)
        assert TrainingPlan.of_steps(50_000, 128, 780).participation(sampling)


def test_a_plan_is_calibrated_over_its_own_steps():
    plan = TrainingPlan(1000, 100, 2)
    for strategy in (dm.Identity(19), lambda n: dm.Identity(n + 1), lambda n: n, dm.BLT, 1e-5, "blt"):
        with pytest.raises(dm.InvalidParameterError, match=r"strategy must be .* the 20 steps of the plan"):
            plan.calibrate(8.0, 1e-5, strategy, sampling="min-sep")
    assert plan.calibrate(8.0, 1e-5, dm.Identity(20), sampling="min-sep").strategy == dm.Identity(20)


def test_integers_of_numpy_do_not_overflow():
    plan = TrainingPlan(np.int32(2**31 - 1), np.int8(1), np.int32(2**20))
    assert plan.steps == (2**31 - 1) * 2**20
    assert all(type(value) is int for value in (plan.dataset_size, plan.batch_size, plan.epochs, plan.steps))
    assert plan == TrainingPlan(2**31 - 1, 1, 2**20)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.epochs = 3


def test_no_size_loses_a_step():
    for size in range(1, 3000):
        plan = TrainingPlan(size, 1, 7)
        assert plan.steps == 7 * size


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 1, 1), "dataset_size"),
        ((10, 11, 1), "batch_size"),
        ((10, 0, 1), "batch_size"),
        ((10, 1, 0), "epochs"),
        ((10, 1, 1.5), "epochs"),
        ((10, True, 1), "batch_size"),
        (("10", 1, 1), "dataset_size"),
    ],
)
def test_bad_plans(arguments, name):
    with pytest.raises(dm.InvalidParameterError, match=f"{name} must be an integer"):
        TrainingPlan(*arguments)


@pytest.mark.parametrize(
    ("sampling", "details", "expected"),
    [
        ("every-step", {}, dm.EveryStep()),
        ("single", {}, dm.SingleParticipation()),
        ("min-sep", {}, dm.MinSep(390, 10)),
        ("min-sep", {"min_sep": 100}, dm.MinSep(100)),
        ("min-sep", {"min_sep": 100, "max_participations": 3}, dm.MinSep(100, 3)),
        ("min-sep", {"max_participations": 3}, dm.MinSep(390, 3)),
        ("epochs", {}, dm.FixedEpochs(10)),
        ("poisson", {}, dm.Poisson(128 / 50_000)),
        ("cyclic-poisson", {"cycle": 10}, dm.CyclicPoisson(1280 / 50_000, 10)),
        ("cyclic-poisson", {"cycle": 390}, dm.CyclicPoisson(128 * 390 / 50_000, 390)),
        ("balls-in-bins", {}, dm.BallsInBins(390)),
    ],
)
def test_participation(sampling, details, expected):
    schema = PLAN.participation(sampling, **details)
    assert type(schema) is type(expected)
    if isinstance(expected, dm.CyclicPoisson):
        assert schema.cycle == expected.cycle
        assert schema.sampling_prob == pytest.approx(expected.sampling_prob)
    else:
        assert schema == expected
    schema.pattern(PLAN.steps)
    assert sampling in samplings()


@pytest.mark.parametrize(("sampling", "name"), [("cyclic-poisson", "cycle"), ("b-min-sep", "separation")])
@pytest.mark.parametrize("most", [1, 2, 3, 10, 49, 93, 390])
def test_the_most_groups_or_steps_of_waiting(sampling, name, most):
    plan = TrainingPlan(dataset_size=3 * most, batch_size=3, epochs=1)
    assert plan.participation(sampling, **{name: most}).sampling_prob == pytest.approx(1.0, rel=1e-9)
    with pytest.raises(dm.InvalidParameterError, match=f"{name} must be at most {most}: "):
        plan.participation(sampling, **{name: most + 1})


@pytest.mark.parametrize(("batch_size", "amplified"), [(10, True), (40, False)])
def test_whole_batches_are_not_amplified(batch_size, amplified):
    sizes = {"dataset_size": 40, "batch_size": batch_size, "epochs": 2, "sampling": "poisson"}
    assert resolve(sizes | {"eps": 4.0, "delta": 1e-5}).described()["amplified"] is amplified


def test_a_participation_registered_late_with_a_setting_of_its_own():
    @dataclasses.dataclass(frozen=True)
    class Halves(dm.SingleParticipation):
        halves: int = 2
        plan_name = "halves"
        plan_settings = ("halves",)

        @classmethod
        def planned(cls, epochs, steps_per_epoch, sampling_prob, settings):
            return cls(settings["halves"] or 2)

    settings = {"dataset_size": 100, "batch_size": 10, "epochs": 1, "eps": 1.0, "delta": 1e-5}
    register(Halves)
    try:
        assert PLAN.participation("halves") == Halves(2)
        assert PLAN.participation("halves", halves=3) == Halves(3)
        assert samplings()["halves"] is Halves
        assert owners()["halves"] == "halves"
        assert resolve(settings | {"sampling": "halves", "halves": 4}).participation == Halves(4)
        with pytest.raises(
            dm.InvalidParameterError, match=r"halves must be left out with sampling poisson \(it"
        ):
            PLAN.participation("poisson", halves=3)
    finally:
        forget(Halves)
    with pytest.raises(dm.InvalidParameterError, match="sampling must be one of"):
        PLAN.participation("halves")
    with pytest.raises(
        dm.InvalidParameterError, match="halves must be left out with sampling poisson, got 3"
    ):
        PLAN.participation("poisson", halves=3)


@pytest.mark.parametrize("kind", samplings().values(), ids=lambda kind: kind.plan_name)
def test_what_a_sampling_cannot_do_without_is_what_it_says(kind):
    taken = set(kind.plan_settings)
    assert set(kind.plan_due) <= taken
    given = dict.fromkeys(kind.plan_due, 4)
    assert isinstance(PLAN.participation(kind.plan_name, **given), kind)
    for name in kind.plan_due:
        others = {other: value for other, value in given.items() if other != name}
        with pytest.raises(dm.InvalidParameterError, match=rf"{name} must be .*given"):
            PLAN.participation(kind.plan_name, **others)


def test_a_setting_goes_to_every_sampling_that_takes_it():
    settings = {"dataset_size": 100, "batch_size": 10, "epochs": 1, "eps": 4.0, "delta": 1e-5}
    names = ["cyclic-poisson", "poisson", "min-sep"]
    plans = resolve_each(settings | {"sampling": names, "cycle": 4, "max_examples_per_user": 2})
    assert [plan.participation for plan in plans] == [
        dm.CyclicPoisson(0.4, 4, max_examples_per_user=2),
        dm.Poisson(0.1, 2),
        dm.MinSep(10, 1, max_examples_per_user=2),
    ]
    with pytest.raises(
        dm.InvalidParameterError, match="cycle must be left out without sampling cyclic-poisson"
    ):
        resolve_each(settings | {"sampling": ["poisson", "min-sep"], "cycle": 4})
    with pytest.raises(
        dm.InvalidParameterError, match=r"cycle must be left out with .* \(it belongs to cyclic"
    ):
        PLAN.participation("poisson", cycle=3, max_examples_per_user=2)


def test_samplings_beside_each_other_hide_the_same_unit_and_differ():
    settings = {"dataset_size": 100, "batch_size": 10, "epochs": 2, "eps": 4.0, "delta": 1e-5}
    users = settings | {"max_examples_per_user": 2}
    for sampling in ("epochs,poisson,min-sep", ["poisson", "min-sep", "epochs"]):
        with pytest.raises(
            dm.InvalidParameterError, match="epochs would protect an example, but the others a"
        ):
            resolve_each(users | {"sampling": sampling})
    with pytest.raises(dm.InvalidParameterError, match="different sampling schemes, with these settings too"):
        resolve_each(settings | {"sampling": "balls-in-bins,balls-in-bins:fresh", "fresh": True})


def test_a_setting_that_is_true_may_follow_the_name():
    settings = {"dataset_size": 100, "batch_size": 10, "epochs": 2, "eps": 4.0, "delta": 1e-5}
    both = resolve_each(settings | {"sampling": "balls-in-bins,balls-in-bins:fresh,poisson"})
    assert [(plan.sampling, plan.participation) for plan in both] == [
        ("balls-in-bins", dm.BallsInBins(10)),
        ("balls-in-bins:fresh", dm.BallsInBins(10, fresh=True)),
        ("poisson", dm.Poisson(0.1)),
    ]
    (alone,) = resolve_each(settings | {"sampling": "balls-in-bins", "fresh": True})
    assert alone == resolve(settings | {"sampling": "balls-in-bins", "fresh": True})
    assert alone.participation == both[1].participation
    assert PLAN.participation("balls-in-bins", fresh=True) == dm.BallsInBins(390, fresh=True)
    for sampling, words in (
        ("poisson:fresh", "balls-in-bins:fresh, got 'poisson:fresh'"),
        ("ball:fresh", "sampling must be one of"),
        ("balls-in-bins:fresh,balls-in-bins:fresh", "different names"),
        ("cyclic-poisson:cycle", "cycle must be an integer >= 1, got True"),
    ):
        with pytest.raises(dm.InvalidParameterError, match=words):
            resolve_each(settings | {"sampling": sampling})
    with pytest.raises(dm.InvalidParameterError, match="fresh must be True or False, got 1"):
        resolve(settings | {"sampling": "balls-in-bins", "fresh": 1})


@pytest.mark.parametrize(
    ("own", "batch_size", "expected"),
    [
        pytest.param(
            {"sampling": "cyclic-poisson", "cycle": 2}, 10, dm.Poisson(0.1, 2), marks=pytest.mark.slow
        ),
        pytest.param({"sampling": "poisson"}, 10, dm.Poisson(0.1, 2), marks=pytest.mark.slow),
        ({"sampling": "min-sep"}, 10, dm.Poisson(0.1, 2)),
        pytest.param({"sampling": "balls-in-bins"}, 10, dm.Poisson(0.1, 2), marks=pytest.mark.slow),
        # Whole batches: nothing to draw.
        ({"sampling": "min-sep"}, 100, dm.MinSep(1, 1, max_examples_per_user=2)),
    ],
)
def test_the_baseline_is_of_the_same_unit(own, batch_size, expected):
    sizes = {"dataset_size": 100, "batch_size": batch_size, "epochs": 1, "max_examples_per_user": 2}
    plan = resolve(sizes | own | {"eps": 4.0, "delta": 1e-5})
    found = baseline_of(plan, lambda line: None).calibration
    assert found.participation == expected


def test_a_participation_without_a_name_in_plans_is_not_registered():
    @dataclasses.dataclass(frozen=True)
    class Nameless(dm.Participation):
        pass

    with pytest.raises(dm.InvalidParameterError, match="kind must be a participation with a plan_name"):
        register(Nameless)


@pytest.mark.parametrize(
    ("sampling", "details", "message"),
    [
        ("uniform", {}, "sampling must be one of b-min-sep, balls-in-bins"),
        ("poisson", {"min_sep": 3}, "min_sep must be left out with sampling poisson"),
        ("epochs", {"max_participations": 3}, "max_participations must be left out with sampling epochs"),
        ("min-sep", {"cycle": 3}, "cycle must be left out with sampling min-sep"),
        ("cyclic-poisson", {}, "cycle must be given with sampling cyclic-poisson"),
        # A group of 50,000 / 391 examples is smaller than the batch of 128.
        ("cyclic-poisson", {"cycle": 391}, "cycle must be at most 390: a group has to fill a batch, got 391"),
        ("min-sep", {"min_sep": 0}, "min_sep must be an integer >= 1, got 0"),
    ],
)
def test_bad_participation(sampling, details, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        PLAN.participation(sampling, **details)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("identity", dm.Identity(6)),
        ("lambda-cgd:lam=0.9", dm.LambdaCGD(6, 0.9)),
        ("bsr", dm.SquareRoot(6)),
        ("bsr:bands=3", dm.SquareRoot(6, 3)),
        ("bisr:bands=3", dm.InverseSquareRoot(6, 3)),
        ("bandmf:coefs=1/0.5/-0.2", dm.BandedToeplitz(6, [1, 0.5, -0.2])),
        ("bandinv:coefs=1/-0.5", dm.BandedInverse(6, [1, -0.5])),
        ("blt:decays=0.9/0.5:scales=0.1/0.2", dm.BLT(6, [0.9, 0.5], [0.1, 0.2])),
        ("lambda-cgd:lam=0.9:column-normalized", dm.ColumnNormalized(dm.LambdaCGD(6, 0.9))),
    ],
)
def test_entries_as_text(text, expected):
    (entry,) = parse_entries(text)
    assert build_strategy(entry, 6) == expected


def test_several_entries_and_labels():
    entries = parse_entries("identity, lambda-cgd:lam=0.9 ,bsr:bands=16:column-normalized")
    assert [entry.label for entry in entries] == [
        "identity",
        "lambda-cgd lam=0.9",
        "bsr bands=16, column-normalised",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unknown", "strategy must be one of identity, lambda-cgd"),
        ("lambda-cgd", "strategy lambda-cgd must be given with lam, and nothing else, got 'nothing'; for"),
        ("identity:lam=0.5", "strategy identity must be given without options"),
        ("lambda-cgd:lam=0.5:bands=3", "strategy lambda-cgd must be given with lam, and nothing else"),
        ("lambda-cgd:lam", "strategies must be name:option=value"),
        ("lambda-cgd:lam=high", "lam must be a number"),
        ("lambda-cgd:lam=0.5/0.6", "lam must be one number"),
        ("lambda-cgd:lam=1", r"lam must be a finite number in \[0, 1\)"),
        ("bsr:bands=2.5", "bands must be an integer"),
        ("bisr:bands=7", r"bands must be an integer in \[1, 6\], got 7"),
        ("bandmf:coefs=-1/2", r"coefs\[0\] must be"),
        ("dense:matrix=missing.npy", "matrix must be a readable .npy or CSV file"),
    ],
)
def test_bad_entries(text, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        build_strategy(parse_entries(text)[0], 6)


def test_dense_files(tmp_path):
    matrix = np.array([[1.0, 0.0], [0.5, 2.0]])
    np.save(tmp_path / "matrix.npy", matrix)
    np.savetxt(tmp_path / "matrix.csv", matrix, delimiter=",")
    for name in ("matrix.npy", "matrix.csv"):
        entry = Entry("dense", {"matrix": str(tmp_path / name)})
        assert build_strategy(entry, 2) == dm.Dense(matrix)
        with pytest.raises(
            dm.InvalidParameterError, match="matrix must be 3 x 3, one row per step, got '2 x 2'"
        ):
            build_strategy(entry, 3)
    (tmp_path / "bad.csv").write_text("1,0\n0.5,x\n")
    with pytest.raises(dm.InvalidParameterError, match="readable"):
        build_strategy(Entry("dense", {"matrix": str(tmp_path / "bad.csv")}), 2)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(dm.InvalidParameterError, match="readable"):
        build_strategy(Entry("dense", {"matrix": str(tmp_path / "objects.npy")}), 2)


def test_every_strategy_class_has_a_name():
    kinds = {kind for kind in dm.Strategy.__subclasses__() if kind.__module__.startswith("dpmech")}
    named = {one.kind for one in STRATEGIES.values()}
    assert len(named) == len(STRATEGIES) == 8
    assert all(issubclass(kind, dm.Strategy) for kind in named), kinds


PLAN_TEXT = """
[plan]
dataset_size = 100
eps = 1.0

[[strategy]]
name = "lambda-cgd"
lam = 0.9
published = 1.5
column_normalized = true

[[strategy]]
name = "identity"
"""


def test_read_plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN_TEXT)
    settings, entries = read_plan(path)
    assert settings == {"dataset_size": 100, "eps": 1.0}
    assert entries == [Entry("lambda-cgd", {"lam": 0.9}, True, 1.5), Entry("identity", {})]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[plan", "plan must be a readable TOML file"),
        ("eps = 1\n", r"a \[plan\] table and \[\[strategy\]\] tables only, .*: eps outside of them"),
        (PLAN_TEXT + "\n[extra]\nx = 1\n", r"a \[plan\] table and \[\[strategy\]\] tables"),
        ("plan = 3\n[[strategy]]\nname = 'identity'\n", r"a \[plan\] table and \[\[strategy\]\] tables"),
        ("strategy = [1]\n", r"strategy must be a \[\[strategy\]\] table, got 1"),
        ("[strategy]\nname = 'identity'\n", r"a \[plan\] table and \[\[strategy\]\] tables"),
        (
            "[[strategy]]\nname = 'identity'\ncolumn_normalized = 'no'\n",
            "column_normalized must be true or false",
        ),
        ("[[strategy]]\nname = 'identity'\npublished = 'x'\n", "published must be a finite number"),
    ],
)
def test_bad_plan_files(tmp_path, text, message):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(dm.InvalidParameterError, match=message):
        read_plan(path)


def test_missing_plan_file(tmp_path):
    with pytest.raises(dm.InvalidParameterError, match=r"plan must be a readable TOML file .*none\.toml"):
        read_plan(tmp_path / "none.toml")
