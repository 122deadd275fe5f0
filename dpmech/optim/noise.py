"""NoiseStream: row t of sigma clip_norm C^-1 Z for every parameter, one row a step."""

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dpmech.exceptions import (
    CertificateError,
    HorizonError,
    InvalidParameterError,
    NumericalError,
    check_integer,
    check_real,
)
from dpmech.optim.agreement import Group, check_agreement, check_processes, processes, shared_key
from dpmech.optim.certified import check_certified, check_claim
from dpmech.optim.correlation import NoiseMode, correlate
from dpmech.optim.generators import CudaNormals, Generator, HostNormals, Key, NormalSource, noise_key
from dpmech.optim.slots import Slot, like_param, make_slots
from dpmech.printed import typed

__all__ = ["NoiseStream"]

_FORMAT = 1
_THREADED = 1 << 18  # values above which threads pay

_Unit: TypeAlias = tuple[Slot, int, int, int]


class NoiseStream:
    """The noise of a calibrated mechanism: row t of sigma clip_norm C^-1 Z, Z independent standard normal.

    It is what step t adds to the *sum* of clipped gradients. Rows come in order, each once, n of them; the
    numbers are float32 (float64 for float64 parameters), on the parameters' devices. They follow from a
    128-bit key (64 bits on CUDA) and their position alone: whoever knows the key can take the noise away, so
    `state_dict` is as secret as the training data.

    Where torch.distributed is initialised, constructing a stream and loading its state are collective calls:
    all processes use the key of rank 0, so that replicated parameters get the same noise on all of them and
    shards of a DTensor get independent noise.

    Args:
        calibration: a Calibration or a Certificate.
        params: the parameters, in a fixed order; anything that yields tensors.
        clip_norm: > 0, in units of the gradient; or one number a parameter, to which the noise of that
            parameter is scaled.
        generator: None for entropy of the operating system, as private training must; otherwise a
            numpy or torch generator or an integer, for runs that must repeat.
        mode: how rows are formed; None for the best one.
        process_group: the processes that train together; None for the default group.

    Attributes:
        mode: the NoiseMode in use.
        n: the number of steps.
        seeded: whether the caller supplied the generator.

    Raises:
        InvalidParameterError: on a bad argument, or another clip norm than in the certificate.
        CertificateError: if processes disagree.

    References:
        noise_share section 2 and lambda_cgd eq. 9, for a general C^-1.

    Examples:
        >>> import torch, dpmech as dm
        >>> from dpmech.optim import NoiseStream
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(100, 0.9), 8.0, 1e-5)
        >>> stream = NoiseStream(cal, [torch.zeros(3, 2)], clip_norm=0.5, generator=1)
        >>> [noise.shape for noise in stream.step()], stream.steps_left
        ([torch.Size([3, 2])], 99)
    """

    def __init__(
        self,
        calibration: object,
        params: Iterable[Tensor],
        clip_norm: float | Sequence[float] = 1.0,
        generator: Generator | None = None,
        *,
        mode: NoiseMode | None = None,
        process_group: Group = None,
    ) -> None:
        self._claim = check_claim(calibration)
        self._params, self._slots = make_slots(params)
        self._clip_norms = _check_clip_norms(clip_norm, len(self._slots))
        if not isinstance(clip_norm, Sequence):
            check_certified(self._claim, "clip_norm", self._clip_norms[0])
        self.mode, self._recursion = correlate(self._claim.strategy, mode)
        self.n = self._claim.strategy.n
        self._group = process_group
        self._world = processes(process_group)
        self._step = 0
        self._whole = True  # False while a step is under way: its state would be half moved on
        check_agreement("the noise", self._describe(local=False), process_group)
        self.seeded = generator is not None
        self._set_key(shared_key(noise_key(generator), process_group))
        self._state = [
            [
                torch.zeros(slot.size, dtype=slot.dtype, device=slot.device)
                for _ in range(self._recursion.vectors)
            ]
            for slot in self._slots
        ]

    @property
    def steps_taken(self) -> int:
        """Rows drawn so far; the next one is row `steps_taken`."""
        return self._step

    @property
    def steps_left(self) -> int:
        """Rows that remain."""
        return self.n - self._step

    def step(self) -> list[Tensor]:
        """The next row, one tensor a parameter (a DTensor for a DTensor).

        Raises:
            HorizonError: past the last step.
            NumericalError: if an earlier step was interrupted.
        """
        rows = [torch.empty(slot.size, dtype=slot.dtype, device=slot.device) for slot in self._slots]
        self._advance(lambda slot, start, noise: rows[slot.index][start : start + noise.numel()].copy_(noise))
        return [
            like_param(row.view(slot.local_shape), param)
            for row, slot, param in zip(rows, self._slots, self._params, strict=True)
        ]

    def add_step(self, sums: Sequence[Tensor]) -> None:
        """Add the next row to `sums` in place: no memory beyond one chunk.

        Args:
            sums: one tensor a parameter: its local shape, device and noise dtype, contiguous.

        Raises:
            InvalidParameterError: on a tensor that does not fit.
            HorizonError: past the last step.
            NumericalError: if an earlier step was interrupted.
        """
        if len(sums) != len(self._slots):
            raise InvalidParameterError("sums", len(sums), f"{len(self._slots)} tensors")
        for slot, total in zip(self._slots, sums, strict=True):
            given = (tuple(total.shape), total.dtype, total.device, total.is_contiguous())
            wanted = (slot.local_shape, slot.dtype, slot.device, True)
            if given != wanted:
                raise InvalidParameterError(f"sums[{slot.index}]", given, f"{wanted}")
        flat = [total.view(-1) for total in sums]
        self._advance(lambda slot, start, noise: flat[slot.index][start : start + noise.numel()].add_(noise))

    def state_dict(self) -> dict[str, Any]:
        """Everything that the remaining rows follow from, as plain data and tensors. Keep it secret."""
        self._check_whole()
        return {
            "format": _FORMAT,
            **self._describe(local=True),
            "step": self._step,
            "key": list(self._key),
            "seeded": self.seeded,
            "fingerprints": self._fingerprints(),
            "state": [[vector.clone() for vector in vectors] for vectors in self._state],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken, bit for bit. Only a stream that drew nothing yet can.

        Raises:
            CertificateError: if the state belongs to another certificate, clip norm, mode or layout, if
                processes load different ones, or if the generators here draw other numbers.
            InvalidParameterError: if `state` is malformed, or the stream drew already.
        """
        self._check_whole()
        if self._step:
            raise InvalidParameterError("stream", self, "fresh: to go back would use the same noise twice")
        mine = {"format": _FORMAT, **self._describe(local=True)}
        expected = {*mine, "step", "key", "seeded", "fingerprints", "state"}
        if not isinstance(state, dict) or set(state) != expected:
            raise InvalidParameterError("state", type(state).__name__, f"a dict with keys {sorted(expected)}")
        for name, value in mine.items():
            if state[name] != value:
                raise CertificateError(
                    f"the state has another {name} than this stream", claimed=state[name], recomputed=value
                )
        step = check_integer("state['step']", state["step"], minimum=0, maximum=self.n)
        key = _check_key(state["key"])
        vectors = _check_vectors(state["state"], self._state)
        check_agreement("the resumed noise", {"step": step, "key": list(key)}, self._group)
        previous = self._key
        self._set_key(key)
        found = self._fingerprints()
        if found != state["fingerprints"]:
            self._set_key(previous)
            raise CertificateError(
                "the generators here draw other numbers than those of the state (another kind of device, or "
                "another release of numpy or torch)",
                claimed=state["fingerprints"],
                recomputed=found,
            )
        self._state = vectors
        self._step = step
        self.seeded = bool(state["seeded"])

    def fingerprint(self) -> str:
        """SHA-256 (hex) that follows from the key: names the noise of a run without giving it away.

        A key from the operating system cannot be guessed from it; one from a short seed can (`seeded`).
        """
        return hashlib.sha256("".join(self._fingerprints()).encode()).hexdigest()

    def __repr__(self) -> str:
        return (
            f"NoiseStream({self._claim.strategy!r}, sigma={typed(self._claim.sigma)}, "
            f"clip_norm={self._clip_norms[0] if len(set(self._clip_norms)) == 1 else self._clip_norms}, "
            f"mode={self.mode.name}, step={self._step} of {self.n}, parameters={len(self._slots)})"
        )

    # ---- the inside

    def _advance(self, emit: Callable[[Slot, int, Tensor], object]) -> None:
        """Hand every chunk of the next row to `emit`, then count the step."""
        self._check_whole()
        if self._step >= self.n:
            raise HorizonError(self._step, self.n)
        check_processes(self._world, self._group)
        self._whole = False
        units = [
            (slot, *chunk) for slot in self._slots for chunk in slot.chunks(self._sources[slot.device].chunk)
        ]
        host = [unit for unit in units if unit[0].device.type == "cpu"]
        self._run([unit for unit in units if unit[0].device.type != "cpu"], emit)
        threads = min(torch.get_num_threads(), len(host))
        if threads > 1 and sum(end - start for _, _, start, end in host) >= _THREADED:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda first: self._run(host[first::threads], emit), range(threads)))
        else:
            self._run(host, emit)
        self._step += 1
        self._whole = True

    @torch.no_grad()
    def _run(self, units: list[_Unit], emit: Callable[[Slot, int, Tensor], object]) -> None:
        """Draw some chunks of the row; no two of them touch the same memory."""
        for slot, number, start, end in units:
            out = torch.empty(end - start, dtype=slot.dtype, device=slot.device)
            self._recursion.advance(
                self._step,
                functools.partial(self._draw, slot, number),
                [vector[start:end] for vector in self._state[slot.index]],
                out,
                torch.empty_like(out),
            )
            emit(slot, start, out.mul_(self._claim.sigma * self._clip_norms[slot.index]))

    def _draw(self, slot: Slot, number: int, step: int, out: Tensor) -> None:
        self._sources[slot.device].fill(out, step, slot.index, slot.shard, number)

    def _check_whole(self) -> None:
        if not self._whole:
            raise NumericalError(
                f"step {self._step} of the noise was interrupted: go on from the last saved state"
            )

    def _set_key(self, key: Key) -> None:
        self._key = key
        self._sources: dict[torch.device, NormalSource] = {
            device: self._source(device, key) for device in dict.fromkeys(slot.device for slot in self._slots)
        }

    def _source(self, device: torch.device, key: Key) -> NormalSource:
        if device.type != "cuda":
            return HostNormals(key)
        return CudaNormals(
            key,
            torch.Generator(device),
            sizes=tuple(math.prod(slot.shape) for slot in self._slots),
            n=self.n,
            shards=max(slot.shards for slot in self._slots),
        )

    def _fingerprints(self) -> list[str]:
        return [source.fingerprint() for source in self._sources.values()]

    def _describe(self, *, local: bool) -> dict[str, Any]:
        """What must not change over a run, and (but for `local`) between processes."""
        return {
            "claim": self._claim.fingerprint(),
            "clip_norms": self._clip_norms,
            "mode": self.mode.value,
            "layout": [slot.describe() if local else list(slot.shape) for slot in self._slots],
        }


def _check_clip_norms(value: float | Sequence[float], count: int) -> list[float]:
    if not isinstance(value, Sequence):
        return [check_real("clip_norm", value, minimum=0.0, open_minimum=True)] * count
    if len(value) != count:
        raise InvalidParameterError("clip_norm", value, f"a number, or {count} numbers, one a parameter")
    return [check_real("clip_norm", one, minimum=0.0, open_minimum=True) for one in value]


def _check_key(value: object) -> Key:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidParameterError("state['key']", type(value).__name__, "two integers")
    first, second = (check_integer("state['key']", word, minimum=0, maximum=2**64 - 1) for word in value)
    return first, second


def _check_vectors(given: object, like: list[list[Tensor]]) -> list[list[Tensor]]:
    """Copies of the state vectors on the right devices."""
    if not isinstance(given, list) or [len(row) for row in given] != [len(row) for row in like]:
        raise InvalidParameterError("state['state']", type(given).__name__, "the vectors of every parameter")
    copies = []
    for given_row, row in zip(given, like, strict=True):
        for new, old in zip(given_row, row, strict=True):
            if not isinstance(new, Tensor) or (new.shape, new.dtype) != (old.shape, old.dtype):
                raise InvalidParameterError("a vector of the state", new, f"of shape {tuple(old.shape)}")
        copies.append([new.to(old.device, copy=True) for new, old in zip(given_row, row, strict=True)])
    return copies
