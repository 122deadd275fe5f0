import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting.balls_in_bins.sampling.estimate_accountant import ImportanceAccountant
from dpmech.certificates.claim import with_checksum
from dpmech.certificates.document import seal_of, to_text
from dpmech.verifying import Route, privacy_routes, recomputation
from dpmech.verifying.recomputation import Recomputation
from tests.support import saved
from tests.support.forged_files import changed, sealed_text

ADD = dm.Adjacency.ADD_REMOVE


def issue(strategy, participation, method=None, eps=2.0, delta=1e-5, **settings):
    return dm.calibrate_sigma(
        strategy, eps, delta, participation=participation, method=method, **settings
    ).certificate(clip_norm=1.0, expected_batch_size=10)


EXACT = issue(dm.LambdaCGD(36, 0.9), dm.MinSep(12, 3))
SIGNED = issue(dm.BandedToeplitz(16, [1.0, 0.5, -0.4]), dm.EveryStep())
POISSON, CYCLIC, BINS, MOMENTS, PROGRAMME = (
    saved.certificate(name).certificate(clip_norm=1.0, expected_batch_size=10)
    for name in ("poisson 40", "cyclic 20", "bins 24", "bins moments 24", "bins programme 24")
)
ALL = {"exact": EXACT, "signed": SIGNED, "poisson": POISSON, "cyclic": CYCLIC, "bins": BINS,
       "moments": MOMENTS, "programme": PROGRAMME}  # fmt: skip


@pytest.mark.parametrize("name", list(ALL))
def test_an_honest_certificate_is_verified(name):
    found = dm.verify(ALL[name], rng=3)
    assert found.ok, found.failures
    assert bool(found)
    assert found.failures == ()
    assert found.certificate == ALL[name]
    assert any(route != ALL[name].method for route in found.routes[1:])
    assert "VERIFIED" in str(found)
    assert ALL[name].headline in str(found)
    assert all(str(check).startswith(check.name) for check in found.checks)
    assert found.to_dict()["ok"] is True
    json.dumps(found.to_dict())


@pytest.mark.slow
def test_the_margin_says_how_much_noise_could_go():
    assert abs(dm.verify(EXACT).margin) < 1e-6
    assert 0.0 <= dm.verify(POISSON).margin < 1e-3
    assert abs(dm.verify(BINS, rng=3).margin) < 0.02
    assert 0.02 < dm.verify(MOMENTS, rng=3).margin < 0.5


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


# Looser statements that are true: nothing is left to refuse.
HARMLESS = {("programme", "sigma 2 % higher")}
# More than half a second each; of each kind of claim and of each forgery others are quick.
LONG = {
    ("poisson", "eps higher"),
    ("poisson", "achieved lower"),
    ("poisson", "sigma 2 % higher"),
    ("programme", "sigma 2 % lower"),
    ("cyclic", "sigma 2 % higher"),
    ("cyclic", "eps higher"),
    ("moments", "achieved lower"),
    ("moments", "eps higher"),
    ("moments", "delta lower"),
    ("moments", "sigma 2 % higher"),
}


@pytest.mark.parametrize(
    ("name", "forgery"),
    [
        pytest.param(name, forgery, marks=[pytest.mark.slow] if (name, forgery) in LONG else [])
        for name in ALL
        for forgery in FORGERIES
        if (name, forgery) not in HARMLESS
    ],
)
def test_resealed_forgeries_are_refused(tmp_path, name, forgery):
    forged = with_checksum(changed(ALL[name], **FORGERIES[forgery](ALL[name])))
    path = tmp_path / "forged.json"
    forged.save(path)
    assert dm.Certificate.load(path) == forged
    found = dm.verify(path, rng=3)
    assert not found.ok
    assert not found
    assert 1 <= len(found.failures) <= 4
    assert "REFUSED" in str(found)
    assert len(str(found).splitlines()) == len(found.failures)


@pytest.mark.slow
def test_a_looser_claim_is_true_and_its_margin_is_told():
    own, looser = (
        dm.verify(dataclasses.replace(PROGRAMME, sigma=factor * PROGRAMME.sigma), rng=3)
        for factor in (1.0, 1.1)
    )
    assert looser.margin - own.margin == pytest.approx(0.1, abs=0.02)
    for name, forgery in HARMLESS:
        found = dm.verify(changed(ALL[name], **FORGERIES[forgery](ALL[name])), rng=3)
        assert found.ok, (name, forgery, found.failures)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("exact", {"participation": dm.MinSep(6, 3)}),
        ("exact", {"participation": dm.MinSep(12, 2)}),
        ("exact", {"participation": dm.EveryStep()}),
        ("exact", {"participation": dm.SingleParticipation()}),
        ("exact", {"adjacency": dm.Adjacency.REPLACE_ONE}),
        ("exact", {"kind": "BOUND"}),
        ("signed", {"kind": "EXACT"}),
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
        ("programme", {"kind": "EXACT"}),
    ],
    ids=repr,
)
def test_other_resealed_claims_are_refused(name, change):
    own = ALL[name]
    if "kind" in change:
        kind = dm.Kind[change["kind"]]
        guarantee = dm.Guarantee(kind, 1e-9 if kind >= dm.Kind.PROBABLE else 0.0)
        # An exact value is known to a millionth.
        ends = {"lower": own.achieved.upper} if kind is dm.Kind.EXACT else {}
        change = {"achieved": dataclasses.replace(own.achieved, guarantee=guarantee, **ends)}
    assert not dm.verify(changed(own, **change), rng=3).ok


def test_an_adjacency_that_no_theorem_covers_is_refused():
    with pytest.raises(dm.UnsupportedCombinationError, match="no bound is proved for REPLACE_ONE"):
        changed(POISSON, adjacency=dm.Adjacency.REPLACE_ONE)
    document = json.loads(POISSON.to_json())
    document["claim"]["adjacency"] = "replace_one"
    with pytest.raises(dm.CertificateError, match="could have made: no bound is proved for REPLACE_ONE"):
        dm.Certificate.from_json(sealed_text(document))


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
    assert dm.verify(forged, rng=3).ok == (given == own.sensitivity)


@pytest.mark.parametrize(
    ("name", "accountant", "kind", "error"),
    [
        # A label that the accountant does not give.
        ("bins", dm.Importance(), "ESTIMATE", 0.01),
        # An accountant that would not have ended there.
        ("bins", dm.Rdp(), "BOUND", 0.0),
        ("bins", dm.Certified(), "PROBABLE", 0.1),
        # One that does not cover the claim.
        ("bins", dm.Pld(), "BOUND", 0.0),
        ("poisson", dm.Importance(), "ESTIMATE", 1.0 - 0.9999),
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
    assert not dm.verify(forged, rng=3).ok


def test_what_no_computation_can_contradict_breaks_the_seal():
    for change in (
        {"clip_norm": 2.0},
        {"expected_batch_size": 20.0},
        {"achieved": dataclasses.replace(EXACT.achieved, by=dm.Provenance("better"))},
        {"versions": (("dpmech", "9.9"),)},
        {"evidence": dataclasses.replace(EXACT.evidence, rng_supplied=True)},
    ):
        document = dataclasses.replace(EXACT, **change).to_dict()
        assert document["seal"] != EXACT.to_dict()["seal"]
        found = dm.Certificate.from_json(to_text(document))
        assert found.fingerprint() == EXACT.fingerprint()
        with pytest.raises(dm.CertificateError, match="the seal is broken"):
            dm.Certificate.from_json(to_text(document | {"seal": EXACT.to_dict()["seal"]}))


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
    with pytest.raises(dm.CertificateError, match="longdouble_bits"):
        dm.Certificate.from_json(to_text(document | {"seal": seal_of(document)}))


def test_rigorous_refuses_an_estimate_and_nothing_else():
    refused = dm.verify(BINS, rigorous=True, rng=3)
    assert refused.failures == ("rigour: the claim rests on an estimate, a rigorous one was asked for",)
    for certificate in (EXACT, SIGNED, MOMENTS, PROGRAMME):
        assert dm.verify(certificate, rigorous=True, rng=3).ok


def test_files(tmp_path):
    path = tmp_path / "certificate.json"
    EXACT.save(path)
    assert dm.verify(path).ok
    assert dm.verify(str(path)).source == str(path)
    path.write_text(path.read_text().replace('"n": 36', '"n": 35', 1))
    found = dm.verify(path)
    assert found.failures[0].startswith("file: the seal is broken")
    assert found.certificate is None
    assert found.margin is None
    assert found.to_dict()["guarantee"] is None
    path.write_text("{}")
    assert "no schema_version" in dm.verify(path).failures[0]
    with pytest.raises(dm.InvalidParameterError, match="certificate must be a readable file"):
        dm.verify(tmp_path / "missing.json")
    with pytest.raises(
        dm.InvalidParameterError, match="must be a path, a Certificate, a RunRecord or a Ledger"
    ):
        dm.verify(3)
    with pytest.raises(dm.InvalidParameterError, match="rng must be"):
        dm.verify(EXACT, rng=-1)


@pytest.mark.slow
def test_a_seed_repeats_the_sample_and_progress_is_told():
    lines = []
    one = dm.verify(BINS, rng=3, progress=lines.append)
    assert dm.verify(BINS, rng=np.random.default_rng(3)) == one
    assert dm.verify(BINS, rng=4) != one
    assert any("importance sampling" in line for line in lines)


def test_absurd_numbers_are_refused_without_a_warning():
    for sigma in (1e-300, 1e-30, 1e300):
        for name in ("exact", "poisson", "bins"):
            assert not dm.verify(dataclasses.replace(ALL[name], sigma=sigma), rng=3).ok
    budget = dm.PrivacyBudget(1e300, 1e-300)
    assert not dm.verify(dataclasses.replace(POISSON, budget=budget)).ok


def resealed(certificate, change, tmp_path):
    document = json.loads(json.dumps(certificate.to_dict()))
    change(document)
    target = tmp_path / "forged.json"
    target.write_text(to_text(document | {"seal": seal_of(document)}))
    return target


def number(value):
    return {"decimal": value, "hex": float(value).hex()}


def test_a_sensitivity_of_zero_is_refused(tmp_path):
    def change(document):
        document["evidence"]["sensitivity"].update(lower=number(0.0), upper=number(0.0))

    found = dm.verify(resealed(EXACT, change, tmp_path))
    assert not found.ok
    assert "sensitivity: claimed [0, 0]" in found.failures[0]


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

    found = dm.verify(resealed(normalized, change, tmp_path))
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
        with pytest.raises(dm.CertificateError, match="no document can hold this"):
            certificate.to_json()
        assert not dm.verify(certificate).ok


def test_a_route_that_fails_is_named_and_confirms_nothing(monkeypatch):
    def fail(*_, **__):
        raise dm.NumericalError("no luck")

    monkeypatch.setattr(privacy_routes, "composed_delta", fail)
    found = dm.verify(POISSON)
    # The other package confirms the claim, but it cannot place the achieved eps.
    assert found.ok, found.failures
    assert any("route not taken: no luck" in str(check) for check in found.checks)
    monkeypatch.setattr(ImportanceAccountant, "delta", fail)
    assert "no second route confirms the claim" in dm.verify(BINS).failures[0]
    assert dm.verify(PROGRAMME).ok
    monkeypatch.setattr(privacy_routes, "gaussian_integral", fail)
    assert "no second route confirms the claim" in dm.verify(EXACT).failures[0]


def test_a_wrong_first_route_is_caught_by_the_second(monkeypatch):
    """A fault planted in the accountant that issues: the certificate it makes is refused."""
    from dpmech.accounting import gaussian

    honest = gaussian.gaussian_log_delta
    with monkeypatch.context() as patch:
        patch.setattr(gaussian, "gaussian_log_delta", lambda sigma, eps: honest(1.02 * sigma, eps))
        wrong = issue(dm.LambdaCGD(36, 0.9), dm.MinSep(12, 3))
        # Still faulty when it verifies itself: only the second route can tell.
        assert wrong.sigma < 0.99 * EXACT.sigma
        assert any("integral of the Gaussian" in line for line in dm.verify(wrong).failures)


def test_a_wrong_sensitivity_is_caught_by_the_second_route(monkeypatch):
    def half(own):
        return dm.sensitivity(own.strategy, own.participation).scaled(0.5)

    monkeypatch.setattr(dm.Mechanism, "sensitivity", property(half))
    found = dm.verify(issue(dm.LambdaCGD(36, 0.9), dm.MinSep(12, 3)))
    assert found.failures[0].startswith("sensitivity: claimed [2.33")


def test_where_no_second_bracket_is_tight_the_first_is_repeated_inside_it(monkeypatch):
    strategy, schema = dm.ColumnNormalized(dm.InverseSquareRoot(40, 4)), dm.MinSep(7, 4)
    certificate = issue(strategy, schema)
    monkeypatch.setattr(
        recomputation,
        "second_bracket",
        lambda *_: dm.Bounds.bracket(2.1, 2.4, dm.Provenance("a wide bracket")),
    )
    found = dm.verify(certificate)
    assert found.ok, found.failures
    assert any("the first route again" in route and "a wide bracket" in route for route in found.routes)
    monkeypatch.setattr(
        recomputation, "second_bracket", lambda *_: dm.Bounds.bracket(2.3, 2.4, dm.Provenance("another one"))
    )
    assert dm.verify(certificate).failures[0].startswith("sensitivity: claimed [2.20")


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
UNSAMPLED = [dm.EveryStep(), dm.SingleParticipation(), dm.MinSep(5), dm.MinSep(3, 2), dm.FixedEpochs(4)]
QUICK = [
    *((strategy, schema, None) for strategy in STRATEGIES for schema in UNSAMPLED),
    (STRATEGIES[1], dm.MinSep(3, 2), dm.Rdp()),
    (STRATEGIES[0], dm.Poisson(0.2), None),
    (STRATEGIES[3], dm.CyclicPoisson(0.3, 3), None),
    (STRATEGIES[4], dm.BallsInBins(4), dm.Rdp()),
    (STRATEGIES[1], dm.BallsInBins(1), None),
]
SLOW = [
    (STRATEGIES[0], dm.Poisson(0.2), dm.Prv()),
    (STRATEGIES[0], dm.Poisson(1.0), None),
    (STRATEGIES[3], dm.CyclicPoisson(1.0, 5), None),
    (STRATEGIES[10], dm.BallsInBins(4), dm.Certified(1e-6)),
    *(
        (strategy, dm.BallsInBins(4), method)
        for strategy in STRATEGIES
        if strategy.nonnegative
        for method in (None, dm.Rdp())
    ),
    *((STRATEGIES[i], dm.BallsInBins(4), dm.Certified(1e-6)) for i in (0, 1, 2, 9, 12)),
    *((STRATEGIES[i], dm.BallsInBins(4), dm.Deterministic()) for i in (1, 3, 8, 10, 11)),
    *((strategy, dm.CyclicPoisson(0.3, 3), None) for strategy in STRATEGIES if strategy.bands is not None),
    (STRATEGIES[0], dm.BallsInBins(4), dm.Exact()),
]


def verified_elsewhere(folder, combinations):
    """Issue and save here, load and verify in another process; what it printed, as JSON."""
    files = []
    for number, (strategy, schema, method) in enumerate(combinations):
        adjacency = ADD if schema.random or number % 3 else dm.Adjacency.REPLACE_ONE
        certificate = issue(strategy, schema, method, adjacency=adjacency, rtol=3e-3, rng=number)
        path = folder / f"{number}.json"
        certificate.save(path)
        assert dm.Certificate.load(path) == certificate
        files.append(str(path))
    code = "from dpmech.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "verify", *files, "--json", "--seed", "11"],
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
    for one in verified_elsewhere(tmp_path, QUICK):
        assert len(one["routes"]) >= 2


@pytest.mark.slow
def test_every_sampled_combination_is_verified_in_another_process(tmp_path):
    verified_elsewhere(tmp_path, SLOW)


def test_a_document_may_be_resealed_but_not_contradict_itself():
    document = EXACT.to_dict()
    document["claim"]["sigma"] = {"decimal": 1.0, "hex": (1.0).hex()}
    document["seal"] = seal_of(document)
    with pytest.raises(dm.CertificateError, match="entries contradict each other"):
        dm.Certificate.from_json(to_text(document))


# the parts, by routes that are made up


def recomputed(name):
    own = saved.certificate(name)
    return own, Recomputation(own, None, lambda _: None, "certificate")


def test_a_second_route_that_is_wide_is_followed_by_the_first_and_nothing_wider_will_do(monkeypatch):
    own, checks = recomputed("min-sep")
    truth, by = own.sensitivity.upper, dm.Provenance("second.none")
    monkeypatch.setattr(
        "dpmech.verifying.recomputation.second_bracket", lambda _: dm.Bounds.bracket(0.5 * truth, truth, by)
    )
    check, found = checks._sensitivity()
    assert check.ok
    assert found.by.route == "second.agreeing"
    assert found.lower == pytest.approx(truth, rel=1e-9)
    # If the first is as wide, the lower end that is claimed stands on nothing.
    monkeypatch.setattr(
        "dpmech.verifying.recomputation.sensitivity", lambda _: dm.Bounds.bracket(0.5 * truth, truth, by)
    )
    assert not checks._sensitivity()[0].ok


def test_only_the_last_of_several_routes_that_miss_is_told(monkeypatch):
    own, checks = recomputed("min-sep")
    exceeded = dm.Bounds(0.0, 2.0 * own.budget.delta, dm.Guarantee(dm.Kind.BOUND), dm.Provenance("x"))
    routes = tuple(Route(name, lambda sigma, eps: exceeded, 0.0) for name in ("one", "two", "three"))
    monkeypatch.setattr("dpmech.verifying.recomputation.repeated_routes", lambda *_: routes)
    (check,) = checks._again()
    assert (check.route, check.ok) == ("three", False)


@pytest.mark.parametrize("decides", [True, False])
def test_a_lower_end_at_the_claim_does_not_contradict_it(decides):
    own, checks = recomputed("min-sep")
    route = Route("one", lambda sigma, eps: None, 0.0, decides=decides)

    def missed(factor):
        delta = factor * own.budget.delta
        return checks._missed(route, dm.Bounds(delta, delta, dm.Guarantee(dm.Kind.BOUND), dm.Provenance("x")))

    assert not missed(1.0)
    assert not missed(1.0 + 5e-10)
    assert missed(1.0 + 2e-9)


@pytest.mark.parametrize(
    ("intervals", "fine"),
    [
        ([(0.99, 1.0)], True),
        # What a route cannot resolve is no objection, once another one has met the claim.
        ([(0.99, 1.0), (0.0, 15.0)], True),
        ([(0.99, 1.0), (0.9, 2.0)], True),
        ([(0.0, 15.0)], False),
        ([(0.0, 15.0), (0.99, 1.0)], False),
        # What it does resolve, or contradicts, is one.
        ([(0.99, 1.0), (1.2, 3.0)], False),
        ([(0.99, 1.0), (0.9, 1.2)], False),
    ],
)
def test_a_route_that_is_too_coarse_neither_confirms_nor_refuses(intervals, fine, monkeypatch):
    claimed = POISSON.budget.delta
    offered = [
        recomputation.Route(
            f"route {number}",
            lambda sigma, eps, ends=ends: dm.Bounds.bracket(
                ends[0] * claimed, ends[1] * claimed, dm.Provenance("x")
            ),
            1e-3,
        )
        for number, ends in enumerate(intervals)
    ]
    monkeypatch.setattr(recomputation, "second_routes", lambda *_: tuple(offered))
    monkeypatch.setattr(recomputation.Recomputation, "_achieved", lambda *_: ())
    found = dm.verify(POISSON)
    assert found.ok == fine, found.failures
    coarse = [check for check in found.checks if "too coarse" in check.detail]
    assert len(coarse) == (1 if fine and len(intervals) > 1 else 0)
