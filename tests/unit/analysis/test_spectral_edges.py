import math

import numpy as np
import pytest

from dpmech import InvalidParameterError
from dpmech.analysis import spectral
from dpmech.analysis import spectral as alignment
from dpmech.analysis import spectral as denoising
from dpmech.exceptions import NumericalError

CURVES = (
    spectral.inflated_singular_value,
    spectral.observed_singular_value,
    spectral.left_cosine_squared,
    spectral.right_cosine_squared,
    spectral.shrunk_singular_value,
)


@pytest.mark.parametrize("curve", CURVES)
def test_curves_keep_the_shape_of_their_argument(curve):
    values = np.array([[1.0, 5.0, 20.0], [30.0, 40.0, 50.0]])
    result = curve(values, 1.0, 100, 400)
    assert result.shape == values.shape
    assert result.dtype == np.float64
    single = curve(20.0, 1.0, 100, 400)
    assert isinstance(single, float)
    assert single == result[0, 2]
    assert curve([20, 30], 1, 100, 400)[0] == single
    assert curve(np.float32(20.0), 1.0, 100, 400) == single


@pytest.mark.parametrize("curve", [*CURVES, spectral.signal_singular_value])
@pytest.mark.parametrize(
    "bad", [-1.0, math.nan, math.inf, True, "3", None, [], [1.0, -1.0], [[1.0], [1.0, 2.0]], 1j, {1.0}]
)
def test_curves_refuse_what_is_no_singular_value(curve, bad):
    with pytest.raises(InvalidParameterError, match="must be"):
        curve(bad, 0.1, 3, 4)


@pytest.mark.parametrize(
    ("sigma", "rows", "columns", "name"),
    [(-1.0, 2, 2, "sigma"), (math.nan, 2, 2, "sigma"), (1.0, 0, 2, "rows"), (1.0, 2, 2.0, "columns")],
)
def test_shapes_are_checked(sigma, rows, columns, name):
    functions = [*(lambda *shape, curve=curve: curve(9.0, *shape) for curve in CURVES)]
    functions += [spectral.noise_edge, spectral.detection_threshold]
    functions += [lambda *shape: denoising.predicted_alignment([9.0], *shape)]
    for function in functions:
        with pytest.raises(InvalidParameterError, match=f"{name} must be"):
            function(sigma, rows, columns)


def test_the_registered_overlaps():
    threshold = spectral.detection_threshold(1.0, 100, 400)
    multiples = np.array([3.0, 2.0, 1.4, 0.5])
    left = spectral.left_cosine_squared(multiples * threshold, 1.0, 100, 400)
    right = spectral.right_cosine_squared(multiples * threshold, 1.0, 100, 400)
    np.testing.assert_allclose(left, [0.936, 0.833, 0.589, 0.0], atol=5e-4)
    np.testing.assert_allclose(right, [0.808, 0.625, 0.366, 0.0], atol=1e-3)


def test_the_threshold_is_where_f_meets_the_edge():
    threshold = spectral.detection_threshold(0.3, 20, 70)
    edge = spectral.noise_edge(0.3, 20, 70)
    assert spectral.inflated_singular_value(threshold, 0.3, 20, 70) == pytest.approx(edge, rel=1e-14)
    assert spectral.observed_singular_value(0.0, 0.3, 20, 70) == edge
    assert spectral.observed_singular_value(threshold, 0.3, 20, 70) == edge
    assert spectral.shrunk_singular_value(edge, 0.3, 20, 70) == 0.0
    assert spectral.shrunk_singular_value(0.0, 0.3, 20, 70) == 0.0
    assert spectral.left_cosine_squared(threshold, 0.3, 20, 70) == 0.0
    assert spectral.signal_singular_value(edge, 0.3, 20, 70) == pytest.approx(threshold, rel=1e-12)


def test_without_noise_nothing_changes():
    assert spectral.inflated_singular_value(2.5, 0.0, 3, 4) == 2.5
    assert spectral.observed_singular_value(2.5, 0.0, 3, 4) == 2.5
    assert spectral.signal_singular_value([2.5, 0.0], 0.0, 3, 4).tolist() == pytest.approx([2.5, 0.0])
    assert spectral.shrunk_singular_value([2.5, 0.0], 0.0, 3, 4).tolist() == pytest.approx([2.5, 0.0])
    assert spectral.left_cosine_squared(2.5, 0.0, 3, 4) == 1.0
    matrix = np.arange(6.0).reshape(2, 3)
    result = denoising.denoise(matrix, 0.0)
    np.testing.assert_array_equal(result.matrix, matrix)
    assert (result.applied, result.rank, result.top_ratio) == (False, 0, math.inf)
    np.testing.assert_allclose(denoising.optimal_estimate(matrix, 0.0), matrix, atol=1e-14)


def test_below_the_edge_there_is_no_preimage():
    edge = spectral.noise_edge(1.0, 4, 9)
    assert spectral.signal_singular_value(edge * (1.0 - 1e-14), 1.0, 4, 9) == pytest.approx(math.sqrt(6.0))
    with pytest.raises(InvalidParameterError, match="at or above the edge 5"):
        spectral.signal_singular_value(4.999, 1.0, 4, 9)


def test_overflow_is_an_error():
    with pytest.raises(NumericalError, match="left the range"):
        spectral.inflated_singular_value(1e-300, 1e100, 10, 10)
    assert spectral.inflated_singular_value(1e200, 1e199, 10, 10) > 1e200


@pytest.mark.parametrize(
    "bad", [1.0, [1.0], np.zeros((0, 2)), np.zeros((2, 2, 2)), [[math.nan]], [["a"]], None]
)
def test_the_denoiser_refuses_what_is_no_matrix(bad):
    for function in (denoising.denoise, denoising.optimal_estimate):
        with pytest.raises(InvalidParameterError, match="matrix must be"):
            function(bad, 1.0)


def test_the_denoiser_checks_its_options():
    with pytest.raises(InvalidParameterError, match="threshold must be"):
        denoising.denoise(np.eye(2), 1.0, threshold=0.99)
    with pytest.raises(InvalidParameterError, match="sigma must be"):
        denoising.denoise(np.eye(2), -1.0)


def test_zero_over_zero_passes_unchanged():
    at_edge = np.diag([2.0, 0.0])
    for matrix, sigma in ((at_edge, 1.0 / math.sqrt(2.0)), (np.zeros((2, 3)), 0.0), (np.zeros((2, 3)), 1.0)):
        result = denoising.denoise(matrix, sigma, threshold=1.0)
        np.testing.assert_array_equal(result.matrix, matrix)
        assert not result.applied


def test_the_threshold_gates_the_layer_and_not_its_values():
    matrix = np.diag([3.0, 2.02])
    assert spectral.noise_edge(1.0 / math.sqrt(2.0), 2, 2) == pytest.approx(2.0)
    kept = denoising.denoise(matrix, 1.0 / math.sqrt(2.0), threshold=1.4)
    assert (kept.applied, kept.rank) == (True, 2)
    passed = denoising.denoise(matrix, 1.0 / math.sqrt(2.0), threshold=1.6)
    assert not passed.applied
    assert passed.top_ratio == pytest.approx(1.5)


def test_the_input_is_not_changed():
    matrix = np.diag([3.0, 0.1])
    copy = matrix.copy()
    result = denoising.denoise(matrix, 0.5).matrix
    result[:] = 7.0
    np.testing.assert_array_equal(matrix, copy)


def test_predicted_alignment_of_a_clear_signal():
    noisy, denoised = denoising.predicted_alignment([50.0], 0.01, 10, 20)
    assert noisy == pytest.approx(50.0 / math.hypot(50.0, 0.01 * math.sqrt(200.0)), rel=1e-14)
    assert 0.999 < noisy < denoised < 1.0
    assert denoising.predicted_alignment(1.0, 1.0, 10, 20)[1] == 0.0
    assert denoising.predicted_alignment([9.0, 8.0], 0.0, 2, 5) == pytest.approx((1.0, 1.0))
    assert denoising.predicted_alignment([9.0], 0.0, 1, 1) == pytest.approx((1.0, 1.0))
    for shape in ((2, 5), (5, 2)):
        with pytest.raises(InvalidParameterError, match="at most 2 values"):
            denoising.predicted_alignment([9.0, 8.0, 7.0], 0.0, *shape)


@pytest.mark.parametrize("bad", [[1.0, 2.0, 3.0], [[1.0]], [0.0], [-1.0], []])
def test_predicted_alignment_needs_a_spectrum(bad):
    with pytest.raises(InvalidParameterError, match="singular_values must be"):
        denoising.predicted_alignment(bad, 1.0, 2, 5)


def test_cosine_of_extreme_vectors():
    assert alignment.cosine([1e300, 1e300], [1e-300, 0.0]) == pytest.approx(math.sqrt(0.5))
    assert alignment.cosine(np.eye(2), -np.eye(2)) == pytest.approx(-1.0)
    parallel = np.random.default_rng(3).standard_normal((500, 7))
    assert all(0.999 < alignment.cosine(row, 3.0 * row) <= 1.0 for row in parallel)
    assert all(-1.0 <= alignment.cosine(row, -0.1 * row) < -0.999 for row in parallel)
    with pytest.raises(InvalidParameterError, match="x must be a vector that is not zero"):
        alignment.cosine([0.0], [1.0])
    with pytest.raises(InvalidParameterError, match="sizes must be equal"):
        alignment.cosine([1.0], [1.0, 2.0])


def test_without_equal_norms_the_whole_can_fall():
    target = [[1.0, 0.0], [1.0, 0.0]]
    before, after = [[1.0, 0.1], [1.0, 1.0]], [[10.0, 0.9], [1.0, 0.95]]
    np.testing.assert_allclose(alignment.block_cosines(before, target), [0.9950, 0.7071], atol=5e-5)
    np.testing.assert_allclose(alignment.block_cosines(after, target), [0.9960, 0.7250], atol=5e-5)
    assert not alignment.raises_alignment(before, after, target)
    wholes = [alignment.cosine(blocks, target) for blocks in (before, after)]
    assert wholes == pytest.approx([0.8151, 0.7675], abs=5e-5)


def test_zero_blocks_are_exempt():
    assert alignment.block_cosines([[0.0], [1.0]], [[1.0], [1.0]]).tolist() == [0.0, 1.0]
    assert alignment.raises_alignment([[1.0], [1.0]], [[-1.0], [1.0]], [[0.0], [1.0]])
    assert not alignment.raises_alignment([[1.0], [1.0]], [[-1.0], [1.0]], [[1.0], [1.0]])
    assert not alignment.raises_alignment([[0.0], [1.0]], [[1.0], [1.0]], [[1.0], [1.0]])
    for name in ("before", "after", "target"):
        blocks = {"before": [[1.0]], "after": [[1.0]], "target": [[1.0]]} | {name: [[0.0]]}
        with pytest.raises(InvalidParameterError, match=f"{name} must be blocks"):
            alignment.raises_alignment(**blocks)


@pytest.mark.parametrize(("first", "second"), [([], []), ([[1.0]], [[1.0], [2.0]]), ([[1.0]], [[1.0, 2.0]])])
def test_blocks_must_match(first, second):
    with pytest.raises(InvalidParameterError, match="must be equal"):
        alignment.block_cosines(first, second)


def test_the_printed_bound_of_progress_fails_where_ours_holds():
    gradient, step = [3.0, -1.0], [1.0, 2.0]
    gain = alignment.quadratic_progress(gradient, step, np.eye(2), [1.0, 10.0], 1e-3)
    assert gain == pytest.approx(-0.01720, abs=5e-6)
    bound = alignment.progress_bound(
        alignment.cosine(gradient, step),
        math.sqrt(10.0),
        math.sqrt(5.0),
        learning_rate=1e-3,
        scale_min=1.0,
        scale_max=10.0,
        curvature_max=1.0,
    )
    assert bound < gain < 0.0


def test_progress_checks_its_arguments():
    good = {
        "gradient": [1.0, 2.0],
        "direction": [1.0, 2.0],
        "hessian": np.eye(2),
        "preconditioner": [1.0, 1.0],
        "learning_rate": 0.1,
    }
    for name, bad in (
        ("gradient", [[1.0]]),
        ("direction", [1.0]),
        ("hessian", np.eye(3)),
        ("hessian", [1.0]),
        ("preconditioner", [1.0, 0.0]),
        ("preconditioner", [1.0]),
        ("learning_rate", 0.0),
    ):
        with pytest.raises(InvalidParameterError, match="must be"):
            alignment.quadratic_progress(**(good | {name: bad}))


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("alignment", 1.1),
        ("alignment", -1.1),
        ("gradient_norm", -1.0),
        ("direction_norm", -1.0),
        ("learning_rate", 0.0),
        ("scale_min", 0.0),
        ("scale_max", 0.5),
        ("curvature_max", -1.0),
    ],
)
def test_the_bound_checks_its_arguments(name, bad):
    good = {
        "alignment": 0.5,
        "gradient_norm": 1.0,
        "direction_norm": 1.0,
        "learning_rate": 0.1,
        "scale_min": 1.0,
        "scale_max": 2.0,
        "curvature_max": 1.0,
    }
    with pytest.raises(InvalidParameterError, match=f"{name} must be"):
        alignment.progress_bound(**(good | {name: bad}))


@pytest.mark.parametrize("cosine", [spectral.left_cosine_squared, spectral.right_cosine_squared])
def test_without_noise_every_signal_is_seen_and_nothing_else(cosine):
    np.testing.assert_array_equal(cosine([0.0, 1e-3, 5.0], 0.0, 3, 4), [0.0, 1.0, 1.0])
