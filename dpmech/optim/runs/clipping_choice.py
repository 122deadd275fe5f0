"""The choice of a clipping mode, from the code of a model and its loss and the shapes of its examples."""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.clipping import (
    MODES,
    Batch,
    ClippingMode,
    ExampleGradients,
    Factored,
    UnfollowedError,
    place_of,
)
from dpmech.optim.runs.collated import HALF, TOLERANCES
from dpmech.optim.runs.in_range import in_range
from dpmech.optim.runs.same_draws import SameDraws
from dpmech.optim.state import spared

AskedMode: TypeAlias = Literal["auto", "per_example", "ghost", "loop"]
_ASKED = ("auto", *MODES)
_LOGGER = logging.getLogger("dpmech.optim")
# With fewer values than this in all covered weights, factoring a layer costs more than it saves (measured).
_WORTH_IT = 1024
_FLOOR = 1e-5  # relative to the largest gradient of a parameter
_SCALES = (None, None, 1.0, 1e-3, 1e3, 1.0)  # of the stand-ins' fractions; None for those in (0, 1)
STAND_INS = len(_SCALES)
_ENOUGH = 2  # stand-ins
_APART = 0.05  # relative: by more than half precision rounds, also under autocast within a loss


@dataclasses.dataclass(frozen=True)
class ClippingChoice:
    """How the gradients of a run are clipped.

    Attributes:
        mode: "per_example", "ghost" or "loop".
        reason: the reason, in words. It holds no values of the data.
        factor_cost: the cost of factors under "ghost", as a multiple of its estimate.
    """

    mode: ClippingMode
    reason: str
    factor_cost: float = 1.0

    def __str__(self) -> str:
        return f"clipping_mode {self.mode!r}: {self.reason}"


def check_asked(mode: object, *, loss: bool = True, users: bool = False, most: object = None) -> None:
    """Refuse what no way to clip can do, or not the requested one.

    Args:
        mode: the requested mode.
        loss: whether there is a loss of one example; else gradients come from Opacus' hooks.
        users: whether batches consist of users, each with several examples.
        most: the requested `max_physical_batch_size`.

    Raises:
        InvalidParameterError: if it is not the name of a mode, or for a size that is not known yet.
        UnsupportedCombinationError: for a mode that needs something else.
    """
    if mode not in _ASKED:
        raise InvalidParameterError("clipping_mode", mode, f"one of {_ASKED}")
    if most == "auto" and not loss:
        raise InvalidParameterError(
            "max_physical_batch_size",
            most,
            "a number or None without a loss, as the loop's computation is unknown before its first batch; "
            "with loss=nn.CrossEntropyLoss() or a function it is measured",
        )
    if mode == "loop" and not loss:
        raise UnsupportedCombinationError(
            "clipping_mode='loop' without a loss: the training loop calls the model on whole batches",
            supported="make_private(..., loss=...), or clipping_mode='auto'",
        )
    if mode == "ghost" and users and loss:
        raise UnsupportedCombinationError(
            "clipping_mode='ghost' clips per example, but the examples of one user are clipped jointly",
            supported="clipping_mode='auto', 'per_example' or 'loop'",
        )


def note_compiled(model: nn.Module, mode: ClippingMode | None) -> None:
    """Log that compiled code is not used in training; only the loop calls the model as an ordinary step does.

    Under torch.func dynamo runs a model as it is, and the hooks of every layer would divide its graph.

    Args:
        model: the model.
        mode: how its gradients are clipped.
    """
    parts = list(model.modules())
    compiled = any(type(part).__name__ == "OptimizedModule" or part._compiled_call_impl for part in parts)
    if compiled and mode != "loop":
        _LOGGER.warning(
            "torch.compile has no effect on private training with clipping_mode=%r: the steps are those of "
            "the model without it. make_private(..., loss=..., clipping_mode='loop') uses compiled code",
            mode,
        )


Ways: TypeAlias = Mapping[ClippingMode, ExampleGradients]


def stand_in(tensors: Sequence[Tensor], number: int = 0) -> list[Tensor]:
    """One example with the shapes and dtypes of those in a batch, whose values do not depend on them.

    The first two have fractions in (0, 1), as images and probabilities are; the others have normal ones of
    several scales, which are negative too. Integers are 1, which is a token, a class and an attention mask;
    0 in the second; then both alternate.

    Args:
        tensors: of the batch, which may be empty.
        number: which of them, at least 0; there are STAND_INS different kinds.
    """
    drawn = torch.Generator().manual_seed(number)
    found = []
    for tensor in tensors:
        shape = (1, *tensor.shape[1:])
        if tensor.is_floating_point() or tensor.is_complex():
            scale = _SCALES[number % STAND_INS]
            values = torch.rand(shape, generator=drawn, dtype=torch.float64)
            if scale is not None:
                values = scale * torch.randn(shape, generator=drawn, dtype=torch.float64)
        elif number < 2:
            values = torch.full(shape, 1 - number)
        else:
            values = (torch.arange(math.prod(shape)).reshape(shape) + number) % 2
        found.append(values.to(device=tensor.device, dtype=tensor.dtype))
    return found


@dataclasses.dataclass(frozen=True)
class PublicExamples:
    """Stand-ins that the loss accepts.

    Attributes:
        tensors: shape (1 or 2, ...); empty if the loss accepts none.
        number: of the first of them; None if there is none.
        compared: whether their gradients are finite and not all zero, so that they can be compared.
        still: shape (1 to STAND_INS, ...), those with gradients of zero if no other has a finite one; empty
            if there are none.
    """

    tensors: list[Tensor]
    number: int | None
    compared: bool
    still: list[Tensor]


def public_examples(ways: Ways, batch: Batch, begin: Callable[[], object]) -> PublicExamples:
    """Two stand-ins for examples of a batch, if possible with finite gradients that are not all zero.

    Which of them the loss accepts is no matter of the data.

    Args:
        ways: per-example gradients by the modes.
        batch: whose shapes are used; it may be empty.
        begin: called before each trial.
    """
    found: list[list[Tensor]] = []
    still: list[list[Tensor]] = []
    accepted, first = [], None
    for number in range(STAND_INS):
        example = stand_in(batch.tensors, number)
        try:
            begin()
            with spared(), in_range():
                samples, _ = ways["loop"].samples(batch, example)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 - a loss or model may raise anything on values it does not expect
            continue
        formed = [sample for sample in samples if isinstance(sample, Tensor)]
        finite = all(bool(sample.isfinite().all()) for sample in formed)
        accepted.append(example)
        first = number if first is None else first
        if finite:
            (found if any(bool(sample.any()) for sample in formed) else still).append(example)
        if len(found) == _ENOUGH:
            break
    used, still = found or accepted[:_ENOUGH], [] if found else still
    tensors, kept = ([torch.cat(parts) for parts in zip(*some, strict=True)] for some in (used, still))
    return PublicExamples(tensors, first, bool(found), kept)


def choose(
    asked: AskedMode,
    ways: Ways,
    batch: Batch,
    examples: Sequence[Tensor],
    *,
    compared: bool = True,
    begin: Callable[[], object] = lambda: None,
) -> ClippingChoice:
    """Choose by the model and a few examples, whose gradients are compared.

    What is chosen is public. It depends on shapes, and on what `torch.func.vmap` can follow, so that every
    process and every resumed run makes the same choice: "ghost" if the weights whose factors are cheaper than
    their gradients have 1,024 values or more in total, "loop" if vmap cannot follow the model. Under vmap no
    code can see the values of an example: to branch on one, or to read one, is what vmap does not follow. The
    gradients that are compared would show values where a layer computes something else than its kind (a
    patched `forward`): so only those of stand-ins are compared (`public_examples`), and without any there are
    no factors. Two of them differ, as shapes that depend on values do not show in one. An operation with a
    rule of its own for vmap sees a whole batch: if it mixes examples, a loop takes its place.

    Args:
        asked: the requested mode.
        ways: per-example gradients by the modes.
        batch: the form of the arguments.
        examples: their tensors, shape (examples, ...).
        compared: whether their gradients may be compared: they are no data, and not all zero.
        begin: called before calls whose gradients are compared, to undo what others left.

    Raises:
        UnsupportedCombinationError: if "ghost" is requested and vmap cannot follow the model, or gradients
            are not determined by the inputs and output gradients of layers, or cannot be compared.
    """
    if asked == "loop":
        return ClippingChoice("loop", "as requested")
    try:
        with spared():
            if compared:
                _check_apart(ways["per_example"], batch, examples, begin)
            return _by_vmap(asked, ways, batch, examples, begin, compared=compared)
    except UnfollowedError as error:
        if asked == "ghost":
            raise
        reason = error.reason
    with spared():
        ways["loop"].samples(
            batch, [tensor[:1] for tensor in examples]
        )  # what fails alone is raised as it is
    _LOGGER.warning(
        "clipping_mode 'loop' was chosen, which computes gradients one example at a time: %s", reason
    )
    return ClippingChoice("loop", reason)


def _check_apart(
    way: ExampleGradients, batch: Batch, examples: Sequence[Tensor], begin: Callable[[], object]
) -> None:
    """Raise UnfollowedError if an example has another gradient next to others than alone, under vmap."""
    every = list(range(len(examples[0])))

    def measured(rows: list[int]) -> Tensor:
        begin()
        draws = SameDraws(rows, 0, len(every), generators=way.generators, only_first=True)
        with draws:
            samples, _ = way.samples(batch, [tensor[rows] for tensor in examples])
        formed = [sample.flatten(1) for sample in samples if isinstance(sample, Tensor)]
        norms = [torch.linalg.vector_norm(one, dim=1, dtype=torch.float64) for one in formed]
        sums = [one.sum(dim=1, dtype=torch.float64) / math.sqrt(max(one.shape[1], 1)) for one in formed]
        return torch.stack([*norms, *sums], dim=1).cpu()  # instead of gradients, which may fill the memory

    try:
        together = measured(every)
        alone = torch.cat([measured([row]) for row in every])
        norms = alone[:, : alone.shape[1] // 2]
        allowed = _APART * norms.repeat(1, 2) + _FLOOR * norms.max()
        differs = bool(((together - alone).abs() > allowed).any())
        repeats = differs and bool(((together - measured(every)).abs() <= allowed).all())
    except (torch.OutOfMemoryError, UnfollowedError):
        raise
    except Exception:  # noqa: BLE001 - what does not run like this is not compared
        return
    if repeats:
        raise UnfollowedError(
            "an operation has a rule of its own for torch.func.vmap that mixes examples: one has another "
            "gradient next to others than alone",
            supported="clipping_mode='loop' ('auto' takes it at the first batch); or a rule (`vmap` of an "
            "autograd.Function) that treats every row by itself",
        )


def _by_vmap(
    asked: AskedMode,
    ways: Ways,
    batch: Batch,
    examples: Sequence[Tensor],
    begin: Callable[[], object],
    *,
    compared: bool,
) -> ClippingChoice:
    formed, factored = ways["per_example"], ways["ghost"]
    begin()
    with spared():
        plain = formed.samples(batch, examples)[0]
    if asked == "per_example":
        return ClippingChoice("per_example", "as requested")
    try:
        covered = factored.covered(batch, examples)
        values = sum(
            param.numel() for name, param in zip(formed.names, formed.trained, strict=True) if name in covered
        )
        if asked == "auto" and values < _WORTH_IT:
            return ClippingChoice(
                "per_example",
                f"{values} weights have factors that are cheaper than their gradients, under {_WORTH_IT}",
            )
        begin()
        both = [plain, factored.samples(batch, examples)[0]] if compared else None
        _check_same(formed, both, factored.lowest)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever only factors meet
        if asked == "ghost":
            raise
        # The text of other errors may hold values.
        if isinstance(error, UnsupportedCombinationError):
            return ClippingChoice("per_example", error.reason)
        return ClippingChoice("per_example", f"factors fail: {type(error).__name__}{place_of(error)}")
    share = f"{values} of {sum(param.numel() for param in formed.trained)} weights by factors"
    return ClippingChoice("ghost", share)


def _check_same(
    formed: ExampleGradients,
    found: Sequence[Sequence[Tensor | Factored | None]] | None,
    lowest: torch.dtype | None,
) -> None:
    """Raise UnsupportedCombinationError unless two gradients of the first example are the same, and known."""
    if found is None:
        raise UnsupportedCombinationError(
            "no example of random values, or of zeros and ones, has a gradient by which factors of gradients "
            "could be compared with gradients",
            supported="clipping_mode='per_example' or 'auto'",
        )
    both = [[_dense(sample) for sample in samples] for samples in found]
    norms = [0.0 if plain is None else float(plain.norm()) for plain in both[0]]
    # If everything cancels, as for key biases under a softmax, only rounding errors are left.
    floor = _FLOOR * max(norms)
    names = []
    for name, param, norm, plain, other in zip(formed.names, formed.trained, norms, *both, strict=True):
        if plain is None or other is None:
            continue
        # NaN and infinities, which data may cause, are not a difference.
        if float((plain - other).norm()) > TOLERANCES.get(lowest or param.dtype, HALF) * norm + floor:
            names.append(name)
    if names:
        raise UnsupportedCombinationError(
            f"the gradients of {', '.join(names)} are not determined by what goes in and out of their layers",
            supported="clipping_mode='per_example'",
        )


def _dense(sample: Tensor | Factored | None) -> Tensor | None:
    if isinstance(sample, Factored):
        first = torch.zeros(len(sample), dtype=torch.float64, device=sample.device)
        first[0] = 1.0
        return sample.weighted_sum(first, None)
    return None if sample is None else sample[0].double()
