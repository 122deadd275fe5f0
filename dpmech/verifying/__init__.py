"""Verifying and signing files: the independent checker's verdict, labels, policies and signatures."""

from dpmech.verifying.claims import MAX_MEMORY, MAX_SECONDS
from dpmech.verifying.documents import signature_check, verify
from dpmech.verifying.report import Check, Question, Verification
from dpmech.verifying.signing import sign

__all__ = [
    "MAX_MEMORY",
    "MAX_SECONDS",
    "Check",
    "Question",
    "Verification",
    "sign",
    "signature_check",
    "verify",
]
