"""Clipped sums by torch.func: full gradients of a few examples at a time, or only their factors."""

import dataclasses
import functools
import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.optim.clipping.clipped_sum import ClippedSum, clip_and_sum
from dpmech.optim.clipping.factored import (
    Factored,
    Piece,
    bias_gradients,
    factors_of,
    has_factors,
    matrix_shape,
    positions_of,
    prefers_factors,
)
from dpmech.optim.clipping.styles import Clipping, FlatClipping


class Batch:
    """The arguments of a loss, whose tensors have the examples along their first dimension.

    Tensors may be in tuples, lists and mappings, including those of transformers (a BatchEncoding becomes
    a dict); None stays None. Other values are refused: they belong to no single example, and values shared by
    the examples may depend on all of them.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.

    Attributes:
        tensors: all tensors, in order.

    Raises:
        InvalidParameterError: if there is no tensor, if numbers of examples differ, or on other values.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.tensors: list[Tensor] = []
        self._build = (
            _taken("batch", tuple(args), self.tensors),
            _taken("batch", dict(kwargs), self.tensors),
        )
        lengths = {tensor.shape[0] for tensor in self.tensors if tensor.ndim}
        if len(lengths) != 1 or any(tensor.ndim == 0 for tensor in self.tensors):
            shown = [tuple(tensor.shape) for tensor in self.tensors]
            raise InvalidParameterError(
                "batch", shown, "tensors with the same number of examples, at least one"
            )
        self.examples = lengths.pop()

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the tensors replaced."""
        left = iter(tensors)
        args, kwargs = (build(left) for build in self._build)
        return args, kwargs


def _taken(name: str, value: Any, found: list[Tensor]) -> Callable[[Any], Any]:  # noqa: ANN401 - any batch
    """Append the tensors of a value to a list; returns a function that rebuilds it from an iterator."""
    if isinstance(value, Tensor):
        found.append(value)
        return next
    if value is None:
        return lambda _: None
    if isinstance(value, Mapping):
        parts = {key: _taken(f"{name}[{key!r}]", one, found) for key, one in value.items()}
        return lambda left: {key: build(left) for key, build in parts.items()}
    if isinstance(value, tuple | list):
        inner = [_taken(f"{name}[{number}]", one, found) for number, one in enumerate(value)]
        kind: Any = type(value)
        if hasattr(value, "_fields"):
            return lambda left: kind(*(build(left) for build in inner))
        return lambda left: kind(build(left) for build in inner)
    raise InvalidParameterError(
        name,
        type(value).__name__,
        "tensors with the same number of examples, which come first, in tuples, lists and dicts; or None",
    )


@contextmanager
def spared_random_numbers(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore torch's random states, on the CPU and the devices of these tensors, on exit."""
    devices = sorted({tensor.device.index or 0 for tensor in tensors if tensor.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        yield


@dataclasses.dataclass(frozen=True, eq=False)
class _Use:
    """One call of a layer in the forward pass of one example."""

    layer: nn.Module
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclasses.dataclass(frozen=True, eq=False)
class _Plan:
    """The tapped calls of layers, for examples of one shape, and the parameters that are not covered."""

    uses: list[_Use]
    layers: list[nn.Module]
    rest: list[int]


class Taps:
    """Adds zeros to the outputs of layers, and takes their gradients: those of the outputs, per example.

    With the inputs of a layer they give the gradient of its weight, which is never formed. Parameters of
    other layers, and weights whose gradients are cheaper than their factors, are differentiated directly. So
    are the other uses of a tapped weight (tied explicitly, in a regularizer), whenever they begin: while its
    layer runs, the weight is replaced by a constant, and elsewhere by the variable to differentiate.

    Args:
        model: the model.
        trained: its parameters that require gradients.
    """

    def __init__(self, model: nn.Module, trained: Sequence[Tensor]) -> None:
        self._model = model
        self._trained = list(trained)
        self._index = {id(param): index for index, param in enumerate(trained)}
        self._layers, _ = coverable(model, trained)
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def samples(
        self, loss: Callable[..., Tensor], values: dict[str, Tensor], tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor | Factored | None], Tensor]:
        """Factors or gradients of every parameter, and the losses.

        Args:
            loss: `loss(values, *example)`.
            values: of the trained parameters, in order.
            tensors: of some examples, at least one.
        """
        before = _random_states(tensors)
        try:
            return self._samples(loss, values, tensors)
        except _CalledOtherwise:
            # Layers may appear and disappear during a run. A resumed run plans again as well, and must draw
            # the same random numbers.
            self._plans.pop(self._key(tensors))
            _set_random_states(tensors, before)
            return self._samples(loss, values, tensors)

    def _samples(
        self, loss: Callable[..., Tensor], values: dict[str, Tensor], tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor | Factored | None], Tensor]:
        plan = self.plan(loss, values, tensors)
        uses, names = plan.uses, list(values)
        zeros = [torch.zeros(use.shape, dtype=use.dtype, device=use.device) for use in uses]
        constants: dict[nn.Module, dict[str, Any]] = {
            layer: {
                place: values[names[self._index[id(param)]]]
                for place, param in layer._parameters.items()
                if id(param) in self._index
            }
            for layer in plan.layers
        }

        def tapped(
            taps: list[Tensor], own: dict[str, Tensor], *example: Tensor
        ) -> tuple[Tensor, list[Tensor]]:
            given: list[Tensor] = []
            versions: list[int] = []
            others: dict[str, Any] = {}

            def enter(layer: nn.Module, *_: object) -> None:
                others.update(layer._parameters)
                layer._parameters.update(constants[layer])

            def leave(layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:  # noqa: ANN401 - torch's signature
                layer._parameters.update(others)
                others.clear()
                number = len(given)
                if number >= len(uses) or (layer, output.shape) != (uses[number].layer, uses[number].shape):
                    raise _otherwise(layer, number)
                given.append(args[0] if args else next(iter(kwargs.values())))
                versions.append(given[-1]._version)
                return output + taps[number]

            with _hooked(plan.layers, leave, enter):
                value = loss(own, *example)
            if len(given) != len(uses):
                raise _otherwise(uses[len(given)].layer, len(given))
            for number, (inputs, version) in enumerate(zip(given, versions, strict=True)):
                if inputs._version != version:
                    raise UnsupportedCombinationError(
                        f"the input of layer {number}, a {type(uses[number].layer).__name__}, is changed "
                        "in place after it, so that the gradient of its weight does not follow from it",
                        supported="operations that make a new tensor, or clipping_mode='per_example'",
                    )
            return value, given

        per_example: Any = torch.func.vmap(
            torch.func.grad_and_value(tapped, argnums=(0, 1), has_aux=True),
            in_dims=(None, None, *[0] * len(tensors)),
            randomness="different",
        )
        (outputs, own), (losses, given) = per_example(zeros, values, *tensors)
        # Differentiable if the loss uses other models whose parameters require gradients.
        outputs, given = ([one.detach() for one in each] for each in (outputs, given))
        gradients = [own[name].detach() for name in names]
        found: list[Tensor | Factored | None] = [None] * len(self._trained)
        for index in plan.rest:
            found[index] = gradients[index]
        with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
            self._put_together(found, uses, outputs, given)
            self._add_other_uses(found, plan, gradients)
        return found, losses

    def plan(
        self, loss: Callable[..., Tensor], values: Mapping[str, Tensor], tensors: Sequence[Tensor]
    ) -> _Plan:
        """The plan for examples of these shapes, from a forward pass of the first of them."""
        key = self._key(tensors)
        if key not in self._plans:
            uses: list[_Use] = []

            def hook(layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:  # noqa: ANN401 - torch's signature
                del args, kwargs
                uses.append(_Use(layer, tuple(output.shape), output.dtype, output.device))

            with torch.no_grad(), spared_random_numbers(tensors), _hooked(self._layers, hook):
                # Under vmap as above, for the same conditions as in training.
                torch.func.vmap(lambda *example: loss(values, *example), randomness="different")(
                    *(tensor[:1] for tensor in tensors)
                )
            self._plans[key] = self._planned(uses)
        return self._plans[key]

    def _key(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        return (self._model.training, *((tensor.shape[1:], tensor.dtype) for tensor in tensors))

    def _planned(self, uses: list[_Use]) -> _Plan:
        positions: dict[int, int] = {}
        for use in uses:
            weight = use.layer._parameters["weight"]
            positions[id(weight)] = positions.get(id(weight), 0) + positions_of(use.layer, use.shape)
        left = {
            id(param)
            for param in self._trained
            if id(param) in positions and not prefers_factors(positions[id(param)], *matrix_shape(param))
        }
        layers, covered = coverable(self._model, self._trained, left)
        used = [use for use in uses if use.layer in layers]
        return _Plan(
            used, layers, [index for index, param in enumerate(self._trained) if id(param) not in covered]
        )

    def _add_other_uses(
        self, found: list[Tensor | Factored | None], plan: _Plan, gradients: Sequence[Tensor]
    ) -> None:
        """Add the gradients of uses of parameters outside their tapped layers, if any."""
        tapped = [index for index in range(len(found)) if index not in plan.rest]
        if not tapped:
            return
        # Without such uses all examples share one tensor of zeros, so that the check is cheap.
        shared = [gradients[index] for index in tapped]
        ends = [(one[:1] if one.stride(0) == 0 else one).aminmax() for one in shared]
        device = ends[0][0].device
        used = torch.stack([((low != 0) | (high != 0)).to(device) for low, high in ends]).tolist()
        for index, gradient, one in zip(tapped, shared, used, strict=True):
            if one:
                before = found[index]
                formed = before.formed() if isinstance(before, Factored) else before
                found[index] = gradient if formed is None else formed + gradient

    def _put_together(
        self,
        found: list[Tensor | Factored | None],
        uses: Sequence[_Use],
        outputs: Sequence[Tensor],
        given: Sequence[Tensor],
    ) -> None:
        """Combine factors of weights and gradients of biases over all of their uses."""
        pieces: dict[int, list[Piece]] = {}
        for use, gradient, inputs in zip(uses, outputs, given, strict=True):
            parameters = use.layer._parameters
            weight, bias = (self._index.get(id(parameters.get(name))) for name in ("weight", "bias"))
            if weight is not None:
                pieces.setdefault(weight, []).append(factors_of(use.layer, inputs, gradient))
            if bias is not None:
                one, before = bias_gradients(use.layer, gradient), found[bias]
                found[bias] = before + one if isinstance(before, Tensor) else one
        for index, parts in pieces.items():
            found[index] = Factored(parts, tuple(self._trained[index].shape))


def coverable(
    model: nn.Module, trained: Sequence[Tensor], without: Collection[int] = ()
) -> tuple[list[nn.Module], set[int]]:
    """The layers whose trained parameters have factors, and the identities of those parameters.

    Parameters that also occur in a layer of another kind are excluded, and so are those of `without`.
    """
    wanted = {id(param) for param in trained}
    own = {layer: {id(param) for param in layer._parameters.values()} & wanted for layer in model.modules()}
    left = set(without).union(*(ids for layer, ids in own.items() if not has_factors(layer)))
    covered = [layer for layer, ids in own.items() if ids and has_factors(layer)]
    while True:
        # A layer that shares a parameter with layers left to autograd is left to it entirely.
        more = [layer for layer in covered if own[layer] & left]
        if not more:
            return covered, set[int]().union(*(own[layer] for layer in covered))
        left = left.union(*(own[layer] for layer in more))
        covered = [layer for layer in covered if layer not in more]


@contextmanager
def _hooked(
    layers: Sequence[nn.Module], leave: Callable[..., Any], enter: Callable[..., None] | None = None
) -> Iterator[None]:
    # Inside of the user's hooks, which may change the inputs and outputs of a layer.
    handles = [layer.register_forward_hook(leave, prepend=True, with_kwargs=True) for layer in layers]
    if enter is not None:
        handles += [layer.register_forward_pre_hook(enter) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _CalledOtherwise(UnsupportedCombinationError):
    """Layers were called differently than planned."""


def _otherwise(layer: nn.Module, number: int) -> _CalledOtherwise:
    return _CalledOtherwise(
        f"the loss calls layer {number}, a {type(layer).__name__}, otherwise than for the first example of "
        "the batch",
        supported="losses whose layers depend only on shapes, or clipping_mode='per_example'",
    )


def _random_states(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The states of torch's generators on the CPU and the devices of these tensors."""
    devices = sorted({one.device.index or 0 for one in tensors if one.device.type == "cuda"})
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def _set_random_states(tensors: Sequence[Tensor], states: Sequence[Tensor]) -> None:
    devices = sorted({one.device.index or 0 for one in tensors if one.device.type == "cuda"})
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=True):
        torch.cuda.set_rng_state(state, device)


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
        model: any module that processes examples independently (no batch normalization) and works
            under `torch.func.vmap`.
        loss: `loss(model, *example)` of one example, without a batch dimension; a scalar. It must call the
            model that it receives, not the one outside.
        batch: tensors with the examples along their first dimension, in tuples, lists and dicts; a dict is
            passed as keyword arguments. It may be empty.
        clipping: how to clip, or a clip norm. Blocks given in order follow the order of the model's
            parameters that require gradients.
        microbatch_size: number of examples to differentiate at once; None for all of them. Memory grows
            with it, the result changes in the last bits only.
        weights: None, or a tensor of zeros and ones, shape (examples,): examples with 0 are excluded, as
            padding must be. Other weights would undo the clipping.
        clipping_mode: "per_example" forms the gradient of every example; "ghost" computes norms and sums of
            linear layers, convolutions and embeddings from their inputs and output gradients, with the same
            result up to rounding.

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
    """Per-example gradients of a model and its loss, by `torch.func`.

    Args:
        model: as for `clipped_gradients`.
        loss: as for `clipped_gradients`.
        ghost: whether to compute factors instead of gradients if that is cheaper.

    Raises:
        InvalidParameterError: if the model is not a module, or has no parameters that require gradients.
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
        """The sum of clipped gradients, and the losses, shape (examples,); without noise: raw data."""
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
            summed = clip_and_sum(samples, blocks)
            sums = [_added(total, term) for total, term in zip(sums, summed.sums, strict=True)]
            dropped, below, above = dropped + summed.dropped, below + summed.below, above + summed.above
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
        """Refuse losses that depend on trained parameters other than through the given model.

        The given model uses other tensors; anything else that is differentiable is a constant for per-example
        gradients, and is found in the autograd graph.
        """
        if not losses.requires_grad:
            return
        name_of = {id(param): name for name, param in zip(self.names, self.trained, strict=True)}
        missed = sorted({name_of[id(leaf)] for leaf in _leaves(losses) if id(leaf) in name_of})
        if missed:
            raise UnsupportedCombinationError(
                f"the loss uses {', '.join(missed[:3])} outside the model that it gets, which per-example "
                "gradients do not include",
                supported="a loss that calls the model it is given; regularizers in the model's forward, or "
                "by weight_decay of the optimizer",
            )

    def covered_values(self, batch: Batch, tensors: Sequence[Tensor]) -> int:
        """Number of weights with factors instead of gradients, for examples of these shapes."""
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
            raise InvalidParameterError("loss", shown, "a function that returns a scalar for one example")
        return value.reshape(())


@contextmanager
def _explained() -> Iterator[None]:
    """Explain errors of torch.func.vmap and their remedy, with the location in the model."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        for part, (what, remedy) in _REASONS.items():
            if part in text:
                raise UnsupportedCombinationError(
                    f"{what}, which torch.func.vmap does not support{_place(error)}", supported=remedy
                ) from error
        raise


_HOOKS = "make_private without a loss, for the loop of Opacus, with ordinary forward passes"
_CHECKPOINTING = (
    "the model runs parts of itself again (gradient checkpointing)",
    "a model without it, and max_physical_batch_size, or 'auto', to reduce memory",
)
_REASONS = {
    "data-dependent control flow": (
        "the model branches on values of the data, or on random numbers (layer drop)",
        "torch.where, and layerdrop=0; for transformers attn_implementation='eager', for encoders such as "
        "BERT a mask of four dimensions too: loss=dpmech.optim.hf.masked_loss, of make_private or of "
        "PrivateTrainer's Privacy; or " + _HOOKS,
    ),
    "requires_grad_()": _CHECKPOINTING,
    "saved tensor hooks": _CHECKPOINTING,
    "setup_context": (
        "the model uses an autograd.Function without setup_context (such as gradient checkpointing with "
        "use_reentrant=True)",
        "a model without checkpointing, and max_physical_batch_size, or 'auto', to reduce memory; for your "
        "own function a setup_context and generate_vmap_rule=True",
    ),
    ".item()": (
        "the model reads a value of a tensor",
        "code that avoids it; or " + _HOOKS,
    ),
    "Batching rule not implemented": (
        "the model calls a kernel without a rule",
        "other layers; or " + _HOOKS,
    ),
    "dynamic shape": (
        "the model makes tensors whose shapes depend on the data",
        "code with fixed shapes (torch.where instead of indexing by a mask); or " + _HOOKS,
    ),
}


def _place(error: BaseException) -> str:
    """The innermost line outside of torch, in the model or the loss."""
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
    """Every tensor of a model by name: tied tensors have several names, a shared layer only one.

    (functional_call itself would replace a shared layer's tensors twice, and restore them once.)
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
    """The tensors with requires_grad from which a value was computed."""
    left, seen = [value.grad_fn], set()
    while left:
        node: Any = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        left.extend(one for one, _ in node.next_functions)
