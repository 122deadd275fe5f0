r"""Privacy filters: what may still be released when every choice may depend on all results so far.

Standard composition theorems fix the mechanisms beforehand. If the next mechanism, or whether there is one,
depends on earlier results, a filter is needed: every release has a cost, known when it is added, and the sum
of the costs stays below a limit fixed before the first one, on every path. The guarantee is the budget that
the limit represents, even if less was spent.

- **Gaussian** (`GdpAccounting`): cost mu^2. If sum mu_i^2 <= B on every path, the whole is
  sqrt(B)-Gaussian-DP (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023). *Proof.* A mu-GDP release
  is a post-processing of N(mu h, 1), h = 0 or 1 (Blackwell), that is, of the increment over a time mu^2 of a
  Brownian motion with drift h. Which increment comes next depends on the path so far only, increments are
  independent, and a path over a time B is equivalent to its end: N(B h, B).
- **Renyi** (`RenyiAccounting`): cost is the divergence of one order a, fixed beforehand. If sum D_i <= R on
  every path, the whole has a divergence of at most R (Feldman and Zrnic 2021, Theorem 3.1): e^((a - 1) sum
  (L_i - D_i)) is a supermartingale.
- **(eps, delta)** (`ClaimAccounting`): both add up (Rogers et al. 2016), or, with a slack fixed beforehand,
  the sum of eps^2 / 2 stays within what an order a allows at that slack (Whitehouse et al. 2023). *Proof of
  the second.* An (eps, delta) release is a post-processing of one that fails with probability delta and is
  randomised response otherwise (Kairouz, Oh and Viswanath 2015), of divergence at most a eps^2 / 2 (Bun and
  Steinke 2016). The probability of any failure is at most E sum delta_i; without failure, both laws have the
  factor prod (1 - delta_i) <= 1, and the Renyi filter covers the rest.

Composed loss distributions are not a filter: each path may stay below (eps, delta) while the adaptive choice
among them does not. Interactive releases (training runs) may overlap in time (Haney et al. 2023).
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

from dpmech.certificates import Claim
from dpmech.engines import (
    Accountant,
    BasicMechanism,
    Rdp,
    best_order,
    budget_at,
    delta_at,
    epsilon_at,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_sigma,
)
from dpmech.exceptions import (
    InvalidParameterError,
    NumericalError,
    UnattainableBudgetError,
    UnsupportedCombinationError,
)
from dpmech.guards import check_delta, check_integer, check_real
from dpmech.mechanism import PrivacyBudget
from dpmech.numerics import quotient_down, root_down, root_up, rounded_down, rounded_up
from dpmech.schemes import accountant_for

# One number per limit of the filter, rounded up.
Price: TypeAlias = tuple[float, ...]
# Sums of costs.
Spent: TypeAlias = tuple[Fraction, ...]


@dataclasses.dataclass(frozen=True)
class AccountingMethod(abc.ABC):
    """How the releases of a ledger are charged; fixed when the ledger is made."""

    @abc.abstractmethod
    def filter(self, budget: PrivacyBudget) -> "PrivacyFilter":
        """The filter for a budget in this accounting method.

        Raises:
            InvalidParameterError: if the budget leaves no room with these settings.
        """


@dataclasses.dataclass(frozen=True)
class Remaining:
    """The largest further release that a ledger with a budget would accept.

    Attributes:
        mu: the largest sensitivity over sigma of a further unsampled release, rounded down; 0 if nothing
            fits. Under ClaimAccounting, that of the Gaussian release whose claim uses up the rest of the
            budget.
        left: the remaining amounts in the accounting method of the ledger, rounded down.
    """

    mu: float
    left: Price
    _filter: "PrivacyFilter" = dataclasses.field(repr=False)

    def epsilon(self, delta: float) -> float:
        """The largest eps, rounded down, at which an unsampled release calibrated to (eps, delta) fits.

        Args:
            delta: delta of that release, in (0, 1).

        Returns:
            eps >= 0; 0 if nothing fits.

        Raises:
            InvalidParameterError: if delta is invalid.
        """
        return self._filter.epsilon_left(self, check_delta(delta))


@dataclasses.dataclass(frozen=True)
class PrivacyFilter(abc.ABC):
    """Limits on the sums of costs, one for every component of a cost.

    Attributes:
        accounting: the accounting method, with all settings resolved.
        budget: the guarantee of the whole, regardless of how much was spent.
        limits: the limits, rounded down.
        by_claims: whether costs depend on the claims of certificates, not on sigma and sensitivity alone.
    """

    accounting: AccountingMethod
    budget: PrivacyBudget
    limits: Price
    by_claims: ClassVar[bool] = False

    @abc.abstractmethod
    def price(self, name: str, claim: Claim) -> Price:
        """The cost of a release, rounded up.

        Raises:
            UnsupportedCombinationError: if it has no cost in this accounting method.
        """

    @abc.abstractmethod
    def mechanism_price(self, name: str, mechanism: BasicMechanism, count: int) -> Price:
        """The cost of `count` releases of a mechanism, rounded up.

        Raises:
            UnsupportedCombinationError: if it has no cost in this accounting method.
        """

    def price_again(self, name: str, claim: Claim) -> Price:
        """The cost of a further run under a calibration that an earlier release was charged for.

        The failure of its random samples is a single event for all of these runs.
        """
        return self.price(name, claim)

    @abc.abstractmethod
    def remaining(self, spent: Spent) -> Remaining:
        """The remaining budget after this expenditure."""

    def epsilon_left(self, remaining: Remaining, delta: float) -> float:
        """See `Remaining.epsilon`."""
        return _calibrated_epsilon(remaining.mu, delta)

    @abc.abstractmethod
    def curve_epsilon(self, delta: float) -> float:
        """The eps at delta that the limits represent, rounded up.

        Raises:
            UnattainableBudgetError: if no bound is known at such a small delta.
        """

    @abc.abstractmethod
    def curve_delta(self, eps: float) -> float:
        """The delta at eps that the limits represent, rounded up; 1 if no bound is known."""

    def epsilon(self, delta: float) -> float:
        """The eps at delta of everything that the filter allows, rounded up; errors as in `curve_epsilon`."""
        if delta >= self.budget.delta:
            return min(self.budget.eps, self.curve_epsilon(delta))
        return self.curve_epsilon(delta)

    def delta(self, eps: float) -> float:
        """The delta at eps of everything that the filter allows, rounded up."""
        if eps >= self.budget.eps:
            return min(self.budget.delta, self.curve_delta(eps))
        return self.curve_delta(eps)

    def paid(self, prices: Sequence[Price]) -> Spent:
        """The sum of costs, exactly."""
        places = range(len(self.limits))
        return tuple(sum((Fraction(price[place]) for price in prices), Fraction(0)) for place in places)

    def left(self, spent: Spent) -> Spent:
        """The exact remainder of every limit; negative if the limit was exceeded."""
        return tuple(Fraction(limit) - one for limit, one in zip(self.limits, spent, strict=True))

    def fits(self, spent: Spent) -> bool:
        """Whether this amount stays within the limits."""
        return all(left >= 0 for left in self.left(spent))

    def settings(self) -> dict[str, Any]:
        """The accounting method as plain data."""
        return {"type": type(self.accounting).__name__} | dataclasses.asdict(self.accounting)

    def _left_down(self, spent: Spent) -> Price:
        return tuple(max(0.0, rounded_down(left)) for left in self.left(spent))


_ULP = 2.0**-52
_LARGEST_ORDER = 10_000
# Corresponds to the largest noise that dpmech calibrates.
_SMALLEST_MU = 1e-15
# Relative gap below the exact value at which the search for a stated eps starts; each candidate is checked,
# so no guarantee depends on it.
_GAP = 1e-12


@dataclasses.dataclass(frozen=True)
class GdpAccounting(AccountingMethod):
    """Gaussian differential privacy: the sum of mu^2. Accepts unsampled releases, for which it is exact.

    Example:
        >>> import dpmech as dm
        >>> dm.Ledger(budget=dm.PrivacyBudget(8.0, 1e-5), accounting=dm.ledgers.GdpAccounting()).accounting
        GdpAccounting()
    """

    def filter(self, budget: PrivacyBudget) -> "PrivacyFilter":
        """Limit: the largest mu^2 whose exact curve meets the budget."""
        return _GdpFilter(self, budget, (_squared_mu(budget.eps, budget.delta),))


@dataclasses.dataclass(frozen=True)
class RenyiAccounting(AccountingMethod):
    """Renyi divergence at one order: accepts unsampled, Poisson-sampled and Balls-in-Bins releases.

    Args:
        order: an integer in [2, 10000]; None uses the order that admits the most Gaussian releases within the
            budget of the ledger. Low sampling rates with little noise require a lower order.

    Example:
        >>> import dpmech as dm
        >>> ledger = dm.Ledger(budget=dm.PrivacyBudget(8.0, 1e-5), accounting=dm.ledgers.RenyiAccounting())
        >>> ledger.would_exceed(dm.calibrate_sigma(dm.Identity(4), 2.0, 1e-6))
        False
    """

    order: int | None = None

    def __post_init__(self) -> None:
        if self.order is not None:
            # A Python int: coefficients of this order do not fit into 64 bits.
            order = check_integer("order", self.order, minimum=2, maximum=_LARGEST_ORDER)
            object.__setattr__(self, "order", order)

    def filter(self, budget: PrivacyBudget) -> "PrivacyFilter":
        """Limit: the largest divergence that meets the budget."""
        order = best_order(budget.eps, budget.delta) if self.order is None else self.order
        if order is None or (room := budget_at(order, budget.eps, budget.delta)) <= 0.0:
            raise InvalidParameterError(
                "order", self.order, f"an order at which {budget!r} leaves room (larger for small eps)"
            )
        return _RenyiFilter(RenyiAccounting(order), budget, (room,))


@dataclasses.dataclass(frozen=True)
class ClaimAccounting(AccountingMethod):
    """The (eps, delta) of every claim: accepts all releases.

    Args:
        slack: 0 for basic composition; or the part of the delta of the budget, in (0, 1), that is reserved
            for advanced composition, where the total eps of many small claims grows roughly like the square
            root of the sum of their squares.

    Example:
        >>> import dpmech as dm
        >>> dm.Ledger(budget=dm.PrivacyBudget(8.0, 1e-5), accounting=dm.ledgers.ClaimAccounting()).accounting
        ClaimAccounting(slack=0.0)
    """

    slack: float = 0.0

    def __post_init__(self) -> None:
        checked = check_real("slack", self.slack, minimum=0.0, maximum=1.0, open_maximum=True)
        object.__setattr__(self, "slack", checked)

    def filter(self, budget: PrivacyBudget) -> "PrivacyFilter":
        """Limits: on eps (or on eps^2 / 2), and on delta."""
        if self.slack == 0.0:
            return _ClaimFilter(self, budget, (budget.eps, budget.delta))
        rest = rounded_down(Fraction(budget.delta) - Fraction(self.slack))
        # The quotient and its product with the last factor are each rounded once, which the factor covers.
        orders = [1.0 + 2.0 ** (step / 32.0) for step in range(-128, 449)]
        room = max(budget_at(order, budget.eps, self.slack) / order * (1.0 - 2.0 * _ULP) for order in orders)
        if rest <= 0.0 or room <= 0.0:
            raise InvalidParameterError(
                "slack", self.slack, f"0, or a part of delta={budget.delta!r} that leaves room for {budget!r}"
            )
        return _ClaimFilter(self, budget, (room, rest))


_ACCOUNTING: tuple[type[AccountingMethod], ...] = (GdpAccounting, RenyiAccounting, ClaimAccounting)


def check_accounting(value: object) -> AccountingMethod:
    """Return an accounting method, or raise InvalidParameterError."""
    if not isinstance(value, _ACCOUNTING):
        raise InvalidParameterError(
            "accounting",
            value,
            "None, dm.ledgers.GdpAccounting(), dm.ledgers.RenyiAccounting() or dm.ledgers.ClaimAccounting()",
        )
    return value


def accounting_from(settings: dict[str, Any]) -> AccountingMethod:
    """Rebuild an accounting method from `PrivacyFilter.settings`; unknown types and fields are refused."""
    kinds = {kind.__name__: kind for kind in _ACCOUNTING}
    fields = {name: value for name, value in settings.items() if name != "type"}
    kind = kinds.get(settings["type"])
    if kind is None or set(fields) != {field.name for field in dataclasses.fields(kind)}:
        raise InvalidParameterError(
            "accounting", settings, f"one of {', '.join(kinds)} with its own settings"
        )
    return kind(**fields)


class _GdpFilter(PrivacyFilter):
    def price(self, name: str, claim: Claim) -> Price:
        accountant = accountant_for(claim.mechanism, None)
        if accountant.amplified:
            raise UnsupportedCombinationError(
                f"{name!r} samples its batches, and has no price as Gaussian differential privacy",
                supported="Ledger(budget=..., accounting=dm.ledgers.RenyiAccounting()) or "
                "dm.ledgers.ClaimAccounting()",
            )
        return (rounded_up(_squared_ratio(accountant, claim)),)

    def mechanism_price(self, name: str, mechanism: BasicMechanism, count: int) -> Price:
        square = mechanism.squared_mu
        if square is None:
            raise _no_price(name, mechanism, "as Gaussian differential privacy")
        return (rounded_up(count * square),)

    def remaining(self, spent: Spent) -> Remaining:
        left = self._left_down(spent)
        return Remaining(root_down(left[0]), left, self)

    def curve_epsilon(self, delta: float) -> float:
        return gaussian_epsilon(quotient_down(1.0, root_up(self.limits[0])), delta, safe=True)

    def curve_delta(self, eps: float) -> float:
        return gaussian_delta(quotient_down(1.0, root_up(self.limits[0])), eps)[1]


class _RenyiFilter(PrivacyFilter):
    @property
    def order(self) -> int:
        order = self.accounting.order if isinstance(self.accounting, RenyiAccounting) else None
        return check_integer("order", order, minimum=2)

    def price(self, name: str, claim: Claim) -> Price:
        known = accountant_for(claim.mechanism, None).renyi(claim.sigma, self.order)
        if known is not None:
            return (known,)
        value = accountant_for(claim.mechanism, Rdp()).renyi(claim.sigma, self.order)
        if value is None:
            raise UnsupportedCombinationError(
                f"{name!r} has no price at a Renyi order", supported="accounting=dm.ledgers.ClaimAccounting()"
            )
        if not (math.isfinite(value) and value >= 0.0):
            raise NumericalError(
                f"the Renyi divergence of {name!r} at order {self.order} came out as {value!r}"
            )
        return (value,)

    def mechanism_price(self, name: str, mechanism: BasicMechanism, count: int) -> Price:
        value = mechanism.renyi(float(self.order))
        if not math.isfinite(value):
            raise _no_price(name, mechanism, "at a Renyi order")
        return (rounded_up(count * Fraction(value)),)

    def remaining(self, spent: Spent) -> Remaining:
        left = self._left_down(spent)
        return Remaining(root_down(rounded_down(Fraction(left[0]) * 2 / self.order)), left, self)

    def curve_epsilon(self, delta: float) -> float:
        return epsilon_at(self.order, self.limits[0], delta)

    def curve_delta(self, eps: float) -> float:
        return delta_at(self.order, self.limits[0], eps)


class _ClaimFilter(PrivacyFilter):
    by_claims: ClassVar[bool] = True

    @property
    def squared(self) -> bool:
        return isinstance(self.accounting, ClaimAccounting) and self.accounting.slack > 0.0

    def price(self, name: str, claim: Claim) -> Price:
        del name
        eps = Fraction(claim.budget.eps)
        return (rounded_up(eps * eps / 2 if self.squared else eps), claim.budget.delta)

    def mechanism_price(self, name: str, mechanism: BasicMechanism, count: int) -> Price:
        if mechanism.claim is None:
            raise _no_price(name, mechanism, "as an (eps, delta) claim")
        eps, delta = (Fraction(one) for one in mechanism.claim)
        return rounded_up(count * (eps * eps / 2 if self.squared else eps)), rounded_up(count * delta)

    def price_again(self, name: str, claim: Claim) -> Price:
        return (self.price(name, claim)[0], claim.guarantee.mechanism_delta(claim.budget.delta))

    def remaining(self, spent: Spent) -> Remaining:
        left = self._left_down(spent)
        eps = self._eps(left)
        mu = 0.0
        if eps > 0.0 and left[1] > 0.0:
            try:
                mu = root_down(_squared_mu(eps, left[1]))
            except (UnattainableBudgetError, NumericalError):
                mu = 0.0  # what is left is too small for any float64 noise
        return Remaining(mu, left, self)

    def epsilon_left(self, remaining: Remaining, delta: float) -> float:
        return self._eps(remaining.left) if delta <= remaining.left[1] else 0.0

    def curve_epsilon(self, delta: float) -> float:
        if delta < self.budget.delta:
            raise UnattainableBudgetError(
                math.inf, delta, f"sums of claims say nothing below the budget's delta {self.budget.delta!r}"
            )
        return self.budget.eps

    def curve_delta(self, eps: float) -> float:
        return self.budget.delta if eps >= self.budget.eps else 1.0

    def _eps(self, left: Price) -> float:
        # Half the square of the root is at most what is left, a float, so its rounding up is too.
        return root_down(2.0 * left[0]) if self.squared else left[0]


def _no_price(name: str, mechanism: BasicMechanism, how: str) -> UnsupportedCombinationError:
    """The error for a mechanism without a price, with the accounting methods that have one for it."""
    ways = ["accounting=dm.ledgers.RenyiAccounting()"] if math.isfinite(mechanism.renyi(2.0)) else []
    ways += [] if mechanism.claim is None else ["accounting=dm.ledgers.ClaimAccounting()"]
    return UnsupportedCombinationError(
        f"{name!r}, {mechanism!r}, has no price {how}",
        supported=", ".join([*ways, "or a ledger without a budget, whose list is non-adaptive"]),
    )


def _squared_ratio(accountant: Accountant, claim: Claim) -> Fraction:
    """(sensitivity / sigma)^2 of an unsampled release, exactly."""
    return (Fraction(accountant.sensitivity.upper) / Fraction(claim.sigma)) ** 2


def _squared_mu(eps: float, delta: float) -> float:
    """The largest mu^2, rounded down, whose Gaussian curve meets (eps, delta)."""
    met = gaussian_sigma(eps, delta)
    # Start of the search: each of its steps compares delta itself, so no guarantee depends on this number.
    missed = met * (1.0 - 1e-9)
    # The search above ends a few ulp too high; a release calibrated to the full budget must fit.
    for _ in range(60):
        middle = 0.5 * (met + missed)
        if not missed < middle < met:
            break
        if gaussian_delta(middle, eps)[1] <= delta:
            met = middle
        else:
            missed = middle
    return rounded_down(1 / Fraction(met) ** 2)


def _calibrated_epsilon(mu: float, delta: float) -> float:
    """An eps at which a calibrated Gaussian release is guaranteed to have at most this mu."""
    if mu <= _SMALLEST_MU:
        return 0.0
    exact = gaussian_epsilon(1.0 / mu, delta, safe=False)
    gap = _GAP
    while (eps := exact * (1.0 - gap)) > 0.0:
        gap *= 10.0
        try:
            sigma = gaussian_sigma(eps, delta)
        except (UnattainableBudgetError, NumericalError):
            continue
        # Sensitivity times sigma is rounded once more.
        if sigma * mu >= 1.0 + 8.0 * _ULP:
            return eps
    return 0.0
