"""Commands and groups of dpmech: examples in every help text, errors in terms of options."""

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, NoReturn, TypeAlias

import click

from dpmech.exceptions import CertificateError, DpmechError, InvalidParameterError, shown_value
from dpmech.files import on_one_line
from dpmech.mechanism import kinds
from dpmech.plans import METHODS, STRATEGIES, meant

# Arguments of the library whose options have another name.
_ALIASES = {"rng": "seed", "path": "out"}
# Arguments of the library for a file given without an option.
_FILES = {"certificate", "claims"}
_TYPED = "dpmech.typed"
_SHOWN = 80
# Advice about Python, and its command-line equivalent.
_PHRASES = {
    "method=None": "no --method",
    "None for": "left out for",
    "a non-empty one-dimensional sequence of": "a list of",
    "dm.ledgers.joint_release(sigmas) or dm.ledgers.SharedBatch, which join them": "a SharedBatch, in "
    "Python, which joins them",
    "Ledger(budget=dm.PrivacyBudget(eps, delta))": "a ledger that was started with --eps and --delta",
    "Ledger(budget=..., accounting=dm.ledgers.RenyiAccounting()) or dm.ledgers.ClaimAccounting()": "a ledger "
    "that was started with --accounting renyi or --accounting claims",
    "accounting=dm.ledgers.RenyiAccounting()": "a ledger that was started with --accounting renyi",
    "accounting=dm.ledgers.ClaimAccounting()": "a ledger that was started with --accounting claims",
    "Ledger(allow_estimates=True)": "a ledger that was started with --allow-estimates",
}


# What adds options to a command.
Decorator: TypeAlias = Callable[[Any], Any]


def with_options(*options: Decorator) -> Decorator:
    """A decorator that adds options to a command, listed by help in this order."""
    return lambda command: functools.reduce(lambda taken, option: option(taken), reversed(options), command)


class MissingOptionsError(DpmechError):
    """Required options that were not given, all of them.

    Attributes:
        names: Python names, or option names as shown if they begin with a dash.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        super().__init__("missing: " + ", ".join(map(_dashed, self.names)))


def _dashed(name: str) -> str:
    return name if name.startswith("-") else f"--{name.replace('_', '-')}"


def remember(ctx: click.Context | None, name: str | None, text: object) -> None:
    """Store the text typed for a parameter: the parsed float does not preserve it."""
    if ctx is not None and name is not None:
        ctx.meta.setdefault(_TYPED, {})[name] = str(text)


def typed_text(ctx: click.Context, name: str) -> str | None:
    """The text typed for a parameter, if stored."""
    found: str | None = ctx.meta.get(_TYPED, {}).get(name)
    return found


def option_of(ctx: click.Context, argument: str) -> click.Parameter | None:
    """The command parameter that an argument of the library comes from."""
    for name in (argument, _ALIASES.get(argument)):
        for parameter in ctx.command.params:
            if name in {parameter.name, *(one.lstrip("-").replace("-", "_") for one in parameter.opts)}:
                return parameter
    return None


def told(error: DpmechError, ctx: click.Context) -> str:
    """The message of an error, worded for users of the command line."""
    if isinstance(error, MissingOptionsError) or not isinstance(error, InvalidParameterError):
        return plain(str(error))
    argument, rest = re.fullmatch(r"(\w*)(.*)", error.name, re.DOTALL).groups()  # type: ignore[union-attr]  # it matches any text
    parameter = None if rest and not rest.startswith("[") else option_of(ctx, argument)
    accepted = plain(error.accepted)
    by_place = argument in _FILES if parameter is None else isinstance(parameter, click.Argument)
    if by_place and isinstance(error.value, str):
        return f"{error.value} must be {accepted}{error.hint}"
    if parameter is None or parameter.name is None:
        return f"{plain(error.name)} must be {accepted}, got {_shown(error.value)}{error.hint}"
    option = parameter.opts[0]
    plan_file = ctx.params.get("plan_file")
    if plan_file is not None and ctx.params.get(parameter.name) is None and argument != "plan":
        return f"{plan_file}: {argument}{rest} must be {accepted}, got {_shown(error.value)}{error.hint}"
    if error.value is None or error.value is True:  # a flag has no value to show
        return f"{option}{rest} must be {accepted}{error.hint}"
    text = typed_text(ctx, parameter.name)
    given = _shown(error.value) if text is None or rest else _shown(text)
    return f"{option}{rest} must be {accepted}, got {given}{error.hint}"


def _shown(value: object) -> str:
    if not (isinstance(value, str) and value):
        return shown_value(value, _SHOWN)
    return value if len(value) <= _SHOWN else value[: _SHOWN - 3] + "..."


def plain(text: str) -> str:
    """Replace Python names in a message of the library by the names used on the command line."""
    for python, typed in _PHRASES.items():
        text = text.replace(python, typed)
    text = re.sub(r"\[Errno -?\d+\] ([^:]+): '[^']*'", r"\1", text)
    text = re.sub(r"`?(?:dm\.)?\b(ADD_REMOVE|ZERO_OUT|REPLACE_ONE)\b`?", lambda m: m[1].lower(), text)
    pattern, names = _classes()
    named = pattern.sub(lambda found: _named(names[found[1]], found[2]), text)
    return named.replace("method=--method ", "--method ")


def _named(name: str, arguments: str | None) -> str:
    if name.startswith("--") or not arguments or arguments == "()":
        return name
    return f"{name} {arguments}"


@functools.cache
def _table(registered: tuple[tuple[str, str], ...]) -> tuple[re.Pattern[str], dict[str, str]]:
    names = dict(registered)
    names |= {one.kind.__name__: name for name, one in STRATEGIES.items()}
    names |= {"ColumnNormalized": "column-normalized"}
    names |= {type(method).__name__: f"--method {name}" for name, method in METHODS.items()}
    known = "|".join(sorted(names, key=len, reverse=True))
    # "Poisson" is also an English word: it is replaced only in a call. Names of files are left as they are.
    call = r"\((?:[^()<>]|<[^<>]*>)*\)"
    pattern = rf"(?<![/\\-])(?:dm\.)?\b(?!Poisson\b(?!\())({known})\b(?![/\\-]|\.\w)({call})?"
    return re.compile(pattern), names


def _classes() -> tuple[re.Pattern[str], dict[str, str]]:
    return _table(tuple((kind.__name__, kind.plan_name) for kind in kinds()))


_STOPPED = 130

# Names and their meanings, by the title of a help section.
Lists = Mapping[str, Sequence[tuple[str, str]]] | None


class Refusal(click.ClickException):
    """A message on standard error, prefixed by its command, and an exit code.

    Args:
        message: the message, worded for the command line.
        ctx: context of the command.
        code: 2 for bad input, 1 for a failed check, 130 if the user interrupted it.
    """

    def __init__(self, message: str, ctx: click.Context, code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # a class variable only by its declaration
        self.path = ctx.command_path

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message."""
        click.echo(f"{self.path}: {on_one_line(self.message)}", file=file, err=file is None)


class _Kind(click.Command):
    """Common base of commands and groups."""

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
        """Like click, with errors in the style of dpmech."""
        try:
            return super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise Refusal(_usage(error, ctx), ctx) from error

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - of click
        """Like click; errors of the library are worded for the command line."""
        try:
            return super().invoke(ctx)
        except DpmechError as error:
            # An invalid file is a failed check.
            code = 1 if isinstance(error, CertificateError) else 2
            raise Refusal(told(error, ctx), ctx, code) from error
        except MemoryError as error:
            raise Refusal(f"this takes more memory than there is ({error})", ctx) from error
        except KeyboardInterrupt:
            # Neither a verdict nor bad input: the exit code that shells use for interrupted commands.
            raise Refusal("stopped", ctx, _STOPPED) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The meanings of names, and the examples as typed."""
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
        lists: meanings of names.
        absent: why it lacks an option that users may look for.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Like click; an argument that may be meant as a file name is never taken for an option.

        Hooks and shells append the names of files that they find, and one could be named --key=...
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
        """Like click; for an unknown name, suggest the nearest known one."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = meant(name, self.commands)
            known = ", ".join(self.list_commands(ctx))
            raise Refusal(f"no command {name}{near or f'; there are {known}'}", ctx)
        return super().resolve_command(ctx, args)


def exit_after(ctx: click.Context, refused: Sequence[DpmechError]) -> NoReturn:
    """Report what was refused of several files, and exit: 2 for bad input, 1 for an invalid file."""
    for refusal in refused:
        Refusal(told(refusal, ctx), ctx).show()
    bad_input = any(not isinstance(refusal, CertificateError) for refusal in refused)
    ctx.exit(2 if bad_input else 1 if refused else 0)


def _exists(name: str) -> bool:
    try:
        return os.path.lexists(name)
    except ValueError:  # a null character
        return False


def _usage(error: click.UsageError, ctx: click.Context) -> str:
    """The error of click, in the style of dpmech."""
    if isinstance(error, click.NoSuchOption):
        known = [name for parameter in ctx.command.params for name in parameter.opts if name.startswith("--")]
        if reason := getattr(ctx.command, "absent", {}).get(error.option_name):
            return f"no option {error.option_name}: {reason}"
        near = meant(error.option_name, known)
        return f"no option {error.option_name}{near or f'; {ctx.command_path} --help lists them'}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"missing: {error.param.make_metavar(ctx)}"
    if isinstance(error, click.BadOptionUsage):
        flags = {name for one in ctx.command.params if getattr(one, "is_flag", False) for name in one.opts}
        return f"{error.option_name} {'takes no' if error.option_name in flags else 'needs a'} value"
    text = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]


def _folded(example: str, width: int) -> list[str]:
    """A long shell command, broken before options."""
    lines, line = [], ""
    for part in example.replace(" --", "\n--").split("\n"):
        if line and len(line) + len(part) + 3 > width:
            lines.append(f"{line} \\")
            line = part
        else:
            line = f"{line} {part}".strip()
    return [*lines, line]
