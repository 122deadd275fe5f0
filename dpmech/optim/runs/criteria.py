"""Criteria of outputs and targets, in place of a loss of model and example."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError

__all__ = ["applied", "check_loss", "is_criterion"]


def check_loss(loss: object) -> None:
    """Raise unless it can be called as a loss.

    Raises:
        InvalidParameterError: if it cannot be called, or is a class.
        UnsupportedCombinationError: for a criterion whose mean over one example is another loss.
    """
    if not callable(loss):
        raise InvalidParameterError(
            "loss",
            loss,
            "a function loss(model, *example) of one example, a criterion such as nn.CrossEntropyLoss(), "
            "or None",
        )
    if isinstance(loss, type):
        raise InvalidParameterError("loss", loss, f"an instance, {loss.__name__}(), not its class")
    if (
        isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
        and isinstance(loss.weight, Tensor)
        and loss.reduction == "mean"
    ):
        raise UnsupportedCombinationError(
            f"{type(loss).__name__} with class weights and reduction='mean': over one example it divides by "
            "the weight of its class, which cancels it",
            supported="reduction='sum', with the weights divided by what they should be divided by",
        )


def is_criterion(loss: object) -> bool:
    """Whether it takes outputs and targets: a module of torch.nn, or a function of torch.nn.functional."""
    if isinstance(loss, nn.Module):
        return True
    return isinstance(loss, types.FunctionType | types.BuiltinFunctionType) and (
        getattr(nn.functional, loss.__name__, None) is loss
    )


def applied(
    loss: Callable[..., Tensor], model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Tensor:
    """The loss of a model and a batch, or a criterion of what the model gives it.

    Raises:
        InvalidParameterError: for a criterion without inputs and targets by position.
    """
    if not is_criterion(loss):
        return loss(model, *args, **kwargs)
    if kwargs or len(args) < 2:
        raise InvalidParameterError(
            "loss",
            loss,
            "for batches like this a function such as lambda model, **example: model(**example).loss; a "
            "criterion takes model.backward(inputs, targets)",
        )
    return loss(model(*args[:-1]), args[-1])
