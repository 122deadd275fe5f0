import itertools
import math
import random

import numpy as np
import pytest

import dpmech as dm
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.plans import FAMILIES, STRATEGIES, Entry, TrainingPlan, parse_entries
from dpmech.reports import (
    DEFAULT_SECONDS,
    PAGE_SAMPLINGS,
    default_samplings,
    planner_page,
    preview_of,
    previews,
    row_kinds,
    seconds_of,
)
from dpmech.reports.grids import Grid
from dpmech.reports.previews import USUAL, Preview, PreviewRow, RowKind, Variant, windows

SMALL = {"epochs": [3], "batch_sizes": [30, 20], "low": 1.0, "high": 1.25}


@pytest.fixture(scope="module")
def small():
    return preview_of(120, 1e-4, **SMALL)


def strategy_of(variant, plan):
    """From the options of its command, as `dpmech calibrate` reads them."""
    options = dict(variant.options)
    kind = STRATEGIES[options["--strategy"]]
    read = {"--lam": float, "--bands": int, "--decays": None, "--scales": None, "--coefs": None}
    values = {}
    for name, text in options.items():
        if name in read:
            values[name[2:]] = read[name](text) if read[name] else [float(one) for one in text.split(",")]
    found = kind.build(plan.training.steps, values)
    return dm.ColumnNormalized(found) if "--column-normalized" in options else found


@pytest.mark.slow
def test_plans_are_all_pairs_and_rows_begin_with_dp_sgd(small):
    assert [(one.training.epochs, one.training.batch_size) for one in small.plans] == [(3, 20), (3, 30)]
    for plan in small.plans:
        assert [row.label for row in plan.rows] == ["DP-SGD", "lambda-CGD", "BISR", "BLT"]
        assert [row.variants[0].grid is None for row in plan.rows] == [False, True, True, True]


@pytest.mark.slow
def test_numbers_are_those_of_the_mechanism_at_the_sigma_that_is_shown(small):
    plan = small.plans[0]
    for row in plan.rows:
        check_row(small, plan, row, 1.2)


def check_row(preview, plan, row, eps):
    """The noise against a calibration, the errors against dense linear algebra."""
    variant, sigma = preview.at(row, eps)
    strategy = strategy_of(variant, plan)
    participation = plan.training.participation(row.sampling)
    least = dm.calibrate_sigma(strategy, eps, 1e-4, participation=participation).sigma
    assert 1.0 <= sigma / least <= 1.0 + row.above / 100.0
    inverse = np.linalg.inv(strategy.to_dense())
    decoder = np.tril(np.ones_like(inverse)) @ inverse
    assert variant.rmse == pytest.approx(np.linalg.norm(decoder) / math.sqrt(plan.training.steps), rel=2e-5)
    spread = np.sqrt(np.mean(np.sum(inverse**2, axis=1))) / plan.training.batch_size
    assert variant.noise == pytest.approx(spread, rel=2e-5)


@pytest.mark.slow
def test_sampled_rows_are_never_below_a_calibration_and_as_near_as_they_say():
    found = preview_of(
        30,
        1e-4,
        epochs=[2],
        batch_sizes=[10],
        low=1.9,
        high=2.2,
        samplings=("random-allocation", "balls-in-bins"),
        strategies=[Entry("lambda-cgd", {})],
    )
    plan = found.plans[0]
    assert [row.label for row in plan.rows] == [
        "DP-SGD",
        "DP-SGD, random allocation",
        "lambda-CGD, Balls-in-Bins",
    ]
    for row in plan.rows[1:]:
        assert 2.0 in row.variants[0].grid.eps
        assert row.above <= 13.0
        for eps in (2.0, 2.19):
            check_row(found, plan, row, eps)


@pytest.mark.parametrize(
    ("text", "label", "options"),
    [
        ("bandmf:bands=3", "BandMF, 3 bands", ["--strategy", "--coefs", "--sampling"]),
        ("bandinv:bands=2", "BandInvMF, 2 bands", ["--strategy", "--coefs", "--sampling"]),
        (
            "bandmf:bands=2:column-normalized",
            "BandMF, 2 bands, unit columns",
            ["--strategy", "--coefs", "--column-normalized", "--sampling"],
        ),
    ],
)
def test_every_family_is_a_row_with_its_own_command(text, label, options):
    found = preview_of(
        60,
        1e-4,
        epochs=[2],
        batch_sizes=[10],
        low=1.0,
        high=1.05,
        samplings=["min-sep"],
        strategies=parse_entries(text),
    )
    plan = found.plans[0]
    assert plan.rows[1].label == label
    assert [name for name, _ in plan.rows[1].variants[0].options] == options
    check_row(found, plan, plan.rows[1], 1.03)


def test_every_family_but_dense_has_a_label():
    for name in FAMILIES.keys() - {"dense"}:
        assert RowKind("balls-in-bins", Entry(name, {})).label.endswith(", Balls-in-Bins")


def test_the_best_variant_counts_at_every_eps_of_its_range():
    def variant(name, eps, sigma, rmse):
        return Variant((("--strategy", name),), Grid(eps, sigma), 1.0, rmse, 1.0, 0, 0)

    one, two = variant("one", (1.0, 2.0), (4.0, 2.0), 1.0), variant("two", (1.5, 4.0), (3.0, 1.0), 1.1)
    row = PreviewRow("", "balls-in-bins", (one, two), 0.0)
    preview = Preview(10, 1e-5, 1.0, 4.0, Grid((1.0,), (1.0,)), ())
    assert preview.at(row, 1.2) == (one, 4.0)
    assert preview.at(row, 1.6) == (two, 3.0)  # 3.3 against 4
    assert preview.at(row, 2.0) == (one, 2.0)
    assert preview.at(row, 3.0) == (two, 3.0)
    assert preview.at(row, 4.5) is None
    assert preview.at(PreviewRow("", "poisson", (), 0.0, "refused"), 2.0) is None


def test_windows_cover_the_range_and_are_fitted_at_usual_values():
    for low, high in ((0.5, 16.0), (1.0, 8.0), (2.9, 3.1), (0.01, 100.0), (1.0, 4.0)):
        found = windows(low, high)
        assert (found[0][0], found[-1][2]) == (low, high)
        for before, after in itertools.pairwise(found):
            assert before[2] == after[0]
        for left, anchor, right in found:
            assert left <= anchor <= right <= 4.0 * left * (1 + 1e-9)
            assert anchor in USUAL or not [eps for eps in USUAL if left <= eps <= right]
    assert [anchor for _, anchor, _ in windows(0.5, 16.0)] == [1.0, 2.0, 8.0]


def test_a_row_that_is_refused_says_why(monkeypatch):
    def refuse(*arguments, **settings):
        raise UnsupportedCombinationError("nothing is fitted", supported="something else")

    monkeypatch.setattr(previews, "optimize", refuse)
    found = preview_of(
        60, 1e-4, epochs=[2], batch_sizes=[20], low=1.0, high=1.02, samplings=["balls-in-bins"]
    )
    row = found.plans[0].rows[1]
    assert row.variants == ()
    assert "nothing is fitted" in row.reason
    assert "none" in planner_page(found, made="2026-11-28")


def test_rows_are_named_once_and_wrong_ones_refused():
    assert [one.label for one in row_kinds(["min-sep", "poisson", "min-sep"])] == [
        "DP-SGD",
        "lambda-CGD",
        "BISR",
        "BLT",
    ]
    with pytest.raises(InvalidParameterError, match="did you mean balls-in-bins"):
        row_kinds(["balls-in-bin"])
    for text in ("identity", "lambda-cgd:lam=0.5", "dense"):
        with pytest.raises(InvalidParameterError, match="families without coefficients"):
            row_kinds(["min-sep"], parse_entries(text))
    with pytest.raises(InvalidParameterError, match="left out without balls-in-bins or min-sep"):
        row_kinds(["random-allocation"], parse_entries("blt"))
    with pytest.raises(InvalidParameterError, match="bands"):
        preview_of(120, 1e-4, **SMALL, strategies=parse_entries("bandmf:bands=5000"))


def test_the_time_grows_with_the_plan_and_the_rows():
    small, large = TrainingPlan(1500, 300, 10), TrainingPlan(50_000, 128, 10)
    every = row_kinds(PAGE_SAMPLINGS)

    def seconds(plan, kinds, high=16.0):
        return sum(seconds_of(plan, kind, 1e-5, 0.5, high) for kind in kinds)

    fast = row_kinds(["min-sep"])
    assert 3.0 < seconds(large, fast) < 60.0
    assert seconds(small, fast) < seconds(small, every) < seconds(large, every)
    assert seconds(small, every, 4.0) < seconds(small, every)


# CPU seconds of rows on a busy machine of two cores: dataset, batch size, epochs, eps, sampling, seconds.
MEASURED = [
    (1500, 300, 10, (1.0, 8.0), "poisson", 10.3),
    (10_000, 100, 5, (0.5, 16.0), "poisson", 12.3),
    (1500, 300, 10, (1.0, 8.0), "random-allocation", 129.2),
    (10_000, 100, 5, (4.0, 4.5), "random-allocation", 17.0),
    (50_000, 128, 10, (4.0, 4.5), "random-allocation", 29.4),
    (1500, 300, 10, (1.0, 8.0), "balls-in-bins", 45.1),
    (10_000, 100, 5, (4.0, 4.5), "balls-in-bins", 30.4),
]


@pytest.mark.parametrize(("size", "batch", "epochs", "eps", "sampling", "seconds"), MEASURED)
def test_the_estimate_is_within_a_factor_of_two_of_what_was_measured(
    size, batch, epochs, eps, sampling, seconds
):
    kind = row_kinds([sampling])[-1]
    assert kind.sampling == sampling
    assert 0.5 < seconds_of(TrainingPlan(size, batch, epochs), kind, 1e-5, *eps) / seconds < 2.0


def test_slow_rows_are_shown_by_default_as_long_as_they_fit_in_the_time():
    few, many = ([TrainingPlan(1500, 300, epochs) for epochs in range(1, 1 + count)] for count in (2, 60))
    assert default_samplings(few, 1e-5, 0.5, 16.0) == (list(PAGE_SAMPLINGS), {})
    names, left = default_samplings(many, 1e-5, 0.5, 16.0)
    assert names == ["poisson", "min-sep"]
    assert set(left) == {"random-allocation", "balls-in-bins"}
    assert min(left.values()) > DEFAULT_SECONDS / 2
    # The faster one fits alone.
    names, left = default_samplings(many[:10], 1e-5, 0.5, 16.0)
    assert names == ["poisson", "balls-in-bins", "min-sep"]
    assert (
        left["random-allocation"]
        + sum(seconds_of(one, kind, 1e-5, 0.5, 16.0) for one in many[:10] for kind in row_kinds(names))
        > DEFAULT_SECONDS
    )


def test_nothing_is_said_beyond_the_range(small):
    row = small.plans[0].rows[1]
    assert small.sigma(row, 0.99) is None
    assert small.sigma(row, 1.26) is None
    assert small.sigma(row, 1.0) is not None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"low": 2.0}, "max_eps"),
        ({"epochs": []}, "epochs"),
        ({"epochs": list(range(1, 60))}, "1 to 100 plans"),
        ({"batch_sizes": [121]}, "batch_size"),
    ],
)
def test_bad_input(changed, words):
    with pytest.raises(InvalidParameterError, match=words):
        preview_of(120, 1e-4, **{**SMALL, **changed})


@pytest.mark.slow
@pytest.mark.exhaustive
def test_workers_find_the_same(small):
    said = []
    with dm.Workers(2) as executor:
        found = preview_of(120, 1e-4, **SMALL, executor=executor, progress=said.append)
    assert isinstance(found, Preview)
    assert found.to_dict() == small.to_dict()
    assert said.count("") == 8


@pytest.mark.slow
@pytest.mark.exhaustive
def test_fifty_points_are_never_below_a_calibration_and_at_most_three_per_cent_above():
    preview = preview_of(10_000, 1e-5, epochs=[2, 8], batch_sizes=[100, 400], low=0.5, high=16.0)
    chance = random.Random(2026)
    for _ in range(50):
        plan = chance.choice(preview.plans)
        row = chance.choice(plan.rows)
        eps = 0.5 * 32.0 ** chance.random()
        participation = plan.training.participation(row.sampling)
        variant, sigma = preview.at(row, eps)
        cal = dm.calibrate_sigma(strategy_of(variant, plan), eps, 1e-5, participation=participation)
        assert 1.0 <= sigma / cal.sigma <= 1.03, (row.label, eps)
