"""Noisy sums on a lattice: the released values, their distance from exact ones, and refusals."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
from dpmech.optim import AdaptiveClip, NoiseMode, NoiseStream, PrivateOptimizer, make_private
from dpmech.optim.noise.lattice import DRAWN, add_on_lattice, lattice_step
from dpmech.optim.noise.normals import fill_with_pairs
from dpmech.optim.noise.secure_normals import SecureNormals

pytest.importorskip("cryptography")
LATTICE = "secure-lattice"
N = 4
STRATEGIES = [dm.Identity(N), dm.Diagonal([1.0, 0.7, 2.0, 31.0]), dm.BandedToeplitz(N, [1.0])]


def stream_of(strategy, generator=LATTICE, dtype=torch.float32, **options):
    cal = dm.calibrate_sigma(strategy, 8.0, 1e-5)
    return NoiseStream(cal, [torch.zeros(3, 2), torch.zeros(5, dtype=dtype)], 0.5, generator, **options)


def sums_of(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn(3, 2, generator=generator)
    return [one, torch.randn(5, dtype=dtype, generator=generator)]


# ---- the lattice


@pytest.mark.parametrize("stddev", [1.0, 1.0 - 2.0**-53, 2.0 - 2.0**-52, 2.0, 3.7e-5, 2.0**-400, 2.0**400])
def test_a_step_is_a_power_of_two_a_little_below_the_noise(stddev):
    step = lattice_step(stddev)
    assert math.frexp(step)[0] == 0.5
    assert 2.0**-5 < step / stddev <= 2.0**-4


@pytest.mark.parametrize("stddev", [0.0, 2.0**-401, 2.0**401, math.inf, math.nan])
def test_noise_without_a_step_is_refused(stddev):
    with pytest.raises(dm.NumericalError, match="on a lattice"):
        lattice_step(stddev)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_is_rounded_to_the_nearest_multiple(dtype):
    """In rational numbers; also for large sums, relative to which the noise vanishes in float64."""
    rng = np.random.default_rng(2)
    given = np.concatenate([rng.normal(0.0, scale, 50) for scale in (1e-9, 1.0, 1e4, 1e12)])
    total = torch.tensor(given).to(dtype)
    noise = torch.tensor(rng.normal(0.0, 3.0, given.size))
    step, before, drawn = 0.25, total.clone(), noise.clone()
    add_on_lattice(total, noise, step)
    for out, value, number in zip(total.tolist(), before.tolist(), drawn.tolist(), strict=True):
        exact = Fraction(value) + Fraction(number)
        nearest = round(exact / Fraction(step)) * Fraction(step)
        assert out == torch.tensor(float(nearest), dtype=torch.float64).to(dtype).item()


def test_zero_has_one_sign():
    """The sign of zero would reveal on which side of zero the noisy sum was."""
    total, noise = torch.tensor([-0.1, 0.1, -0.0, 0.0, -1.1]), torch.tensor([0.05, -0.2, -0.01, 0.01, 1.0])
    add_on_lattice(total, noise.double(), 1.0)
    assert torch.signbit(total).tolist() == [False] * 4 + [False]
    assert total.tolist() == [0.0] * 5


# ---- one value, from words to the release


def moved_most(total, words, scale, *, coarse=False):
    """The largest |released - (sum + scale Z)| - step / 2, in standard deviations.

    Z is of the u of the pair and of either end of the angle's cell, as the proof has it.
    """
    numbers = np.empty(2 * len(words))
    fill_with_pairs(words, numbers)
    noise = torch.tensor(numbers.astype(np.float32).astype(float) if coarse else numbers) * scale
    out = torch.full((numbers.size,), total, dtype=torch.float64)
    step = lattice_step(scale)
    add_on_lattice(out, noise, step)
    worst = -math.inf
    with mp.workprec(200):
        for (first, second), pair in zip(words.tolist(), out.reshape(-1, 2).tolist(), strict=True):
            u = mp.mpf(first * 2**16 + second % 2**16 + mp.mpf(0.5)) / 2**80
            radius, top = mp.sqrt(-2 * mp.log(u)), (second % 2**63) >> 16
            top -= 2**47 if top >= 2**46 else 0
            sign = -1 if second >> 63 else 1
            for end in (top, top + 1):
                angle = mp.pi * end / 2**47
                exact = (sign * radius * mp.cos(angle), radius * mp.sin(angle))
                for released, number in zip(pair, exact, strict=True):
                    distance = abs(mp.mpf(released) - (mp.mpf(total) + mp.mpf(scale) * number))
                    worst = max(worst, float((distance - mp.mpf(step) / 2) / scale))
    return worst


def words_of(count):
    words = np.random.default_rng(1).integers(0, 2**64, size=(count, 2), dtype=np.uint64)
    words[::4, 0] >>= np.uint64(55)  # the tail
    words[1::4, 0] |= np.uint64(2**64 - 2**12)  # and the middle
    return words


@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("total", [0.0, 12345.6789, -1e9])
def test_releases_are_within_the_proved_distance(count, total):
    assert moved_most(total, words_of(count), 1.2345) <= DRAWN.move


def test_numbers_of_float32_are_farther():
    """For a sum with which the two numbers lie on different sides of the midpoint of two multiples."""
    words = words_of(400)
    numbers = np.empty(2 * len(words))
    fill_with_pairs(words, numbers)
    scale = 1.2345
    first = int(np.abs(numbers - numbers.astype(np.float32))[::2].argmax())
    middle = (numbers[2 * first] + float(np.float32(numbers[2 * first]))) / 2.0
    total, word = lattice_step(scale) / 2.0 - scale * middle, words[first : first + 1]
    assert moved_most(total, word, scale) <= DRAWN.move < 2.0**-30
    assert moved_most(total, word, scale, coarse=True) > 2.0**-30


# ---- streams


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stream_releases_multiples_next_to_sum_and_noise(strategy, dtype):
    stream = stream_of(strategy, dtype=dtype)
    source = SecureNormals(stream._key)
    for step in range(N):
        stddev = 0.5 * stream._claim.sigma / strategy.to_dense()[step, step]
        width = lattice_step(stddev)
        sums, before = sums_of(step, dtype), sums_of(step, dtype)
        stream.add_step(sums)
        for index, (after, given) in enumerate(zip(sums, before, strict=True)):
            row = torch.empty(given.numel(), dtype=torch.float64)
            source.fill(row, step, index, 0, 0)
            off = (after - given).double().flatten() - stddev * row
            assert off.abs().max() <= width * (0.5 + 1e-6)
            assert torch.equal((after / width).round(), after / width)
            assert after.dtype == given.dtype


def test_every_mode_of_independent_noise_is_the_same():
    first = stream_of(dm.Identity(N))
    state = first.state_dict()
    first.add_step(ours := sums_of(1))
    first.close()
    again = stream_of(dm.Identity(N))
    again.load_state_dict(state)
    again.add_step(repeated := sums_of(1))
    assert all(torch.equal(one, other) for one, other in zip(ours, repeated, strict=True))
    assert stream_of(dm.Identity(N), mode=NoiseMode.RECURSION).generator == "aes-128-ctr, lattice"


def test_a_run_resumes_bit_for_bit():
    first = stream_of(dm.Identity(N))
    first.add_step(sums_of(0))
    state = first.state_dict()
    first.add_step(ours := sums_of(1))
    first.close()
    second = stream_of(dm.Identity(N))
    second.load_state_dict(state)
    second.add_step(again := sums_of(1))
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))
    assert (second.seeded, second.steps_taken) == (False, 2)


def test_states_with_and_without_a_lattice_are_told_apart():
    one, other = stream_of(dm.Identity(N)), stream_of(dm.Identity(N), "secure")
    for stream, state in ((one, other.state_dict()), (other, one.state_dict())):
        with pytest.raises(dm.exceptions.CertificateError, match=r"another generator.*lattice"):
            stream.load_state_dict(state)


def test_correlated_noise_is_refused_by_name():
    for strategy in (dm.LambdaCGD(N, 0.9), dm.SquareRoot(N, 2), dm.BLT(N, [0.9], [0.3])):
        with pytest.raises(dm.UnsupportedCombinationError, match=r"secure-lattice.*correlated"):
            stream_of(strategy)


def test_a_row_without_a_sum_is_refused():
    with pytest.raises(dm.UnsupportedCombinationError, match=r"add_step\(sums\)"):
        stream_of(dm.Identity(N)).step()


def test_steps_end_where_the_certificate_does():
    stream = stream_of(dm.Identity(1))
    stream.add_step(sums_of(0))
    with pytest.raises(dm.exceptions.HorizonError):
        stream.add_step(sums_of(0))


def test_another_name_is_no_generator():
    with pytest.raises(dm.InvalidParameterError, match="secure-lattice"):
        stream_of(dm.Identity(N), "lattice")


# ---- training


def test_gradients_are_multiples_over_the_denominator():
    weights = nn.Parameter(torch.zeros(1000))
    cal = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5)
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weights], lr=0.1), cal, expected_batch_size=4, generator=LATTICE
    )
    for _ in range(N):
        weights.grad_sample = torch.randn(3, 1000)
        optimizer.step()
        multiples = weights.grad.double() * 4 / lattice_step(cal.sigma)
        assert torch.equal(multiples, multiples.round())
        assert weights.grad.double().var().item() == pytest.approx(optimizer.phi, rel=0.4)


def test_the_count_of_an_adaptive_clip_is_on_its_lattice():
    weights = nn.Parameter(torch.zeros(10))
    cal = dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5)
    rule = AdaptiveClip(1.0)
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weights], lr=0.1), cal, rule, expected_batch_size=4, generator=LATTICE
    )
    seen = []
    advance = optimizer._norms.advance
    optimizer._norms.advance = lambda sums: (seen.append(float(sums[-1])), advance(sums))
    stddevs = []
    for _ in range(N):
        weights.grad_sample = torch.randn(3, 10)
        stddevs.append(optimizer._stream._lattice._factors)
        optimizer.step()
    for count, factors in zip(seen, stddevs, strict=True):
        assert (count / lattice_step(factors[-1])).is_integer()
    assert len(set(seen)) > 1


def test_a_private_run_names_the_lattice_in_its_record():
    torch.manual_seed(0)
    model = nn.Linear(1, 2)
    claim = dm.calibrate_sigma(dm.Identity(3), 8.0, 1e-5, participation=dm.Poisson(0.25))
    data = TensorDataset(torch.linspace(-1, 1, 40).reshape(-1, 1), torch.arange(40) % 2)
    model, optimizer, loader = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(data),
        claim,
        clip_norm=1.0,
        loss=nn.CrossEntropyLoss(),
        expected_batch_size=10,
        generator=LATTICE,
    )
    for batch in loader:
        model.backward(*batch)
        optimizer.step()
    record = optimizer.run_record()
    assert (record.noise.generator, record.noise.seeded) == ("aes-128-ctr, lattice", False)
    assert dm.verify(record).ok
