"""Training plans as people write them: dataset size, batch size, epochs, sampling, strategy names."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmech.exceptions import InvalidParameterError
from dpmech.files import read_toml
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import (
    ColumnNormalized,
    Strategy,
)
from dpmech.plans.names import FAMILIES, STRATEGIES
from dpmech.plans.suggestions import check_known

__all__ = ["Entry", "FamilyEntry", "build_strategy", "parse_entries", "parse_families", "read_plan"]


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
    named = STRATEGIES[check_known("strategy", entry.name, STRATEGIES)]
    foreign = sorted(set(entry.options) - set(named.options))
    missing = [name for name in named.due if name not in entry.options]
    if foreign or missing:
        due = [f"{key}{' or without' if key in named.optional else ''}" for key in named.options]
        raise InvalidParameterError(
            f"strategy {entry.name}",
            ", ".join(f"{key}={value}" for key, value in entry.options.items()) or "nothing",
            f"given with {' and '.join(due)}, and nothing else" if due else "given without options",
            f"; for example {named.written(entry.name)}",
        )
    strategy = named.build(n, dict(entry.options))
    return ColumnNormalized(strategy) if entry.column_normalized else strategy


def parse_entries(text: str) -> list[Entry]:
    """Read 'identity,lambda-cgd:lam=0.9,bandmf:coefs=1/0.5/0.2,bsr:bands=16:column-normalized'."""
    entries: list[Entry] = []
    for part in text.split(","):
        name, *settings = part.strip().split(":")
        if entries and _is_number(name):
            raise InvalidParameterError(
                "strategies",
                text,
                "names joined by commas, numbers of a list joined by /",
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
        check_known("families", entry.name, FAMILIES)
        foreign = set(entry.options) - {"bands", "buffers"}
        if foreign:
            raise InvalidParameterError(
                f"family {entry.name}",
                ", ".join(sorted(foreign)),
                "written with bands=... or buffers=... behind a colon",
            )
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
    document = read_toml("plan", path)
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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
