"""Private fine-tuning of language models with TRL's SFTTrainer.

`PrivateSFTTrainer` is an SFTTrainer with the batches, clipping and noise of a certificate, for whole models
and for LoRA (`peft_config`). Importing it imports trl (extra `trl`).
"""

import importlib.util as _util

from dpmech.exceptions import MissingDependencyError as _MissingDependencyError

if _util.find_spec("trl") is None:
    raise _MissingDependencyError("trl", "trl")

from dpmech.optim.hf import Privacy
from dpmech.optim.trl.sft import PrivateSFTTrainer

__all__ = ["Privacy", "PrivateSFTTrainer"]
