"""Batches of every type are tried with the model, and emptied, without changing their type."""

import collections
import dataclasses
import types
import typing

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset, default_collate  # noqa: E402

import dpmech as dm  # noqa: E402
from tests.support.training import private_run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")
# Batches of 1.5 of 30 examples on average: some are empty.
CAL = dm.calibrate_sigma(dm.Identity(12), 8.0, 1e-5, participation=dm.Poisson(0.05), expected_batch_size=1.5)


class Named(typing.NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    y: torch.Tensor


class Plain:
    def __init__(self, x, y):
        self.x, self.y, self.itself = x, y, self


class Slots:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


class ByName(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class ByNameToo(collections.UserDict):
    def __getattr__(self, name):
        if name == "data" or name not in self.data:
            raise AttributeError(name)
        return self.data[name]


class Reads(nn.Module):
    """Takes the batch unchanged."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, batch):
        return self.layer(batch.x)


@pytest.mark.parametrize(
    "kind",
    [
        Named,
        Record,
        Plain,
        Slots,
        lambda x, y: types.SimpleNamespace(x=x, y=y),
        lambda x, y: ByName(x=x, y=y),
        lambda x, y: ByNameToo(x=x, y=y),
    ],
    ids=["named tuple", "dataclass", "object", "slots", "namespace", "dict", "user dict"],
)
def test_models_take_batches_of_any_kind(kind):
    data = TensorDataset(torch.randn(30, 3), torch.arange(30) % 2)
    loader = DataLoader(data, collate_fn=lambda examples: kind(*default_collate(examples)))
    private, optimizer, loader = private_run(CAL, Reads(), loader, generator=1, rng=5)
    sizes = []
    while optimizer.steps_left:
        for batch in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(batch), batch.y).backward()
            optimizer.step()
            sizes.append(len(batch.y))
    assert min(sizes) == 0  # an empty batch has the same type
    assert max(sizes) > 1
