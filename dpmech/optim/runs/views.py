"""MeanOverViews: the loss of one example as the mean over several augmented views of it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.optim.runs.criteria import applied, check_loss

__all__ = ["MeanOverViews"]


class MeanOverViews:
    r"""A loss of one example that is the mean over views of it (augmentation multiplicity).

    The gradients of all views of an example are averaged **before** the mean is clipped, so that an example
    adds what it adds without views: sensitivity, noise and certificate stay as they are. It costs the forward
    and backward passes of all views.

    Args:
        loss: `loss(model, *batch)`, the mean over a batch, or a criterion such as `nn.CrossEntropyLoss()`. It
            gets the views of one example as a batch.
        augment: makes views of the inputs, the first tensor of an example: it gets `views` copies, shape
            (views, ...), and returns as many. It runs under torch.func, so that it consists of operations of
            torch, without `.item()`; random numbers of torch differ for every example. None where the dataset
            hands out examples whose inputs have a first dimension of views already.
        views: how many, at least 1; None only without `augment`.

    Raises:
        InvalidParameterError: on a bad argument, or, when called, if views are missing.
        UnsupportedCombinationError: for a criterion whose mean over one example is another loss.

    Examples:
        >>> import torch
        >>> from dpmech.optim import MeanOverViews
        >>> noisy = MeanOverViews(torch.nn.MSELoss(), lambda x: x + 0.1 * torch.randn_like(x), 8)
        >>> one = torch.nn.Linear(3, 1), torch.randn(1, 3), torch.randn(1, 1)
        >>> noisy(*one).shape
        torch.Size([])

    References:
        De, Berrada, Hayes, Smith, Balle 2022, arXiv:2204.13650v2, section 3 (augmentation multiplicity).
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        augment: Callable[[Tensor], Tensor] | None = None,
        views: int | None = None,
    ) -> None:
        check_loss(loss)
        if augment is None and views is not None:
            raise InvalidParameterError("views", views, "None without augment: the inputs say how many")
        if augment is not None and not callable(augment):
            raise InvalidParameterError("augment", augment, "a function of views copies of the inputs")
        self.loss, self.augment = loss, augment
        self.views = None if augment is None else check_integer("views", views, minimum=1)

    def __call__(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401 - an example
        """The mean over the views of one example, which comes as a batch of one."""
        values = [*args, *kwargs.values()]
        first = next((one for one in values if isinstance(one, Tensor)), None)
        if first is None:
            raise InvalidParameterError("batch", values, "with tensors by position or by name, inputs first")
        if self.augment is None:
            if first.ndim < 2 or first.shape[1] < 1:
                raise InvalidParameterError(
                    "inputs of one example", tuple(first.shape[1:]), "of shape (views, ...), from the dataset"
                )
            seen = first[0]
        else:
            seen = self.augment(first.expand(self.views or 1, *first.shape[1:]))
            if not isinstance(seen, Tensor) or not seen.ndim or seen.shape[0] != self.views:
                shown = tuple(seen.shape) if isinstance(seen, Tensor) else type(seen).__name__
                raise InvalidParameterError("what augment returns", shown, f"{self.views} views, one a row")
        count = seen.shape[0]

        def repeated(value: Any) -> Any:  # noqa: ANN401 - a part of an example
            if value is first:
                return seen
            if isinstance(value, Tensor):
                return value.expand(count, *value.shape[1:])
            if isinstance(value, Mapping):
                return {key: repeated(one) for key, one in value.items()}
            if isinstance(value, tuple | list):
                return [repeated(one) for one in value]
            return value

        given = {key: repeated(one) for key, one in kwargs.items()}
        value = applied(self.loss, model, [repeated(one) for one in args], given)
        return value.mean() if isinstance(value, torch.Tensor) and value.shape == (count,) else value
