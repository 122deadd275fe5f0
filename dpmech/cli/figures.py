"""Figures that commands write: which files they may be, and what is wrong with one."""

import io
from pathlib import Path
from typing import Any

from dpmech.exceptions import InvalidParameterError
from dpmech.files import write_bytes

__all__ = ["drawable", "save_figure"]


def drawable() -> frozenset[str]:
    """The endings of files that a figure can be written to.

    Raises:
        MissingDependencyError: without matplotlib.
    """
    from dpmech import plots  # matplotlib is optional

    return plots.file_formats()


def save_figure(figure: Any, path: Path) -> None:  # noqa: ANN401 - matplotlib is optional
    """Write a figure of `dpmech.plots` to a file.

    Raises:
        InvalidParameterError: if it cannot be written.
    """
    content = io.BytesIO()
    try:
        figure.savefig(content, format=path.suffix.lower().lstrip("."))
    except (OSError, ValueError) as error:
        raise InvalidParameterError("figure", str(path), f"a file that can be written ({error})") from None
    write_bytes("figure", path, content.getvalue())
