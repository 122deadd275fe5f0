"""Clipping if rounding, a loss scale or padding determines the contribution of one example."""

import math

import pytest
import torch

import dpmech as dm
from dpmech.optim import ClippedSum, FlatClipping, clipped_gradients
from dpmech.optim.clipping import clipped_sum as batch_sum
from dpmech.optim.clipping.clipped_sum import Accumulator, _squared_norms, clip_and_sum
from dpmech.optim.clipping.factored import Intake
from dpmech.optim.clipping.styles import Blocks
from dpmech.optim.deferred import Deferred

SLACK = 1e-4


@pytest.mark.parametrize("size", [1e-19, 1e-23, 1e-30, 1e-38])
@pytest.mark.parametrize("count", [3, 5000, 10**5])
def test_squares_that_underflow_in_float32_are_still_clipped(size, count):
    sample = torch.full((1, count), size)
    limit = size * math.sqrt(count) / 50.0
    sums, _, dropped, *_ = clip_and_sum([sample], Blocks((0,), (limit,)))
    assert dropped == 0
    assert float(sums[0].double().norm()) <= limit


def test_weights_with_a_batch_of_one_tensor():
    model = torch.nn.Linear(2, 1, bias=False)
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [30.0, 40.0]])
    kept = torch.tensor([1.0, 0.0, 1.0])
    total = clipped_gradients(model, lambda f, x: f(x).sum(), (rows,), 1.0, weights=kept)
    assert (total.examples, total.left_out) == (2, 1)
    # The gradient of each example is the row itself.
    assert total.sums[0].flatten().tolist() == pytest.approx([1.2, 1.6], rel=SLACK)


def test_a_batch_divides_gradients_by_the_loss_scale():
    param = torch.zeros(2)
    rows = torch.tensor([[0.3, 0.4], [3.0, 4.0]])
    for scale in (0.25, 1.0, 512.0):
        batch = Accumulator([param], FlatClipping(1.0), scale, None)
        batch.add_samples([scale * rows])
        assert batch.take()[0].tolist() == pytest.approx([0.9, 1.2], rel=SLACK)


def test_a_sum_contains_exactly_its_inputs():
    param = torch.zeros(2)
    plain = ClippedSum([param], [torch.tensor([0.3, 0.4])], FlatClipping(1.0))
    assert (plain.examples, plain.dropped, plain.left_out, plain.reduced) == (None, 0, 0, False)


@pytest.mark.parametrize("count", [1, 5, 1024, 1025, 5000])
def test_every_square_may_have_lost_the_least_normal_number(count):
    # If a processor flushes subnormal numbers to zero, squares below 2^-126 vanish.
    assert _squared_norms(torch.zeros(2, count)).tolist() == [count * 2.0**-126] * 2


def test_a_clipped_gradient_has_the_clip_norm_less_the_rounding_of_float32():
    sample = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    clipped, *_ = clip_and_sum([sample[:1]], Blocks((0,), (1.0,)))
    assert float(clipped[0].norm()) == pytest.approx(1.0 - 2.0**-14, rel=1e-9)
    # A shorter gradient is unchanged.
    same, *_ = clip_and_sum([sample[1:]], Blocks((0,), (1.0,)))
    assert same[0].tolist() == [0.3, 0.4]


def test_gradients_are_taken_as_they_are_unless_a_scale_is_given():
    param = torch.zeros(2, requires_grad=True)
    param.grad = torch.tensor([0.3, 0.4])
    taken = ClippedSum.from_grads([param], FlatClipping(1.0))
    assert torch.equal(taken.sums[0], torch.tensor([0.3, 0.4]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_keep_their_precision_and_are_returned_in_float64(dtype):
    param = torch.zeros(1)
    value = torch.tensor([1.0 + (2.0**-40 if dtype == torch.float64 else 0.0)], dtype=dtype)
    batch = Accumulator([param], FlatClipping(2.0), 1.0, None)
    batch.add_clipped(ClippedSum([param], [value], FlatClipping(2.0), examples=1))
    (found,) = batch.take()
    assert torch.equal(found, value.double())
    (nothing,) = batch.take()  # an empty batch: the release is rounded like all others
    assert found.dtype == nothing.dtype == torch.float64
    for _ in range(2):
        batch.add_clipped(ClippedSum([param], [value], FlatClipping(2.0), examples=1))
    assert torch.equal(batch.take()[0], value.double() + value.double())


@pytest.mark.parametrize("world", [1, 2])
def test_sums_are_wide_before_they_are_added_over_processes(monkeypatch, world):
    added = []
    monkeypatch.setattr(batch_sum, "processes", lambda group: world)
    monkeypatch.setattr(batch_sum, "check_processes", lambda *_: None)
    monkeypatch.setattr(batch_sum, "add_over", lambda sums, group: added.extend(sums))
    param = torch.zeros(2)
    batch = Accumulator([param], FlatClipping(1.0), 1.0, None)
    batch.add_clipped(ClippedSum([param], [torch.tensor([0.3, 0.4])], FlatClipping(1.0)))
    batch.take()
    assert [one.dtype for one in added] == [torch.float64]


def test_the_sum_of_a_sharded_parameter_comes_from_all_processes(monkeypatch):
    param = torch.zeros(2)
    part = ClippedSum([param], [torch.tensor([0.3, 0.4])], FlatClipping(1.0))
    monkeypatch.setattr(batch_sum, "is_sharded", lambda param: True)
    for world in (1, 2):
        monkeypatch.setattr(batch_sum, "processes", lambda group, world=world: world)
        batch = Accumulator([param], FlatClipping(1.0), 1.0, None)
        if world == 1:
            batch.add_clipped(part)
            continue
        with pytest.raises(dm.InvalidParameterError, match="reduced must be True for the sum of a sharded"):
            batch.add_clipped(part)


@pytest.mark.parametrize(
    ("grad", "refused"),
    [(None, False), ([0.0, 0.0], False), ([0.0, 1e-30], True), ([0.0, 1.0], True), ([1.0, 1.0], True)],
)
def test_a_gradient_without_rows_of_examples_is_refused_where_it_is_not_zero(grad, refused):
    param = torch.zeros(2, requires_grad=True)
    intake = Intake([param], [])
    param.grad = None if grad is None else torch.tensor(grad)
    if not refused:
        assert intake.take(None, Deferred()) == [None]
        return
    with pytest.raises(dm.UnsupportedCombinationError, match="has a gradient but no per-example"):
        intake.take(None, Deferred())


def test_a_batch_may_hold_no_example():
    param = torch.zeros(2, requires_grad=True)
    intake = Intake([param], [])
    param.grad_sample = [torch.zeros(0, 2), torch.zeros(0, 2)]
    (taken,) = intake.take(0, Deferred())
    assert taken.shape == (0, 2)
    param.grad_sample = [torch.zeros(0, 2)]
    with pytest.raises(dm.InvalidParameterError, match=r"examples must be .*-1"):
        intake.take(-1, Deferred())
