"""Losses of one example: bare or as a batch of one, by a criterion, over several views, or of a user."""

import dataclasses
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn, where, zeros_like

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.optim.clipping import Batch, StandIn
from dpmech.optim.runs.clipping_choice import STAND_INS, stand_in
from dpmech.optim.runs.containers import tensors_of, with_parts
from dpmech.optim.runs.in_range import in_range
from dpmech.optim.state import spared


def check_loss(loss: object) -> None:
    """Raise unless the object can be called as a loss.

    Raises:
        InvalidParameterError: if it cannot be called, or is a class.
        UnsupportedCombinationError: for a criterion whose mean over one example is a different loss.
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
            supported="reduction='sum', with the weights divided by a public constant",
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
    """The loss of a model and a batch, or a criterion of the model's outputs.

    Raises:
        InvalidParameterError: for a criterion without positional inputs and targets.
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


class MeanOverViews:
    r"""A loss of one example that is the mean over views of it (augmentation multiplicity).

    The gradients of all views of an example are averaged **before** the mean is clipped. The contribution of
    an example has the same bound as without views, so sensitivity, noise and certificate are the same. The
    cost is that of the forward and backward passes of all views.

    Args:
        loss: `loss(model, *batch)`, the mean over a batch, or a criterion such as `nn.CrossEntropyLoss()`.
            Its batch consists of the views of one example.
        augment: creates views of the inputs, the first tensor of an example. It receives `views` copies,
            shape (views, ...), and returns the same number of views. It runs under torch.func, so it must
            consist of torch operations, without `.item()`; torch's random numbers differ between examples.
            None if the inputs of the dataset's examples already have a first dimension of views.
        views: number of views, at least 1; None only without `augment`.

    Raises:
        InvalidParameterError: on a bad argument, or, when called, if views are missing.
        UnsupportedCombinationError: for a criterion whose mean over one example is a different loss.

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
            raise InvalidParameterError("views", views, "None without augment: the inputs determine it")
        if augment is not None and not callable(augment):
            raise InvalidParameterError("augment", augment, "a function of views copies of the inputs")
        self.loss, self.augment = loss, augment
        self.views = None if augment is None else check_integer("views", views, minimum=1)

    def __call__(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        """The mean over the views of one example, given as a batch of one."""
        values = [*args, *kwargs.values()]
        first = next((value for value in values if isinstance(value, Tensor)), None)
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

        def repeated(value: Any) -> Any:
            if value is first:
                return seen
            if isinstance(value, Tensor):
                return value.expand(count, *value.shape[1:])
            return with_parts(value, repeated)

        given = {key: repeated(value) for key, value in kwargs.items()}
        value = applied(self.loss, model, [repeated(value) for value in args], given)
        return value.mean() if isinstance(value, torch.Tensor) and value.shape == (count,) else value


LossTakes: TypeAlias = Literal["auto", "batch_of_one", "example"]
_TAKES = ("auto", "batch_of_one", "example")


class ExampleLoss:
    """Calls the user's loss in the form that it expects.

    A model expects batches, so the loss receives its example as a batch of one: every tensor has a first
    dimension of 1. Losses that add that dimension themselves (`model(image[None])`) receive the example
    without it. Both forms are tried, without gradients, on examples of the same shapes and other values.

    Args:
        loss: `loss(model, *example)`, a scalar; or a criterion `loss(outputs, target)`: a module of
            torch.nn or a function of torch.nn.functional.
        takes: "auto", or the form that the loss takes.

    Raises:
        InvalidParameterError: if it is not callable, or for another `takes`.
        UnsupportedCombinationError: for a criterion whose mean over one example is a different loss.
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
        """Whether the form that the loss takes is known and was tried."""
        return self._batched is not None

    @property
    def takes_batches(self) -> bool:
        """Whether the loss, or that of a user's examples, receives an example as a batch of one."""
        return self._loss.takes_batches if isinstance(self._loss, UserLoss) else bool(self._batched)

    def __call__(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one example, given without a batch dimension."""
        return self._called(model, args, kwargs, batched=bool(self._batched))

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context in which a loss that takes batches of one receives what is passed as it is.

        The loss of a user's examples receives all of them at once.
        """
        if isinstance(self._loss, UserLoss):
            with self._loss.together():
                yield
            return
        before, self._batched = self._batched, False
        try:
            yield
        finally:
            self._batched = before

    @property
    def is_of_users(self) -> bool:
        """Whether an example is a user, with examples of its own."""
        return isinstance(self._loss, UserLoss)

    def resolve(
        self, model: Callable[..., Any], batch: Batch, begin: Callable[[], object] = lambda: None
    ) -> None:
        """Determine which form the loss takes, by stand-ins with the shapes of a batch's examples.

        The first of them on which it works in some form decides, so that no values of the data do.

        Args:
            model: the model.
            batch: whose shapes are used; it may be empty.
            begin: called before each trial, to undo what the one before left in the model.

        Raises:
            InvalidParameterError: if it fails on all of them in both forms.
            UnsupportedCombinationError: if the two forms give different results, so that the form is unknown.
        """
        if self._batched is not None and self._asked != "example":
            return
        # With gradients too, as some losses take them themselves.
        for number, mode in itertools.product(range(STAND_INS), (torch.no_grad, torch.enable_grad)):
            example = [tensor[0] for tensor in stand_in(batch.tensors, number)]
            given = batch.arguments(example)
            with mode():
                bare, whole = (
                    self._tried(model, example, *given, begin, batched=batched) for batched in (False, True)
                )
            if not (isinstance(bare, Exception) and isinstance(whole, Exception)):
                break
            if number == 0:
                first = whole
        else:
            raise self._failed(first) from first
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
                    f"the model does not treat one example like a batch of one: it gives "
                    f"{bare.shapes} against {whole.shapes}",
                    supported="a loss that passes the model a batch of one, model(x[None]), or "
                    "loss_takes='batch_of_one'",
                )
        elif bare.has_outputs_of(whole) and not bare.has_value_of(whole):
            raise UnsupportedCombinationError(
                f"the loss of one example is {bare.value:.6g} without a batch dimension, and "
                f"{whole.value:.6g} as a batch of one: it is unknown which is meant",
                supported="loss_takes='batch_of_one' or loss_takes='example'",
            )
        else:
            self._batched = True

    def _failed(self, error: Exception) -> InvalidParameterError:
        return InvalidParameterError(
            "loss",
            self._loss,
            f"{_ACCEPTED}; on one example it failed: {_shown(error)}. The example had random values, in "
            "(0, 1) and of several scales, and integers 0 and 1; where a loss accepts no such values, write "
            "it for a batch of one and say loss_takes='batch_of_one'",
        )

    def _called(self, model: Callable[..., Any], args: Any, kwargs: Any, *, batched: bool) -> Tensor:
        if batched:
            args, kwargs = _with_dimension(args), _with_dimension(kwargs)
        return applied(self._loss, model, args, kwargs)

    def _tried(
        self,
        model: Callable[..., Any],
        example: Sequence[Tensor],
        args: Any,
        kwargs: Any,
        begin: Callable[[], object],
        *,
        batched: bool,
    ) -> "_Outcome | Exception":
        seen: list[Tensor] = []
        given: list[tuple[int, ...]] = []

        def watched(*inputs: Any, **named: Any) -> Any:
            given.extend(tuple(one.shape) for one in tensors_of((inputs, named)))
            output = model(*inputs, **named)
            seen.extend(tensors_of(output))
            return output

        begin()
        try:
            with spared(), in_range():
                value = self._called(StandIn(model, watched), args, kwargs, batched=batched)
        except Exception as error:  # noqa: BLE001 - a loss or a model may raise anything on unexpected input
            return error
        if not isinstance(value, Tensor) or value.numel() != 1:
            shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            return InvalidParameterError("loss", shown, "a function that returns a scalar for one example")
        shapes = [tuple(one.shape) for one in example]
        return _Outcome(
            float(value.detach()) + 0.0,  # no -0
            [tuple(one.shape) for one in seen],
            adds_dimension=bool(given) and all((1, *shape) in given for shape in shapes[:1]),
        )


_ACCEPTED = (
    "a function loss(model, *example) of one example, such as lambda model, x, y: cross_entropy(model(x), "
    "y), where x and y are a batch of one"
)


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """The result of a loss on one example."""

    value: float
    shapes: list[tuple[int, ...]]
    adds_dimension: bool

    def has_outputs_of(self, batched: "_Outcome") -> bool:
        """Whether the outputs for a batch of one are those for one example with an additional dimension."""
        return [(1, *shape) for shape in self.shapes] == batched.shapes

    def has_value_of(self, batched: "_Outcome") -> bool:
        """Whether the losses agree up to rounding."""
        both = torch.tensor([self.value, batched.value], dtype=torch.float64)
        return torch.allclose(both[0], both[1], rtol=1e-2, atol=1e-5, equal_nan=True)


def _with_dimension(value: Any) -> Any:
    return value[None] if isinstance(value, Tensor) else with_parts(value, _with_dimension)


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


Reduction: TypeAlias = Literal["mean", "sum"]


class UserLoss:
    """The mean, or the sum, of the losses of a user's examples, whose gradient is clipped jointly.

    Args:
        loss: of one example, as for make_private.
        takes: as for make_private.
        reduction: "mean" or "sum" over the examples of a user.

    Raises:
        InvalidParameterError: on a bad argument.
    """

    def __init__(self, loss: Callable[..., Tensor], takes: LossTakes, reduction: Reduction) -> None:
        if reduction not in {"mean", "sum"}:
            raise InvalidParameterError("user_loss", reduction, "'mean' or 'sum'")
        self._loss = ExampleLoss(loss, takes)
        self._reduction = reduction
        self._together = False

    @property
    def takes_batches(self) -> bool:
        """As in ExampleLoss, for one of the examples."""
        return self._loss.takes_batches

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context in which the loss receives all examples of a user as one batch."""
        self._together = True
        try:
            with self._loss.together():
                yield
        finally:
            self._together = False

    def __call__(self, model: Callable[..., Any], *parts: Tensor) -> Tensor:
        """The loss of one user: parts of shape (m, ...), then the mask of shape (m,).

        Raises:
            InvalidParameterError: for other arguments.
        """
        *examples, mask = parts
        if mask.ndim != 1 or any(part.shape[:1] != mask.shape for part in examples):
            raise InvalidParameterError(
                "batch",
                [tuple(part.shape) for part in parts],
                "an item of a UserDataset: its parts and the mask",
            )
        if not self._loss.resolved:
            self._loss.resolve(model, Batch(tuple(part[:1] for part in examples), {}))
        if self._together:
            return self._loss(model, *examples)
        values = [
            self._loss(model, *(part[index] for part in examples)).reshape(())
            for index in range(mask.shape[0])
        ]
        # Placeholders of missing examples do not count, whatever their loss is.
        kept = [where(there > 0, value, zeros_like(value)) for there, value in zip(mask, values, strict=True)]
        total = kept[0]
        for value in kept[1:]:
            total = total + value
        return total / mask.sum() if self._reduction == "mean" else total
