"""Rough sigmas and eps under Balls-in-Bins from one small sample: where searches start, and how fits compare.

Some 10,000 weights have delta to a few per cent, hence sigma to a few tenths of one, and much of that is
common to neighbouring sigmas and strategies, which share the random numbers. Nothing here enters a guarantee.
"""

import concurrent.futures
import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.moments import rough_log_delta
from dpmech.accounting.balls_in_bins.proposals import AddProposal, Proposal, RemoveProposal
from dpmech.accounting.balls_in_bins.sampling.blocks import weight_sample
from dpmech.accounting.balls_in_bins.sampling.confidence import summarise
from dpmech.accounting.balls_in_bins.sampling.estimate import FLOORS, adapt, pilot_size
from dpmech.accounting.balls_in_bins.sampling.reach import _SMALLEST_EPS, check_reach
from dpmech.accounting.balls_in_bins.streams import ADD, REMOVE, DirectionStages
from dpmech.accounting.gaussian import gaussian_epsilon, gaussian_log_delta, gaussian_sigma
from dpmech.accounting.sigma_search import gaussian_scale
from dpmech.exceptions import NumericalError, UnattainableBudgetError
from dpmech.numerics import FloatArray, safe_root, up

__all__ = ["RoughSample", "RoughSigma"]

Adapted: TypeAlias = dict[tuple[DirectionStages, tuple[str, ...]], FloatArray]

# Between probes this close, in log, the line through them is straight.
_RESOLUTION = 0.04
# The moment bound is about e^3 times too high.
_MOMENT_EXCESS = 3.0
# No start is this far off, in log.
_FARTHEST = 12.0


@dataclasses.dataclass(frozen=True, eq=False)
class RoughSigma:
    """Where delta about meets its target.

    Attributes:
        sigma: the noise scale.
        gram: the Gram matrix of the bins at that sigma.
        add: whether the ADD direction decides.
    """

    sigma: float
    gram: BinGram
    add: bool


@dataclasses.dataclass(frozen=True)
class RoughSample:
    """One small sample, with the same random numbers for every Gram matrix, sigma and eps it is asked about.

    In one search the first probe adapts the probabilities of the proposals; later ones, near it, take them
    over.

    Args:
        entropy: seeds of its blocks; its stages are those that no result counts on.
        pilots: its size, in pilot rounds, >= 1.
        executor: where its blocks run; None runs them here.
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
        """The sigma at which delta(eps) is about `delta`, within about 1 % of the right one.

        Args:
            gram: the Gram matrix at sigma 1.
            eps: > 0.
            delta: in (0, 1).
            sensitivity: without amplification; None takes the largest norm of a bin.
            guess: a sigma to start at; None takes that of the moments.
            progress: told about every probe.

        Raises:
            UnattainableBudgetError: if sigma would exceed 1e15.
            NumericalError: if the estimates do not settle.
        """
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
                value, add = self._delta(gram.scaled(sigma**-2), eps, adapted)
                progress(f"rough: sigma {up(sigma, 4)}: delta about {up(value, 3)}")
                probes[log_sigma] = gaussian_scale(eps, value) - target, add
                return probes[log_sigma][0]

            safe_root(excess, start, step=0.03, resolution=_RESOLUTION)
        except OverflowError:
            raise UnattainableBudgetError(eps, delta, "sigma would exceed 1e15") from None
        found = math.exp(_interpolated([(at, value) for at, (value, _) in probes.items()]))
        nearest = min(probes, key=lambda at: abs(probes[at][0]))
        return RoughSigma(found, gram.scaled(found**-2), probes[nearest][1])

    def moment_sigma(
        self, gram: BinGram, eps: float, delta: float, *, sensitivity: float | None = None
    ) -> float:
        """A sigma from the moments, at most that without amplification; it draws nothing.

        Arguments as for `sigma`.

        Raises:
            OverflowError: if sigma would exceed 1e15.
        """
        largest = math.sqrt(float(gram.diagonal.max())) if sensitivity is None else sensitivity
        target = gaussian_scale(eps, delta)

        def excess(log_sigma: float) -> float:
            # The orders of the moment bound end, so that it does not vanish.
            value = rough_log_delta(gram.scaled(math.exp(-2.0 * log_sigma)), eps) - _MOMENT_EXCESS
            value = min(value, gaussian_log_delta(math.exp(log_sigma) / largest, eps)[0])
            return gaussian_scale(eps, math.exp(max(value, -700.0))) - target

        unamplified = math.log(gaussian_sigma(eps, delta) * largest)
        return math.exp(min(unamplified, safe_root(excess, unamplified, step=0.1, resolution=0.01)))

    def epsilon(self, gram: BinGram, sigma: float, delta: float, *, sensitivity: float) -> float:
        """The eps at which delta(eps) is about `delta`, within about 1 %; 0 where it is about 1e-4 or less.

        Args:
            gram: the Gram matrix at sigma 1.
            sigma: > 0.
            delta: in (0, 1).
            sensitivity: without amplification.

        Raises:
            NumericalError: if it is beyond what can be sampled, or the estimates do not settle.
        """
        adapted: Adapted = {}
        scaled = gram.scaled(sigma**-2)
        smallest = math.log(_SMALLEST_EPS)
        probes: list[tuple[float, float]] = []

        def by_moments(log_eps: float) -> float:
            if log_eps <= smallest:
                return -1.0
            value = rough_log_delta(scaled, math.exp(log_eps)) - _MOMENT_EXCESS
            alone = gaussian_log_delta(sigma / sensitivity, math.exp(log_eps))[0]
            return math.log(delta) - max(min(value, alone), -1e6)

        def by_sample(log_eps: float) -> float:
            if log_eps <= smallest:
                return -1.0
            check_reach(log_eps, sigma, delta)
            value, _ = self._delta(scaled, math.exp(log_eps), adapted)
            probes.append((log_eps, math.log(delta) - math.log(max(value, 1e-300))))
            return probes[-1][1]

        unamplified = gaussian_epsilon(sigma / sensitivity, delta, safe=True)
        if unamplified <= 2.0 * _SMALLEST_EPS:
            return 0.0
        start = min(
            math.log(unamplified), safe_root(by_moments, math.log(unamplified), step=0.1, resolution=0.01)
        )
        root = safe_root(by_sample, start, step=0.05, resolution=_RESOLUTION)
        return math.exp(_interpolated(probes)) if root > smallest + 0.1 else 0.0

    def _delta(self, gram: BinGram, eps: float, adapted: Adapted) -> tuple[float, bool]:
        """Delta with no interval, and whether ADD decides."""
        found: list[float] = []
        proposals: tuple[Proposal, ...] = (RemoveProposal.at(gram, eps), AddProposal.at(gram, eps))
        for stages, proposal in zip((REMOVE, ADD), proposals, strict=True):
            if found and proposal.log_weight_bound < found[0]:
                continue
            known = adapted.get((stages, proposal.names))
            chosen = (
                adapt(proposal, self.entropy, stages, self.executor, FLOORS)
                if known is None
                else proposal.reweighted(known)
            )
            adapted[stages, proposal.names] = chosen.weights
            size = self.pilots * pilot_size(gram.bins)
            weights = weight_sample(chosen, self.entropy, stages.sizing, size, self.executor)
            found.append(summarise(weights.log_weights).log_mean)
        return math.exp(max(found)), found[-1] > found[0]


def _interpolated(probes: list[tuple[float, float]]) -> float:
    """The root of the line through the two probes nearest to it."""
    (x, fx), (y, fy) = sorted(probes, key=lambda probe: abs(probe[1]))[:2]
    return x if fx == fy else x - fx * (y - x) / (fy - fx)
