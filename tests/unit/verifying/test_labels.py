"""Claims whose words or stated ends say more than their numbers, each given a new checksum."""

import dataclasses

import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates.document import checksum_of_document, to_text
from dpmech.checker import Kind
from dpmech.schemes import accountant_for
from dpmech.verifying.labels import label_checks
from tests.support.saved import certificate

FEW = dm.calibrate_sigma(
    dm.LambdaCGD(4, 0.5), 2e4, 1e-5, participation=dm.BallsInBins(2), method=dm.methods.Rdp()
).certificate(1.0, 10.0)
SOME = dm.calibrate_sigma(
    dm.LambdaCGD(6, 0.5), 2.0, 1e-5, participation=dm.BallsInBins(3), method=dm.methods.Rdp()
).certificate(1.0, 10.0)
APART = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 2.0, 1e-5, participation=dm.MinSep(4, 3)).certificate(
    1.0, 5.0
)
BOUND, EXACT = dm.Guarantee(dm.Kind.BOUND), dm.Guarantee(dm.Kind.EXACT)


def told(own, **changes):
    return dataclasses.replace(own, achieved=dataclasses.replace(own.achieved, **changes))


def accounted(own, method, samples=None):
    return dataclasses.replace(
        own, evidence=dataclasses.replace(own.evidence, accountant=method, samples=samples)
    )


def test_where_only_moments_decide_they_give_the_stated_eps():
    assert dm.verify(SOME).ok
    found = dm.verify(told(SOME, upper=0.5 * SOME.budget.eps))
    assert not found.ok
    assert any("achieved eps" in line for line in found.failures)


def test_a_lower_end_is_not_looked_at_where_it_is_no_exact_one():
    found = dm.verify(told(SOME, lower=0.9 * SOME.achieved.upper))
    assert found.ok, found.failures
    assert any(line.startswith("lower ends") for line in found.not_checked)


@pytest.mark.parametrize(
    "method",
    [
        dm.methods.Importance(),
        dm.methods.Certified(),
        dm.methods.Deterministic(),
        dm.methods.Pld(),
        dm.methods.Prv(),
    ],
    ids=repr,
)
def test_a_method_that_does_not_apply_is_refused(method):
    forged = accounted(told(APART, guarantee=BOUND), method)
    assert any("does not apply" in one.detail for one in label_checks(forged))
    one_bin = dm.calibrate_sigma(
        dm.LambdaCGD(4, 0.5), 1.0, 1e-5, participation=dm.BallsInBins(1)
    ).certificate()
    assert dm.verify(one_bin).ok
    assert not dm.verify(dataclasses.replace(accounted(one_bin, method), sigma=1e3)).ok


SAMPLED = certificate("bins certified 6")


@pytest.mark.parametrize("own", [FEW, SOME, APART, SAMPLED], ids=["few", "some", "apart", "sampled"])
def test_numbers_come_from_where_they_are_said_to_come_from(own):
    by, less = own.achieved.by, own.sensitivity.by
    assert not list(label_checks(own))
    others = [
        dataclasses.replace(by, route="pld.poisson"),
        dataclasses.replace(by, facts={**by.facts, "bins": 7}),
        dataclasses.replace(by, rests_on=(dm.numerics.Provenance("audit.one_run"),)),
    ]
    for other in others:
        (check,) = label_checks(told(own, by=other))
        assert check.detail.startswith("achieved eps is that of ")
        assert not dm.verify(told(own, by=other)).ok
    forged = dataclasses.replace(
        own, sensitivity=dataclasses.replace(own.sensitivity, by=dataclasses.replace(less, route="cgd.lem8"))
    )
    assert any("sensitivity is that of" in check.detail for check in label_checks(forged))


DRAWN, PROGRAMMED = certificate("bins"), certificate("bins program")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (SAMPLED, {"proved": 1.0}),
        (SOME, {"confidence": 1.0}),
        (PROGRAMMED, {"decay": 1.5}),
        (PROGRAMMED, {"excess": -0.5}),
        (PROGRAMMED, {"excess": "none"}),
        (PROGRAMMED, {"proved": 1.0}),
        (DRAWN, {"direction": "BOTH"}),
        (DRAWN, {"star": 1.5}),
        (DRAWN, {"star": -0.5}),
        (DRAWN, {"star": "all"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else value.achieved.by.route,
)
def test_a_run_says_about_itself_what_it_can_have_found_out(own, said):
    by = own.achieved.by
    assert not list(label_checks(own))
    forged = told(own, by=dataclasses.replace(by, facts={**by.facts, **said}))
    (check,) = label_checks(forged)
    assert check.detail.startswith("achieved eps is that of ")
    accounted_for = accountant_for(own.mechanism, own.evidence.accountant).by
    assert not list(label_checks(told(own, by=dataclasses.replace(by, facts=accounted_for.facts))))


def test_next_to_no_loss_needs_no_sample():
    own = certificate("bins")
    nothing = dm.epsilon(own.mechanism, 5e4, own.budget.delta, method=own.evidence.accountant, rng=1)
    assert nothing.by.rests_on
    unsampled = dataclasses.replace(
        own, sigma=5e4, budget=dm.PrivacyBudget(nothing.upper, own.budget.delta), achieved=nothing
    )
    assert not list(label_checks(unsampled))
    (check,) = label_checks(told(own, by=nothing.by))
    assert "achieved eps is that of" in check.detail


def test_samples_belong_to_methods_that_draw():
    forged = accounted(APART, dm.methods.Exact(), samples=5)
    assert [one.detail for one in label_checks(forged)] == ["Exact() draws no samples, not 5"]


def test_an_exact_eps_is_known():
    for lower in (0.0, 0.9 * APART.achieved.upper):
        with pytest.raises(dm.InvalidParameterError, match="agree to 1e-6"):
            told(APART, lower=lower)
    document = APART.to_dict()
    document["evidence"]["achieved"]["lower"] = {"decimal": 0.5, "hex": (0.5).hex()}
    text = to_text(document | {"checksum": checksum_of_document(document)})
    with pytest.raises(dm.exceptions.CertificateError, match="agree to 1e-6"):
        dm.Certificate.from_json(text)


def test_what_float64_cannot_tell_from_nothing_is_a_bound():
    one = dm.SingleParticipation()
    assert dm.delta(dm.Identity(1), 1.0, 1.0, participation=one).guarantee == EXACT
    for sigma, eps in ((1e17, 0.0), (100.0, 1.0)):
        assert dm.delta(dm.Identity(1), sigma, eps, participation=one).guarantee == BOUND
    assert dm.epsilon(dm.Identity(1), 1e12, 1e-13, participation=one).guarantee == BOUND


def test_a_combination_without_a_theorem_makes_no_claim():
    poisson = dm.calibrate_sigma(dm.Identity(20), 1.0, 1e-5, participation=dm.Poisson(0.1, 2))
    with pytest.raises(dm.UnsupportedCombinationError, match="REPLACE_ONE"):
        dm.Mechanism(poisson.strategy, poisson.participation, dm.Adjacency.REPLACE_ONE)
    document = poisson.certificate().to_dict()
    document["claim"]["adjacency"] = "replace_one"
    with pytest.raises(dm.exceptions.CertificateError, match="REPLACE_ONE"):
        dm.Certificate.from_json(to_text(document | {"checksum": checksum_of_document(document)}))


def test_there_is_no_third_kind_of_claim():
    with pytest.raises(TypeError, match="two kinds"):

        class Other(dm.certificates.Claim):
            pass


@pytest.mark.parametrize("steps", [3, 6])
def test_certain_sampling_adds_up_outward(steps):
    cal = dm.calibrate_sigma(dm.Identity(steps), 2.0, 1e-5, participation=dm.Poisson(1.0))
    from fractions import Fraction

    assert Fraction(cal.sensitivity.lower) ** 2 <= steps <= Fraction(cal.sensitivity.upper) ** 2
    assert str(cal.guarantee) == "exact"


@pytest.mark.parametrize("participation", [dm.SingleParticipation(), dm.BallsInBins(1), dm.Poisson(1.0)])
def test_an_eps_that_rounding_hides_is_an_honest_bound(participation):
    cal = dm.calibrate_sigma(dm.Identity(1), 1e-8, 1e-12, participation=participation)
    assert cal.guarantee == dm.Guarantee(dm.Kind.BOUND)
    assert cal.sensitivity.guarantee == EXACT
    assert list(label_checks(cal.certificate())) == []


@pytest.mark.parametrize("participation", [dm.MinSep(2), dm.MinSep(2, 3), dm.FixedEpochs(4)], ids=repr)
def test_both_ends_of_the_achieved_eps_are_proved_for_signed_matrices(participation):
    matrix = np.tril(np.random.default_rng(3).normal(size=(8, 8)))
    cal = dm.calibrate_sigma(dm.Dense(matrix), 2.0, 1e-5, participation=participation)
    found = dm.verify(cal.certificate())
    assert [one.name for one in found.checks if one.verdict and one.verdict.kind is not Kind.PROVED] == []
    assert found.ok
