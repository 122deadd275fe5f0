"""Fingerprints of a run's dataset, model and loss, which identify the run of a checkpoint."""

from dpmech.optim.runs.fingerprints.code import code_digest
from dpmech.optim.runs.fingerprints.set_up import (
    PARTS,
    SetUp,
    by_steps_alone,
    examples_print,
    picked_examples,
    scheduler_changes,
    scheduler_print,
    single_prints,
)

__all__ = [
    "PARTS",
    "SetUp",
    "by_steps_alone",
    "code_digest",
    "examples_print",
    "picked_examples",
    "scheduler_changes",
    "scheduler_print",
    "single_prints",
]
