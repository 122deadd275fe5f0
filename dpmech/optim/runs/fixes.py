"""Layers without per-example gradients: refused before training, and replaced by `fix`."""

import copy
import importlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError, MissingDependencyError, UnsupportedCombinationError


class LinearAttention(nn.Module):
    """`nn.MultiheadAttention`, implemented with four linear layers whose first dimension is the examples.

    (Opacus' layer with batch_first=True and several heads mixes heads with positions.)

    Raises:
        UnsupportedCombinationError: for biases of keys and values, or attention to zeros.
    """

    # Read by torch's encoder layers; the last one disables a fused path that requires other weights.
    in_proj_weight = None
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, name: str, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        if layer.bias_k is not None or layer.add_zero_attn:
            raise UnsupportedCombinationError(
                f"{name or 'the model itself'}: MultiheadAttention with add_bias_kv or add_zero_attn",
                supported="attention without either, or make_private(..., loss=...), which supports it",
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
        is_causal: bool = False,  # noqa: FBT001, FBT002 - the same; a hint in addition to attn_mask
    ) -> tuple[Tensor, Tensor | None]:
        """As in `nn.MultiheadAttention`, for batches."""
        del is_causal
        if not self.batch_first:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        heads, width = self.num_heads, self.embed_dim // self.num_heads
        q, k, v = (
            part(inputs).unflatten(-1, (heads, width)).transpose(1, 2)
            for part, inputs in ((self.query, query), (self.key, key), (self.value, value))
        )
        scores = q @ k.mT / math.sqrt(width)
        if attn_mask is not None:
            mask = attn_mask.view(-1, heads, *attn_mask.shape[1:]) if attn_mask.ndim == 3 else attn_mask
            scores = scores + _additive(mask, scores)
        if key_padding_mask is not None:
            scores = scores + _additive(key_padding_mask[:, None, None, :], scores)
        weights = scores.softmax(dim=-1)
        heads_out = nn.functional.dropout(weights, self.dropout, self.training) @ v
        output = self.out_proj(heads_out.transpose(1, 2).flatten(2))
        if not self.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        return output, weights.mean(dim=1) if average_attn_weights else weights


def _additive(mask: Tensor, scores: Tensor) -> Tensor:
    """A mask as a term added to scores: minus infinity where it is True."""
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, -math.inf)


_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)
_INSTANCES = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_ADVICE = "dpmech.optim.fix(model), which returns a model with other layers, before the optimizer is made"
_BY_LOSS = "make_private(..., loss=...)"


def fix(model: nn.Module) -> nn.Module:
    """Return a copy of a model in which layers unsuitable for private training are replaced.

    Recurrent layers (LSTM, GRU, RNN) are replaced by those of Opacus and MultiheadAttention by four linear
    layers, with the same weights and outputs. Batch normalization becomes GroupNorm (with gcd(32, channels)
    groups; one for BatchNorm1d), which is **a different function**, with its weight and bias; InstanceNorm
    loses its running statistics. In-place operations (`inplace=True`) are disabled. Call this function before
    the optimizer is created, because the copy has new parameters. `requires_grad` is preserved.

    Args:
        model: any module; it is not changed.

    Returns:
        The copy, in the same mode, on the same devices.

    Raises:
        InvalidParameterError: if it is not a module.
        UnsupportedCombinationError: for recurrent layers with projections, and attention with add_bias_kv or
            add_zero_attn.
        MissingDependencyError: if Opacus is needed and not installed.
    """
    if not isinstance(model, nn.Module):
        raise InvalidParameterError("model", model, "a torch.nn.Module")
    fixed = copy.deepcopy(model)
    for name, layer in list(fixed.named_modules(remove_duplicate=False)):
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False
        other = _replacement(name, layer)
        if other is None:
            continue
        if not name:
            return other
        parent, _, last = name.rpartition(".")
        setattr(fixed.get_submodule(parent), last, other)
    return fixed


def check_layers(model: nn.Module, *, hooks: bool) -> None:
    """Raise UnsupportedCombinationError, by name, for a layer that cannot be trained or called in this way.

    Args:
        model: the model to train.
        hooks: whether gradients come from Opacus' hooks, else from torch.func.
    """
    for name, layer in model.named_modules():
        problem = _problem(layer, hooks=hooks)
        if problem is None or not any(param.requires_grad for param in layer.parameters()):
            continue
        what, remedy = problem
        raise UnsupportedCombinationError(f"{shown(name, layer)} {what}", supported=remedy)


def shown(name: str, layer: nn.Module) -> str:
    """A layer of a model in messages."""
    return f"{name or 'the model itself'} ({type(layer).__name__})"


def _problem(layer: nn.Module, *, hooks: bool) -> tuple[str, str] | None:
    """The problem of a layer and its remedy; None if there is none."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        return "has a max_norm: which words a batch contains is written into its weight", "max_norm=None"
    if not hooks:
        return None
    if isinstance(layer, _RECURRENT) or type(layer) is nn.MultiheadAttention:
        return "has parts whose calls hooks do not see", f"{_ADVICE}; or {_BY_LOSS}"
    if isinstance(layer, nn.RNNCellBase):
        return "takes two tensors, of which hooks see one", f"a cell of two nn.Linear; or {_BY_LOSS}"
    if type(layer) is nn.EmbeddingBag:
        return "has no per-example gradients under hooks", _BY_LOSS
    if isinstance(layer, nn.Embedding) and layer.scale_grad_by_freq:
        return (
            "has scale_grad_by_freq: it divides by the frequency of a word in the whole batch",
            f"scale_grad_by_freq=False; or {_BY_LOSS}, where it counts in one example",
        )
    return None


def _replacement(name: str, layer: nn.Module) -> nn.Module | None:
    """The replacement of a layer; None if it is kept."""
    other: nn.Module
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        # After a linear layer a channel is one number; normalizing one or two leaves no information.
        plain = isinstance(layer, nn.BatchNorm1d)
        groups = 1 if plain else math.gcd(32, layer.num_features)
        other = nn.GroupNorm(groups, layer.num_features, eps=layer.eps, affine=layer.affine)
        _hand_over(other, layer, strict=False)
    elif isinstance(layer, _INSTANCES) and layer.track_running_stats:
        other = type(layer)(layer.num_features, eps=layer.eps, affine=layer.affine)
        _hand_over(other, layer, strict=False)
    elif type(layer) in _RECURRENT:
        other = _recurrent(name, layer)
        _hand_over(other, layer)
    elif type(layer) is nn.MultiheadAttention:
        other = LinearAttention(name, layer)
        other.requires_grad_(any(param.requires_grad for param in layer.parameters()))
    else:
        return None
    return other.train(layer.training)


def _recurrent(name: str, layer: Any) -> nn.Module:
    layers = opacus_part("layers")
    if layer.proj_size:
        raise UnsupportedCombinationError(
            f"{name or 'the model itself'}: a {type(layer).__name__} with proj_size={layer.proj_size}",
            supported="recurrent layers without projections, as in Opacus",
        )
    names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"]
    names += ["nonlinearity"] * isinstance(layer, nn.RNN)
    made: nn.Module = getattr(layers, f"DP{type(layer).__name__}")(
        **{name: getattr(layer, name) for name in names}
    )
    return made


def _hand_over(other: nn.Module, layer: nn.Module, *, strict: bool = True) -> None:
    """Copy weights, devices, dtypes and requires_grad."""
    params: Sequence[Tensor] = list(layer.parameters())
    if params:
        other.to(device=params[0].device, dtype=params[0].dtype)
    with torch.no_grad():
        if strict:
            other.load_state_dict(layer.state_dict())
        else:
            known = other.state_dict()
            other.load_state_dict({key: value for key, value in layer.state_dict().items() if key in known})
    if params and not any(param.requires_grad for param in params):
        other.requires_grad_(requires_grad=False)


def opacus_part(name: str) -> Any:
    """A module of Opacus; raises MissingDependencyError without it."""
    try:
        return importlib.import_module(f"opacus.{name}")
    except ImportError:
        raise MissingDependencyError("opacus", "opacus") from None
