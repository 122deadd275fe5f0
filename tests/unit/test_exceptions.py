import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.guards import check_integer, check_matrix, check_real, check_vector


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (dm.InvalidParameterError("n", 0, "an integer >= 1"), ValueError),
        (dm.UnsupportedCombinationError("no theorem", supported="others"), NotImplementedError),
        (dm.UnattainableBudgetError(1.0, 1e-5, "why"), ValueError),
        (dm.NumericalError("lost"), ArithmeticError),
        (dm.exceptions.CertificateError("bad", claimed=1, recomputed=2), ValueError),
        (dm.exceptions.HorizonError(7, 5), RuntimeError),
        (dm.exceptions.MissingDependencyError("torch", "torch"), ImportError),
    ],
)
def test_every_error_is_a_dpmech_error_and_a_builtin(error, builtin):
    assert isinstance(error, dm.DpmechError)
    assert isinstance(error, builtin)


def test_errors_carry_their_objects():
    invalid = dm.InvalidParameterError("lam", 1.5, "in [0, 1)")
    assert (invalid.name, invalid.value, invalid.accepted) == ("lam", 1.5, "in [0, 1)")
    assert str(invalid) == "lam must be in [0, 1), got 1.5"
    unsupported = dm.UnsupportedCombinationError("no theorem", supported="others")
    assert str(unsupported) == "no theorem; supported: others"
    assert (unsupported.reason, unsupported.supported) == ("no theorem", "others")
    unattainable = dm.UnattainableBudgetError(1.0, 1e-5, "why")
    assert (unattainable.eps, unattainable.delta, unattainable.reason) == (1.0, 1e-5, "why")
    assert "eps=1.0" in str(unattainable)
    assert "delta=1e-05" in str(unattainable)
    certificate = dm.exceptions.CertificateError("bad", claimed=1, recomputed=2)
    assert (certificate.claimed, certificate.recomputed) == (1, 2)
    horizon = dm.exceptions.HorizonError(7, 5)
    assert (horizon.step, horizon.n) == (7, 5)
    assert "[0, 4]" in str(horizon)
    assert "train `while optimizer.steps_left`" in str(horizon)
    missing = dm.exceptions.MissingDependencyError("torch", "torch")
    assert "pip install torch" in str(missing)
    assert "from a checkout: pip install '.[torch]'" in str(missing)


def test_long_values_are_cut_in_messages():
    error = dm.InvalidParameterError("coefs", list(range(1000)), "short")
    assert len(str(error)) < 200
    assert error.value[-1] == 999


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_check_integer_accepts_every_integer_type(value):
    checked = check_integer("n", value, minimum=1)
    assert checked == 3
    assert type(checked) is int


@pytest.mark.parametrize(
    "value", [True, np.True_, 3.0, np.float64(3.0), "3", None, 0, -1, 11, [3], Fraction(3)]
)
def test_check_integer_refuses(value):
    with pytest.raises(dm.InvalidParameterError, match=r"n must be an integer in \[1, 10\], got"):
        check_integer("n", value, minimum=1, maximum=10)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
def test_check_real_accepts_every_real_type(value):
    checked = check_real("lam", value, minimum=0.0, maximum=1.0)
    assert checked == 0.5
    assert type(checked) is float


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, "0.5", None, True, np.False_, 1j, Decimal("0.5"), [0.5], 10**400]
)
def test_check_real_refuses_what_is_no_finite_number(value):
    with pytest.raises(dm.InvalidParameterError, match="x must be a finite number in"):
        check_real("x", value)


def test_check_real_open_and_closed_ends():
    assert check_real("x", 0.0, minimum=0.0, maximum=1.0) == 0.0
    assert check_real("x", 1.0, minimum=0.0, maximum=1.0) == 1.0
    with pytest.raises(dm.InvalidParameterError, match=r"\(0, 1\]"):
        check_real("x", 0.0, minimum=0.0, maximum=1.0, open_minimum=True)
    with pytest.raises(dm.InvalidParameterError, match=r"\[0, 1\)"):
        check_real("x", 1.0, minimum=0.0, maximum=1.0, open_maximum=True)


def test_check_vector_copies_and_locks():
    given = np.array([1.0, 2.0])
    checked = check_vector("x", given)
    given[0] = 7.0
    assert checked.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        checked[0] = 3.0
    assert check_vector("x", (1, 2)).dtype == np.float64
    assert check_vector("x", np.array([1, 2], dtype=np.int8)).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "value",
    [
        [],
        1.0,
        "12",
        b"12",
        None,
        [[1.0]],
        ["1"],
        [True, False],
        [1j],
        [math.nan],
        [math.inf],
        [[1], [1, 2]],
        {1.0},
    ],
)
def test_check_vector_refuses(value):
    with pytest.raises(dm.InvalidParameterError, match="x must be a non-empty one-dimensional sequence"):
        check_vector("x", value)


def test_check_vector_refuses_more_than_its_length():
    with pytest.raises(dm.InvalidParameterError, match="at most 2"):
        check_vector("x", [1.0, 2.0, 3.0], maximum_length=2)


@pytest.mark.parametrize(
    "value", [[], [1.0], [[1.0, 0.0]], np.zeros((0, 0)), [[math.nan]], "x", [["1"]], [[[1.0]]]]
)
def test_check_matrix_refuses(value):
    with pytest.raises(dm.InvalidParameterError, match="matrix must be a non-empty square matrix"):
        check_matrix("matrix", value)
