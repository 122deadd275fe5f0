"""Training runs: the private model, loader and optimizer, and checkpoints of all three."""

from dpmech.optim.runs.batch_optimizer import BatchOptimizer
from dpmech.optim.runs.checkpoints import load_checkpoint, save_checkpoint
from dpmech.optim.runs.example_loss import MeanOverViews
from dpmech.optim.runs.fixes import fix
from dpmech.optim.runs.held_out import TrainedOn
from dpmech.optim.runs.loader import PrivateLoader, check_counted, check_planned
from dpmech.optim.runs.make_private import (
    LOADERS_SIZE,
    BetterParameterWarning,
    make_private,
)
from dpmech.optim.runs.measured_choice import least_seconds
from dpmech.optim.runs.one_call import make_private_with_epsilon
from dpmech.optim.runs.per_example_model import PerExampleModel, free_memory
from dpmech.optim.runs.set_up import by_steps_alone
from dpmech.optim.runs.user_datasets import UserDataset, UserExamples

__all__ = [
    "LOADERS_SIZE",
    "BatchOptimizer",
    "BetterParameterWarning",
    "MeanOverViews",
    "PerExampleModel",
    "PrivateLoader",
    "TrainedOn",
    "UserDataset",
    "UserExamples",
    "by_steps_alone",
    "check_counted",
    "check_planned",
    "fix",
    "free_memory",
    "least_seconds",
    "load_checkpoint",
    "make_private",
    "make_private_with_epsilon",
    "save_checkpoint",
]
