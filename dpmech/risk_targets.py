"""The noise scale that a risk asks for: an attack's success, an advantage, or a Gaussian mu, for an eps."""

import abc
import dataclasses
import math

import scipy

from dpmech.accounting import (
    GaussianAccountant,
    PoissonAccountant,
    PrivacyProfile,
    Progress,
    accountant_for,
    effective_method,
)
from dpmech.calibration import Calibration
from dpmech.certificates import Evidence, with_checksum
from dpmech.evaluation import delta, epsilon, profile
from dpmech.exceptions import InvalidParameterError, NumericalError, UnsupportedCombinationError
from dpmech.guards import check_delta, check_real
from dpmech.mechanism import (
    UNSTATED,
    Adjacency,
    Mechanism,
    Participation,
    PrivacyBudget,
    Strategy,
    Unstated,
    mechanism_of,
)
from dpmech.numerics import Bounds, between, next_up, safe_root, signed, typed, up

__all__ = ["AdvantageTarget", "AttackTarget", "GaussianTarget", "RiskCalibration", "calibrate_sigma_to"]

# How far the first guess at log sigma is expected to be off, and how much an eps is raised until delta fits.
_STEP = 0.2
_RAISES, _RAISE = 20, 1e-6
# A mu that steers the search stays between these.
_LEAST_MU, _LARGEST_MU = 1e-9, 1e3


class RiskTarget(abc.ABC):
    """A risk, and how large it may be."""

    @property
    @abc.abstractmethod
    def limit(self) -> float:
        """What the risk may be at most."""

    @abc.abstractmethod
    def risk(self, known: PrivacyProfile) -> Bounds:
        """The risk of a mechanism."""

    @abc.abstractmethod
    def mu_at(self, value: float) -> float:
        """The mu of the Gaussian release that has this risk, about: it steers a search."""


@dataclasses.dataclass(frozen=True)
class AttackTarget(RiskTarget):
    """No attack finds more than a share `tpr` of members at a false-positive rate `fpr`.

    Args:
        fpr: in (0, 1).
        tpr: in (fpr, 1): who flags people at random finds a share `fpr` already.

    Raises:
        InvalidParameterError: on other numbers.

    Example:
        >>> import dpmech as dm
        >>> target = dm.AttackTarget(fpr=0.01, tpr=0.05)
        >>> f"{dm.calibrate_sigma_to(dm.Identity(10), target).sigma:.2f}"
        '4.64'
    """

    fpr: float
    tpr: float

    def __post_init__(self) -> None:
        fpr = _inside("fpr", self.fpr, 0.0)
        object.__setattr__(self, "fpr", fpr)
        object.__setattr__(self, "tpr", _inside("tpr", self.tpr, fpr))

    @property
    def limit(self) -> float:
        """The largest true-positive rate."""
        return self.tpr

    def risk(self, known: PrivacyProfile) -> Bounds:
        """The best true-positive rate."""
        return known.tpr(self.fpr)

    def mu_at(self, value: float) -> float:
        """Of the Gaussian release with this true-positive rate."""
        return _quantile(value) - _quantile(self.fpr)


@dataclasses.dataclass(frozen=True)
class AdvantageTarget(RiskTarget):
    """No attack's true-positive rate is further above its false-positive rate than `advantage`.

    Args:
        advantage: in (0, 1).

    Raises:
        InvalidParameterError: on another number.

    Example:
        >>> import dpmech as dm
        >>> f"{dm.calibrate_sigma_to(dm.Identity(10), dm.AdvantageTarget(0.1)).sigma:.2f}"
        '12.59'
    """

    advantage: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "advantage", _inside("advantage", self.advantage, 0.0))

    @property
    def limit(self) -> float:
        """The largest advantage."""
        return self.advantage

    def risk(self, known: PrivacyProfile) -> Bounds:
        """The best advantage."""
        return known.advantage

    def mu_at(self, value: float) -> float:
        """Of the Gaussian release with this advantage."""
        return 2.0 * _quantile(0.5 * (1.0 + value))


@dataclasses.dataclass(frozen=True)
class GaussianTarget(RiskTarget):
    """But for a tail in delta, as private as one Gaussian release of sensitivity `mu` and noise 1.

    Args:
        mu: in (0, 1e3).
        tail: in (0, 1).

    Raises:
        InvalidParameterError: on other numbers.

    Example:
        >>> import dpmech as dm
        >>> print(dm.calibrate_sigma_to(dm.Identity(10), dm.GaussianTarget(mu=0.5)).risk)
        [0.499775, 0.499776], exact
    """

    mu: float
    tail: float = 1e-12

    def __post_init__(self) -> None:
        checked = check_real("mu", self.mu, minimum=0.0, open_minimum=True, maximum=_LARGEST_MU)
        object.__setattr__(self, "mu", checked)
        object.__setattr__(self, "tail", _inside("tail", self.tail, 0.0))

    @property
    def limit(self) -> float:
        """The largest mu."""
        return self.mu

    def risk(self, known: PrivacyProfile) -> Bounds:
        """The smallest mu."""
        return known.gaussian_mu(self.tail)

    def mu_at(self, value: float) -> float:
        """The mu itself."""
        return value


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
        profile: of the mechanism at this sigma.
        risk: what was asked for, at this sigma; `risk.upper` is at most `target.limit`.
        rtol: how far the search was allowed to end above the smallest sigma.

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

    def __float__(self) -> float:
        return self.sigma

    @property
    def noise_multiplier(self) -> float:
        """Sigma over the sensitivity."""
        return self.sigma / self.sensitivity.upper

    def calibration(self, delta: float) -> Calibration:
        """The same noise scale with the budget that it meets at a delta: to certify, and to train with.

        The budget says less than the profile does; the noise scale stays that of the target.

        Args:
            delta: in (0, 1).

        Raises:
            InvalidParameterError: on a bad argument, or if this sigma has no more than `delta` at eps 0.
            NumericalError: if no eps near the one at `delta` could be shown.

        Examples:
            >>> import dpmech as dm
            >>> found = dm.calibrate_sigma_to(dm.Identity(8), dm.AdvantageTarget(0.1))
            >>> budget = found.calibration(1e-5).budget
            >>> round(budget.eps, 3), budget.delta
            (0.931, 1e-05)
        """
        at = check_delta(delta)
        achieved = epsilon(self.mechanism, self.sigma, at)
        if not achieved.upper > 0.0:
            raise InvalidParameterError("delta", at, "below what this mechanism has at eps 0")
        eps = achieved.upper
        for _ in range(_RAISES):
            if _delta_at(self.mechanism, self.sigma, eps) <= at:
                break
            eps = next_up(eps * (1.0 + _RAISE))
        else:
            raise NumericalError(f"no eps near {achieved!r} could be shown to have delta {at!r}")
        found = Calibration(
            mechanism=self.mechanism,
            budget=PrivacyBudget(eps, at),
            sigma=self.sigma,
            sensitivity=self.sensitivity,
            achieved=achieved,
            evidence=Evidence(
                accountant=effective_method(self.mechanism.participation, None),
                rtol=self.rtol,
                rng_supplied=False,
            ),
        )
        return with_checksum(found)

    def __str__(self) -> str:
        wanted = ", ".join(
            f"{field.name} {typed(getattr(self.target, field.name))}"
            for field in dataclasses.fields(self.target)  # type: ignore[arg-type]  # each is a dataclass
        )
        return "\n".join(
            [
                f"sigma {up(self.sigma)} at clip norm 1, noise multiplier {up(self.noise_multiplier)}: "
                f"{self.risk.guarantee}",
                f"{type(self.target).__name__}: {wanted}; reached in "
                f"{between(self.risk.lower, self.risk.upper)}, {self.mechanism.adjacency.value}",
                repr(self.mechanism.strategy),
                repr(self.mechanism.participation),
            ]
        )


def calibrate_sigma_to(
    strategy: Strategy | Mechanism,
    target: RiskTarget,
    *,
    participation: Participation | None = None,
    adjacency: Adjacency | Unstated = UNSTATED,
    rtol: float = 1e-3,
    progress: Progress | None = None,
) -> RiskCalibration:
    """The smallest noise scale whose mechanism keeps a risk below a limit.

    Args:
        strategy: C; or a Mechanism, which says participation and adjacency as well.
        target: an AttackTarget, an AdvantageTarget or a GaussianTarget.
        participation: who takes part when, without sampling or Poisson-sampled; None is EveryStep.
        adjacency: as for `calibrate_sigma`.
        rtol: sigma is at most (1 + rtol) times the smallest one whose risk is shown to be so low, in [1e-3,
            0.5]. Where `risk.lower` is, says how much of that the proof costs.
        progress: called with one line of text for every probe.

    Returns:
        A RiskCalibration, on the safe side: `risk.upper <= target.limit`.

    Raises:
        InvalidParameterError: on a bad argument.
        UnsupportedCombinationError: if no theorem covers the combination, and under other sampling, where
            every probe would take a profile of its own: draw `dm.profile` at a few sigma there.
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
    accountant = accountant_for(mechanism, None, None)
    if not isinstance(accountant, GaussianAccountant | PoissonAccountant):
        raise UnsupportedCombinationError(
            f"a search for sigma by a risk takes a profile at every probe, which {mechanism.participation!r} "
            "has at the cost of a sample",
            supported="participation without sampling, and Poisson-sampled; else dm.profile at a few sigma",
        )
    wanted = _steering(target, target.limit)
    start = accountant.sensitivity.upper / wanted
    if isinstance(accountant, PoissonAccountant):
        release = accountant.release
        # As the central limit theorem has it.
        spread = release.sampling_prob * math.sqrt(release.steps) / wanted
        start = accountant.sensitivity.upper / math.sqrt(math.log1p(spread**-2))
    known: dict[float, tuple[PrivacyProfile, Bounds]] = {}

    def excess(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        found = profile(mechanism, sigma)
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


def _inside(name: str, value: float, minimum: float) -> float:
    return check_real(name, value, minimum=minimum, maximum=1.0, open_minimum=True, open_maximum=True)


def _quantile(level: float) -> float:
    return float(scipy.special.ndtri(min(max(level, 1e-300), 1.0 - 1e-15)))


def _steering(target: RiskTarget, value: float) -> float:
    return min(max(target.mu_at(value), _LEAST_MU), _LARGEST_MU)


def _delta_at(mechanism: Mechanism, sigma: float, eps: float) -> float:
    return delta(mechanism, sigma, eps).upper
