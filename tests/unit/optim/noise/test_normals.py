import hashlib
import itertools
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.optim.noise import normals as generators
from dpmech.optim.noise.normals import LARGEST, CudaNormals, HostNormals, PairMaker, noise_key, torch_pairs

WORD = st.integers(0, 2**64 - 1)
HALF = st.integers(0, 2**32 - 1)


class FakeCuda:
    """The interface of a CUDA torch.Generator, for machines without one: offsets move like its own."""

    def __init__(self, step=4):
        self.device, self.offset, self.seed, self.step = torch.device("cpu"), 0, None, step

    def manual_seed(self, seed):
        self.seed = seed

    def set_offset(self, offset):
        assert offset % 4 == 0
        self.offset = offset

    def get_offset(self):
        return self.offset


def fake_words(out, generator):
    """256 threads of one block, words of 64 bits in twos: the launch that uses the most offsets."""
    values = np.random.Philox(key=generator.seed, counter=generator.offset).random_raw(out.numel())
    out.copy_(torch.from_numpy(values.view(np.int64)).reshape(out.shape))
    generator.offset += generator.step * ((out.numel() - 1) // (256 * 2) + 1)


@pytest.fixture
def fake_cuda(monkeypatch):
    monkeypatch.setattr(generators, "fill_words", fake_words)
    return FakeCuda()


# ---- keys


def test_entropy_of_the_operating_system_differs_every_time():
    keys = {noise_key(None) for _ in range(100)}
    assert len(keys) == 100
    assert all(0 <= word < 2**64 for key in keys for word in key)
    assert max(word for key in keys for word in key) > 2**60


def test_seeds_repeat_and_generators_advance():
    assert noise_key(7) == noise_key(np.int64(7)) != noise_key(8)
    assert noise_key(2**200) != noise_key(2**200 + 1)
    numpy_keys = [noise_key(rng) for rng in [np.random.default_rng(3)] * 2]
    assert numpy_keys[0] == noise_key(np.random.default_rng(3)) != numpy_keys[1]
    torch_keys = [noise_key(rng) for rng in [torch.Generator().manual_seed(3)] * 2]
    assert torch_keys[0] == noise_key(torch.Generator().manual_seed(3)) != torch_keys[1]


def test_a_numpy_generator_gives_two_words_and_no_more():
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    noise_key(one)
    other.bit_generator.random_raw(2)
    assert one.bit_generator.state == other.bit_generator.state


def test_a_torch_generator_gives_all_64_bits_of_its_seed():
    """Trap: a CPU generator keeps 32 bits of its seed, so seeds 2^32 apart draw the same numbers."""
    low, high = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5 + 2**32)
    assert torch.equal(torch.randn(4, generator=low), torch.randn(4, generator=high))
    assert noise_key(low) != noise_key(high)


@pytest.mark.parametrize("bad", [-1, True, 1.0, "7", torch.Generator(), np.random.RandomState(1)])
def test_other_generators_are_refused(bad):
    with pytest.raises(dm.InvalidParameterError, match="generator must be"):
        noise_key(bad)


# ---- the host


@given(WORD, WORD, HALF, HALF)
def test_a_counter_names_its_block(step, parameter, shard, chunk):
    words = HostNormals((1, 2)).counter(step, parameter, shard, chunk)
    assert words == (0, shard * 2**32 + chunk, parameter, step)
    assert (words[3], words[2], *divmod(words[1], 2**32)) == (step, parameter, shard, chunk)


@pytest.mark.slow
def test_counters_of_a_million_steps_are_distinct():
    """As numbers they increase with (step, parameter, shard, chunk), are distinct and at least 2^64 apart."""
    source = HostNormals((1, 2))
    last = -1
    for step in range(10**6):
        low, middle, parameter, high = source.counter(step, step % 3, step % 2, 0)
        value = low + 2**64 * middle + 2**128 * parameter + 2**192 * high
        assert value >= last + 2**64 or step == 0
        last = value
    assert source.chunk <= 2**60


@pytest.mark.parametrize("index", [(0, 0, 2**32, 0), (0, 0, 0, 2**32), (2**64, 0, 0, 0), (0, 2**64, 0, 0)])
def test_counters_that_do_not_fit_are_refused(index):
    with pytest.raises(dm.InvalidParameterError, match="step, parameter, shard, chunk"):
        HostNormals((1, 2)).counter(*index)


def test_numbers_equal_those_of_numpy():
    key = (2**64 - 1, 12345)
    source = HostNormals(key)
    for dtype, order in ((torch.float32, 1), (torch.float64, -1)):
        for index in [(5, 3, 2, 1), (0, 0, 0, 0), (5, 3, 2, 1), (999_999, 7, 1, 4)][::order]:
            out = torch.empty(1000, dtype=dtype)
            source.fill(out, *index)
            step, parameter, shard, chunk = index
            words = np.array([0, shard * 2**32 + chunk, parameter, step], dtype=np.uint64)
            bits = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=words)
            expected = np.random.Generator(bits).standard_normal(1000, dtype=out.numpy().dtype)
            assert np.array_equal(out.numpy(), expected)


def test_samples_of_many_blocks_are_distinct():
    """Trap: hashed seeds of 32 bits let two of 60,000 steps draw identical noise."""
    source = HostNormals((1, 2))
    out = torch.empty(2, dtype=torch.float64)
    firsts = []
    for index in itertools.product(range(30_000), range(2), range(2), range(1)):
        source.fill(out, *index)
        firsts.extend(out.tolist())
    assert len(set(firsts)) == len(firsts) == 240_000


def test_other_devices_get_the_same_numbers(monkeypatch):
    """A device that numpy cannot write to is filled by copying."""

    class Elsewhere:
        device, shape, dtype = torch.device("meta"), torch.Size([5]), torch.float32

        def copy_(self, host):
            self.values = host

    there, here = Elsewhere(), torch.empty(5)
    HostNormals((1, 2)).fill(there, 1, 2, 3, 4)
    HostNormals((1, 2)).fill(here, 1, 2, 3, 4)
    assert torch.equal(there.values, here)


def test_fingerprints_distinguish_keys():
    assert HostNormals((1, 2)).fingerprint() == HostNormals((1, 2)).fingerprint()
    assert HostNormals((1, 2)).fingerprint() != HostNormals((1, 3)).fingerprint()


# ---- CUDA, as far as a machine without it can go

SIZES = (3, 2**24, 2**24 + 1, 0, 5 * 10**7)


def test_cuda_offsets_never_meet(fake_cuda):
    n, shards = 10**6, 8
    source = CudaNormals((7, 8), fake_cuda, sizes=SIZES, n=n, shards=shards)
    # All 128 bits of the key matter: keys of one torch generator share the first word.
    assert fake_cuda.seed == int.from_bytes(hashlib.sha256(struct.pack("<QQ", 7, 8)).digest()[:8], "little")
    rng = np.random.default_rng(0)
    steps = [*range(50), *rng.integers(0, n, 2000).tolist(), n - 1]
    found = {
        source.offset(step, parameter, shard, chunk)
        for step in steps
        for shard in range(shards)
        for parameter, size in enumerate(SIZES)
        for chunk in range(-(-size // source.chunk))
    }
    expected = len(set(steps)) * shards * sum(-(-size // source.chunk) for size in SIZES)
    assert len(found) == expected
    ordered = [0, *sorted(found)]
    assert min(b - a for a, b in itertools.pairwise(ordered)) >= source.reserved(source.chunk)
    assert all(offset % 4 == 0 for offset in ordered)
    assert ordered[-1] + source.reserved(source.chunk) < 2**63


@given(st.integers(1, 2**24))
def test_cuda_reserves_what_one_block_of_threads_can_use(size):
    """torch counts 4 offsets for every 256 x 2 words of 64 bits of one block; an odd size takes one more."""
    used = 4 * ((size + size % 2 - 1) // (256 * 2) + 1)
    assert used <= CudaNormals.reserved(size) <= CudaNormals.reserved(2**24)


def test_cuda_draws_are_a_function_of_their_position(fake_cuda):
    source = CudaNormals((7, 8), fake_cuda, sizes=(100, 100), n=5, shards=2)
    a, b, c = (torch.empty(100) for _ in range(3))
    source.fill(a, 1, 0, 1, 0)
    source.fill(b, 4, 1, 0, 0)
    source.fill(c, 1, 0, 1, 0)
    assert torch.equal(a, c)
    assert not torch.equal(a, b)
    assert source.fingerprint() == source.fingerprint()


@pytest.mark.parametrize("step", [0, 100_000])
def test_cuda_checks_the_offsets_of_a_draw(monkeypatch, step):
    monkeypatch.setattr(generators, "fill_words", fake_words)
    source = CudaNormals((7, 8), FakeCuda(step), sizes=(100,), n=5, shards=1)
    with pytest.raises(dm.NumericalError, match="offsets of the generator"):
        source.fill(torch.empty(100), 0, 0, 0, 0)


def test_cuda_refuses_more_than_63_bits(fake_cuda):
    with pytest.raises(dm.InvalidParameterError, match="63 bits of offset"):
        CudaNormals((7, 8), fake_cuda, sizes=(10**12,), n=10**9, shards=10**3)


@pytest.mark.parametrize(("step", "accepted"), [(8, True), (12, False)])
def test_cuda_may_use_all_reserved_offsets_and_no_more(monkeypatch, step, accepted):
    monkeypatch.setattr(generators, "fill_words", fake_words)
    source = CudaNormals((7, 8), FakeCuda(step), sizes=(100,), n=5, shards=1)
    assert source.reserved(100) == 8
    if accepted:
        source.fill(torch.empty(100), 0, 0, 0, 0)
        return
    with pytest.raises(dm.NumericalError, match="12 offsets of the generator, 8 are reserved"):
        source.fill(torch.empty(100), 0, 0, 0, 0)


def test_cuda_takes_all_63_bits(fake_cuda):
    row = 2 * CudaNormals.reserved(CudaNormals.chunk)  # the fingerprint, and one chunk
    most = (2**63 - 1) // row
    CudaNormals((7, 8), fake_cuda, sizes=(1,), n=most, shards=1)
    with pytest.raises(dm.InvalidParameterError, match="63 bits of offset"):
        CudaNormals((7, 8), fake_cuda, sizes=(1,), n=most + 1, shards=1)


def test_cuda_reserves_four_offsets_for_128_values():
    assert [CudaNormals.reserved(size) for size in (0, 127, 128, 1280)] == [8, 8, 12, 48]


def test_counters_take_all_32_bits_of_a_chunk_and_a_shard():
    assert HostNormals((1, 2)).counter(0, 0, 2**32 - 1, 2**32 - 1) == (0, 2**64 - 1, 0, 0)


def test_words_have_all_64_bits():
    out, again = (torch.empty(20_000, 2, dtype=torch.int64) for _ in range(2))
    generators.fill_words(out, torch.Generator().manual_seed(1))
    generators.fill_words(again, torch.Generator().manual_seed(1))
    assert torch.equal(out, again)
    share = (out.flatten()[:, None] >> torch.arange(64) & 1).double().mean(0)
    assert (share - 0.5).abs().max() < 7.0 * 0.5 / math.sqrt(40_000)  # 64 bits: at most 2e-10


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_numbers_are_the_pairs_of_its_words(fake_cuda, size, dtype):
    source = CudaNormals((7, 8), fake_cuda, sizes=(size,), n=5, shards=1)
    out, expected = torch.empty(size, dtype=dtype), np.empty(size)
    source.fill(out, 3, 0, 0, 0)
    offset = source.offset(3, 0, 0, 0)
    words = np.random.Philox(key=fake_cuda.seed, counter=offset).random_raw(size + size % 2)
    PairMaker(size).make(words.reshape(-1, 2), expected)
    tolerance = 1e-13 if dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(out.double().numpy(), expected, rtol=0.0, atol=tolerance)


def test_the_numbers_of_a_gpu_do_not_end_at_6_76():
    """torch's `normal_` on CUDA uses u >= 2^-33, which limits the tail; here u begins at 2^-81."""
    assert math.sqrt(2.0 * 33 * math.log(2.0)) == pytest.approx(6.76, abs=0.01)
    words = torch.tensor([[0, 0], [0, -(2**63)], [2**30, 0]])
    numbers = torch_pairs(words)[:, 0]
    assert numbers[0] == -numbers[1] == pytest.approx(LARGEST, rel=1e-14)
    assert 6.76 < numbers[2] < LARGEST
