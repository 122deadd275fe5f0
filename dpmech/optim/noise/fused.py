"""FusedRows: adds rows by the kernel of `kernels`, once it agrees with the plain path on the same device."""

import contextlib
import dataclasses
import functools
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpmech.optim.deferred import sent
from dpmech.optim.noise.addition import Addition
from dpmech.optim.noise.normals import NormalSource
from dpmech.optim.noise.pairs import LANES, TILE, ChaChaNormals
from dpmech.optim.noise.rows import Kind, Recursion
from dpmech.optim.processes import Slot

_SAMPLE = (TILE + LANES + 5, 3)  # lengths of the vectors of a comparison
_KEY = (0x243F6A8885A308D3, 0x13198A2E03707344)  # of a comparison, whose numbers are never released

Plain: TypeAlias = Callable[[int, dict[torch.device, NormalSource], Sequence[Addition]], None]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A compiled form of the kernel.

    Attributes:
        kind: what a row combines.
        vectors: number of state vectors.
        wide_sum: whether sums are float64.
        wide_out: whether results are float64.
        lattice: whether results are rounded to a lattice.
        divided: whether results are divided.
    """

    kind: Kind
    vectors: int
    wide_sum: bool = True
    wide_out: bool = True
    lattice: bool = False
    divided: bool = False

    def options(self) -> dict[str, Any]:
        """Compile-time arguments of `add_rows`."""
        return {name.upper(): value for name, value in vars(self).items()} | {"KIND": self.kind.value}


def fused_on(device: torch.device) -> bool:
    """Whether a device may have the kernel: CUDA, where triton is installed."""
    return device.type == "cuda" and _has_triton()


class FusedRows:
    """Adds rows to the sums on one device, with one launch for all vectors that need the same variant.

    Before its first use a variant is compared with the plain path on small vectors of the same device. If
    a bit differs, or if it cannot run, there is a warning and the plain path is used.

    Args:
        recursion: computes rows.
        device: of the vectors.
        plain: adds rows without a kernel, as `NoiseRows.add_plainly`.
        steps: at which to compare: the first two, and one at which a recursion is complete.
    """

    def __init__(
        self, recursion: Recursion, device: torch.device, plain: Plain, steps: Sequence[int]
    ) -> None:
        self._recursion = recursion
        self._device = device
        self._plain = plain
        self._steps = steps
        self._agreed: dict[Variant, bool] = {}
        self._layouts: dict[tuple[tuple[int, int, int], ...], tuple[Tensor, Tensor, Tensor]] = {}
        self._uploaded: dict[tuple[str, Variant], tuple[list[Any], Tensor]] = {}

    def groups(self, additions: Sequence[Addition]) -> dict[Variant, list[Addition]]:
        """The vectors of each variant; those without values are left out."""
        groups: dict[Variant, list[Addition]] = {}
        found: dict[object, Variant] = {}  # by what a variant follows from: a model has many vectors
        for addition in additions:
            slot, total, out = addition.slot, addition.total, addition.out
            if slot.size:
                key = (
                    total.dtype,
                    out.dtype,
                    total is out,
                    addition.lattice is None,
                    addition.divisor == 1.0,
                )
                if key not in found:
                    found[key] = self._variant(addition)
                groups.setdefault(found[key], []).append(addition)
        return groups

    def add(self, step: int, source: ChaChaNormals, additions: Sequence[Addition]) -> list[Addition]:
        """Add row `step`, and return what is left for the plain path."""
        left = []
        for variant, members in self.groups(additions).items():
            if not self.agrees(variant):
                left += members
                continue
            inside = [_inside(member) for member in members]
            self._launch(variant, step, source, inside)
            for member, part in zip(members, inside, strict=True):
                if part is not member:
                    member.finish(0, member.slot.size)
        return left

    def agrees(self, variant: Variant) -> bool:
        """Whether a variant has the bits of the plain path; with a warning at the first call if not."""
        if variant not in self._agreed:
            try:
                found = self._difference(variant)
            except Exception as error:  # noqa: BLE001 - of a compiler or a driver
                found = f"it does not run ({type(error).__name__}: {error})"
            self._agreed[variant] = found is None
            if found is not None:
                warnings.warn(
                    f"the noise kernel is not used on {self._device}: {found}; {variant}. The path without "
                    "it makes the same noise, and takes longer",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return self._agreed[variant]

    def _variant(self, addition: Addition) -> Variant:
        inside, recursion = _inside(addition), self._recursion
        return Variant(
            kind=recursion.kind,
            vectors=recursion.vectors,
            wide_sum=inside.total.dtype == torch.float64,
            wide_out=inside.out.dtype == torch.float64,
            lattice=inside.lattice is not None,
            divided=inside.divisor != 1.0,
        )

    def _launch(
        self, variant: Variant, step: int, source: ChaChaNormals, additions: Sequence[Addition]
    ) -> None:
        for addition in additions:
            units = -(-addition.slot.size // TILE) * LANES
            source.check_position(step, addition.slot.index, addition.slot.shard, units - 1)
        terms = self._recursion.terms(step)
        scale = terms.scale
        factors = [
            [*((a.factor, 1.0) if scale is None else (1.0, a.factor / scale)), a.lattice or 1.0, a.divisor]
            for a in additions
        ]
        upload = functools.partial(self._upload, variant)
        arguments = (
            *self._layout([addition.slot for addition in additions]),
            upload("sums", [addition.total.data_ptr() for addition in additions], torch.int64),
            upload("outs", [addition.out.data_ptr() for addition in additions], torch.int64),
            upload("states", [[x.data_ptr() for x in one.state] or [0] for one in additions], torch.int64),
            upload("factors", factors, torch.float64),
            upload("weights", terms.weights, torch.float64),
            upload("key", list(source.key_words), torch.int64),
            step,
            len(terms.weights),
            step % self._recursion.vectors if self._recursion.vectors else 0,
        )
        here = torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()
        with here:
            _kernel()[(len(arguments[0]),)](
                *arguments, **variant.options(), num_warps=LANES // 32, enable_fp_fusion=False
            )

    def _layout(self, slots: Sequence[Slot]) -> tuple[Tensor, Tensor, Tensor]:
        """Programs, sizes and positions: the same in every step of a run."""
        key = tuple((slot.index, slot.shard, slot.size) for slot in slots)
        if key not in self._layouts:
            tiles = np.array([-(-slot.size // TILE) for slot in slots])
            rows = np.repeat(np.arange(len(slots)), tiles)
            starts = np.repeat(np.cumsum(tiles) - tiles, tiles)
            programs = np.stack([rows, np.arange(len(rows)) - starts], 1).astype(np.int32)
            self._layouts[key] = (
                torch.from_numpy(programs).to(self._device),
                torch.tensor([slot.size for slot in slots], dtype=torch.int64, device=self._device),
                torch.tensor([[s.index, s.shard] for s in slots], dtype=torch.int64, device=self._device),
            )
        return self._layouts[key]

    def _upload(self, variant: Variant, use: str, values: list[Any], dtype: torch.dtype) -> Tensor:
        """Values on the device; those of the step before if they are the same."""
        before = self._uploaded.get((use, variant))
        if before is not None and before[0] == values:
            return before[1]
        there = sent(torch.tensor(values, dtype=dtype), self._device)
        self._uploaded[use, variant] = values, there
        return there

    def _difference(self, variant: Variant) -> str | None:
        """What differs from the plain path, at some steps from random sums and states."""
        source = ChaChaNormals(_KEY, self._device)
        for step in self._steps:
            plain, fused = self._sample(variant, step), self._sample(variant, step)
            self._plain(step, {self._device: source}, plain)
            self._launch(variant, step, source, fused)
            for a, b in zip(plain, fused, strict=True):
                if not _same([a.out], [b.out]):
                    return f"its sums of step {step} differ from those of the plain path"
                if not _same(a.state, b.state):
                    return f"its states after step {step} differ from those of the plain path"
        return None

    def _sample(self, variant: Variant, step: int) -> list[Addition]:
        """Two vectors, the same at every call."""
        generator = torch.Generator().manual_seed(step)

        def drawn(size: int, *, wide: bool = True) -> Tensor:
            values = torch.randn(size, generator=generator, dtype=torch.float64)
            return values.to(self._device, torch.float64 if wide else torch.float32)

        return [
            Addition(
                slot=Slot(index, (size,), (size,), torch.float64, self._device, 2 * index, 3),
                total=drawn(size, wide=variant.wide_sum),
                out=torch.zeros(size, dtype=_dtype(variant.wide_out), device=self._device),
                state=[drawn(size) for _ in range(variant.vectors)],
                factor=1.7 + index,
                lattice=0.0625 if variant.lattice else None,
                divisor=48.0 + index if variant.divided else 1.0,
            )
            for index, size in enumerate(_SAMPLE)
        ]


def _inside(addition: Addition) -> Addition:
    """The part of an addition that the kernel does: float32 sums are rounded before they are divided."""
    if addition.total.dtype == torch.float64 or (addition.out is addition.total and addition.divisor == 1.0):
        return addition
    return addition._replace(out=addition.total, divisor=1.0)


def _same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether all bits are the same."""
    bits = {torch.float32: torch.int32, torch.float64: torch.int64}
    return all(
        torch.equal(a.view(bits[a.dtype]), b.view(bits[b.dtype])) for a, b in zip(first, second, strict=True)
    )


def _dtype(wide: bool) -> torch.dtype:  # noqa: FBT001 - a flag of a variant
    return torch.float64 if wide else torch.float32


@functools.cache  # asked for every parameter in every step
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _kernel() -> Any:  # noqa: ANN401 - triton has no types
    from dpmech.optim.noise import kernels

    return kernels.add_rows
