"""The matrix of models: each works, its sum that of a loop over the examples, or is refused with a remedy.

No other error reaches the caller. Ways are the loss of one example and the loop of Opacus, each with
gradients that are formed and with factors; a loss also in a loop over single examples, which is taken by
itself where torch.func.vmap cannot follow the model.
"""

import copy
import hashlib
import itertools
import random
import weakref

import numpy as np
import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from dpmech.optim import fix  # noqa: E402
from dpmech.optim.clipping import ExampleGradients  # noqa: E402
from dpmech.optim.runs.gradient_modes import SavedInput  # noqa: E402
from dpmech.optim.runs.mixing import MixingWatch  # noqa: E402
from dpmech.optim.runs.spectral import SpectralNorms  # noqa: E402
from dpmech.optim.state import Afresh  # noqa: E402
from tests.support import model_zoo  # noqa: E402
from tests.support.model_zoo import EXAMPLES, TORCH, Entry, checkpointed, classified, vectors  # noqa: E402
from tests.support.training import private_run  # noqa: E402

try:
    from tests.support.transformer_zoo import TRANSFORMERS
except ImportError:  # without transformers and peft
    TRANSFORMERS = {}

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and transformers, about kernels and hooks
CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5)
CLIP = 0.3  # below the norm of most gradients
MODELS = TORCH | TRANSFORMERS
WAYS = [(way, mode) for way in ("loss", "hooks") for mode in ("per_example", "ghost")] + [("loss", "loop")]
QUICK = {"LSTM", "Embedding, padding"}
FIX = r"dpmech\.optim\.fix\(model\)"
BY_LOSS = r"make_private\(\.\.\., loss=\.\.\.\)"
PARTS = rf"has parts whose calls hooks do not see.*{FIX}.*{BY_LOSS}"
CELL = rf"cell \(\w+Cell\) takes two tensors.* two nn\.Linear.*{BY_LOSS}"
BUFFERS = rf"hold buffers.*{BY_LOSS}"
MIXES = f"mixes examples.*{BY_LOSS}"
HALVES = rf"(half precision|torch\.autocast).*divided by the number of examples.*{BY_LOSS}"
POSITIONS = r"relative_attention_bias .* called with 7 and 7 rows.*requires_grad_\(False\)"

# What vmap cannot follow, and the word for it: done one by one, and refused where factors are asked for.
SHARED = "written into a tensor that all examples share"
BRANCHES = "branches on values of the data"
WITHIN = "gradients are asked for within"
REENTRANT = rf"{WITHIN}|use_reentrant=True.*use_reentrant=False"
ONE_BY_ONE = {
    "nested tensors": "calls a kernel without a rule|makes nested tensors",
    "GRU": SHARED,
    "GRU, bfloat16": SHARED,
    "RNN": SHARED,
    "GRU, packed": BRANCHES,
    "LSTMCell": SHARED,
    "GRUCell": SHARED,
    "RNNCell": SHARED,
    "Embedding, sparse": "a layer has sparse gradients",
    "experts": "shapes depend on the data",
    "gradient penalty": WITHIN,
    "gradient checkpointing": WITHIN,
    "a branch on the data": BRANCHES,
    "a value taken out": f"{BRANCHES}|reads a value",
    "shapes that depend on the data": "shapes depend on the data",
    "BERT, gradient checkpointing": WITHIN,
    "GPT-2, gradient checkpointing": WITHIN,
    "Llama, LoRA, gradient checkpointing": WITHIN,
    "Longformer": "shapes depend on the data",
    "Bloom": r"autograd\.Function without setup_context",
}

# What is refused in which way, and what the message holds: the fault, and the remedy.
REFUSED = {
    "nested tensors": {"hooks": rf"body \(Linear\) is called with a nested tensor.*{BY_LOSS}"},
    "MLP": {"hooks": rf"changed in place \(inplace=True: 1\).*{FIX}.*{BY_LOSS}"},
    "Bilinear": {"hooks": rf"layer \(Bilinear\) is called with 2 positional arguments.*{BY_LOSS}"},
    "weight_norm, old": {"hooks": rf"weight is computed before every call.*parametrizations.*{BY_LOSS}"},
    "spectral_norm": {"hooks": BUFFERS},
    "spectral_norm, old": {"hooks": BUFFERS},
    "orthogonal": {"hooks": BUFFERS},
    "LazyLinear": dict.fromkeys(("loss", "hooks"), "weight has no shape yet.*one call of the model"),
    "CNN, BatchNorm": dict.fromkeys(("loss", "hooks"), rf"BatchNorm2d layer mixes examples.*{FIX}"),
    "CNN, InstanceNorm with statistics": dict.fromkeys(("loss", "hooks"), rf"running statistics.*{FIX}"),
    "LSTM": {"hooks": rf"0 \(LSTM\) {PARTS}"},
    "GRU": {"hooks": rf"0 \(GRU\) {PARTS}"},
    "GRU, bfloat16": {"hooks": rf"0 \(GRU\) {PARTS}"},
    "RNN": {"hooks": rf"0 \(RNN\) {PARTS}"},
    "GRU, packed": {"hooks": rf"body \(GRU\) {PARTS}"},
    "LSTMCell": {"hooks": CELL},
    "GRUCell": {"hooks": CELL},
    "RNNCell": {"hooks": CELL},
    "MultiheadAttention": {"hooks": rf"body \(MultiheadAttention\) {PARTS}"},
    "TransformerEncoder": {"hooks": rf"0\.layers\.0\.self_attn \(MultiheadAttention\) {PARTS}"},
    "TransformerEncoder, padded": {"hooks": rf"body\.layers\.0\.self_attn \(MultiheadAttention\) {PARTS}"},
    "Transformer": {"hooks": rf"body\.encoder\.layers\.0\.self_attn \(MultiheadAttention\) {PARTS}"},
    "EmbeddingBag": {"hooks": rf"0 \(EmbeddingBag\).*{BY_LOSS}"},
    "Embedding, max_norm": dict.fromkeys(("loss", "hooks"), r"0 \(Embedding\) has a max_norm.*=None"),
    "Embedding, by frequency": {"hooks": rf"scale_grad_by_freq: .* whole batch.*=False.*{BY_LOSS}"},
    "gradient penalty": {"hooks": rf"backward pass goes through .*second-order.*{BY_LOSS}"},
    "gradient checkpointing, reentrant": dict.fromkeys(("loss", "hooks"), REENTRANT),
    "GPT-2, reentrant checkpointing": dict.fromkeys(("loss", "hooks"), REENTRANT),
    "experts": {"hooks": MIXES},
    "a branch on the data": {"hooks": MIXES},
    "a value taken out": {"hooks": MIXES},
    "shapes that depend on the data": {"hooks": MIXES},
    "T5": {"hooks": POSITIONS},
    "CLIP": {"hooks": BUFFERS},
    "Gemma": {"hooks": BUFFERS},
    "Longformer": {"hooks": rf"changed in place.*{BY_LOSS}"},
    "Mixtral": {"hooks": rf"gate \(MixtralTopKRouter\) was called with .* rows.*{BY_LOSS}"},
    "BART": {"hooks": MIXES},
    "wav2vec2": {"hooks": r"parameter 1, of shape .* no per-example gradients.*make_private\(loss=\.\.\.\)"},
    **{
        name: {"hooks": HALVES}
        for name in (
            "autocast",
            "autocast, CNN",
            "bfloat16",
            "two dtypes",
            "a parameter without dimensions, bfloat16",
            "InstanceNorm, bfloat16",
            "BERT, bfloat16",
            "BERT, autocast",
            "GPT-2, bfloat16",
            "GPT-2, autocast",
            "Llama, bfloat16",
            "Llama, LoRA, autocast",
            "ViT, bfloat16",
            "T5, bfloat16",
        )
    },
    "Llama, prompt tuning": {"hooks": rf"embedding \(Embedding\) is called with a batch of one.*{BY_LOSS}"},
}
FIXED = (
    "MLP",
    "CNN, BatchNorm",
    "CNN, InstanceNorm with statistics",
    "LSTM",
    "GRU",
    "RNN",
    "TransformerEncoder",
)


class Rows(Dataset):
    """The examples of a batch, one by one."""

    def __init__(self, batch, count=EXAMPLES):
        self.batch = batch
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {key: value[index] for key, value in self.batch.items()}


def by_hand(model, loss, batch, *, seed=lambda _: None):
    """The clipped sum, one backward pass an example; `seed` is called before each, with its number."""
    params = [param for param in model.parameters() if param.requires_grad]
    total = [torch.zeros_like(param, dtype=torch.float64) for param in params]
    for index in range(EXAMPLES):
        seed(index + 1)
        value = loss(model, **{key: one[index : index + 1] for key, one in batch.items()})
        grads = torch.autograd.grad(value, params, allow_unused=True)
        grads = [None if grad is None else grad.to_dense().double() for grad in grads]
        norm = torch.stack([grad.square().sum() for grad in grads if grad is not None]).sum().sqrt()
        for one, grad in zip(total, grads, strict=True):
            if grad is not None:
                one.add_(grad, alpha=min(1.0, CLIP * (1.0 - 2.0**-14) / float(norm)))
    return total


def made(name, *, fixed=False):
    torch.manual_seed(0)
    batch = MODELS[name].batch()
    model = MODELS[name].model().train()
    return (fix(model) if fixed else model), batch


def private_sum(name, model, batch, way, mode, *, count=EXAMPLES, beside=lambda _: None):
    """The sum of clipped gradients of the first batch, and the mode; `beside` is called under its draws."""
    loss = MODELS[name].loss
    private, optimizer, loader = private_run(
        CAL,
        model,
        DataLoader(Rows(batch, count), batch_size=count),
        clip_norm=CLIP,
        generator=1,
        loss=loss if way == "loss" else None,
        clipping_mode=mode,
    )
    given = next(iter(loader))
    with loader.drawing():
        beside(given)
    if way == "loss":
        private.backward(**given)
    else:
        loss(private, **given).backward()
        optimizer.accumulate()
    found = [one.double().clone() for one in optimizer._batch.take()]
    return found, optimizer.clipping_mode


def distance(found, expected):
    """The norm of the difference, and that of what is expected."""
    both = [torch.cat([one.flatten() for one in parts]) for parts in (found, expected)]
    return float((both[0] - both[1]).norm()), float(both[1].norm())


def check(name, way, mode, *, fixed=False):
    model, batch = made(name, fixed=fixed)
    found, used = private_sum(name, model, batch, way, mode)
    assert used == ("loop" if way == "loss" and name in ONE_BY_ONE and not fixed else mode)
    plain, _ = made(name, fixed=fixed)
    MODELS[name].reference(plain)
    off, size = distance(found, by_hand(plain, MODELS[name].loss, batch))
    assert size > CLIP / 50
    assert off < MODELS[name].tolerance * size


def rows(names):
    return [
        pytest.param(name, *way, id="-".join((name, *way)), marks=() if name in QUICK else pytest.mark.slow)
        for name in names
        for way in WAYS
    ]


@pytest.mark.parametrize(("name", "way", "mode"), rows(MODELS))
def test_a_model_works_or_is_refused_with_a_remedy(name, way, mode):
    message = REFUSED.get(name, {}).get(way)
    if message is None and (way, mode) == ("loss", "ghost") and name in ONE_BY_ONE:
        message = rf"({ONE_BY_ONE[name]}).*clipping_mode='(loop|auto)'"
    if message is None:
        check(name, way, mode)
        return
    model, batch = made(name)
    with pytest.raises(dm.DpmechError, match=message):
        private_sum(name, model, batch, way, mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRANSFORMERS if "loss" not in REFUSED.get(name, {})])
def test_transformers_are_trained_as_they_are(name):
    """In their default attention, with padding, without a choice of the mode."""
    model, batch = made(name)
    found, used = private_sum(name, model, batch, "loss", "auto")
    assert (used == "loop") is (name in ONE_BY_ONE)
    plain, _ = made(name)
    MODELS[name].reference(plain)
    off, size = distance(found, by_hand(plain, MODELS[name].loss, batch))
    assert off < MODELS[name].tolerance * size


@pytest.mark.slow
@pytest.mark.parametrize(("way", "mode"), WAYS)
@pytest.mark.parametrize("name", FIXED)
def test_what_is_fixed_works(name, way, mode):
    assert name in REFUSED
    check(name, way, mode, fixed=True)


def test_the_matrix_has_no_row_that_says_nothing():
    assert set(REFUSED) | set(ONE_BY_ONE) <= set(MODELS) or not TRANSFORMERS
    assert len(TORCH) >= 50
    for name, ways in REFUSED.items():
        assert set(ways) <= {"loss", "hooks"}, name


def without_a_parameter(self, batch, tensors, true=ExampleGradients._of_one):
    samples, losses = true(self, batch, tensors)
    return [*samples[:-1], None], losses


def of_another_place(self, true=SavedInput.tensor):
    return true(self).roll(1, dims=0)


FAULTS = [
    ("experts", "loss", "per_example", ExampleGradients, "_of_one", without_a_parameter),
    ("gradient checkpointing", "hooks", "ghost", SavedInput, "tensor", of_another_place),
    ("spectral_norm, old", "loss", "ghost", SpectralNorms, "iterate", lambda _: None),
]


@pytest.mark.parametrize(("name", "way", "mode", "owner", "method", "fault"), FAULTS)
def test_the_comparison_rejects_planted_faults(name, way, mode, owner, method, fault, monkeypatch):
    check(name, way, mode)
    monkeypatch.setattr(owner, method, fault)
    with pytest.raises((AssertionError, dm.DpmechError)):
        check(name, way, mode)


# One of everything that the ways do in another manner, without random numbers in the model.
NEIGHBOURS = [
    ("a branch on the data", "loss", "loop"),
    ("experts", "loss", "per_example"),
    ("spectral_norm", "loss", "ghost"),
    ("autocast", "loss", "ghost"),
    ("a parameter without dimensions", "hooks", "ghost"),
    ("gradient checkpointing", "hooks", "ghost"),
    ("BERT", "loss", "ghost"),
    ("BERT, bfloat16", "loss", "per_example"),
    ("BERT, autocast", "loss", "ghost"),
    ("Llama, LoRA, gradient checkpointing", "hooks", "per_example"),
]


@pytest.mark.parametrize(
    ("name", "way", "mode"),
    [
        pytest.param(*one, id="-".join(one), marks=pytest.mark.slow if one[0] not in TORCH else ())
        for one in NEIGHBOURS
        if one[0] in MODELS
    ],
)
def test_an_absent_example_takes_at_most_a_clip_norm_along(name, way, mode):
    sums = []
    for count in (EXAMPLES, EXAMPLES - 1):
        model, batch = made(name)
        sums.append(private_sum(name, model, batch, way, mode, count=count)[0])
    off, _ = distance(*sums)
    assert CLIP / 10 < off <= CLIP


class Numbers(nn.Module):
    """Shifts inputs by what it keeps of its first call, as a number or in a list."""

    def __init__(self, *, listed):
        super().__init__()
        self.layer, self.mean, self.seen, self.listed = nn.Linear(5, 3), 0.0, [0], listed

    def forward(self, x):
        shift = self.seen[min(1, len(self.seen) - 1)] if self.listed else self.mean
        self.mean = self.mean or x.mean().item()
        self.seen.append(int(x.sum() > 0))
        return self.layer(x + 10.0 * shift)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("fault", [False, True])
def test_numbers_that_a_call_keeps_reach_no_other_example(listed, fault, monkeypatch):
    """The planted fault restores nothing between two examples."""
    if fault:
        monkeypatch.setattr(Afresh, "__call__", lambda self, *args, **named: self._loss(*args, **named))
    monkeypatch.setitem(MODELS, "numbers", Entry(lambda: Numbers(listed=listed), vectors, classified))
    sums = []
    for first in (-1.0, 1.0):
        model, batch = made("numbers")
        batch["x"] = torch.cat([torch.full((1, 5), first), batch["x"][1:]])
        found, used = private_sum("numbers", model, batch, "loss", "auto")
        assert used == "loop"
        sums.append(found)
    off, _ = distance(*sums)
    assert (off > 2.1 * CLIP) if fault else (CLIP / 10 < off <= 2.0 * CLIP)


def seeds_of_parts():
    """A function that seeds torch's generator for an example, from a secret that Python's generator draws."""
    secret = [random.randbytes(32) for _ in range(3)][2]

    def seed(part):
        drawn = hashlib.blake2b(str(part).encode(), key=secret, digest_size=32).digest()
        torch.manual_seed(int.from_bytes(drawn[:8], "little"))
        state = torch.get_rng_state()
        words = state.numpy()[24 : 24 + 8 * 624].view(np.uint64)  # of the Mersenne Twister
        words[:] = np.frombuffer(hashlib.shake_256(drawn).digest(4 * 624), np.uint32)
        torch.set_rng_state(state)

    return seed


def test_dropout_in_a_loop_is_that_of_a_loop_by_hand(monkeypatch):
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    monkeypatch.setitem(MODELS, "dropout", Entry(lambda: copy.deepcopy(model), vectors, classified))
    expected = []
    found, _ = private_sum(
        "dropout",
        made("dropout")[0],
        vectors(),
        "loss",
        "loop",
        beside=lambda batch: expected.extend(
            by_hand(copy.deepcopy(model), classified, batch, seed=seeds_of_parts())
        ),
    )
    off, size = distance(found, expected)
    assert off < 1e-5 * size
    off, _ = distance(found, by_hand(copy.deepcopy(model), classified, vectors()))
    assert off > 0.1 * size  # other masks


@pytest.mark.parametrize("mode", ["per_example", "ghost"])
def test_checkpointing_under_hooks_has_the_dropout_and_the_memory_of_its_own(mode, monkeypatch):
    """The sum is that without checkpointing under the same random numbers, and inputs are not held."""
    sums, held = [], []
    for plain in (True, False):
        if plain:
            monkeypatch.setattr(model_zoo, "checkpoint", lambda body, x, **_: body(x))
        else:
            monkeypatch.undo()
        monkeypatch.setitem(MODELS, "dropout", Entry(lambda: checkpointed(dropout=0.5), vectors, classified))
        model, batch = made("dropout")
        inputs = []
        model.body[3].register_forward_pre_hook(
            lambda _, given, inputs=inputs: inputs.append(weakref.ref(given[0]))
        )
        model.register_forward_hook(
            lambda *_, inputs=inputs: held.append([ref() is not None for ref in inputs][-1])
        )
        sums.append(private_sum("dropout", model, batch, "hooks", mode)[0])
        assert held[-1] is plain
    off, size = distance(*sums)
    assert off < 1e-6 * size


class Whitened(nn.Module):
    """Statistics of a batch, by hand, in training alone; dropout hides them there from comparisons."""

    def __init__(self, *, dropout, always):
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.dropout = nn.Dropout(dropout)
        self.always = always

    def forward(self, x):
        if self.training or self.always:
            x = x - x.mean(0)
        return self.layer(self.dropout(x))


@pytest.mark.parametrize(("dropout", "always"), [(0.0, False), (0.5, True)])
def test_models_that_mix_examples_by_hand(dropout, always):
    torch.manual_seed(0)
    batch = TORCH["linear"].batch()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"mixes examples.*loss=\.\.\."):
        private_sum("linear", Whitened(dropout=dropout, always=always), batch, "hooks", "ghost")


def test_the_try_leaves_no_trace(monkeypatch):
    """Random numbers, modes and buffers are as if no example had been tried."""
    torch.manual_seed(0)
    batch = TORCH["linear"].batch()
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3), nn.Identity().eval())
    sums, modes = [], {mode: itertools.count(1) for mode in (True, False)}  # no list: it would be put back
    for tried in (True, False):
        if not tried:
            monkeypatch.setattr(MixingWatch, "before", lambda *_: None)
        one = copy.deepcopy(model)
        one[0].register_forward_hook(lambda layer, *_: next(modes[layer.training]) and None)
        torch.manual_seed(1)
        sums.append(
            torch.cat([part.flatten() for part in private_sum("linear", one, batch, "hooks", "ghost")[0]])
        )
        assert [part.training for part in one] == [True, True, True, False]
    assert next(modes[True]) > 5
    assert next(modes[False]) == 1  # the tries of the first run too
    assert torch.equal(*sums)
