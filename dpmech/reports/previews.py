"""Previews: the noise of many training plans over a range of eps, and the planning page that shows it."""

import base64
import bisect
import concurrent.futures
import dataclasses
import hashlib
import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from dpmech.calibration import calibrate_sigma, epsilon
from dpmech.exceptions import DpmechError, InvalidParameterError
from dpmech.fitting import optimize
from dpmech.mechanism import (
    BLT,
    Identity,
    InverseSquareRoot,
    LambdaCGD,
    Mechanism,
    Participation,
    Strategy,
    decoder_norm,
    noise_cost,
    sensitivity,
)
from dpmech.numerics import product_up, typed, up
from dpmech.plans import TrainingPlan
from dpmech.reports.rendering import environment
from dpmech.schemes.fixed_order import SingleParticipation

# Ratio of consecutive noise scales, and a margin on each: a calibration may end 0.1 % above the least noise,
# and a preview must not be lower.
RATIO, MARGIN = 1.024, 1.002
_DIGITS = 6
_MOST_PAIRS = 2000


@dataclasses.dataclass(frozen=True)
class Grid:
    """Pairs of eps and noise, close together, for a page that computes nothing itself.

    Between two pairs the page uses the noise of the smaller eps. It is always sufficient, since less noise is
    never more private, and never far too large, since neighbouring noise scales have a fixed ratio. A chord
    would be closer, but requires convexity, which is not proven under sampling.

    **Guarantee:** at `sigma[i]` the mechanism meets (`eps[i]`, delta), with the guarantee of its accountant.

    Attributes:
        eps: increasing values.
        sigma: decreasing values.
    """

    eps: tuple[float, ...]
    sigma: tuple[float, ...]

    def at(self, eps: float) -> float | None:
        """A noise scale that meets eps: that of the next smaller eps; None outside the grid.

        Args:
            eps: the requested eps.
        """
        place = bisect.bisect_right(self.eps, eps)
        return self.sigma[place - 1] if place and eps <= self.eps[-1] else None


def gaussian_grid(delta: float, low: float, high: float) -> Grid:
    """Sigma / sensitivity of unsampled mechanisms.

    Args:
        delta: in (0, 1).
        low: smallest requested eps, > 0.
        high: largest requested eps, above `low`.
    """
    return grid_of(Mechanism(Identity(1), SingleParticipation()), delta, low, high)


def grid_of(
    mechanism: Mechanism,
    delta: float,
    low: float,
    high: float,
    *,
    progress: Callable[[str], None] | None = None,
) -> Grid:
    """The grid of a mechanism whose eps at a given noise scale is fast to compute.

    It ends early where its accountant has no bound at such small noise.

    Args:
        mechanism: the mechanism.
        delta: in (0, 1).
        low: smallest requested eps, > 0.
        high: largest requested eps, above `low`.
        progress: called with the progress.

    Raises:
        UnsupportedCombinationError: if no theorem covers it.
    """
    sigma = calibrate_sigma(mechanism, low, delta).sigma
    eps = 0.0
    found: list[tuple[float, float]] = []
    while len(found) < _MOST_PAIRS and eps < high:
        try:
            eps = max(eps, epsilon(mechanism, sigma, delta).upper)
        except (DpmechError, ArithmeticError):
            if not found:
                raise
            break
        if not found and eps > low:
            # The search and the evaluation stop at different tolerances.
            sigma, eps = RATIO * sigma, 0.0
            continue
        found.append((float(up(eps, _DIGITS)), float(up(product_up(MARGIN, sigma), _DIGITS))))
        if progress is not None:
            progress(f"eps {up(eps, 3)}")
        sigma /= RATIO
    # The first pair holds at `low`, which rounding may have exceeded.
    found[0] = (min(low, found[0][0]), found[0][1])
    pairs = list(zip(*_increasing(found), strict=True))
    return Grid(tuple(pairs[0]), tuple(pairs[1]))


def _increasing(found: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """For equal eps, keep the pair with the least noise."""
    last = {eps: sigma for eps, sigma in found}
    return sorted(last.items())


_Kind = TypeVar("_Kind", bound=Strategy)

_BANDS, _BUFFERS = 64, 3
_MOST_PLANS = 100


@dataclasses.dataclass(frozen=True)
class PreviewRow:
    """One kind of noise for one plan.

    Attributes:
        label: its label in tables.
        sampling: how its batches are sampled, in the name of the command line.
        options: options of `dpmech calibrate` for its strategy.
        grid: its own grid, or None for the shared grid of unsampled mechanisms.
        scale: factor on the grid's number: the sensitivity, rounded up.
        rmse: error of the sums of gradients, in clip norms, at sigma 1.
        noise: noise per coordinate of the average gradient, clip norm 1, sigma 1: root mean square over
            steps.
        buffers: number of stored vectors of the model's size.
        regenerated: number of vectors regenerated every step.
    """

    label: str
    sampling: str
    options: tuple[tuple[str, str], ...]
    grid: Grid | None
    scale: float
    rmse: float
    noise: float
    buffers: int
    regenerated: int


@dataclasses.dataclass(frozen=True)
class PreviewPlan:
    """A plan and its rows, DP-SGD first."""

    training: TrainingPlan
    rows: tuple[PreviewRow, ...]


@dataclasses.dataclass(frozen=True)
class Preview:
    """The content of the page.

    Attributes:
        dataset_size: public number of examples.
        delta: in (0, 1).
        low: smallest eps.
        high: largest eps.
        shared: the grid of unsampled mechanisms, in multiples of the sensitivity.
        plans: one plan for every number of epochs and batch size.
    """

    dataset_size: int
    delta: float
    low: float
    high: float
    shared: Grid
    plans: tuple[PreviewPlan, ...]

    def sigma(self, row: PreviewRow, eps: float) -> float | None:
        """The noise scale that the page shows at an eps; None if it has none."""
        grid = self.shared if row.grid is None else row.grid
        found = None if eps > self.high else grid.at(eps)
        return None if found is None else row.scale * found

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the page."""
        return {
            "dataset_size": self.dataset_size,
            "delta": self.delta,
            "low": self.low,
            "high": self.high,
            "shared": dataclasses.asdict(self.shared),
            "plans": [
                {
                    "epochs": one.training.epochs,
                    "batch_size": one.training.batch_size,
                    "steps": one.training.steps,
                    "rows": [dataclasses.asdict(row) for row in one.rows],
                }
                for one in self.plans
            ],
        }


def preview_of(
    dataset_size: int,
    delta: float,
    *,
    epochs: Sequence[int],
    batch_sizes: Sequence[int],
    low: float,
    high: float,
    executor: concurrent.futures.Executor | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Preview:
    """Compute the grids of all plans: DP-SGD (Poisson), and unsampled correlated noise.

    Args:
        dataset_size: number of examples, >= 1.
        delta: in (0, 1).
        epochs: numbers of epochs; repeated ones count once.
        batch_sizes: batch sizes, each at most the size of the dataset.
        low: smallest eps, > 0.
        high: largest eps, above `low`.
        executor: computes the plans in parallel.
        progress: called with the progress, and with "" after each plan.

    Raises:
        InvalidParameterError: if a number is invalid, or there are more than 100 plans.
    """
    trainings = [
        TrainingPlan(dataset_size, size, count)
        for count in sorted(set(epochs))
        for size in sorted(set(batch_sizes))
    ]
    if not 1 <= len(trainings) <= _MOST_PLANS:
        raise InvalidParameterError("epochs", list(epochs), f"1 to {_MOST_PLANS} plans with the batch sizes")
    if not 0.0 < low < high:
        raise InvalidParameterError("max_eps", high, f"above the smallest eps, {low}")
    progress("noise that is not sampled")
    shared = gaussian_grid(delta, low, high)
    if executor is None:
        plans = []
        for one in trainings:
            plans.append(_plan(one, delta, low, high, progress))
            progress("")
    else:
        tasks = [executor.submit(_plan, one, delta, low, high, None) for one in trainings]
        plans = []
        for task in tasks:
            plans.append(task.result())
            progress("")
    return Preview(dataset_size, delta, low, high, shared, tuple(plans))


def _plan(
    training: TrainingPlan, delta: float, low: float, high: float, progress: Callable[[str], None] | None
) -> PreviewPlan:
    name = f"{training.epochs} epochs, batch {training.batch_size}"

    def told(line: str) -> None:
        if progress is not None:
            progress(f"{name}: {line}")

    told("fitting")
    passes = training.participation("min-sep")
    rows = [_sampled(training, delta, low, high, told)]
    lam = _fitted(optimize(LambdaCGD, passes, n=training.steps).strategy, LambdaCGD)
    rows.append(_unsampled("lambda-CGD", lam, passes, training, "lambda-cgd", {"--lam": [lam.lam]}))
    bands = InverseSquareRoot(training.steps, min(_BANDS, training.steps))
    rows.append(
        _unsampled(
            "BISR", bands, passes, training, "bisr", {"--bands": [bands.inverse_bands or training.steps]}
        )
    )
    blt = _fitted(optimize(BLT, passes, n=training.steps, buffers=_BUFFERS).strategy, BLT)
    values = {"--decays": blt.decays.tolist(), "--scales": blt.scales.tolist()}
    rows.append(_unsampled("BLT", blt, passes, training, "blt", values))
    return PreviewPlan(training, tuple(rows))


def _fitted(strategy: Strategy, kind: type[_Kind]) -> _Kind:
    if not isinstance(strategy, kind):
        raise TypeError(f"a {kind.__name__} was fitted as a {type(strategy).__name__}")
    return strategy


def _sampled(
    training: TrainingPlan, delta: float, low: float, high: float, told: Callable[[str], None]
) -> PreviewRow:
    """Standard DP-SGD: independent noise, Poisson sampling."""
    mechanism = Mechanism(Identity(training.steps), training.participation("poisson"))
    grid = grid_of(mechanism, delta, low, high, progress=lambda line: told(f"DP-SGD, {line}"))
    return _row("DP-SGD", mechanism.strategy, "poisson", training, "identity", {}, grid, 1.0)


def _unsampled(
    label: str,
    strategy: Strategy,
    passes: Participation,
    training: TrainingPlan,
    name: str,
    values: Mapping[str, Sequence[float]],
) -> PreviewRow:
    scale = sensitivity(strategy, passes).upper
    return _row(label, strategy, "min-sep", training, name, values, None, float(up(scale, _DIGITS)))


def _row(
    label: str,
    strategy: Strategy,
    sampling: str,
    training: TrainingPlan,
    name: str,
    values: Mapping[str, Sequence[float]],
    grid: Grid | None,
    scale: float,
) -> PreviewRow:
    cost = noise_cost(strategy)
    rows = strategy.noising_row_norms()
    spread = float(np.sqrt(np.mean(rows**2))) / training.batch_size
    options = {"--strategy": name} | {key: ",".join(map(typed, one)) for key, one in values.items()}
    return PreviewRow(
        label,
        sampling,
        tuple((*options.items(), ("--sampling", sampling))),
        grid,
        scale,
        _shown(decoder_norm(strategy)),
        _shown(spread),
        cost.buffers,
        cost.regenerated,
    )


def _shown(value: float) -> float:
    """Round to few digits, but never below the value, rounding errors included."""
    return float(up(product_up(1.0 + 1e-9, value), _DIGITS))


# Values of eps in the tables, which need no script.
_TABLED = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_SHOWN_DIGITS = 4


def planner_page(preview: Preview, *, made: str) -> str:
    """A page that needs no network; without scripts it shows tables.

    Args:
        preview: the numbers.
        made: date of the page.
    """
    script = importlib.resources.files("dpmech.reports").joinpath("templates/planner.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    return (
        environment(escape=True)
        .get_template("planner.html")
        .render(
            preview=preview,
            made=made,
            data=preview.to_dict(),
            digest=digest,
            delta=typed(preview.delta),
            low=typed(preview.low),
            high=typed(preview.high),
            start=typed(_start(preview)),
            tables=[(plan, _tables(preview, plan)) for plan in preview.plans],
        )
    )


def _start(preview: Preview) -> float:
    """The initial eps: the largest usual value within the range, or the end of the range."""
    inside = [eps for eps in _TABLED if preview.low <= eps <= min(preview.high, 8.0)]
    return inside[-1] if inside else preview.high


def _tables(preview: Preview, plan: PreviewPlan) -> Sequence[tuple[str, list[dict[str, Any]]]]:
    """For some values of eps, every row with its numbers, rounded up."""
    inside = [eps for eps in _TABLED if preview.low <= eps <= preview.high] or [preview.high]
    return [
        (typed(eps), [_cells(preview, plan, place, eps) for place in range(len(plan.rows))]) for eps in inside
    ]


def _cells(preview: Preview, plan: PreviewPlan, place: int, eps: float) -> dict[str, Any]:
    row = plan.rows[place]
    sigma = preview.sigma(row, eps)
    cells: dict[str, Any] = {"label": row.label, "sampling": row.sampling}
    for name, factor in (("sigma", 1.0), ("rmse", row.rmse), ("noise", row.noise)):
        cells[name] = "none" if sigma is None else up(sigma * factor, _SHOWN_DIGITS)
    return cells
