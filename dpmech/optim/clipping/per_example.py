"""Clipped sums: by torch.func full gradients of a few examples at once or their factors, or one by one."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.optim.clipping.batch import Batch
from dpmech.optim.clipping.clipped_sum import ClippedSum, Count, clip_and_sum, together
from dpmech.optim.clipping.factored import (
    Factored,
    bias_gradients,
    factors_of,
    has_factors,
    matrix_shape,
    positions_of,
    prefers_factors,
)
from dpmech.optim.clipping.norms import Piece
from dpmech.optim.clipping.styles import Clipping, FlatClipping
from dpmech.optim.clipping.vmapping import UnfollowedError, followed, reentrant
from dpmech.optim.state import Afresh, spared, stored_globals


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
        factor_cost: as for `prefers_factors`.

    Attributes:
        lowest: the dtype of autocast if a layer ran under it.
    """

    def __init__(self, model: nn.Module, trained: Sequence[Tensor], factor_cost: float = 1.0) -> None:
        self._factor_cost = factor_cost
        self.lowest: torch.dtype | None = None
        self._model = model
        self._trained = list(trained)
        self._index = {id(param): index for index, param in enumerate(trained)}
        self._layers, _ = coverable(model, trained)
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def samples(
        self, loss: Callable[..., Tensor], values: dict[str, Tensor], tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor | Factored | None], Tensor]:
        """Factors or gradients of every parameter, and the losses."""
        restore = stored_globals()
        try:
            return self._samples(loss, values, tensors)
        except _CalledOtherwise:
            # Layers may appear and disappear during a run. A resumed run plans again as well, and must draw
            # the same random numbers.
            self._plans.pop(self._key(tensors))
            restore()
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

        elsewhere: set[str] = set()  # names of parameters whose gradients do not only come from taps

        def tapped(
            taps: list[Tensor], own: dict[str, Tensor], *example: Tensor
        ) -> tuple[Tensor, list[Tensor]]:
            for name, value in own.items():
                value.register_hook(lambda _, name=name: elsewhere.add(name))  # type: ignore[no-untyped-call]  # torch's
            given: list[Tensor] = []
            versions: list[int] = []
            others: dict[str, Any] = {}

            def enter(layer: nn.Module, *_: object) -> None:
                others.update(layer._parameters)
                layer._parameters.update(constants[layer])

            def leave(layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
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

        losses, (outputs, own), given = _of_each(
            lambda given, *example: tapped(*given, *example), (zeros, values), tensors
        )
        # Differentiable if the loss uses other models whose parameters require gradients.
        outputs, given = ([one.detach() for one in each] for each in (outputs, given))
        gradients = [own[name].detach() for name in names]
        found: list[Tensor | Factored | None] = [None] * len(self._trained)
        for index in plan.rest:
            found[index] = gradients[index]
        with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
            self._put_together(found, uses, outputs, given)
            for index in {names.index(one) for one in elsewhere}.difference(plan.rest):
                before = found[index]
                formed = before.formed() if isinstance(before, Factored) else before
                found[index] = gradients[index] if formed is None else formed + gradients[index]
        return found, losses

    def plan(
        self, loss: Callable[..., Tensor], values: Mapping[str, Tensor], tensors: Sequence[Tensor]
    ) -> _Plan:
        """The plan for examples of these shapes, from a forward pass of the first of them."""
        key = self._key(tensors)
        if key not in self._plans:
            uses: list[_Use] = []

            def hook(layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
                del args, kwargs
                kind = output.device.type
                self.lowest = (
                    torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.lowest
                )
                uses.append(_Use(layer, tuple(output.shape), output.dtype, output.device))

            with torch.no_grad(), spared(), _hooked(self._layers, hook):
                # Under vmap and differentiated as above, for the same conditions as in training: under vmap
                # alone autocast leaves the inputs of attention as they are.
                def forward(*example: Tensor) -> Tensor:
                    value: Tensor = torch.func.vjp(lambda own: loss(own, *example), dict(values))[0]
                    return value

                torch.func.vmap(forward, randomness="different")(*(tensor[:1] for tensor in tensors))
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
            if id(param) in positions
            and not prefers_factors(
                positions[id(param)], *matrix_shape(param), param.device, self._factor_cost
            )
        }
        layers, covered = coverable(self._model, self._trained, left)
        used = [use for use in uses if use.layer in layers]
        return _Plan(
            used, layers, [index for index, param in enumerate(self._trained) if id(param) not in covered]
        )

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


def _of_each(loss: Callable[..., Any], shared: Any, tensors: Sequence[Tensor]) -> tuple[Tensor, Any, Any]:
    """Losses of all examples, their gradients in tensors that all share, and what else the loss returns.

    As `torch.func.grad_and_value`, which also records the backward pass and keeps everything that it used.
    """

    def of_one(*example: Tensor) -> tuple[Tensor, Any, Any]:
        run: Any = torch.func.vjp(lambda given: loss(given, *example), shared, has_aux=True)
        value, backward, other = run
        return value, backward(torch.ones_like(value), retain_graph=False, create_graph=False)[0], other

    per_example: Any = torch.func.vmap(of_one, randomness="different")
    found: tuple[Tensor, Any, Any] = per_example(*tensors)
    return found


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


ClippingMode: TypeAlias = Literal["per_example", "ghost", "loop"]
MODES: tuple[ClippingMode, ...] = ("per_example", "ghost", "loop")


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

    Changes that a call makes to attributes and buffers of the model, or to objects that the loss refers to,
    are reverted before the next call and at the end, so that no example affects the gradient of another.

    Args:
        model: any module that processes examples independently (no batch normalization) and, unless
            clipping_mode is "loop", works under `torch.func.vmap`.
        loss: `loss(model, *example)` of one example, without a batch dimension; a scalar. It must call the
            model that it receives, not the one outside.
        batch: tensors with the examples along their first dimension, in tuples, lists and dicts; a dict is
            passed as keyword arguments. It may be empty.
        clipping: how to clip, or a clip norm. Blocks given in order follow the order of the model's
            parameters that require gradients.
        microbatch_size: number of examples to differentiate at once; None for all of them. Memory grows with
            this number, and the result changes in the last bits only.
        weights: None, or a tensor of zeros and ones, shape (examples,): examples with 0 are excluded, as
            padding must be. Other weights would undo the clipping.
        clipping_mode: "per_example" forms the gradient of every example; "ghost" computes norms and sums of
            linear layers, convolutions and embeddings from their inputs and output gradients; "loop" runs the
            model on one example at a time, without `torch.func`, which is slow but works for any model. The
            result is the same up to rounding.

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
    if clipping_mode not in MODES:
        raise InvalidParameterError("clipping_mode", clipping_mode, f"one of {MODES}")
    if isinstance(batch, Mapping):
        taken = Batch((), batch)
    else:
        taken = Batch((batch,) if isinstance(batch, Tensor) else batch, {})
    # There is no later look at the model's contents, as there is by make_private.
    # In a loop a loss sees the values of its example, and could seed the draws of others.
    afresh = Afresh(loss, model, seeds="own" if clipping_mode == "loop" else None, buffers=True)
    gradients = ExampleGradients(model, afresh, clipping_mode)
    clip = clipping if isinstance(clipping, Clipping) else FlatClipping(clipping)
    clip = clip.over(gradients.trained, gradients.names)
    with afresh.batch():
        return gradients.clipped(taken, clip, microbatch_size=microbatch_size, weights=weights, lent=True)[0]


class ExampleGradients:
    """Per-example gradients of a model and its loss.

    Args:
        model: as for `clipped_gradients`.
        loss: calls one as for `clipped_gradients`.
        mode: as for `clipped_gradients`; "ghost" computes factors where they are cheaper.
        factor_cost: as for `prefers_factors`.
        owner: returns the parameter that is clipped and stepped in place of one of the model.

    Raises:
        InvalidParameterError: if the model is not a module, or has no parameters that require gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Afresh,
        mode: ClippingMode,
        factor_cost: float = 1.0,
        owner: Callable[[Tensor], Tensor] = lambda param: param,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidParameterError("model", model, "a torch.nn.Module")
        self._model = model
        self._alone = mode == "loop"
        self._loss = loss
        params = dict(model.named_parameters())
        self.names = [name for name, param in params.items() if param.requires_grad]
        self.trained = [params[name] for name in self.names]
        if not self.trained:
            raise InvalidParameterError("model", model, "a module with parameters that require gradients")
        self.owners = [owner(param) for param in self.trained]
        name_of = {id(param): name for name, param in zip(self.names, self.trained, strict=True)}
        places = _places(model)
        self._tied = {place: name_of[id(one)] for place, one in places.items() if id(one) in name_of}
        self._fixed = {place: one.detach() for place, one in places.items() if place not in self._tied}
        self._taps = Taps(model, self.trained, factor_cost) if mode == "ghost" else None

    def clipped(
        self,
        batch: Batch,
        clip: Clipping,
        *,
        microbatch_size: int | None = None,
        weights: Tensor | None = None,
        lent: bool = False,
        read: bool = True,
    ) -> tuple[ClippedSum, Tensor]:
        """The sum of clipped gradients, and the losses, shape (examples,); without noise: raw data.

        With `read` its counts are numbers, for which the host waits; else they may be tensors.
        """
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
        size = 1 if self._alone else size
        blocks = clip.blocks(self.owners)
        sums: list[Tensor | None] = [None] * len(self.trained)
        losses = []
        counts: list[Count] = [0, 0, 0]
        for start in range(0, length, max(size, 1)):
            part = [tensor[start : start + size] for tensor in tensors]
            self._loss.next_part()
            samples, values = self.samples(batch, part)
            summed = clip_and_sum(samples, blocks)
            sums = [_added(total, term) for total, term in zip(sums, summed.sums, strict=True)]
            more = (summed.dropped, summed.below, summed.above)
            counts = [count + new for count, new in zip(counts, more, strict=True)]
            losses.append(values)
        dropped, below, above = map(int, together(counts).tolist()) if read else counts
        total = ClippedSum(
            self.owners,
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
        """Gradients or factors of all parameters, and losses, of some of a batch's examples."""
        if self._alone:
            return self._of_one(batch, tensors)
        values = {name: param.detach() for name, param in zip(self.names, self.trained, strict=True)}
        loss = functools.partial(self._example_loss, batch)
        samples: list[Tensor | Factored | None]
        with followed():
            if self._taps is not None:
                samples, losses = self._taps.samples(loss, values, tensors)
            else:
                losses, gradients, _ = _of_each(lambda *given: (loss(*given), ()), values, tensors)
                samples = [gradients[name].detach() for name in self.names]
            self._check_complete(losses)
        return samples, losses.detach()

    def _of_one(
        self, batch: Batch, tensors: Sequence[Tensor]
    ) -> tuple[list[Tensor | Factored | None], Tensor]:
        """An ordinary backward pass of one example; None for a parameter that its loss does not use."""
        args, kwargs = batch.arguments([tensor[0] for tensor in tensors])
        with torch.enable_grad():
            value = _scalar(self._loss(self._model, *args, **kwargs))
        wanted = [param for param in self.trained if param.requires_grad]  # some may be frozen by now
        if not value.requires_grad or not wanted:
            return [None] * len(self.trained), value.detach()[None]
        try:
            grads = torch.autograd.grad(value, wanted, allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant=True" not in str(error):
                raise
            raise reentrant() from error
        found = {id(param): grad for param, grad in zip(wanted, grads, strict=True) if grad is not None}
        dense = [found.get(id(param)) for param in self.trained]
        return [None if one is None else one.detach().to_dense()[None] for one in dense], value.detach()[None]

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
            raise UnfollowedError(
                f"the loss uses {', '.join(missed[:3])} outside the model that it gets, which per-example "
                "gradients do not include",
                supported="a loss that calls the model it is given; regularizers in the model's forward, or "
                "by weight_decay of the optimizer; clipping_mode='loop' ('auto' takes it at the first batch)",
            )

    @property
    def generators(self) -> list[Any]:
        """Generators of random numbers that the model and its loss hold, within `Afresh.batch`."""
        return self._loss.generators

    @property
    def lowest(self) -> torch.dtype | None:
        """The dtype of autocast if a layer with factors ran under it."""
        return None if self._taps is None else self._taps.lowest

    def covered(self, batch: Batch, tensors: Sequence[Tensor]) -> frozenset[str]:
        """The parameters with factors instead of gradients, for examples of these shapes."""
        if self._taps is None:
            return frozenset()
        values = {name: param.detach() for name, param in zip(self.names, self.trained, strict=True)}
        with followed():
            plan = self._taps.plan(functools.partial(self._example_loss, batch), values, tensors)
        return frozenset(name for index, name in enumerate(self.names) if index not in plan.rest)

    def _example_loss(self, batch: Batch, own: dict[str, Tensor], *example: Tensor) -> Tensor:
        held = self._fixed | {place: own[name] for place, name in self._tied.items()}
        args, kwargs = batch.arguments(example)
        own_call = functools.partial(_call, self._model, held)
        return _scalar(self._loss(StandIn(self._model, own_call, held), *args, **kwargs))


def _scalar(value: object) -> Tensor:
    """The loss of one example, without dimensions."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InvalidParameterError("loss", shown, "a function that returns a scalar for one example")
    return value.reshape(())


def _check_weights(weights: object, length: int) -> Tensor:
    if (
        not isinstance(weights, Tensor)
        or weights.shape != (length,)
        or not bool(((weights == 0) | (weights == 1)).all())
    ):
        shown = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise InvalidParameterError("weights", shown, f"a tensor of {length} zeros and ones")
    return weights != 0


class StandIn:
    """What a loss gets as its model: calls go to a function, and attributes are those of the model.

    Args:
        model: the model.
        call: is called in its place.
        values: tensors by name, in place of those of the model.
    """

    def __init__(
        self, model: Callable[..., Any], call: Callable[..., Any], values: Mapping[str, Tensor] | None = None
    ) -> None:
        self._model = model
        self._call = call
        self._values = values or {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._values[name] if name in self._values else getattr(self._model, name)


def _call(model: nn.Module, values: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
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
    if total is None or part is None:
        return part if total is None else total
    return total.add_(part)


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
