"""Verification of files: the independent checker's verdict on the claim, labels, policies and signatures."""

from dpmech.verifying.documents import verify
from dpmech.verifying.limits import MAX_MEMORY, MAX_SECONDS
from dpmech.verifying.policy import Policy
from dpmech.verifying.report import Check, Question, Verification
from dpmech.verifying.signature_checks import signature_check

__all__ = [
    "MAX_MEMORY",
    "MAX_SECONDS",
    "Check",
    "Policy",
    "Question",
    "Verification",
    "signature_check",
    "verify",
]
