"""Private training with the Trainer of Hugging Face's transformers.

`PrivateTrainer` is a Trainer with the batches, clipping and noise of a certificate; `PrivateTrainerMixin`
does the same for Seq2SeqTrainer or a custom class. Importing it imports transformers (extra `hf`).
"""

import importlib.util as _util

from dpmech.exceptions import MissingDependencyError as _MissingDependencyError

if _util.find_spec("transformers") is None or _util.find_spec("accelerate") is None:
    raise _MissingDependencyError("transformers and accelerate", "hf")

from dpmech.optim.hf.private_run import Privacy, own_loss
from dpmech.optim.hf.trainer import PrivateTrainer, PrivateTrainerMixin

__all__ = ["Privacy", "PrivateTrainer", "PrivateTrainerMixin", "own_loss"]
