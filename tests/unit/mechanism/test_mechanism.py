import dataclasses
import json

import numpy as np
import pytest

import dpmech as dm
from dpmech.mechanism import mechanism as module
from tests.support import oracles

ADD, ZERO, REPLACE = dm.Adjacency.ADD_REMOVE, dm.Adjacency.ZERO_OUT, dm.Adjacency.REPLACE_ONE
ALL = [
    dm.Mechanism(dm.LambdaCGD(12, 0.9)),
    dm.Mechanism(dm.LambdaCGD(12, 0.9), dm.SingleParticipation(), REPLACE),
    dm.Mechanism(dm.SquareRoot(12, 3), dm.MinSep(4, 2), ZERO),
    dm.Mechanism(dm.Dense(np.tril(np.ones((12, 12)))), dm.FixedEpochs(3)),
    dm.Mechanism(dm.Identity(12), dm.Poisson(0.1)),
    dm.Mechanism(dm.Identity(12), dm.Poisson(1.0)),
    dm.Mechanism(dm.SquareRoot(12, 3), dm.CyclicPoisson(0.1, 4), ZERO),
    dm.Mechanism(dm.ColumnNormalized(dm.LambdaCGD(12, 0.5)), dm.BallsInBins(4)),
    dm.Mechanism(dm.Identity(12), dm.BallsInBins(1)),
]


def test_the_defaults_only_over_protect():
    assert dm.Mechanism(dm.Identity(3)) == dm.Mechanism(dm.Identity(3), dm.EveryStep(), ADD)


@pytest.mark.parametrize("own", ALL, ids=repr)
def test_what_it_says_is_what_its_parts_say(own):
    assert own.steps == own.strategy.n == 12
    assert own.certain == own.participation.certain
    assert own.pattern == own.participation.pattern(12)
    assert own.sensitivity == dm.sensitivity(own.strategy, own.participation, adjacency=own.adjacency)


def test_its_sensitivity_is_that_of_all_sets():
    strategy = dm.LambdaCGD(7, 0.6)
    for factor, adjacency in ((1.0, ADD), (1.0, ZERO), (2.0, REPLACE)):
        own = dm.Mechanism(strategy, dm.MinSep(2, 3), adjacency).sensitivity
        truth = factor * oracles.sensitivity_floor(strategy.to_dense(), oracles.separated_sets(7, 2, 3))
        assert own.lower * (1 - 1e-12) <= truth <= own.upper * (1 + 1e-12)


def test_its_sensitivity_is_worked_out_once(monkeypatch):
    calls = []

    def counted(strategy, pattern):
        calls.append(pattern)
        return dm.Bounds(1.0, 1.0, "counted")

    monkeypatch.setattr(module, "pattern_sensitivity", counted)
    own = dm.Mechanism(dm.Identity(5), dm.MinSep(2))
    assert own.sensitivity is own.sensitivity
    assert dm.sensitivity(own) is own.sensitivity
    assert calls == [dm.MinSep(2).pattern(5)]
    assert dataclasses.replace(own).sensitivity == own.sensitivity
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("own", "certain"),
    [
        (dm.EveryStep(), True),
        (dm.MinSep(2), True),
        (dm.Poisson(1.0), True),
        (dm.Poisson(0.999), False),
        (dm.CyclicPoisson(1.0, 3), True),
        (dm.CyclicPoisson(0.5, 3), False),
        (dm.BallsInBins(1), True),
        (dm.BallsInBins(2), False),
    ],
    ids=repr,
)
def test_where_chance_decides_nothing(own, certain):
    assert dm.Mechanism(dm.Identity(6), own).certain is certain


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dm.Mechanism(5), "strategy must be a Strategy such as"),
        (lambda: dm.Mechanism(dm.Identity(5), "EveryStep"), "participation must be a Participation such as"),
        (lambda: dm.Mechanism(dm.Identity(5), None), "participation must be a Participation such as"),
        (lambda: dm.Mechanism(dm.Identity(5), dm.EveryStep(), "zero_out"), "adjacency must be one of"),
        (lambda: dm.Mechanism(dm.Identity(5), dm.EveryStep(), None), "adjacency must be one of"),
        (lambda: dm.Mechanism(dm.Identity(5), dm.MinSep(6)), r"min_sep must be an integer in \[1, n=5\]"),
        (lambda: dm.Mechanism(dm.Identity(5), dm.BallsInBins(2)), "bins must be a divisor of n=5, got 2"),
    ],
)
def test_parts_that_do_not_fit_are_refused(build, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        build()


@pytest.mark.parametrize(
    "own", [dm.Poisson(0.5), dm.Poisson(1.0), dm.CyclicPoisson(0.5, 2), dm.BallsInBins(2)]
)
def test_replace_one_under_sampling_is_refused(own):
    with pytest.raises(dm.UnsupportedCombinationError, match="no bound is proved for REPLACE_ONE under"):
        dm.Mechanism(dm.Identity(6), own, REPLACE)


@pytest.mark.parametrize(
    ("own", "steps", "expected"),
    [
        (dm.Mechanism(dm.LambdaCGD(12, 0.9)), 5, dm.Mechanism(dm.LambdaCGD(5, 0.9))),
        (
            dm.Mechanism(dm.SquareRoot(12, 3), dm.FixedEpochs(4), ZERO),
            5,
            dm.Mechanism(dm.SquareRoot(6, 3), dm.FixedEpochs(2), ZERO),
        ),
        (dm.Mechanism(dm.Identity(12), dm.MinSep(4)), 2, dm.Mechanism(dm.Identity(2), dm.MinSep(2))),
        (
            dm.Mechanism(dm.Identity(12), dm.BallsInBins(4)),
            5,
            dm.Mechanism(dm.Identity(8), dm.BallsInBins(4)),
        ),
        (dm.Mechanism(dm.Identity(12), dm.Poisson(0.5)), 7, dm.Mechanism(dm.Identity(7), dm.Poisson(0.5))),
    ],
)
def test_a_prefix_is_the_leading_block_and_its_participation(own, steps, expected):
    assert own.prefix(steps) == expected


@pytest.mark.parametrize("own", ALL, ids=repr)
def test_all_steps_are_no_prefix(own):
    assert own.prefix(12) is own
    for steps in (0, 13, 2.0, True):
        with pytest.raises(dm.InvalidParameterError, match="steps must be an integer in"):
            own.prefix(steps)


@pytest.mark.parametrize("own", ALL, ids=repr)
def test_json_round_trip(own):
    again = dm.Mechanism.from_json(own.to_json())
    assert again == own
    assert again.fingerprint() == own.fingerprint()
    assert again.to_json() == own.to_json()


def test_the_fingerprint_tells_mechanisms_apart():
    assert len({own.fingerprint() for own in ALL}) == len({*ALL}) == len(ALL)
    base = dm.Mechanism(dm.Identity(6), dm.MinSep(3))
    others = [
        dm.Mechanism(dm.LambdaCGD(6, 0.0), dm.MinSep(3)),
        dm.Mechanism(dm.Identity(6), dm.MinSep(3, 2)),
        dm.Mechanism(dm.Identity(6), dm.MinSep(3), ZERO),
    ]
    assert base.fingerprint() not in {other.fingerprint() for other in others}


DATA = ALL[0].to_dict()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "mechanism must be a mapping with exactly"),
        ({}, "mechanism must be a mapping with exactly"),
        (DATA | {"sigma": 1.0}, "mechanism must be a mapping with exactly"),
        (DATA | {"adjacency": "swap"}, "adjacency must be one of add_remove, zero_out, replace_one"),
        (DATA | {"adjacency": ["zero_out"]}, "adjacency must be one of"),
        (DATA | {"participation": {"type": "Weekly"}}, "participation must be a mapping with type in"),
        (DATA | {"strategy": {"type": "C"}}, "strategy must be a mapping with type in"),
    ],
)
def test_data_that_is_no_mechanism_is_refused(data, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        dm.Mechanism.from_dict(data)
    with pytest.raises(dm.InvalidParameterError, match=message):
        dm.Mechanism.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["{", None])
def test_text_that_is_no_json_is_refused(text):
    with pytest.raises(dm.InvalidParameterError, match="mechanism must be JSON written by to_json"):
        dm.Mechanism.from_json(text)


# ---- in place of a strategy

FUNCTIONS = {
    "sensitivity": dm.sensitivity,
    "calibrate_sigma": lambda own, **more: dm.calibrate_sigma(own, 2.0, 1e-5, **more),
    "epsilon": lambda own, **more: dm.epsilon(own, 3.0, 1e-5, **more),
    "delta": lambda own, **more: dm.delta(own, 3.0, 1.0, **more),
}
ERRORS = {"rmse": dm.rmse, "max_se": dm.max_se, "last_iterate_error": dm.last_iterate_error}


@pytest.mark.parametrize("own", ALL[:7], ids=repr)
@pytest.mark.parametrize("call", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_mechanism_says_what_the_arguments_say(own, call):
    spelled = {"participation": own.participation, "adjacency": own.adjacency}
    expected = call(own.strategy, **spelled)
    assert call(own) == expected
    assert call(own, **spelled) == expected


@pytest.mark.parametrize("call", FUNCTIONS.values(), ids=FUNCTIONS)
def test_arguments_that_contradict_a_mechanism_are_refused(call):
    own = dm.Mechanism(dm.Identity(6), dm.MinSep(3), ZERO)
    with pytest.raises(
        dm.InvalidParameterError, match=r"participation must be left out, or MinSep\(.*got EveryStep\(\)"
    ):
        call(own, participation=dm.EveryStep())
    with pytest.raises(dm.InvalidParameterError, match=r"adjacency must be left out, or .*ZERO_OUT"):
        call(own, adjacency=ADD)
    for wrong in (None, "zero_out"):
        with pytest.raises(dm.InvalidParameterError, match="adjacency must be"):
            call(own, adjacency=wrong)
        with pytest.raises(dm.InvalidParameterError, match="adjacency must be"):
            call(own.strategy, adjacency=wrong)


@pytest.mark.parametrize("call", ERRORS.values(), ids=ERRORS)
def test_errors_of_a_mechanism(call):
    strategy, schema = dm.LambdaCGD(12, 0.9), dm.MinSep(4, 2)
    plain = call(strategy, schema)
    assert call(dm.Mechanism(strategy, schema)) == call(dm.Mechanism(strategy, schema), schema) == plain
    doubled = dm.Mechanism(strategy, schema, REPLACE)
    assert call(doubled) == pytest.approx(2.0 * plain, rel=1e-15)
    with pytest.raises(dm.InvalidParameterError, match="participation must be left out"):
        call(doubled, dm.EveryStep())
    with pytest.raises(dm.UnsupportedCombinationError, match="depends on the calibrated sigma"):
        call(dm.Mechanism(dm.Identity(4), dm.Poisson(0.5)))


def test_a_lot_takes_a_mechanism():
    own = dm.Mechanism(dm.Identity(20), dm.Poisson(0.1), ZERO)
    lots = [dm.Lot("a", own), dm.Lot("a", own.strategy, own.participation, adjacency=own.adjacency)]
    for lot in lots:
        lot.register("gradients", 2.0)
    assert lots[0].mechanism == lots[1].mechanism == own
    assert lots[0].epsilon(1e-5) == lots[1].epsilon(1e-5)
    with pytest.raises(dm.InvalidParameterError, match="participation must be left out"):
        dm.Lot("a", own, dm.Poisson(0.2))
    with pytest.raises(dm.InvalidParameterError, match="participation must be a Participation"):
        dm.Lot("a", own.strategy)


def test_a_claim_has_its_mechanism():
    own = dm.Mechanism(dm.Identity(6), dm.MinSep(3), ZERO)
    cal = dm.calibrate_sigma(own, 1.0, 1e-5)
    assert cal.mechanism == cal.certificate().mechanism == own
    assert (cal.strategy, cal.participation, cal.adjacency) == (own.strategy, own.participation, ZERO)
