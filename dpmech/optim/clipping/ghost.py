"""Taps: per-example factors of layers under torch.func, in place of their gradients."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.clipping.batches import spared_random_numbers
from dpmech.optim.clipping.factored import Factored, Piece
from dpmech.optim.clipping.layers import (
    bias_gradients,
    factors_of,
    has_factors,
    matrix_shape,
    positions_of,
    prefers_factors,
)

__all__ = ["Taps", "coverable"]


@dataclasses.dataclass(frozen=True, eq=False)
class _Use:
    """One call of a layer in the forward pass of one example."""

    layer: nn.Module
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclasses.dataclass(frozen=True, eq=False)
class _Plan:
    """Which calls of layers are tapped, for examples of one shape, and which parameters are not covered."""

    uses: list[_Use]
    layers: list[nn.Module]
    rest: list[int]


class Taps:
    """Adds zeros to what layers give, and takes the gradients in them: those of the output, by examples.

    With what went into a layer they make the gradient of its weight, which is never formed. Parameters of
    other layers, and weights whose gradients cost less than their factors, are differentiated as they are. So
    are the other uses of a tapped weight (tied by hand, in a regulariser), whenever they begin: while its
    layer runs, a constant stands in its place, and what is differentiated stands there for everyone else.

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
            values: of the trained parameters, in their order.
            tensors: of some examples, at least one.
        """
        before = _random_states(tensors)
        try:
            return self._samples(loss, values, tensors)
        except _CalledOtherwise:
            # Layers may come and go over a run. A run that goes on from a checkpoint plans anew as well, and
            # must draw the same random numbers.
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
                        f"what goes into layer {number}, a {type(uses[number].layer).__name__}, is changed "
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
        # Differentiable where the loss uses other models whose parameters require gradients.
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
        """What is tapped for examples of these shapes, by a forward pass of the first of them."""
        key = self._key(tensors)
        if key not in self._plans:
            uses: list[_Use] = []

            def hook(layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:  # noqa: ANN401 - torch's signature
                del args, kwargs
                uses.append(_Use(layer, tuple(output.shape), output.dtype, output.device))

            with torch.no_grad(), spared_random_numbers(tensors), _hooked(self._layers, hook):
                # Under vmap as above, so that the loss meets what it will meet.
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
        """Add the gradients of what parameters of tapped layers are used for beside their layers, if any."""
        tapped = [index for index in range(len(found)) if index not in plan.rest]
        if not tapped:
            return
        # Where nothing is used so, all examples share one tensor of zeros, and nothing large is looked at.
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
        """Factors of weights and gradients of biases, of all uses of each."""
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

    A parameter that also stands in a layer of another kind is not among them, nor are those of `without`.
    """
    wanted = {id(param) for param in trained}
    own = {layer: {id(param) for param in layer._parameters.values()} & wanted for layer in model.modules()}
    left = set(without).union(*(ids for layer, ids in own.items() if not has_factors(layer)))
    found = [layer for layer, ids in own.items() if ids and has_factors(layer)]
    while True:
        # A layer that shares a parameter with what is left to autograd is left to it whole.
        more = [layer for layer in found if own[layer] & left]
        if not more:
            return found, set[int]().union(*(own[layer] for layer in found))
        left = left.union(*(own[layer] for layer in more))
        found = [layer for layer in found if layer not in more]


@contextmanager
def _hooked(
    layers: Sequence[nn.Module], leave: Callable[..., Any], enter: Callable[..., None] | None = None
) -> Iterator[None]:
    # Inside of hooks of the caller's own, which may change what a layer gets and gives.
    handles = [layer.register_forward_hook(leave, prepend=True, with_kwargs=True) for layer in layers]
    if enter is not None:
        handles += [layer.register_forward_pre_hook(enter) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _CalledOtherwise(UnsupportedCombinationError):
    """Layers were called otherwise than planned."""


def _otherwise(layer: nn.Module, number: int) -> _CalledOtherwise:
    return _CalledOtherwise(
        f"the loss calls layer {number}, a {type(layer).__name__}, otherwise than for the first example of "
        "the batch",
        supported="losses whose layers depend on shapes alone, or clipping_mode='per_example'",
    )


def _random_states(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Of torch's generators, on the CPU and where these tensors are."""
    devices = sorted({one.device.index or 0 for one in tensors if one.device.type == "cuda"})
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def _set_random_states(tensors: Sequence[Tensor], states: Sequence[Tensor]) -> None:
    devices = sorted({one.device.index or 0 for one in tensors if one.device.type == "cuda"})
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=True):
        torch.cuda.set_rng_state(state, device)
