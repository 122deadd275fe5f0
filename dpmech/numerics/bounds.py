"""Bounds: the type of all numbers that enter a guarantee, with their Guarantee and Provenance."""

import dataclasses
import enum
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from dpmech.exceptions import ContradictionError, InvalidParameterError
from dpmech.guards import check_real
from dpmech.numerics.printed import between, typed, up
from dpmech.numerics.rounding import outward, product_down, product_up, rounded_down, sum_up


class Kind(enum.IntEnum):
    """The kind of a guarantee, ordered from strongest to weakest.

    `EXACT`: a theorem gives the value itself; the interval covers rounding only. `BOUND`: a theorem bounds
    it. `PROBABLE`: a proved bound that fails with a stated probability, over dpmech's own random numbers.
    `ESTIMATE`: the end of a confidence interval that is not proved for the given sample.

    Example:
        >>> import dpmech as dm
        >>> [kind.value for kind in sorted(dm.Kind)]
        [0, 1, 2, 3]
    """

    EXACT = 0
    BOUND = 1
    PROBABLE = 2
    ESTIMATE = 3


_KIND_WORDS = {
    Kind.EXACT: "exact",
    Kind.BOUND: "deterministic upper bound",
    Kind.PROBABLE: "with probability 1 - beta",
    Kind.ESTIMATE: "estimate",
}


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """The strength of the guarantee of a number.

    It stores the probability of failure, not of success, because 1 - 1e-17 is 1 in float64.

    An error *outside* delta is the probability that the number is wrong. An error *inside* delta is already
    included: the random numbers that dpmech drew are part of the mechanism "draw, calibrate, train", and the
    noise scale was certified for delta minus the error. The claim about the whole procedure then holds
    without a failure probability (docs/guarantees.md states the theorem and its conditions).

    `one & other` is the guarantee that both hold. It has the weaker kind, and the sum of the errors outside
    delta. An error inside delta is not added again: it is dropped next to errors outside delta, and of
    several errors inside delta, the largest is kept. `Ledger` determines how much of delta several such
    claims use together, and how often one set of random numbers counts.

    Args:
        kind: how the number is established.
        error: the probability of failure, over dpmech's own random numbers: in (0, 1] for PROBABLE and
            ESTIMATE (nominal for an estimate), and 0 for the other kinds.
        inside_delta: whether the delta of the claim already includes this error; for PROBABLE only.

    Raises:
        InvalidParameterError: if `error` or `inside_delta` is inconsistent with `kind`.

    Examples:
        >>> from dpmech import Guarantee, Kind
        >>> print(Guarantee(Kind.EXACT) & Guarantee(Kind.PROBABLE, 1e-9))
        with probability 1 - beta
        >>> print(Guarantee(Kind.PROBABLE, 1e-9, inside_delta=True))
        with probability 1 - beta, beta 1e-09, inside delta
    """

    kind: Kind
    error: float = 0.0
    inside_delta: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.kind, Kind):
            raise InvalidParameterError("kind", self.kind, f"one of {', '.join(Kind.__members__)}")
        error = check_real("error", self.error, minimum=0.0, maximum=1.0)
        object.__setattr__(self, "error", error)
        if (self.kind >= Kind.PROBABLE) != (error > 0.0):
            raise InvalidParameterError(
                "error", error, "in (0, 1] for PROBABLE and ESTIMATE, and 0 for EXACT and BOUND"
            )
        if not isinstance(self.inside_delta, bool) or (self.inside_delta and self.kind is not Kind.PROBABLE):
            raise InvalidParameterError(
                "inside_delta", self.inside_delta, "False, or True where the kind is PROBABLE"
            )

    @property
    def rigorous(self) -> bool:
        """Whether the number is proved, possibly with a probability of failure."""
        return self.kind is not Kind.ESTIMATE

    @property
    def outside_error(self) -> float:
        """The probability that the claim fails: the error, or 0 if it is inside delta."""
        return 0.0 if self.inside_delta else self.error

    def mechanism_delta(self, delta: float) -> float:
        """The delta that is left for the mechanism: minus the error if that is inside delta, rounded down.

        Args:
            delta: of the claim.

        Raises:
            InvalidParameterError: if nothing is left.
        """
        if not self.inside_delta:
            return delta
        left = rounded_down(Fraction(delta) - Fraction(self.error))
        if left <= 0.0:
            raise InvalidParameterError(
                "beta",
                self.error,
                f"below delta={delta!r}, which it is a part of (a supplied rng leaves it outside)",
            )
        return left

    def __and__(self, other: "Guarantee") -> "Guarantee":
        return joined((self, other))

    def __str__(self) -> str:
        words = _KIND_WORDS[self.kind]
        if not self.inside_delta:
            return words
        # User input is printed as it was typed; otherwise six digits, rounded up, suffice.
        beta = min(typed(self.error), up(self.error), key=len)
        return f"{words}, beta {beta}, inside delta"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the name of the kind, the error, and `inside_delta` if it is true."""
        data: dict[str, Any] = {"kind": self.kind.name, "error": self.error}
        return data | {"inside_delta": True} if self.inside_delta else data

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Guarantee":
        """Rebuild from `to_dict`.

        Raises:
            InvalidParameterError: if `data` has another form.
        """
        if set(data) - {"inside_delta"} != {"kind", "error"} or data["kind"] not in Kind.__members__:
            raise InvalidParameterError(
                "guarantee", dict(data), f"a kind among {', '.join(Kind.__members__)}, and an error"
            )
        return Guarantee(Kind[data["kind"]], data["error"], data.get("inside_delta", False))


EXACT = Guarantee(Kind.EXACT)
BOUND = Guarantee(Kind.BOUND)


def joined(guarantees: Iterable[Guarantee]) -> Guarantee:
    """The guarantee if all of them must hold: the weakest kind, and the sum of the errors, rounded up.

    Errors inside delta are not added again; see `Guarantee`.
    """
    given = list(guarantees)
    kind = max((one.kind for one in given), default=Kind.EXACT)
    errors = [one.error for one in given if one.outside_error > 0.0]
    if not errors and kind is Kind.PROBABLE:
        return Guarantee(kind, max(one.error for one in given), inside_delta=True)
    total = errors[0] if len(errors) == 1 else min(1.0, sum_up(errors))
    return Guarantee(kind, total)


def error_of_level(level: float) -> float:
    """1 - level for a confidence level in [0, 1], rounded up; exact for levels from 1/2 on."""
    return 1.0 - level if level >= 0.5 else min(1.0, math.nextafter(1.0 - level, math.inf))


Fact: TypeAlias = float | int | str


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The theorem or accountant of a number, with its parameters.

    Args:
        route: a dotted name that is stable across versions: "gaussian.analytic", "cgd.thm1".
        facts: the parameters by name.
        rests_on: the provenance of its inputs.

    Examples:
        >>> import dpmech as dm
        >>> by = dm.sensitivity(dm.LambdaCGD(8, 0.9), dm.SingleParticipation()).by
        >>> by.route, str(by)
        ('sensitivity.largest_column', 'largest column norm')
    """

    route: str
    facts: Mapping[str, Fact] = dataclasses.field(default_factory=dict, hash=False)
    rests_on: tuple["Provenance", ...] = ()

    def __str__(self) -> str:
        return "; ".join([self._words(), *(f"{_UNDER.get(self.route, '')}{one}" for one in self.rests_on)])

    def _words(self) -> str:
        words = _WORDS.get(self.route)
        try:
            if callable(words):
                return words(self.facts)
            if words is not None:
                return words.format_map({name: _value(value) for name, value in self.facts.items()})
        except (ArithmeticError, LookupError, TypeError, ValueError):
            # The facts may come from an unverified file and not match the route.
            pass
        return ", ".join([self.route, *(f"{name} {value!r}" for name, value in self.facts.items())])

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "route": self.route,
            "facts": dict(self.facts),
            "rests_on": [one.to_dict() for one in self.rests_on],
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Provenance":
        """Rebuild from `to_dict`.

        Raises:
            InvalidParameterError: if `data` has another form.
        """
        plain = set(data) == {"route", "facts", "rests_on"} and isinstance(data["route"], str)
        if not (plain and isinstance(data["facts"], Mapping) and isinstance(data["rests_on"], list)):
            raise InvalidParameterError("by", dict(data), "a route, its facts, and what it is derived from")
        if not all(isinstance(value, float | int | str) for value in data["facts"].values()):
            raise InvalidParameterError("by", dict(data), "facts that are numbers or words")
        return Provenance(
            data["route"],
            dict(data["facts"]),
            tuple(Provenance.from_dict(one) for one in data["rests_on"]),
        )


def _value(value: Fact) -> str:
    return typed(value) if isinstance(value, float) else str(value)


def _one_run(facts: Mapping[str, Fact]) -> str:
    text = "one run, {canaries} canaries, {right} of {high} + {low} guesses right".format_map(facts)
    if facts["ways"] != 1:
        text += f", the best of {facts['ways']} ways to guess with a union bound"
    return text


Words: TypeAlias = str | Callable[[Mapping[str, Fact]], str]

# Description of routes in words; a route without an entry is described by its name and facts.
_WORDS: dict[str, Words] = {
    "sensitivity.largest_column": "largest column norm",
    "sensitivity.all_columns": "all columns, C >= 0",
    "sensitivity.orthogonal_columns": "at most min_sep bands: squared column norms add",
    "cgd.lem8": "leftmost columns, column-normalised lambda-CGD (Lemma 8)",
    "cgd.thm1": "leftmost columns of the monotone envelope (Theorem 1)",
    "sensitivity.scaled_envelope": "monotone envelope times the largest scale",
    "sensitivity.evenly_spaced": "evenly spaced sets, absolute inner products",
    "sensitivity.best_rows": "row-wise best separated sets of |C^T C|",
    "claims.basic": "basic composition of (eps, delta) claims",
    "claims.composed": "(eps, delta) claims, composed optimally",
    "rdp.composed": "RDP composition, claims by basic composition",
    "history.empty": "nothing was released",
    "profile.claim": "from (eps, delta) only",
    "filter.budget": "the whole budget, held by a privacy filter",
    "ledger.draws": "sampling error {beta} of {draws} calibrations, once each",
    "ledger.closed": "a closed non-adaptive list",
    "ledger.open": "a non-adaptive list that is still open",
    "release.none": "nothing was released",
    "release.executed": "holds only if the number of steps was decided without looking at results",
    "audit.one_run": _one_run,
    "audit.shuffled": "{batches} shuffled batches an epoch, {epochs} epochs, {order} order",
    "audit.many_runs": "likelihood-ratio test, {runs} runs in each world, {direction}, Clopper-Pearson",
}
# Prefix of the description of a route's inputs.
_UNDER = {"gaussian.analytic": "sensitivity: "}


def register_words(words: Mapping[str, Words]) -> None:
    """Register descriptions of routes; called by the modules that define the routes.

    Args:
        words: by route, a format string with the facts in braces, or a function of the facts.
    """
    _WORDS.update(words)


# Bounds that agree to this, relative, count as the exact value.
EXACT_RTOL = 1e-9
# Largest relative gap of an exact value after further rounding.
_EXACT_GAP = 1e-6


@dataclasses.dataclass(frozen=True)
class Bounds:
    """An interval that contains a true value, with its guarantee and its provenance.

    Only `upper` may be used for a noise scale. Every operation rounds outward.

    Args:
        lower: not above the true value.
        upper: not below the true value; may be infinite.
        guarantee: the guarantee of both.
        by: the theorem or the accountant, as data.

    Raises:
        InvalidParameterError: if an end is NaN, lower > upper, or an exact value is not known to 1e-6.

    Examples:
        >>> import dpmech as dm
        >>> bounds = dm.sensitivity(dm.Identity(9), dm.SingleParticipation())
        >>> bounds.lower, bounds.upper, str(bounds.guarantee), str(bounds.by)
        (1.0, 1.0, 'exact', 'largest column norm')
        >>> print(dm.epsilon(dm.Identity(9), 2.0, 1e-5, participation=dm.Poisson(0.1)))
        [0.764918, 0.764995], deterministic upper bound
    """

    lower: float
    upper: float
    guarantee: Guarantee
    by: Provenance

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", float(self.lower))
        object.__setattr__(self, "upper", float(self.upper))
        if math.isnan(self.lower) or math.isnan(self.upper) or self.lower > self.upper:
            raise InvalidParameterError(
                "(lower, upper)", (self.lower, self.upper), "two numbers, lower <= upper, neither NaN"
            )
        if not isinstance(self.guarantee, Guarantee):
            raise InvalidParameterError("guarantee", self.guarantee, "a Guarantee")
        if not isinstance(self.by, Provenance):
            raise InvalidParameterError("by", self.by, "a Provenance")
        if self.exact and not _agree(self.lower, self.upper, _EXACT_GAP):
            raise InvalidParameterError(
                "(lower, upper)",
                (self.lower, self.upper),
                "two numbers that agree to 1e-6, for an exact value",
            )

    def __str__(self) -> str:
        return f"{between(self.lower, self.upper)}, {self.guarantee}"

    @classmethod
    def bracket(cls, lower: float, upper: float, by: Provenance) -> "Bounds":
        """Two proved bounds: exact if they agree to 1e-9, relative, and otherwise a bound."""
        return cls(lower, upper, EXACT if _agree(lower, upper, EXACT_RTOL) else BOUND, by)

    @classmethod
    def derived(cls, lower: float, upper: float, guarantee: Guarantee, by: Provenance) -> "Bounds":
        """Bounds derived from numbers with this guarantee; not exact if they are 1e-6 or more apart."""
        known = _agree(lower, upper, _EXACT_GAP)
        return cls(lower, upper, guarantee if known else guarantee & BOUND, by)

    @classmethod
    def rounded(cls, value: float, relative: float, by: Provenance) -> "Bounds":
        """The value >= 0 of a formula, with a bound on its relative rounding error."""
        return cls.bracket(*outward(value, value, relative), by)

    @property
    def exact(self) -> bool:
        """Whether a theorem gives the value itself."""
        return self.guarantee.kind is Kind.EXACT

    @property
    def relative_gap(self) -> float:
        """(upper - lower) / upper; 0 if upper is 0."""
        return 0.0 if self.upper == 0.0 else (self.upper - self.lower) / self.upper

    def scaled(self, factor: float) -> "Bounds":
        """Both bounds, which are >= 0, times a positive factor, rounded outward."""
        return dataclasses.replace(
            self, lower=product_down(self.lower, factor), upper=product_up(self.upper, factor)
        )

    def times_root(self, count: int) -> "Bounds":
        """Both bounds, which are >= 0, times the square root of an integer >= 1, rounded outward."""
        return dataclasses.replace(
            self,
            lower=_root_product(self.lower, count, 0.0),
            upper=_root_product(self.upper, count, math.inf),
        )

    def widened(self, relative: float) -> "Bounds":
        """Bounds >= 0 moved apart by a relative error; an exact value remains exact if they agree to 1e-9."""
        lower, upper = outward(self.lower, self.upper, relative)
        if self.exact:
            return Bounds.bracket(lower, upper, self.by)
        return dataclasses.replace(self, lower=lower, upper=upper)

    def meet(self, other: "Bounds", by: Provenance | None = None) -> "Bounds":
        """The intersection with other bounds, with the guarantee of the one that has the lower upper bound.

        Args:
            other: bounds on the same value.
            by: the provenance; None takes that of the lower upper bound.

        Raises:
            ContradictionError: if the intersection is empty, beyond rounding.
        """
        if max(self.lower, other.lower) * (1.0 - EXACT_RTOL) > min(self.upper, other.upper):
            raise ContradictionError(f"{self!r} and {other!r} contradict each other")
        best = min(self, other, key=lambda one: one.upper)
        lower = min(max(self.lower, other.lower), best.upper)
        how = best.by if by is None else by
        guarantee = self.guarantee & other.guarantee
        if guarantee.kind <= Kind.BOUND:
            return Bounds.bracket(lower, best.upper, how)
        return Bounds(lower, best.upper, guarantee, how)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "lower": self.lower,
            "upper": self.upper,
            "guarantee": self.guarantee.to_dict(),
            "by": self.by.to_dict(),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Bounds":
        """Rebuild from `to_dict`.

        Raises:
            InvalidParameterError: if `data` has another form.
        """
        if set(data) != {"lower", "upper", "guarantee", "by"}:
            raise InvalidParameterError("bounds", dict(data), "lower, upper, guarantee and by")
        return Bounds(
            data["lower"],
            data["upper"],
            Guarantee.from_dict(data["guarantee"]),
            Provenance.from_dict(data["by"]),
        )


def _agree(lower: float, upper: float, relative: float) -> bool:
    return not math.isinf(upper) and upper - lower <= relative * abs(upper)


def _root_product(value: float, count: int, towards: float) -> float:
    """The value >= 0 times the square root of an integer >= 1: the nearest float on that side of it."""
    found = value * math.sqrt(count)
    if math.isinf(value) or found == towards:
        return found
    exact = Fraction(value) ** 2 * count
    if math.isinf(found):
        return sys.float_info.max if towards == 0.0 else found
    while (Fraction(found) ** 2 > exact) if towards == 0.0 else (Fraction(found) ** 2 < exact):
        found = math.nextafter(found, towards)
    return found
