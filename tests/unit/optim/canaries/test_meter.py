"""The noise meter in real runs: every way to train and to resume, and faults behind the optimizer's back."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dpmech as dm
import dpmech.optim
from dpmech.exceptions import CertificateError
from dpmech.optim import (
    AdaptiveClip,
    FlatClipping,
    NoiseMeter,
    PerLayerClipping,
    PerMatrixClipping,
    PrivateOptimizer,
    load_checkpoint,
    make_private,
    save_checkpoint,
)
from tests.support.trainers import SIZE, Classifier, Rows

BLOCK = 2000
N, EPOCH = 12, 4
BATCH = SIZE // EPOCH
CAL = dm.calibrate_sigma(
    dm.LambdaCGD(N, 0.5), 8.0, 1e-5, participation=dm.MinSep(EPOCH), expected_batch_size=BATCH
)
CRITERION = torch.nn.CrossEntropyLoss()


class Measured(Classifier):
    """A model with a block of values that its loss does not use."""

    def __init__(self, dtype=torch.float32):
        super().__init__(0.0)
        self.noise_block = torch.nn.Parameter(torch.zeros(BLOCK, dtype=dtype))


class Plain(Measured):
    """Returns logits."""

    def forward(self, inputs):
        return super().forward(inputs)["logits"]


def rows():
    return TensorDataset(Rows().inputs, Rows().labels)


def run(cal=CAL, model=None, clip_norm=0.5, *, inner=torch.optim.SGD, generator=1, **options):
    model = Plain() if model is None else model
    sgd = inner(model.parameters(), lr=0.1)
    private, optimizer, loader = make_private(
        model,
        sgd,
        DataLoader(rows(), batch_size=BATCH),
        cal,
        clip_norm,
        generator=generator,
        rng=2,
        **options,
    )
    return private, optimizer, loader, NoiseMeter(optimizer, model.noise_block)


def train(private, optimizer, loader, *, hooks=False, until=N):
    while optimizer.record.steps < until:
        for inputs, labels in loader:
            if hooks:
                optimizer.zero_grad()
                CRITERION(private(inputs), labels).backward()
            else:
                private.backward(inputs, labels)
            optimizer.step()
            if optimizer.record.steps == until:
                break


@pytest.mark.parametrize(
    "options",
    [
        {"loss": CRITERION, "clipping_mode": "per_example"},
        {"loss": CRITERION, "clipping_mode": "ghost"},
        {"loss": CRITERION, "clip_norm": AdaptiveClip(initial=0.2)},
        {"loss": CRITERION, "inner": lambda params, lr: torch.optim.AdamW(params, lr=lr, weight_decay=0.5)},
        {"loss": CRITERION, "max_physical_batch_size": 2},
        {"hooks": True},
        {"hooks": True, "clipping_mode": "ghost"},
    ],
    ids=["per example", "ghost", "adaptive clip", "weight decay", "microbatches", "hooks", "hooks, ghost"],
)
def test_every_way_of_training(options):
    given = dict(options)
    hooks = given.pop("hooks", False)
    private, optimizer, loader, meter = run(**given)
    train(private, optimizer, loader, hooks=hooks)
    found = meter.audit()
    assert not found.refuted
    assert found.values == N * BLOCK
    assert found.interval[1] - found.interval[0] < 0.07


def test_blocks_with_norms_of_their_own():
    model = Plain()
    clipping = PerLayerClipping.split(0.5, model.parameters())
    private, optimizer, loader, meter = run(model=model, clipping=clipping, loss=CRITERION)
    train(private, optimizer, loader)
    assert not meter.audit().refuted


@pytest.mark.parametrize(
    "strategy", [dm.Identity(N), dm.BLT(N, [0.9, 0.5], [0.2, 0.1])], ids=["white", "blt"]
)
def test_other_strategies_and_rules(strategy):
    cal = dm.calibrate_sigma(strategy, 8.0, 1e-5, participation=dm.MinSep(EPOCH), expected_batch_size=BATCH)
    private, optimizer, loader, meter = run(
        cal, inner=lambda params, lr: torch.optim.Adam(params, lr=lr), loss=CRITERION
    )
    train(private, optimizer, loader)
    assert not meter.audit().refuted


def test_weights_in_half_precision():
    private, optimizer, loader, meter = run(model=Plain(torch.bfloat16), loss=CRITERION)
    train(private, optimizer, loader)
    found = meter.audit()
    assert meter.released.dtype == torch.bfloat16
    assert not found.refuted
    assert "resolution" not in found.p_values


def test_a_mask_reads_values_that_are_never_used():
    """Columns of a weight whose inputs are 0."""
    weight = torch.nn.Parameter(torch.zeros(2, 3000))
    mask = torch.zeros(2, 3000, dtype=torch.bool)
    mask[:, 1:] = True
    optimizer = PrivateOptimizer(torch.optim.SGD([weight], lr=0.1), CAL, 1.0, BATCH, generator=1)
    meter = NoiseMeter(optimizer, weight, mask)
    for _ in range(N):
        weight.grad_sample = torch.zeros(BATCH, 2, 3000)
        weight.grad_sample[:, :, 0] = 1.0
        optimizer.step()
    assert meter.released.shape == (N, 5998)
    assert not meter.audit().refuted


# ---- faults


def halved(optimizer):
    optimizer._stream._rows._factors = [0.5 * one for one in optimizer._stream._rows._factors]


def other_batch_size(optimizer):
    optimizer._batch_size = 1.2 * optimizer._batch_size


def same_row_again(optimizer):
    """As after a resume that restores the step of the stream's counter only for the batches."""
    form = optimizer._stream._rows.form
    optimizer._stream._rows.form = lambda step, *rest: form(step % 6, *rest)


def white(optimizer):
    """Rows of Z instead of C^-1 Z."""

    def advance(step, factor, draw, chunk):
        draw(step, chunk.spare)
        chunk.out.copy_(chunk.spare).mul_(factor)

    optimizer._stream._rows._recursion.advance = advance


def test_the_run_record_says_what_was_measured(tmp_path):
    private, optimizer, loader, meter = run(loss=CRITERION)
    assert optimizer.run_record().noise_check is None
    train(private, optimizer, loader, until=6)
    assert optimizer.run_record().noise_check.steps == 6
    halved(optimizer)
    train(private, optimizer, loader)
    said = optimizer.run_record().noise_check
    assert said.findings == meter.audit().findings
    assert said.ratio < 0.9
    optimizer.run_record().save(tmp_path / "run.json")
    (failure,) = dm.verify(tmp_path / "run.json").failures
    assert str(said) in failure


@pytest.mark.parametrize(
    ("fault", "test"),
    [(halved, "scale"), (other_batch_size, "scale"), (same_row_again, "repeats"), (white, "lags")],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_fault_of_the_optimizer_is_found(fault, test):
    private, optimizer, loader, meter = run(loss=CRITERION)
    fault(optimizer)
    train(private, optimizer, loader)
    assert test in meter.audit().findings


@pytest.mark.parametrize("factor", [1.0, 0.99])
def test_one_percent_is_found_in_a_run(factor):
    """A million values of the optimizer's own noise."""
    weight, block = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(1_000_000 // N + 1))
    optimizer = PrivateOptimizer(torch.optim.SGD([weight, block], lr=0.1), CAL, 1.0, BATCH, generator=1)
    optimizer._stream._rows._factors = [factor * one for one in optimizer._stream._rows._factors]
    meter = NoiseMeter(optimizer, block)
    for _ in range(N):
        optimizer.step()
    found = meter.audit()
    assert found.findings == (("scale",) if factor < 1.0 else ())
    assert found.ratio == pytest.approx(factor, abs=0.005)


def test_a_hook_of_the_inner_optimizer_does_not_matter():
    """The meter reads what was released, before a denoiser or a rule changes it."""
    private, optimizer, loader, meter = run(loss=CRITERION)

    def shrink(inner, *_):
        for group in inner.param_groups:
            for param in group["params"]:
                param.grad.mul_(0.1)

    optimizer._inner.register_step_pre_hook(shrink)
    train(private, optimizer, loader)
    assert not meter.audit().refuted


# ---- resuming


@pytest.mark.parametrize("late", [False, True], ids=["meter first", "checkpoint first"])
def test_a_resumed_run_is_metered_as_a_whole(late, tmp_path):
    private, optimizer, loader, meter = run(loss=CRITERION)
    train(private, optimizer, loader, until=7)
    save_checkpoint(tmp_path / "run.pt", private, optimizer, loader)
    train(private, optimizer, loader)
    whole = meter.released
    optimizer.close()
    model = Plain()
    again, resumed, batches = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(rows(), batch_size=BATCH),
        CAL,
        0.5,
        loss=CRITERION,
        generator=1,
        rng=2,
    )
    early = None if late else NoiseMeter(resumed, model.noise_block)
    load_checkpoint(tmp_path / "run.pt", again, resumed, batches)
    follower = NoiseMeter(resumed, model.noise_block) if early is None else early
    train(again, resumed, batches)
    assert torch.equal(follower.released, whole)
    assert not follower.audit().refuted


def test_a_run_that_was_not_metered_from_the_start_is_refused():
    model = Plain()
    private, optimizer, loader, _ = run(model=model, loss=CRITERION)
    train(private, optimizer, loader, until=3)
    with pytest.raises(dm.UnsupportedCombinationError, match="after step 3 only 0"):
        NoiseMeter(optimizer, model.noise_block)


def test_a_parameter_that_is_frozen_later_is_refused():
    weight, block = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(50))
    optimizer = PrivateOptimizer(torch.optim.SGD([weight, block], lr=0.1), CAL, 1.0, BATCH, generator=1)
    meter = NoiseMeter(optimizer, block)
    optimizer.step()
    block.requires_grad_(requires_grad=False)
    before = weight.detach().clone()
    with pytest.raises(dm.UnsupportedCombinationError, match="after step 2 only 1"):
        optimizer.step()
    assert torch.equal(weight, before)
    with pytest.raises(dm.UnsupportedCombinationError, match="after step 2 only 1"):
        meter.audit()


def test_a_parameter_frozen_before_the_meter_moves_no_other():
    """Every matrix has a noise of its own, which is compared with that of the metered one."""
    params = [torch.nn.Parameter(torch.zeros(size)) for size in (2, 3, BLOCK)]
    clipping = PerMatrixClipping(dm.ledgers.BlockClipping([0.5, 0.1, 0.3], [9.0, 30.0, 12.0]))
    optimizer = PrivateOptimizer(
        torch.optim.SGD(params, lr=0.1), CAL, clipping=clipping, expected_batch_size=BATCH, generator=1
    )
    params[0].requires_grad_(False)
    meter = NoiseMeter(optimizer, params[2])
    for _ in range(N):
        for param in params[1:]:
            param.grad_sample = torch.zeros(2, param.numel())
        optimizer.step()
    assert 0.97 < meter.audit().ratio < 1.03
    with pytest.raises(dm.InvalidParameterError, match="parameter must be one that the optimizer trains"):
        NoiseMeter(optimizer, params[0])


def test_a_checkpoint_without_the_meter_is_refused(tmp_path):
    """The record of such a run would not say that its meter saw a part only."""
    private, optimizer, loader, _ = run(loss=CRITERION)
    optimizer._meters.clear()
    train(private, optimizer, loader, until=7)
    save_checkpoint(tmp_path / "run.pt", private, optimizer, loader)
    optimizer.close()
    again, resumed, batches, _ = run(loss=CRITERION)
    load_checkpoint(tmp_path / "run.pt", again, resumed, batches)
    with pytest.raises(dm.UnsupportedCombinationError, match="after step 7 only 0"):
        resumed.run_record()
    with pytest.raises(dm.UnsupportedCombinationError, match="after step 8 only 0"):
        train(again, resumed, batches)


@pytest.mark.parametrize("way", ["flat", "blocks", "adaptive"])
def test_noise_that_is_too_small_for_the_clip_norms_is_refused(way, monkeypatch):
    """The stream and what it says of itself agree, so that only the clip norms can tell."""
    clipping = dpmech.optim.PerLayerClipping if way == "blocks" else FlatClipping
    if way == "adaptive":
        least = AdaptiveClip.gradient_sigma
        monkeypatch.setattr(AdaptiveClip, "gradient_sigma", lambda self, sigma: 0.5 * least(self, sigma))
    else:
        told = clipping.noise_norms
        monkeypatch.setattr(
            clipping, "noise_norms", lambda self, *args: tuple(0.99 * one for one in told(self, *args))
        )
    model = Plain()
    options = {"clipping": PerLayerClipping.split(0.5, model.parameters())} if way == "blocks" else {}
    norm = AdaptiveClip(initial=0.5) if way == "adaptive" else 0.5
    private, optimizer, loader, _ = run(
        model=model, clip_norm=None if options else norm, loss=CRITERION, **options
    )
    with pytest.raises(CertificateError, match="noise is too small"):
        train(private, optimizer, loader)


def test_bad_arguments_are_named():
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = PrivateOptimizer(torch.optim.SGD([weight], lr=0.1), CAL, 1.0, BATCH, generator=1)
    wrong = dm.InvalidParameterError
    with pytest.raises(wrong, match="optimizer"):
        NoiseMeter(torch.optim.SGD([weight], lr=0.1), weight)
    with pytest.raises(wrong, match="parameter"):
        NoiseMeter(optimizer, torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(wrong, match="mask"):
        NoiseMeter(optimizer, weight, torch.ones(3))
    with pytest.raises(wrong, match="1 values"):
        NoiseMeter(optimizer, weight, torch.tensor([True, False, False]))
    with pytest.raises(wrong, match="released"):
        NoiseMeter(optimizer, weight).audit()
    with pytest.raises(wrong, match="3 that were recorded"):
        NoiseMeter(optimizer, weight, torch.tensor([True, True, False])).load_state_dict(
            {"released": torch.zeros(1, 3), "units": [1.0]}
        )


def test_a_lattice_is_refused():
    white_noise = dm.calibrate_sigma(dm.Identity(3), 8.0, 1e-5)
    weight = torch.nn.Parameter(torch.zeros(50))
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weight], lr=0.1), white_noise, 1.0, BATCH, generator="secure-lattice"
    )
    meter = NoiseMeter(optimizer, weight)
    optimizer.step()
    with pytest.raises(dm.UnsupportedCombinationError, match="secure-lattice"):
        meter.audit()


# ---- integrations


@pytest.mark.slow
def test_in_a_trainer_that_is_resumed(tmp_path):
    transformers = pytest.importorskip("transformers")
    hf = pytest.importorskip("dpmech.optim.hf")

    def trainer(**options):
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=BATCH,
            num_train_epochs=3,
            save_strategy="steps",
            save_steps=5,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            learning_rate=0.1,
            optim="sgd",
            **options,
        )
        privacy = hf.Privacy(CAL, clip_norm=0.5, generator=1, rng=2)
        one = hf.PrivateTrainer(model=Measured(), args=args, train_dataset=Rows(), privacy=privacy)
        return one, NoiseMeter(one.run[1], one.model.noise_block)

    first, meter = trainer()
    first.train()
    first.run[1].close()
    second, resumed = trainer()
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert torch.equal(resumed.released, meter.released)
    found = resumed.audit()
    assert not found.refuted
    assert found.values == N * BLOCK


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*")
def test_in_lightning():
    lightning = pytest.importorskip("lightning")
    from dpmech.optim.lightning import PrivateTraining

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Measured()

        def forward(self, **batch):
            return self.net(**batch)

        def training_step(self, batch, index):
            raise AssertionError("the loss of one example is the step")

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    class Metering(lightning.Callback):
        def on_train_start(self, trainer, module):
            self.meter = NoiseMeter(one.run[1], module.net.noise_block)

    one = PrivateTraining(
        CAL,
        DataLoader(Rows(), batch_size=BATCH),
        0.5,
        loss=lambda model, **batch: model(**batch)["loss"],
        generator=1,
        rng=2,
    )
    metering = Metering()
    lightning.Trainer(
        callbacks=[one, metering],
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        accelerator="cpu",
    ).fit(Module(), one.loader)
    found = metering.meter.audit()
    assert not found.refuted
    assert found.values == N * BLOCK
    assert np.abs(found.correlations).max() < 0.1
