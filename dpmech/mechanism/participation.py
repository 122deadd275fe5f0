"""Who takes part when: the patterns that a guarantee assumes, and that a sampler must realise."""

import abc
import dataclasses
import json
from typing import Any, ClassVar

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real

__all__ = [
    "BallsInBins",
    "CyclicPoisson",
    "EveryStep",
    "FixedEpochs",
    "MinSep",
    "Participation",
    "Poisson",
    "SingleParticipation",
]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The participation sets of one example, in the form that sensitivities use.

    Args:
        min_sep: two participations are at least this many steps apart.
        max_participations: at most this many of them (already capped by what n steps allow).
        evenly_spaced: only the sets {s, s + min_sep, ...} with s < min_sep are possible.
    """

    min_sep: int
    max_participations: int
    evenly_spaced: bool = False


class Participation(abc.ABC):
    """A participation schema. Final subclasses are frozen records; `random` ones amplify privacy.

    Where `per_release` is set, sensitivity is that of one release and the accountant composes them.
    """

    random: ClassVar[bool] = False
    per_release: ClassVar[bool] = False

    @abc.abstractmethod
    def pattern(self, n: int) -> Pattern:
        """The worst-case support over n steps.

        For Poisson and CyclicPoisson, which are accounted release by release, it is one participation.

        Raises:
            InvalidParameterError: if the schema does not fit n steps.
        """

    def prefix(self, n: int, steps: int) -> tuple["Participation", int]:
        """What the first `steps` of n steps realise, and over how many steps to account for it.

        Where a pattern repeats every epoch, the epoch under way counts as a whole: more releases only
        cost more.

        Args:
            n: of the schema.
            steps: in [1, n].
        """
        self.pattern(n)
        return self, check_integer("steps", steps, minimum=1, maximum=n)

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain data, with its type."""
        return {"type": type(self).__name__} | dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]  # all are dataclasses

    def to_json(self) -> str:
        """The schema as JSON text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(data: object) -> "Participation":
        """Rebuild a schema from `to_dict`; unknown types and fields are refused."""
        kinds = {kind.__name__: kind for kind in Participation.__subclasses__()}
        if not isinstance(data, dict) or str(data.get("type")) not in kinds:
            raise InvalidParameterError(
                "participation", data, "a mapping with type in " + ", ".join(sorted(kinds))
            )
        kind = kinds[str(data["type"])]
        fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # as above
        given = set(data) - {"type"}
        if given != fields:
            raise InvalidParameterError(
                "participation", data, f"a {data['type']} with exactly the fields {sorted(fields)}"
            )
        return kind(**{name: data[name] for name in fields})

    @staticmethod
    def from_json(text: str) -> "Participation":
        """Rebuild a schema from `to_json`."""
        try:
            data = json.loads(text)
        except (TypeError, ValueError):
            raise InvalidParameterError("participation", text, "JSON written by to_json") from None
        return Participation.from_dict(data)


@dataclasses.dataclass(frozen=True)
class EveryStep(Participation):
    """Every example may take part in every step: no assumption, so it can only over-protect."""

    def pattern(self, n: int) -> Pattern:
        """All n steps."""
        return Pattern(1, n)


@dataclasses.dataclass(frozen=True)
class SingleParticipation(Participation):
    """Every example takes part in at most one step."""

    def pattern(self, n: int) -> Pattern:
        """One step of n."""
        return Pattern(n, 1)


@dataclasses.dataclass(frozen=True)
class MinSep(Participation):
    """Participations of one example are at least `min_sep` steps apart, at most `max_participations`.

    Args:
        min_sep: b, an integer in [1, n].
        max_participations: k >= 1, or None for as many as fit, ceil(n / b).
    """

    min_sep: int
    max_participations: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_sep", check_integer("min_sep", self.min_sep, minimum=1))
        if self.max_participations is not None:
            k = check_integer("max_participations", self.max_participations, minimum=1)
            object.__setattr__(self, "max_participations", k)

    def pattern(self, n: int) -> Pattern:
        """b-separated sets of at most min(k, ceil(n / b)) steps."""
        if self.min_sep > n:
            raise InvalidParameterError("min_sep", self.min_sep, f"an integer in [1, n={n}]")
        fitting = -(-n // self.min_sep)
        k = fitting if self.max_participations is None else min(self.max_participations, fitting)
        return Pattern(self.min_sep, k)

    def prefix(self, n: int, steps: int) -> tuple["MinSep", int]:
        """The same separation, or `steps` where that is less."""
        self.pattern(n)
        count = check_integer("steps", steps, minimum=1, maximum=n)
        return MinSep(min(self.min_sep, count), self.max_participations), count


@dataclasses.dataclass(frozen=True)
class FixedEpochs(Participation):
    """Every example takes part once an epoch, exactly every n / epochs steps.

    Args:
        epochs: k >= 1; n must be a multiple of it.
    """

    epochs: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "epochs", check_integer("epochs", self.epochs, minimum=1))

    def pattern(self, n: int) -> Pattern:
        """The sets {s, s + n/k, ...}."""
        if n % self.epochs:
            raise InvalidParameterError("epochs", self.epochs, f"a divisor of n={n}")
        return Pattern(n // self.epochs, self.epochs, evenly_spaced=True)

    def prefix(self, n: int, steps: int) -> tuple["FixedEpochs", int]:
        """The epochs begun."""
        stride = self.pattern(n).min_sep
        begun = -(-check_integer("steps", steps, minimum=1, maximum=n) // stride)
        return FixedEpochs(begun), begun * stride


@dataclasses.dataclass(frozen=True)
class Poisson(Participation):
    """Every example joins every step independently with probability `sampling_prob`.

    Args:
        sampling_prob: q in (0, 1].
    """

    sampling_prob: float
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_prob", _check_sampling_prob(self.sampling_prob))

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)


@dataclasses.dataclass(frozen=True)
class CyclicPoisson(Participation):
    """The data are split into `cycle` fixed groups; step t samples group t mod cycle with `sampling_prob`.

    Args:
        sampling_prob: q in (0, 1].
        cycle: number of groups, at least the number of bands of the strategy.
    """

    sampling_prob: float
    cycle: int
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_prob", _check_sampling_prob(self.sampling_prob))
        object.__setattr__(self, "cycle", check_integer("cycle", self.cycle, minimum=1))

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)


@dataclasses.dataclass(frozen=True)
class BallsInBins(Participation):
    """Every example is put into one of `bins` bins once, uniformly; bin i is step i of every epoch.

    Args:
        bins: b, an integer in [1, n]; n must be a multiple of it.
    """

    bins: int
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=1))

    def pattern(self, n: int) -> Pattern:
        """The worst-case support: that of FixedEpochs(n / b)."""
        if self.bins > n or n % self.bins:
            raise InvalidParameterError("bins", self.bins, f"a divisor of n={n}")
        return Pattern(self.bins, n // self.bins, evenly_spaced=True)

    def prefix(self, n: int, steps: int) -> tuple["BallsInBins", int]:
        """The epochs begun."""
        self.pattern(n)
        begun = -(-check_integer("steps", steps, minimum=1, maximum=n) // self.bins)
        return self, begun * self.bins


def check_participation(value: object) -> Participation:
    """Return `value` if it is a Participation, else raise InvalidParameterError."""
    if not isinstance(value, Participation):
        raise InvalidParameterError("participation", value, "a Participation such as dm.MinSep(390, 10)")
    return value


def _check_sampling_prob(value: object) -> float:
    return check_real("sampling_prob", value, minimum=0.0, maximum=1.0, open_minimum=True)
