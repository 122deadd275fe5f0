"""Commands of GitHub workflows: one annotation for every failure."""

from dpmech.cli.formats.verdicts import UNREAD, Verdicts, name_of, shown
from dpmech.free_text import printable
from dpmech.verifying import Verification

__all__ = ["github"]


def github(verdicts: Verdicts) -> str:
    """One line for every failed check and unread file, and a notice for every file that holds.

    Every line is a command, so that no name in a file can begin one of its own.

    References:
        GitHub documentation, "Workflow commands for GitHub Actions".
    """
    lines: list[str] = []
    for one in verdicts.found:
        if one.ok:
            lines.append(_command("notice", one.source, "dpmech verify", _verified(one)))
        lines += [
            _command("error", one.source, f"dpmech verify: {name_of(check)}", str(check))
            for check in verdicts.failures(one)
        ]
    lines += [
        _command("error", source, f"dpmech verify: {UNREAD}", reason)
        for source, reason in verdicts.unread.items()
    ]
    return "\n".join(lines)


def _verified(one: Verification) -> str:
    return str(one).removeprefix(f"{one.source}: ")


def _command(kind: str, file: str, title: str, message: str) -> str:
    properties = f"file={_property(printable(file))},line=1,title={_property(shown(title))}"
    return f"::{kind} {properties}::{_data(shown(message))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
