"""Detects models that mix the examples of a batch, by comparing calls on batches of other examples."""

import dataclasses
import functools
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.clipping import reentrant
from dpmech.optim.runs.collated import HALF, TOLERANCES, Padded, UntoldError, check_padding, coarsest, widened
from dpmech.optim.runs.containers import Given, tensors_of
from dpmech.optim.runs.output_rows import row_dimension, upstream
from dpmech.optim.runs.reseeding import Reseeding, reseeded
from dpmech.optim.runs.same_draws import SameDraws, repeatable
from dpmech.optim.state import Attributes, marks_of_globals, stored_globals

_FLOORS = {torch.float64: 1e-10}  # absolute
_FLOOR = 1e-6  # for lower precision
_SMALL = 1e-5  # gradients smaller than this, relative to the largest, are rounding errors
# Gradients below double precision jump if an activation rounds to the other side of zero.
_JUMPS, _MOST = 50.0, 0.3
# Of upstream gradients: powers of two, so that a backward pass that is proportional to them is so exactly.
_FACTORS, _SMALL_FACTORS = (2.0**30, 2.0**-30), (2.0**8, 2.0**-8)  # in double, and lower precision
_FEW = 7  # largest number of different examples in the small batches
_ALONE = 4  # of these, tried alone
_OFTEN = 64  # at least one batch in 64 is tried, on average
_FULLY = 0.25  # of these, with small batches too
_READ = 3  # trials of a value that a call left in an attribute, before trials are random
_SIZES = [n for n in range(3, 2000) if all(n % d for d in range(2, int(n**0.5) + 1))]

Pairs = Sequence[tuple[int, int]]
Calls = Mapping[nn.Module, Sequence[Sequence[Tensor]]]


class MixingWatch:
    """Refuses a model under hooks if the gradient of one example depends on the others of its batch.

    Every gradient is clipped anyway, but in such a model that of one example contains others and changes with
    them, or consists of rows that are not examples. So calls are tried: in batches of two sizes that divide
    no other dimension, with other examples in other places, and with some examples alone. The inputs of every
    trained layer, its outputs and their gradients, and the outputs of the model must agree, row by
    row. Every layer keeps its mode; random numbers are the same for all examples (`SameDraws`). Weights
    are converted to double precision for this if the model supports it. Gradients must also be proportional
    to that of the loss: a mean divides it by the number of examples, on which clamped ones then depend.

    Tried are the first call on several examples, calls on more than any before, and call k with random
    probability 1/k, at least 1/64: the full batch, with a small one; at the first call, and at one in
    four that were chosen at random, small ones as well. Arguments that do not depend on the batch are passed
    unchanged. A model is refused if nothing can be compared, because it fails on other batches or uses
    generators that cannot be found.

    A value that a call leaves in plain attributes counts as an output if a backward pass can start at it.
    Tensors and floats there must not carry data from one call to the next: if a call changed them, the next
    one is also tried with their previous values.

    Args:
        model: whose calls are tried.
        layers: whose rows give per-example gradients, with their names.
        examples: number of examples of the run's newest batch; None before the first.
        coin: public random numbers for the newest batch. The choice of trials must not depend on data.
        trial: disables hooks during a call on a number of examples.
        reseeding: watches what calls do with generators of random numbers.
        padded: returns an example of the newest batch whose padding is to be compared, once; None for none.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Mapping[nn.Module, str],
        examples: Callable[[], int | None],
        coin: Callable[[], random.Random],
        trial: Callable[[int], AbstractContextManager[None]],
        reseeding: Reseeding,
        padded: Callable[[], Padded | None] = lambda: None,
    ) -> None:
        self._model = model
        self._layers = layers
        self._examples = examples
        self._coin = coin
        self._calls = 0
        self._trial = trial
        self._reseeding = reseeding
        self._padded = padded
        self._most: dict[nn.Module, int] = {}
        self._joint: defaultdict[nn.Module, set[str]] = defaultdict(set)
        self._sizes: dict[tuple[Any, ...], list[int]] = {}
        # Of outputs: the one of the examples.
        self._dimensions: defaultdict[nn.Module, dict[str, int]] = defaultdict(dict)
        self._blind: UnsupportedCombinationError | None = None
        self._earlier: dict[nn.Module, int] = {}
        self._then: Attributes | None = None  # before the newest call
        self._written: dict[tuple[nn.Module, str], str] = {}  # attributes changed by it
        self._read: Counter[str] = Counter()
        self._generators = Attributes(model).generators

    def before(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Try a call, if it is chosen; raises UnsupportedCombinationError if it mixes examples."""
        self._try(part, args, kwargs)
        count = self._examples()
        if count is not None:
            found = Attributes(self._model) if self._then is None else self._then
            self._generators = found.generators
            self._reseeding.begin(part, found, alone=count < 2)

    def _try(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._blind = None
        self._earlier = {layer: len(getattr(layer, "activations", ())) for layer in self._layers}
        if not self._layers:
            return  # examples are not the first dimension
        count, most = self._examples(), self._most.get(part, 0)
        if count is None or torch._C._current_graph_task_id() != -1:
            return  # a call within a backward pass (checkpointing)
        written, then = self._written, self._then
        self._written, self._then = {}, None
        if count >= 2:
            self._check_padding(part, args, kwargs, count)
        coin = self._coin()
        self._calls += 1
        chosen = coin.random() < max(1.0 / self._calls, 1.0 / _OFTEN)
        asked = {key: name for key, name in written.items() if chosen or self._read[name] < _READ}
        if asked and then is not None:
            self._read.update(asked.values())
            self._check_carried(part, Given(args, kwargs, count), then, asked)
        self._then = Attributes(self._model, then)
        if count < 2 or (count <= most and not chosen):
            return  # no other example to compare with
        given = Given(args, kwargs, count)
        if not given.followed:
            self._blind = _untold("no argument has a row for every example")
            return
        self._most[part] = max(most, count)
        some = sorted(coin.sample(range(count), min(count, _FEW)))
        fully = most == 0 or (chosen and coin.random() < _FULLY)
        problem = self._tried(part, given, some, coin.getrandbits(31), fully=fully)
        if problem is not None:
            raise problem

    def _check_padding(self, part: nn.Module, args: Any, kwargs: Any, count: int) -> None:
        padded = self._padded()
        if padded is None:
            return
        given = Given(args, kwargs, count)

        def call(tensors: Sequence[Tensor]) -> list[Tensor]:
            args, kwargs = given.with_tensors(tensors)
            return tensors_of(part(*args, **kwargs))

        with self._trial(1):
            check_padding(self._model, given.tensors, count, padded, call)

    def after(self, part: nn.Module, output: object) -> None:
        """Refuse, by a hook, a backward pass through an output that is not separated by examples.

        Raises:
            UnsupportedCombinationError: if trained layers were called, but nothing could be compared; or if
                the call seeded torch's generators.
        """
        self._reseeding.end()
        blind, self._blind = self._blind, None
        if blind is not None and any(
            _rows_given(given) == self._examples()
            for layer, earlier in self._earlier.items()
            for given in getattr(layer, "activations", ())[earlier:]  # from which Opacus forms gradients
        ):
            raise blind
        now = None
        if self._then is not None:
            now = Attributes(self._model, self._then)
            self._written = now.changed(self._then)
        joint = self._joint[part]
        if not joint:
            return
        registered = {id(tensor) for tensor in (*self._model.parameters(), *self._model.buffers())}
        for name, tensor in _outputs(output, now).items():
            if name not in joint or id(tensor) in registered:
                continue
            if not tensor.requires_grad and tensor.is_floating_point() and not tensor.is_inference():
                tensor.requires_grad_()  # to detect whether a loss uses it
            if tensor.requires_grad:
                tensor.register_hook(_refuse_joint)  # type: ignore[no-untyped-call]  # torch's

    def _check_carried(
        self, part: nn.Module, given: Given, then: Attributes, written: Mapping[tuple[nn.Module, str], str]
    ) -> None:
        """Refuse attributes that pass data from one call to the next.

        A call with the previous values must give the same result, or leave the same values: caches, counters
        of calls.
        """
        every, now = list(range(given.count)), Attributes(self._model, then)
        with repeatable(self._model) as begin:

            def run(*, before: bool) -> _Run:
                trials = _Trials(self, part, given, begin, wide=False)
                return trials.run(every, 0, first=(lambda: then.put_back(written)) if before else None)

            try:
                old = run(before=True)
                if Attributes(self._model).same_values(now, written):
                    return
                new, again = run(before=False), run(before=False)
            except UntoldError:
                return  # the call itself will fail
            finally:
                now.put_back(written)
            if _alike(old, new) or not _alike(new, again):
                return
        raise UnsupportedCombinationError(
            f"calling the model changed {', '.join(sorted(written.values())[:3])}, which the next call "
            "depends on: data of one batch would enter the steps on others without noise",
            supported="models without running statistics or memory; constants in buffers before "
            "make_private; make_private(..., loss=...), which resets attributes",
        )

    def _tried(
        self, part: nn.Module, given: Given, some: Sequence[int], seed: int, *, fully: bool
    ) -> UnsupportedCombinationError | None:
        """The problem of a call, as far as it can be detected."""
        every = list(range(given.count))
        moved = random.Random(seed).choices(every, k=given.count)  # other places and examples
        moved = moved if moved != every else every[::-1]
        with repeatable(self._model) as begin:

            def compared(one: Sequence[int], other: Sequence[int], *, wide: bool, alone: int = 0) -> None:
                with widened(self._model) if wide else nullcontext():
                    trials = _Trials(self, part, given, begin, wide=wide, in_place=other is moved)
                    trials.compare(one, other, some[:alone], seed)
                    if alone:  # an effect may be hidden under one seed
                        trials.compare(one, other, (), seed + 1)

            shapes = (part, *(tuple(one.shape[1:]) for one in given.rows))
            try:
                if shapes not in self._sizes:
                    self._sizes[shapes] = _Trials(self, part, given, begin, wide=False).free_sizes()
            except UntoldError:
                return _first([lambda: compared(every, moved, wide=False)], untold=self._note_blind)
            sizes = self._sizes[shapes]
            small, other = sizes[:2]
            whole = next((size for size in sizes if size >= given.count), 0)
            one, two = _spread(some, small), _spread(some, other)
            problem = None
            if fully or given.count <= other:
                problem = _first(
                    [
                        lambda: compared(one, two[::-1], wide=True, alone=_ALONE),
                        lambda: compared(one, two[::-1], wide=False, alone=_ALONE),
                        lambda: compared(one, two, wide=False, alone=_ALONE),
                        lambda: compared(every, moved, wide=False),
                    ],
                    untold=self._note_blind,
                )
            if fully and problem is None and self._blind is None:  # some mix full batches, or even ones
                problem = _confirmed(functools.partial(compared, every, moved))
            if problem is None and whole > other:
                all_of_it = _spread(every, whole)
                problem = _confirmed(functools.partial(compared, one, all_of_it))
            return problem

    def _note_blind(self, error: Exception) -> None:
        cause = error.__cause__
        if not isinstance(cause, torch.OutOfMemoryError):
            shown = str(error) if cause is None else f"in a trial, {type(cause).__name__}: {cause}"
            self._blind = _untold(" ".join(shown.split())[:110])


def _first(
    tries: Sequence[Callable[[], None]],
    otherwise: UnsupportedCombinationError | None = None,
    untold: Callable[[Exception], None] | None = None,
) -> UnsupportedCombinationError | None:
    """The result of the first comparison that is possible; `untold` receives the reason if none is."""
    why: Exception | None = None
    for attempt in tries:
        try:
            attempt()
        except UntoldError as error:
            why = error
            continue
        except UnsupportedCombinationError as error:
            return error
        return None
    if untold is not None and why is not None and not isinstance(why.__cause__, UnsupportedCombinationError):
        untold(why)  # the call itself raises refusals
    return otherwise


def _confirmed(compared: Callable[..., None]) -> UnsupportedCombinationError | None:
    """The result of a comparison, also in double precision if possible: rounding errors may look alike."""
    problem = _first([lambda: compared(wide=False)])
    return None if problem is None else _first([lambda: compared(wide=True)], otherwise=problem)


def _untold(why: str) -> UnsupportedCombinationError:
    return UnsupportedCombinationError(
        f"it cannot be determined whether the model mixes examples: {why}",
        supported="tensors with a row for every example first, passed to the model and returned by it; "
        "random numbers from global generators; or make_private(..., loss=...), for one example at a time",
    )


def _outputs(output: object, attributes: Attributes | None) -> dict[str, Tensor]:
    """The outputs of a call, by name, including values in attributes from which a backward pass can start."""
    named = {str(number): tensor for number, tensor in enumerate(tensors_of(output))}
    return named if attributes is None else named | attributes.graphs()


def _alike(one: "_Run", other: "_Run") -> bool:
    """Whether two calls on the same examples gave identical results, bit for bit."""
    values, others = one.flat(), other.flat()
    return len(values) == len(others) and all(
        mine.shape == theirs.shape
        and mine.dtype == theirs.dtype
        and torch.allclose(mine.detach(), theirs.detach(), rtol=0.0, atol=0.0, equal_nan=True)
        for mine, theirs in zip(values, others, strict=True)
    )


def _spread(examples: Sequence[int], size: int) -> list[int]:
    """Examples repeated in order up to `size` entries."""
    return sorted(examples[place % len(examples)] for place in range(size))


@dataclasses.dataclass(frozen=True, eq=False)
class _Run:
    """The outputs of a call on some examples, and the inputs and outputs of its layers."""

    examples: Sequence[int]
    outputs: dict[str, Tensor]
    calls: dict[nn.Module, list[list[Tensor]]]
    made: dict[nn.Module, list[list[Tensor]]]
    draws: SameDraws
    ends: list[object] = dataclasses.field(default_factory=list)  # states of Python's and numpy's generator

    def flat(self) -> list[Tensor]:
        """All outputs, and all inputs and outputs of layers."""
        return [
            *self.outputs.values(),
            *(one for made in self.calls.values() for call in made for one in call),
        ]

    def pairs(self, other: "_Run") -> Pairs:
        """Pairs of rows of the same example."""
        return [
            (row, theirs)
            for row, one in enumerate(self.examples)
            for theirs, example in enumerate(other.examples)
            if one == example
        ]

    def gradients(self, back: Sequence[tuple[str, Tensor]]) -> dict[nn.Module, list[list[Tensor]]]:
        """Gradients of layer outputs, for given gradients of some outputs."""
        flat = [one for calls in self.made.values() for call in calls for one in call]
        ends = [(self.outputs[name], grad) for name, grad in back if self.outputs[name].requires_grad]
        inner = [one for one in flat if one.requires_grad]
        if not ends or not inner:
            return {}
        with warnings.catch_warnings(), self.draws:
            # A warning about hooks of layers without input gradients; they are disabled.
            warnings.filterwarnings("ignore", "Full backward hook")
            given = [grad.to(end).expand(end.shape) for end, grad in ends]
            try:
                found = torch.autograd.grad(
                    [end for end, _ in ends], inner, given, retain_graph=True, allow_unused=True
                )
            except Exception as error:  # a backward pass may raise anything
                if "use_reentrant=True" in str(error):
                    raise reentrant() from error
                raise UntoldError from error
        known = {id(one): grad for one, grad in zip(inner, found, strict=True) if grad is not None}
        return {
            layer: [[known.get(id(one), torch.zeros_like(one)) for one in call] for call in calls]
            for layer, calls in self.made.items()
        }


class _Trials:
    """Calls of a model on examples of one batch."""

    def __init__(
        self,
        watch: MixingWatch,
        part: nn.Module,
        given: Given,
        begin: Callable[[int], None],
        *,
        wide: bool,
        in_place: bool = False,
    ) -> None:
        self._of = None if in_place else given.count
        self._watch = watch
        self._part = part
        self._given = given
        self._begin = begin
        self._wide = wide
        self._coarsest = 1e-6 if wide else coarsest(watch._model, given.tensors)
        self._jumps = self._coarsest if wide else min(_JUMPS * self._coarsest, _MOST)

    def free_sizes(self) -> list[int]:
        """Batch sizes that divide no dimension of any tensor."""
        run = self.run([0, 1], 0)
        tensors = [*self._given.tensors, *run.outputs.values()]
        tensors += [one for calls in run.calls.values() for call in calls for one in call]
        dims = {size for one in tensors for size in one.shape if size} | run.draws.dims
        return [size for size in _SIZES if all(dim % size for dim in dims)]

    def compare(self, one: Sequence[int], other: Sequence[int], alone: Sequence[int], seed: int) -> None:
        """Compare two calls, and some examples alone with the first.

        Raises:
            UnsupportedCombinationError: if they differ.
            UntoldError: if the model cannot be called like this, or is not reproducible.
        """
        first, second = self.run(one, seed), self.run(other, seed)
        if alone:
            self._check_seeds(one, first, seed + 1)
        try:
            self._compare(first, second, strict=True, scaled=bool(alone))
            for example in alone:
                try:
                    single = self.run([example], seed, first.draws.shapes)
                except UntoldError:
                    break  # it does not support batches of one
                self._compare(first, single, strict=False)
        except UnsupportedCombinationError:
            again = self.run(one, seed)
            same = [(row, row) for row in range(len(one))]
            if self._differing(first.calls, again.calls, same, self._coarsest) or any(
                _differ(mine, theirs, same, self._coarsest)
                for mine, theirs in zip(first.outputs.values(), again.outputs.values(), strict=False)
                if mine.ndim and mine.shape == theirs.shape and len(mine) == len(one)
            ):
                raise UntoldError("two calls with the same input give different results") from None
            if first.draws.reseeded or second.draws.reseeded:
                raise reseeded("torch") from None
            raise

    def _check_seeds(self, examples: Sequence[int], first: _Run, seed: int) -> None:
        """Refuse a call that leaves a generator of Python or numpy alike from two seeds."""
        second = self.run(examples, seed)
        for name, mine, theirs in zip(("Python", "numpy"), first.ends, second.ends, strict=True):
            if mine == theirs:
                raise reseeded(name)

    def run(
        self,
        examples: Sequence[int],
        seed: int,
        shapes: Sequence[Sequence[int]] | None = None,
        first: Callable[[], None] | None = None,
    ) -> _Run:
        """Call the model on some examples, after calling `first`."""
        draws = SameDraws(examples, seed, self._of, shapes, self._watch._generators)
        run = _Run(examples, {}, {}, {}, draws)

        def hook(layer: nn.Module, args: Any, output: Any) -> None:
            made = tensors_of(output)
            run.calls.setdefault(layer, []).append([one.detach() for one in [*tensors_of(args)[:1], *made]])
            run.made.setdefault(layer, []).append(made)

        handles = [layer.register_forward_hook(hook) for layer in self._watch._layers]
        try:
            args, kwargs = self._given.picked(examples, wide=self._wide)
            self._begin(seed)
            if first is not None:
                first()
            stood = {id(one): one for one in Attributes(self._watch._model).graphs().values()}
            trial, reseeding = self._watch._trial(len(examples)), self._watch._reseeding
            with trial, reseeding.trial(self._part, draws), draws, _plainly(self._given, wide=self._wide):
                output = self._part(*args, **kwargs)
            run.ends[:] = marks_of_globals()[:2]
            found = _outputs(output, Attributes(self._watch._model))
            run.outputs.update({name: one for name, one in found.items() if id(one) not in stood})
        except Exception as error:  # a model may raise anything on unexpected batches
            raise UntoldError from error
        finally:
            for handle in handles:
                handle.remove()
        return run

    def _compare(self, first: _Run, second: _Run, *, strict: bool, scaled: bool = False) -> None:
        """Raise UnsupportedCombinationError if examples differ; single ones may have other shapes."""
        pairs = first.pairs(second)
        if strict:
            self._check_rows(first, second)
        strange = self._differing(first.calls, second.calls, pairs, self._coarsest, strict=strict)
        back: tuple[list[tuple[str, Tensor]], ...] = ([], [])
        # With batches of one size, other dimensions may have the same size.
        known = self._watch._dimensions[self._part] if self._of is None else {}
        names = [name for name in first.outputs if name in second.outputs]
        if not names:
            raise UntoldError("its output contains no tensors")
        for number, name in enumerate(names):
            mine, theirs = first.outputs[name], second.outputs[name]
            dim = known.get(name)
            if not known:
                dim = row_dimension(mine, theirs, len(first.examples), len(second.examples))
            if dim is None or not mine.is_floating_point():
                continue
            if strict and self._of is not None:
                self._watch._dimensions[self._part][name] = dim
            major = _layout(mine, theirs, dim, first, second, self._coarsest)
            if major is None and not name.isdecimal():
                self._watch._joint[self._part].add(name)  # it may remain unused
                continue
            if major is None:
                strange = strange or "the model itself"
                continue
            for one, run, gradients in zip((mine, theirs), (first, second), back, strict=True):
                gradients.append((name, upstream(one, dim, run.examples, number, major=major)))
        if strange is None:
            with self._watch._trial(len(first.examples)):
                restore = stored_globals()
                ours, others = first.gradients(back[0]), second.gradients(back[1])
                strange = self._differing(ours, others, pairs, self._jumps, _SMALL, strict=strict)
                if scaled and strange is None:
                    self._check_scaled(first, back[0], ours, restore)
                if strict and strange is None and not known:
                    self._note_joint(first, second, {name for name, _ in back[0]})
        if strange is not None:
            raise UnsupportedCombinationError(
                f"the model mixes examples: {strange} has other values or gradients for one of them if the "
                "others of its batch change",
                supported=_REMEDY,
            )

    def _check_scaled(
        self, run: _Run, back: Sequence[tuple[str, Tensor]], found: Calls, restore: Callable[[], None]
    ) -> None:
        """Refuse a backward pass that clamps, rounds or normalizes: it sees the number of examples."""
        same = [(row, row) for row in range(len(run.examples))]
        for factor in _FACTORS if self._wide else _SMALL_FACTORS:
            restore()  # for equal random numbers
            again = _scaled(run.gradients([(name, grad * factor) for name, grad in back]), 1.0 / factor)
            strange = self._differing(again, found, same, self._jumps, _SMALL)
            if strange is not None:
                raise UnsupportedCombinationError(
                    f"the backward pass through {strange} is not proportional to the gradient of the loss "
                    "(a hook clamps or rounds it): the gradient of one example depends on how many there are",
                    supported=_PROPORTIONAL,
                )

    def _note_joint(self, first: _Run, second: _Run, rows: set[str]) -> None:
        """Find outputs without one row per example that are neither means nor sums over examples."""
        pairs = first.pairs(second)
        for name, mine in first.outputs.items():
            theirs = second.outputs.get(name)
            if name in rows or theirs is None:
                continue
            if not (mine.requires_grad or theirs.requires_grad):
                fractions = mine.is_floating_point() and theirs.is_floating_point()
                if fractions and (mine.shape != theirs.shape or not self._is_same(mine, theirs)):
                    self._watch._joint[self._part].add(name)
                continue
            ones = torch.ones(())
            found = [run.gradients([(name, ones)]) for run in (first, second)]
            as_means = [
                _scaled(grads, len(run.examples)) for grads, run in zip(found, (first, second), strict=True)
            ]
            if all(
                self._differing(ours, others, pairs, self._jumps, _SMALL)
                for ours, others in (found, as_means)
            ):
                self._watch._joint[self._part].add(name)

    def _is_same(self, mine: Tensor, theirs: Tensor) -> bool:
        size, off = _distance(mine.double().flatten(), theirs.double().flatten())
        return off <= self._coarsest * size + self._floor

    def _check_rows(self, first: _Run, second: _Run) -> None:
        """Raise UnsupportedCombinationError if there are more rows than examples, or a fixed number."""
        sizes = len(first.examples), len(second.examples)
        for layer, name in self._watch._layers.items():
            rows = [
                [max((len(one) if one.ndim else 0) for one in call) for call in run.calls.get(layer, ())]
                for run in (first, second)
            ]
            fixed = sizes[0] != sizes[1] and rows[0] == rows[1] != []
            if fixed or any(row > size for one, size in zip(rows, sizes, strict=True) for row in one):
                raise UnsupportedCombinationError(
                    f"{name} was called with {rows[0][0]} and {rows[1][0]} rows for batches of {sizes[0]} "
                    f"and {sizes[1]} examples: its rows are not examples",
                    supported=_REMEDY,
                )

    def _differing(
        self,
        mine: Calls,
        theirs: Calls,
        pairs: Pairs,
        tolerance: float,
        small: float = 0.0,
        *,
        strict: bool = True,
    ) -> str | None:
        """The first layer with different rows for the same example."""
        compared: list[tuple[str, float, float]] = []
        for layer, name in self._watch._layers.items():
            for row, other in pairs:
                ours, others = _rows(mine.get(layer, ()), row), _rows(theirs.get(layer, ()), other)
                if [one.shape for one in ours] != [one.shape for one in others]:
                    if strict:
                        return name
                    continue
                if not ours:
                    continue
                one, two = (
                    torch.cat([part.flatten().double() for part in parts]) for parts in (ours, others)
                )
                compared.append((name, *_distance(one, two)))
        floor = small * max((size for _, size, _ in compared), default=0.0) + self._floor
        return next((name for name, size, off in compared if off > tolerance * size + floor), None)

    @property
    def _floor(self) -> float:
        return _FLOORS[torch.float64] if self._wide else _FLOOR


_REMEDY = (
    "layers that receive one row per example, first (batch_first=True); no statistics, sorting or branches "
    "over a batch; requires_grad_(False) for parts that do not depend on it; or make_private(..., loss=...), "
    "which calls the model with one example at a time"
)


_PROPORTIONAL = (
    "backward passes without such hooks, since the optimizer clips; or make_private(..., loss=...), which "
    "differentiates one example at a time"
)


def _refuse_joint(grad: Tensor) -> None:
    del grad
    raise UnsupportedCombinationError(
        "the model mixes examples: the loss uses an output that has no row for every example and is neither "
        "a mean nor a sum over them, so that the gradient of one depends on the others",
        supported="outputs with a row for every example; make_private(..., loss=...), which calls the model "
        "with one example at a time",
    )


def _rows_given(entry: Any) -> int:
    rows: int = entry.rows if hasattr(entry, "rows") else len(entry[0]) if entry[0].ndim else 0
    return rows


def _rows(calls: Sequence[Sequence[Tensor]], row: int) -> list[Tensor]:
    """The values of an example in all calls of a layer that contain its row."""
    return [one[row] for call in calls for one in call if one.dim() and len(one) > row]


def _scaled(grads: Calls, factor: float) -> dict[nn.Module, list[list[Tensor]]]:
    return {layer: [[one * factor for one in call] for call in calls] for layer, calls in grads.items()}


def _distance(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Size and difference; a NaN or infinity in both, which data may cause, is no difference."""
    known, theirs = bool(one.isfinite().all()), bool(other.isfinite().all())
    if not (known and theirs):
        return 0.0, 0.0 if known == theirs else torch.inf
    return float(other.norm()), float((one - other).norm())


def _differ(mine: Tensor, theirs: Tensor, pairs: Pairs, tolerance: float) -> bool:
    floor = _FLOORS.get(mine.dtype, _FLOOR)
    distances = [
        _distance(mine[row].detach().flatten().double(), theirs[other].detach().flatten().double())
        for row, other in pairs
    ]
    limit = max(tolerance, TOLERANCES.get(mine.dtype, HALF))
    return any(off > limit * size + floor for size, off in distances)


def _layout(
    mine: Tensor, theirs: Tensor, dim: int, first: _Run, second: _Run, tolerance: float
) -> bool | None:
    """Whether examples come first in a flattened dimension; None if rows differ in either order."""
    pairs = first.pairs(second)
    for major in (True, False):
        rows = []
        for one, run in ((mine, first), (theirs, second)):
            parts = (len(run.examples), one.shape[dim] // len(run.examples))
            sizes = (*one.shape[:dim], *(parts if major else parts[::-1]), *one.shape[dim + 1 :])
            rows.append(one.detach().reshape(sizes).movedim(dim if major else dim + 1, 0))
        if not _differ(rows[0], rows[1], pairs, tolerance):
            return major
    return None


def _plainly(given: Given, *, wide: bool) -> AbstractContextManager[object]:
    """A context without autocast if the call is in double precision."""
    device = given.tensors[0].device.type if given.tensors else "meta"
    return torch.autocast(device, enabled=False) if wide and device != "meta" else nullcontext()
