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
    """

    model: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Tensor]]
    loss: Callable[..., Tensor]


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


# ---- losses


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def each_word(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Every text has as many words, so that the mean over all is that over the texts."""
    return F.cross_entropy(model(x).transpose(1, 2), y)


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


def checkpointed() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))

    return Called(forward, body=nn.Sequential(nn.Linear(5, 7), nn.Tanh()), head=nn.Linear(7, CLASSES))


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


TORCH = {
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
    "spectral_norm": Entry(
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(5, CLASSES)), vectors, classified
    ),
    "LazyLinear": Entry(lambda: nn.LazyLinear(CLASSES), vectors, classified),
    "float64": Entry(
        lambda: nn.Linear(5, CLASSES).double(), lambda: vectors() | {"x": vectors()["x"].double()}, classified
    ),
    "bfloat16": Entry(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES)).bfloat16(),
        lambda: vectors() | {"x": vectors()["x"].bfloat16()},
        classified,
    ),
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
