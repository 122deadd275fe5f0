import math

import pytest

import dpmech as dm
from dpmech.accounting.gaussian import gaussian_delta
from dpmech.composition.mixed import MixedComposition


@pytest.mark.parametrize("delta", [1e-6, 1e-5, 0.3])
def test_a_single_claim_keeps_its_eps(delta):
    found = MixedComposition(claims=((1.0, 1e-6),)).epsilon(delta)
    assert 1.0 <= found.upper <= 1.0 + 1e-12
    assert found.lower == 0.0
    assert "basic composition" in str(found.by)


@pytest.mark.parametrize("renyi", [False, True])
def test_claims_that_use_up_all_of_delta_leave_nothing_to_others(renyi):
    mixed = MixedComposition(gaussian=(0.5, 0.5), claims=((1.0, 1e-5),))
    with pytest.raises(dm.UnattainableBudgetError, match="use up all of delta"):
        mixed.epsilon(1e-5, renyi=renyi)
    with pytest.raises(dm.UnattainableBudgetError, match="fail with probability"):
        mixed.epsilon(0.99e-5, renyi=renyi)
    assert mixed.epsilon(1.1e-5, renyi=renyi).upper > 1.0


@pytest.mark.parametrize("eps", [1.5, 3.0])
def test_a_claim_beside_a_gaussian_costs_at_least_what_each_alone_does(eps):
    # (1, 1e-3) is attained by a release that fails with 1e-3 and else has loss exactly 1 or -1.
    mixed = MixedComposition(gaussian=(0.25, 0.25), claims=((1.0, 1e-3),))
    share = math.e / (1.0 + math.e)
    truth = 1e-3 + (1.0 - 1e-3) * (
        share * gaussian_delta(2.0, eps - 1.0)[0] + (1.0 - share) * gaussian_delta(2.0, eps + 1.0)[0]
    )
    for renyi in (False, True):
        bound = mixed.delta(eps, renyi=renyi)
        assert truth <= bound.upper
        back = mixed.epsilon(bound.upper, renyi=renyi)
        assert back.upper == pytest.approx(eps, rel=0.02)
    assert mixed.delta(eps).upper <= 1.01 * truth + 1e-6
