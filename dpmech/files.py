"""Reading untrusted files within limits, displaying their text safely, and writing files atomically."""

import contextlib
import json
import os
import re
import secrets
import stat
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from dpmech.exceptions import InvalidParameterError

# Default size limit of a file, in bytes.
LARGEST_FILE = 10_000_000
# Limits for a TOML file: its size in bytes, and the parsing work that dotted keys may cause. 5000 dots on one
# line take most of a second.
_LARGEST_TOML, _MOST_DOTS = 1_000_000, 25_000_000
# Deepest nesting of lists and objects.
_DEEPEST = 64
_SHOWN = 200
_CHUNK = 1 << 20
# Names of inherited file descriptors: a pipe there belongs to the caller, and reading it may wait.
_INHERITED = re.compile(r"/dev/(stdin|fd/\d+)|/proc/self/fd/\d+")
_OUTPUTS = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/self/fd/\d+")
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "Is a directory"),
    (stat.S_ISFIFO, "it is a FIFO"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)
# Characters that Markdown or HTML would interpret within a line, and those that turn an address into a link.
_MARKS = re.compile(r"([\\`*_\[\]<>#|~$&]|:(?=//)|(?<=www)\.)", re.IGNORECASE)

# Commands to CI runners: `::error::` at the start of a line, `##[error]` anywhere.
_COMMANDS = re.compile(r"^(\s*):(?=:)|#(?=#\w*\[)", re.MULTILINE)


def read_bytes(
    name: str,
    path: str | os.PathLike[str],
    *,
    largest: int = LARGEST_FILE,
    accepted: str = "a readable file",
    hint: str = "",
) -> bytes:
    """Read a regular file, or an inherited pipe.

    Anything that could block or never end (a FIFO, a device, a socket) is not opened.

    Args:
        name: name of the argument that error messages refer to.
        path: path of the file.
        largest: size limit in bytes; no more than this is read of a larger file.
        accepted: what error messages say is accepted.
        hint: where to raise `largest`.

    Raises:
        InvalidParameterError: if the file does not exist, cannot be read or is too large.
    """

    def refused(reason: str) -> InvalidParameterError:
        return InvalidParameterError(name, os.fspath(path), f"{accepted} ({reason})")

    try:
        inherited = _INHERITED.fullmatch(os.fspath(path)) is not None
        _check_regular(os.stat(path).st_mode, pipes=inherited)
        # The file may have become a FIFO since it was checked; opening one would block.
        flags = 0 if inherited else getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | flags)
        with os.fdopen(handle, "rb") as stream:
            _check_regular(os.fstat(handle).st_mode, pipes=inherited)
            content = bytearray()
            # Read in chunks: `read` allocates the requested size at once.
            while chunk := stream.read(min(_CHUNK, largest + 1 - len(content))):
                content += chunk
    except OSError as error:
        raise refused(error.strerror or str(error)) from error
    except ValueError as error:  # for example a null character in the name
        raise refused(str(error)) from error
    if len(content) > largest:
        raise InvalidParameterError(name, os.fspath(path), f"a file of at most {largest} bytes{hint}")
    return bytes(content)


def _check_regular(mode: int, *, pipes: bool) -> None:
    kind = next((words for of_kind, words in _KINDS if of_kind(mode)), None)
    if kind is not None and not (pipes and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode))):
        raise OSError(0, kind)


def read_toml(name: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file as a table.

    Raises:
        InvalidParameterError: if the file cannot be read, is larger than 1 MB, is not TOML, or is nested more
            than 64 levels deep.
    """
    accepted = "a readable TOML file"
    content = read_bytes(name, path, largest=_LARGEST_TOML, accepted=accepted)
    try:
        text = content.decode("utf-8")
        _check_dots(text)
        table = tomllib.loads(text)
        _check_depth(table)
    except RecursionError:
        reason = _too_deep()
    except ValueError as error:  # invalid TOML or UTF-8, or an integer with thousands of digits
        reason = _cut(str(error))
    else:
        return table
    raise InvalidParameterError(name, os.fspath(path), f"{accepted} ({reason})") from None


def _check_dots(text: str) -> None:
    """Refuse dotted keys that would take minutes to parse: the parser is quadratic in the parts of a key.

    Keys do not span lines; each entry of a table costs as much as the table's name is long.
    """
    dots = [line.count(".") for line in text.split("\n")]
    if sum(count * count for count in dots) + max(dots) * len(dots) > _MOST_DOTS:
        raise ValueError("too many dots on its lines: put long lists on several")


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Parse JSON text; NaN, infinities, repeated entries and nesting beyond 64 levels are refused.

    Raises:
        ValueError: with a sentence that says what is wrong.
    """
    try:
        value = json.loads(text, parse_constant=_no_number, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    _check_depth(value)
    return value


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        repeated = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the entries {_cut(repr(repeated))} stand there twice")
    return record


def _check_depth(value: Any) -> None:  # noqa: ANN401 - whatever the file held
    """Refuse nesting too deep for recursion; no document needs it."""
    level, depth = [value], 0
    while level:
        if depth > _DEEPEST:
            raise ValueError(_too_deep())
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
        depth += 1


def _too_deep() -> str:
    return f"nested more than {_DEEPEST} levels deep"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def resolved(path: str | os.PathLike[str]) -> Path:
    """Resolve symbolic links in a path; the file need not exist.

    Replacing a link by a file would leave the linked document, under its own name, unchanged.
    """
    return Path(os.path.realpath(path))


def may_wait_for_ever(path: str | os.PathLike[str]) -> bool:
    """Whether the path is a FIFO or a socket, other than an inherited pipe.

    Opening a FIFO for writing blocks until another process reads.
    """
    before = _status(path)
    if before is None or _OUTPUTS.fullmatch(os.fspath(path)) is not None:
        return False
    return stat.S_ISFIFO(before.st_mode) or stat.S_ISSOCK(before.st_mode)


def _check_not_waiting(path: str | os.PathLike[str]) -> None:
    if may_wait_for_ever(path):
        raise OSError(0, "it is a FIFO or a socket")


def write_bytes(name: str, path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically: to a temporary file in the same directory, which is then renamed.

    Symbolic links are followed. A new file gets the permissions that the umask leaves; a replaced file keeps
    its permissions, and its owner and group where the system allows it. Devices and inherited pipes, such as
    /dev/stdout, are written to directly; other FIFOs and sockets are refused.

    Args:
        name: name of the argument that error messages refer to.
        path: path of the file.
        content: content of the file.

    Raises:
        InvalidParameterError: if the file cannot be written; an existing file is then unchanged.
    """
    try:
        _check_not_waiting(path)
        before = _status(path)
        if before is not None and not stat.S_ISREG(before.st_mode):
            with Path(path).open("wb") as stream:
                stream.write(content)
            return
        target = resolved(path)
        temporary = target.with_name(f".dpmech-{secrets.token_hex(8)}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        # The system applies the umask. A replaced file may be secret, so its copy is private from the start.
        handle = os.open(temporary, flags, 0o666 if before is None else 0o600)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                if before is not None:
                    _keep_access(temporary, before)
                os.fsync(stream.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidParameterError(
            name, os.fspath(path), f"a file that can be written ({reason})"
        ) from error


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _keep_access(path: Path, before: os.stat_result) -> None:
    """Give a file the owner, group and permissions of another file, and never more access than that."""
    mode = stat.S_IMODE(before.st_mode) & 0o777
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.chown(path, -1, before.st_gid)
        with contextlib.suppress(OSError):
            os.chown(path, before.st_uid, -1)
        if path.stat().st_gid != before.st_gid:
            # The group differs from the old one, so it gets no more access than everybody has.
            mode &= ~0o070 | (mode & 0o007) << 3
    path.chmod(mode)


def printable(text: str) -> str:
    r"""Escape characters that control a terminal or reverse text; of line breaks only the line feed stays.

    Examples:
        >>> printable("run 1\x1b[2J")
        'run 1\\x1b[2J'
    """
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


def without_commands(text: str) -> str:
    r"""Escape text so that the runner of a CI server finds no command in it, wherever it is printed.

    References:
        GitHub documentation, "Workflow commands for GitHub Actions"; Azure Pipelines documentation, "Logging
        commands".

    Examples:
        >>> without_commands("::error::a ##[group]b")
        '\\x3a:error::a \\x23#[group]b'
    """
    return _COMMANDS.sub(lambda found: r"\x23" if found[1] is None else found[1] + r"\x3a", text)


def on_one_line(text: str) -> str:
    r"""Escape a name or other text from a file: printable, on one line, without commands to a CI runner.

    Examples:
        >>> on_one_line("run 1\n::error::")
        'run 1\\n::error::'
    """
    return without_commands(printable(text).replace("\n", "\\n"))


def in_markdown(text: str) -> str:
    r"""Escape text so that Markdown shows it literally, on one line.

    Examples:
        >>> in_markdown("a | <b>")
        'a \\| \\<b\\>'
    """
    return _MARKS.sub(r"\\\1", " ".join(printable(text).split()))
