"""State that a loss leaves in its model or in itself is reset before its next call, also within a step."""

import array
import collections
import contextvars
import dataclasses
import functools
import queue
import random
import sys
import threading
import types
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import dpmech as dm  # noqa: E402
from dpmech.optim import MeanOverViews, clipped_gradients  # noqa: E402
from tests.support.training import private_run, squared_error  # noqa: E402

CAL = dm.calibrate_sigma(dm.Identity(2), 8.0, 1e-5, participation=dm.FixedEpochs(1))
SIZE, FAR = 12, 1e3
MODES = ["per_example", "ghost", "loop"]


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


def sums(inputs, targets, make=lambda: (Remembering(), squared_error), **options):
    """The sums of clipped gradients of two batches."""
    model, loss = make()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=SIZE)
    private, optimizer, loader = private_run(
        CAL, model, loader, loss=loss, loss_takes="batch_of_one", generator=1, **options
    )
    for number, (x, y) in enumerate(loader):
        private.backward(x[:, : 3 + number], y)  # of another length, so that layers are searched again
        yield torch.cat([one.double().flatten() for one in optimizer._batch._sums])
        optimizer.step()


def moved(make, **options):
    """How far the sums of two batches move if the first example of either is replaced."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(2 * SIZE, 5, 4, generator=generator)
    targets = torch.randn(2 * SIZE, 2, generator=generator)
    other = inputs.clone()
    inputs[:2], other[:2] = FAR, -FAR  # the first example of either batch
    found = [list(sums(one, targets, make, **options)) for one in (inputs, other)]
    return [float((mine - theirs).norm()) for mine, theirs in zip(*found, strict=True)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("physical", [None, 4, 1])
def test_an_example_affects_only_its_gradient(mode, physical):
    found = moved(
        lambda: (Remembering(), squared_error), clipping_mode=mode, max_physical_batch_size=physical
    )
    # Two clip norms for the replaced example, and zero for the others.
    assert all(1.0 < one < 2.0 + 1e-6 for one in found)


# ---- places where a call can leave a value for the next one: (model, get, put)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 40), nn.Linear(40, 2)

    def forward(self, x):
        return self.last(self.first(x).tanh()).mean(1)


class Store:
    """An object without anything of torch."""

    shared = None

    def __init__(self):
        self.value = None


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = None


SEEN = [None]
NEWEST = None


def by_loss(get, put, model=None):
    """A loss whose shift is what an earlier call left."""

    def loss(model, x, y):
        old, new = get(), x.mean((0, 1)).detach()
        put(new if old is None else old + new)
        return squared_error(model, x if old is None else x + old, y)

    return (model or Plain()), loss


def in_object(kind=Store):
    held = kind()
    return by_loss(lambda: held.value, lambda new: setattr(held, "value", new))


def in_closure():
    kept = None

    def get():
        return kept

    def put(new):
        nonlocal kept
        kept = new

    return by_loss(get, put)


def in_list():
    kept = []
    return by_loss(lambda: kept[-1] if kept else None, kept.append)


def beside_data():
    """More objects than are followed."""
    data, held = [torch.zeros(1) for _ in range(6000)], Store()
    held.value = Store()
    held.value.seen = []

    def get():
        return held.value.seen[-1] if held.value.seen else data[0] * 0.0

    return by_loss(get, held.value.seen.append)


def in_dict():
    kept = {}
    return by_loss(lambda: kept.get("x"), lambda new: kept.update(x=new))


def in_model():
    model = Plain()
    model.store = Store()
    return by_loss(lambda: model.store.value, lambda new: setattr(model.store, "value", new), model)


def in_namespace():
    held = types.SimpleNamespace(value=None)
    return by_loss(lambda: held.value, lambda new: setattr(held, "value", new))


def in_queue():
    held = queue.LifoQueue()

    def get():
        return held.queue[-1] if held.qsize() else None

    return by_loss(get, held.put)


def in_user_dict():
    held = collections.UserDict()
    return by_loss(lambda: held.get("x"), lambda new: held.update(x=new))


def in_class():
    Store.shared = None
    return by_loss(lambda: Store.shared, lambda new: setattr(Store, "shared", new))


def in_a_new_attribute_of_a_class():
    if hasattr(Store, "newest"):
        del Store.newest
    return by_loss(lambda: getattr(Store, "newest", None), lambda new: setattr(Store, "newest", new))


def in_globals():
    SEEN[:] = [None]
    return by_loss(lambda: SEEN[-1], SEEN.append)


def in_a_global():
    def put(new):
        global NEWEST  # noqa: PLW0603 - as is tested
        NEWEST = new

    put(None)
    return by_loss(lambda: NEWEST, put)


def in_a_module():
    here = sys.modules[__name__]
    here.NEWEST = None
    return by_loss(lambda: here.NEWEST, lambda new: setattr(here, "NEWEST", new))


def in_a_default():
    def kept(new=None, held=[]):  # noqa: B006 - as is tested
        held += [new] if new is not None else []
        return held[-1] if held else None

    return by_loss(kept, kept)


def in_partial():
    def loss(model, x, y, held):
        old, new = held.get("x"), x.mean((0, 1)).detach()
        held["x"] = new if old is None else old + new
        return squared_error(model, x if old is None else x + old, y)

    return Plain(), functools.partial(loss, held={})


class Method:
    def __init__(self):
        self.kept = None

    def loss(self, model, x, y):
        old, new = self.kept, x.mean((0, 1)).detach()
        self.kept = new if old is None else old + new
        return squared_error(model, x if old is None else x + old, y)


def in_a_hook():
    model, kept = Plain(), []

    def hook(layer, given):
        (x,) = given
        kept.append(x.mean((0, 1)).detach())
        return (x + kept[-2],) if len(kept) > 1 else None

    model.register_forward_pre_hook(hook)
    return model, squared_error


def in_views():
    model, loss = in_list()
    return model, MeanOverViews(lambda model, x, y: loss(model, x, y[:1]), lambda x: x + 0.0, 1)


class Buffered(nn.Module):
    """A loss with a buffer, replaced or written."""

    def __init__(self, kind, *, in_place):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, dtype=kind))
        self.in_place = in_place

    def called(self, model, x, y):
        old, new = self.seen, x.mean((0, 1)).detach().to(self.seen.dtype)
        shifted = x + old
        if self.in_place:
            self.seen += new
        else:
            self.seen = old + new
        return squared_error(model, shifted, y)


def in_a_buffer(kind=torch.float32, *, in_place=True):
    return Plain(), Buffered(kind, in_place=in_place).called


def in_dataset():
    """Of its contents nothing is followed."""
    held = TensorDataset(torch.zeros(1))
    held.value = None
    return by_loss(lambda: held.value, lambda new: setattr(held, "value", new))


PLACES = {
    "object": in_object,
    "attribute of a dataset": in_dataset,
    "slots": lambda: in_object(Slotted),
    "namespace": in_namespace,
    "queue": in_queue,
    "UserDict": in_user_dict,
    "closure": in_closure,
    "list": in_list,
    "dict": in_dict,
    "beside data": beside_data,
    "object of the model": in_model,
    "class": in_class,
    "class, new": in_a_new_attribute_of_a_class,
    "global list": in_globals,
    "global": in_a_global,
    "module": in_a_module,
    "default": in_a_default,
    "partial": in_partial,
    "method": lambda: (Plain(), Method().loss),
    "hook": in_a_hook,
    "views": in_views,
    "buffer": lambda: in_a_buffer(in_place=False),
    "integers": lambda: in_a_buffer(torch.int64, in_place=False),
}


@pytest.mark.parametrize(
    ("place", "mode", "physical"),
    [
        # One way in turn; the others are slow.
        pytest.param(
            *way,
            marks=()
            if (number + place) % (2 * len(MODES)) == 0 and name != "beside data"
            else pytest.mark.slow,
        )
        for place, name in enumerate(PLACES)
        for number, way in enumerate((name, mode, most) for most in (4, None) for mode in MODES)
    ],
)
def test_what_a_loss_leaves_reaches_no_other_example(place, mode, physical):
    found = moved(PLACES[place], clipping_mode=mode, max_physical_batch_size=physical)
    assert all(1.0 < one < 2.0 + 1e-6 for one in found)


def in_array():
    kept = np.zeros(4)
    return _by_numbers(lambda: torch.from_numpy(kept.copy()), lambda new: np.add(kept, new.numpy(), kept))


def in_numbers():
    model = Plain()
    model.count = 0

    def put(new):
        model.count += int(new.sum())

    return _by_numbers(lambda: model.count, put, model)


def in_data():
    kept = torch.zeros(4)
    return _by_numbers(kept.clone, kept.data.add_)


def _by_numbers(get, put, model=None):
    def loss(model, x, y):
        shift = get()
        put(x.mean((0, 1)).detach())
        return squared_error(model, x + torch.as_tensor(shift, dtype=x.dtype), y)

    return (model or Plain()), loss


# Which vmap refuses, so that it is done in a loop.
def in_a_view():
    view = memoryview(bytearray(8)).cast("d")
    return by_loss(lambda: view[0] or None, lambda new: view.__setitem__(0, float(new.mean())))


IN_PLACE = {
    "view of bytes": in_a_view,
    "buffer": in_a_buffer,
    "integers": lambda: in_a_buffer(torch.int64),
    "array": in_array,
    "numbers": in_numbers,
    "data": in_data,
}


# ---- classes whose methods do something else than those of the builtin ones


class Adding(dict):
    """Adds where a dict sets, as a Counter does in `update`."""

    def __setitem__(self, key, value):
        super().__setitem__(key, self.get(key, 0.0) + value)

    def clear(self):
        pass


class Appending(list):
    """Keeps what it has."""

    def clear(self):
        pass

    def extend(self, values):
        for value in values:
            self.append(value)


class Lasting(set):
    def clear(self):
        pass

    def __iter__(self):
        return iter(())


@dataclasses.dataclass(frozen=True)
class Frozen:
    __slots__ = ("value",)
    value: object


def in_counter():
    held = collections.Counter(x=1)

    def put(new):
        held["x"] += float(new.sum())

    return by_loss(lambda: torch.full((4,), float(held["x"])), put)


def in_adding():
    held = Adding(x=torch.zeros(4))
    return by_loss(lambda: held["x"], lambda new: held.__setitem__("x", new))


def in_ordered():
    held = collections.OrderedDict()
    return by_loss(lambda: next(iter(held.values()), None), lambda new: held.__setitem__("x", new))


def in_order(kind=collections.OrderedDict):
    """Which of two keys comes first."""
    held = kind(a=0.0, b=1.0)

    def put(new):
        if new.sum() < 0:
            held["a"] = held.pop("a")

    return by_loss(lambda: torch.full((4,), 1e3 * next(iter(held.values()))), put)


def in_appending():
    held = Appending()
    return by_loss(lambda: held[-1] if held else None, held.append)


def in_lasting():
    held = Lasting()
    return by_loss(lambda: 0.0 if len(held) == 0 else torch.full((4,), float(len(held))), held.add)


def in_frozen():
    held = Frozen(None)
    return by_loss(lambda: held.value, lambda new: object.__setattr__(held, "value", new))


def in_python_array():
    held = array.array("d", [0.0])

    def put(new):
        held[0] += float(new.sum())
        held.append(0.0)

    return by_loss(lambda: torch.full((4,), held[0] + len(held)), put)


def in_attributes_of_nothing(make=Store):
    held = make()
    vars(held).clear()
    return by_loss(lambda: vars(held).get("x"), lambda new: setattr(held, "x", new))


def in_a_key():
    held = {Store(): 0}
    return by_loss(lambda: next(iter(held)).value, lambda new: setattr(next(iter(held)), "value", new))


OVERRIDING = [
    in_counter, in_adding, in_ordered, in_order, in_appending, in_lasting, in_frozen, in_python_array,
    in_attributes_of_nothing, in_a_key,
]  # fmt: skip


@pytest.mark.parametrize("make", OVERRIDING)
def test_what_methods_of_a_class_override_is_put_back(make):
    found = moved(make, clipping_mode="loop")
    assert all(0.5 < one < 2.0 + 1e-6 for one in found)


# ---- places of the standard library, and modules


def in_thread_local():
    held = threading.local()
    return by_loss(lambda: getattr(held, "value", None), lambda new: setattr(held, "value", new))


def in_context_variable():
    held = contextvars.ContextVar("held")
    held.set(None)
    return by_loss(held.get, held.set)


def in_weak_keys():
    key, held = Store(), weakref.WeakKeyDictionary()
    return by_loss(lambda: held.get(key), lambda new: held.__setitem__(key, new))


def in_weak_values():
    inner = Store()
    held = weakref.WeakValueDictionary(x=inner)
    Plain.owner = inner  # keeps it
    return by_loss(lambda: held["x"].value, lambda new: setattr(held["x"], "value", new))


def in_weak_set():
    owned, held = [Store() for _ in range(4 * SIZE)], weakref.WeakSet()
    return by_loss(
        lambda: torch.full((4,), float(len(held))), lambda new: new.sum() < 0 and held.update(owned)
    )


def _module(name, **values):
    made = types.ModuleType(name)
    vars(made).update(values)
    return made


def in_a_module_of_a_module():
    package = _module("package", inner=_module("package.inner", value=None))
    return by_loss(lambda: package.inner.value, lambda new: setattr(package.inner, "value", new))


IMPORTED = "module_that_a_loss_imports"


def in_an_imported_module():
    sys.modules[IMPORTED] = _module(IMPORTED, value=None)

    def get():
        import module_that_a_loss_imports

        return module_that_a_loss_imports.value

    def put(new):
        import module_that_a_loss_imports as other

        other.value = new

    return by_loss(get, put)


def in_an_imported_list():
    sys.modules[IMPORTED] = _module(IMPORTED, seen=[torch.zeros(4)])

    def get():
        from module_that_a_loss_imports import seen

        return seen[-1]

    def put(new):
        from module_that_a_loss_imports import seen

        seen.append(new)

    return by_loss(get, put)


RELATIVE = """
def get():
    from ..inner import seen
    return seen[-1]

def put(new):
    from .. import inner
    inner.seen.append(new)
"""


def in_a_relative_import():
    names = [IMPORTED, f"{IMPORTED}.sub", f"{IMPORTED}.inner"]
    whole, _, inner = made = [_module(name, __path__=[]) for name in names]
    whole.inner, inner.seen = inner, [torch.zeros(4)]
    sys.modules |= dict(zip(names, made, strict=True))
    space = {"__name__": f"{IMPORTED}.sub.loss", "__package__": f"{IMPORTED}.sub"}
    exec(RELATIVE, space)
    return by_loss(space["get"], space["put"])


ELSEWHERE = [
    in_thread_local, in_context_variable, in_weak_keys, in_weak_values, in_weak_set, in_a_module_of_a_module,
    in_an_imported_module, in_an_imported_list, in_a_relative_import,
]  # fmt: skip


@pytest.mark.parametrize("make", ELSEWHERE)
def test_state_of_the_standard_library_and_of_modules_is_put_back(make, monkeypatch):
    for name in (IMPORTED, f"{IMPORTED}.sub", f"{IMPORTED}.inner"):
        monkeypatch.setitem(sys.modules, name, None)
    found = moved(make, clipping_mode="loop")
    assert all(0.5 < one < 2.0 + 1e-6 for one in found)


# ---- what torch keeps beside the values of tensors and attributes of modules


class Negative(nn.Module):
    def forward(self, x):
        return -x


def by_branch(change, make=Plain):
    """A loss that changes the model where the mean of an example is small."""
    model = make()

    def loss(called, x, y):
        value = squared_error(called, x, y)
        if x.mean() < -1.0:
            change(model)
        return value

    return model, loss


def in_submodules():
    def make():
        model = Plain()
        model.first = nn.Sequential(model.first, nn.Identity())
        return model

    return by_branch(lambda model: model.first.__setitem__(1, Negative()), make)


def in_new_hooks():
    return by_branch(lambda model: model.register_forward_hook(lambda *given: -given[-1]))


def in_hooks_of_all_modules():
    everywhere = nn.modules.module
    everywhere._global_forward_hooks.clear()
    return by_branch(lambda _: everywhere.register_module_forward_hook(lambda *given: -given[-1]))


def in_hooks_of_another_module():
    other = nn.Identity()

    def loss(model, x, y):
        value = squared_error(model, other(x), y)
        if x.mean() < -1.0:
            other.register_forward_hook(lambda *given: -given[-1])
        return value

    return Plain(), loss


def in_a_hook_of_a_parameter():
    model, held = Plain(), [1.0]

    def hook(grad):
        held[0] = max(held[0], float(grad.abs().max()))
        return grad / held[0]

    for one in model.parameters():
        one.register_hook(hook)

    def loss(model, x, y):
        return squared_error(model, x * 1e-3, y) * (1e4 if x.mean() < -1.0 else 1.0)

    return model, loss


def in_attributes_of_a_parameter():
    model = Plain()
    weight = model.first.weight
    return by_loss(lambda: getattr(weight, "kept", None), lambda new: setattr(weight, "kept", new), model)


def in_attributes_of_a_tensor():
    held = torch.zeros(4)
    return by_loss(lambda: getattr(held, "kept", None), lambda new: setattr(held, "kept", new))


def in_a_cache():
    now = []

    @functools.lru_cache
    def first(shape):
        return now[0]

    def loss(model, x, y):
        now[:] = [x.mean((0, 1)).detach()]
        return squared_error(model, x + first(x.shape), y)

    return Plain(), loss


def in_the_default_dtype():
    torch.set_default_dtype(torch.float32)

    def loss(model, x, y):
        sign = 1.0 if torch.tensor(0.1).dtype == torch.float32 else -1.0
        if x.mean() < -1.0:
            torch.set_default_dtype(torch.float64)
        return squared_error(model, sign * x, y)

    return Plain(), loss


BESIDE = [
    in_submodules, in_new_hooks, in_hooks_of_all_modules, in_hooks_of_another_module,
    in_a_hook_of_a_parameter, in_attributes_of_a_parameter, in_attributes_of_a_tensor, in_a_cache,
    in_the_default_dtype,
]  # fmt: skip


@pytest.mark.parametrize("make", BESIDE)
def test_what_torch_keeps_elsewhere_reaches_no_other_example(make):
    try:
        found = moved(make, clipping_mode="loop")
    finally:
        torch.set_default_dtype(torch.float32)
        nn.modules.module._global_forward_hooks.clear()
    assert all(one < 2.0 + 1e-6 for one in found)
    assert max(found) > 0.0


def large(kind):
    """A tensor that is not compared after each call, and one that is not copied."""
    held = kind(torch.zeros(1 << 17))

    def loss(model, x, y):
        shift = float(held[0])
        if x.mean() < -600.0:  # stand-ins are not
            held.data.fill_(1.0)
        return squared_error(model, x + shift, y)

    return Plain(), loss


@pytest.mark.parametrize("kind", [torch.clone, nn.Parameter])
def test_writes_into_large_tensors_that_torch_does_not_count_are_refused(kind):
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r"wrote into a (Tensor|Parameter) of shape \(131072,\)"
    ):
        moved(lambda: large(kind), clipping_mode="loop")


def test_tensors_that_the_loop_writes_between_steps_are_its_own():
    held = torch.zeros(1 << 17)
    model, targets = Plain(), torch.zeros(2 * SIZE, 2)
    loader = DataLoader(TensorDataset(torch.randn(2 * SIZE, 5, 4), targets), batch_size=SIZE)
    private, optimizer, loader = private_run(
        CAL, model, loader, loss=lambda model, x, y: squared_error(model, x + held[0], y), generator=1,
        loss_takes="batch_of_one", clipping_mode="loop",
    )  # fmt: skip
    for number, (x, y) in enumerate(loader):
        private.backward(x, y)
        optimizer.step()
        held.data.fill_(number + 1.0)
    assert float(held[0]) == 2.0


@pytest.mark.parametrize("place", IN_PLACE)
def test_what_a_loss_writes_in_place_reaches_no_other_example(place):
    found = moved(IN_PLACE[place], clipping_mode="loop")
    assert all(1.0 < one < 2.0 + 1e-6 for one in found)


# ---- tensors that may change


class Scheduled(Plain):
    """Counts its calls in a buffer, and shrinks with them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return super().forward(x * 0.1**self.calls)


@pytest.mark.parametrize("mode", ["auto", "loop"])
def test_public_buffers_change_once_a_batch(mode):
    """Under another number of calls all other examples would have another gradient."""
    inputs = torch.randn(SIZE, 5, 4, generator=torch.Generator().manual_seed(1))
    targets = torch.zeros(SIZE, 2)
    cal = dm.calibrate_sigma(dm.Identity(1), 8.0, 1e-5, participation=dm.FixedEpochs(1))
    found = []
    for first in (0, 1):
        model = Scheduled()
        private, optimizer, loader = private_run(
            cal, model, DataLoader(TensorDataset(inputs, targets), batch_size=SIZE), loss=squared_error,
            loss_takes="batch_of_one", generator=1, clipping_mode=mode, public_buffers=["calls"],
        )  # fmt: skip
        x, y = next(iter(loader))
        private.backward(x[first:], y[first:])
        assert optimizer.clipping_mode == "loop"
        assert int(model.calls) == 1
        found.append(torch.cat([one.double().flatten() for one in optimizer._batch._sums]))
    assert 1e-2 < float((found[0] - found[1]).norm()) < 1.0 + 1e-6


@functools.cache
def rarely():
    return dm.calibrate_sigma(dm.Identity(12), 8.0, 1e-5, participation=dm.Poisson(0.05))


@pytest.mark.parametrize("size", [20, 19])
@pytest.mark.parametrize("mode", ["auto", "loop"])
def test_public_buffers_change_in_empty_batches_too(mode, size):
    """Else a released buffer, and the gradients that it scales, would show how many batches were empty."""
    data = TensorDataset(torch.ones(size, 3, 4), torch.zeros(size, 2))
    cal = rarely()
    model = Counting()
    private, optimizer, loader = private_run(
        cal, model, DataLoader(data), loss=squared_error, rng=7, loss_takes="batch_of_one", generator=1,
        clipping_mode=mode, public_buffers=["calls"], dataset_size=20, expected_batch_size=1,
    )  # fmt: skip
    sizes = []
    while optimizer.steps_left:
        for x, y in loader:
            sizes.append(len(x))
            private.backward(x, y)
            assert not sizes[-1] or any(one.any() for one in optimizer._batch._sums)
            assert sizes[-1] or not any(one.any() for one in optimizer._batch._sums if one is not None)
            optimizer.step()
    assert 0 in sizes
    assert int(model.calls) == 12


@pytest.mark.parametrize("mode", ["auto", "loop"])
def test_public_buffers_change_where_all_weights_are_zero(mode):
    """As in a batch with examples, of which none counts."""
    cal = dm.calibrate_sigma(dm.Identity(1), 8.0, 1e-5, participation=dm.FixedEpochs(1))
    for weights in (None, torch.ones(SIZE), torch.zeros(SIZE)):
        model = Counting()
        data = TensorDataset(torch.ones(SIZE, 3, 4), torch.zeros(SIZE, 2))
        private, optimizer, loader = private_run(
            cal, model, DataLoader(data, batch_size=SIZE), loss=squared_error, loss_takes="batch_of_one",
            generator=1, clipping_mode=mode, public_buffers=["calls"],
        )  # fmt: skip
        private.backward(*next(iter(loader)), weights=weights)
        assert int(model.calls) == 1
        optimizer.close()


class Counting(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return super().forward(x * 0.9**self.calls)


@pytest.mark.parametrize("random_batches", [True, False])
def test_public_buffers_that_would_reveal_empty_batches_are_refused(random_batches):
    def picky(model, x, y):
        if not bool((x == 7.0).all()):
            raise ValueError("sevens only")
        return squared_error(model, x, y)

    cal = rarely() if random_batches else CAL
    data = TensorDataset(torch.full((20, 3, 4), 7.0), torch.zeros(20, 2))

    def made():
        return private_run(
            cal, Counting(), DataLoader(data, batch_size=1 if random_batches else 10), loss=picky,
            loss_takes="batch_of_one", generator=1, public_buffers=["calls"],
            dataset_size=20 if random_batches else None,
        )  # fmt: skip

    if random_batches:
        with pytest.raises(dm.UnsupportedCombinationError, match=r"reveals that it is empty.*attribute"):
            made()
        return
    private, optimizer, loader = made()
    private.backward(*next(iter(loader)))
    optimizer.step()
    assert int(private.calls) == 1


# ---- clipped_gradients, without a run


class Running(Plain):
    """Statistics in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        shifted = x + self.seen.clone()
        with torch.no_grad():
            self.seen += x.mean((0, 1))
        return super().forward(shifted)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["closure", "object of the model", "running"])
def test_clipped_gradients_of_single_losses(place, mode):
    found = []
    for first in (FAR, -FAR):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(SIZE, 5, 4, generator=generator)
        y = torch.randn(SIZE, 2, generator=generator)
        x[0] = first
        model, loss = (Running(), squared_error) if place == "running" else PLACES[place]()
        if place == "running" and mode != "loop":
            with pytest.raises(dm.UnsupportedCombinationError, match="a tensor that all examples share"):
                clipped_gradients(model, alone(loss), (x, y), 1.0, microbatch_size=1, clipping_mode=mode)
            return
        sums = [
            clipped_gradients(model, alone(loss), (x, y), 1.0, microbatch_size=1, clipping_mode=mode).sums
            for _ in range(2)
        ]
        assert all(torch.equal(*both) for both in zip(*sums, strict=True))  # nothing is left for the next
        assert place != "running" or not model.seen.any()
        found.append(torch.cat([one.flatten() for one in sums[0]]))
    assert 1.0 < float((found[0] - found[1]).norm()) < 2.0 + 1e-6


def alone(loss):
    """A loss of an example without a batch dimension."""
    return lambda model, x, y: loss(model, x[None], y[None])


# ---- other ways in which one example can reach another


def seeding(seed, draw):
    """A loss whose sign is drawn, after a seed that some examples determine."""

    def loss(model, x, y):
        if abs(x.mean()) > 0.5 * FAR:
            seed(int(x.mean()) % 2**32)
        return squared_error(model, x, y) * (1.0 if draw() > 0.5 else -1.0)

    return Plain(), loss


def freezing():
    def loss(model, x, y):
        found = squared_error(model, x, y)
        if x.mean() > 0:
            model.first.weight.requires_grad_(False)
        return found

    return Plain(), loss


def hooking():
    def loss(model, x, y):
        found = squared_error(model, x, y)
        if x.mean() > 0:
            model.first.weight.register_hook(lambda grad: -grad)
        return found

    return Plain(), loss


def penalising():
    """A penalty of gradients by `backward`, which adds up over the examples."""

    def loss(model, x, y):
        squared_error(model, x, y).backward()
        scale = 1.0 + float(model.first.weight.grad.norm())
        return scale * squared_error(model, x, y)

    return Plain(), loss


def of_torch():
    own = torch.Generator()
    return seeding(own.manual_seed, lambda: torch.rand((), generator=own))


def of_python():
    own = random.Random(0)
    return seeding(own.seed, own.random)


def of_numpy():
    own = np.random.default_rng(0)

    def seed(number):
        own.bit_generator.state = np.random.PCG64(number).state

    return seeding(seed, own.random)


def of_bits():
    own = np.random.MT19937(0)

    def seed(number):
        own.state = np.random.MT19937(number).state

    return seeding(seed, lambda: np.random.Generator(own).random())


def turning_back(restore):
    """A loss whose sign is drawn, before some examples turn the stream of draws back."""

    def loss(model, x, y):
        before = torch.get_rng_state()
        sign = 1.0 if torch.rand(()) > 0.5 else -1.0
        if x.mean() > 0.5 * FAR:
            restore(before)
        return squared_error(model, x, y) * sign

    return Plain(), loss


SEEDS = {
    "seed of torch that it had": lambda: turning_back(lambda _: torch.manual_seed(torch.initial_seed())),
    "state of torch that it had": lambda: turning_back(torch.set_rng_state),
    "seed of torch": lambda: seeding(torch.manual_seed, lambda: torch.rand(())),
    "state of torch": lambda: seeding(
        lambda number: torch.set_rng_state(torch.Generator().manual_seed(number).get_state()),
        lambda: torch.rand(()),
    ),
    "seed of Python": lambda: seeding(random.seed, random.random),
    "seed of numpy": lambda: seeding(np.random.seed, np.random.random),
    "generator of torch": of_torch,
    "generator of Python": of_python,
    "generator of numpy": of_numpy,
    "bits of numpy": of_bits,
}
OTHERS = SEEDS | {
    "frozen": freezing,
    "hooked": hooking,
    "gradients": penalising,
}


@pytest.mark.parametrize("way", OTHERS)
def test_seeds_and_parameters_reach_no_other_example(way):
    found = moved(OTHERS[way], clipping_mode="loop")
    assert all(one < 2.0 + 1e-6 for one in found)


@pytest.mark.parametrize("way", SEEDS)
def test_seeds_within_clipped_gradients_reach_no_other_example(way):
    """In a loop, where a loss sees the values of its example; what is drawn outside goes on."""
    found, after = [], []
    for first in (FAR, -FAR):
        generator = torch.Generator().manual_seed(1)
        x, y = torch.randn(SIZE, 5, 4, generator=generator), torch.randn(SIZE, 2, generator=generator)
        x[:1] = first
        model, loss = SEEDS[way]()
        torch.manual_seed(2)
        random.seed(2)
        np.random.seed(2)  # noqa: NPY002 - used by other people's code
        sums = clipped_gradients(model, alone(loss), (x, y), 1.0, clipping_mode="loop").sums
        found.append(torch.cat([one.flatten() for one in sums]))
        after.append([float(torch.rand(())), random.random(), np.random.random()])  # noqa: NPY002 - the same
    assert float((found[0] - found[1]).norm()) < 2.0 + 1e-6
    assert after[0] == after[1]


def test_a_sparse_constant_of_a_loss():
    """Torch compares no sparse tensors; writes into them are counted."""
    mixed = torch.eye(4).to_sparse()
    written = torch.eye(4).to_sparse()

    def loss(model, x, y):
        return squared_error(model, torch.sparse.mm(mixed, x[0].T).T[None], y)

    def writing(model, x, y):
        written.mul_(1.0 + 1e-3 * x.mean().detach())
        return squared_error(model, torch.sparse.mm(written, x[0].T).T[None], y)

    for one in (loss, writing):
        assert all(
            1.0 < found < 2.0 + 1e-6 for found in moved(lambda one=one: (Plain(), one), clipping_mode="loop")
        )


def test_a_generator_of_the_operating_system_has_no_state():
    system = random.SystemRandom()

    def loss(model, x, y):
        system.random()  # of a name for a file, say
        return squared_error(model, x, y)

    assert all(1.0 < one < 2.0 + 1e-6 for one in moved(lambda: (Plain(), loss), clipping_mode="loop"))
