"""One (eps, delta) that keeps a risk below its limit, for noise whose curve is known by samples alone.

A pair (eps, delta) in both directions is a pair of lines above the trade-off curve. Where the curve takes a
sample at every noise scale, the line that asks for the least noise is looked for by rough estimates, and that
point alone is certified: what a whole certified curve would say beside it is not needed for one attack.
"""

import concurrent.futures
import math

import numpy as np
import scipy

from dpmech.calibration import Calibration
from dpmech.engines import Composition, Curve, PrivacyProfile, RoughSample, draw_entropy, sampling_gram
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.mechanism import Mechanism, PrivacyBudget
from dpmech.numerics import BOUND, EXACT, Guarantee, Provenance
from dpmech.risk_targets.targets import RiskTarget
from dpmech.schemes import scheme_of

__all__ = ["proved_profile", "proving_budget"]

# No smaller eps can be sampled.
_SMALLEST_EPS = 1e-4
# How well the best slope is looked for, of the range; sigma is flat there. No slope nearer to its ends.
_CLOSE, _PROBES, _EDGE = 0.04, 10, 0.02
# A delta is lowered so often, by so much at first, until the limit is proved: all of that is rounding.
_LOWERED, _LOWER_BY = 40, 2.0**-48
# A part of the limit that the smallest eps may cost.
_MOST_LOST = 0.1


def proving_budget(
    mechanism: Mechanism, target: RiskTarget, executor: concurrent.futures.Executor | None = None
) -> PrivacyBudget:
    """The pair (eps, delta) from which the target follows and that asks for the least noise, about.

    The same one every time: estimates have fixed random numbers, so that what certifies the pair is drawn
    for a point that nothing but the arguments has chosen.

    Args:
        mechanism: under an allocation to bins.
        target: that one pair can prove.
        executor: that draws samples.

    Raises:
        InvalidParameterError: if the limit is so low that no pair which can be sampled proves it.
        NumericalError: if the estimates fail everywhere.
    """
    bins = scheme_of(mechanism.participation).structure(mechanism.participation).bins
    ends = target.slopes
    if bins is None or ends is None:
        raise InvalidParameterError(
            "target", target, "one that a pair (eps, delta) proves, under BallsInBins"
        )
    slope = _best_slope(mechanism, bins, target, ends, executor) if ends[0] < ends[1] else 0.0
    eps = max(abs(slope), _SMALLEST_EPS)
    delta = target.proving_delta(math.copysign(eps, slope))
    if delta < (1.0 - _MOST_LOST) * target.proving_delta(slope):
        least = 0.5 * _SMALLEST_EPS / _MOST_LOST
        raise InvalidParameterError("target", target, f"at least {least!r} where samples have to prove it")
    lower_by = _LOWER_BY
    for _ in range(_LOWERED):
        if target.risk(_claim_profile(mechanism, eps, delta, EXACT)).upper <= target.limit:
            return PrivacyBudget(eps, delta)
        delta, lower_by = delta * (1.0 - lower_by), 2.0 * lower_by
    raise NumericalError(f"no delta near {delta!r} at eps={eps!r} proves {target!r}")


def _claim_profile(mechanism: Mechanism, eps: float, delta: float, guarantee: Guarantee) -> PrivacyProfile:
    """What (eps, delta) alone says of a mechanism, as a profile."""
    parts = Composition(curves=((Curve.of_claim(eps, delta), 1),))
    by = Provenance("profile.claim")
    return PrivacyProfile(parts, guarantee & BOUND, by, mechanism.adjacency, mechanism.unit)


def proved_profile(cal: Calibration) -> PrivacyProfile:
    """What the budget of a calibration alone says, as sure as the calibration is."""
    return _claim_profile(cal.mechanism, cal.budget.eps, cal.budget.delta, cal.guarantee)


def _best_slope(
    mechanism: Mechanism,
    bins: int,
    target: RiskTarget,
    ends: tuple[float, float],
    executor: concurrent.futures.Executor | None,
) -> float:
    """About the log of the slope at which sigma is smallest; no guarantee rests on it."""
    sample = RoughSample(draw_entropy(np.random.default_rng(0)), pilots=2, executor=executor)
    gram = sampling_gram(mechanism.strategy, bins)
    sensitivity = mechanism.sensitivity.upper
    known: dict[float, float] = {}

    def log_sigma(slope: float) -> float:
        eps = max(abs(slope), _SMALLEST_EPS)
        guess = math.exp(min(known.values())) if known else None
        try:
            found = sample.sigma(gram, eps, target.proving_delta(slope), sensitivity=sensitivity, guess=guess)
        except ArithmeticError:
            return math.inf
        known[slope] = math.log(found.sigma)
        return known[slope]

    low, high = ends
    edge = _EDGE * (high - low)
    scipy.optimize.minimize_scalar(
        log_sigma,
        bounds=(low + edge, high - edge),
        method="bounded",
        options={"xatol": _CLOSE * (high - low), "maxiter": _PROBES},
    )
    if not known:
        raise NumericalError(f"no estimate of sigma for {target!r}")
    return min(known, key=lambda slope: known[slope])
