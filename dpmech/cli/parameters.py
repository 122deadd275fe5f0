"""Types of options: what they accept is checked, and said, before anything is computed."""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from dpmech.cli.commands import Refusal, remember, told
from dpmech.exceptions import DpmechError, InvalidParameterError
from dpmech.files import may_wait_for_ever
from dpmech.guards import check_integer, check_real
from dpmech.plans import check_known

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # click 8.1 takes no argument


class _Checked(_Type):
    """A type whose `read` raises InvalidParameterError, which is then said of the option."""

    def read(self, name: str, text: str) -> Any:  # noqa: ANN401 - of the type
        """The value of what was typed."""
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - of click
        """As click asks for it."""
        if not isinstance(value, str) or param is None or ctx is None or param.name is None:
            return value
        remember(ctx, param.name, value)
        try:
            return self.read(param.name, value)
        except DpmechError as error:
            raise Refusal(told(error, ctx), ctx) from error


class Whole(_Checked):
    """An integer in [minimum, maximum]."""

    name = "integer"

    def __init__(self, minimum: int, maximum: int | None = None) -> None:
        self.minimum, self.maximum = minimum, maximum

    def read(self, name: str, text: str) -> int:
        """An integer, also as 5e4 or 50_000."""
        number: int | str
        try:
            number = int(text)
        except ValueError:
            try:
                real = float(text)
                number = int(real) if real.is_integer() else text
            except (OverflowError, ValueError):
                number = text
        return check_integer(name, number, minimum=self.minimum, maximum=self.maximum)


class Real(_Checked):
    """A finite number in an interval; arguments as for `check_real`."""

    name = "number"

    def __init__(self, **limits: Any) -> None:  # noqa: ANN401 - of check_real
        self.limits = limits

    def read(self, name: str, text: str) -> float:
        """A float; what no float can hold is refused by what was typed."""
        try:
            number: object = float(text)
        except ValueError:
            number = text
        try:
            return check_real(name, number, **self.limits)
        except InvalidParameterError as error:
            # Digits that are not all zero, and no float that is near.
            vanished = number == 0.0 and any(digit in "123456789" for digit in text.lower().split("e")[0])
            hint = ": no float is as small as that" if vanished else ""
            if number == text and "," in text:
                hint = ": one number; run the command once for each"
            raise InvalidParameterError(name, error.value, error.accepted, hint) from None


class Reals(_Checked):
    """Numbers joined by commas."""

    name = "numbers"

    def read(self, name: str, text: str) -> list[float]:
        """A list of floats; what they may be is checked by the strategy."""
        try:
            return [float(item) for item in text.split(",")]
        except ValueError:
            raise InvalidParameterError(name, text, "numbers joined by commas, such as 1,0.5") from None


class Wholes(_Checked):
    """Integers of at least a minimum, joined by commas."""

    name = "integers"

    def __init__(self, minimum: int) -> None:
        self.one = Whole(minimum)

    def read(self, name: str, text: str) -> list[int]:
        """A list of integers, each once, in the order in which they came."""
        try:
            return list(dict.fromkeys(self.one.read(name, part.strip()) for part in text.split(",")))
        except InvalidParameterError as error:
            accepted = f"integers >= {self.one.minimum} joined by commas, such as 5,10"
            raise InvalidParameterError(name, text, accepted) from error


class OneOf(_Checked):
    """A name among several.

    Args:
        known: the names.
        reasons: what to say about names that somebody may look for and that are not there.
        listed: whether help lists them all.
    """

    name = "name"

    def __init__(
        self, known: Collection[str], *, reasons: Mapping[str, str] | None = None, listed: bool = True
    ) -> None:
        self.known, self.reasons, self.listed = known, reasons or {}, listed

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The names, in help."""
        del param, ctx
        return f"[{'|'.join(self.known)}]" if self.listed else "NAME"

    def read(self, name: str, text: str) -> str:
        """The name."""
        return check_known(name, text, self.known, self.reasons)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that begin so."""
        del ctx, param
        return [CompletionItem(name) for name in self.known if name.startswith(incomplete)]


class Target(_Checked):
    """A file that will be written at the end: its folder is looked at before the work begins.

    Args:
        endings: asked, once a name is given, for the endings that it may have; None for any.
    """

    name = "file"

    def __init__(self, endings: Callable[[], Collection[str]] | None = None) -> None:
        self.endings = endings

    def read(self, name: str, text: str) -> Path:
        """The path."""
        path = Path(text)
        accepted = ""
        if not text or path.is_dir():
            accepted = "a file"
        elif not path.parent.is_dir():
            accepted = "a file in a folder that exists"
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            accepted = "a file that may be written"
        elif may_wait_for_ever(path):
            accepted = "a file, not a FIFO or a socket"
        elif self.endings is not None and path.suffix.lower().lstrip(".") not in (known := self.endings()):
            accepted = f"a file that ends in {', '.join(f'.{ending}' for ending in sorted(known))}"
        if accepted:
            raise InvalidParameterError(name, text, accepted)
        return path

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Files."""
        del ctx, param
        return [CompletionItem(incomplete, type="file")]
