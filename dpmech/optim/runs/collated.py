"""Checks that a row of a batch depends on its example only: collated alone, and the model without padding."""

import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.runs.containers import copied, fields_of, leaves_of
from dpmech.optim.runs.same_draws import repeatable
from dpmech.optim.state import marks_of_globals, set_globals, spared

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative
HALF = 0.1  # for lower precision


class UntoldError(Exception):
    """The check is impossible: the model failed on a trial batch, or is not reproducible."""


def coarsest(model: nn.Module, tensors: Sequence[Tensor]) -> float:
    """Largest relative rounding error of a model's outputs, whatever their dtype."""
    dtypes = {tensor.dtype for tensor in (*model.parameters(), *tensors) if tensor.is_floating_point()}
    device = next(iter((*tensors, *model.parameters()))).device.type
    if torch.is_autocast_enabled(device):
        return HALF
    tolerance = max((TOLERANCES.get(dtype, HALF) for dtype in dtypes), default=TOLERANCES[torch.float32])
    # Products on tensor cores may keep only ten bits of float32.
    return tolerance if device == "cpu" else max(tolerance, 1e-2)


@contextmanager
def widened(model: nn.Module) -> Iterator[None]:
    """A context in which the weights and buffers of a model have double precision."""
    held = {id(one): one for one in (*model.parameters(), *model.buffers()) if one.is_floating_point()}
    if any(type(one.data) is not Tensor for one in held.values()) or "mps" in {
        one.device.type for one in held.values()
    }:
        raise UntoldError
    before = [(one, one.data) for one in held.values()]
    try:
        try:
            for one, data in before:
                one.data = data.double()
        except (RuntimeError, TypeError) as error:  # out of memory; an unsupported kind of tensor
            raise UntoldError from error
        yield
    finally:
        for one, data in before:
            one.data = data


_TRIED = 8  # examples of a batch that are collated alone
_AGAIN = 32  # repetitions, to detect randomness
_SAME = 1e-4  # relative tolerance for the values of a row
# Relative tolerance for the gradient of an example: in double precision, and in the model's precision. Each
# example of a batch may deviate by this much, all in one direction.
_EXACT, _SAME_GRADIENT = 1e-5, 1e-2

# (row, {k: replacement of leaf k of the batch if the example is collated alone})
Alone = tuple[int, dict[int, Tensor]]


@dataclasses.dataclass(frozen=True, eq=False)
class Padded:
    """An example whose row of a batch is longer than the example collated alone.

    Args:
        row: its index in the batch.
        pairs: tensors of the batch, with the tensors that replace them if it is collated alone.
    """

    row: int
    pairs: Sequence[tuple[Tensor, Tensor]]

    def alone(self, given: Tensor) -> Tensor | None:
        """The example without padding, for a tensor that the training loop made from one of the batch.

        None if it was made from none of them.
        """
        for whole, single in self.pairs:
            if whole.shape == given.shape and torch.equal(whole.to(given), given.detach()):
                return single.to(given)
        return None


def compare_rows(
    collate: Callable[[list[Any]], Any], examples: list[Any], batch: Any, coin: random.Random
) -> Alone | None:
    """Collate some examples alone, and compare them with their rows.

    Args:
        collate: the collate function.
        examples: of the batch, at least two, copied before collation.
        batch: the collated batch.
        coin: public random numbers that choose examples.

    Returns:
        An example that is padded in the batch, if there is one.

    Raises:
        UnsupportedCombinationError: if a row depends on the other examples in any other way.
    """
    found: Alone | None = None

    def collated(some: list[Any]) -> Any:
        return collate([copied(example) for example in some])  # collate may modify its examples

    with spared():
        for row in sorted(coin.sample(range(len(examples)), min(len(examples), _TRIED))):
            # Copies of an example have its values, in case collate picks a partner among the others.
            for copies in (1, len(examples)):
                try:
                    single = collated([examples[row]] * copies)
                    mixes, pairs = _compared(batch, single, row, len(examples), copies)
                    refused = mixes and _is_mixed(collated, examples, row, single, copies)
                except Exception:  # noqa: BLE001 - from a collate function that needs several examples
                    continue
                break
            else:
                continue
            if refused:
                raise UnsupportedCombinationError(
                    "the collate function gives an example other values in a batch than alone (packing, "
                    "mixup, sorting, statistics of the batch, row numbers): clipping a row does not bound "
                    "the influence of one example",
                    supported="a collate function that makes row i from example i only, in the given order: "
                    "padding to a fixed length, mixing within one example, statistics that are public "
                    "constants; for packed sequences pack_padded_sequence(..., enforce_sorted=False)",
                )
            if pairs and not mixes and found is None and copies == 1:
                number = {id(leaf): place for place, leaf in enumerate(leaves_of(batch))}
                found = (row, {number[id(whole)]: _tensor(one) for whole, one in pairs})
    return found


def padded_row(batch: Any, alone: Alone | None) -> Padded | None:
    """The example returned by `compare_rows`, with the tensors of the batch."""
    if alone is None:
        return None
    leaves = [_tensor(one) for one in leaves_of(batch)]
    return Padded(alone[0], [(leaves[place], single) for place, single in alone[1].items()])


def check_padding(
    model: nn.Module,
    tensors: Sequence[Tensor],
    count: int,
    padded: Padded,
    call: Callable[[Sequence[Tensor]], Sequence[Tensor]],
) -> None:
    """Compare the gradient of an example with and without padding.

    The gradient is that of a loss, or of a sum of outputs with different weights, at the positions that both
    have. Modules are in eval mode meanwhile, as dropout draws depend on shapes. Nothing is checked if the
    loop did not pass on the padded tensors, or the model cannot be called like this or is not reproducible.

    Args:
        model: the model.
        tensors: passed by the loop; in some the first dimension is the examples.
        count: number of examples.
        padded: the example.
        call: calls the model or its loss on a batch of one, given its tensors.

    Raises:
        UnsupportedCombinationError: if the gradients differ.
    """
    trained = [param for param in model.parameters() if param.requires_grad]
    row = slice(padded.row, padded.row + 1)
    changed = [padded.alone(one) for one in tensors]
    if all(one is None for one in changed):
        return
    longer = [one[row] if one.ndim and len(one) == count else one for one in tensors]
    shorter = [one if other is None else other for one, other in zip(longer, changed, strict=True)]
    at_end = all(
        _first(one[0], other[0]) for one, other in zip(longer, changed, strict=True) if other is not None
    )
    half = torch.is_autocast_enabled(longer[0].device.type) or any(one.itemsize < 4 for one in trained)
    for wide in (True, False):
        try:
            found = _padded_gradients(model, tensors, (longer, shorter), call, at_end=at_end, wide=wide)
        except Exception:  # noqa: BLE001 - a model or loss may raise anything on unexpected inputs
            continue
        without, with_padding, again = found
        limit = _EXACT if wide else HALF if half else _SAME_GRADIENT
        if _far(with_padding, without, limit) and not _far(with_padding, again, limit):
            raise UnsupportedCombinationError(
                "the gradient of an example depends on the padding in its batch, and thus on "
                "how long the others are: clipping it does not bound the influence of one of them",
                supported="padding to a fixed length; or padding that the model ignores: on the right, "
                "with a mask in attention, means and losses (ignore_index)",
            )
        return


def _padded_gradients(
    model: nn.Module,
    tensors: Sequence[Tensor],
    examples: tuple[Sequence[Tensor], Sequence[Tensor]],
    call: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    *,
    at_end: bool,
    wide: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of an example: without padding, with it, and with it once more."""
    longer, shorter = (
        [one.double() if wide and one.is_floating_point() else one for one in given] for given in examples
    )
    trained = [param for param in model.parameters() if param.requires_grad]
    with (
        repeatable(model) as begin,
        widened(model) if wide else nullcontext(),
        torch.autocast(longer[0].device.type, enabled=False) if wide else nullcontext(),
        torch.enable_grad(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Full backward hook")  # from hooks that are disabled meanwhile
        alone = _called(model, shorter, call, begin, 0)
        shapes = [one.shape for one in alone]
        padded = [
            [
                _cut(one, shape, at_end=at_end)
                for one, shape in zip(_called(model, longer, call, begin, seed), shapes, strict=True)
            ]
            for seed in (0, 1)
        ]
        without, with_padding, again = (_gradient(trained, outputs) for outputs in (alone, *padded))
    return without, with_padding, again


def _called(
    model: nn.Module,
    given: Sequence[Tensor],
    call: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    begin: Callable[[int], None],
    seed: int,
) -> Sequence[Tensor]:
    begin(seed)
    for part in model.modules():
        part.training = False
    outputs = call([one.detach().clone() for one in given])
    return [one for one in outputs if one.requires_grad]


def _gradient(trained: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor:
    weights = [torch.cos(torch.arange(one.numel()).to(one)).view(one.shape) for one in outputs]
    grads = torch.autograd.grad(list(outputs), list(trained), weights, allow_unused=True)
    whole = [
        torch.zeros_like(param) if grad is None else grad for param, grad in zip(trained, grads, strict=True)
    ]
    return torch.cat([one.detach().double().cpu().flatten() for one in whole])


def _cut(one: Tensor, shape: Sequence[int], *, at_end: bool) -> Tensor:
    """A tensor without padding at the end or the start; unchanged if it is not longer."""
    if one.ndim != len(shape):
        return one
    sizes = [min(pair) for pair in zip(one.shape, shape, strict=True)]
    return one[tuple(slice(0, size) if at_end else slice(-size, None) for size in sizes)]


def _far(one: Tensor, other: Tensor, limit: float) -> bool:
    return float((one - other).norm()) > limit * max(float(one.norm()), float(other.norm()))


def _compared(
    whole: Any, single: Any, row: int, count: int, copies: int = 1
) -> tuple[bool, list[tuple[Any, Any]]]:
    """(whether a row depends on other examples, pairs of batch and single tensors if it is padded)."""
    mixes, pairs = False, []
    for one, other, number in _matched(whole, single, row, (count, copies)):
        mine, alone = _tensor(one), _tensor(other)
        time_first = False
        if number is None:
            if not _has_rows(mine, alone, 0, (count, copies)):
                if not _has_rows(mine, alone, 1, (count, copies)):
                    continue  # no dimension is recognizable as the examples
                mine, alone, time_first = mine.transpose(0, 1), alone.transpose(0, 1), True
            mine, alone = mine[row], alone[0]
        kind = _relation(mine, alone)
        mixes |= kind == "mixed"
        if kind == "padded" and not time_first:
            pairs.append((one, other))
    return mixes, pairs


def _has_rows(mine: Tensor, alone: Tensor, dim: int, sizes: tuple[int, int]) -> bool:
    return min(mine.ndim, alone.ndim) > dim and (mine.shape[dim], alone.shape[dim]) == sizes


def _matched(
    whole: Any, single: Any, row: int, sizes: tuple[int, int], inside: tuple[int, ...] = ()
) -> Iterator[tuple[Any, Any, int | None]]:
    """Tensors of a batch with those of an example alone; with 0 if they belong to the example only."""
    if isinstance(whole, Tensor | np.ndarray) or isinstance(single, Tensor | np.ndarray):
        if leaves_of(whole) and leaves_of(single):
            yield whole, single, None
        return
    inner: list[tuple[Any, Any]] = []
    if isinstance(whole, Mapping) and isinstance(single, Mapping):
        inner = [(whole[key], single[key]) for key in whole if key in single]
    elif isinstance(whole, tuple | list) and isinstance(single, tuple | list):
        if len(whole) == len(single):
            inner = list(zip(whole, single, strict=True))
        elif (len(whole), len(single)) == sizes:  # a list with one entry per example
            for one, other in zip(leaves_of(whole[row]), leaves_of(single[0]), strict=False):
                yield one, other, 0
    elif type(whole) is type(single) and id(whole) not in inside:
        mine, theirs = fields_of(whole) or {}, fields_of(single) or {}
        inner = [(mine[name], theirs[name]) for name in mine if name in theirs]
    for one, other in inner:
        yield from _matched(one, other, row, sizes, (*inside, id(whole)))


def _tensor(value: Any) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(value.copy())


def _relation(mine: Tensor, alone: Tensor) -> str:
    """Relation of a row to the example alone: "same", "padded" or "mixed"."""
    if mine.shape == alone.shape:
        return "same" if _close(mine, alone) else "mixed"
    if mine.ndim != alone.ndim or any(
        long < short for long, short in zip(mine.shape, alone.shape, strict=True)
    ):
        return "mixed"
    last = mine[tuple(slice(long - short, None) for long, short in zip(mine.shape, alone.shape, strict=True))]
    return "padded" if _first(mine, alone) or _close(last, alone) else "mixed"


def _first(mine: Tensor, alone: Tensor) -> bool:
    """Whether a row begins with the values of the example alone."""
    return _close(mine[tuple(slice(0, short) for short in alone.shape)], alone)


def _close(one: Tensor, other: Tensor) -> bool:
    other = other.to(one)
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=_SAME, atol=1e-6, equal_nan=True)


def _is_mixed(
    collate: Callable[[list[Any]], Any], examples: list[Any], row: int, single: Any, copies: int
) -> bool:
    """Whether a differing row depends on the other examples, and not only on random numbers."""
    if not _at_random(collate, examples, row, single, copies):
        return True
    # With the same draws and batch shape, other examples must not change the row. They only swap
    # places, since draws may depend on them, or are all copies of the first.
    example, others = examples[row], [one for place, one in enumerate(examples) if place != row]
    if len(others) < 2:
        return False
    by_seed = []
    for seed in (0, 1):
        batches = []
        for some in (others, others[1:] + others[:1], [example] * len(others), others):
            set_globals(seed)
            batches.append([_tensor(one) for one in leaves_of(collate([example, *some]))])
        first, moved, same, again = batches
        by_seed.append(
            not _other_row(first, again, len(examples))
            and (_other_row(first, moved, len(examples)) or _other_row(first, same, len(examples)))
        )
    return all(by_seed)


def _other_row(mine: Sequence[Tensor], theirs: Sequence[Tensor], count: int) -> bool:
    """Whether the first rows differ in batches of the same shapes."""
    if [one.shape for one in mine] != [one.shape for one in theirs]:
        return False
    return any(
        not _close(one[0], other[0])
        for one, other in zip(mine, theirs, strict=True)
        if one.ndim and len(one) == count
    )


def _at_random(
    collate: Callable[[list[Any]], Any], examples: list[Any], row: int, single: Any, copies: int
) -> bool:
    """Whether an example is collated at random, so that a differing row is no evidence."""
    # The same draws, the same row: the example comes first, as a collate function may draw in order.
    others = [one for place, one in enumerate(examples) if place != row]
    set_globals(0)
    before = marks_of_globals()
    first = collate([examples[row]] * copies)
    if marks_of_globals() != before:
        set_globals(0)
        if not _compared(collate([examples[row], *others]), first, 0, len(examples), copies)[0]:
            return True
    for seed in range(1, _AGAIN):
        set_globals(seed)
        again = collate([examples[row]] * copies)
        pairs = zip(leaves_of(single), leaves_of(again), strict=True)
        if any(
            _tensor(one).shape != _tensor(other).shape or not _close(_tensor(one), _tensor(other))
            for one, other in pairs
        ):
            return True
    return False
