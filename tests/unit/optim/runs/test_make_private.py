import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.optim import (
    BatchOptimizer,
    ClippedSum,
    FlatClipping,
    PerLayerClipping,
    PrivateLoader,
    PrivateOptimizer,
    clipped_gradients,
    load_checkpoint,
    make_private,
    save_checkpoint,
)
from dpmech.optim.runs.per_example_model import check_model
from dpmech.optim.runs.unchanged import Unchanged
from dpmech.schemes.fixed_order.sampler import SequentialSampler
from tests.support import saved
from tests.support.quick_cases import slow_but
from tests.support.training import classification, classifier, cross_entropy, private_run, train, weights

# Opacus' hooks, if the input of the first layer requires no gradient.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

SIZE, N = 20, 12
F = torch.nn.functional


def calibration(participation=None, strategy=None, eps=8.0):
    return dm.calibrate_sigma(
        dm.LambdaCGD(N, 0.5) if strategy is None else strategy,
        eps,
        1e-5,
        participation=dm.MinSep(4) if participation is None else participation,
    )


CAL = calibration()
CALS = {
    "min-sep": CAL,
    "bins": saved.calibration("bins"),
    "poisson": calibration(dm.Poisson(0.1), dm.Identity(N)),
    "cyclic": calibration(dm.CyclicPoisson(0.5, 4), dm.SquareRoot(N, 2)),
    "every": calibration(dm.EveryStep()),
}


def data():
    return classification(SIZE)


def made(cal=CAL, *, model=None, loader=None, functional=True, **options):
    options = {"generator": 1, "rng": 2, "loss": cross_entropy if functional else None} | options
    model = classifier() if model is None else model
    return private_run(cal, model, data() if loader is None else loader, **options)


# ---- the trained weights


@pytest.mark.parametrize("name", list(CALS))
def test_a_run_equals_sampler_and_private_optimizer(name):
    cal = CALS[name]
    loader = DataLoader(data(), batch_size=5) if name == "every" else None
    model, optimizer, private_loader = made(cal, loader=loader)
    found = train(model, optimizer, private_loader)
    optimizer.close()
    reference = classifier()
    by_hand = PrivateOptimizer(
        torch.optim.SGD(reference.parameters(), lr=0.1),
        cal,
        expected_batch_size=private_loader.sampler.expected_batch_size,
        generator=1,
    )
    x, target = data().tensors
    for step in range(N):
        batch = torch.from_numpy(private_loader.sampler.indices(step))
        by_hand.accumulate(clipped_gradients(reference, cross_entropy, (x[batch], target[batch]), 1.0))
        by_hand.step()
    torch.testing.assert_close(found, weights(reference), rtol=1e-6, atol=1e-7)
    record = optimizer.run_record()
    assert record.steps == N
    assert record.certificate.fingerprint() == cal.fingerprint()
    assert record.certificate.clip_norm == 1.0
    assert record.noise.seeded
    assert record.sampler.seeded == cal.participation.random
    assert dm.verify(record).ok


@pytest.mark.parametrize("name", ["min-sep", "bins", "poisson"])
@pytest.mark.parametrize("most", slow_but([None, 1, 2], 2))
def test_opacus_and_functional_gradients_agree_in_physical_batches(name, most):
    functional = train(*made(CALS[name], max_physical_batch_size=most))
    with_hooks = train(*made(CALS[name], functional=False, max_physical_batch_size=most))
    torch.testing.assert_close(functional, with_hooks, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(functional, train(*made(CALS[name])), rtol=1e-5, atol=1e-6)


def test_batch_complete_tells_schedulers_when_to_step():
    _, optimizer, loader = parts = made(functional=False, max_physical_batch_size=2)
    model = parts[0]
    flags = []
    for x, target in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), target).backward()
        flags.append(optimizer.batch_complete)
        optimizer.step()
    assert flags == [False, False, True] * 4
    assert optimizer.record.steps == 4


def test_a_grad_sample_module_is_kept():
    from opacus.grad_sample import GradSampleModule

    wrapped = GradSampleModule(classifier())
    model, _, _ = made(model=wrapped, functional=False)
    assert model is wrapped


def test_padding_is_left_out():
    x, target = data().tensors
    weights_of = torch.tensor([1.0] * 4 + [0.0] * 3)
    model = classifier()
    padded = clipped_gradients(model, cross_entropy, (x[:7], target[:7]), 1.0, weights=weights_of)
    plain = clipped_gradients(model, cross_entropy, (x[:4], target[:4]), 1.0)
    assert padded.examples == 4
    for one, other in zip(padded.sums, plain.sums, strict=True):
        torch.testing.assert_close(one, other)
    for bad in (torch.full((7,), 0.5), torch.ones(6), [1] * 7):
        with pytest.raises(dm.InvalidParameterError, match="weights"):
            clipped_gradients(model, cross_entropy, (x[:7], target[:7]), 1.0, weights=bad)


def test_a_batch_of_padding_alone_is_no_forgotten_one():
    model, optimizer, loader = made()
    x, target = next(iter(loader))
    model.backward(x, target, weights=torch.zeros(len(x)))
    optimizer.step()
    assert optimizer.record.steps == 1


def test_seeds_of_the_system_differ_and_are_recorded():
    records = []
    for _ in range(2):
        model, optimizer, loader = made(CALS["bins"], generator=None, rng=None)
        train(model, optimizer, loader)
        records.append(optimizer.run_record())
    one, other = records
    assert not one.sampler.seeded
    assert not one.noise.seeded
    assert one.sampler.fingerprint != other.sampler.fingerprint
    assert one.noise.fingerprint != other.noise.fingerprint
    again = [made(CALS["bins"])[1].run_record() for _ in range(2)]
    assert again[0] == again[1]
    assert again[0].steps == 0


def test_wrapped_models_are_themselves():
    model, _, _ = made()
    x = data().tensors[0]
    torch.testing.assert_close(model(x), model.module(x))
    assert list(model.state_dict()) == list(classifier().state_dict())
    model.load_state_dict(classifier().state_dict())


# ---- stopping early


@pytest.mark.slow
def test_early_stopping_and_its_price():
    model, optimizer, loader = made(CALS["poisson"])
    train(model, optimizer, loader, steps=5)
    whole = optimizer.run_record()
    assert (whole.steps, whole.executed) == (5, CALS["poisson"].achieved)
    planned = optimizer.run_record(stopped_by_plan=True)
    assert planned.executed.upper < 0.8 * whole.executed.upper
    assert dm.verify(planned).ok
    with pytest.raises(dm.InvalidParameterError, match="stopped_by_plan"):
        optimizer.run_record(stopped_by_plan="yes")


def test_a_certificate_is_filled_in():
    certificate = CAL.certificate()
    model, optimizer, loader = made(certificate, clip_norm=0.5)
    train(model, optimizer, loader, steps=1)
    record = optimizer.run_record()
    assert (record.certificate.clip_norm, record.certificate.expected_batch_size) == (0.5, 5.0)
    layered = made(certificate, clipping=PerLayerClipping([0.3] * 4))[1]
    assert layered.run_record().certificate.clip_norm == pytest.approx(0.6)


# ---- checkpoints


@pytest.mark.parametrize("name", list(CALS))
@pytest.mark.parametrize("stop", slow_but([1, 5, 11], 1))
@pytest.mark.parametrize("functional", [True, False])
def test_a_checkpoint_resumes_bit_for_bit(name, stop, functional, tmp_path):
    loader = DataLoader(data(), batch_size=5) if name == "every" else None
    options = {"loader": loader, "functional": functional}
    whole = made(CALS[name], **options)
    expected = train(*whole)
    first = made(CALS[name], **options)
    train(*first, steps=stop)
    save_checkpoint(tmp_path / "run.pt", *first, extra={"epoch": 3})
    second = made(CALS[name], **options, generator=None, rng=None)
    assert load_checkpoint(tmp_path / "run.pt", *second) == {"epoch": 3}
    assert torch.equal(train(*second), expected)
    saved = first[1].run_record()
    checkpoint_history = dataclasses.replace(saved.checkpoint_history, loads=1)
    assert second[1].run_record() == dataclasses.replace(
        whole[1].run_record(), sampler=saved.sampler, checkpoint_history=checkpoint_history
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_bad_checkpoints(tmp_path):
    parts = made()
    with pytest.raises(dm.InvalidParameterError, match="readable"):
        load_checkpoint(tmp_path / "none.pt", *parts)
    (tmp_path / "junk.pt").write_bytes(b"junk")
    with pytest.raises(dm.InvalidParameterError, match="a checkpoint"):
        load_checkpoint(tmp_path / "junk.pt", *parts)
    torch.save({"format": 4}, tmp_path / "new.pt")
    with pytest.raises(dm.InvalidParameterError, match="format 3"):
        load_checkpoint(tmp_path / "new.pt", *parts)
    with pytest.raises(dm.InvalidParameterError, match="can be written"):
        save_checkpoint(tmp_path / "no" / "run.pt", *parts)
    with pytest.raises(dm.InvalidParameterError, match="can be written"):
        save_checkpoint(tmp_path / "full.pt", *parts, extra=Unwritable())
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
    train(*parts, steps=2)
    save_checkpoint(tmp_path / "run.pt", *parts)
    with pytest.raises(dm.exceptions.CertificateError):
        load_checkpoint(tmp_path / "run.pt", *made(calibration(eps=7.0)))
    optimizer = made()[1]
    with pytest.raises(dm.exceptions.CertificateError, match="loader is at step 0"):
        optimizer.load_state_dict(parts[1].state_dict())


class Unwritable:
    def __reduce__(self):
        raise OSError("disk full")


def test_state_belongs_between_steps(tmp_path):
    model, optimizer, loader = made()
    x, target = next(iter(loader))
    model.backward(x, target)
    with pytest.raises(dm.UnsupportedCombinationError, match="in the middle"):
        save_checkpoint(tmp_path / "run.pt", model, optimizer, loader)


# ---- one example, one clipped gradient; one batch, one step


def test_an_example_counts_once():
    model, optimizer, loader = made()
    x, target = next(iter(loader))
    model.backward(x, target)
    with pytest.raises(dm.UnsupportedCombinationError, match="more examples than the batch holds"):
        model.backward(x, target)
    model, optimizer, loader = made(functional=False)
    x, target = next(iter(loader))
    for _ in range(2):
        F.cross_entropy(model(x), target).backward()
    with pytest.raises(dm.UnsupportedCombinationError, match="more examples than the batch holds"):
        optimizer.step()
    model, optimizer, loader = made()
    next(iter(loader))
    x, target = data().tensors
    with pytest.raises(dm.UnsupportedCombinationError, match="more examples than the batch holds"):
        model.backward(x, target)


def test_parts_of_a_batch_are_not_passed_one_by_one():
    """Nobody would know whether they are different parts."""
    model, _, loader = made()
    x, target = next(iter(loader))
    model.backward(x[:1], target[:1])
    with pytest.raises(dm.UnsupportedCombinationError, match="a second backward pass for one batch"):
        model.backward(x[:1], target[:1])
    model, _, loader = made()
    x, target = next(iter(loader))
    first = torch.zeros(len(x))
    first[0] = 1.0
    model.backward(x, target, weights=first)
    with pytest.raises(dm.UnsupportedCombinationError, match="a second backward pass for one batch"):
        model.backward(x, target, weights=first)


def test_sums_without_a_count_are_taken_for_the_batch():
    _, optimizer, loader = made()
    next(iter(loader))
    params = optimizer.param_groups[0]["params"]
    total = ClippedSum(params, [torch.zeros_like(p) for p in params], FlatClipping(1.0))
    optimizer.accumulate(total)
    with pytest.raises(dm.UnsupportedCombinationError, match="more examples than the batch holds"):
        optimizer.accumulate(total)
    optimizer.step()
    assert optimizer.record.steps == 1


def test_steps_belong_to_batches():
    model, optimizer, loader = made()
    with pytest.raises(dm.UnsupportedCombinationError, match="without a batch"):
        optimizer.step()
    batches = iter(loader)
    x, target = next(batches)
    with pytest.raises(dm.UnsupportedCombinationError, match="before the backward pass"):
        optimizer.step()
    model.backward(x, target)
    optimizer.step()
    with pytest.raises(dm.UnsupportedCombinationError, match="1 steps were taken on 1 batches"):
        optimizer.step()
    next(batches)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"before optimizer\.step"):
        next(batches)


def test_hooks_run_once_a_step():
    """Torch wraps `step` of every class that was ever instantiated."""
    PrivateOptimizer(torch.optim.SGD(classifier().parameters(), lr=0.1), CAL, expected_batch_size=5)
    model, optimizer, loader = made()
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    train(model, optimizer, loader, steps=2)
    assert seen == ["before", "after"] * 2


def test_closures_only_with_full_batches():
    model, optimizer, loader = made(functional=False)
    batches = iter(loader)
    x, target = next(batches)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) > 0.0
    model, optimizer, loader = made(functional=False, max_physical_batch_size=2)
    x, target = next(iter(loader))
    with pytest.raises(dm.UnsupportedCombinationError, match="closure"):
        optimizer.step(closure)


def test_past_the_horizon():
    model, optimizer, loader = made()
    train(model, optimizer, loader)
    with pytest.raises(dm.exceptions.HorizonError):
        next(iter(loader))


def test_empty_batches_are_steps_of_noise():
    cal = calibration(dm.Poisson(1e-6), dm.Identity(N))
    for functional in (True, False):
        model, optimizer, loader = made(cal, functional=functional)
        start = weights(model)
        found = train(model, optimizer, loader)
        assert optimizer.record.steps == N
        assert torch.isfinite(found).all()
        assert not torch.equal(found, start)


# ---- refusals before the first step


def batch_norm():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"loader": lambda: DataLoader(data(), shuffle=True)}, "the loader shuffles"),
        (
            {
                "loader": lambda: DataLoader(
                    data(), sampler=torch.utils.data.WeightedRandomSampler([1.0] * SIZE, 5)
                )
            },
            "WeightedRandomSampler",
        ),
        (
            {"loader": lambda: DataLoader(data(), sampler=torch.utils.data.DistributedSampler(data(), 2, 0))},
            "DistributedSampler",
        ),
        (
            {"loader": lambda: DataLoader(data(), batch_sampler=[[0, 1], [2]])},
            "makes its own batches; .* with accelerate, make_private before prepare",
        ),
        ({"loader": lambda: DataLoader(data(), batch_size=None)}, "makes its own batches"),
        ({"model": batch_norm}, "BatchNorm1d"),
    ],
)
def test_unsupported_set_ups(options, match):
    with pytest.raises(dm.UnsupportedCombinationError, match=match):
        made(**{name: build() for name, build in options.items()})


def batched_loss(model, x, target):
    return F.cross_entropy(model(x[None]), target[None])


def test_batch_norm_in_eval_mode_is_a_fixed_layer():
    model = batch_norm().eval()
    for param in model[1].parameters():
        param.requires_grad_(False)
    private, _, loader = made(model=model, loss=batched_loss)
    features, targets = next(iter(loader))
    private.backward(features, targets)


@pytest.mark.parametrize("functional", [True, False])
def test_batch_norm_put_back_into_training_is_refused(functional):
    model = batch_norm().eval()
    for param in model[1].parameters():
        param.requires_grad_(False)
    private, _, loader = made(model=model, loss=batched_loss if functional else None)
    features, targets = next(iter(loader))
    private(features)
    private.train()
    before = model[1].running_mean.clone()
    with pytest.raises(dm.UnsupportedCombinationError, match="BatchNorm1d layer mixes examples"):
        private.backward(features, targets) if functional else private(features)
    assert torch.equal(model[1].running_mean, before)


@pytest.mark.parametrize(
    ("layer", "fault"),
    [
        (torch.nn.BatchNorm1d(4, track_running_stats=False).eval(), "BatchNorm1d layer mixes examples"),
        (torch.nn.SyncBatchNorm(4), "mixes examples, .*, and keeps running statistics"),
        (torch.nn.InstanceNorm1d(4, affine=True, track_running_stats=True), "layer keeps running statistics"),
        (torch.nn.InstanceNorm1d(4, affine=True), None),
        (torch.nn.InstanceNorm1d(4, affine=True, track_running_stats=True).eval(), None),
        (torch.nn.BatchNorm1d(4).eval(), None),
    ],
    ids=str,
)
def test_layers_with_statistics(layer, fault):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), layer)
    params = list(model.parameters())
    if fault is None:
        assert check_model(model, params) is model
    else:
        with pytest.raises(dm.UnsupportedCombinationError, match=fault):
            check_model(model, params)


@pytest.mark.parametrize(
    ("cal", "options", "match"),
    [
        (CAL.certificate(clip_norm=0.5), {"clip_norm": 1.0}, "clip_norm is certified as 0.5"),
        (CAL.certificate(expected_batch_size=9), {}, "certificate's expected_batch_size is 9"),
        (CAL, {"expected_batch_size": 9}, "expected_batch_size is 9"),
        (CAL, {"loader": DataLoader(data(), batch_size=9)}, "loader's batch_size, times processes is 9"),
        (CALS["bins"], {"loader": DataLoader(data(), batch_size=9)}, "is 9, which .*BallsInBins"),
        (
            CALS["poisson"],
            {"loader": DataLoader(data(), batch_size=9)},
            r"differs from the dataset by more than 10%\. .* Give the batch size of the plan, all",
        ),
        (
            CAL.certificate(expected_batch_size=5),
            {"expected_batch_size": 5.5},
            "expected_batch_size is certified",
        ),
    ],
)
def test_other_numbers_than_certified(cal, options, match):
    with pytest.raises(dm.exceptions.CertificateError, match=match):
        made(cal, **options)


@pytest.mark.parametrize("size", [4.6, 5, 5.9])
def test_sizes_may_be_rounded(size):
    assert made(expected_batch_size=size)[1].expected_batch_size == size
    assert made(loader=DataLoader(data(), batch_size=5))[1].expected_batch_size == 5.0
    assert made(CAL.certificate(expected_batch_size=size))[1].expected_batch_size == size


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": 3}, "model"),
        ({"optimizer": 3}, "optimizer"),
        ({"loader": 3}, "loader"),
        ({"calibration": 3}, "calibration"),
        ({"loss": 3}, "loss"),
        (
            {"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)},
            "1 parameters that are not",
        ),
        ({"max_physical_batch_size": 0}, "size"),
    ],
)
def test_bad_arguments(change, match):
    model = classifier()
    given = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": DataLoader(data()),
        "calibration": CAL,
        "loss": None,
        "expected_batch_size": 5,
    }
    with pytest.raises(
        (dm.InvalidParameterError, AttributeError) if change.get("model") else dm.InvalidParameterError,
        match=match,
    ):
        make_private(**(given | change))


def test_parameters_that_the_optimizer_leaves_out():
    model = classifier()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(dm.InvalidParameterError, match="without 2"):
        make_private(model, optimizer, DataLoader(data()), CAL, loss=cross_entropy)


def test_data_parallel_models_are_refused(monkeypatch):
    class Fake(torch.nn.parallel.DistributedDataParallel):
        def __init__(self):
            torch.nn.Module.__init__(self)

    with pytest.raises(dm.UnsupportedCombinationError, match="averages gradients before"):
        make_private(
            Fake(),
            torch.optim.SGD(classifier().parameters(), lr=0.1),
            DataLoader(data()),
            CAL,
            loss=cross_entropy,
        )
    for functional in (True, False):
        with pytest.raises(dm.UnsupportedCombinationError, match="DataParallel copies the model"):
            made(model=torch.nn.DataParallel(classifier()), functional=functional)


def test_a_loss_that_calls_backward_is_refused_with_advice():
    model, optimizer, loader = made()
    inputs, targets = next(iter(loader))
    F.cross_entropy(model(inputs), targets).backward()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"model\.backward\(inputs, targets\) instead"):
        optimizer.step()


def test_gradients_that_were_clipped_by_the_loop_are_refused_with_the_reason():
    model, optimizer, loader = made(functional=False)
    inputs, targets = next(iter(loader))
    F.cross_entropy(model(inputs), targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(dm.UnsupportedCombinationError, match="no clip_grad_norm_ or clip_grad_value_"):
        optimizer.step()


def test_without_opacus(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "opacus.grad_sample", None)
    with pytest.raises(dm.exceptions.MissingDependencyError, match=r"\.\[opacus\]"):
        made(functional=False)


def test_a_loader_of_another_certificate():
    model = classifier()
    loader = PrivateLoader(DataLoader(data()), SequentialSampler(SIZE, dm.MinSep(2), N))
    with pytest.raises(dm.exceptions.CertificateError, match="certified is MinSep"):
        BatchOptimizer(
            loader,
            torch.optim.SGD(model.parameters(), lr=0.1),
            CAL,
            expected_batch_size=5,
            dataset_size=None,
            unchanged=Unchanged(model, list(model.parameters())),
        )


def test_shuffling_is_open_to_every_step():
    model, optimizer, loader = made(CALS["every"], loader=DataLoader(data(), batch_size=5, shuffle=True))
    assert loader.sampler.reshuffled
    train(model, optimizer, loader)
    orders = {tuple(loader.sampler.indices(step).tolist()) for step in (0, 4, 8)}
    assert len(orders) == 3


def test_wrong_participations_are_not_recorded():
    model, optimizer, loader = made()
    train(model, optimizer, loader, steps=3)
    loader.tracker.record(3, np.array([3]))
    with pytest.raises(dm.exceptions.CertificateError, match="3 steps were taken on 4 batches"):
        optimizer.run_record()


def test_forged_claims_are_refused_in_the_record():
    model, optimizer, loader = made()
    train(model, optimizer, loader)
    optimizer._claim = dataclasses.replace(CAL, achieved=CAL.achieved.scaled(0.5))
    with pytest.raises(dm.exceptions.CertificateError, match="was edited after it was computed"):
        optimizer.run_record()
    optimizer._claim = with_checksum(optimizer._claim)
    record = optimizer.run_record()
    assert not dm.verify(record).ok


def test_models_are_not_copied():
    model = classifier()
    before = copy.deepcopy(model.state_dict())
    private, optimizer, loader = made(model=model)
    train(private, optimizer, loader, steps=1)
    assert any(not torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"expected_batch_size": "8"}, "expected_batch_size"),
        ({"max_physical_batch_size": 0}, "max_physical_batch_size"),
        ({"max_physical_batch_size": 2.5}, "max_physical_batch_size"),
        ({"public_buffers": 3}, "public_buffers"),
        ({"clip_norm": "1", "clipping": PerLayerClipping([0.6, 0.8])}, "clip_norm"),
    ],
)
def test_bad_arguments_are_named_before_the_first_step(options, name):
    model = torch.nn.Linear(3, 2)
    with pytest.raises(dm.InvalidParameterError, match=name):
        made(model=model, **options)
