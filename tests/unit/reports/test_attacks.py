import math

import numpy as np
import pytest
from scipy.stats import norm

import dpmech as dm
from dpmech.exceptions import NumericalError
from dpmech.numerics import metered
from dpmech.reports import attacks as module
from dpmech.reports import attacks_of
from dpmech.reports.attacks import RATES, power_bounds
from tests.support.reviewed import small

RATES_DRAWN = [10.0**power for power in np.linspace(-4.0, 0.0, 41)]


def quiet(line):
    del line


def test_the_profile_gives_the_gaussian_rates():
    own = small()
    found = attacks_of(own, progress=quiet)
    mu = own.sensitivity.upper / own.sigma
    assert (found.basis, found.reason) == ("profile", "")
    for rate in RATES:
        exact = norm.cdf(norm.ppf(rate) + mu)
        assert exact <= found.upper(rate) <= exact * 1.001
    drawn = power_bounds(found.points, RATES_DRAWN)
    exact = norm.cdf(norm.ppf(RATES_DRAWN) + mu)
    assert np.all(np.array(drawn) >= exact * (1.0 - 1e-9))
    assert np.all(np.array(drawn) <= exact + 0.01)


def test_the_claim_alone_is_the_worst_mechanism_that_has_it():
    own = small()
    eps, delta = own.budget.eps, own.budget.delta
    found = attacks_of(own, claim_only=True, progress=quiet)
    assert found.basis == "claim"
    assert found.points == ((eps, delta),)
    for rate in RATES:
        # Randomised response with a share of delta given away: the worst, by Kairouz, Oh and Viswanath.
        exact = min(math.exp(eps) * rate + delta, 1.0 - math.exp(-eps) * (1.0 - delta - rate), 1.0)
        assert exact <= found.upper(rate) <= exact * 1.001
        assert power_bounds(found.points, [rate]) == pytest.approx([exact], rel=1e-9)
    assert attacks_of(own, progress=quiet).upper(0.01) < found.upper(0.01)


def test_where_the_profile_is_refused_the_claim_is_read_and_says_so(monkeypatch):
    def refused(*_arguments, **_settings):
        raise NumericalError("no lattice bounds it")

    monkeypatch.setattr(module, "profile", refused)
    found = attacks_of(small(), progress=quiet)
    assert found.basis == "claim"
    assert found.reason == "it could not be bounded: no lattice bounds it"


def test_a_profile_beyond_the_budget_of_work_is_refused():
    with metered(1e-3, 1e9):
        found = attacks_of(small("bins inside"), progress=quiet)
    assert found.basis == "claim"
    assert "--max-seconds" in found.reason


def test_the_ends_of_the_curve():
    assert power_bounds([(900.0, 1e-5)], [1e-4, 1.0]) == [1.0, 1.0]
    assert power_bounds([(0.0, 0.0)], [0.25, 1.0]) == [0.25, 1.0]


def test_an_estimate_stays_one():
    found = attacks_of(small("bins 8"), claim_only=True, progress=quiet)
    assert found.guarantee == small("bins 8").guarantee
    assert found.guarantee.kind is dm.Kind.ESTIMATE
