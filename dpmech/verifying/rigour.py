"""What a rigorous claim may leave to chance."""

from dpmech.certificates import Certificate
from dpmech.numerics import Guarantee
from dpmech.verifying.report import Check

__all__ = ["LARGEST_BETA", "SHARE_OF_DELTA", "rigour_checks", "rigour_problem"]

# A rigorous claim may fail, over dpmech's own sampling, at most once in a million times, and at most at a
# hundredth of the rate at which its own delta gives the privacy up: what is left to chance then changes the
# claim by no more than its last digits.
LARGEST_BETA = 1e-6
SHARE_OF_DELTA = 0.01


def rigour_problem(guarantee: Guarantee, delta: float) -> str:
    """Why a claim is not rigorous; empty if it is.

    Args:
        guarantee: how sure it is.
        delta: of the claim.
    """
    if not guarantee.rigorous:
        return "the claim rests on an estimate, a rigorous one was asked for"
    largest = min(LARGEST_BETA, SHARE_OF_DELTA * delta)
    if guarantee.error <= largest:
        return ""
    return (
        f"the claim holds with probability 1 - beta only, beta = {guarantee.error!r}; where rigour is asked "
        f"for, beta is at most {LARGEST_BETA:g} and at most delta / {1.0 / SHARE_OF_DELTA:g}, "
        f"here {largest!r}"
    )


def rigour_checks(certificate: Certificate) -> tuple[Check, ...]:
    """One failed check where the certificate is not rigorous, else none."""
    problem = rigour_problem(certificate.guarantee, certificate.budget.delta)
    return (Check("rigour", ok=False, detail=problem),) if problem else ()
