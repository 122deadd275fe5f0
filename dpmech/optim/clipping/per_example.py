"""Clipped sums by torch.func: gradients of a few examples at a time, or only their factors."""

import functools
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.optim.clipping.batches import Batch
from dpmech.optim.clipping.clipped_sum import ClippedSum, clip_and_sum
from dpmech.optim.clipping.factored import Factored
from dpmech.optim.clipping.ghost import Taps
from dpmech.optim.clipping.styles import Clipping, FlatClipping

__all__ = ["ClippingMode", "ExampleGradients", "clipped_gradients"]

ClippingMode: TypeAlias = Literal["per_example", "ghost"]
_MODES = ("per_example", "ghost")


def clipped_gradients(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batch: Sequence[Any] | Mapping[str, Any] | Tensor,
    clipping: Clipping | float,
    *,
    microbatch_size: int | None = None,
    weights: Tensor | None = None,
    clipping_mode: ClippingMode = "per_example",
) -> ClippedSum:
    """The sum over a batch of clipped per-example gradients.

    Args:
        model: any module whose forward pass treats examples one by one (no batch normalisation) and works
            under `torch.func.vmap`.
        loss: `loss(model, *example)` of one example, without a batch dimension; one number. Call the model it
            is given, not the one outside.
        batch: tensors with the examples along their first dimension, in tuples, lists and dicts; a dict is
            handed on as keyword arguments. It may be empty.
        clipping: how to clip, or a clip norm. Blocks that are given in order follow that of the model's
            parameters that require gradients.
        microbatch_size: how many examples to differentiate at once; None for all of them. Memory grows
            with it, the result changes in the last bits only.
        weights: None, or a tensor of zeros and ones, shape (examples,): examples with 0 are left out, as
            padding must be. Other weights would undo the clipping.
        clipping_mode: "per_example" forms the gradient of every example; "ghost" forms norms and sums of
            linear layers, convolutions and embeddings from what goes in and out of them, with the same
            result up to roundings.

    Returns:
        A ClippedSum for `PrivateOptimizer.accumulate`.

    Raises:
        InvalidParameterError: on a bad argument, tensors of different lengths, or other weights.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> batch = (torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.ones(2))
        >>> total = clipped_gradients(model, lambda f, x, y: 0.5 * (f(x) - y).square().sum(), batch, 1.0)
        >>> [round(value, 3) for value in total.sums[0].flatten().tolist()]
        [-0.9, -1.2]
    """
    if clipping_mode not in _MODES:
        raise InvalidParameterError("clipping_mode", clipping_mode, f"one of {_MODES}")
    if isinstance(batch, Mapping):
        taken = Batch((), batch)
    else:
        taken = Batch((batch,) if isinstance(batch, Tensor) else batch, {})
    gradients = ExampleGradients(model, loss, ghost=clipping_mode == "ghost")
    clip = clipping if isinstance(clipping, Clipping) else FlatClipping(clipping)
    clip = clip.over(gradients.trained, gradients.names)
    return gradients.clipped(taken, clip, microbatch_size=microbatch_size, weights=weights, lent=True)[0]


class ExampleGradients:
    """The gradients of single examples of a model and its loss, by `torch.func`.

    Args:
        model: as for `clipped_gradients`.
        loss: the same.
        ghost: whether to form factors in place of gradients where that costs less.

    Raises:
        InvalidParameterError: if the model is none, or has no parameters that require gradients.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], *, ghost: bool) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidParameterError("model", model, "a torch.nn.Module")
        self._model = model
        self._loss: Callable[..., Tensor] = loss
        params = dict(model.named_parameters())
        self.names = [name for name, param in params.items() if param.requires_grad]
        self.trained = [params[name] for name in self.names]
        if not self.trained:
            raise InvalidParameterError("model", model, "a module with parameters that require gradients")
        name_of = {id(param): name for name, param in zip(self.names, self.trained, strict=True)}
        places = _places(model)
        self._tied = {place: name_of[id(one)] for place, one in places.items() if id(one) in name_of}
        self._fixed = {place: one.detach() for place, one in places.items() if place not in self._tied}
        self._taps = Taps(model, self.trained) if ghost else None

    def clipped(
        self,
        batch: Batch,
        clip: Clipping,
        *,
        microbatch_size: int | None = None,
        weights: Tensor | None = None,
        lent: bool = False,
    ) -> tuple[ClippedSum, Tensor]:
        """The sum of clipped gradients, and the losses, shape (examples,), without noise: raw data."""
        tensors = batch.tensors
        if weights is not None:
            kept = _check_weights(weights, batch.examples)
            tensors = [tensor[kept.to(tensor.device)] for tensor in tensors]
        length = tensors[0].shape[0]
        size = (
            length
            if microbatch_size is None
            else check_integer("microbatch_size", microbatch_size, minimum=1)
        )
        blocks = clip.blocks(self.trained)
        sums: list[Tensor | None] = [None] * len(self.trained)
        dropped, below, above, losses = 0, 0, 0, []
        for start in range(0, length, max(size, 1)):
            part = [tensor[start : start + size] for tensor in tensors]
            samples, values = self.samples(batch, part)
            found = clip_and_sum(samples, blocks)
            sums = [_added(total, one) for total, one in zip(sums, found.sums, strict=True)]
            dropped, below, above = dropped + found.dropped, below + found.below, above + found.above
            losses.append(values)
        total = ClippedSum(
            self.trained,
            sums,
            clip,
            examples=length,
            dropped=dropped,
            left_out=batch.examples - length,
            lent=lent,
            below=below,
            above=above,
        )
        return total, torch.cat(losses) if losses else torch.zeros(0)

    def samples(
        self, batch: Batch, tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor | Factored | None], Tensor]:
        """Gradients or factors of every parameter, and the losses, of some of a batch's examples."""
        with _explained():
            return self._samples(batch, tensors)

    def _samples(
        self, batch: Batch, tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor | Factored | None], Tensor]:
        values = {name: param.detach() for name, param in zip(self.names, self.trained, strict=True)}
        samples: list[Tensor | Factored | None]
        if self._taps is not None:
            samples, losses = self._taps.samples(
                functools.partial(self._example_loss, batch), values, tensors
            )
            self._check_complete(losses)
            return samples, losses.detach()
        per_example: Any = torch.func.vmap(
            torch.func.grad_and_value(functools.partial(self._example_loss, batch)),
            in_dims=(None, *[0] * len(tensors)),
            randomness="different",
        )
        gradients, losses = per_example(values, *tensors)
        self._check_complete(losses)
        return [gradients[name].detach() for name in self.names], losses.detach()

    def _check_complete(self, losses: Tensor) -> None:
        """Refuse losses that follow from trained parameters otherwise than by the model that they get.

        The model gets values of its own; what else is differentiable is a constant for the gradients of
        examples, and stands in the graph of autograd.
        """
        if not losses.requires_grad:
            return
        name_of = {id(param): name for name, param in zip(self.names, self.trained, strict=True)}
        missed = sorted({name_of[id(leaf)] for leaf in _leaves(losses) if id(leaf) in name_of})
        if missed:
            raise UnsupportedCombinationError(
                f"the loss uses {', '.join(missed[:3])} beside the model that it gets, of which gradients of "
                "examples know nothing",
                supported="a loss that calls the model it is given; regularisers in the model's forward, or "
                "by weight_decay of the optimizer",
            )

    def covered_values(self, batch: Batch, tensors: Sequence[Tensor]) -> int:
        """How many weights have factors in place of gradients, for examples of these shapes."""
        if self._taps is None:
            return 0
        values = {name: param.detach() for name, param in zip(self.names, self.trained, strict=True)}
        with _explained():
            plan = self._taps.plan(functools.partial(self._example_loss, batch), values, tensors)
        return sum(param.numel() for index, param in enumerate(self.trained) if index not in plan.rest)

    def _example_loss(self, batch: Batch, own: dict[str, Tensor], *example: Tensor) -> Tensor:
        held = self._fixed | {place: own[name] for place, name in self._tied.items()}
        args, kwargs = batch.arguments(example)
        value = self._loss(functools.partial(_call, self._model, held), *args, **kwargs)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidParameterError("loss", shown, "a function that gives one number for one example")
        return value.reshape(())


@contextmanager
def _explained() -> Iterator[None]:
    """Say what to do about errors of torch.func.vmap, with the place in the model that they come from."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        for part, (what, remedy) in _REASONS.items():
            if part in text:
                raise UnsupportedCombinationError(
                    f"{what}, which torch.func.vmap cannot follow{_place(error)}", supported=remedy
                ) from error
        raise


_HOOKS = "make_private without a loss, for the loop of Opacus, whose forward passes are ordinary ones"
_CHECKPOINTING = (
    "the model runs parts of itself again (gradient checkpointing)",
    "a model without it, and max_physical_batch_size, or 'auto', where memory is short",
)
_REASONS = {
    "data-dependent control flow": (
        "the model branches on values of the data, or on random numbers that it draws (layer drop)",
        "torch.where, and layerdrop=0; for transformers attn_implementation='eager', for encoders such as "
        "BERT a mask of four dimensions too: loss=dpmech.optim.hf.masked_loss, of make_private or of "
        "PrivateTrainer's Privacy; or " + _HOOKS,
    ),
    "requires_grad_()": _CHECKPOINTING,
    "saved tensor hooks": _CHECKPOINTING,
    "setup_context": (
        "the model uses an autograd.Function without setup_context (gradient checkpointing with "
        "use_reentrant=True is one)",
        "a model without checkpointing, and max_physical_batch_size, or 'auto', where memory is short; for a "
        "function of your own a setup_context and generate_vmap_rule=True",
    ),
    ".item()": (
        "the model takes a value out of a tensor",
        "code that leaves it there; or " + _HOOKS,
    ),
    "Batching rule not implemented": (
        "the model calls a kernel without a rule",
        "other layers; or " + _HOOKS,
    ),
    "dynamic shape": (
        "the model makes tensors whose shapes depend on the data",
        "code with fixed shapes (torch.where in place of indexing by a mask); or " + _HOOKS,
    ),
}


def _place(error: BaseException) -> str:
    """The innermost line outside of torch, which is the model's or the loss's."""
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


def _check_weights(weights: object, length: int) -> Tensor:
    if (
        not isinstance(weights, Tensor)
        or weights.shape != (length,)
        or not bool(((weights == 0) | (weights == 1)).all())
    ):
        shown = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise InvalidParameterError("weights", shown, f"a tensor of {length} zeros and ones")
    return weights != 0


def _call(model: nn.Module, values: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - what the model takes and returns
    return torch.func.functional_call(model, values, args, kwargs, tie_weights=False)


def _places(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a model by its places: tied ones have several, a layer that is used twice has one.

    (functional_call itself would put a shared layer's tensors in place twice, and take them out once.)
    """
    return {
        f"{prefix}.{name}" if prefix else name: tensor
        for prefix, layer in model.named_modules()
        for name, tensor in [*layer._parameters.items(), *layer._buffers.items()]
        if tensor is not None
    }


def _added(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    return part if total is None or part is None else total.add_(part)


def _leaves(value: Tensor) -> Iterator[Tensor]:
    """The tensors that require gradients from which a value was computed."""
    left, seen = [value.grad_fn], set()
    while left:
        node: Any = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        left.extend(one for one, _ in node.next_functions)
