"""ClippingChoice: whether gradients are formed or only their factors, and why."""

import dataclasses
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.clipping import Batch, ClippingMode, ExampleGradients, Factored, spared_random_numbers

__all__ = ["AskedMode", "ClippingChoice", "check_asked", "choose"]

AskedMode: TypeAlias = Literal["auto", "per_example", "ghost"]
_ASKED = ("auto", "per_example", "ghost")
# With fewer values than this in all covered weights, tapping a layer costs more than it saves (measured).
_WORTH_IT = 1024
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative; 0.1 for less
_FLOOR = 1e-5  # relative to the largest gradient of a parameter


@dataclasses.dataclass(frozen=True)
class ClippingChoice:
    """How the gradients of a run are clipped.

    Attributes:
        mode: "per_example" or "ghost".
        reason: why, in words.
    """

    mode: ClippingMode
    reason: str

    def __str__(self) -> str:
        return f"clipping_mode {self.mode!r}: {self.reason}"


def check_asked(mode: object) -> None:
    """Raise InvalidParameterError on anything but the name of a mode."""
    if mode not in _ASKED:
        raise InvalidParameterError("clipping_mode", mode, f"one of {_ASKED}")


def choose(
    asked: AskedMode, formed: ExampleGradients, factored: ExampleGradients, batch: Batch
) -> ClippingChoice:
    """Choose by the model and the first example of a batch, whose gradients are compared.

    Shapes decide, so that every process and every resumed run decides alike: "ghost" where the weights whose
    factors cost less than their gradients have 1,024 values or more together.

    Args:
        asked: what the caller wants.
        formed: gradients as they are.
        factored: the same with factors.
        batch: with at least one example.

    Raises:
        UnsupportedCombinationError: if "ghost" is asked for, and gradients do not follow from what goes in
            and out of layers.
    """
    if asked == "per_example":
        return ClippingChoice("per_example", "as asked for")
    example = [tensor[:1] for tensor in batch.tensors]
    values = factored.covered_values(batch, example)
    if asked == "auto" and values < _WORTH_IT:
        return ClippingChoice(
            "per_example",
            f"{values} weights have factors that cost less than their gradients, under {_WORTH_IT}",
        )
    share = f"{values} of {sum(param.numel() for param in formed.trained)} weights by factors"
    if asked == "ghost":
        _check_same(formed, factored, batch, example)
        return ClippingChoice("ghost", share)
    try:
        _check_same(formed, factored, batch, example)
    except UnsupportedCombinationError as error:
        return ClippingChoice("per_example", error.reason)
    return ClippingChoice("ghost", share)


def _check_same(
    formed: ExampleGradients, factored: ExampleGradients, batch: Batch, example: list[Tensor]
) -> None:
    """Raise UnsupportedCombinationError unless both have the same gradients of one example."""
    found = []
    for gradients in (formed, factored):
        with spared_random_numbers(example):
            samples, _ = gradients.samples(batch, example)
        found.append([_dense(one) for one in samples])
    norms = [0.0 if plain is None else float(plain.norm()) for plain in found[0]]
    # Where all cancels, as for biases of keys under a softmax, roundings are all that there is.
    floor = _FLOOR * max(norms)
    names = []
    for name, param, norm, plain, other in zip(formed.names, formed.trained, norms, *found, strict=True):
        if plain is None or other is None:
            continue
        # NaN and infinities, which data may bring, are no difference.
        if float((plain - other).norm()) > _TOLERANCES.get(param.dtype, 0.1) * norm + floor:
            names.append(name)
    if names:
        raise UnsupportedCombinationError(
            f"the gradients of {', '.join(names)} do not follow from what goes in and out of their layers",
            supported="clipping_mode='per_example'",
        )


def _dense(sample: Tensor | Factored | None) -> Tensor | None:
    if isinstance(sample, Factored):
        return sample.weighted_sum(torch.ones(1, dtype=torch.float64, device=sample.device), None)
    return None if sample is None else sample[0].double()
