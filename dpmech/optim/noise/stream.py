"""NoiseStream: row t of sigma clip_norm C^-1 Z for every parameter, one row per step.

A row of noise protects one release. Anything that could produce the same row twice would release two sums
under it, whose difference has no noise. So streams are not copied, work in one process, and no two live ones
share a key.
"""

import gc
import hashlib
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, SupportsIndex

import torch
from torch import Tensor

from dpmech.certificates import AdaptiveClip, Claim
from dpmech.exceptions import (
    CertificateError,
    HorizonError,
    InvalidParameterError,
    NumericalError,
    UnsupportedCombinationError,
)
from dpmech.guards import check_real
from dpmech.numerics import UNIT, typed
from dpmech.optim.certified_settings import check_certified, check_claim, check_reaches, check_rule
from dpmech.optim.clipping import Clipping
from dpmech.optim.noise.addition import Addition
from dpmech.optim.noise.lattice import Lattice
from dpmech.optim.noise.noise_rows import NoiseRows, Sources
from dpmech.optim.noise.normals import Generator, HostNormals, NormalSource, noise_key
from dpmech.optim.noise.pairs import ChaChaNormals
from dpmech.optim.noise.rows import NoiseMode, correlate
from dpmech.optim.noise.secure_normals import (
    LATTICES,
    PAIRED,
    PHILOX,
    ZIGGURAT,
    SecureNormals,
    ZigguratNormals,
    checked_state,
    secure_key,
    source_of,
)
from dpmech.optim.processes import (
    Group,
    Key,
    check_agreement,
    check_current_device,
    check_processes,
    like_param,
    make_slots,
    processes,
    shared_key,
)


def resolved_norms(
    claim: Claim, value: float | Sequence[float] | Clipping | AdaptiveClip, params: Sequence[Tensor]
) -> list[float]:
    """The clip norm to which the noise of each parameter is scaled, from the argument of a NoiseStream.

    Raises:
        InvalidParameterError: on a bad value.
        CertificateError: if it differs from the certified one, or is smaller.
    """
    count = len(params)
    if isinstance(value, AdaptiveClip):
        check_rule(claim, value)
        scales = [value.gradient_sigma(claim.sigma)] * (count - 1) + [value.count_stddev(claim.sigma)]
        return [scale / claim.sigma * (1.0 + 4.0 * UNIT) for scale in scales]
    if isinstance(value, Clipping):
        check_certified(claim, "clip_norm", value.joint_norm)
        return list(value.noise_norms(params, claim.sigma))
    given = value if isinstance(value, Sequence) else [value] * count
    if len(given) != count:
        raise InvalidParameterError("clip_norm", value, f"a number, or {count} numbers, one per parameter")
    norms = [check_real("clip_norm", norm, minimum=0.0, open_minimum=True) for norm in given]
    # If there are several the clipping is unknown here: noise for the whole norm covers any clipping.
    check = check_reaches if given is value else check_certified
    check(claim, "clip_norm", min(norms))
    return norms


_HELD: "weakref.WeakValueDictionary[tuple[int, Key], object]" = weakref.WeakValueDictionary()
_LOCK = threading.RLock()  # the garbage collection below may run code that enters again


class Uncopied:
    """Base of classes whose instances refuse `copy.copy`, `copy.deepcopy` and pickling."""

    def __copy__(self) -> NoReturn:
        """Refused."""
        self._refuse("copied")

    def __deepcopy__(self, memo: dict[int, object]) -> NoReturn:
        """Refused."""
        self._refuse("copied")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refused."""
        self._refuse("pickled")

    def _refuse(self, how: str) -> NoReturn:
        raise UnsupportedCombinationError(
            f"a {type(self).__name__} was {how}: both would return the same batches or the same noise, and "
            "two sums released under one row reveal their difference",
            supported="state_dict(), loaded into a new one when this one is no longer used",
        )


def hold_key(key: Key, owner: object) -> None:
    """Note that a stream of this process uses a key, until it is deleted or releases the key.

    Raises:
        UnsupportedCombinationError: if another live stream of this process has the key.
    """
    entry = (os.getpid(), key)
    with _LOCK:
        if _taken(entry, owner):
            gc.collect()  # objects only referenced by cycles are no longer used
        if _taken(entry, owner):
            raise UnsupportedCombinationError(
                "another live NoiseStream or PrivateOptimizer of this process draws the same noise (from an "
                "equal seed, or from the same saved state): two sums released under one row reveal their "
                "difference",
                supported="optimizer.close() of the other one first, to resume from its state; another "
                "generator for a separate run",
            )
        _HELD[entry] = owner


def release_key(key: Key, owner: object) -> None:
    """Release the key, if this stream held it."""
    entry = (os.getpid(), key)
    with _LOCK:
        if _HELD.get(entry) is owner:
            del _HELD[entry]


def _taken(entry: tuple[int, Key], owner: object) -> bool:
    holder = _HELD.get(entry)
    return holder is not None and holder is not owner


class NoiseStream(Uncopied):
    """The noise of a calibrated mechanism: row t of sigma clip_norm C^-1 Z, Z independent standard normal.

    Step t adds this row to the *sum* of clipped gradients. The n rows are returned in order, each once. They
    are computed in float64 from normal numbers in float64 (float32 for float32 parameters, with Philox). They
    depend only on a 128-bit key and their position. Anyone who knows the key can remove the noise, so
    `state_dict` is as secret as the training data.

    The loss of noise by float64 rounding has a proved bound (see the page). All noise is enlarged by this
    bound, and a strategy with a bound above 1e-6 is refused.

    A stream works only in the process that created it, and cannot be copied or pickled. Two live streams of a
    process must not have the same key.

    If torch.distributed is initialized, constructing a stream and loading its state are collective calls:
    all processes use the key of rank 0, so that replicated parameters get the same noise in all of them and
    shards of a DTensor get independent noise.

    Args:
        calibration: a Calibration or a Certificate.
        params: the parameters, in a fixed order; any iterable of tensors.
        clip_norm: > 0, in units of the gradient; or the Clipping in use; or one number per parameter, to
            which its noise is scaled, none below the clip norm that a certificate fixes; or an AdaptiveClip,
            with which the last of `params` is the count, and every step has its own clip norm.
        generator: None for a key from the operating system, as private training requires, with a
            cipher on CPUs (AES-128) and on CUDA (ChaCha20), and Philox on other devices; "secure" for the
            cipher on every device; "philox" for Philox except on CUDA; "secure-lattice" for the cipher and
            sums on a lattice, which also bounds rounding (only for independent noise, see `lattice_loss`);
            otherwise a numpy or torch generator or an integer, from which a key is derived, of Philox or on
            CUDA of ChaCha20, for runs that must repeat.
        mode: how rows are computed; None for the best one.
        process_group: the processes that train together; None for the default group.

    Attributes:
        mode: the NoiseMode in use.
        n: the number of steps.
        generator: source of the numbers: "aes-128-ctr, ziggurat", "aes-128-ctr, lattice" or "philox"; on
            CUDA "chacha20, pairs", "chacha20, lattice" or "chacha20, seeded".
        seeded: whether the caller supplied the generator.

    Raises:
        InvalidParameterError: on a bad argument, or a clip norm that differs from the certificate's.
        CertificateError: if processes disagree.
        NumericalError: if rounding may leave more than 1e-6 less noise than certified.
        UnsupportedCombinationError: if a live stream of this process uses an equal generator; for
            "secure-lattice" and noise that is correlated between steps.
        MissingDependencyError: for a cipher without the package `cryptography`.

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

    _key: Key

    def __init__(
        self,
        calibration: object,
        params: Iterable[Tensor],
        clip_norm: float | Sequence[float] | Clipping | AdaptiveClip = 1.0,
        generator: Generator | None = None,
        *,
        mode: NoiseMode | None = None,
        process_group: Group = None,
    ) -> None:
        self._claim = check_claim(calibration)
        self._params, self._slots = make_slots(params)
        self._adaptive = isinstance(clip_norm, AdaptiveClip)
        self._clip_norms = resolved_norms(self._claim, clip_norm, self._params)
        self.mode, self._recursion = correlate(self._claim.strategy, mode)
        whole = self._claim.sigma * (1.0 + 2.0 * self._recursion.error)
        self._factors = [whole * norm for norm in self._clip_norms]
        named, self._taken_up = source_of(generator, [slot.device for slot in self._slots])
        self._use(named)
        self.n = self._claim.strategy.n
        self._group = process_group
        self._world = processes(process_group)
        self._step = 0
        self._whole = True  # False during a step: its state would be partly updated
        self._closed = False
        self._process = os.getpid()
        check_current_device(self._params, process_group)
        check_agreement("the noise", self._describe(local=False), process_group)
        self.seeded = generator is not None and not isinstance(generator, str)
        if named == PHILOX or named in PAIRED:
            own = noise_key(None if isinstance(generator, str) else generator)
        else:
            own = secure_key()
        key = shared_key(own, process_group)
        self._set_sources(key)
        hold_key(key, self)

    @property
    def steps_taken(self) -> int:
        """Rows used so far; the next one is row `steps_taken`."""
        return self._step

    @property
    def steps_left(self) -> int:
        """Number of rows that remain."""
        return self.n - self._step

    def step(self, clip_norm: float | None = None) -> list[Tensor]:
        """The next row in float64, one tensor per parameter (a DTensor for a DTensor).

        Add it to a sum in float64 and round the result, as `torch.Tensor.add_` does on a float32 sum. A row
        that is itself rounded to float32 has a relative error of 2^-24, which C amplifies, and which no claim
        covers.

        Args:
            clip_norm: of this step, > 0, with an AdaptiveClip; else None.

        Returns:
            Tensors on the parameters' devices; on the CPU for devices other than CPU and CUDA.

        Raises:
            HorizonError: beyond the last step.
            NumericalError: if an earlier step was interrupted.
            UnsupportedCombinationError: in a process other than the one that made the stream, or once closed;
                with a lattice, to which only a sum with its noise can be rounded.
        """
        if self._lattice is not None:
            raise UnsupportedCombinationError(
                "a row without its sum, with generator='secure-lattice'", supported="add_step(sums)"
            )
        scales = self._scales_of(clip_norm)
        rows = [torch.zeros(slot.size, dtype=torch.float64, device=slot.forms_on) for slot in self._slots]
        self._advance(self._rows.additions(rows, scales=scales))
        return [
            like_param(row.view(slot.local_shape), param)
            for row, slot, param in zip(rows, self._slots, self._params, strict=True)
        ]

    def add_step(self, sums: Sequence[Tensor], clip_norm: float | None = None) -> None:
        """Add the next row to `sums` in place, with at most 5 MiB of memory (per thread).

        The addition is in float64; only its result is rounded to the dtype of the sum, after the noise is
        added and, if there is a lattice, the result is rounded to it.

        On CUDA with triton one kernel does everything, once it has given the bits of the path without it on
        a sample; else there is a warning and that path is used.

        Args:
            sums: one tensor per parameter: its local shape and device, contiguous; float64, or float32 if
                the parameter is not float64.
            clip_norm: of this step, > 0, with an AdaptiveClip; else None.

        Raises:
            InvalidParameterError: on a tensor that does not fit.
            HorizonError: beyond the last step.
            NumericalError: if an earlier step was interrupted.
            UnsupportedCombinationError: in a process other than the one that made the stream, or once closed.
        """
        self._add(sums, clip_norm)

    def mean_step(
        self, sums: Sequence[Tensor], divisors: Sequence[float], clip_norm: float | None = None
    ) -> list[Tensor]:
        """Add the next row to `sums`, and divide: add_step and a division, in one pass.

        Args:
            sums: as for add_step. They must be discarded: they are overwritten, or still without noise.
            divisors: > 0, of the noisy sum of every parameter.
            clip_norm: as for add_step.

        Returns:
            The noisy means, rounded once to float32 for parameters that are not float64.

        Raises:
            InvalidParameterError: on a bad argument; and as add_step.
        """
        if len(divisors) != len(self._slots):
            raise InvalidParameterError("divisors", len(divisors), f"{len(self._slots)} numbers")
        checked = [check_real("divisors", one, minimum=0.0, open_minimum=True) for one in divisors]
        return self._add(sums, clip_norm, checked)

    def _add(
        self, sums: Sequence[Tensor], clip_norm: float | None, divisors: Sequence[float] | None = None
    ) -> list[Tensor]:
        """Add the next row, and divide; returns the results, which are the sums without divisors."""
        self._check_sums(sums)
        scales = self._scales_of(clip_norm)
        totals = [total.view(-1) for total in sums]
        outs = [
            torch.empty_like(total, dtype=slot.dtype) if divisors else total
            for total, slot in zip(totals, self._slots, strict=True)
        ]
        lattice = self._lattice.steps(self._step, scales) if self._lattice else None
        self._advance(
            self._rows.additions(totals, scales=scales, lattice=lattice, outs=outs, divisors=divisors)
        )
        return [out.view_as(total) for out, total in zip(outs, sums, strict=True)]

    def _check_sums(self, sums: Sequence[Tensor]) -> None:
        if len(sums) != len(self._slots):
            raise InvalidParameterError("sums", len(sums), f"{len(self._slots)} tensors")
        for slot, total in zip(self._slots, sums, strict=True):
            dtype = torch.float64 if total.dtype == torch.float64 else slot.dtype
            given = (tuple(total.shape), total.dtype, total.device, total.is_contiguous())
            wanted = (slot.local_shape, dtype, slot.device, True)
            if given != wanted:
                raise InvalidParameterError(f"sums[{slot.index}]", given, f"{wanted}")

    def state_dict(self) -> dict[str, Any]:
        """Everything that determines the remaining rows, as plain data and tensors. Keep it secret."""
        self._check_whole()
        return {
            **self._describe(local=True),
            "step": self._step,
            "key": list(self._key),
            "seeded": self.seeded,
            "fingerprints": _fingerprints(self._sources),
            # On the CPU: a copy on a GPU may not fit next to a model that fills it.
            "state": [[one.to("cpu", copy=True) for one in vectors] for vectors in self._rows.vectors],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, bit for bit. Only for a stream that has used no row yet.

        The generator is that of the state if this stream was made with None; "secure" loads any
        state of a cipher without a lattice and a seed, "secure-lattice" any with one, and seeds any with a
        seed.

        Raises:
            CertificateError: if the state belongs to another certificate, clip norm, mode or layout, if
                processes load different ones, or if the generators here give other numbers.
            InvalidParameterError: if `state` is malformed, or the stream has already used a row.
            UnsupportedCombinationError: if a live stream of this process uses the key of the state.
        """
        self._check_usable()
        if self._step:
            raise InvalidParameterError("stream", self, "fresh: to go back would use the same noise twice")
        before = self.generator
        named = state.get("generator") if isinstance(state, dict) else None
        self._use(named if named in self._taken_up else before)  # others are refused below
        try:
            self._go_on(state)
        except BaseException:
            self._use(before)
            self._set_sources(self._key)
            raise

    def _go_on(self, state: dict[str, Any]) -> None:
        """Load a state with the generator that it names."""
        step, key, vectors = checked_state(state, self._describe(local=True), self._rows.vectors, self.n)
        resumed = {"step": step, "key": list(key), "generator": self.generator}
        check_agreement("the resumed noise", resumed, self._group)
        fingerprints = _fingerprints(self._sources_of(key))
        if state["fingerprints"] != fingerprints:
            raise CertificateError(
                "the generators here draw other numbers than those of the state (another kind of device, or "
                "another release of numpy or torch)",
                claimed=state["fingerprints"],
                recomputed=fingerprints,
            )
        previous = self._key
        hold_key(key, self)
        self._whole = False  # an interrupt must not allow row 0 under the key of the state
        self._set_sources(key)
        if key != previous:
            release_key(previous, self)
        self._rows.vectors = vectors
        self._step = step
        self.seeded = bool(state["seeded"])
        self._whole = True

    def close(self) -> None:
        """End the stream: it makes no more rows, and another stream may use its state or its seed.

        A stream without references is closed automatically.
        """
        self._closed = True
        release_key(self._key, self)

    def fingerprint(self) -> str:
        """SHA-256 (hex) derived from the key: identifies the noise of a run without revealing it.

        A key from the operating system cannot be guessed from it; one from a short seed can (`seeded`).
        """
        return hashlib.sha256("".join(_fingerprints(self._sources)).encode()).hexdigest()

    def derived_secret(self, use: str) -> bytes:
        """32 bytes derived from the key and a word, which reveal nothing of the key, the noise or each other.

        As secret as the noise, and the same after `load_state_dict`.
        """
        key = b"".join(word.to_bytes(8, "little") for word in self._key)
        return hashlib.blake2b(use.encode(), key=key, digest_size=32, person=b"dpmech derived").digest()

    def __repr__(self) -> str:
        return (
            f"NoiseStream({self._claim.strategy!r}, sigma={typed(self._claim.sigma)}, "
            f"clip_norm={self._clip_norms[0] if len(set(self._clip_norms)) == 1 else self._clip_norms}, "
            f"mode={self.mode.name}, step={self._step} of {self.n}, parameters={len(self._slots)})"
        )

    def _scales_of(self, clip_norm: float | None) -> list[float] | None:
        """Factors of the rows of a step: its clip norm for gradients, and 1 for the count."""
        if self._adaptive != (clip_norm is not None):
            accepted = "given at every step" if self._adaptive else "None, as it was given for all steps"
            raise InvalidParameterError("clip_norm", clip_norm, accepted)
        if clip_norm is None:
            return None
        norm = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
        return [norm] * (len(self._slots) - 1) + [1.0]

    def _advance(self, additions: Sequence[Addition]) -> None:
        """Add the next row, then count the step."""
        self._check_usable()
        if self._step >= self.n:
            raise HorizonError(self._step, self.n)
        check_processes(self._world, self._group)
        self._rows.prepare(self._sources, additions)
        self._whole = False
        self._rows.form(self._step, self._sources, additions)
        self._step += 1
        self._whole = True

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise UnsupportedCombinationError(
                f"a NoiseStream of process {self._process} is used in process {os.getpid()}: both would "
                "release the same rows of noise, as after a fork",
                supported="making it in the process that uses it",
            )
        if self._closed:
            raise UnsupportedCombinationError(
                f"step {self._step} of a NoiseStream that was closed", supported="a new one"
            )
        self._check_whole()

    def _check_whole(self) -> None:
        if not self._whole:
            raise NumericalError(
                f"step {self._step} of the noise was interrupted: resume from the last saved state"
            )

    def _use(self, generator: str) -> None:
        """Compute the rows with this generator, from the first step on."""
        self.generator = generator
        self._lattice = Lattice(self._claim.strategy, self._factors) if generator in LATTICES else None
        wide = None if generator == PHILOX else torch.float64
        paired = generator in PAIRED
        self._rows = NoiseRows(
            self._recursion, self._slots, self._factors, self._claim.strategy.n, wide, paired=paired
        )

    def _set_sources(self, key: Key) -> None:
        self._key = key
        self._sources = self._sources_of(key)

    def _sources_of(self, key: Key) -> Sources:
        devices = dict.fromkeys(slot.device for slot in self._slots)
        return {device: self._source(device, key) for device in devices}

    def _source(self, device: torch.device, key: Key) -> NormalSource:
        if self.generator == PHILOX:
            return HostNormals(key)
        if self.generator in PAIRED:
            return ChaChaNormals(key, device)
        return ZigguratNormals(key) if self.generator == ZIGGURAT else SecureNormals(key)

    def _describe(self, *, local: bool) -> dict[str, Any]:
        """Settings that must not change during a run, and (except with `local`) between processes."""
        return {
            "generator": self.generator,
            "claim": self._claim.fingerprint(),
            "clip_norms": self._clip_norms,
            "mode": self.mode.value,
            "layout": [slot.describe() if local else list(slot.shape) for slot in self._slots],
        }


def _fingerprints(sources: Sources) -> list[str]:
    """The distinct ones: devices that draw the same numbers may be fewer or more in a resumed run."""
    return list(dict.fromkeys(source.fingerprint() for source in sources.values()))
