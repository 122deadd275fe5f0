"""The main job: the noise scale that a budget needs, and the budget that a noise scale meets."""

import dataclasses
import math

import numpy as np

from dpmech.accounting.accountant import Progress
from dpmech.accounting.dispatch import accountant_for
from dpmech.accounting.methods import Method, check_method
from dpmech.bounds import Bounds
from dpmech.budget import Adjacency, PrivacyBudget, check_delta, check_eps, check_sigma
from dpmech.exceptions import HorizonError, InvalidParameterError, NumericalError, check_integer, check_real
from dpmech.objectives import decoder_norm, decoder_row_norm
from dpmech.participation import EveryStep, Participation, check_participation
from dpmech.strategies.base import Strategy, check_strategy
from dpmech.workloads import Workload

__all__ = ["Calibration", "calibrate_sigma", "delta", "epsilon"]

# That of a calibration at the default rtol, so that delta at its sigma is what the calibration saw.
_EVALUATION_TOLERANCE = 4e-4


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A noise scale, and everything its guarantee rests on.

    Attributes:
        strategy: C.
        participation: who takes part when: the sampler must realise exactly this.
        adjacency: between which datasets the budget holds.
        budget: the (eps, delta) asked for.
        sigma: standard deviation of the i.i.d. Z in C G + sigma Z at clip norm 1. The sensitivity is
            inside it.
        sensitivity: what sigma is divided by to give `noise_multiplier`.
        achieved: bounds on eps at `budget.delta`; `achieved.upper <= budget.eps`.
        method: how it was found.
        guarantee: "exact", "deterministic upper bound", "with probability 1 - beta" or "estimate".
    """

    strategy: Strategy
    participation: Participation
    adjacency: Adjacency
    budget: PrivacyBudget
    sigma: float
    sensitivity: Bounds
    achieved: Bounds
    method: str
    guarantee: str

    def __float__(self) -> float:
        return self.sigma

    @property
    def noise_multiplier(self) -> float:
        """Sigma over the sensitivity: for Poisson sampling, what accountants take."""
        return self.sigma / self.sensitivity.upper

    def rmse(self, *, workload: Workload | None = None) -> float:
        """||B||_F sigma / sqrt(n) in units of the clip norm, amplified where sigma is."""
        return decoder_norm(self.strategy, workload=workload) * self.sigma

    def max_se(self, *, workload: Workload | None = None) -> float:
        """max_i ||B[i, :]|| sigma in units of the clip norm, amplified where sigma is."""
        return decoder_row_norm(self.strategy, workload=workload) * self.sigma

    def noise_variance(self, step: int, clip_norm: float, batch_size: float) -> float:
        """Phi_t: variance per coordinate of the noise in the averaged gradient of one step.

        (sigma clip_norm / batch_size)^2 ||C^-1[step, :]||^2, in units of the gradient squared.

        Args:
            step: t in [0, n - 1].
            clip_norm: > 0.
            batch_size: the public normaliser, > 0: expected batch size times accumulation steps times
                world size (noise is added once).

        Raises:
            HorizonError: past the last step.
            InvalidParameterError: on a bad argument.

        References:
            noise_share eq. 1, for a general C^-1.
        """
        index = check_integer("step", step, minimum=0)
        if index >= self.strategy.n:
            raise HorizonError(index, self.strategy.n)
        clip = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
        size = check_real("batch_size", batch_size, minimum=0.0, open_minimum=True)
        scale = self.sigma * clip / size
        return float((scale * self.strategy.noising_row_norms()[index]) ** 2)


def calibrate_sigma(
    strategy: Strategy,
    eps: float,
    delta: float,
    *,
    participation: Participation | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    rtol: float = 1e-3,
    method: Method | None = None,
    rng: np.random.Generator | int | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """The smallest noise scale whose mechanism is (eps, delta)-differentially private.

    Args:
        strategy: C, over as many steps as will be run.
        eps: > 0.
        delta: in (0, 1).
        participation: who takes part when; None is EveryStep, which only over-protects.
        adjacency: ADD_REMOVE, ZERO_OUT or REPLACE_ONE (refused under sampling).
        rtol: sigma is at most (1 + rtol) times the smallest valid one, in [1e-6, 0.5]. Analytic cases
            ignore it. Where only a bound on the sensitivity is known, or method is Rdp, that is the
            smallest one which the bound certifies.
        method: None for the best valid accountant, or a method object.
        rng: for randomised methods only; None takes entropy from the operating system.
        progress: called with one line of text for every probe.

    Returns:
        A Calibration, on the safe side: `achieved.upper <= eps` and the upper bound on delta at eps is
        at most `delta`, both re-checked at the returned sigma. Its `guarantee` says how sure that is.

    Raises:
        InvalidParameterError: on a bad argument.
        UnsupportedCombinationError: if no theorem covers the combination.
        UnattainableBudgetError: if no finite sigma meets the budget.
        NumericalError: if a tolerance is missed; never a number instead.

    Examples:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(3900, 0.9), 8.0, 1e-5, participation=dm.MinSep(390, 10))
        >>> round(cal.sigma, 3), round(cal.rmse(), 2), cal.guarantee
        (4.355, 19.71, 'exact')
    """
    check_strategy(strategy)
    budget = PrivacyBudget(eps, delta)
    schema = EveryStep() if participation is None else check_participation(participation)
    tolerance = check_real("rtol", rtol, minimum=1e-6, maximum=0.5)
    accountant = accountant_for(
        strategy, schema, Adjacency.check(adjacency), check_method(method), check_rng(rng)
    )
    solution = accountant.calibrate(
        budget.eps, budget.delta, rtol=tolerance, progress=progress if progress is not None else _silent
    )
    if not (math.isfinite(solution.sigma) and solution.sigma > 0.0 and solution.achieved.upper <= budget.eps):
        raise NumericalError(f"calibration ended on the wrong side: {solution!r} for {budget!r}")
    return Calibration(
        strategy=strategy,
        participation=schema,
        adjacency=adjacency,
        budget=budget,
        sigma=solution.sigma,
        sensitivity=accountant.sensitivity,
        achieved=solution.achieved,
        method=solution.achieved.method,
        guarantee=accountant.guarantee,
    )


def epsilon(
    strategy: Strategy,
    sigma: float,
    delta: float,
    *,
    participation: Participation | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: Method | None = None,
    rng: np.random.Generator | int | None = None,
) -> Bounds:
    """Bounds on the smallest eps >= 0 at `delta` of C G + sigma Z.

    Args:
        strategy: C.
        sigma: standard deviation of Z at clip norm 1, > 0.
        delta: in (0, 1).
        participation: as for `calibrate_sigma`.
        adjacency: as for `calibrate_sigma`.
        method: as for `calibrate_sigma`.
        rng: as for `calibrate_sigma`.

    Returns:
        Bounds; exact without sampling. Errors as for `calibrate_sigma`.

    Examples:
        >>> import dpmech as dm
        >>> round(dm.epsilon(dm.Identity(1), 1.0, 1e-5, participation=dm.SingleParticipation()).upper, 4)
        4.3772
    """
    check_strategy(strategy)
    checked_sigma, checked_delta = check_sigma(sigma), check_delta(delta)
    schema = EveryStep() if participation is None else check_participation(participation)
    accountant = accountant_for(
        strategy, schema, Adjacency.check(adjacency), check_method(method), check_rng(rng)
    )
    return accountant.epsilon(checked_sigma, checked_delta, tolerance=_EVALUATION_TOLERANCE)


def delta(
    strategy: Strategy,
    sigma: float,
    eps: float,
    *,
    participation: Participation | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    method: Method | None = None,
    rng: np.random.Generator | int | None = None,
) -> Bounds:
    """Bounds on the smallest delta at `eps` >= 0 of C G + sigma Z; arguments and errors as for `epsilon`.

    Examples:
        >>> import dpmech as dm
        >>> value = dm.delta(dm.Identity(1), 0.60022907, 8.0, participation=dm.SingleParticipation())
        >>> f"{value.upper:.4g}"
        '1e-05'
    """
    check_strategy(strategy)
    checked_sigma, checked_eps = check_sigma(sigma), check_eps(eps, zero_allowed=True)
    schema = EveryStep() if participation is None else check_participation(participation)
    accountant = accountant_for(
        strategy, schema, Adjacency.check(adjacency), check_method(method), check_rng(rng)
    )
    return accountant.delta(checked_sigma, checked_eps, tolerance=_EVALUATION_TOLERANCE)


def check_rng(value: object) -> np.random.Generator | None:
    """Return a Generator, or None for None; anything but a Generator or an integer seed >= 0 is refused."""
    if value is None or isinstance(value, np.random.Generator):
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InvalidParameterError("rng", value, "None, a numpy.random.Generator or an integer >= 0")
    return np.random.default_rng(int(value))


def _silent(line: str) -> None:
    del line
