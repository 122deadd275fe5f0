"""Small models for the checks: convolution, embedding, attention, normalization and linear layers."""

from typing import Any

import torch
from torch import Tensor, nn

WIDTH, LENGTH, WORDS = 32, 4, 256


class Block(nn.Module):
    """Attention and two linear layers, each after a normalization and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream after the block, shape (..., tokens, width)."""
        query, key, value = self.mixed(self.before(x)).chunk(3, -1)
        x = x + (query @ key.mT / WIDTH**0.5).softmax(-1) @ value
        found: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))
        return found


class Images(nn.Module):
    """Classifies images of three colours by patches of 16 x 16."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, stride=16)
        self.rest = nn.Sequential(Block(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes, shape (..., classes)."""
        found: Tensor = self.head(self.rest(self.patches(images).flatten(-2).mT).mean(-2))
        return found


def language_model() -> nn.Module:
    """A model that scores a word at every position."""
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), Block(), nn.Linear(WIDTH, WORDS))


def loss_of_images(model: Any, images: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of one example, or its mean over a batch."""
    return nn.functional.cross_entropy(model(images), labels)


def loss_of_words(model: Any, words: Tensor) -> Tensor:
    """Mean cross entropy of the next words."""
    scores = model(words)[..., :-1, :]
    return nn.functional.cross_entropy(scores.flatten(0, -2), words[..., 1:].flatten())


def images_of(count: int) -> tuple[Tensor, ...]:
    """Random images and labels, on the CPU."""
    side = 16 * round(LENGTH**0.5)
    rng = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, side, side, generator=rng), torch.randint(10, (count,), generator=rng)


def words_of(count: int) -> tuple[Tensor, ...]:
    """Random words, on the CPU."""
    rng = torch.Generator().manual_seed(0)
    return (torch.randint(WORDS, (count, LENGTH), generator=rng),)
