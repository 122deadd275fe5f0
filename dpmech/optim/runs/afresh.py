"""Afresh: a loss of which every call finds a model's attributes as they were before the batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from dpmech.optim.runs.attributes import Attributes

__all__ = ["Afresh"]


class Afresh:
    """Calls a loss so that no call sees what examples of an earlier one left in attributes of the model.

    A batch is several calls: one for each physical batch, and one of its first example alone where it is
    not known yet which layers a loss uses.

    Args:
        loss: `loss(model, *example)`.
        model: whose attributes are put back.
    """

    def __init__(self, loss: Callable[..., Tensor], model: nn.Module) -> None:
        self._loss = loss
        self._model = model
        self._before: Attributes | None = None
        self._called = False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """A block within which, and after which, tensors in attributes are put back."""
        self._before, self._called = Attributes(self._model), False
        try:
            yield
        finally:
            self._put_back()
            self._before = None

    def __call__(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401 - one example
        """The loss of one example."""
        if self._called:
            self._put_back()
        self._called = True
        return self._loss(model, *args, **kwargs)

    def _put_back(self) -> None:
        if self._before is not None:
            self._before.put_back(Attributes(self._model).changed(self._before, numbers=False))
