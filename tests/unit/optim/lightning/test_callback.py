"""Lightning's Trainer compared with the loop of make_private, and the bypasses that it refuses."""

import stat
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, default_collate

import dpmech as dm
from dpmech.optim import make_private
from tests.support.trainers import SIZE, Classifier, Rows, masked

lightning = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import (  # noqa: E402 - after the check for it
    Callback,
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
    ThroughputMonitor,
)
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402 - the same

from dpmech.optim.lightning import PrivateTraining  # noqa: E402 - the same
from dpmech.optim.lightning.callback import check_trainer  # noqa: E402 - the same

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty.*"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]
N, EPOCH = 12, 4
BATCH = SIZE // EPOCH
CAL = dm.calibrate_sigma(dm.LambdaCGD(N, 0.5), 8.0, 1e-5, participation=dm.MinSep(EPOCH))


def loss(model, **batch):
    return model(**batch)["loss"]


class Module(lightning.LightningModule):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.net = Classifier(dropout)

    def forward(self, **batch):
        return self.net(**batch)

    def training_step(self, batch, index):
        raise AssertionError("under automatic optimization the loss of one example is the step")

    def validation_step(self, batch, index, dataloader_idx=0):
        self.log("val_loss", self(**batch)["loss"])

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.parameters(), lr=0.1)
        return [sgd], [torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5)]


class ByHand(Module):
    """Manual optimization."""

    def __init__(self, backward=None, dropout=0.0):
        super().__init__(dropout)
        self.automatic_optimization = False
        self.own_backward = backward

    def training_step(self, batch, index):
        self.own_backward.backward(**batch)
        self.optimizers().step()
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()


def private(cal=CAL, *, data=None, collate=None, clip_norm=0.5, **options):
    given = {"loss": loss, "generator": 1, "rng": 2} | options
    loader = DataLoader(Rows() if data is None else data, batch_size=BATCH, collate_fn=collate)
    return PrivateTraining(cal, loader, clip_norm, **given)


def trainer(*callbacks, **options):
    given = {
        "max_epochs": N // EPOCH,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
        "accelerator": "cpu",
        "log_every_n_steps": 2,
    }
    return lightning.Trainer(callbacks=list(callbacks), **given | options)


def fitted(one, module, *callbacks, resume=None, **options):
    fit = trainer(one, *callbacks, **options)
    try:
        fit.fit(module, one.loader, DataLoader(Rows(8, seed=5), batch_size=4), ckpt_path=resume)
    finally:
        if one._run is not None:
            one.run[1].close()
    assert fit.global_step == one.run[2].steps_taken
    return torch.cat([param.detach().flatten() for param in module.parameters()])


class Constant(Module):
    """Without a scheduler."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("module", "last"), [(Module, 0.1 * 0.5 ** (N // EPOCH - 1)), (Constant, 0.1)])
def test_a_learning_rate_is_logged_once_under_the_name_of_the_users_optimizer(module, last, tmp_path):
    monitor = LearningRateMonitor()
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
    fitted(private(), module(), monitor, logger=logger)
    assert set(monitor.lrs) == {"lr-SGD"}
    assert monitor.lrs["lr-SGD"][-1] == pytest.approx(last)


@pytest.mark.parametrize("hand", [False, True])
def test_weights_in_half_precision(hand):
    """bf16-true converts the weights before the fit, and every batch in it."""
    one = private(clipping_mode="ghost")
    weights = fitted(one, ByHand(one) if hand else Module(), precision="bf16-true")
    assert weights.dtype == torch.bfloat16
    assert bool(weights.isfinite().all())
    assert one.run_record().steps == N


def by_hand(*, half=False, **options):
    """The loop of make_private, with the schedule of the module."""
    model = Module()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5)
    wrapped, optimizer, loader = make_private(
        model, sgd, DataLoader(Rows(), batch_size=BATCH), CAL, 0.5, loss=loss, generator=1, rng=2, **options
    )
    while optimizer.steps_left:
        for batch in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                wrapped.backward(**batch)
            optimizer.step()
        rates.step()
    optimizer.close()
    return torch.cat([param.detach().flatten() for param in model.parameters()])


@pytest.mark.parametrize("hand", [False, True])
def test_autocast(hand):
    one = private()
    found = fitted(one, ByHand(one) if hand else Module(), precision="bf16-mixed")
    assert one.run_record().steps == N
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, by_hand(half=True), rtol=0.0, atol=0.0)
    assert not torch.equal(found, by_hand())


def test_a_fit_is_the_loop_of_make_private():
    one, module = private(), Module()
    torch.testing.assert_close(fitted(one, module), by_hand(), rtol=0.0, atol=0.0)
    assert one.run[2].steps_taken == N
    assert one.run_record().steps == N
    with pytest.raises(AssertionError, match="the loss of one example"):
        module.training_step(None, 0)  # its original method again
    with pytest.raises(dm.UnsupportedCombinationError, match="a second fit, after 12 steps"):
        trainer(one).fit(module, one.loader)


@pytest.mark.slow
def test_manual_optimization_is_the_same():
    one = private(max_physical_batch_size=2)
    found = fitted(one, ByHand(one))
    torch.testing.assert_close(found, by_hand(max_physical_batch_size=2), rtol=0.0, atol=0.0)


class Killed(Exception):
    pass


class Kill(lightning.Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            raise Killed


@pytest.mark.slow
@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("stop", [1, 7])
def test_a_resumed_fit_equals_an_uninterrupted_one(stop, manual, tmp_path):
    def module(one):
        return ByHand(one, 0.3) if manual else Module(0.3)

    whole = private(collate=masked)
    expected = fitted(whole, module(whole))

    def saved():
        return ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=1)

    first = private(collate=masked, folder=tmp_path)
    assert first.newest() is None
    with pytest.raises(Killed):
        fitted(first, module(first), saved(), Kill(stop))
    second = private(collate=masked, folder=tmp_path, generator=None, rng=None)
    torch.manual_seed(99)
    found = fitted(second, module(second), saved(), resume=second.newest(), val_check_interval=2)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
    record = dm.RunRecord.load(tmp_path / "run_record.json")
    assert record.steps == N
    assert (
        record.checkpoint_history.settings == dm.certificates.CheckpointMatch.SAME
    )  # its schedule was compared


@pytest.mark.slow
def test_checkpoints_of_lightning_hold_no_secret_and_are_of_their_run(tmp_path):
    one = private(folder=tmp_path)
    fitted(one, Module(), ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1))
    files = sorted(tmp_path.glob("*.ckpt"))
    assert len(files) == 4
    for path in files:
        assert torch.load(path, weights_only=False)["optimizer_states"] == []
    states = list((tmp_path / "_private_run").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in states} == {0o600}
    assert stat.S_IMODE((tmp_path / "_private_run").stat().st_mode) == 0o700
    with pytest.raises(dm.UnsupportedCombinationError, match="holds checkpoints of another run"):
        fitted(private(folder=tmp_path), Module())
    middle = next(path for path in files if "step=8" in path.name)
    again = {"generator": None, "rng": None, "folder": tmp_path}
    with pytest.raises(dm.exceptions.CertificateError, match="of another run"):
        fitted(private(data=Rows(seed=8), **again), Module(), resume=middle)

    class Other(Module):
        def configure_optimizers(self):
            sgd = torch.optim.SGD(self.parameters(), lr=0.1)
            return [sgd], [torch.optim.lr_scheduler.ExponentialLR(sgd, 0.7)]

    with pytest.raises(dm.exceptions.CertificateError, match=r"another scheduler \(gamma\)"):
        fitted(private(**again), Other(), resume=middle)
    # An incomplete checkpoint is ignored.
    last = private(**again).newest()
    assert "step=12" in last.name
    last.write_bytes(last.read_bytes()[:1000])
    assert "step=8" in private(**again).newest().name
    (tmp_path / "_private_run" / "step-8.pt").unlink()
    with pytest.raises(dm.InvalidParameterError, match="its private state in"):
        fitted(private(**again), Module(), resume=middle)


def test_raw_values_are_logged_only_on_request():
    seen = {}

    class Look(lightning.Callback):
        def on_train_end(self, trainer, module):
            seen.update(trainer.logged_metrics)

    fitted(private(), Module(), Look())
    assert {"epsilon_spent", "val_loss"} <= set(seen)
    assert not any("loss" in name and name != "val_loss" for name in seen)
    assert float(seen["epsilon_spent"]) == pytest.approx(CAL.achieved.upper, rel=1e-6)
    seen.clear()
    fitted(private(log_raw=True, log_epsilon=False), Module(), Look())
    assert "not_private_loss" in seen
    assert "epsilon_spent" not in seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches=2; supported: max_physical"),
        ({"gradient_clip_val": 1.0}, "gradient_clip_val=1.0; supported: clip_norm"),
        ({"precision": "16-true"}, "precision='16-true'"),
        ({"limit_train_batches": 2}, "limit_train_batches=2"),
        ({"overfit_batches": 1}, "overfit_batches=1"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs=1"),
        ({"max_epochs": 4}, "at most the 12 steps that are certified, 4 an epoch, got '16 steps'"),
        ({"max_epochs": 50, "max_steps": 13}, "got '13 steps'"),
        ({"max_epochs": -1}, "got 'inf steps'"),
    ],
)
def test_settings_that_would_bypass_privacy_are_refused(options, message):
    one = private()
    with pytest.raises(dm.DpmechError) as caught:
        fitted(one, Module(), **options)
    assert message in str(caught.value)
    assert one._run is None or one.run[2].steps_taken == 0


class Split(DDPStrategy):
    """As that of DeepSpeed."""


def fit_with(*callbacks, strategy):
    return types.SimpleNamespace(
        accumulate_grad_batches=1, gradient_clip_val=None, precision="32-true", strategy=strategy,
        limit_train_batches=1.0, overfit_batches=0.0, reload_dataloaders_every_n_epochs=0, optimizers=[None],
        callbacks=callbacks,
    )  # fmt: skip


def test_strategies_that_split_a_module_are_refused():
    with pytest.raises(
        dm.UnsupportedCombinationError, match=r'strategy Split: .*; supported: strategy="ddp"'
    ):
        check_trainer(fit_with(strategy=Split()), Module())
    check_trainer(fit_with(strategy=DDPStrategy()), Module())


@pytest.mark.parametrize("monitor", [DeviceStatsMonitor(), ThroughputMonitor(len)])
def test_callbacks_that_log_the_sizes_of_batches_are_refused(monitor):
    with pytest.raises(dm.UnsupportedCombinationError, match="DeviceStatsMonitor or ThroughputMonitor"):
        check_trainer(fit_with(LearningRateMonitor(), monitor, strategy=DDPStrategy()), Module())


def test_modules_and_loaders_that_would_bypass_privacy_are_refused():
    def two(self):
        return [torch.optim.SGD([param], lr=0.1) for param in list(self.parameters())[:2]]

    for name, define, message in (
        ("backward", lambda self, loss: None, "Mine defines backward"),
        ("optimizer_step", lambda self, *_, **__: None, "Mine defines optimizer_step"),
        ("configure_gradient_clipping", lambda self, *_, **__: None, "Mine defines configure_gradient"),
        ("on_before_batch_transfer", lambda self, batch, _: batch, "could mix them.*loss, of one example"),
        ("on_after_batch_transfer", lambda self, batch, _: batch, "could mix them.*loss, of one example"),
        ("transfer_batch_to_device", lambda self, batch, *_: batch, "could mix them.*loss, of one example"),
    ):
        kind = type("Mine", (Module,), {name: define})
        with pytest.raises(dm.UnsupportedCombinationError, match=message):
            fitted(private(), kind())
    kind = type("Mine", (ByHand,), {"configure_optimizers": two})
    with pytest.raises(dm.UnsupportedCombinationError, match="2 optimizers"):
        fitted(private(), kind())
    one = private()
    with pytest.raises(dm.UnsupportedCombinationError, match="its own loader"):
        trainer(one).fit(Module(), DataLoader(Rows(), batch_size=BATCH))
    one.run[1].close()
    with pytest.raises(dm.InvalidParameterError, match="loss must be loss"):
        private(loss=None)
    with pytest.raises(dm.UnsupportedCombinationError, match="there is no run before the fit"):
        private().run_record()


@pytest.mark.parametrize("first", [True, False])
def test_averages_of_lightning_replace_the_weights_after_the_last_step(tmp_path, first):
    one, seen = private(folder=tmp_path), []

    class Steps(Callback):
        def on_train_batch_end(self, trainer, module, *_):
            seen.append(torch.cat([param.detach().flatten() for param in module.parameters()]))

    module = Module()
    average = StochasticWeightAveraging(0.1, swa_epoch_start=1)
    callbacks = [average, one] if first else [one, average]
    trainer(*callbacks, Steps()).fit(module, one.loader)
    assert dm.RunRecord.load(tmp_path / "run_record.json").steps == N
    pairs = zip(module.parameters(), average._average_model.parameters(), strict=True)
    assert all(torch.equal(param, mean) for param, mean in pairs)
    assert not torch.equal(torch.cat([param.detach().flatten() for param in module.parameters()]), seen[-1])


def test_a_step_without_gradients_is_noticed():
    class Lazy(ByHand):
        def training_step(self, batch, index):
            self.optimizers().step()

    one = private()
    with pytest.raises(dm.UnsupportedCombinationError, match="before the backward pass"):
        fitted(one, Lazy(one))

    class Skipping(ByHand):
        def training_step(self, batch, index):
            self.own_backward.backward(**batch)

    one = private()
    with pytest.raises(dm.UnsupportedCombinationError, match="a new batch is sampled before"):
        fitted(one, Skipping(one))


def test_it_trains_more_than_dicts():
    class Pairs(Rows):
        def __getitem__(self, index):
            return self.inputs[index], self.labels[index]

    class Plain(Module):
        def forward(self, inputs):
            return self.net(inputs)["logits"]

        validation_step = None

    one = private(data=Pairs(), loss=nn.CrossEntropyLoss())
    fit = trainer(one)
    fit.fit(Plain(), one.loader)
    one.run[1].close()
    assert fit.global_step == N


# ---- evaluations, and selections based on them


@pytest.mark.parametrize("kind", ["itself", "a part", "several", "looked up"])
def test_evaluation_on_training_data_is_refused(kind):
    data = Rows()
    held = DataLoader(Rows(8, seed=5))
    loaders = {
        "itself": DataLoader(data),
        "a part": DataLoader(Subset(data, [3])),
        "several": {"val": held, "train": DataLoader(data)},
        "looked up": DataLoader(
            range(8), collate_fn=lambda keys: default_collate([data[7 - key] for key in keys])
        ),
    }[kind]
    one, module = private(data=data), Module()
    fit = trainer(one)
    with pytest.raises(dm.UnsupportedCombinationError, match="the evaluation data is the training data"):
        fit.fit(module, one.loader, loaders)
    for evaluate in (fit.validate, fit.test, fit.predict):
        module.test_step = module.predict_step = module.validation_step
        with pytest.raises(dm.UnsupportedCombinationError, match="the evaluation data is the training data"):
            evaluate(module, loaders)
    one.run[1].close()
    raw = private(data=data, log_raw=True)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"EarlyStopping \('val_loss'\) would select"):
        trainer(raw, EarlyStopping("val_loss")).fit(Module(), raw.loader, loaders)
    raw.run[1].close()


class Plateau(Module):
    def __init__(self, monitor):
        super().__init__()
        self.monitor = monitor

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.parameters(), lr=0.1)
        rates = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": rates, "monitor": self.monitor}}


class LogsAtTheEnd(Module):
    def on_train_epoch_end(self):
        self.log("train_loss", 1.0)


@pytest.mark.parametrize("who", ["stops", "plateau", "saves", "saves late"])
def test_selection_by_the_training_loss_is_refused(who, tmp_path):
    module, callbacks, name = Module(), [], "not_private_loss"
    if who == "stops":
        callbacks = [EarlyStopping(name)]
    elif who == "plateau":
        module = Plateau(name)
    elif who == "saves":
        callbacks = [ModelCheckpoint(tmp_path, monitor=name)]
    else:
        module, name = LogsAtTheEnd(), "train_loss"
        callbacks = [ModelCheckpoint(tmp_path, monitor=name)]
    one = private(log_raw=True)
    with pytest.raises(
        dm.UnsupportedCombinationError, match=f"monitors '{name}', which is logged in training"
    ):
        fitted(one, module, *callbacks)


def test_validation_metrics_may_be_monitored(tmp_path):
    callbacks = [EarlyStopping("val_loss"), ModelCheckpoint(tmp_path, monitor="val_loss")]
    one = private(log_raw=True)
    fitted(one, Plateau("val_loss"), *callbacks)
    assert one.run_record().steps > 0


def test_checkpoints_outside_the_folder_of_newest_give_a_warning(tmp_path, recwarn):
    own = private(folder=tmp_path / "run")
    for place in (tmp_path / "run", tmp_path / "run" / "more", None):
        own.setup(trainer(own, ModelCheckpoint(place)), Module(), "fit")
    assert not [one for one in recwarn if "newest" in str(one.message)]
    with pytest.warns(UserWarning, match=r"newest\(\) looks only there.*Use one folder for both"):
        own.setup(trainer(own, ModelCheckpoint(tmp_path / "other")), Module(), "fit")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_cell_of_an_interrupted_fit_runs_again(error, tmp_path):
    """The same module, in the same process, with the callback before still there."""
    kept, module, hits = [], Module(0.2), iter((True,))

    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == 3 and next(hits, False):
                raise error

    def cell():
        keys = {"generator": None, "rng": None} if kept else {}
        kept.append(private(folder=tmp_path / "cut", **keys))
        saving = ModelCheckpoint(tmp_path / "cut", every_n_train_steps=1, save_top_k=-1)
        fit = trainer(kept[-1], Stop(), saving)
        fit.fit(module, kept[-1].loader, ckpt_path=kept[-1].newest())

    with pytest.raises((error, SystemExit)):
        cell()
    assert "training_step" not in vars(module)
    cell()
    assert kept[1].run_record().steps == N
    kept[1].run[1].close()
    whole, other = private(), Module(0.2)
    trainer(whole).fit(other, whole.loader)
    whole.run[1].close()
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0.0, atol=0.0)
