"""Batches from AES in counter mode: the words of the standard, states, and what is refused."""

import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import dpmech as dm
from dpmech.drawing.random_words import Use, words
from dpmech.drawing.secure_words import SecureKey, SecureWords
from dpmech.samplers import sampler_for
from dpmech.schemes.fixed_order.sampler import SequentialSampler
from dpmech.schemes.poisson.sampler import PoissonSampler

PARTICIPATIONS = [
    dm.Poisson(0.2),
    dm.CyclicPoisson(0.4, 2),
    dm.BallsInBins(5),
    dm.BallsInBins(5, fresh=True),
]


def test_words_are_ciphertexts_of_counters():
    key = 0x000102030405060708090A0B0C0D0E0F
    blocks = b"".join(
        (3).to_bytes(2, "big") + (70).to_bytes(6, "big") + i.to_bytes(8, "big") for i in range(3)
    )
    cipher = Cipher(algorithms.AES128(key.to_bytes(16, "big")), modes.ECB()).encryptor()
    expected = np.frombuffer(cipher.update(blocks), dtype="<u8")
    stream = words(SecureKey(key), Use.ORDER, 70)
    assert isinstance(stream, SecureWords)
    assert [*stream.random_raw(1), *stream.random_raw(3), *stream.random_raw(2)] == list(expected)
    assert isinstance(words(key, Use.ORDER, 70), np.random.Philox)


def test_the_cipher_is_that_of_the_standard():
    """FIPS 197, appendix C.1: the counter is the plaintext there."""
    key, plain = 0x000102030405060708090A0B0C0D0E0F, bytes.fromhex("00112233445566778899aabbccddeeff")
    cipher = Cipher(algorithms.AES128(key.to_bytes(16, "big")), modes.CTR(plain)).encryptor()
    assert cipher.update(bytes(16)).hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=repr)
def test_a_run_is_resumed_with_the_same_batches(participation):
    first = sampler_for(participation, 200, n=10, rng="secure")
    assert (first.generator, first.seeded) == ("aes-128-ctr", False)
    batches = [batch.tolist() for batch in first]
    again = sampler_for(participation, 200, n=10, rng="secure")
    assert [batch.tolist() for batch in again] != batches
    other = sampler_for(participation, 200, n=10, rng="secure")
    state = first.state_dict() | {"steps_taken": 4}
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == batches[4:]
    assert other.fingerprint() == first.fingerprint()


@pytest.mark.parametrize(
    ("rng", "generator", "seeded"),
    [
        (None, "aes-128-ctr", False),
        ("secure", "aes-128-ctr", False),
        ("philox", "philox", False),
        (3, "philox", True),
        (np.random.default_rng(3), "philox", True),
    ],
)
def test_batches_are_from_a_cipher_unless_something_else_is_asked_for(rng, generator, seeded):
    sampler = PoissonSampler(50, 0.1, 4, rng=rng)
    assert (sampler.generator, sampler.seeded) == (generator, seeded)
    assert sampler.state_dict().get("generator", "philox") == generator


def test_batches_that_nothing_is_drawn_for_need_no_cipher(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    sampler = sampler_for(dm.MinSep(5), 50, n=10)
    assert (sampler.generator, sampler.seeded) == ("philox", False)
    with pytest.raises(dm.exceptions.MissingDependencyError):
        SequentialSampler(50, dm.EveryStep(), 10, batch_size=5, reshuffle=True)


# Of a version that had Philox alone, and the batches that it drew.
OLD = {
    "type": "PoissonSampler",
    "format": 1,
    "configuration": {"dataset_size": 12, "n": 5, "participation": dm.Poisson(0.3).to_dict()},
    "key": "0123456789abcdeffedcba9876543210",
    "seeded": False,
    "steps_taken": 2,
}
BATCHES = [[2, 3, 4, 5, 9], [0, 1, 3, 9], [2, 4, 6, 7, 8, 9, 10, 11]]


def test_a_name_that_is_none_is_answered_with_those_that_are():
    with pytest.raises(dm.InvalidParameterError, match='"secure", "philox"'):
        PoissonSampler(5, 0.1, 5, rng="Secure")


@pytest.mark.parametrize("rng", [None, "philox", 3])
def test_a_run_that_was_begun_with_philox_goes_on_with_it(rng):
    sampler = PoissonSampler(12, 0.3, 5, rng=rng)
    sampler.load_state_dict(OLD)
    assert (sampler.generator, sampler.seeded, sampler.state_dict()) == ("philox", False, OLD)
    assert [batch.tolist() for batch in sampler] == BATCHES


@pytest.mark.parametrize("rng", [None, "secure", "philox", 3])
def test_a_run_that_was_begun_with_a_cipher_goes_on_with_it(rng):
    first = PoissonSampler(50, 0.1, 4)
    sampler = PoissonSampler(50, 0.1, 4, rng=rng)
    sampler.load_state_dict(first.state_dict())
    assert (sampler.generator, sampler.seeded) == ("aes-128-ctr", False)
    assert [batch.tolist() for batch in sampler] == [batch.tolist() for batch in first]
    assert sampler.fingerprint() == first.fingerprint()


def test_who_asks_for_a_cipher_by_name_gets_no_state_of_philox():
    with pytest.raises(
        dm.exceptions.CertificateError, match=r"another generator.*'philox', here 'aes-128-ctr'"
    ):
        PoissonSampler(12, 0.3, 5, rng="secure").load_state_dict(OLD)


@pytest.mark.parametrize("rng", [None, "secure", "philox"])
def test_generators_that_are_not_known_are_refused(rng):
    sampler = PoissonSampler(12, 0.3, 5, rng=rng)
    before = sampler.state_dict()
    with pytest.raises(dm.exceptions.CertificateError, match="another generator"):
        sampler.load_state_dict(OLD | {"generator": "des"})
    assert sampler.state_dict() == before


def test_the_same_key_has_another_fingerprint():
    secure = PoissonSampler(50, 0.1, 4)
    philox = PoissonSampler(50, 0.1, 4, rng="philox")
    philox.load_state_dict(philox.state_dict() | {"key": secure.state_dict()["key"]})
    assert secure.fingerprint() != philox.fingerprint()


def test_it_needs_cryptography_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(dm.exceptions.MissingDependencyError, match="cryptography"):
        PoissonSampler(50, 0.1, 4)
    with pytest.raises(dm.exceptions.MissingDependencyError, match="cryptography"):
        PoissonSampler(50, 0.1, 4, rng="secure")
    assert PoissonSampler(50, 0.1, 4, rng="philox").generator == "philox"
    with pytest.raises(dm.InvalidParameterError):
        PoissonSampler(50, 0.1, 4, rng="secret")


def test_coins_have_their_law():
    """Of 400,000 coins; the mean is off by more than six standard deviations with probability 2e-9."""
    batches = [batch.size for batch in PoissonSampler(20_000, 0.03, 20, rng="secure")]
    assert abs(sum(batches) - 12_000) < 6.0 * (400_000 * 0.03 * 0.97) ** 0.5


@pytest.mark.parametrize("rng", [3.5, True, -1, "sha", [1]])
def test_whatever_is_no_source_of_randomness_is_told_all_that_are(rng):
    with pytest.raises(dm.InvalidParameterError, match='rng must be None, "secure", "philox", a numpy'):
        PoissonSampler(100, 0.1, 4, rng=rng)
