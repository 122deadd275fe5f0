"""followed: lets torch.func.vmap follow a model where it can, and says what it cannot follow."""

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dpmech.exceptions import DpmechError, UnsupportedCombinationError


class UnfollowedError(UnsupportedCombinationError):
    """torch.func.vmap cannot follow a model or its loss, whatever the values of the examples."""


@contextmanager
def followed() -> Iterator[None]:
    """A context for calls under torch.func.vmap, with masks of transformers that do not branch.

    Raises:
        UnfollowedError: for what vmap does not support, with the location in the model.
    """
    functorch: Any = torch._C._functorch
    with _masks_made():
        # Kernels of attention on CPUs take one example after the other, as fast as others that do not.
        functorch._set_vmap_fallback_warning_enabled(False)  # noqa: FBT003 - torch's signature
        try:
            yield
        except DpmechError:
            raise
        except Exception as error:  # torch.compile raises an AssertionError
            text = str(error)
            for part, (what, remedy) in _REASONS.items():
                if part in text:
                    raise UnfollowedError(
                        f"{what}, which torch.func.vmap does not support{place_of(error)}",
                        supported=f"clipping_mode='loop' ('auto' takes it at the first batch); or {remedy}",
                    ) from error
            raise
        finally:
            functorch._set_vmap_fallback_warning_enabled(True)  # noqa: FBT003 - the same


@contextmanager
def _masks_made() -> Iterator[None]:
    """Attention of transformers makes its mask also where the values of a padding mask allow to skip it.

    Whether all tokens are kept is a branch on values. The mask that is made instead masks nothing then.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    makers = getattr(masking, "ALL_MASK_ATTENTION_FUNCTIONS", None)
    if makers is None:
        yield
        return
    local = getattr(makers, "_local_mapping", {})
    before = {key: local.get(key) for key in ("sdpa", "eager") if key in makers}
    for key in before:
        makers[key] = functools.partial(_made, makers[key])
    try:
        yield
    finally:
        for key, maker in before.items():
            if maker is None:
                del makers[key]
            else:
                makers[key] = maker


def _made(maker: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("attention_mask") is not None:
        skips = [name for name in kwargs if name.startswith("allow_is_") and name.endswith("_skip")]
        kwargs |= dict.fromkeys(skips, False)
    return maker(*args, **kwargs)


def reentrant() -> UnsupportedCombinationError:
    """The error for checkpointing whose forward pass is not recorded: nothing is known of it before."""
    return UnsupportedCombinationError(
        "gradient checkpointing with use_reentrant=True runs parts of the model without recording them",
        supported="use_reentrant=False, in torch.utils.checkpoint or as gradient_checkpointing_kwargs",
    )


_HOOKS = "make_private without a loss, for the loop of Opacus"
_FUNCTION = (
    "there is an autograd.Function without setup_context (in checkpointing with use_reentrant=True, too)",
    "setup_context and generate_vmap_rule=True in it; use_reentrant=False",
)
_GRADIENTS = (
    "gradients are asked for within the model or its loss (gradient checkpointing, gradient penalties)",
    "a model and a loss without them",
)
_IN_PLACE = (
    "values of an example are written into a tensor that all examples share (GRU, RNN and cells do so)",
    f"operations that make new tensors; dpmech.optim.fix(model) for GRU and RNN; or {_HOOKS}",
)
_KERNEL = ("the model calls a kernel without a rule", f"other layers; or {_HOOKS}")
_SHAPES = (
    "the model makes tensors whose shapes depend on the data",
    f"code with fixed shapes (torch.where instead of indexing by a mask); or {_HOOKS}",
)
_SPARSE = ("a layer has sparse gradients or weights", f"sparse=False; or {_HOOKS}")
_MEMORY = (
    "the model reads the memory of a tensor (numpy, tolist, kernels of its own)",
    f"operations of torch; or {_HOOKS}",
)
# What torch says: what it means, and what is faster than a loop.
_REASONS = {
    "data-dependent control flow": (
        "the model branches on values of the data, or on random numbers (layer drop)",
        f"torch.where, and layerdrop=0; or {_HOOKS}",
    ),
    "requires_grad_()": _GRADIENTS,
    "saved tensor hooks": _GRADIENTS,
    "setup_context": _FUNCTION,
    "doesn't match the broadcast shape": _IN_PLACE,
    "inplace arithmetic": _IN_PLACE,
    ".item()": ("the model reads a value of a tensor", f"code that avoids it; or {_HOOKS}"),
    "is not possible because there exists a Tensor": _IN_PLACE,
    "inplace randomness": _IN_PLACE,
    "would mutate a captured Tensor": _IN_PLACE,
    "Batching rule not implemented": _KERNEL,
    "isn't supported yet": _KERNEL,
    "Autograd not support dtype": _KERNEL,
    "dynamic shape": _SHAPES,
    "stack expects each tensor to be equal size": _SHAPES,
    "data pointer": _MEMORY,
    "Cannot access storage": _MEMORY,
    "'Sparse": _SPARSE,
    "Sparse tensors": _SPARSE,
    "NestedTensor": ("the model makes nested tensors", f"padded tensors and masks; or {_HOOKS}"),
    "TORCHDYNAMO": (
        "the loss, or for factors the model, calls a compiled function",
        "torch.compile around the model alone, with clipping_mode='per_example'; or none",
    ),
}


def place_of(error: BaseException) -> str:
    """The innermost line outside of torch, in the model or the loss; empty if there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if f"{os.sep}torch{os.sep}" not in frame.filename and not frame.filename.startswith(_HERE)
    ]
    if not frames:
        return ""
    last = frames[-1]
    file = os.sep.join(last.filename.split(os.sep)[-2:])
    return f" ({file}, line {last.lineno}, in {last.name}: {last.line})"


_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
