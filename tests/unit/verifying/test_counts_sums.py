"""The second route of counts: against sums with 40 digits, and whether it finds planted faults."""

import dataclasses
from fractions import Fraction

import mpmath
import pytest

import dpmech as dm
from dpmech.verifying import ledgers
from dpmech.verifying.counts_sums import spend_on_counts, summed_delta


def by_two_sums(counts, eps):
    """One release, from P(Y >= m) - e^eps P(Y >= m + D) at the first m whose ratio is above e^eps."""
    mpmath.mp.dps = 40
    sigma, shift = mpmath.mpf(counts.sigma.numerator) / counts.sigma.denominator, counts.sensitivity
    reach = int(40 * sigma) + shift
    mass = {y: mpmath.exp(-(y**2) / (2 * sigma**2)) for y in range(-reach, reach + shift + 1)}
    total = mpmath.fsum(mass.values())
    gains = (mass[y] - mpmath.exp(eps) * mass[y + shift] for y in range(-reach, reach + 1))
    return mpmath.fsum(gain for gain in gains if gain > 0) / total


@pytest.mark.parametrize("sigma", [Fraction(1, 4), Fraction(9, 10), Fraction(2), Fraction(21, 2)])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_one_release_is_what_two_sums_make_it(sigma, shift):
    counts = dm.DiscreteGaussian(sigma, shift)
    for eps in (0.0, float(counts.rho), 3.0 * float(counts.rho) + 0.1):
        assert summed_delta(counts, eps) == pytest.approx(float(by_two_sums(counts, eps)), rel=1e-9)


@pytest.mark.parametrize(
    "counts",
    [
        dm.DiscreteGaussian(0.2, 1, 2),
        dm.DiscreteGaussian(0.7, 3, 20),
        dm.DiscreteGaussian(2, 1, 7),
        dm.DiscreteGaussian(20, 2, 12),
        pytest.param(dm.DiscreteGaussian(300, 7, 10_000), marks=pytest.mark.slow),  # integrals
        dm.DiscreteGaussian(3, 1, 80_000),  # almost nothing is hidden
    ],
)
def test_it_lies_between_the_bounds_of_the_first_route(counts):
    for delta in (1e-9, 1e-2):
        eps = counts.epsilon(delta).upper
        bounds, found = counts.delta(eps), summed_delta(counts, eps)
        assert bounds.lower * (1 - 1e-6) <= found <= bounds.upper * (1 + 1e-6)


@pytest.fixture
def ledger():
    ledger = dm.Ledger()
    ledger.add_counts("classes", dm.DiscreteGaussian(20, releases=12))
    ledger.close()
    return ledger


def test_a_ledger_of_counts_is_verified(ledger, tmp_path):
    path = tmp_path / "ledger.json"
    ledger.save(path)
    found = dm.verify(path)
    assert found.ok
    (check,) = (one for one in found.checks if one.name == "counts")
    assert check.route == "sums over the integers"
    assert "'classes': 12 integers" in check.detail


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_a_first_route_that_is_off_is_found(ledger, tmp_path, monkeypatch, factor):
    path = tmp_path / "ledger.json"
    ledger.save(path)
    right = dm.DiscreteGaussian.delta

    def wrong(self, eps):
        found = right(self, eps)
        return dataclasses.replace(found, lower=found.lower * factor, upper=found.upper * factor)

    monkeypatch.setattr(dm.DiscreteGaussian, "delta", wrong)
    found = dm.verify(path)
    assert [one.name for one in found.checks if not one.ok] == ["counts"]


def test_counts_that_take_too_long_are_refused_before_they_are_looked_at(tmp_path, monkeypatch):
    ledger = dm.Ledger()
    ledger.add_counts("large", dm.DiscreteGaussian(100_000, 1_000_000, 50))
    ledger.save(tmp_path / "ledger.json")
    monkeypatch.setattr(ledgers, "counts_checks", None)
    with pytest.raises(dm.WorkLimitError, match=r"sums over .* integers"):
        dm.verify(tmp_path / "ledger.json")
    spend_on_counts(Fraction(100_000), 1, 1)  # without a limit nothing is refused
