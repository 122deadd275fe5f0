"""Who takes part when: the interface of every participation.

The rest of dpmech uses only this interface, so nothing outside depends on the class of a
participation.
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
        max_participations: the maximum number of participations (already limited to what n steps allow).
        evenly_spaced: only the sets {s, s + min_sep, ...} with s < min_sep are possible.
    """

    min_sep: int
    max_participations: int
    evenly_spaced: bool = False


Settings = Mapping[str, Any]  # settings of a participation in a plan


class Participation(abc.ABC):
    """A participation scheme. Final subclasses are frozen dataclasses; `random` ones amplify privacy.

    If `per_release` is set, the sensitivity is that of one release, and the accountant composes the releases.

    Attributes:
        random: whether participation is random.
        per_release: whether every release is accounted for separately.
        unrestricted: whether it makes no assumption, so that batches may come in any order.
        plan_name: its name on the command line and in TOML files.
        plan_settings: settings of a plan in addition to its sizes; a setting that several participations
            share has the same meaning in all of them.
        plan_due: the settings that a plan must specify.
        plan_sizes: the sizes of a plan that it uses, in addition to those that all participations use.
        plan_whole_epochs: whether a plan must consist of whole epochs.

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
    plan_whole_epochs: ClassVar[bool] = False

    @abc.abstractmethod
    def pattern(self, n: int) -> Pattern:
        """The worst-case support over n steps.

        For Poisson and CyclicPoisson, which are accounted release by release, it is one participation.

        Raises:
            InvalidParameterError: if the participation does not fit n steps.
        """

    def attained_pattern(self, n: int) -> Pattern:
        """A pattern whose sets can all occur: that of `pattern`, unless that allows sets that cannot occur.

        Args:
            n: steps.

        Raises:
            InvalidParameterError: if the participation does not fit n steps.
        """
        return self.pattern(n)

    @abc.abstractmethod
    def requirement(self, n: int) -> str:
        """The requirements on the sampler of a run of n steps, as worded in a certificate."""

    @classmethod
    @abc.abstractmethod
    def planned(
        cls,
        epochs: int,
        steps_per_epoch: int,
        sampling_prob: float,
        settings: Settings,
    ) -> Self:
        """The participation for the sizes of a training plan.

        Args:
            epochs: >= 1.
            steps_per_epoch: >= 1.
            sampling_prob: batch size over dataset size, in (0, 1].
            settings: one entry for each of `plan_settings`, None if the plan gives no value; and one for
                each of `plan_sizes`.

        Raises:
            InvalidParameterError: if a setting is invalid, or if it is required and None.
        """

    @classmethod
    def of_entries(cls, entries: Mapping[str, Any]) -> Self:
        """The participation from a table that contains its fields, and sizes of a plan, among other entries.

        Raises:
            InvalidParameterError: on a bad field.
        """
        names = [field.name for field in dataclasses.fields(cls) if field.name in entries]  # type: ignore[arg-type]  # all are dataclasses
        return cls(**{name: entries[name] for name in names})

    @property
    def certain(self) -> bool:
        """Whether nothing is random: True without sampling, and if the sampling has only one outcome."""
        return not self.random

    @property
    def examples(self) -> int:
        """Maximum number of examples of one unit that have separate gradients in one step."""
        return 1

    @property
    def unit(self) -> Unit | None:
        """The unit that its definition refers to.

        None if it refers to the sampled unit, which is an example unless a mechanism declares users.
        """
        return None

    @property
    def users_together(self) -> bool:
        """Whether all examples of a user are in one group, so that a sampler must know their user."""
        return False

    @property
    def every_step_alike(self) -> bool:
        """Whether every example joins every step independently, with one probability."""
        return False

    @property
    def add_remove_refused(self) -> str | None:
        """Why no theorem in dpmech covers ADD_REMOVE; None if one does."""
        return None

    @property
    def zero_out_refused(self) -> str | None:
        """Why no theorem in dpmech covers ZERO_OUT; None if one does."""
        return None

    @property
    def replace_one_refused(self) -> str | None:
        """Why no theorem in dpmech covers REPLACE_ONE; None if one does, as without sampling."""
        return "doubling is not proven under sampling" if self.random else None

    def releases(self, n: int) -> int:
        """Number of composed releases that an example may join: 1 if all are accounted for as one release.

        Raises:
            UnsupportedCombinationError: if `per_release` is set and the scheme does not define this method.
        """
        if self.per_release:
            raise UnsupportedCombinationError(
                f"{self!r} is accounted release by release, and does not say how many of {n} steps count",
                supported="a participation with `releases` of its own",
            )
        return 1

    def prefix(self, n: int, steps: int) -> tuple["Participation", int]:
        """The participation of the first `steps` of n steps, and the number of steps to account for.

        If a pattern repeats every epoch, the current epoch counts as a whole: additional releases are
        conservative.

        Args:
            n: the number of steps of the participation.
            steps: in [1, n].
        """
        self.pattern(n)
        return self, check_integer("steps", steps, minimum=1, maximum=n)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__repr__" not in vars(cls):  # a dataclass would generate one that names all fields
            cls.__repr__ = Participation.__repr__  # type: ignore[method-assign]  # replaces the generated one

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
        """The participation as plain data: its type, and every field."""
        own = dataclasses.asdict(self)  # type: ignore[call-overload]  # all are dataclasses
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}
        return {"type": type(self).__name__} | fields

    def to_json(self) -> str:
        """The participation as JSON text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(data: object) -> "Participation":
        """Rebuild a participation from `to_dict`; unknown types and fields are refused."""
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
        """Rebuild a participation from `to_json`."""
        try:
            data = parse_json(text)
        except ValueError:
            raise InvalidParameterError("participation", text, "JSON written by to_json") from None
        return Participation.from_dict(data)


# Why REPLACE_ONE is refused for users whose examples are sampled.
EXAMPLES_ONLY = (
    "one example that is replaced has a bound, all examples of a user have none; without "
    "max_examples_per_user, or with ADD_REMOVE, there is one"
)


class BoundedContributions(Participation):
    """A participation that is about users with several examples if `max_examples_per_user` is not None.

    Attributes:
        max_examples_per_user: m in [1, 1000], the maximum number of examples per user; None for a claim about
            examples.
    """

    max_examples_per_user: int | None

    @property
    def examples(self) -> int:
        """All m examples of a user may be in one batch."""
        return 1 if self.max_examples_per_user is None else self.max_examples_per_user

    @property
    def unit(self) -> Unit | None:
        """USER if users have several examples."""
        return None if self.max_examples_per_user is None else Unit.USER

    def bounding(self) -> str:
        """The requirement on the contributions of users, as worded in a certificate."""
        return (
            f"Keep at most {self.max_examples_per_user} examples of every user, chosen before training and "
            "without regard to the data of others; an example belongs to one user."
        )


_Kind = TypeVar("_Kind", bound=type[Participation])
_KINDS: dict[type[Participation], object] = {}
_LATER: list[Callable[[], None]] = []


def register(kind: _Kind, scheme: object = None) -> _Kind:
    """Register a participation by name, for files and plans.

    Args:
        kind: its class.
        scheme: the scheme of the participation; None if no sampling scheme has it.

    Raises:
        InvalidParameterError: if it is not a frozen dataclass, or one of its names is taken.
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
    """Undo `register`, for code that registers a participation temporarily.

    Raises:
        InvalidParameterError: if it is not registered.
    """
    if kind not in _KINDS:
        raise InvalidParameterError("kind", kind, "a registered participation")
    del _KINDS[kind]


def register_later(find: Callable[[], None]) -> None:
    """Call `find` once, before the registered participations are first requested: it may register more."""
    _LATER.append(find)


def kinds() -> tuple[type[Participation], ...]:
    """Every registered participation, in the order of registration."""
    while _LATER:
        find = _LATER.pop()
        try:
            find()
        except BaseException:
            _LATER.append(find)  # a broken entry point fails every time, not only the first
            raise
    return tuple(_KINDS)


def scheme_with(kind: type[Participation]) -> object:
    """The scheme with which a participation was registered; None if there is none (yet)."""
    return _KINDS.get(kind)


def check_participation(value: object) -> Participation:
    """Return `value` if it is a Participation, else raise InvalidParameterError."""
    if not isinstance(value, Participation):
        raise InvalidParameterError("participation", value, "a Participation such as dm.MinSep(390, 10)")
    return value


@dataclasses.dataclass(frozen=True)
class EveryStep(Participation):
    """Every example may take part in every step: no assumption, and therefore conservative.

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
        """Any batches are allowed."""
        del n
        return "Any batches: every example may take part in every step."

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """The same for every plan."""
        del epochs, steps_per_epoch, sampling_prob, settings
        return cls()


def needed_setting(kind: type[Participation], settings: Settings, name: str) -> int:
    """A setting of a plan that a kind of participation requires.

    Raises:
        InvalidParameterError: if the plan does not give it.
    """
    value: int | None = settings[name]
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
