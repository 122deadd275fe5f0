"""Trials of a loss: whether an example leaves anything to the next, and whether it has a gradient alone."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.clipping import Batch, ExampleGradients
from dpmech.optim.runs.clipping_choice import STAND_INS, stand_in
from dpmech.optim.runs.example_loss import ExampleLoss
from dpmech.optim.runs.in_range import in_range
from dpmech.optim.runs.same_draws import SameDraws

# Scales of the other examples between two calls on the same one: what drifts adds up, and running maxima or
# what is kept of unusual examples only show where those are large, small or negative.
_SCALES = (1.0, 1.0, 1.0, 1e-3, -1.0, -1e3, 1e3)
# Where kernels do not repeat their roundings, relative; 0.1 for lower precision.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_SEEDS = 8  # a loss may draw which examples count, where these draws are not found


def check_independent(
    gradients: ExampleGradients, batch: Batch, example: Sequence[Tensor], begin: Callable[[int], object]
) -> None:
    """Raise UnsupportedCombinationError if the gradient of an example changes after calls on others.

    The same example is computed first, again, and after some others, each time under the same random numbers
    and with everything put back that is found (`Afresh`). So differences come from what is not found:
    state in compiled code, files. On CPUs gradients must agree bit for bit if they repeat at all.

    Of a function of its example and the model nothing is refused, whatever the example; the others are
    stand-ins. So that a run is not refused says nothing about the data.

    Args:
        gradients: one example at a time.
        batch: the form of the arguments.
        example: the tensors of one example, shape (1, ...).
        begin: seeds all generators, and undoes what the calls before left in model and loss.
    """

    def run(tensors: Sequence[Tensor]) -> list[Tensor | None]:
        begin(0)
        samples, loss = gradients.samples(batch, tensors)
        return [loss, *(one if isinstance(one, Tensor) else None for one in samples)]

    first, again = run(example), run(example)
    for number, scale in enumerate(_SCALES):
        try:
            # Numbers of which fractions are in (0, 1).
            drawn = stand_in(example, STAND_INS * (number + 1) + number % 2)
            other = [_scaled(one, scale) for one in drawn]
            with in_range() as checked:
                run(other)
            if checked:
                run(other)  # compiled code too, which may keep state
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 - a loss or model may raise anything on values it does not expect
            continue
    names = ["the loss", *gradients.names]
    last = run(example)
    repeats = not _changed(names, first, again, exactly=True)
    exactly = repeats and all(one.device.type == "cpu" for one in example)
    changed = _changed(names, first, again, exactly=False) or _changed(names, first, last, exactly=False)
    if exactly and not changed and _changed(names, first, last, exactly=True):
        # Roundings that differ once, by another order of threads, are no state.
        changed = _changed(names, first, run(example), exactly=True)
    if changed:
        shown = ", ".join([*changed[:3], *["..."] * (len(changed) > 3)])
        raise UnsupportedCombinationError(
            f"an example gives another gradient after other examples ({shown}): the loss or the model keeps "
            "state that one example leaves to the next, where it cannot be put back (a file, compiled code, "
            "a generator of random numbers that is not found)",
            supported="a loss that is a function of its example and the model; public state as an attribute, "
            "a list, a dict or a tensor, set by the training loop",
        )


def check_alone(
    gradients: ExampleGradients,
    batch: Batch,
    examples: Sequence[Tensor],
    loss: ExampleLoss,
    begin: Callable[[int], object],
) -> None:
    """Raise UnsupportedCombinationError if examples have gradients next to others, and none alone.

    A loss that only compares the examples of a batch is constant when it is called with one. A mean or a sum
    of losses of examples is never refused: if the gradient of each is zero, so is that of all. An example has
    the same random numbers alone and next to others.

    Args:
        gradients: one example at a time.
        batch: the form of the arguments.
        examples: tensors of public examples whose gradients are zero, shape (examples, ...).
        loss: calls the user's, of `gradients`.
        begin: seeds all generators, and undoes what the calls before left in model and loss.
    """
    count = len(examples[0])

    def size(rows: Sequence[int], tensors: Sequence[Tensor], seed: int) -> float:
        begin(seed)
        with in_range(), SameDraws(rows, seed, count, generators=gradients.generators, only_first=True):
            samples, _ = gradients.samples(batch, tensors)
        return sum(float(one.double().norm()) for one in samples if isinstance(one, Tensor))

    singles = [([row], [one[row : row + 1] for one in examples]) for row in range(count)]
    groups = singles if loss.is_of_users else [(list(range(count)), [one[None] for one in examples])]
    try:
        for seed in range(_SEEDS):
            alone = [size(rows, tensors, seed) for rows, tensors in singles]
            with loss.together():
                joint = sum(size(rows, tensors, seed) for rows, tensors in groups)
            if any(alone) or not 0.0 < joint < math.inf:
                return
    except Exception:  # noqa: BLE001 - a loss or model may raise anything on values it does not expect
        return
    raise UnsupportedCombinationError(
        "the loss compares the examples of a batch (contrastive losses, triplets, ranks, variances). It is "
        "called with one example at a time: alone, random examples have gradients of zero, and only "
        "together they have others. The run would train on noise alone",
        supported="a loss with a term for each example; or a dataset whose items are the pairs or groups "
        "that the loss compares, each of which is one example of the guarantee",
    )


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    """Fractions times a scale; integers, which may be indices, as they are."""
    return tensor * scale if tensor.is_floating_point() or tensor.is_complex() else tensor


def _changed(
    names: Sequence[str], one: Sequence[Tensor | None], other: Sequence[Tensor | None], *, exactly: bool
) -> list[str]:
    """The names of the tensors that differ."""
    norms = [0.0 if tensor is None else float(tensor.double().norm()) for tensor in one]
    found = []
    for name, mine, theirs, norm in zip(names, one, other, norms, strict=True):
        if mine is None or theirs is None:
            if mine is not theirs:
                found.append(name)
            continue
        if exactly:
            same = mine.dtype == theirs.dtype and torch.equal(mine.nan_to_num(), theirs.nan_to_num())
        else:
            off = float((mine.double() - theirs.double()).norm())
            same = not off > _TOLERANCES.get(mine.dtype, 0.1) * max(norm, 1e-3 * max(norms))
        if not same:
            found.append(name)
    return found
