import math

import pytest

from dpmech.engines.gaussian_mixture.estimate import DirectionEstimate, Estimate, SamplingPlan

PLAN = SamplingPlan((1,), ("a",), (1.0,), ("b",), (1.0,), 100, 200)


def direction(delta, carried, samples, relative_error=0.1):
    return DirectionEstimate(
        delta, 0.5 * delta, 2 * delta, relative_error, 50.0, 0.1, math.nan, math.inf, samples, carried
    )


def both(remove_delta, add_delta):
    remove = direction(remove_delta, {"few": 0.004, "some": 0.28, "most": 0.716}, 100, 0.2)
    add = direction(add_delta, {"d": 0.04, "b": 0.3, "a": 0.51, "c": 0.15}, 200)
    return Estimate(1.0, max(remove_delta, add_delta), 0.0, 1.0, 0.95, remove, add, PLAN)


@pytest.mark.parametrize(("remove", "add"), [(1e-5, 2e-5), (2e-5, 1e-5), (1e-5, 1e-5)])
def test_the_larger_direction_decides(remove, add):
    estimate = both(remove, add)
    assert estimate.samples == 300
    assert estimate.deciding.delta == max(remove, add)
    if remove >= add:
        assert estimate.relative_error == 0.2
        assert list(estimate.carriers.items()) == [("direction", "REMOVE"), ("most", 0.716), ("some", 0.28)]
    else:
        assert estimate.relative_error == 0.1
        assert list(estimate.carriers.items()) == [("direction", "ADD"), ("a", 0.51), ("b", 0.3), ("c", 0.15)]
