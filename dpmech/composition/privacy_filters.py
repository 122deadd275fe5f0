r"""Privacy filters: what may still be released when every choice may look at all results so far.

Plain composition theorems fix the mechanisms beforehand. Where the next one, or whether there is a next
one, depends on what came out, only a filter counts: every release has a price, known when it is added, and
the sum of the prices stays below a limit that was fixed before the first one, whatever happens. What then
holds is the budget that the limit stands for: not less, also where less was spent.

- **Gaussian** (`GdpCurrency`): price mu^2. If sum mu_i^2 <= B on every path, the whole is sqrt(B)-Gaussian-DP
  (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023). *Proof.* A mu-GDP release is a
  post-processing of N(mu h, 1), h = 0 or 1 (Blackwell), that is, of the increment over a time mu^2 of a
  Brownian motion with drift h. Which increment comes next depends on the path so far only, increments are
  independent, and a path over a time B is as good as its end: N(B h, B).
- **Renyi** (`RenyiCurrency`): price the divergence of one order a, fixed beforehand. If sum D_i <= R on every
  path, the whole has a divergence of at most R (Feldman and Zrnic 2021, Theorem 3.1): e^((a - 1) sum (L_i -
  D_i)) is a supermartingale.
- **(eps, delta)** (`ClaimCurrency`): both add up (Rogers et al. 2016), or, with a slack fixed beforehand, the
  sum of eps^2 / 2 stays within what an order a allows at that slack (Whitehouse et al. 2023). *Proof of the
  second.* An (eps, delta) release is a post-processing of one that fails with probability delta and is
  randomised response otherwise (Kairouz, Oh and Viswanath 2015), of divergence at most a eps^2 / 2 (Bun and
  Steinke 2016). Some failure happens with probability E sum delta_i at most; where none does, both laws have
  the factor prod (1 - delta_i) <= 1, and the Renyi filter covers the rest.

Composed loss distributions are no filter: each path may stay below (eps, delta), and the choice among them
not. Interactive releases (training runs) may overlap in time (Haney et al. 2023).
"""

import abc
import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from dpmech.certificates import Claim
from dpmech.guards import check_delta
from dpmech.mechanism import PrivacyBudget
from dpmech.numerics import rounded_down

__all__ = ["Currency", "Price", "PrivacyFilter", "Remaining", "Spent"]

# One number for every limit of the filter, rounded up.
Price: TypeAlias = tuple[float, ...]
# Sums of prices.
Spent: TypeAlias = tuple[Fraction, ...]


@dataclasses.dataclass(frozen=True)
class Currency(abc.ABC):
    """In what the releases of a ledger are paid; fixed when the ledger is made."""

    @abc.abstractmethod
    def filter(self, budget: PrivacyBudget) -> "PrivacyFilter":
        """The filter that this currency makes of a budget.

        Raises:
            InvalidParameterError: if the budget leaves no room at the settings given.
        """


@dataclasses.dataclass(frozen=True)
class Remaining:
    """What a ledger with a budget would still take as one further release.

    Attributes:
        mu: the largest sensitivity over sigma of a further unsampled release, rounded down; 0 if nothing
            fits. In claims, that of the Gaussian release whose claim is all that is left.
        left: what is left in the currency of the ledger, rounded down.
    """

    mu: float
    left: Price
    _filter: "PrivacyFilter" = dataclasses.field(repr=False)

    def epsilon(self, delta: float) -> float:
        """The largest eps, rounded down, at which an unsampled release calibrated to (eps, delta) fits.

        Args:
            delta: of that release, in (0, 1).

        Returns:
            eps >= 0; 0 if nothing fits.

        Raises:
            InvalidParameterError: on a bad delta.
        """
        return self._filter.epsilon_left(self, check_delta(delta))


@dataclasses.dataclass(frozen=True)
class PrivacyFilter(abc.ABC):
    """A currency and a budget: limits that the sums of prices must not pass, one for every component.

    Attributes:
        currency: with all settings resolved.
        budget: what holds for the whole, whatever was spent.
        limits: rounded down.
        by_claims: whether prices rest on what certificates claim, and not on sigma and sensitivity alone.
    """

    currency: Currency
    budget: PrivacyBudget
    limits: Price
    by_claims: ClassVar[bool] = False

    @abc.abstractmethod
    def price(self, name: str, claim: Claim) -> Price:
        """What a release costs, rounded up.

        Raises:
            UnsupportedCombinationError: if it has no price in this currency.
        """

    def price_again(self, name: str, claim: Claim) -> Price:
        """What a further run costs under a calibration that a release before it was charged for.

        Whether its random numbers were bad is one event for all of them.
        """
        return self.price(name, claim)

    @abc.abstractmethod
    def remaining(self, spent: Spent) -> Remaining:
        """What fits beside what was spent."""

    @abc.abstractmethod
    def epsilon_left(self, remaining: Remaining, delta: float) -> float:
        """See `Remaining.epsilon`."""

    @abc.abstractmethod
    def curve_epsilon(self, delta: float) -> float:
        """The eps at delta that the limits stand for, rounded up.

        Raises:
            UnattainableBudgetError: if nothing is known at so small a delta.
        """

    @abc.abstractmethod
    def curve_delta(self, eps: float) -> float:
        """The delta at eps that the limits stand for, rounded up; 1 where nothing is known."""

    def epsilon(self, delta: float) -> float:
        """The eps at delta of everything that the filter can let through, rounded up; errors as above."""
        if delta >= self.budget.delta:
            return min(self.budget.eps, self.curve_epsilon(delta))
        return self.curve_epsilon(delta)

    def delta(self, eps: float) -> float:
        """The delta at eps of everything that the filter can let through, rounded up."""
        if eps >= self.budget.eps:
            return min(self.budget.delta, self.curve_delta(eps))
        return self.curve_delta(eps)

    def paid(self, prices: Sequence[Price]) -> Spent:
        """The sum of prices, exactly."""
        return tuple(
            sum((Fraction(price[index]) for price in prices), Fraction(0)) for index in range(self.size)
        )

    def left(self, spent: Spent) -> Spent:
        """What is left of every limit, exactly; negative where it was passed."""
        return tuple(Fraction(limit) - one for limit, one in zip(self.limits, spent, strict=True))

    def fits(self, spent: Spent) -> bool:
        """Whether this much stays within the limits."""
        return all(left >= 0 for left in self.left(spent))

    @property
    def size(self) -> int:
        """The number of components of a price."""
        return len(self.limits)

    def settings(self) -> dict[str, Any]:
        """The currency as plain data."""
        return {"type": type(self.currency).__name__} | dataclasses.asdict(self.currency)

    def _left_down(self, spent: Spent) -> Price:
        return tuple(max(0.0, rounded_down(left)) for left in self.left(spent))
