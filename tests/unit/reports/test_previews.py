import math
import random

import numpy as np
import pytest

import dpmech as dm
from dpmech.exceptions import InvalidParameterError
from dpmech.plans import STRATEGIES
from dpmech.reports import preview_of
from dpmech.reports.previews import Preview

SMALL = {"epochs": [3], "batch_sizes": [30, 20], "low": 1.0, "high": 1.25}


@pytest.fixture(scope="module")
def small():
    return preview_of(120, 1e-4, **SMALL)


def strategy_of(row, plan):
    """From the options of its command, as `dpmech calibrate` reads them."""
    options = dict(row.options)
    kind = STRATEGIES[options["--strategy"]]
    read = {"--lam": float, "--bands": int, "--decays": None, "--scales": None}
    values = {}
    for name, text in options.items():
        if name in read:
            values[name[2:]] = read[name](text) if read[name] else [float(one) for one in text.split(",")]
    return kind.build(plan.training.steps, values)


@pytest.mark.slow
def test_plans_are_all_pairs_and_rows_begin_with_dp_sgd(small):
    assert [(one.training.epochs, one.training.batch_size) for one in small.plans] == [(3, 20), (3, 30)]
    for plan in small.plans:
        assert [row.label for row in plan.rows] == ["DP-SGD", "lambda-CGD", "BISR", "BLT"]
        assert [row.grid is None for row in plan.rows] == [False, True, True, True]


@pytest.mark.slow
def test_numbers_are_those_of_the_mechanism_at_the_sigma_that_is_shown(small):
    plan = small.plans[0]
    for row in plan.rows:
        strategy = strategy_of(row, plan)
        participation = plan.training.participation(row.sampling)
        sigma = small.sigma(row, 1.2)
        least = dm.calibrate_sigma(strategy, 1.2, 1e-4, participation=participation).sigma
        assert 1.0 <= sigma / least <= 1.03
        # Errors by dense linear algebra.
        inverse = np.linalg.inv(strategy.to_dense())
        decoder = np.tril(np.ones_like(inverse)) @ inverse
        assert row.rmse == pytest.approx(np.linalg.norm(decoder) / math.sqrt(plan.training.steps), rel=1e-5)
        spread = np.sqrt(np.mean(np.sum(inverse**2, axis=1))) / plan.training.batch_size
        assert row.noise == pytest.approx(spread, rel=1e-5)


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
    assert said.count("") == 2


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
        cal = dm.calibrate_sigma(strategy_of(row, plan), eps, 1e-5, participation=participation)
        assert 1.0 <= preview.sigma(row, eps) / cal.sigma <= 1.03, (row.label, eps)
