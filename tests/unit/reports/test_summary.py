"""The first page of a report."""

import datetime
import fractions

import pytest

import dpmech as dm
from dpmech.certificates import with_checksum
from dpmech.reports import as_html, as_markdown, registry_record, total_of
from dpmech.reports.summary import delta_times, size_of, summary_rows
from tests.support.forged_files import changed
from tests.support.reviewed import Page, review_of, run_of, small

MADE = datetime.date(2026, 11, 29)


def rows(review):
    return dict(summary_rows(review, "a total"))


def test_what_a_certificate_alone_says():
    found = rows(review_of(small().certificate(1.0, 10.0)))
    assert found["claim"] == "(2, 1e-05)-differential privacy; exact"
    assert found["unit and neighbours"] == "one example, add-remove"
    assert found["examples"].startswith("not stated: compare delta 1e-05 with 1 over the number")
    assert found["generator of the noise"] == "not stated: there is no run record"
    assert "there is no ledger" in found["all releases about these people"]
    assert found["proved by the checker"].startswith("PROVED, by the independent checker")
    assert "Tuning; Preprocessing; Evaluation" in found["not covered"]
    assert found["attack rates"].startswith("At a false-positive rate of 1 % among examples")


def test_run_and_ledger_say_the_rest():
    own = small().certificate(1.0, 10.0, dataset_size=40)
    ledger = dm.Ledger()
    ledger.add("one", own)
    ledger.add("two", small("min-sep eps 8"))
    review = review_of(own, dm.RunRecord(**{**vars(run_of(own)), "certificate": own}), ledger)
    found = rows(review)
    assert found["dataset size"] == "40 examples, declared in the certificate"
    assert found["delta times that"].startswith("0.0004,")
    assert found["generator of the noise"].startswith("a generator that is not stated, from system entropy")
    assert "the run record says so for 12 of 12 steps" in found["only the trainer vouches for"]
    assert found["all releases about these people"] == "2 releases: a total"
    total = total_of(ledger, None)
    for text in (" ".join("".join(Page(as_html(review, made=MADE)).text).split()), as_markdown(review)):
        assert "2 releases: eps in" in text
        assert dm.numerics.up(total["eps_upper"]) in text


@pytest.mark.parametrize(
    ("delta", "size", "shown"),
    [
        (1e-5, 40, "0.0004"),
        (1e-5, 100_000, "1"),
        (3e-6, 333_333, None),
        (1e-7, 3, None),
        (3.3333333333333335e-05, 3, None),
    ],
)
def test_delta_times_the_size_is_never_rounded_down(delta, size, shown):
    exact = fractions.Fraction(repr(delta)) * size
    text = delta_times(delta, size)
    assert fractions.Fraction(text) >= exact
    assert float(fractions.Fraction(text) / exact) <= 1.0 + 1e-5
    assert shown is None or text == shown


def test_the_larger_of_the_stated_and_the_implied_size_counts():
    # q = 0.2 and batches of 10 on average: 50 examples.
    own = small("poisson").certificate(1.0, 10.0)
    assert size_of(own) == (50, "example", "implied by batch size and sampling")
    assert size_of(own.certificate(dataset_size=40))[0] == 50
    assert size_of(own.certificate(dataset_size=60)) == (60, "example", "declared in the certificate")
    assert size_of(small()) == (None, "example", "")


def test_where_users_are_sampled_the_size_is_theirs():
    own = dm.certify_sigma(
        dm.Mechanism(dm.Identity(12), dm.Poisson(0.2), unit=dm.Unit.USER), 3.0, delta=1e-5
    ).certificate(1.0, 10.0)
    assert size_of(own) == (50, "user", "implied by batch size and sampling")
    found = rows(review_of(own))
    assert found["dataset size"].startswith("50 users,")
    assert "users" not in found
    # Examples are drawn one by one here, and each of few per user.
    each = small("users").certificate(1.0, 10.0)
    assert size_of(each)[:2] == (None, "example")
    declared = rows(review_of(each.certificate(dataset_size=60)))
    assert declared["dataset size"].startswith("60 examples, declared")
    assert declared["users"].startswith("not stated")


def test_a_delta_of_one_over_the_size_cannot_be_overlooked():
    own = small().certificate(1.0, 10.0, dataset_size=100_000)
    assert "too high" in rows(review_of(own))["delta times that"]
    own = small().certificate(1.0, 10.0, dataset_size=99_999)
    assert "too high" not in rows(review_of(own))["delta times that"]


def test_of_a_loose_claim_nothing_is_exact():
    """Ten times the noise: the claim holds, and its eps is far below what the file says of it."""
    own = small()
    loose = with_checksum(changed(own.certificate(1.0, 10.0), sigma=10.0 * own.sigma))
    review = review_of(loose)
    found = rows(review)
    assert review.ok
    assert found["claim"].endswith("true and loose: more noise than this eps needs")
    assert "the stated eps is in" not in found["proved by the checker"]
    stated = as_markdown(review), as_html(review, made=MADE)
    assert all("true and loose" in one and "privacy</strong>: exact" not in one for one in stated)
    assert "privacy**: exact" not in stated[0]
    assert registry_record(review)["deployment"]["privacy_loss"]["privacy_parameters_details"].startswith(
        "true and loose"
    )
