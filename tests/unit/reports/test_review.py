import dataclasses
import datetime
import re

import pytest

import dpmech as dm
from dpmech.certificates import with_checksum
from dpmech.checker import Kind, Verdict, records
from dpmech.exceptions import InvalidParameterError
from dpmech.numerics import between, up
from dpmech.reports import Review, as_html, as_markdown, rendering, summary
from dpmech.verifying import Check
from tests.support.forged_files import text_with_checksum
from tests.support.reviewed import review_of, run_of, small


def weaker():
    """A certificate that claims what its noise does not give."""
    return with_checksum(dataclasses.replace(small(), sigma=0.9 * small().sigma))


def test_a_claim_that_does_not_hold_has_no_attack_rates():
    review = review_of(weaker())
    assert not review.ok
    assert review.attacks is None
    assert any(not check.ok for _, check in review.checks)
    good = review_of(small())
    with pytest.raises(InvalidParameterError, match="attacks"):
        Review(review.subject, review.verifications, good.attacks)


def test_verifications_have_to_be_those_of_the_files():
    review = review_of(small())
    with pytest.raises(InvalidParameterError, match="verifications"):
        Review(review.subject, (), review.attacks)


def test_a_file_that_changed_between_reading_and_verifying_is_no_review():
    review, other = review_of(small()), review_of(small("poisson"))
    with pytest.raises(InvalidParameterError, match="left as it is while it is read"):
        Review(review.subject, other.verifications, None)
    run = review_of(run_of(small()))
    with pytest.raises(InvalidParameterError, match="left as it is while it is read"):
        Review(review.subject, run.verifications, None)


def test_an_early_stop_by_plan_costs_what_was_executed():
    own = small().certificate(1.0, 10.0)
    executed = dm.executed_epsilon(own, 6)
    early = dataclasses.replace(
        run_of(own), steps=6, executed=executed, stopped_by_plan=True, most_participations=2
    )
    assert executed.upper <= float(review_of(early).cost) < own.budget.eps
    assert review_of(run_of(own)).cost == "2"
    assert review_of(early).summary()["run"] == {
        "steps": 6,
        "eps": executed.upper,
        "stopped_by_plan": True,
    }


def test_an_eps_of_the_executed_steps_that_nobody_proved_is_not_charged():
    """Truncated batches: the checker's bounds are apart, so that it does not refute a forged eps."""
    truncated = dm.Poisson(0.2, truncated_batch_size=8, dataset_size=30)
    cal = dm.calibrate_sigma(
        dm.Identity(4), 2.0, 1e-5, participation=truncated, adjacency=dm.Adjacency.ZERO_OUT
    )
    own = cal.certificate(1.0, 5.0)
    honest = dm.executed_epsilon(own, 2)
    forged = dataclasses.replace(honest, upper=0.5 * (honest.lower + honest.upper))
    drawn = dm.certificates.Randomness("system entropy", "0" * 64, seeded=False)
    run = dm.RunRecord(own, 2, honest, drawn, drawn, stopped_by_plan=True)
    review = review_of(run)
    assert float(review.cost) >= honest.upper
    assert review.summary()["run"]["eps"] == honest.upper
    review = review_of(dataclasses.replace(run, executed=forged))
    assert review.verifications[0].executed_open
    assert (review.eps, review.cost) == (2.0, "2")
    assert review.summary()["run"]["eps"] == 2.0
    assert "; proved is eps 2;" in str(review.verifications[0])
    assert "Trained with **(2, 1e-05)-differential privacy**" in as_markdown(review)
    assert f"at most {up(forged.upper)}, not proved" in as_html(review, made=datetime.date(2026, 1, 1))


def test_an_end_of_eps_that_nobody_proved_is_not_told_as_proved():
    own = small("truncated_batches")
    told = f"the stated eps is at most {up(own.achieved.upper)}"
    assert told in summary._proved(review_of(own))
    narrow = dataclasses.replace(own.achieved, upper=0.5 * (own.achieved.lower + own.achieved.upper))
    review = review_of(with_checksum(dataclasses.replace(own, achieved=narrow)))
    assert review.ok
    assert "the stated eps is" not in summary._proved(review)
    text = f"{between(narrow.lower, narrow.upper)}, not proved, claimed"
    assert text in as_html(review, made=datetime.date(2026, 1, 1))
    assert "not proved" not in as_html(review_of(own), made=datetime.date(2026, 1, 1))


def test_an_end_of_eps_in_a_run_record_is_decided_with_the_run_or_not_at_all():
    own = small("poisson").certificate(1.0, 10.0)
    low = with_checksum(
        dataclasses.replace(
            own, achieved=dataclasses.replace(own.achieved, lower=0.0, upper=0.9 * own.budget.eps)
        )
    )
    numbers = [dm.certificates.Randomness("a source", 64 * digit, seeded=False) for digit in "01"]
    whole = dm.RunRecord(own, own.strategy.n, own.achieved, *numbers)
    assert not dm.verify(whole).stated_open
    early = dm.RunRecord(low, 1, dm.executed_epsilon(own, 1), *numbers, stopped_by_plan=True)
    found = dm.verify(early)
    assert found.ok
    assert found.achieved_open
    assert "is not checked" in " ".join(found.stated_open)
    assert "not proved, claimed" in as_html(review_of(early), made=datetime.date(2026, 1, 1))


def test_a_run_whose_noise_was_refuted_is_not_told_as_following_its_claim():
    check = dm.certificates.NoiseCheck(0.5, 10_000, 12, 1e-9, ("scale",))
    run = dataclasses.replace(run_of(small()), noise_check=check)
    review = review_of(run)
    assert review.answers[1][1] == "the statements of its record were refused"
    assert dm.verify(run).to_dict()["run_follows"]["verdict"] == "REFUSED"


def test_a_stored_profile_that_nobody_proved_is_not_used(monkeypatch):
    """Nodes that the checker has no time to decide may be anything."""
    monkeypatch.setattr(records.Certifier, "nodes", lambda *_: iter(()))
    cal = dm.calibrate_sigma(dm.Identity(4), 2.0, 1e-5, participation=dm.BallsInBins(2, fresh=True))
    own = cal.certificate(1.0, 5.0, profile=cal.profile())
    document = own.to_dict()
    for curve in document["evidence"]["profile"]["curves"]:
        for side in (curve["remove"], curve["add"]):
            for name, factor in (("upper", 0.1), ("lower", 0.0)):
                few = [factor * value for value in side[name]["decimal"]]
                side[name] = {"decimal": few, "hex": [value.hex() for value in few]}
    forged = dm.Certificate.from_json(text_with_checksum(document))
    ledger = dm.Ledger()
    ledger.add("a", forged, batch="a")
    ledger.add("b", forged, batch="b")
    honest, review = review_of(own, claim_only=False), review_of(forged, ledger, claim_only=False)
    assert review.ok
    assert review.verifications[0].profile_open
    assert review.attacks.basis == "profile"
    assert review.attacks.upper(0.01) > 0.9 * honest.attacks.upper(0.01)
    assert float(re.search(r"eps is at most (\S+) at delta", rendering._total(review))[1]) > 2.0
    for subject in (forged, ledger):
        strict = dm.verify(subject, max_seconds=1.0, policy=dm.Policy(require_decided=True))
        assert strict.failures[0].startswith("policy require_decided: ")
        assert "upper ends of the privacy profile" in strict.failures[0]


def test_no_total_is_told_of_a_ledger_that_was_not_verified(monkeypatch):
    """The total would use what the checker did not prove."""
    ledger = dm.Ledger()
    ledger.add("a", small("bins_exact"), batch="a")
    review = review_of(small("bins_exact"), ledger)
    assert "eps" in rendering._total(review)
    open_part = Verdict(Kind.NOT_CHECKED, "all releases together", "the time is up")
    checks = (*review.verifications[-1].checks, Check("total", ok=False, detail="", verdict=open_part))
    failed = dataclasses.replace(review.verifications[-1], checks=checks)
    review = Review(review.subject, (review.verifications[0], failed), None)
    assert rendering._total(review) == "No total is stated: the ledger was not verified."
