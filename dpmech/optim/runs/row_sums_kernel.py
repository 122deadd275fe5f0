"""The kernel of `row_sums`, in Triton; imported only where triton is."""

import triton
import triton.language as tl

from dpmech.optim.runs import row_sums

_ROW = tl.constexpr(row_sums.ROW)
_LANES = tl.constexpr(256)


@triton.jit
def _plus(one, other):
    return one + other


@triton.jit
def add_words(
    programs,  # int32, two a program: tensor, and row of it
    sizes,  # int64: number of words
    addresses,  # int64: of the words
    key,  # int64, one for each word of a row
    out,  # int64, one a program
):
    """Write the sum of words times keys, mod 2^64, of a row."""
    program = tl.program_id(0).to(tl.int64)
    tensor = tl.load(programs + 2 * program)
    start = tl.load(programs + 2 * program + 1).to(tl.int64) * _ROW
    words = tl.load(addresses + tensor).to(tl.pointer_type(tl.int32))
    size = tl.load(sizes + tensor)
    lane = tl.arange(0, _LANES)
    total = tl.full((_LANES,), 0, tl.int64)
    for first in range(0, _ROW, _LANES):
        place = first + lane
        values = tl.load(words + start + place, mask=start + place < size, other=0).to(tl.int64)
        total += values * tl.load(key + place)
    tl.store(out + program, tl.reduce(total, 0, _plus))
