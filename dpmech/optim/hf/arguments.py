"""Arguments of a Trainer: replaced or refused for private training; and its checkpoint folders."""

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from dpmech.certificates import AdaptiveClip
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.processes import gathered, rank_of

FOLDER = "_private_run"  # hubs ignore names with this prefix
_PREFIX = "checkpoint-"
_STATE = "trainer_state.json"


def file_of(checkpoint: str | os.PathLike[str], rank: int = 0) -> Path:
    """The private state of a checkpoint folder, of one of the processes."""
    folder = Path(checkpoint)
    own = f".{rank}" if rank else ""
    return folder.parent / FOLDER / f"{folder.name}{own}.pt"


def make_folder(checkpoint: str | os.PathLike[str], rank: int = 0) -> Path:
    """Return `file_of`, and make its folder, readable by its owner only, or raise InvalidParameterError."""
    file = file_of(checkpoint, rank)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidParameterError(
            "output_dir", str(file.parent), f"a folder that can be made ({error})"
        ) from error
    return file


def complete(checkpoint: Path) -> bool:
    """Whether all processes wrote a checkpoint completely: Trainer writes one file after the other."""
    return all(gathered("a checkpoint", _complete(checkpoint), None))


def _complete(checkpoint: Path) -> bool:
    try:
        step = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))["global_step"]
        return checkpoint.name == f"{_PREFIX}{step}" and file_of(checkpoint, rank_of(None)).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def newest(output: str | os.PathLike[str]) -> Path | None:
    """The newest checkpoint that all processes have complete; None if there is none."""
    steps = {
        int(folder.name.removeprefix(_PREFIX))
        for folder in Path(output).glob(f"{_PREFIX}*")
        if folder.name.removeprefix(_PREFIX).isdecimal() and _complete(folder)
    }
    common = set.intersection(*gathered("checkpoints", steps, None))
    return Path(output) / f"{_PREFIX}{max(common)}" if common else None


def prune(output: str | os.PathLike[str]) -> None:
    """Delete private states whose checkpoint folder was deleted."""
    for file in (Path(output) / FOLDER).glob(f"{_PREFIX}*.pt"):
        if not (Path(output) / file.name.split(".")[0]).is_dir():
            file.unlink(missing_ok=True)


# Methods of Trainer that are replaced here: if one is missing, the version of transformers is unsupported.
REPLACED = (
    "get_train_dataloader",
    "training_step",
    "log",
    "save_model",
    "evaluation_loop",
    "floating_point_ops",
    "_clip_grad_norm",
    "_get_grad_norm",
    "_get_num_items_in_batch",
    "_save_checkpoint",
    "_save_optimizer_and_scheduler",
    "_load_optimizer_and_scheduler",
    "_load_from_checkpoint",
)
# Methods that a user's class must not define, and what to do instead.
_CALLERS = {
    "training_step": "Privacy(loss=...), of one example",
    "get_train_dataloader": "train_dataset and data_collator; batches are sampled as the certificate says",
    "_get_train_sampler": "train_dataset; batches are sampled as the certificate says",
    "get_batch_samples": "a data_collator",
    "_inner_training_loop": "callbacks",
    "_run_epoch": "callbacks",
}
_SCALER = "a gradient scaler skips steps and changes its scale by the data"
# Arguments that are refused unless they have this value, and what to do instead.
_REFUSED: dict[str, tuple[Any, str]] = {
    "fp16": (False, f"bf16=True: {_SCALER}"),
    "fp16_full_eval": (False, "fp16_full_eval=False: it changes the trained weights"),
    "bf16_full_eval": (False, "bf16_full_eval=False: it changes the trained weights"),
    "torch_compile": (False, "torch_compile=False: per-example gradients come from torch.func"),
    "use_liger_kernel": (False, "use_liger_kernel=False: its kernels have no per-example gradients"),
    "include_num_input_tokens_seen": (
        "no",
        "include_num_input_tokens_seen='no': the lengths of the texts in a batch are private",
    ),
    "push_to_hub": (False, "save_model to a folder, which contains no secrets, and push that"),
    "enable_jit_checkpoint": (False, "save_strategy: a signal may come in the middle of a step"),
    "ignore_data_skip": (False, "ignore_data_skip=False: the checkpoint determines the next batch"),
}
_SAMPLING = ("random", "sequential")
_CLIP_DEFAULT = 1.0  # default of max_grad_norm
# Arguments that determine later steps, in addition to data, weights and noise.
_SCHEDULE = (
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "warmup_ratio",
    "num_train_epochs",
    "max_steps",
    "optim",
    "optim_args",
)
_BY_RESULTS = ("reduce_lr_on_plateau", "greedy")  # schedules that depend on evaluations
_EVALUATION = ("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "metric_for_best_model")


def check_methods(kind: type, known: tuple[type, ...]) -> None:
    """Raise UnsupportedCombinationError if a class replaces the loop, or transformers lacks our hooks.

    Methods of the classes in `known` are replaced on purpose.
    """
    missing = [name for name in REPLACED if not hasattr(transformers.Trainer, name)]
    if missing:
        raise UnsupportedCombinationError(
            f"Trainer of transformers {transformers.__version__} has no {', '.join(missing)}",
            supported="transformers 5; make_private with your own loop for others",
        )
    for name, instead in _CALLERS.items():
        for base in kind.__mro__:
            if base in known or base.__module__.split(".")[0] in ("transformers", "dpmech"):
                continue
            if name in vars(base):
                raise UnsupportedCombinationError(
                    f"{base.__name__} defines {name}, which private training does itself",
                    supported=f"a class without it, and {instead}; or your own loop, with make_private",
                )


def check_trainer(
    trainer: Any, *, own_loss: bool, clip_norm: float | AdaptiveClip | None, known: tuple[type, ...]
) -> None:
    """Refuse, by name, settings that would bypass clipping, sampling or noise.

    Args:
        trainer: after its constructor.
        own_loss: whether the loss is computed by the model.
        clip_norm: of the caller; None if not given.
        known: classes whose loss of one example is that of the model.

    Raises:
        UnsupportedCombinationError: on settings that private training does not support.
        InvalidParameterError: on contradictory arguments.
    """
    args = trainer.args
    for name, (accepted, instead) in _REFUSED.items():
        value = getattr(args, name, accepted)
        if (getattr(value, "value", value) or accepted) != accepted:
            raise UnsupportedCombinationError(f"{name}={value!r}", supported=instead)
    if args.mixed_precision not in ("no", "bf16"):  # by `accelerate launch` and the environment, too
        raise UnsupportedCombinationError(
            f"mixed_precision={args.mixed_precision!r} of accelerate", supported=f"bf16=True: {_SCALER}"
        )
    if str(args.train_sampling_strategy) not in _SAMPLING:
        raise UnsupportedCombinationError(
            f"train_sampling_strategy={args.train_sampling_strategy!r}: which examples share a step would "
            "depend on them",
            supported=f"one of {_SAMPLING}; batches are sampled as the certificate says",
        )
    if args.deepspeed or args.fsdp or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise UnsupportedCombinationError(
            "deepspeed or fsdp reduces raw gradients", supported="one process, or a loop with make_private"
        )
    if args.n_gpu > 1:
        raise UnsupportedCombinationError(
            f"{args.n_gpu} devices in one process: DataParallel copies the model in every call",
            supported="one process per device (torchrun or accelerate launch), whose clipped sums are added; "
            "or one device (CUDA_VISIBLE_DEVICES)",
        )
    parallel = getattr(trainer.accelerator, "parallelism_config", None)
    if parallel is not None and parallel.non_data_parallel_size > 1:
        raise UnsupportedCombinationError(
            "parallelism_config splits a model or a text over processes, none of which sees the gradient of "
            "an example",
            supported="the whole model in every process (no parallelism_config)",
        )
    if args.label_smoothing_factor and not own_loss:
        raise UnsupportedCombinationError(
            f"label_smoothing_factor={args.label_smoothing_factor} with a loss of your own, which it does "
            "not change",
            supported="label_smoothing_factor=0.0 and a loss that smooths, or Privacy without a loss",
        )
    if args.max_grad_norm not in (0.0, None, _CLIP_DEFAULT, clip_norm):
        accepted = "left out: gradients are clipped per example, to Privacy(clip_norm=...)"
        if clip_norm is not None:
            accepted = f"left out, or clip_norm={clip_norm!r}, that of one example"
        raise InvalidParameterError("max_grad_norm", args.max_grad_norm, accepted)
    if trainer.compute_loss_func is not None:
        raise UnsupportedCombinationError("compute_loss_func", supported="Privacy(loss=...), of one example")
    defines = next(base for base in type(trainer).__mro__ if "compute_loss" in vars(base))
    if own_loss and defines not in (transformers.Trainer, *known):
        raise UnsupportedCombinationError(
            f"{defines.__name__} defines compute_loss, of a batch",
            supported="Privacy(loss=...) for training, of one example; compute_loss is then for evaluation",
        )
    if trainer.model_init is not None:
        raise UnsupportedCombinationError(
            "model_init makes a model for every call of train, each of which is a separate private run",
            supported="model=...",
        )


def private_arguments(args: Any) -> Any:
    """A copy with full batches, and without clipping or skipping outside the private optimizer."""
    mine = copy.copy(args)
    mine.per_device_train_batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps
    mine.gradient_accumulation_steps = 1
    mine.max_grad_norm = 0.0
    mine.auto_find_batch_size = False  # the loader finds it: a restart of the loop would be another run
    mine.ignore_data_skip = True  # the loader stores its position
    mine.logging_nan_inf_filter = False
    return mine


def steered_by(trainer: Any) -> list[str]:
    """Settings of a Trainer that select weights, learning rates or the end of a run by evaluations."""
    args = trainer.args
    kind = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    saving = str(getattr(args.save_strategy, "value", args.save_strategy))
    callbacks = trainer.callback_handler.callbacks
    return [
        name
        for name, used in (
            ("load_best_model_at_end", args.load_best_model_at_end),
            (f"lr_scheduler_type={kind!r}", kind in _BY_RESULTS),
            ("save_strategy='best'", saving == "best"),
            (
                "EarlyStoppingCallback",
                any(isinstance(callback, transformers.EarlyStoppingCallback) for callback in callbacks),
            ),
        )
        if used
    ]


def schedule(args: Any) -> Mapping[str, str]:
    """The settings that determine learning rates, as strings that can be compared."""
    names: tuple[str, ...] = _SCHEDULE
    if str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)) in _BY_RESULTS:
        names += _EVALUATION
    return {name: str(getattr(args, name, None)) for name in names}
