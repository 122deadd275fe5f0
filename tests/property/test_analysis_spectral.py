import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmech.analysis import spectral
from dpmech.analysis import spectral as alignment
from dpmech.analysis import spectral as denoising
from tests.support import generators as gen
from verification.oracles import matrices as ref
from verification.spectral import alignment as claims

SIDES = st.integers(1, 2000)
SIGMAS = st.floats(-6.0, 6.0).map(lambda x: 10.0**x)
# Singular values as multiples of the detection threshold.
MULTIPLES = st.floats(-3.0, 3.0).map(lambda x: 10.0**x)
SEEDS = st.integers(0, 2**32 - 1)


def exact_threshold(sigma, m, n):
    return mp.mpf(sigma) * mp.root(mp.mpf(m) * n, 4)


def exact_inflation(x, sigma, m, n):
    x, s2 = mp.mpf(x), mp.mpf(sigma) ** 2
    return mp.sqrt((x + s2 * n / x) * (x + s2 * m / x))


def exact_cosine(x, sigma, m, n, own):
    x, s2 = mp.mpf(x), mp.mpf(sigma) ** 2
    return (x**4 - m * n * s2**2) / (x**4 + own * x**2 * s2)


@given(SIGMAS, SIDES, SIDES, MULTIPLES)
def test_inflation_is_that_of_fifty_digits(sigma, m, n, multiple):
    with mp.workdps(50):
        threshold = exact_threshold(sigma, m, n)
        edge = mp.mpf(sigma) * (mp.sqrt(m) + mp.sqrt(n))
        x = float(multiple * threshold)
        exact = exact_inflation(x, sigma, m, n)
        assert math.isclose(spectral.detection_threshold(sigma, m, n), threshold, rel_tol=1e-14)
        assert math.isclose(spectral.noise_edge(sigma, m, n), edge, rel_tol=1e-14)
        assert math.isclose(spectral.inflated_singular_value(x, sigma, m, n), exact, rel_tol=1e-13)
        limit = exact if x > float(threshold) else edge
        assert math.isclose(spectral.observed_singular_value(x, sigma, m, n), limit, rel_tol=1e-13)


@given(SIGMAS, SIDES, SIDES, MULTIPLES)
def test_cosines_and_shrinkage_are_those_of_fifty_digits(sigma, m, n, multiple):
    x = multiple * spectral.detection_threshold(sigma, m, n)
    left, right = (f(x, sigma, m, n) for f in (spectral.left_cosine_squared, spectral.right_cosine_squared))
    if multiple <= 1.0 - 1e-12:
        assert left == right == 0.0
        return
    if multiple < 1.0 + 1e-9:
        assert 0.0 <= max(left, right) < 1e-6
        return
    with mp.workdps(50):
        cosines = [exact_cosine(x, sigma, m, n, own) for own in (m, n)]
        observed = exact_inflation(x, sigma, m, n)
        shrunk = mp.mpf(x) * mp.sqrt(cosines[0] * cosines[1])
    # Close to the threshold the cosine and the excess over the edge are small differences.
    condition = 1.0 + 1.0 / (multiple - 1.0)
    assert math.isclose(left, cosines[0], rel_tol=1e-14 * condition)
    assert math.isclose(right, cosines[1], rel_tol=1e-14 * condition)
    value = spectral.shrunk_singular_value(float(observed), sigma, m, n)
    assert math.isclose(value, shrunk, rel_tol=1e-14 * condition**2)
    assert 0.0 <= value < observed


@given(SIGMAS, SIDES, SIDES, st.floats(0.0, 3.0).map(lambda x: 10.0**x))
def test_the_inverse_gives_the_signal_back(sigma, m, n, multiple):
    x = multiple * spectral.detection_threshold(sigma, m, n)
    observed = spectral.observed_singular_value(x, sigma, m, n)
    # Half the digits are lost at the threshold, where F is flat.
    tolerance = 1e-13 if multiple > 1.1 else 3e-7
    assert math.isclose(spectral.signal_singular_value(observed, sigma, m, n), x, rel_tol=tolerance)
    assert math.isclose(
        spectral.signal_singular_value(observed, sigma, m, n),
        ref.inverse_inflation(float(observed), sigma, m, n),
        rel_tol=tolerance,
        abs_tol=1e-14,  # of the search by which the oracle finds it
    )


@given(st.integers(1, 8), st.integers(1, 8), SIGMAS, st.floats(0.0, 5.0), SEEDS)
def test_the_denoiser_is_the_oracle(m, n, sigma, strength, seed):
    rng = np.random.default_rng(seed)
    signal = strength * np.outer(rng.standard_normal(m), rng.standard_normal(n))
    noisy = sigma * (signal + rng.standard_normal((m, n)))
    edge = sigma * (math.sqrt(m) + math.sqrt(n))
    observed = np.linalg.svd(noisy, compute_uv=False)
    result = denoising.denoise(noisy, sigma)
    assert math.isclose(result.top_ratio, observed[0] / edge, rel_tol=1e-12)
    assert result.applied == bool(observed[0] >= 1.02 * edge)
    if result.applied:
        size = np.linalg.norm(noisy)
        np.testing.assert_allclose(result.matrix, ref.denoised(noisy, sigma, 1.02), atol=1e-11 * size)
        assert math.isclose(np.linalg.norm(result.matrix), size, rel_tol=1e-12)
        assert result.rank == np.sum(observed > edge)
        estimate = denoising.optimal_estimate(noisy, sigma)
        assert math.isclose(ref.cosine(estimate, result.matrix), 1.0, rel_tol=1e-12)
        kept = np.linalg.svd(estimate, compute_uv=False)
        shrunk = spectral.shrunk_singular_value(observed, sigma, m, n)
        np.testing.assert_allclose(kept, shrunk, atol=1e-11 * size)
    else:
        np.testing.assert_array_equal(result.matrix, noisy)
        assert result.rank == 0
    turned = denoising.denoise(noisy.T, sigma).matrix
    np.testing.assert_allclose(turned, result.matrix.T, atol=1e-10 * np.linalg.norm(noisy))


@pytest.mark.parametrize(("rows", "columns"), [(200, 400), (300, 100)])
@pytest.mark.parametrize("multiples", [(3.0,), (4.0, 2.5, 1.8)])
def test_predicted_alignments_are_met(rows, columns, multiples):
    # 40 draws: the standard errors of the means are below 0.002, limits hold to about 0.01 at this size.
    values = np.array(multiples) * spectral.detection_threshold(1.0, rows, columns)
    found = []
    for left, sizes, right, noisy in ref.noisy_draws(values, rows, columns, 1.0, draws=40, seed=5):
        signal = (left * sizes) @ right.T
        estimate = denoising.optimal_estimate(noisy, 1.0)
        found.append((ref.cosine(noisy, signal), ref.cosine(estimate, signal)))
    predicted = denoising.predicted_alignment(values, 1.0, rows, columns)
    np.testing.assert_allclose(np.mean(found, axis=0), predicted, atol=0.01)


@given(SIDES, SIDES, SIGMAS, st.lists(st.floats(0.01, 100.0), min_size=1, max_size=5))
def test_predicted_alignments_are_those_of_the_shrunk_values(m, n, sigma, multiples):
    values = np.array(multiples[: min(m, n)]) * spectral.detection_threshold(sigma, m, n)
    noisy, denoised = denoising.predicted_alignment(values, sigma, m, n)
    size = float(np.linalg.norm(values))
    observed = spectral.observed_singular_value(values, sigma, m, n)
    kept = float(np.linalg.norm(spectral.shrunk_singular_value(observed, sigma, m, n)))
    assert math.isclose(denoised, kept / size, rel_tol=1e-6, abs_tol=1e-6)
    assert math.isclose(noisy, size / math.sqrt(size**2 + m * n * sigma**2), rel_tol=1e-12)


@st.composite
def block_problems(draw):
    rng = np.random.default_rng(draw(SEEDS))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    target = [rng.standard_normal(size) * float(draw(st.booleans())) for size in sizes]
    before = [rng.standard_normal(size) for size in sizes]
    after = [rng.standard_normal(size) for size in sizes]
    factor = draw(st.sampled_from([1.0, 1.0, 3.0]))
    if draw(st.booleans()):
        after = [claims.at_equal_norm(new, old) * factor for new, old in zip(after, before, strict=True)]
    return target, before, after


@given(block_problems())
def test_where_the_theorem_applies_alignment_rises(problem):
    target, before, after = problem
    if not any(np.any(goal) for goal in target):
        return
    expected = [claims.safe_cosine(x, y) for x, y in zip(before, target, strict=True)]
    cosines = alignment.block_cosines(before, target)
    np.testing.assert_allclose(cosines, expected, atol=1e-12)
    norms = [np.linalg.norm(new) / np.linalg.norm(old) for new, old in zip(after, before, strict=True)]
    risen = np.all(alignment.block_cosines(after, target) >= cosines)
    promised = alignment.raises_alignment(before, after, target)
    assert promised == bool(risen and np.allclose(norms, norms[0], rtol=1e-9))
    whole = [claims.whole_cosine(x, target) for x in (before, after)]
    assert not promised or whole[1] >= whole[0] - 1e-12


@given(st.integers(1, 6), st.floats(0.01, 2.0), SEEDS)
def test_progress_is_the_fall_of_the_quadratic(size, rate, seed):
    rng = np.random.default_rng(seed)
    hessian, point = claims.random_quadratic(size, rng), rng.standard_normal(size)
    step, scale = rng.standard_normal(size), rng.uniform(0.1, 10.0, size)
    gradient, after = hessian @ point, point - rate * scale * step
    start, end = 0.5 * point @ hessian @ point, 0.5 * after @ hessian @ after
    gain = alignment.quadratic_progress(gradient, step, hessian, scale, rate)
    assert math.isclose(gain, start - end, rel_tol=1e-9, abs_tol=1e-10 * (start + end))
    assert math.isclose(alignment.cosine(gradient, step), ref.cosine(gradient, step), abs_tol=1e-12)
    bound = alignment.progress_bound(
        ref.cosine(gradient, step),
        float(np.linalg.norm(gradient)),
        float(np.linalg.norm(step)),
        learning_rate=rate,
        scale_min=float(scale.min()),
        scale_max=float(scale.max()),
        curvature_max=float(np.linalg.eigvalsh(hessian)[-1]),
    )
    assert bound <= gain + 1e-9 * (abs(gain) + start + end)


@given(gen.finite(0.1, 2.0), gen.finite(1.0, 5.0), st.integers(1, 6), gen.finite(0.01, 1.0), SEEDS)
def test_the_progress_bound_is_met(low, ratio, size, rate, seed):
    # |g_i| = |s_i|, the largest scale where signs differ, no curvature; then isotropic scale and curvature.
    rng = np.random.default_rng(seed)
    gradient, signs = rng.uniform(0.5, 2.0, size), np.where(rng.uniform(size=size) < 0.5, -1.0, 1.0)
    step, norm = gradient * signs, float(np.linalg.norm(gradient))
    cosine = float(np.clip(gradient @ step / norm**2, -1.0, 1.0))
    scale = np.where(signs < 0, low * ratio, low)
    options = {"learning_rate": rate, "scale_min": low, "scale_max": low * ratio}
    gain = alignment.quadratic_progress(gradient, step, np.zeros((size, size)), scale, rate)
    bound = alignment.progress_bound(cosine, norm, norm, **options, curvature_max=0.0)
    assert math.isclose(gain, bound, rel_tol=1e-9, abs_tol=1e-9)
    options["scale_max"] = low
    gain = alignment.quadratic_progress(gradient, step, 2.0 * np.eye(size), np.full(size, low), rate)
    bound = alignment.progress_bound(cosine, norm, norm, **options, curvature_max=2.0)
    assert math.isclose(gain, bound, rel_tol=1e-9, abs_tol=1e-9)
