import dataclasses
import io

import numpy as np
import pytest
import torch

import dpmech as dm
from dpmech.mechanism import noise_cost
from dpmech.optim import NoiseMode, NoiseStream, PerLayerClipping
from dpmech.optim.noise.rows import correlate
from dpmech.optim.noise.secure_normals import SecureNormals, ZigguratNormals
from tests.support.drawn_noise import DrawnNoise
from tests.support.other_device import There, known, other_device

N = 7
SIGNED = np.array([[2.0, 0, 0, 0], [-1.0, 1.0, 0, 0], [0.5, 0.0, -3.0, 0], [0.0, 0.25, -0.5, 0.125]])
STRATEGIES = [
    dm.Identity(N),
    dm.Identity(1),
    dm.LambdaCGD(N, 0.9),
    dm.LambdaCGD(N, 0.0),
    dm.SquareRoot(N),
    dm.SquareRoot(N, 3),
    dm.InverseSquareRoot(N, 3),
    dm.InverseSquareRoot(N, N),
    dm.BandedToeplitz(N, [2.0, -0.5, 0.25]),
    dm.BandedInverse(N, [0.5, 0.25, 0.0, 0.1]),
    dm.BLT(N, [0.9, 0.5, 0.0], [0.3, -0.2, 0.1]),
    dm.BLT(N, [0.9], [0.0]),
    dm.Diagonal([3.0, 2.0, 0.5]),
    dm.Dense(SIGNED),
    dm.Dense(np.tril(np.triu(np.full((N, N), 0.5), -2)) + np.eye(N)),
    dm.Dense(np.tril(np.ones((5, 5)))),
    dm.ColumnNormalized(dm.LambdaCGD(N, 0.9)),
    dm.ColumnNormalized(dm.SquareRoot(N, 3)),
    dm.ColumnNormalized(dm.InverseSquareRoot(N, 3)),
    dm.ColumnNormalized(dm.BLT(N, [0.9, 0.5], [0.3, 0.2])),
    dm.ColumnNormalized(dm.Dense(SIGNED)),
]
CASES = [
    (strategy, mode)
    for strategy in STRATEGIES
    for mode in NoiseMode
    if mode is not NoiseMode.RECURSION or strategy.bands is not None or "BLT" in repr(strategy)
]
every_case = pytest.mark.parametrize(
    ("strategy", "mode"), CASES, ids=lambda value: getattr(value, "name", repr(value))
)

# Tests for all devices also run on a GPU if there is one.
every_device = pytest.mark.parametrize("device", ["cpu", *["cuda"] * torch.cuda.is_available()])


def calibration(strategy, eps=8.0):
    return dm.calibrate_sigma(strategy, eps, 1e-5)


def independent_rows(key, n, parameter, size, dtype):
    """Z of one parameter, directly from numpy's Philox at the documented counters."""
    rows = []
    for step in range(n):
        chunks = []
        for chunk, start in enumerate(range(0, size, 2**15)):
            bits = np.random.Philox(
                key=np.array(key, dtype=np.uint64),
                counter=np.array([0, chunk, parameter, step], dtype=np.uint64),
            )
            chunks.append(np.random.Generator(bits).standard_normal(min(2**15, size - start), dtype=dtype))
        rows.append(np.concatenate(chunks))
    return np.array(rows, dtype=np.float64)


def all_rows(stream):
    """All rows of a stream, one (n, size) array per parameter."""
    steps = [stream.step() for _ in range(stream.steps_left)]
    return [np.array([row[i].double().cpu().numpy().ravel() for row in steps]) for i in range(len(steps[0]))]


@every_case
def test_rows_are_those_of_the_noising_matrix(strategy, mode):
    cal = calibration(strategy)
    params = [torch.zeros(2, 3, dtype=torch.float64), torch.zeros(5), torch.zeros(0)]
    stream = NoiseStream(cal, params, 0.25, 11, mode=mode)
    assert stream.mode is mode
    key = stream.state_dict()["key"]
    matrix = np.linalg.inv(strategy.to_dense()) * cal.sigma * 0.25
    drawn = all_rows(stream)
    for index, dtype in enumerate([np.float64, np.float32]):
        z = independent_rows(key, strategy.n, index, params[index].numel(), dtype)
        scale = np.abs(matrix) @ np.abs(z) + 1e-300
        assert np.max(np.abs(drawn[index] - matrix @ z) / scale) < 1e-12  # normals of either kind
    assert drawn[2].shape == (strategy.n, 0)


def test_a_seed_gives_the_same_numbers_for_any_parameter_size():
    # Chunks of 2^15 values, each with separate counters: saved runs depend on it.
    cal = calibration(dm.Identity(1))
    stream = NoiseStream(cal, [torch.zeros(2**15 + 3)], 0.5, 11)
    z = independent_rows(stream.state_dict()["key"], 1, 0, 2**15 + 3, np.float32)
    assert all_rows(stream)[0] == pytest.approx(z * cal.sigma * 0.5, rel=1e-12)


@every_device
@every_case
def test_every_mode_gives_the_same_rows(strategy, mode, device):
    params = [torch.zeros(40, 1000, device=device)]
    drawn = [
        all_rows(NoiseStream(calibration(strategy), params, generator=3, mode=other))[0]
        for other in (NoiseMode.REGENERATE, mode)
    ]
    if mode is NoiseMode.BUFFER:
        assert np.array_equal(*drawn)  # bit for bit
    np.testing.assert_allclose(*drawn, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("strategy", "mode", "vectors"),
    [
        (dm.Identity(9), NoiseMode.REGENERATE, 0),
        (dm.LambdaCGD(9, 0.9), NoiseMode.REGENERATE, 0),
        (dm.InverseSquareRoot(9, 4), NoiseMode.REGENERATE, 0),
        (dm.ColumnNormalized(dm.BandedInverse(9, [1.0, -0.5, 0.1])), NoiseMode.REGENERATE, 0),
        (dm.SquareRoot(9), NoiseMode.REGENERATE, 0),
        (dm.SquareRoot(9, 4), NoiseMode.RECURSION, 3),
        (dm.BandedToeplitz(9, [1.0, 0.5]), NoiseMode.RECURSION, 1),
        (dm.BLT(9, [0.9, 0.5], [0.1, 0.1]), NoiseMode.RECURSION, 2),
        (dm.ColumnNormalized(dm.BLT(9, [0.9, 0.5], [0.1, 0.1])), NoiseMode.RECURSION, 2),
        (dm.Dense(np.tril(np.ones((4, 4)))), NoiseMode.REGENERATE, 0),
        (dm.Dense(SIGNED), NoiseMode.RECURSION, 2),  # C has three bands, C^-1 four
    ],
)
def test_the_default_mode_and_its_memory(strategy, mode, vectors):
    stream = NoiseStream(calibration(strategy), [torch.zeros(3)])
    assert stream.mode is mode
    assert [len(state) for state in stream.state_dict()["state"]] == [vectors]
    buffered = NoiseStream(calibration(strategy), [torch.zeros(3)], mode=NoiseMode.BUFFER)
    width = strategy.n if strategy.inverse_bands is None else strategy.inverse_bands
    assert [len(state) for state in buffered.state_dict()["state"]] == [width - 1]


def test_regenerating_allocates_chunks_only():
    stream = NoiseStream(calibration(dm.InverseSquareRoot(9, 4)), [torch.zeros(40, ZigguratNormals.chunk)])
    sums = [torch.zeros(40, ZigguratNormals.chunk)]
    stream.add_step(sums)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        stream.add_step(sums)
    sizes = [event.self_cpu_memory_usage for event in profile.events()]
    assert 0 < max(sizes) <= 4 << 20 < 8 * sums[0].numel()
    assert abs(sum(sizes)) <= 16 * ZigguratNormals.chunk  # at most the last two chunks remain


def test_lambda_zero_is_the_identity():
    drawn = [
        all_rows(NoiseStream(calibration(strategy), [torch.zeros(50)], generator=5))[0]
        for strategy in (dm.LambdaCGD(20, 0.0), dm.Identity(20))
    ]
    # Each is enlarged by its bound on rounding errors.
    np.testing.assert_allclose(*drawn, rtol=1e-13)


def test_rows_are_float64_for_any_parameters():
    params = [
        torch.zeros(2, dtype=kind) for kind in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    ]
    noise = NoiseStream(calibration(dm.Identity(2)), params).step()
    assert [one.dtype for one in noise] == [torch.float64] * 4
    assert not any(one.requires_grad for one in noise)


def test_parameters_and_runs_do_not_share_noise():
    cal = calibration(dm.Identity(50))
    first, second = (NoiseStream(cal, [torch.zeros(100), torch.zeros(100)]) for _ in range(2))
    drawn = np.concatenate([x for stream in (first, second) for x in all_rows(stream)]).ravel()
    # float32 normals of one sign and binade do collide; a shared block would repeat all of its values.
    assert np.unique(drawn).size > 0.99 * drawn.size


def test_adding_equals_returning_for_any_number_of_threads():
    cal, sizes = calibration(dm.LambdaCGD(3, 0.5)), [(300, 1001), (7,)]
    params = [torch.zeros(size) for size in sizes]
    before = torch.get_num_threads()
    rows = []
    for threads in (1, 3):
        stream = NoiseStream(cal, params, 2.0, 1)
        torch.set_num_threads(threads)
        rows.append([stream.step() for _ in range(3)])
        torch.set_num_threads(before)
        stream.close()
    adding = NoiseStream(cal, params, 2.0, 1)
    for expected, found in zip(*rows, strict=True):
        sums = [torch.ones(size) for size in sizes]
        adding.add_step(sums)
        for a, b, c in zip(expected, found, sums, strict=True):
            assert torch.equal(a, b)
            assert torch.equal((1.0 + a).float(), c)


def test_a_clip_norm_a_parameter():
    cal = calibration(dm.LambdaCGD(4, 0.5))
    params = [torch.zeros(6, dtype=torch.float64)] * 1 + [torch.zeros(6, dtype=torch.float64)]
    one, two = DrawnNoise(cal, params, 1.0, 1), DrawnNoise(cal, params, [0.5, 4.0], 1)
    for a, b in zip(one.step(), two.step(), strict=True):
        ratio = (b / a).numpy()
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)
    assert [round(float(x[0]), 9) for x in (one.step()[0] / two.step()[0],)] == [2.0]


# ---- refusals


def test_past_the_horizon():
    stream = NoiseStream(calibration(dm.Identity(2)), [torch.zeros(3)])
    stream.step()
    assert (stream.steps_taken, stream.steps_left, stream.n) == (1, 1, 2)
    stream.step()
    for _ in range(2):
        with pytest.raises(dm.exceptions.HorizonError, match=r"step must be in \[0, 1\], got 2"):
            stream.step()
    with pytest.raises(dm.exceptions.HorizonError):
        stream.add_step([torch.zeros(3)])


PARAM = torch.zeros(3)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ([], "at least one tensor"),
        (torch.zeros(3), "iterable of tensors"),
        (3, "iterable of tensors"),
        ([PARAM, PARAM], "given once"),
        ([np.zeros(3)], r"params\[0\] must be a tensor"),
        ([torch.zeros(3, dtype=torch.complex64)], "real floating-point"),
        ([torch.zeros(3, dtype=torch.int64)], "real floating-point"),
        ([torch.zeros(3, device="meta")], "dense tensor with data"),
        ([torch.eye(3).to_sparse()], "dense tensor with data"),
    ],
)
def test_bad_parameters(params, match):
    with pytest.raises(dm.InvalidParameterError, match=match):
        NoiseStream(calibration(dm.Identity(2)), params)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": float("nan")}, "clip_norm"),
        ({"clip_norm": [1.0, 1.0]}, "1 numbers"),
        ({"clip_norm": [-1.0]}, "clip_norm"),
        ({"generator": "entropy"}, "generator"),
        ({"mode": "regenerate"}, "NoiseMode"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(dm.InvalidParameterError, match=match):
        NoiseStream(calibration(dm.Identity(2)), [torch.zeros(3)], **arguments)


def test_only_calibrations_and_certificates_give_noise():
    with pytest.raises(dm.InvalidParameterError, match=r"calibrate of a TrainingPlan.*Certificate\.load"):
        NoiseStream(1.5, [torch.zeros(3)])
    cal = calibration(dm.Identity(2))
    NoiseStream(cal.certificate(), [torch.zeros(3)], 0.3)
    NoiseStream(cal.certificate(clip_norm=0.5), [torch.zeros(3)], 0.5)
    with pytest.raises(dm.exceptions.CertificateError, match=r"clip_norm is certified as 0\.5, got 1\.0"):
        NoiseStream(cal.certificate(clip_norm=0.5), [torch.zeros(3)])


@pytest.mark.parametrize(
    "strategy", [dm.LambdaCGD(5, 0.5), dm.SquareRoot(5), dm.Dense(np.tril(np.ones((3, 3))))]
)
def test_no_recursion_without_bands(strategy):
    with pytest.raises(dm.UnsupportedCombinationError, match="neither banded nor a BLT"):
        NoiseStream(calibration(strategy), [torch.zeros(3)], mode=NoiseMode.RECURSION)


@pytest.mark.parametrize(
    "sums",
    [
        [],
        [torch.zeros(4)],
        [torch.zeros(3, dtype=torch.bfloat16)],
        [torch.zeros(6)[::2]],
        [torch.zeros(3, device="meta")],
    ],
)
def test_sums_that_do_not_fit(sums):
    with pytest.raises(dm.InvalidParameterError, match="sums"):
        NoiseStream(calibration(dm.Identity(2)), [torch.zeros(3)]).add_step(sums)


def test_an_interrupted_step_ends_the_stream(monkeypatch):
    stream = NoiseStream(calibration(dm.SquareRoot(5, 2)), [torch.zeros(3)])
    stream.step()
    with monkeypatch.context() as patch:
        patch.setattr(SecureNormals, "fill", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            stream.step()
    for call in (stream.step, stream.state_dict, lambda: stream.load_state_dict({})):
        with pytest.raises(dm.NumericalError, match="step 1 of the noise was interrupted"):
            call()


# ---- saving and resuming


@every_device
@every_case
def test_resuming_at_any_step_changes_no_bit(strategy, mode, device):
    cal = calibration(strategy)
    params = [torch.zeros(3, 2, device=device), torch.zeros(4, dtype=torch.float64, device=device)]
    expected = all_rows(NoiseStream(cal, params, 0.5, 9, mode=mode))
    for stop in range(strategy.n + 1):
        first = NoiseStream(cal, params, 0.5, 9, mode=mode)
        for _ in range(stop):
            first.step()
        first.close()
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = NoiseStream(cal.certificate(), params, 0.5, mode=mode)
        second.load_state_dict(torch.load(file, weights_only=True))
        assert second.steps_taken == stop
        if stop < strategy.n:
            for rest, whole in zip(all_rows(second), expected, strict=True):
                assert np.array_equal(rest, whole[stop:])
        with pytest.raises(dm.exceptions.HorizonError):
            second.step()
        second.close()


def test_a_state_is_a_copy():
    stream = NoiseStream(calibration(dm.SquareRoot(9, 3)), [torch.zeros(3)], generator=1)
    stream.step()
    state = stream.state_dict()
    before = [x.clone() for x in state["state"][0]]
    stream.step()
    assert all(torch.equal(a, b) for a, b in zip(before, state["state"][0], strict=True))
    stream.close()
    other = NoiseStream(calibration(dm.SquareRoot(9, 3)), [torch.zeros(3)])
    other.load_state_dict(state)
    other.step()
    assert all(torch.equal(a, b) for a, b in zip(before, state["state"][0], strict=True))


@pytest.mark.skipif(not known(), reason="this torch registers no device from Python")
@pytest.mark.parametrize("ways", [("cpu", "two"), ("two", "cpu")])
def test_devices_that_draw_the_same_numbers_may_become_fewer_or_more(ways):
    def made(way, generator):
        there = torch.zeros(3) if way == "cpu" else There(torch.zeros(3))
        return NoiseStream(calibration(dm.SquareRoot(9, 3)), [there, torch.zeros(2)], generator=generator)

    with other_device():
        first = made(ways[0], 1)
        whole = first.fingerprint()
        first.step()
        state = first.state_dict()
        expected = [one.cpu() for one in first.step()]
        first.close()
        second = made(ways[1], None)
        second.load_state_dict(state)
        found = [one.cpu() for one in second.step()]
        assert second.fingerprint() == whole
        assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


@pytest.mark.skipif(not known(), reason="this torch registers no device from Python")
def test_a_state_takes_no_memory_of_a_device():
    stream = started()
    stream.step()
    rows = stream._rows.vectors
    with other_device():
        stream._rows.vectors = [[There(one) for one in vectors] for vectors in rows]
        state = stream.state_dict()["state"]
    assert all(type(one) is torch.Tensor for vectors in state for one in vectors)
    for copies, vectors in zip(state, rows, strict=True):
        for one, other in zip(copies, vectors, strict=True):
            assert torch.equal(one, other)
            assert one.data_ptr() != other.data_ptr()


def started(strategy=None, **changes):
    options = {"clip_norm": 1.0, "generator": 1, "mode": None} | changes
    strategy = dm.SquareRoot(9, 3) if strategy is None else strategy
    shapes = options.pop("shapes", [(3,), (2,)])
    dtype = options.pop("dtype", torch.float32)
    return NoiseStream(
        calibration(strategy), [torch.zeros(shape, dtype=dtype) for shape in shapes], **options
    )


@pytest.mark.parametrize(
    ("other", "entry"),
    [
        ({"strategy": dm.SquareRoot(9, 4)}, "claim"),
        ({"strategy": dm.SquareRoot(8, 3)}, "claim"),
        ({"clip_norm": 2.0}, "clip_norms"),
        ({"mode": NoiseMode.REGENERATE}, "mode"),
        ({"shapes": [(2,), (3,)]}, "layout"),
        ({"shapes": [(3, 1), (2,)]}, "layout"),
        ({"dtype": torch.float64}, "layout"),
    ],
)
def test_the_state_of_another_run_is_refused(other, entry):
    state = started(**other).state_dict()
    with pytest.raises(
        dm.exceptions.CertificateError, match=f"the state has another {entry} than this stream"
    ) as raised:
        started().load_state_dict(state)
    assert raised.value.claimed == state[entry]


def test_a_state_of_other_numbers_is_refused():
    state = started().state_dict()
    fresh = started(generator=2)
    with pytest.raises(dm.exceptions.CertificateError, match="draw other numbers"):
        fresh.load_state_dict(state | {"fingerprints": ["0" * 64]})
    with pytest.raises(dm.exceptions.CertificateError, match="draw other numbers"):
        fresh.load_state_dict(state | {"fingerprints": [*state["fingerprints"], "0" * 64]})
    with pytest.raises(dm.exceptions.CertificateError, match="draw other numbers"):
        fresh.load_state_dict(state | {"fingerprints": []})
    assert fresh.state_dict()["key"] != state["key"]  # a refused state leaves the stream unchanged


def test_a_stream_never_goes_back():
    stream = started()
    state = stream.state_dict()
    stream.step()
    with pytest.raises(dm.InvalidParameterError, match="use the same noise twice"):
        stream.load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 10},
        {"step": -1},
        {"step": 1.0},
        {"key": [1]},
        {"key": 5},
        {"key": [1, 2**64]},
        {"state": None},
        {"state": []},
        {"state": [[torch.zeros(3)], [torch.zeros(2)]]},
        {"state": [[torch.zeros(3), torch.zeros(2)], [torch.zeros(2)] * 2]},
        {"state": [[torch.zeros(3), 1.0], [torch.zeros(2)] * 2]},
        {"surplus": 1},
        {"fingerprints": None},
    ],
)
def test_malformed_states_are_refused(change):
    state = started().state_dict()
    with pytest.raises(dm.InvalidParameterError, match="state"):
        started().load_state_dict(state | change)
    with pytest.raises(dm.InvalidParameterError, match="state"):
        started().load_state_dict(None)


def test_repr_states_the_assumptions_and_no_secret():
    stream = started()
    text = repr(stream)
    assert "SquareRoot" in text
    assert "clip_norm=1.0, mode=RECURSION, step=0 of 9" in text
    assert str(stream.state_dict()["key"][0]) not in text
    stream.close()
    assert "[1.0, 2.0]" in repr(started(clip_norm=[1.0, 2.0]))


def test_numbers_a_parameter_may_not_fall_below_the_certified_clip_norm():
    """[0.1, 0.1] under a certificate with clip norm 1 used to add a tenth of the noise."""
    certificate = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5).certificate(clip_norm=1.0)
    params = [torch.zeros(2), torch.zeros(3)]
    for norms in ([0.1, 0.1], [1.0, 0.999], PerLayerClipping([0.1, 0.1])):
        with pytest.raises(dm.exceptions.CertificateError, match=r"clip_norm is certified as 1\.0"):
            NoiseStream(certificate, params, norms)
    NoiseStream(certificate, params, [1.0, 2.0]).close()
    NoiseStream(certificate, params, PerLayerClipping([0.6, 0.8])).close()


def test_row_norms_of_the_noise_equal_phi():
    """Phi_t is the exact variance: for Z = I the rows are those of sigma clip C^-1 themselves."""
    strategy = dm.ColumnNormalized(dm.InverseSquareRoot(6, 3))
    cal = calibration(strategy)
    rows = strategy.solve(np.eye(6)) * cal.sigma * 0.5 / 32
    for step in range(6):
        assert cal.noise_variance(step, 0.5, 32) == pytest.approx(float(rows[step] @ rows[step]), rel=1e-12)
    assert dataclasses.replace(cal).fingerprint() == cal.certificate().fingerprint()


# Entry (1, 0) of C is 0, so C^-1 has N - 1 bands and C has two.
TWO_BANDS = dm.Dense(np.eye(N) + np.diag([0.0] + [0.5] * (N - 2), -1))


@pytest.mark.parametrize("strategy", [*STRATEGIES, TWO_BANDS], ids=repr)
def test_noise_cost_counts_the_vectors_that_are_stored(strategy):
    assert correlate(strategy)[1].vectors == noise_cost(strategy).buffers


def test_a_banded_c_is_solved_with_few_vectors_though_its_inverse_has_a_zero():
    mode, recursion = correlate(TWO_BANDS)
    assert mode is NoiseMode.RECURSION
    assert recursion.vectors == 1
