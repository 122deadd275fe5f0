"""PrivateSFTTrainer: TRL's SFTTrainer, with batches, clipping and noise of a certificate."""

from typing import Any

from trl import SFTTrainer  # type: ignore[attr-defined]  # exported when it is first used

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.mechanism import Adjacency
from dpmech.optim.hf import Privacy, PrivateTrainerMixin

# Settings under which a row is not an example, or its loss not that of the model: the accepted value, and
# what to do instead.
_REFUSED: dict[str, tuple[Any, str]] = {
    "packing": (
        False,
        "packing=False: a row of several texts is no example, and a text that is left out would move all "
        "others to other rows. Short texts cost little if they are sorted by length within a microbatch",
    ),
    "padding_free": (
        False,
        "padding_free=False: it makes one row of a batch, which holds all of its examples",
    ),
    "loss_type": ("nll", "loss_type='nll', or Privacy(loss=...) of one example"),
    "activation_offloading": (
        False,
        "activation_offloading=False, and a smaller per_device_train_batch_size: it is how many examples are "
        "held at once",
    ),
}


def check_arguments(args: Any, claim: Any) -> None:
    """Raise UnsupportedCombinationError, by name, on settings that private training does not support.

    Those of an SFTConfig are read; other arguments, and None, have the defaults.
    """
    for name, (accepted, instead) in _REFUSED.items():
        value = getattr(args, name, accepted)
        if value != accepted:
            raise UnsupportedCombinationError(f"{name}={value!r}", supported=instead)
    participation = getattr(claim, "participation", None)
    if getattr(args, "shuffle_dataset", False) and not getattr(participation, "random", True):
        raise UnsupportedCombinationError(
            f"shuffle_dataset=True under {participation!r}, which takes the examples in their order: another "
            "number of texts would be in another order",
            supported="shuffle_dataset=False, or a participation that samples its batches, such as "
            'plan.participation("poisson")',
        )


class PrivateSFTTrainer(PrivateTrainerMixin, SFTTrainer):
    """`trl.SFTTrainer`, private: see PrivateTrainerMixin.

    An example is a row of the dataset: a text, or a prompt with its completion. Its loss is the mean over its
    own training words. TRL's statistics of training batches (token accuracy, entropy, number of tokens) are
    not private. They are not computed in training; evaluations log those of their own texts, and no number of
    tokens, which TRL counts in training.

    Args:
        *args: as for the SFTTrainer.
        privacy: the privacy settings.
        **kwargs: as for the SFTTrainer; `peft_config` for LoRA.

    Raises:
        UnsupportedCombinationError: for packed texts and other settings under which a row of a batch is not
            an example; and as `PrivateTrainerMixin`.

    Examples:
        ::

            trainer = PrivateSFTTrainer(
                model=model,
                args=trl.SFTConfig("out", per_device_train_batch_size=8, gradient_accumulation_steps=32),
                train_dataset=texts,
                peft_config=peft.LoraConfig(),
                privacy=Privacy(calibration, clip_norm=1.0),
            )
            trainer.train(resume_from_checkpoint="auto")
            trainer.save_model("adapter")  # with adapter/run_record.json
    """

    _known = (SFTTrainer,)

    def __init__(self, *args: Any, privacy: Privacy, **kwargs: Any) -> None:
        if not isinstance(privacy, Privacy):
            raise InvalidParameterError("privacy", privacy, "a dpmech.optim.trl.Privacy")
        own = kwargs.get("args", args[1] if len(args) > 1 else None)
        check_arguments(own, privacy.calibration)
        self._prepared = False
        self._hides_size = getattr(privacy.calibration, "adjacency", None) is Adjacency.ADD_REMOVE
        super().__init__(*args, privacy=privacy, **kwargs)

    def _prepare_dataset(self, dataset: Any, *args: Any) -> Any:
        """As the SFTTrainer, which leaves out texts without a word to train on."""
        found = super()._prepare_dataset(dataset, *args)
        first, self._prepared = not self._prepared, True  # evaluation data come later
        if first and not self._hides_size and len(found) != len(dataset):
            raise UnsupportedCombinationError(
                "texts without a word to train on were left out, so that the number of examples, which is "
                "public under this adjacency, depends on what they hold",
                supported="Adjacency.ADD_REMOVE with a declared dataset_size; or a dataset in which every "
                "text has such a word within max_length",
            )
        return found
