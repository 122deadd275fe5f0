"""Verification of certificates by routes other than the one that issued them."""

from dpmech.verifying.checks import verify as verify
from dpmech.verifying.report import Check as Check
from dpmech.verifying.report import Verification as Verification
