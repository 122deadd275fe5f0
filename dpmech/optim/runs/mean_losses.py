"""Refuses losses under hooks that are no mean over the examples, as far as their graph shows it."""

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.runs.containers import tensors_of

_MOST = 1000  # operations between an output and the loss
_MEAN, _SUM = 1, 2  # of reductions, as torch numbers them


def watch_loss(output: object) -> None:
    """Check, when a backward pass reaches the output of a model, the loss in which it started.

    The gradient of an example is a row times the number of examples, as for their mean. If a loss divides by
    anything else that follows from the batch, one example changes the contributions of all others. Found are
    plain sums, and class weights in means of `cross_entropy` and `nll_loss`.

    Args:
        output: of a call of the model.
    """
    for tensor in tensors_of(output):
        if tensor.requires_grad and tensor.grad_fn is not None:
            place = _place(tensor.grad_fn)  # not the operation, which would refer to itself by its hook
            tensor.register_hook(lambda _, place=place: _check(place))  # type: ignore[no-untyped-call]  # torch's


def _check(place: tuple[str, int]) -> None:
    for root in _roots():
        left, seen, reached = [root], {root}, False
        faults: list[str] = []
        while left and len(seen) < _MOST:
            node = left.pop()
            faults += _faults(node, first=node is root)
            if _place(node) == place:
                reached = True  # operations behind it are the model's
                continue
            more = [one for one, _ in node.next_functions if one is not None and one not in seen]
            seen.update(more)
            left += more
        if reached and faults:
            raise UnsupportedCombinationError(
                f"the loss {faults[0]}: one example would change the contributions of all others",
                supported="the mean over the examples (reduction='mean'), of losses times weights that a "
                "constant divides (reduction='none'); or make_private(..., loss=...), with gradient "
                "penalties, too",
            )


def _place(node: Any) -> tuple[str, int]:
    return node.name(), node._sequence_nr()


def _roots() -> Iterator[Any]:
    """The operations in which the backward passes of this process started, which torch tells nobody."""
    code = getattr(getattr(torch.autograd.graph, "_engine_run_backward", None), "__code__", None)
    for top in sys._current_frames().values():  # a device runs hooks in a thread of its own
        frame: Any = top
        while frame is not None:
            if frame.f_code is code:
                begun = (getattr(one, "grad_fn", None) for one in frame.f_locals.get("t_outputs", ()))
                yield from (one for one in begun if one is not None)
            frame = frame.f_back


def _faults(node: Any, *, first: bool) -> Iterator[str]:
    """What is wrong with an operation; `first` if the backward pass starts in it."""
    reduction = getattr(node, "_saved_reduction", None)
    summed = node.name() == "SumBackward0" and math.prod(node._saved_self_sym_sizes) > 1
    if first and (summed or reduction == _SUM):
        yield "is a sum over the examples, which are taken for their mean"
    if node.name().startswith("NllLoss") and reduction == _MEAN:
        try:
            weighted = node._saved_weight is not None
        except RuntimeError:  # there is one, and it was freed after its use
            weighted = True
        if weighted:
            yield "is divided by the class weights of all labels in the batch"
