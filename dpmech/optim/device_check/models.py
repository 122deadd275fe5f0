"""Models to measure: a vision transformer, and a language model of which low-rank matrices are trained."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Size:
    """The shape of a transformer and of its batches.

    Attributes:
        width: of the residual stream.
        depth: number of blocks.
        heads: of each attention, which divide the width.
        length: tokens of an example; of the vision transformer patches, a square number.
        batch: examples of a step.
    """

    width: int
    depth: int
    heads: int
    length: int
    batch: int


class LowRank(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices (LoRA)."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs)
        self.frozen.requires_grad_(False)  # noqa: FBT003 - torch's signature
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        found: Tensor = self.frozen(x) + self.up(self.down(x))
        return found


class Block(nn.Module):
    """Attention and two linear layers, each after a normalization and added to its input.

    Args:
        size: of the model.
        rank: of the trained part of the projections of attention; None trains everything.
        causal: whether a token sees only those before it.
    """

    def __init__(self, size: Size, rank: int | None, *, causal: bool) -> None:
        super().__init__()
        width = size.width
        self._heads, self._causal = size.heads, causal
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed: nn.Module = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        if rank is not None:
            for param in self.parameters():
                param.requires_grad_(False)  # noqa: FBT003 - torch's signature
            self.mixed = LowRank(width, 3 * width, rank)

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream after the block, shape (..., tokens, width)."""
        mixed = self.mixed(self.before(x)).unflatten(-1, (3, self._heads, -1))
        query, key, value = (part.transpose(-2, -3) for part in mixed.unbind(-3))
        weights = query @ key.mT / query.shape[-1] ** 0.5
        if self._causal:
            tokens = torch.arange(weights.shape[-1], device=weights.device)
            weights = weights.masked_fill(tokens[None, :] > tokens[:, None], -1e9)
        seen = (weights.softmax(-1) @ value).transpose(-2, -3).flatten(-2)
        x = x + self.out(seen)
        found: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))
        return found


class Added(nn.Module):
    """Adds trained values, one vector for every place."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.values = nn.Parameter(0.02 * torch.randn(size.length, size.width))

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return x + self.values


class VisionTransformer(nn.Module):
    """Classifies images of three colours by patches of 16 x 16; everything is trained."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size.width, 16, stride=16)
        self.places = Added(size)
        self.blocks = nn.Sequential(*(Block(size, None, causal=False) for _ in range(size.depth)))
        self.last = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes, shape (..., classes)."""
        x = self.places(self.patches(images).flatten(-2).mT)
        found: Tensor = self.head(self.last(self.blocks(x)).mean(-2))
        return found


class LanguageModel(nn.Module):
    """Predicts the next of 256 tokens; only low-rank matrices in its attention are trained."""

    tokens = 256

    def __init__(self, size: Size, rank: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(self.tokens, size.width)
        self.blocks = nn.Sequential(*(Block(size, rank, causal=True) for _ in range(size.depth)))
        self.head = nn.Linear(size.width, self.tokens)
        for part in (self.words, self.head):
            part.requires_grad_(False)  # noqa: FBT003 - torch's signature

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the next token, shape (..., tokens, 256)."""
        found: Tensor = self.head(self.blocks(self.words(words)))
        return found


def loss_of_images(model: Any, images: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of one example, or its mean over a batch."""
    return nn.functional.cross_entropy(model(images), labels)


def loss_of_words(model: Any, words: Tensor) -> Tensor:
    """Mean cross entropy of the next tokens."""
    scores = model(words)[..., :-1, :]
    return nn.functional.cross_entropy(scores.flatten(0, -2), words[..., 1:].flatten())


def images_of(size: Size, count: int) -> tuple[Tensor, ...]:
    """Random images and labels, on the CPU."""
    side = 16 * round(size.length**0.5)
    rng = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, side, side, generator=rng), torch.randint(10, (count,), generator=rng)


def words_of(size: Size, count: int) -> tuple[Tensor, ...]:
    """Random tokens, on the CPU."""
    rng = torch.Generator().manual_seed(0)
    return (torch.randint(LanguageModel.tokens, (count, size.length), generator=rng),)
