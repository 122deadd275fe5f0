"""Words, coins and groups against Philox in plain integers and exact fractions."""

from fractions import Fraction

import numpy as np
import pytest

from dpmech.drawing.random_words import Use, coins, fresh_key, groups, order, words
from dpmech.drawing.secure_words import SecureKey
from dpmech.schemes.balls_in_bins.sampler import BallsInBinsSampler
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler
from dpmech.schemes.poisson.sampler import PoissonSampler

WORD = 1 << 64
KEY = 0x0123456789ABCDEF_FEDCBA9876543210


def philox(key, use, position, count):
    """Philox 4x64 with ten rounds (Salmon et al. 2011); the counter is raised before its first use."""
    found, low = [], 0
    while len(found) < count:
        low += 1
        c = [low, 0, position, int(use)]
        k = [key % WORD, key // WORD]
        for _ in range(10):
            first, second = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [
                second // WORD ^ c[1] ^ k[0],
                second % WORD,
                first // WORD ^ c[3] ^ k[1],
                first % WORD,
            ]
            k = [(k[0] + 0x9E3779B97F4A7C15) % WORD, (k[1] + 0xBB67AE8584CAA73B) % WORD]
        found += c
    return found[:count]


def heads(key, step, prob, count):
    """Coins with probability `prob`, a Fraction: 80 bits each, of which 64 are drawn where they matter."""
    raw = philox(key, Use.COINS, step, -(-count // 4))
    begun = [word >> shift & 0xFFFF for word in raw for shift in (0, 16, 32, 48)][:count]
    threshold = prob * 2**80
    open_ = [i for i in range(count) if begun[i] * 2**64 < threshold < (begun[i] + 1) * 2**64]
    rest = dict(zip(open_, philox(key, Use.TIES, step, len(open_)), strict=True))
    return [i for i in range(count) if begun[i] * 2**64 + rest.get(i, 0) < threshold]


@pytest.mark.parametrize(("use", "position"), [(Use.GROUPS, 0), (Use.COINS, 5), (Use.ORDER, 2**31 - 2)])
def test_words_are_those_of_philox(use, position):
    assert words(KEY, use, position).random_raw(9).tolist() == philox(KEY, use, position, 9)


def test_words_of_two_uses_or_positions_differ():
    places = [(use, position) for use in Use for position in range(20)]
    firsts = {tuple(words(KEY, *place).random_raw(4).tolist()) for place in places}
    assert len(firsts) == len(places)


# 0.30078125 = 77 / 256 has ties that the second part always refuses.
@pytest.mark.parametrize("prob", [1e-30, 2.0**-40, 1e-4, 1 / 3, 77 / 256, 0.3 + 2.0**-53, 1 - 2.0**-53, 1.0])
def test_coins_are_80_bits_against_the_probability(prob):
    count = 20_003
    found = coins(KEY, 3, prob, count)
    assert found.tolist() == heads(KEY, 3, Fraction(prob), count)
    assert found.dtype == np.int64


def test_the_second_part_of_a_coin_decides():
    """Few coins tie, so one is chosen: two probabilities that share 16 bits and lie around its 80."""
    count = 20_003
    tie = philox(KEY, Use.COINS, 0, 1)[0] & 0xFFFF  # that of coin 0
    second = philox(KEY, Use.TIES, 0, 1)[0]
    below, above = (Fraction(tie * WORD + at, 2**80) for at in (second - 2**30, second + 2**30))
    for prob in (below, above):
        assert Fraction(float(prob)) * 2**80 // WORD == tie
        assert coins(KEY, 0, float(prob), count).tolist() == heads(KEY, 0, Fraction(float(prob)), count)
    assert 0 not in coins(KEY, 0, float(below), count)
    assert 0 in coins(KEY, 0, float(above), count)


@pytest.mark.parametrize("count", [1, 2, 3, 390, 2**31 - 1])
def test_groups_are_words_modulo_the_count(count):
    expected = [word % count for word in philox(KEY, Use.GROUPS, 0, 2001)]
    assert groups(KEY, count, 2001).tolist() == expected


def test_words_past_the_last_multiple_are_drawn_again():
    count = 2**62 + 1  # one word in four is too large
    raw = philox(KEY, Use.GROUPS, 0, 600)
    part, later = raw[:200], iter(raw[200:])
    late = [i for i in range(200) if part[i] >= 3 * count]
    assert 20 < len(late) < 80
    while late:
        for i in late:
            part[i] = next(later)
        late = [i for i in late if part[i] >= 3 * count]
    assert groups(KEY, count, 200).tolist() == [word % count for word in part]


def test_groups_of_a_long_dataset_are_drawn_piece_by_piece():
    size = 2**20 + 5
    assert np.array_equal(groups(KEY, 8, size), words(KEY, Use.GROUPS, 0).random_raw(size) % 8)


def test_orders_sort_words():
    raw = philox(KEY, Use.ORDER, 4, 500)
    assert order(KEY, 4, 500).tolist() == sorted(range(500), key=raw.__getitem__)


def test_keys_have_128_bits():
    for rng, kind in ((None, SecureKey), ("secure", SecureKey), ("philox", int)):
        keys = [fresh_key(rng) for _ in range(50)]
        assert len(set(keys)) == 50
        assert max(keys) > 2**120
        assert {type(key) for key in keys} == {kind}
    high, low = np.random.default_rng(5).integers(0, WORD, size=2, dtype=np.uint64).tolist()
    assert fresh_key(5) == high * WORD + low
    assert type(fresh_key(5)) is int


def test_batches_follow_from_the_key_alone():
    def with_key(sampler):
        sampler.load_state_dict(sampler.state_dict() | {"key": f"{KEY:032x}"})
        return sampler

    poisson = with_key(PoissonSampler(503, 0.3, 9, rng="philox"))
    assert poisson.indices(8).tolist() == heads(KEY, 8, Fraction(0.3), 503)
    bins = [word % 7 for word in philox(KEY, Use.GROUPS, 0, 503)]
    allocated = with_key(BallsInBinsSampler(503, 7, 21, rng="philox"))
    cyclic = with_key(CyclicPoissonSampler(503, 0.3, 7, 21, rng="philox"))
    for step in range(21):
        members = [i for i in range(503) if bins[i] == step % 7]
        assert allocated.indices(step).tolist() == members
        joined = heads(KEY, step, Fraction(0.3), len(members))
        assert cyclic.indices(step).tolist() == [members[i] for i in joined]


def test_many_bins_are_sorted_like_few():
    count = 2**16 + 1
    sampler = BallsInBinsSampler(3 * count, count, count)
    seen = np.concatenate(list(sampler))
    assert np.array_equal(np.sort(seen), np.arange(3 * count))
    assert all(np.all(np.diff(sampler.indices(step)) > 0) for step in range(500))
