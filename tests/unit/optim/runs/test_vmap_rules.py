"""Operations with a rule of their own for torch.func.vmap see a batch: where it mixes examples, a loop."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from tests.support.training import private_run

CAL = dm.calibrate_sigma(dm.Identity(1), 8.0, 1e-5, participation=dm.FixedEpochs(1))
SIZE, FAR = 12, 100.0


def operation(rule):
    """The identity, but under vmap what the rule makes of a batch."""

    class Operation(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return grad

        @staticmethod
        def vmap(info, in_dims, x):
            return rule(x, in_dims[0]), in_dims[0]

    return Operation


class Model(nn.Module):
    def __init__(self, rule, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(4, 40), nn.Linear(40, 2), between
        self.operation = operation(rule)
        self.own = torch.Generator()

    def forward(self, x):
        if self.between == "own":
            noise = torch.rand(40, generator=self.own)
            return self.last(self.operation.apply(self.first(x) + noise).tanh())
        out = nn.functional.dropout(self.first(x), 0.5 if self.between else 0.0)
        return self.last(self.operation.apply(out).tanh())


def centred(x, dim):
    return x - x.mean(dim, keepdim=True)


def sums(inputs, rule, between, mode):
    targets = torch.arange(SIZE) % 2
    private, optimizer, loader = private_run(
        CAL, Model(rule, between), DataLoader(TensorDataset(inputs, targets), batch_size=SIZE),
        loss=nn.CrossEntropyLoss(), generator=1, clipping_mode=mode,
    )  # fmt: skip
    private.backward(*next(iter(loader)))
    return optimizer.clipping_mode, torch.cat([one.double().flatten() for one in optimizer._batch._sums])


@pytest.mark.parametrize("between", ["", "dropout"])
@pytest.mark.parametrize("mode", ["per_example", "auto"])
def test_a_loop_takes_the_place_of_a_rule_that_mixes(mode, between):
    """One example moved a sum by 19.7 clip norms where 2 were certified."""
    found = []
    for first in (FAR, -FAR):
        inputs = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(1))
        inputs[0] = first
        taken, total = sums(inputs, centred, between, mode)
        assert taken == "loop"
        found.append(total)
    assert float((found[0] - found[1]).norm()) < 2.0 + 1e-6


def test_ghost_clipping_with_a_rule_that_mixes_is_refused():
    with pytest.raises(dm.UnsupportedCombinationError, match=r"rule of its own.*mixes examples.*'loop'"):
        sums(torch.randn(SIZE, 4), centred, "", "ghost")


@pytest.mark.parametrize("between", ["", "dropout", "own"])
@pytest.mark.parametrize("mode", ["per_example", "ghost"])
def test_a_rule_that_keeps_examples_apart(mode, between):
    taken, _ = sums(torch.randn(SIZE, 4), lambda x, dim: x.clone(), between, mode)
    assert taken == mode
