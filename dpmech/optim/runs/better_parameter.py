"""A word about parameters: the warning that another one would give much less noise for the same budget."""

import functools
import warnings

from dpmech.documents import Claim
from dpmech.fitting import BetterMember, better_member
from dpmech.mechanism import ColumnNormalized, InverseSquareRoot, Mechanism, PrivacyBudget, SquareRoot
from dpmech.numerics import typed

__all__ = ["BetterParameterWarning", "warn_of_better"]


class BetterParameterWarning(UserWarning):
    """The strategy of a run has a parameter with which its error would be much smaller for the same budget.

    It says nothing against the guarantee. Where the parameter is meant as it is:
    `warnings.filterwarnings("ignore", category=dpmech.optim.BetterParameterWarning)`.
    """


def warn_of_better(claim: Claim) -> None:
    """Warn where `better_member` knows a much better parameter; two seconds at most, once a mechanism."""
    found = _found(claim.mechanism, claim.budget)
    if found is None:
        return
    strategy, participation = claim.strategy, claim.participation
    inner = strategy.strategy if isinstance(strategy, ColumnNormalized) else strategy
    family = type(inner).__name__
    if isinstance(inner, SquareRoot | InverseSquareRoot):
        way = f"use {found.strategy!r}"
    else:
        normalized = ", column_normalized=True" if inner is not strategy else ""
        way = (
            f"dm.optimize(dm.{family}, dm.{participation!r}, n={strategy.n}, eps={typed(claim.budget.eps)}, "
            f"delta={typed(claim.budget.delta)}{normalized}).strategy is the best one"
        )
    warnings.warn(
        f"a much better parameter of {family} exists for this budget: {found.strategy!r} has an error about "
        f"{found.factor:.1f} times smaller (RMSE on the prefix sum, roughly) than {strategy!r} under "
        f"{participation!r}. {way}. If this one is meant, filter dpmech.optim.BetterParameterWarning",
        BetterParameterWarning,
        stacklevel=3,
    )


@functools.lru_cache(maxsize=64)
def _found(mechanism: Mechanism, budget: PrivacyBudget) -> BetterMember | None:
    return better_member(mechanism, budget)
