"""Noise from AES in counter mode: known answers, states that name it, and repeated steps."""

import math
import os
import signal
import sys
import warnings

import mpmath as mp
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.optim import NoiseMode, NoiseStream, processes
from dpmech.optim.noise import pairs
from dpmech.optim.noise.normals import LARGEST, HostNormals, fill_with_pairs
from dpmech.optim.noise.secure_normals import SecureNormals, ZigguratNormals, secure_key, source_of

KEY = (0x0001020304050607, 0x08090A0B0C0D0E0F)
EDGES = [0, 1, 2**52, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 3 * 2**62, 2**64 - 2**11, 2**64 - 1]
EDGES += [math.isqrt(2**127) + shift for shift in (-4096, 0, 1, 2048)]  # where mantissas wrap around


def exact(first, second):
    """r and the pair of two words, with 200 bits, from the formula of the docstring."""
    with mp.workprec(200):
        end = (mp.mpf(int(second) % 2**16) + 0.5) / 2**16
        radius = mp.sqrt(-2 * mp.log((int(first) + end) / 2**64))
        low = int(second) & (2**63 - 1)
        angle = mp.pi * (low - (2**63 if low >= 2**62 else 0) + mp.mpf(0.5)) / 2**63
        sign = -1 if int(second) >> 63 else 1
        return radius, (sign * radius * mp.cos(angle), radius * mp.sin(angle))


def made(words):
    out = np.empty(2 * len(words))
    fill_with_pairs(words, out)
    return out


def made_of_tensors(words):
    first, second = torch.from_numpy(words.view(np.int64)).unbind(1)
    return torch.stack(pairs.pairs_of(first, second), 1).numpy()


def worst_error(words, make=made):
    """Largest error of a number, in units of its r."""
    worst = 0.0
    for (first, second), pair in zip(words, make(words).reshape(-1, 2), strict=True):
        radius, values = exact(first, second)
        worst = max(worst, *(float(abs(mp.mpf(x) - y) / radius) for x, y in zip(pair, values, strict=True)))
    return worst


def pairs_of(count):
    words = np.random.default_rng(1).integers(0, 2**64, size=(count, 2), dtype=np.uint64)
    return np.concatenate([np.array([(a, b) for a in EDGES for b in EDGES], dtype=np.uint64), words])


# ---- the numbers


@pytest.mark.parametrize(
    ("make", "count"),
    [(made, 300), (made_of_tensors, 300), pytest.param(made, 30_000, marks=pytest.mark.slow)],
)
def test_numbers_are_those_of_exact_arithmetic(make, count):
    assert 0.0 < worst_error(pairs_of(count), make) < 2.0**-50 < 2.0**-48


def test_a_wrong_coefficient_is_detected(monkeypatch):
    from dpmech.optim.noise import normals as box_muller

    monkeypatch.setattr(box_muller, "SIN", [*box_muller.SIN[:-1], -1.0 / 6.0 + 1e-14])
    assert worst_error(pairs_of(300)) > 2.0**-48


def test_the_tail_reaches_beyond_ten_and_a_half():
    ends = np.array([[0, 0], [0, 2**63], [2**64 - 1, 2**16 - 1]], dtype=np.uint64)
    values = made(ends)
    assert float(mp.sqrt(162 * mp.log(2))) == pytest.approx(LARGEST, rel=1e-15)
    assert values[0] == -values[2] == pytest.approx(LARGEST, rel=1e-15)
    assert values[4] == pytest.approx(2.0**-40, rel=1e-9)  # 1 - u = 2^-81, with all its bits


def test_a_radius_without_the_low_bits_is_detected(monkeypatch):
    """As if u ended at 2^-65: numbers of the deep tail differ by far more than rounding errors."""
    from dpmech.optim.noise import normals as box_muller

    tail = np.array([[word, 3 * 2**61 + 77 * word] for word in range(1, 40)], dtype=np.uint64)
    assert worst_error(tail) < 2.0**-50
    monkeypatch.setattr(box_muller, "_LOW", np.uint64(0))
    assert worst_error(tail) > 2.0**-20


def test_numbers_come_from_the_blocks_of_the_cipher():
    """The words come from plain AES, block by block, at the documented counters."""
    step, parameter, shard, chunk = 70_000, 300, 2, 5
    head = step.to_bytes(4, "big") + parameter.to_bytes(3, "big") + shard.to_bytes(3, "big")
    head += chunk.to_bytes(4, "big")
    blocks = b"".join(head + i.to_bytes(2, "big") for i in range(3))
    key = bytes(range(16))
    drawn = Cipher(algorithms.AES128(key), modes.ECB()).encryptor().update(blocks)
    words = np.frombuffer(drawn, dtype="<u8").reshape(-1, 2)
    out = torch.empty(5, dtype=torch.float64)
    SecureNormals(KEY).fill(out, step, parameter, shard, chunk)
    expected = [float(value) for pair in words for value in exact(*pair)[1]]
    assert out.tolist() == pytest.approx(expected[:5], rel=0.0, abs=1e-14)


def test_bits_are_the_same_everywhere():
    """Known answers: only operations with unique IEEE 754 rounding were used."""
    out = torch.empty(4, dtype=torch.float64)
    SecureNormals(KEY).fill(out, 1, 2, 3, 4)
    assert [x.hex() for x in out.tolist()] == KNOWN


KNOWN = ["0x1.2b029dc26abbap-3", "0x1.0ca3974bde9a9p-4", "0x1.256d78a1516a2p+0", "-0x1.b2dac98e70b1ap-2"]


@pytest.mark.parametrize("size", [1, 2, 5, 2**14, 2**14 + 1, 2**15 - 1])
def test_a_value_does_not_depend_on_the_number_of_values(size):
    whole, part = torch.empty(2**15, dtype=torch.float64), torch.empty(size, dtype=torch.float64)
    source = SecureNormals(KEY)
    source.fill(whole, 3, 1, 0, 2)
    source.fill(part, 3, 1, 0, 2)
    assert torch.equal(whole[:size], part)
    assert len(torch.unique(whole)) == 2**15


@given(
    st.integers(0, 2**32 - 1), st.integers(0, 2**24 - 1), st.integers(0, 2**24 - 1), st.integers(0, 2**32 - 1)
)
def test_a_counter_names_its_chunk(step, parameter, shard, chunk):
    number = int.from_bytes(SecureNormals(KEY).counter(step, parameter, shard, chunk), "big")
    assert number == ((((step << 24 | parameter) << 24 | shard) << 32) | chunk) << 16
    assert SecureNormals.chunk // 2 <= 2**16


@pytest.mark.parametrize("index", [(2**32, 0, 0, 0), (0, 2**24, 0, 0), (0, 0, 2**24, 0), (0, 0, 0, 2**32)])
def test_counters_that_do_not_fit_are_refused(index):
    with pytest.raises(dm.InvalidParameterError, match="step, parameter, shard, chunk"):
        SecureNormals(KEY).fill(torch.empty(3), *index)


def test_the_numbers_of_the_fingerprint_are_never_noise():
    source = SecureNormals(KEY)
    assert source.fingerprint() == SecureNormals(KEY).fingerprint() != SecureNormals((1, 2)).fingerprint()
    assert source.fingerprint() != HostNormals(KEY).fingerprint()
    with pytest.raises(dm.InvalidParameterError, match="parameter must be below"):
        source.fill(torch.empty(3), 0, 2**24 - 1, 0, 0)


def test_other_devices_get_the_same_numbers():
    class Elsewhere:
        device, shape, dtype = torch.device("meta"), torch.Size([5]), torch.float64

        def copy_(self, host):
            self.values = host

    there, here = Elsewhere(), torch.empty(5, dtype=torch.float64)
    SecureNormals(KEY).fill(there, 1, 2, 3, 4)
    SecureNormals(KEY).fill(here, 1, 2, 3, 4)
    assert torch.equal(there.values, here)


# ---- streams

CASES = [
    (dm.LambdaCGD(6, 0.9), NoiseMode.REGENERATE),
    (dm.LambdaCGD(6, 0.9), NoiseMode.BUFFER),
    (dm.SquareRoot(6, 3), NoiseMode.RECURSION),
    (dm.SquareRoot(6), None),
]
every_case = pytest.mark.parametrize(("strategy", "mode"), CASES)


SOURCES = {"aes-128-ctr, ziggurat": ZigguratNormals, "aes-128-ctr": SecureNormals}
every_source = pytest.mark.parametrize("source", SOURCES)


def stream_of(strategy, mode=None, generator="secure", dtype=torch.float32, source="aes-128-ctr, ziggurat"):
    """A stream; with `source` "aes-128-ctr" of the numbers under a lattice."""
    cal = dm.calibrate_sigma(strategy, 8.0, 1e-5)
    stream = NoiseStream(cal, [torch.zeros(3, 2), torch.zeros(5, dtype=dtype)], 0.5, generator, mode=mode)
    if source != "aes-128-ctr, ziggurat":
        stream._use(source)
        stream._set_sources(stream._key)
    return stream


def drawn(stream):
    return [torch.cat([part.flatten() for part in stream.step()]) for _ in range(stream.steps_left)]


@every_source
@every_case
def test_rows_are_those_of_the_noising_matrix(strategy, mode, source):
    stream = stream_of(strategy, mode, source=source)
    source = SOURCES[source](stream._key)
    Z = torch.empty(strategy.n, 11, dtype=torch.float64)
    for step in range(strategy.n):
        source.fill(Z[step, :6], step, 0, 0, 0)
        source.fill(Z[step, 6:], step, 1, 0, 0)
    expected = stream._claim.sigma * 0.5 * np.linalg.solve(strategy.to_dense(), Z.numpy())
    np.testing.assert_allclose(torch.stack(drawn(stream)), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("generator", ["secure", None])
@every_case
def test_a_stream_resumes_bit_for_bit(strategy, mode, generator):
    first = stream_of(strategy, mode)
    for _ in range(3):
        first.step()
    state, rest = first.state_dict(), drawn(first)
    first.close()
    again = stream_of(strategy, mode, generator)
    again.load_state_dict(state)
    assert (again.generator, again.seeded) == ("aes-128-ctr, ziggurat", False)
    assert state["generator"] == "aes-128-ctr, ziggurat"
    assert again.fingerprint() == first.fingerprint()
    assert all(torch.equal(a, b) for a, b in zip(rest, drawn(again), strict=True))


def test_two_streams_have_two_keys():
    one, other = stream_of(dm.Identity(3)), stream_of(dm.Identity(3))
    assert one._key != other._key
    assert not torch.equal(one.step()[0], other.step()[0])
    assert max(word for _ in range(50) for word in secure_key()) > 2**60


def test_two_live_streams_of_one_key_are_refused():
    one, other = stream_of(dm.Identity(3)), stream_of(dm.Identity(3))
    with pytest.raises(dm.UnsupportedCombinationError, match="the same noise"):
        other.load_state_dict(one.state_dict())


def test_states_of_another_generator_are_refused():
    secure, philox = stream_of(dm.Identity(3)), stream_of(dm.Identity(3), generator=1)
    assert philox.generator == "philox"
    assert philox.state_dict()["generator"] == "philox"
    lattice, named = (stream_of(dm.Identity(3), generator=name) for name in ("secure-lattice", "philox"))
    assert (named.generator, named.seeded, named._key != philox._key) == ("philox", False, True)
    pairs = ((secure, philox), (philox, secure), (named, secure), (secure, lattice), (lattice, secure))
    for one, other in pairs:
        row = NoiseStream.state_dict(one)
        with pytest.raises(
            dm.exceptions.CertificateError, match=r"another generator.*here.*without `generator`"
        ):
            one.load_state_dict(other.state_dict())
        assert one.state_dict() == row


@pytest.mark.parametrize("generator", ["philox", "secure", "secure-lattice", 7])
@pytest.mark.parametrize("mode", [None, NoiseMode.BUFFER])
def test_without_a_generator_a_stream_uses_that_of_the_state(generator, mode):
    strategy = dm.Identity(4) if generator == "secure-lattice" else dm.LambdaCGD(4, 0.9)
    first = stream_of(strategy, mode, generator)

    def taken(stream):
        sums = [torch.zeros(3, 2), torch.zeros(5)]
        stream.add_step(sums)
        return torch.cat([part.flatten() for part in sums])

    taken(first)
    state = first.state_dict()
    expected = [taken(first) for _ in range(3)]
    first.close()
    again = stream_of(strategy, mode, None)
    assert again.generator == "aes-128-ctr, ziggurat"
    again.load_state_dict(state)
    assert (again.generator, again.seeded) == (first.generator, generator == 7)
    assert all(torch.equal(taken(again), row) for row in expected)


def test_numbers_of_cpus_and_cuda_are_those_of_a_cipher():
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert source_of(None, [cpu, cpu])[0] == source_of("secure", [cpu])[0] == "aes-128-ctr, ziggurat"
    assert source_of(None, [cpu, cuda])[0] == source_of("secure", [cuda])[0] == "chacha20, pairs"
    assert source_of("secure-lattice", [cpu])[0] == "aes-128-ctr, lattice"
    assert source_of("secure-lattice", [cuda, cpu])[0] == "chacha20, lattice"
    assert [source_of(name, [cpu])[0] for name in ("philox", 7)] == ["philox"] * 2
    assert [source_of(name, [cuda])[0] for name in ("philox", 7)] == ["chacha20, pairs", "chacha20, seeded"]


def test_other_accelerators_would_wait_for_a_cipher_on_the_cpu():
    mps = torch.device("mps")
    assert source_of(None, [mps])[0] == "philox"
    assert source_of("secure", [mps, torch.device("cpu")])[0] == "aes-128-ctr, ziggurat"


def test_states_of_a_cipher_can_be_loaded_wherever_they_were_saved():
    for device in (torch.device("cpu"), torch.device("cuda", 0)):
        assert source_of("secure", [device])[1] == {"aes-128-ctr, ziggurat", "chacha20, pairs"}
        assert source_of("secure-lattice", [device])[1] == {"aes-128-ctr, lattice", "chacha20, lattice"}
        assert source_of("philox", [device])[1] == {"philox", "chacha20, pairs"}
        assert source_of(3, [device])[1] == {"philox", "chacha20, seeded"}
        assert len(source_of(None, [device])[1]) == 6


def test_unknown_generators_are_refused():
    cpu = torch.device("cpu")
    with pytest.raises(dm.InvalidParameterError, match='generator must be None, "secure"'):
        source_of("secret", [cpu])


class World:
    """torch.distributed as rank 1 of two, if the first has the key (3, 4) and says the same."""

    def is_available(self):
        return True

    is_initialized = is_available

    def get_world_size(self, group):
        return 2

    def get_backend(self, group):
        return "gloo"

    def get_rank(self, group):
        return 1

    def all_gather_object(self, found, mine, group):
        found[:] = [(mine[0], (3, 4)) if isinstance(mine[1], tuple) else mine, mine]


def test_processes_share_the_key_of_the_first(monkeypatch):
    monkeypatch.setattr(processes, "dist", World())
    stream = stream_of(dm.Identity(2))
    expected = torch.empty(6, dtype=torch.float64)
    ZigguratNormals((3, 4)).fill(expected, 0, 0, 0, 0)
    row = stream.step()[0].flatten()
    np.testing.assert_allclose(row, stream._claim.sigma * 0.5 * expected, rtol=1e-8)


def test_processes_with_two_generators_disagree():
    secure, philox = stream_of(dm.Identity(2)), stream_of(dm.Identity(2), generator=1)
    described = [stream._describe(local=False) for stream in (secure, philox)]
    assert described[0] == described[1] | {"generator": "aes-128-ctr, ziggurat"}


def test_it_needs_cryptography_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(dm.exceptions.MissingDependencyError, match="cryptography"):
        stream_of(dm.Identity(3))


def test_threads_give_the_same_numbers(monkeypatch):
    from dpmech.optim.noise import noise_rows as chunks

    cal = dm.calibrate_sigma(dm.Identity(1), 8.0, 1e-5)
    one = NoiseStream(cal, [torch.zeros(3 * 2**16 + 7)], generator="secure")
    state, alone = one.state_dict(), one.step()[0]
    one.close()
    monkeypatch.setattr(chunks, "_THREADED", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    other = NoiseStream(cal, [torch.zeros(3 * 2**16 + 7)], generator="secure")
    other.load_state_dict(state)
    assert torch.equal(other.step()[0], alone)


def test_a_killed_process_is_continued(tmp_path):
    """A process uses rows and saves its state after each, until SIGKILL; another one repeats and ends it."""
    first = stream_of(dm.LambdaCGD(6, 0.9))
    start = first.state_dict()
    whole = drawn(first)
    first.close()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests may still run
        child = os.fork()
    if child == 0:
        try:
            stream = stream_of(dm.LambdaCGD(6, 0.9))
            stream.load_state_dict(start)
            while True:
                row = torch.cat([part.flatten() for part in stream.step()])
                torch.save((row, stream.state_dict()), tmp_path / f"{stream.steps_taken}.pt")
                os.write(writing, b".")
                if stream.steps_taken == 4:
                    signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    told = 0
    while told < 4 and (data := os.read(reading, 1)):
        told += len(data)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    os.close(reading)
    rows = [torch.load(tmp_path / f"{number}.pt", weights_only=True)[0] for number in range(1, 5)]
    resumed = stream_of(dm.LambdaCGD(6, 0.9))
    resumed.load_state_dict(torch.load(tmp_path / "2.pt", weights_only=True)[1])
    again = drawn(resumed)  # rows 2 and 3 a second time
    assert all(torch.equal(a, b) for a, b in zip([*rows[:2], *again], whole, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(rows, whole[:4], strict=True))
