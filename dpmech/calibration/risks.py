"""The noise scale for a limit on a risk: from a whole profile, from one point, or from a few profiles.

If the curve is known without samples, a search over sigma evaluates the risk on the whole profile.

**From one point**, if the curve takes samples at every noise scale and the risk is an attack: a pair
(eps, delta) in both directions is a pair of lines above the trade-off curve. Rough estimates find the line
that requires the least noise, and only that point is certified.

**From a few profiles**, if the curve takes samples and the risk is a mu: a mu bounds the curve at every eps,
so no single (eps, delta) proves it. Rough estimates at a few eps choose where to look. Then profiles are
certified, one after another, each with a fixed share of beta: all of them, including those that failed, hold
together with probability 1 - beta, whichever one is returned.
"""

import concurrent.futures
import dataclasses
import math
from typing import NamedTuple

import numpy as np
import scipy

from dpmech.calibration.calibrate import Calibration, calibrate_sigma, certify_sigma
from dpmech.calibration.evaluate import delta, epsilon, profile
from dpmech.calibration.targets import LARGEST_MU, GaussianTarget, RiskTarget
from dpmech.certificates import Evidence, with_checksum
from dpmech.engines import (
    Composition,
    Curve,
    Exact,
    Method,
    PrivacyProfile,
    Progress,
    RoughSample,
    draw_entropy,
    gaussian_delta,
    gaussian_epsilon,
    sampling_gram,
)
from dpmech.exceptions import InvalidParameterError, NumericalError, UnsupportedCombinationError
from dpmech.guards import check_delta, check_real, check_rng
from dpmech.mechanism import (
    UNSTATED,
    Adjacency,
    Mechanism,
    Participation,
    PrivacyBudget,
    Strategy,
    Unstated,
    mechanism_of,
    noise_multiplier,
    sigma_use,
)
from dpmech.numerics import (
    BOUND,
    EXACT,
    Bounds,
    Guarantee,
    Provenance,
    between,
    next_up,
    safe_root,
    signed,
    typed,
    up,
)
from dpmech.schemes import (
    accountant_for,
    effective_method,
    method_among,
    offered,
    scheme_of,
    unsampled_method,
)

# Sampling supports no smaller eps.
_SMALLEST_EPS = 1e-4
# Accuracy of the best slope, relative to the range; sigma is flat there. No slope is closer to its ends.
_CLOSE, _PROBES, _EDGE = 0.04, 10, 0.02
# Number of reductions of delta, and size of the first, until the limit is proved; they only correct rounding.
_LOWERED, _LOWER_BY = 40, 2.0**-48
# The share of the limit that the smallest eps may use.
_MOST_LOST = 0.1


def proving_budget(
    mechanism: Mechanism, target: RiskTarget, executor: concurrent.futures.Executor | None = None
) -> PrivacyBudget:
    """The pair (eps, delta) that implies the target and requires approximately the least noise.

    The result is reproducible: estimates have fixed random numbers, so the certifying samples are used for a
    point that depends only on the arguments.

    Args:
        mechanism: a mechanism with an allocation to bins.
        target: a target that one pair can prove.
        executor: generates the samples.

    Raises:
        InvalidParameterError: if the limit is too low for any pair that sampling supports.
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
    """The profile that (eps, delta) implies for a mechanism."""
    parts = Composition(curves=((Curve.of_claim(eps, delta), 1),))
    by = Provenance("profile.claim")
    return PrivacyProfile(parts, guarantee & BOUND, by, mechanism.adjacency, mechanism.unit)


def proved_profile(cal: Calibration) -> PrivacyProfile:
    """The profile that the budget of a calibration implies, with the guarantee of the calibration."""
    return _claim_profile(cal.mechanism, cal.budget.eps, cal.budget.delta, cal.guarantee)


def _best_slope(
    mechanism: Mechanism,
    bins: int,
    target: RiskTarget,
    ends: tuple[float, float],
    executor: concurrent.futures.Executor | None,
) -> float:
    """Approximately the log of the slope at which sigma is smallest; no guarantee depends on it."""
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


# Maximum number of certified profiles; it fixes their shares of beta before the first is sampled.
PROFILES = 5
# Sampling supports no smaller eps.
# Number of deltas, from that at eps 0 to the tail, at which sigma is estimated; bounds by samples are about
# this much above delta.
_LEVELS, _EXCESS = 6, 1.06
# Change of mu to measure how sigma responds; and minimum and maximum power by which mu falls in sigma if it
# is not known.
_MOVED, _FALL, _LEAST_FALL, _MOST_FALL = 0.1, 1.0, 0.5, 50.0
# The target of mu below its limit, in log, lowered again for every profile that was above; and the tolerance
# in log sigma below which another profile costs more than it gains.
_AIM, _CLOSE_IN_LOG = 0.003, 0.005
# Maximum change per step, in log sigma; and maximum relative to the sigma that needs no sampling.
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
    """A certified profile in the search.

    Attributes:
        log_sigma: log of its noise scale.
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
    """The smallest noise scale, among at most `PROFILES` certified ones, that keeps mu below its limit.

    **Guarantee:** with probability 1 - beta over the samples, beta outside delta, every sampled profile
    holds, and so does the returned one. Each has beta / `PROFILES`, rounded down, however its sigma was
    chosen: its samples are generated after that choice. A call must not be repeated until it passes.

    Args:
        mechanism: a mechanism with an allocation to bins.
        target: the mu, and its tail.
        rtol: the search ends if sigma would change by less, or by less than half a per cent.
        rng: seeds the certifying samples, one profile after another; None takes operating system entropy.
        progress: called for every profile.
        executor: generates the samples.

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
    # Above this sigma the Gaussian release without sampling already proves the target.
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
        if best is not None and point > math.log(best.sigma) - max(rtol, _CLOSE_IN_LOG):
            break
    if best is None:
        raise NumericalError(
            f"none of {PROFILES} profiles up to sigma={sigma!r} proves {target!r}: the last has mu <= "
            f"{up(risk.upper, 4)}"
        )
    return best


def _next_point(probes: list[_Probe], fall: float) -> float:
    """Where to certify next, in log sigma; next to or above the smallest proved sigma none is needed."""
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
    """Approximate sigma at which a certified profile has this mu, and the power by which mu falls there.

    Reproducible: estimates have fixed random numbers, and no guarantee depends on them.
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
            continue  # another estimate may succeed; only certified profiles decide
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
    """Eps from almost 0 to where the Gaussian curve reaches the tail, evenly in the log of its delta."""
    multiplier = 1.0 / target.mu
    most = 0.5 * gaussian_delta(multiplier, 0.0)[1]
    if most <= target.tail:
        return [_SMALLEST_EPS]
    levels = np.geomspace(most, target.tail, _LEVELS - 1)
    further = [gaussian_epsilon(multiplier, float(level), safe=True) for level in levels]
    return [_SMALLEST_EPS, *(eps for eps in further if eps > _SMALLEST_EPS)]


def _silent(line: str) -> None:
    del line


# Expected error of the first guess at log sigma; number of increases of eps until delta fits, and size of the
# first.
_STEP = 0.2
_RAISES, _RAISE = 14, 1e-6
# Lower limit of a mu that steers the search.
_LEAST_MU = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class RiskCalibration:
    """A noise scale that keeps a risk below a limit; returned by `calibrate_sigma_to`.

    A certificate states a budget (eps, delta). `calibration(delta)` returns the eps of this noise scale at
    `delta`, for a certificate. `dm.profile` recomputes the risk from the mechanism and sigma.

    Attributes:
        mechanism: the mechanism.
        target: the requested target.
        sigma: standard deviation of the i.i.d. Z in C G + sigma Z at clip norm 1.
        sensitivity: the sensitivity of the mechanism, as for a Calibration.
        profile: the profile of the mechanism at this sigma. For correlated noise under Balls-in-Bins, this is
            a certified profile for a GaussianTarget; for an AttackTarget or an AdvantageTarget, it is the
            profile that the budget of `proof` implies.
        risk: the requested risk at this sigma; `risk.upper` is at most `target.limit`.
        rtol: relative tolerance of the search above the smallest sigma.
        proof: the certified (eps, delta) that implies the risk, if the curve would need samples; else None.

    Example:
        >>> import dpmech as dm
        >>> found = dm.calibrate_sigma_to(dm.Identity(10), dm.AttackTarget(fpr=0.01, tpr=0.05))
        >>> print(found.risk)
        [0.0499683, 0.0499684], exact
        >>> found.calibration(delta=1e-5).sigma == found.sigma
        True
    """

    mechanism: Mechanism
    target: RiskTarget
    sigma: float
    sensitivity: Bounds
    profile: PrivacyProfile
    risk: Bounds
    rtol: float
    proof: Calibration | None = None

    def __float__(self) -> float:
        return self.sigma

    @property
    def noise_multiplier(self) -> float | None:
        """As for a Claim: sigma if the noise is i.i.d. and examples are clipped individually, else None."""
        return noise_multiplier(self.mechanism, self.sigma)

    def calibration(self, delta: float | None = None) -> Calibration:
        """The same noise scale with the budget that it meets at a delta, for certificates and training.

        The budget is weaker than the profile. The noise scale remains that of the target. If the profile was
        sampled, the budget is computed without samples, as by `certify_sigma`.

        Args:
            delta: in (0, 1); None for that of `proof`, if there is one.

        Raises:
            UnsupportedCombinationError: for another delta if there is a `proof`, because samples certify only
                the point that they were generated for.
            InvalidParameterError: if an argument is invalid, or if delta at eps 0 is at most `delta` at this
                sigma.
            NumericalError: if no eps near the one at `delta` could be proved.

        Examples:
            >>> import dpmech as dm
            >>> found = dm.calibrate_sigma_to(dm.Identity(8), dm.AdvantageTarget(0.1))
            >>> budget = found.calibration(1e-5).budget
            >>> round(budget.eps, 3), budget.delta
            (0.931, 1e-05)
        """
        if self.proof is not None:
            if delta is None or delta == self.proof.budget.delta:
                return self.proof
            raise UnsupportedCombinationError(
                f"samples have certified {self.proof.budget!r}, and nothing at delta={delta!r}",
                supported="calibration(); certificate(profile=...) of that keeps what dm.profile of its "
                "mechanism and sigma says at every delta",
            )
        if delta is None:
            raise InvalidParameterError("delta", delta, "in (0, 1): nothing here has one of its own")
        at = check_delta(delta)
        if _drawn(self.mechanism):
            unsampled = unsampled_method(self.mechanism.participation)
            return certify_sigma(self.mechanism, self.sigma, delta=at, method=unsampled)
        achieved = epsilon(self.mechanism, self.sigma, at)
        if not achieved.upper > 0.0:
            raise InvalidParameterError("delta", at, "below what this mechanism has at eps 0")
        eps, step = achieved.upper, _RAISE
        for _ in range(_RAISES):
            if _delta_at(self.mechanism, self.sigma, eps) <= at:
                break
            eps, step = next_up(eps * (1.0 + step)), 2.0 * step
        else:
            raise NumericalError(f"no eps near {achieved!r} could be shown to have delta {at!r}")
        found = Calibration(
            mechanism=self.mechanism,
            budget=PrivacyBudget(eps, at),
            sigma=self.sigma,
            sensitivity=self.sensitivity,
            achieved=achieved,
            evidence=Evidence(
                accountant=self._method,
                rtol=self.rtol,
                rng_supplied=False,
            ),
        )
        return with_checksum(found)

    @property
    def _method(self) -> Method:
        """The method for the eps of this noise scale."""
        return effective_method(self.mechanism.participation, _exact(self.mechanism))

    def __str__(self) -> str:
        wanted = ", ".join(
            f"{field.name} {typed(getattr(self.target, field.name))}"
            for field in dataclasses.fields(self.target)  # type: ignore[arg-type]  # each is a dataclass
        )
        return "\n".join(
            [
                f"sigma {up(self.sigma)} at clip norm 1: {self.risk.guarantee}",
                sigma_use(self.mechanism),
                f"{type(self.target).__name__}: {wanted}; reached in "
                f"{between(self.risk.lower, self.risk.upper)}, {self.mechanism.adjacency.value}",
                repr(self.mechanism.strategy),
                repr(self.mechanism.participation),
                *(
                    []
                    if self.proof is None
                    else [
                        f"Proved by eps {up(self.proof.budget.eps)} at delta "
                        f"{up(self.proof.budget.delta)}: {self.proof.method}"
                    ]
                ),
            ]
        )


def calibrate_sigma_to(
    strategy: Strategy | Mechanism,
    target: RiskTarget,
    *,
    participation: Participation | None = None,
    adjacency: Adjacency | Unstated = UNSTATED,
    rtol: float = 1e-3,
    rng: np.random.Generator | int | None = None,
    progress: Progress | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> RiskCalibration:
    """The smallest noise scale whose mechanism keeps a risk below a limit.

    Args:
        strategy: C; or a Mechanism, which also sets participation and adjacency.
        target: an AttackTarget, an AdvantageTarget or a GaussianTarget.
        participation: which examples take part when: without sampling, under Poisson sampling, or under
            Balls-in-Bins (where every probe takes seconds, or more with correlated noise). None is EveryStep.
        adjacency: as for `calibrate_sigma`.
        rtol: sigma is at most (1 + rtol) times the smallest one whose risk is proved to meet the limit, in
            [1e-3, 0.5]; `risk.lower` shows how much the proof loses. If samples prove one (eps, delta),
            returned as `proof`, the tolerance applies to that calibration. For the mu of correlated noise
            under Balls-in-Bins, the search ends when it would change sigma by less than half a per cent.
        rng: for correlated noise under Balls-in-Bins. None uses entropy from the operating system; only in
            this case is the error of the certified sample inside the delta of `proof`. For a mu, the error is
            outside delta, as for every profile: at most five profiles are sampled, and one beta covers all of
            them together.
        progress: called with one line of text for every probe.
        executor: where samples are generated, as for `calibrate_sigma`.

    Returns:
        A RiskCalibration, rounded conservatively: `risk.upper <= target.limit`.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: if no theorem covers the combination, or no search is implemented for it.
        NumericalError: if the search finds no such sigma below 1e15, or the target cannot be proved.

    Examples:
        >>> import dpmech as dm
        >>> found = dm.calibrate_sigma_to(
        ...     dm.LambdaCGD(3900, 0.9), dm.AttackTarget(fpr=0.01, tpr=0.05), participation=dm.MinSep(390, 10)
        ... )
        >>> round(found.sigma, 2), round(found.risk.upper, 4)
        (10.65, 0.05)
    """
    mechanism = mechanism_of(strategy, participation, adjacency)
    if not isinstance(target, RiskTarget):
        raise InvalidParameterError("target", target, "an AttackTarget, AdvantageTarget or GaussianTarget")
    tolerance = check_real("rtol", rtol, minimum=1e-3, maximum=0.5)
    method = _exact(mechanism)
    accountant = accountant_for(mechanism, method, None)
    wanted = _steering(target, target.limit)
    start = accountant.start_for_mu(wanted)
    allocated = _bins(mechanism) is not None
    if start is None and allocated and target.slopes is not None:
        return _by_one_point(mechanism, target, tolerance, check_rng(rng), progress, executor)
    if start is None and allocated and isinstance(target, GaussianTarget):
        drawn = by_few_profiles(
            mechanism, target, rtol=tolerance, rng=check_rng(rng), progress=progress, executor=executor
        )
        return RiskCalibration(mechanism, target, drawn.sigma, accountant.sensitivity, *drawn[1:], tolerance)
    if start is None:
        raise UnsupportedCombinationError(
            f"no search for sigma by {target!r} is built for {mechanism!r}",
            supported=f"{offered('risk')}; else "
            "target.risk(dm.profile(strategy, sigma, participation=...)) at two or three sigma: the mu of a "
            "Gaussian release of that risk falls about as 1 / sigma",
        )
    known: dict[float, tuple[PrivacyProfile, Bounds]] = {}

    def excess(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        found = profile(mechanism, sigma, method=method)
        risk = target.risk(found)
        known[log_sigma] = found, risk
        if progress is not None:
            progress(f"sigma {up(sigma)}: risk <= {up(risk.upper, 4)}")
        return signed(math.log(wanted / _steering(target, risk.upper)), safe=risk.upper <= target.limit)

    try:
        root = safe_root(excess, math.log(start), step=_STEP, resolution=0.9 * tolerance)
    except OverflowError:
        raise NumericalError(f"no sigma below 1e15 could be shown to meet {target!r}") from None
    found, risk = known[root]
    return RiskCalibration(mechanism, target, math.exp(root), accountant.sensitivity, found, risk, tolerance)


def _by_one_point(
    mechanism: Mechanism,
    target: RiskTarget,
    rtol: float,
    rng: np.random.Generator | None,
    progress: Progress | None,
    executor: concurrent.futures.Executor | None,
) -> RiskCalibration:
    """Certify once one (eps, delta) that proves the risk."""
    if progress is not None:
        progress("rough estimates of which (eps, delta) asks for the least noise")
    budget = proving_budget(mechanism, target, executor)
    cal = calibrate_sigma(
        mechanism, budget.eps, budget.delta, rtol=rtol, rng=rng, progress=progress, executor=executor
    )
    known = proved_profile(cal)
    risk = target.risk(known)
    if not risk.upper <= target.limit:
        raise NumericalError(f"{budget!r} does not prove {target!r}")
    return RiskCalibration(mechanism, target, cal.sigma, cal.sensitivity, known, risk, rtol, cal)


def _exact(mechanism: Mechanism) -> Method | None:
    """A method without samples for independent noise under one allocation to bins; else the default."""
    allocated = _bins(mechanism) is not None
    return Exact() if allocated and mechanism.strategy.bands == 1 else None


def _drawn(mechanism: Mechanism) -> bool:
    """Whether a search for sigma samples profiles of this mechanism."""
    return accountant_for(mechanism, _exact(mechanism)).start_for_mu(1.0) is None


def _steering(target: RiskTarget, value: float) -> float:
    return min(max(target.mu_at(value), _LEAST_MU), LARGEST_MU)


def _delta_at(mechanism: Mechanism, sigma: float, eps: float) -> float:
    return delta(mechanism, sigma, eps).upper


def _bins(mechanism: Mechanism) -> int | None:
    """The number of bins of the mixture whose curve is sampled; None if nothing is sampled."""
    return scheme_of(mechanism.participation).structure(mechanism.participation).bins
