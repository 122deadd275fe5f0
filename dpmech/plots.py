"""Figures: errors by eps, per-step errors, privacy profiles, and the matrices themselves.

Every function returns a matplotlib Figure that is not shown in a window; save it with
`figure.savefig("name.png")`. All use the style sheet `dpmech.figures`, also available through
`matplotlib.style.use("dpmech.figures")`: colours that colour-blind readers can distinguish, a marker for each
line, and a new dash pattern after seven lines.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpmech.exceptions import InvalidParameterError, MissingDependencyError
from dpmech.guards import check_real
from dpmech.mechanism import Strategy, Workload, check_strategy, per_step_error
from dpmech.numerics import Bounds, FloatArray, typed, up

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_STYLE = "dpmech.figures"
_MARKED = 24  # largest number of markers on a line
_LARGEST_MATRIX = 400
_FORMATS = frozenset({"jpg", "pdf", "png", "svg"})


@contextlib.contextmanager
def _styled() -> Iterator[None]:
    """Apply the style sheet while a figure is drawn."""
    try:
        import matplotlib.figure
        import matplotlib.style
    except ImportError:
        raise MissingDependencyError("matplotlib", "plots") from None
    with matplotlib.style.context(_STYLE):
        yield


@_styled()
def file_formats() -> frozenset[str]:
    """Common file extensions, without a dot, that figures can be saved with on this installation.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    return _FORMATS & frozenset(_figure(1.0, 1.0).canvas.get_supported_filetypes())


@_styled()
def error_by_eps(
    errors: Mapping[str, Mapping[float, float]], *, label: str = "RMSE (clip norms)", title: str = ""
) -> "Figure":
    """Plot error against eps, one line per family; a strip below shows the best family at every eps.

    Args:
        errors: for each name, a mapping from eps to error, both positive.
        label: label of the error axis.
        title: title above the axes.

    Raises:
        InvalidParameterError: if there is nothing to plot, or a value is not positive.
        MissingDependencyError: if matplotlib is not installed.
    """
    if not errors or not all(errors.values()):
        raise InvalidParameterError("errors", errors, "at least one name, each with at least one eps")
    for values in errors.values():
        for eps, error in values.items():
            check_real("eps", eps, minimum=0.0, open_minimum=True)
            check_real("error", error, minimum=0.0, open_minimum=True)
    from matplotlib.ticker import LogFormatter

    figure = _figure(6.4, 4.8)
    axes, strip = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (14, 1), "hspace": 0.06})
    colours = {}
    for name, values in errors.items():
        grid = sorted(values)
        (line,) = axes.plot(grid, [values[eps] for eps in grid], label=name)
        colours[name] = line.get_color()
    axes.set(xscale="log", yscale="log", ylabel=label, title=title)
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.4)))  # 40, not 4 x 10^1
    axes.grid(visible=True, which="both")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    shared = sorted(set.intersection(*(set(values) for values in errors.values())))
    for eps, (low, high) in zip(shared, _cells(shared), strict=True):
        best = min(errors, key=lambda name: errors[name][eps])
        strip.axvspan(low, high, color=colours[best], lw=0)
    strip.set(xlabel="eps", yticks=[])
    strip.grid(visible=False)
    strip.set_ylabel("best", rotation=0, ha="right", va="center")
    ticks = sorted({eps for values in errors.values() for eps in values})
    strip.set_xticks(ticks, [typed(eps) for eps in ticks])
    strip.minorticks_off()
    return figure


@_styled()
def compared_errors(
    errors: Mapping[str, float], *, label: str = "RMSE (clip norms)", title: str = ""
) -> "Figure":
    """Plot errors as bars, with their numbers rounded up, in the given order.

    Args:
        errors: for each name, a positive error.
        label: label of the error axis.
        title: title above the axes.

    Raises:
        InvalidParameterError: if there is nothing to plot, or a value is not positive.
        MissingDependencyError: if matplotlib is not installed.
    """
    if not errors:
        raise InvalidParameterError("errors", errors, "at least one name")
    values = [check_real("error", one, minimum=0.0, open_minimum=True) for one in errors.values()]
    figure = _figure(6.4, 1.2 + 0.35 * len(values))
    axes = figure.subplots()
    bars = axes.barh(list(errors), values)
    axes.bar_label(bars, [up(value, 4) for value in values], padding=3)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set(xlabel=label)
    axes.set_title(title)
    return figure


@_styled()
def per_step_errors(
    strategies: Mapping[str, Strategy],
    *,
    scales: Mapping[str, float] | None = None,
    workload: Workload | None = None,
) -> "Figure":
    """Plot the standard error of the output of every step, one line per strategy; steps start at 0.

    Args:
        strategies: strategies by name.
        scales: factor for each strategy, a sigma or a sensitivity; None for 1.
        workload: A; None is the prefix sum.
    """
    if not strategies:
        raise InvalidParameterError("strategies", strategies, "at least one")
    figure = _figure(6.4, 4.0)
    axes = figure.subplots()
    for name, strategy in strategies.items():
        scale = 1.0 if scales is None else check_real(f"scales[{name!r}]", scales.get(name), minimum=0.0)
        errors = scale * per_step_error(check_strategy(strategy), workload=workload)
        axes.plot(np.arange(errors.size), errors, label=name, markevery=_every(errors.size))
    unit = "clip norms" if scales is not None else "clip norms at sigma 1"
    axes.set(xlabel="step, from 0", ylabel=f"standard error ({unit})", ylim=(0.0, None))
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


@_styled()
def privacy_profile(eps: Sequence[float], deltas: Mapping[str, Sequence[Bounds]]) -> "Figure":
    """Plot delta(eps), with the interval of each method as a band.

    Args:
        eps: increasing values, shape (m,).
        deltas: for each name, the m Bounds that `dpmech.delta` returned.
    """
    grid = np.asarray(eps, dtype=np.float64)
    if grid.ndim != 1 or grid.size == 0 or np.any(np.diff(grid) <= 0.0):
        raise InvalidParameterError("eps", eps, "increasing numbers")
    figure = _figure(6.4, 4.0)
    axes = figure.subplots()
    for name, bounds in deltas.items():
        if len(bounds) != grid.size:
            raise InvalidParameterError(f"deltas[{name!r}]", len(bounds), f"{grid.size} bounds, one an eps")
        upper = np.array([one.upper for one in bounds])
        lower = np.array([one.lower for one in bounds])
        (line,) = axes.plot(grid, upper, label=name, markevery=_every(grid.size))
        shown = lower > 0.0
        if np.any(shown):
            axes.fill_between(
                grid[shown], lower[shown], upper[shown], color=line.get_color(), alpha=0.25, lw=0
            )
    axes.set(xlabel="eps", ylabel="delta", yscale="log")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


@_styled()
def trade_off(rates: Sequence[float], powers: Mapping[str, Sequence[float]], *, title: str = "") -> "Figure":
    """Plot the largest true-positive rates of attacks against false-positive rates, and random guessing.

    Args:
        rates: false-positive rates, increasing, in (0, 1], shape (m,).
        powers: for each name, the m true-positive rates.
        title: title above the axes.
    """
    grid = np.asarray(rates, dtype=np.float64)
    if (
        grid.ndim != 1
        or grid.size == 0
        or np.any(np.diff(grid) <= 0.0)
        or not 0.0 < grid[0] <= grid[-1] <= 1.0
    ):
        raise InvalidParameterError("rates", rates, "increasing numbers in (0, 1]")
    figure = _figure(6.4, 4.0)
    axes = figure.subplots()
    for name, power in powers.items():
        if len(power) != grid.size:
            raise InvalidParameterError(f"powers[{name!r}]", len(power), f"{grid.size} rates, one each")
        axes.plot(grid, power, label=name, markevery=_every(grid.size))
    axes.plot(grid, grid, label="guessing", color="#999999", ls=":", marker="")
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate, at most", xscale="log", yscale="log")
    axes.set_title(title)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


@_styled()
def matrices(strategy: Strategy) -> "Figure":
    """Plot heat maps of C and C^-1, for n up to 400; the colour scale is symmetric around 0."""
    check_strategy(strategy)
    if strategy.n > _LARGEST_MATRIX:
        raise InvalidParameterError("n", strategy.n, f"at most {_LARGEST_MATRIX}: larger ones cannot be seen")
    figure = _figure(8.4, 3.8)
    inverse = strategy.solve(np.eye(strategy.n))
    for axes, matrix, name in zip(
        figure.subplots(1, 2), (strategy.to_dense(), inverse), ("C", "C$^{-1}$"), strict=True
    ):
        most = float(np.abs(matrix).max())
        image = axes.imshow(matrix, vmin=-most, vmax=most, interpolation="nearest")
        axes.set(title=name, xlabel="column (step, from 0)", ylabel="row (step, from 0)")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, fraction=0.046, pad=0.04)
    return figure


def _cells(values: Sequence[float]) -> list[tuple[float, float]]:
    """Intervals around the values that meet halfway on a log scale."""
    logs = np.log(values)
    middles = 0.5 * (logs[1:] + logs[:-1])
    half = 0.5 * float(np.diff(logs).min()) if len(values) > 1 else 0.2
    edges: FloatArray = np.exp(np.concatenate([[logs[0] - half], middles, [logs[-1] + half]]))
    return [(float(low), float(high)) for low, high in itertools.pairwise(edges)]


def _every(points: int) -> int:
    """Spacing of the markers, in points."""
    return -(-points // _MARKED)


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))
