"""Models that mix the examples of a batch are refused under hooks; their counterparts are not."""

import dataclasses
import itertools
import random
import types

import numpy as np
import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from dpmech.optim import fix  # noqa: E402
from tests.support.training import private_run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")
CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5)
LENGTH = 6  # number of time steps, and of examples in a batch


def sequences(size, length=LENGTH, width=4):
    inputs = torch.randn(size, length, width, generator=torch.Generator().manual_seed(5))
    return TensorDataset(inputs, torch.arange(size) % 2)


def vectors(size, width=4):
    return sequences(size, 1, width).tensors[0].flatten(1), torch.arange(size) % 2


class Around(nn.Module):
    """A body between two linear layers; a mean over time if there is one."""

    def __init__(self, body, width=4):
        super().__init__()
        self.first, self.body, self.head = nn.Linear(width, width), body, nn.Linear(width, 2)

    def forward(self, x):
        out = self.body(self.first(x).tanh())
        return self.head(out.mean(1) if out.ndim == 3 else out)


class TimeFirst(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


class Sorted(nn.Module):
    """Sorts by length, and restores the order."""

    def __init__(self, *, back=True):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.back = back

    def forward(self, x):
        order = x[..., 0].flatten(1).sum(1).argsort() if self.back else torch.arange(len(x))
        return self.layer(x[order]).tanh()[order.argsort()]


class Flattened(nn.Module):
    """Passes examples and time steps to a layer as one dimension."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Whitened(nn.Module):
    """An explicit batch normalization, in training mode."""

    def __init__(self, least=0, after=-1, dropout=0.1):
        super().__init__()
        self.least, self.after, self.calls = least, after, 0
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        self.calls += 1
        if self.training and len(x) >= self.least and self.calls > self.after:
            x = (x - x.mean(0)) / (x.var(0) + 1e-3).sqrt()
        return self.dropout(x)


class BackwardOnly(nn.Module):
    """The value of an example is independent of others, but not its gradient."""

    def forward(self, x):
        mean = x.mean(0)
        return x + mean - mean.detach()


class Mixup(nn.Module):
    """Manifold mixup; its generator is from numpy, from torch, or a private one."""

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.own = np.random.default_rng(0)

    def forward(self, x):
        if not self.training:
            return x
        share = {
            "numpy": lambda: float(np.random.beta(0.4, 0.4)),  # noqa: NPY002 - as people do
            "torch": lambda: torch.distributions.Beta(0.4, 0.4).sample(),
            "own": lambda: float(self.own.beta(0.4, 0.4)),
        }[self.source]()
        return share * x + (1 - share) * x[torch.randperm(len(x))]


class ByDraws(nn.Module):
    """Mixes in ways that equal draws for all examples, or the same draws in every trial, would not reveal."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, x):
        draws, mean = torch.rand(len(x), 1), x.mean(0)
        shift = {
            "in the order of draws": lambda: x[draws[:, 0].argsort()],
            "by centred draws": lambda: (draws - draws.mean()) * mean,
            "mostly": lambda: mean if abs(float(torch.rand(1)) - 0.7576) > 0.05 else 0.0,  # of seed 1
            "in even batches": lambda: mean if len(x) % 2 == 0 else 0.0,
            "in pairs": lambda: x.roll(6, 0) if len(x) == 12 else 0.0,
        }
        return x + shift[self.way]()


class Noisy(nn.Module):
    """Random numbers in many ways, separate for each example."""

    def forward(self, x):
        if not self.training:
            return x
        x = nn.functional.dropout(x, 0.2)
        x = x + 0.1 * torch.randn_like(x) + 0.1 * torch.rand(x.shape[0], 1)
        x = x * torch.bernoulli(torch.sigmoid(x))
        x = x * torch.empty(len(x), 1).bernoulli_(0.9)  # stochastic depth per example
        x = x + torch.multinomial(torch.softmax(x, -1), 1).float() + torch.normal(x, 0.1)
        x = x * nn.functional.alpha_dropout(x, 0.1, training=True) + nn.functional.rrelu(x, training=True)
        keys = (torch.softmax(x, -1) + 1e-3)[:, None]
        attended = nn.functional.scaled_dot_product_attention(keys, keys, keys, dropout_p=0.1)
        x = x + attended[:, 0]
        return x * float(torch.rand(1) < 0.9) + float(np.random.rand())  # noqa: NPY002 - as people do


def first_batches(model, data, size, *, mode="ghost", steps=1, loss=nn.functional.cross_entropy):
    private, optimizer, loader = private_run(
        CAL, model, DataLoader(data, batch_size=size), generator=1, clipping_mode=mode
    )
    for _, (inputs, targets) in zip(range(steps), loader, strict=False):
        optimizer.zero_grad()
        loss(private(inputs), targets).backward()
        optimizer.step()
    return optimizer


def encoder(*, batch_first):
    torch.manual_seed(0)
    return fix(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=batch_first))


MIXED = {
    "the encoder layer of torch, time first": lambda: Around(TimeFirst(encoder(batch_first=False))),
    "a layer, time first": lambda: Around(TimeFirst(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))),
    "sorted by length and back": lambda: Around(Sorted()),
    "time steps as examples": lambda: Around(Flattened()),
}
SEPARATE = {
    "the encoder layer of torch, batch first": lambda: Around(encoder(batch_first=True)),
    "a layer, batch first": lambda: Around(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))),
    "time first without weights": lambda: Around(TimeFirst(nn.Tanh())),
    "in their order": lambda: Around(Sorted(back=False)),
}


@pytest.mark.parametrize("mode", ["per_example", "ghost"])
@pytest.mark.parametrize("name", MIXED)
def test_inner_layers_whose_rows_are_not_examples_are_refused(name, mode):
    torch.manual_seed(1)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"examples.*batch_first=True.*loss=\.\.\."):
        first_batches(MIXED[name](), sequences(24), LENGTH, mode=mode)


@pytest.mark.parametrize("mode", ["per_example", "ghost"])
@pytest.mark.parametrize("name", SEPARATE)
def test_their_twins_are_trained(name, mode):
    torch.manual_seed(1)
    optimizer = first_batches(SEPARATE[name](), sequences(24), LENGTH, mode=mode, steps=4)
    assert optimizer.record.steps == 4


@pytest.mark.parametrize(
    "body",
    [
        Whitened(),
        Whitened(dropout=0.0),
        Whitened(least=8),
        BackwardOnly(),
        *map(Mixup, ("numpy", "torch", "own")),
    ],
    ids=["statistics", "without dropout", "from eight on", "backward", "numpy", "torch", "own"],
)
def test_mixing_only_in_training_is_detected_with_dropout(body):
    torch.manual_seed(1)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"mixes examples.*loss=\.\.\."):
        first_batches(Around(body), TensorDataset(*vectors(48)), 12)


@pytest.mark.parametrize(
    "way", ["in the order of draws", "by centred draws", "mostly", "in even batches", "in pairs"]
)
def test_mixing_by_draws_or_sizes_is_detected(way):
    with pytest.raises(dm.UnsupportedCombinationError, match=r"mixes examples"):
        first_batches(Around(ByDraws(way)), TensorDataset(*vectors(48)), 12, steps=4)


class Hooked(nn.Module):
    """Changes gradients in the backward pass, each one for itself."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        if x.requires_grad:
            x.register_hook(self.change)
        return x


CHANGES = {
    "clamped": lambda grad: grad.clamp(-1e-3, 1e-3),
    "clamped far away": lambda grad: grad.clamp(-1e3, 1e3),
    "small ones dropped": lambda grad: grad * (grad.abs() > 1e-6),
    "signs": lambda grad: grad.sign(),
    "rounded": lambda grad: (grad * 256).round() / 256,
}


@pytest.mark.parametrize("name", CHANGES)
def test_backward_passes_that_see_the_number_of_examples_are_refused(name):
    torch.manual_seed(1)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"not proportional.*loss=\.\.\."):
        first_batches(Around(Hooked(CHANGES[name])), TensorDataset(*vectors(48)), 12)


@pytest.mark.parametrize(
    "change",
    [lambda grad: -0.3 * grad, lambda grad: grad * (grad > 0), lambda grad: None],
    ids=["reversed", "positive parts", "unchanged"],
)
def test_proportional_backward_passes_are_accepted(change):
    torch.manual_seed(1)
    assert first_batches(Around(Hooked(change)), TensorDataset(*vectors(48)), 12, steps=4).record.steps == 4


class Head(nn.Module):
    """Embeds vectors, and makes an output of all of them."""

    def __init__(self, joint):
        super().__init__()
        self.body, self.scale, self.joint = nn.Linear(4, 3), nn.Parameter(torch.ones(())), joint
        self.scale.requires_grad_(False)

    def forward(self, x):
        rows = nn.functional.normalize(self.body(x).tanh(), dim=-1)
        return {"rows": rows, "joint": self.joint(rows), "scale": self.scale}


JOINT = {
    "contrastive": lambda rows: nn.functional.cross_entropy(4 * rows @ rows.T, torch.arange(len(rows))),
    "logits of all pairs": lambda rows: rows @ rows.T,
    "variance": lambda rows: rows.var(0).sum(),
    "words": lambda rows: (rows**3).sum() / (rows[:, 0] > 0).sum(),
}
OVER_EXAMPLES = {
    "mean": lambda rows: (rows**3).mean(),
    "sum": lambda rows: (rows**3).sum(),
    "time first": lambda rows: (rows**3)[None].expand(2, -1, -1),
    "flattened": lambda rows: (rows**3).flatten(),
}


def joint_loss(outputs, targets):
    return outputs["joint"].square().mean()


@pytest.mark.parametrize("name", JOINT)
def test_batch_level_outputs_are_refused_if_a_loss_uses_them(name):
    torch.manual_seed(1)
    data = TensorDataset(*vectors(48))
    with pytest.raises(dm.UnsupportedCombinationError, match=r"no row for every example.*loss=\.\.\."):
        first_batches(Head(JOINT[name]), data, 12, loss=joint_loss)
    rows_only = first_batches(Head(JOINT[name]), data, 12, loss=lambda out, _: (out["rows"] ** 3).mean())
    assert rows_only.record.steps == 1


@pytest.mark.parametrize("name", OVER_EXAMPLES)
def test_outputs_with_separate_examples_may_be_used(name):
    torch.manual_seed(1)
    model = Head(OVER_EXAMPLES[name])
    found = first_batches(model, TensorDataset(*vectors(48)), 12, loss=lambda out, _: out["joint"].mean())
    assert found.record.steps == 1


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 40])
def test_mixing_that_begins_later_is_detected(after):
    """By random choice: the chance that 300 calls are all skipped is below 1 %, and the key is fixed.

    A loader that does not shuffle would have a key from the operating system.
    """
    torch.manual_seed(1)
    cal = dm.calibrate_sigma(dm.Identity(400), 8.0, 1e-5)
    private, optimizer, loader = private_run(
        cal,
        Around(Whitened(after=after)),
        DataLoader(TensorDataset(*vectors(4800)), batch_size=12, shuffle=True),
        generator=1,
        rng=2,
    )
    with pytest.raises(dm.UnsupportedCombinationError, match="mixes examples"):  # noqa: PT012 - a loop
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(inputs), targets).backward()
            optimizer.step()
    assert after <= optimizer.record.steps < after + 300


def test_more_examples_than_ever_before_are_tried():
    torch.manual_seed(1)
    cal = dm.calibrate_sigma(dm.Identity(40), 8.0, 1e-5, participation=dm.Poisson(0.2))
    private, optimizer, loader = private_run(
        cal,
        Around(Whitened(least=12)),
        DataLoader(TensorDataset(*vectors(48))),
        generator=1,
        rng=7,
    )
    sizes = []
    with pytest.raises(dm.UnsupportedCombinationError, match="mixes examples"):  # noqa: PT012 - a loop
        for inputs, targets in loader:
            sizes.append(len(inputs))
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(inputs), targets).backward()
            optimizer.step()
    assert sizes[-1] >= 12 > max(sizes[:-1])


def test_random_numbers_are_no_mixing():
    torch.manual_seed(1)
    model = Around(Noisy())
    assert first_batches(model, TensorDataset(*vectors(48)), 12, steps=4).record.steps == 4
    assert model.body.training


# ---- inputs and outputs other than tensors


@dataclasses.dataclass
class Held:
    rows: torch.Tensor


class Wrapped(nn.Module):
    """Extracts rows from its input, optionally normalizes them over the batch, and returns a container."""

    def __init__(self, taken, given=lambda out: out, *, mixes=True):
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.taken, self.given, self.mixes = taken, given, mixes

    def forward(self, *batch):
        out = self.first(self.taken(*batch) if batch else self.rows)
        return self.given(self.head(out - out.mean(0) if self.mixes else out))


def in_steps(model, call, steps=1, loss=nn.functional.cross_entropy):
    torch.manual_seed(1)
    private, optimizer, loader = private_run(
        CAL, model, DataLoader(TensorDataset(*vectors(48)), batch_size=12), generator=1, rng=2
    )
    for inputs, targets in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps):
        optimizer.zero_grad()
        loss(call(private, inputs), targets).backward()
        optimizer.step()
    return optimizer.record.steps


def by_attribute(model, inputs):
    model._module.rows = inputs
    return model()


IN = {
    "dataclass": (lambda batch: batch.rows, lambda model, x: model(Held(x))),
    "namespace": (lambda batch: batch.rows, lambda model, x: model(types.SimpleNamespace(rows=x))),
    "list of examples": (torch.stack, lambda model, x: model(list(x))),
}
HIDDEN = {
    "features first": (lambda batch: batch.T, lambda model, x: model(x.T.contiguous())),
    "attribute": (None, by_attribute),
}
OUT = {
    "dataclass": (Held, lambda out: out.rows),
    "namespace": (lambda out: types.SimpleNamespace(rows=out), lambda out: out.rows),
}


@pytest.mark.parametrize("name", IN)
def test_batches_in_objects_and_lists_are_compared(name):
    taken, call = IN[name]
    with pytest.raises(dm.UnsupportedCombinationError, match="the model mixes examples"):
        in_steps(Wrapped(taken), call)
    assert in_steps(Wrapped(taken, mixes=False), call) == 1


@pytest.mark.parametrize("name", OUT)
def test_outputs_in_objects_are_compared(name):
    given, unpacked = OUT[name]
    model = Wrapped(lambda x: x, lambda out: given(out - out.mean(0)), mixes=False)
    with pytest.raises(dm.UnsupportedCombinationError, match="the model mixes examples: the model itself"):
        in_steps(model, lambda model, x: unpacked(model(x)))
    assert in_steps(Wrapped(lambda x: x, given, mixes=False), lambda model, x: unpacked(model(x))) == 1


@pytest.mark.parametrize("name", HIDDEN)
def test_batches_that_cannot_be_found_are_refused(name):
    taken, call = HIDDEN[name]
    with pytest.raises(
        dm.UnsupportedCombinationError,
        match=r"cannot be determined whether.*no argument has a row.*loss=\.\.\.",
    ):
        in_steps(Wrapped(taken), call)


def test_a_model_that_no_trial_can_call_is_refused():
    model = Wrapped(lambda x: x, mixes=False)
    # Only trials run under a dispatch mode.
    model.first.register_forward_pre_hook(lambda *_: 1 / 0 if torch._C._len_torch_dispatch_stack() else None)
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"cannot be determined whether.*in a trial, ZeroDiv"
    ):
        in_steps(model, lambda model, x: model(x))


class Aside(nn.Module):
    """Returns a second value next to its output: in an attribute, or detached."""

    def __init__(self, left):
        super().__init__()
        self.first, self.head, self.left, self.aside = nn.Linear(4, 4), nn.Linear(4, 2), left, None

    def forward(self, x):
        out = self.first(x)
        self.aside = self.left(out)
        return {"rows": self.head(out), "aside": self.aside.detach()}


@pytest.mark.parametrize("way", ["attribute", "detached"])
def test_side_outputs_are_refused_if_a_loss_uses_them(way):
    def balance(out):
        return (out.softmax(1).mean(0) ** 2).sum()

    def both(model, x):
        out = model(x)
        return out["rows"] * (model._module.aside if way == "attribute" else out["aside"])

    with pytest.raises(dm.UnsupportedCombinationError, match="no row for every example"):
        in_steps(Aside(balance), both)
    assert in_steps(Aside(balance), lambda model, x: model(x)["rows"], steps=3) == 3


# ---- state that a call leaves in attributes for the next one


class Carrying(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.first, self.head, self.keep = nn.Linear(4, 4), nn.Linear(4, 2), keep
        self.kept, self.queue, self.cache, self.top, self.calls = torch.zeros(4), [], {}, 0.1, 0
        self.store, self.array = Store(), np.zeros(1)
        SEEN[:] = [0.0]
        if hasattr(Store, "seen"):
            del Store.seen

    def forward(self, x):
        return self.head(self.keep(self, self.first(x)))


def centred(model, out):
    found = out - model.kept
    model.kept = 0.9 * model.kept + 0.1 * out.detach().mean(0)
    return found


def in_place(model, out):
    found = out - model.kept
    model.kept.add_(out.detach().mean(0))
    return found


def queued(model, out):
    found = out + sum(model.queue)
    model.queue.append(out.detach().mean())
    return found


def scaled(model, out):
    found = out / model.top
    model.top = max(model.top, float(out.abs().max()))
    return found


def cached(model, out):
    key = len(out)
    if key not in model.cache:
        model.cache[key] = torch.ones(key, 1, dtype=out.dtype)
    return out * model.cache[key]


def annealed(model, out):
    model.calls += 1
    model.top = min(1.0, model.top + 0.01)
    return out * model.top


def counted(model, out):
    """A schedule by the number of calls, in an object and in a list."""
    model.calls += 1
    model.store.value = 0.5**model.calls
    model.queue.append(model.calls)
    return out * (1.0 + model.store.value + len(model.queue))


def shown(model, out):
    model.kept = out.detach().mean(0)
    model.queue.append(float(out.detach().mean()))
    return out


class Store:
    """An object without anything of torch."""

    def __init__(self):
        self.value = 0.0


SEEN = [0.0]


def in_object(model, out):
    found = out + model.store.value
    model.store.value = float(out.detach().mean())
    return found


def in_integers(model, out):
    found = out + model.calls
    model.calls += 1 + int(100.0 * out.detach().mean())
    return found


def in_array(model, out):
    found = out + float(model.array[0])
    model.array[0] += float(out.detach().mean())
    return found


def in_classes(model, out):
    found = out + getattr(Store, "seen", 0.0)
    Store.seen = float(out.detach().mean())
    return found


def in_globals(model, out):
    del model
    found = out + SEEN[-1]
    SEEN.append(float(out.detach().mean()))
    return found


@pytest.mark.parametrize(
    "keep", [centred, in_place, queued, scaled, in_object, in_integers, in_array, in_classes, in_globals]
)
def test_attributes_that_carry_data_to_the_next_call_are_refused(keep):
    with pytest.raises(
        dm.UnsupportedCombinationError,
        match=r"changed .*(kept|queue|top|store|calls|array|what its code refers to), which the next call",
    ):
        in_steps(Carrying(keep), lambda model, x: model(x), steps=2)


@pytest.mark.parametrize("keep", [cached, annealed, shown, counted])
def test_attributes_that_carry_no_data_may_change(keep):
    assert in_steps(Carrying(keep), lambda model, x: model(x), steps=4) == 4


@pytest.mark.parametrize("keep", [centred, in_place, "first"])
def test_with_a_loss_no_example_stays_in_attributes(keep):
    """Neither the first call, which tries the loss, nor those of a batch."""

    def first(model, out):
        if not model.queue:
            model.queue.append(out.detach().mean())
        return out - model.queue[0]

    model = Carrying(first if keep == "first" else keep)
    private, optimizer, loader = private_run(
        CAL,
        model,
        DataLoader(TensorDataset(*vectors(48)), batch_size=12),
        loss=lambda model, x, y: nn.functional.cross_entropy(model(x), y),
        loss_takes="batch_of_one",
        generator=1,
        rng=2,
    )
    assert model.queue == []
    assert not model.kept.any()
    if keep is not in_place:  # which torch.func refuses
        private.backward(*next(iter(loader)))
        optimizer.step()
    assert model.queue == []
    assert not model.kept.any()


class Seeding(nn.Module):
    """Dropout after a seed that the first example determines, at every call or only for large values."""

    def __init__(self, seed, *, always=True):
        super().__init__()
        self.layer, self.drop, self.seed, self.always = nn.Linear(4, 2), nn.Dropout(0.5), seed, always

    def forward(self, x):
        if self.always or x[:, 0].max() > 100:
            self.seed(int(x[0, 0].detach() * 1000) % 2**32)
        return self.drop(self.layer(x))


def forked(number):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)


@pytest.mark.parametrize(
    ("seed", "always", "whose"),
    [
        (torch.manual_seed, True, "torch"),
        (torch.manual_seed, False, "torch"),
        (random.seed, True, "Python"),
        (np.random.seed, True, "numpy"),
        (forked, True, None),
        (lambda number: torch.Generator().manual_seed(number), True, None),
        (lambda number: (random.random(), np.random.random()), True, None),  # noqa: NPY002 - as models do
    ],
)
def test_models_that_seed_global_generators(seed, always, whose):
    """Of a batch: a value of one example would determine what the others draw."""
    inputs, targets = vectors(24)
    inputs[20, 0] = 1000.0
    model, optimizer, loader = private_run(
        CAL,
        Seeding(seed, always=always),
        DataLoader(TensorDataset(inputs, targets), batch_size=6),
        generator=1,
    )

    def train():
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    if whose is None:
        train()
        return
    with pytest.raises(dm.UnsupportedCombinationError, match=f"seeds a generator of {whose}"):
        train()
