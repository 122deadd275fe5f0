"""Text that anybody may have written into a file: shown as it is, and never as a command to its reader."""

import re

# What Markdown or HTML inside a line would read as more than a character, and what makes an address a link.
_MARKS = re.compile(r"([\\`*_\[\]<>#|~$&]|:(?=//)|(?<=www)\.)", re.IGNORECASE)

# What runners of CI servers take for a command: `::error::` where a line begins, `##[error]` anywhere.
_COMMANDS = re.compile(r"^(\s*):(?=:)|#(?=#\w*\[)", re.MULTILINE)


def printable(text: str) -> str:
    r"""Text without characters that steer a terminal or turn lines round; a line ends only where a line ends.

    Examples:
        >>> printable("run 1\x1b[2J")
        'run 1\\x1b[2J'
    """
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


def without_commands(text: str) -> str:
    r"""Text in which the runner of a CI server finds no command, wherever it is printed.

    References:
        GitHub documentation, "Workflow commands for GitHub Actions"; Azure Pipelines documentation, "Logging
        commands".

    Examples:
        >>> without_commands("::error::a ##[group]b")
        '\\x3a:error::a \\x23#[group]b'
    """
    return _COMMANDS.sub(lambda found: r"\x23" if found[1] is None else found[1] + r"\x3a", text)


def on_one_line(text: str) -> str:
    r"""A name, or other text out of a file: printable, on one line, and no command to a runner.

    Examples:
        >>> on_one_line("run 1\n::error::")
        'run 1\\n::error::'
    """
    return without_commands(printable(text).replace("\n", "\\n"))


def in_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is: on one line, with every mark escaped.

    Examples:
        >>> in_markdown("a | <b>")
        'a \\| \\<b\\>'
    """
    return _MARKS.sub(r"\\\1", " ".join(printable(text).split()))
