"""Run records and the nodes of privacy profiles, as the library writes them and as forged."""

import copy
import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest
from flint import arb

import dpmech as dm
from dpmech.checker import (
    BadDocument,
    Kind,
    Verdict,
    check_file,
    check_text,
    claims,
    decide,
    ledgers,
    records,
)
from dpmech.checker.claims import claim_of
from dpmech.checker.confidence import Answer
from dpmech.checker.documents import decode
from tests.support.checker_files import certificate, filled, plain, with_checksum

STRATEGY = dm.LambdaCGD(12, 0.5)


def rehashed(document):
    """The document with its checksum, and that of the certificate in it, made anew."""
    if "certificate" in document:
        document = document | {"certificate": with_checksum(document["certificate"])}
    return json.dumps(with_checksum(document))


def checked(document, seconds=10.0, seed=1):
    return check_text(rehashed(document), seconds=seconds, rng=np.random.default_rng(seed))


def record(strategy, participation, steps, *, most=None, apart=None, sigma=None, **changes):
    """A run record as the library writes it."""
    planned = {"participation": participation, "adjacency": changes.pop("adjacency", dm.Adjacency.ADD_REMOVE)}
    cal = dm.calibrate_sigma(strategy, 2.0, 1e-5, **planned)
    if sigma is not None:
        cal = dm.certify_sigma(strategy, sigma, delta=1e-5, **planned)
    stopped = steps < strategy.n
    run = dm.RunRecord(
        cal.certificate(1.0, 10.0),
        steps,
        dm.executed_epsilon(cal, steps) if stopped else cal.achieved,
        *(
            dm.certificates.Randomness("system entropy", 64 * digit, seeded=False, generator="philox")
            for digit in "01"
        ),
        smallest_separation=apart,
        most_participations=most,
        stopped_by_plan=stopped,
        **changes,
    )
    return run.to_dict()


HONEST = record(STRATEGY, dm.MinSep(4), 7, most=2, apart=4)


@pytest.mark.parametrize(
    ("strategy", "participation", "steps", "stated"),
    [
        (STRATEGY, dm.MinSep(4), 12, {"most": 3, "apart": 4}),
        (STRATEGY, dm.MinSep(4, 2), 3, {"most": 1}),
        (STRATEGY, dm.MinSep(4), 0, {"most": 0}),
        (STRATEGY, dm.SingleParticipation(), 5, {"most": 1}),
        (STRATEGY, dm.FixedEpochs(3), 7, {"most": 2, "apart": 4}),
        (dm.Identity(12), dm.EveryStep(), 7, {"most": 7, "apart": 1}),
        (STRATEGY, dm.FixedEpochs(3), 12, {"most": 3, "apart": 4}),
        (STRATEGY, dm.MinSep(4), 1, {"most": 1}),
        (dm.Identity(12), dm.Poisson(0.2), 7, {}),
        (dm.Identity(12), dm.Poisson(0.2), 12, {}),
    ],
    ids=lambda value: repr(value) if isinstance(value, int) else type(value).__name__,
)
def test_what_runs_cost_is_proved(strategy, participation, steps, stated):
    verdict = checked(record(strategy, participation, steps, **stated), seconds=20.0)
    assert verdict.kind is Kind.PROVED
    assert "whether the run followed the claim" in verdict.unchecked[0]
    certified, executed = verdict.parts
    assert f"{steps} of 12 steps" in executed.claim
    assert certified.kind is executed.kind is Kind.PROVED
    assert str(verdict).count("PROVED") == 3


@pytest.mark.parametrize("steps", [7, 12])
def test_an_eps_of_the_run_that_is_too_small_is_refuted(steps):
    document = record(STRATEGY, dm.MinSep(4), steps, most=2, apart=4, sigma=3.0)
    assert checked(document).kind is Kind.PROVED
    stated = [document["run"]["executed"]] + [document["certificate"]["evidence"]["achieved"]] * (steps == 12)
    for bounds in stated:
        bounds["lower"] = plain(0.0)
        bounds["upper"] = plain(0.99 * bounds["upper"]["decimal"])
    verdict = checked(document)
    assert verdict.kind is Kind.REFUTED
    assert [part.kind for part in verdict.parts] == [Kind.PROVED, Kind.REFUTED]


def test_a_false_certificate_makes_a_false_record():
    document = copy.deepcopy(HONEST)
    document["certificate"]["claim"]["sigma"] = plain(
        0.98 * document["certificate"]["claim"]["sigma"]["decimal"]
    )
    assert checked(document).kind is Kind.REFUTED


def test_an_eps_that_cannot_be_decided_is_listed():
    verdict = checked(record(dm.Identity(12), dm.Poisson(0.2), 7), seconds=1e-9)
    assert verdict.kind is verdict.parts[1].kind is Kind.NOT_CHECKED
    assert "the eps of the executed steps" in verdict.unchecked[0]


def test_a_certificate_beyond_the_limits_is_not_checked():
    document = copy.deepcopy(HONEST)
    document["certificate"]["claim"]["eps"] = plain(1e10)
    verdict = checked(document)
    assert (verdict.kind, verdict.parts) == (Kind.NOT_CHECKED, ())
    assert "whether the run followed the claim" in verdict.unchecked[0]


WRONG = [
    ({"steps": 13}, "13 steps"),
    ({"steps": -1}, "-1 steps"),
    ({"steps": 7.0}, "does not state its bits"),
    ({"steps": True}, "steps of the run"),
    ({"processes": 0}, "0 processes"),
    ({"most_participations": 4, "smallest_separation": 4}, "4 times; 3 were certified"),
    ({"most_participations": None}, "None times"),
    ({"most_participations": 2, "smallest_separation": None}, "2 times"),
    ({"most_participations": 2, "smallest_separation": 3}, "3 steps apart"),
    ({"most_participations": 3, "smallest_separation": 4}, "3 participations 4 steps apart in 7"),
    ({"stopped_by_plan": False}, "not stopped early by plan"),
    ({"stopped_by_plan": 1}, "stopped_by_plan"),
    ({"steps": 0, "most_participations": 0, "smallest_separation": None}, "not stopped early by plan"),
    ({"more": 1}, "other entries"),
    ({"executed": 1}, "executed has other entries"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[words for _, words in WRONG])
def test_records_that_contradict_themselves_are_refused(changes, words):
    document = copy.deepcopy(HONEST)
    document["run"] |= changes
    with pytest.raises(BadDocument, match=words):
        checked(document)


def test_bounds_that_contradict_themselves_are_refused():
    for ends in ({"upper": 2.1}, {"lower": -0.1}, {"lower": 1.9}):
        document = copy.deepcopy(HONEST)
        document["run"]["executed"] |= {name: plain(value) for name, value in ends.items()}
        with pytest.raises(BadDocument, match="not within what was certified"):
            checked(document)
    for evidence in ({}, 1):
        document = copy.deepcopy(HONEST)
        document["certificate"]["evidence"] = evidence
        with pytest.raises(BadDocument, match="achieved has other entries"):
            checked(document)


def test_participations_that_have_to_stay_secret_are_refused():
    document = record(dm.Identity(12), dm.Poisson(0.2), 12)
    document["run"]["most_participations"] = 3
    with pytest.raises(BadDocument, match="secret"):
        checked(document)


def swapped(participation, sigma, eps, steps, most=1, apart=None, strategy=None):
    """The honest record with another certificate, and eps as stated for its steps."""
    document = copy.deepcopy(HONEST)
    claim = document["certificate"]["claim"]
    claim |= {"participation": plain(filled(participation)), "sigma": plain(sigma), "coefficients": {}}
    claim["strategy"] = plain(strategy or {"type": "Identity", "n": 12})
    run = {"steps": steps, "most_participations": most, "smallest_separation": apart}
    document["run"] |= run
    document["run"]["executed"] |= {"lower": plain(0.0), "upper": plain(eps)}
    return document


SEP = {"type": "BMinSep", "min_sep": 3, "sampling_prob": 0.2}
BINS, FRESH = {"type": "BallsInBins", "bins": 6}, {"type": "BallsInBins", "fresh": True, "bins": 6}


@pytest.mark.parametrize(
    ("participation", "steps", "covered"),
    [(BINS, 1, 6), (BINS, 7, 12), (SEP, 1, 3), (SEP, 4, 4), (FRESH, 5, 6)],
)
def test_of_random_allocations_an_epoch_that_was_begun_is_whole(participation, steps, covered, monkeypatch):
    asked = []

    def decide(claim, *arguments):
        asked.append((claim.strategy.n, len(claim.strategy.coefs), claim.eps))
        kind = Kind.REFUTED if claim.eps < 1.0 else Kind.PROVED
        return Verdict(kind, str(claim), "as asked", 1e-10), None

    monkeypatch.setattr(records, "decide", decide)
    verdict = checked(swapped(participation, 8.0, 1.5, steps))
    assert asked == [(12, 12, 2.0), (covered, covered, 1.5)]
    assert (verdict.kind, verdict.failure) == (Kind.PROVED, 2e-10)
    assert checked(swapped(participation, 8.0, 0.5, steps)).kind is Kind.REFUTED


@pytest.mark.slow
def test_an_epoch_of_random_bins_is_proved_and_refuted():
    assert checked(swapped(BINS, 1.6, 1.6, 1), seconds=60.0).parts[1].kind is Kind.PROVED
    assert checked(swapped(BINS, 1.6, 0.8, 1), seconds=60.0).kind is Kind.REFUTED


@pytest.mark.parametrize(
    "entries", [{}, {"bins": "x"}, {"min_sep": "x"}, {"epochs": 0}, {"max_examples_per_user": 2.5}]
)
def test_a_run_under_an_unknown_participation_is_not_checked(entries):
    document = swapped({"type": "OneStep", **entries}, 8.0, 1.5, 9, 2, 1)
    verdict = checked(document)
    assert verdict.kind is Kind.NOT_CHECKED
    assert "the participation 'OneStep' is unknown" in verdict.reason
    assert verdict.unchecked[0].startswith("whether the run followed the claim")
    assert checked(document["certificate"]).kind is Kind.NOT_CHECKED
    side = {end: plain([0.0]) for end in ("eps", "lower", "upper")}
    several = {"guarantee": {}, "by": {}, "curves": [{"times": 3, "remove": side, "add": side}]}
    document["certificate"]["evidence"]["profile"] = several
    assert checked(document).kind is Kind.NOT_CHECKED


def test_how_far_apart_steps_in_bins_are(monkeypatch):
    proved = Verdict(Kind.NOT_CHECKED, "", ""), None
    monkeypatch.setattr(records, "decide", lambda *arguments: proved)

    assert checked(swapped(FRESH, 1.5, 1.5, 9, 2, 1), seconds=1e-5).kind is Kind.NOT_CHECKED
    with pytest.raises(BadDocument, match="2 participations 1 steps apart"):
        checked(swapped(BINS, 1.5, 1.5, 9, 2, 1), seconds=1e-5)
    with pytest.raises(BadDocument, match="3 times; 2 were certified"):
        checked(swapped(FRESH, 1.5, 1.5, 9, 3, 1), seconds=1e-5)


def test_the_first_columns_of_scaled_strategies():
    """The columns of a leading block are no longer of norm 1."""
    strategy = {"type": "ColumnNormalized", "strategy": {"type": "LambdaCGD", "n": 12, "lam": 0.5}}
    participation = {"type": "MinSep", "min_sep": 4, "max_participations": None}
    exact = np.linalg.inv(np.eye(12) - 0.5 * np.eye(12, k=-1))
    exact /= np.linalg.norm(exact, axis=0)
    size = np.linalg.norm(exact[:7, [0, 4]].sum(axis=1))
    noise = size / 0.3
    for factor, kind in ((1.001, Kind.PROVED), (0.999, Kind.REFUTED)):
        eps = dm.epsilon(dm.Identity(1), 1 / 0.3, 1e-5, participation=dm.SingleParticipation()).upper
        document = swapped(participation, noise * factor, eps, 7, 2, 4, strategy)
        assert checked(document).parts[1].kind is kind
    dense = {"type": "Dense", "matrix": np.tril(np.ones((12, 12))).tolist()}
    size = np.linalg.norm([1.0] * 4 + [2.0] * 3)
    for factor, kind in ((1.001, Kind.PROVED), (0.999, Kind.REFUTED)):
        document = swapped(participation, size / 0.3 * factor, eps, 7, 2, 4, dense)
        assert checked(document).parts[1].kind is kind


def claim_with(participation, n=12):
    return claim_of(decode(certificate({"type": "Identity", "n": n}, participation, 1.0, 1e-5, 2.0)))


@pytest.mark.parametrize(
    ("participation", "limits"),
    [
        ({"type": "EveryStep"}, (12, 1, True)),
        ({"type": "SingleParticipation"}, (1, 12, False)),
        ({"type": "FixedEpochs", "epochs": 3}, (3, 4, True)),
        ({"type": "FixedEpochs", "epochs": 1}, (1, 12, True)),
        ({"type": "BallsInBins", "bins": 4}, (3, 4, True)),
        ({"type": "BallsInBins", "bins": 1}, (12, 1, True)),
        ({"type": "BallsInBins", "bins": 4, "max_examples_per_user": 2}, (3, 4, True)),
        ({"type": "BallsInBins", "fresh": True, "bins": 4}, (3, 1, False)),
        ({"type": "MinSep", "min_sep": 5, "max_participations": None}, (3, 5, False)),
        ({"type": "MinSep", "min_sep": 1, "max_participations": 1}, (1, 1, False)),
        ({"type": "BMinSep", "min_sep": 5, "sampling_prob": 0.1}, (3, 5, False)),
        ({"type": "RandomAllocation", "participations": 4, "cycle": 1}, (4, 1, False)),
        ({"type": "RandomAllocation", "participations": 4, "cycle": 3}, (4, 3, False)),
    ],
)
def test_how_often_and_how_far_apart_one_example_may_take_part(participation, limits):
    assert records._limits(claim_with(participation)) == limits


@pytest.mark.parametrize(
    ("participation", "steps", "covered", "own"),
    [
        ({"type": "EveryStep"}, 5, 5, {}),
        ({"type": "FixedEpochs", "epochs": 3}, 5, 8, {"epochs": 2}),
        ({"type": "FixedEpochs", "epochs": 3}, 8, 8, {"epochs": 2}),
        ({"type": "FixedEpochs", "epochs": 3}, 1, 4, {"epochs": 1}),
        ({"type": "MinSep", "min_sep": 4, "max_participations": 2}, 3, 3, {"min_sep": 3}),
        ({"type": "MinSep", "min_sep": 4, "max_participations": 2}, 9, 9, {}),
        ({"type": "BallsInBins", "bins": 4}, 9, 12, {}),
        ({"type": "BMinSep", "min_sep": 4, "sampling_prob": 0.1}, 2, 4, {}),
        ({"type": "RandomAllocation", "participations": 4, "cycle": 1}, 5, 12, {}),
    ],
)
def test_the_claim_on_the_first_steps(participation, steps, covered, own):
    stopped = records._stopped(claim_with(participation), steps, 0.5)
    assert (stopped.strategy.n, stopped.eps) == (covered, 0.5)
    assert stopped.participation == filled(participation) | own


def test_a_run_of_no_steps_costs_nothing_and_one_of_one_step_does():
    nothing = {"steps": 0, "most_participations": 0, "smallest_separation": None, "stopped_by_plan": False}
    document = copy.deepcopy(HONEST)
    document["run"] |= nothing
    document["run"]["executed"] |= {"lower": plain(0.0), "upper": plain(0.0)}
    verdict = checked(document)
    assert (verdict.kind, verdict.parts[1].reason) == (Kind.PROVED, "nothing was released")
    document["run"] |= {"steps": 1, "most_participations": 1}
    with pytest.raises(BadDocument, match="not stopped early by plan"):
        checked(document)


def test_a_claim_is_decided_at_a_smaller_delta():
    certifier = records.Certifier(1.0, np.random.default_rng(1))
    document = decode(certificate({"type": "Identity", "n": 4}, {"type": "EveryStep"}, 1.0, 1e-5, 8.0))
    for delta, used, kind in (
        (1.0, 1e-5, Kind.PROVED),
        (0.1, 1e-5, Kind.PROVED),
        (0.0, 1e-5, Kind.PROVED),
        (0.9e-5, 0.9e-5, Kind.PROVED),
        (1e-9, 1e-9, Kind.REFUTED),
    ):
        found = certifier.of(document, delta)
        assert (found.claim.delta, found.verdict.kind) == (used, kind)


def test_many_certificates_of_few_steps_are_decided(monkeypatch):
    def document(eps):
        return decode(certificate({"type": "Identity", "n": 4}, {"type": "EveryStep"}, eps, 1e-5, 9.0))

    certifier = records.Certifier(1.0, np.random.default_rng(1))
    assert all(certifier.of(document(1.0 + k)).claim for k in range(8))
    monkeypatch.setattr(claims, "_MOST_STEPS", 12)
    certifier = records.Certifier(1.0, np.random.default_rng(1))
    assert [certifier.of(document(1.0)).claim is None for _ in range(4)] == [False, False, False, True]


def test_other_documents_are_refused():
    for changes in ({"schema_version": 2}, {"more": 1}, {"certificate": 1}, {"run": 1}):
        content = HONEST | changes
        with pytest.raises(BadDocument):
            check_text(json.dumps(with_checksum(content)))
    inner = copy.deepcopy(HONEST)
    inner["certificate"]["claim"]["n"] = 13
    with pytest.raises(BadDocument, match="checksum"):
        check_text(json.dumps(with_checksum(inner)))
    with pytest.raises(BadDocument, match="no ledger"):
        check_text(rehashed(HONEST), total=(1.0, 1e-5))


def test_a_text_is_what_a_file_is(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(rehashed(HONEST), encoding="utf-8")
    assert check_file(path) == check_text(path.read_bytes()) == check_text(path.read_text(encoding="utf-8"))
    with pytest.raises(BadDocument, match="not JSON"):
        check_text("\ud800")


# ---- Nodes of profiles. Those of independent bins are known to four digits, without any draws.


@functools.cache
def with_profile(strategy):
    cal = dm.calibrate_sigma(strategy, 2.0, 1e-4, participation=dm.BallsInBins(6), rng=1)
    return cal.certificate(profile=cal.profile()).to_dict()


ALONE, DRAWN = dm.Identity(24), dm.LambdaCGD(24, 0.5)


def with_nodes(factor, every=16, first=0, strategy=ALONE, **sides):
    """The certificate with some of its nodes, their upper ends times a factor."""
    document = copy.deepcopy(with_profile(strategy))
    document["claim"]["eps"] = plain(2.3)  # the claim alone takes few draws then
    curve = document["evidence"]["profile"]["curves"][0]
    for name in ("remove", "add"):
        kept = {end: values["decimal"][first:80:every] for end, values in curve[name].items()}
        kept["upper"] = [min(1.0, upper * sides.get(name, factor)) for upper in kept["upper"]]
        curve[name] = plain(kept)
    curve.pop("larger", None)
    return document


@pytest.mark.parametrize(
    ("strategy", "factor"), [(ALONE, 1.01), pytest.param(DRAWN, 1.1, marks=pytest.mark.slow)]
)
def test_nodes_are_proved(strategy, factor):
    verdict = checked(with_nodes(factor, strategy=strategy), seconds=30.0)
    assert verdict.kind is Kind.PROVED
    assert "10 of 10 upper ends of the profile hold" in verdict.reason
    assert verdict.unchecked[0] == "lower ends of the privacy profile"
    assert (verdict.failure > 0.0) == (strategy is DRAWN)
    assert verdict.failure <= 2.0 * decide.FAILURE


@pytest.mark.parametrize("side", ["remove", "add"])
def test_a_node_that_is_too_low_is_refuted(side):
    verdict = checked(with_nodes(1.1, every=40, **{side: 0.93}), seconds=60.0)
    assert verdict.kind is Kind.REFUTED
    assert f"the profile has {side.upper()} at eps" in verdict.reason


@pytest.mark.slow
def test_nodes_without_time_are_counted():
    verdict = checked(with_nodes(1.1, strategy=DRAWN), seconds=1e-9)
    assert "10 of 10 upper ends of the privacy profile" in verdict.unchecked
    assert verdict.kind is Kind.NOT_CHECKED
    # The closed form is that of the worst bin alone.
    loose = with_nodes(1.0, every=60)
    for side in ("remove", "add"):
        loose["evidence"]["profile"]["curves"][0][side]["upper"] = plain([0.999, 0.999])
    assert "4 of 4 upper ends of the profile hold" in checked(loose, seconds=5.0).reason


def test_of_equal_nodes_the_first_one_is_drawn_for():
    document = with_nodes(1.2, every=79)
    for side in ("remove", "add"):
        nodes = document["evidence"]["profile"]["curves"][0][side]
        first = nodes["upper"]["decimal"][0]
        nodes["eps"], nodes["upper"] = plain([0.0, 1.0, 2.0]), plain([first, first, 0.0])
        nodes["lower"] = plain([0.0, 0.0, 0.0])
    verdict = checked(document, seconds=30.0)
    assert "4 of 6 upper ends of the profile hold" in verdict.reason
    assert "2 of 6 upper ends of the privacy profile" in verdict.unchecked


@pytest.mark.parametrize("times", [[], [0], [2], [1, 1]])
def test_a_profile_of_one_mechanism_is_one_curve(times):
    """Nodes of a second curve are not behind those of the first one, though an equal upper end was proved."""
    document = with_nodes(1.1, every=40)
    curves = document["evidence"]["profile"]["curves"]
    curves[:] = [copy.deepcopy(curves[0]) | {"times": count} for count in times]
    if len(times) == 2:
        for curve, eps in zip(curves, (3.0, 0.0), strict=True):
            for side in ("remove", "add"):
                curve[side] = plain({"eps": [eps], "lower": [0.0], "upper": [1e-4]})
    with pytest.raises(BadDocument, match="curves that are composed"):
        checked(document)


def test_every_attempt_to_prove_a_node_may_err(monkeypatch):
    found = records.Certifier(1.0, np.random.default_rng(1)).of(decode(with_nodes(1.1, strategy=DRAWN)))
    undecided = iter([True, False] * 5)
    monkeypatch.setattr(
        records.Certifier,
        "nodes",
        lambda self, found, sides, failure: (
            (name, node, Answer(verdict=next(undecided) or None, number="", failure=failure))
            for name, nodes in sides.items()
            for node in nodes
        ),
    )
    claim = dataclasses.replace(found.verdict, failure=0.0)
    whole = records.Certifier(1.0, np.random.default_rng(1))._with_profile(
        dataclasses.replace(found, verdict=claim)
    )
    assert "5 of 10 upper ends" in whole.verdict.reason
    assert whole.verdict.failure == pytest.approx(decide.FAILURE)


class Nodes:
    """Answers to nodes from a list, each after so many seconds; what was asked is kept."""

    names = ("REMOVE", "ADD")

    def __init__(self, answers, clock=None, seconds=0.0):
        self.answers, self.clock, self.seconds, self.asked = iter(answers), clock, seconds, []

    def answer(self, name, eps, delta, work):
        self.asked.append((name, eps, delta, work.failure, work.seconds))
        if self.clock is not None:
            self.clock[0] += self.seconds
        return next(self.answers)


def nodes_found(shape, profile, failure=3e-10, seconds=8.0):
    """What comes of a proved claim whose profile has these nodes."""
    certifier = records.Certifier(seconds, np.random.default_rng(1))
    claim = Verdict(Kind.PROVED, "the claim", "as given", failure)
    return certifier._with_profile(
        records.Certified(claim_with({"type": "EveryStep"}), shape, claim, profile)
    )


def spread(count, side=lambda k: 0.5 / (k + 1)):
    return {name: [(float(k), side(k)) for k in range(count)] for name in ("REMOVE", "ADD")}


def test_failure_and_time_are_shared_by_the_nodes():
    sure, drawn = Answer(verdict=True, number="x"), Answer(verdict=True, number="x", failure=1e-11)
    shape = Nodes([sure, drawn, drawn, Answer(verdict=None, number="x", failure=1e-12)])
    verdict = nodes_found(shape, spread(2)).verdict
    assert [asked[3:] for asked in shape.asked] == [(decide.FAILURE / 4, 2.0)] * 4
    assert [asked[:3] for asked in shape.asked] == [
        ("ADD", 0.0, 0.5), ("REMOVE", 0.0, 0.5), ("ADD", 1.0, 0.25), ("REMOVE", 1.0, 0.25),
    ]  # fmt: skip
    assert (verdict.kind, "3 of 4 upper ends" in verdict.reason) == (Kind.PROVED, True)
    assert verdict.failure == pytest.approx(3e-10 + 2e-11 + 1e-12, rel=1e-12)
    assert verdict.unchecked[0] == "1 of 4 upper ends of the privacy profile"
    shape = Nodes(itertools.repeat(sure))
    assert nodes_found(shape, spread(60)).verdict.failure == 3e-10
    assert {asked[3:] for asked in shape.asked} == {(decide.FAILURE / 120, 0.08)}
    shape = Nodes(itertools.repeat(sure))
    nodes_found(shape, {"REMOVE": [(0.0, 0.5)], "ADD": []})
    assert shape.asked == [("REMOVE", 0.0, 0.5, decide.FAILURE, 8.0)]


@pytest.mark.parametrize(("failure", "whole"), [(0.0, 3e-10), (1e-12, 3e-10 + decide.FAILURE)])
def test_a_refuted_node_refutes_the_certificate(failure, whole):
    right, wrong = Answer(verdict=True, number="x", failure=1e-11), Answer(False, "too large", failure)
    verdict = nodes_found(Nodes([right, wrong]), spread(2)).verdict
    assert verdict.kind is Kind.REFUTED
    assert verdict.failure == pytest.approx(whole, rel=1e-12)
    assert "REMOVE at eps 0.0 at most 0.5: it is too large" in verdict.reason


def test_nodes_are_decided_while_there_is_time(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(records.time, "process_time", lambda: clock[0])
    shape = Nodes(itertools.repeat(Answer(verdict=True, number="x")), clock, 1.0)
    verdict = nodes_found(shape, spread(10), seconds=3.5).verdict
    assert len(shape.asked) == 4
    assert "4 of 20 upper ends of the profile hold" in verdict.reason
    # Delta is at most 1, whatever the mechanism; and never 0, which nobody is asked for.
    shape = Nodes([])
    verdict = nodes_found(shape, spread(2, side=float)).verdict
    assert (shape.asked, "2 of 4 upper ends" in verdict.reason) == ([], True)


def fresh(factor, times=(2, 1)):
    """Nodes of one epoch with bins that are chosen again in every epoch; the second epoch has more noise."""
    strategy = {"type": "Diagonal", "entries": [2.0, 2.0, 1.0, 1.0, 2.0, 2.0]}
    document = certificate(strategy, {"type": "BallsInBins", "fresh": True, "bins": 2}, 1.0, 1e-3, 12.0)
    curves = []
    for count, norm in zip(times, (2.0, 1.0), strict=False):
        epoch = dm.Mechanism(dm.Identity(2), dm.BallsInBins(2))
        true = [dm.delta(epoch, 12.0 / norm, eps).upper for eps in (0.0, 0.02)]
        side = {"eps": [0.0, 0.02], "lower": [0.0, 0.0], "upper": [factor * delta for delta in true]}
        curves.append({"times": count, "remove": plain(side), "add": plain(side)})
    document["evidence"]["profile"] = {"guarantee": {}, "by": {}, "curves": curves}
    return document


def test_nodes_of_fresh_bins_are_those_of_one_epoch():
    verdict = checked(fresh(1.01))
    # Proved are those of the epochs with the largest columns; the others are below what they might cost.
    assert (verdict.kind, verdict.open_nodes) == (Kind.PROVED, (4, 8))
    assert "4 of 8 upper ends of the privacy profile" in verdict.unchecked
    refuted = checked(fresh(0.9))
    assert refuted.kind is Kind.REFUTED
    assert "the profile has ADD at eps 0.0" in refuted.reason
    for times in ((2,), (1, 1), (3, 1)):
        with pytest.raises(BadDocument, match=r"composed '?\["):
            checked(fresh(1.01, times))


def test_a_proved_node_of_one_epoch_says_nothing_about_a_smaller_eps_of_another():
    """An upper end that was proved is taken over at larger eps only; curves of several epochs overlap."""
    document = fresh(1.01)
    for curve, eps in zip(document["evidence"]["profile"]["curves"], (1.0, 0.0), strict=True):
        for side in ("remove", "add"):
            curve[side] = plain({"eps": [eps], "lower": [0.0], "upper": [1e-3]})
    verdict = checked(document)
    assert verdict.kind is Kind.REFUTED
    assert "at eps 0.0 at most 0.001" in verdict.reason


def test_nodes_of_fresh_bins_without_a_theorem_are_left_open():
    document = with_nodes(1.1, strategy=DRAWN)
    document["claim"]["participation"] = filled({"type": "BallsInBins", "fresh": True, "bins": 24})
    verdict = checked(document, seconds=1.0)
    assert (verdict.kind, verdict.open_nodes) == (Kind.NOT_CHECKED, (10, 10))
    assert "10 of 10 upper ends of the privacy profile" in verdict.unchecked


def test_nodes_of_one_epoch_are_none_of_a_release_in_a_total():
    """Those of one epoch are below those of several, and would make a total too small."""
    certifier = records.Certifier(2.0, np.random.default_rng(1))
    found = certifier.of(decode(fresh(1.01)))
    own = {"name": "a", "delta": 1e-3, "price": [], "runs": None}
    (remove, _), failure = ledgers._known(ledgers._Release(**vars(found), **own), 1e-3, certifier)
    assert failure == 0.0
    assert remove.curve(arb(1)) > 0.4  # what (1, 1e-3) alone allows; nodes have a tenth of it


def test_nodes_of_every_mechanism_are_decided():
    document = with_nodes(1.0)
    sigma = document["claim"]["sigma"]["decimal"]
    document["claim"] |= {"participation": {"type": "EveryStep"}, "eps": plain(200.0)}
    for noise, kind in ((10.0 * sigma, Kind.PROVED), (sigma, Kind.REFUTED)):
        document["claim"]["sigma"] = plain(noise)
        verdict = checked(document, seconds=1.0)
        assert (verdict.kind, verdict.failure) == (kind, 0.0)
    document["claim"]["participation"] = filled({"type": "Poisson", "sampling_prob": plain(1e-3)})
    assert "10 of 10 upper ends of the profile hold" in checked(document, seconds=20.0).reason


@pytest.mark.parametrize(
    ("side", "words"),
    [
        ({"eps": plain([1.0, 0.0]), "lower": plain([0.0, 0.0]), "upper": plain([1.0, 1.0])}, "not in order"),
        ({"eps": plain([0.0]), "lower": plain([0.0]), "upper": plain([1.0, 1.0])}, "not as many"),
        ({"eps": plain([-1.0]), "lower": plain([0.0]), "upper": plain([1.0])}, "floats >= 0"),
        ({"eps": plain([0.0]), "lower": plain([0.0]), "upper": ["1"]}, "floats >= 0"),
        ({"eps": plain([0.0]), "lower": plain([0.0])}, "other entries"),
        (1, "other entries"),
    ],
)
def test_profiles_that_are_none_are_refused(side, words):
    document = with_nodes(1.1)
    document["evidence"]["profile"]["curves"][0]["add"] = side
    with pytest.raises(BadDocument, match=words):
        checked(document, seconds=0.1)
    curves = with_nodes(1.1)["evidence"]["profile"]["curves"]
    for profile in (
        {},
        1,
        *({"guarantee": {}, "by": {}, "curves": all_} for all_ in ([1], 100 * curves + [1])),
    ):
        document["evidence"]["profile"] = profile
        with pytest.raises(BadDocument, match="other entries"):
            checked(document, seconds=0.1)


def test_steps_of_a_file_are_limited(monkeypatch):
    monkeypatch.setattr(claims, "_MOST_STEPS", 11)
    verdict = checked(copy.deepcopy(HONEST))
    assert verdict.kind is Kind.NOT_CHECKED
    assert verdict.reason == "certificates of more than 11 steps in one file"
