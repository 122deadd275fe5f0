"""Fingerprints: what a run was built from, by which a checkpoint knows its run again."""

from dpmech.optim.runs.fingerprints.code import code_digest
from dpmech.optim.runs.fingerprints.data import examples_print, picked_examples, single_prints
from dpmech.optim.runs.fingerprints.schedulers import by_steps_alone, scheduler_changes, scheduler_print
from dpmech.optim.runs.fingerprints.set_up import PARTS, SetUp

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
