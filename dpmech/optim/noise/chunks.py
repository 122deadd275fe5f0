"""Rows of noise for the parameters of a process: chunk by chunk in float64, on several threads."""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import torch
from torch import Tensor

from dpmech.optim.local_parts import Slot
from dpmech.optim.noise.lattice import add_on_lattice
from dpmech.optim.noise.normals import NormalSource
from dpmech.optim.noise.rows import Recursion

__all__ = ["NoiseRows", "add_row"]

_THREADED = 1 << 18  # values above which threads pay

_Unit: TypeAlias = tuple[Slot, int, int, int]
_Emit: TypeAlias = Callable[[Slot, int, Tensor], object]


class NoiseRows:
    """What a recursion makes of the normal numbers of every parameter, and what it remembers.

    Args:
        recursion: how rows are formed.
        slots: the parameters.
        factors: the standard deviation of Z for each of them.
        normals: dtype of the normal numbers; None for that of each slot.

    Attributes:
        vectors: what the recursion remembers, a list a parameter.
    """

    def __init__(
        self,
        recursion: Recursion,
        slots: Sequence[Slot],
        factors: Sequence[float],
        normals: torch.dtype | None = None,
    ) -> None:
        self._recursion = recursion
        self._slots = slots
        self._factors = factors
        self._normals = [normals or slot.dtype for slot in slots]
        self._scales: Sequence[float] | None = None
        self.vectors = [
            [
                torch.zeros(slot.size, dtype=torch.float64 if recursion.wide else drawn, device=slot.forms_on)
                for _ in range(recursion.vectors)
            ]
            for slot, drawn in zip(slots, self._normals, strict=True)
        ]

    def form(
        self,
        step: int,
        sources: dict[torch.device, NormalSource],
        emit: _Emit,
        scales: Sequence[float] | None = None,
    ) -> None:
        """Hand row `step` in float64 to emit(slot, first value, chunk); once for every step, in order.

        Args:
            step: t.
            sources: of the normal numbers.
            emit: takes the chunks.
            scales: what the row of every parameter is multiplied by; None for 1. What is remembered does not
                depend on it.
        """
        self._scales = scales
        units = [(slot, *chunk) for slot in self._slots for chunk in slot.chunks(sources[slot.device].chunk)]
        host = [unit for unit in units if unit[0].device.type == "cpu"]
        self._run(step, sources, [unit for unit in units if unit[0].device.type != "cpu"], emit)
        threads = min(torch.get_num_threads(), len(host))
        if threads > 1 and sum(end - start for _, _, start, end in host) >= _THREADED:
            with ThreadPoolExecutor(threads) as pool:
                list(
                    pool.map(
                        lambda first: self._run(step, sources, host[first::threads], emit), range(threads)
                    )
                )
        else:
            self._run(step, sources, host, emit)

    @torch.no_grad()
    def _run(
        self, step: int, sources: dict[torch.device, NormalSource], units: list[_Unit], emit: _Emit
    ) -> None:
        """Form some chunks of the row; no two of them touch the same memory."""
        longest = max((end - start for _, _, start, end in units), default=0)

        @functools.cache  # made once for all chunks: fresh memory costs more than what is done with it
        def scratch(use: str, dtype: torch.dtype, device: torch.device) -> Tensor:
            return torch.empty(longest, dtype=dtype, device=device)

        for slot, number, start, end in units:
            out = scratch("row", torch.float64, slot.forms_on)[: end - start]
            self._recursion.advance(
                step,
                self._factors[slot.index] * (1.0 if self._scales is None else self._scales[slot.index]),
                functools.partial(_draw, sources[slot.device], slot, number),
                [vector[start:end] for vector in self.vectors[slot.index]],
                out,
                scratch("normals", self._normals[slot.index], slot.forms_on)[: end - start],
            )
            emit(slot, start, out)


def add_row(total: Tensor, noise: Tensor, lattice: float | None = None) -> None:
    """Add a row in float64 to a part of a sum in float32 or float64; only the result is rounded.

    Args:
        total: the part, which is overwritten.
        noise: the row; its contents may be lost.
        lattice: None, or the step of the lattice on which the result is put first.
    """
    if lattice is not None:
        add_on_lattice(total, noise, lattice)
    elif total.device == noise.device:
        total.add_(noise)  # torch adds numbers of both kinds in float64
    else:
        total.copy_(noise.add_(total.to(noise.device)))


def _draw(source: NormalSource, slot: Slot, number: int, step: int, out: Tensor) -> None:
    source.fill(out, step, slot.index, slot.shard, number)
