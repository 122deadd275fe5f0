"""The matrix of models: each works, its sum that of a loop over the examples, or is refused with a remedy.

No other error reaches the caller. Ways are the loss of one example and the loop of Opacus, each with
gradients that are formed and with factors.
"""

import copy

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from dpmech.optim import fix  # noqa: E402
from dpmech.optim.runs.mixing import MixingWatch  # noqa: E402
from tests.support.model_zoo import EXAMPLES, TORCH  # noqa: E402
from tests.support.training import private_run  # noqa: E402

try:
    from tests.support.transformer_zoo import TRANSFORMERS
except ImportError:  # without transformers and peft
    TRANSFORMERS = {}

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and transformers, about kernels and hooks
CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5)
CLIP = 0.3  # below the norm of most gradients
MODELS = TORCH | TRANSFORMERS
WAYS = [(way, mode) for way in ("loss", "hooks") for mode in ("per_example", "ghost")]
QUICK = {"LSTM", "Embedding, padding"}
HALF = {"bfloat16", "GPT-2, bfloat16"}
FIX = r"dpmech\.optim\.fix\(model\)"
BY_LOSS = r"make_private\(\.\.\., loss=\.\.\.\)"
CELL = rf"cell \(a \w+Cell\) has no per-example gradients.* two nn\.Linear.*{FIX}"
MASK = r"branches on values of the data.*attn_implementation='eager'.*four dimensions"

# What is refused in which way, and what the message holds: the fault, and the remedy.
REFUSED = {
    "MLP": {"hooks": rf"changed in place \(inplace=True: 1\).*{FIX}.*{BY_LOSS}"},
    "Bilinear": {"hooks": rf"layer \(Bilinear\) is called with 2 positional arguments.*{BY_LOSS}"},
    "spectral_norm": {"loss": "changed its buffers.*public_buffers", "hooks": rf"hold buffers.*{BY_LOSS}"},
    "LazyLinear": dict.fromkeys(("loss", "hooks"), "weight has no shape yet.*one call of the model"),
    "CNN, BatchNorm": dict.fromkeys(("loss", "hooks"), rf"BatchNorm2d layer mixes examples.*{FIX}"),
    "CNN, InstanceNorm with statistics": dict.fromkeys(("loss", "hooks"), rf"running statistics.*{FIX}"),
    "LSTM": dict.fromkeys(("loss", "hooks"), rf"0 \(LSTM\).*{FIX}"),
    "GRU": dict.fromkeys(("loss", "hooks"), rf"0 \(GRU\).*{FIX}"),
    "RNN": dict.fromkeys(("loss", "hooks"), rf"0 \(RNN\).*{FIX}"),
    "GRU, packed": dict.fromkeys(("loss", "hooks"), rf"body \(GRU\).*{FIX}"),
    "LSTMCell": dict.fromkeys(("loss", "hooks"), CELL),
    "GRUCell": dict.fromkeys(("loss", "hooks"), CELL),
    "RNNCell": dict.fromkeys(("loss", "hooks"), CELL),
    "MultiheadAttention": {"hooks": rf"body \(MultiheadAttention\).*{FIX}.*{BY_LOSS}"},
    "TransformerEncoder": {"hooks": rf"0\.layers\.0\.self_attn \(MultiheadAttention\).*{FIX}"},
    "EmbeddingBag": {"hooks": rf"0 \(EmbeddingBag\).*{BY_LOSS}"},
    "Embedding, sparse": {"loss": r"0 \(a Embedding\) has sparse gradients.*sparse=False"},
    "Embedding, max_norm": dict.fromkeys(("loss", "hooks"), r"0 \(a Embedding\) has a max_norm.*=None"),
    "Embedding, by frequency": {"hooks": rf"scale_grad_by_freq: .* whole batch.*=False.*{BY_LOSS}"},
    "gradient checkpointing": {
        "loss": "gradient checkpointing.*a model without it",
        "hooks": "no per-example gradients.*no gradient checkpointing",
    },
    "a branch on the data": {"loss": "branches on values.*without a loss", "hooks": f"mixes.*{BY_LOSS}"},
    "a value taken out": {"loss": "branches on|reads a value", "hooks": f"mixes examples.*{BY_LOSS}"},
    "shapes that depend on the data": {"loss": r"shapes depend.*torch\.where", "hooks": f"mixes.*{BY_LOSS}"},
    "BERT, as it is": {"loss": MASK},
    "BERT, fused attention": {"loss": MASK},
    "GPT-2, fused attention": {"loss": MASK},
    "GPT-2, gradient checkpointing": dict.fromkeys(
        ("loss", "hooks"), r"checkpointing is on.*gradient_checkpointing_disable\(\)"
    ),
    "T5": {"hooks": r"relative_attention_bias .* called with 7 and 7 rows.*requires_grad_\(False\)"},
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

    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        return {key: value[index] for key, value in self.batch.items()}


def by_hand(model, loss, batch):
    """The clipped sum, one backward pass an example."""
    params = [param for param in model.parameters() if param.requires_grad]
    total = [torch.zeros_like(param, dtype=torch.float64) for param in params]
    for index in range(EXAMPLES):
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


def first_sum(name, model, batch, way, mode):
    """The sum of clipped gradients of the first batch, and a step."""
    loss = MODELS[name].loss
    private, optimizer, loader = private_run(
        CAL,
        model,
        DataLoader(Rows(batch), batch_size=EXAMPLES),
        clip_norm=CLIP,
        generator=1,
        loss=loss if way == "loss" else None,
        clipping_mode=mode,
    )
    given = next(iter(loader))
    if way == "loss":
        private.backward(**given)
    else:
        loss(private, **given).backward()
        optimizer.accumulate()
    found = optimizer._batch.take()
    assert optimizer.clipping_mode == mode
    return [one.double().clone() for one in found]


def check(name, model, batch, way, mode):
    plain = copy.deepcopy(model)
    found = first_sum(name, model, batch, way, mode)
    expected = by_hand(plain, MODELS[name].loss, batch)
    size = torch.cat([one.flatten() for one in expected]).norm()
    assert float(size) > CLIP / 10
    off = torch.cat([(one - other).flatten() for one, other in zip(found, expected, strict=True)]).norm()
    assert float(off) < (0.02 if name in HALF else 1e-5) * float(size)


def rows(names):
    return [
        pytest.param(name, *way, id="-".join((name, *way)), marks=() if name in QUICK else pytest.mark.slow)
        for name in names
        for way in WAYS
    ]


@pytest.mark.parametrize(("name", "way", "mode"), rows(MODELS))
def test_a_model_works_or_is_refused_with_a_remedy(name, way, mode):
    model, batch = made(name)
    message = REFUSED.get(name, {}).get(way)
    if message is None:
        check(name, model, batch, way, mode)
        return
    with pytest.raises(dm.DpmechError, match=message):
        first_sum(name, model, batch, way, mode)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "mode"), WAYS)
@pytest.mark.parametrize("name", FIXED)
def test_what_is_fixed_works(name, way, mode):
    assert name in REFUSED
    model, batch = made(name, fixed=True)
    check(name, model, batch, way, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["per_example", "ghost"])
def test_a_norm_of_the_weights_alone_is_public(mode):
    """The remedy that the message names: its buffers follow from released weights."""
    model, batch = made("spectral_norm")
    names = [name for name, _ in model.named_buffers()]
    private, optimizer, loader = private_run(
        CAL,
        model,
        DataLoader(Rows(batch), batch_size=EXAMPLES),
        generator=1,
        loss=MODELS["spectral_norm"].loss,
        clipping_mode=mode,
        public_buffers=names,
    )
    private.backward(**next(iter(loader)))
    optimizer.step()
    assert optimizer.record.steps == 1


def test_the_matrix_has_no_row_that_says_nothing():
    assert set(REFUSED) <= set(MODELS) or not TRANSFORMERS
    assert len(TORCH) >= 24
    for name, ways in REFUSED.items():
        assert set(ways) <= {"loss", "hooks"}, name


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
        first_sum("linear", Whitened(dropout=dropout, always=always), batch, "hooks", "ghost")


def test_the_try_leaves_no_trace(monkeypatch):
    """Random numbers, modes and buffers are as if no example had been tried."""
    torch.manual_seed(0)
    batch = TORCH["linear"].batch()
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3), nn.Identity().eval())
    sums, modes = [], []
    for tried in (True, False):
        if not tried:
            monkeypatch.setattr(MixingWatch, "before", lambda *_: None)
        one = copy.deepcopy(model)
        one[0].register_forward_hook(lambda layer, *_: modes.append(layer.training))
        torch.manual_seed(1)
        sums.append(torch.cat([part.flatten() for part in first_sum("linear", one, batch, "hooks", "ghost")]))
        assert [part.training for part in one] == [True, True, True, False]
    assert len(modes) > 4
    assert modes.count(False) == 0  # the tries of the first run too
    assert torch.equal(*sums)
