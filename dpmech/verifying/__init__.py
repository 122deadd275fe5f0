"""Verifying and signing files: the independent checker's verdict, labels, policies and signatures."""

from dpmech.verifying.claims import MAX_MEMORY, MAX_SECONDS
from dpmech.verifying.documents import signature_check, verify
from dpmech.verifying.policy_checks import implied_size
from dpmech.verifying.report import LOOSE, Check, Question, Verification, check_noise_of_each
from dpmech.verifying.signing import sign

__all__ = [
    "LOOSE",
    "MAX_MEMORY",
    "MAX_SECONDS",
    "Check",
    "Question",
    "Verification",
    "check_noise_of_each",
    "implied_size",
    "sign",
    "signature_check",
    "verify",
]
