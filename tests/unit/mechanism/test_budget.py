import dataclasses
import math

import numpy as np
import pytest

import dpmech as dm


def test_budget_keeps_floats():
    budget = dm.PrivacyBudget(np.float32(0.5), np.float64(1e-5))
    assert budget == dm.PrivacyBudget(0.5, 1e-5)
    assert type(budget.eps) is float
    assert dm.PrivacyBudget(8, 1e-5).eps == 8.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.eps = 1.0


@pytest.mark.parametrize("eps", [0, 0.0, -1.0, math.nan, math.inf, "8", None, True])
def test_bad_eps(eps):
    with pytest.raises(dm.InvalidParameterError, match=r"eps must be a finite number in \(0, inf\), got"):
        dm.PrivacyBudget(eps, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 1.5, math.nan, math.inf, "1e-5", None, True])
def test_bad_delta(delta):
    with pytest.raises(dm.InvalidParameterError, match=r"delta must be a finite number in \(0, 1\), got"):
        dm.PrivacyBudget(8.0, delta)


def test_adjacency_members():
    assert [member.value for member in dm.Adjacency] == ["add_remove", "zero_out", "replace_one"]
    assert dm.Adjacency.check(dm.Adjacency.ZERO_OUT) is dm.Adjacency.ZERO_OUT


@pytest.mark.parametrize("value", ["add_remove", None, 1])
def test_adjacency_is_no_string(value):
    with pytest.raises(dm.InvalidParameterError, match=r"Adjacency\.ADD_REMOVE.*Adjacency\.REPLACE_ONE"):
        dm.sensitivity(dm.Identity(3), adjacency=value)
