"""What a ledger makes of its entries at the edges: roundings, small numbers of bins, empty batches, files."""

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.profile import PrivacyProfile
from dpmech.ledgers.ledger_totals import known_profile
from dpmech.numerics import EXACT, rounded_down, rounded_up
from dpmech.schemes import accountant_for
from tests.support import saved


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
            squares = [(Fraction(sens) / Fraction(sigma)) ** 2 for sens, sigma in pairs]
            exact = sum(squares)
            parts = [
                PrivacyProfile(
                    Composition((rounded_down(one), rounded_up(one))), EXACT, dm.numerics.Provenance("given")
                )
                for one in squares
            ]
            lower, upper = parts[0].compose(*parts[1:]).parts.gaussian
            assert lower <= exact <= upper
            assert lower < upper <= lower * (1.0 + 1e-14)


def test_a_gaussian_part_is_rounded_outward():
    rng = np.random.default_rng(6)
    for strategy in (dm.LambdaCGD(7, 0.3), dm.Identity(3)):
        claim = dm.calibrate_sigma(strategy, 1.0, 1e-6).certificate()
        for sigma in rng.uniform(3.0, 9.0, size=10):
            own = dataclasses.replace(claim, sigma=float(sigma))
            lower, upper = known_profile(own).parts.gaussian
            ends = claim.sensitivity.lower, claim.sensitivity.upper
            least, most = ((Fraction(end) / Fraction(float(sigma))) ** 2 for end in ends)
            assert lower <= least <= most <= upper
            assert lower < upper <= lower * (1.0 + 1e-12)


def test_releases_of_one_kind_have_a_lower_end_that_counts_the_least_sensitivity():
    strategy, sampled = dm.SquareRoot(20, 3), dm.CyclicPoisson(0.2, 5)
    own = saved.certificate("cyclic 20")
    (part,) = known_profile(own).parts.sampled
    release = accountant_for(dm.Mechanism(strategy, sampled), None).release
    assert part.tight
    assert 0.0 < part.gap == release.sensitivity.relative_gap
    both = dm.Ledger()
    both.add("a", own, batch="a")
    both.add("b", own, batch="b")
    (found,) = both.profile().parts.sampled
    assert found == dataclasses.replace(part, steps=2 * part.steps)
    assert found.release.sensitivity.lower <= (1.0 - part.gap) / part.sigma_over_sensitivity
    assert found.release.sensitivity.upper >= 1.0 / part.sigma_over_sensitivity


def test_two_bins_are_a_claim_and_one_is_no_sampling():
    strategy = dm.LambdaCGD(6, 0.5)
    drawn = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.BallsInBins(2), method=dm.methods.Rdp())
    assert known_profile(drawn.certificate()) is None
    ledger = dm.Ledger()
    ledger.add("a", drawn, batch="a")
    assert ledger.to_dict()["total"]["claims"]["decimal"] == [[2.0, 1e-5]]
    # In every step: what the two bins hide is not hidden here.
    every = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.BallsInBins(1))
    square = known_profile(every.certificate()).parts.gaussian[1]
    assert square == pytest.approx((every.sensitivity.upper / every.sigma) ** 2)


def test_a_batch_that_registered_nothing_has_no_noise():
    cal = dm.calibrate_sigma(dm.Identity(1), 8.0, 1e-5, participation=dm.Poisson(0.1))
    assert cal.sigma < 1.0
    with pytest.raises(dm.UnsupportedCombinationError, match="jointly sigma=0"):
        dm.Ledger().add("a", cal, batch=dm.ledgers.SharedBatch("empty", cal.strategy, cal.participation))


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
def test_what_certificates_leave_to_chance_has_no_lower_end(error, monkeypatch):
    guarantee = dm.Guarantee(dm.Kind.PROBABLE, error) if error else dm.Guarantee(dm.Kind.BOUND)
    cal = dm.calibrate_sigma(dm.Identity(1), 1.0, 1e-6)
    monkeypatch.setattr(dm.Certificate, "guarantee", guarantee)
    ledger = dm.Ledger()
    ledger.add("a", cal)
    found = ledger.epsilon(1e-6)
    assert found.guarantee == guarantee
    assert found.lower == (0.0 if error else pytest.approx(1.0, rel=1e-2))
    assert ("beta = 1e-12 in all" in ledger.headline) is bool(error)
