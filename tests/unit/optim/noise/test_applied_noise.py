"""The applied noise is the certified one: impulses through the recursion of training give its C^-1."""

import numpy as np
import pytest
import torch
from scipy import linalg, signal

import dpmech as dm
from dpmech.optim import ClippedSum, FlatClipping, NoiseMode, NoiseStream, PrivateOptimizer
from dpmech.optim.clipping.clipped_sum import clip_and_sum
from dpmech.optim.noise import noise_rows
from dpmech.optim.noise.normals import HostNormals
from dpmech.optim.noise.pairs import ChaChaNormals
from dpmech.optim.noise.rows import correlate
from dpmech.optim.noise.secure_normals import SecureNormals
from tests.support.quick_cases import slow_but

CLIP = 0.3
WIDE = np.longdouble
EVERY, ONE = dm.EveryStep(), dm.SingleParticipation()
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
every_device = pytest.mark.parametrize("device", ["cpu", *["cuda"] * torch.cuda.is_available()])


def applied(
    monkeypatch, strategy, mode, *, columns=(0,), steps=None, dtype=torch.float32, device="cpu", plant=None
):
    """Columns of the applied C^-1: rows of noise in units of sigma clip_norm if Z is the identity.

    They are read from `NoiseStream.step`, before any rounding to the dtype of the parameters.
    """

    def impulses(self, out, step, parameter, shard, chunk):
        out.zero_()
        if step in places:
            out[places[step]] = 1.0

    places = {column: place for place, column in enumerate(columns)}
    cal = dm.calibrate_sigma(strategy, 1.0, 1e-5)
    for source in (HostNormals, ChaChaNormals, SecureNormals):
        monkeypatch.setattr(source, "fill", impulses)
    monkeypatch.setattr(noise_rows, "fused_on", lambda device: False)  # a kernel draws its numbers itself
    found = []
    for generator in ("philox", "secure"):  # normal numbers in the dtype of the parameters, and in float64
        params = [torch.zeros(len(columns), dtype=dtype, device=device)]
        stream = NoiseStream(cal, params, CLIP, generator, mode=mode)
        if plant is not None:
            plant(stream)
        count = strategy.n if steps is None else steps
        found.append(np.array([stream.step()[0].cpu().double().numpy() for _ in range(count)]))
    assert np.array_equal(*found)
    return found[0] / (cal.sigma * CLIP)


def series(weights, n):
    """First n coefficients of 1 / (w_0 + w_1 x + ...) in extended precision: C from C^-1."""
    impulse = np.zeros(n, WIDE)
    impulse[0] = 1.0
    return signal.lfilter(np.ones(1, WIDE), np.trim_zeros(weights, "b").astype(WIDE), impulse)


def norm(x):
    """The 2-norm, in extended precision."""
    return float(np.sqrt(np.sum(np.asarray(x, WIDE) ** 2)))


def sensitivity(coefs, participation):
    """For a Toeplitz C >= 0, directly from the definition: all columns at once, or the first one."""
    assert coefs.min() >= -1e-12 * coefs.max()
    return norm(np.cumsum(coefs) if participation == EVERY else coefs)


# ---- four strategies whose noise would belong to another C if weights or states were float32

A = 0.9995514481642552
EXAMPLES = [
    (dm.BandedInverse(20_000, [1.0, -2.0 * A, A * A]), EVERY),  # 1.42 times the certified sensitivity
    (dm.BandedInverse(20_000, [1.0, -2.0 * 0.999, 0.999 * 0.999]), EVERY),  # 1.044 times
    (dm.LambdaCGD(10**6, 1.0 - 16.499 * 2.0**-24), ONE),  # 1.010
    (dm.BLT(10**6, [1.0 - 2.9e-8], [1.0]), ONE),  # 1.0145: its buffer never decayed
]


@pytest.mark.parametrize("dtype", slow_but(DTYPES, 0))
@pytest.mark.parametrize(
    ("strategy", "participation"), EXAMPLES, ids=["double pole", "near it", "lambda", "blt"]
)
def test_the_noise_belongs_to_the_certified_strategy(monkeypatch, strategy, participation, dtype):
    weights = applied(monkeypatch, strategy, None, steps=100, dtype=dtype)[:, 0]
    weights[np.abs(weights) < 1e-200] = 0.0
    assert np.abs(weights[50:]).max() == 0.0  # so that the rest of the column is zero too
    found = sensitivity(series(weights, strategy.n), participation)
    claimed = dm.sensitivity(strategy, participation)
    assert found <= claimed.upper * (1.0 + 1e-12)
    assert found == pytest.approx(claimed.lower, rel=1e-7)


# ---- every strategy, every mode, every dtype

LONG = 120
TOEPLITZ = [
    dm.Identity(LONG),
    dm.LambdaCGD(LONG, 0.999),
    dm.SquareRoot(LONG),
    dm.SquareRoot(LONG, 16),
    dm.InverseSquareRoot(LONG, 16),
    dm.BandedToeplitz(LONG, [2.0, 1.1, 0.3]),
    dm.BandedInverse(LONG, [0.7, -1.31, 0.621]),
    dm.BLT(LONG, [0.999, 0.9, 0.4], [0.2, 0.1, 0.3]),
]
OTHERS = [
    dm.Diagonal(np.linspace(0.3, 2.0, 80)),
    dm.ColumnNormalized(dm.LambdaCGD(80, 0.99)),
    dm.ColumnNormalized(dm.SquareRoot(80, 8)),
    dm.ColumnNormalized(dm.InverseSquareRoot(80, 8)),
    dm.ColumnNormalized(dm.BLT(80, [0.99, 0.5], [0.3, 0.2])),
    dm.Dense(np.tril(1.0 / (1.0 + np.abs(np.subtract.outer(np.arange(80), np.arange(80)))))),
    dm.Dense(np.tril(np.triu(np.full((80, 80), 0.3), -3)) + np.eye(80)),
]


def modes(strategies):
    for strategy in strategies:
        for mode in NoiseMode:
            if mode is not NoiseMode.RECURSION or strategy.bands is not None or "BLT" in repr(strategy):
                yield strategy, mode


def excess(strategy, matrix):
    """How far C M is from I, in the spectral norm, and the sensitivity of M^-1 to all columns."""
    dense = strategy.to_dense()
    inverse = linalg.solve_triangular(matrix, np.eye(strategy.n), lower=True)
    return np.linalg.norm(dense @ matrix - np.eye(strategy.n), 2), np.linalg.norm(
        inverse @ np.ones(strategy.n)
    )


@every_device
@pytest.mark.parametrize("dtype", slow_but(DTYPES, 0))
@pytest.mark.parametrize(("strategy", "mode"), [*modes(TOEPLITZ), *modes(OTHERS)], ids=str)
def test_every_mode_and_dtype_applies_the_inverse_of_c(monkeypatch, strategy, mode, dtype, device):
    columns = tuple(range(strategy.n))
    matrix = applied(monkeypatch, strategy, mode, columns=columns, dtype=dtype, device=device)
    error, found = excess(strategy, matrix)
    # The bound and twice the enlargement are below the rounding of this dense algebra.
    assert 3.0 * correlate(strategy, mode)[1].error < 1e-9
    assert error < 1e-9
    assert found == pytest.approx(np.linalg.norm(strategy.to_dense() @ np.ones(strategy.n)), rel=1e-9)


FULL = [dm.SquareRoot(1000), dm.Dense(np.tril(np.ones((1000, 1000)))), dm.BLT(1000, [0.999, 0.5], [0.4, 0.2])]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("strategy", "mode"), list(modes(FULL)), ids=str)
def test_a_thousand_full_rows(monkeypatch, strategy, mode):
    matrix = applied(monkeypatch, strategy, mode, columns=tuple(range(1000)))
    error, found = excess(strategy, matrix)
    assert error < 1e-8
    assert found == pytest.approx(dm.sensitivity(strategy).upper, rel=1e-8)


N = 100_000
LONGEST = [
    (dm.SquareRoot(N, 16), NoiseMode.RECURSION),
    (dm.InverseSquareRoot(N, 16), NoiseMode.REGENERATE),
    (dm.InverseSquareRoot(N, 16), NoiseMode.BUFFER),
    (dm.LambdaCGD(N, 0.99999), NoiseMode.REGENERATE),
    (dm.LambdaCGD(N, 0.99999), NoiseMode.BUFFER),
    (dm.BLT(N, [0.99999, 0.99, 0.5], [0.1, 0.2, 0.3]), NoiseMode.RECURSION),
]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("strategy", "mode"), LONGEST, ids=str)
def test_a_hundred_thousand_steps(monkeypatch, strategy, mode):
    """C M = I + R with absolute coefficients of R below 1e-7: no sensitivity can differ by more than that."""
    weights = applied(monkeypatch, strategy, mode)[:, 0]
    factors = strategy.factored
    if factors.exponentials is not None:
        product = weights.astype(WIDE)
        for decay, scale in zip(strategy.decays, strategy.scales, strict=True):
            product += WIDE(scale) * signal.lfilter(
                np.array([0, 1], WIDE), np.array([1, -decay], WIDE), weights.astype(WIDE)
            )
    elif strategy.bands is not None:
        product = signal.lfilter(
            strategy.toeplitz_coefs[: strategy.bands].astype(WIDE), [WIDE(1)], weights.astype(WIDE)
        )
    else:
        assert not np.any(weights[strategy.inverse_bands :])
        short = weights[: strategy.inverse_bands].astype(WIDE)
        product = signal.lfilter(
            short, [WIDE(1)], series(strategy.inverse_coefs[: strategy.inverse_bands], N)
        )
        found = sensitivity(series(short, N), EVERY)
        assert found == pytest.approx(dm.sensitivity(strategy).lower, rel=1e-7)
    product[0] -= 1.0
    assert float(np.abs(product).sum()) < 1e-7


# ---- planted faults are detected by the same measurement


def float32_weights(stream):
    recursion = stream._rows._recursion
    rows = recursion._rows
    recursion._rows = lambda step: rows(step).astype(np.float32).astype(np.float64)


def float32_state(stream):
    stream._rows.vectors = [[x.float() for x in vectors] for vectors in stream._rows.vectors]


def float32_factor(stream):
    stream._rows._factors = [float(np.float32(x)) for x in stream._rows._factors]


def float32_scale(stream):
    stream._rows._recursion._scale = stream._rows._recursion._scale.astype(np.float32).astype(np.float64)


def float32_rows(stream):
    advance = stream._rows._recursion.advance

    def rounded(step, factor, draw, chunk):
        advance(step, factor, draw, chunk)
        chunk.out.copy_(chunk.out.float())

    stream._rows._recursion.advance = rounded


@pytest.mark.parametrize(
    ("plant", "strategy", "mode"),
    [
        (float32_weights, TOEPLITZ[1], NoiseMode.REGENERATE),
        (float32_weights, TOEPLITZ[6], NoiseMode.BUFFER),
        (float32_weights, TOEPLITZ[5], NoiseMode.RECURSION),
        (float32_state, TOEPLITZ[3], NoiseMode.RECURSION),
        (float32_state, TOEPLITZ[7], NoiseMode.RECURSION),
        (float32_factor, TOEPLITZ[1], NoiseMode.REGENERATE),
        (float32_scale, OTHERS[2], NoiseMode.RECURSION),
        (float32_rows, TOEPLITZ[1], NoiseMode.REGENERATE),
    ],
)
def test_planted_float32_is_detected(monkeypatch, plant, strategy, mode):
    matrix = applied(monkeypatch, strategy, mode, columns=tuple(range(strategy.n)), plant=plant)
    error, _ = excess(strategy, matrix)
    assert error > 1e-9


# ---- the bound


SLOW = dm.BLT(LONG, [0.999], [0.01])  # its single buffer accumulates rounding errors of many steps
UNIT = 2.0**-24  # the unit of float64 is 2^-53


def conspiring(kind):
    """Arithmetic in which every result is off by a full unit: always up, always down, or at random."""
    rng = np.random.default_rng(3)
    signs = {
        "up": np.ones,
        "down": lambda shape: -np.ones(shape),
        "coin": lambda shape: rng.choice([-1, 1], shape),
    }
    return lambda x: x * (1.0 + UNIT * signs[kind](np.shape(x)))


def by_hand(strategy, mode, fl):
    """The matrix that a recursion applies in the arithmetic `fl`, without the package's recursions."""
    n, factors = strategy.n, strategy.factored
    scale = np.ones(n) if factors is None else factors.scales()
    z, rows, kept = np.eye(n), [], []
    buffers = (
        None
        if factors is None or factors.exponentials is None
        else np.zeros((len(factors.exponentials[0]), n))
    )
    inverse = np.tril(strategy.solve(np.eye(n)))
    dense = strategy.to_dense() / scale
    for t in range(n):
        if mode is not NoiseMode.RECURSION:
            weights = fl(inverse[t, t::-1])
            out = fl(weights[0] * z[t])
            for lag in range(1, min(t + 1, strategy.inverse_bands or n)):
                out = fl(out + fl(weights[lag] * z[t - lag]))
            rows.append(fl(out))
            continue
        if buffers is not None:
            out = z[t]
            for buffer, weight in zip(buffers, factors.exponentials[1], strict=True):
                out = fl(out - fl(weight * buffer))
            for j, decay in enumerate(factors.exponentials[0]):
                buffers[j] = fl(fl(decay * buffers[j]) + out)
        else:
            out = fl(fl(1.0 / dense[t, t]) * z[t])
            for lag in range(1, min(t + 1, strategy.bands)):
                out = fl(out + fl(fl(-dense[t, t - lag] / dense[t, t]) * kept[t - lag]))
            kept.append(out)
        rows.append(fl(out * fl(1.0 / scale[t])))
    return np.array(rows)


@pytest.mark.parametrize("kind", slow_but(["up", "down", "coin"], 2))
@pytest.mark.parametrize(("strategy", "mode"), list(modes([*TOEPLITZ, *OTHERS, SLOW])), ids=str)
def test_the_bound_holds_for_the_worst_rounding(strategy, mode, kind):
    """|F| of the proof in 24-bit arithmetic with the largest possible errors: below the bound."""
    bound = correlate(strategy, mode)[1].error * (UNIT / 2.0**-53)
    matrix = by_hand(strategy, mode, conspiring(kind))
    product = strategy.to_dense() @ matrix
    found = np.linalg.norm(product - np.eye(strategy.n), 2)
    assert found <= 1.01 * bound
    assert 1.0 - np.linalg.svd(product, compute_uv=False).min() <= found * 1.01  # the largest loss of noise
    assert kind != "down" or found > 1e-3 * bound


@pytest.mark.parametrize("mode", [NoiseMode.REGENERATE, NoiseMode.BUFFER])
def test_strategies_that_amplify_roundings_are_refused(mode):
    hard = dm.Dense([[1.0, 0.0], [1e11, 1.0]])
    with pytest.raises(
        dm.NumericalError, match=r"roundings of float64 may leave .* less noise than certified"
    ):
        NoiseStream(dm.calibrate_sigma(hard, 8.0, 1e-5), [torch.zeros(2)], mode=mode)


def test_the_noise_is_enlarged_by_the_bound(monkeypatch):
    strategy = EXAMPLES[0][0]
    error = correlate(strategy)[1].error
    assert 1e-9 < error < 1e-7
    first = applied(monkeypatch, strategy, None, steps=1)[0, 0]
    assert first == pytest.approx(1.0 + 2.0 * error, rel=1e-15)


# ---- no rounding before the noise is added


def test_the_sum_is_not_rounded_before_the_noise():
    """A float64 sum that float32 cannot represent, and noise: only the result is rounded, once."""
    cal = dm.calibrate_sigma(dm.LambdaCGD(3, 0.9), 8.0, 1e-5)
    values = torch.linspace(0.01, 0.02, 500, dtype=torch.float64) / 3.0
    param = torch.nn.Parameter(torch.zeros(500))
    stream = NoiseStream(cal, [param], generator=1)
    row = stream.step()[0]
    stream.close()
    opt = PrivateOptimizer(torch.optim.SGD([param], lr=0.1), cal, 1.0, 3.0, generator=1)
    opt.accumulate(ClippedSum([param], [values], FlatClipping(1.0)))
    opt.step()
    assert torch.equal(param.grad, ((values + row) / 3.0).float())
    assert not torch.equal(param.grad, ((values.float().double() + row) / 3.0).float())


def test_a_sum_does_not_depend_on_its_order_beyond_float64():
    rng = np.random.default_rng(1)
    samples = torch.tensor(rng.normal(size=(3000, 7)), dtype=torch.float32)
    blocks = FlatClipping(1.0).blocks([None])
    (total,), *_ = clip_and_sum([samples], blocks)
    (turned,), *_ = clip_and_sum([samples.flip(0)], blocks)
    each = [clip_and_sum([one[None]], blocks)[0][0] for one in samples]
    exact = np.sum([one.numpy().astype(WIDE) for one in each], axis=0)
    np.testing.assert_allclose(total.numpy(), exact.astype(float), rtol=0, atol=1e-12)
    np.testing.assert_allclose(turned.numpy(), total.numpy(), rtol=0, atol=1e-12)


def test_a_buffer_that_never_decays_gives_the_noise_of_its_matrix():
    strategy = dm.BLT(6, [1.0, 0.5], [0.1, 0.2])
    noise = []
    for one in (strategy, dm.Dense(strategy.to_dense())):
        cal = dm.calibrate_sigma(one, 1.0, 1e-5)
        seeded = torch.Generator().manual_seed(1)
        stream = NoiseStream(cal, [torch.zeros(3)], clip_norm=1.0, generator=seeded)
        noise.append(np.array([stream.step()[0].double().numpy() for _ in range(6)]) / cal.sigma)
        del stream  # which holds its seed
    np.testing.assert_allclose(*noise, atol=1e-6)
