"""Who takes part when: what every participation says of itself.

Whatever the rest of dpmech wants to know about a participation is a question that it answers here, so that
nothing outside asks which class it has.
"""

import abc
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.files import parse_json
from dpmech.guards import check_integer, check_real
from dpmech.mechanism.budget import Unit


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


Settings = Mapping[str, int | bool | None]  # what a plan says about a participation


class Participation(abc.ABC):
    """A participation schema. Final subclasses are frozen records; `random` ones amplify privacy.

    Where `per_release` is set, sensitivity is that of one release and the accountant composes them.

    Attributes:
        random: whether it says how chance decides who takes part.
        per_release: whether every release is accounted for by itself.
        unrestricted: whether it assumes nothing, so that batches may come in any order.
        plan_name: what the command line and TOML files call it.
        plan_settings: what a plan may say about it beside its sizes; a setting of several participations
            has the same meaning in all of them.
        plan_due: which of these a plan has to say.
        plan_sizes: which sizes of a plan it is made from, beside what all are made from.
        replace_one_proved: whether a theorem covers REPLACE_ONE though chance decides who takes part.

    Example:
        >>> import dpmech as dm
        >>> isinstance(dm.MinSep(4), dm.Participation), dm.MinSep(4).random, dm.Poisson(0.1).random
        (True, False, True)
    """

    random: ClassVar[bool] = False
    per_release: ClassVar[bool] = False
    unrestricted: ClassVar[bool] = False
    plan_name: ClassVar[str]
    plan_settings: ClassVar[tuple[str, ...]] = ()
    plan_due: ClassVar[tuple[str, ...]] = ()
    plan_sizes: ClassVar[tuple[str, ...]] = ()
    replace_one_proved: ClassVar[bool] = False

    @abc.abstractmethod
    def pattern(self, n: int) -> Pattern:
        """The worst-case support over n steps.

        For Poisson and CyclicPoisson, which are accounted release by release, it is one participation.

        Raises:
            InvalidParameterError: if the schema does not fit n steps.
        """

    def attained_pattern(self, n: int) -> Pattern:
        """A pattern all of whose sets can occur: that of `pattern`, unless it allows sets that cannot.

        Args:
            n: steps.

        Raises:
            InvalidParameterError: if the schema does not fit n steps.
        """
        return self.pattern(n)

    @abc.abstractmethod
    def requirement(self, n: int) -> str:
        """What the sampler of a run of n steps has to do, in the words of a certificate."""

    @classmethod
    @abc.abstractmethod
    def planned(
        cls,
        epochs: int,
        steps_per_epoch: int,
        sampling_prob: float,
        settings: Settings,
    ) -> Self:
        """The schema in the sizes of a training plan.

        Args:
            epochs: >= 1.
            steps_per_epoch: >= 1.
            sampling_prob: batch size over dataset size, in (0, 1].
            settings: one entry for each of `plan_settings`, None where the plan says nothing; and one for
                each of `plan_sizes`.

        Raises:
            InvalidParameterError: on a setting that is bad, or needed and None.
        """

    @classmethod
    def of_entries(cls, entries: Mapping[str, Any]) -> Self:
        """The schema from a table that has its fields, and sizes of a plan, among other entries.

        Raises:
            InvalidParameterError: on a bad field.
        """
        names = [field.name for field in dataclasses.fields(cls) if field.name in entries]  # type: ignore[arg-type]  # all are dataclasses
        return cls(**{name: entries[name] for name in names})

    @property
    def certain(self) -> bool:
        """Whether chance decides nothing: true without sampling, and where sampling leaves no choice."""
        return not self.random

    @property
    def examples(self) -> int:
        """How many examples of one unit, each with a gradient of its own, one step may hold at most."""
        return 1

    @property
    def unit(self) -> Unit | None:
        """Whose participation it says by its own definition.

        None where that is whoever is sampled: an example, unless a mechanism says that users are.
        """
        return None

    @property
    def users_together(self) -> bool:
        """Whether all examples of a user are in one group, so that a sampler needs to know whose each is."""
        return False

    @property
    def every_step_alike(self) -> bool:
        """Whether every example joins every step independently, with one probability."""
        return False

    @property
    def add_remove_refused(self) -> str | None:
        """Why no theorem here covers ADD_REMOVE; None where one does."""
        return None

    @property
    def zero_out_refused(self) -> str | None:
        """Why no theorem here covers ZERO_OUT; None where one does."""
        return None

    def releases(self, n: int) -> int:
        """How many releases an example may join whose losses compose: 1 where all are accounted as one.

        Raises:
            UnsupportedCombinationError: from a schema accounted release by release that does not say it.
        """
        if self.per_release:
            raise UnsupportedCombinationError(
                f"{self!r} is accounted release by release, and does not say how many of {n} steps count",
                supported="a participation with `releases` of its own",
            )
        return 1

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

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__repr__" not in vars(cls):  # a dataclass would write one that names all fields
            cls.__repr__ = Participation.__repr__  # type: ignore[method-assign]  # its own, in place of that one

    def __repr__(self) -> str:
        """The fields that are not at their default."""
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"
        )

    def given(self) -> dict[str, Any]:
        """The fields that are not at their default."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # all are dataclasses
        own = {field.name: (getattr(self, field.name), field.default) for field in fields}
        return {name: value for name, (value, default) in own.items() if value != default}

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain data: its type, and every field."""
        return {"type": type(self).__name__} | dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]  # all are dataclasses

    def to_json(self) -> str:
        """The schema as JSON text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(data: object) -> "Participation":
        """Rebuild a schema from `to_dict`; unknown types and fields are refused."""
        known = {kind.__name__: kind for kind in kinds()}
        if not isinstance(data, dict) or str(data.get("type")) not in known:
            raise InvalidParameterError(
                "participation",
                data,
                f"a mapping with type in {', '.join(sorted(known))}, or one whose module has been imported",
            )
        kind = known[str(data["type"])]
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
            data = parse_json(text)
        except ValueError:
            raise InvalidParameterError("participation", text, "JSON written by to_json") from None
        return Participation.from_dict(data)


_Kind = TypeVar("_Kind", bound=type[Participation])
_KINDS: dict[type[Participation], object] = {}
_LATER: list[Callable[[], None]] = []


def register(kind: _Kind, scheme: object = None) -> _Kind:
    """Make a participation known by its name, to files and to plans.

    Args:
        kind: its class.
        scheme: whose participation it is; None where no sampling scheme has it.

    Raises:
        InvalidParameterError: if it is no frozen record, or a name of it is taken.
    """
    frozen = dataclasses.is_dataclass(kind) and vars(kind)["__dataclass_params__"].frozen
    if not frozen or not issubclass(kind, Participation):
        raise InvalidParameterError("kind", kind, "a frozen dataclass that is a Participation")
    if not isinstance(getattr(kind, "plan_name", None), str):
        raise InvalidParameterError("kind", kind, "a participation with a plan_name")
    taken = {name for known in _KINDS for name in (known.__name__, known.plan_name)}
    for name in (kind.__name__, kind.plan_name):
        if name in taken:
            raise InvalidParameterError("kind", name, "a name that no registered participation has")
    _KINDS[kind] = scheme
    return kind


def forget(kind: type[Participation]) -> None:
    """Undo `register`; for what registered a participation for a while.

    Raises:
        InvalidParameterError: if it is not registered.
    """
    if kind not in _KINDS:
        raise InvalidParameterError("kind", kind, "a registered participation")
    del _KINDS[kind]


def register_later(find: Callable[[], None]) -> None:
    """Have `find` called, once, before anyone asks which participations there are: it may register more."""
    _LATER.append(find)


def kinds() -> tuple[type[Participation], ...]:
    """Every registered participation, in the order in which they were registered."""
    while _LATER:
        _LATER.pop()()
    return tuple(_KINDS)


def scheme_with(kind: type[Participation]) -> object:
    """The scheme with which a participation was registered; None if there is none, or not yet."""
    return _KINDS.get(kind)


def check_participation(value: object) -> Participation:
    """Return `value` if it is a Participation, else raise InvalidParameterError."""
    if not isinstance(value, Participation):
        raise InvalidParameterError("participation", value, "a Participation such as dm.MinSep(390, 10)")
    return value


@dataclasses.dataclass(frozen=True)
class EveryStep(Participation):
    """Every example may take part in every step: no assumption, so it can only over-protect.

    Example:
        >>> import dpmech as dm
        >>> f"{dm.sensitivity(dm.Identity(4), dm.EveryStep()).upper:.3f}"
        '2.000'
    """

    unrestricted: ClassVar[bool] = True
    plan_name: ClassVar[str] = "every-step"

    def pattern(self, n: int) -> Pattern:
        """All n steps."""
        return Pattern(1, n)

    def requirement(self, n: int) -> str:
        """Any batches will do."""
        del n
        return "Any batches: every example may take part in every step."

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """The same for every plan."""
        del epochs, steps_per_epoch, sampling_prob, settings
        return cls()


def needed_setting(kind: type[Participation], settings: Settings, name: str) -> int:
    """A setting of a plan that a kind of participation cannot do without.

    Raises:
        InvalidParameterError: if the plan does not give it.
    """
    value = settings[name]
    if value is None:
        raise InvalidParameterError(name, value, f"given with sampling {kind.plan_name}")
    return value


def check_sampling_prob(value: object, *, below_one: bool = False) -> float:
    """Return a probability in (0, 1], or with `below_one` in (0, 1), else raise InvalidParameterError."""
    return check_real(
        "sampling_prob", value, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=below_one
    )


def check_examples_per_user(value: object) -> int | None:
    """Return None, or an integer in [1, 1000], else raise InvalidParameterError."""
    return None if value is None else check_integer("max_examples_per_user", value, minimum=1, maximum=1000)
