"""PrivateTraining: a callback that makes the training of Lightning's Trainer private."""

import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, DeviceStatsMonitor, ThroughputMonitor
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from dpmech.certificates import AdaptiveClip, RunRecord
from dpmech.exceptions import CertificateError, InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.processes import rank_of
from dpmech.optim.runs import (
    BatchOptimizer,
    PerExampleModel,
    PrivateLoader,
    TrainedOn,
    check_counted,
    check_planned,
    load_checkpoint,
    make_private,
    save_checkpoint,
)

_PRECISIONS = ("32-true", "64-true", "bf16-true", "bf16-mixed")


def check_trainer(trainer: Any, module: Any) -> None:
    """Raise UnsupportedCombinationError on settings that private training does not support, by name."""
    refused = [
        (
            trainer.accumulate_grad_batches != 1,
            f"accumulate_grad_batches={trainer.accumulate_grad_batches}",
            "max_physical_batch_size: a batch of the loader is a full batch, processed in microbatches",
        ),
        (
            trainer.gradient_clip_val not in (None, 0, 0.0),
            f"gradient_clip_val={trainer.gradient_clip_val}",
            "clip_norm of PrivateTraining: gradients are clipped per example, before the noise",
        ),
        (
            trainer.precision not in _PRECISIONS,
            f"precision={trainer.precision!r}",
            f"one of {_PRECISIONS}; a gradient scaler skips steps and changes its scale by the data",
        ),
        (
            not isinstance(trainer.strategy, SingleDeviceStrategy)
            and type(trainer.strategy) is not DDPStrategy,
            f"strategy {type(trainer.strategy).__name__}: no process has the whole gradient of an example",
            'strategy="ddp", with the whole module in every process, or devices=1',
        ),
        (
            trainer.limit_train_batches != 1.0 or trainer.overfit_batches > 0,
            f"limit_train_batches={trainer.limit_train_batches} or overfit_batches={trainer.overfit_batches}",
            "max_steps: batches are those of the certificate",
        ),
        (
            trainer.reload_dataloaders_every_n_epochs != 0,
            f"reload_dataloaders_every_n_epochs={trainer.reload_dataloaders_every_n_epochs}",
            "0",
        ),
        (
            any(isinstance(one, DeviceStatsMonitor | ThroughputMonitor) for one in trainer.callbacks),
            "DeviceStatsMonitor or ThroughputMonitor, which log what follows the sizes of batches",
            "neither: peaks of memory and numbers of examples are private",
        ),
        (
            len(trainer.optimizers) != 1,
            f"{len(trainer.optimizers)} optimizers",
            "one: the gradient of an example is one release; its parts are parameter groups",
        ),
    ]
    for bad, what, instead in refused:
        if bad:
            raise UnsupportedCombinationError(what, supported=instead)
    own = "which private training does itself"
    by_hand = "training_step with automatic_optimization = False, and PrivateTraining.backward"
    mixing = "which receives all examples of a batch, and could mix them"
    alone = "the same in the dataset or in the loss, of one example"
    outside = ("lightning", "torch", "builtins")
    bases = [base for base in type(module).__mro__ if base.__module__.split(".")[0] not in outside]
    for names, fault, instead in (
        (("configure_gradient_clipping", "optimizer_step", "backward"), own, by_hand),
        (("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"), mixing, alone),
    ):
        for name in names:
            if any(name in vars(base) for base in bases):
                raise UnsupportedCombinationError(
                    f"{type(module).__name__} defines {name}, {fault}", supported=instead
                )


def monitored(trainer: Any) -> dict[str, str]:
    """The metrics by which callbacks and schedules select: class names by metric."""
    monitors = {
        callback.monitor: type(callback).__name__
        for callback in trainer.callbacks
        if isinstance(getattr(callback, "monitor", None), str)
    }
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.monitor:
            monitors[config.monitor] = type(config.scheduler).__name__
    return monitors


def scheduler_of(trainer: Any) -> Any:
    """The scheduler of the one optimizer."""
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    schedulers = [scheduler for scheduler in schedulers if isinstance(scheduler, LRScheduler)]
    return schedulers[0] if len(schedulers) == 1 else None


def check_monitors(trainer: Any) -> None:
    """Raise UnsupportedCombinationError if a callback selects by raw data logged in training."""
    chosen = monitored(trainer)
    if not chosen:
        return
    logged: set[str] = set()
    for value in trainer.fit_loop.epoch_loop._results.values():
        name = value.meta.name
        if name != "epsilon_spent":  # independent of the data
            logged |= {name, f"{name}_step", f"{name}_epoch"}
    for name in sorted(chosen.keys() & logged):
        raise UnsupportedCombinationError(
            f"{chosen[name]} monitors {name!r}, which is logged in training: it would select by the training "
            "data, without noise, what is released",
            supported="a metric of a validation on data that are not trained on",
        )


_FOLDER = "_private_run"


class PrivateTraining(Callback):
    """Makes the fit of a LightningModule private: batches, clipping and noise of a certificate.

    ::

        private = PrivateTraining(calibration, DataLoader(dataset), 1.0, loss=loss, folder="out")
        trainer = lightning.Trainer(max_epochs=10, callbacks=[private])
        trainer.fit(module, private.loader, ckpt_path=private.newest())

    With automatic optimization, a step uses `loss` of every example, and the module's `training_step` is not
    called. With `automatic_optimization = False`, `training_step` is called. It must call
    `private.backward(*batch)` and the step of `self.optimizers()`, once each.

    Lightning's checkpoints contain weights, schedules and counters; loader, noise and optimizer are stored in
    `folder/_private_run`, readable by the owner only and **as secret as the data**. The first of these files
    are written before the first step. The run record is written to the folder at the end of the fit.

    Evaluations are not covered by the certificate: training data are refused if they are recognized, and so
    are callbacks and schedules that select by values logged in training.

    Args:
        calibration: a Calibration or a Certificate.
        data: a DataLoader over the whole dataset, as for make_private.
        clip_norm: clip norm of one example's gradient, as for make_private.
        loss: `loss(module, *example)` of one example, as for make_private; batches that are dicts are passed
            by name.
        folder: where to save; None saves nothing, so that the run cannot be resumed.
            `ModelCheckpoint(folder)` saves there during the fit; without it `newest` finds the initial state.
        log_raw: whether to log the loss of the batches, as "not_private_loss". **The guarantee does not cover
            this loss.**
        log_epsilon: whether to log `optimizer.epsilon_spent()` every `log_every_n_steps`.
        accept_changed: as for load_checkpoint.
        **options: as for make_private.

    Raises:
        InvalidParameterError: on a bad argument.
    """

    def __init__(
        self,
        calibration: object,
        data: DataLoader[Any],
        clip_norm: float | AdaptiveClip | None = None,
        *,
        loss: Callable[..., Tensor],
        folder: str | Path | None = None,
        log_raw: bool = False,
        log_epsilon: bool = True,
        accept_changed: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__()
        if not callable(loss):
            raise InvalidParameterError("loss", loss, "loss(module, *example) of one example")
        self._make = {"calibration": calibration, "clip_norm": clip_norm, "loss": loss} | options
        self._data = data
        self._trained_on = TrainedOn(data.dataset, data.collate_fn)
        self._folder = None if folder is None else Path(folder)
        self._log_raw = log_raw
        self._log_epsilon = log_epsilon
        self._accept = accept_changed
        self._run: tuple[PerExampleModel, BatchOptimizer, PrivateLoader] | None = None
        self._resumed: int | None = None
        self._trainer: lightning.Trainer | None = None
        self._loss: Tensor | None = None
        self.loader = _Batches(self)

    # ---- for the caller

    @property
    def run(self) -> tuple[PerExampleModel, BatchOptimizer, PrivateLoader]:
        """Model, optimizer and loader of `make_private`.

        Raises:
            UnsupportedCombinationError: before the fit.
        """
        if self._run is None:
            raise UnsupportedCombinationError(
                "there is no run before the fit", supported="trainer.fit(module, private.loader) first"
            )
        return self._run

    def run_record(self) -> RunRecord:
        """A record of this run, as `BatchOptimizer.run_record`."""
        return self.run[1].run_record()

    def backward(self, *batch: Any, **named: Any) -> None:
        """Compute the clipped gradients of a batch, under manual optimization; then step the optimizer."""
        self._loss = self.run[0].backward(*batch, return_loss=self._log_raw, **named)

    def newest(self) -> Path | None:
        """The newest complete checkpoint in the folder; None if there is none."""
        if self._folder is None:
            return None
        checkpoints = [
            (step, path)
            for path in self._folder.rglob("*.ckpt")
            # An incomplete file lacks the zip directory, which is written last.
            if zipfile.is_zipfile(path) and (step := self._step_of(path)) is not None
        ]
        return max(checkpoints)[1] if checkpoints else None

    # ---- called by Lightning

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Warn of a ModelCheckpoint that saves outside of the folder of `newest`."""
        if stage != "fit" or self._folder is None:
            return
        folder = self._folder.resolve()
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning's
            given = getattr(callback, "dirpath", None)  # not yet set for the default one
            if given is not None and folder not in (Path(given).resolve(), *Path(given).resolve().parents):
                warnings.warn(
                    f"{type(callback).__name__} saves in {given}, but PrivateTraining in {self._folder}: "
                    "private.newest() looks only there, and would resume from an earlier step. Use one "
                    "folder for both, or pass the checkpoint itself as ckpt_path",
                    stacklevel=2,
                )

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Make model, optimizer and loader private."""
        if self._run is not None:
            raise UnsupportedCombinationError(
                f"a second fit, after {self._run[2].steps_taken} steps",
                supported="a new PrivateTraining, with ckpt_path=private.newest() to continue",
            )
        check_trainer(trainer, pl_module)
        if self._resumed is None and self.newest() is not None:
            raise UnsupportedCombinationError(
                f"{self._folder} holds checkpoints of another run, which could be confused with this one's",
                supported="trainer.fit(..., ckpt_path=private.newest()) to resume, or another folder",
            )
        self._trainer = trainer
        module: Any = pl_module
        if isinstance(trainer.strategy, DDPStrategy):
            # No wrapper that averages raw gradients: clipped sums are added.
            trainer.strategy.model = pl_module
        # The fingerprint of a module must not include the trainer that it is attached to.
        attached, module._trainer = module._trainer, None
        try:
            # Under the trainer's autocast, as in its steps.
            with trainer.precision_plugin.forward_context():
                model, optimizer, loader = make_private(
                    pl_module,
                    trainer.optimizers[0],
                    self._data,
                    **self._make,  # type: ignore[arg-type]  # the caller's
                )
        finally:
            module._trainer = attached
        self._run = model, optimizer, loader  # type: ignore[assignment]  # with a loss it is one
        if self._resumed is not None:
            load_checkpoint(
                self._file(self._resumed, rank_of(None)),
                model,
                optimizer,
                loader,
                scheduler=scheduler_of(trainer),
                accept_changed=self._accept,
            )
        vars(optimizer)["optimizer"] = optimizer.rule  # where LearningRateMonitor looks for the name
        trainer.strategy.optimizers = [optimizer]
        if pl_module.automatic_optimization:
            module.training_step = self._training_step
            module.backward = self._no_backward

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Check the plan, and save the run before its first step."""
        loader = self.run[2]
        if trainer.train_dataloader is not self.loader:
            raise UnsupportedCombinationError(
                "the fit has its own loader: batches would not be those of the certificate",
                supported="trainer.fit(module, private.loader)",
            )
        planned = trainer.max_steps if trainer.max_steps > 0 else float("inf")
        if trainer.max_epochs is not None and trainer.max_epochs >= 0:
            planned = min(planned, trainer.max_epochs * len(loader))
        check_planned("max_epochs or max_steps", planned, loader)
        if self._folder is not None and self._resumed is None:
            # Steps before the first checkpoint would be repeated with other batches and other noise.
            trainer.save_checkpoint(self._folder / "step-0.ckpt")

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Compare Lightning's number of steps with that of the batches; log values that may be released."""
        check_monitors(trainer)
        _, optimizer, loader = self.run
        check_counted("Lightning", trainer.global_step, loader)
        every = getattr(trainer, "log_every_n_steps", None) or 50
        if self._log_epsilon and loader.steps_taken % every == 0:
            pl_module.log("epsilon_spent", optimizer.epsilon_spent().upper)
        if self._log_raw and self._loss is not None:
            pl_module.log("not_private_loss", self._loss.float(), batch_size=1)

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Remove the optimizer's state, which contains the key of the noise, from Lightning's file."""
        check_monitors(trainer)  # includes values that the module logged at the end of an epoch
        checkpoint["optimizer_states"] = []
        checkpoint["dpmech_step"] = checkpoint["dpmech_processes"] = None
        if self._folder is None or self._run is None:
            return
        model, optimizer, loader = self._run
        path = self._file(loader.steps_taken, rank_of(None))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save_checkpoint(path, model, optimizer, loader, scheduler=scheduler_of(trainer))
        checkpoint["dpmech_step"] = loader.steps_taken
        checkpoint["dpmech_processes"] = loader.processes

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: Mapping[str, Any]
    ) -> None:
        """Store the step of the private state that belongs to the checkpoint."""
        if trainer.state.fn != "fit":
            return
        self._resumed = checkpoint.get("dpmech_step")
        rank = rank_of(None)
        if self._resumed is None or self._folder is None or not self._file(self._resumed, rank).exists():
            raise InvalidParameterError(
                "ckpt_path",
                str(trainer.ckpt_path),
                f"a checkpoint of a private run with a folder, and its private state in "
                f"{'folder' if self._folder is None else self._folder}/{_FOLDER}",
            )

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write the run record."""
        check_monitors(trainer)
        if self._run is not None and any(hasattr(one, "_average_model") for one in trainer.callbacks):  # type: ignore[attr-defined]  # Lightning's
            self._run[1].note_weights()  # Lightning's averages of released weights replace the last ones
        if self._folder is not None and self._run is not None:
            record = self.run_record()
            if trainer.is_global_zero:
                self._folder.mkdir(parents=True, exist_ok=True)
                record.save(self._folder / "run_record.json")

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Refuse callbacks that selected by the training data at the end of the previous epoch."""
        check_monitors(trainer)

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Refuse to validate on training data."""
        self._check_held_out(trainer, trainer.val_dataloaders)

    def on_test_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Refuse to test on training data."""
        self._check_held_out(trainer, trainer.test_dataloaders)

    def on_predict_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Refuse predictions for training data."""
        self._check_held_out(trainer, trainer.predict_dataloaders)

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """End the run, so that another fit may resume here, and restore the module's methods."""
        if self._run is not None and self._run[2].steps_taken:
            self._run[1].close()
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Restore the module's methods."""
        for name in ("training_step", "backward"):
            vars(pl_module).pop(name, None)

    # ---- internal

    def _check_held_out(self, trainer: lightning.Trainer, loaders: Any) -> None:
        chosen = [f"{kind} ({name!r})" for name, kind in sorted(monitored(trainer).items())]
        for loader in tree_leaves(loaders):
            self._trained_on.refuse(
                "the evaluation data",
                getattr(loader, "dataset", loader),
                chosen=chosen,
                log_raw="" if self._log_raw else "PrivateTraining(log_raw=True)",
                collate=getattr(loader, "collate_fn", None),
            )

    def _training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        if isinstance(batch, Mapping):
            self.backward(**batch)
        else:
            self.backward(*(batch if isinstance(batch, tuple | list) else (batch,)))
        # Lightning requires a loss to differentiate; the gradients are already computed.
        return torch.zeros((), requires_grad=True)

    def _no_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Nothing: the gradients are already computed."""

    def _file(self, step: int, rank: int = 0) -> Path:
        if self._folder is None:
            raise InvalidParameterError("folder", None, "where to save")
        own = f".{rank}" if rank else ""
        return self._folder / _FOLDER / f"step-{step}{own}.pt"

    def _step_of(self, path: Path) -> int | None:
        """The step of a checkpoint whose private states exist, one for each process."""
        found = torch.load(path, map_location="cpu", weights_only=False)
        step = found.get("dpmech_step")
        ranks = range(found.get("dpmech_processes") or 1)
        complete = isinstance(step, int) and all(self._file(step, rank).exists() for rank in ranks)
        return step if complete else None


class _Batches:
    """The batches for Lightning, of a run that is made when the fit begins."""

    def __init__(self, callback: PrivateTraining) -> None:
        self._callback = callback

    def __len__(self) -> int:
        return len(self._callback.run[2])

    def state_dict(self) -> dict[str, Any]:
        """The step; the private state contains the rest."""
        return {"step": self._callback.run[2].steps_taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise CertificateError if the private state has another step than Lightning's."""
        here = self._callback.run[2].steps_taken
        if state.get("step") != here:
            raise CertificateError(
                f"Lightning's checkpoint is of step {state.get('step')}, the private state of step {here}",
                claimed=state.get("step"),
                recomputed=here,
            )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._callback.run[2])
