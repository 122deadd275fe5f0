"""RowSums: the checksums of many tensors of a device in one launch, by a kernel that reads each word once."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpmech.optim.deferred import sent
from dpmech.optim.noise import fused_on

# A row of 32-bit words w has the checksum sum_i k_i w_i mod 2^64, k_i uniform on 64 bits. If two rows
# differ, some difference of words is not divisible by 2^32, so that the sums agree for at most one in 2^33
# values of its k_i, whatever the other words are. The k_i are generated here and remain secret.
ROW = 4096
PLAIN = (Tensor, torch.nn.Parameter)  # subclasses may store their data elsewhere
_LAYOUTS = 8  # lists of sizes whose programs are kept


def takes(tensor: Tensor) -> bool:
    """Whether the kernel can read a tensor: its storage is its values in order, in words of 32 bits."""
    if not fused_on(tensor.device) or type(tensor) not in PLAIN or tensor.layout != torch.strided:
        return False
    whole = tensor.numel() > 0 and tensor.numel() * tensor.element_size() % 4 == 0
    plain = not (tensor.is_neg() or tensor.is_conj() or tensor.is_quantized) and tensor.is_contiguous()
    return whole and plain and tensor.data_ptr() % 4 == 0


class RowSums:
    """Computes checksums of rows on one device.

    At its first use it is compared with sums without it. If they differ, or if it cannot run, there is a
    warning and it is not used.

    Args:
        key: of the words of a row, int64, on the device.
        plain: the checksums of the words of one tensor without a kernel.
    """

    def __init__(self, key: Tensor, plain: Callable[[Tensor], list[Tensor]]) -> None:
        self._key = key
        self._plain = plain
        self._agrees: bool | None = None
        self._layout = functools.lru_cache(maxsize=_LAYOUTS)(self._laid_out)

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The checksums of the rows of every tensor; None if the kernel is not used.

        Args:
            tensors: for which `takes` holds, at least one.
        """
        if self._agrees is False:
            return None
        if self._agrees is None:
            self._agrees = self._compare(tensors)
            return self.of(tensors)
        return self._launch(tensors)

    def _launch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        words = tuple(tensor.numel() * tensor.element_size() // 4 for tensor in tensors)
        programs, sizes, rows = self._layout(words)
        device = self._key.device
        addresses = sent(torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64), device)
        out = torch.empty(len(programs), dtype=torch.int64, device=device)
        here = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with here:
            _kernel()[(len(programs),)](programs, sizes, addresses, self._key, out)
        return list(out.split_with_sizes(rows))

    def _laid_out(self, words: tuple[int, ...]) -> tuple[Tensor, Tensor, list[int]]:
        """Programs, sizes and numbers of rows: the same at every step."""
        rows = [-(-size // ROW) for size in words]
        tensor = np.repeat(np.arange(len(rows)), rows)
        first = np.repeat(np.cumsum(rows) - rows, rows)
        programs = np.stack([tensor, np.arange(len(tensor)) - first], 1).astype(np.int32)
        device = self._key.device
        sizes = torch.tensor(words, dtype=torch.int64, device=device)
        return torch.from_numpy(programs).to(device), sizes, rows

    def _compare(self, tensors: Sequence[Tensor]) -> bool:
        try:
            found = self._launch(tensors)
            plain = [self._plain(tensor.detach().view(-1).view(torch.int32)) for tensor in tensors]
            same = torch.equal(torch.cat(found), torch.cat([one for parts in plain for one in parts]))
            problem = "its sums differ from those without it"
        except Exception as error:  # noqa: BLE001 - of a compiler or a driver
            same, problem = False, f"it does not run ({type(error).__name__}: {error})"
        if not same:
            warnings.warn(
                f"the kernel for checksums is not used on {self._key.device}: {problem}. The path without it "
                "detects the same changes, and takes longer",
                RuntimeWarning,
                stacklevel=2,
            )
        return same


@functools.cache
def _kernel() -> Any:
    from dpmech.optim.runs import row_sums_kernel

    return row_sums_kernel.add_words
