"""Refuses losses under hooks that are no mean over the examples, as far as their graph shows it."""

import collections
import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.deferred import Deferred
from dpmech.optim.runs.containers import tensors_of

_MOST = 1000  # operations between an output and the loss
_MEAN, _SUM = 1, 2  # of reductions, as torch numbers them
_SAME = 1e-4  # relative difference of equal weights, far above rounding in float32
_SELECTIONS = "IndexBackward0", "MaskedSelectBackward0"


class LossWatch:
    """Checks, when a backward pass reaches the output of a model, the loss in which it started.

    The gradient of an example is a row times the number of examples, as for their mean. If a loss divides by
    anything else that follows from the batch, one example changes the contributions of all others. Found are
    plain sums; in `cross_entropy` and `nll_loss` also means with class weights, means over targets that are
    not ignored or selected, unless all examples have equally many, and, from the second batch of another size
    on, sums that a constant divides. The last two are seen by the gradients of logits, unless other
    terms of the loss add to these.

    Args:
        deferred: takes checks of values.
    """

    def __init__(self, deferred: Deferred) -> None:
        self._deferred = deferred
        self._before: tuple[int, list[float]] | None = None  # a number of examples, and weights of targets

    def __call__(self, output: object) -> None:
        """Watch an output of a call of the model."""
        for tensor in tensors_of(output):
            if tensor.requires_grad and tensor.grad_fn is not None:
                # Not the operation, which would refer to itself by its hook.
                place, logits = _place(tensor.grad_fn), tensor.detach()
                tensor.register_hook(  # type: ignore[no-untyped-call]  # torch's
                    lambda grad, place=place, logits=logits: self._check(place, logits, grad.detach())
                )

    def _check(self, place: tuple[str, int], logits: Tensor, grad: Tensor) -> None:
        for root in _roots():
            left, seen, reached = [root], {root}, False
            faults, targets, divided, summed = list[str](), collections.Counter[int](), False, False
            while left and len(seen) < _MOST:
                node = left.pop()
                faults += _faults(node, first=node is root)
                targets += _targets(node)
                divided, summed = divided or _divides(node), summed or _sums(node)
                if _place(node) == place:
                    reached = True  # operations behind it are the model's
                    continue
                more = [one for one, _ in node.next_functions if one is not None and one not in seen]
                seen.update(more)
                left += more
            if reached and faults:
                raise _refusal(faults[0])
            found = [d for d in (grad.dim() - 1, 1) if 0 < d < grad.dim() and grad.shape[d] in targets]
            if reached and found and len(grad):
                across = logits.movedim(found[0], -1), grad.movedim(found[0], -1)
                if divided:
                    self._check_ignored(*across, targets[grad.shape[found[0]]])
                elif summed:
                    self._check_weights(*across)

    def _check_ignored(self, logits: Tensor, grad: Tensor, targets: int) -> None:
        """Refuse gradients of logits if some example has more zero rows than another.

        A target that is ignored has a zero row. So has one of a confident model, if the exponentials of all
        other classes underflow; such rows may be either. If more rows have a gradient than there are targets,
        the loop takes means of rows first, and zero rows say nothing.
        """
        zero = torch.linalg.vector_norm(grad, math.inf, dim=-1) == 0.0
        counts = _by_example(zero)

        def check(read: list[float]) -> None:
            if read[0] == read[1] or zero.numel() - read[2] > targets:
                return
            ignored, rows = zero.clone(), logits[zero]
            ignored[zero] = torch.logsumexp(rows, dim=1) > rows.amax(dim=1)
            if _by_example(ignored).amax() > read[0]:
                raise _refusal(
                    "is divided by the number of targets in the batch that are not ignored or masked"
                )

        self._deferred.add(torch.stack([counts.amin(), counts.amax(), counts.sum()]).double(), check)

    def _check_weights(self, logits: Tensor, grad: Tensor) -> None:
        """Refuse gradients of logits if the weights of targets are those of a batch of another size.

        The row of a target has its weight times the probability for every other class.
        """
        largest, place = grad.max(dim=-1, keepdim=True)
        logs = logits.gather(-1, place) - logits.logsumexp(-1, keepdim=True)
        weights, examples = largest / logs.exp(), len(grad)
        ends = weights.amax(), weights.where(largest > 0.0, math.inf).amin()

        def check(read: list[float]) -> None:
            before, self._before = self._before, (examples, read)
            if before is None or before[0] == examples or not read[0] > 0.0:
                return
            if all(abs(now - then) <= _SAME * abs(then) for now, then in zip(read, before[1], strict=True)):
                raise _refusal("is a sum over the examples that a constant divides")

        self._deferred.add(torch.stack(ends).double(), check)


def _refusal(fault: str) -> UnsupportedCombinationError:
    return UnsupportedCombinationError(
        f"the loss {fault}: one example would change the contributions of all others",
        supported="the mean over the examples (reduction='mean'), of losses times weights that a "
        "constant divides (reduction='none'); or make_private(..., loss=...), with gradient "
        "penalties, too",
    )


def _targets(node: Any) -> "collections.Counter[int]":
    """The number of targets of `nll_loss` by its number of classes, from the shape of its input."""
    if not node.name().startswith("NllLoss"):
        return collections.Counter()
    before, place = node.next_functions[0]
    shape = [int(size) for size in before._input_metadata[place].shape]
    if len(shape) < 2 or shape[1] < 2:
        return collections.Counter()
    return collections.Counter({shape[1]: math.prod(shape) // shape[1]})


def _divides(node: Any) -> bool:
    """Whether an operation divides by a number of targets that may follow from the batch."""
    if node.name() == "MeanBackward0":
        before = node.next_functions[0][0]
        return before is not None and before.name() in _SELECTIONS
    return node.name().startswith("NllLoss") and bool(node._saved_reduction == _MEAN)


def _sums(node: Any) -> bool:
    return node.name() == "SumBackward0" or getattr(node, "_saved_reduction", None) == _SUM


def _by_example(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), -1).sum(dim=1)


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
