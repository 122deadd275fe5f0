"""What an optimizer finds on its parameters before a step: per-example gradients, or trouble."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.optim.clipping.factored import Factored
from dpmech.optim.local_parts import local_part

__all__ = ["Intake"]


class Intake:
    """Takes `grad_sample` off the parameters, and refuses gradients that would bypass clipping or noise.

    Args:
        trained: parameters that get noise.
        frozen: parameters of the optimizer that did not require gradients when it was wrapped.
    """

    def __init__(self, trained: Sequence[Tensor], frozen: Sequence[Tensor]) -> None:
        self._trained = trained
        self._frozen = frozen
        self._own: list[tuple[int, int] | None] = []
        # Gradients of before, as an earlier private run leaves them, are never read: steps overwrite them.
        self.note_own()

    def take(self, examples: int | None = None) -> list[Tensor | Factored | None]:
        """Per-example gradients of the trained parameters, or their factors, taken off them.

        Shape (examples, ...). None where a parameter has none: its gradient is zero for every example.

        Args:
            examples: how many different examples the gradients are of; None for one a row, where every
                parameter has a single tensor.

        Raises:
            UnsupportedCombinationError: if a frozen parameter has a gradient, or a trained one has one
                without per-example gradients, or one has those of several backward passes and nobody said
                of how many examples.
            InvalidParameterError: on a grad_sample of the wrong shape, or of another number of examples.
        """
        for index, param in enumerate(self._frozen):
            given = param.grad is not None or getattr(param, "grad_sample", None) is not None
            if given or param.requires_grad:
                what = "received a gradient" if given else "requires gradients now"
                raise UnsupportedCombinationError(
                    f"frozen parameter {index}, of shape {tuple(param.shape)}, {what}: it would be trained "
                    "without noise, or not at all",
                    supported="parameters that require gradients when PrivateOptimizer is built; those that "
                    "are to wait may be frozen after that",
                )
        parts = [_grad_sample(index, param) for index, param in enumerate(self._trained)]
        samples = _rows(parts, examples)
        for index, (param, sample) in enumerate(zip(self._trained, samples, strict=True)):
            if sample is None and self._is_foreign(index, param):
                raise UnsupportedCombinationError(
                    f"parameter {index}, of shape {tuple(param.shape)}, has a gradient but no per-example "
                    "gradients (grad_sample): nothing bounds what one example adds to it",
                    supported="grad_sample on every parameter (Opacus' GradSampleModule), clipped_gradients, "
                    "or ClippedSum.from_grads where the gradients are sums of clipped ones; after "
                    "make_private(loss=...) model.backward(inputs, targets) in place of loss.backward(); "
                    "other calls of the model under torch.no_grad(); no clip_grad_norm_, clipping is done "
                    "here; no gradient checkpointing",
                )
        for param, sample in zip(self._trained, samples, strict=True):
            if sample is not None:
                param.grad_sample = None  # type: ignore[attr-defined]  # as Opacus does
                param.grad = None
        return samples

    def clear(self) -> None:
        """Forget per-example gradients."""
        for param in self._trained:
            if getattr(param, "grad_sample", None) is not None:
                param.grad_sample = None  # type: ignore[attr-defined]  # as Opacus does

    def forget_own(self) -> None:
        """Take gradients off that were noted, if they are still there."""
        for index, param in enumerate(self._trained):
            if self._own[index] is not None and _identity(param.grad) == self._own[index]:
                param.grad = None
        self._own = [None] * len(self._trained)

    def note_own(self) -> None:
        """Note the gradients that are on the parameters now: they are no later surprise."""
        self._own = [_identity(param.grad) for param in self._trained]

    def _is_foreign(self, index: int, param: Tensor) -> bool:
        if param.grad is None or _identity(param.grad) == self._own[index]:
            return False
        return bool(torch.any(local_part(param.grad) != 0))


def _identity(grad: Tensor | None) -> tuple[int, int] | None:
    return None if grad is None else (local_part(grad).data_ptr(), grad._version)


def _grad_sample(index: int, param: Tensor) -> list[Tensor | Factored] | None:
    """What backward passes left on a parameter: one tensor each."""
    value = getattr(param, "grad_sample", None)
    if value is None:
        return None
    parts = list(value) if isinstance(value, list | tuple) else [value]
    for part in parts:
        if isinstance(part, Factored) and part.shape == tuple(param.shape):
            continue
        if not isinstance(part, Tensor) or part.shape[1:] != param.shape or part.ndim != param.ndim + 1:
            shown = tuple(part.shape) if isinstance(part, Tensor) else part
            raise InvalidParameterError(
                f"grad_sample of parameter {index}", shown, f"of shape (examples, *{tuple(param.shape)})"
            )
    return parts


def _rows(
    found: Sequence[list[Tensor | Factored] | None], examples: int | None
) -> list[Tensor | Factored | None]:
    """One tensor a parameter, one row an example.

    Several backward passes over one batch give every example several rows, several batches give it one, and
    the rows look alike. Only the number of examples tells which it was: rows of the same example are added
    before they are clipped.
    """
    lengths = [[len(part) for part in parts] for parts in found if parts is not None]
    if examples is None:
        if any(len(one) > 1 for one in lengths):
            raise UnsupportedCombinationError(
                f"per-example gradients of {max(map(len, lengths))} backward passes: those of one example "
                "may stand in several rows, each clipped by itself",
                supported="accumulate() after every backward pass over examples of its own, or "
                "accumulate(examples=...), the number of different examples in all of them",
            )
        return [None if parts is None else parts[0] if parts else None for parts in found]
    check_integer("examples", examples, minimum=0)
    formed = [
        None if parts is None else [one.formed() if isinstance(one, Factored) else one for one in parts]
        for parts in found
    ]
    if all(sum(one) == examples for one in lengths):
        return [None if parts is None else torch.cat(parts) for parts in formed]
    if all(length == examples for one in lengths for length in one):
        return [None if parts is None else torch.stack(parts).sum(dim=0) for parts in formed]
    raise InvalidParameterError(
        "examples",
        examples,
        f"what all backward passes together, or each of them, have for every parameter: they have "
        f"{sorted(set(map(tuple, lengths)))} rows",
    )
