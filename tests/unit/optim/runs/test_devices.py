"""Runs whose model is on another device, or in lower precision, than the dataset."""

import copy

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from tests.support.other_device import There, known, moved, other, other_device  # noqa: E402
from tests.support.quick_cases import slow_but  # noqa: E402
from tests.support.training import classification, classifier, cross_entropy, private_run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")
pretend = pytest.mark.skipif(not known(), reason="this torch registers no device from Python")
CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5)
LOSSES = {
    "criterion": {"loss": nn.CrossEntropyLoss()},
    "function": {"loss": cross_entropy},
    "as Trainer": {"loss": cross_entropy, "loss_takes": "batch_of_one"},
    "hooks": {"loss": None},
}


def trained(model, options, *, change, data=None):
    """The weights after four steps; `change` is applied to a batch by the loop."""
    private, optimizer, loader = private_run(
        CAL,
        model,
        DataLoader(classification(16) if data is None else data, batch_size=4),
        generator=1,
        **options,
    )
    for batch in loader:
        inputs, targets = map(change, batch)
        if options["loss"] is None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(inputs), targets).backward()
        else:
            private.backward(inputs, targets)
        optimizer.step()
    assert optimizer.record.steps == 4
    return torch.cat([param.detach().cpu().flatten() for param in model.parameters()])


def to_half(tensor):
    return tensor.bfloat16() if tensor.is_floating_point() else tensor


@pretend
def test_the_other_device_is_one():
    with other_device() as waits:
        there, here = torch.ones(2).to(other()), torch.ones(2)
        assert type(there) is There
        assert (there + there).device == other() != here.device
        assert (there + 1.0).cpu().tolist() == [2.0, 2.0]
        with pytest.raises(RuntimeError, match="to be on the same device"):
            there + here
        with pytest.raises(TypeError, match="to numpy"):
            there.numpy()
        assert torch.accelerator.is_available()
    assert len(waits.uploads) == len(waits.reads) == 1
    assert not torch.accelerator.is_available()


READS = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool(x[0] > 0),
    "if": lambda x: 1 if x[0] else 0,
    "tolist": lambda x: x.tolist(),
    "equal": lambda x: torch.equal(x, x.clone()),
    "copy": lambda x: x.cpu(),
    "copy into": lambda x: torch.empty(2).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "written mask": lambda x: x.__setitem__(x > 0, torch.ones((), device=other())),
}


@pretend
@pytest.mark.parametrize("name", READS)
def test_a_read_is_counted(name):
    with other_device() as waits:
        there = torch.ones(2, device=other())
        there.add_(1.0).mul_(there).sum().sqrt()
        assert not waits.reads
        READS[name](there)
    assert len(waits.reads) == 1, waits.reads


@pretend
@pytest.mark.parametrize("mode", slow_but(["per_example", "ghost", "auto"], 0, 1))
@pytest.mark.parametrize("name", LOSSES)
def test_a_model_on_another_device_is_trained(name, mode):
    options = LOSSES[name] | {"clipping_mode": mode}
    model = classifier(widths=(3, 400, 2))  # wide enough for "auto" to consider factors
    here = trained(model, options, change=lambda tensor: tensor)
    with other_device():
        there = trained(
            moved(classifier(widths=(3, 400, 2))), options, change=lambda tensor: tensor.to(other())
        )
    torch.testing.assert_close(there, here, rtol=0.0, atol=0.0)


@pretend
def test_the_other_device_draws_from_its_own_generator():
    with other_device():
        before = torch.get_rng_state()
        torch.manual_seed(3)
        first = torch.rand(4, device=other()), nn.functional.dropout(torch.ones(8, device=other()))
        torch.manual_seed(3)
        here = torch.rand(4)
        again = torch.rand(4, device=other()), nn.functional.dropout(torch.ones(8, device=other()))
        torch.default_generator.manual_seed(3)
        assert torch.equal(here, torch.rand(4))
        assert not torch.equal(first[0].cpu(), torch.rand(4, device=other()).cpu())
    torch.set_rng_state(before)
    assert all(torch.equal(one.cpu(), two.cpu()) for one, two in zip(first, again, strict=True))


@pretend
@pytest.mark.parametrize(
    "options",
    [LOSSES["criterion"] | {"clipping_mode": mode} for mode in ("auto", "per_example", "ghost", "loop")]
    + [LOSSES["hooks"] | {"clipping_mode": "ghost"}],
    ids=["auto", "per_example", "ghost", "loop", "hooks"],
)
def test_dropout_on_another_device_is_no_state(options):
    with other_device():
        model = moved(nn.Sequential(nn.Linear(3, 400), nn.Dropout(0.3), nn.Linear(400, 2)))
        trained(model, options, change=lambda tensor: tensor.to(other()))


class _Columns(nn.Module):
    """A column of categories in a table of fractions."""

    def __init__(self):
        super().__init__()
        self.category, self.last = nn.Embedding(2, 4), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.cat([self.category(x[:, 0].long()), x[:, 1:]], dim=1))


ASSERTING = {
    "a column of categories": (_Columns, cross_entropy, lambda x, y: (x.abs().clamp(max=1.0), y)),
    "one class": (lambda: nn.Linear(3, 1), cross_entropy, lambda x, y: (x, torch.zeros_like(y))),
    "probabilities": (
        lambda: nn.Linear(3, 3),
        lambda model, x, y: nn.functional.binary_cross_entropy(x, model(x).sigmoid()),
        lambda x, y: (x.sigmoid(), y),
    ),
}


@pretend
@pytest.mark.parametrize("name", ASSERTING)
@pytest.mark.parametrize("mode", ["auto", "loop"])
def test_trials_never_end_the_context_of_a_device(name, mode):
    model, loss, change = ASSERTING[name]
    options = {"loss": loss, "clipping_mode": mode, "loss_takes": "batch_of_one"}
    data = TensorDataset(*change(*classification(16).tensors))
    torch.manual_seed(0)
    made = model()
    kept = copy.deepcopy(made)
    here = trained(kept, options, change=lambda tensor: tensor, data=data)
    with other_device():
        there = trained(moved(made), options, change=lambda tensor: tensor.to(other()), data=data)
    torch.testing.assert_close(there, here, rtol=0.0, atol=0.0)


@pretend
def test_a_lost_context_stays_lost():
    with other_device():
        layer = moved(nn.Embedding(2, 3))
        for index in (2, 0):
            with pytest.raises(RuntimeError, match="device-side assert"):
                layer(torch.full((1,), index, device=other()))
    with other_device():
        layer(torch.zeros(1, dtype=torch.long, device=other()))


@pretend
def test_mixing_is_detected_there():
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    with other_device(), pytest.raises(dm.UnsupportedCombinationError, match="mixes examples"):
        trained(moved(classifier(Centred())), LOSSES["hooks"], change=lambda tensor: tensor.to(other()))


@pytest.mark.parametrize("mode", ["per_example", "ghost", "auto"])
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "hooks"])
def test_weights_in_half_precision(name, mode):
    options = LOSSES[name] | {"clipping_mode": mode}
    model = classifier(widths=(3, 400, 2)).bfloat16()
    before = torch.cat([param.detach().flatten() for param in model.parameters()])
    after = trained(model, options, change=to_half)
    assert after.dtype == torch.bfloat16
    assert bool(after.isfinite().all())
    assert not torch.equal(before, after)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loop_may_scale_the_data(name):
    """The model never sees the numbers of 0 to 255 that the dataset has."""
    images = torch.randint(256, (16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(images, torch.arange(16) % 2)
    scaled = trained(
        classifier(widths=(3, 400, 2)),
        LOSSES[name],
        data=data,
        change=lambda tensor: tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor,
    )
    assert bool(scaled.isfinite().all())
