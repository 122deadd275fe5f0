"""Commands and groups of dpmech: refusals in one style, and examples in every help."""

import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

import click

from dpmech.cli.words import told
from dpmech.exceptions import CertificateError, DpmechError
from dpmech.free_text import on_one_line
from dpmech.plans import meant

__all__ = ["Command", "Group", "Refusal"]


_STOPPED = 130

# Names and what they mean, by the title of a section of help.
Lists = Mapping[str, Sequence[tuple[str, str]]] | None


class Refusal(click.ClickException):
    """A message on standard error, begun by the command that it is about, and an exit code.

    Args:
        message: in the words of the command line.
        ctx: of the command.
        code: 2 for bad input, 1 for a check that failed, 130 where the user stopped it.
    """

    def __init__(self, message: str, ctx: click.Context, code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # a class variable only by its declaration
        self.path = ctx.command_path

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        click.echo(f"{self.path}: {on_one_line(self.message)}", file=file, err=file is None)


class _Kind(click.Command):
    """What commands and groups share."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - of click
        examples: Sequence[str] = (),
        absent: Mapping[str, str] | None = None,
        lists: Lists = None,
        **attributes: Any,  # noqa: ANN401 - of click
    ) -> None:
        super().__init__(*args, **attributes)
        self.absent = dict(absent or {})
        self.examples, self.lists = tuple(examples), dict(lists or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with refusals in our style."""
        try:
            return super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise Refusal(_usage(error, ctx), ctx) from error

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - of click
        """As click does; what the library refuses is said in the words of the command line."""
        try:
            return super().invoke(ctx)
        except DpmechError as error:
            # A file that does not hold is a check that failed.
            code = 1 if isinstance(error, CertificateError) else 2
            raise Refusal(told(error, ctx), ctx, code) from error
        except MemoryError as error:
            raise Refusal(f"this takes more memory than there is ({error})", ctx) from error
        except KeyboardInterrupt:
            # Neither a verdict nor bad input: what shells say of a command that was stopped.
            raise Refusal("stopped", ctx, _STOPPED) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What names mean, and the examples as they are typed."""
        super().format_epilog(ctx, formatter)
        for title, entries in self.lists.items():
            with formatter.section(title):
                formatter.write_dl(list(entries))
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    for number, line in enumerate(_folded(example, formatter.width - 6)):
                        formatter.write(f"{'  ' if number == 0 else '      '}{line}\n")


class Command(_Kind):
    """A command.

    Args:
        examples: lines that a reader can copy.
        lists: what names mean.
        absent: why it has no option that somebody may look for.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; what may be meant as the name of a file is no option.

        Hooks and shells append the names of files that they find: one named --key=... would be obeyed.
        """
        for arg in args[: args.index("--") if "--" in args else len(args)]:
            if str(arg).startswith("-") and _exists(arg):
                raise Refusal(
                    f"{arg} is a file here, and reads as an option: write ./{arg}, or -- before the names of "
                    "files; for the option, move that file away",
                    ctx,
                )
        return super().parse_args(ctx, args)


class Group(_Kind, click.Group):
    """A group of commands."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; an unknown name is answered with the nearest known one."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = meant(name, self.commands)
            known = ", ".join(self.list_commands(ctx))
            raise Refusal(f"no command {name}{near or f'; there are {known}'}", ctx)
        return super().resolve_command(ctx, args)


def _exists(name: str) -> bool:
    try:
        return os.path.lexists(name)
    except ValueError:  # a null character
        return False


def _usage(error: click.UsageError, ctx: click.Context) -> str:
    """What click found wrong, in our style."""
    if isinstance(error, click.NoSuchOption):
        known = [name for parameter in ctx.command.params for name in parameter.opts if name.startswith("--")]
        if reason := getattr(ctx.command, "absent", {}).get(error.option_name):
            return f"no option {error.option_name}: {reason}"
        near = meant(error.option_name, known)
        return f"no option {error.option_name}{near or f'; {ctx.command_path} --help lists them'}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"missing: {error.param.make_metavar(ctx)}"
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name} needs a value"
    text = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]


def _folded(example: str, width: int) -> list[str]:
    """A long line as a shell reads it, broken before options."""
    lines, line = [], ""
    for part in example.replace(" --", "\n--").split("\n"):
        if line and len(line) + len(part) + 3 > width:
            lines.append(f"{line} \\")
            line = part
        else:
            line = f"{line} {part}".strip()
    return [*lines, line]
