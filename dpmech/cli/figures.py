"""Figures that commands write: which files they may be, and what is wrong with one."""

from pathlib import Path
from typing import TYPE_CHECKING

from dpmech.exceptions import InvalidParameterError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["drawable", "save_figure"]


def drawable() -> frozenset[str]:
    """The endings of files that a figure can be written to.

    Raises:
        MissingDependencyError: without matplotlib.
    """
    from dpmech import plots  # matplotlib is optional

    return plots.file_formats()


def save_figure(figure: "Figure", path: Path) -> None:
    """Write it to a file.

    Raises:
        InvalidParameterError: if it cannot be written.
    """
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidParameterError("figure", str(path), f"a file that can be written ({error})") from None
