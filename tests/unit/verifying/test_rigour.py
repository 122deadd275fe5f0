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
from dpmech.numerics.guarantee import error_of_level, joined
from dpmech.numerics.printed import percent
from dpmech.plans.names import chosen_method
from dpmech.verifying.rigour import rigour_problem
from tests.support import saved

SETTING = {"participation": dm.BallsInBins(2), "rng": 1}
CERTIFIED = saved.calibration("bins certified 6")
BETA_TOO_LARGE = "rigour: the claim holds with probability 1 - beta only, beta = 1e-05; where rigour is asked"


def stated(beta, delta=None):
    """The calibration as one with this beta would state it; only what is said about it is looked at."""
    return with_checksum(
        dataclasses.replace(
            CERTIFIED,
            achieved=dataclasses.replace(CERTIFIED.achieved, guarantee=dm.Guarantee(dm.Kind.PROBABLE, beta)),
            evidence=dataclasses.replace(CERTIFIED.evidence, accountant=dm.Certified(beta)),
            budget=dm.PrivacyBudget(2.0, CERTIFIED.budget.delta if delta is None else delta),
        )
    ).certificate()


def test_a_large_beta_is_not_rigorous(tmp_path):
    certificate = CERTIFIED.certificate()
    assert dm.verify(certificate, rng=2).ok
    found = dm.verify(certificate, rigorous=True, rng=2)
    assert len(found.failures) == 1
    assert found.failures[0].startswith(BETA_TOO_LARGE)
    path = tmp_path / "certificate.json"
    certificate.save(path)
    for arguments, code in ((["verify"], 0), (["verify", "--rigorous"], 1)):
        result = CliRunner().invoke(main, [*arguments, str(path), "--seed", "2"])
        assert result.exit_code == code
    assert "beta = 1e-05" in result.stdout


@pytest.mark.parametrize(
    ("kind", "error", "delta", "fine"),
    [
        ("EXACT", 0.0, 1e-300, True),
        ("BOUND", 0.0, 1e-5, True),
        ("ESTIMATE", 1e-4, 0.5, False),
        ("PROBABLE", 0.999999, 1e-5, False),
        ("PROBABLE", 1e-6, 1e-3, True),
        ("PROBABLE", math.nextafter(1e-6, 1.0), 1e-3, False),
        ("PROBABLE", 1e-9, 1e-7, True),
        ("PROBABLE", 1.01e-9, 1e-7, False),
        ("PROBABLE", 1e-17, 1e-15, True),
    ],
)
def test_beta_is_at_most_a_millionth_and_a_hundredth_of_delta(kind, error, delta, fine):
    assert (rigour_problem(dm.Guarantee(dm.Kind[kind], error), delta) == "") is fine


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
    cal = dm.calibrate_sigma(dm.LambdaCGD(6, 0.5), 2.0, 0.1, method=dm.Certified(1e-17), **SETTING)
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


def test_rigorous_calibrations_choose_a_beta_that_verify_accepts():
    schema = dm.BallsInBins(4)
    for delta in (1e-3, 1e-5, 1e-9):
        method = chosen_method("certified", schema, rigorous=True, delta=delta)
        assert rigour_problem(dm.Guarantee(dm.Kind.PROBABLE, method.error), delta) == ""
    assert chosen_method("certified", schema, rigorous=False, delta=1e-9) == dm.Certified()


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
        share = dm.Certified(beta).share(trials)
        assert dm.Certified(beta).among(trials).share(1) == share
    except dm.InvalidParameterError:
        assert beta < 1e-300  # too small to be shared: refused
        return
    assert trials * Fraction(share) <= Fraction(beta)


@pytest.mark.parametrize("budget", [None, dm.PrivacyBudget(20.0, 1e-2)])
def test_betas_of_a_ledger_add_up(budget):
    """Three certificates that are rigorous each, and together are not."""
    cal = dm.calibrate_sigma(dm.LambdaCGD(6, 0.5), 2.0, 1e-3, method=dm.Certified(4e-7), **SETTING)
    ledger = dm.Ledger(budget=budget, currency=None if budget is None else dm.ClaimCurrency())
    for count in (1, 2):
        ledger.add(f"run {count}", cal, lot=f"run {count}")
    assert dm.verify(ledger, rigorous=True, rng=2).ok
    ledger.add("run 3", cal, lot="run 3")
    found = dm.verify(ledger, rigorous=True, rng=2)
    (line,) = found.failures
    assert line.startswith("rigour: the total of 3 releases: the claim holds with probability 1 - beta only")
