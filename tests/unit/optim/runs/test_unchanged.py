"""However a forward pass stores raw data in the model, none of it is saved or released."""

import contextlib
import copy
import io
import pickle

import numpy as np
import pytest
import torch

import dpmech as dm

pytest.importorskip("opacus")

from torch import nn
from torch.utils.data import DataLoader

from dpmech.optim import load_checkpoint, make_private, save_checkpoint
from dpmech.optim.runs.unchanged import Fingerprinter, same
from tests.support import training
from tests.support.quick_cases import slow_but
from tests.support.training import private_run, regression, squared_error

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

SIZE, N = 24, 6
CAL = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5, participation=dm.FixedEpochs(2))  # batches of 8
MODES = ["loss", "opacus"]


class Memory(nn.Module):
    """Returns its input; when armed it stores a part of it in one way."""

    def __init__(self, way):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("wide", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("places", torch.arange(5).expand(1, -1), persistent=False)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.way, self.armed, self.kept = way, False, torch.zeros(2)

    def forward(self, x):
        if self.armed:
            self.way(self, x)
        return x

    def get_extra_state(self):
        return {"kept": self.kept, "version": 1}

    def set_extra_state(self, state):
        self.kept = state["kept"]


class Model(nn.Module):
    def __init__(self, way=None):
        super().__init__()
        torch.manual_seed(0)
        self.memory = Memory(way)
        self.memory.owner = [self]
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.body(self.memory(x))))


def weight(memory):
    return memory.owner[0].body.weight


WAYS = {
    "in place": lambda m, x: m.mean.copy_(x.mean(0)),
    "running mean": lambda m, x: m.mean.mul_(0.9).add_(x.mean(0), alpha=0.1),
    "data": lambda m, x: m.mean.data.copy_(x.mean(0)),
    "numpy": lambda m, x: m.mean.numpy().__setitem__(0, float(x[0, 0])),
    "set_": lambda m, x: m.mean.set_(x.mean(0)),
    "one bit": lambda m, x: m.wide.numpy().view(np.int64).__ixor__(np.int64(1)),
    "signs": lambda m, x: m.wide.data.neg_(),
    "order": lambda m, x: m.places.data.copy_(m.places.flip(1)),
    "NaN": lambda m, x: m.mean.data.fill_(float("nan")),
    "assigned": lambda m, x: setattr(m, "mean", x.mean(0)),
    "registered": lambda m, x: m.register_buffer("last", x.clone()),
    "deleted": lambda m, x: delattr(m, "wide"),
    "frozen": lambda m, x: m.frozen.copy_(x[0]),
    "frozen data": lambda m, x: m.frozen.data.copy_(x[0]),
    "frozen numpy": lambda m, x: m.frozen.numpy().__setitem__(0, float(x[0, 0])),
    "frozen replaced": lambda m, x: setattr(m, "frozen", nn.Parameter(x[0].clone(), requires_grad=False)),
    "new layer": lambda m, x: m.add_module("extra", nn.Linear(3, 1)),
    "trained": lambda m, x: weight(m).copy_(x[:4]),
    "trained data": lambda m, x: weight(m).data.copy_(x[:4]),
    "trained numpy": lambda m, x: weight(m).detach().numpy().__setitem__((0, 0), float(x[0, 0])),
    "trained replaced": lambda m, x: setattr(m.owner[0].body, "weight", nn.Parameter(x[:4].clone())),
    "extra state": lambda m, x: setattr(m, "kept", x[0, :2].clone()),
    "extra state in place": lambda m, x: m.kept.copy_(x[0, :2]),
}


def dataset():
    return regression(SIZE, 3)


def made(model, mode, **options):
    loss = squared_error if mode == "loss" else None
    return private_run(CAL, model, dataset(), loss=loss, **options)


def backward(private, batch):
    training.backward(private, batch, squared_error)


def keep(model, x):
    """A forward pass without gradients, outside of the wrapped model."""
    model.memory.armed = True
    # Some calls are refused immediately; if the user continues, the data are in the model.
    with torch.no_grad(), contextlib.suppress(dm.UnsupportedCombinationError):
        model(x)
    model.memory.armed = False


def step(model, private, optimizer, loader):
    backward(private, next(iter(loader)))
    optimizer.step()


RELEASES = {
    "step": lambda model, private, optimizer, *_: optimizer.step(),
    "state_dict": lambda model, private, *_: private.state_dict(),
    "state_dict of the module": lambda model, *_: model.state_dict(),
    "checkpoint": lambda model, private, optimizer, loader, path: save_checkpoint(
        path, private, optimizer, loader
    ),
    "state of the optimizer": lambda model, private, optimizer, *_: optimizer.state_dict(),
    "run record": lambda model, private, optimizer, *_: optimizer.run_record(),
    "pickle": lambda model, *_: pickle.dumps(model._state_dict_pre_hooks),
    "copy": lambda model, *_: copy.deepcopy(model),
}


@pytest.mark.parametrize("mode", slow_but(MODES, 0))
@pytest.mark.parametrize("way", list(WAYS))
def test_data_stored_by_a_call_are_not_released(way, mode, tmp_path):
    model = Model(WAYS[way])
    _, optimizer, _ = parts = made(model, mode)
    path = tmp_path / "run.pt"
    step(model, *parts)
    for name, release in RELEASES.items():  # all are allowed if nothing was stored
        if name != "step":
            release(model, *parts, path)
    saved = path.read_bytes()
    backward(parts[0], next(iter(parts[2])))
    keep(model, dataset().tensors[0])
    bias = model.head.bias.detach().clone()
    for name, release in [*RELEASES.items(), *RELEASES.items()]:  # a refusal does not reset the check
        with pytest.raises(dm.UnsupportedCombinationError, match="changed"):
            release(model, *parts, path)
        assert optimizer.record.steps == 1, name
        assert torch.equal(model.head.bias, bias), name
        assert path.read_bytes() == saved, name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["in place", "data", "numpy", "frozen", "frozen numpy", "trained data"])
def test_a_call_that_stores_its_input_prevents_the_step(way, mode):
    """In the loop of the documentation, including evaluation without gradients."""
    model = Model(WAYS[way])
    private, optimizer, loader = made(model, mode)
    model.memory.armed = True

    def loop():
        for batch in loader:
            with torch.no_grad():
                private(batch[0])
            model.memory.armed = False
            backward(private, batch)
            optimizer.step()

    before = model.head.bias.detach().clone()
    with pytest.raises(dm.UnsupportedCombinationError, match="changed"):
        loop()
    assert optimizer.record.steps == 0
    assert torch.equal(model.head.bias, before)


@pytest.mark.parametrize("mode", MODES)
def test_writes_counted_by_torch_are_refused_immediately(mode):
    private, optimizer, _ = made(Model(WAYS["in place"]), mode)
    model = private.module if mode == "loss" else private._module
    model.memory.armed = True
    with pytest.raises(dm.UnsupportedCombinationError, match=r"its buffers memory\.mean:"), torch.no_grad():
        private(dataset().tensors[0])
    assert optimizer.record.steps == 0


@pytest.mark.parametrize("mode", MODES)
def test_public_names_may_change(mode):
    ways = [WAYS[name] for name in ("in place", "frozen data", "extra state")]
    model = Model(lambda m, x: [way(m, x) for way in ways])
    public = ["memory.mean", "memory.frozen", "memory._extra_state"]
    parts = made(model, mode, public_buffers=public)
    keep(model, dataset().tensors[0])
    step(model, *parts)
    assert parts[1].run_record().steps == 1
    for bad in (["memory.weight"], ["body.weight"], "memory.mean"):
        with pytest.raises(dm.InvalidParameterError, match="public_buffers"):
            made(Model(), mode, public_buffers=bad)


class Ordinary(nn.Module):
    """Dropout, a frozen backbone, fixed statistics, positions, tied weights, an unchanged buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("places", torch.arange(3), persistent=False)
        self.register_buffer("rows", torch.eye(3).to_sparse())
        self.register_buffer("flag", torch.tensor([True, False, True]))
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).requires_grad_(False).eval()
        self.dropout = nn.Dropout(0.5)
        self.adapter = nn.Linear(4, 4)
        self.again = self.adapter
        self.head = nn.Linear(4, 1)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        if not torch.is_grad_enabled():
            self.places.data.copy_(torch.arange(3))
        x = self.backbone(x if x.ndim == 2 else x[None])
        return self.head(self.again(self.dropout(torch.tanh(self.adapter(x)))))


@pytest.mark.parametrize("mode", MODES)
def test_ordinary_models_train_to_the_end(mode, tmp_path):
    model = Ordinary()
    private, optimizer, loader = made(model, mode)
    private.train()
    while optimizer.steps_left:
        for x, y in loader:
            if mode == "loss":
                private.backward(x, y)
            else:
                nn.functional.mse_loss(private(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                private(x)
    save_checkpoint(tmp_path / "run.pt", private, optimizer, loader)
    assert optimizer.run_record().steps == N
    twin = copy.deepcopy(model)
    twin.backbone[0].weight.zero_()
    twin.load_state_dict(twin.state_dict())  # copies are not watched
    file = io.BytesIO()
    torch.save(model, file)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["buffer", "extra state", "weight"])
@pytest.mark.parametrize(
    "released",
    [
        lambda part: part.state_dict(),
        lambda part: part.state_dict(prefix="encoder."),
        copy.deepcopy,
        lambda part: pickle.dumps(part._state_dict_pre_hooks),
    ],
)
def test_nothing_is_released_through_a_part_of_the_model(mode, way, released):
    def write(memory, x):
        if way == "buffer":
            memory.mean += x[0]
        elif way == "extra state":
            memory.kept = x[0].clone()
        else:
            memory.frozen.data = x[0].clone()

    model = Model(write)
    made(model, mode)
    released(model.memory)
    keep(model, dataset().tensors[0])
    with pytest.raises(dm.UnsupportedCombinationError, match=r"calling the model, .*memory\."):
        released(model.memory)
    assert model.body.state_dict()  # nothing was written in this part


# ---- other changes of a model between steps


@pytest.mark.parametrize("mode", MODES)
def test_other_frozen_weights_are_refused_after_the_first_step(mode):
    model = Model()
    _, optimizer, _ = parts = made(model, mode)
    other = Model().state_dict()
    other["memory.frozen"] = torch.zeros(3)
    model.load_state_dict(other)  # before the first
    step(model, *parts)
    weights = model.state_dict()
    weights["head.bias"] = torch.ones(1)
    model.load_state_dict(weights)  # trained ones at any time
    step(model, *parts)
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"not trained, memory\.frozen.*before make_private"
    ):
        model.load_state_dict(weights | {"memory.frozen": torch.ones(3)})
    with pytest.raises(dm.UnsupportedCombinationError, match=r"memory\.frozen"):
        step(model, *parts)
    assert optimizer.record.steps == 2


@pytest.mark.parametrize("mode", MODES)
def test_loading_hides_no_changes(mode):
    model = Model(WAYS["frozen data"])
    private, _, _ = made(model, mode)
    keep(model, dataset().tensors[0])
    with pytest.raises(dm.UnsupportedCombinationError, match=r"memory\.frozen"):
        private.load_state_dict({}, strict=False)


@pytest.mark.parametrize("mode", MODES)
def test_weights_changed_by_hand_are_stated(mode):
    model = Model()
    _, optimizer, _ = parts = made(model, mode)
    step(model, *parts)
    model.body.weight.data.clamp_(-0.1, 0.1)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"body\.weight changed .*note_weights"):
        step(model, *parts)
    optimizer.note_weights()
    optimizer.step()
    assert optimizer.record.steps == 2


def test_hooks_of_the_torch_optimizer_belong_to_the_step():
    model = Model()
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    sgd.register_step_post_hook(lambda *_: model.body.weight.data.clamp_(-0.1, 0.1))
    private, optimizer, loader = make_private(
        model, sgd, DataLoader(dataset()), CAL, loss=squared_error, expected_batch_size=8
    )
    for batch in loader:
        private.backward(*batch)
        optimizer.step()
    assert optimizer.record.steps == 3


def one_step(model, path):
    """A run that has ended, and its checkpoint."""
    parts = made(model, "loss")
    step(model, *parts)
    save_checkpoint(path, *parts)


def test_a_refused_step_does_not_reset_the_check(tmp_path):
    """A detected write is detected again, also before the first step of a resumed run."""
    path = tmp_path / "run.pt"
    one_step(Model(WAYS["trained data"]), path)
    model = Model(WAYS["trained data"])
    private, optimizer, loader = parts = made(model, "loss")
    load_checkpoint(path, *parts)
    keep(model, dataset().tensors[0])
    private.backward(*next(iter(loader)))
    for _ in range(2):
        with pytest.raises(dm.UnsupportedCombinationError, match=r"body\.weight changed"):
            optimizer.step()
    assert optimizer.record.steps == 1


def test_a_resumed_run_has_the_contents_of_its_checkpoint(tmp_path):
    first = Model()
    first.memory.frozen.data.fill_(0.3)
    one_step(first, tmp_path / "run.pt")
    second = Model()
    parts = made(second, "loss")
    load_checkpoint(tmp_path / "run.pt", *parts)
    step(second, *parts)
    assert float(second.memory.frozen[0]) == pytest.approx(0.3)


# ---- calls of parts


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


CALLS = {
    "the model, then a part": lambda model, part, x, some: (model(x), part[2](torch.tanh(part[0](x[some])))),
    "a part, then the model": lambda model, part, x, some: (part[0](x[some]), model(x)),
    "the module inside": lambda model, part, x, some: (model(x), part(x[some])),
    "parts alone": lambda model, part, x, some: (part[0](x), part[0](x[some])),
    "without gradients around": lambda model, part, x, some: (model(x), relaxed(part[2], x, some)),
}


def relaxed(part, x, some):
    with torch.no_grad(), torch.enable_grad():
        return part(torch.ones(len(some), 4) * x[some].sum())


@pytest.mark.parametrize("name", list(CALLS))
def test_a_second_call_through_parts(name):
    model, optimizer, loader = made(linear(), "opacus")
    x, _ = next(iter(loader))
    total = sum(out.square().mean() for out in CALLS[name](model, model._module, x, torch.tensor([2, 5])))
    total.backward()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"called 2 times|no per-example gradients"):
        optimizer.step()
    assert optimizer.record.steps == 0


@pytest.mark.parametrize("name", list(CALLS))
def test_with_a_loss_of_one_example_no_call_brings_gradients(name):
    model, optimizer, loader = made(linear(), "loss")
    x, y = next(iter(loader))
    model.backward(x, y)
    total = sum(out.square().mean() for out in CALLS[name](model, model.module, x, torch.tensor([2, 5])))
    total.backward()
    with pytest.raises(dm.UnsupportedCombinationError, match="no per-example gradients"):
        optimizer.step()
    with pytest.raises(dm.UnsupportedCombinationError, match="more examples than the batch holds"):
        made_twice(x, y)


def made_twice(x, y):
    model, _, loader = made(linear(), "loss")
    next(iter(loader))
    model.backward(x, y)
    model.backward(x, y)


def test_the_graph_of_another_batch():
    """A call of the previous batch, whose backward pass comes with this one."""
    model, optimizer, loader = made(linear(), "opacus")
    batches = iter(loader)
    x, y = next(batches)
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    old = nn.functional.mse_loss(model(x), y)
    x, y = next(batches)
    (nn.functional.mse_loss(model(x), y) + old).backward()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"called 2 times|changed"):
        optimizer.step()
    assert optimizer.record.steps == 1


def test_a_call_that_was_interrupted_hides_no_later_one():
    class Interrupted(nn.Module):
        fail = True

        def forward(self, x):
            if self.fail:
                raise KeyboardInterrupt
            return x

    net = nn.Sequential(nn.Linear(3, 4), Interrupted(), nn.Linear(4, 1))
    model, optimizer, loader = made(net, "opacus")
    net.eval()
    with pytest.raises(KeyboardInterrupt):
        model(dataset().tensors[0])
    net.train()
    net[1].fail = False
    x, _ = next(iter(loader))
    (net(x).square().mean() + net[2](net[0](x[:2])).square().mean()).backward()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"called 2 times|no per-example gradients"):
        optimizer.step()


class Shared(nn.Module):
    """One layer used twice, and submodules that are called as methods."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(3, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.inner(torch.tanh(self.inner(x))))


def test_weights_may_be_shared_within_one_call():
    sums = []
    for mode in MODES:
        private, optimizer, loader = made(Shared(), mode)
        batches = iter(loader)
        backward(private, next(batches))
        optimizer.accumulate()
        sums.append([one.clone() for one in optimizer._batch._sums])
        optimizer.step()
        optimizer.zero_grad()
        backward(private, next(batches))
        optimizer.step()
        assert optimizer.record.steps == 2
    for a, b in zip(*sums, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, check_dtype=False)


def test_each_part_may_be_called_once_from_outside():
    model, optimizer, loader = made(Shared(), "opacus")
    with torch.no_grad():
        model.inner(dataset().tensors[0])
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model.head(model.inner(x)), y).backward()
        optimizer.step()
    assert optimizer.record.steps == 3


# ---- checksums


TENSORS = {
    "float": torch.randn(10_007, generator=torch.Generator().manual_seed(1)),
    "double": torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2)),
    "half": torch.arange(9.0).to(torch.float16),
    "bfloat": torch.arange(9.0).to(torch.bfloat16),
    "byte": torch.arange(23, dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "long": torch.arange(4096 + 1),
    "scalar": torch.tensor(3.0),
    "complex": torch.randn(4, dtype=torch.complex64, generator=torch.Generator().manual_seed(3)),
    "channels last": torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "odd offset": torch.arange(40, dtype=torch.uint8)[3:33],
    "NaN": torch.full((5,), float("nan")),
}


@pytest.mark.parametrize("name", list(TENSORS))
def test_every_flipped_bit_is_detected(name):
    """In each of the first and last bytes, and in some between; equal bits always compare equal."""
    reader, value = Fingerprinter(), TENSORS[name]
    then = reader.read(name, value)
    assert same([then], [reader.read(name, value.clone())])
    raw = value.contiguous().view(-1).view(torch.uint8)
    places = sorted({*range(min(len(raw), 9)), *range(max(len(raw) - 9, 0), len(raw)), len(raw) // 2})
    for place in places:
        for bit in range(1 if value.dtype == torch.bool else 8):
            changed = raw.clone()
            changed[place] ^= 1 << bit
            now = changed.view(value.dtype).view(value.shape)
            assert not same([then], [reader.read(name, now)]), (place, bit)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: -x,
        lambda x: x.flip(0),
        lambda x: x.roll(4096),
        lambda x: torch.cat([x[4096:8192], x[:4096], x[8192:]]),
        lambda x: x.view(2, -1),
        lambda x: x.to(torch.float32),
        lambda x: x[:-1],
    ],
)
def test_changes_that_fool_plain_sums(change):
    """Signs alone change the highest bit of every word, which odd 64-bit multipliers would not detect."""
    x = torch.randn(12_000, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    reader = Fingerprinter()
    assert not same([reader.read("x", x)], [reader.read("x", change(x))])


def test_checksums_are_those_of_big_integers():
    reader = Fingerprinter()
    for size in (0, 1, 3, 4095, 4096, 4097, 3 * 4096 + 5, 20 * 4096):
        x = torch.randint(-(2**31), 2**31, (size,), dtype=torch.int64).to(torch.int32)
        key = reader._key.tolist()
        rows = [x[i : i + 4096].tolist() for i in range(0, size, 4096)]
        expected = [sum(k * w for k, w in zip(key, row, strict=False)) % 2**64 for row in rows]
        found = [value % 2**64 for sums in reader.read("x", x)[1] for value in sums.tolist()]
        assert found == expected


def test_keys_are_secret_and_differ():
    assert not torch.equal(Fingerprinter()._key, Fingerprinter()._key)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_that_cannot_be_read():
    with pytest.raises(dm.UnsupportedCombinationError, match="lazy has no shape yet"):
        Fingerprinter().read("lazy", nn.parameter.UninitializedBuffer())
    packed = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(dm.UnsupportedCombinationError, match="packed is of the layout"):
        Fingerprinter().read("packed", packed)
    meta = torch.empty(3, device="meta")
    assert same([Fingerprinter().read("meta", meta)], [Fingerprinter().read("meta", meta)])


def test_extra_states_of_any_kind():
    class Odd(nn.Module):
        def __init__(self, state):
            super().__init__()
            self.inner, self.state = nn.Linear(3, 1), state

        def forward(self, x):
            return self.inner(x)

        def get_extra_state(self):
            return self.state

        def set_extra_state(self, state):
            pass

    model = Odd([1, ("a", torch.ones(2)), io.BytesIO(b"bytes"), None])
    _, optimizer, _ = parts = made(model, "loss")
    step(model, *parts)
    model.state[2] = io.BytesIO(b"other")
    with pytest.raises(dm.UnsupportedCombinationError, match="extra states _extra_state"):
        optimizer.run_record()
    model = Odd([torch.ones(2)])
    model.state.append(model.state)  # a cycle
    _, optimizer, _ = parts = made(model, "loss")
    step(model, *parts)
    model.state[0][1] = 2.0
    with pytest.raises(dm.UnsupportedCombinationError, match="extra states _extra_state"):
        optimizer.run_record()
    with pytest.raises(dm.UnsupportedCombinationError, match="cannot be read"):
        made(Odd(lambda: None), "loss")
    made(Odd(lambda: None), "loss", public_buffers=["_extra_state"])


def again(model, mode, private):
    """A second run while the first is open; with Opacus' hooks it requires the GradSampleModule."""
    if mode == "loss":
        return made(model, mode)
    sgd = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    with pytest.raises(dm.UnsupportedCombinationError, match="already has Opacus' hooks"):
        make_private(model, sgd, DataLoader(dataset()), CAL, expected_batch_size=8)
    return make_private(private, sgd, DataLoader(dataset()), CAL, expected_batch_size=8)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_may_be_made_private_again(mode, tmp_path):
    # Two phases of training, or a rerun cell of a notebook.
    model = Model()
    first = made(model, mode)
    step(model, *first)
    record = first[1].run_record()
    second = again(model, mode, first[0])
    step(model, *second)
    step(model, *second)
    save_checkpoint(tmp_path / "run.pt", second[0], second[1], second[2])
    model.state_dict()
    assert second[1].run_record().steps == 2
    assert first[1].run_record() == record
    with pytest.raises(dm.UnsupportedCombinationError, match="made private again"):
        step(model, *first)


@pytest.mark.parametrize("mode", MODES)
def test_earlier_writes_are_not_accepted(mode):
    model = Model(WAYS["data"])
    first = made(model, mode)
    step(model, *first)
    keep(model, torch.ones(2, 3))
    with pytest.raises(dm.UnsupportedCombinationError, match=r"buffers memory\.mean"):
        make_private(
            first[0],
            torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1),
            DataLoader(dataset()),
            CAL,
            loss=None if mode == "opacus" else squared_error,
            expected_batch_size=8,
        )


@pytest.mark.parametrize("mode", MODES)
def test_the_second_run_on_a_model_is_watched(mode):
    model = Model(WAYS["data"])
    first = made(model, mode)
    step(model, *first)
    second = again(model, mode, first[0])
    step(model, *second)
    keep(model, torch.ones(2, 3))
    with pytest.raises(dm.UnsupportedCombinationError, match=r"buffers memory\.mean"):
        model.state_dict()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"buffers memory\.mean"):
        second[1].run_record()


@pytest.mark.parametrize("device", ["cpu", "other"])
def test_small_tensors_are_read_together(device, monkeypatch):
    rng = torch.Generator().manual_seed(0)
    sizes = [(3,), (), (0,), (4096,), (4097,), (64, 64), (2, 3), (7,)]
    named = [(str(place), torch.randn(size, generator=rng)) for place, size in enumerate(sizes)]
    named += [("half", torch.arange(9.0).half()), ("turned", torch.arange(12.0).view(3, 4).t())]
    reader = Fingerprinter()
    if device == "other":
        monkeypatch.setattr("dpmech.optim.deferred._AT_ONCE", frozenset())
    calls = []
    alone = reader.read
    monkeypatch.setattr(reader, "read", lambda *given: calls.append(given[0]) or alone(*given))
    for _ in range(2):
        found = reader.read_all(named)
        for (name, tensor), (kind, sums) in zip(named, found, strict=True):
            expected = alone(name, tensor)
            assert kind == expected[0]
            assert torch.cat([*sums, torch.zeros(1)]).equal(torch.cat([*expected[1], torch.zeros(1)])), name
    assert calls == ([name for name, _ in named] if device == "cpu" else ["2", "half", "turned"]) * 2
    changed = [(name, tensor.clone()) for name, tensor in named]
    changed[0][1][1] = -changed[0][1][1]
    now = reader.read_all(changed)
    assert [same([one], [other]) for one, other in zip(found, now, strict=True)] == [False] + [True] * 9
