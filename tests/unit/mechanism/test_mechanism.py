import dataclasses
import json

import numpy as np
import pytest

import dpmech as dm
from dpmech.analysis.noise_share.moments import matched_step_variances
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
        return dm.Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("counted"))

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
        (lambda: dm.Mechanism(dm.Identity(5), dm.BallsInBins(6)), "bins must be at most n=5, got 6"),
    ],
)
def test_parts_that_do_not_fit_are_refused(build, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        build()


@pytest.mark.parametrize(
    "own", [dm.Poisson(0.5, 2), dm.CyclicPoisson(0.5, 2, max_examples_per_user=2), dm.BallsInBins(2)]
)
def test_replace_one_under_sampling_is_refused(own):
    with pytest.raises(dm.UnsupportedCombinationError, match="no bound is proven for REPLACE_ONE under"):
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


def test_a_batch_takes_a_mechanism():
    own = dm.Mechanism(dm.Identity(20), dm.Poisson(0.1), ZERO)
    batches = [
        dm.ledgers.SharedBatch("a", own),
        dm.ledgers.SharedBatch("a", own.strategy, own.participation, adjacency=own.adjacency),
    ]
    for batch in batches:
        batch.register("gradients", 2.0)
    assert batches[0].mechanism == batches[1].mechanism == own
    assert batches[0].epsilon(1e-5) == batches[1].epsilon(1e-5)
    with pytest.raises(dm.InvalidParameterError, match="participation must be left out"):
        dm.ledgers.SharedBatch("a", own, dm.Poisson(0.2))
    with pytest.raises(dm.InvalidParameterError, match="participation must be a Participation"):
        dm.ledgers.SharedBatch("a", own.strategy)


def test_a_claim_has_its_mechanism():
    own = dm.Mechanism(dm.Identity(6), dm.MinSep(3), ZERO)
    cal = dm.calibrate_sigma(own, 1.0, 1e-5)
    assert cal.mechanism == cal.certificate().mechanism == own
    assert (cal.strategy, cal.participation, cal.adjacency) == (own.strategy, own.participation, ZERO)


def test_audits_take_a_mechanism():
    own = dm.Mechanism(dm.LambdaCGD(4, 0.5), dm.BallsInBins(2), ZERO)
    found = dm.audits.empirical_epsilon(own, 1.5, 0.05, samples=2000, rng=3)
    spelled = {"participation": own.participation, "adjacency": ZERO}
    assert found == dm.audits.empirical_epsilon(own.strategy, 1.5, 0.05, samples=2000, rng=3, **spelled)
    seen = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    expected = dm.audits.canary_scores(seen, own.strategy, 1.5, own.participation)
    np.testing.assert_array_equal(dm.audits.canary_scores(seen, own, 1.5), expected)
    np.testing.assert_array_equal(dm.audits.canary_scores(seen, own, 1.5, dm.BallsInBins(2)), expected)
    with pytest.raises(dm.InvalidParameterError, match="participation must be left out"):
        dm.audits.canary_scores(seen, own, 1.5, dm.BallsInBins(4))
    # Where nothing is drawn, the steps of each canary are given beside it.
    certain, joins = dm.Mechanism(own.strategy, dm.MinSep(2)), seen > 0.0
    expected = dm.audits.canary_scores(seen, own.strategy, 1.5, joins)
    np.testing.assert_array_equal(dm.audits.canary_scores(seen, certain, 1.5, joins), expected)
    for strategy in (certain, own.strategy):
        with pytest.raises(dm.InvalidParameterError, match="participation must be Poisson"):
            dm.audits.canary_scores(seen, strategy, 1.5)


def test_the_variance_of_matched_steps_takes_a_mechanism():
    strategy = dm.LambdaCGD(12, 0.5)
    plain = matched_step_variances(strategy, dm.MinSep(4))
    np.testing.assert_array_equal(matched_step_variances(dm.Mechanism(strategy, dm.MinSep(4))), plain)
    doubled = matched_step_variances(dm.Mechanism(strategy, dm.MinSep(4), REPLACE))
    np.testing.assert_allclose(doubled, 4.0 * plain, rtol=1e-14)
    single = matched_step_variances(strategy, dm.SingleParticipation())
    np.testing.assert_array_equal(matched_step_variances(strategy), single)


def test_samplers_take_a_mechanism():
    own = dm.Mechanism(dm.Identity(12), dm.Poisson(0.1))
    sampler = dm.samplers.sampler_for(own, 50, rng=1)
    assert (sampler.participation, sampler.n) == (own.participation, 12)
    assert dm.samplers.sampler_for(own, 50, n=12, rng=1).fingerprint() == sampler.fingerprint()
    with pytest.raises(dm.InvalidParameterError, match="n must be left out, or 12"):
        dm.samplers.sampler_for(own, 50, n=11)


def test_errors_before_sensitivity_are_those_of_the_strategy():
    strategy = dm.LambdaCGD(9, 0.5)
    np.testing.assert_array_equal(
        dm.per_step_error(dm.Mechanism(strategy, dm.MinSep(3))), dm.per_step_error(strategy)
    )


def test_a_prefix_may_be_a_single_step():
    own = dm.Mechanism(dm.LambdaCGD(12, 0.5), dm.EveryStep())
    assert own.prefix(1) == dm.Mechanism(dm.LambdaCGD(1, 0.5), dm.EveryStep())
    assert dm.EveryStep().prefix(12, 1) == (dm.EveryStep(), 1)
    for call in (lambda: own.prefix(0), lambda: dm.EveryStep().prefix(12, 0)):
        with pytest.raises(dm.InvalidParameterError, match="steps"):
            call()


@pytest.mark.parametrize(
    "participation", [dm.MinSep(3), dm.Poisson(0.1), dm.Poisson(0.1, max_examples_per_user=3)]
)
def test_a_prefix_hides_whom_the_whole_hides(participation):
    own = dm.Mechanism(dm.Identity(12), participation, unit=dm.Unit.USER)
    assert own.prefix(5).unit is dm.Unit.USER
    assert own.prefix(5).fingerprint() != dm.Mechanism(dm.Identity(5), dm.MinSep(3)).fingerprint()
