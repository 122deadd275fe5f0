"""Normal numbers from a cipher, AES-128 in counter mode: one per word by a ziggurat, or a pair per block.

As in `normals`, numbers are computed with additions, multiplications, divisions, square roots and shifts
only, so that their bits are the same on every machine.
"""

import functools
import itertools
import secrets
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpmech.drawing import CIPHER, block_cipher, keystream
from dpmech.exceptions import CertificateError, InvalidParameterError, NumericalError
from dpmech.guards import check_integer
from dpmech.optim.noise.normals import ACCEPTED, NormalSource, Place, fill_by_host, fill_with_pairs, radii
from dpmech.optim.processes import Key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

_Words = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float64]
_Places = npt.NDArray[np.intp]

LAYERS = 256
# Start of the tail, and area of a layer: with these the last layer ends at 0.
_TAIL = Decimal("3.6541528853610087716454297203995157629748545997463")
_AREA = Decimal("0.0049286732339746553473617754023360280691353847028565")
_BELOW_ONE = 1.0 - 2.0**-53
_NEAR = 2.0**-40  # far above the error of any library's exponential


def fill_by_ziggurat(
    words: Callable[[int], _Words],
    again: Callable[[_Places], _Words],
    out: npt.NDArray[Any],
    ends: Sequence[int] = (),
) -> None:
    r"""Overwrite `out` with normal numbers by the ziggurat of Marsaglia and Tsang, in the form of Doornik.

    The density $f(x) = e^{-x^2/2}$ is covered by 256 layers of equal area. The lowest 8 bits of a word choose
    layer i, its upper 53, read with a sign as m, give $x = (m + 1/2) 2^{-52} x_i$. If $|x| < x_{i+1}$, x is
    accepted; else it is accepted with the probability of the part of the layer at x that is under f, or the
    number is generated again; in the lowest layer it comes from the tail, $R - \ln(u)/R$ if
    $-2 \ln u' > (\ln(u)/R)^2$.

    **Guarantee:** none for rounding: edges and products are rounded to 2^-53 relative, and x is at the
    center of a cell of at most 2^-50. `fill_with_pairs` has a proved bound, on a lattice.

    Args:
        words: returns the next words, one for each number.
        again: returns words of other streams for numbers that take more than one, of each the next word of
            the chunk whose index is given.
        out: one-dimensional, float64 or float32.
        ends: where each chunk but the last ends in `out`.

    References:
        Marsaglia and Tsang 2000, "The ziggurat method for generating random variables"; Doornik 2005, "An
        improved ziggurat method to generate normal random samples".
    """
    late: list[tuple[_Places, npt.NDArray[np.int64], _Floats]] = []
    for start in range(0, len(out), _VALUES):
        part = out[start : start + _VALUES]
        wide = part.dtype == np.float64
        layers, x, outside = _candidates(words(len(part)), part if wide else None)
        if not wide:
            np.copyto(part, x, casting="same_kind")
        places = np.flatnonzero(outside)
        late.append((places + start, layers[places], x[places]))
    places, layers, x = (np.concatenate(parts) for parts in zip(*late, strict=True))
    chunks = np.searchsorted(np.asarray(ends, dtype=np.intp), places, side="right")
    while places.size:
        taken, x = _settled(layers, x, lambda which, own=chunks: again(own[which]))  # type: ignore[misc]  # a default binds it
        out[places[taken]] = x[taken]
        left = np.flatnonzero(~taken)
        places, layers, x, chunks = places[left], layers[left], x[left], chunks[left]
        # In the tail, new words are drawn until one is accepted; a wedge starts again.
        waiting, wedge = layers == 0, np.flatnonzero(layers)
        if wedge.size:
            layers[wedge], x[wedge], waiting[wedge] = _candidates(again(chunks[wedge]))
        out[places[~waiting]] = x[~waiting]
        places, layers, x, chunks = places[waiting], layers[waiting], x[waiting], chunks[waiting]


def _candidates(
    words: _Words, out: _Floats | None = None
) -> tuple[npt.NDArray[np.int64], _Floats, npt.NDArray[np.bool_]]:
    """Layers and x of words, and which x are not yet accepted; x is `out`, if given."""
    places, _ = edges()
    numbers = words.view(np.int64)
    layers = numbers & (LAYERS - 1)
    x: _Floats = np.add(numbers >> 11, 0.5, out=out, dtype=np.float64)
    x *= (places[:-1] * 2.0**-52).take(layers)
    return layers, x, np.abs(x) >= places[1:].take(layers)


def _settled(
    layers: npt.NDArray[np.int64], x: _Floats, again: Callable[[_Places], _Words]
) -> tuple[npt.NDArray[np.bool_], _Floats]:
    """Which of the numbers beyond the next layer are accepted, and their values."""
    places, heights = edges()
    wedge, tail = np.flatnonzero(layers > 0), np.flatnonzero(layers == 0)
    drawn = again(np.concatenate([wedge, tail, tail]))
    low, high = heights[layers[wedge]], heights[layers[wedge] + 1]
    height = low + (high - low) * (((drawn[: len(wedge)] >> np.uint64(11)) + 0.5) * 2.0**-53)
    taken, values = np.empty(len(x), dtype=bool), x.copy()
    density = np.exp(np.square(x[wedge]) * -0.5)
    below = height < density
    # Exponentials of libraries differ in their last bits: close decisions do not use them.
    near = np.flatnonzero(np.abs(height - density) < _NEAR)
    if near.size:
        words = (np.minimum(height[near], _BELOW_ONE) * 2.0**64).astype(np.uint64)
        logs = np.square(radii(words, np.zeros(near.size)))
        below[near] = logs > np.square(x[wedge[near]])
    taken[wedge] = below
    if tail.size:
        logs = np.square(radii(drawn[len(wedge) :], np.full(2 * len(tail), 0.5)))
        first, second = logs.reshape(2, -1)
        beyond = first * 0.5 / places[1]
        taken[tail] = second > np.square(beyond)
        values[tail] = np.copysign(places[1] + beyond, x[tail])
    return taken, values


@functools.cache
def edges() -> tuple[_Floats, _Floats]:
    """The edges x_0 > ... > x_256 = 0 of the layers, and f there; each rounded to nearest from 45 digits.

    x_0 is the width of a rectangle with height f(x_1) and the area of a layer.
    """
    exact = Context(prec=45)

    def density(x: Decimal) -> Decimal:
        return exact.exp(exact.multiply(exact.multiply(x, x), Decimal("-0.5")))

    places = [exact.divide(_AREA, density(_TAIL)), _TAIL]
    heights = [Decimal(0), density(_TAIL)]
    for _ in range(LAYERS - 2):
        heights.append(exact.add(heights[-1], exact.divide(_AREA, places[-1])))
        places.append(exact.sqrt(exact.multiply(Decimal(-2), exact.ln(heights[-1]))))
    return np.array([*places, 0.0], dtype=np.float64), np.array([*heights, 1.0], dtype=np.float64)


PHILOX = "philox"
# Pairs with the same bits on every device, which a kernel can compute.
CHACHA, ON_CHACHA_LATTICE, SEEDED = "chacha20, pairs", "chacha20, lattice", "chacha20, seeded"
PAIRED = {CHACHA, ON_CHACHA_LATTICE, SEEDED}

# Advice if a part of the description differs.
_REMEDIES = {
    "generator": "; a stream made without `generator` continues with that of the state",
    "claim": ": its strategy, participation, budget or sigma differs. A calibration that samples gives "
    "another sigma each time: save its certificate before the first step, "
    "`calibration.certificate().save(path)`, and pass `dm.Certificate.load(path)` when the run resumes",
}


def checked_state(
    state: object, described: dict[str, Any], like: list[list[Tensor]], n: int
) -> tuple[int, Key, list[list[Tensor]]]:
    """Step, key and copies of the vectors of a saved state.

    Args:
        state: output of `NoiseStream.state_dict`.
        described: values that must equal those of the stream that loads it.
        like: the vectors of that stream.
        n: the number of its steps.

    Raises:
        CertificateError: if it belongs to another run.
        InvalidParameterError: if it is malformed.
    """
    expected = {*described, "step", "key", "seeded", "fingerprints", "state"}
    if not isinstance(state, dict) or set(state) != expected:
        raise InvalidParameterError("state", type(state).__name__, f"a dict with keys {sorted(expected)}")
    for name, value in described.items():
        if state[name] != value:
            shown = f" ({state[name]!r}, here {value!r})" if name == "generator" else ""
            raise CertificateError(
                f"the state has another {name} than this stream{shown}{_REMEDIES.get(name, '')}",
                claimed=state[name],
                recomputed=value,
            )
    if not isinstance(state["fingerprints"], list):
        raise InvalidParameterError(
            "state['fingerprints']", type(state["fingerprints"]).__name__, "a list of those of the generators"
        )
    step = check_integer("state['step']", state["step"], minimum=0, maximum=n)
    return step, _check_key(state["key"]), _check_vectors(state["state"], like)


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
                raise InvalidParameterError(
                    "a vector of the state", new, f"of shape {tuple(old.shape)} in {old.dtype}"
                )
        copies.append([new.to(old.device, copy=True) for new, old in zip(given_row, row, strict=True)])
    return copies


ZIGGURAT = f"{CIPHER}, ziggurat"
ON_LATTICE = f"{CIPHER}, lattice"
LATTICES = {ON_LATTICE, ON_CHACHA_LATTICE}
# What a name means without parameters on CUDA, and with some; None stands for seeds and generators.
_NAMES = {"secure": ZIGGURAT, "secure-lattice": ON_LATTICE, "philox": PHILOX, None: PHILOX}
_NAMES_ON_CUDA = {"secure": CHACHA, "secure-lattice": ON_CHACHA_LATTICE, "philox": CHACHA, None: SEEDED}
# The states from which a stream with each name can resume, made on whatever device.
_TAKEN_UP = {
    "secure": {ZIGGURAT, CHACHA},
    "secure-lattice": LATTICES,
    "philox": {PHILOX, CHACHA},
    None: {PHILOX, SEEDED},
}
_BYTES = 16  # of a block of AES
_STEPS = _CHUNKS = 2**32
_PARAMETERS = _SHARDS = 2**24
_RESERVED = _PARAMETERS - 1  # the parameter index of numbers used only for a fingerprint
_PAIRS = 1 << 13  # computed at once
_VALUES = 1 << 14  # computed at once, from one word each
_AGAIN = 1 << 15  # blocks of a chunk from this one on are for numbers that take more words


def source_of(generator: object, devices: Iterable[torch.device]) -> tuple[str, set[str]]:
    """The name, in states and records, of the source of numbers for a `generator` argument.

    Args:
        generator: as for a NoiseStream. None is a cipher on CPUs and on CUDA; on other devices it is Philox,
            since numbers are computed on the CPU there, and the device would wait for them.
        devices: of the parameters.

    Returns:
        The source, and the sources whose states a stream with this generator can load: any for None.

    Raises:
        InvalidParameterError: for an unknown name.
    """
    kinds = {device.type for device in devices}
    names = _NAMES_ON_CUDA if "cuda" in kinds else _NAMES
    if generator is None:
        default = "secure" if "cuda" in kinds or kinds == {"cpu"} else "philox"
        return names[default], set().union(*_TAKEN_UP.values())
    name = generator if isinstance(generator, str) else None
    if name not in names:
        raise InvalidParameterError("generator", generator, ACCEPTED)
    return names[name], _TAKEN_UP[name]


def secure_key() -> Key:
    """128 bits from the operating system, as two integers below 2^64.

    Raises:
        MissingDependencyError: without the package `cryptography`; raised here, before the first step.
    """
    keystream(bytes(_BYTES), bytes(_BYTES))
    return secrets.randbits(64), secrets.randbits(64)


class SecureNormals(NormalSource):
    """AES-128 in counter mode, two numbers per block (see `fill_with_pairs`); on the CPU, then copied.

    A counter block is, highest first: step (32 bits), parameter (24), shard (24), chunk (32) and the index of
    the pair in its chunk (16). Ranges of different chunks are disjoint. Value i of a chunk is a function of
    its counter only, whatever the length of the chunk and the machine.

    **Guarantee:** distinguishing the numbers of N blocks from those of random words means distinguishing
    AES-128 from a random permutation, or has an advantage of at most N^2 / 2^129.

    Args:
        key: two integers below 2^64.
    """

    chunk = 1 << 15

    def __init__(self, key: Key) -> None:
        self._key = b"".join(word.to_bytes(8, "big") for word in key)

    def counter(self, step: int, parameter: int, shard: int, chunk: int) -> bytes:
        """The first counter block of a chunk; InvalidParameterError if an index does not fit its bits."""
        if step >= _STEPS or parameter >= _PARAMETERS or shard >= _SHARDS or chunk >= _CHUNKS:
            raise InvalidParameterError(
                "(step, parameter, shard, chunk)",
                (step, parameter, shard, chunk),
                "below (2^32, 2^24, 2^24, 2^32)",
            )
        parts = ((step, 4), (parameter, 3), (shard, 3), (chunk, 4), (0, 2))
        return b"".join(value.to_bytes(size, "big") for value, size in parts)

    def fill(self, out: torch.Tensor, step: int, parameter: int, shard: int, chunk: int) -> None:
        """As in the base class; safe to call from several threads.

        Raises:
            InvalidParameterError: if an index does not fit, or is reserved for the fingerprint.
        """
        self.fill_all(out, step, [Place(parameter, shard, chunk, out.shape[0])])

    def fill_all(self, out: torch.Tensor, step: int, places: Sequence[Place]) -> None:
        """As in the base class, and raises as `fill`."""
        if any(place.parameter == _RESERVED for place in places):
            raise InvalidParameterError("parameter", _RESERVED, f"below {_RESERVED}")
        starts = [self.counter(step, *place[:3]) for place in places]
        fill_by_host(out, lambda host: self._draw_all(host, starts, [place.size for place in places]))

    def _draw_all(self, out: np.ndarray[Any, Any], starts: Sequence[bytes], sizes: Sequence[int]) -> None:
        ends = list(itertools.accumulate(sizes))
        for start, size, end in zip(starts, sizes, ends, strict=True):
            self._draw(out[end - size : end], start)

    def _draw(self, out: np.ndarray[Any, Any], start: bytes) -> None:
        cipher = keystream(self._key, start)
        for first in range(0, len(out), 2 * _PAIRS):
            part = out[first : first + 2 * _PAIRS]
            pairs = (len(part) + 1) // 2
            fill_with_pairs(_next_words(cipher, 2 * pairs).reshape(-1, 2), part)

    def _fill_reserved(self) -> torch.Tensor:
        out = torch.empty(4096, dtype=torch.float64)
        self._draw_all(out.numpy(), [self.counter(0, _RESERVED, 0, 0)], [len(out)])
        return out


class ZigguratNormals(SecureNormals):
    """The same cipher and counters with one word per number (see `fill_by_ziggurat`): as fast as Philox.

    Block i of a chunk gives numbers 2 i and 2 i + 1. Numbers that take more than one word use words from
    the upper half of the blocks, in order, so that a value depends on the length of the chunk.
    """

    chunk = 1 << 16

    def _draw_all(self, out: np.ndarray[Any, Any], starts: Sequence[bytes], sizes: Sequence[int]) -> None:
        ciphers, left = [keystream(self._key, start) for start in starts], list(sizes)

        def words(count: int) -> _Words:
            parts = []
            while count:
                taken = min(left[0], count)
                parts.append(_next_words(ciphers[0], taken))
                left[0], count = left[0] - taken, count - taken
                if not left[0]:
                    del ciphers[0], left[0]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        ends = list(itertools.accumulate(sizes))
        fill_by_ziggurat(words, _Again(self._key, starts), out, ends[:-1])


class _Again:
    """Words for numbers that take more than one, from the upper half of the blocks of each chunk."""

    def __init__(self, key: bytes, starts: Sequence[bytes]) -> None:
        self._key = key
        self._starts = np.frombuffer(b"".join(starts), dtype=">u8").reshape(-1, 2).astype(np.uint64)
        self._starts[:, 1] += np.uint64(_AGAIN)
        self._used = np.zeros(len(starts), dtype=np.int64)
        self._cipher: CipherContext | None = None

    def __call__(self, chunks: _Places) -> _Words:
        """The next word of each of these chunks, which may repeat."""
        alone = len(self._used) == 1
        counts = np.array([len(chunks)]) if alone else np.bincount(chunks, minlength=len(self._used))
        numbers, self._used = self._used, self._used + counts
        if self._used.max() > 2 * _AGAIN:
            raise NumericalError("a chunk of noise used more words than are reserved for it")
        if alone:  # words in a row, for which a stream is faster
            self._cipher = self._cipher or keystream(self._key, self._starts.astype(">u8").tobytes())
            return _next_words(self._cipher, len(chunks))
        order = np.argsort(chunks, kind="stable")
        numbers = numbers[chunks]
        numbers[order] += np.arange(len(chunks)) - np.repeat(np.cumsum(counts) - counts, counts)
        blocks = self._starts[chunks]
        blocks[:, 1] += (numbers >> 1).view(np.uint64)
        self._cipher = self._cipher or block_cipher(self._key)
        words = np.frombuffer(self._cipher.update(blocks.astype(">u8").tobytes()), dtype="<u8")
        return words[2 * np.arange(len(chunks)) + (numbers & 1)].astype(np.uint64, copy=False)


def _next_words(cipher: "CipherContext", count: int) -> _Words:
    """The next words of a cipher, as it encrypts zeros."""
    return np.frombuffer(cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)
