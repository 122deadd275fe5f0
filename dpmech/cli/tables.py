"""Tables that fit the reader's width: nothing is cut, what is too wide for one table goes on in the next."""

import dataclasses
from collections.abc import Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dpmech.free_text import on_one_line

__all__ = ["Column", "Row", "sheet", "stacked"]

# Of a column beside its text: a border and two spaces.
_FRAME = 3


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: of its cells.
        name: above it.
        text: whether it holds words: on the left, and below the table where they do not fit.
        fixed: whether every part of a table has it, as the names of rows.
    """

    key: str
    name: str
    text: bool = False
    fixed: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """The cells of a row by the keys of their columns, and how it is set off."""

    cells: dict[str, str]
    style: str | None = None


def stacked(
    columns: Sequence[Column], rows: Sequence[Row], width: int, *, title: str = "", caption: str = ""
) -> list[RenderableType]:
    """One table where it fits, else as many below each other as it takes.

    Args:
        columns: in their order.
        rows: in their order.
        width: of the reader, in characters.
        title: above the first.
        caption: below the last.

    Returns:
        What to print, in turn.
    """
    needed = {one.key: _FRAME + max(len(_cell(one, row)) for row in (None, *rows)) for one in columns}
    below: list[Column] = []
    if 1 + sum(needed.values()) > width:
        below = [one for one in columns if one.text and not one.fixed]
    fixed = [one for one in columns if one.fixed]
    names = _naming(fixed, rows)
    room = width - 1 - sum(needed[one.key] for one in names)
    parts: list[list[Column]] = [[]]
    left = width - 1 - sum(needed[one.key] for one in fixed)
    for one in columns:
        if one.fixed or one in below:
            continue
        if parts[-1] and needed[one.key] > left:
            parts.append([])
            left = room
        parts[-1].append(one)
        left -= needed[one.key]
    printed: list[RenderableType] = [Text(title, style="bold")] if title else []
    printed += [_table([*(names if number else fixed), *part], rows) for number, part in enumerate(parts)]
    printed += [Text(line) for one in below for line in _words(one, names, rows)]
    return [*printed, Text(caption, style="dim")] if caption else printed


def _cell(column: Column, row: Row | None) -> str:
    return column.name if row is None else on_one_line(row.cells.get(column.key, ""))


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    table = Table()
    for one in columns:
        table.add_column(one.name, justify="left" if one.text or one.fixed else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(one, row)) for one in columns), style=row.style)
    return table


def _naming(fixed: Sequence[Column], rows: Sequence[Row]) -> Sequence[Column]:
    """As many of the fixed columns as tell the rows apart."""
    for count in range(1, len(fixed)):
        if len({tuple(_cell(one, row) for one in fixed[:count]) for row in rows}) == len(rows):
            return fixed[:count]
    return fixed


def _words(column: Column, names: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """What a column of words says, each once, with the rows that it says it of; what most say comes last."""
    said: dict[str, list[str]] = {}
    for row in rows:
        if text := _cell(column, row):
            name = " under ".join(filter(None, (_cell(one, row) for one in names)))
            said.setdefault(text, []).append(name)
    complete = sum(map(len, said.values())) == len(rows)
    if len(said) == 1 and complete:
        return [f"{column.name}: {next(iter(said))}"]
    ordered = sorted(said.items(), key=lambda item: len(item[1]))
    lines = [f"{column.name} of {', '.join(of)}: {text}" for text, of in ordered]
    if complete and len(ordered[-1][1]) > 1:
        lines[-1] = f"{column.name} of all others: {ordered[-1][0]}"
    return lines


def sheet(title: str, cells: dict[str, str]) -> list[RenderableType]:
    """Names and values, one a line."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in cells.items():
        table.add_row(name, escape(on_one_line(value)))
    return [Text(on_one_line(title), style="bold"), table]
