"""How the figures look: in the style sheet of dpmech, lines for formulas, markers for simulations."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["dots", "in_style", "line"]

Given = ParamSpec("Given")


def in_style(draw: Callable[Given, None]) -> Callable[Given, None]:
    """The same drawing, in the style of all figures (`dpmech.figures`)."""

    @functools.wraps(draw)
    def styled(*args: Given.args, **kwargs: Given.kwargs) -> None:
        import matplotlib.style

        with matplotlib.style.context("dpmech.figures"):
            draw(*args, **kwargs)

    return styled


def line(axes: "Axes", series: int, x: np.ndarray, y: np.ndarray, label: str | None = None) -> None:
    """A formula, in the colour of its series and without markers."""
    color, _ = _style(series)
    axes.plot(x, y, color=color, linestyle="-", marker="", label=label)


def dots(
    axes: "Axes", series: int, x: np.ndarray, y: np.ndarray, label: str | None = None, linestyle: str = ""
) -> None:
    """Simulated values, in colour and marker of their series."""
    color, marker = _style(series)
    axes.plot(x, y, color=color, marker=marker, linestyle=linestyle, label=label)


def _style(series: int) -> tuple[str, str]:
    """Colour and marker of a series."""
    import matplotlib

    found = matplotlib.rcParams["axes.prop_cycle"].by_key()
    color, marker = (found[key][series % len(found[key])] for key in ("color", "marker"))
    return color, marker
