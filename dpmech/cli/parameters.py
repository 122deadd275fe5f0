"""Types of options: their values are checked before anything is computed."""

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
    _Type = click.ParamType  # click 8.1 is not generic


class _Checked(_Type):
    """A type whose `read` raises InvalidParameterError, which is reported for the option."""

    def read(self, name: str, text: str) -> Any:  # noqa: ANN401 - of the type
        """The value of the typed text."""
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - of click
        """Called by click."""
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
        """Parse an integer, also as 5e4 or 50_000."""
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
    """A finite number in an interval; arguments as in `check_real`."""

    name = "number"

    def __init__(self, **limits: Any) -> None:  # noqa: ANN401 - of check_real
        self.limits = limits

    def read(self, name: str, text: str) -> float:
        """Parse a float; for numbers out of float range, errors show the typed text."""
        try:
            number: object = float(text)
        except ValueError:
            number = text
        try:
            return check_real(name, number, **self.limits)
        except InvalidParameterError as error:
            # Nonzero digits that underflow to zero.
            vanished = number == 0.0 and any(digit in "123456789" for digit in text.lower().split("e")[0])
            hint = ": this is below the smallest float" if vanished else ""
            if number == text and "," in text:
                hint = ": one number; run the command once for each"
            raise InvalidParameterError(name, error.value, error.accepted, hint) from None


POSITIVE = Real(minimum=0.0, open_minimum=True)
BETWEEN_0_AND_1 = Real(minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)


class Reals(_Checked):
    """Numbers separated by commas."""

    name = "numbers"

    def read(self, name: str, text: str) -> list[float]:
        """Parse a list of floats; the strategy checks their values."""
        try:
            return [float(item) for item in text.split(",")]
        except ValueError:
            raise InvalidParameterError(name, text, "numbers separated by commas, such as 1,0.5") from None


class Wholes(_Checked):
    """Integers of at least a minimum, separated by commas."""

    name = "integers"

    def __init__(self, minimum: int) -> None:
        self.one = Whole(minimum)

    def read(self, name: str, text: str) -> list[int]:
        """Parse a list of integers, without repetitions, in the given order."""
        try:
            return list(dict.fromkeys(self.one.read(name, part.strip()) for part in text.split(",")))
        except InvalidParameterError as error:
            accepted = f"integers >= {self.one.minimum} separated by commas, such as 5,10"
            raise InvalidParameterError(name, text, accepted) from error


class OneOf(_Checked):
    """One of several names.

    Args:
        known: the names, or a function that returns them when they are needed.
        reasons: why some names that users may look for are missing.
        listed: whether help lists all names.
    """

    name = "name"

    def __init__(
        self,
        known: Collection[str] | Callable[[], Collection[str]],
        *,
        reasons: Mapping[str, str] | None = None,
        listed: bool = True,
    ) -> None:
        self._known, self.reasons, self.listed = known, reasons or {}, listed

    @property
    def known(self) -> Collection[str]:
        """The names."""
        return self._known() if callable(self._known) else self._known

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The names, for help."""
        del param, ctx
        return f"[{'|'.join(self.known)}]" if self.listed else "NAME"

    def read(self, name: str, text: str) -> str:
        """The name."""
        return check_known(name, text, self.known, self.reasons)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names with this prefix."""
        del ctx, param
        return [CompletionItem(name) for name in self.known if name.startswith(incomplete)]


class Target(_Checked):
    """A file that is written at the end; its folder is checked before the work begins.

    Args:
        endings: returns the allowed file extensions, called once a name is given; None for any.
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
        """Complete file names."""
        del ctx, param
        return [CompletionItem(incomplete, type="file")]
