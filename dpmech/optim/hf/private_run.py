"""Privacy settings, and the private run of a Trainer's model, optimizer and data."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dpmech.certificates import AdaptiveClip
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.optim.clipping import Clipping
from dpmech.optim.hf.embedding_noise import EmbeddingNoise
from dpmech.optim.noise import Generator, NoiseMode
from dpmech.optim.runs import LOADERS_SIZE, BatchOptimizer, PerExampleModel, PrivateLoader, make_private


def own_loss(model: nn.Module, **batch: Any) -> Tensor:
    """The loss that the model computes from an example with labels: for language models their mean.

    Args:
        model: called with the batch by name.
        **batch: one example, as a batch of one.

    Returns:
        A scalar.
    """
    outputs = model(**batch)
    loss: Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
    return loss


@dataclasses.dataclass(frozen=True)
class SmoothedLoss:
    """The loss of a Trainer with `label_smoothing_factor`, of one example; `own_loss` without labels.

    Args:
        smoother: the Trainer's, with the factor.
        shift: whether a word is predicted from those before it.
    """

    smoother: Callable[..., Tensor]
    shift: bool

    def __call__(self, model: nn.Module, **batch: Any) -> Tensor:
        """The loss of a batch of one."""
        if "labels" not in batch:
            return own_loss(model, **batch)
        labels = batch.pop("labels")
        return self.smoother(model(**batch), labels, shift_labels=self.shift)

    @classmethod
    def of(cls, trainer: Any) -> Self:
        """The loss of a Trainer that has a smoother."""
        model = trainer.model
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        shift = type(inner).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        return cls(trainer.label_smoother, shift)


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Privacy settings of a Trainer's run; the names are those of `make_private`.

    Args:
        calibration: a Calibration or a Certificate.
        clip_norm: clip norm of one example's gradient, > 0, or an AdaptiveClip; None uses that of the
            certificate, or 1. It replaces `max_grad_norm`.
        loss: `loss(model, **batch)` of one example, given as a batch of one; None uses the loss that
            the model computes (`own_loss`), or with `label_smoothing_factor` the Trainer.
        expected_batch_size: as for make_private; None uses the certificate's, else
            `per_device_train_batch_size` times `gradient_accumulation_steps` and processes.
        dataset_size: as for make_private.
        max_physical_batch_size: largest number of examples in memory at once. None uses "auto" with
            `auto_find_batch_size`, otherwise `per_device_train_batch_size` if `gradient_accumulation_steps`
            is above 1, and otherwise full batches.
        clipping: as for make_private.
        clipping_mode: as for make_private.
        generator: as for make_private.
        rng: as for make_private.
        mode: as for make_private.
        public_buffers: as for make_private.
        accept_changed: as for load_checkpoint.
        log_raw: whether to log the loss of the batches, as "not_private_loss". **The guarantee does not cover
            this loss.**
        log_epsilon: whether to log `optimizer.epsilon_spent()` with each log entry.
    """

    calibration: object
    clip_norm: float | AdaptiveClip | None = None
    _: dataclasses.KW_ONLY
    loss: Callable[..., Tensor] | None = None
    expected_batch_size: float | None = None
    dataset_size: int | None = None
    max_physical_batch_size: int | Literal["auto"] | None = None
    clipping: Clipping | None = None
    clipping_mode: Literal["auto", "per_example", "ghost", "loop"] = "auto"
    generator: Generator | None = None
    rng: object = None
    mode: NoiseMode | None = None
    public_buffers: Sequence[str] = ()
    accept_changed: Sequence[str] = ()
    log_raw: bool = False
    log_epsilon: bool = True


_OF_TRAINER = ("accept_changed", "log_raw", "log_epsilon")  # settings that make_private does not have


@dataclasses.dataclass(frozen=True)
class PrivateRun:
    """The result of make_private, and a hook to remove when training ends."""

    model: PerExampleModel
    optimizer: BatchOptimizer
    loader: PrivateLoader
    hook: Any = None

    def end(self) -> None:
        """Leave the model as it was."""
        if self.hook is not None:
            self.hook.remove()


def has_columns(data: Any) -> bool:
    """Whether these are data of Hugging Face's datasets, of which a Trainer drops columns."""
    return hasattr(data, "column_names") and hasattr(data, "remove_columns")


def made(trainer: Any, privacy: Privacy, asked: Any) -> PrivateRun:
    """Make model, optimizer and data of a Trainer private; the private optimizer becomes the Trainer's.

    The Trainer has the arguments of `private_arguments`; those that the caller gave are `asked`.

    Raises:
        As make_private, and InvalidParameterError without data.
    """
    if trainer.train_dataset is None:
        raise InvalidParameterError("train_dataset", None, "a dataset with a length and indices")
    data, collator, args = trainer.train_dataset, trainer.data_collator, trainer.args
    if has_columns(data):
        # Trainer takes names from sets, whose order follows PYTHONHASHSEED, and so would fingerprints.
        kept = trainer._remove_unused_columns(data, description="training").column_names
        unused = sorted(set(data.column_names) - set(kept))
        data = data.remove_columns(unused) if unused else data
    elif args.remove_unused_columns:
        collator = trainer._get_collator_with_removed_columns(collator, description="training")
        collator.signature_columns = sorted(collator.signature_columns)
    participation = getattr(privacy.calibration, "participation", None)
    shuffled = getattr(participation, "unrestricted", False) and args.train_sampling_strategy == "random"
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_size=args.per_device_train_batch_size,
        shuffle=shuffled,
        collate_fn=collator,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
    )
    physical, accumulated = asked.per_device_train_batch_size, asked.gradient_accumulation_steps
    most = privacy.max_physical_batch_size
    if most is None:
        most = "auto" if asked.auto_find_batch_size else physical if accumulated > 1 else None
    loss = privacy.loss
    if loss is None:
        loss = own_loss if trainer.label_smoother is None else SmoothedLoss.of(trainer)
    handle = None
    if trainer.args.neftune_noise_alpha is not None:
        loss = EmbeddingNoise(trainer.args.neftune_noise_alpha, loss)
        handle = loss.attach(trainer.model)

    def example_loss(model: Any, *given: Mapping[str, Any], **named: Any) -> Tensor:
        # Names of a batch (`weights`, `return_loss`) must not clash with those of `backward`: pass one dict.
        return loss(model, **(given[0] if given else named))

    optimizer = trainer.create_optimizer()
    optimizer = trainer.optimizer if optimizer is None else optimizer
    if isinstance(optimizer, BatchOptimizer):
        raise InvalidParameterError("optimizers", optimizer, "a torch.optim.Optimizer, not yet private")
    try:
        model, private, batches = make_private(
            trainer.model,
            optimizer,
            loader,
            **{name: value for name, value in vars(privacy).items() if name not in _OF_TRAINER}
            | {
                "loss": example_loss,
                "max_physical_batch_size": most,
                "drop_last": args.dataloader_drop_last,
                "loss_takes": "batch_of_one",
            },
        )
    except CertificateError as error:
        if LOADERS_SIZE not in str(error):
            raise
        sizes = f"per_device_train_batch_size={physical} times gradient_accumulation_steps={accumulated}"
        raise CertificateError(
            str(error).replace(LOADERS_SIZE, sizes), claimed=error.claimed, recomputed=error.recomputed
        ) from error
    own: Any = private
    own._is_accelerate_prepared = True  # accelerate's wrapper would reload its state, and scale
    own.step_was_skipped = False
    trainer.optimizer = private
    trainer.create_optimizer = lambda *_: private  # a class may make a new one whenever it is called
    return PrivateRun(model, private, batches, handle)  # type: ignore[arg-type]  # with a loss it is one


class Batches:
    """The private loader for a Trainer: an iterable with a length."""

    def __init__(self, loader: PrivateLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)
