"""Layers that are refused by name, and their replacements by dpmech.optim.fix."""

import copy
import pickle
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import clipped_gradients, fix, make_private
from tests.support.training import private_run

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")
F = nn.functional
CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5)


class Sequences(nn.Module):
    """A layer over sequences, and a head on the mean of its outputs."""

    def __init__(self, layer, width, *, calls="one"):
        super().__init__()
        self.body = nn.ModuleDict({"layer": layer})
        self.head = nn.Linear(width, 3)
        self.calls = calls

    def forward(self, x):
        found = self.body["layer"](x, x, x) if self.calls == "attention" else self.body["layer"](x)
        return self.head((found[0] if isinstance(found, tuple) else found).mean(1))


LAYERS = {
    "LSTM": lambda: Sequences(nn.LSTM(4, 5, num_layers=2, batch_first=True), 5),
    "GRU": lambda: Sequences(nn.GRU(4, 5, batch_first=True, bidirectional=True), 10),
    "RNN": lambda: Sequences(nn.RNN(4, 5, batch_first=True, nonlinearity="relu"), 5),
    "MultiheadAttention": lambda: Sequences(
        nn.MultiheadAttention(4, 2, batch_first=True), 4, calls="attention"
    ),
    "EmbeddingBag": lambda: nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 3)),
}


def data(name):
    torch.manual_seed(0)
    x = torch.randint(9, (6, 7)) if name == "EmbeddingBag" else torch.randn(6, 7, 4)
    return TensorDataset(x, torch.randint(3, (6,)))


def made(name, *, hooks, fixed=False):
    torch.manual_seed(1)
    model = LAYERS[name]()
    loss = None if hooks else nn.CrossEntropyLoss()
    return private_run(
        CAL, fix(model) if fixed else model, DataLoader(data(name), batch_size=3), generator=1, loss=loss
    )


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_layers_are_refused_by_name_or_work(name, hooks):
    if not hooks:
        model, optimizer, loader = made(name, hooks=hooks)
        model.backward(*next(iter(loader)))
        optimizer.step()
        return
    place = "0" if name == "EmbeddingBag" else r"body\.layer"
    remedy = "" if name == "EmbeddingBag" else r"dpmech\.optim\.fix\(model\).*"
    words = rf"{place} \({name}\).*{remedy}make_private\(\.\.\., loss="
    with pytest.raises(dm.UnsupportedCombinationError, match=words):
        made(name, hooks=hooks)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "MultiheadAttention"])
def test_fixed_layers_compute_the_same_and_train_in_both_ways(name):
    torch.manual_seed(1)
    model = LAYERS[name]()
    fixed = fix(model)
    x, y = data(name).tensors
    torch.testing.assert_close(fixed(x), model(x))
    expected = torch.autograd.grad(F.cross_entropy(model(x), y), model.head.parameters())
    found = torch.autograd.grad(F.cross_entropy(fixed(x), y), fixed.head.parameters())
    torch.testing.assert_close(found, expected)
    sums = []
    for hooks in (True, False):
        private, optimizer, loader = made(name, hooks=hooks, fixed=True)
        batch = next(iter(loader))
        if hooks:
            F.cross_entropy(private(batch[0]), batch[1]).backward()
            optimizer.accumulate()
        else:
            private.backward(*batch)
        sums.append([one for one in optimizer._batch.take() if bool(one.any())])
    for one, other in zip(*sums, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 3, "vdim": 5}, {"bias": False}])
def test_fixed_attention_is_that_of_torch(widths, batch_first):
    torch.manual_seed(2)
    layer = nn.MultiheadAttention(6, 3, batch_first=batch_first, **widths)
    if layer.in_proj_bias is not None:
        nn.init.normal_(layer.in_proj_bias)
    fixed = fix(layer)
    sizes = [(2, 4, 6), (2, 5, widths.get("kdim", 6)), (2, 5, widths.get("vdim", 6))]
    given = [torch.randn(size) if batch_first else torch.randn(size).transpose(0, 1) for size in sizes]
    padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    causal = torch.ones(4, 5, dtype=torch.bool).triu(2)
    each = torch.randn(6, 4, 5)
    for options in (
        {},
        {"key_padding_mask": padding},
        {"attn_mask": causal, "need_weights": False},
        {"attn_mask": each, "average_attn_weights": False},
        {"attn_mask": causal, "key_padding_mask": padding},
    ):
        found, expected = fixed(*given, **options), layer(*given, **options)
        torch.testing.assert_close(found, expected)
    with pytest.raises(dm.UnsupportedCombinationError, match="add_bias_kv"):
        fix(nn.MultiheadAttention(6, 3, add_bias_kv=True))


def test_a_transformer_trains_under_hooks():
    torch.manual_seed(1)
    model = fix(Sequences(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 4))
    sums = []
    for loss in (None, nn.CrossEntropyLoss()):
        private, optimizer, loader = private_run(
            CAL, fix(model), DataLoader(data("LSTM"), batch_size=3), generator=1, loss=loss
        )
        x, y = next(iter(loader))
        if loss is None:
            F.cross_entropy(private(x), y).backward()
            optimizer.accumulate()
        else:
            private.backward(x, y)
        sums.append(optimizer._batch.take())
    for one, other in zip(*sums, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_normalisation_is_replaced():
    model = nn.Sequential(
        nn.Conv1d(2, 6, 1), nn.BatchNorm1d(6), nn.InstanceNorm1d(6, affine=True, track_running_stats=True)
    ).eval()
    nn.init.normal_(model[1].weight)
    fixed = fix(model)
    assert isinstance(fixed[1], nn.GroupNorm)
    assert (fixed[1].num_groups, fixed[1].training) == (1, False)
    assert torch.equal(fixed[1].weight, model[1].weight)
    assert list(fixed.buffers()) == []
    assert fixed[0] is not model[0]
    x, y = torch.randn(4, 2, 5), torch.randn(4, 6, 5)
    clipped_gradients(fixed.train(), lambda f, x, y: (f(x[None]) - y[None]).square().sum(), (x, y), 1.0)
    assert fix(nn.BatchNorm2d(8, affine=False)).num_groups == 8
    with pytest.raises(dm.UnsupportedCombinationError, match=r"BatchNorm1d.*dpmech\.optim\.fix\(model\)"):
        private_run(CAL, model.train(), TensorDataset(x, y), loss=nn.MSELoss())


def test_batch_normalisation_behind_a_linear_layer_leaves_something():
    model = fix(nn.Sequential(nn.Linear(5, 32), nn.BatchNorm1d(32)))
    x, y = torch.randn(7, 5), torch.randn(7, 32)
    per_example = clipped_gradients(model, lambda f, x, y: (f(x[None]) - y[None]).square().sum(), (x, y), 1e9)
    (model(x) - y).square().sum().backward()
    assert model(x).std() > 0.5
    for gradient, param in zip(per_example.sums, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, param.grad.double(), rtol=1e-4, atol=1e-4)


def test_layers_that_are_kept():
    frozen = LAYERS["LSTM"]()
    frozen.body.requires_grad_(False)
    assert not any(param.requires_grad for param in fix(frozen).body.parameters())
    x, y = data("LSTM").tensors
    model, optimizer, loader = private_run(
        CAL, frozen, DataLoader(TensorDataset(x, y), batch_size=3), generator=1
    )
    a, b = next(iter(loader))
    F.cross_entropy(model(a), b).backward()  # frozen layers need no per-example gradients
    optimizer.step()
    plain = nn.Linear(2, 2)
    assert torch.equal(fix(plain).weight, plain.weight)


def test_layers_that_cannot_be_fixed(monkeypatch):
    with pytest.raises(dm.UnsupportedCombinationError, match=r"body\.layer: a LSTM with proj_size=2"):
        fix(Sequences(nn.LSTM(4, 5, proj_size=2, batch_first=True), 2))
    with pytest.raises(dm.InvalidParameterError, match="model"):
        fix("a model")
    monkeypatch.setitem(sys.modules, "opacus.layers", None)
    with pytest.raises(dm.exceptions.MissingDependencyError):
        fix(LAYERS["GRU"]())


# ---- other refusals before the first step


def linear_run(*, model=None, optimizer=None, data=None, **options):
    model = nn.Linear(4, 3) if model is None else model
    sgd = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    examples = TensorDataset(torch.randn(6, 4), torch.randint(3, (6,))) if data is None else data
    given = {"loss": nn.CrossEntropyLoss(), "dataset_size": 6} | options
    return make_private(model, sgd, DataLoader(examples), CAL, **given)


def test_several_optimizers_and_parts():
    model = nn.Linear(4, 3)
    two = [torch.optim.SGD([param], lr=0.1) for param in model.parameters()]
    with pytest.raises(dm.InvalidParameterError, match="parameter groups of one optimizer"):
        linear_run(optimizer=two)
    sgd = torch.optim.SGD([model.weight], lr=0.1)
    with pytest.raises(dm.InvalidParameterError, match=r"without 1 that require gradients \(bias\)"):
        linear_run(model=model, optimizer=sgd)


def test_streams_are_refused_by_name():
    class Clicks(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield torch.zeros(4), 0

    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"Clicks is an iterable dataset.*list\(dataset\)"
    ):
        linear_run(data=Clicks())


def test_another_default_device_is_refused_by_name():
    with (
        torch.device("meta"),
        pytest.raises(dm.UnsupportedCombinationError, match=r"default device is meta.*set_default_device"),
    ):
        linear_run()
    linear_run()


def test_copies_of_a_private_model_are_refused():
    private, _, _ = linear_run()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"copy\.deepcopy\(model\.module\)"):
        copy.deepcopy(private)
    copy.deepcopy(private.module)


@pytest.mark.parametrize("mode", ["per_example", "ghost"])
@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda model: copy.deepcopy(model._module),
        lambda model: pickle.loads(pickle.dumps(model)),
    ],
    ids=["copy", "copy of the inside", "pickle"],
)
def test_copies_under_hooks_are_called_and_not_trained(mode, copied):
    private, optimizer, loader = linear_run(loss=None, clipping_mode=mode)
    twin = copied(private)
    x, y = next(iter(loader))
    with torch.no_grad():
        torch.testing.assert_close(twin(x), private(x))
    for training in (True, False):
        with pytest.raises(
            dm.UnsupportedCombinationError, match=r"a copy .* trained: its gradients are not clip"
        ):
            F.cross_entropy(twin.train(training)(x), y).backward()
    F.cross_entropy(private(x), y).backward()  # the original continues, and counts no call of the copy
    optimizer.step()
    assert optimizer.record.steps == 1
    with pytest.raises(dm.UnsupportedCombinationError, match=r"belong to another run|already has Opacus"):
        linear_run(model=twin, loss=None)


def test_a_backward_pass_through_an_unrecorded_call():
    private, _, loader = linear_run(loss=None)
    x, y = next(iter(loader))
    with pytest.raises(dm.UnsupportedCombinationError, match=r"\(Linear\).*model\.train\(\) before"):
        F.cross_entropy(private.eval()(x), y).backward()
    value = F.cross_entropy(private.train()(x), y)
    value.backward(retain_graph=True)
    with pytest.raises(dm.UnsupportedCombinationError, match="one backward pass for every forward pass"):
        value.backward()


def test_data_parallel_copies_are_refused():
    private, _, loader = linear_run(loss=None)
    replica = private._replicate_for_data_parallel()
    with pytest.raises(dm.UnsupportedCombinationError, match="DataParallel copies a model of make_private"):
        replica(next(iter(loader))[0])


@pytest.mark.parametrize("hooks", [True, False])
def test_averages_of_the_weights(hooks):
    """As documented: AveragedModel before make_private."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    private, optimizer, loader = private_run(
        CAL,
        model,
        DataLoader(TensorDataset(x, y), batch_size=3),
        generator=1,
        loss=None if hooks else nn.CrossEntropyLoss(),
    )
    expected = None
    while optimizer.steps_left:
        for a, b in loader:
            if hooks:
                optimizer.zero_grad()
                F.cross_entropy(private(a), b).backward()
            else:
                private.backward(a, b)
            optimizer.step()
            average.update_parameters(model)
            now = [param.detach().clone() for param in model.parameters()]
            expected = (
                now
                if expected is None
                else [0.5 * one + 0.5 * two for one, two in zip(expected, now, strict=True)]
            )
    for one, other in zip(average.module.parameters(), expected, strict=True):
        torch.testing.assert_close(one, other)


# ---- batches without examples, of any collate function


class Box:
    """A batch of an unknown type."""

    def __init__(self, x, y):
        self.x, self.y = x, y


COLLATES = {
    "objects": lambda rows: Box(torch.stack([x for x, _ in rows]), torch.tensor([int(y) for _, y in rows])),
    "texts": lambda rows: (
        torch.stack([x for x, _ in rows]),
        torch.tensor([int(y) for _, y in rows]),
        "epoch",
    ),
    "scalars": lambda rows: (
        torch.stack([x for x, _ in rows]),
        torch.tensor([int(y) for _, y in rows]),
        torch.tensor(3),
    ),
}


@pytest.mark.parametrize("name", COLLATES)
def test_batches_without_examples_of_any_collate_function(name):
    cal = dm.calibrate_sigma(dm.Identity(12), 8.0, 1e-5, participation=dm.Poisson(1e-6))
    calls = []

    class Watched(nn.Linear):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    model = Watched(4, 3)
    data = TensorDataset(torch.randn(6, 4), torch.randint(3, (6,)))
    private, optimizer, loader = private_run(
        cal, model, DataLoader(data, collate_fn=COLLATES[name]), generator=1, loss=nn.CrossEntropyLoss()
    )
    before = model.weight.detach().clone()
    calls.clear()
    while optimizer.steps_left:
        for batch in loader:
            x, y = (batch.x, batch.y) if name == "objects" else batch[:2]
            private.backward(x, y)
            optimizer.step()
    assert calls == []  # only noise
    assert not torch.equal(model.weight, before)
