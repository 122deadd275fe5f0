"""NoiseRows: adds rows to the sums of all parameters, by a kernel where there is one, else in chunks."""

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import torch
from torch import Tensor

from dpmech.optim.noise.addition import Addition
from dpmech.optim.noise.fused import FusedRows, fused_on
from dpmech.optim.noise.normals import NormalSource, Place
from dpmech.optim.noise.pairs import ChaChaNormals
from dpmech.optim.noise.rows import Chunk, Recursion
from dpmech.optim.processes import Slot

_TOGETHER = 1 << 19  # number of values up to which chunks are drawn together, of 4 MiB
_THREADED = 1 << 18  # number of values above which threads are faster

Sources: TypeAlias = dict[torch.device, NormalSource]
_Unit: TypeAlias = tuple[Addition, int, int, int]


class NoiseRows:
    """Computes rows from the normal numbers of every parameter, and keeps the state of the recursion.

    Args:
        recursion: computes rows.
        slots: the parameters.
        factors: the standard deviation of Z for each of them.
        n: number of steps.
        normals: dtype of the normal numbers; None for that of each slot.
        paired: whether the sources are ChaChaNormals: then rows have the same bits on every device.

    Attributes:
        vectors: state of the recursion, a list per parameter.
    """

    def __init__(
        self,
        recursion: Recursion,
        slots: Sequence[Slot],
        factors: Sequence[float],
        n: int,
        normals: torch.dtype | None = None,
        *,
        paired: bool = False,
    ) -> None:
        self._recursion = recursion
        self._slots = slots
        self._factors = factors
        self._n = n
        self._normals = normals
        self._paired = paired
        self._fused: dict[torch.device, FusedRows] = {}
        self.vectors = [
            [
                torch.zeros(
                    slot.size,
                    dtype=torch.float64 if recursion.wide else self._drawn(slot),
                    device=slot.forms_on,
                )
                for _ in range(recursion.vectors)
            ]
            for slot in slots
        ]

    def is_fused(self, device: torch.device) -> bool:
        """Whether rows on a device are added by a kernel, if it agrees with the path without one."""
        return self._paired and fused_on(device)

    def additions(
        self,
        sums: Sequence[Tensor],
        *,
        scales: Sequence[float] | None = None,
        lattice: Sequence[float | None] | None = None,
        outs: Sequence[Tensor] | None = None,
        divisors: Sequence[float] | None = None,
    ) -> list[Addition]:
        """What a step does with the row of every parameter.

        Args:
            sums: of one dimension.
            scales: factor of the row of every parameter; None for 1. The state does not depend on it.
            lattice: steps of the lattices; None without them.
            outs: for the results; None for the sums themselves.
            divisors: of the noisy sums; None for 1.
        """
        ones = [1.0] * len(self._slots)
        columns = zip(
            self._slots,
            sums,
            sums if outs is None else outs,
            self.vectors,
            self._factors,
            scales or ones,
            lattice or [None] * len(self._slots),
            divisors or ones,
            strict=True,
        )
        return [
            Addition(slot, total, out, state, factor * scale, step, divisor)
            for slot, total, out, state, factor, scale, step, divisor in columns
        ]

    def form(self, step: int, sources: Sources, additions: Sequence[Addition]) -> None:
        """Add row `step` to the sums of all parameters; once for every step, in order."""
        if not self._fused:
            self.add_plainly(step, sources, additions)
            return
        left: list[Addition] = []
        for device, members in _by_device(additions).items():
            source, fused = sources[device], self._fused.get(device)
            if fused is not None and isinstance(source, ChaChaNormals):
                left += fused.add(step, source, members)
            else:
                left += members
        self.add_plainly(step, sources, left)

    def prepare(self, sources: Sources, additions: Sequence[Addition]) -> None:
        """Compile and compare the kernels that `form` uses: an interrupt here loses no row."""
        if not any(self.is_fused(device) for device in sources):
            return
        for device, members in _by_device(additions).items():
            source = sources[device]
            if isinstance(source, ChaChaNormals) and self.is_fused(device):
                if device not in self._fused:
                    last = min(self._n - 1, self._recursion.vectors + 2)
                    self._fused[device] = FusedRows(
                        self._recursion, device, self.add_plainly, sorted({0, min(1, last), last})
                    )
                for variant in self._fused[device].groups(members):
                    self._fused[device].agrees(variant)

    def add_plainly(self, step: int, sources: Sources, additions: Sequence[Addition]) -> None:
        """The same without a kernel."""
        units = [
            (addition, *chunk)
            for addition in additions
            for chunk in addition.slot.chunks(sources[addition.slot.device].chunk)
        ]
        host = [unit for unit in units if unit[0].slot.device.type == "cpu"]
        self._run(step, sources, [unit for unit in units if unit[0].slot.device.type != "cpu"])
        threads = min(torch.get_num_threads(), len(host))
        if threads > 1 and sum(end - start for _, _, start, end in host) >= _THREADED:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda first: self._run(step, sources, host[first::threads]), range(threads)))
        else:
            self._run(step, sources, host)

    @torch.no_grad()
    def _run(self, step: int, sources: Sources, units: list[_Unit]) -> None:
        """Compute some chunks of the row; no two of them use the same memory."""
        lengths = [end - start for _, _, start, end in units]
        longest, together = max(lengths, default=0), min(sum(lengths), _TOGETHER)

        @functools.cache  # allocated once for all chunks: allocation costs more than the computation
        def scratch(use: str, dtype: torch.dtype, device: torch.device) -> Tensor:
            return torch.empty(together if use == "together" else longest, dtype=dtype, device=device)

        @functools.cache  # a model has many vectors of one size
        def parts(count: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
            found = [scratch("row", torch.float64, device), scratch("normals", dtype, device)]
            if self._paired:
                found.append(scratch("product", torch.float64, device))
            return [one[:count] for one in found]

        for members in self._together(units):
            first = members[0][0].slot
            source, given = sources[first.device], None
            if len(members) > 1:
                places = [Place(a.slot.index, a.slot.shard, n, end - start) for a, n, start, end in members]
                sizes = [place.size for place in places]
                whole = scratch("together", self._drawn(first), first.forms_on)[: sum(sizes)]
                source.fill_all(whole, step, places)
                given = torch.split(whole, sizes)
            for place, (addition, number, start, end) in enumerate(members):
                slot, count = addition.slot, end - start
                row, spare, *product = parts(count, self._drawn(slot), slot.forms_on)
                spare = spare if given is None else given[place]
                self._recursion.advance(
                    step,
                    addition.factor,
                    functools.partial(_draw, source, slot, number, None if given is None else step),
                    Chunk([vector[start:end] for vector in addition.state], row, spare, *product),
                )
                addition.add(start, row)

    def _together(self, units: list[_Unit]) -> Iterator[list[_Unit]]:
        """Runs of chunks on the CPU whose numbers are drawn at once: a draw has a cost of its own."""
        members: list[_Unit] = []
        total, before = 0, None
        for unit in units:
            slot, size = unit[0].slot, unit[3] - unit[2]
            kind = (slot.device, self._drawn(slot)) if slot.forms_on.type == "cpu" else None
            if members and (kind is None or kind != before or total + size > _TOGETHER):
                yield members
                members, total = [], 0
            members.append(unit)
            total, before = total + size, kind
        if members:
            yield members

    def _drawn(self, slot: Slot) -> torch.dtype:
        """Dtype of the normal numbers of a parameter."""
        return self._normals or slot.dtype


def _by_device(additions: Sequence[Addition]) -> dict[torch.device, list[Addition]]:
    groups: dict[torch.device, list[Addition]] = {}
    for addition in additions:
        groups.setdefault(addition.slot.device, []).append(addition)
    return groups


def _draw(source: NormalSource, slot: Slot, number: int, given: int | None, step: int, out: Tensor) -> None:
    """Numbers of a chunk; those of the step `given` are there, and drawn first."""
    if step != given:
        source.fill(out, step, slot.index, slot.shard, number)
