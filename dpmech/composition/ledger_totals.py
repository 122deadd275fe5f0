"""What the releases of a ledger add up to: what both modes offer, and prices under a filter."""

import abc
import dataclasses
from collections.abc import Hashable
from fractions import Fraction
from typing import Any, ClassVar

from dpmech.certificates import Claim
from dpmech.composition.ledger_entries import Mode, Release, draw_of
from dpmech.composition.privacy_filters import Currency, Price, PrivacyFilter, Remaining, Spent
from dpmech.engines import Method
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.mechanism import PrivacyBudget
from dpmech.numerics import BOUND, Bounds, Provenance, rounded_up

__all__ = ["FilteredTotal", "Total"]


class Total(abc.ABC):
    """One mode of a ledger.

    Attributes:
        mode: which.
        by_certificates: whether it takes more from certificates than sigma and sensitivity, so that it is
            only as sure as they are.
    """

    mode: ClassVar[Mode]
    by_certificates: bool

    @abc.abstractmethod
    def enter(self, entry: Release) -> Release:
        """Take in an entry, or refuse it and change nothing; returned with what it was charged."""

    @abc.abstractmethod
    def epsilon(self, delta: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Bounds on eps, with all that they rest on; see `Ledger.epsilon`."""

    @abc.abstractmethod
    def delta(self, eps: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Bounds on delta, with all that they rest on; see `Ledger.delta`."""

    @abc.abstractmethod
    def summary(self) -> dict[str, Any]:
        """What a file states of it, and what reading the file computes again."""


class FilteredTotal(Total):
    """Releases chosen on the way, every one within what the others left of a budget.

    Args:
        budget: what holds for the whole.
        currency: in what it is paid.
    """

    mode = Mode.CHOSEN

    def __init__(self, budget: PrivacyBudget, currency: Currency) -> None:
        self.filter: PrivacyFilter = currency.filter(budget)
        self.by_certificates = self.filter.by_claims
        self._spent: Spent = self.filter.paid(())
        self._draws: set[Hashable] = set()

    @property
    def remaining(self) -> Remaining:
        """What would still be taken in."""
        return self.filter.remaining(self._spent)

    def would_exceed(self, claim: Claim) -> bool:
        """Whether the price of this claim is more than what is left."""
        return not self.filter.fits(self._with(self._price("claim", claim)))

    def enter(self, entry: Release) -> Release:
        """Charge its price, where that is left."""
        price = self._price(entry.name, entry.certificate)
        if not self.filter.fits(self._with(price)):
            left = self.remaining
            raise InvalidParameterError(
                "release",
                entry.name,
                f"within what is left of {self.filter.budget!r}: it costs {price} and {left.left} is left in "
                f"{self.filter.currency!r}, an unsampled release of mu <= {left.mu!r}",
            )
        self._spent = self._with(price)
        self._draws.add(draw_of(entry.certificate))
        return dataclasses.replace(entry, price=price)

    def epsilon(self, delta: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Of all that the filter may let through, whatever was spent."""
        self._refuse(method, profiles=profiles)
        return Bounds(0.0, self.filter.epsilon(delta), BOUND, Provenance("filter.budget"))

    def delta(self, eps: float, method: Method | None, *, profiles: bool | None = None) -> Bounds:
        """Of all that the filter may let through, whatever was spent."""
        self._refuse(method, profiles=profiles)
        return Bounds(0.0, self.filter.delta(eps), BOUND, Provenance("filter.budget"))

    def summary(self) -> dict[str, Any]:
        """The limits of the filter, and what was spent of them, rounded up."""
        return {"limits": list(self.filter.limits), "spent": [rounded_up(one) for one in self._spent]}

    def _price(self, name: str, claim: Claim) -> Price:
        """Every draw is paid for once, with the first release that rests on it."""
        price = self.filter.price_again if draw_of(claim) in self._draws else self.filter.price
        return price(name, claim)

    def _with(self, price: Price) -> Spent:
        return tuple(spent + Fraction(one) for spent, one in zip(self._spent, price, strict=True))

    @staticmethod
    def _refuse(method: Method | None, *, profiles: bool | None) -> None:
        if method is not None or profiles is not None:
            asked = f"profiles={profiles!r}" if method is None else repr(method)
            raise UnsupportedCombinationError(
                f"{asked} is no privacy filter, and releases chosen on the way need one",
                supported="method=None: the currency of the ledger decides",
            )
