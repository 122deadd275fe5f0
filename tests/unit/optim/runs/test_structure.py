"""Under hooks no call changes what a model consists of; with a loss it is put back."""

import types

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from tests.support.training import private_run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")
CAL = dm.calibrate_sigma(dm.Identity(3), 8.0, 1e-5, participation=dm.FixedEpochs(1))
SIZE, FAR, AT = 8, 1000.0, 1


class Model(nn.Module):
    """Calls something after its outputs are computed, if a value is large."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.drop, self.change = nn.Dropout(0.5), change

    def forward(self, inputs):
        outputs = self.last(self.drop(self.second(self.first(inputs).tanh())))
        if bool((inputs[..., 0] > 0.5 * FAR).any()):
            self.change(self)
        return outputs


def swap(model):
    model.first, model.second = model.second, model.first


def twice(model):
    swap(model)
    swap(model)
    model.drop.eval()
    model.drop.train()


CHANGES = {
    "training": lambda model: model.drop.eval(),
    "requires_grad": lambda model: model.first.weight.requires_grad_(False),
    "submodules": swap,
    "hook": lambda model: model.first.register_forward_hook(lambda *given: -given[2]),
    "hook of a parameter": lambda model: model.first.weight.register_hook(lambda grad: -grad),
}


def sums(first, change, *, loss=None):
    """The sums of three batches; one example of the second differs."""
    inputs = torch.randn(3 * SIZE, 4, generator=torch.Generator().manual_seed(1))
    inputs[3 + AT] = first  # batches are strided
    data = TensorDataset(inputs, torch.arange(3 * SIZE) % 2)
    made, optimizer, loader = private_run(
        CAL, Model(change), DataLoader(data, batch_size=SIZE), lr=0.0, generator=1, loss=loss
    )
    found = []
    for x, y in loader:
        optimizer.zero_grad()
        if loss is None:
            nn.functional.cross_entropy(made(x), y).backward()
            optimizer.accumulate()
        else:
            made.backward(x, y)
        found.append(torch.cat([one.double().flatten() for one in optimizer._batch._sums]))
        optimizer.step()
    return torch.stack(found)


@pytest.mark.parametrize("way", CHANGES)
def test_calls_that_change_a_model_are_refused(way):
    """Sums moved by 6.4 clip norms, and in steps in which the example took no part."""
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"calling the model changed|mixes examples|do not add up"
    ):
        sums(FAR, CHANGES[way])


@pytest.mark.parametrize("way", sorted(CHANGES.keys() - {"submodules"}))  # refused, as weights move
def test_with_a_loss_changes_are_put_back(way):
    found = [sums(first, CHANGES[way], loss=nn.CrossEntropyLoss()) for first in (FAR, -FAR)]
    moved = (found[0] - found[1]).norm(dim=1)
    assert moved[AT] < 2.0 + 1e-6
    assert moved.sum() == moved[AT]


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()])
def test_what_a_call_undoes_itself_is_no_change(loss):
    found = [sums(first, twice, loss=loss) for first in (FAR, -FAR)]
    moved = (found[0] - found[1]).norm(dim=1)
    assert moved[AT] < 2.0 + 1e-6
    assert moved.sum() == moved[AT]


def test_modes_may_be_switched_between_steps():
    data = TensorDataset(torch.randn(3 * SIZE, 4), torch.arange(3 * SIZE) % 2)
    made, optimizer, loader = private_run(
        CAL, Model(lambda model: None), DataLoader(data, batch_size=SIZE), generator=1
    )
    for x, y in loader:
        made.eval()
        with torch.no_grad():
            made(x[:1])
        made.train()
        made.drop.train(mode=loader.steps_taken == 0)
        nn.functional.cross_entropy(made(x), y).backward()
        optimizer.step()
    assert optimizer.record.steps == 3


def test_libraries_may_register_hooks_at_a_first_call():
    """As transformers does, to return what layers give."""
    installed = types.FunctionType(
        (lambda *given: None).__code__, {"__name__": "transformers.utils.output_capturing"}
    )
    installed.__module__ = "transformers.utils.output_capturing"
    pytest.importorskip("transformers")

    def register(model):
        model.first.register_forward_hook(installed)

    sums(FAR, register)
