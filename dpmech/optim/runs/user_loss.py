"""UserLoss: the loss of one user, from that of one example."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from torch import Tensor, where, zeros_like

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.clipping import Batch
from dpmech.optim.runs.example_loss import ExampleLoss, LossTakes

__all__ = ["Reduction", "UserLoss"]

Reduction: TypeAlias = Literal["mean", "sum"]


class UserLoss:
    """The mean, or the sum, of the losses of a user's examples, so that its gradient is clipped as one.

    Args:
        loss: of one example, as for make_private.
        takes: as for make_private.
        reduction: "mean" or "sum" over the examples that a user has.

    Raises:
        InvalidParameterError: on a bad argument.
    """

    def __init__(self, loss: Callable[..., Tensor], takes: LossTakes, reduction: Reduction) -> None:
        if reduction not in {"mean", "sum"}:
            raise InvalidParameterError("user_loss", reduction, "'mean' or 'sum'")
        self._loss = ExampleLoss(loss, takes)
        self._reduction = reduction

    def __call__(self, model: Callable[..., Any], *parts: Tensor) -> Tensor:
        """The loss of one user: parts of shape (m, ...), then the mask of shape (m,).

        Raises:
            InvalidParameterError: if that is not what it gets.
        """
        *examples, mask = parts
        if mask.ndim != 1 or any(part.shape[:1] != mask.shape for part in examples):
            raise InvalidParameterError(
                "batch",
                [tuple(part.shape) for part in parts],
                "what a UserDataset gives: its parts and the mask",
            )
        if not self._loss.resolved:
            self._loss.resolve(model, Batch(tuple(part[:1] for part in examples), {}))
        values = [
            self._loss(model, *(part[index] for part in examples)).reshape(())
            for index in range(mask.shape[0])
        ]
        # What stands in for an example that is not there counts for nothing, whatever its loss is.
        kept = [where(there > 0, value, zeros_like(value)) for there, value in zip(mask, values, strict=True)]
        total = kept[0]
        for value in kept[1:]:
            total = total + value
        return total / mask.sum() if self._reduction == "mean" else total
