r"""An empirical lower bound on eps, from the best test between two neighbouring datasets.

The gradients of one example are at the clip norm, all in one direction, or absent. The likelihood ratio of
the release under the two datasets is the best test between them (Neyman and Pearson), and any event E gives
eps >= log((P(E) - delta) / Q(E)). Half of the samples choose the event, the other half bound its
probabilities (Clopper and Pearson 1934), so the bound holds at its level for any choice.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines import Algebra, Canary
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_confidence, check_delta, check_integer, check_rng, check_sigma
from dpmech.mechanism import (
    UNSTATED,
    Adjacency,
    Mechanism,
    Participation,
    Strategy,
    Unstated,
    mechanism_of,
)
from dpmech.numerics import Bounds, FloatArray, Guarantee, Kind, Provenance, error_of_level
from dpmech.schemes import scheme_of

# Gradients of m runs in one coordinate, shape (m, n), and a generator -> their releases, shape (m, n).
Runs: TypeAlias = Callable[[FloatArray, np.random.Generator], FloatArray]

_BLOCK = 4_000_000
_THRESHOLDS = 200


def empirical_epsilon(
    strategy: Strategy | Mechanism,
    sigma: float,
    delta: float,
    *,
    participation: Participation | None = None,
    adjacency: Adjacency | Unstated = UNSTATED,
    mechanism: Runs | None = None,
    samples: int = 200_000,
    confidence: float = 0.999,
    rng: np.random.Generator | int | None = None,
) -> Bounds:
    """A lower bound on eps at `delta`, from runs of the mechanism itself.

    If the bound exceeds a certified eps, the mechanism has less noise than was certified.

    Args:
        strategy: C; or a Mechanism, which includes participation and adjacency.
        sigma: the stated noise scale of the mechanism at clip norm 1, > 0. The test is the best one for it;
            the bound holds for any actual noise.
        delta: in (0, 1). Small values need many samples: about 10 / delta for a tight bound.
        participation: which examples take part when; None is EveryStep. An unsampled example takes part in
            the worst evenly spaced steps.
        adjacency: REPLACE_ONE compares opposite gradients.
        mechanism: called with the gradients of m runs in one coordinate, shape (m, n), in units of the clip
            norm, and a generator; returns the releases of these runs, gradients plus noise, shape (m, n).
            None is the mechanism as dpmech defines it, at `sigma`.
        samples: runs with each of the two datasets, >= 1000.
        confidence: confidence level of the bound, in (0, 1).
        rng: None uses entropy from the operating system.

    Returns:
        Bounds whose lower end is at most the true eps with probability `confidence`, and whose upper end is
        infinite: a test cannot prove privacy.

    Raises:
        InvalidParameterError: if an argument is invalid, or the mechanism returns an array of a different
            shape or with a NaN.
        UnsupportedCombinationError: if no theorem or no test covers the mechanism.

    Examples:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 1.0, 0.05, participation=dm.MinSep(4, 3))
        >>> found = dm.audits.empirical_epsilon(
        ...     cal.strategy, cal.sigma, 0.05, participation=cal.participation, samples=20_000, rng=1
        ... )
        >>> 0.5 < found.lower < 1.0
        True
    """
    scale, checked_delta = check_sigma(sigma), check_delta(delta)
    claimed = mechanism_of(strategy, participation, adjacency)
    size = check_integer("samples", samples, minimum=1000)
    level = check_confidence(confidence)
    generator = check_rng(rng)
    generator = np.random.default_rng() if generator is None else generator
    algebra = Algebra(claimed.strategy)
    runs = _release(algebra, scale) if mechanism is None else mechanism
    canary = scheme_of(claimed.participation).canary(claimed.participation, claimed)
    present, absent = (
        _scores(algebra, scale, canary, runs, size, generator, present=present) for present in (True, False)
    )
    # Events {score > t} of REMOVE and {-score > t} of ADD; the first half of the runs chooses.
    choice = max(
        _best_cut(inside[: size // 2], outside[: size // 2], checked_delta, level, sign)
        for sign, inside, outside in ((1.0, present, absent), (-1.0, absent, present))
    )
    sign, cut = choice[1:]
    inside, outside = (present, absent) if sign > 0.0 else (absent, present)
    hits, false_hits = (np.array([np.sum(sign * scores[size // 2 :] > cut)]) for scores in (inside, outside))
    eps = float(_bounds(hits, false_hits, size - size // 2, checked_delta, level)[0])
    direction = "REMOVE" if sign > 0.0 else "ADD"
    guarantee = Guarantee(Kind.PROBABLE, error_of_level(level))
    by = Provenance("audit.many_runs", {"runs": size, "direction": direction})
    return Bounds(max(0.0, eps), math.inf, guarantee, by)


def _release(algebra: Algebra, sigma: float) -> Runs:
    def run(gradients: FloatArray, generator: np.random.Generator) -> FloatArray:
        return gradients + sigma * algebra.solve(generator.standard_normal(gradients.shape))

    return run


def _scores(
    algebra: Algebra,
    sigma: float,
    canary: Canary,
    mechanism: Runs,
    samples: int,
    generator: np.random.Generator,
    *,
    present: bool,
) -> FloatArray:
    """Log-likelihood ratios of `samples` runs."""
    scores = np.empty(samples)
    block = max(1, _BLOCK // algebra.n)
    for start in range(0, samples, block):
        runs = min(block, samples - start)
        gradients = canary.draw(runs, generator, present=present)
        released = np.asarray(mechanism(gradients, generator), dtype=np.float64)
        if released.shape != (runs, algebra.n) or not np.all(np.isfinite(released)):
            raise InvalidParameterError(
                "mechanism",
                released.shape,
                f"a function that returns finite numbers, shape {(runs, algebra.n)}",
            )
        scores[start : start + runs] = canary.log_ratio(algebra.matmul(released), sigma)
    return scores


def _best_cut(
    inside: FloatArray, outside: FloatArray, delta: float, confidence: float, sign: float
) -> tuple[float, float, float]:
    """The largest bound over events {sign * score > cut}, with its sign and cut."""
    likely, unlikely = np.sort(sign * inside), np.sort(sign * outside)
    cuts = likely[np.linspace(0, likely.size - 1, _THRESHOLDS).astype(np.intp)]
    hits = likely.size - np.searchsorted(likely, cuts, side="right")
    false_hits = unlikely.size - np.searchsorted(unlikely, cuts, side="right")
    bounds = _bounds(hits, false_hits, likely.size, delta, confidence)
    best = int(bounds.argmax())
    return float(bounds[best]), sign, float(cuts[best])


def _bounds(
    hits: npt.NDArray[np.intp], false_hits: npt.NDArray[np.intp], runs: int, delta: float, confidence: float
) -> FloatArray:
    """Lower bounds on eps from the hits of events under both datasets; -inf where delta explains them all."""
    error = 0.5 * (1.0 - confidence)
    likely = np.where(hits > 0, scipy.special.betaincinv(np.maximum(hits, 1), runs - hits + 1, error), 0.0)
    unlikely = np.where(
        false_hits < runs,
        scipy.special.betainccinv(false_hits + 1, np.maximum(runs - false_hits, 1), error),
        1.0,
    )
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(likely - delta, 0.0)) - np.log(unlikely))
