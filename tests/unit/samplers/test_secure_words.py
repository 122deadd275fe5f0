"""Lots from AES in counter mode: the words of the standard, states, and what is refused."""

import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import dpmech as dm
from dpmech.samplers import PoissonSampler, sampler_for
from dpmech.samplers.random_words import Use, words
from dpmech.samplers.secure_words import SecureKey, SecureWords

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
def test_a_run_is_resumed_with_the_same_lots(participation):
    first = sampler_for(participation, 200, n=10, rng="secure")
    assert (first.generator, first.seeded) == ("aes-128-ctr", False)
    lots = [lot.tolist() for lot in first]
    again = sampler_for(participation, 200, n=10, rng="secure")
    assert [lot.tolist() for lot in again] != lots
    other = sampler_for(participation, 200, n=10, rng="secure")
    state = first.state_dict() | {"steps_taken": 4}
    other.load_state_dict(state)
    assert [lot.tolist() for lot in other] == lots[4:]
    assert other.fingerprint() == first.fingerprint()


def test_states_of_another_generator_are_refused():
    secure, philox = PoissonSampler(50, 0.1, 4, rng="secure"), PoissonSampler(50, 0.1, 4)
    assert philox.generator == "philox"
    assert "generator" not in philox.state_dict()
    for one, other in ((secure, philox), (philox, secure)):
        with pytest.raises(dm.CertificateError, match="another generator"):
            one.load_state_dict(other.state_dict())


def test_the_same_key_has_another_fingerprint():
    secure, philox = PoissonSampler(50, 0.1, 4, rng="secure"), PoissonSampler(50, 0.1, 4)
    philox.load_state_dict(philox.state_dict() | {"key": secure.state_dict()["key"]})
    assert secure.fingerprint() != philox.fingerprint()


def test_it_needs_cryptography_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(dm.MissingDependencyError, match="cryptography"):
        PoissonSampler(50, 0.1, 4, rng="secure")
    with pytest.raises(dm.InvalidParameterError):
        PoissonSampler(50, 0.1, 4, rng="secret")


def test_coins_have_their_law():
    """Of 400,000 coins; the mean is off by more than six standard deviations with probability 2e-9."""
    lots = [lot.size for lot in PoissonSampler(20_000, 0.03, 20, rng="secure")]
    assert abs(sum(lots) - 12_000) < 6.0 * (400_000 * 0.03 * 0.97) ** 0.5
