"""What the releases of a ledger add up to, as data; where no number can be given, why."""

from typing import Any

from dpmech.composition import Ledger
from dpmech.exceptions import DpmechError

__all__ = ["total_of"]


def total_of(ledger: Ledger, delta: float | None, *, profiles: bool = False) -> dict[str, Any]:
    """Eps in all, as data; where there is none, why; and how many releases entered by their claims alone.

    Args:
        ledger: of which.
        delta: at which; None for `Ledger.usual_delta`.
        profiles: whether privacy profiles that take work are computed for it.
    """
    at = ledger.usual_delta if delta is None else delta
    several = ledger.budget is None and len(ledger.releases) + len(ledger.counts) > 1
    by_claims = len(ledger.waiting) if several and not profiles else 0
    try:
        found = ledger.epsilon(at, profiles=False if ledger.budget is None and not profiles else None)
    except DpmechError as error:
        return {"delta": at, "by_claims": by_claims, "reason": str(error)}
    return {
        "delta": at,
        "by_claims": by_claims,
        "eps_lower": found.lower,
        "eps_upper": found.upper,
        "guarantee": str(found.guarantee),
    }
