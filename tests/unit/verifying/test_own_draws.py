"""Certificates of certified samples: what the draws of a verifier prove, whoever chose the ones before."""

import dataclasses
import json

import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.cli import main
from dpmech.verifying import recomputation
from dpmech.verifying.own_draws import own_draw, own_draw_check
from tests.support import saved

SETTING = {"participation": dm.BallsInBins(8)}
STRATEGY = dm.LambdaCGD(24, 0.5)


@pytest.fixture(scope="module")
def default():
    """What a user gets who names no method and no generator."""
    return dm.calibrate_sigma(STRATEGY, 8.0, 1e-5, **SETTING).certificate()


def forged(certificate, factor):
    """As whoever picked among seeds, or typed another number, would write it: sealed anew, labels kept."""
    return with_checksum(dataclasses.replace(certificate, sigma=factor * certificate.sigma))


@pytest.mark.slow
def test_an_honest_file_is_verified_and_says_what_was_proved(default):
    found = dm.verify(default, rigorous=True)
    assert found.ok, found.failures
    judged = found.draw.judgement
    assert (judged.eps, judged.delta, judged.slack, judged.beta) == (8.0, 1e-5, 0.1, 1e-9)
    assert judged.holds
    assert not found.draw.seeded
    assert str(found).endswith(
        "; delta(8) <= (1 + 0.1) 1e-05 except with probability 1e-09 of this check's own draw"
    )
    assert "bets on draws of its own" in found.routes
    # The draws of the calibration are not used again.
    assert dm.verify(default).draw.judgement.estimate != judged.estimate


def test_a_forged_sigma_is_refused(default):
    found = dm.verify(forged(default, 0.97))
    assert not found.ok
    (line,) = found.failures
    assert line.startswith("privacy: delta(8) <= (1 + 0.1) 1e-05 could not be proved with ")
    assert not found.draw.judgement.holds
    # Three per cent of sigma are a factor in delta that no slack hides.
    assert found.draw.judgement.estimate > 1.3e-5


def test_a_larger_sigma_is_no_fault(default):
    wide = dataclasses.replace(default.achieved, lower=0.0)
    assert dm.verify(forged(dataclasses.replace(default, achieved=wide), 1.05)).ok
    # With the lower end of eps that the smaller one had, it says what is not true.
    assert not dm.verify(forged(default, 1.05)).ok


def test_the_json_holds_it(default, tmp_path):
    path, wrong = tmp_path / "honest.json", tmp_path / "forged.json"
    default.save(path)
    forged(default, 0.97).save(wrong)
    result = CliRunner().invoke(main, ["verify", "--rigorous", "--json", str(path), str(wrong)])
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)["files"]
    draw = first["draw"]
    assert draw.keys() == {"holds", "eps", "delta", "m", "upper", "beta", "samples", "seeded"}
    assert (draw["holds"], draw["m"], draw["beta"], draw["seeded"]) == (True, 0.1, 1e-9, False)
    assert 1.1e-5 <= draw["upper"] <= 1.1e-5 * (1 + 1e-15)
    assert draw["samples"] > 0
    assert second["draw"]["holds"] is False
    assert "inside delta" in first["guarantee"]
    plain = json.loads(CliRunner().invoke(main, ["verify", "--json", str(saved.path_of("single"))]).stdout)
    assert plain["files"][0]["draw"] is None


def test_seeded_checks_say_so(default):
    found = dm.verify(default, rng=5)
    assert found.draw.seeded
    assert any("which the caller seeded" in check.detail for check in found.checks)
    assert found.to_dict() == dm.verify(default, rng=5).to_dict()


@pytest.mark.parametrize("name", ["bins certified", "bins certified 6"])
def test_files_of_before_are_checked_in_the_same_way(name):
    certificate = saved.certificate(name)
    found = dm.verify(certificate, rng=3)
    assert found.ok, found.failures
    assert found.draw.judgement.delta == certificate.budget.delta
    assert not dm.verify(forged(certificate, 0.9), rng=3).ok


def test_beta_of_the_check_follows_delta():
    cal = dm.calibrate_sigma(dm.LambdaCGD(6, 0.5), 8.0, 1e-8, participation=dm.BallsInBins(2))
    draw = own_draw(cal.certificate(), None)
    assert draw.judgement.beta == pytest.approx(1e-11, rel=1e-15)
    assert draw.judgement.beta == cal.guarantee.error
    check = own_draw_check(draw)
    assert check.ok
    assert "probability 1.00001e-11 of" in check.detail  # rounded up


def test_what_is_beside_the_claim_is_looked_at_too(default):
    """A lower end of eps above the truth is no privacy lost, and not true."""
    wide = dataclasses.replace(default.achieved, lower=7.99)
    stated = with_checksum(dataclasses.replace(default, achieved=wide))
    found = dm.verify(stated, rng=1)
    assert found.draw.judgement.holds
    assert [check.name for check in found.checks][-1] == "evidence"


def test_labels_that_no_calibration_gives_are_refused_before_anything_is_drawn(default, monkeypatch):
    monkeypatch.setattr(recomputation, "own_draw", lambda *_: pytest.fail("drawn"))
    evidence, inside = default.evidence, default.achieved
    outside = dataclasses.replace(inside, guarantee=dm.Guarantee(dm.Kind.PROBABLE, 1e-12))
    for changed, words in (
        (
            {"evidence": dataclasses.replace(evidence, rng_supplied=True)},
            "the caller supplied the random numbers",
        ),
        ({"evidence": dataclasses.replace(evidence, randomness=None)}, "the random numbers have no name"),
        ({"achieved": outside}, "gives Guarantee"),
        (
            {"evidence": dataclasses.replace(evidence, accountant=dm.Importance(), randomness=None)},
            "gives Guarantee",
        ),
    ):
        found = dm.verify(with_checksum(dataclasses.replace(default, **changed)))
        assert any(words in line for line in found.failures), found.failures


def test_nobody_in_bins_has_no_such_draws():
    with pytest.raises(dm.UnsupportedCombinationError, match="puts nobody into bins"):
        own_draw(saved.certificate("single"), None)


def test_a_ledger_has_every_file_checked(default):
    ledger = dm.Ledger()
    ledger.add("one", default, lot="a")
    ledger.add("two", default, lot="b")
    assert dm.verify(ledger, rigorous=True).ok
    worse = dm.Ledger()
    worse.add("one", forged(default, 0.97), lot="a")
    found = dm.verify(worse)
    assert any("could not be proved" in line for line in found.failures)
