"""Pairs of ChaCha20: words against OpenSSL, numbers against fill_with_pairs."""

import hashlib
import itertools
import struct

import numpy as np
import pytest
import torch

import dpmech as dm
from dpmech.exceptions import CertificateError
from dpmech.optim import NoiseStream
from dpmech.optim.noise import pairs, secure_normals
from dpmech.optim.noise.normals import LARGEST, fill_with_pairs
from dpmech.optim.noise.pairs import ChaChaNormals

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

CPU = torch.device("cpu")
KEY = (0x0123456789ABCDEF, 2**64 - 5)
POSITION = 5, 2**31 + 3, 7  # step, parameter, shard


def chacha_words(key, step, parameter, shard, count):
    """From OpenSSL's ChaCha20, as the class documents its key and its position."""
    derived = hashlib.blake2b(struct.pack("<QQ", *key), digest_size=32, person=b"dpmech chacha20").digest()
    nonce = struct.pack("<IIII", 0, step, parameter, shard)
    stream = Cipher(algorithms.ChaCha20(derived, nonce), None).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def numbers(key, position, size):
    """The first values of a vector, by another generator of words and by numpy, as documented."""
    tiles = -(-size // 1024)
    words = chacha_words(key, *position, tiles * 1024)
    made = np.empty(tiles * 1024)
    fill_with_pairs(words.reshape(-1, 2), made)
    values = np.empty(tiles * 1024)
    for unit, place in itertools.product(range(tiles * 128), range(8)):
        values[unit // 128 * 1024 + unit % 128 + 128 * place] = made[8 * unit + place]
    return values[:size]


def filled(size, position=POSITION, *, key=KEY, chunk=0, dtype=torch.float64):
    out = torch.empty(size, dtype=dtype)
    ChaChaNormals(key, CPU).fill(out, *position, chunk)
    return out


def test_a_block_is_that_of_the_standard():
    """RFC 8439, section 2.3.2."""
    source = ChaChaNormals(KEY, CPU)
    source.key_words = struct.unpack("<8I", bytes(range(32)))
    nonce = struct.unpack("<3I", bytes.fromhex("000000090000004a00000000"))
    words = source.words(nonce, torch.tensor([1])).flatten().numpy()
    assert words.tobytes() == bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


@pytest.mark.parametrize("position", [(0, 0, 0), POSITION, (2**32 - 1, 2**32 - 2, 2**32 - 1)])
def test_words_are_those_of_openssl(position):
    units = torch.arange(300)
    words = ChaChaNormals(KEY, CPU).words(position, units).T.reshape(-1).numpy().view(np.uint64)
    assert np.array_equal(words, chacha_words(KEY, *position, 2400))


def test_all_units_have_words():
    """The last unit; OpenSSL reaches it by its first word."""
    last = 2**32 - 1
    words = ChaChaNormals(KEY, CPU).words(POSITION, torch.tensor([last])).flatten().numpy().view(np.uint64)
    derived = hashlib.blake2b(struct.pack("<QQ", *KEY), digest_size=32, person=b"dpmech chacha20").digest()
    nonce = struct.pack("<IIII", last, *POSITION)
    block = Cipher(algorithms.ChaCha20(derived, nonce), None).encryptor().update(bytes(64))
    assert words.tobytes() == block


@pytest.mark.parametrize("size", [1, 127, 1024, 2500])
def test_numbers_are_those_of_fill_with_pairs_bit_for_bit(size):
    expected = numbers(KEY, POSITION, size)
    assert np.array_equal(filled(size).numpy(), expected)
    narrow = filled(size, dtype=torch.float32).numpy()
    assert np.array_equal(narrow, expected.astype(np.float32))


def test_pairs_have_the_bits_of_fill_with_pairs_at_every_end():
    rng = np.random.default_rng(0)
    ends = [0, 1, 2**15, 2**16 - 1, 2**16, 2**62, 2**63 - 1, 2**63, 2**64 - 2**16, 2**64 - 2, 2**64 - 1]
    words = np.array(list(itertools.product(ends, ends)), dtype=np.uint64)
    words = np.concatenate([words, rng.integers(0, 2**64, (20_000, 2), dtype=np.uint64, endpoint=False)])
    expected = np.empty(2 * len(words))
    fill_with_pairs(words, expected)
    first, second = torch.from_numpy(words.view(np.int64)).unbind(1)
    found = torch.stack(pairs.pairs_of(first, second), 1).flatten().numpy()
    assert np.array_equal(found.view(np.int64), expected.view(np.int64))
    # torch's own numbers on CUDA end at 6.76, where u is 2^-33.
    assert abs(found).max() == pytest.approx(LARGEST, rel=1e-15)


def test_roots_of_torch_would_be_noticed(monkeypatch):
    monkeypatch.setattr(pairs, "_root", lambda x: torch.sqrt(x) * (1.0 + 2.0**-52))
    assert not np.array_equal(filled(2500).numpy(), numbers(KEY, POSITION, 2500))


def test_values_do_not_depend_on_chunks():
    source = ChaChaNormals(KEY, CPU)
    whole = numbers(KEY, POSITION, 2 * source.chunk)
    assert np.array_equal(filled(10, chunk=1).numpy(), whole[source.chunk : source.chunk + 10])
    assert ChaChaNormals(KEY, torch.device("cuda")).chunk % source.chunk == 0


def test_positions_and_keys_have_their_own_numbers():
    found = [filled(100, position)[:20].tolist() for position in itertools.product((0, 1), (0, 1), (0, 1))]
    found += [filled(100, key=(KEY[0], KEY[1] ^ 1)).tolist(), filled(100, chunk=1).tolist()]
    values = [value for vector in found for value in vector]
    assert len(set(values)) == len(values)
    assert ChaChaNormals(KEY, CPU).fingerprint() == ChaChaNormals(KEY, CPU).fingerprint()
    assert ChaChaNormals(KEY, CPU).fingerprint() != ChaChaNormals((KEY[0] ^ 1, KEY[1]), CPU).fingerprint()


@pytest.mark.parametrize("position", [(2**32, 0, 0), (0, 2**32 - 1, 0), (0, 0, 2**32)])
def test_positions_that_do_not_fit_are_refused(position):
    with pytest.raises(dm.InvalidParameterError, match="step, parameter, shard, unit of 8 values"):
        filled(1, position)


def test_a_vector_ends_with_the_32_bits_of_its_units():
    source = ChaChaNormals(KEY, CPU)
    last = 2**32 * 8 // source.chunk - 1
    source.fill(torch.empty(source.chunk), 0, 0, 0, last)
    with pytest.raises(dm.InvalidParameterError, match="unit of 8 values"):
        source.fill(torch.empty(1), 0, 0, 0, last + 1)


# ---- in a stream


@pytest.fixture
def as_on_cuda(monkeypatch):
    """Names of generators mean what they mean for parameters on CUDA."""
    monkeypatch.setattr(secure_normals, "_NAMES", secure_normals._NAMES_ON_CUDA)


STRATEGIES = [dm.Identity(4), dm.LambdaCGD(4, 0.9), dm.SquareRoot(4, 3), dm.BLT(4, [0.9, 0.5], [0.3, -0.2])]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("generator", [None, "secure", "philox", 5])
def test_rows_are_those_of_the_noising_matrix(as_on_cuda, strategy, generator):
    cal = dm.calibrate_sigma(strategy, 8.0, 1e-5)
    stream = NoiseStream(cal, [torch.zeros(3), torch.zeros(40, 30, dtype=torch.float64)], 0.5, generator)
    assert stream.generator == ("chacha20, seeded" if generator == 5 else "chacha20, pairs")
    key = tuple(stream.state_dict()["key"])
    rows = [stream.step() for _ in range(4)]
    for index, size in enumerate((3, 1200)):
        z = np.array([numbers(key, (step, index, 0), size) for step in range(4)])
        exact = np.linalg.solve(strategy.to_dense(), z.astype(np.float64)) * cal.sigma * 0.5
        found = np.array([row[index].flatten().numpy() for row in rows])
        np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["secure", "secure-lattice", "philox"])
def test_a_state_of_cuda_is_continued_bit_for_bit_anywhere(monkeypatch, name):
    cal, params = dm.calibrate_sigma(dm.Identity(3), 8.0, 1e-5), [torch.zeros(5)]
    with monkeypatch.context() as patched:
        patched.setattr(secure_normals, "_NAMES", secure_normals._NAMES_ON_CUDA)
        there = NoiseStream(cal, params, generator=name)
    there.add_step([torch.zeros(5)])
    here = NoiseStream(cal, params, generator=name)
    assert here.generator != there.generator
    state = there.state_dict()
    there.add_step(expected := [torch.ones(5)])
    there.close()
    here.load_state_dict(state)
    assert here.generator == there.generator
    here.add_step(found := [torch.ones(5)])
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("name", ["secure", "philox"])
def test_a_seed_is_refused_where_a_key_of_the_system_is_asked_for(as_on_cuda, name):
    cal, params = dm.calibrate_sigma(dm.Identity(3), 8.0, 1e-5), [torch.zeros(5)]
    seeded = NoiseStream(cal, params, generator=5)
    state = seeded.state_dict()
    seeded.close()
    with pytest.raises(CertificateError, match="the state has another generator than this stream"):
        NoiseStream(cal, params, generator=name).load_state_dict(state)
