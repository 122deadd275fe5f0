"""Previews: the noise of many training plans over a range of eps, for the planning page."""

import concurrent.futures
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpmech.engines import gaussian_sigma
from dpmech.exceptions import (
    InvalidParameterError,
    NumericalError,
    UnattainableBudgetError,
    UnsupportedCombinationError,
)
from dpmech.fitting import check_family, optimize
from dpmech.mechanism import (
    ColumnNormalized,
    Identity,
    Mechanism,
    Strategy,
    decoder_norm,
    noise_cost,
    sensitivity,
)
from dpmech.numerics import product_up, typed, up
from dpmech.plans import FAMILIES, STRATEGIES, Entry, TrainingPlan, check_known
from dpmech.reports.grids import (
    COARSE,
    COARSE_MARGIN,
    MARGIN,
    RATIO,
    Grid,
    calibrated_grid,
    gaussian_grid,
    grid_of,
)

_DIGITS = 6
_MOST_PLANS = 100
# Values of eps that people ask for.
USUAL = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
# A fitted strategy serves a range of eps of at most this ratio.
_WINDOW = 4.0
# How much two calibrations of one budget may differ.
_TWICE = 1.005

# Families that a sampling shows by default; none where noise has to be independent.
_DEFAULTS: dict[str, tuple[Entry, ...]] = {
    "poisson": (),
    "random-allocation": (),
    "balls-in-bins": (Entry("blt", {}),),
    "min-sep": (Entry("lambda-cgd", {}), Entry("bisr", {}), Entry("blt", {})),
}
PAGE_SAMPLINGS = tuple(_DEFAULTS)
FAST_SAMPLINGS = ("poisson", "min-sep")
# Seconds of one core that all plans may take with the default samplings.
DEFAULT_SECONDS = 1200.0
# A command has no room for a matrix.
PAGE_FAMILIES = tuple(name for name in FAMILIES if name != "dense")
_LABELS = {
    "lambda-cgd": "lambda-CGD",
    "bisr": "BISR",
    "bandmf": "BandMF",
    "bandinv": "BandInvMF",
    "blt": "BLT",
}
_SAMPLED = {"random-allocation": "random allocation", "balls-in-bins": "Balls-in-Bins"}


@dataclasses.dataclass(frozen=True)
class RowKind:
    """What a row of every plan shows: a sampling, and independent noise or the best member of a family.

    Attributes:
        sampling: its name on the command line.
        family: a family without coefficients; None for independent noise.
    """

    sampling: str
    family: Entry | None = None

    @property
    def label(self) -> str:
        """Its label in tables."""
        name = "DP-SGD"
        if self.family is not None:
            sizes = [f"{value} {key}" for key, value in self.family.options.items()]
            normalized = ["unit columns"] if self.family.column_normalized else []
            name = ", ".join([_LABELS[self.family.name], *sizes, *normalized])
        return f"{name}, {_SAMPLED[self.sampling]}" if self.sampling in _SAMPLED else name


def row_kinds(samplings: Sequence[str], strategies: Sequence[Entry] | None = None) -> tuple[RowKind, ...]:
    """The rows of every plan: DP-SGD under Poisson sampling first, which others are compared with.

    Args:
        samplings: names, of `PAGE_SAMPLINGS`; repeated ones count once.
        strategies: families of correlated noise, without coefficients; None takes those that suit each
            sampling: BLT under Balls-in-Bins; lambda-CGD, BISR and BLT without sampling.

    Raises:
        InvalidParameterError: on an unknown sampling; a strategy that is no family of `PAGE_FAMILIES`; or
            strategies where every sampling takes independent noise.
    """
    for name in samplings:
        check_known("sampling", name, PAGE_SAMPLINGS)
    for one in strategies or ():
        if one.name not in PAGE_FAMILIES or not one.fitted:
            raise InvalidParameterError(
                "strategies",
                one.label,
                f"families without coefficients: {', '.join(PAGE_FAMILIES)}",
                "; independent noise is on the page, and dpmech compare takes other strategies",
            )
    taking = [name for name, default in _DEFAULTS.items() if default]
    if strategies and not set(samplings) & set(taking):
        given = ", ".join(one.label for one in strategies)
        raise InvalidParameterError("strategies", given, f"left out without {' or '.join(taking)}")
    found = [RowKind("poisson")]
    for name in samplings:
        default = _DEFAULTS[name]
        chosen = default if strategies is None or not default else strategies
        rows = [RowKind(name, one) for one in chosen] or [RowKind(name)]
        found += [one for one in rows if one not in found]
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A strategy, and its noise over a range of eps.

    Attributes:
        options: options of `dpmech calibrate` for the strategy.
        grid: its own grid, or None for the shared grid of unsampled mechanisms.
        scale: factor on the grid's number: the sensitivity, rounded up.
        rmse: error of the sums of gradients, in clip norms, at sigma 1.
        noise: noise per coordinate of the average gradient, clip norm 1, sigma 1: root mean square over
            steps.
        buffers: number of stored vectors of the model's size.
        regenerated: number of vectors regenerated every step.
    """

    options: tuple[tuple[str, str], ...]
    grid: Grid | None
    scale: float
    rmse: float
    noise: float
    buffers: int
    regenerated: int


@dataclasses.dataclass(frozen=True)
class PreviewRow:
    """One kind of noise for one plan.

    Attributes:
        label: its label in tables.
        sampling: how its batches are sampled, in the name of the command line.
        variants: strategies, of which the one with the smallest error at the requested eps counts.
        above: how far its noise may be above that of a calibration, in per cent, rounded up.
        reason: why it has no numbers; empty if it has.
    """

    label: str
    sampling: str
    variants: tuple[Variant, ...]
    above: float
    reason: str = ""


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

    def at(self, row: PreviewRow, eps: float) -> tuple[Variant, float] | None:
        """What the page shows at an eps: a strategy and its noise scale; None if the row has none."""
        best: tuple[Variant, float] | None = None
        for one in row.variants:
            found = None if eps > self.high else (one.grid or self.shared).at(eps)
            if found is None:
                continue
            sigma = one.scale * found
            if best is None or sigma * one.rmse < best[1] * best[0].rmse:
                best = one, sigma
        return best

    def sigma(self, row: PreviewRow, eps: float) -> float | None:
        """The noise scale that the page shows at an eps; None if it has none."""
        found = self.at(row, eps)
        return None if found is None else found[1]

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


def check_plans(
    dataset_size: int,
    epochs: Sequence[int],
    batch_sizes: Sequence[int],
    kinds: Sequence[RowKind],
) -> list[TrainingPlan]:
    """All plans, in order, after everything is checked that can be checked before the computation.

    Args:
        dataset_size: number of examples, >= 1.
        epochs: numbers of epochs; repeated ones count once.
        batch_sizes: batch sizes, each at most the size of the dataset.
        kinds: the rows.

    Raises:
        InvalidParameterError: if a number is invalid, there are more than 100 plans, or a family does not
            have the sizes that are given for it.
    """
    trainings = [
        TrainingPlan(dataset_size, size, count)
        for count in sorted(set(epochs))
        for size in sorted(set(batch_sizes))
    ]
    if not 1 <= len(trainings) <= _MOST_PLANS:
        raise InvalidParameterError("epochs", list(epochs), f"1 to {_MOST_PLANS} plans with the batch sizes")
    for training in trainings:
        for kind in kinds:
            if kind.family is not None:
                sizes = _sizes(kind.family)
                check_family(FAMILIES[kind.family.name], n=training.steps, **sizes)
    return trainings


# Seconds of one core for a number, and for every batch of an epoch in addition; the same for a fit. Measured
# on 10 to 3,900 steps in epochs of 5 to 390 batches.
_SECONDS = {
    "poisson": ((0.14, 0.0), (0.0, 0.0)),
    "random-allocation": ((7.5, 0.009), (0.0, 0.0)),
    "balls-in-bins": ((1.5, 0.02), (4.0, 0.14)),
    "min-sep": ((0.0, 0.0), (0.1, 0.0003)),
}
# Independent noise under sampling falls less over a range of eps than noise that is not amplified.
_SHARE = 0.65


def seconds_of(training: TrainingPlan, kind: RowKind, delta: float, low: float, high: float) -> float:
    """About how long a row takes on one core: an estimate, mostly within a factor of two.

    Args:
        training: the plan.
        kind: the row.
        delta: in (0, 1).
        low: smallest eps, > 0.
        high: largest eps, above `low`.
    """
    (number, by_batch), (fit, fit_by_batch) = _SECONDS[kind.sampling]
    fall = math.log(gaussian_sigma(low, delta) / gaussian_sigma(high, delta))
    ratio = RATIO if kind.sampling == "poisson" else COARSE
    count = fall * (_SHARE if kind.family is None else 1.0) / math.log(ratio) + 2.0
    fits = 0 if kind.family is None else 1 if number == 0.0 else len(windows(low, high))
    batches = training.steps_per_epoch
    return count * (number + by_batch * batches) + fits * (fit + fit_by_batch * batches)


def default_samplings(
    trainings: Sequence[TrainingPlan],
    delta: float,
    low: float,
    high: float,
    strategies: Sequence[Entry] | None = None,
) -> tuple[list[str], dict[str, float]]:
    """The samplings whose rows of all plans take at most `DEFAULT_SECONDS` together, the fast ones always.

    Args:
        trainings: the plans.
        delta: in (0, 1).
        low: smallest eps, > 0.
        high: largest eps, above `low`.
        strategies: as for `row_kinds`.

    Returns:
        Their names, and the estimated seconds of the others by name.
    """

    def seconds(names: Sequence[str]) -> float:
        kinds = row_kinds(names, strategies)
        return sum(seconds_of(one, kind, delta, low, high) for one in trainings for kind in kinds)

    chosen, least = list(FAST_SAMPLINGS), seconds(FAST_SAMPLINGS)
    others = {name: seconds([*FAST_SAMPLINGS, name]) - least for name in PAGE_SAMPLINGS if name not in chosen}
    for name in sorted(others, key=lambda one: others[one]):
        if seconds([*chosen, name]) <= DEFAULT_SECONDS:
            chosen.append(name)
            del others[name]
    return [name for name in PAGE_SAMPLINGS if name in chosen], others


def preview_of(
    dataset_size: int,
    delta: float,
    *,
    epochs: Sequence[int],
    batch_sizes: Sequence[int],
    low: float,
    high: float,
    samplings: Sequence[str] = FAST_SAMPLINGS,
    strategies: Sequence[Entry] | None = None,
    executor: concurrent.futures.Executor | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Preview:
    """Compute the grids of all rows of all plans.

    Args:
        dataset_size: number of examples, >= 1.
        delta: in (0, 1).
        epochs: numbers of epochs; repeated ones count once.
        batch_sizes: batch sizes, each at most the size of the dataset.
        low: smallest eps, > 0.
        high: largest eps, above `low`.
        samplings: as for `row_kinds`.
        strategies: as for `row_kinds`.
        executor: computes the rows in parallel.
        progress: called with the progress, and with "" after each row.

    Raises:
        InvalidParameterError: if a number is invalid, or there are more than 100 plans.
    """
    kinds = row_kinds(samplings, strategies)
    trainings = check_plans(dataset_size, epochs, batch_sizes, kinds)
    if not 0.0 < low < high:
        raise InvalidParameterError("max_eps", high, f"above the smallest eps, {low}")
    progress("noise that is not sampled")
    shared = gaussian_grid(delta, low, high)
    calls = [(one, kind, delta, low, high) for one in trainings for kind in kinds]
    found: list[PreviewRow] = []
    if executor is None:
        for call in calls:
            found.append(_row(*call, shared.step, progress))
            progress("")
    else:
        for task in [executor.submit(_row, *call, shared.step, None) for call in calls]:
            found.append(task.result())
            progress("")
    each = len(kinds)
    plans = (
        PreviewPlan(one, tuple(found[place * each : (place + 1) * each]))
        for place, one in enumerate(trainings)
    )
    return Preview(dataset_size, delta, low, high, shared, tuple(plans))


def _row(
    training: TrainingPlan,
    kind: RowKind,
    delta: float,
    low: float,
    high: float,
    shared_step: float,
    progress: Callable[[str], None] | None,
) -> PreviewRow:
    """One row; without numbers, but with the reason, if every fit or calibration is refused."""

    def told(line: str) -> None:
        if progress is not None:
            progress(f"{training.epochs} epochs, batch {training.batch_size}: {kind.label}, {line}")

    build = {"poisson": _quick, "min-sep": _unsampled}.get(kind.sampling, _calibrated)
    try:
        variants = build(training, kind, delta, low, high, told)
    except (UnsupportedCombinationError, UnattainableBudgetError, NumericalError) as error:
        return PreviewRow(kind.label, kind.sampling, (), 0.0, str(error))
    above = max(
        (shared_step if one.grid is None else one.grid.step)
        * (COARSE_MARGIN * _TWICE if build is _calibrated else MARGIN)
        for one in variants
    )
    return PreviewRow(kind.label, kind.sampling, variants, float(up(100.0 * (above - 1.0), 2)))


_Told = Callable[[str], None]


def _quick(
    training: TrainingPlan, kind: RowKind, delta: float, low: float, high: float, told: _Told
) -> tuple[Variant, ...]:
    """Independent noise whose eps at a noise scale is fast to compute."""
    mechanism = Mechanism(Identity(training.steps), training.participation(kind.sampling))
    return (
        _variant(mechanism.strategy, training, kind, grid_of(mechanism, delta, low, high, progress=told)),
    )


def _unsampled(
    training: TrainingPlan, kind: RowKind, delta: float, low: float, high: float, told: _Told
) -> tuple[Variant, ...]:
    """The best member of a family, which does not depend on eps, as multiples of the sensitivity."""
    del delta, low, high
    told("fitting")
    passes = training.participation(kind.sampling)
    strategy = optimize(
        FAMILIES[_family(kind).name], passes, n=training.steps, **_settings(_family(kind))
    ).strategy
    scale = float(up(sensitivity(strategy, passes).upper, _DIGITS))
    return (_variant(strategy, training, kind, None, scale),)


def _calibrated(
    training: TrainingPlan, kind: RowKind, delta: float, low: float, high: float, told: _Told
) -> tuple[Variant, ...]:
    """Noise that takes seconds to size: independent, or fitted at a few eps, each for a part of the range.

    Raises:
        UnsupportedCombinationError: if no part of the range has numbers; the error of the first one. Also
            UnattainableBudgetError and NumericalError.
    """
    participation = training.participation(kind.sampling)
    if kind.family is None:
        mechanism = Mechanism(Identity(training.steps), participation)
        grid = calibrated_grid(mechanism, delta, low, high, marks=USUAL, progress=told)
        return (_variant(mechanism.strategy, training, kind, grid),)
    found: list[Variant] = []
    refusals: list[Exception] = []
    for left, anchor, right in windows(low, high):
        told(f"fitting at eps {typed(anchor)}")
        try:
            fit = optimize(
                FAMILIES[kind.family.name],
                participation,
                n=training.steps,
                eps=anchor,
                delta=delta,
                compare=False,
                **_settings(kind.family),
            )
            known = {} if fit.calibration is None else {anchor: fit.calibration.sigma}
            mechanism = Mechanism(fit.strategy, participation)
            grid = calibrated_grid(mechanism, delta, left, right, marks=USUAL, known=known, progress=told)
        except (UnsupportedCombinationError, UnattainableBudgetError, NumericalError) as error:
            refusals.append(error)
            continue
        found.append(_variant(fit.strategy, training, kind, grid))
    if not found:
        raise refusals[0]
    return tuple(found)


def windows(low: float, high: float) -> list[tuple[float, float, float]]:
    """Parts of a range of eps, each with the eps that its strategy is fitted at: (left, anchor, right).

    The ends of a part have at most the ratio `_WINDOW`. The anchor is the usual value next to the geometric
    middle; that middle, if there is no usual value in the part.
    """
    parts = max(1, math.ceil(math.log(high / low) / math.log(_WINDOW) - 1e-9))
    edges = [low * (high / low) ** (place / parts) for place in range(parts)] + [high]
    found = []
    for left, right in itertools.pairwise(edges):
        middle = math.sqrt(left * right)
        inside = [eps for eps in USUAL if left <= eps <= right] or [middle]
        found.append((left, min(inside, key=lambda eps: abs(math.log(eps / middle))), right))
    return found


def _family(kind: RowKind) -> Entry:
    if kind.family is None:
        raise UnsupportedCombinationError(
            f"independent noise under {kind.sampling}", supported="a family of correlated noise"
        )
    return kind.family


def _sizes(family: Entry) -> dict[str, Any]:
    return {key: family.options.get(key) for key in ("bands", "buffers")}


def _settings(family: Entry) -> dict[str, Any]:
    return _sizes(family) | {"column_normalized": family.column_normalized}


def _variant(
    strategy: Strategy, training: TrainingPlan, kind: RowKind, grid: Grid | None, scale: float = 1.0
) -> Variant:
    cost = noise_cost(strategy)
    rows = strategy.noising_row_norms()
    spread = float(np.sqrt(np.mean(rows**2))) / training.batch_size
    return Variant(
        (*_options(strategy, kind.family).items(), ("--sampling", kind.sampling)),
        grid,
        scale,
        _shown(decoder_norm(strategy)),
        _shown(spread),
        cost.buffers,
        cost.regenerated,
    )


def _options(strategy: Strategy, family: Entry | None) -> Mapping[str, str]:
    """Options of `dpmech calibrate`; an option without value has an empty one."""
    if family is None:
        return {"--strategy": "identity"}
    inner = strategy.strategy if isinstance(strategy, ColumnNormalized) else strategy
    own = inner.to_dict()
    values = {
        key: np.atleast_1d(own[key] if key in own else own[f"inverse_{key}"]).tolist()
        for key in STRATEGIES[family.name].options
    }
    found = {"--strategy": family.name}
    found |= {f"--{key}": ",".join(map(typed, one)) for key, one in values.items()}
    return found | ({"--column-normalized": ""} if inner is not strategy else {})


def _shown(value: float) -> float:
    """Round to few digits, but never below the value, rounding errors included."""
    return float(up(product_up(1.0 + 1e-9, value), _DIGITS))
