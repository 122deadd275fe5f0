"""State that a loss leaves in attributes of its model is reset before its next call, also within a step."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import dpmech as dm  # noqa: E402
from tests.support.training import private_run, squared_error  # noqa: E402

CAL = dm.calibrate_sigma(dm.Identity(2), 8.0, 1e-5, participation=dm.FixedEpochs(1))
SIZE, FAR = 12, 1e3


class Remembering(nn.Module):
    """Adds the value of its previous call, for sequences of any length."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.kept = nn.Linear(4, 40), nn.Linear(40, 2), None

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        shifted = x if self.kept is None else x + self.kept
        self.kept = mean.detach() + (0.0 if self.kept is None else self.kept)
        return self.last(self.first(shifted).tanh()).mean(1)


def sums(inputs, targets, **options):
    """The sums of clipped gradients of two batches."""
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=SIZE)
    private, optimizer, loader = private_run(
        CAL, Remembering(), loader, loss=squared_error, loss_takes="batch_of_one", generator=1, **options
    )
    for number, (x, y) in enumerate(loader):
        private.backward(x[:, : 3 + number], y)  # of another length, so that layers are searched again
        yield torch.cat([one.double().flatten() for one in optimizer._batch._sums])
        optimizer.step()


@pytest.mark.parametrize("mode", ["per_example", "ghost"])
@pytest.mark.parametrize("physical", [None, 4, 1])
def test_an_example_affects_only_its_gradient(mode, physical):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(2 * SIZE, 5, 4, generator=generator)
    targets = torch.randn(2 * SIZE, 2, generator=generator)
    other = inputs.clone()
    inputs[:2], other[:2] = FAR, -FAR  # the first example of either batch
    found = [
        list(sums(one, targets, clipping_mode=mode, max_physical_batch_size=physical))
        for one in (inputs, other)
    ]
    for mine, theirs in zip(*found, strict=True):
        # Two clip norms for the replaced example, and zero for the others.
        assert 1.0 < float((mine - theirs).norm()) < 2.0 + 1e-6
