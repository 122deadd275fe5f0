"""The strategy and the sampling with the least error, of several families under several participations.

Every candidate is calibrated, and the least RMSE at a proved sigma wins: nothing is decided on rough numbers.
Independent noise is a candidate under every participation.
"""

import concurrent.futures
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.engines import Method
from dpmech.exceptions import NumericalError, UnattainableBudgetError, UnsupportedCombinationError
from dpmech.fitting.optimizing import optimize
from dpmech.guards import check_integer
from dpmech.mechanism import (
    BLT,
    Adjacency,
    BandedInverse,
    BandedToeplitz,
    Dense,
    Identity,
    LambdaCGD,
    Participation,
    Strategy,
    Workload,
    noise_cost,
)
from dpmech.numerics import times, up
from dpmech.schemes import method_among, scheme_of

Refusal: TypeAlias = UnsupportedCombinationError | UnattainableBudgetError | NumericalError


@dataclasses.dataclass(frozen=True)
class FamilySizes:
    """A family of strategies with its sizes; arguments as for `dpmech.optimize`."""

    family: type[Strategy]
    bands: int | None = None
    buffers: int | None = None
    column_normalized: bool = False

    def __str__(self) -> str:
        sizes = [f"{key}={value}" for key in ("bands", "buffers") if (value := getattr(self, key))]
        normalized = ["column_normalized=True"] if self.column_normalized else []
        return f"{self.family.__name__}({', '.join([*sizes, *normalized])})"


Choice: TypeAlias = Strategy | FamilySizes


@dataclasses.dataclass(frozen=True)
class Search:
    """How strategies are fitted and calibrated; every setting as for `dpmech.optimize`."""

    adjacency: Adjacency = Adjacency.ADD_REMOVE
    method: Method | None = None
    rtol: float = 1e-3
    rng: np.random.Generator | int | None = None
    objective: str = "rmse"
    workload: Workload | None = None
    compare: bool = True
    cache: str | os.PathLike[str] | None = None
    progress: Callable[[str], None] | None = None
    executor: concurrent.futures.Executor | None = None


@dataclasses.dataclass(frozen=True)
class Trial:
    """A strategy, or the best strategy found of a family, calibrated under one participation.

    Attributes:
        choice: the strategy, or the family.
        participation: which examples take part when.
        calibration: a Calibration; None if it was refused.
        refusal: why it was refused; None if it was not.
        seconds: the computing time, including that of the fit.
        independent: the calibration of independent noise under the participation, if a family was fitted.
    """

    choice: Choice
    participation: Participation
    calibration: Calibration | None
    refusal: Refusal | None
    seconds: float
    independent: Calibration | None = None

    @property
    def vectors(self) -> int:
        """Number of vectors of the model's size that a step stores or regenerates for its noise."""
        return 0 if self.calibration is None else vectors_of(self.calibration.strategy)

    def described(self, workload: Workload | None = None) -> str:
        """The trial in one line, with the error of a workload; None is the prefix sum."""
        name = "Identity" if isinstance(self.choice, Identity) else str(self.choice)
        if self.calibration is None:
            return f"{name} under {self.participation!r}: {self.refusal}"
        return f"{name} under {self.participation!r}: RMSE {up(self.calibration.rmse(workload=workload))}"

    def __str__(self) -> str:
        return self.described()


def vectors_of(strategy: Strategy) -> int:
    """Number of vectors of the model's size that a step stores or regenerates for its noise."""
    cost = noise_cost(strategy)
    return cost.buffers + cost.regenerated


def tried(
    choice: Choice,
    participation: Participation,
    n: int,
    eps: float,
    delta: float,
    search: Search,
    *,
    calls: int = 1,
) -> Trial:
    """Calibrate a strategy, or fit a family and calibrate its best member.

    Args:
        choice: a strategy over n steps, or a family.
        participation: which examples take part when.
        n: number of steps.
        eps: > 0.
        delta: in (0, 1).
        search: how.
        calls: number of trials of which one will be picked: they share one failure probability.

    Raises:
        InvalidParameterError: if an argument is invalid.
    """
    start = time.perf_counter()
    shared: dict[str, Any] = {
        "adjacency": search.adjacency,
        "method": method_among(participation, search.method, calls),
        "rtol": search.rtol,
        "rng": search.rng,
        "progress": search.progress,
        "executor": search.executor,
    }
    found, refusal, independent = None, None, None
    try:
        if isinstance(choice, Strategy):
            found = calibrate_sigma(choice, eps, delta, participation=participation, **shared)
        else:
            sizes = {field.name: getattr(choice, field.name) for field in dataclasses.fields(choice)}
            fit = optimize(
                **sizes,
                participation=participation,
                n=n,
                eps=eps,
                delta=delta,
                objective=search.objective,
                workload=search.workload,
                compare=search.compare,
                cache=search.cache,
                **shared,
            )
            found, independent = fit.calibration, fit.identity_calibration
    except (UnsupportedCombinationError, UnattainableBudgetError, NumericalError) as error:
        refusal = error
    return Trial(choice, participation, found, refusal, time.perf_counter() - start, independent)


# More exponentials, or bands of C^-1, gain little, and take long to fit.
_MOST_BUFFERS, _MOST_INVERSE_BANDS = 4, 16
# More bands of C than two participations of an example are apart raise the sensitivity, and the error of a
# fit, unless these are hardly apart.
_FEW_BANDS, _MOST_BANDS = 64, 512
# The time of a fit of all entries grows as n^3.
_MOST_DENSE_STEPS = 256


def _apart(participation: Participation, n: int) -> int:
    """Least number of steps between two participations of an example; n if there is only one."""
    pattern = participation.pattern(n)
    return n if pattern.max_participations == 1 else min(pattern.min_sep, n)


def choices(participation: Participation, n: int, max_vectors: int) -> list[Choice]:
    """What `recommend` tries under a participation: independent noise, and families within the limit.

    A family that needs no more vectors and contains another one replaces it, but for LambdaCGD, whose vector
    need not be stored.

    Args:
        participation: which examples take part when.
        n: number of steps.
        max_vectors: as for `recommend`.
    """
    structure = scheme_of(participation).structure(participation)
    bands = min(max_vectors + 1, n, n if structure.cycle is None else structure.cycle)
    found: list[Choice] = [Identity(n)]
    if bands == 1 or structure.not_fitted is not None:
        return found
    apart = _apart(participation, n) if structure.cycle is None else bands
    if structure.cycle is None:
        found += [FamilySizes(LambdaCGD), FamilySizes(BLT, buffers=min(max_vectors, _MOST_BUFFERS))]
    # With two bands C is a BLT, and C^-1 that of LambdaCGD.
    if bands > 2 or structure.cycle is not None:
        most = apart if apart > 2 else _FEW_BANDS
        found.append(FamilySizes(BandedToeplitz, bands=min(bands, most, _MOST_BANDS)))
    if bands > 2 and structure.cycle is None:
        found.append(FamilySizes(BandedInverse, bands=min(bands, _MOST_INVERSE_BANDS)))
    if n <= _MOST_DENSE_STEPS and min(bands, apart) > 1:
        # As many bands as the sensitivity allows, which may be more than two participations are apart.
        found.append(FamilySizes(Dense, bands=None if max_vectors >= n - 1 else min(bands, apart)))
    return found


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """The strategy and participation with the lowest error, and all trials.

    Attributes:
        calibration: a Calibration of the best strategy under its participation.
        trials: all trials in order, including those that were refused.
        max_vectors: the requested limit.
        workload: the workload of the error; None is the prefix sum.

    Examples:
        >>> import dpmech as dm
        >>> best = dm.recommend(
        ...     dataset_size=1000, batch_size=100, epochs=1, eps=2.0, delta=1e-5, max_vectors=0,
        ...     samplings=("poisson",),
        ... )
        >>> best.strategy, best.participation, len(best.trials)
        (Identity(n=10), Poisson(sampling_prob=0.1), 1)
    """

    calibration: Calibration
    trials: tuple[Trial, ...]
    max_vectors: int
    workload: Workload | None = None

    @property
    def strategy(self) -> Strategy:
        """The best strategy."""
        return self.calibration.strategy

    @property
    def participation(self) -> Participation:
        """Its participation."""
        return self.calibration.participation

    @property
    def words(self) -> str:
        """The choice in one line."""
        cal, cost = self.calibration, noise_cost(self.calibration.strategy)
        own = cal.rmse(workload=self.workload)
        alone = [
            one.calibration.rmse(workload=self.workload)
            for one in self.trials
            if one.calibration is not None and isinstance(one.choice, Identity)
        ]
        less = ""
        if min(alone, default=own) > own:
            less = f", {times(min(alone), own, 3)}x lower than with independent noise"
        vectors = "vector" if cost.buffers == 1 else "vectors"
        stored = (
            f"{cost.buffers} {vectors} of the model's size ({cost.bytes_per_parameter} bytes a parameter)"
        )
        return (
            f"{cal.strategy!r} under {cal.participation!r}: RMSE {up(own)}{less}; the noise stores {stored}, "
            f"and regenerates {cost.regenerated} every step"
        )

    def __str__(self) -> str:
        return "\n".join([self.words, *(one.described(self.workload) for one in self.trials)])


# Correlation whose gain is within rounding does not justify its vectors.
_TIE = 1e-9


def chosen(trials: Sequence[Trial], max_vectors: int, workload: Workload | None = None) -> Recommendation:
    """The trial with the least RMSE at its calibrated sigma; of equals the one with fewer vectors.

    Raises:
        UnsupportedCombinationError: if all were refused, the first refusal, that of independent noise; also
            UnattainableBudgetError and NumericalError.
    """

    def badness(one: Trial) -> tuple[float, int]:
        rmse = cast(Calibration, one.calibration).rmse(workload=workload)
        return rmse * (1.0 + _TIE * (one.vectors > 0)), one.vectors

    # The noise of a fitted matrix may need more vectors than its bands.
    found = [one for one in trials if one.calibration is not None and one.vectors <= max_vectors]
    if not found:
        raise cast(Exception, trials[0].refusal)
    best = cast(Calibration, min(found, key=badness).calibration)
    return Recommendation(best, tuple(trials), max_vectors, workload)


def check_vectors(max_vectors: object) -> int:
    """Return an integer >= 0, else raise InvalidParameterError."""
    return check_integer("max_vectors", max_vectors, minimum=0)


def recommend_under(
    participations: Sequence[Participation],
    *,
    n: int,
    eps: float,
    delta: float,
    max_vectors: int,
    search: Search,
) -> Recommendation:
    """The strategy with the least error under any of several participations; see `dpmech.recommend`."""
    most = check_vectors(max_vectors)
    calls = [(choice, own) for own in participations for choice in choices(own, n, most)]
    alone = dataclasses.replace(search, compare=False)  # independent noise is a trial of its own
    trials = [tried(*call, n, eps, delta, alone, calls=len(calls)) for call in calls]
    return chosen(trials, most, search.workload)
