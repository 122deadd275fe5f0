"""What the noise of many training plans would cost, for every eps of a range, before one is certified."""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from dpmech.exceptions import InvalidParameterError
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
from dpmech.reports.preview_grids import Grid, gaussian_grid, grid_of

__all__ = ["Preview", "PreviewPlan", "PreviewRow", "preview_of"]

_Kind = TypeVar("_Kind", bound=Strategy)

_BANDS, _BUFFERS = 64, 3
_DIGITS = 6
_MOST_PLANS = 100


@dataclasses.dataclass(frozen=True)
class PreviewRow:
    """One kind of noise for one plan.

    Attributes:
        label: what a table calls it.
        sampling: how its batches are drawn, as the command line names it.
        options: of `dpmech calibrate`, that say which strategy it is.
        grid: of its own, or None for the one of everything that is not sampled.
        scale: what the grid's number is multiplied with: the sensitivity, rounded up.
        rmse: of the sums of gradients, in clip norms, at sigma 1.
        noise: in a coordinate of the average gradient, clip norm 1, sigma 1: root mean square over steps.
        buffers: vectors of the model's size that it keeps.
        redrawn: vectors that it draws again every step.
    """

    label: str
    sampling: str
    options: tuple[tuple[str, str], ...]
    grid: Grid | None
    scale: float
    rmse: float
    noise: float
    buffers: int
    redrawn: int


@dataclasses.dataclass(frozen=True)
class PreviewPlan:
    """A plan and its rows, DP-SGD first."""

    training: TrainingPlan
    rows: tuple[PreviewRow, ...]


@dataclasses.dataclass(frozen=True)
class Preview:
    """What the page knows.

    Attributes:
        dataset_size: public.
        delta: in (0, 1).
        low: smallest eps.
        high: largest.
        shared: the grid of what is not sampled, in multiples of the sensitivity.
        plans: one for every number of epochs and batch size.
    """

    dataset_size: int
    delta: float
    low: float
    high: float
    shared: Grid
    plans: tuple[PreviewPlan, ...]

    def sigma(self, row: PreviewRow, eps: float) -> float | None:
        """The noise scale that the page shows at an eps; None where it has none."""
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
                    "steps": one.training.n,
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
    """Compute the grids of all plans: DP-SGD (Poisson), and correlated noise that is not sampled.

    Args:
        dataset_size: >= 1.
        delta: in (0, 1).
        epochs: of the plans; repeated ones count once.
        batch_sizes: of the plans, each at most the size of the dataset.
        low: smallest eps, > 0.
        high: largest, above `low`.
        executor: does the plans side by side.
        progress: told what goes on, and "" after each plan.

    Raises:
        InvalidParameterError: on a bad number, or more than 100 plans.
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
    lam = _fitted(optimize(LambdaCGD, passes, n=training.n).strategy, LambdaCGD)
    rows.append(_unsampled("lambda-CGD", lam, passes, training, "lambda-cgd", {"--lam": [lam.lam]}))
    bands = InverseSquareRoot(training.n, min(_BANDS, training.n))
    rows.append(
        _unsampled("BISR", bands, passes, training, "bisr", {"--bands": [bands.inverse_bands or training.n]})
    )
    blt = _fitted(optimize(BLT, passes, n=training.n, buffers=_BUFFERS).strategy, BLT)
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
    """DP-SGD as it is run: independent noise, Poisson sampling."""
    mechanism = Mechanism(Identity(training.n), training.participation("poisson"))
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
        cost.redrawn,
    )


def _shown(value: float) -> float:
    """Few digits, and not below what an error of rounding may have hidden."""
    return float(up(product_up(1.0 + 1e-9, value), _DIGITS))
