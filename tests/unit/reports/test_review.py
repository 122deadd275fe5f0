import dataclasses

import pytest

import dpmech as dm
from dpmech.certificates import with_checksum
from dpmech.exceptions import InvalidParameterError
from dpmech.reports import Review
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
