"""Checksums by a kernel: those without it, bit for bit, on CUDA or in Triton's interpreter."""

import os
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read where the kernel is imported, which is at its first use

from dpmech.optim.runs import row_sums, unchanged  # noqa: E402
from dpmech.optim.runs.row_sums import ROW, RowSums, takes  # noqa: E402
from dpmech.optim.runs.unchanged import Fingerprinter, same  # noqa: E402
from tests.support.compiling import printed_by  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernel(monkeypatch):
    """The kernel on this device."""
    monkeypatch.setattr(row_sums, "fused_on", lambda device: device.type == DEVICE.type)
    monkeypatch.setattr(unchanged, "is_deferred", lambda device: True)


def values(size, dtype=torch.int32):
    drawn = torch.Generator().manual_seed(size)
    words = torch.randint(-(2**31), 2**31, (size,), generator=drawn)
    return words.to(torch.int32).view(dtype).to(DEVICE)


def by_hand(key, tensor):
    """In Python's integers."""
    words = tensor.cpu().contiguous().view(-1).view(torch.int32).tolist()
    keys = key.tolist()
    rows = [words[i : i + ROW] for i in range(0, len(words), ROW)]
    found = [sum(k * w for k, w in zip(keys, row, strict=False)) % 2**64 for row in rows]
    return [(one + 2**63) % 2**64 - 2**63 for one in found]


SIZES = [1, 3, ROW - 1, ROW, ROW + 1, 2 * ROW + 5]


@pytest.mark.usefixtures("kernel")
def test_sums_are_those_of_integers():
    reader = Fingerprinter()
    tensors = [values(size, torch.float32) for size in SIZES]
    tensors += [values(7, torch.bfloat16), values(10, torch.float64), values(4, torch.int64)]
    found = reader.read_all([("one", tensor) for tensor in tensors])
    assert list(reader._kernels) == [DEVICE]
    assert reader._kernels[DEVICE]._agrees
    for (_, (own,)), tensor in zip(found, tensors, strict=True):
        assert own.tolist() == by_hand(reader._key, tensor)


@pytest.mark.usefixtures("kernel")
def test_one_launch_reads_all(monkeypatch):
    launches = []
    launch = RowSums._launch
    monkeypatch.setattr(
        RowSums, "_launch", lambda self, given: launches.append(len(given)) or launch(self, given)
    )
    reader = Fingerprinter()
    named = [("one", values(size)) for size in SIZES]
    first = reader.read_all(named)
    launches.clear()
    assert same(reader.read_all(named), first)
    assert launches == [len(SIZES)]
    named[2][1][-1] += 1
    second = reader.read_all(named)
    assert [same([a], [b]) for a, b in zip(first, second, strict=True)] == [True, True, False, *[True] * 3]


@pytest.mark.usefixtures("kernel")
def test_what_the_kernel_cannot_read_is_read_without_it():
    whole = values(64, torch.float32)
    odd = [
        whole.view(8, 8).T,
        torch.zeros(3, dtype=torch.bfloat16, device=DEVICE),
        whole.view(torch.bfloat16)[1:5],  # does not begin at a word
        torch.zeros(0, device=DEVICE),
        torch.complex(whole, whole).conj(),
        torch._neg_view(whole),
    ]
    assert not any(map(takes, odd))
    named = [("one", one) for one in [*odd, whole]]
    reader = Fingerprinter()
    assert same(reader.read_all(named), reader.read_all(named))


def test_other_devices_have_no_kernel():
    assert not takes(torch.zeros(4, device="cpu"))
    reader = Fingerprinter()
    reader.read_all([("one", torch.zeros(4))])
    assert not reader._kernels


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("fault", ["wrong", "broken"])
def test_a_kernel_that_differs_is_not_used(fault, monkeypatch):
    class Bad:
        def __getitem__(self, grid):
            return self

        def __call__(self, *arguments):
            if fault == "broken":
                raise RuntimeError("no compiler")
            arguments[-1].fill_(1)

    monkeypatch.setattr(row_sums, "_kernel", Bad)
    reader, named = Fingerprinter(), [("one", values(5000, torch.float32)), ("two", values(3))]
    with pytest.warns(RuntimeWarning, match="the kernel for checksums is not used") as caught:
        first = reader.read_all(named)
    assert ("no compiler" in str(caught[0].message)) == (fault == "broken")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(reader.read_all(named), first)
    named[0][1][17] = 3.5
    assert not same(reader.read_all(named), first)


@pytest.mark.usefixtures("kernel")
def test_layouts_are_kept_but_not_for_ever():
    reader = Fingerprinter()
    for size in range(1, row_sums._LAYOUTS + 3):
        reader.read_all([("one", values(size))])
    assert reader._kernels[DEVICE]._layout.cache_info().currsize == row_sums._LAYOUTS


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from dpmech.optim.runs.row_sums_kernel import add_words

types = {"programs": "*i32", "sizes": "*i64", "addresses": "*i64", "key": "*i64", "out": "*i64"}
made = triton.compile(ASTSource(add_words, types, {}), target=GPUTarget("cuda", 90, 32))
print(made.asm["ptx"])
"""


@pytest.mark.slow
def test_it_compiles_for_a_gpu(tmp_path):
    """For compute capability 9.0, made without one: products of 64 bits, and no floating point."""
    found = printed_by(COMPILE, tmp_path)
    assert "mul.lo.s64" in found or "mad.lo.s64" in found
    assert not any(kind in found for kind in (".f32", ".f64", ".f16"))
