"""Clipping where rounding, a loss scale or padding decides what one example adds."""

import math

import pytest
import torch

from dpmech.optim import ClippedSum, FlatClipping, clipped_gradients
from dpmech.optim.clipping.clipped_sum import clip_and_sum
from dpmech.optim.clipping.lot_sum import Accumulator
from dpmech.optim.clipping.styles import Blocks

SLACK = 1e-4


@pytest.mark.parametrize("size", [1e-19, 1e-23, 1e-30, 1e-38])
@pytest.mark.parametrize("count", [3, 5000, 10**5])
def test_squares_that_vanish_in_float32_do_not_escape_the_clip(size, count):
    sample = torch.full((1, count), size)
    limit = size * math.sqrt(count) / 50.0
    sums, _, dropped = clip_and_sum([sample], Blocks((0,), (limit,)))
    assert dropped == 0
    assert float(sums[0].double().norm()) <= limit


def test_weights_with_a_batch_of_one_tensor():
    model = torch.nn.Linear(2, 1, bias=False)
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [30.0, 40.0]])
    kept = torch.tensor([1.0, 0.0, 1.0])
    total = clipped_gradients(model, lambda f, x: f(x).sum(), (rows,), 1.0, weights=kept)
    assert (total.examples, total.left_out) == (2, 1)
    # The gradient of each is the row itself.
    assert total.sums[0].flatten().tolist() == pytest.approx([1.2, 1.6], rel=SLACK)


def test_a_lot_takes_the_loss_scale_out_of_gradients_below_the_clip_norm():
    param = torch.zeros(2)
    rows = torch.tensor([[0.3, 0.4], [3.0, 4.0]])
    for scale in (0.25, 1.0, 512.0):
        lot = Accumulator([param], FlatClipping(1.0), scale, None)
        lot.add_samples([scale * rows])
        assert lot.take()[0].tolist() == pytest.approx([0.9, 1.2], rel=SLACK)


def test_a_sum_holds_what_it_was_given_and_nothing_else():
    param = torch.zeros(2)
    plain = ClippedSum([param], [torch.tensor([0.3, 0.4])], FlatClipping(1.0))
    assert (plain.examples, plain.dropped, plain.left_out, plain.reduced) == (None, 0, 0, False)
