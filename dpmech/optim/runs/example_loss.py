"""ExampleLoss: the loss of one example, which comes as a batch of one or bare, as the loss expects it."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.clipping import Batch, spared_random_numbers
from dpmech.optim.runs.criteria import applied, check_loss, is_criterion
from dpmech.optim.runs.given import tensors_of
from dpmech.optim.runs.views import MeanOverViews

__all__ = ["ExampleLoss", "LossTakes"]

LossTakes: TypeAlias = Literal["auto", "batch_of_one", "example"]
_TAKES = ("auto", "batch_of_one", "example")


class ExampleLoss:
    """Calls the caller's loss as it wants to be called.

    A model expects batches, so the loss gets its example as a batch of one: every tensor with a first
    dimension of 1. Losses that add that dimension themselves (`model(image[None])`) get the example bare. The
    first example shows which kind a loss is: both are tried on it, without gradients.

    Args:
        loss: `loss(model, *example)`, one number; or a criterion `loss(outputs, target)`: a module of
            torch.nn or a function of torch.nn.functional.
        takes: "auto", or what the loss takes.

    Raises:
        InvalidParameterError: if it cannot be called, or on another `takes`.
        UnsupportedCombinationError: for a criterion whose mean over one example is another loss.
    """

    def __init__(self, loss: Callable[..., Tensor], takes: LossTakes = "auto") -> None:
        check_loss(loss)
        if takes not in _TAKES:
            raise InvalidParameterError("loss_takes", takes, f"one of {_TAKES}")
        of_batches = is_criterion(loss) or isinstance(loss, MeanOverViews)
        if of_batches and takes == "example":
            raise InvalidParameterError("loss_takes", takes, "'batch_of_one' for a criterion of batches")
        self._loss = loss
        self._asked = takes
        self._batched = {"auto": None, "batch_of_one": True, "example": False}[takes]
        if of_batches:
            self._batched = True

    @property
    def resolved(self) -> bool:
        """Whether it is known what the loss takes, and it has been tried."""
        return self._batched is not None

    def __call__(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401 - one example
        """The loss of one example, which comes bare."""
        return self._called(model, args, kwargs, batched=bool(self._batched))

    def resolve(self, model: Callable[..., Any], batch: Batch) -> None:
        """Find out what the loss takes from the first example of a batch.

        Raises:
            InvalidParameterError: if it fails on the example, in both forms.
            UnsupportedCombinationError: if the example alone and a batch of one give different results, and
                nothing tells which is meant.
        """
        example = [tensor[0] for tensor in batch.tensors]
        args, kwargs = batch.arguments(example)
        if self._batched is not None and self._asked != "example":
            return
        bare, whole = (self._tried(model, example, args, kwargs, batched=one) for one in (False, True))
        if isinstance(bare, Exception) and isinstance(whole, Exception):
            raise self._failed(whole) from whole
        adds_dimension = not isinstance(bare, Exception) and bare.adds_dimension
        if isinstance(bare, Exception):
            if self._asked == "example":
                raise self._failed(bare) from bare
            self._batched = True
        elif isinstance(whole, Exception) or adds_dimension:
            self._batched = False
        elif self._asked == "example":
            if not bare.has_outputs_of(whole):
                raise UnsupportedCombinationError(
                    f"the model takes one example for something else than a batch of one: it gives "
                    f"{bare.shapes} against {whole.shapes}",
                    supported="a loss that hands the model a batch of one, model(x[None]), or "
                    "loss_takes='batch_of_one'",
                )
        elif bare.has_outputs_of(whole) and not bare.has_value_of(whole):
            raise UnsupportedCombinationError(
                f"the loss of one example is {bare.value:.6g} where it comes bare, and {whole.value:.6g} "
                "where it comes as a batch of one: nothing tells which is meant",
                supported="loss_takes='batch_of_one' or loss_takes='example'",
            )
        else:
            self._batched = True

    def _failed(self, error: Exception) -> InvalidParameterError:
        return InvalidParameterError(
            "loss", self._loss, f"{_ACCEPTED}; on one example it failed: {_shown(error)}"
        )

    def _called(self, model: Callable[..., Any], args: Any, kwargs: Any, *, batched: bool) -> Tensor:  # noqa: ANN401 - one example
        if batched:
            args, kwargs = _with_dimension(args), _with_dimension(kwargs)
        return applied(self._loss, model, args, kwargs)

    def _tried(
        self,
        model: Callable[..., Any],
        example: Sequence[Tensor],
        args: Any,  # noqa: ANN401 - one example
        kwargs: Any,  # noqa: ANN401 - the same
        *,
        batched: bool,
    ) -> "_Outcome | Exception":
        seen: list[Tensor] = []
        given: list[tuple[int, ...]] = []

        def watched(*inputs: Any, **named: Any) -> Any:  # noqa: ANN401 - what the model takes and returns
            given.extend(tuple(one.shape) for one in tensors_of((inputs, named)))
            found = model(*inputs, **named)
            seen.extend(tensors_of(found))
            return found

        try:
            with torch.no_grad(), spared_random_numbers(example):
                value = self._called(watched, args, kwargs, batched=batched)
        except Exception as error:  # noqa: BLE001 - whatever a loss or a model raises on what it is not made for
            return error
        if not isinstance(value, Tensor) or value.numel() != 1:
            shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            return InvalidParameterError("loss", shown, "a function that gives one number for one example")
        shapes = [tuple(one.shape) for one in example]
        return _Outcome(
            float(value) + 0.0,  # no -0
            [tuple(one.shape) for one in seen],
            adds_dimension=bool(given) and all((1, *shape) in given for shape in shapes[:1]),
        )


_ACCEPTED = (
    "a function loss(model, *example) of one example, such as lambda model, x, y: cross_entropy(model(x), "
    "y), where x and y are a batch of one"
)


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What a loss gave on one example."""

    value: float
    shapes: list[tuple[int, ...]]
    adds_dimension: bool

    def has_outputs_of(self, batched: "_Outcome") -> bool:
        """Whether the model gave a batch of one what it gives one example, with a dimension more."""
        return [(1, *shape) for shape in self.shapes] == batched.shapes

    def has_value_of(self, batched: "_Outcome") -> bool:
        """Whether the losses agree up to roundings."""
        both = torch.tensor([self.value, batched.value], dtype=torch.float64)
        return torch.allclose(both[0], both[1], rtol=1e-2, atol=1e-5, equal_nan=True)


def _with_dimension(value: Any) -> Any:  # noqa: ANN401 - one example
    match value:
        case Tensor():
            return value[None]
        case dict():
            return {key: _with_dimension(one) for key, one in value.items()}
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*map(_with_dimension, value))
        case tuple() | list():
            return type(value)(map(_with_dimension, value))
        case _:
            return value


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
