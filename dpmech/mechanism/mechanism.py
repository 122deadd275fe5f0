"""Mechanism: strategy, participation, adjacency and unit as one object; and its sensitivity."""

import dataclasses
import functools
import hashlib
import json
from typing import Any

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.files import parse_json
from dpmech.guards import check_integer
from dpmech.mechanism.budget import UNSTATED, Adjacency, Unit, Unstated
from dpmech.mechanism.participation import EveryStep, Participation, Pattern, check_participation
from dpmech.mechanism.sensitivities import pattern_sensitivity
from dpmech.mechanism.strategies import Strategy, check_strategy
from dpmech.numerics import Bounds, Guarantee, Kind

_FIELDS = {"strategy", "participation", "adjacency"}
_SAME = 1e-12  # relative tolerance of lower ends that differ by rounding only


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """The mechanism C G + sigma Z: strategy, participation and adjacency.

    Functions that accept a strategy also accept a mechanism, which then sets participation and adjacency.

    Args:
        strategy: C.
        participation: which examples take part when; EveryStep is conservative.
        adjacency: which datasets are neighbours.
        unit: the unit whose presence is hidden. Under `Unit.USER`, the participation applies to users, each
            with one contribution of norm at most the clip norm. A participation that describes how the
            examples of a user take part (with `max_examples_per_user`) implies `Unit.USER`.

    Raises:
        InvalidParameterError: if an argument is invalid, or the participation does not fit n steps.
        UnsupportedCombinationError: for an adjacency that no theorem covers under this participation.

    Examples:
        >>> import dpmech as dm
        >>> mechanism = dm.Mechanism(dm.LambdaCGD(3900, 0.9), dm.MinSep(390, 10))
        >>> round(mechanism.sensitivity.upper, 4), mechanism.steps, mechanism.certain
        (7.2548, 3900, True)
        >>> round(dm.calibrate_sigma(mechanism, 8.0, 1e-5).sigma, 3)
        4.355
    """

    strategy: Strategy
    participation: Participation = dataclasses.field(default_factory=EveryStep)
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.EXAMPLE

    def __post_init__(self) -> None:
        check_strategy(self.strategy)
        Unit.check(self.unit)
        check_participation(self.participation).pattern(self.strategy.n)
        _check_covered(self.participation, Adjacency.check(self.adjacency))
        if self.participation.unit is not None:
            object.__setattr__(self, "unit", self.participation.unit)

    @property
    def steps(self) -> int:
        """Number of steps, n."""
        return self.strategy.n

    @property
    def certain(self) -> bool:
        """Whether participation is not random, so that the run is one Gaussian release of `sensitivity`."""
        return self.participation.certain

    @property
    def pattern(self) -> Pattern:
        """The worst-case support of one example."""
        return self.participation.pattern(self.steps)

    @property
    def hides_size(self) -> bool:
        """Whether neighbouring datasets differ in their number of examples, which is then private.

        Under ZERO_OUT, the number is the same. It is also the same under REPLACE_ONE, unless a user with
        several examples is replaced by a user with fewer.
        """
        if self.adjacency is Adjacency.REPLACE_ONE:
            return self.participation.unit is not None
        return self.adjacency is Adjacency.ADD_REMOVE

    @functools.cached_property
    def sensitivity(self) -> Bounds:
        """L2 sensitivity of C G at clip norm 1, as `dpmech.sensitivity`; computed once."""
        return _sensitivity(self.strategy, self.participation, self.adjacency)

    def prefix(self, steps: int) -> "Mechanism":
        """The mechanism of a run that stops after that many steps.

        If the participation repeats every epoch, the current epoch counts as a whole, so the result may have
        more steps.

        Args:
            steps: in [1, n].
        """
        count = check_integer("steps", steps, minimum=1, maximum=self.steps)
        participation, covered = self.participation.prefix(self.steps, count)
        if covered == self.steps:
            return self
        return Mechanism(self.strategy.prefix(covered), participation, self.adjacency, self.unit)

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain data, with its unit if that is not EXAMPLE."""
        own = {
            "strategy": self.strategy.to_dict(),
            "participation": self.participation.to_dict(),
            "adjacency": self.adjacency.value,
        }
        return own if self.unit is Unit.EXAMPLE else own | {"unit": self.unit.value}

    def to_json(self) -> str:
        """The mechanism as JSON text; floats keep every bit."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(data: object) -> "Mechanism":
        """Rebuild a mechanism from `to_dict`; unknown types and fields are refused.

        Raises:
            InvalidParameterError: on anything that `to_dict` does not write.
        """
        if not isinstance(data, dict) or set(data) - {"unit"} != _FIELDS:
            raise InvalidParameterError("mechanism", data, f"a mapping with exactly {sorted(_FIELDS)}")
        adjacency = {member.value: member for member in Adjacency}.get(str(data["adjacency"]))
        if adjacency is None:
            raise InvalidParameterError(
                "adjacency", data["adjacency"], "one of " + ", ".join(member.value for member in Adjacency)
            )
        unit = {member.value: member for member in Unit}.get(str(data.get("unit", Unit.EXAMPLE.value)))
        if unit is None:
            raise InvalidParameterError(
                "unit", data["unit"], "one of " + ", ".join(member.value for member in Unit)
            )
        return Mechanism(
            Strategy.from_dict(data["strategy"]),
            Participation.from_dict(data["participation"]),
            adjacency,
            unit,
        )

    @staticmethod
    def from_json(text: str) -> "Mechanism":
        """Rebuild a mechanism from `to_json`."""
        try:
            data = parse_json(text)
        except ValueError:
            raise InvalidParameterError("mechanism", text, "JSON written by to_json") from None
        return Mechanism.from_dict(data)

    def fingerprint(self) -> str:
        """SHA-256 (hex) of strategy, participation, adjacency and unit: the identity of a mechanism."""
        content = self.to_dict() | {"strategy": self.strategy.fingerprint()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_covered(participation: Participation, adjacency: Adjacency) -> None:
    reasons = {
        Adjacency.ADD_REMOVE: participation.add_remove_refused,
        Adjacency.ZERO_OUT: participation.zero_out_refused,
        Adjacency.REPLACE_ONE: participation.replace_one_refused,
    }
    refused = reasons[adjacency]
    if refused is not None:
        covered = ", ".join(one.name for one, reason in reasons.items() if reason is None)
        others = "; REPLACE_ONE without sampling, and for examples under Poisson, CyclicPoisson and "
        raise UnsupportedCombinationError(
            f"no bound is proven for {adjacency.name} under {participation!r}: {refused}",
            supported=covered + (others + "FixedSizeBatches") * (adjacency is Adjacency.REPLACE_ONE),
        )


def mechanism_of(
    strategy: Strategy | Mechanism,
    participation: Participation | None,
    adjacency: Adjacency | Unstated = UNSTATED,
) -> Mechanism:
    """The mechanism described by the arguments of public functions.

    Args:
        strategy: C, or a mechanism.
        participation: None is EveryStep, or that of the mechanism.
        adjacency: if not stated, ADD_REMOVE, or that of the mechanism.

    Raises:
        InvalidParameterError: if an argument is invalid, or contradicts the mechanism.
        UnsupportedCombinationError: as for `Mechanism`.
    """
    if isinstance(strategy, Mechanism):
        if participation is not None:
            _check_same("participation", participation, strategy.participation)
        if adjacency is not UNSTATED:
            _check_same("adjacency", adjacency, strategy.adjacency)
        return strategy
    return Mechanism(strategy, EveryStep() if participation is None else participation, _stated(adjacency))


def sensitivity(
    strategy: Strategy | Mechanism,
    participation: Participation | None = None,
    *,
    adjacency: Adjacency | Unstated = UNSTATED,
) -> Bounds:
    """L2 sensitivity of C G at clip norm 1 over all allowed participation sets.

    For Poisson, CyclicPoisson and FixedSizeBatches, it is the sensitivity of one release, the largest column
    norm. For BallsInBins, it is that of the worst-case support, FixedEpochs(n / bins); with `fresh` bins, it
    is at most that of one participation per epoch, at any steps. With `max_examples_per_user=m`, it is that
    of m examples in the same batches.

    Args:
        strategy: C; or a Mechanism, which also sets the other two.
        participation: which examples take part when; None is EveryStep, which is conservative.
        adjacency: REPLACE_ONE doubles the value: the gradients of an example may change by up to twice the
            clip norm in the same steps.

    Returns:
        Bounds with lower <= true value <= upper, including rounding; `by` names the theorem. The guarantee is
        exact if the ends are equal, and otherwise a bound.

    Raises:
        InvalidParameterError: if an argument is invalid, or the participation does not fit n.
        UnsupportedCombinationError: if no bound is known at this size.

    References:
        lambda_cgd eq. 2, Theorem 1, Lemma 8; noise_share eq. 26 (kappa).

    Examples:
        >>> import dpmech as dm
        >>> round(dm.sensitivity(dm.LambdaCGD(8, 0.9), dm.SingleParticipation()).upper, 4)
        2.0707
    """
    if isinstance(strategy, Mechanism):
        return mechanism_of(strategy, participation, adjacency).sensitivity
    # No Mechanism is made: under sampling the doubled value is well defined, though no theorem uses it.
    check_strategy(strategy)
    schema = EveryStep() if participation is None else check_participation(participation)
    return _sensitivity(strategy, schema, Adjacency.check(_stated(adjacency)))


def _sensitivity(strategy: Strategy, participation: Participation, adjacency: Adjacency) -> Bounds:
    factor = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    pattern, attained = participation.pattern(strategy.n), participation.attained_pattern(strategy.n)
    found = pattern_sensitivity(strategy, pattern)
    if attained != pattern:
        lower = min(found.lower, pattern_sensitivity(strategy, attained).lower)
        exact = found.exact and lower >= found.lower * (1.0 - _SAME)
        guarantee = found.guarantee if exact else Guarantee(Kind.BOUND)
        found = dataclasses.replace(found, lower=lower, guarantee=guarantee)
    return found.scaled(factor * participation.examples)


def _stated(adjacency: Adjacency | Unstated) -> Adjacency:
    return Adjacency.ADD_REMOVE if isinstance(adjacency, Unstated) else adjacency


def _check_same(name: str, given: object, own: object) -> None:
    if given != own:
        raise InvalidParameterError(name, given, f"left out, or {own!r}, which the mechanism says already")
