"""What went wrong, in the words of the command line: options and names in place of arguments and classes."""

import functools
import re
from collections.abc import Iterable

import click

from dpmech.exceptions import DpmechError, InvalidParameterError, shown_value
from dpmech.mechanism import kinds
from dpmech.plans import METHODS, STRATEGIES

__all__ = ["MissingOptionsError", "option_of", "plain", "remember", "told", "typed_text"]

# What the library calls an argument that has another name here.
_ALIASES = {"rng": "seed", "path": "out"}
# What it calls a file that was named without an option.
_FILES = {"certificate", "claims"}
_TYPED = "dpmech.typed"
_SHOWN = 80
# Advice that is about Python.
_PHRASES = {
    "method=None": "no --method",
    "None for": "left out for",
    "a non-empty one-dimensional sequence of": "a list of",
    "dm.join(sigmas) or dm.Lot, which join them": "a Lot, in Python, which joins them",
    "Ledger(budget=dm.PrivacyBudget(eps, delta))": "a ledger that was started with --eps and --delta",
    "Ledger(budget=..., currency=dm.RenyiCurrency()) or dm.ClaimCurrency()": "a ledger that was started with "
    "--currency renyi or --currency claims",
    "Ledger(allow_estimates=True)": "a ledger that was started with --allow-estimates",
}


class MissingOptionsError(DpmechError):
    """Options that have to be given and were not, all of them.

    Attributes:
        names: as Python spells them, or as they are to be shown where they begin with a dash.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        super().__init__("missing: " + ", ".join(map(_dashed, self.names)))


def _dashed(name: str) -> str:
    return name if name.startswith("-") else f"--{name.replace('_', '-')}"


def remember(ctx: click.Context | None, name: str | None, text: object) -> None:
    """Keep what was typed for a parameter: a float does not tell."""
    if ctx is not None and name is not None:
        ctx.meta.setdefault(_TYPED, {})[name] = str(text)


def typed_text(ctx: click.Context, name: str) -> str | None:
    """What was typed for a parameter, where it was remembered."""
    found: str | None = ctx.meta.get(_TYPED, {}).get(name)
    return found


def option_of(ctx: click.Context, argument: str) -> click.Parameter | None:
    """The parameter of a command that an argument of the library comes from."""
    for name in (argument, _ALIASES.get(argument)):
        for parameter in ctx.command.params:
            if name in {parameter.name, *(one.lstrip("-").replace("-", "_") for one in parameter.opts)}:
                return parameter
    return None


def told(error: DpmechError, ctx: click.Context) -> str:
    """The message of an error as somebody reads it who typed a command."""
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
    if error.value is None:
        return f"{option}{rest} must be {accepted}{error.hint}"
    text = typed_text(ctx, parameter.name)
    given = _shown(error.value) if text is None or rest else _shown(text)
    return f"{option}{rest} must be {accepted}, got {given}{error.hint}"


def _shown(value: object) -> str:
    if not (isinstance(value, str) and value):
        return shown_value(value, _SHOWN)
    return value if len(value) <= _SHOWN else value[: _SHOWN - 3] + "..."


def plain(text: str) -> str:
    """A sentence of the library with the names that people type in place of those of Python."""
    for python, typed in _PHRASES.items():
        text = text.replace(python, typed)
    text = re.sub(r"\[Errno -?\d+\] ([^:]+): '[^']*'", r"\1", text)
    text = re.sub(r"`?(?:dm\.)?\b(ADD_REMOVE|ZERO_OUT|REPLACE_ONE)\b`?", lambda m: m[1].lower(), text)
    pattern, names = _classes()
    return pattern.sub(lambda found: _named(names[found[1]], found[2]), text)


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
    # English calls one sampling by the name of its class: that one alone is left where nothing follows.
    pattern = rf"(?:dm\.)?\b(?!Poisson\b(?!\())({known})\b(\((?:[^()<>]|<[^<>]*>)*\))?"
    return re.compile(pattern), names


def _classes() -> tuple[re.Pattern[str], dict[str, str]]:
    return _table(tuple((kind.__name__, kind.plan_name) for kind in kinds()))
