"""SameDraws: gives an example the same random numbers in every batch."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpmech.optim.state import Attributes, Parameters, Streams, set_globals, set_torch, spared, stored

_DROPOUT = torch.ops.aten.native_dropout.default


class SameDraws(TorchDispatchMode):
    """Gives an example the same random numbers in every batch, so that outputs can be compared.

    The k-th draw of a call is the same in every call under one seed. If its first dimension is the
    examples, each has different numbers: operations that depend on differences (sorting, centering) are
    detected too. Along other dimensions that depend on the batch a draw is constant; permutations shift by
    one, so that an example never receives its own values from a shuffle.

    A generator that the call itself made, seeded or put back draws what it draws: if that follows from the
    place in the batch or from other examples, the comparison shows it.

    Args:
        examples: indices of the examples in the batch; their number divides no other dimension of the model.
        seed: of all draws; an effect may be hidden under one seed and not under another.
        of: total number of examples; None if this number may also be another dimension: then draws are
            constant along the first dimension as well.
        shapes: of the draws of one example, from a call with another batch; None to infer them here. A single
            example does not show which dimensions depend on the batch.
        generators: of the model's own.
        only_first: whether no other dimension than the first depends on the batch, as under vmap.

    Attributes:
        shapes: of the draws so far, for one example; 0 along the examples.
        reseeded: whether a draw followed from a seed or a state that the call set.
        dims: sizes of the dimensions of the tensors drawn.
    """

    def __init__(
        self,
        examples: Sequence[int],
        seed: int,
        of: int | None = None,
        shapes: Sequence[Sequence[int]] | None = None,
        generators: Sequence[Any] = (),
        *,
        only_first: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._generators = generators
        self._only_first = only_first
        self._streams = Streams()
        self._examples = examples
        self._of = of
        self._begin = seed
        self._known = shapes
        self.shapes: list[list[int]] = []
        self.dims: set[int] = set()
        self.reseeded = False
        self._number = 0  # of the newest draw
        self._numbers: dict[bytes, int] = {}  # by the state of torch's generator before the draw

    def __enter__(self) -> Any:
        self._streams = Streams(self._generators)
        return super().__enter__()  # type: ignore[no-untyped-call]  # torch's

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, with other random numbers if it uses any."""
        del types
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        generator = kwargs.get("generator")
        known = self._streams.is_known(generator)
        state = torch.get_rng_state().numpy().tobytes()
        # Checkpointing restores states in the backward pass, and a call may repeat its own draws.
        repeated = generator is None and state in self._numbers
        self.reseeded |= not known and torch._C._current_graph_task_id() == -1
        if known or repeated:
            self._number = self._numbers[state] if repeated else len(self.shapes)
            if func._schema.name != "aten::randperm":  # which may draw nothing
                self._numbers[state] = self._number
            kwargs = kwargs | {"generator": None} if "generator" in kwargs else kwargs
            drawn = self._drawn(func, args, kwargs)
            self._streams.note(None)
            return drawn
        return func(*args, **kwargs)

    def _drawn(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [one for one in args if isinstance(one, Tensor)]
        self.dims.update(size for one in tensors for size in one.shape if size)
        sizes = next((place for place, one in enumerate(args) if isinstance(one, list | tuple)), None)
        name = func._schema.name
        if name == "aten::randperm":
            found = func(*args, **kwargs)
            return found.copy_(torch.arange(len(found), device=found.device).roll(1))
        if func is _DROPOUT and args[2] is not False and 0.0 < args[1] < 1.0:
            kept = self._shaped(
                args[0].shape, lambda shape: args[0].new_empty(shape).bernoulli_(1.0 - args[1])
            )
            return args[0] * kept / (1.0 - args[1]), kept.bool()
        if not tensors and sizes is not None:
            return self._shaped(
                args[sizes], lambda shape: func(*args[:sizes], shape, *args[sizes + 1 :], **kwargs)
            )
        if len(tensors) == 1 and tensors[0] is args[0] and (name.endswith(("_", "_like"))):
            drawn = self._shaped(
                args[0].shape, lambda shape: func(args[0].new_empty(shape), *args[1:], **kwargs)
            )
            return args[0].copy_(drawn) if name.endswith("_") else drawn
        return self._by_rows(func, args, kwargs, tensors)

    def _shaped(self, whole: Sequence[int], draw: Callable[[list[int]], Tensor]) -> Tensor:
        """A separate draw for each example, constant along other dimensions that depend on the batch."""
        number, count = self._number, len(self._examples)
        self.dims.update(size for size in whole if size)
        if self._known is not None and number < len(self._known) and len(self._known[number]) == len(whole):
            shape = list(self._known[number])
        else:
            fixed = self._only_first
            shape = [1 if size and size % count == 0 and not fixed else size for size in whole]
            if self._of is not None and whole and whole[0] == count:
                shape[0] = 0
        self._note(shape)
        self._seed()
        if self._of is None or not shape or shape[0] != 0 or whole[0] != count:
            return draw(shape).expand(tuple(whole)).contiguous()
        drawn = draw([self._of, *shape[1:]])
        chosen = torch.tensor(self._examples, device=drawn.device)
        return drawn.index_select(0, chosen).expand(tuple(whole)).contiguous()

    def _by_rows(self, func: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        """Draws from a distribution that depends on the data: one example at a time, each seeded."""
        count = len(self._examples)
        self._note([])
        if not tensors or any(one.ndim == 0 or len(one) != count for one in tensors):
            self._seed()
            return func(*args, **kwargs)
        found, given = [], []
        for index, example in enumerate(self._examples):
            self._seed(None if self._of is None else example)
            given.append([one[index : index + 1].clone() if isinstance(one, Tensor) else one for one in args])
            named = {
                name: one[index : index + 1].clone() if _has_rows(one, count) else one
                for name, one in kwargs.items()
            }
            found.append(func(*given[-1], **named))
        for place, argument in enumerate(func._schema.arguments[: len(args)]):
            if argument.alias_info is not None and argument.alias_info.is_write:
                args[place].copy_(torch.cat([own[place] for own in given]))
        if func._schema.name.endswith("_"):
            return args[0]
        if isinstance(found[0], Tensor):
            return torch.cat(found)
        return tuple(
            torch.cat(parts) if isinstance(parts[0], Tensor) and parts[0].ndim else parts[0]
            for parts in zip(*found, strict=True)
        )

    def _note(self, shape: list[int]) -> None:
        if self._number == len(self.shapes):
            self.shapes.append(shape)

    def _seed(self, example: int | None = None) -> None:
        """Seed the newest draw, for one example or for all."""
        seed = random.Random(f"{self._begin} {self._number + 1} {example}").getrandbits(63)
        set_torch(seed)


def _has_rows(value: object, count: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == count


@contextmanager
def repeatable(model: nn.Module, loss: Callable[..., Any] | None = None) -> Iterator[Callable[[int], None]]:
    """Restore all random states, a model's attributes and buffers, and what a loss refers to, after calls.

    Yields:
        A function to call before each call: it seeds the generators of torch, numpy, Python and the modules.
    """
    attributes, parameters = Attributes(model, loss=loss, buffers=True), Parameters(model)
    states = [stored(one) for one in attributes.generators]

    def begin(seed: int) -> None:
        set_globals(seed)
        attributes.put_back()
        parameters.put_back()
        for restore in states:
            restore()

    with spared():
        try:
            yield begin
        finally:
            try:
                begin(0)
            finally:
                parameters.settle()
