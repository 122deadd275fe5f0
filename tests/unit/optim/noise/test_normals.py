import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.optim.noise.normals import HostNormals, noise_key

WORD = st.integers(0, 2**64 - 1)
HALF = st.integers(0, 2**32 - 1)


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


def test_counters_take_all_32_bits_of_a_chunk_and_a_shard():
    assert HostNormals((1, 2)).counter(0, 0, 2**32 - 1, 2**32 - 1) == (0, 2**64 - 1, 0, 0)
