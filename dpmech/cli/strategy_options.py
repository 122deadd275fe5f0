"""The options that say which strategy a command is about: by its name and numbers, or in a file."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dpmech.cli.parameters import OneOf, Real, Reals, Whole
from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism import ColumnNormalized, Strategy
from dpmech.plans import STRATEGIES, Entry, build_strategy, read_strategy, samplings

__all__ = ["NAMES", "ChosenStrategy", "chosen_strategy", "strategy_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

# For the help of commands.
NAMES = {
    "Strategies": [(name, one.title) for name, one in STRATEGIES.items()],
    "Samplings": [
        (name, str(kind.__doc__).splitlines()[0].replace("`", "")) for name, kind in samplings().items()
    ],
}

_OWN = ("lam", "bands", "coefs", "decays", "scales", "matrix")


def strategy_options(command: _Command) -> _Command:
    """Which strategy."""
    options = [
        click.option(
            "--strategy",
            type=OneOf(STRATEGIES, listed=False),
            help="Noise correlation, see below. [this or --strategy-file required]",
        ),
        click.option(
            "--strategy-file",
            type=click.Path(),
            help="The strategy as `dpmech optimize --out-strategy` wrote it.",
        ),
        click.option(
            "--lam",
            type=Real(minimum=0.0, maximum=1.0, open_maximum=True),
            help="lambda-cgd: lambda in [0, 1).",
        ),
        click.option("--bands", type=Whole(1), help="bsr, bisr: number of bands; bsr takes all without it."),
        click.option("--coefs", type=Reals(), help="bandmf, bandinv: coefficients, joined by commas."),
        click.option("--decays", type=Reals(), help="blt: decays in [0, 1), joined by commas."),
        click.option("--scales", type=Reals(), help="blt: scales, joined by commas."),
        click.option("--matrix", type=click.Path(), help="dense: a .npy or CSV file."),
        click.option(
            "--column-normalized", is_flag=True, help="Scale the columns of the strategy to norm 1."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@dataclasses.dataclass(frozen=True)
class ChosenStrategy:
    """A strategy, and what a table calls it."""

    label: str
    build: Callable[[int], Strategy]


def chosen_strategy(given: dict[str, Any]) -> tuple[ChosenStrategy | None, list[str]]:
    """Take the options of `strategy_options` out of what was given.

    Returns:
        The choice, and the options that are missing for one; one of the two is empty.

    Raises:
        InvalidParameterError: on options that do not go together, or a file that holds no strategy.
    """
    name, file = given.pop("strategy"), given.pop("strategy_file")
    normalized = given.pop("column_normalized")
    own = {key: value for key in _OWN if (value := given.pop(key)) is not None}
    if file is not None:
        for key, value in [("strategy", name), *own.items()]:
            if value is not None:
                raise InvalidParameterError(key, value, "left out with --strategy-file")
        return _from_file(file, normalized=normalized), []
    if name is None:
        return None, ["--strategy (or --strategy-file)"]
    takes = STRATEGIES[name]
    for key, value in own.items():
        if key not in takes.options:
            owners = ", ".join(other for other, one in STRATEGIES.items() if key in one.options)
            raise InvalidParameterError(
                key, value, f"left out with --strategy {name}", f" (it belongs to {owners})"
            )
    missing = [key for key in takes.due if key not in own]
    if missing:
        return None, missing
    entry = Entry(name, own, normalized)
    return ChosenStrategy(entry.label, lambda n: build_strategy(entry, n)), []


def _from_file(file: str, *, normalized: bool) -> ChosenStrategy:
    strategy = read_strategy(file)
    if normalized:
        strategy = ColumnNormalized(strategy)

    def build(n: int) -> Strategy:
        if strategy.n != n:
            raise InvalidParameterError(
                "strategy_file",
                file,
                f"a strategy over {n} steps, as many as the plan has",
                f", over {strategy.n}",
            )
        return strategy

    label = f"strategy of {file}"
    return ChosenStrategy(f"{label}, column-normalised" if normalized else label, build)
