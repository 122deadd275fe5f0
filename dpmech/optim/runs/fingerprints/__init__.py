"""Fingerprints: what a run was built from, by which a checkpoint knows its run again."""

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
