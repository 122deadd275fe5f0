"""Models of every kind that people bring to private training, small, each with a batch and its loss."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

F = nn.functional
EXAMPLES, CLASSES, WORDS, LENGTH = 4, 3, 30, 6


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model with what it is trained on.

    Args:
        model: makes it; the same one every time after `torch.manual_seed`.
        batch: makes keyword arguments of the losses, examples first.
        loss: the mean over a batch of the losses of single examples; called with one example it is its loss.
        reference: changes the model for the loop over the examples that a run is compared with.
        tolerance: relative difference of sums; half precision rounds gradients to three digits.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Tensor]]
    loss: Callable[..., Tensor]
    reference: Callable[[nn.Module], object] = lambda model: model
    tolerance: float = 1e-5


HALF = 0.02

# ---- batches


def vectors() -> dict[str, Tensor]:
    return {"x": torch.randn(EXAMPLES, 5), "y": torch.randint(CLASSES, (EXAMPLES,))}


def images() -> dict[str, Tensor]:
    return {"x": torch.randn(EXAMPLES, 4, 8, 8), "y": torch.randint(CLASSES, (EXAMPLES,))}


def sequences() -> dict[str, Tensor]:
    return {"x": torch.randn(EXAMPLES, LENGTH, 4), "y": torch.randint(CLASSES, (EXAMPLES,))}


def words() -> dict[str, Tensor]:
    return {"x": torch.randint(WORDS, (EXAMPLES, LENGTH)), "y": torch.randint(CLASSES, (EXAMPLES,))}


def continued() -> dict[str, Tensor]:
    x = torch.randint(WORDS, (EXAMPLES, LENGTH))
    return {"x": x, "y": x.roll(-1, dims=1)}


def half(batch: Callable[[], dict[str, Tensor]]) -> Callable[[], dict[str, Tensor]]:
    """The same in bfloat16, where it has fractions."""
    return lambda: {key: one.bfloat16() if one.is_floating_point() else one for key, one in batch().items()}


# ---- losses


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def each_word(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Every text has as many words, so that the mean over all is that over the texts."""
    return F.cross_entropy(model(x).transpose(1, 2), y)


def under_autocast(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def wrapped(model: nn.Module, **batch: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, **batch).float()

    return wrapped


def penalised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """With the squared norm of the gradient in the inputs of each example."""
    x = x.detach().requires_grad_()
    output = model(x)
    (grad,) = torch.autograd.grad(F.cross_entropy(output, y, reduction="sum"), x, create_graph=True)
    return F.cross_entropy(output, y) + grad.square().sum(1).mean()


def compared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Two calls of the model on each example."""
    return (model(x) - model(x.flip(1))).square().sum(1).mean() + 0.0 * y.sum()


# ---- parts


class Mean(nn.Module):
    """The mean over the positions of a sequence."""

    def forward(self, x: Any) -> Tensor:
        return (x[0] if isinstance(x, tuple) else x).mean(1)


class Called(nn.Module):
    """A model whose forward pass is a function of it."""

    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def pooled(*layers: nn.Module, channels: int) -> nn.Module:
    """Layers over images, and a head on the mean over the positions."""
    return nn.Sequential(
        *layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def over_time(layer: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(layer, Mean(), nn.Linear(width, CLASSES))


def tied() -> nn.Module:
    embedding, head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS, bias=False)
    head.weight = embedding.weight
    return nn.Sequential(embedding, nn.Linear(8, 8), nn.Tanh(), head)


def frozen_embedding() -> nn.Module:
    model = nn.Sequential(nn.Embedding(WORDS, 8), Mean(), nn.Linear(8, CLASSES))
    model[0].requires_grad_(False)
    return model


def checkpointed(*, reentrant: bool = False, dropout: float = 0.0) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, self.first(x), use_reentrant=reentrant))

    body = nn.Sequential(
        nn.Linear(5, 7), nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, 7), nn.Dropout(dropout)
    )
    return Called(forward, first=nn.Linear(5, 5), body=body, head=nn.Linear(7, CLASSES))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def settled(model: nn.Module) -> None:
    """One power iteration, as a step makes one, and none after it."""
    with torch.no_grad():
        model(torch.zeros(1, 5))
    model.eval()


def scaled_by_one_number() -> nn.Module:
    return Called(
        lambda self, x: self.layer(x) * self.scale.exp(),
        layer=nn.Linear(5, CLASSES),
        scale=nn.Parameter(torch.tensor(0.5)),
    )


def mixed_dtypes() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.bfloat16())).float())

    return Called(forward, body=nn.Linear(5, 8).bfloat16(), head=nn.Linear(8, CLASSES))


def two_views() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.body(x), self.body(x.flip(1))], 1))

    return Called(forward, body=nn.Sequential(nn.Linear(5, 4), nn.Tanh()), head=nn.Linear(8, CLASSES))


def experts() -> nn.Module:
    """Each example goes to one of two experts, whose other one has no gradient of it."""

    def forward(self: Any, x: Tensor) -> Tensor:
        gates = self.gate(x).softmax(1)
        chosen, found = gates.argmax(1), torch.zeros(len(x), CLASSES)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                found = found.index_add(0, rows, expert(x[rows]) * gates[rows, number, None])
        return found

    layers = nn.ModuleList([nn.Linear(5, CLASSES), nn.Linear(5, CLASSES)])
    return Called(forward, gate=nn.Linear(5, 2), experts=layers)


def fused_attention() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        heads = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in self.body(x).chunk(3, dim=-1))
        return self.head(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2).mean(1))

    return Called(forward, body=nn.Linear(4, 12), head=nn.Linear(4, CLASSES))


def padded_encoder() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(self.body(x, src_key_padding_mask=x[..., 0] > 1.0).mean(1))

    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return Called(forward, body=body, head=nn.Linear(4, CLASSES))


def encoder_and_decoder() -> nn.Module:
    body = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=True)
    return Called(
        lambda self, x: self.head(self.body(x, x.flip(1)).mean(1)), body=body, head=nn.Linear(4, CLASSES)
    )


def scaled() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.layer(x * self.scale)

    return Called(forward, scale=nn.Parameter(torch.randn(5)), layer=nn.Linear(5, CLASSES))


def branching() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.first(x) if bool(x.sum() > 0) else self.second(x)

    return Called(forward, first=nn.Linear(5, CLASSES), second=nn.Linear(5, CLASSES))


def taking_out() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.layer(x) * x.abs().max().item()

    return Called(forward, layer=nn.Linear(5, CLASSES))


def masked_rows() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.layer(x[x > 0].sum().reshape(1, 1).expand(len(x), 5))

    return Called(forward, layer=nn.Linear(5, CLASSES))


def cell(kind: type[nn.RNNCellBase]) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        state = None
        for one in x.unbind(1):
            state = self.cell(one, state)
        return self.head(state[0] if isinstance(state, tuple) else state)

    return Called(forward, cell=kind(4, 5), head=nn.Linear(5, CLASSES))


def packed() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), LENGTH)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.body(packed)[1][-1])

    return Called(forward, body=nn.GRU(4, 5, batch_first=True), head=nn.Linear(5, CLASSES))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return over_time(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 4)


def twice() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(self.body(torch.tanh(self.body(x))))

    return Called(forward, body=nn.Linear(5, 5), head=nn.Linear(5, CLASSES))


def attention() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(self.body(x, x, x)[0].mean(1))

    return Called(forward, body=nn.MultiheadAttention(4, 2, batch_first=True), head=nn.Linear(4, CLASSES))


def bilinear() -> nn.Module:
    return Called(lambda self, x: self.layer(x, x), layer=nn.Bilinear(5, 5, CLASSES))


def scan() -> nn.Module:
    """A selective recurrence, as in state-space models."""

    def forward(self: Any, x: Tensor) -> Tensor:
        steps, inputs = F.softplus(self.steps(x)), self.inputs(x)
        state, outputs = torch.zeros(len(x), 5), []
        for place in range(x.shape[1]):
            state = (
                torch.exp(-steps[:, place] * self.decay.exp()) * state + steps[:, place] * inputs[:, place]
            )
            outputs.append(state)
        return self.head(torch.stack(outputs, 1).mean(1))

    decay = nn.Parameter(0.1 * torch.randn(5))
    return Called(
        forward, steps=nn.Linear(4, 5), inputs=nn.Linear(4, 5), decay=decay, head=nn.Linear(5, CLASSES)
    )


def scattered() -> nn.Module:
    """Messages between the nodes of a graph, here a ring with chords."""

    def forward(self: Any, x: Tensor) -> Tensor:
        sent = self.message(x)
        to = (torch.arange(LENGTH) * 5 % LENGTH)[None, :, None].expand_as(sent)
        return self.head(torch.relu(torch.zeros_like(sent).scatter_add(1, to, sent)).mean(1))

    return Called(forward, message=nn.Linear(4, 5), head=nn.Linear(5, CLASSES))


def dora() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        weight = self.base.weight + self.up @ self.down
        return F.linear(x, self.size * weight / weight.norm(dim=1, keepdim=True), self.base.bias)

    base = nn.Linear(5, CLASSES).requires_grad_(requires_grad=False)
    size = nn.Parameter(base.weight.norm(dim=1, keepdim=True).detach())
    parts = {"up": nn.Parameter(torch.randn(CLASSES, 2)), "down": nn.Parameter(torch.randn(2, 5))}
    return Called(forward, base=base, size=size, **parts)


def int8_with_lora() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return F.linear(x, self.base.float() * 0.05) + self.up(self.down(x))

    base = nn.Parameter(torch.randint(-9, 9, (CLASSES, 5), dtype=torch.int8), requires_grad=False)
    return Called(forward, base=base, down=nn.Linear(5, 2, bias=False), up=nn.Linear(2, CLASSES, bias=False))


def complex_as_real() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head((torch.fft.fft(x) @ torch.view_as_complex(self.weight).T).abs())

    return Called(forward, weight=nn.Parameter(torch.randn(4, 5, 2)), head=nn.Linear(4, CLASSES))


def nested() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        ragged = self.body(torch.nested.as_nested_tensor(list(x.unbind(0))))
        return self.head(torch.nested.to_padded_tensor(ragged, 0.0).mean(1))

    return Called(forward, body=nn.Linear(4, 5), head=nn.Linear(5, CLASSES))


def tied_by_parametrization() -> nn.Module:
    class Symmetric(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.triu() + weight.triu(1).mT

    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    nn.utils.parametrize.register_parametrization(first, "weight", Symmetric())
    second.weight = first.parametrizations.weight.original
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(5, CLASSES))


TORCH = {
    "a selective recurrence": Entry(scan, sequences, classified),
    "a graph": Entry(scattered, sequences, classified),
    "DoRA": Entry(dora, vectors, classified),
    "LoRA on int8": Entry(int8_with_lora, vectors, classified),
    "complex numbers of a real parameter": Entry(complex_as_real, vectors, classified),
    "nested tensors": Entry(nested, sequences, classified),
    "tied by a parametrization": Entry(tied_by_parametrization, vectors, classified),
    "linear": Entry(lambda: nn.Linear(5, CLASSES), vectors, classified),
    "MLP": Entry(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, CLASSES)),
        vectors,
        classified,
    ),
    "a layer used twice": Entry(twice, vectors, classified),
    "a parameter of its own": Entry(scaled, vectors, classified),
    "Bilinear": Entry(bilinear, vectors, classified),
    "PReLU, LayerNorm": Entry(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.PReLU(), nn.LayerNorm(8), nn.Linear(8, CLASSES)),
        vectors,
        classified,
    ),
    "RMSNorm": Entry(lambda: nn.Sequential(nn.RMSNorm(5), nn.Linear(5, CLASSES)), vectors, classified),
    "weight_norm": Entry(
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, CLASSES)), vectors, classified
    ),
    "weight_norm, old": Entry(lambda: nn.utils.weight_norm(nn.Linear(5, CLASSES)), vectors, classified),
    "spectral_norm": Entry(
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(5, CLASSES)), vectors, classified, settled
    ),
    "spectral_norm, old": Entry(
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(5, 8)), nn.Tanh(), nn.Linear(8, CLASSES)),
        vectors,
        classified,
        settled,
    ),
    "orthogonal": Entry(
        lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(5, 5)), nn.Linear(5, CLASSES)),
        vectors,
        classified,
    ),
    "a parameter without dimensions": Entry(scaled_by_one_number, vectors, classified),
    "gradient penalty": Entry(mlp, vectors, penalised),
    "two calls in the loss": Entry(mlp, vectors, compared),
    "two calls in the model": Entry(two_views, vectors, classified),
    "torch.compile": Entry(lambda: torch.compile(mlp(), backend="aot_eager"), vectors, classified),
    "experts": Entry(experts, vectors, classified),
    "autocast": Entry(mlp, vectors, under_autocast(classified), tolerance=HALF),
    "autocast, CNN": Entry(
        lambda: pooled(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), channels=8),
        images,
        under_autocast(classified),
        tolerance=HALF,
    ),
    "two dtypes": Entry(mixed_dtypes, vectors, classified, tolerance=HALF),
    "a parameter without dimensions, bfloat16": Entry(
        lambda: scaled_by_one_number().bfloat16(), half(vectors), classified, tolerance=HALF
    ),
    "InstanceNorm, bfloat16": Entry(
        lambda: pooled(nn.Conv2d(4, 8, 3), nn.InstanceNorm2d(8, affine=True), channels=8).bfloat16(),
        half(images),
        classified,
        tolerance=HALF,
    ),
    "GRU, bfloat16": Entry(
        lambda: over_time(nn.GRU(4, 5, batch_first=True), 5).bfloat16(),
        half(sequences),
        classified,
        tolerance=HALF,
    ),
    "fused attention": Entry(fused_attention, sequences, classified),
    "TransformerEncoder, padded": Entry(padded_encoder, sequences, classified),
    "Transformer": Entry(encoder_and_decoder, sequences, classified),
    "gradient checkpointing, reentrant": Entry(lambda: checkpointed(reentrant=True), vectors, classified),
    "LazyLinear": Entry(lambda: nn.LazyLinear(CLASSES), vectors, classified),
    "float64": Entry(
        lambda: nn.Linear(5, CLASSES).double(), lambda: vectors() | {"x": vectors()["x"].double()}, classified
    ),
    "bfloat16": Entry(lambda: mlp().bfloat16(), half(vectors), classified, tolerance=HALF),
    "CNN, GroupNorm": Entry(
        lambda: pooled(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), channels=8), images, classified
    ),
    "CNN, grouped, dilated": Entry(
        lambda: pooled(nn.Conv2d(4, 8, 3, groups=2, dilation=2, padding="same"), channels=8),
        images,
        classified,
    ),
    "CNN, padding_mode": Entry(
        lambda: pooled(nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), channels=8), images, classified
    ),
    "ConvTranspose2d": Entry(
        lambda: pooled(nn.ConvTranspose2d(4, 6, 3, stride=2), channels=6), images, classified
    ),
    "CNN, BatchNorm": Entry(
        lambda: pooled(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), channels=8), images, classified
    ),
    "CNN, InstanceNorm": Entry(
        lambda: pooled(nn.Conv2d(4, 8, 3), nn.InstanceNorm2d(8, affine=True), channels=8), images, classified
    ),
    "CNN, InstanceNorm with statistics": Entry(
        lambda: pooled(
            nn.Conv2d(4, 8, 3), nn.InstanceNorm2d(8, affine=True, track_running_stats=True), channels=8
        ),
        images,
        classified,
    ),
    "LSTM": Entry(lambda: over_time(nn.LSTM(4, 5, batch_first=True), 5), sequences, classified),
    "GRU": Entry(lambda: over_time(nn.GRU(4, 5, batch_first=True), 5), sequences, classified),
    "RNN": Entry(lambda: over_time(nn.RNN(4, 5, batch_first=True), 5), sequences, classified),
    "LSTMCell": Entry(lambda: cell(nn.LSTMCell), sequences, classified),
    "GRU, packed": Entry(packed, sequences, classified),
    "MultiheadAttention": Entry(attention, sequences, classified),
    "TransformerEncoder": Entry(encoder, sequences, classified),
    "EmbeddingBag": Entry(
        lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 4), nn.Linear(4, CLASSES)), words, classified
    ),
    "Embedding, padding": Entry(
        lambda: nn.Sequential(nn.Embedding(WORDS, 4, padding_idx=0), Mean(), nn.Linear(4, CLASSES)),
        words,
        classified,
    ),
    "Embedding, sparse": Entry(
        lambda: nn.Sequential(nn.Embedding(WORDS, 4, sparse=True), Mean(), nn.Linear(4, CLASSES)),
        words,
        classified,
    ),
    "Embedding, max_norm": Entry(
        lambda: nn.Sequential(nn.Embedding(WORDS, 4, max_norm=1.0), Mean(), nn.Linear(4, CLASSES)),
        words,
        classified,
    ),
    "Embedding, by frequency": Entry(
        lambda: nn.Sequential(nn.Embedding(WORDS, 4, scale_grad_by_freq=True), Mean(), nn.Linear(4, CLASSES)),
        words,
        classified,
    ),
    "frozen embedding": Entry(frozen_embedding, words, classified),
    "tied weights": Entry(tied, continued, each_word),
    "Conv1d over words": Entry(
        lambda: nn.Sequential(
            nn.Embedding(WORDS, 4),
            Called(lambda self, x: self.layer(x.transpose(1, 2)).amax(2), layer=nn.Conv1d(4, 6, 3)),
            nn.Linear(6, CLASSES),
        ),
        words,
        classified,
    ),
    "GRUCell": Entry(lambda: cell(nn.GRUCell), sequences, classified),
    "RNNCell": Entry(lambda: cell(nn.RNNCell), sequences, classified),
    "gradient checkpointing": Entry(checkpointed, vectors, classified),
    "a branch on the data": Entry(branching, vectors, classified),
    "a value taken out": Entry(taking_out, vectors, classified),
    "shapes that depend on the data": Entry(masked_rows, vectors, classified),
}
