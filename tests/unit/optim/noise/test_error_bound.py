"""The bounds behind the noise against exact residuals, and keys and weights at their edges."""

import types
from fractions import Fraction

import numpy as np
import pytest
import torch

import dpmech as dm
from dpmech.numerics.series import series_inverse
from dpmech.optim.noise import error_bound as noise_error
from dpmech.optim.noise.normals import noise_key
from dpmech.optim.noise.rows import _Combination


def exact_residual(coefs, inverse):
    """The sum of moduli of the first coefficients of their product minus 1."""
    f, g = list(map(Fraction, coefs)), [Fraction(float(x)) for x in inverse]
    total = Fraction(0)
    for t in range(len(f)):
        total += abs(sum(f[s] * g[t - s] for s in range(t + 1)) - (t == 0))
    return float(total)


def blt(n, off):
    """C of a BLT as its buffers form it, and its inverse with every other entry off, relative."""
    decays, weights = np.array([0.9, 0.5]), np.array([0.3, 0.2])
    coefs = np.array([1.0, *(float(weights @ decays**t) for t in range(n - 1))])
    inverse = series_inverse(coefs, n) * (1.0 + off * (np.arange(n) % 2))
    return types.SimpleNamespace(n=n, coefs=coefs, inverse_coefs=inverse, exponentials=(decays, weights))


@pytest.mark.parametrize("off", [0.0, 1e-12, 1e-6])
@pytest.mark.parametrize("route", ["direct", "transform", "exponentials"])
def test_residuals_are_not_below_the_exact_ones(monkeypatch, off, route):
    factors = blt(48, off)
    if route != "direct":
        monkeypatch.setattr(noise_error, "_DIRECT_WORK", 0)
    if route == "transform":
        factors.exponentials = None
    bound = noise_error._residual(factors)
    coefs = [Fraction(float(x)) for x in factors.coefs]
    if route == "exponentials":
        # What the buffers form has no rounding of its powers.
        decays, weights = ([Fraction(float(x)) for x in part] for part in factors.exponentials)
        powers = [sum(w * d**t for d, w in zip(decays, weights, strict=True)) for t in range(47)]
        coefs = [Fraction(1), *powers]
    truth = exact_residual(coefs, factors.inverse_coefs)
    assert truth <= bound
    assert bound <= 1.01 * truth + 1e-11
    if route == "exponentials":
        product, own = noise_error._exponentials_product(factors.inverse_coefs, *factors.exponentials)
        product[0] -= 1.0
        assert abs(float(np.abs(product).sum()) - truth) <= own <= 1e-13


@pytest.mark.parametrize("route", ["combination", "substitution", "exponentials"])
def test_a_bound_is_above_one_rounding_of_every_weight(route):
    # Rows whose weights are each off by a rounding are off by at least that much of |C| |C^-1|.
    strategy = dm.BLT(200, [0.9, 0.5], [0.3, 0.2])
    factors = strategy.factored
    bound = {
        "combination": lambda: noise_error.combination_error(strategy, None),
        "substitution": lambda: noise_error.substitution_error(strategy, 200),
        "exponentials": lambda: noise_error.exponentials_error(factors),
    }[route]()
    matrix = np.array([[factors.coefs[i - j] if i >= j else 0.0 for j in range(200)] for i in range(200)])
    signs = np.sign(np.linalg.inv(matrix))
    moved = 2.0**-53 * np.abs(np.linalg.inv(matrix)) * signs
    assert np.linalg.norm(matrix @ moved, 2) <= bound <= 1e-10


def test_keys_of_one_torch_generator_differ():
    generator = torch.Generator().manual_seed(7)
    keys = [noise_key(generator) for _ in range(300)]
    assert len(set(keys)) == 300
    assert len({first for first, _ in keys}) == 1
    assert max(second for _, second in keys) > 2**60
    assert all(0 <= word < 2**64 for key in keys for word in key)


@pytest.mark.parametrize("keep", [True, False])
def test_weights_of_exactly_one_and_zero_are_applied(keep):
    weights = np.array([1.0, -2.0, 1.0, 0.0, 1.0])
    rows = _Combination(lambda step: weights[: step + 1], 5, 0.0, keep=keep)
    state = [torch.zeros(3, dtype=torch.float64) for _ in range(rows.vectors)]
    z = np.random.default_rng(1).standard_normal((9, 3))

    def draw(step, out):
        out.copy_(torch.from_numpy(z[step]))

    for step in range(9):
        out, spare = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        rows.advance(step, 1.0, draw, state, out, spare)
        expected = sum(weights[lag] * z[step - lag] for lag in range(min(step, 4) + 1))
        assert out.numpy() == pytest.approx(expected, rel=1e-12, abs=1e-14)
