"""Rough sigmas under Balls-in-Bins, for comparisons: small samples of the estimator, one seed for all.

A sample of 8192 has delta to a few per cent, hence sigma to a few tenths of one, and much of that is common
to neighbouring strategies. Nothing here enters a guarantee.
"""

import dataclasses
import math

import numpy as np

from dpmech.accounting.balls_in_bins.dominating_pair import bin_gram
from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.moments import rough_log_delta
from dpmech.accounting.balls_in_bins.proposals import AddProposal, Proposal, RemoveProposal
from dpmech.accounting.balls_in_bins.sampling.blocks import draw_entropy, weight_sample
from dpmech.accounting.balls_in_bins.sampling.confidence import summarise
from dpmech.accounting.balls_in_bins.sampling.estimate import FLOORS, STAGES, adapt, pilot_size
from dpmech.accounting.sigma_search import gaussian_scale
from dpmech.exceptions import NumericalError
from dpmech.mechanism import Strategy
from dpmech.numerics import FloatArray, safe_root

__all__ = ["ENTROPY", "RoughSigma", "RoughSizer"]

ENTROPY = draw_entropy(np.random.default_rng(20260101))
_SIZE = 2
_PROBES = 8
# A last step this short, in log sigma, needs no probe of its own.
_CLOSE = 0.03
_EXACT = 1e-3
_LARGEST_STEP = 0.7
_SLOPES = (0.3, 3.0)
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
class RoughSizer:
    """Sigma for (eps, delta) from a small sample.

    Args:
        bins: b, a divisor of n.
        eps: > 0.
        delta: in (0, 1).
    """

    bins: int
    eps: float
    delta: float

    def by_moments(self, strategy: Strategy) -> float:
        """A sigma from the moment bound, at most that without amplification; it costs next to nothing.

        Raises:
            UnsupportedCombinationError: for a signed C.
        """
        gram = bin_gram(strategy, self.bins)
        target = gaussian_scale(self.eps, self.delta)

        def excess(log_sigma: float) -> float:
            value = rough_log_delta(gram.scaled(math.exp(-2.0 * log_sigma)), self.eps)
            return gaussian_scale(self.eps, math.exp(max(value, -600.0))) - target

        unamplified = target + 0.5 * math.log(float(gram.diagonal.max()))
        if excess(unamplified) <= 0.0:
            return math.exp(unamplified)
        return math.exp(safe_root(excess, unamplified, step=0.3, resolution=0.1))

    def __call__(self, strategy: Strategy, guess: float | None = None) -> RoughSigma:
        """The sigma of a strategy: a secant in log sigma.

        Args:
            strategy: C >= 0.
            guess: a sigma to start at; None takes that of the moment bound.

        Raises:
            UnsupportedCombinationError: for a signed C.
            NumericalError: if the secant does not settle.
        """
        gram = bin_gram(strategy, self.bins)
        target = gaussian_scale(self.eps, self.delta)
        start = here = math.log(self.by_moments(strategy) if guess is None else guess)
        known: dict[tuple[str, tuple[str, ...]], FloatArray] = {}
        before: tuple[float, float] | None = None
        for _ in range(_PROBES):
            value, add = self._delta(gram.scaled(math.exp(-2.0 * here)), known)
            excess = gaussian_scale(self.eps, value) - target
            slope = 1.0
            if before is not None and here != before[0]:
                slope = min(max((excess - before[1]) / (here - before[0]), _SLOPES[0]), _SLOPES[1])
            before = (here, excess)
            step = min(max(-excess / slope, -_LARGEST_STEP), _LARGEST_STEP)
            here += step
            if abs(step) <= (_EXACT if here == start + step else _CLOSE):
                return RoughSigma(math.exp(here), gram.scaled(math.exp(-2.0 * here)), add)
            if abs(here - start) > _FARTHEST:
                break
        raise NumericalError(f"no rough sigma for {strategy!r}: the estimates do not settle")

    def _delta(
        self, gram: BinGram, known: dict[tuple[str, tuple[str, ...]], FloatArray]
    ) -> tuple[float, bool]:
        """Delta, and whether ADD decides; the first call adapts the proposals, later ones take them over."""
        found: dict[str, float] = {}
        proposals: dict[str, Proposal] = {
            "remove": RemoveProposal.at(gram, self.eps),
            "add": AddProposal.at(gram, self.eps),
        }
        for name, proposal in proposals.items():
            if found and proposal.log_weight_bound < found["remove"]:
                continue
            key = (name, proposal.names)
            if key not in known:
                floors = FLOORS if name == "remove" else {}
                known[key] = adapt(proposal, ENTROPY, STAGES[name], None, floors).weights
            sample = weight_sample(
                proposal.reweighted(known[key]),
                ENTROPY,
                STAGES[name].sizing,
                _SIZE * pilot_size(gram.bins),
            )
            found[name] = summarise(sample.log_weights).log_mean
        return math.exp(max(found.values())), found.get("add", -math.inf) > found["remove"]
