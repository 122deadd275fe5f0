"""What a Trainer of Lightning is told that would go around clipping, lots or noise."""

from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError

__all__ = ["check_monitors", "check_steps", "check_trainer", "monitored", "scheduler_of"]

_PRECISIONS = ("32-true", "64-true", "bf16-true")


def check_trainer(trainer: Any, module: Any) -> None:  # noqa: ANN401 - Lightning's
    """Refuse by name.

    Args:
        trainer: at the start of its fit.
        module: the LightningModule.

    Raises:
        UnsupportedCombinationError: on what private training cannot have.
    """
    refused = [
        (
            trainer.accumulate_grad_batches != 1,
            f"accumulate_grad_batches={trainer.accumulate_grad_batches}",
            "max_physical_batch_size: a batch of the loader is a lot, computed in physical batches",
        ),
        (
            trainer.gradient_clip_val not in (None, 0, 0.0),
            f"gradient_clip_val={trainer.gradient_clip_val}",
            "clip_norm of PrivateTraining: gradients are clipped one by one, before the noise",
        ),
        (
            trainer.precision not in _PRECISIONS,
            f"precision={trainer.precision!r}",
            f"one of {_PRECISIONS}; a gradient scaler skips steps and changes its scale by the data",
        ),
        (
            trainer.world_size > 1,
            f"{trainer.world_size} processes: Lightning would average raw gradients",
            "devices=1, or a loop of your own with make_private",
        ),
        (
            trainer.limit_train_batches != 1.0 or trainer.overfit_batches > 0,
            f"limit_train_batches={trainer.limit_train_batches} or overfit_batches={trainer.overfit_batches}",
            "max_steps: lots are those of the certificate",
        ),
        (
            trainer.reload_dataloaders_every_n_epochs != 0,
            f"reload_dataloaders_every_n_epochs={trainer.reload_dataloaders_every_n_epochs}",
            "0",
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
    for name in ("configure_gradient_clipping", "optimizer_step", "backward"):
        if any(name in vars(base) for base in type(module).__mro__ if not _is_lightnings(base)):
            raise UnsupportedCombinationError(
                f"{type(module).__name__} defines {name}, which private training does itself",
                supported="training_step with automatic_optimization = False, and PrivateTraining.backward",
            )


_PRIVATE = {"epsilon_spent"}  # what is logged in training, and tells nothing of the data


def monitored(trainer: Any) -> dict[str, str]:  # noqa: ANN401 - Lightning's
    """What callbacks and schedules choose by: who, by the name of the metric."""
    found = {
        one.monitor: type(one).__name__
        for one in trainer.callbacks
        if isinstance(getattr(one, "monitor", None), str)
    }
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.monitor:
            found[config.monitor] = type(config.scheduler).__name__
    return found


def scheduler_of(trainer: Any) -> Any:  # noqa: ANN401 - Lightning's; a scheduler of torch's, or None
    """The scheduler of the one optimizer."""
    found = [one.scheduler for one in trainer.lr_scheduler_configs if isinstance(one.scheduler, LRScheduler)]
    return found[0] if len(found) == 1 else None


def check_monitors(trainer: Any) -> None:  # noqa: ANN401 - the same
    """Raise UnsupportedCombinationError if one chooses by what was logged in training, of raw data."""
    chosen = monitored(trainer)
    if not chosen:
        return
    logged: set[str] = set()
    for value in trainer.fit_loop.epoch_loop._results.values():
        name = value.meta.name
        if name not in _PRIVATE:
            logged |= {name, f"{name}_step", f"{name}_epoch"}
    for name in sorted(chosen.keys() & logged):
        raise UnsupportedCombinationError(
            f"{chosen[name]} monitors {name!r}, which is logged in training: it would choose by the training "
            "data, without noise, what is released",
            supported="a metric of a validation on data that are not trained on",
        )


def check_steps(planned: float, n: int, per_epoch: int) -> None:
    """Raise InvalidParameterError if more steps are planned than certified."""
    if planned > n:
        raise InvalidParameterError(
            "max_epochs or max_steps",
            f"{planned:g} steps",
            f"at most the {n} steps that are certified, {per_epoch} an epoch",
        )


def _is_lightnings(base: type) -> bool:
    return base.__module__.split(".")[0] in ("lightning", "torch", "builtins")
