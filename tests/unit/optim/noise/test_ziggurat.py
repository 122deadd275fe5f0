"""Normal numbers of the ziggurat: its layers, the number of a word, and the distribution."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import dpmech as dm
from dpmech.optim.noise import secure_normals
from dpmech.optim.noise import secure_normals as ziggurat
from dpmech.optim.noise.normals import Place
from dpmech.optim.noise.secure_normals import LAYERS, ZigguratNormals, edges, fill_by_ziggurat

KEY = (0x0001020304050607, 0x08090A0B0C0D0E0F)
FALSE_POSITIVE = 1e-9


def drawn(count, key=KEY, dtype=torch.float64):
    source = ZigguratNormals(key)
    out = torch.empty(count, dtype=dtype)
    for number, start in enumerate(range(0, count, source.chunk)):
        source.fill(out[start : start + source.chunk], 0, 0, 0, number)
    return out.numpy()


def words_of(*streams):
    """Returns the words of given lists, and keeps the remaining ones."""

    def hand(rest):
        def take(wanted):
            """The next words; `wanted` is their number, or the chunk of each."""
            found = [rest.pop(0) for _ in range(np.size(wanted) if np.ndim(wanted) else wanted)]
            return np.array(found, dtype=np.uint64)

        return take

    return [hand(list(stream)) for stream in streams]


def word(layer, number):
    """The word that chooses a layer and reads as `number` in [-2^52, 2^52)."""
    return ((number << 11) | layer) % 2**64


# ---- the layers


def test_layers_have_one_area_and_hold_the_density():
    """With 60 digits: each has the area of the tail and the rectangle below it; the last one ends at 0."""
    x, f = edges()
    assert len(x) == len(f) == LAYERS + 1
    with mp.workdps(60):
        begin = mp.mpf(x[1])
        area = begin * mp.exp(-(begin**2) / 2) + mp.sqrt(mp.pi / 2) * mp.erfc(begin / mp.sqrt(2))
        assert abs(mp.mpf(x[0]) * mp.exp(-(begin**2) / 2) / area - 1) < mp.mpf(2) ** -50
        for i in range(1, LAYERS):
            assert abs(mp.mpf(f[i]) / mp.exp(-(mp.mpf(x[i]) ** 2) / 2) - 1) < mp.mpf(2) ** -48
            assert abs(mp.mpf(x[i]) * (mp.mpf(f[i + 1]) - mp.mpf(f[i])) / area - 1) < mp.mpf(2) ** -43
    assert (x[LAYERS], f[0], f[LAYERS]) == (0.0, 0.0, 1.0)
    assert np.all(np.diff(x) < 0)


# ---- one number


@pytest.mark.parametrize("layer", [0, 1, 100, 255])
def test_a_word_is_a_place_in_a_layer(layer):
    x, _ = edges()
    inside = int(2**52 * x[layer + 1] / x[layer]) // 2
    out = np.empty(2)
    if layer == LAYERS - 1:  # its top has zero width: no number is accepted at once
        _, _, outside = ziggurat._candidates(np.array([word(layer, 5)], dtype=np.uint64))
        assert outside[0]
        return
    fill_by_ziggurat(*words_of([word(layer, inside), word(layer, -inside - 1)], []), out)
    assert out[0] == -out[1] == pytest.approx((inside + 0.5) * 2.0**-52 * x[layer], rel=2.0**-52)


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("layer", [1, 77, 255])
def test_a_place_beyond_the_next_layer_is_taken_below_the_density_alone(layer, above):
    x, f = edges()
    number = int(2**52 * (0.4 * x[layer] + 0.6 * x[layer + 1]) / x[layer])
    place = (number + 0.5) * 2.0**-52 * x[layer]
    share = (math.exp(-0.5 * place * place) - f[layer]) / (f[layer + 1] - f[layer])
    assert 0.05 < share < 0.95
    height = int((share + (1e-9 if above else -1e-9)) * 2**53) << 11
    anew = word(3, 12345)
    out = np.empty(1)
    fill_by_ziggurat(*words_of([word(layer, number)], [height, anew] if above else [height]), out)
    expected = (12345 + 0.5) * 2.0**-52 * x[3] if above else place
    assert out[0] == pytest.approx(expected, rel=2.0**-50)


def test_the_tail_repeats_until_a_pair_is_accepted():
    x, _ = edges()
    number = -int(2**52 * x[1] / x[0]) - 10**12
    assert number >= -(2**52)

    def logs(u):
        return -math.log(u)

    refused = (2**62, 2**64 - 2**40)  # far out, with almost zero height
    first, second = 2**60, 2**55
    out = np.empty(1)
    fill_by_ziggurat(*words_of([word(0, number)], [*refused, first, second]), out)
    beyond = logs((first + 0.5) / 2**64) / x[1]
    assert 2 * logs((second + 0.5) / 2**64) > beyond**2
    assert 2 * logs((refused[1] + 0.5) / 2**64) < (logs((refused[0] + 0.5) / 2**64) / x[1]) ** 2
    assert out[0] == pytest.approx(-(x[1] + beyond), rel=1e-14)


def test_the_tail_extends_beyond_15_deviations():
    """u down to 2^-65, so that the largest number is beyond 15 deviations."""
    x, _ = edges()
    number = int(2**52 * x[1] / x[0]) + 10**12
    out = np.empty(1)
    fill_by_ziggurat(*words_of([word(0, number)], [2**20, 0]), out)
    assert out[0] == pytest.approx(x[1] + 44 * math.log(2.0) / x[1], rel=1e-6)
    assert out[0] > 11.9


# ---- the stream of numbers


def test_numbers_come_from_the_blocks_of_the_cipher():
    step, parameter, shard, chunk = 70_000, 300, 2, 5
    head = step.to_bytes(4, "big") + parameter.to_bytes(3, "big") + shard.to_bytes(3, "big")
    head += chunk.to_bytes(4, "big")

    def blocks(first, count):
        plain = b"".join(head + (first + i).to_bytes(2, "big") for i in range(count))
        cipher = Cipher(algorithms.AES128(bytes(range(16))), modes.ECB()).encryptor()
        return [int(word) for word in np.frombuffer(cipher.update(plain), dtype="<u8")]

    out, expected = torch.empty(999, dtype=torch.float64), np.empty(999)
    ZigguratNormals(KEY).fill(out, step, parameter, shard, chunk)
    fill_by_ziggurat(*words_of(blocks(0, 500), blocks(2**15, 500)), expected)
    assert np.array_equal(out.numpy(), expected)


def test_bits_are_the_same_everywhere():
    """Known answers: one from a layer, one that took more words, one from the tail."""
    values = drawn(2**16)
    assert list(KNOWN)[2] == int(np.argmax(np.abs(values)))
    assert {place: values[place].hex() for place in KNOWN} == KNOWN


KNOWN = {0: "-0x1.07ffa41c37782p+0", 48: "0x1.de2a174fe4d84p-3", 28532: "-0x1.5111e06882164p+2"}


def test_library_exponentials_have_no_effect(monkeypatch):
    """The same numbers if every height is compared without it, and if its last bits are wrong."""
    values = drawn(2**17)
    monkeypatch.setattr(ziggurat, "_NEAR", 2.0)
    assert np.array_equal(drawn(2**17), values)
    monkeypatch.undo()
    own = np.exp
    monkeypatch.setattr(np, "exp", lambda x: own(x) * (1.0 + 2.0**-45))
    assert np.array_equal(drawn(2**17), values)


def test_float32_is_float64_rounded():
    assert np.array_equal(drawn(70_000, dtype=torch.float32), drawn(70_000).astype(np.float32))


def test_ranges_of_chunks_do_not_meet():
    assert ZigguratNormals.chunk // 2 <= secure_normals._AGAIN
    assert 2 * secure_normals._AGAIN <= 2**16
    for others in (0, 2):
        again = secure_normals._Again(bytes(16), [bytes(16)] * (1 + others))
        again(np.zeros(2 * secure_normals._AGAIN, dtype=np.intp))
        with pytest.raises(dm.NumericalError, match="more words than are reserved"):
            again(np.zeros(1, dtype=np.intp))


def test_words_of_several_chunks_are_those_of_each():
    """By AES of single blocks: each chunk takes its own words in order, whatever others take in between."""
    starts = [bytes([chunk] * 14 + [0, 0]) for chunk in range(3)]
    again = secure_normals._Again(bytes(range(16)), starts)
    cipher = Cipher(algorithms.AES128(bytes(range(16))), modes.ECB()).encryptor()
    taken = [0, 0, 0]
    for wanted in ([0, 2, 0, 2, 2], [1], [2, 1, 0, 0, 2, 1], []):
        expected = []
        for chunk in wanted:
            block = starts[chunk][:14] + (2**15 + taken[chunk] // 2).to_bytes(2, "big")
            expected.append(int(np.frombuffer(cipher.update(block), dtype="<u8")[taken[chunk] % 2]))
            taken[chunk] += 1
        assert again(np.array(wanted, dtype=np.intp)).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_chunks_drawn_together_are_those_drawn_alone(dtype):
    sizes = [1, 999, 2**16, 64, 7, 30_000]
    places = [Place(3 + i, i % 2, i, size) for i, size in enumerate(sizes)]
    together = torch.empty(sum(sizes), dtype=dtype)
    source = ZigguratNormals(KEY)
    source.fill_all(together, 12, places)
    for part, place in zip(together.split(sizes), places, strict=True):
        alone = torch.empty(place.size, dtype=dtype)
        source.fill(alone, 12, *place[:3])
        assert torch.equal(part, alone)


# ---- the distribution


def misfit(values):
    """p-value of the normal distribution: counts in 400 equal cells and in the tails; the tails alone."""
    with mp.workdps(30):
        cells = [float(mp.sqrt(2) * mp.erfinv(2 * mp.mpf(i) / 400 - 1)) for i in range(1, 400)]
    far = [3.5, 3.6541528853610088, 3.8, 4.0, 4.3]
    ends = np.array([*(-x for x in reversed(far)), *cells, *far])
    ends = np.sort(ends)
    with mp.workdps(30):
        below = np.array([0.0, *(float(mp.ncdf(x)) for x in ends), 1.0])
    found = np.bincount(np.searchsorted(ends, values), minlength=len(ends) + 1)
    expected = np.diff(below) * len(values)
    squares = (found - expected) ** 2 / expected
    tails = np.concatenate([squares[: len(far)], squares[-len(far) :]])

    def above(statistic, freedom):
        return float(mp.gammainc(mp.mpf(freedom) / 2, mp.mpf(float(statistic)) / 2, mp.inf, regularized=True))

    return 2.0 * min(above(squares.sum(), len(ends)), above(tails.sum(), len(tails)))


COUNT = 2_000_000


@pytest.mark.slow
def test_the_law_is_normal():
    assert misfit(drawn(COUNT)) > FALSE_POSITIVE


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no wedge", "no tail", "wrong edge", "shared bits"])
def test_a_planted_fault_is_detected(monkeypatch, fault):
    own = ziggurat._settled
    if fault == "shared bits":  # the layer uses bits that the position has too
        plain = ziggurat._candidates
        monkeypatch.setattr(
            ziggurat, "_candidates", lambda w, *out: plain(w & ~np.uint64(255) | w >> np.uint64(56), *out)
        )
    elif fault == "wrong edge":
        x, f = edges()
        bent = x.copy()
        bent[1:-1] *= 1.02
        monkeypatch.setattr(ziggurat, "edges", lambda: (bent, f))
    else:

        def settled(layers, x, again):
            taken, values = own(layers, x, again)
            tail = layers == 0
            if fault == "no tail":
                return taken | tail, np.where(tail, x, values)
            return taken | ~tail, values

        monkeypatch.setattr(ziggurat, "_settled", settled)
    assert misfit(drawn(COUNT)) < FALSE_POSITIVE
