"""Where beta of a certified calibration stands: inside delta, or outside of it."""

import json
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture import certified_accountant
from dpmech.schemes import accountant_for
from dpmech.verifying.labels import label_checks
from tests.support.saved import Named

STRATEGY, SCHEME = dm.LambdaCGD(6, 0.5), dm.BallsInBins(2)


def calibrated(beta=None, delta=1e-3, **options):
    method = dm.methods.Certified(beta) if "method" not in options else options.pop("method")
    return dm.calibrate_sigma(STRATEGY, 2.0, delta, participation=SCHEME, method=method, **options)


@pytest.fixture
def asked(monkeypatch):
    """What the bounds of a calibration are asked to prove, and at which error."""
    found = []
    true = certified_accountant.certify_delta

    def noted(gram, eps, threshold=None, *, beta, **options):
        found.append((threshold, beta))
        return true(gram, eps, threshold, beta=beta, **options)

    monkeypatch.setattr(certified_accountant, "certify_delta", noted)
    return found


@pytest.mark.parametrize(
    ("beta", "delta", "due"), [(None, 1e-3, 1e-9), (None, 1e-8, 1e-8 / 1000.0), (1e-4, 1e-3, 1e-4)]
)
def test_a_calibration_on_numbers_of_its_own_has_beta_inside_delta(asked, beta, delta, due):
    cal = calibrated(beta, delta)
    assert cal.guarantee == dm.Guarantee(dm.Kind.PROBABLE, due, inside_delta=True)
    assert cal.budget.delta == delta
    for threshold, _ in asked:
        assert Fraction(threshold) + Fraction(due) <= Fraction(delta)
        assert threshold >= (delta - due) * (1 - 1e-15)
    assert sum(Fraction(share) for _, share in asked) <= Fraction(due)
    assert cal.evidence.accountant == dm.methods.Certified(due)


@pytest.mark.slow
@pytest.mark.parametrize("rng", [3, np.random.default_rng(3)])
def test_supplied_numbers_leave_it_outside(asked, rng):
    cal = calibrated(0.5, rng=rng)
    assert cal.guarantee == dm.Guarantee(dm.Kind.PROBABLE, 0.5)
    assert {threshold for threshold, _ in asked} == {1e-3}
    assert cal.evidence.rng_supplied
    assert cal.certificate().headline.endswith("beta = 0.5")


@pytest.mark.parametrize("beta", [1e-3, 0.5])
def test_a_beta_of_delta_or_more_is_no_part_of_it(beta):
    with pytest.raises(dm.InvalidParameterError, match=r"beta must be below delta=0.001"):
        calibrated(beta)


@pytest.mark.slow
def test_every_draw_has_a_name_of_its_own():
    names = {calibrated().evidence.randomness for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)
    assert calibrated(rng=1).evidence.randomness == calibrated(rng=1).evidence.randomness


def test_the_named_numbers_give_the_sigma_again():
    cal = calibrated()
    name = cal.evidence.randomness
    accountant = accountant_for(cal.mechanism, cal.evidence.accountant, Named(name))
    goal = cal.guarantee.mechanism_delta(1e-3)
    found = accountant.calibrate(2.0, goal, rtol=1e-3, progress=lambda line: None)
    assert found.sigma == cal.sigma
    assert found.randomness == name


def test_of_several_calls_each_has_its_share(asked):
    cal = calibrated(method=dm.methods.Certified(1e-6, calls=10))
    assert cal.guarantee == dm.Guarantee(dm.Kind.PROBABLE, 1e-6, inside_delta=True)
    assert sum(Fraction(share) for _, share in asked) <= Fraction(1e-6) / 10
    assert dm.methods.Certified(calls=3).among(5).calls == 15
    for bad in (0, 1.5, True):
        with pytest.raises(dm.InvalidParameterError, match="calls"):
            dm.methods.Certified(calls=bad)


def test_bounds_on_a_given_sigma_have_it_outside(asked):
    for bounds in (
        dm.epsilon(STRATEGY, 2.0, 1e-3, participation=SCHEME, method=dm.methods.Certified()),
        dm.delta(STRATEGY, 2.0, 1.0, participation=SCHEME, method=dm.methods.Certified()),
    ):
        assert bounds.guarantee == dm.Guarantee(dm.Kind.PROBABLE, 1e-9)
    assert {threshold for threshold, _ in asked} == {1e-3, None}


@pytest.mark.parametrize("options", [{}, {"rng": 1}, {"method": dm.methods.Certified(1e-5, calls=7)}])
def test_a_certificate_keeps_it(options):
    certificate = calibrated(**options).certificate()
    again = dm.Certificate.from_json(certificate.to_json())
    assert again == certificate
    assert again.guarantee.inside_delta is ("rng" not in options)
    assert again.evidence.randomness == certificate.evidence.randomness
    assert not list(label_checks(again))


def test_a_file_of_before_lacks_what_came_later():
    evidence = json.loads(calibrated(rng=1).certificate().to_json())["evidence"]
    assert set(evidence["achieved"]["guarantee"]) == {"kind", "error"}
    assert set(evidence["accountant"]) == {"type", "beta"}
