"""Text that anybody may have written into a file: shown as it is, and never as a command to its reader."""

import re

__all__ = ["in_markdown", "printable"]

# What Markdown or HTML inside a line would read as more than a character, and what makes an address a link.
_MARKS = re.compile(r"([\\`*_\[\]<>#|~$&]|:(?=//)|(?<=www)\.)", re.IGNORECASE)


def printable(text: str) -> str:
    r"""Text without characters that steer a terminal or turn lines round; a line ends only where a line ends.

    Examples:
        >>> printable("run 1\x1b[2J")
        'run 1\\x1b[2J'
    """
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


def in_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is: on one line, with every mark escaped.

    Examples:
        >>> in_markdown("a | <b>")
        'a \\| \\<b\\>'
    """
    return _MARKS.sub(r"\\\1", " ".join(printable(text).split()))
