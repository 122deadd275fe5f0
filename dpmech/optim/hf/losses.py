"""Losses of one example for models of transformers, which compute their own."""

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["masked_loss", "own_loss"]


def own_loss(model: nn.Module, **batch: Any) -> Tensor:  # noqa: ANN401 - what the model takes
    """The loss that the model computes from an example with labels: for language models its own mean.

    Args:
        model: called with the batch by name.
        **batch: one example, as a batch of one.

    Returns:
        One number.
    """
    return _loss_of(model(**batch))


def masked_loss(model: nn.Module, **batch: Any) -> Tensor:  # noqa: ANN401 - what the model takes
    """`own_loss` for encoders (BERT, RoBERTa, ...) and encoder-decoders (T5) that get a padding mask.

    They look at the values of a mask of two dimensions, which `torch.func` cannot follow; a mask of four
    dimensions, of what is added to the scores, they take as it is. **Not for decoders alone** (GPT-2, Llama):
    there such a mask would replace the causal one.

    Args:
        model: called with the batch by name.
        **batch: one example, as a batch of one; `attention_mask` of shape (1, length), 1 where there is text.

    Returns:
        One number.
    """
    mask = batch["attention_mask"][:, None, None, :].float()
    return _loss_of(model(**batch | {"attention_mask": (1.0 - mask) * torch.finfo(torch.float32).min}))


def _loss_of(outputs: Any) -> Tensor:  # noqa: ANN401 - an output of transformers, or a tuple
    found: Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
    return found
