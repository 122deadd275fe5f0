import numpy as np
import pytest

import dpmech as dm
from dpmech.mechanism import noise_cost


@pytest.mark.parametrize(
    ("strategy", "buffers", "regenerated"),
    [
        (dm.Identity(9), 0, 0),
        (dm.LambdaCGD(9, 0.5), 0, 1),
        (dm.InverseSquareRoot(9, 4), 0, 3),
        (dm.SquareRoot(9, 4), 3, 0),
        (dm.BLT(9, [0.9, 0.5], [0.2, 0.1]), 2, 0),
        (dm.SquareRoot(9), 0, 8),
        (dm.Dense(np.tril(np.ones((9, 9))) + np.eye(9)), 0, 8),
        # Entry (1, 0) is 0, so C^-1 has 8 of 9 bands.
        (dm.Dense(np.eye(9) + np.diag([0.0] + [0.5] * 7, -1)), 1, 0),
        # The far entries of C^-1 underflow.
        (dm.Dense(np.eye(50) + np.diag([1e-9] * 49, -1)), 1, 0),
    ],
    ids=repr,
)
def test_what_is_kept_and_what_is_drawn_again(strategy, buffers, regenerated):
    found = noise_cost(strategy)
    assert (found.buffers, found.regenerated) == (buffers, regenerated)
    assert found.bytes_per_parameter == 8 * buffers
