"""Attention out of linear layers, in place of torch's MultiheadAttention, whose parts no hook sees."""

import math

import torch
from torch import Tensor, nn

from dpmech.exceptions import UnsupportedCombinationError

__all__ = ["LinearAttention"]


class LinearAttention(nn.Module):
    """What `nn.MultiheadAttention` computes, by four linear layers that get examples first.

    (Opacus' layer with batch_first=True and several heads mixes heads with positions.)

    Args:
        name: of the layer, for messages.
        layer: whose settings and weights it takes.

    Raises:
        UnsupportedCombinationError: for biases of keys and values, or attention to zeros.
    """

    # What torch's encoder layers look at; the last keeps them from a fused path that wants other weights.
    in_proj_weight = None
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, name: str, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        if layer.bias_k is not None or layer.add_zero_attn:
            raise UnsupportedCombinationError(
                f"{name or 'the model itself'}: MultiheadAttention with add_bias_kv or add_zero_attn",
                supported="attention without either, or make_private(..., loss=...), which takes it as it is",
            )
        self.embed_dim, self.num_heads = layer.embed_dim, layer.num_heads
        self.batch_first, self.dropout = layer.batch_first, layer.dropout
        bias = layer.in_proj_bias is not None
        width = layer.embed_dim
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(layer.kdim or width, width, bias=bias)
        self.value = nn.Linear(layer.vdim or width, width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=layer.out_proj.bias is not None)
        parts = (self.query, self.key, self.value)
        weights = (
            layer.in_proj_weight.chunk(3)
            if layer.in_proj_weight is not None
            else (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        )
        self.to(device=layer.out_proj.weight.device, dtype=layer.out_proj.weight.dtype)
        with torch.no_grad():
            for part, weight in zip(parts, weights, strict=True):
                part.weight.copy_(weight)
            if layer.in_proj_bias is not None:
                for part, values in zip(parts, layer.in_proj_bias.chunk(3), strict=True):
                    part.bias.copy_(values)
            self.out_proj.load_state_dict(layer.out_proj.state_dict())

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: FBT001, FBT002 - the same
        is_causal: bool = False,  # noqa: FBT001, FBT002 - the same; a hint beside attn_mask
    ) -> tuple[Tensor, Tensor | None]:
        """As that of `nn.MultiheadAttention`, for batches."""
        del is_causal
        if not self.batch_first:
            query, key, value = (one.transpose(0, 1) for one in (query, key, value))
        heads, width = self.num_heads, self.embed_dim // self.num_heads
        q, k, v = (
            part(one).unflatten(-1, (heads, width)).transpose(1, 2)
            for part, one in ((self.query, query), (self.key, key), (self.value, value))
        )
        scores = q @ k.mT / math.sqrt(width)
        if attn_mask is not None:
            mask = attn_mask.view(-1, heads, *attn_mask.shape[1:]) if attn_mask.ndim == 3 else attn_mask
            scores = scores + _additive(mask, scores)
        if key_padding_mask is not None:
            scores = scores + _additive(key_padding_mask[:, None, None, :], scores)
        weights = scores.softmax(dim=-1)
        found = nn.functional.dropout(weights, self.dropout, self.training) @ v
        output = self.out_proj(found.transpose(1, 2).flatten(2))
        if not self.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        return output, weights.mean(dim=1) if average_attn_weights else weights


def _additive(mask: Tensor, scores: Tensor) -> Tensor:
    """A mask as what is added to scores: minus infinity where it is True."""
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, -math.inf)
