"""What a rigorous claim may leave to chance."""

from dpmech.certificates import Certificate
from dpmech.numerics import Guarantee
from dpmech.verifying.report import Check

__all__ = ["rigour_checks", "rigour_problem"]


def rigour_problem(guarantee: Guarantee) -> str:
    """Why a claim is not rigorous; empty if it is.

    A rigorous one leaves nothing to chance, or nothing that its delta does not hold: an error inside delta is
    a part of a theorem about the whole procedure. One outside says how often the claim is wrong, and that
    only where nobody picked the random numbers.

    Args:
        guarantee: how sure it is.
    """
    if not guarantee.rigorous:
        return "the claim rests on an estimate, a rigorous one was asked for"
    if guarantee.outside_error == 0.0:
        return ""
    return (
        f"the claim holds with probability 1 - beta only, beta = {guarantee.error!r}, outside delta; where "
        "rigour is asked for, nothing is sampled, or beta is inside delta: calibrate again, without rng"
    )


def rigour_checks(certificate: Certificate) -> tuple[Check, ...]:
    """One failed check where the certificate is not rigorous, else none."""
    problem = rigour_problem(certificate.guarantee)
    return (Check("rigour", ok=False, detail=problem),) if problem else ()
