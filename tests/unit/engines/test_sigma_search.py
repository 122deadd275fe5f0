"""What a search for sigma ends with: safe, and shown to be within rtol of the smallest."""

import types

import pytest

import dpmech as dm
from dpmech.engines.sigma_search import _certified

BY, BOUND = dm.numerics.Provenance("x"), dm.Guarantee(dm.Kind.BOUND)


def accountant(*, meets_from, lower, upper):
    """eps is met from a sigma on; delta at any smaller sigma lies between the ends."""

    def epsilon(sigma, delta, *, tolerance):
        return dm.Bounds(0.0, 1.0 if sigma >= meets_from else 1.001, BOUND, BY)

    def delta(sigma, eps, *, tolerance):
        assert tolerance == pytest.approx(0.4 * 0.1)
        return dm.Bounds(0.0, 1e-5, BOUND, BY) if sigma >= 2.0 else dm.Bounds(lower, upper, BOUND, BY)

    return types.SimpleNamespace(epsilon=epsilon, delta=delta, bounded_delta=delta, method="fake")


def test_sigma_is_raised_by_a_fiftieth_of_rtol_until_eps_is_met():
    for meets_from, steps in ((2.0, 0), (2.003, 1), (2.0071, 2)):
        found = _certified(accountant(meets_from=meets_from, lower=2e-5, upper=3e-5), 2.0, 1.0, 1e-5, 0.1)
        assert found.sigma == pytest.approx(2.0 * 1.002**steps, rel=1e-12)
    with pytest.raises(dm.NumericalError, match="could not be shown"):
        _certified(accountant(meets_from=2.5, lower=2e-5, upper=3e-5), 2.0, 1.0, 1e-5, 0.1)


@pytest.mark.parametrize(
    ("lower", "upper", "tight"),
    [(1.1e-5, 2e-5, True), (0.9e-5, 2e-5, False), (0.0, 1.1e-5, True), (0.0, 0.9e-5, False)],
)
def test_a_smaller_sigma_has_to_miss_the_budget_by_its_lower_end_where_there_is_one(lower, upper, tight):
    fake = accountant(meets_from=0.0, lower=lower, upper=upper)
    if tight:
        assert _certified(fake, 2.0, 1.0, 1e-5, 0.1).sigma == 2.0
    else:
        with pytest.raises(dm.NumericalError, match="could not be shown"):
            _certified(fake, 2.0, 1.0, 1e-5, 0.1)
