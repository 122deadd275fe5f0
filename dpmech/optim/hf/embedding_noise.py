"""NEFTune: uniform noise on the embeddings of a text in training, by the number of its own words."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import UnsupportedCombinationError


class EmbeddingNoise:
    """Noise of magnitude alpha / sqrt(words * width) on the embeddings of an example.

    A Trainer's own takes the padded length of the batch for the number of words: the noise of every text
    would then follow the longest one of its batch, and clipping an example would not bound what it changes.

    Args:
        alpha: `neftune_noise_alpha`.
        loss: `loss(model, **batch)` of one example.
    """

    def __init__(self, alpha: float, loss: Callable[..., Tensor]) -> None:
        self._alpha = alpha
        self._loss = loss
        self._words: Tensor | None = None

    def attach(self, model: nn.Module) -> Any:
        """Add the noise in calls of this loss from now on; returns the handle that ends it."""
        inner: Any = model
        return inner.get_input_embeddings().register_forward_hook(self._added)

    def __call__(self, model: nn.Module, **batch: Any) -> Tensor:
        """The loss of a batch of one; raises UnsupportedCombinationError without a mask of its padding."""
        mask = batch.get("attention_mask")
        if mask is None:
            raise UnsupportedCombinationError(
                "neftune_noise_alpha without an attention_mask: the noise of a text would depend on how far "
                "its batch is padded",
                supported="a data_collator that returns one, or neftune_noise_alpha=None",
            )
        self._words = mask.sum()
        try:
            return self._loss(model, **batch)
        finally:
            self._words = None

    def _added(self, part: nn.Module, args: object, output: Tensor) -> Tensor:
        if self._words is None or not part.training:
            return output
        size = self._alpha / torch.sqrt(self._words.clamp(min=1) * output.shape[-1])
        return output + (size * (2.0 * torch.rand_like(output) - 1.0)).to(output.dtype)
