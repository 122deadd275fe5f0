"""How margins become words, and a claim multiplied by a factor."""

import numpy as np
import pytest

from verification.harness.nudging import nudge
from verification.harness.registry import load
from verification.harness.verdict import (
    UNSETTLED,
    InconclusiveError,
    Verdict,
    judged,
    judged_arithmetic,
    judged_condition,
    judged_erratum,
    judged_proof,
    statement,
)


def test_statements_register_once_and_words_are_checked():
    load()
    with pytest.raises(ValueError, match="registered twice"):
        statement("cgd.thm1", paper="lambda_cgd")(lambda: None)
    with pytest.raises(ValueError, match="a verdict must be one of"):
        statement("cgd.new", paper="lambda_cgd", expected="REFUTED")(lambda: None)
    with pytest.raises(ValueError, match="a verdict must be one of"):
        statement("cgd.new", paper="lambda_cgd", expected=UNSETTLED)(lambda: None)
    with pytest.raises(ValueError, match="status must be one of"):
        Verdict("TRUE", "by decree", 1, 0.0)
    with pytest.raises(ValueError, match="a verdict must be one of"):
        judged_erratum(1.0, 0.0, 0.5, word="FALSE")
    assert Verdict(UNSETTLED, "by hand", 1, 0.0).status == UNSETTLED


def test_margins_become_words():
    assert judged(1e-3, 1e-2) == "CONFIRMED"
    assert judged(1e-3, 1e-2, word="BEYOND THE PAPER") == "BEYOND THE PAPER"
    assert judged(1e-1, 1e-2) == UNSETTLED
    assert judged(float("nan"), 1e-2) == UNSETTLED
    assert judged_condition(1e-3, 1.0, 1e-2) == "CONDITIONAL"
    assert judged_condition(1e-3, 1e-3, 1e-2) == "CONFIRMED"
    assert judged_condition(1.0, 1.0, 1e-2) == UNSETTLED
    assert judged_erratum(1.0, 1e-3, 1e-2, word="MISPRINT") == "MISPRINT"
    assert judged_erratum(1e-3, 1e-3, 1e-2, word="MISPRINT") == "CONFIRMED"
    assert judged_proof(1e-3, 1.0, 1e-3, 1e-2) == "CONFIRMED, MISPRINT IN THE PROOF"
    assert judged_proof(1e-3, 1e-3, 1e-3, 1e-2) == "CONFIRMED"
    assert judged_proof(1.0, 1.0, 1e-3, 1e-2) == UNSETTLED
    assert judged_arithmetic(1e-3, 1e-2) == "UNVERIFIABLE"
    assert judged_arithmetic(1.0, 1e-2) == UNSETTLED


def test_where_nothing_holds_there_is_no_verdict():
    with pytest.raises(InconclusiveError, match="corrected form is off by 1"):
        judged_erratum(1.0, 1.0, 1e-2, word="MISPRINT")
    with pytest.raises(InconclusiveError, match="corrected form is off by 1"):
        judged_proof(1e-3, 1.0, 1.0, 1e-2)
    for values in ((float("nan"), 1e-3), (1e-3, float("nan"))):
        with pytest.raises(InconclusiveError, match="not a number"):
            judged_condition(*values, 1e-2)
        with pytest.raises(InconclusiveError, match="not a number"):
            judged_erratum(*values, 1e-2, word="MISPRINT")


def measured(*, number=2.0, pair=(1.0, 4.0), named=None, law=lambda x: 3.0 * x, series=np.arange):
    found = (number, *pair, law(1.0), float(series(3)[2]), (named or {"a": 1.0})["a"])
    return Verdict("CONFIRMED", "sum", 1, sum(found))


@pytest.mark.parametrize(
    ("argument", "index", "gain"),
    [
        ("number", None, 2.0),
        ("pair", None, 5.0),
        ("pair", 1, 4.0),
        ("law", None, 3.0),
        ("series", None, 2.0),
        ("series", 1, 0.0),
        ("series", 2, 2.0),
    ],
)
def test_one_claim_is_multiplied(argument, index, gain):
    before = nudge(measured, argument, index)(1.0).worst_margin
    assert before == measured().worst_margin
    assert nudge(measured, argument, index)(1.5).worst_margin == pytest.approx(before + 0.5 * gain)


def test_numbers_by_name_are_multiplied():
    def check(*, claim=(("a", 1.0), ("b", 4.0)), table={"a": 1.0, "b": (4.0, 5.0)}):  # noqa: B006 - read only
        return Verdict("CONFIRMED", "sum", len(claim), table["a"] + sum(table["b"]))

    assert nudge(check, "table", "a")(2.0).worst_margin == 11.0
    assert nudge(check, "table", "b")(2.0).worst_margin == 19.0
    assert nudge(check, "table")(2.0).worst_margin == 20.0
