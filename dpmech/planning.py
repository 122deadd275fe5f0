"""Training plans as people write them: dataset size, batch size, epochs, sampling, strategy names."""

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpmech.accounting.methods import Certified, Deterministic, Exact, Importance, Method, Pld, Prv, Rdp
from dpmech.budget import check_delta
from dpmech.exceptions import InvalidParameterError, check_integer, check_real
from dpmech.participation import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedEpochs,
    MinSep,
    Participation,
    Poisson,
    SingleParticipation,
)
from dpmech.strategies import (
    BLT,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    Identity,
    InverseSquareRoot,
    LambdaCGD,
    SquareRoot,
    Strategy,
)

__all__ = [
    "FAMILIES",
    "METHODS",
    "OWNERS",
    "SAMPLINGS",
    "STRATEGIES",
    "Entry",
    "FamilyEntry",
    "TrainingPlan",
    "build_strategy",
    "chosen_method",
    "parse_entries",
    "parse_families",
    "read_plan",
]


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """Whole batches, epoch after epoch: n = epochs * (dataset_size // batch_size) steps.

    Args:
        dataset_size: number of examples, public.
        batch_size: expected batch size, in [1, dataset_size].
        epochs: number of passes, an integer >= 1.
    """

    dataset_size: int
    batch_size: int
    epochs: int

    def __post_init__(self) -> None:
        size = check_integer("dataset_size", self.dataset_size, minimum=1)
        check_integer("batch_size", self.batch_size, minimum=1, maximum=size)
        check_integer("epochs", self.epochs, minimum=1)

    @property
    def steps_per_epoch(self) -> int:
        """dataset_size // batch_size; the examples left over are not used in that epoch."""
        return self.dataset_size // self.batch_size

    @property
    def n(self) -> int:
        """Number of training steps."""
        return self.epochs * self.steps_per_epoch

    def participation(
        self,
        sampling: str,
        *,
        min_sep: int | None = None,
        max_participations: int | None = None,
        cycle: int | None = None,
    ) -> Participation:
        """The participation schema of a sampling name, sized by this plan.

        Poisson samples with batch_size / dataset_size; CyclicPoisson with `cycle` times that from each
        of `cycle` groups, so that the expected batch size stays. min-sep defaults to one epoch apart.
        """
        if sampling not in SAMPLINGS:
            raise InvalidParameterError("sampling", sampling, "one of " + ", ".join(SAMPLINGS))
        details = {"min_sep": min_sep, "max_participations": max_participations, "cycle": cycle}
        for name, value in details.items():
            if value is not None and sampling != OWNERS[name]:
                raise InvalidParameterError(
                    name, value, f"left out with sampling {sampling} (it belongs to {OWNERS[name]})"
                )
        rate = self.batch_size / self.dataset_size
        match sampling:
            case "every-step":
                return EveryStep()
            case "single":
                return SingleParticipation()
            case "min-sep":
                k = (
                    max_participations
                    if max_participations is not None or min_sep is not None
                    else self.epochs
                )
                return MinSep(self.steps_per_epoch if min_sep is None else min_sep, k)
            case "epochs":
                return FixedEpochs(self.epochs)
            case "poisson":
                return Poisson(rate)
            case "cyclic-poisson":
                if cycle is None:
                    raise InvalidParameterError("cycle", cycle, "given with sampling cyclic-poisson")
                return CyclicPoisson(min(1.0, rate * cycle), cycle)
            case _:
                return BallsInBins(self.steps_per_epoch)


SAMPLINGS = ("every-step", "single", "min-sep", "epochs", "poisson", "cyclic-poisson", "balls-in-bins")

# Settings that one sampling alone takes.
OWNERS = {"min_sep": "min-sep", "max_participations": "min-sep", "cycle": "cyclic-poisson"}

_Builder = Callable[[int, dict[str, Any]], Strategy]

# Name on the command line -> (options it takes, how it is built).
STRATEGIES: dict[str, tuple[tuple[str, ...], _Builder]] = {
    "identity": ((), lambda n, _: Identity(n)),
    "lambda-cgd": (("lam",), lambda n, o: LambdaCGD(n, o["lam"])),
    "bsr": (("bands",), lambda n, o: SquareRoot(n, o.get("bands"))),
    "bisr": (("bands",), lambda n, o: InverseSquareRoot(n, o["bands"])),
    "bandmf": (("coefs",), lambda n, o: BandedToeplitz(n, o["coefs"])),
    "bandinv": (("coefs",), lambda n, o: BandedInverse(n, o["coefs"])),
    "blt": (("decays", "scales"), lambda n, o: BLT(n, o["decays"], o["scales"])),
    "dense": (("matrix",), lambda n, o: _dense(n, o["matrix"])),
}
_OPTIONAL = {("bsr", "bands")}

METHODS: dict[str, Method] = {
    "pld": Pld(),
    "prv": Prv(),
    "rdp": Rdp(),
    "exact": Exact(),
    "importance": Importance(),
    "certified": Certified(),
    "deterministic": Deterministic(),
}


def chosen_method(
    name: str | None, participation: Participation, *, rigorous: bool, delta: float
) -> Method | None:
    """The method of this name; with `rigorous` one whose result is a bound, never an estimate.

    Args:
        name: a key of METHODS, or None for the default.
        participation: who takes part when.
        rigorous: whether `dpmech verify --rigorous` is to accept what it gives.
        delta: of the budget: the beta of a rigorous method is at most a hundredth of it.

    Raises:
        InvalidParameterError: on an unknown name, or an estimate where a bound is asked for.
    """
    if name is not None and name not in METHODS:
        raise InvalidParameterError("method", name, "one of " + ", ".join(METHODS))
    if name == "importance" and rigorous:
        raise InvalidParameterError("method", name, "certified or deterministic with --rigorous")
    if name is None:
        return Deterministic() if rigorous and isinstance(participation, BallsInBins) else None
    if name == "certified" and rigorous:
        return Certified(min(Certified().beta, 0.01 * check_delta(delta)))
    return METHODS[name]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One strategy of a comparison: its name, its options, and a published RMSE to set beside it."""

    name: str
    options: Mapping[str, Any]
    column_normalized: bool = False
    published: float | None = None

    @property
    def label(self) -> str:
        """What a table calls it."""
        shown = ", ".join(f"{key}={value}" for key, value in self.options.items())
        label = f"{self.name} {shown}".strip()
        return f"{label}, column-normalised" if self.column_normalized else label


def build_strategy(entry: Entry, n: int) -> Strategy:
    """The strategy of an entry over n steps.

    Raises:
        InvalidParameterError: on an unknown name, or options that are missing or not its own.
    """
    if entry.name not in STRATEGIES:
        raise InvalidParameterError("strategy", entry.name, "one of " + ", ".join(STRATEGIES))
    takes, builder = STRATEGIES[entry.name]
    foreign = sorted(set(entry.options) - set(takes))
    missing = [name for name in takes if name not in entry.options and (entry.name, name) not in _OPTIONAL]
    if foreign or missing:
        accepted = f"given exactly the options {list(takes)}" if takes else "given no options"
        raise InvalidParameterError(f"strategy {entry.name}", dict(entry.options), accepted)
    strategy = builder(n, dict(entry.options))
    return ColumnNormalized(strategy) if entry.column_normalized else strategy


def parse_entries(text: str) -> list[Entry]:
    """Read 'identity,lambda-cgd:lam=0.9,bandmf:coefs=1/0.5/0.2,bsr:bands=16:column-normalized'."""
    entries = []
    for part in text.split(","):
        name, *settings = part.strip().split(":")
        options: dict[str, Any] = {}
        normalized = False
        for setting in settings:
            key, separator, value = setting.partition("=")
            if key == "column-normalized" and not separator:
                normalized = True
            elif separator:
                options[key] = _parse_value(key, value)
            else:
                raise InvalidParameterError("strategies", part, "name:option=value:...")
        entries.append(Entry(name, options, normalized))
    return entries


FAMILIES: dict[str, type[Strategy]] = {
    "lambda-cgd": LambdaCGD,
    "bandmf": BandedToeplitz,
    "bandinv": BandedInverse,
    "blt": BLT,
    "dense": Dense,
}


@dataclasses.dataclass(frozen=True)
class FamilyEntry:
    """One family to fit: its name and its size."""

    name: str
    bands: int | None = None
    buffers: int | None = None
    column_normalized: bool = False

    @property
    def label(self) -> str:
        """What a table calls it."""
        sizes = [
            f"{key}={value}" for key, value in (("bands", self.bands), ("buffers", self.buffers)) if value
        ]
        label = " ".join([self.name, *sizes])
        return f"{label}, column-normalised" if self.column_normalized else label


def parse_families(text: str) -> list[FamilyEntry]:
    """Read 'lambda-cgd,bandmf:bands=16,blt:buffers=3:column-normalized'.

    Raises:
        InvalidParameterError: on an unknown family or option.
    """
    families = []
    for entry in parse_entries(text):
        if entry.name not in FAMILIES:
            raise InvalidParameterError("families", entry.name, "one of " + ", ".join(FAMILIES))
        foreign = set(entry.options) - {"bands", "buffers"}
        if foreign:
            raise InvalidParameterError(f"family {entry.name}", sorted(foreign), "bands=... or buffers=...")
        sizes = {
            key: check_integer(key, int(value) if float(value).is_integer() else value, minimum=1)
            for key, value in entry.options.items()
        }
        families.append(FamilyEntry(entry.name, column_normalized=entry.column_normalized, **sizes))
    return families


def read_plan(path: Path) -> tuple[dict[str, Any], list[Entry]]:
    """Read a TOML plan: a [plan] table, and a [[strategy]] table for each strategy.

    Raises:
        InvalidParameterError: if the file is not TOML, or has unknown keys.
    """
    try:
        with path.open("rb") as stream:
            document = tomllib.load(stream)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameterError("plan", str(path), f"a readable TOML file ({error})") from error
    plan, tables = document.pop("plan", {}), document.pop("strategy", None)
    if document or not isinstance(plan, dict) or not isinstance(tables, list):
        raise InvalidParameterError("plan", str(path), "a [plan] table and [[strategy]] tables, nothing else")
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
        raise InvalidParameterError(key, value, "a number, or numbers joined by /") from None
    if key in {"coefs", "decays", "scales"}:
        return numbers
    if len(numbers) > 1:
        raise InvalidParameterError(key, value, "one number")
    return int(numbers[0]) if key == "bands" and numbers[0].is_integer() else numbers[0]


def _dense(n: int, path: str) -> Strategy:
    try:
        matrix = (
            np.load(path, allow_pickle=False)
            if str(path).endswith(".npy")
            else np.loadtxt(path, delimiter=",", ndmin=2)
        )
    except (OSError, ValueError) as error:
        raise InvalidParameterError("matrix", str(path), f"a readable .npy or CSV file ({error})") from error
    strategy = Dense(matrix)
    if strategy.n != n:
        raise InvalidParameterError("matrix", f"{strategy.n} x {strategy.n}", f"{n} x {n}, one row a step")
    return strategy
