"""The noise kernel against the path without it, bit for bit: on CUDA, or in Triton's interpreter."""

import collections
import inspect
import json
import os

import numpy as np
import pytest
import torch

import dpmech as dm
from dpmech.optim import AdaptiveClip, NoiseMode, NoiseStream, PrivateOptimizer
from dpmech.optim.noise import fused, noise_rows, pairs, secure_normals
from dpmech.optim.noise.addition import Addition
from dpmech.optim.noise.pairs import LANES, TILE, ChaChaNormals
from dpmech.optim.noise.rows import Kind, correlate
from tests.support.compiling import printed_by
from tests.support.quick_cases import slow_but

pytest.importorskip("triton")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read where the kernel is imported, which is at its first use

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
interpreted = pytest.mark.skipif(DEVICE.type == "cuda", reason="counts in the interpreter")
N = 4
LOWER = np.array([[2.0, 0, 0, 0], [-1.0, 1.0, 0, 0], [0.5, 0.0, -3.0, 0], [0.0, 0.25, -0.5, 0.125]])
REGENERATE, BUFFER, RECURSION = NoiseMode
CASES = [
    (dm.Identity(N), REGENERATE),
    (dm.LambdaCGD(N, 0.9), REGENERATE),
    (dm.LambdaCGD(N, 0.9), BUFFER),
    (dm.InverseSquareRoot(N, 3), BUFFER),
    (dm.SquareRoot(N, 4), RECURSION),  # three vectors, in turns
    (dm.BLT(N, [0.9, 0.5, 0.0], [0.3, -0.2, 0.1]), RECURSION),
    (dm.Identity(N), BUFFER),
    (dm.Identity(1), REGENERATE),
    (dm.LambdaCGD(N, 0.0), REGENERATE),
    (dm.SquareRoot(N), REGENERATE),
    (dm.SquareRoot(N), BUFFER),
    (dm.SquareRoot(N, 3), REGENERATE),
    (dm.InverseSquareRoot(N, 3), REGENERATE),
    (dm.BandedToeplitz(N, [2.0, -0.5]), RECURSION),
    (dm.BandedInverse(N, [0.5, 0.25, 0.0, 0.1]), REGENERATE),  # a weight is 0
    (dm.BandedInverse(N, [0.5, 0.25, 0.0, 0.1]), BUFFER),
    (dm.BLT(N, [0.9], [0.0]), RECURSION),
    (dm.BLT(N, [0.9, 0.5], [0.3, 0.2]), REGENERATE),
    (dm.Diagonal([3.0, 2.0, 0.5]), REGENERATE),
    (dm.Dense(LOWER), REGENERATE),
    (dm.Dense(LOWER), BUFFER),
    (dm.Dense(LOWER), RECURSION),
    (dm.ColumnNormalized(dm.LambdaCGD(N, 0.9)), REGENERATE),
    (dm.ColumnNormalized(dm.SquareRoot(N, 3)), RECURSION),
    (dm.ColumnNormalized(dm.BLT(N, [0.9, 0.5], [0.3, 0.2])), RECURSION),
]
LATTICES = [dm.Identity(N), dm.Diagonal([3.0, 2.0, 0.5])]


@pytest.fixture
def all_rounds():
    """The cipher as it is."""


@pytest.fixture(autouse=True)
def fewer_rounds(request, monkeypatch):
    """One double round of the cipher on both paths: of ten the interpreter takes seconds."""
    if DEVICE.type == "cpu" and "all_rounds" not in request.fixturenames:
        from dpmech.optim.noise import kernels

        monkeypatch.setattr(pairs, "CHACHA_ROUNDS", 1)
        monkeypatch.setattr(kernels, "_ROUNDS", type(kernels._ROUNDS)(1))


@pytest.fixture
def kernel(monkeypatch):
    """Streams use the kernel, as for parameters on CUDA; called with False, they do not."""
    monkeypatch.setattr(secure_normals, "_NAMES", secure_normals._NAMES_ON_CUDA)

    def use(wanted=True):
        monkeypatch.setattr(noise_rows, "fused_on", lambda device: wanted)

    use()
    return use


@pytest.fixture
def uncompared(monkeypatch):
    """The kernel is used whatever it computes: the test compares."""
    monkeypatch.setattr(fused.FusedRows, "agrees", lambda self, variant: True)


def params(*, short=False):
    """A tile and the begin of another; parts of one; one value; none. Or four parts, and none."""
    shapes = ((3,), (2, 3), (1,), (2,), (0,)) if short else ((TILE + LANES + 3,), (2, 3), (2,), (), (0,))
    kinds = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float32)
    return [torch.zeros(shape, dtype=kind, device=DEVICE) for shape, kind in zip(shapes, kinds, strict=True)]


def sums_of(step, tensors, *, wide):
    """Sums of clipped gradients: in float64, or in the dtype of their noise."""
    generator = torch.Generator().manual_seed(step)
    return [
        (3.0 * torch.randn(one.shape, generator=generator, dtype=torch.float64)).to(
            DEVICE, torch.float64 if wide or one.dtype == torch.float64 else torch.float32
        )
        for one in tensors
    ]


def bits(tensor):
    kind = {4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().cpu().contiguous().view(kind).tolist()


def released(strategy, mode, generator, *, key, steps=None, wide=True, divisor=None, short=False):
    """Bits of all that leaves a stream and of its state."""
    cal = dm.calibrate_sigma(strategy, 8.0, 1e-5)
    tensors = params(short=short)
    stream = NoiseStream(cal, tensors, 0.3, generator, mode=mode)
    stream._set_sources(key)
    found = []
    for step in range(strategy.n if steps is None else steps):
        sums = sums_of(step, tensors, wide=wide)
        if divisor is None:
            stream.add_step(sums)
        else:
            means = stream.mean_step(sums, [divisor] * len(sums))
            sums = [
                mean.to(one.dtype if one.dtype == torch.float64 else torch.float32)
                for mean, one in zip(means, tensors, strict=True)
            ]
        found.append([bits(one) for one in sums])
        found.append([[bits(vector) for vector in vectors] for vectors in stream.state_dict()["state"]])
    return found


def both(kernel, *args, **options):
    """With the kernel, and without it; the key is the same."""
    found = []
    for wanted in (True, False):
        kernel(wanted)
        found.append(released(*args, key=(1, 2**63 + 5), **options))
    return found


@pytest.fixture
def launched(monkeypatch):
    """Counts launches of the kernel for vectors of a run."""
    count = collections.Counter()
    launch = fused.FusedRows._launch

    def counted(self, variant, step, source, additions):
        if source.key_words != type(source)(fused._KEY, source.device).key_words:
            count[variant.kind.name] += 1
        launch(self, variant, step, source, additions)

    monkeypatch.setattr(fused.FusedRows, "_launch", counted)
    return count


# ---- the same bits


def test_every_strategy_is_compared():
    def final(kind):
        below = [found for child in kind.__subclasses__() for found in final(child)]
        return below if inspect.isabstract(kind) else [kind, *below]

    assert {type(strategy) for strategy, _ in CASES} == set(final(dm.Strategy))
    assert {mode for _, mode in CASES} == set(NoiseMode)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("strategy", "mode"), slow_but(CASES, 1, 4, 5), ids=repr)
def test_the_kernel_has_the_bits_of_the_plain_path(kernel, uncompared, launched, strategy, mode):
    one, other = both(kernel, strategy, mode, None, divisor=48.0, short=True)
    assert one == other
    assert launched.total() > 0


@pytest.mark.filterwarnings("error")
def test_all_rounds_have_the_bits_of_the_plain_path(kernel, uncompared, launched, all_rounds):
    one, other = both(kernel, dm.Identity(2), None, None, divisor=48.0, steps=1, short=True)
    assert one == other
    assert launched.total() > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("divisor", [None, 7.0])
@pytest.mark.parametrize(("strategy", "mode"), CASES[1:6], ids=repr)
def test_every_dtype_of_sums_and_means(kernel, uncompared, launched, strategy, mode, wide, divisor):
    one, other = both(kernel, strategy, mode, "secure", wide=wide, divisor=divisor, steps=2, short=True)
    assert one == other
    assert launched.total() > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("strategy", "wide", "divisor"),
    slow_but(
        [(strategy, wide, x) for strategy in LATTICES for wide in (True, False) for x in (None, 48.0)], 1
    ),
    ids=repr,
)
def test_the_lattice_has_the_bits_of_the_plain_path(kernel, uncompared, launched, strategy, wide, divisor):
    one, other = both(
        kernel, strategy, None, "secure-lattice", wide=wide, divisor=divisor, steps=1, short=True
    )
    assert one == other
    assert launched.total() > 0


def test_the_nearest_integer_is_the_even_one_of_two():
    """Sums without noise on a lattice: halves, numbers without a fraction, and others, of both signs."""
    recursion = correlate(dm.Identity(2))[1]
    rows = noise_rows.NoiseRows(recursion, [], [], 2, paired=True)
    halves = [k + 0.5 for k in range(-5, 5)]
    large = [2.0**51 + 0.5, 2.0**52 + 1.0, -(2.0**53) - 2.0, 1e200, -1e200]
    values = [0.0, -0.0, 0.3, -0.7, *halves, *large, *torch.randn(900).mul(9.0).tolist()]
    sums = torch.tensor(values, dtype=torch.float64, device=DEVICE) * 0.25
    slot = noise_rows.Slot(0, (len(sums),), (len(sums),), torch.float32, DEVICE)
    out = torch.empty_like(sums)
    made = fused.FusedRows(recursion, DEVICE, rows.add_plainly, (0, 1))
    addition = Addition(slot, sums, out, [], factor=0.0, lattice=0.25)
    source = ChaChaNormals((1, 2), DEVICE)
    assert made.add(0, source, [addition]) == []
    assert bits(out) == bits((sums.cpu() * 4.0).round() * 0.25 + 0.0)


def test_rows_without_sums_are_the_same(kernel, uncompared):
    cal, found = dm.calibrate_sigma(dm.LambdaCGD(3, 0.9), 8.0, 1e-5), []
    for wanted in (True, False):
        kernel(wanted)
        stream = NoiseStream(cal, params(short=True), 0.3, 5)
        found.append([[bits(row) for row in stream.step()] for _ in range(3)])
        stream.close()
    assert found[0] == found[1]


def test_a_run_is_continued_with_or_without_the_kernel(kernel, uncompared):
    cal, tensors = dm.calibrate_sigma(dm.BLT(4, [0.9, 0.5], [0.3, -0.2]), 8.0, 1e-5), params(short=True)
    stream = NoiseStream(cal, tensors, 0.3)
    stream.add_step(sums_of(0, tensors, wide=True))
    state = stream.state_dict()
    found = []
    for wanted in (True, False):
        stream.close()
        kernel(wanted)
        stream = NoiseStream(cal, tensors, 0.3)
        stream.load_state_dict(state)
        stream.add_step(sums := sums_of(1, tensors, wide=True))
        found.append([bits(one) for one in sums])
    assert found[0] == found[1]


@pytest.mark.parametrize("adaptive", [False, True])
def test_an_optimizer_ends_at_the_same_weights(kernel, uncompared, launched, adaptive):
    strategy = dm.Identity(3) if adaptive else dm.LambdaCGD(3, 0.9)
    cal, found = dm.calibrate_sigma(strategy, 8.0, 1e-5), []
    for wanted in (True, False):
        kernel(wanted)
        weights = [torch.nn.Parameter(one) for one in (params(short=True)[0], params()[3])]
        clip = AdaptiveClip(1.0) if adaptive else 1.0
        optimizer = PrivateOptimizer(torch.optim.SGD(weights, lr=0.1), cal, clip, 8.0, generator=3)
        for step in range(3):
            for one in weights:
                generator = torch.Generator().manual_seed(step)
                one.grad_sample = torch.randn(4, *one.shape, generator=generator).to(DEVICE, one.dtype)
            optimizer.step()
            assert all(one.grad.dtype == one.dtype for one in weights)
        found.append([one.detach().double().tolist() for one in weights])
        optimizer.close()
    assert found[0] == found[1]
    assert launched.total() == (6 if adaptive else 3)  # a count is float64, in a launch of its own


# ---- before it is used


class Wrong:
    """A kernel that is changed before it is launched."""

    def __init__(self, change):
        self._change = change

    def __getitem__(self, grid):
        def launch(*args, **options):
            kernel = fused.importlib.import_module("dpmech.optim.noise.kernels").add_rows
            kernel[grid](*self._change(list(args)), **options)

        return launch


def other_step(args):
    args[9] += 1
    return args


def other_key(args):
    args[8] = args[8] ^ 1
    return args


def other_weights(args):
    args[7] = args[7] * (1.0 + 2.0**-52)
    return args


def stops(args):
    raise RuntimeError("Failed to find C compiler")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_step, "its sums of step 0 differ"),
        (other_key, "its sums of step 0 differ"),
        (other_weights, "its sums of step [01] differ"),
        (stops, "it does not run .RuntimeError: Failed to find C compiler"),
    ],
)
def test_a_kernel_that_differs_is_not_used(kernel, launched, monkeypatch, change, says):
    """The noise is then the plain path's, and the warning names what differs."""
    monkeypatch.setattr(fused, "_kernel", lambda: Wrong(change))
    with pytest.warns(RuntimeWarning, match=f"the noise kernel is not used on {DEVICE}.*: {says}") as caught:
        one = released(dm.LambdaCGD(2, 0.9), None, None, key=(1, 2), short=True)
    assert len(caught) == len({str(warning.message) for warning in caught})  # once for each variant
    assert launched.total() == 0
    kernel(False)
    assert one == released(dm.LambdaCGD(2, 0.9), None, None, key=(1, 2), short=True)


def test_states_are_compared_too(kernel, monkeypatch):
    """A wrong decay first shows in the buffers."""

    def other_decay(args):
        args[7] = torch.cat([args[7][:2], args[7][2:] * (1.0 + 2.0**-52)])
        return args

    monkeypatch.setattr(fused, "_kernel", lambda: Wrong(other_decay))
    with pytest.warns(RuntimeWarning, match="its states after step 0 differ"):
        released(dm.BLT(2, [0.9, 0.5], [0.3, -0.2]), None, None, key=(1, 2), short=True)


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_loses_no_row(kernel, monkeypatch):
    monkeypatch.setattr(fused, "_kernel", lambda: Wrong(stops))
    tensors = params(short=True)
    stream = NoiseStream(dm.calibrate_sigma(dm.Identity(2), 8.0, 1e-5), tensors, 0.3, 5)
    with pytest.raises(RuntimeWarning, match="is not used"):
        stream.add_step(sums_of(0, tensors, wide=True))
    assert stream.steps_taken == 0
    stream.add_step(sums_of(0, tensors, wide=True))
    assert stream.steps_taken == 1


def test_the_kernel_is_for_cuda_with_triton(monkeypatch):
    cuda = torch.device("cuda", 0)
    assert fused.fused_on(cuda)
    assert not fused.fused_on(torch.device("cpu"))
    assert not fused.fused_on(torch.device("mps"))
    monkeypatch.setattr(fused.importlib.util, "find_spec", lambda name: None)
    fused._has_triton.cache_clear()
    assert not fused.fused_on(cuda)
    fused._has_triton.cache_clear()


@pytest.mark.parametrize("wanted", [True, False])
def test_means_of_other_sums_are_refused(kernel, wanted):
    kernel(wanted)
    stream = NoiseStream(
        dm.calibrate_sigma(dm.Identity(2), 8.0, 1e-5), [torch.zeros(3, device=DEVICE)], 0.3, 5
    )
    with pytest.raises(dm.InvalidParameterError, match="sums must be 1 tensors"):
        stream.mean_step([], [8.0])
    with pytest.raises(dm.InvalidParameterError, match=r"sums\[0\]"):
        stream.mean_step([torch.zeros(4, device=DEVICE)], [8.0])
    with pytest.raises(dm.InvalidParameterError, match="divisors must be 1 numbers"):
        stream.mean_step([torch.zeros(3, device=DEVICE)], [])
    with pytest.raises(dm.InvalidParameterError, match="divisors must be"):
        stream.mean_step([torch.zeros(3, device=DEVICE)], [0.0])
    assert stream.steps_taken == 0


@interpreted
def test_the_last_tile_of_the_longest_vector():
    """Its place takes 36 bits, its last unit all 32; only this tile is in memory."""
    from dpmech.optim.noise import kernels

    tile = 2**32 // LANES - 1
    source, values = ChaChaNormals((1, 2), DEVICE), torch.zeros(TILE, dtype=torch.float64)
    address = [values.data_ptr() - tile * TILE * 8]
    integers = ([[0, tile]], [(tile + 1) * TILE], [[3, 1]], address, address, [[]])
    tables = [torch.tensor(one, dtype=torch.int64) for one in integers]
    tables[0] = tables[0].to(torch.int32)
    floats = [torch.tensor(one, dtype=torch.float64) for one in ([[1.0, 1.0, 1.0, 1.0]], [1.0])]
    variant = fused.Variant(Kind.REGENERATED, 0)
    key = torch.tensor(source.key_words, dtype=torch.int64)
    kernels.add_rows[(1,)](*tables, *floats, key, 5, 1, 0, **variant.options())
    assert bits(values) == bits(source._values((5, 3, 1), tile * LANES, 1))


def test_positions_are_checked_before_a_launch(kernel):
    stream = NoiseStream(dm.calibrate_sigma(dm.Identity(2), 8.0, 1e-5), params(), 0.3, 5)
    slot = stream._slots[0]
    stream._slots[0] = noise_rows.Slot(2**32, slot.shape, slot.local_shape, slot.dtype, slot.device)
    with pytest.raises(dm.InvalidParameterError, match="step, parameter, shard, unit"):
        stream.add_step(sums_of(0, params(), wide=True))


# ---- what it costs


@interpreted
@pytest.mark.parametrize(
    ("strategy", "mode", "generator", "per_value"),
    [
        (dm.Identity(N), None, 5, 12),  # a sum in float64 is read, a mean in float32 is written
        (dm.Identity(N), None, "secure-lattice", 12),
        (dm.LambdaCGD(N, 0.9), None, 5, 12),
        (dm.LambdaCGD(N, 0.9), BUFFER, 5, 12 + 8 + 8),  # the last row
        (dm.SquareRoot(N, 3), RECURSION, 5, 12 + 2 * 8 + 8),
        (dm.BLT(N, [0.9, 0.5], [0.3, -0.2]), None, 5, 12 + 2 * (8 + 8)),  # one pass over the buffers
    ],
    ids=repr,
)
def test_bytes_a_value(kernel, uncompared, monkeypatch, strategy, mode, generator, per_value):
    size = 2 * TILE
    param = torch.zeros(size)
    stream = NoiseStream(dm.calibrate_sigma(strategy, 8.0, 1e-5), [param], 0.3, generator, mode=mode)
    for step in range(N - 1):
        stream.mean_step(sums_of(step, [param], wide=True), [8.0])
    moved = count_bytes(monkeypatch)
    stream.mean_step(sums_of(N - 1, [param], wide=True), [8.0])
    assert moved["vectors"] == per_value * size
    assert 0 < moved["tables"] < 0.5 * size


def count_bytes(monkeypatch):
    """Bytes that the interpreter moves for blocks of values, and for single entries of the tables."""
    from triton.runtime.interpreter import interpreter_builder as builder

    moved = collections.Counter()

    def counting(name, pointers, mask):
        original = getattr(builder, name)

        def counted(*args, **options):
            addresses = args[pointers].data
            inside = np.ones_like(addresses, dtype=bool) if mask is None else args[mask].data
            width = args[pointers].get_element_ty().primitive_bitwidth // 8
            moved["vectors" if addresses.size > 1 else "tables"] += int(inside.sum()) * width
            return original(*args, **options)

        monkeypatch.setattr(builder, name, counted)

    counting("create_load", 0, None)
    counting("create_store", 0, None)
    counting("create_masked_load", 0, 1)
    counting("create_masked_store", 0, 2)
    return moved


def test_many_small_parameters_take_one_launch(kernel, uncompared, launched):
    tensors = [torch.zeros(3, device=DEVICE) for _ in range(9)]
    stream = NoiseStream(dm.calibrate_sigma(dm.Identity(2), 8.0, 1e-5), tensors, 0.3, 5)
    stream.mean_step(sums_of(0, tensors, wide=True), [8.0] * 9)
    assert launched == {"REGENERATED": 1}


COMPILE = """
import json, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from dpmech.optim.noise.fused import Variant
from dpmech.optim.noise.kernels import add_rows
from dpmech.optim.noise.rows import Kind

tables = ["programs", "sizes", "positions", "sums", "outs", "states", "factors", "weights", "key"]
types = ["*i32", *["*i64"] * 5, "*fp64", "*fp64", "*i64"]
signature = dict(zip(tables, types)) | dict.fromkeys(["step", "width", "slot"], "i32")
found = {}
for kind in Kind:
    vectors = 0 if kind is Kind.REGENERATED else 3
    options = Variant(kind, vectors, wide_out=False, lattice=vectors == 0, divided=True).options()
    source = ASTSource(add_rows, signature | dict.fromkeys(options, "constexpr"), options)
    made = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False, "num_warps": 4}
    )
    names = re.findall(r"^\\t(?:@\\S+ )?([a-z]\\S+)", made.asm["ptx"], re.M)
    found[kind.name] = sorted({name for name in names if re.search("f64|f32", name)})
    assert made.metadata.shared == 0
print(json.dumps(found))
"""


@pytest.mark.slow
def test_compiled_for_a_gpu_every_operation_is_rounded_alone(tmp_path):
    """Instructions for compute capability 9.0, made without one: no fused product, nothing approximate."""
    found = json.loads(printed_by(COMPILE, tmp_path))
    assert len(found) == 4
    for names in found.values():
        arithmetic = [
            name for name in names if name.split(".")[0] in {"add", "sub", "mul", "div", "sqrt", "fma", "mad"}
        ]
        assert {"mul.rn.f64", "add.rn.f64", "div.rn.f64", "sqrt.rn.f64"} <= set(arithmetic)
        assert all(name.endswith(".rn.f64") and not name.startswith(("fma", "mad")) for name in arithmetic)
        assert not any("approx" in name or "ftz" in name for name in names)
