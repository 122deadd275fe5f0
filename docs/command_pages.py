"""A Sphinx extension: a page for every command, from the command itself, below `generated/commands`."""

import pathlib
import re
from collections.abc import Iterator

import click
from sphinx.application import Sphinx

from dpmech.cli import main

# What Markdown would read as markup, and options, whose dashes it would join; words in backquotes stay.
_MARKUP = re.compile(
    r"(`[^`]*`)|(?<![\w-])(--[a-z][\w-]*)|([\\*_{}\[\]<>$|#~])"
)


def pages(
    command: click.Command = main, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Name (`dpmech-ledger-add`) and Markdown of the page of a command, and of all below it.

    Args:
        command: the command, or a group.
        parent: the context of the group that it belongs to.
    """
    name = "dpmech" if parent is None else command.name
    ctx = click.Context(
        command, info_name=name, parent=parent, **command.context_settings
    )
    below = (
        [command.commands[one] for one in command.list_commands(ctx)]
        if isinstance(command, click.Group)
        else []
    )
    yield ctx.command_path.replace(" ", "-"), _page(command, ctx, below)
    for one in below:
        yield from pages(one, ctx)


def _page(
    command: click.Command, ctx: click.Context, below: list[click.Command]
) -> str:
    """Markdown: what it does, options, what names mean, examples."""
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    lines = [
        f"# {ctx.command_path}",
        "",
        *_paragraphs(command.help or ""),
        "```text",
        usage,
        "```",
        "",
    ]
    if below:
        start = ctx.command_path.replace(" ", "-")
        lines += [
            "```{toctree}",
            ":maxdepth: 1",
            "",
            *(f"{start}-{one.name}" for one in below),
            "```",
            "",
        ]
        lines += ["## Commands", ""]
        for one in below:
            lines += [
                f"[`{ctx.command_path} {one.name}`]({start}-{one.name}.md)"
            ]
            lines += [f": {plain(one.get_short_help_str(limit=200))}", ""]
    records = [one.get_help_record(ctx) for one in command.get_params(ctx)]
    lines += [
        "## Options",
        "",
        *_described([one for one in records if one is not None]),
    ]
    for title, entries in getattr(command, "lists", {}).items():
        lines += [f"## {title}", "", *_described(entries)]
    if reasons := getattr(command, "absent", {}):
        lines += [
            "## Left out on purpose",
            "",
            *_described(list(reasons.items())),
        ]
    if examples := getattr(command, "examples", ()):
        lines += ["## Examples", ""]
        for one in examples:
            shown = "\n".join(one for one in _folded(one))
            lines += ["```console", f"$ {shown}", "```", ""]
    return "\n".join(lines)


def _paragraphs(text: str) -> list[str]:
    """A docstring as click keeps it, form feeds and what follows them left out."""
    found = [
        " ".join(one.split()) for one in text.partition("\f")[0].split("\n\n")
    ]
    return [
        line
        for one in found
        for line in (plain(one.replace("\b", "").strip()), "")
    ]


def _described(entries: list[tuple[str, str]]) -> list[str]:
    return [
        line
        for name, words in entries
        if words
        for line in (f"`{name}`", f": {plain(words)}", "")
    ]


def plain(text: str) -> str:
    """Text that Markdown shows as it stands, but for options and for words in backquotes."""
    return _MARKUP.sub(
        lambda found: (
            found[1] or (f"`{found[2]}`" if found[2] else f"\\{found[3]}")
        ),
        text,
    )


def _folded(example: str, width: int = 76) -> list[str]:
    """A long line as a shell reads it, broken before options."""
    lines = [""]
    for part in re.split(r" (?=--)", example):
        if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"    {part}")
        else:
            lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
    return lines


def write(app: Sphinx) -> None:
    """Pages where Sphinx looks for them; one that says what it said before stays untouched."""
    folder = pathlib.Path(app.srcdir) / "generated" / "commands"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
