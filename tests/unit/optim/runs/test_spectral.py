"""Power iterations of spectral norms: one in every step, however many examples or microbatches it has."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import dpmech as dm
from tests.support.training import classification, private_run

F = nn.functional
STEPS = 3
CAL = dm.calibrate_sigma(dm.Identity(STEPS), 8.0, 1e-5, participation=dm.Poisson(0.5))


def network(kind):
    torch.manual_seed(0)
    norm = nn.utils.spectral_norm if kind == "old" else nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(norm(nn.Linear(3, 6)), nn.Tanh(), norm(nn.Linear(6, 2)), nn.Dropout(0.1))
    for layer in (model[0], model[2]):  # far from where iterations change nothing
        part = layer if kind == "old" else layer.parametrizations.weight[0]
        u, v = (part.weight_u, part.weight_v) if kind == "old" else (part._u, part._v)
        u.copy_(F.normalize(torch.randn_like(u), dim=0))
        v.copy_(F.normalize(matrix_of(layer).T @ u, dim=0))
    return model


def matrix_of(layer):
    old = getattr(layer, "weight_orig", None)
    return (layer.parametrizations.weight.original if old is None else old).detach()


def iterated(model, steps):
    """The buffers after so many power iterations on weights that stay, in double precision."""
    found = {}
    for name, buffer in model.named_buffers():
        if not name.endswith("_u"):
            continue
        matrix, u = matrix_of(model[int(name[0])]).double(), buffer.double()
        for _ in range(steps):
            u = F.normalize(matrix @ F.normalize(matrix.T @ u, dim=0), dim=0)
        found[name] = u
    return found


@pytest.mark.parametrize("kind", ["old", "new"])
@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("mode", ["per_example", "ghost", "loop"])
def test_a_step_iterates_once(kind, size, mode):
    model = network(kind)
    expected, other = iterated(model, STEPS), iterated(model, STEPS + 1)
    assert all(float((expected[name] - other[name]).norm()) > 1e-3 for name in expected if name[0] == "0")
    data = classification(size)
    private, optimizer, loader = private_run(
        CAL,
        model,
        DataLoader(data),
        lr=0.0,
        loss=nn.CrossEntropyLoss(),
        generator=1,
        rng=3,
        clipping_mode=mode,
        max_physical_batch_size=2,
    )
    sizes = []
    while optimizer.steps_left:
        for inputs, targets in loader:
            sizes.append(len(inputs))
            private.backward(inputs, targets)
            optimizer.step()
    assert len(set(sizes)) > 1
    for name, u in expected.items():
        torch.testing.assert_close(dict(model.named_buffers())[name].double(), u, rtol=0.0, atol=1e-5)
    assert dm.verify(optimizer.run_record()).ok


def test_in_evaluation_nothing_iterates():
    model = network("new")
    private, optimizer, loader = private_run(
        CAL, model, classification(7), lr=0.0, loss=nn.CrossEntropyLoss(), generator=1, rng=3
    )
    expected = iterated(model, 0)
    private.eval()
    for inputs, targets in loader:
        private.backward(inputs, targets)
        optimizer.step()
    for name, u in expected.items():
        assert torch.equal(dict(model.named_buffers())[name].double(), u)
    assert not any(part.training for part in model.modules())
