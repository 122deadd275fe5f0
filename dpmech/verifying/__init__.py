"""Verification of certificates by routes other than the one that issued them."""

from dpmech.verifying.documents import verify
from dpmech.verifying.limits import MAX_MEMORY, MAX_SECONDS
from dpmech.verifying.report import Check, Verification

__all__ = ["MAX_MEMORY", "MAX_SECONDS", "Check", "Verification", "verify"]
