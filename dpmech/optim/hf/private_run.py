"""Privacy settings, and the private run of a Trainer's model, optimizer and data."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dpmech.certificates import AdaptiveClip
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.optim.clipping import Clipping
from dpmech.optim.noise import Generator, NoiseMode
from dpmech.optim.runs import (
    LOADERS_SIZE,
    BatchOptimizer,
    PerExampleModel,
    PrivateLoader,
    make_private,
)


def own_loss(model: nn.Module, **batch: Any) -> Tensor:  # noqa: ANN401 - what the model takes
    """The loss that the model computes from an example with labels: for language models their mean.

    Args:
        model: called with the batch by name.
        **batch: one example, as a batch of one.

    Returns:
        A scalar.
    """
    return _loss_of(model(**batch))


def masked_loss(model: nn.Module, **batch: Any) -> Tensor:  # noqa: ANN401 - what the model takes
    """`own_loss` for encoders (BERT, RoBERTa, ...) and encoder-decoders (T5) with a padding mask.

    They branch on the values of a two-dimensional mask, which `torch.func` does not support; a
    four-dimensional mask, which is added to the scores, is used as it is. **Not for decoder-only models**
    (GPT-2, Llama): there such a mask would replace the causal one.

    Args:
        model: called with the batch by name.
        **batch: one example, as a batch of one; `attention_mask` of shape (1, length), 1 where there is text.

    Returns:
        A scalar.
    """
    mask = batch["attention_mask"][:, None, None, :].float()
    return _loss_of(model(**batch | {"attention_mask": (1.0 - mask) * torch.finfo(torch.float32).min}))


def _loss_of(outputs: Any) -> Tensor:  # noqa: ANN401 - an output of transformers, or a tuple
    loss: Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
    return loss


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Privacy settings of a Trainer's run; the names are those of `make_private`.

    Args:
        calibration: a Calibration or a Certificate.
        clip_norm: of one example's gradient, > 0, or an AdaptiveClip; None uses the certificate's, else 1.
            It replaces `max_grad_norm`.
        loss: `loss(model, **batch)` of one example, given as a batch of one; None uses the loss that
            the model computes (`own_loss`); `masked_loss` for encoders with padding.
        expected_batch_size: as for make_private; None uses the certificate's, else
            `per_device_train_batch_size` times `gradient_accumulation_steps` and processes.
        dataset_size: as for make_private.
        max_physical_batch_size: largest number of examples held at once; None uses
            `per_device_train_batch_size` if `gradient_accumulation_steps` is above 1, else full batches.
        clipping: as for make_private.
        clipping_mode: as for make_private.
        generator: as for make_private.
        rng: as for make_private.
        mode: as for make_private.
        public_buffers: as for make_private.
        accept_changed: as for load_checkpoint.
        log_raw: whether to log the loss of the batches, as "not_private_loss". **It is not private.**
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
    clipping_mode: Literal["auto", "per_example", "ghost"] = "auto"
    generator: Generator | None = None
    rng: object = None
    mode: NoiseMode | None = None
    public_buffers: Sequence[str] = ()
    accept_changed: Sequence[str] = ()
    log_raw: bool = False
    log_epsilon: bool = True


@dataclasses.dataclass(frozen=True)
class PrivateRun:
    """The result of make_private."""

    model: PerExampleModel
    optimizer: BatchOptimizer
    loader: PrivateLoader


def made(trainer: Any, privacy: Privacy, physical: int, accumulated: int) -> PrivateRun:  # noqa: ANN401 - a Trainer
    """Make model, optimizer and data of a Trainer private; the private optimizer becomes the Trainer's.

    Args:
        trainer: a Trainer with private arguments.
        privacy: the privacy settings.
        physical: the original `per_device_train_batch_size`.
        accumulated: the original `gradient_accumulation_steps`.

    Raises:
        As make_private, and InvalidParameterError without data.
    """
    if trainer.train_dataset is None:
        raise InvalidParameterError("train_dataset", None, "a dataset with a length and indices")
    data, collator, args = trainer.train_dataset, trainer.data_collator, trainer.args
    if hasattr(data, "column_names") and hasattr(data, "remove_columns"):  # of Hugging Face's datasets
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
    most = privacy.max_physical_batch_size
    if most is None and accumulated > 1:
        most = physical
    loss = own_loss if privacy.loss is None else privacy.loss

    def example_loss(model: Any, *given: Mapping[str, Any], **named: Any) -> Tensor:  # noqa: ANN401 - a module or a call of one
        # Names of a batch (`weights`, `return_loss`) must not clash with those of `backward`: pass one dict.
        return loss(model, **(given[0] if given else named))

    optimizer = trainer.create_optimizer()
    if isinstance(optimizer, BatchOptimizer):
        raise InvalidParameterError("optimizers", optimizer, "a torch.optim.Optimizer, not yet private")
    try:
        model, private, batches = make_private(
            trainer.model,
            optimizer,
            loader,
            privacy.calibration,
            privacy.clip_norm,
            loss=example_loss,
            expected_batch_size=privacy.expected_batch_size,
            dataset_size=privacy.dataset_size,
            max_physical_batch_size=most,
            clipping=privacy.clipping,
            drop_last=args.dataloader_drop_last,
            generator=privacy.generator,
            rng=privacy.rng,
            mode=privacy.mode,
            public_buffers=privacy.public_buffers,
            clipping_mode=privacy.clipping_mode,
            loss_takes="batch_of_one",
        )
    except CertificateError as error:
        if LOADERS_SIZE not in str(error):
            raise
        own_size = f"per_device_train_batch_size={physical} times gradient_accumulation_steps={accumulated}"
        raise CertificateError(
            str(error).replace(LOADERS_SIZE, own_size), claimed=error.claimed, recomputed=error.recomputed
        ) from error
    own: Any = private
    own._is_accelerate_prepared = True  # accelerate's wrapper would reload its state, and scale
    own.step_was_skipped = False
    trainer.optimizer = private
    return PrivateRun(model, private, batches)  # type: ignore[arg-type]  # with a loss it is one


class Batches:
    """The private loader for a Trainer: an iterable with a length."""

    def __init__(self, loader: PrivateLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)
