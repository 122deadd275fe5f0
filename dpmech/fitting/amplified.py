r"""Fitting under Balls-in-Bins: the error at the amplified sigma instead of at the sensitivity.

Amplification favours strategies closer to the Identity than the unamplified optimum, more so for smaller
eps. Two kinds of moves alternate, both by the derivative of sigma in the Gram matrix (`gram_gradient`):

- along the damping of a strategy: coefficients c_t become c_t tau^t, those of the inverse d_t tau^t (C and
  C^-1 conjugated by powers of tau), which preserves bands. For LambdaCGD the path is lambda itself;
- over all coefficients of a family (non-negative ones), with the quadratic form in place of the squared
  sensitivity.

Every visited point is evaluated by a rough sigma, with one set of random numbers for all of them; the final
calibrations of a fit are made by the caller.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.engines import RoughSample, RoughSigma, bin_gram
from dpmech.exceptions import NumericalError, UnattainableBudgetError, UnsupportedCombinationError
from dpmech.fitting.dense_program import fit_dense_form
from dpmech.fitting.descent import Objective, Problem, fit_form
from dpmech.fitting.families import Family
from dpmech.fitting.gram_gradient import ENTROPY, BinForm, responsibilities
from dpmech.mechanism import (
    BLT,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    LambdaCGD,
    PrivacyBudget,
    Strategy,
    Workload,
    decoder_norm,
    decoder_row_norm,
    per_step_error,
)
from dpmech.numerics import up
from dpmech.schemes.balls_in_bins import BallsInBins

# From a strategy and the form there: the path of strategies to a better one (at 1), and the predicted change
# of its log error.
Move = Callable[[Strategy, BinForm], tuple[Callable[[float], Strategy], float]]

# Two pilot rounds: strategies are compared on the same random numbers.
_SAMPLE = RoughSample(ENTROPY, pilots=2)
_NODES = 9
_PATH_STEPS = 6
_REACH = 1.5
# Moves along a path shorter than this (in log(1 / (1 - tau))), and gains below this, are ignored.
_SHORT = 0.03
_GAIN = 1e-3
# Largest relative difference of the rough values, on the same random numbers, of one optimum found twice.
_ALIKE = 1e-4
_ROUNDS = 6
# Range of tau: log(1 / (1 - tau)) is at most this.
_LONGEST = math.log(1e6)
_HUGE = 700.0
_STEP = 0.01
_MARGIN = 0.1


def error_at(strategy: Strategy, sigma: float, workload: Workload, objective: Objective) -> float:
    """The error of a strategy at a sigma."""
    if objective is Objective.RMSE:
        return decoder_norm(strategy, workload=workload) * sigma
    if objective is Objective.MAX_SE:
        return decoder_row_norm(strategy, workload=workload) * sigma
    return float(per_step_error(strategy, workload=workload)[-1]) * sigma


def damped(strategy: Strategy, tau: float) -> Strategy:
    """The strategy with its lag t scaled by tau^t, tau in [0, 1]; of the same class.

    Raises:
        UnsupportedCombinationError: for a class without free coefficients.
    """
    if isinstance(strategy, ColumnNormalized):
        return ColumnNormalized(damped(strategy.strategy, tau))
    if isinstance(strategy, LambdaCGD):
        return LambdaCGD(strategy.n, strategy.lam * tau)
    if isinstance(strategy, BandedToeplitz | BandedInverse):
        return type(strategy)(strategy.n, strategy.coefs * tau ** np.arange(strategy.coefs.size))
    if isinstance(strategy, BLT):
        return BLT(strategy.n, strategy.decays * tau, strategy.scales * tau)
    if isinstance(strategy, Dense):
        lags = np.arange(strategy.n)[:, None] - np.arange(strategy.n)[None, :]
        return Dense(np.tril(strategy.to_dense()) * tau ** np.maximum(lags, 0))
    raise UnsupportedCombinationError(
        f"{type(strategy).__name__} has no coefficients to damp",
        supported="LambdaCGD, BandedToeplitz, BandedInverse, BLT, Dense, and their column-normalised forms",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Sized:
    """A strategy with its rough sigma and its rough error."""

    strategy: Strategy
    rough: RoughSigma
    error: float

    def like(self, other: "Sized") -> bool:
        """Whether both are one optimum, up to where its descents ended."""
        pairs = (self.error, other.error), (self.rough.sigma, other.rough.sigma)
        return all(math.isclose(*pair, rel_tol=_ALIKE) for pair in pairs)


@dataclasses.dataclass(frozen=True, eq=False)
class AmplifiedSearch:
    """Searches for the smallest error at one budget under Balls-in-Bins.

    Args:
        bins: b, in [1, n]; the last epoch may be cut short.
        budget: eps and delta.
        workload: A.
        objective: the error to minimise.
        report: called for every point.
    """

    bins: int
    budget: PrivacyBudget
    workload: Workload
    objective: Objective
    report: Callable[[str], None]

    def sized(self, strategy: Strategy, guess: float | None = None) -> Sized | None:
        """A strategy with its rough error; None if it cannot be sized, for example with negative entries."""
        try:
            gram = bin_gram(strategy, self.bins)
            rough = _SAMPLE.sigma(gram, self.budget.eps, self.budget.delta, guess=guess)
        except (UnsupportedCombinationError, UnattainableBudgetError, NumericalError) as error:
            self.report(f"passed over: {error}")
            return None
        found = self._error(strategy, rough.sigma)
        self.report(
            f"{type(strategy).__name__}: sigma about {up(rough.sigma, 5)}, error about {up(found, 5)}"
        )
        return Sized(strategy, rough, found)

    def along(self, strategy: Strategy, to_beat: float = math.inf) -> Sized | None:
        """The best visited point on the damping path of a strategy; None if none can be sized.

        The start follows from the moment bound of sigma; next come the point where the derivative of sigma
        predicts the smallest error, and points between those whose slopes differ in sign. The path is left
        where the prediction is above the error `to_beat`.
        """
        longest = min(_LONGEST, math.log(4.0 * strategy.n + 10.0))

        def member(position: float) -> Strategy:
            return damped(strategy, -math.expm1(-position))

        nodes = np.linspace(0.0, longest, _NODES)
        start = float(nodes[int(np.argmin([self._by_moments(member(float(node))) for node in nodes]))])
        first = self.sized(member(start))
        if first is None:
            return None
        trail = [self._node(member, start, first, longest)]
        for _ in range(_PATH_STEPS):
            best = min(trail, key=lambda node: node.sized.error)
            target = _next_position(trail, best)
            if abs(target - best.position) < _SHORT or best.predicted > to_beat:
                break
            found = self._moved(best.sized, best.form, member(target))
            if found is None:
                break
            trail.append(self._node(member, target, found, longest))
        return min(trail, key=lambda node: node.sized.error).sized

    def over(self, move: Move, start: Sized) -> Sized:
        """The best visited point over all coefficients, from a member of the family, at worst that member.

        Every round tries the full step, and the minimum of the parabola through it with the slope at the
        start.
        """
        best = start
        for _ in range(_ROUNDS):
            here, form = best, self._form(best)
            between, gain = move(here.strategy, form)
            if gain > -_GAIN:
                break
            full = self._moved(here, form, between(1.0))
            rise = _HUGE if full is None else math.log(full.error / here.error)
            slope = self._log_error(here, form, between(_STEP)) - math.log(here.error)
            share = max(-0.5 * slope / max(_STEP * rise - slope, 1e-12), _MARGIN)
            part = None if share > 1.0 - _MARGIN else self._moved(here, form, between(share))
            tried = [one for one in (full, part) if one is not None]
            best = min([here, *tried], key=lambda one: one.error)
            if best.error > here.error * (1.0 - _GAIN):
                break
        return best

    def coefficient_move(self, family: Family) -> Move:
        """Steps over the coefficients of a Toeplitz family."""

        def move(strategy: Strategy, form: BinForm) -> tuple[Callable[[float], Strategy], float]:
            x = family.parameters(strategy)
            target, gain = fit_form(self._problem(strategy.n), family, form, x)
            return (lambda share: family.strategy(x + share * (target - x))), gain

        return move

    def dense_move(self, bands: int) -> Move:
        """Steps over all entries within `bands`."""
        return lambda strategy, form: fit_dense_form(
            self._problem(strategy.n), bands, form.responsible, strategy
        )

    def _problem(self, n: int) -> Problem:
        schema = BallsInBins(self.bins)
        return Problem(schema, n, self.workload, self.objective, column_normalized=False)

    def _error(self, strategy: Strategy, sigma: float) -> float:
        return error_at(strategy, sigma, self.workload, self.objective)

    def _by_moments(self, strategy: Strategy) -> float:
        try:
            gram = bin_gram(strategy, self.bins)
            sigma = _SAMPLE.moment_sigma(gram, self.budget.eps, self.budget.delta)
            return self._error(strategy, sigma)
        except (UnsupportedCombinationError, OverflowError, NumericalError):
            return math.inf

    def _moved(self, here: Sized, form: BinForm, strategy: Strategy) -> Sized | None:
        try:
            guess = self._guess(here, form, strategy)
        except (UnsupportedCombinationError, NumericalError):
            # `sized` has the same failure, and reports it.
            guess = None
        return self.sized(strategy, guess)

    def _log_error(self, here: Sized, form: BinForm, strategy: Strategy) -> float:
        """The log error predicted by the derivative at a point; very large for a strategy without a sigma."""
        try:
            return math.log(self._error(strategy, self._guess(here, form, strategy)))
        except (UnsupportedCombinationError, NumericalError):
            return _HUGE

    def _guess(self, here: Sized, form: BinForm, strategy: Strategy) -> float:
        """The sigma of another strategy predicted by the derivative at a point."""
        return here.rough.sigma * math.sqrt(form.value(strategy) / form.value(here.strategy))

    def _form(self, sized: Sized) -> BinForm:
        return BinForm(responsibilities(sized.rough, self.budget.eps))

    def _node(
        self, member: Callable[[float], Strategy], position: float, sized: Sized, longest: float
    ) -> "_Node":
        """Slope of the log error and position of the smallest error, from the derivative of sigma."""
        form = self._form(sized)

        def log_error(x: float) -> float:
            return self._log_error(sized, form, member(float(x)))

        other = position + (_STEP if position + _STEP <= longest else -_STEP)
        slope = (log_error(other) - log_error(position)) / (other - position)
        low, high = (0.0, position) if slope > 0.0 else (position, longest)
        low, high = max(low, position - _REACH), min(high, position + _REACH)
        target, predicted = position, math.log(sized.error)
        if high > low:
            found = scipy.optimize.minimize_scalar(
                log_error, bounds=(low, high), method="bounded", options={"xatol": _STEP}
            )
            target, predicted = float(found.x), float(found.fun)
            # The search excludes both ends, one of which is the Identity.
            target = low if target - low < 2.0 * _STEP else target
        return _Node(position, sized, form, slope, target, math.exp(predicted))


@dataclasses.dataclass(frozen=True, eq=False)
class _Node:
    """A point of a path; at `target` its derivative predicts the smallest error, `predicted`."""

    position: float
    sized: Sized
    form: BinForm
    slope: float
    target: float
    predicted: float


def _next_position(trail: list[_Node], best: _Node) -> float:
    """Between the best point and its neighbour downhill; the prediction if there is none."""
    downhill = [node for node in trail if (node.position - best.position) * best.slope < 0.0]
    if not downhill:
        return best.target
    other = min(downhill, key=lambda node: abs(node.position - best.position))
    share = 0.5
    if other.slope * best.slope < 0.0:
        share = min(max(best.slope / (best.slope - other.slope), _MARGIN), 1.0 - _MARGIN)
    return best.position + share * (other.position - best.position)
