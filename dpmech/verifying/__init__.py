"""Verification of certificates by routes other than the one that issued them."""

from dpmech.verifying.documents import verify
from dpmech.verifying.integrals import gaussian_integral
from dpmech.verifying.limits import MAX_MEMORY, MAX_SECONDS
from dpmech.verifying.policy import Policy
from dpmech.verifying.privacy_routes import SECOND_ROUTES, Route
from dpmech.verifying.report import Check, OwnDraw, Verification
from dpmech.verifying.signature_checks import signature_check
from dpmech.verifying.user_draws import UserDraws

__all__ = [
    "MAX_MEMORY",
    "MAX_SECONDS",
    "SECOND_ROUTES",
    "Check",
    "OwnDraw",
    "Policy",
    "Route",
    "UserDraws",
    "Verification",
    "gaussian_integral",
    "signature_check",
    "verify",
]
