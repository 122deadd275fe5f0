"""Runs whose model is on another device, or in lower precision, than the dataset."""

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from tests.support.other_device import OTHER, There, moved, other_device  # noqa: E402
from tests.support.quick_cases import slow_but  # noqa: E402
from tests.support.training import classification, classifier, cross_entropy, private_run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")
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


def test_the_other_device_is_one():
    with other_device():
        there, here = torch.ones(2).to(OTHER), torch.ones(2)
        assert type(there) is There
        assert (there + there).device == OTHER
        assert (there + 1.0).cpu().tolist() == [2.0, 2.0]
        with pytest.raises(RuntimeError, match="to be on the same device"):
            there + here


@pytest.mark.parametrize("mode", slow_but(["per_example", "ghost", "auto"], 0, 1))
@pytest.mark.parametrize("name", LOSSES)
def test_a_model_on_another_device_is_trained(name, mode):
    options = LOSSES[name] | {"clipping_mode": mode}
    model = classifier(widths=(3, 400, 2))  # wide enough for "auto" to consider factors
    here = trained(model, options, change=lambda tensor: tensor)
    with other_device():
        there = trained(
            moved(classifier(widths=(3, 400, 2))), options, change=lambda tensor: tensor.to(OTHER)
        )
    torch.testing.assert_close(there, here, rtol=0.0, atol=0.0)


def test_mixing_is_detected_there():
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    with other_device(), pytest.raises(dm.UnsupportedCombinationError, match="mixes examples"):
        trained(moved(classifier(Centred())), LOSSES["hooks"], change=lambda tensor: tensor.to(OTHER))


@pytest.mark.parametrize("mode", ["per_example", "ghost", "auto"])
@pytest.mark.parametrize("name", LOSSES)
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
