"""What --rigorous lets pass, and that beta is told with every digit."""

import dataclasses
import json
import math

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.cli import main
from dpmech.numerics.bounds import error_of_level, joined
from dpmech.numerics.printed import percent
from dpmech.plans.names import chosen_method
from dpmech.verifying.labels import rigour_problem
from tests.support import saved
from tests.support.quick_cases import slow_but

SETTING = {"participation": dm.BallsInBins(2), "rng": 1}
CERTIFIED = saved.calibration("bins certified 6")
OUTSIDE = (
    "rigour: the claim holds with probability 1 - beta only, beta = 1e-05, outside delta; where rigour is"
)


def stated(beta, delta=None):
    """The calibration as one with this beta would state it; only what is said about it is looked at."""
    return with_checksum(
        dataclasses.replace(
            CERTIFIED,
            achieved=dataclasses.replace(CERTIFIED.achieved, guarantee=dm.Guarantee(dm.Kind.PROBABLE, beta)),
            evidence=dataclasses.replace(CERTIFIED.evidence, accountant=dm.methods.Certified(beta)),
            budget=dm.PrivacyBudget(2.0, CERTIFIED.budget.delta if delta is None else delta),
        )
    ).certificate()


def test_a_beta_outside_delta_is_not_rigorous(tmp_path):
    certificate = CERTIFIED.certificate()
    assert dm.verify(certificate).ok
    found = dm.verify(certificate, rigorous=True)
    assert len(found.failures) == 1
    assert found.failures[0].startswith(OUTSIDE)
    path = tmp_path / "certificate.json"
    certificate.save(path)
    for arguments, code in ((["verify"], 0), (["verify", "--rigorous"], 1)):
        result = CliRunner().invoke(main, [*arguments, str(path)])
        assert result.exit_code == code
    assert "beta = 1e-05" in result.stdout


@pytest.mark.parametrize(
    ("kind", "error", "inside", "fine"),
    [
        ("EXACT", 0.0, False, True),
        ("BOUND", 0.0, False, True),
        ("ESTIMATE", 1e-4, False, False),
        ("PROBABLE", 0.999999, False, False),
        ("PROBABLE", 5e-324, False, False),
        ("PROBABLE", 1e-9, True, True),
        ("PROBABLE", 0.2, True, True),
    ],
)
def test_nothing_is_left_to_chance_that_delta_does_not_hold(kind, error, inside, fine):
    assert (rigour_problem(dm.Guarantee(dm.Kind[kind], error, inside)) == "") is fine


@pytest.mark.parametrize("beta", [0.999999, 1e-17, 5e-324, 1.2345678901234567e-9])
def test_the_headline_and_the_file_give_beta_to_the_last_digit(beta):
    certificate = stated(beta)
    assert certificate.headline.endswith(f"beta = {beta!r}")
    again = dm.Certificate.from_json(certificate.to_json())
    assert again.achieved.guarantee.error == beta
    evidence = json.loads(certificate.to_json())["evidence"]
    assert evidence["achieved"]["guarantee"] == {
        "kind": "PROBABLE",
        "error": {"decimal": beta, "hex": beta.hex()},
    }


def test_the_level_of_an_estimate_is_told_with_every_digit():
    certificate = stated(1e-17)
    level = 1.0 - 1e-8
    estimate = dataclasses.replace(
        certificate,
        achieved=dataclasses.replace(
            certificate.achieved, guarantee=dm.Guarantee(dm.Kind.ESTIMATE, error_of_level(level))
        ),
    )
    assert "99.999999 % confidence" in estimate.headline
    assert percent(0.9999) == "99.99"


def test_a_calibration_at_the_smallest_betas_is_wide_not_wrong():
    """Beta below 1e-308 used to overflow on the way, 1e-17 to be stored as a confidence of 1."""
    cal = dm.calibrate_sigma(dm.LambdaCGD(6, 0.5), 2.0, 0.1, method=dm.methods.Certified(1e-17), **SETTING)
    assert cal.achieved.guarantee.error == 1e-17
    assert "beta 1e-17" in cal.method
    assert cal.sigma > 0.9 * CERTIFIED.sigma * 0.1


@pytest.mark.parametrize("error", [7.0, -0.1, math.nan, math.inf, "0.1", True, None])
def test_what_is_no_probability_is_refused(error):
    with pytest.raises(dm.InvalidParameterError, match="error must be a finite number in"):
        dm.Guarantee(dm.Kind.PROBABLE, error)
    with pytest.raises(dm.InvalidParameterError, match="0 for EXACT and BOUND"):
        dm.Guarantee(dm.Kind.BOUND, 0.1)
    with pytest.raises(dm.InvalidParameterError, match="for PROBABLE and ESTIMATE"):
        dm.Guarantee(dm.Kind.ESTIMATE)


def test_rigorous_calibrations_sample_only_with_their_error_inside_delta():
    schema = dm.BallsInBins(4)
    assert chosen_method(None, schema, rigorous=True, seeded=False) is None
    assert chosen_method("certified", schema, rigorous=True, seeded=False) == dm.methods.Certified()
    # The caller's own numbers leave it outside: nothing is sampled then.
    assert chosen_method(None, schema, rigorous=True, seeded=True) == dm.methods.Deterministic()
    for name, seeded in (("certified", True), ("importance", False), ("importance", True)):
        with pytest.raises(dm.InvalidParameterError, match="method"):
            chosen_method(name, schema, rigorous=True, seeded=seeded)
    for seeded in (False, True):
        assert chosen_method(None, schema, rigorous=False, seeded=seeded) is None
        assert chosen_method("certified", schema, rigorous=False, seeded=seeded) == dm.methods.Certified()
        assert chosen_method(None, dm.Poisson(0.1), rigorous=True, seeded=seeded) is None


def probable(error):
    return dm.Guarantee(dm.Kind.PROBABLE, error) if error > 0.0 else dm.Guarantee(dm.Kind.EXACT)


@given(st.lists(st.floats(0.0, 1.0, allow_subnormal=True), max_size=8))
def test_a_union_is_never_below_the_sum(errors):
    from fractions import Fraction

    total, exact = joined(map(probable, errors)).error, sum(map(Fraction, errors), Fraction(0))
    assert 0.0 <= total <= 1.0
    assert Fraction(total) >= min(exact, Fraction(1))
    assert total <= float(exact) * (1.0 + 1e-14) + 1e-323


@given(st.floats(0.0, 1.0))
def test_the_error_of_a_level_is_never_too_small(level):
    from fractions import Fraction

    assert Fraction(error_of_level(level)) >= 1 - Fraction(level)


@given(st.floats(0.0, 1.0, exclude_min=True, exclude_max=True), st.integers(2, 1000))
def test_shares_of_beta_do_not_add_up_to_more(beta, trials):
    from fractions import Fraction

    try:
        share = dm.methods.Certified(beta).share(trials)
        assert dm.methods.Certified(beta).among(trials).share(1) == share
    except dm.InvalidParameterError:
        assert beta < 1e-300  # too small to be shared: refused
        return
    assert trials * Fraction(share) <= Fraction(beta)


@pytest.mark.parametrize("budget", slow_but([None, dm.PrivacyBudget(20.0, 1e-2)], 0))
@pytest.mark.slow
def test_a_total_is_held_to_what_a_certificate_is_held_to(budget):
    own, supplied = (
        dm.calibrate_sigma(dm.LambdaCGD(6, 0.5), 2.0, 1e-3, participation=dm.BallsInBins(2), rng=rng)
        for rng in (None, 1)
    )
    ledger = dm.Ledger(budget=budget, accounting=None if budget is None else dm.ledgers.ClaimAccounting())
    for count in (1, 2):
        ledger.add(f"run {count}", own, batch=f"run {count}")
    assert dm.verify(ledger, rigorous=True).ok
    ledger.add("run 3", supplied, batch="run 3")
    found = dm.verify(ledger, rigorous=True)
    assert found.failures[-1].startswith(
        "rigour: the total of 3 releases: the claim holds with probability 1 - beta only"
    )
