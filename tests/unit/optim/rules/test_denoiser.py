import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.optim.rules.adam import AdamBC
from dpmech.optim.rules.denoiser import attach_denoiser, denoise_matrices
from dpmech.optim.rules.muon import Muon
from tests.support.training import apply_gradients


def edge(rows, columns, stddev):
    return stddev * (math.sqrt(rows) + math.sqrt(columns))


def oracle(matrix, stddev, threshold=1.02, norm_correction=True):
    """Estimate each signal singular value by inverting its inflation, then multiply by both cosines."""
    m, n = matrix.shape
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    if stddev == 0 or values[0] < threshold * edge(m, n, stddev):
        return matrix
    shrunk = np.zeros_like(values)
    for i, y in enumerate(values):
        if y > edge(m, n, stddev):
            a = y**2 - stddev**2 * (m + n)
            signal = math.sqrt((a + math.sqrt(max(a**2 - 4 * m * n * stddev**4, 0.0))) / 2)
            overlap = signal**4 - m * n * stddev**4
            cos_left = math.sqrt(max(overlap, 0.0) / (signal**4 + m * signal**2 * stddev**2))
            cos_right = math.sqrt(max(overlap, 0.0) / (signal**4 + n * signal**2 * stddev**2))
            shrunk[i] = signal * cos_left * cos_right
    cleaned = left @ np.diag(shrunk) @ right
    return cleaned * (np.linalg.norm(matrix) / np.linalg.norm(cleaned)) if norm_correction else cleaned


def noisy(rows, columns, rank, strength, seed=0, stddev=0.3):
    """Low rank plus noise; `strength` in units of the phase transition."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.standard_normal((rows, rank)))[0]
    right = np.linalg.qr(rng.standard_normal((columns, rank)))[0]
    values = strength * stddev * (rows * columns) ** 0.25 * np.linspace(1.0, 0.5, rank)
    signal = left @ np.diag(values) @ right.T
    return signal, signal + stddev * rng.standard_normal((rows, columns)), stddev


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    strength=st.floats(0, 20),
    correction=st.booleans(),
    threshold=st.sampled_from([1.0, 1.02, 1.5]),
    seed=st.integers(0, 1000),
)
def test_it_is_the_frobenius_optimal_shrinker(rows, columns, strength, correction, threshold, seed):
    _, matrix, stddev = noisy(rows, columns, min(rows, columns, 2), strength, seed)
    top = np.linalg.svd(matrix)[1]
    close = np.abs(top / edge(rows, columns, stddev) - 1).min() < 1e-9
    if close or abs(top[0] / edge(rows, columns, stddev) - threshold) < 1e-9:
        return  # rounding decides on which side of the edge it is
    found = denoise_matrices(
        torch.tensor(matrix), stddev, threshold=threshold, norm_correction=correction
    ).numpy()
    expected = oracle(matrix, stddev, threshold, correction)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * np.linalg.norm(matrix))


@pytest.mark.parametrize("shape", [(16, 96), (96, 16), (40, 40)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_batches_of_active_and_quiet_matrices(shape, dtype):
    matrices = np.stack([noisy(*shape, 3, strength, seed=i)[1] for i, strength in enumerate([0.0, 3.0, 8.0])])
    batch = torch.tensor(matrices).to(dtype)
    stddevs = torch.tensor([0.4, 0.3, 0.2])
    out = denoise_matrices(batch, stddevs)
    assert out.dtype == dtype
    assert torch.equal(out[0], batch[0])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]
    for i in (1, 2):
        expected = oracle(batch[i].double().numpy(), float(stddevs[i]))
        error = np.linalg.norm(out[i].double().numpy() - expected)
        assert 0 < error < tolerance * np.linalg.norm(expected) or dtype == torch.float64
        assert error <= tolerance * np.linalg.norm(expected)
        assert float(out[i].double().norm()) == pytest.approx(float(batch[i].double().norm()), rel=tolerance)
        above = int((np.linalg.svd(batch[i].double().numpy())[1] > edge(*shape, float(stddevs[i]))).sum())
        if dtype == torch.float64:
            assert int(torch.linalg.matrix_rank(out[i], rtol=1e-9)) == above


@pytest.mark.parametrize("threshold", [1.0, 1.02, 1.5])
def test_the_threshold_is_applied_exactly(threshold):
    matrix = torch.zeros(6, 9, dtype=torch.float64)
    for factor, touched in ((1 - 1e-6, False), (1 + 1e-6, True)):
        matrix[0, 0] = factor * threshold * edge(6, 9, 0.3)
        found = denoise_matrices(matrix, 0.3, threshold=threshold, norm_correction=False)
        assert (not torch.equal(found, matrix)) == touched


def test_equivariances():
    _, matrix, stddev = noisy(8, 20, 2, 6.0)
    rng = np.random.default_rng(1)
    left = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    right = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    plain = denoise_matrices(torch.tensor(matrix), stddev).numpy()
    turned = denoise_matrices(torch.tensor(left @ matrix @ right), stddev).numpy()
    np.testing.assert_allclose(turned, left @ plain @ right, atol=1e-12)
    np.testing.assert_allclose(denoise_matrices(torch.tensor(matrix.T), stddev).numpy().T, plain, atol=1e-13)
    for scale in (1e-150, 1e150):
        scaled = denoise_matrices(torch.tensor(matrix * scale), stddev * scale).numpy()
        np.testing.assert_allclose(scaled / scale, plain, atol=1e-12)


def test_nothing_to_do():
    matrix = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(denoise_matrices(matrix, 0.0), matrix)
    assert torch.equal(denoise_matrices(torch.zeros(5, 7), 1.0), torch.zeros(5, 7))
    assert torch.equal(denoise_matrices(torch.zeros(5, 7), 0.0), torch.zeros(5, 7))
    assert torch.equal(denoise_matrices(matrix, 100.0), matrix)
    # Exactly at the edge of a threshold of 1 the optimum is the zero matrix, without a norm to preserve.
    on_edge = torch.tensor([[2.0]], dtype=torch.float64)
    assert torch.equal(denoise_matrices(on_edge, 1.0, threshold=1.0), on_edge)


def test_a_dominating_signal_does_not_hide_the_rest():
    _, matrix, stddev = noisy(6, 9, 2, 4.0)
    matrix[:, 0] += 1e5
    found = denoise_matrices(torch.tensor(matrix), stddev).numpy()
    expected = oracle(matrix, stddev)
    assert np.linalg.norm(found - expected) < 1e-9 * np.linalg.norm(expected)
    second = np.linalg.svd(expected)[1][1]
    assert np.linalg.svd(found)[1][1] == pytest.approx(second, rel=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_entries(bad):
    matrix = torch.ones(3, 3)
    matrix[1, 1] = bad
    with pytest.raises(NumericalError, match="NaN or an infinity"):
        denoise_matrices(matrix, 1.0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("matrices", {"matrices": torch.ones(3)}),
        ("matrices", {"matrices": torch.ones(2, 2, dtype=torch.int32)}),
        ("stddev", {"stddev": -1.0}),
        ("stddev", {"stddev": float("nan")}),
        ("stddev", {"stddev": torch.ones(2)}),
        ("stddev", {"stddev": torch.tensor(-1.0)}),
        ("threshold", {"threshold": 0.99}),
        ("norm_correction", {"norm_correction": 1}),
    ],
)
def test_refused_arguments(name, arguments):
    with pytest.raises(InvalidParameterError, match=name):
        denoise_matrices(**{"matrices": torch.ones(2, 2), "stddev": 1.0, **arguments})


# ---- attached to an optimizer

KINDS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: AdamBC(params, lr=0.1),
    "muon": lambda params: Muon(params, lr=0.1),
}


def model(seed=0):
    shapes = [(8, 20), (20, 8), (8, 20), (6, 6), (5,), (2, 3, 4)]
    grads = [noisy(*shape, 2, 6.0, seed=i)[1] for i, shape in enumerate(shapes[:4])]
    grads += [np.ones(5), np.ones((2, 3, 4))]
    return [torch.nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in shapes], grads


@pytest.mark.parametrize("kind", KINDS)
def test_it_composes_with_any_optimizer(kind):
    params, grads = model()
    optimizer = KINDS[kind](params)
    handle = attach_denoiser(optimizer)
    found = apply_gradients(optimizer, params, [grads], [0.09])
    twins, _ = model()
    cleaned = [oracle(grad, 0.3) if np.ndim(grad) == 2 else grad for grad in grads]
    expected = apply_gradients(KINDS[kind](twins), twins, [cleaned], [0.09])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    assert not np.allclose(cleaned[0], grads[0])

    handle.remove()
    apply_gradients(optimizer, params, [grads], [0.09])
    np.testing.assert_array_equal(params[0].grad.numpy(), grads[0])


def test_only_the_chosen_and_one_phi_a_parameter():
    params, grads = model()
    optimizer = torch.optim.SGD(params, lr=0.0)
    attach_denoiser(optimizer, params=[params[0], params[1]])
    apply_gradients(optimizer, params, [grads], [[0.09, 0.0, 0.09, 0.09, 0.09, 0.09]])
    np.testing.assert_allclose(params[0].grad.numpy(), oracle(grads[0], 0.3), atol=1e-10)
    for param, grad in zip(params[1:], grads[1:], strict=True):
        np.testing.assert_array_equal(param.grad.numpy(), grad)


def test_missing_gradients_are_passed_over():
    params, grads = model()
    optimizer = torch.optim.SGD(params, lr=0.0)
    attach_denoiser(optimizer)
    optimizer.param_groups[0]["phi"] = 0.09
    params[0].grad = torch.tensor(grads[0])
    optimizer.step()
    assert params[1].grad is None
    np.testing.assert_allclose(params[0].grad.numpy(), oracle(grads[0], 0.3), atol=1e-10)


def test_refusals_of_the_hook():
    params, grads = model()
    optimizer = torch.optim.SGD(params, lr=0.1)
    attach_denoiser(optimizer)
    params[0].grad = torch.tensor(grads[0])
    with pytest.raises(InvalidParameterError, match="written before each step"):
        optimizer.step()
    optimizer.param_groups[0]["phi"] = 0.09
    for call in (lambda: optimizer.step(lambda: 0.0), lambda: optimizer.step(closure=lambda: 0.0)):
        with pytest.raises(InvalidParameterError, match="closure"):
            call()
    params[0].grad = torch.eye(20)[:8].double().to_sparse()
    with pytest.raises(InvalidParameterError, match="dense"):
        optimizer.step()


def test_refused_attachments():
    params, _ = model()
    optimizer = torch.optim.SGD(params, lr=0.1)
    with pytest.raises(InvalidParameterError, match="the inner torch optimizer"):
        attach_denoiser("sgd")
    optimizer.steps_left = 3
    with pytest.raises(InvalidParameterError, match="the inner torch optimizer"):
        attach_denoiser(optimizer)
    other = torch.optim.SGD(params[:1], lr=0.1)
    for chosen in ([params[1]], [params[4]]):
        with pytest.raises(InvalidParameterError, match="matrices held by the optimizer"):
            attach_denoiser(other, params=chosen)
    with pytest.raises(InvalidParameterError, match="threshold"):
        attach_denoiser(other, threshold=0.5)
