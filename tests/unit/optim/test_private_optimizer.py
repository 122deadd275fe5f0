import copy
import functools
import io
import math
import warnings

import numpy as np
import pytest
import torch

import dpmech as dm
from dpmech.optim import (
    AdamBC,
    ClippedSum,
    ExecutedSteps,
    FlatClipping,
    PerLayerClipping,
    PerMatrixClipping,
    PrivateOptimizer,
    clipped_gradients,
)
from dpmech.optim.clipping.clipped_sum import NonFiniteGradientsWarning
from tests.support import training
from tests.support.drawn_noise import DrawnNoise

N = 6


def calibration(strategy=None):
    return dm.calibrate_sigma(dm.LambdaCGD(N, 0.9) if strategy is None else strategy, 8.0, 1e-5)


def parameters(dtype=torch.float32):
    return training.parameters([(3, 2), (4,), ()], dtype)


def give_samples(params, seed, examples=5):
    training.give_samples(params, seed, examples, scale=2.0)


def private(params=None, *, lr=0.1, cal=None, inner=torch.optim.SGD, **options):
    params = parameters() if params is None else params
    options = {"expected_batch_size": 4, "generator": 1} | options
    return PrivateOptimizer(inner(params, lr=lr), calibration() if cal is None else cal, **options)


def clipped_by_hand(params, clip_norm):
    """Sum over examples of the clipped gradient, in float64."""
    samples = [param.grad_sample.double() for param in params]
    norms = sum(sample.reshape(len(sample), -1).square().sum(1) for sample in samples).sqrt()
    factors = (clip_norm / norms).clamp(max=1.0)
    return [(sample * factors.view(-1, *[1] * (sample.ndim - 1))).sum(0) for sample in samples]


# ---- one step


@pytest.mark.parametrize(
    "strategy", [dm.Identity(N), dm.LambdaCGD(N, 0.9), dm.SquareRoot(N, 2), dm.BLT(N, [0.9], [0.3])]
)
@pytest.mark.parametrize("clip_norm", [0.5, 3.0])
def test_gradients_are_noised_means_of_clipped_examples(strategy, clip_norm):
    cal, params = calibration(strategy), parameters()
    stream = DrawnNoise(cal, params, clip_norm, 1)
    opt = private(params, cal=cal, clip_norm=clip_norm)
    for step in range(N):
        give_samples(params, step)
        sums = clipped_by_hand(params, clip_norm)
        before = [param.detach().clone() for param in params]
        assert opt.step() is None
        for param, total, noise, old in zip(params, sums, stream.step(), before, strict=True):
            expected = (total + noise) / 4
            np.testing.assert_allclose(param.grad.numpy(), expected.numpy(), rtol=1e-4, atol=2e-4)
            np.testing.assert_allclose(
                param.detach().numpy(), (old - 0.1 * param.grad).numpy(), rtol=1e-6, atol=1e-7
            )
            assert param.grad_sample is None
        assert opt.steps_left == N - 1 - step


def test_phi_is_the_variance_of_the_noise_and_reaches_the_groups():
    cal = calibration(dm.ColumnNormalized(dm.LambdaCGD(N, 0.9)))
    params = parameters()
    inner = torch.optim.SGD([{"params": params[:1]}, {"params": params[1:], "lr": 0.5}], lr=0.1)
    opt = PrivateOptimizer(inner, cal, 0.5, 32)
    assert opt.phi == pytest.approx(cal.noise_variance(0, 0.5, 32), rel=1e-12)
    for step in range(N):
        opt.step()
        assert opt.phi == pytest.approx(cal.noise_variance(step, 0.5, 32), rel=1e-12)
        assert [group["phi"] for group in inner.param_groups] == [opt.phi] * 2
        assert type(inner.param_groups[0]["phi"]) is float


def test_rules_read_phi_of_every_step():
    cal, params = calibration(), parameters()
    opt = private(params, cal=cal, inner=AdamBC, clip_norm=0.5, expected_batch_size=32)
    average = 0.0
    for step in range(N):
        opt.step()
        average = 0.999 * average + 0.001 * cal.noise_variance(step, 0.5, 32)
        assert [opt.state[param]["phi_average"] for param in params] == pytest.approx(
            [average] * 3, rel=1e-12
        )


def test_the_noise_has_variance_phi():
    """A step on an empty batch is pure noise: 1e5 coordinates, chi-square to 1e-9 on both sides."""
    cal, size = calibration(), 100_000
    param = torch.nn.Parameter(torch.zeros(size))
    opt = private([param], cal=cal, clip_norm=2.0, expected_batch_size=64)
    slack = 2 * math.sqrt(math.log(4e9) / size) + 2 * math.log(4e9) / size
    for _ in range(N):
        opt.step()
        ratio = float(param.grad.double().square().mean()) / opt.phi
        assert abs(ratio - 1.0) < slack < 0.05
        assert abs(ratio * 1.1 - 1.0) > slack  # noise 5 % too small would be detected


def test_empty_batches_are_steps_of_pure_noise():
    params = parameters()
    stream = DrawnNoise(calibration(), params, 1.0, 1)
    opt = private(params)
    for step in range(N):
        if step % 2:
            for param in params:
                param.grad_sample = torch.zeros(0, *param.shape)
        opt.step()
        for param, noise in zip(params, stream.step(), strict=True):
            assert torch.equal(param.grad, (noise / 4).float())
    with pytest.raises(dm.exceptions.HorizonError, match=r"step must be in \[0, 5\], got 6"):
        opt.step()


def test_the_denominator_is_public_for_any_batch():
    """Trap: an average over the realized number of examples reveals that number."""
    grads = []
    for examples in (1, 7):
        params = parameters(torch.float64)
        opt = private(params, expected_batch_size=4)
        for param in params:
            param.grad_sample = torch.zeros(examples, *param.shape, dtype=torch.float64)
        opt.step()
        opt.close()
        grads.append(torch.cat([param.grad.ravel() for param in params]))
    assert torch.equal(*grads)


def test_lambda_zero_trains_as_dp_sgd_bit_for_bit():
    finals = []
    for strategy in (dm.LambdaCGD(N, 0.0), dm.Identity(N)):
        params = parameters()
        opt = private(params, cal=calibration(strategy))
        for step in range(N):
            give_samples(params, step)
            opt.step()
        opt.close()
        finals.append(torch.cat([param.detach().ravel() for param in params]))
    assert torch.equal(*finals)


def test_accumulation_of_micro_batches():
    finals = []
    for how in ("whole", "parts", "lists"):
        params = parameters()
        opt = private(params)
        for step in range(3):
            give_samples(params, step, examples=9)
            split = [param.grad_sample.split([2, 0, 3, 4]) for param in params]
            if how == "parts":
                for part in zip(*split, strict=True):
                    for param, samples in zip(params, part, strict=True):
                        param.grad_sample = samples
                    opt.accumulate()
                    assert all(param.grad_sample is None for param in params)
            elif how == "lists":
                for param, samples in zip(params, split, strict=True):
                    param.grad_sample = list(samples)  # as left by Opacus after several backward passes
                opt.accumulate(examples=9)
            opt.step()
        opt.close()
        finals.append(params)
    for a, b, c in zip(*finals, strict=True):
        assert torch.equal(a, c)
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_sums_from_the_caller_and_from_torch_func():
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 2)]
    models += [copy.deepcopy(models[0]) for _ in range(2)]
    x = torch.randn(8, 3)

    def loss(model, one):
        return model(one).square().sum()

    total = clipped_gradients(models[0], loss, x, 0.5, microbatch_size=3)
    opt = private(list(models[0].parameters()), clip_norm=0.5)
    opt.accumulate(total)
    opt.step()
    before = total.sums[0].clone()
    opt.accumulate(total)
    opt.step()
    assert torch.equal(total.sums[0], before)  # the caller's tensors are not modified
    opt.close()
    for param, value in zip(models[1].parameters(), total.sums, strict=True):
        param.grad = (value / 8).float()  # as after a mean loss
    params = list(models[1].parameters())
    opt = private(params, clip_norm=0.5)
    opt.accumulate(ClippedSum.from_grads(params, FlatClipping(0.5), scale=8.0, examples=8))
    opt.step()
    opt.accumulate(ClippedSum(params, total.sums, FlatClipping(0.5)))
    opt.step()
    opt.close()
    grads = [torch.autograd.grad(loss(models[2], one), list(models[2].parameters())) for one in x]
    for param, rows in zip(models[2].parameters(), zip(*grads, strict=True), strict=True):
        param.grad_sample = torch.stack(rows)
    opt = private(list(models[2].parameters()), clip_norm=0.5)
    opt.step()
    opt.accumulate(ClippedSum(list(models[2].parameters()), total.sums, FlatClipping(0.5)))
    opt.step()
    for a, b, c in zip(*(model.parameters() for model in models), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(a.detach().numpy(), c.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_dropped_examples_are_counted():
    params = parameters()
    opt = private(params)
    give_samples(params, 0)
    params[0].grad_sample[1, 0, 0] = math.nan
    params[1].grad_sample[3] = math.inf
    with pytest.warns(NonFiniteGradientsWarning, match="2 examples"):
        opt.accumulate()
    give_samples(params, 1)
    opt.step()
    assert opt.dropped_examples == 2
    assert all(torch.isfinite(param).all() for param in params)


def test_loss_scale_is_taken_out_before_clipping():
    plain, scaled = parameters(), parameters()
    give_samples(plain, 0)
    for a, b in zip(plain, scaled, strict=True):
        b.grad_sample = a.grad_sample * 512.0
    private(plain).step()
    private(scaled, loss_scale=512.0).step()
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype):
    params = parameters(dtype)
    noise = DrawnNoise(calibration(), params, 1.0, 1).step()
    opt = private(params)
    opt.step()
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    for param, row in zip(params, noise, strict=True):
        assert param.grad.dtype == dtype
        assert torch.equal(param.grad, (row / 4).to(sums).to(dtype))


def test_gradients_are_laid_out_like_their_parameters():
    param = torch.nn.Parameter(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last))
    noise = DrawnNoise(calibration(), [param], 1.0, 1).step()[0]
    opt = private([param])
    opt.step()
    assert param.grad.stride() == param.stride()
    assert torch.equal(param.grad, (noise / 4).float())


# ---- blocks


def test_per_layer_clipping_bounds_each_layer_with_the_same_noise():
    params = parameters()
    clipping = PerLayerClipping([0.3, 0.4], [0, 1, 1])
    stream = DrawnNoise(calibration(), params, clipping.joint_norm, 1)
    opt = private(params, clipping=clipping)
    assert opt.clip_norm == pytest.approx(0.5)
    give_samples(params, 0)
    sums = [*clipped_by_hand(params[:1], 0.3), *clipped_by_hand(params[1:], 0.4)]
    opt.step()
    for param, total, noise in zip(params, sums, stream.step(), strict=True):
        np.testing.assert_allclose(param.grad.numpy(), ((total + noise) / 4).numpy(), rtol=1e-4, atol=1e-4)
    assert opt.phi == pytest.approx(calibration().noise_variance(0, 0.5, 4), rel=1e-12)


def test_per_matrix_clipping_has_its_own_noise_and_phi():
    cal, params = calibration(), parameters()
    blocks = dm.ledgers.BlockClipping.from_joint([0.3, 2.0], cal.sigma, dimensions=[6, 5])
    inner = torch.optim.SGD([{"params": params[:2]}, {"params": params[2:]}], lr=0.1)
    clipping = PerMatrixClipping(blocks, [0, 1, 1])
    unit = DrawnNoise(cal, params, 1.0 / cal.sigma, 1)
    opt = PrivateOptimizer(inner, cal, blocks.joint_clip_norm, 4, clipping=clipping, generator=1)
    give_samples(params, 0)
    sums = [*clipped_by_hand(params[:1], 0.3), *clipped_by_hand(params[1:], 2.0)]
    opt.step()
    stddevs = [blocks.noise_stddevs[i] for i in (0, 1, 1)]
    for param, total, noise, stddev in zip(params, sums, unit.step(), stddevs, strict=True):
        np.testing.assert_allclose(
            param.grad.numpy(), ((total + noise * stddev) / 4).numpy(), rtol=1e-4, atol=1e-4
        )
    phis = [(stddev / 4) ** 2 for stddev in stddevs]
    assert opt.phi == pytest.approx(phis, rel=1e-12)
    assert inner.param_groups[0]["phi"] == pytest.approx(phis[:2], rel=1e-12)
    assert inner.param_groups[1]["phi"] == pytest.approx(phis[2], rel=1e-12)
    weak = dm.ledgers.BlockClipping([0.3, 2.0], cal.sigma)  # two blocks of one batch: jointly sigma / sqrt(2)
    with pytest.raises(dm.InvalidParameterError, match="joint sigma"):
        private(params, cal=cal, clipping=PerMatrixClipping(weak, [0, 1, 1]))


# ---- as a torch optimizer


def test_schedulers_groups_and_closures():
    params = parameters()
    opt = private(params, lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.5)
    rates, calls = [], []

    def closure():
        assert torch.is_grad_enabled()
        calls.append(len(calls))
        give_samples(params, 0)
        return 1.25

    for _ in range(4):
        opt.zero_grad()
        with torch.no_grad():
            assert opt.step(closure) == 1.25
        rates.append(opt.param_groups[0]["lr"])
        scheduler.step()
    assert rates == [1.0, 1.0, 0.5, 0.5]
    assert calls == [0, 1, 2, 3]
    assert isinstance(opt, torch.optim.Optimizer)
    assert "SGD" in repr(opt)
    assert "EveryStep()" in repr(opt)


@pytest.mark.parametrize(
    "inner",
    [
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Adamax,
        torch.optim.ASGD,
        torch.optim.Rprop,
    ],
)
def test_any_torch_optimizer_sees_private_gradients_only(inner):
    """The wrapped update equals the same optimizer with the private gradients set manually."""
    params, twins = parameters(), parameters()
    opt, twin = private(params, inner=inner, lr=0.01), inner(twins, lr=0.01)
    for step in range(3):
        give_samples(params, step)
        opt.step()
        for param, other in zip(params, twins, strict=True):
            other.grad = param.grad.clone()
        twin.step()
        assert all(torch.equal(a, b) for a, b in zip(params, twins, strict=True))
    assert opt.state is not twin.state
    assert set(opt.state) <= set(params)


def test_hooks_of_the_wrapper_fire():
    opt, seen = private(), []
    opt.register_step_pre_hook(lambda *_: seen.append("before"))
    opt.register_step_post_hook(lambda *_: seen.append("after"))
    opt.step()
    assert seen == ["before", "after"]


def test_zero_grad_clears_the_batch():
    for to_none in (True, False):
        params = parameters()
        noise = DrawnNoise(calibration(), params, 1.0, 1)
        opt = private(params)
        opt.step()
        noise.step()
        give_samples(params, 0)
        opt.accumulate()
        give_samples(params, 1)
        opt.zero_grad(set_to_none=to_none)
        assert all(param.grad_sample is None for param in params)
        opt.step()
        for param, row in zip(params, noise.step(), strict=True):
            assert torch.equal(param.grad, (row / 4).float())
        opt.close()


def test_opacus_per_sample_gradients():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from imports of the package
        opacus = pytest.importorskip("opacus")
        model = opacus.GradSampleModule(torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)))
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(3))
    twin = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
    twin.load_state_dict(model._module.state_dict())
    other, expected = private(list(twin.parameters()), clip_norm=0.2), []
    for step in range(3):
        batch = x[: 10 - 3 * step]
        other.accumulate(clipped_gradients(twin, lambda f, one: f(one).square().sum(), batch, 0.2))
        other.step()
        expected.append([param.detach().clone() for param in twin.parameters()])
    other.close()
    opt = private(list(model.parameters()), clip_norm=0.2)
    for step in range(3):
        batch = x[: 10 - 3 * step]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch on hooks of inputs without gradients
            model(batch).square().sum(1).mean().backward()
        opt.step()
        opt.zero_grad()
        for a, b in zip(model.parameters(), expected[step], strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


def opacus_linear(clip_norm=1.0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from imports of the package
        opacus = pytest.importorskip("opacus")
        model = opacus.GradSampleModule(torch.nn.Linear(4, 1, bias=False))
    return model, private(list(model.parameters()), clip_norm=clip_norm, generator=None)


def passes(model, batches):
    for batch in batches:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch on hooks of inputs without gradients
            (100.0 * model(batch)).mean().backward()


def sum_norm(opt):
    return math.sqrt(sum(float(total.double().square().sum()) for total in opt._batch.take()))


def test_several_backward_passes_over_one_example_count_it_once():
    """Three passes over one example used to give a sum of norm 3 at clip norm 1."""
    one = torch.ones(1, 4)
    model, opt = opacus_linear()
    passes(model, [one] * 3)
    assert len(model._module.weight.grad_sample) == 3
    for call in (opt.accumulate, opt.step):
        with pytest.raises(dm.UnsupportedCombinationError, match="gradients of 3 backward passes"):
            call()
    assert opt.steps_left == N
    opt.accumulate(examples=1)
    assert 0.99 < sum_norm(opt) <= 1.0
    # Small gradients are added, not counted once: the clip norm bounds the sum of an example's passes.
    passes(model, [one * 1e-4, one * 2e-4])
    opt.accumulate(examples=1)
    assert sum_norm(opt) == pytest.approx(0.06, rel=1e-3)


def test_several_backward_passes_over_several_examples():
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(4))
    sums = []
    for batches, options in [
        ([rows[:2], rows[2:4], rows[4:]], {"examples": 6}),  # one call for all
        ([rows], {}),
        ([rows], {"examples": 6}),
        ([rows, rows], {"examples": 6}),  # the same examples: sums of two gradients, clipped
    ]:
        model, opt = opacus_linear()
        passes(model, batches)
        opt.accumulate(**options)
        sums.append(opt._batch.take()[0])
    for other in sums[1:]:
        torch.testing.assert_close(sums[0], other, rtol=1e-4, atol=1e-5)
    model, opt = opacus_linear()
    for part in rows.split(2):  # the documented way: a call after every pass
        passes(model, [part])
        opt.accumulate()
    torch.testing.assert_close(opt._batch.take()[0], sums[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("examples", [0, 1, 3, 5, 12, 18, -6, 6.0, True])
def test_numbers_of_examples_that_do_not_fit_the_rows(examples):
    model, opt = opacus_linear()
    rows = torch.randn(6, 4)
    passes(model, [rows[:2], rows[2:]])
    with pytest.raises(dm.InvalidParameterError, match="examples"):
        opt.accumulate(examples=examples)
    opt.accumulate(examples=6)  # no gradient was removed
    zero = ClippedSum(opt._trained, [torch.zeros(1, 4)], FlatClipping(1.0))
    with pytest.raises(dm.InvalidParameterError, match="None with a ClippedSum"):
        opt.accumulate(zero, examples=6)


# ---- fixed settings


def test_a_certificate_fixes_clip_norm_and_denominator():
    cert = calibration().certificate(clip_norm=0.7, expected_batch_size=128)
    opt = PrivateOptimizer(torch.optim.SGD(parameters(), lr=0.1), cert)
    assert (opt.clip_norm, opt.expected_batch_size, opt.claim) == (0.7, 128.0, cert)
    for name, arguments in (("clip_norm", (0.8, 128)), ("expected_batch_size", (0.7, 127))):
        with pytest.raises(dm.exceptions.CertificateError, match=f"{name} is certified"):
            PrivateOptimizer(torch.optim.SGD(parameters(), lr=0.1), cert, *arguments)
    with pytest.raises(dm.exceptions.CertificateError, match="clip_norm is certified"):
        PrivateOptimizer(torch.optim.SGD(parameters(), lr=0.1), cert, clipping=FlatClipping(0.6))
    free = PrivateOptimizer(torch.optim.SGD(parameters(), lr=0.1), calibration(), expected_batch_size=3)
    assert (free.clip_norm, free.expected_batch_size) == (1.0, 3.0)


def test_fixed_settings_cannot_be_changed():
    opt = private()
    for name in ("clip_norm", "expected_batch_size", "phi", "steps_left", "claim"):
        with pytest.raises(AttributeError):
            setattr(opt, name, 2.0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"expected_batch_size": None}, "expected_batch_size"),
        ({"expected_batch_size": 0}, "expected_batch_size"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"clip_norm": 1.0, "clipping": FlatClipping(2.0)}, "None or the clipping's"),
        ({"clipping": 2.0}, "a Clipping"),
        ({"clipping": PerLayerClipping([1.0, 1.0])}, "for all 3 parameters"),
        ({"loss_scale": 0.0}, "loss_scale"),
        ({"cal": 3.0}, "a Calibration"),
        ({"inner": lambda params, lr: params}, "a torch.optim.Optimizer"),
        ({"inner": lambda params, lr: private(params)}, "not yet private"),
    ],
)
def test_bad_arguments(options, match):
    with pytest.raises(dm.InvalidParameterError, match=match):
        private(**options)


def test_an_optimizer_without_trained_parameters_is_refused():
    params = parameters()
    for param in params:
        param.requires_grad_(False)
    with pytest.raises(dm.InvalidParameterError, match="require gradients"):
        private(params)


def test_optimizers_that_evaluate_several_gradients_are_refused():
    with pytest.raises(dm.UnsupportedCombinationError, match="LBFGS evaluates gradients several times"):
        private(inner=torch.optim.LBFGS)


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (torch.optim.SparseAdam, "SparseAdam updates only the entries .* supported: torch.optim.Adam$"),
        (
            functools.partial(torch.optim.SGD, differentiable=True),
            "SGD with differentiable=True cannot update",
        ),
    ],
)
def test_optimizers_that_no_noise_can_reach_are_refused(inner, words):
    with pytest.raises(dm.UnsupportedCombinationError, match=words):
        private(inner=inner)


def test_the_record_states_the_executed_steps():
    cert = calibration().certificate()
    opt = private(cal=cert)
    opt.step()
    opt.step()
    assert opt.record == ExecutedSteps(claim=cert, steps=2, clip_norm=1.0, expected_batch_size=4.0)


# ---- refusals while training


def test_past_the_horizon_nothing_changes():
    params = parameters()
    opt = private(params)
    for _ in range(N):
        opt.step()
    before = [param.detach().clone() for param in params]
    give_samples(params, 0)
    with pytest.raises(dm.exceptions.HorizonError):
        opt.step()
    assert all(torch.equal(a, b) for a, b in zip(before, params, strict=True))
    assert opt.steps_left == 0


def test_raw_gradients_are_refused():
    params = parameters()
    opt = private(params)
    sum(param.square().sum() for param in params).backward()
    for call in (opt.step, opt.accumulate):
        with pytest.raises(dm.UnsupportedCombinationError, match="no per-example gradients"):
            call()
    opt.zero_grad()
    opt.step()
    opt.step()  # the remaining private gradient is not a raw one
    params[0].square().sum().backward()  # but a raw one added to it is
    with pytest.raises(dm.UnsupportedCombinationError, match=r"parameter 0, of shape \(3, 2\)"):
        opt.step()
    give_samples(params[1:], 0)
    with pytest.raises(dm.UnsupportedCombinationError, match="parameter 0"):
        opt.step()


def test_a_frozen_parameter_with_a_gradient_is_refused():
    for name in ("grad", "grad_sample"):
        params = parameters()
        params[1].requires_grad_(False)
        opt = private(params)
        opt.step()
        assert params[1].grad is None
        params[1].requires_grad_(True)
        setattr(params[1], name, torch.ones(4))
        with pytest.raises(dm.UnsupportedCombinationError, match="frozen parameter 0"):
            opt.step()
        opt.close()


def test_groups_of_frozen_parameters_have_no_noise():
    params = parameters()
    params[0].requires_grad_(False)
    inner = torch.optim.SGD([{"params": params[:1]}, {"params": params[1:]}], lr=0.1)
    opt = PrivateOptimizer(inner, calibration(), 1.0, 4)
    opt.step()
    assert inner.param_groups[0]["phi"] == [0.0]
    assert inner.param_groups[1]["phi"] == opt.phi


def test_parameters_cannot_be_added():
    params = parameters()
    opt = private(params)
    extra = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(dm.UnsupportedCombinationError, match="a parameter group was added"):
        opt.add_param_group({"params": [extra]})
    opt._inner.add_param_group({"params": [extra]})
    with pytest.raises(dm.UnsupportedCombinationError, match="added to or removed from"):
        opt.step()


def test_the_wrapped_optimizer_cannot_be_stepped_or_loaded_behind_its_back():
    opt = private()
    inner = opt._inner
    with pytest.raises(dm.UnsupportedCombinationError, match="stepped directly"):
        inner.step()
    opt.step()
    with pytest.raises(dm.UnsupportedCombinationError, match="stepped directly"):
        inner.step()
    inner.load_state_dict(inner.state_dict())
    with pytest.raises(dm.UnsupportedCombinationError, match="other parameter groups"):
        opt.step()


def test_an_update_that_fails_leaves_the_guard_closed(monkeypatch):
    opt = private()
    inner = opt._inner
    inner.register_step_post_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        opt.step()
    assert opt.steps_left == N - 1  # its noise is spent
    with pytest.raises(dm.UnsupportedCombinationError, match="stepped directly"):
        inner.step()


def test_a_grad_scaler_is_refused():
    params = parameters()
    opt = private(params)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(sum(param.sum() for param in params)).backward()
    give_samples(params, 0)
    with pytest.raises(dm.UnsupportedCombinationError, match="GradScaler"):
        scaler.step(opt)
    assert opt.steps_left == N
    torch.amp.GradScaler("cpu", enabled=False).step(opt)
    assert opt.steps_left == N - 1


@pytest.mark.parametrize(
    ("samples", "match"),
    [
        (torch.zeros(3, 2), r"of shape \(examples"),
        (torch.zeros(3, 2, 3), r"of shape \(examples"),
        ("samples", r"of shape \(examples"),
        ([torch.zeros(3, 3, 2), None], r"of shape \(examples"),
    ],
)
def test_samples_of_other_shapes(samples, match):
    params = parameters()
    params[0].grad_sample = samples
    with pytest.raises(dm.InvalidParameterError, match=match):
        private(params).step()


def test_sums_of_other_parameters():
    params = parameters()
    layered = PerLayerClipping([1.0, 2.0], [0, 1, 1])
    opt = private(params, clipping=layered)
    zeros = [torch.zeros(param.shape) for param in params]
    with pytest.raises(dm.InvalidParameterError, match="a ClippedSum"):
        opt.accumulate(zeros)
    with pytest.raises(dm.InvalidParameterError, match="clipping of the sum"):
        opt.accumulate(ClippedSum(params, zeros, FlatClipping(1.0)))
    with pytest.raises(dm.InvalidParameterError, match="each in the same block"):
        opt.accumulate(ClippedSum(params[::-1], zeros[::-1], layered))
    others = parameters()
    with pytest.raises(dm.InvalidParameterError, match="those of the optimizer"):
        opt.accumulate(ClippedSum(others, zeros, layered))
    give_samples(params, 0)
    with pytest.raises(dm.UnsupportedCombinationError, match="one of the two"):
        opt.accumulate(ClippedSum(params, zeros, layered))


# ---- saving and resuming


def train(opt, params, steps, micro=1):
    for step in steps:
        for part in range(micro):
            give_samples(params, 100 * step + part)
            if part < micro - 1:
                opt.accumulate()
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("strategy", [dm.LambdaCGD(N, 0.9), dm.SquareRoot(N, 3), dm.BLT(N, [0.9], [0.3])])
@pytest.mark.parametrize("inner", [torch.optim.AdamW, AdamBC])
def test_killed_and_resumed_at_any_step_the_weights_are_the_same(inner, strategy, micro):
    def build(generator):
        params = parameters()
        return params, private(params, inner=inner, cal=calibration(strategy), generator=generator)

    params, opt = build(7)
    train(opt, params, range(N), micro)
    opt.close()
    for stop in range(N):
        first, old = build(7)
        train(old, first, range(stop), micro)
        if micro > 1:
            give_samples(first, 100 * stop)
            old.accumulate()  # killed in the middle of a batch
        file = io.BytesIO()
        torch.save({"opt": old.state_dict(), "params": first}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        old.close()
        second, new = build(None)
        with torch.no_grad():
            for param, value in zip(second, saved["params"], strict=True):
                param.copy_(value)
        new.load_state_dict(saved["opt"])
        assert new.steps_left == N - stop
        if micro > 1:
            for part in range(1, micro):
                give_samples(second, 100 * stop + part)
                if part < micro - 1:
                    new.accumulate()
            new.step()
            train(new, second, range(stop + 1, N), micro)
        else:
            train(new, second, range(stop, N))
        assert all(torch.equal(a, b) for a, b in zip(params, second, strict=True))
        new.close()


def test_a_scheduler_survives_a_resume():
    opt = private(lr=1.0)
    opt.step()
    opt.close()
    other = private(lr=1.0, generator=None)
    other.load_state_dict(opt.state_dict())
    scheduler = torch.optim.lr_scheduler.StepLR(other, step_size=1, gamma=0.5)
    other.step()
    scheduler.step()
    assert other._inner.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"cal": dm.calibrate_sigma(dm.LambdaCGD(N, 0.8), 8.0, 1e-5)}, r"another claim .*Certificate\.load"),
        ({"expected_batch_size": 5}, "another expected_batch_size"),
        ({"clip_norm": 2.0}, "another clipping"),
    ],
)
def test_the_state_of_another_certificate_is_refused(options, match):
    state = private(**options).state_dict()
    with pytest.raises(dm.exceptions.CertificateError, match=match):
        private().load_state_dict(state)


def test_invalid_states_are_refused():
    opt = private()
    with pytest.raises(dm.InvalidParameterError, match="'dpmech' entry"):
        opt.load_state_dict(opt._inner.state_dict())
    state = opt.state_dict()
    opt.close()
    for batch in (None, {"sums": []}, {"sums": [None], "dropped": 0}, {"sums": [None] * 3, "dropped": -1}):
        opt = private(generator=2)
        with pytest.raises(dm.InvalidParameterError, match=r"sums|batch|dropped"):
            opt.load_state_dict(state | {"dpmech": state["dpmech"] | {"batch": batch}})
        opt.close()
    opt = private()
    opt.step()
    with pytest.raises(dm.InvalidParameterError, match="noise twice"):
        opt.load_state_dict(state)
