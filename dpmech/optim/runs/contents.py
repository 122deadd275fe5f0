"""Contents of tensors, bit for bit: checksums that are taken where the tensors are, under a secret key."""

import hashlib
import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.local_parts import local_part

__all__ = ["Contents", "Fingerprinter", "same"]

Contents = tuple[str, list[Tensor]]  # what they are, and the checksums of their rows

# A row of 32-bit words w has the checksum sum_i k_i w_i mod 2^64, k_i uniform on 64 bits. Where two rows
# differ, some difference of words is not divisible by 2^32, so that for one value of its k_i in 2^33 at most
# the sums agree, whatever the other words are. The k_i are drawn here and shown to nobody.
_ROW = 4096
_ROWS_AT_ONCE = {"cpu": 16}  # what stays in the cache of a core; devices take longer runs
_MANY_ROWS = 4096
_PLAIN = (Tensor, torch.nn.Parameter)  # subclasses may hold their bits elsewhere


class Fingerprinter:
    """Tells whether tensors hold the bits that they held before.

    Two contents that differ get the same checksums with a probability of at most 2^-33, over the key that
    every Fingerprinter draws for itself. NaN, signed zeros, integers and packed formats are bits like others.

    Args:
        key: secret and random, for checksums that are the same in another process; None draws one.
    """

    def __init__(self, key: bytes | None = None) -> None:
        size = 8 * _ROW
        words = secrets.token_bytes(size) if key is None else hashlib.shake_256(key).digest(size)
        self._key = torch.frombuffer(bytearray(words), dtype=torch.int64)
        self._keys: dict[torch.device, Tensor] = {}

    def read(self, name: str, tensor: Tensor) -> Contents:
        """What a tensor holds now; of a sharded one, the part of this process.

        Args:
            name: for messages.
            tensor: any.

        Returns:
            A description and checksums, int64, one for each 16 KiB.

        Raises:
            UnsupportedCombinationError: for a tensor whose bits cannot be read.
        """
        if type(tensor) in _PLAIN and tensor.dtype == torch.float32 and _is_as_it_stands(tensor):
            # What nearly all tensors are: a step reads hundreds of small ones, where each call counts.
            words = tensor.detach().view(-1).view(torch.int32)
            return f"{tensor.dtype} {tuple(tensor.shape)}", self._row_sums(words, None)
        parts = _strided(name, tensor)
        kind = f"{tensor.dtype} {[tuple(part.shape) for part in parts]}"
        return kind, [sums for part in parts for sums in self._sums(part)]

    def _sums(self, part: Tensor) -> list[Tensor]:
        return self._row_sums(*_words(part))

    def _row_sums(self, words: Tensor, rest: Tensor | None) -> list[Tensor]:
        key = self._keys.get(words.device)
        if key is None:
            key = self._keys[words.device] = self._key.to(words.device)
        size = words.numel()
        whole, sums = size // _ROW, []
        if whole:
            rows = words[: whole * _ROW].view(whole, _ROW)
            step = _ROWS_AT_ONCE.get(words.device.type, _MANY_ROWS)
            sums = [(rows[i : i + step] * key).sum(dim=1) for i in range(0, whole, step)]
        if size % _ROW:
            tail = words[whole * _ROW :] if whole else words
            sums.append((tail * key[: size % _ROW]).sum(dim=0, keepdim=True))
        if rest is not None and rest.numel():
            sums.append((rest * key[: rest.numel()]).sum(dim=0, keepdim=True))
        return sums


def same(one: Sequence[Contents], other: Sequence[Contents]) -> bool:
    """Whether two lists of contents agree, with one wait for each device."""
    if [(kind, len(sums)) for kind, sums in one] != [(kind, len(sums)) for kind, sums in other]:
        return False
    by_device: dict[torch.device, tuple[list[Tensor], list[Tensor]]] = {}
    for (_, now), (_, then) in zip(one, other, strict=True):
        for a, b in zip(now, then, strict=True):
            pair = by_device.setdefault(a.device, ([], []))
            pair[0].append(a)
            pair[1].append(b.to(a.device))
    return all(torch.equal(torch.cat(now), torch.cat(then)) for now, then in by_device.values())


def _is_as_it_stands(tensor: Tensor) -> bool:
    """Whether its bits are its storage, one after the other."""
    strided = tensor.layout == torch.strided and not tensor.is_meta
    return strided and not tensor.is_neg() and tensor.is_contiguous()


def _words(part: Tensor) -> tuple[Tensor, Tensor | None]:
    """A strided tensor as 32-bit words, in the order of its indices, and up to three bytes that are left."""
    flat = part.contiguous().view(-1)
    if flat.element_size() >= 4:
        return flat.view(torch.int32), None
    raw = flat.view(torch.uint8)
    whole = len(raw) // 4 * 4
    words = raw[:whole]
    if words.storage_offset() % 4:
        words = words.clone()
    return words.view(torch.int32), raw[whole:].to(torch.int32)


def _strided(name: str, tensor: Tensor) -> list[Tensor]:
    """The strided tensors that a tensor consists of."""
    if torch.nn.parameter.is_lazy(tensor):
        raise UnsupportedCombinationError(
            f"{name} has no shape yet (a lazy layer)",
            supported="one call of the model on an example before the optimizer is made",
        )
    one = local_part(tensor.detach())
    if one.device.type == "meta":
        return []
    if type(one) is not Tensor and hasattr(one, "__tensor_flatten__"):
        names: list[str] = one.__tensor_flatten__()[0]
        return [part for inner in names for part in _strided(name, getattr(one, inner))]
    if one.layout == torch.sparse_coo:
        return [one._indices(), one._values()]
    if one.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [one.crow_indices(), one.col_indices(), one.values()]
    if one.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [one.ccol_indices(), one.row_indices(), one.values()]
    if one.layout != torch.strided or one.is_quantized:
        raise _unreadable(name, f"of the layout {one.layout} and dtype {one.dtype}")
    return [one.resolve_conj().resolve_neg() if one.is_complex() or one.is_neg() else one]


def _unreadable(name: str, what: str) -> UnsupportedCombinationError:
    return UnsupportedCombinationError(
        f"{name} is {what}: nothing can tell whether a call of the model writes data into it",
        supported="tensors with strides, sparse tensors, and subclasses made of them",
    )
