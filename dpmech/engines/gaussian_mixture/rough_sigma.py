"""Rough values of sigma and eps from one small sample: start values, and the range of eps for sampling.

About 10,000 weights give delta to a few per cent, hence sigma to a few tenths of one per cent, and much of
that error is common to nearby sigmas and strategies, which share the random numbers. No guarantee uses these
values.
"""

import concurrent.futures
import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

from dpmech.engines.gaussian import gaussian_delta, gaussian_epsilon, gaussian_log_delta, gaussian_sigma
from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.mixtures import add_mixture, remove_mixture
from dpmech.engines.gaussian_mixture.moments import rough_log_delta
from dpmech.engines.gaussian_mixture.pilots import BARE_FLOORS, adapt, pilot_size
from dpmech.engines.gaussian_mixture.proposal import Proposal
from dpmech.engines.gaussian_mixture.samples import summarise, weight_sample
from dpmech.engines.gaussian_mixture.streams import ADD, REMOVE, DirectionStages
from dpmech.engines.sigma_search import gaussian_scale
from dpmech.exceptions import NumericalError, UnattainableBudgetError
from dpmech.numerics import ELEMENTARY, UNIT, safe_root, sum_up, up

# Smallest eps of the samplers; below it delta is bounded by its slope.
_SMALLEST_EPS = 1e-4

_LARGEST_EPS = 1e4


def delta_below(upper: float, sampled: float, eps: float, multiplier: float) -> float:
    """An upper bound on delta at eps from one at `sampled` >= eps, and from the bound without amplification.

    Both divergences decrease in e^eps with a slope between -1 and 0, being integrals of (p - e^eps q)_+.
    """
    if eps >= sampled:
        return upper
    # Errors of exp and expm1, of the difference in its argument (at most 1e-4, so that it enters with slope
    # about 1), and of two products; the sum is rounded up.
    slack = math.exp(eps) * math.expm1(sampled - eps) * (1.0 + 2.0 * ELEMENTARY + 5.0 * UNIT)
    return min(1.0, sum_up((upper, slack)), gaussian_delta(multiplier, eps)[1])


def check_reach(log_eps: float, sigma: float, delta: float) -> None:
    """Raise NumericalError if eps is above the range of all samplers here."""
    if log_eps > math.log(_LARGEST_EPS):
        raise NumericalError(
            f"eps at sigma={sigma!r}, delta={delta!r} is above {_LARGEST_EPS:g}, beyond what can be sampled; "
            "Rdp() has a bound"
        )


class _TooLargeError(OverflowError):
    """Sigma would exceed 1e15."""


# The current mixtures, and the point (log sigma, or log eps) for which their probabilities were adapted.
Adapted: TypeAlias = dict[DirectionStages, tuple[Proposal, float]]

# Once probes are this close, in log, the line through the last two is accurate enough.
_RESOLUTION = 0.03
# Approximate slope, in logs, of the noise scale of the Gaussian with the same delta against sigma.
_SLOPE = 1.0
_LARGEST_STEP = 0.7
# Probes that are further apart than this, in log, do not share probabilities.
_NEAR = 0.25
_ROUNDS = 2
_PROBES = 25
# The moment bound is too high by a factor of about e^3, but no delta exceeds 1: large ones are corrected
# less.
_MOMENT_EXCESS, _OF_LOG_DELTA = 3.0, 0.9
# Limit on the distance from the start value, in log.
_FARTHEST = 12.0


@dataclasses.dataclass(frozen=True, eq=False)
class RoughSigma:
    """The point where delta approximately meets its target.

    Attributes:
        sigma: the noise scale.
        gram: the Gram matrix of the bins at that sigma.
        add: whether the ADD direction decides.
        parts: names of the parts of the mixtures that are useful there.
    """

    sigma: float
    gram: BinGram
    add: bool
    parts: frozenset[str]


@dataclasses.dataclass(frozen=True)
class RoughSample:
    """One small sample, with the same random numbers for every Gram matrix, sigma and eps.

    The first probe of a search adapts the probabilities of the proposals; later probes near it reuse them.

    Args:
        entropy: seeds of its blocks; its stages are not used by any result.
        pilots: sample size in pilot rounds, >= 1.
        executor: where to run blocks; None runs them in this process.
    """

    entropy: tuple[int, ...]
    pilots: int = 4
    executor: concurrent.futures.Executor | None = None

    def sigma(
        self,
        gram: BinGram,
        eps: float,
        delta: float,
        *,
        sensitivity: float | None = None,
        guess: float | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> RoughSigma:
        """The sigma at which delta(eps) is about `delta`, accurate to about 1 %.

        Args:
            gram: the Gram matrix at sigma 1.
            eps: > 0.
            delta: in (0, 1).
            sensitivity: sensitivity without amplification; None uses the largest norm of a bin.
            guess: start value of sigma; None uses that of the moments.
            progress: called with a message for every probe.

        Raises:
            UnattainableBudgetError: if sigma would exceed 1e15.
            NumericalError: if the estimates do not converge, or eps is above 1e4.
        """
        if eps > _LARGEST_EPS:
            raise NumericalError(
                f"eps={eps!r} is above {_LARGEST_EPS:g}, beyond what can be sampled: a method without "
                "samples may have a bound"
            )
        target = gaussian_scale(eps, delta)
        adapted: Adapted = {}
        probes: dict[float, tuple[float, bool]] = {}
        try:
            first = self.moment_sigma(gram, eps, delta, sensitivity=sensitivity) if guess is None else guess
            start = math.log(first)

            def excess(log_sigma: float) -> float:
                if abs(log_sigma - start) > _FARTHEST:
                    raise NumericalError(
                        f"no sigma near {first!r} has delta={delta!r} at eps={eps!r}: {gram!r}"
                    )
                sigma = math.exp(log_sigma)
                value, add = self._delta(gram.scaled(sigma**-2), eps, log_sigma, adapted)
                progress(f"rough: sigma {up(sigma, 4)}: delta about {up(value, 3)}")
                probes[log_sigma] = gaussian_scale(eps, value) - target, add
                return probes[log_sigma][0]

            found = math.exp(_root(excess, start, _SLOPE))
        except _TooLargeError:
            raise UnattainableBudgetError(eps, delta, "sigma would exceed 1e15") from None
        except OverflowError:
            raise NumericalError(
                f"likelihood ratios at eps={eps!r} leave the range of float64: a method without samples may "
                "have a bound"
            ) from None
        nearest = min(probes, key=lambda at: abs(probes[at][0]))
        parts = frozenset(name for proposal, _ in adapted.values() for name in proposal.names)
        return RoughSigma(found, gram.scaled(found**-2), probes[nearest][1], parts)

    def moment_sigma(
        self, gram: BinGram, eps: float, delta: float, *, sensitivity: float | None = None
    ) -> float:
        """A sigma from the moments, at most that without amplification; uses no sampling.

        Arguments as for `sigma`.

        Raises:
            OverflowError: if sigma would exceed 1e15.
        """
        largest = math.sqrt(float(gram.diagonal.max())) if sensitivity is None else sensitivity
        target = gaussian_scale(eps, delta)

        def excess(log_sigma: float) -> float:
            # The order of the moment bound is limited, so that it does not vanish.
            value = rough_log_delta(gram.scaled(math.exp(-2.0 * log_sigma)), eps) - _moment_excess(delta)
            value = min(value, gaussian_log_delta(math.exp(log_sigma) / largest, eps)[0])
            return gaussian_scale(eps, math.exp(max(value, -700.0))) - target

        unamplified = math.log(gaussian_sigma(eps, delta) * largest)
        return math.exp(min(unamplified, safe_root(excess, unamplified, step=0.1, resolution=0.01)))

    def epsilon(self, gram: BinGram, sigma: float, delta: float, *, sensitivity: float) -> float:
        """The eps at which delta(eps) is about `delta`, accurate to about 1 %; 0 if it is about 1e-4 or less.

        Args:
            gram: the Gram matrix at sigma 1.
            sigma: > 0.
            delta: in (0, 1).
            sensitivity: sensitivity without amplification.

        Raises:
            NumericalError: if it is beyond the range of sampling, or the estimates do not converge.
        """
        adapted: Adapted = {}
        scaled = gram.scaled(sigma**-2)
        smallest = math.log(_SMALLEST_EPS)

        def by_moments(log_eps: float) -> float:
            if log_eps <= smallest:
                return -1.0
            value = rough_log_delta(scaled, math.exp(log_eps)) - _moment_excess(delta)
            alone = gaussian_log_delta(sigma / sensitivity, math.exp(log_eps))[0]
            return math.log(delta) - max(min(value, alone), -1e6)

        def by_sample(log_eps: float) -> float:
            check_reach(log_eps, sigma, delta)
            value, _ = self._delta(scaled, math.exp(max(log_eps, smallest)), log_eps, adapted)
            return math.log(delta) - math.log(max(value, 1e-300))

        unamplified = gaussian_epsilon(sigma / sensitivity, delta, safe=True)
        if unamplified <= 2.0 * _SMALLEST_EPS:
            return 0.0
        start = min(
            math.log(unamplified), safe_root(by_moments, math.log(unamplified), step=0.1, resolution=0.01)
        )
        root = _root(by_sample, start, max(1.0, -math.log(delta)), lowest=smallest)
        return math.exp(root) if root > smallest + 0.1 else 0.0

    def _delta(self, gram: BinGram, eps: float, point: float, adapted: Adapted) -> tuple[float, bool]:
        """Delta without an interval, and whether ADD decides."""
        found: list[float] = []
        for stages, make in ((REMOVE, remove_mixture), (ADD, add_mixture)):
            known, where = adapted.get(stages, (None, math.inf))
            near = known is not None and abs(where - point) <= _NEAR
            proposal = make(gram, eps, known.names if known is not None and near else None)
            if found and proposal.log_weight_bound < found[0]:
                continue
            if known is not None and near and known.names == proposal.names:
                proposal = proposal.reweighted(known.weights)
            else:
                proposal = adapt(
                    proposal, self.entropy, stages, self.executor, BARE_FLOORS, prune=True, rounds=_ROUNDS
                )
                adapted[stages] = proposal, point
            size = self.pilots * pilot_size(gram.bins)
            weights = weight_sample(proposal, self.entropy, stages.sizing, size, self.executor)
            found.append(summarise(weights.log_weights).log_mean)
        return math.exp(max(found)), found[-1] > found[0]


def _root(
    excess: Callable[[float], float], start: float, slope: float, *, lowest: float = -math.inf
) -> float:
    """Approximate root of an increasing function, by secants.

    Args:
        excess: the function.
        start: start value.
        slope: approximate slope there.
        lowest: lower end of the search range.

    Raises:
        OverflowError: if the root is above log 1e15.
        NumericalError: if it does not converge.
    """
    here, value = max(start, lowest), excess(max(start, lowest))
    for _ in range(_PROBES):
        step = min(max(-value / slope, -_LARGEST_STEP), _LARGEST_STEP)
        if abs(step) <= _RESOLUTION or (here <= lowest and step < 0.0):
            return here + step
        if here + step > math.log(1e15):
            raise _TooLargeError
        there = max(here + step, lowest)
        moved = excess(there)
        secant = (moved - value) / (there - here) if there != here else slope
        # Limits the change of slope where delta was cut off, or noise dominates.
        slope = min(max(secant, 0.3 * slope), 3.0 * slope)
        here, value = there, moved
    raise NumericalError(f"no root found within {_PROBES} probes: the estimates do not settle")


def _moment_excess(delta: float) -> float:
    return min(_MOMENT_EXCESS, -_OF_LOG_DELTA * math.log(delta))
