"""Detects calls of a model that seed generators of random numbers, or put them back into an earlier state."""

import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.runs.same_draws import SameDraws
from dpmech.optim.state import (
    Attributes,
    Streams,
    functions,
    globals_read,
    known,
    named,
    seeds_of_torch,
    stored,
)

# What code names that can put a generator elsewhere, its own wrappers aside, which are followed.
_NAMES = re.compile(
    r"(manual_|set_)?(rng_|random_)?seed(_all|_everything)?|(graphsafe_)?set_(rng_)?state(_all)?|setstate|"
    r"fork_rng|set_offset"
)
# Globals and names of the functions that do so with the global generators of Python and numpy.
_Place: TypeAlias = tuple[dict[str, Any], str]
_SETTERS: tuple[_Place, ...] = tuple(
    (vars(module), name)
    for module, names in ((random, ("seed", "setstate")), (np.random, ("seed", "set_state")))
    for name in names
)
_WHOSE = [("Python" if space is vars(random) else "numpy", space[name]) for space, name in _SETTERS]


class Reseeding:
    """Watches calls of a model on whole batches, where one example could decide what the others draw.

    If a value of an example seeds a generator, or puts it back into an earlier state, all others of the batch
    draw something else. Seeds that differ show after the call. The number that a generator was seeded
    with before, and an earlier state, do not: so if code of the model names such functions, each draw of a
    call must go on where the draw before ended. A model may do so in every call, whatever its examples are:
    then trials compare what it draws (`SameDraws`).

    Generators of the model's own are seeded by a secret for every call: under a known seed, the absence of an
    example would change the draws of the others in a known way.

    Args:
        model: whose calls are watched.
        seed: seeds generators by a secret of the newest batch.
    """

    def __init__(self, model: nn.Module, seed: Callable[[Sequence[Any]], object]) -> None:
        self._model = model
        self._seed = seed
        self._mode: _Draws | None = None
        self._seeds: list[int] = []  # of torch's generators, before the newest call
        self._before: list[Callable[[], None]] = []  # restore the model's own generators
        self._always: dict[nn.Module, bool] = {}  # whether all trials of a part do so
        self._look = functools.cache(_look)

    def begin(self, part: nn.Module, found: Attributes, *, alone: bool) -> None:
        """Begin a call.

        Args:
            part: the model, or the part of it that is called.
            found: what the model refers to.
            alone: whether the batch has no other example.
        """
        _Draws.end_newest()
        self._end()
        self._seeds = seeds_of_torch()
        self._before = [stored(one) for one in found.generators]
        self._seed(found.generators)
        if alone or self._always.get(part, False):
            return
        can, places = self._reach(found)
        if can:
            self._mode = _Draws(found.generators, places)
            self._mode.begin()

    def end(self) -> None:
        """End it; raises UnsupportedCombinationError if it seeded a generator."""
        whose, seeds = self._end(), self._seeds
        self._seeds = []  # some calls only end: before the first batch
        # Not strict: devices may be used for the first time.
        if any(mine != theirs for mine, theirs in zip(seeds, seeds_of_torch(), strict=False)):
            whose = "torch"
        if whose is not None:
            raise reseeded(whose)

    def _end(self) -> str | None:
        for restore in self._before:
            restore()
        self._before = []
        mode, self._mode = self._mode, None
        if mode is None:
            return None
        mode.end()
        return mode.whose

    @contextmanager
    def trial(self, part: nn.Module, draws: SameDraws) -> Iterator[None]:
        """A context for a call on a trial batch."""
        _Draws.end_newest()
        with _counted(self._reach(Attributes(self._model))[1]) as calls:
            yield
        self._always[part] = (draws.reseeded or bool(calls)) and self._always.get(part, True)

    def _reach(self, found: Attributes) -> tuple[bool, list[_Place]]:
        """Whether code of the model names a function that seeds, and the globals that hold one."""
        kinds = {kind for part in self._model.modules() for kind in type(part).__mro__}
        every = [self._look(one) for one in [*found.functions, *kinds]]
        return any(names for names, _ in every), [place for _, places in every for place in places]


def _look(value: Any) -> tuple[bool, list[_Place]]:
    """Whether the code of a function or a class names one that seeds, and the globals that hold one."""
    used = [value]
    if isinstance(value, type):  # of an installed package, whose methods are not followed
        used = [function for entry in vars(value).values() for function in functions(entry)]
    used = [one for one in used if hasattr(one, "__code__") and not known(value.__module__)]
    # As after `from random import seed`.
    places = [
        (one.__globals__, name)
        for one in used
        for name in globals_read(one.__code__)
        if any(one.__globals__.get(name) is setter for _, setter in _WHOSE)
    ]
    return bool(places) or any(_NAMES.fullmatch(name) for one in used for name in named(one.__code__)), places


class _Draws(TorchDispatchMode):
    """Notes draws of torch that do not go on where those before ended, and seeds of Python and numpy.

    Attributes:
        whose: generator it is; None if there is no such draw.
    """

    supports_higher_order_operators = True
    _newest: ClassVar["_Draws | None"] = None

    def __init__(self, generators: Sequence[Any], places: Sequence[_Place]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._streams = Streams(generators)
        self._counting = _counted(places)
        self._calls: list[str] = []
        self._moved = False
        self._ended = False

    def begin(self) -> None:
        _Draws._newest = self
        self._calls = self._counting.__enter__()
        self.__enter__()  # type: ignore[no-untyped-call]  # torch's

    def end(self) -> None:
        if self._ended:
            return
        self._ended, _Draws._newest = True, None
        self._counting.__exit__(None, None, None)
        if _get_current_dispatch_mode() is self:  # the call may have been interrupted
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch's

    @staticmethod
    def end_newest() -> None:
        """End that of a call that was interrupted, after which no hook runs."""
        if _Draws._newest is not None:
            _Draws._newest.end()

    @property
    def whose(self) -> str | None:
        return "torch" if self._moved else self._calls[0] if self._calls else None

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        del types
        kwargs = kwargs or {}
        if self._ended or torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        generator = kwargs.get("generator")
        is_known = self._streams.is_known(generator)
        drawn = func(*args, **kwargs)
        if is_known:
            self._streams.note(generator)
        self._moved |= not is_known
        return drawn


@contextmanager
def _counted(places: Sequence[_Place]) -> Iterator[list[str]]:
    """A context that lists the calls of functions that seed the global generators of Python and numpy.

    Args:
        places: where else these functions are found.
    """
    calls: list[str] = []
    before = {(id(space), name): (space, name, space[name]) for space, name in [*_SETTERS, *places]}

    def noting(whose: str, then: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            calls.append(whose)
            return then(*args, **kwargs)

        return noted

    for space, name, then in before.values():
        whose = next((whose for whose, setter in _WHOSE if setter is then), "Python or numpy")
        space[name] = noting(whose, then)
    try:
        yield calls
    finally:
        for space, name, then in before.values():
            space[name] = then


def reseeded(whose: str) -> UnsupportedCombinationError:
    """The refusal of a model that seeds a generator."""
    return UnsupportedCombinationError(
        f"calling the model seeds a generator of {whose}, or puts it back into an earlier state: what others "
        "of the batch draw would follow from the example whose values decided it, or from their places",
        supported="draws from the global generators, which a run seeds by a secret for every batch; numbers "
        "that stay the same in a buffer; or make_private(..., loss=...), which calls the model with one "
        "example at a time",
    )
