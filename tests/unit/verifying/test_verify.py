"""dm.verify: the checker decides the claim; labels, files and runs are looked at besides."""

import ast
import dataclasses
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.certificates.document import checksum_of_document, to_text
from dpmech.checker import BadDocument, Kind, Verdict
from dpmech.cli import main
from dpmech.engines.gaussian_mixture.proposal import Proposal
from dpmech.verifying import Check, Question, Verification, claims
from tests.support import saved
from tests.support.forged_files import changed, text_with_checksum
from tests.support.quick_cases import slow_but
from tests.support.reviewed import run_of

ADD = dm.Adjacency.ADD_REMOVE


def issue(strategy, participation, method=None, eps=2.0, delta=1e-5, **settings):
    return dm.calibrate_sigma(
        strategy, eps, delta, participation=participation, method=method, **settings
    ).certificate(clip_norm=1.0, expected_batch_size=10)


EXACT = issue(dm.LambdaCGD(36, 0.9), dm.MinSep(12, 3))
SIGNED = issue(dm.BandedToeplitz(16, [1.0, 0.5, -0.4]), dm.EveryStep())
POISSON, CYCLIC, BINS, MOMENTS, PROGRAM = (
    saved.certificate(name).certificate(clip_norm=1.0, expected_batch_size=10)
    for name in ("poisson 40", "cyclic 20", "bins 24", "bins moments 24", "bins program 24")
)
ALL = {"exact": EXACT, "signed": SIGNED, "poisson": POISSON, "cyclic": CYCLIC, "bins": BINS,
       "moments": MOMENTS, "program": PROGRAM}  # fmt: skip


@pytest.mark.parametrize("name", list(ALL))
def test_an_honest_certificate_is_verified(name):
    found = dm.verify(ALL[name])
    assert found.ok, found.failures
    assert bool(found)
    assert (found.claim, found.failures, found.refuted) == (Kind.PROVED, (), ())
    assert found.certificate == ALL[name]
    assert found.proved[0].startswith("claim: PROVED")
    assert "hashes, and the expected batch size" in found.not_checked
    assert (found.failure > 0.0) is (name in ("bins", "moments", "program"))
    assert "VERIFIED" in str(found)
    assert ALL[name].headline in str(found)
    assert "claim PROVED" in str(found)
    assert all(str(check).startswith(check.name) for check in found.checks)
    plain = json.loads(json.dumps(found.to_dict()))
    assert (plain["ok"], plain["claim"]["verdict"], plain["run_follows"]) == (True, "PROVED", None)


FORGERIES = {
    "sigma 2 % lower": lambda c: {"sigma": 0.98 * c.sigma},
    "sigma 2 % higher": lambda c: {"sigma": 1.02 * c.sigma},
    "sigma half": lambda c: {"sigma": 0.5 * c.sigma},
    "eps lower": lambda c: {"budget": dm.PrivacyBudget(0.97 * c.budget.eps, c.budget.delta)},
    "eps higher": lambda c: {"budget": dm.PrivacyBudget(1.05 * c.budget.eps, c.budget.delta)},
    "delta lower": lambda c: {"budget": dm.PrivacyBudget(c.budget.eps, 0.5 * c.budget.delta)},
    "more steps": lambda c: {"strategy": longer(c)},
    "other coefficients": lambda c: {"strategy": other(c)},
    "sensitivity lower": lambda c: {"sensitivity": c.sensitivity.scaled(0.98)},
    "sensitivity higher": lambda c: {"sensitivity": c.sensitivity.scaled(1.02)},
    "achieved lower": lambda c: {"achieved": c.achieved.scaled(0.97)},
}


def longer(c):
    match c.strategy:
        case dm.LambdaCGD():
            return dm.LambdaCGD(2 * c.strategy.n, c.strategy.lam)
        case dm.Identity():
            return dm.Identity(2 * c.strategy.n)
        case dm.SquareRoot():
            return dm.SquareRoot(2 * c.strategy.n, c.strategy.bands)
        case _:
            return dm.BandedToeplitz(2 * c.strategy.n, c.strategy.coefs)


def other(c):
    match c.strategy:
        case dm.LambdaCGD():
            return dm.LambdaCGD(c.strategy.n, c.strategy.lam + 0.05)
        case dm.Identity():
            return dm.Diagonal(np.full(c.strategy.n, 1.02))
        case dm.SquareRoot():
            return dm.SquareRoot(c.strategy.n, c.strategy.bands + 1)
        case _:
            return dm.BandedToeplitz(c.strategy.n, c.strategy.coefs * np.array([1.0, 1.1, 1.0]))


# Looser statements that are true, of which nothing is left to refuse; moments leave room below their sigma.
HARMLESS = {
    *((name, "eps higher") for name in ("exact", "signed", "poisson", "cyclic", "moments")),
    *((name, "sigma 2 % higher") for name in ALL),
    *(("moments", forgery) for forgery in ("sigma 2 % lower", "delta lower", "achieved lower")),
    ("program", "sigma 2 % lower"),
}
SAMPLED = ("poisson", "cyclic", "bins", "moments", "program")
QUICK = {("bins", "delta lower"), ("moments", "sensitivity lower"), ("program", "sigma half")}
QUICK |= {("poisson", "sigma 2 % lower"), ("poisson", "achieved lower"), ("poisson", "sigma 2 % higher")}
QUICK |= {("cyclic", "eps lower"), ("cyclic", "more steps"), ("cyclic", "other coefficients")}


@pytest.mark.parametrize(
    ("name", "forgery"),
    [
        pytest.param(name, forgery, marks=[pytest.mark.slow] if name in SAMPLED and case not in QUICK else [])
        for name in ALL
        for forgery in FORGERIES
        for case in [(name, forgery)]
    ],
)
def test_rehashed_forgeries_are_refused(tmp_path, name, forgery):
    forged = with_checksum(changed(ALL[name], **FORGERIES[forgery](ALL[name])))
    path = tmp_path / "forged.json"
    forged.save(path)
    assert dm.Certificate.load(path) == forged
    found = dm.verify(path)
    assert found.ok is ((name, forgery) in HARMLESS), str(found)
    if not found.ok:
        assert "REFUSED" in str(found) or (found.undecided and name == "signed")
        assert len(str(found).splitlines()) == len(found.failures)


OTHER_CLAIMS = [
    ("exact", {"participation": dm.MinSep(6, 3)}),
    ("exact", {"participation": dm.MinSep(12, 2)}),
    ("exact", {"participation": dm.EveryStep()}),
    ("exact", {"participation": dm.SingleParticipation()}),
    ("exact", {"adjacency": dm.Adjacency.REPLACE_ONE}),
    ("exact", {"kind": "BOUND"}),
    ("poisson", {"participation": dm.Poisson(0.11)}),
    ("poisson", {"participation": dm.Poisson(0.09)}),
    ("poisson", {"strategy": dm.LambdaCGD(40, 0.5)}),
    ("poisson", {"kind": "EXACT"}),
    ("cyclic", {"participation": dm.CyclicPoisson(0.25, 5)}),
    ("cyclic", {"participation": dm.CyclicPoisson(0.2, 4)}),
    ("cyclic", {"participation": dm.CyclicPoisson(0.2, 2)}),
    ("bins", {"participation": dm.BallsInBins(4)}),
    ("bins", {"participation": dm.FixedEpochs(3)}),
    ("bins", {"kind": "BOUND"}),
    ("bins", {"kind": "PROBABLE"}),
    ("bins", {"strategy": dm.BandedToeplitz(24, [1.0, -0.5])}),
    ("program", {"kind": "EXACT"}),
]


# Without sampling, and of each sampling one that states too little: quick.
@pytest.mark.parametrize(("name", "change"), slow_but(OTHER_CLAIMS, *range(6), 7, 8, 11, 13, 17), ids=repr)
def test_other_rehashed_claims_are_refused(name, change):
    own = ALL[name]
    if "kind" in change:
        kind = dm.Kind[change["kind"]]
        guarantee = dm.Guarantee(kind, 1e-9 if kind >= dm.Kind.PROBABLE else 0.0)
        # An exact value is known to a millionth.
        ends = {"lower": own.achieved.upper} if kind is dm.Kind.EXACT else {}
        change = {"achieved": dataclasses.replace(own.achieved, guarantee=guarantee, **ends)}
    assert not dm.verify(changed(own, **change)).ok


@pytest.mark.parametrize("times", [1.02, 10.0, 1e6])
def test_far_too_much_noise_without_sampling_is_true_and_loose(times):
    own = with_checksum(changed(ALL["exact"], sigma=times * ALL["exact"].sigma))
    found = dm.verify(own)
    assert found.ok
    assert found.loose
    assert str(found) == "certificate: VERIFIED: true and loose: more noise than this eps needs; claim PROVED"
    assert found.to_dict()["guarantee"] == "true and loose: more noise than this eps needs"
    assert any("LOOSE: achieved eps is at least" in str(check) for check in found.checks)
    assert not dm.verify(ALL["exact"]).loose
    # Not exact, so that a policy which asks for exact numbers refuses it.
    strict = dm.Policy(forbidden_guarantees=(dm.Kind.BOUND,))
    assert dm.verify(ALL["exact"], policy=strict).ok
    assert not dm.verify(own, policy=strict).ok


def test_a_bound_that_calls_itself_exact_is_told_to_be_loose():
    own = ALL["signed"]
    guarantee = dm.Guarantee(dm.Kind.EXACT)
    ends = dataclasses.replace(own.achieved, guarantee=guarantee, lower=own.achieved.upper)
    found = dm.verify(changed(own, achieved=ends))
    assert found.loose or not found.ok
    assert "exact" not in str(found)


def test_an_adjacency_that_no_theorem_covers_is_refused():
    users = dm.calibrate_sigma(dm.Identity(8), 2.0, 1e-5, participation=dm.Poisson(0.1, 2)).certificate()
    with pytest.raises(dm.UnsupportedCombinationError, match="no bound is proven for REPLACE_ONE"):
        changed(users, adjacency=dm.Adjacency.REPLACE_ONE)
    document = json.loads(users.to_json())
    document["claim"]["adjacency"] = "replace_one"
    with pytest.raises(
        dm.exceptions.CertificateError, match="could have made: no bound is proven for REPLACE_ONE"
    ):
        dm.Certificate.from_json(text_with_checksum(document))


@pytest.mark.parametrize("kind", ["EXACT", "BOUND"])
@pytest.mark.parametrize("name", ["exact", "signed"])
def test_a_sensitivity_is_labelled_by_its_ends(name, kind):
    own = ALL[name]
    if name == "signed" and kind == "EXACT":
        with pytest.raises(dm.InvalidParameterError, match="agree to 1e-6"):
            dataclasses.replace(own.sensitivity, guarantee=dm.Guarantee(dm.Kind.EXACT))
        return
    given = dataclasses.replace(own.sensitivity, guarantee=dm.Guarantee(dm.Kind[kind]))
    forged = dataclasses.replace(own, sensitivity=given)
    assert dm.verify(forged).ok == (given == own.sensitivity)


@pytest.mark.parametrize(
    ("name", "accountant", "kind", "error"),
    [
        # A label that the accountant does not give.
        ("bins", dm.methods.Importance(), "ESTIMATE", 0.01),
        # An accountant that would not have ended there.
        ("bins", dm.methods.Rdp(), "BOUND", 0.0),
        ("bins", dm.methods.Certified(), "PROBABLE", 0.1),
        # One that does not cover the claim.
        ("bins", dm.methods.Pld(), "BOUND", 0.0),
        ("poisson", dm.methods.Importance(), "ESTIMATE", 1.0 - 0.9999),
    ],
    ids=repr,
)
def test_another_accountant_is_refused(name, accountant, kind, error):
    own = ALL[name]
    forged = dataclasses.replace(
        own,
        evidence=dataclasses.replace(own.evidence, accountant=accountant),
        achieved=dataclasses.replace(own.achieved, guarantee=dm.Guarantee(dm.Kind[kind], error)),
    )
    assert not dm.verify(forged).ok


def test_what_no_computation_can_contradict_breaks_the_checksum():
    for change in (
        {"clip_norm": 2.0},
        {"expected_batch_size": 20.0},
        {"achieved": dataclasses.replace(EXACT.achieved, by=dm.numerics.Provenance("better"))},
        {"versions": (("dpmech", "9.9"),)},
        {"evidence": dataclasses.replace(EXACT.evidence, rng_supplied=True)},
    ):
        document = dataclasses.replace(EXACT, **change).to_dict()
        assert document["checksum"] != EXACT.to_dict()["checksum"]
        found = dm.Certificate.from_json(to_text(document))
        assert found.fingerprint() == EXACT.fingerprint()
        with pytest.raises(dm.exceptions.CertificateError, match="the checksum is broken"):
            dm.Certificate.from_json(to_text(document | {"checksum": EXACT.to_dict()["checksum"]}))


def test_a_certificate_from_another_platform_is_verified():
    evidence = dataclasses.replace(EXACT.evidence, machine="aarch64", longdouble_bits=53)
    elsewhere = dataclasses.replace(EXACT, evidence=evidence)
    found = dm.Certificate.from_json(elsewhere.to_json())
    assert (found.evidence.machine, found.evidence.longdouble_bits) == ("aarch64", 53)
    assert dm.verify(found).ok


@pytest.mark.parametrize("bits", [52, 64.0, "64", None])
def test_a_platform_that_cannot_be_is_refused(bits):
    document = EXACT.to_dict()
    document["evidence"]["platform"]["longdouble_bits"] = bits
    with pytest.raises(dm.exceptions.CertificateError, match="longdouble_bits"):
        dm.Certificate.from_json(to_text(document | {"checksum": checksum_of_document(document)}))


def test_rigorous_refuses_an_estimate_and_nothing_else():
    refused = dm.verify(BINS, rigorous=True)
    assert refused.failures == ("rigour: the claim is based on an estimate, a rigorous one was asked for",)
    for certificate in (EXACT, SIGNED, MOMENTS, PROGRAM):
        assert dm.verify(certificate, rigorous=True).ok


def test_files(tmp_path):
    path = tmp_path / "certificate.json"
    EXACT.save(path)
    assert dm.verify(path).ok
    assert dm.verify(str(path)).source == str(path)
    path.write_text(path.read_text().replace('"n": 36', '"n": 35', 1))
    found = dm.verify(path)
    assert found.failures[0].startswith("file: the checksum is broken")
    assert found.certificate is None
    assert found.claim is None
    assert found.to_dict()["guarantee"] is None
    path.write_text("{}")
    assert "no schema_version" in dm.verify(path).failures[0]
    with pytest.raises(dm.InvalidParameterError, match="certificate must be a readable file"):
        dm.verify(tmp_path / "missing.json")
    with pytest.raises(
        dm.InvalidParameterError, match="must be a path, a Certificate, a RunRecord or a Ledger"
    ):
        dm.verify(3)


def test_absurd_numbers_are_refused_without_a_warning():
    for name in ("exact", "poisson", "bins"):
        for sigma in (1e-300, 1e-30):
            found = dm.verify(dataclasses.replace(ALL[name], sigma=sigma))
            assert not found.ok
            assert name != "poisson" or "by one release alone" in "".join(found.failures)
        # More noise than needed: true, and loose where the file says that the eps is exact.
        found = dm.verify(dataclasses.replace(ALL[name], sigma=1e6))
        assert found.ok
        assert found.loose is (name == "exact")
        assert name != "bins" or not dm.verify(dataclasses.replace(ALL[name], sigma=1e300)).ok
    budget = dm.PrivacyBudget(1e300, 1e-300)
    assert not dm.verify(dataclasses.replace(POISSON, budget=budget)).ok


def rehashed(certificate, change, tmp_path):
    document = json.loads(json.dumps(certificate.to_dict()))
    change(document)
    target = tmp_path / "forged.json"
    target.write_text(to_text(document | {"checksum": checksum_of_document(document)}))
    return target


def number(value):
    return {"decimal": value, "hex": float(value).hex()}


def test_a_sensitivity_of_zero_is_refused(tmp_path):
    def change(document):
        document["evidence"]["sensitivity"].update(lower=number(0.0), upper=number(0.0))

    found = dm.verify(rehashed(EXACT, change, tmp_path))
    assert not found.ok
    assert "sensitivity: stated [0, 0]" in found.failures[0]


@pytest.mark.parametrize("rtol", [0.0, 0.6, 1e300])
def test_a_tolerance_that_no_calibration_takes_is_refused(rtol):
    found = dm.verify(dataclasses.replace(EXACT, evidence=dataclasses.replace(EXACT.evidence, rtol=rtol)))
    assert not found.ok
    assert "rtol" in found.failures[0]


def test_infinite_numbers_are_refused(tmp_path):
    text = json.dumps(EXACT.to_dict())
    shown = json.dumps(EXACT.to_dict()["claim"]["sigma"])
    assert text.count(shown) >= 1
    (tmp_path / "forged.json").write_text(text.replace(shown, '{"decimal": 1e999, "hex": "inf"}'))
    found = dm.verify(tmp_path / "forged.json")
    assert not found.ok
    assert found.certificate is None


@pytest.mark.parametrize("depth", [300, 490, 900])
def test_strategies_nested_without_end_are_refused(depth, tmp_path):
    normalized = issue(dm.ColumnNormalized(dm.LambdaCGD(6, 0.5)), dm.MinSep(3))

    def change(document):
        outer = document["claim"]["strategy"]
        for _ in range(depth):
            outer = outer | {"strategy": outer}
        document["claim"]["strategy"] = outer

    found = dm.verify(rehashed(normalized, change, tmp_path))
    assert found.certificate is None
    assert found.failures == ("file: not JSON: nested more than 64 levels deep",)


def test_a_strategy_may_be_nested_a_little(tmp_path):
    strategy = dm.LambdaCGD(6, 0.5)
    for _ in range(20):
        strategy = dm.ColumnNormalized(strategy)
    path = tmp_path / "twenty.json"
    issue(strategy, dm.MinSep(3)).save(path)
    assert dm.Certificate.load(path).strategy == strategy


def test_a_claim_whose_error_is_infinite_has_no_certificate():
    cal = dm.calibrate_sigma(dm.BandedToeplitz(600, [1.0, 1.9]), 1.0, 1e-5, participation=dm.MinSep(10))
    with np.errstate(over="ignore"):
        assert cal.rmse() == np.inf
        certificate = cal.certificate()
        with pytest.raises(dm.exceptions.CertificateError, match="no document can hold this"):
            certificate.to_json()
        assert not dm.verify(certificate).ok


def test_a_fault_of_the_library_does_not_pass(monkeypatch):
    """A certificate made by a faulty accountant is refused although the same fault verifies it."""
    from dpmech.engines import gaussian

    honest = gaussian.gaussian_log_delta
    monkeypatch.setattr(gaussian, "gaussian_log_delta", lambda sigma, eps: honest(1.02 * sigma, eps))
    wrong = issue(dm.LambdaCGD(36, 0.9), dm.MinSep(12, 3))
    assert wrong.sigma < 0.99 * EXACT.sigma
    assert dm.verify(wrong).claim is Kind.REFUTED


def test_a_sensitivity_that_the_library_gets_wrong_does_not_pass(monkeypatch):
    def half(own):
        return dm.sensitivity(own.strategy, own.participation).scaled(0.5)

    monkeypatch.setattr(dm.Mechanism, "sensitivity", property(half))
    found = dm.verify(issue(dm.LambdaCGD(36, 0.9), dm.MinSep(12, 3)))
    assert found.claim is Kind.REFUTED


@pytest.mark.parametrize(
    ("plan", "budget", "lost"),
    [
        ((dm.LambdaCGD(24, 0.9), dm.BallsInBins(8)), (2.0, 1e-5), (0.90, 0.99)),
        pytest.param(
            (dm.LambdaCGD(3900, 0.9), dm.BallsInBins(390)), (8.0, 1e-5), (2.85, 2.89), marks=pytest.mark.slow
        ),
    ],
    ids=["24 steps", "README"],
)
def test_halved_importance_weights_are_refuted(plan, budget, lost, monkeypatch, tmp_path):
    """The weights that certify a sampled claim are halved, and stay so: sigma is too small."""
    weights, levels = Proposal.log_weights, Proposal.level_weights
    half = math.log(2.0)
    honest = (
        dm.calibrate_sigma(plan[0], *budget, participation=plan[1], rtol=1e-2) if plan[0].n < 100 else None
    )
    monkeypatch.setattr(Proposal, "log_weights", lambda *given: weights(*given) - half)
    monkeypatch.setattr(Proposal, "level_weights", lambda *given: levels(*given) - half)
    method = dm.methods.Certified()
    cal = dm.calibrate_sigma(plan[0], *budget, participation=plan[1], rtol=1e-2, method=method)
    assert lost[0] < (cal.sigma if honest is None else cal.sigma / honest.sigma) < lost[1]
    path = tmp_path / "halved.json"
    cal.certificate().save(path)
    found = dm.verify(path)
    assert (found.ok, found.claim, found.undecided) == (False, Kind.REFUTED, False)
    assert found.failures[0].startswith("claim: REFUTED except with probability")
    done = CliRunner().invoke(main, ["verify", str(path)])
    assert (done.exit_code, "REFUSED: claim: REFUTED" in done.stdout) == (1, True)


def test_a_claim_that_is_not_checked_is_not_ok(tmp_path):
    """With columns of both signs the sensitivity is known up to a factor."""
    loose = changed(SIGNED, sigma=0.98 * SIGNED.sigma)
    found = dm.verify(loose)
    assert (found.ok, found.claim, found.undecided) == (False, Kind.NOT_CHECKED, True)
    (line,) = (one for one in found.failures if one.startswith("claim"))
    assert "NOT CHECKED" in line
    assert "allow more CPU time (max_seconds)" in line
    assert all("NOT CHECKED: " in one for one in str(found).splitlines())
    assert found.to_dict()["claim"]["not_checked"][0] == line
    with_checksum(loose).save(tmp_path / "loose.json")
    EXACT.save(tmp_path / "exact.json")
    with_checksum(changed(EXACT, sigma=0.9 * EXACT.sigma)).save(tmp_path / "refuted.json")

    def run(*names, command="verify"):
        return CliRunner().invoke(main, [command, *(str(tmp_path / name) for name in names)])

    assert run("loose.json").exit_code == 3
    assert run("exact.json", "loose.json").exit_code == 3
    assert run("exact.json", "loose.json", "refuted.json").exit_code == 1
    assert run("exact.json", "loose.json", "missing.json").exit_code == 2


@pytest.mark.parametrize("seconds", [0.5, 7.0, None])
def test_the_checker_gets_the_cpu_time_that_was_asked_for(seconds, monkeypatch):
    given = []

    def checked(text, *, seconds):
        given.append(seconds)
        return Verdict(Kind.PROVED, "a claim", "a reason")

    monkeypatch.setattr(claims, "check_text", checked)
    dm.verify(POISSON, **({} if seconds is None else {"max_seconds": seconds}))
    due = 60.0 if seconds is None else seconds
    assert given == [due, min(due, 5.0)]


def test_what_the_checker_cannot_read_is_refused(monkeypatch):
    def unread(*_, **__):
        raise BadDocument("it has no claim")

    monkeypatch.setattr(claims, "check_text", unread)
    found = dm.verify(POISSON)
    assert (found.ok, found.claim, found.undecided) == (False, None, False)
    assert found.failures == ("claim: the checker refuses the file: it has no claim",)


def test_an_upper_end_that_draws_do_not_decide_is_told_and_blocks_nothing(monkeypatch):
    calls = []

    def checked(text, **_):
        calls.append(text)
        kind = Kind.PROVED if len(calls) == 1 else Kind.NOT_CHECKED
        return Verdict(kind, "a claim", "too close", unchecked=("a part",))

    monkeypatch.setattr(claims, "check_text", checked)
    found = dm.verify(POISSON)
    assert found.ok
    assert "achieved NOT CHECKED: achieved eps is at most 1.99" in str(found)
    assert found.not_checked[0].startswith("achieved: NOT CHECKED: achieved eps is at most 1.99")
    assert found.not_checked[1:] == ("a part",)
    assert json.loads(calls[1])["claim"]["eps"]["decimal"] == POISSON.achieved.upper
    # Without sampling there is a closed form, so that it has to be shown.
    calls.clear()
    assert dm.verify(changed(EXACT, budget=dm.PrivacyBudget(2.1, 1e-5))).undecided


def test_two_questions_have_an_answer_each(tmp_path):
    run = run_of(EXACT)
    run.save(tmp_path / "run.json")
    found = dm.verify(tmp_path / "run.json")
    assert found.ok
    assert "claim PROVED; that the run follows it is stated by its record, not proved" in str(found)
    plain = found.to_dict()
    assert plain["claim"]["verdict"] == "PROVED"
    assert plain["run_follows"]["verdict"] == "STATED"
    assert {line.split(":")[0] for line in plain["run_follows"]["statements"]} == {
        "run", "randomness", "examples", "checkpoints",
    }  # fmt: skip
    # A true claim, and a run that is refused; a false claim, and a run that states nothing wrong.
    seeded = dataclasses.replace(run, noise=dataclasses.replace(run.noise, seeded=True))
    plain = dm.verify(seeded, rigorous=True).to_dict()
    assert (plain["ok"], plain["claim"]["verdict"], plain["run_follows"]["verdict"]) == (
        False, "PROVED", "REFUSED",
    )  # fmt: skip
    false = dataclasses.replace(run, certificate=changed(EXACT, sigma=0.9 * EXACT.sigma))
    plain = dm.verify(false).to_dict()
    assert (plain["claim"]["verdict"], plain["run_follows"]["verdict"]) == ("REFUTED", "STATED")


def test_the_words_of_a_verification():
    proved = Verdict(Kind.PROVED, "c", "r", failure=1e-9)
    checks = tuple(Check(name, ok=True, detail="d", verdict=proved) for name in ("claim", "executed"))
    found = Verification("x", None, checks)
    assert found.failure == pytest.approx(2e-9, rel=1e-15)
    assert "claim PROVED except with probability 2e-09" in str(found)
    assert not Verification("x", None, ()).ok
    questions = {"file": Question.FILE, "run": Question.RUN, "policy max_eps": Question.RULES,
                 "rigour": Question.RULES, "claim": Question.CLAIM, "total": Question.CLAIM}  # fmt: skip
    assert {name: Check(name, ok=True, detail="").question for name in questions} == questions


def test_nothing_but_the_checker_decides_claims():
    """`verifying` imports no sampler, mixture or lattice of the side that issues."""
    allowed = {"Accountant", "Certified", "Deterministic", "Exact", "Method", "Progress", "Rdp",
               "accountant_for", "effective_method", "scheme_of"}  # fmt: skip
    folder, seen = pathlib.Path(claims.__file__).parent, set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            issuing = ("dpmech.engines", "dpmech.schemes", "dpmech.drawing", "dpmech.samplers")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(issuing):
                assert node.module in {"dpmech.engines", "dpmech.schemes"}, path.name
                assert {name.name for name in node.names} <= allowed, path.name
                seen |= {name.name for name in node.names}
    assert {"Certified", "accountant_for"} <= seen


STRATEGIES = [
    dm.Identity(12),
    dm.LambdaCGD(12, 0.9),
    dm.SquareRoot(12),
    dm.SquareRoot(12, 3),
    dm.InverseSquareRoot(12, 3),
    dm.BandedToeplitz(12, [1.0, 0.5, 0.2]),
    dm.BandedToeplitz(12, [1.0, 0.5, -0.2]),
    dm.BandedInverse(12, [1.0, -0.4]),
    dm.BLT(12, [0.9, 0.3], [0.2, 0.1]),
    dm.Diagonal(np.linspace(2.0, 1.0, 12)),
    dm.Dense(np.tril(np.fromfunction(lambda i, j: 1.0 / (1.0 + abs(i - j)), (12, 12)))),
    dm.ColumnNormalized(dm.LambdaCGD(12, 0.9)),
    dm.ColumnNormalized(dm.InverseSquareRoot(12, 3)),
    dm.ColumnNormalized(dm.Dense(np.tril(np.ones((12, 12))))),
]
NOT_COVERED = STRATEGIES[-1]  # the checker asks for the normalised matrix
UNSAMPLED = [dm.EveryStep(), dm.SingleParticipation(), dm.MinSep(5), dm.MinSep(3, 2), dm.FixedEpochs(4)]
PLAIN = [
    *((strategy, schema, None) for strategy in STRATEGIES for schema in UNSAMPLED),
    (STRATEGIES[1], dm.MinSep(3, 2), dm.methods.Rdp()),
    (STRATEGIES[0], dm.Poisson(0.2), None),
    (STRATEGIES[3], dm.CyclicPoisson(0.3, 3), None),
    (STRATEGIES[4], dm.BallsInBins(4), dm.methods.Rdp()),
    (STRATEGIES[1], dm.BallsInBins(1), None),
]
SLOW = [
    (STRATEGIES[0], dm.Poisson(0.2), dm.methods.Prv()),
    (STRATEGIES[0], dm.Poisson(1.0), None),
    (STRATEGIES[3], dm.CyclicPoisson(1.0, 5), None),
    (STRATEGIES[10], dm.BallsInBins(4), dm.methods.Certified(1e-6)),
    *(
        (strategy, dm.BallsInBins(4), method)
        for strategy in STRATEGIES
        if strategy.nonnegative
        for method in (None, dm.methods.Rdp())
    ),
    *((STRATEGIES[i], dm.BallsInBins(4), dm.methods.Certified(1e-6)) for i in (0, 1, 2, 9, 12)),
    *((STRATEGIES[i], dm.BallsInBins(4), dm.methods.Deterministic()) for i in (1, 3, 8, 10, 11)),
    *((strategy, dm.CyclicPoisson(0.3, 3), None) for strategy in STRATEGIES if strategy.bands is not None),
    (STRATEGIES[0], dm.BallsInBins(4), dm.methods.Exact()),
]


def verified_elsewhere(folder, combinations):
    """Issue and save here, load and verify in another process; what it printed, as JSON."""
    files = []
    combinations = [one for one in combinations if one[0] is not NOT_COVERED]
    for number, (strategy, schema, method) in enumerate(combinations):
        adjacency = ADD if schema.random or number % 3 else dm.Adjacency.REPLACE_ONE
        certificate = issue(strategy, schema, method, adjacency=adjacency, rtol=3e-3, rng=number)
        path = folder / f"{number}.json"
        certificate.save(path)
        assert dm.Certificate.load(path) == certificate
        files.append(str(path))
    code = "from dpmech.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "verify", *files, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["files"]
    failures = [(str(combinations[i]), one["failures"]) for i, one in enumerate(found) if not one["ok"]]
    assert failures == []
    assert done.returncode == 0
    assert len(found) == len(combinations)
    return found


@pytest.mark.slow
def test_every_combination_is_verified_in_another_process(tmp_path):
    for one in verified_elsewhere(tmp_path, PLAIN):
        assert one["claim"]["verdict"] == "PROVED"


def test_a_dense_matrix_that_is_still_to_be_normalised_is_not_checked():
    matrix = NOT_COVERED.to_dense()
    for strategy, held in ((NOT_COVERED, False), (dm.Dense(matrix), True)):
        found = dm.verify(issue(strategy, dm.MinSep(5), None, adjacency=ADD))
        assert found.ok is held
        assert held or "state the normalised matrix" in str(found)


@pytest.mark.slow
def test_every_sampled_combination_is_verified_in_another_process(tmp_path):
    verified_elsewhere(tmp_path, SLOW)


def test_a_document_may_be_rehashed_but_not_contradict_itself():
    document = EXACT.to_dict()
    document["claim"]["sigma"] = {"decimal": 1.0, "hex": (1.0).hex()}
    document["checksum"] = checksum_of_document(document)
    with pytest.raises(dm.exceptions.CertificateError, match="entries contradict each other"):
        dm.Certificate.from_json(to_text(document))
