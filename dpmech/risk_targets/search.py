"""The noise scale that a risk asks for, in place of an eps."""

import concurrent.futures
import dataclasses
import math

import numpy as np

from dpmech.calibration import Calibration, calibrate_sigma, certify_sigma
from dpmech.certificates import Evidence, with_checksum
from dpmech.engines import Exact, Method, PrivacyProfile, Progress
from dpmech.evaluation import delta, epsilon, profile
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
from dpmech.numerics import Bounds, between, next_up, safe_root, signed, typed, up
from dpmech.risk_targets.few_profiles import by_few_profiles
from dpmech.risk_targets.one_point import proved_profile, proving_budget
from dpmech.risk_targets.targets import LARGEST_MU, GaussianTarget, RiskTarget
from dpmech.schemes import accountant_for, effective_method, scheme_of, unsampled_method

__all__ = ["RiskCalibration", "calibrate_sigma_to"]

# How far the first guess at log sigma is expected to be off; how often an eps is raised until delta fits, and
# by how much at first.
_STEP = 0.2
_RAISES, _RAISE = 14, 1e-6
# A mu that steers the search is no smaller.
_LEAST_MU = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class RiskCalibration:
    """A noise scale that keeps a risk below a limit; what `calibrate_sigma_to` returns.

    A certificate states a budget (eps, delta). `calibration(delta)` has the eps of this noise scale, and a
    certificate; `dm.profile` of its mechanism and sigma has the risk again.

    Attributes:
        mechanism: what runs.
        target: what was asked for.
        sigma: standard deviation of the i.i.d. Z in C G + sigma Z at clip norm 1.
        sensitivity: of the mechanism, as for a Calibration.
        profile: of the mechanism at this sigma; under one allocation to bins with correlated noise the one
            that was certified, or for an attack or an advantage what the budget of `proof` says alone.
        risk: what was asked for, at this sigma; `risk.upper` is at most `target.limit`.
        rtol: how far the search was allowed to end above the smallest sigma.
        proof: the certified (eps, delta) that the risk follows from where the curve takes samples, else None.

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
        """As of a Claim: sigma where noise is i.i.d. and examples are clipped one by one, else None."""
        return noise_multiplier(self.mechanism, self.sigma)

    def calibration(self, delta: float | None = None) -> Calibration:
        """The same noise scale with the budget that it meets at a delta: to certify, and to train with.

        The budget says less than the profile does; the noise scale stays that of the target. Where the
        profile was drawn, the budget rests on no draws, as that of `certify_sigma`.

        Args:
            delta: in (0, 1); None for that of `proof`, where there is one.

        Raises:
            UnsupportedCombinationError: on another delta where there is a proof: samples certify the point
                that they were drawn for.
            InvalidParameterError: on a bad argument, or if this sigma has no more than `delta` at eps 0.
            NumericalError: if no eps near the one at `delta` could be shown.

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
        """What gives the eps of this noise scale."""
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
        strategy: C; or a Mechanism, which says participation and adjacency as well.
        target: an AttackTarget, an AdvantageTarget or a GaussianTarget.
        participation: who takes part when, without sampling, Poisson-sampled, or in bins (every probe then
            takes seconds, or with correlated noise more); None is EveryStep.
        adjacency: as for `calibrate_sigma`.
        rtol: sigma is at most (1 + rtol) times the smallest one whose risk is shown to be so low, in [1e-3,
            0.5]. Where `risk.lower` is, says how much of that the proof costs. Where samples prove one
            (eps, delta), as `proof` says, they decide instead, as for `calibrate_sigma`; so they do for the
            mu of correlated noise in bins, where the search ends once it would move sigma by half a percent.
        rng: for correlated noise in bins: None takes entropy from the operating system, and only then the
            error of the certified sample is inside the delta of `proof`. Of a mu it is outside, as that of
            every profile: at most five are drawn, and one beta holds for all of them together.
        progress: called with one line of text for every probe.
        executor: where samples are drawn, as for `calibrate_sigma`.

    Returns:
        A RiskCalibration, on the safe side: `risk.upper <= target.limit`.

    Raises:
        InvalidParameterError: on a bad argument.
        UnsupportedCombinationError: if no theorem covers the combination, or no search is built for it.
        NumericalError: if the search finds no such sigma below 1e15, or the target is out of reach of proof.

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
            supported="participation without sampling, Poisson-sampled, or in bins; else "
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
    """By one (eps, delta) that proves the risk, certified once."""
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
    """For independent noise under one allocation to bins what needs no draws; else the default."""
    allocated = _bins(mechanism) is not None
    return Exact() if allocated and mechanism.strategy.bands == 1 else None


def _drawn(mechanism: Mechanism) -> bool:
    """Whether profiles of this mechanism are drawn in a search for sigma."""
    return accountant_for(mechanism, _exact(mechanism)).start_for_mu(1.0) is None


def _steering(target: RiskTarget, value: float) -> float:
    return min(max(target.mu_at(value), _LEAST_MU), LARGEST_MU)


def _delta_at(mechanism: Mechanism, sigma: float, eps: float) -> float:
    return delta(mechanism, sigma, eps).upper


def _bins(mechanism: Mechanism) -> int | None:
    """How many bins the mixture has whose curve is drawn; None where nothing is drawn."""
    return scheme_of(mechanism.participation).structure(mechanism.participation).bins
