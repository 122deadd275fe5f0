"""Targets for a risk: the true-positive rate of an attack, an advantage, or a Gaussian mu."""

import abc
import dataclasses
import math

import scipy

from dpmech.engines import PrivacyProfile
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.guards import check_real
from dpmech.numerics import Bounds

# Upper limit of mu.
LARGEST_MU = 1e3


class RiskTarget(abc.ABC):
    """A risk and its upper limit."""

    @property
    @abc.abstractmethod
    def limit(self) -> float:
        """The maximum value of the risk."""

    @abc.abstractmethod
    def risk(self, known: PrivacyProfile) -> Bounds:
        """The risk of a mechanism."""

    @property
    @abc.abstractmethod
    def slopes(self) -> tuple[float, float] | None:
        """The range of log slopes in which one (eps, delta) can prove it; None if a whole curve is needed."""

    @abc.abstractmethod
    def proving_delta(self, log_slope: float) -> float:
        """The delta at eps = abs(log_slope), in both directions, that implies the limit; rounded to nearest.

        Args:
            log_slope: inside `slopes`.
        """

    @abc.abstractmethod
    def mu_at(self, value: float) -> float:
        """Approximate mu of the Gaussian release that has this risk, used to steer a search."""


@dataclasses.dataclass(frozen=True)
class AttackTarget(RiskTarget):
    """No attack has a true-positive rate above `tpr` at the false-positive rate `fpr`.

    Args:
        fpr: in (0, 1).
        tpr: in (fpr, 1). Random guessing already has the true-positive rate `fpr`.

    Raises:
        InvalidParameterError: if a value is out of range.

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

    @property
    def slopes(self) -> tuple[float, float]:
        """Slopes of lines through (fpr, tpr) above the trade-off curve: to (1, 1), and to (0, 0)."""
        return -math.log((1.0 - self.fpr) / (1.0 - self.tpr)), math.log(self.tpr / self.fpr)

    def proving_delta(self, log_slope: float) -> float:
        r"""From tpr <= e^eps fpr + delta; for a slope below 1 the same holds for (1 - tpr, 1 - fpr).

        H_{e^-eps}(P || Q) = 1 - e^-eps + e^-eps H_{e^eps}(Q || P), hence
        tpr <= 1 - e^-eps (1 - delta - fpr).
        """
        if log_slope >= 0.0:
            return self.tpr - math.exp(log_slope) * self.fpr
        return (1.0 - self.fpr) - math.exp(-log_slope) * (1.0 - self.tpr)

    def mu_at(self, value: float) -> float:
        """Mu of the Gaussian release with this true-positive rate."""
        return _quantile(value) - _quantile(self.fpr)


@dataclasses.dataclass(frozen=True)
class AdvantageTarget(RiskTarget):
    """No attack's true-positive rate exceeds its false-positive rate by more than `advantage`.

    Args:
        advantage: in (0, 1).

    Raises:
        InvalidParameterError: if a value is out of range.

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

    @property
    def slopes(self) -> tuple[float, float]:
        """The slope of the line at a constant distance from the diagonal: 1."""
        return 0.0, 0.0

    def proving_delta(self, log_slope: float) -> float:
        """From (e^eps - 1 + 2 delta) / (e^eps + 1), the largest advantage under (eps, delta)."""
        return self.advantage - 0.5 * math.expm1(abs(log_slope)) * (1.0 - self.advantage)

    def mu_at(self, value: float) -> float:
        """Mu of the Gaussian release with this advantage."""
        return 2.0 * _quantile(0.5 * (1.0 + value))


@dataclasses.dataclass(frozen=True)
class GaussianTarget(RiskTarget):
    """As private as one Gaussian release of sensitivity `mu` and noise 1, up to a tail in delta.

    Args:
        mu: in (0, 1e3).
        tail: in (0, 1).

    Raises:
        InvalidParameterError: if a value is out of range.

    Example:
        >>> import dpmech as dm
        >>> print(dm.calibrate_sigma_to(dm.Identity(10), dm.GaussianTarget(mu=0.5)).risk)
        [0.499775, 0.499776], exact
    """

    mu: float
    tail: float = 1e-12

    def __post_init__(self) -> None:
        checked = check_real("mu", self.mu, minimum=0.0, open_minimum=True, maximum=LARGEST_MU)
        object.__setattr__(self, "mu", checked)
        object.__setattr__(self, "tail", _inside("tail", self.tail, 0.0))

    @property
    def limit(self) -> float:
        """The largest mu."""
        return self.mu

    def risk(self, known: PrivacyProfile) -> Bounds:
        """The smallest mu."""
        return known.gaussian_mu(self.tail)

    @property
    def slopes(self) -> None:
        """None: the target bounds the curve at every eps, down to the tail."""
        return

    def proving_delta(self, log_slope: float) -> float:
        """No single (eps, delta) proves it.

        Raises:
            UnsupportedCombinationError: always.
        """
        raise UnsupportedCombinationError(
            f"one pair (eps, delta) at eps={abs(log_slope)!r} proves no mu", supported="a whole profile"
        )

    def mu_at(self, value: float) -> float:
        """The mu itself."""
        return value


def _inside(name: str, value: float, minimum: float) -> float:
    return check_real(name, value, minimum=minimum, maximum=1.0, open_minimum=True, open_maximum=True)


def _quantile(level: float) -> float:
    return float(scipy.special.ndtri(min(max(level, 1e-300), 1.0 - 1e-15)))
