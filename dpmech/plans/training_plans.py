"""Training plans: integer steps from dataset size, batch size and epochs; plans in user notation."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.exceptions import InvalidParameterError
from dpmech.files import read_toml
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import (
    ColumnNormalized,
    Identity,
    Participation,
    Strategy,
)
from dpmech.numerics import short
from dpmech.plans.names import FAMILIES, STRATEGIES, check_known, owners, sampling_kind
from dpmech.plans.number_files import read_numbers

_LARGEST = 10**15  # number of examples


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """The sizes of a training run with full batches: n = epochs * (dataset_size // batch_size) steps.

    It computes the sizes of a strategy and a participation in integer arithmetic.

    Args:
        dataset_size: number of examples, a public number. Under ADD_REMOVE, the actual number is private, so
            declare it instead of computing it from the data.
        batch_size: expected batch size, in [1, dataset_size].
        epochs: number of passes over the data, an integer >= 1; `max_steps` may shorten the last one.
        max_steps: number of steps, which must end within the last epoch; None for whole epochs. See
            `of_steps`.

    Raises:
        InvalidParameterError: if a size is not an integer, or out of range.

    Examples:
        >>> import dpmech as dm
        >>> plan = dm.TrainingPlan(dataset_size=50_000, batch_size=128, epochs=10)
        >>> plan.steps, plan.steps_per_epoch, plan.sampling_prob
        (3900, 390, 0.00256)
        >>> plan.participation("balls-in-bins")
        BallsInBins(bins=390)
        >>> strategy = dm.LambdaCGD(plan.steps, 0.9)
        >>> dm.TrainingPlan.of_steps(50_000, 128, 1000)
        TrainingPlan(dataset_size=50000, batch_size=128, epochs=3, max_steps=1000)
    """

    dataset_size: int
    batch_size: int
    epochs: int
    max_steps: int | None = None

    @classmethod
    def of_steps(cls, dataset_size: int, batch_size: int, steps: int) -> "TrainingPlan":
        """A plan with this number of steps, an integer >= 1, and the epochs that they begin."""
        count = check_integer("steps", steps, minimum=1)
        each = cls(dataset_size, batch_size, 1).steps_per_epoch
        return cls(dataset_size, batch_size, -(-count // each), count if count % each else None)

    def __post_init__(self) -> None:
        size = check_integer("dataset_size", self.dataset_size, minimum=1, maximum=_LARGEST)
        batch = check_integer("batch_size", self.batch_size, minimum=1, maximum=size)
        for name, value in (
            ("dataset_size", size),
            ("batch_size", batch),
            ("epochs", check_integer("epochs", self.epochs, minimum=1)),
        ):
            object.__setattr__(self, name, value)  # a Python int: products of numpy integers overflow
        if self.max_steps is not None:
            most = self.epochs * self.steps_per_epoch
            least = most - self.steps_per_epoch + 1
            found = check_integer("max_steps", self.max_steps, minimum=least, maximum=most)
            object.__setattr__(self, "max_steps", found)

    def __repr__(self) -> str:
        shown = "" if self.max_steps is None else f", max_steps={self.max_steps}"
        return (
            f"TrainingPlan(dataset_size={self.dataset_size}, batch_size={self.batch_size}, "
            f"epochs={self.epochs}{shown})"
        )

    def __str__(self) -> str:
        return (
            f"{self!r}: {self.steps} steps, {self.steps_per_epoch} an epoch; expected batch "
            f"{self.batch_size} under Poisson sampling, {short(self.dataset_size / self.bins)} under "
            "Balls-in-Bins"
        )

    @property
    def steps_per_epoch(self) -> int:
        """dataset_size // batch_size; the remaining examples are not used in that epoch."""
        return self.dataset_size // self.batch_size

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return self.epochs * self.steps_per_epoch if self.max_steps is None else self.max_steps

    @property
    def sampling_prob(self) -> float:
        """batch_size / dataset_size: the probability that an example is in a sampled batch."""
        return self.batch_size / self.dataset_size

    @property
    def bins(self) -> int:
        """Number of bins of Balls-in-Bins: one for every step of an epoch."""
        return self.steps_per_epoch

    def participation(
        self,
        sampling: str,
        *,
        min_sep: int | None = None,
        max_participations: int | None = None,
        cycle: int | None = None,
        **own: Any,  # noqa: ANN401 - a number, a flag or a file
    ) -> Participation:
        """The participation of a sampling name, with the sizes of this plan.

        Poisson uses the sampling probability batch_size / dataset_size. CyclicPoisson uses `cycle` times this
        probability for each of `cycle` groups, which does not change the expected batch size. For min-sep,
        participations are one epoch apart by default.

        Args:
            sampling: `plan_name` of a registered participation, such as "min-sep"; `dpmech calibrate --help`
                lists them.
            min_sep: smallest distance between two participations, in steps.
            max_participations: maximum number of participations of one example.
            cycle: number of groups.
            **own: other settings; each participation lists its own in `plan_settings`. `sampling_probs`
                contains one probability for every step, or is the .npy or CSV file with them.

        Raises:
            InvalidParameterError: if the name is unknown, or if a setting does not belong to this sampling
                scheme.
        """
        kind = sampling_kind(sampling)
        details = {"min_sep": min_sep, "max_participations": max_participations, "cycle": cycle, **own}
        belongs, taken = owners(), kind.plan_settings
        for name, value in details.items():
            if value is not None and name not in taken:
                owner = f" (it belongs to {belongs[name]})" if name in belongs else ""
                raise InvalidParameterError(name, value, f"left out with sampling {sampling}{owner}")
        settings = {name: details.get(name) for name in taken}
        path = settings.get("sampling_probs")
        if isinstance(path, str | os.PathLike):
            settings["sampling_probs"] = tuple(read_numbers("sampling_probs", path, (self.steps,)).tolist())
        settings |= {name: getattr(self, name) for name in kind.plan_sizes}
        if kind.plan_whole_epochs and self.steps % self.steps_per_epoch:
            raise InvalidParameterError(
                "steps",
                self.steps,
                f"a multiple of the {self.steps_per_epoch} steps of an epoch with {sampling}",
            )
        return kind.planned(self.epochs, self.steps_per_epoch, self.sampling_prob, settings)

    def calibrate(
        self,
        eps: float,
        delta: float,
        strategy: Strategy | Callable[[int], Strategy] = Identity,
        sampling: str = "poisson",
        **options: Any,  # noqa: ANN401 - those of calibrate_sigma
    ) -> Calibration:
        """The smallest noise scale of this plan for a budget, by `calibrate_sigma`; by default for DP-SGD.

        Args:
            eps: > 0.
            delta: in (0, 1).
            strategy: a strategy over the steps of the plan, or a function that returns one for their number.
            sampling: as for `participation`, with default settings.
            **options: as for `calibrate_sigma`.

        Raises:
            InvalidParameterError: as for `calibrate_sigma` and `participation`.

        Examples:
            >>> import dpmech as dm
            >>> plan = dm.TrainingPlan(dataset_size=50_000, batch_size=500, epochs=10)
            >>> f"{plan.calibrate(eps=8.0, delta=1e-5).noise_multiplier:.3f}"
            '0.586'
        """
        accepted = f"a Strategy over the {self.steps} steps of the plan, or a function that makes it"
        own: object = strategy
        if callable(strategy):
            try:
                own = strategy(self.steps)
            except TypeError as error:
                raise InvalidParameterError("strategy", strategy, f"{accepted} from n alone") from error
        if not isinstance(own, Strategy) or own.n != self.steps:
            raise InvalidParameterError("strategy", own, accepted)
        return calibrate_sigma(own, eps, delta, participation=self.participation(sampling), **options)


_SIZES = {"bands", "buffers"}
_DP_SGD = "DP-SGD is identity under poisson, and the baseline of every comparison"
_NO_STRATEGIES = dict.fromkeys(("dp-sgd", "dpsgd", "DP-SGD"), _DP_SGD)
_OPTIONS = tuple(sorted(_SIZES.union(*(one.options for one in STRATEGIES.values()))))


@dataclasses.dataclass(frozen=True)
class Entry:
    """One strategy of a comparison: its name, its options, and a published RMSE to compare with.

    Without the options that determine its coefficients, at most with sizes (`bands`, `buffers`), it is a
    family, of which the best member is fitted.
    """

    name: str
    options: Mapping[str, Any]
    column_normalized: bool = False
    published: float | None = None

    @property
    def fitted(self) -> bool:
        """Whether it is a family."""
        own = STRATEGIES[self.name].due if self.name in FAMILIES else ()
        return not self.options.keys() - _SIZES and any(key not in self.options for key in own)

    @property
    def label(self) -> str:
        """Its label in tables."""
        shown = ", ".join(f"{key}={value}" for key, value in self.options.items())
        label = f"{self.name} {shown}".strip()
        return f"{label}, column-normalised" if self.column_normalized else label


def build_strategy(entry: Entry, n: int, *, fits: bool = False) -> Strategy:
    """The strategy of an entry over n steps.

    Args:
        entry: name and options.
        n: number of steps.
        fits: whether a family could be given instead, which an error then says.

    Raises:
        InvalidParameterError: if the name is unknown, or options are missing or belong to another strategy.
    """
    named = STRATEGIES[check_known("strategy", entry.name, STRATEGIES, _NO_STRATEGIES)]
    foreign = sorted(set(entry.options) - set(named.options))
    missing = [name for name in named.due if name not in entry.options]
    if foreign or missing:
        fitted = f", or {entry.name} to fit it" if fits and entry.name in FAMILIES else ""
        due = [f"{key}{' or without' if key in named.optional else ''}" for key in named.options]
        raise InvalidParameterError(
            f"strategy {entry.name}",
            ", ".join(f"{key}={value}" for key, value in entry.options.items()) or "nothing",
            f"given with {' and '.join(due)}, and nothing else" if due else "given without options",
            f"; for example {named.written(entry.name)}{fitted}",
        )
    strategy = named.build(n, dict(entry.options))
    return ColumnNormalized(strategy) if entry.column_normalized else strategy


def parse_entries(text: str) -> list[Entry]:
    """Parse 'identity,lambda-cgd:lam=0.9,bandmf:coefs=1/0.5/0.2,bsr:bands=16:column-normalized'."""
    entries: list[Entry] = []
    for part in text.split(","):
        name, *settings = part.strip().split(":")
        if entries and _is_number(name):
            raise InvalidParameterError(
                "strategies",
                text,
                "names separated by commas, numbers of a list separated by /",
                f"; write {entries[-1].name}:coefs=1/0.5 for a list",
            )
        options: dict[str, Any] = {}
        normalized = False
        for setting in settings:
            key, separator, value = setting.partition("=")
            if key == "column-normalized" and not separator:
                normalized = True
            elif separator:
                options[key] = _parse_value(key, value)
            else:
                raise InvalidParameterError(
                    "strategies", part, "name:option=value:...", ", for example lambda-cgd:lam=0.9"
                )
        entries.append(Entry(name, options, normalized))
    return entries


def read_plan(path: Path) -> tuple[dict[str, Any], list[Entry]]:
    """Read a TOML plan: a [plan] table, and a [[strategy]] table for each strategy, if any.

    Raises:
        InvalidParameterError: if the file is not TOML, or has unknown keys.
    """
    document = read_toml("plan", path)
    plan, tables = document.pop("plan", {}), document.pop("strategy", [])
    if document or not isinstance(plan, dict) or not isinstance(tables, list):
        hint = f": {', '.join(document)} outside of them" if document else ""
        raise InvalidParameterError("plan", str(path), "a [plan] table and [[strategy]] tables only", hint)
    return plan, [_read_entry(table) for table in tables]


def _read_entry(table: object) -> Entry:
    if not isinstance(table, dict):
        raise InvalidParameterError("strategy", table, "a [[strategy]] table")
    options = dict(table)
    name = options.pop("name", None)
    normalized = options.pop("column_normalized", False)
    if not isinstance(normalized, bool):
        raise InvalidParameterError("column_normalized", normalized, "true or false")
    published = options.pop("published", None)
    if published is not None:
        published = check_real("published", published, minimum=0.0, open_minimum=True)
    return Entry(str(name), options, normalized, published)


def _parse_value(key: str, value: str) -> Any:  # noqa: ANN401 - an int, a float, a list or a path
    if key == "matrix":
        return value
    try:
        numbers = [float(item) for item in value.split("/")]
    except ValueError:
        check_known("option of a strategy", key, _OPTIONS)
        raise InvalidParameterError(key, value, "a number, or numbers separated by /") from None
    if key in {"coefs", "decays", "scales"}:
        return numbers
    if len(numbers) > 1:
        raise InvalidParameterError(key, value, "one number")
    return int(numbers[0]) if key in _SIZES and numbers[0].is_integer() else numbers[0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
