import numpy as np
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.rules.muon import QUINTIC_COEFS, orthogonalize, taylor_coefs

shapes = st.tuples(st.integers(1, 8), st.integers(1, 8))


def with_singular_values(values, rows, columns, seed):
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.standard_normal((rows, rows)))[0][:, : len(values)]
    right = np.linalg.qr(rng.standard_normal((columns, columns)))[0][:, : len(values)]
    return left @ np.diag(values) @ right.T, left @ right.T


def bound(smallest, kappa, steps):
    """1 - sqrt(1 - d^((kappa + 1)^steps)), d = 1 - x^2, without cancellation."""
    power = np.exp((kappa + 1.0) ** steps * np.log1p(-min(smallest**2, 1 - 1e-16)))
    return power / (1 + np.sqrt(1 - power))


@pytest.mark.parametrize("kappa", range(1, 13))
def test_coefficients_are_taylors(kappa):
    r = sympy.symbols("r")
    series = sympy.series((1 - r) ** sympy.Rational(-1, 2), r, 0, kappa + 1).removeO()
    expected = [float(series.coeff(r, s)) for s in range(kappa + 1)]
    assert taylor_coefs(kappa) == tuple(expected)
    grid = np.linspace(0, 1, 10_001)
    p = np.polyval(taylor_coefs(kappa)[::-1], 1 - grid)
    gap = 1 - grid * p**2
    assert np.all(gap >= -1e-14)
    assert np.all(gap <= (1 - grid) ** (kappa + 1) + 1e-14)


def test_the_usual_quintic():
    grid = np.linspace(0, 1.2, 50)
    np.testing.assert_allclose(
        np.polyval(QUINTIC_COEFS[::-1], 1 - grid), 3.4445 - 4.7750 * grid + 2.0315 * grid**2, rtol=1e-13
    )


@given(
    shape=shapes,
    kappa=st.integers(1, 4),
    steps=st.integers(0, 6),
    scale=st.sampled_from([1e-150, 1e-3, 1.0, 1e3, 1e150]),
    data=st.data(),
)
def test_distance_to_the_polar_factor_satisfies_the_papers_bound(shape, kappa, steps, scale, data):
    rank = data.draw(st.integers(1, min(shape)))
    values = np.array(data.draw(st.lists(st.floats(1e-3, 1.0), min_size=rank, max_size=rank)))
    matrix, polar = with_singular_values(values, *shape, seed=data.draw(st.integers(0, 100)))
    out = orthogonalize(torch.tensor(matrix * scale), coefs=taylor_coefs(kappa), steps=steps).numpy()
    limit = bound(values.min() / np.linalg.norm(values), kappa, steps)
    assert np.linalg.norm(out, 2) <= 1 + 1e-12
    assert np.linalg.norm(out - polar, 2) <= limit + 1e-12
    # Without steps the bound is an equality, so a tighter bound would be detected.
    if steps == 0:
        assert np.linalg.norm(out - polar, 2) == pytest.approx(limit, abs=1e-12)


def test_the_bound_of_a_higher_degree_does_not_hold_for_a_lower_one():
    matrix, polar = with_singular_values(np.array([1.0, 0.1]), 4, 6, seed=0)
    out = orthogonalize(torch.tensor(matrix), coefs=taylor_coefs(1), steps=3).numpy()
    assert np.linalg.norm(out - polar, 2) > bound(0.1 / np.sqrt(1.01), 2, 3) + 1e-3


@pytest.mark.parametrize("shape", [(96, 16), (16, 96), (64, 64)])
def test_float32_reaches_the_float64_polar_factor(shape):
    matrix = np.random.default_rng(1).standard_normal(shape)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    out = orthogonalize(torch.tensor(matrix, dtype=torch.float32), steps=8).numpy()
    limit = bound(values.min() / np.linalg.norm(values), 2, 8)
    assert np.linalg.norm(out - left @ right, 2) <= limit + 1e-5


@pytest.mark.parametrize("coefs", [taylor_coefs(1), taylor_coefs(3), QUINTIC_COEFS, taylor_coefs(12)])
def test_singular_values_follow_the_scalar_iteration(coefs):
    values = np.array([3.0, 1.0, 0.2])
    matrix, _ = with_singular_values(values, 3, 5, seed=2)
    x = values / np.linalg.norm(values)
    for _ in range(4):
        x = x * np.polyval(coefs[::-1], 1 - x**2)
    found = np.linalg.svd(orthogonalize(torch.tensor(matrix), coefs=coefs, steps=4).numpy())[1]
    np.testing.assert_allclose(np.sort(found), np.sort(np.abs(x)), rtol=1e-12)


def test_it_agrees_with_torchs_own_in_bfloat16():
    theirs_module = pytest.importorskip("torch.optim._muon")  # newer than the oldest supported torch
    matrix = torch.randn(32, 48, generator=torch.Generator().manual_seed(0))
    theirs = theirs_module._zeropower_via_newtonschulz(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7).float()
    mine = orthogonalize(matrix, coefs=QUINTIC_COEFS, compute_dtype=torch.bfloat16)
    exact = orthogonalize(matrix, coefs=QUINTIC_COEFS)
    assert float((mine - exact).norm() / exact.norm()) < 0.03
    assert float((theirs - exact).norm() / exact.norm()) < 0.03


def test_batches_transposes_and_zeros():
    batch = torch.randn(2, 3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = orthogonalize(batch)
    assert out.shape == batch.shape
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(out[i, j], orthogonalize(batch[i, j]), rtol=0, atol=1e-14)
    torch.testing.assert_close(orthogonalize(batch.mT).mT, out, rtol=0, atol=1e-14)
    assert not orthogonalize(torch.zeros(3, 4)).any()
    tiny = torch.full((2, 2), 1e-44)
    assert torch.isfinite(orthogonalize(tiny)).all()


def test_the_scale_matters_only_with_shrink_only():
    matrix = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix *= 0.5 / matrix.norm()
    torch.testing.assert_close(orthogonalize(matrix), orthogonalize(matrix / 20), rtol=1e-12, atol=0)
    large = orthogonalize(matrix, shrink_only=True)
    small = orthogonalize(matrix / 20, shrink_only=True)
    assert float(torch.linalg.matrix_norm(large, 2)) > 0.99
    assert float(torch.linalg.matrix_norm(small, 2)) < 0.6
    torch.testing.assert_close(
        orthogonalize(40 * matrix, shrink_only=True), orthogonalize(matrix), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("matrices", {"matrices": torch.ones(3)}),
        ("matrices", {"matrices": torch.ones(2, 2, dtype=torch.int64)}),
        ("matrices", {"matrices": torch.ones(0, 2)}),
        ("coefs", {"coefs": (1.0,)}),
        ("coefs", {"coefs": "ab"}),
        ("coefs", {"coefs": (1.0, float("nan"))}),
        ("coefs", {"coefs": (1.0,) * 14}),
        ("steps", {"steps": -1}),
        ("steps", {"steps": 5.0}),
        ("shrink_only", {"shrink_only": 1}),
    ],
)
def test_refused_arguments(name, arguments):
    with pytest.raises(InvalidParameterError, match=name):
        orthogonalize(**{"matrices": torch.ones(2, 2), **arguments})


@pytest.mark.parametrize("kappa", [0, 13, 2.0, True])
def test_refused_degree(kappa):
    with pytest.raises(InvalidParameterError, match="kappa"):
        taylor_coefs(kappa)
