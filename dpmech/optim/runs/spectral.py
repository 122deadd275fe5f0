"""SpectralNorms: one power iteration of torch's spectral norms in every step, whatever the batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm


class SpectralNorms:
    """The spectral norms in a model, whose buffers follow from released weights and the number of iterations.

    torch iterates in every forward pass in training: once for each microbatch, or example, and never for a
    batch without examples. How many there are is private.

    Attributes:
        buffers: names of their buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        self.buffers: list[str] = []
        self._parts: list[tuple[nn.Module, Callable[[], object]]] = []
        for name, part in model.named_modules():
            prefix, hooks = f"{name}." if name else "", part._forward_pre_hooks.values()
            if type(part) is _SpectralNorm:
                # Of the parametrized weight: there may be others before it.
                self._parts.append((part, model.get_submodule(name.rpartition(".")[0])))
                self.buffers += [f"{prefix}_u", f"{prefix}_v"]
            for hook in (one for one in hooks if type(one) is SpectralNorm):
                self._parts.append(
                    (part, lambda hook=hook, part=part: hook.compute_weight(part, do_power_iteration=True))  # type: ignore[misc]  # defaults bind them
                )
                self.buffers += [f"{prefix}{hook.name}_u", f"{prefix}{hook.name}_v"]

    @torch.no_grad()
    def iterate(self) -> None:
        """One power iteration of those that are in training mode."""
        for part, iterate in self._parts:
            if part.training:
                iterate()

    @contextmanager
    def still(self) -> Iterator[None]:
        """A context in which calls of the model do not iterate."""
        modes = [(part, part.training) for part, _ in self._parts]
        for part, _ in modes:
            part.training = False
        try:
            yield
        finally:
            for part, mode in modes:
                part.training = mode
