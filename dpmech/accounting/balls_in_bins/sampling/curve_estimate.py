"""Delta at many eps, estimated by plain importance sampling, with what the sample is worth.

The proposals are those of the certified curve, for there is no better way to reach a delta of 1e-12; nothing
else is shared. No bets, no bounds on weights: means of weights and their standard errors, at eps that
somebody else chose.
"""

import concurrent.futures
import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.proposals import add_mixture, remove_mixture
from dpmech.accounting.balls_in_bins.sampling.adaptation import STAGES, adapt
from dpmech.accounting.balls_in_bins.sampling.blocks import draw_entropy, pilot_sample
from dpmech.accounting.balls_in_bins.sampling.confidence import summarise
from dpmech.numerics import FloatArray

__all__ = ["CurveEstimate", "estimate_curve"]

# Over so much of log delta eps share their draws, and how many of them do at most.
_STRETCH, _WIDEST = 4.0, 100
# Draws of a stretch at first, and at most; the relative standard error that is aimed at.
_FIRST, _MOST, _AIM = 8192, 65_536, 0.015
# No smaller delta is told apart.
_NOTHING = 1e-290


@dataclasses.dataclass(frozen=True, eq=False)
class CurveEstimate:
    """Estimates of one direction at given eps; all arrays of shape (m,).

    Attributes:
        delta: mean weights.
        relative_error: standard errors over the means; infinite where no draw had a weight.
        largest_share: the part of the sum that the largest weight has.
        samples: draws in all.
    """

    delta: FloatArray
    relative_error: FloatArray
    largest_share: FloatArray
    samples: int


def estimate_curve(
    gram: BinGram,
    eps: FloatArray,
    about: FloatArray,
    *,
    add: bool,
    rng: np.random.Generator | None,
    executor: concurrent.futures.Executor | None = None,
) -> CurveEstimate:
    """Delta of one direction at given eps.

    **Guarantee:** estimate; where a sample does not show the tail, `relative_error` and `largest_share` say
    so.

    Args:
        gram: the Gram matrix K.
        eps: increasing, > 0, shape (m,).
        about: what delta is there, about, shape (m,): it decides which eps share draws, and no more.
        add: H(Q || P), else H(P || Q).
        rng: seeds the draws; None takes operating system entropy.
        executor: where blocks run.
    """
    name = "add" if add else "remove"
    entropy = draw_entropy(rng)
    found: list[tuple[float, float, float]] = []
    samples = 0
    for number, part in enumerate(_stretches(about)):
        levels, own = eps[part], (*entropy, number)
        make = add_mixture if add else remove_mixture
        # Laid out for the far end, where weights are the rarer; the near end has enough of them.
        fitted = adapt(make(gram, float(levels[-1])), own, STAGES[name], executor, {})
        fitted = fitted.at_level(float(levels[0]))
        size = _FIRST
        for stage in (STAGES[name].main, STAGES[name].enlarged):
            payoffs, densities = pilot_sample(fitted, own, stage, size, executor)
            weights = fitted.level_weights(payoffs, densities, levels)
            seen = [summarise(weights[:, level]) for level in range(levels.size)]
            samples += payoffs.size
            worst = max(one.relative_error for one in seen)
            if worst <= _AIM:
                break
            size = int(min(max(1.2 * size * min(worst / _AIM, 100.0) ** 2, 2.0 * size), _MOST))
        found.extend((math.exp(one.log_mean), one.relative_error, one.largest_share) for one in seen)
    delta, error, share = (np.array(column) for column in zip(*found, strict=True))
    return CurveEstimate(delta, error, share, samples)


def _stretches(about: FloatArray) -> Iterator[slice]:
    """Which entries share draws: neighbours, while delta falls by little."""
    logs = np.log(np.maximum(about, _NOTHING))
    first = 0
    for index in range(1, logs.size + 1):
        if index == logs.size or logs[first] - logs[index] > _STRETCH or index - first >= _WIDEST:
            yield slice(first, index)
            first = index
