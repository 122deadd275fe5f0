"""The noise scale for a mu where every curve takes draws: a few certified profiles, which share one beta.

A mu bounds the curve at every eps, so that no single (eps, delta) proves it. Rough estimates at a few eps say
where to look. Then profiles are certified, one after another, each with a fixed share of beta: whichever of
them is kept, all of them hold together with probability 1 - beta, those that failed counted.
"""

import concurrent.futures
import math
from typing import NamedTuple

import numpy as np

from dpmech.engines import (
    PrivacyProfile,
    Progress,
    RoughSample,
    draw_entropy,
    gaussian_delta,
    gaussian_epsilon,
    sampling_gram,
)
from dpmech.evaluation import profile
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.mechanism import Mechanism
from dpmech.numerics import Bounds, up
from dpmech.risk_targets.targets import LARGEST_MU, GaussianTarget
from dpmech.schemes import method_among, scheme_of

__all__ = ["PROFILES", "CertifiedMu", "by_few_profiles"]

# So many profiles are certified at most; their shares of beta are fixed by that before the first is drawn.
PROFILES = 5
# No smaller eps can be sampled.
_SMALLEST_EPS = 1e-4
# At so many deltas, from that at eps 0 to the tail, sigma is estimated; bounds by draws are about that much
# above delta.
_LEVELS, _EXCESS = 6, 1.06
# By how much mu is moved to see how sigma follows it; by what power mu falls in sigma where that is not
# known, at least and at most.
_MOVED, _FALL, _LEAST_FALL, _MOST_FALL = 0.1, 1.0, 0.5, 50.0
# How far below its limit, in log, mu is aimed at, again that much for every profile that was above; and how
# close in log sigma is close enough: another profile costs more than that is worth.
_AIM, _CLOSE = 0.003, 0.005
# No further in one step, in log sigma; no higher, relative to the sigma that needs no sampling.
_LARGEST_STEP, _HIGHEST = 0.5, 1.01


class CertifiedMu(NamedTuple):
    """A noise scale whose certified profile proves the target.

    Attributes:
        sigma: the noise scale.
        profile: the certified profile.
        risk: bounds on its mu.
    """

    sigma: float
    profile: PrivacyProfile
    risk: Bounds


class _Probe(NamedTuple):
    """A certified profile, as the search sees it.

    Attributes:
        log_sigma: where.
        excess: log of mu over its limit.
        proved: whether mu was shown to be at most the limit.
    """

    log_sigma: float
    excess: float
    proved: bool


def by_few_profiles(
    mechanism: Mechanism,
    target: GaussianTarget,
    *,
    rtol: float,
    rng: np.random.Generator | None,
    progress: Progress | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> CertifiedMu:
    """The smallest noise scale among at most `PROFILES` certified ones that keeps mu below its limit.

    **Guarantee:** with probability 1 - beta over the draws, beta outside delta, every profile that was drawn
    holds, and so the one that is returned. Each has beta / `PROFILES`, rounded down, by whatever rule its
    sigma was chosen: its draws are made after that choice. A call must not be repeated until it passes.

    Args:
        mechanism: under an allocation to bins.
        target: the mu, and its tail.
        rtol: the search ends where sigma would move by less, or by half a percent.
        rng: seeds the draws that certify, one profile after another; None takes operating system entropy.
        progress: told about every profile.
        executor: that draws samples.

    Raises:
        InvalidParameterError: if there are no bins.
        NumericalError: if none of the profiles proves the target.
    """
    tell = progress if progress is not None else _silent
    tell("rough estimates of sigma at a few eps")
    start, fall = _rough(mechanism, target, executor)
    method = method_among(mechanism.participation, None, PROFILES)
    probes: list[_Probe] = []
    best: CertifiedMu | None = None
    # Above this sigma nothing but the Gaussian release without sampling is left to prove, and to pay for.
    highest = math.log(_HIGHEST * mechanism.sensitivity.upper / target.mu)
    point = min(math.log(start), highest)
    for number in range(PROFILES):
        sigma = math.exp(point)
        known = profile(mechanism, sigma, method=method, rng=rng, executor=executor)
        risk = target.risk(known)
        proved = risk.upper <= target.limit
        probes.append(_Probe(point, math.log(max(risk.upper, 1e-300) / target.limit), proved))
        tell(f"profile {number + 1} of at most {PROFILES}: sigma {up(sigma)}: mu <= {up(risk.upper, 4)}")
        if proved and (best is None or sigma < best.sigma):
            best = CertifiedMu(sigma, known, risk)
        point = min(_next_point(probes, fall), highest)
        if best is not None and point > math.log(best.sigma) - max(rtol, _CLOSE):
            break
    if best is None:
        raise NumericalError(
            f"none of {PROFILES} profiles up to sigma={sigma!r} proves {target!r}: the last has mu <= "
            f"{up(risk.upper, 4)}"
        )
    return best


def _next_point(probes: list[_Probe], fall: float) -> float:
    """Where to certify next, in log sigma; next to or above the smallest that is proved, there is no need."""
    short = max((one for one in probes if not one.proved), default=None)
    enough = min((one for one in probes if one.proved), default=None)
    aim = _AIM * (1 + sum(not one.proved for one in probes))
    if short is not None and enough is not None:
        width = enough.log_sigma - short.log_sigma
        if width <= 0.0:
            return enough.log_sigma
        part = (short.excess + aim) / max(short.excess - enough.excess, 1e-12)
        return short.log_sigma + width * min(part, 1.0)
    last = probes[-1]
    if len(probes) > 1 and last.log_sigma != probes[-2].log_sigma:
        seen = (probes[-2].excess - last.excess) / (last.log_sigma - probes[-2].log_sigma)
        fall = min(max(seen, 0.5 * fall, _LEAST_FALL), 2.0 * fall)
    step = (last.excess + aim) / fall
    return last.log_sigma + min(max(step, -_LARGEST_STEP), _LARGEST_STEP)


def _rough(
    mechanism: Mechanism, target: GaussianTarget, executor: concurrent.futures.Executor | None
) -> tuple[float, float]:
    """About the sigma at which a certified profile has this mu, and the power by which mu falls in it there.

    The same every time: estimates have fixed random numbers, and no guarantee rests on them.
    """
    bins = scheme_of(mechanism.participation).structure(mechanism.participation).bins
    if bins is None:
        raise InvalidParameterError("mechanism", mechanism, "one under BallsInBins")
    sample = RoughSample(draw_entropy(np.random.default_rng(0)), pilots=2, executor=executor)
    gram, bound = sampling_gram(mechanism.strategy, bins), mechanism.sensitivity.upper
    known: dict[float, float] = {}

    def sigma(mu: float, eps: float, guess: float | None) -> float:
        delta = min((gaussian_delta(1.0 / mu, eps)[1] + target.tail) / _EXCESS, 1.0 - 1e-9)
        return sample.sigma(gram, eps, delta, sensitivity=bound, guess=guess).sigma

    for eps in _places(target):
        try:
            known[eps] = sigma(target.mu, eps, max(known.values(), default=None))
        except ArithmeticError:
            continue  # elsewhere an estimate may do; what is certified decides
    if not known:
        return bound / target.mu, _FALL
    decides = max(known, key=lambda eps: known[eps])
    moved = min(target.mu * (1.0 + _MOVED), LARGEST_MU)
    try:
        further = math.log(known[decides] / sigma(moved, decides, known[decides]))
    except ArithmeticError:
        return known[decides], _FALL
    fall = math.log(moved / target.mu) / further if further > 0.0 else _MOST_FALL
    return known[decides], min(max(fall, _LEAST_FALL), _MOST_FALL)


def _places(target: GaussianTarget) -> list[float]:
    """Eps from almost 0 to where the Gaussian curve is as low as the tail, evenly in the log of its delta."""
    multiplier = 1.0 / target.mu
    most = 0.5 * gaussian_delta(multiplier, 0.0)[1]
    if most <= target.tail:
        return [_SMALLEST_EPS]
    levels = np.geomspace(most, target.tail, _LEVELS - 1)
    further = [gaussian_epsilon(multiplier, float(level), safe=True) for level in levels]
    return [_SMALLEST_EPS, *(eps for eps in further if eps > _SMALLEST_EPS)]


def _silent(line: str) -> None:
    del line
