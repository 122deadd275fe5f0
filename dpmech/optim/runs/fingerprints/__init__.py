"""Fingerprints: what a run was built from, by which a checkpoint knows its run again."""

from dpmech.optim.runs.fingerprints.set_up import PARTS, SetUp, worst

__all__ = ["PARTS", "SetUp", "worst"]
