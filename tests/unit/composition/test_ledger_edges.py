"""What a ledger makes of its entries at the edges: roundings, small numbers of bins, empty lots, files."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.composition.ledger_entries import Part, composed, part_of


@pytest.mark.parametrize("budget", [None, dm.PrivacyBudget(4.0, 1e-5)])
def test_a_closed_ledger_may_be_written_again_as_it_is(tmp_path, budget):
    ledger = dm.Ledger(budget=budget)
    ledger.add("one", dm.calibrate_sigma(dm.Identity(1), 1.0, 1e-6))
    if budget is None:
        ledger.close()
    path = tmp_path / "ledger.json"
    ledger.save(path)
    if budget is not None:
        ledger.close()
        ledger.save(path)
    text = path.read_text(encoding="utf-8")
    ledger.save(path)
    assert path.read_text(encoding="utf-8") == text
    loaded = dm.Ledger.load(path)
    assert loaded.closed
    loaded.save(path)
    assert path.read_text(encoding="utf-8") == text


def test_the_releases_of_a_file_are_counted_from_one(tmp_path):
    ledger = dm.Ledger()
    for name in ("first", "second", "third"):
        ledger.add(name, dm.calibrate_sigma(dm.Identity(1), 1.0, 1e-6))
    ledger.save(tmp_path / "ledger.json")
    written = json.loads((tmp_path / "ledger.json").read_text(encoding="utf-8"))
    assert [one["number"] for one in written["releases"]] == [1, 2, 3]


def test_sums_of_gaussian_parts_are_rounded_outward():
    rng = np.random.default_rng(5)
    for count in (1, 2, 3, 7, 40):
        for _ in range(25):
            pairs = [(1.0 + rng.random(), 0.2 + 3.0 * rng.random()) for _ in range(count)]
            parts = [Part(gaussian=((sens / sigma) ** 2, (sens / sigma) ** 2)) for sens, sigma in pairs]
            exact = sum((Fraction(sens) / Fraction(sigma)) ** 2 for sens, sigma in pairs)
            lower, upper = composed(parts).gaussian
            assert lower <= exact <= upper
            assert upper - lower <= Fraction(1, 10**14) * exact


def test_two_bins_are_a_claim_and_one_is_no_sampling():
    strategy = dm.LambdaCGD(6, 0.5)
    drawn = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.BallsInBins(2), method=dm.Rdp())
    assert part_of(drawn.certificate()).claim == (2.0, 1e-5)
    # In every step: what the two bins hide is not hidden here.
    every = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.BallsInBins(1))
    part = part_of(every.certificate())
    assert part.claim is None
    assert part.gaussian[1] == pytest.approx((every.sensitivity.upper / every.sigma) ** 2)


def test_a_lot_that_registered_nothing_has_no_noise():
    cal = dm.calibrate_sigma(dm.Identity(1), 8.0, 1e-5, participation=dm.Poisson(0.1))
    assert cal.sigma < 1.0
    with pytest.raises(dm.UnsupportedCombinationError, match="jointly sigma=0"):
        dm.Ledger().add("a", cal, lot=dm.Lot("empty", cal.strategy, cal.participation))


def test_a_ledger_is_as_sure_as_its_least_sure_entry():
    exact = dm.calibrate_sigma(dm.Identity(1), 1.0, 1e-6)
    loose = dm.calibrate_sigma(
        dm.ColumnNormalized(dm.InverseSquareRoot(12, 4)), 1.0, 1e-6, participation=dm.MinSep(2, 4)
    )
    assert (str(exact.guarantee), str(loose.guarantee)) == ("exact", "deterministic upper bound")
    for order in ((exact, loose), (loose, exact)):
        ledger = dm.Ledger()
        for number, one in enumerate(order):
            ledger.add(str(number), one)
        assert str(ledger.guarantee) == "deterministic upper bound"


def test_a_filter_promises_no_least_loss():
    ledger = dm.Ledger(budget=dm.PrivacyBudget(2.0, 1e-5))
    ledger.add("all", dm.calibrate_sigma(dm.Identity(1), 2.0, 1e-5))
    assert ledger.epsilon(1e-5).lower == ledger.delta(2.0).lower == 0.0
    assert math.isclose(ledger.epsilon(1e-5).upper, 2.0, rel_tol=1e-9)


@pytest.mark.parametrize("error", [0.0, 1e-12])
def test_what_holds_with_a_probability_has_no_lower_end(error, monkeypatch):
    guarantee = dm.Guarantee(dm.Kind.PROBABLE, error) if error else dm.Guarantee(dm.Kind.BOUND)
    monkeypatch.setattr(dm.Ledger, "guarantee", guarantee)
    bounds = dm.Bounds(0.5, 0.75, dm.Guarantee(dm.Kind.BOUND), dm.Provenance("x"))
    found = dm.Ledger()._labelled(bounds)
    assert (found.lower, found.upper, found.guarantee) == (0.0 if error else 0.5, 0.75, guarantee)
    line = dm.Ledger().headline
    assert ("beta = 1e-12 in all" in line) is bool(error)
