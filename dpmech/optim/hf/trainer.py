"""PrivateTrainer: the Trainer of transformers, with batches, clipping and noise of a certificate."""

import functools
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.trainer_utils import SaveStrategy, TrainOutput

from dpmech.certificates import RunRecord
from dpmech.exceptions import CertificateError, InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.hf import arguments as run_files
from dpmech.optim.hf.arguments import check_methods, check_trainer, private_arguments, schedule, steered_by
from dpmech.optim.hf.model_card import write_section
from dpmech.optim.hf.private_run import Batches, Privacy, PrivateRun, has_columns, made
from dpmech.optim.processes import barrier, rank_of
from dpmech.optim.runs import (
    BatchOptimizer,
    PerExampleModel,
    PrivateLoader,
    TrainedOn,
    by_steps_alone,
    check_counted,
    check_planned,
    load_checkpoint,
    save_checkpoint,
)

_RECORD = "run_record.json"
# Raw data that a Trainer logs: the loss of a batch, the norm of its gradient, the lengths of its texts, and
# times, which follow the sizes of batches.
_RAW = (
    *("loss", "grad_norm", "train_loss", "total_flos", "num_input_tokens_seen"),
    *("train_runtime", "train_samples_per_second", "train_steps_per_second"),
)


class PrivateTrainerMixin:
    """Makes a Trainer private: `class Mine(PrivateTrainerMixin, Seq2SeqTrainer)`.

    Batches are sampled as the certificate says: `per_device_train_batch_size` times
    `gradient_accumulation_steps` must be their size, and they are processed in microbatches of
    `per_device_train_batch_size`. Every example is clipped, `optimizer.step` adds the noise, and the random
    numbers of a step depend on its number and the secret key of the noise, not on `args.seed`.
    `trainer.model` remains the model itself.

    A checkpoint folder contains the files of `save_model` and a run record, and no secrets; loader, noise and
    optimizer are stored in `output_dir/_private_run`, readable by the owner only, **as secret as the
    data**. The first checkpoint is written before the first step.

    Logged values are the learning rate, metrics of evaluations, and eps spent so far. Evaluations are not
    covered by the certificate: training data are refused, as far as they are recognized (see
    `docs/hugging_face.md`).

    Args:
        *args: as for the Trainer.
        privacy: the privacy settings.
        **kwargs: as for the Trainer.

    Raises:
        InvalidParameterError: on a bad argument.
        UnsupportedCombinationError: on arguments, methods and set-ups that would bypass clipping, sampling or
            noise, by name.
    """

    _known: tuple[type, ...] = ()  # classes whose loop and loss of a batch are replaced on purpose

    def __init__(self, *args: Any, privacy: Privacy, **kwargs: Any) -> None:
        if not isinstance(privacy, Privacy):
            raise InvalidParameterError("privacy", privacy, "a dpmech.optim.hf.Privacy")
        check_methods(type(self), self._known)
        super().__init__(*args, **kwargs)
        self._privacy = privacy
        self._run: PrivateRun | None = None
        self._asked = self._trainer.args
        check_trainer(self, own_loss=privacy.loss is None, clip_norm=privacy.clip_norm, known=self._known)
        self._trained_on = self._of_training()
        self._check_held_out("eval_dataset", self._read_of(self._trainer.eval_dataset))
        self._trainer.args = private_arguments(self._asked)
        self._trainer._train_batch_size = self._trainer.args.train_batch_size
        self._trainer._memory_tracker.skip_memory_metrics = True  # peaks follow the largest batch
        self._trainer.neftune_noise_alpha = None  # added by the loss, by the number of a text's own words
        accelerator = self._trainer.accelerator
        # Autocast is entered around the loss instead, where the checks of make_private see it; and clipped
        # sums are added over processes, so that no wrapper may average raw gradients.
        accelerator.native_amp = False
        accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)
        self._trainer.add_callback(_InStep(self))

    # ---- the run

    @property
    def _trainer(self) -> Any:
        return self

    @property
    def run(self) -> tuple[PerExampleModel, BatchOptimizer, PrivateLoader]:
        """Model, optimizer and loader of `make_private`; made at the first call, or by `train`."""
        run = self._made()
        return run.model, run.optimizer, run.loader

    def run_record(self) -> RunRecord:
        """A record of this run, as `BatchOptimizer.run_record`."""
        return self._made().optimizer.run_record()

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,  # noqa: FBT001 - a Trainer's
        *args: Any,
        **kwargs: Any,
    ) -> TrainOutput:
        """Train, or resume an interrupted run.

        Args:
            resume_from_checkpoint: None for a new run; True for the newest complete checkpoint; a
                folder; or "auto": the newest one if there is one, else a new run.
            *args: as for the Trainer.
            **kwargs: as for the Trainer.

        Returns:
            As the Trainer; the training loss is NaN unless raw values are logged.

        Raises:
            InvalidParameterError: if there is no such checkpoint, or it is incomplete.
            UnsupportedCombinationError: if a new run would mix its checkpoints with those of another, or if
                this trainer was already trained.
        """
        trainer: Any = super()
        if self._run is not None and self._run.loader.steps_taken:
            raise UnsupportedCombinationError(
                f"train() again, after {self._run.loader.steps_taken} steps",
                supported="a new trainer, with resume_from_checkpoint=True to continue",
            )
        folder = self._checkpoint(resume_from_checkpoint)
        try:
            result = trainer.train(None if folder is None else str(folder), *args, **kwargs)
        except BaseException:
            if self._run is not None and self._run.loader.steps_taken:
                # This trainer cannot go on; another one may resume here, from the cell above in a notebook.
                self._run.optimizer.close()
            raise
        finally:
            if self._run is not None:
                self._run.end()
        if self._privacy.log_raw:
            return result  # type: ignore[no-any-return]  # of the Trainer
        metrics = {name: value for name, value in result.metrics.items() if name not in _RAW}
        return TrainOutput(result.global_step, math.nan, metrics)

    def _checkpoint(self, asked: Any) -> Path | None:
        output = self._trainer.args.output_dir
        found = run_files.newest(output)
        if asked is None or asked is False:
            if found is not None and self._saves:
                raise UnsupportedCombinationError(
                    f"output_dir holds {found.name} of another run: its checkpoints could be confused with "
                    "those of a new run",
                    supported="resume_from_checkpoint=True (or 'auto') to resume, or another output_dir",
                )
            return None
        if asked in (True, "auto"):
            if found is None and asked is True:
                raise InvalidParameterError(
                    "resume_from_checkpoint",
                    asked,
                    f"left out, or 'auto': {output} holds no complete checkpoint",
                )
            return found
        folder = Path(asked)
        if not run_files.complete(folder):
            raise InvalidParameterError(
                "resume_from_checkpoint",
                str(asked),
                f"a complete checkpoint, with {run_files.file_of(folder)}; the newest is {found}",
            )
        return folder

    @property
    def _saves(self) -> bool:
        args = self._trainer.args
        return args.save_strategy != SaveStrategy.NO and not args.save_only_model

    def _made(self) -> PrivateRun:
        if self._run is None:
            with self.autocast_smart_context_manager():
                self._run = made(self._trainer, self._privacy, self._asked)
            if self._data is not self._trainer.train_dataset:
                self._trained_on = self._of_training()
        return self._run

    def _of_training(self) -> TrainedOn:
        self._data = self._trainer.train_dataset
        return TrainedOn(self._read_of(self._data), self._trainer.data_collator)

    def _read_of(self, data: Any) -> Any:
        """What the Trainer reads of data: without columns that the model does not take, as it evaluates."""
        if isinstance(data, dict):
            return {name: self._read_of(one) for name, one in data.items()}
        if has_columns(data):
            return self._trainer._remove_unused_columns(data)
        return data

    # ---- called by the Trainer

    def get_train_dataloader(self) -> Any:
        """The batches."""
        return Batches(self._made().loader)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Compute the clipped gradients of a batch, for `optimizer.step`."""
        run = self._made()
        run.model.train()
        getattr(run.optimizer, "train", lambda: None)()  # of schedule-free optimizers
        batch = self._trainer._prepare_inputs(inputs)
        if not isinstance(batch, Mapping):
            raise InvalidParameterError("data_collator", type(batch).__name__, "one that makes a dict")
        with self.autocast_smart_context_manager():
            loss = run.model.backward(dict(batch), return_loss=self._privacy.log_raw)
        device = self._trainer.args.device
        if loss is None:
            return torch.zeros((), device=device)
        # An empty batch has no loss; the Trainer's running sum would become NaN.
        return torch.where(torch.isfinite(loss), loss.detach(), 0.0).to(device)

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> torch.autocast:  # noqa: FBT001, FBT002 - a Trainer's
        """Autocast to bfloat16 if `args.bf16` or accelerate's settings say so, in training and evaluation."""
        args = self._trainer.args
        half = args.mixed_precision == "bf16"
        return torch.autocast(args.device.type, torch.bfloat16, enabled=half, cache_enabled=cache_enabled)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log values that may be released, and eps spent so far."""
        found = {name: value for name, value in logs.items() if name not in _RAW}
        if self._privacy.log_raw:
            found |= {f"not_private_{name}": logs[name] for name in ("loss", "train_loss") if name in logs}
        if self._privacy.log_epsilon and self._run is not None and self._run.loader.steps_taken:
            found["epsilon_spent"] = self._run.optimizer.epsilon_spent().upper
        logs.clear()
        logs.update(found)
        # Trainers of TRL add what they counted in training batches, to evaluations the tokens trained on.
        counted = getattr(self, "_metrics", {})
        counted.get("train", {}).clear()
        counted.get("eval", {}).pop("num_tokens", None)
        super().log(logs, *args, **kwargs)  # type: ignore[misc]  # of the Trainer

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer, which evaluates and predicts with it; training data are refused."""
        collate = getattr(dataloader, "collate_fn", None)
        self._check_held_out("the evaluation data", getattr(dataloader, "dataset", None), collate)
        return super().evaluation_loop(dataloader, *args, **kwargs)  # type: ignore[misc]  # of the Trainer

    def _check_held_out(self, what: str, data: Any, collate: Any = None) -> None:
        self._trained_on.refuse(
            what,
            data,
            chosen=steered_by(self._trainer),
            log_raw="" if self._privacy.log_raw else "Privacy(log_raw=True)",
            collate=collate,
        )

    def floating_point_ops(self, inputs: Any) -> int:
        """0: the size of a batch, and the lengths of its texts, are private."""
        return 0

    def _clip_grad_norm(self, model: Any) -> None:
        """Nothing: examples were clipped, and the noise is added later."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> None:
        """Nothing, for the same reason."""

    def _get_num_items_in_batch(self, *args: Any) -> None:
        """Nothing: the loss of an example does not depend on others."""

    # ---- saving and resuming

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """As the Trainer, with the run record next to the model, and a section of the model card about it."""
        super().save_model(output_dir, *args, **kwargs)  # type: ignore[misc]  # of the Trainer
        self._save_record(self._trainer.args.output_dir if output_dir is None else output_dir)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """As the Trainer, with a section on what was protected, and the run record next to the card."""
        super().create_model_card(*args, **kwargs)  # type: ignore[misc]  # of the Trainer
        self._save_record(self._trainer.args.output_dir)

    def _save_record(self, folder: str | os.PathLike[str]) -> None:
        """Save the run record and the section of the model card that names it."""
        if self._run is None:
            return
        record = self.run_record()
        if self._trainer.args.should_save:
            record.save(Path(folder) / _RECORD)
            write_section(Path(folder), record, _RECORD)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]  # of the Trainer
        barrier(None)  # no process may delete what another one is about to complete
        if self._trainer.args.should_save:
            run_files.prune(self._trainer.args.output_dir)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        run = self._made()
        self._follow(run)
        save_checkpoint(
            run_files.make_folder(output_dir, rank_of(None)),
            run.model,
            run.optimizer,
            run.loader,
            extra={
                "scheduler": self._trainer.lr_scheduler.state_dict(),
                "schedule": dict(schedule(self._trainer.args)),
            },
        )

    def _load_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the weights are in the private state, bit for bit."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        run = self._made()
        path = run_files.file_of(checkpoint, rank_of(None))
        try:
            self._load(run, path)
        except BaseException:
            run.optimizer.close()  # it may have the rows of the checkpoint, but other learning rates
            raise

    def _load(self, run: PrivateRun, path: Path) -> None:
        trainer = self._trainer
        found = load_checkpoint(
            path, run.model, run.optimizer, run.loader, accept_changed=self._privacy.accept_changed
        )
        mine = schedule(trainer.args)
        changed = [name for name, value in mine.items() if found["schedule"].get(name) != value]
        if changed:
            told = ", ".join(f"{name} {found['schedule'].get(name)} -> {mine[name]}" for name in changed)
            raise CertificateError(
                f"the checkpoint is of another run: {told}. Steps taken after it would be repeated with the "
                "same noise at other weights",
                claimed=found["schedule"],
                recomputed=dict(mine),
            )
        trainer.lr_scheduler.load_state_dict(found["scheduler"])
        self._follow(run)

    def _follow(self, run: PrivateRun) -> None:
        """Follow a scheduler that `schedule` compares; one that depends on evaluations is not compared."""
        if by_steps_alone(self._trainer.lr_scheduler):
            run.optimizer.follow(self._trainer.lr_scheduler)


class PrivateTrainer(PrivateTrainerMixin, transformers.Trainer):
    """`transformers.Trainer`, private: see PrivateTrainerMixin.

    Examples:
        ::

            trainer = PrivateTrainer(
                model=model,
                args=TrainingArguments("out", per_device_train_batch_size=32, gradient_accumulation_steps=4),
                train_dataset=texts,
                privacy=Privacy(calibration, clip_norm=1.0),
            )
            trainer.train(resume_from_checkpoint="auto")
            trainer.save_model("model")  # with model/run_record.json
    """


class _InStep(transformers.TrainerCallback):
    """Saves a run before its first step, and compares the Trainer's number of steps with the batches'."""

    def __init__(self, trainer: PrivateTrainerMixin) -> None:
        self._mixin = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the number of steps, and save the run."""
        trainer = self._mixin._trainer
        check_planned("num_train_epochs or max_steps", state.max_steps, self._mixin._made().loader)
        if self._mixin._saves and state.global_step == 0:
            # Steps before the first checkpoint would be repeated with other batches and other noise.
            trainer._save_checkpoint(trainer.model, trial=None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Compare the numbers of steps."""
        loader = self._mixin._made().loader
        check_counted("Trainer", state.global_step, loader)
        state.epoch = loader.steps_taken / len(loader)
