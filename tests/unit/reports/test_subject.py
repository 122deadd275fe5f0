import dataclasses
import datetime

import pytest

import dpmech as dm
from dpmech.exceptions import InvalidParameterError
from dpmech.reports import Subject, as_html
from tests.support.reviewed import review_of, run_of, small


def ledger_of(*certificates):
    ledger = dm.Ledger()
    for number, one in enumerate(certificates):
        ledger.add(f"release {number}", one)
    return ledger


def test_documents_are_told_apart_in_any_order():
    own = small().certificate(1.0, 10.0)
    run, ledger = run_of(own), ledger_of(own)
    for documents in ({"c": own, "r": run, "l": ledger}, {"l": ledger, "r": run, "c": own}):
        found = Subject.of(documents)
        assert (found.certificate, found.run, found.ledger) == (own, run, ledger)
        assert found.names == {"certificate": "c", "run record": "r", "ledger": "l"}
        # The run holds the certificate: it is verified once.
        assert found.to_verify == ("r", "l")
    assert Subject.of({"c": own}).to_verify == ("c",)


def test_a_run_brings_its_certificate():
    found = Subject.of({"r": run_of(small())})
    assert found.certificate == small().certificate(1.0, 10.0)


def test_what_does_not_belong_together_is_refused():
    own, other = small().certificate(1.0, 10.0), small("min-sep eps 8").certificate(1.0, 10.0)
    for documents, words in (
        ({"a": own, "b": own}, "b.*left out: a is a certificate already"),
        ({"a": own, "b": run_of(other)}, "b.*a run under the certificate in a"),
        ({"a": own, "b": ledger_of(other)}, "b.*has the certificate among its releases"),
        ({"b": ledger_of(own)}, "b.*given with a certificate or a run record"),
        # The same claim with another clip norm is another certificate.
        ({"a": small().certificate(2.0, 10.0), "b": run_of(own)}, r"clip norm 2\.0 there, 1\.0 in the run"),
        ({"a": small().certificate(1.0, 9.0), "b": run_of(own)}, r"batch size 9\.0 there, 10\.0 in the run"),
        ({"a": own, "b": run_of(other)}, r"\(sigma .* there, .* in the run, and 2 more differences\)"),
    ):
        with pytest.raises(InvalidParameterError, match=words):
            Subject.of(documents)


def test_what_the_certificate_leaves_open_the_run_may_fix():
    """`dpmech optimize --out` without --clip-norm, training, report: the claim is the same."""
    stated = dm.Certificate.from_json(small().certificate().to_json())
    assert (stated.clip_norm, stated.expected_batch_size) == (None, None)
    run, ledger = run_of(small()), ledger_of(stated)
    found = Subject.of({"c": stated, "r": run, "l": ledger})
    assert found.certificate == run.certificate != stated
    assert found.fixed == ("clip norm 1.0, left open in c", "expected batch size 10.0, left open in c")
    assert found.to_verify == ("r", "l")
    sized = small().certificate(1.0, 10.0, dataset_size=999)
    run = dataclasses.replace(run, certificate=small().certificate(1.0, 10.0, dataset_size=40))
    assert Subject.of({"c": stated, "r": run}).fixed[-1] == "dataset size 40, left open in c"
    with pytest.raises(InvalidParameterError, match="dataset size 999 there, 40 in the run"):
        Subject.of({"c": sized, "r": run})
    run = run_of(small())
    review = review_of(stated, run)
    assert review.ok
    assert "left open in 0.json" in as_html(review, made=datetime.date(2026, 1, 1))


def test_a_run_of_a_selection_is_not_reported_as_if_it_were_alone():
    own = small().certificate(1.0, 10.0)
    ledger = dm.Ledger()
    ledger.add_tuning("tuning", own, dm.ledgers.PoissonRuns(5.0))
    with pytest.raises(dm.InvalidParameterError, match="one run of a private selection"):
        Subject.of({"a": own, "b": ledger})
    ledger.add("trained again", own)
    assert Subject.of({"a": own, "b": ledger}).ledger is ledger
