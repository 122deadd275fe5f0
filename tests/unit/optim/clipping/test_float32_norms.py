"""Norms from Gram matrices in float32 are never too small, compared with rational numbers."""

from fractions import Fraction
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from dpmech.optim.clipping import norms  # noqa: E402
from dpmech.optim.clipping.clipped_sum import clip_and_sum  # noqa: E402
from dpmech.optim.clipping.factored import Factored  # noqa: E402
from dpmech.optim.clipping.norms import Piece, full_float32  # noqa: E402
from dpmech.optim.clipping.styles import Blocks  # noqa: E402
from tests.support.other_device import There, known, other_device  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def narrow(monkeypatch):
    """Gram matrices in float32 on the CPU, as on CUDA."""
    monkeypatch.setattr(norms, "_IN_FLOAT32", {"cpu"})
    norms._keeps_float32.cache_clear()
    keeps = norms._keeps_float32
    yield
    keeps.cache_clear()


def rational(factor):
    return [[Fraction(x) for x in row] for row in factor.double().tolist()]


def inner(a, b):
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def exact_square(pieces, example):
    """|sum_t l_t r_t^T|^2 as a sum over pairs of positions."""
    uses = []
    for piece in pieces:
        right = rational(piece.right[example])
        left = piece.left[example]
        lefts = left.tolist() if piece.looks_up else rational(left)
        uses += list(zip(lefts, right, strict=True))

    def lefts(a, b):
        if isinstance(a, int) and isinstance(b, int):
            return Fraction(a == b)
        if isinstance(a, int):
            return b[a]
        return a[b] if isinstance(b, int) else inner(a, b)

    total = Fraction(0)
    for s, (a, x) in enumerate(uses):
        total += lefts(a, a) * inner(x, x)
        for b, y in uses[:s]:
            total += 2 * lefts(a, b) * inner(x, y)
    return total


def lengths(pieces, example):
    """sum_t |l_t| |r_t|, to more digits than are compared."""
    total = 0.0
    for piece in pieces:
        right = piece.right[example].double().norm(dim=1)
        left = torch.ones_like(right) if piece.looks_up else piece.left[example].double().norm(dim=1)
        total += float((left * right).sum())
    return total


def random_pieces(kinds, positions, rows, columns, seed, cancel):
    draw = torch.Generator().manual_seed(seed)
    found = []
    for kind in kinds:
        right = torch.randn(3, positions, columns, generator=draw)
        left = torch.randn(3, positions, rows, generator=draw)
        if kind == "lookup":
            left = torch.randint(rows, (3, positions), generator=draw)
        if cancel:
            half = positions // 2
            left[:, half : 2 * half], right[:, half : 2 * half] = left[:, :half], -right[:, :half]
            right[:, 0] *= 1.0 + 2.0**-12
        found.append(Piece(left, right))
    return found


def check_bounds(pieces, *, close=True):
    factored = Factored(pieces, (1, 1))
    for example, bound in enumerate(factored.squares().tolist()):
        exact, most = exact_square(pieces, example), lengths(pieces, example) ** 2
        assert Fraction(bound) >= exact
        assert not close or Fraction(bound) <= exact + Fraction(most * 2.0**-15) + Fraction(2.0**-1000)


SIZES = [(2, 4, 3), (5, 7, 2), (3, 300, 3), (3, 5, 140)]


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("kinds", [["outer"], ["lookup"], ["outer", "lookup"], ["outer", "outer"]])
@pytest.mark.parametrize("size", SIZES)
def test_norms_are_never_too_small(size, kinds, cancel):
    check_bounds(random_pieces(kinds, *size, 1, cancel))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("scale", [2.0**120, 2.0**60, 1e-20, 2.0**-120, 2.0**-140])
def test_scales_are_undone(scale):
    """Of the smallest, float32 keeps a few bits, and squares of all but the first would leave it."""
    for lefts, rights in ((scale, 1.0), (1.0, scale), (scale, 1.0 / max(scale, 2.0**-126))):
        parts = random_pieces(["outer", "outer"], 3, 5, 4, 2, cancel=False)
        check_bounds([Piece(one.left * lefts, one.right * rights) for one in parts])


@pytest.mark.usefixtures("narrow")
def test_values_of_all_sizes_in_one_example():
    draw = torch.Generator().manual_seed(3)
    powers = 2.0 ** torch.randint(-149, 120, (4, 6, 5), generator=draw).double()
    left = (torch.randn(4, 6, 5, generator=draw) * powers).float()
    right = (torch.randn(4, 6, 3, generator=draw) * powers[..., :3].flip(0)).float()
    check_bounds([Piece(left, right)], close=False)


def losing():
    """Additions whose roundings all go down, as far as the bound allows: 1 + 2^-24 + 2^-24 + ..."""
    factor = torch.full((1, 16, 128), 2.0**-12)
    factor[..., 0] = 1.0
    return [Piece(factor, factor.clone())]


@pytest.mark.usefixtures("narrow")
def test_roundings_that_add_up():
    check_bounds(losing())


@pytest.mark.usefixtures("narrow")
def test_without_the_slack_they_would_be_too_small(monkeypatch):
    monkeypatch.setattr(norms, "_GRAM_ERROR", 0.0)
    with pytest.raises(AssertionError):
        check_bounds(losing())


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("cancel", [False, True])
def test_each_contribution_is_at_most_the_clip_norm(cancel):
    for piece in random_pieces(["outer"] * 4, 6, 5, 4, 8, cancel):
        for example in range(3):
            part = slice(example, example + 1)
            one = Factored([Piece(piece.left[part] * 1e4, piece.right[part] * 1e4)], (5, 4))
            (total,), *_ = clip_and_sum([one], Blocks((0,), (1.0,)))
            square = sum(Fraction(x) ** 2 for x in total.flatten().tolist())
            assert square <= 1
            assert cancel or square > Fraction(0.99)


class Rounded(TorchDispatchMode):
    """Products of float32 matrices whose factors are rounded to some bits first, as tensor cores do."""

    def __init__(self, bits):
        super().__init__()
        self.bits = bits

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.mm) and args[0].dtype == torch.float32:
            args = [self.rounded(one) for one in args]
        return func(*args, **(kwargs or {}))

    def rounded(self, x):
        mantissa, exponent = torch.frexp(x)
        return torch.ldexp((mantissa * 2.0**self.bits).round() * 2.0**-self.bits, exponent)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("bits", [8, 11, 16, 22])
def test_a_device_that_drops_bits_is_found_out(bits, monkeypatch):
    parts = random_pieces(["outer"], 5, 7, 4, 4, cancel=True)
    with Rounded(bits):
        with pytest.warns(RuntimeWarning, match="norms of ghost clipping are computed in float64"):
            check_bounds(parts)
        assert not norms._takes_float32(parts)
        check_bounds(parts)  # one warning
    if bits < 12:
        monkeypatch.setattr(norms, "_keeps_float32", lambda device: True)
        with Rounded(bits), pytest.raises(AssertionError):
            check_bounds([Piece(torch.full((1, 3, 4), 1.0 + 2.0**-12), torch.ones(1, 3, 4))])  # TF32


@pytest.mark.usefixtures("narrow")
@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor keeps small values")
def test_a_device_that_flushes_small_values_is_found_out():
    """A factor below 2^-126 would be 0 before it is scaled, and the other one can be large."""
    pieces = [Piece(torch.full((1, 2, 3), 1e-39), torch.full((1, 2, 3), 1e37))]
    torch.set_flush_denormal(True)
    try:
        with pytest.warns(RuntimeWarning, match="flushed to zero"):
            assert not norms._takes_float32(pieces)
    finally:
        torch.set_flush_denormal(False)
    norms._keeps_float32.cache_clear()
    assert norms._takes_float32(pieces)


@pytest.mark.usefixtures("narrow")
def test_a_device_that_keeps_them_is_used():
    assert norms._takes_float32(random_pieces(["outer"], 5, 7, 4, 4, cancel=True))


@pytest.mark.usefixtures("narrow")
def test_autocast_does_not_reach_the_products():
    with torch.autocast("cpu", torch.bfloat16):
        check_bounds(losing())
        with full_float32(CPU):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("before", ["none", "ieee", "tf32"])
def test_tf32_is_off_meanwhile(before):
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("a setting of later versions of torch")
    kept, matmul.fp32_precision = matmul.fp32_precision, before
    try:
        with full_float32(CPU):
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == before
    finally:
        matmul.fp32_precision = kept


@pytest.mark.parametrize("before", ["highest", "high", "medium", "allow_tf32", "high, but not on CPUs"])
def test_what_older_code_sets_stays_readable(before):
    """Torch has two ways to set TF32, and readers of one raise after a switch by the other."""
    matmul = torch.backends.cuda.matmul
    cpus = getattr(torch.backends.mkldnn, "matmul", None)
    try:
        if before == "allow_tf32":
            matmul.allow_tf32 = True
        else:
            torch.set_float32_matmul_precision(before.split(",")[0])
        if "," in before and hasattr(cpus, "fp32_precision"):
            cpus.fp32_precision = "ieee"

        def found():
            read = matmul.allow_tf32, torch.get_float32_matmul_precision()
            return *read, getattr(matmul, "fp32_precision", None), getattr(cpus, "fp32_precision", None)

        kept = found()
        with full_float32(CPU):
            assert found()[:2] == (False, "highest")
            assert found()[2] in ("ieee", None)
        assert found() == kept
        with pytest.raises(ZeroDivisionError), full_float32(CPU):
            raise ZeroDivisionError
        assert found() == kept
    finally:
        torch.set_float32_matmul_precision("highest")
        for one in (matmul, cpus):
            if hasattr(one, "fp32_precision"):
                one.fp32_precision = "none"


@pytest.mark.usefixtures("narrow")
def test_zeros_and_what_is_not_finite():
    left, right = torch.randn(5, 3, 4), torch.randn(5, 3, 2)
    left[0] = 0.0
    left[1, 0], right[1, 1:] = 0.0, 0.0  # no position has both
    left[2, 0, 0], right[3, 1, 0], right[4, 0] = torch.inf, torch.nan, torch.inf
    left[4, 0] = 0.0
    squares = Factored([Piece(left, right)], (4, 2)).squares()
    assert squares[:2].tolist() == [0.0, 0.0]
    assert not bool(squares[2:].isfinite().any())


@pytest.mark.parametrize(
    ("capability", "in_float32"), [((8, 0), False), ((9, 0), False), ((8, 6), True), ((8, 9), True)]
)
def test_devices_with_fast_float64_keep_it(capability, in_float32, monkeypatch):
    """Float64 is as fast there (A100, H100), needs no scaling, and adds less to norms."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    norms.has_fast_float64.cache_clear()
    monkeypatch.setattr(norms, "_keeps_float32", lambda device: True)
    there = torch.device("cuda", 0)
    part = SimpleNamespace(is_floating_point=lambda: True, numel=lambda: 1, dtype=torch.float32, device=there)
    assert norms._takes_float32([SimpleNamespace(left=part, right=part)]) == in_float32
    norms.has_fast_float64.cache_clear()


def test_float64_stays_where_it_was(monkeypatch):
    parts = random_pieces(["outer", "lookup"], 5, 7, 4, 4, cancel=False)
    before = Factored(parts, (7, 4)).squares()
    single = random_pieces(["outer"], 1, 7, 4, 4, cancel=False)
    alone = Factored(single, (7, 4)).squares()
    monkeypatch.setattr(norms, "_IN_FLOAT32", {"cpu"})
    wide = [Piece(one.left if one.looks_up else one.left.double(), one.right.double()) for one in parts]
    assert torch.equal(Factored(wide, (7, 4)).squares(), before)
    assert not torch.equal(Factored(parts, (7, 4)).squares(), before)
    assert torch.equal(Factored(single, (7, 4)).squares(), alone)  # no cancellation, so no Gram matrices


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_is_empty_or_all_is(shape):
    empty = Factored([Piece(torch.zeros(*shape, 4), torch.zeros(*shape, 2))], (4, 2))
    assert empty.squares().tolist() == [0.0] * shape[0]


@pytest.mark.usefixtures("narrow")
def test_half_precision_is_exact_in_float32():
    parts = random_pieces(["outer"], 5, 7, 4, 4, cancel=False)
    halves = [Piece(one.left.bfloat16(), one.right.half()) for one in parts]
    check_bounds(halves)


@pytest.mark.skipif(not known(), reason="this torch registers no device from Python")
def test_the_host_waits_for_nothing_but_the_first_comparison(monkeypatch):
    parts = random_pieces(["outer", "lookup"], 5, 7, 4, 4, cancel=False)
    monkeypatch.setattr(norms, "_IN_FLOAT32", {"pretend", "cpu"})
    norms._keeps_float32.cache_clear()
    expected = Factored(parts, (7, 4)).squares()
    with other_device() as waits:
        there = Factored([Piece(There(one.left), There(one.right)) for one in parts], (7, 4))
        there.squares()
        assert waits.reads
        waits.clear()
        found = there.squares()
        assert waits.reads == []
        assert waits.uploads == []
        assert torch.equal(found.cpu(), expected)
    norms._keeps_float32.cache_clear()
