"""Which second routes there are to the privacy of a certified release, and the one that repeats the first.

A second route never shares the step that turns sigma into delta with the accountant that issued the
certificate: the closed form is set against an integral, a lattice against a contour integral and another
package, the programme against samples, samples against new ones.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from dpmech.accounting import (
    Accountant,
    Certified,
    Deterministic,
    Exact,
    GaussianAccountant,
    Importance,
    Method,
    Pld,
    Prv,
    accountant_for,
    gaussian_scale,
)
from dpmech.certificates import Certificate
from dpmech.mechanism import BallsInBins, CyclicPoisson, Participation, Poisson
from dpmech.numerics import Bounds
from dpmech.verifying.integrals import composed_delta, gaussian_integral

__all__ = ["Route", "certified_sensitivity", "repeated_routes", "sampled", "second_routes"]

# Of the integrals, relative in delta.
_INTEGRAL_ERROR = 1e-7
# A package's discretisation may leave this much of sigma open.
_PACKAGE_SLACK = 4e-3
# An honest file is refused by its own independent sample once in a million times.
_SAMPLE_CONFIDENCE = 1.0 - 1e-6
_SAMPLE_ERRORS = (2e-3, 2e-2)
_EXACT_PROGRAMME = 5e-3


@dataclasses.dataclass(frozen=True)
class Route:
    """A way to delta.

    Attributes:
        name: in words.
        delta: (sigma, eps) to Bounds.
        slack: how much of sigma, relative, it leaves open: its upper end may exceed the claim by that.
        decides: whether its upper end has to meet the claim; if not, only its lower end can refuse.
    """

    name: str
    delta: Callable[[float, float], Bounds]
    slack: float
    decides: bool = True


def second_routes(
    certificate: Certificate, sensitivity: Bounds, rng: np.random.Generator | None
) -> tuple[Route, ...]:
    """Routes to delta other than the issuing one, the tightest first.

    Args:
        certificate: the claim.
        sensitivity: recomputed, as `certified_sensitivity` gives it.
        rng: for sampled routes; None takes entropy from the operating system.

    Raises:
        UnsupportedCombinationError: where no theorem covers the claim.
    """
    participation, n = certificate.participation, certificate.strategy.n
    if not sampled(participation):
        return (_integral(sensitivity),)
    if not isinstance(participation, Poisson | CyclicPoisson):
        return (_sample(certificate, rng),)
    q = participation.sampling_prob
    steps = _releases(participation, n)

    def contour(sigma: float, eps: float) -> Bounds:
        upper = composed_delta(q, sigma / sensitivity.upper, steps, eps) * (1.0 + _INTEGRAL_ERROR)
        tight = certificate.achieved.lower > 0.0
        return Bounds(upper * (1.0 - 3.0 * _INTEGRAL_ERROR) if tight else 0.0, min(1.0, upper), "integral")

    other = Pld() if isinstance(certificate.evidence.accountant, Prv) else Prv()
    package = _accountant(certificate, other, None)
    return (
        Route(f"contour integral of {steps} sampled steps", contour, _INTEGRAL_ERROR),
        Route(package.method, _evaluated(package, certificate), _PACKAGE_SLACK),
    )


def repeated_routes(certificate: Certificate, rng: np.random.Generator | None) -> tuple[Route, ...]:
    """Routes that give the guarantee of the certificate anew; the first that meets the claim suffices.

    Closed forms and lattices are evaluated again; the programme runs on finer grids, then on its own;
    certified sampling draws new samples. An estimate has none.
    """
    participation, used = certificate.participation, certificate.evidence.accountant
    if not sampled(participation) and isinstance(used, Exact):
        # The stated sensitivity, which has been checked: sigma is the smallest one for that bound.
        closed = GaussianAccountant(certificate.sensitivity)
        return (Route(closed.method, _evaluated(closed, certificate), 0.0),)
    if isinstance(used, Importance):
        return ()
    methods: tuple[Method, ...] = (used,)
    if isinstance(participation, BallsInBins) and isinstance(used, Deterministic):
        methods = (Deterministic(0.5 * used.rel_error), used)
    elif isinstance(participation, BallsInBins) and isinstance(used, Exact) and participation.bins > 1:
        methods = (Deterministic(0.5 * _EXACT_PROGRAMME), used)
    return tuple(_repeat(certificate, method, rng) for method in methods)


def _repeat(certificate: Certificate, method: Method, rng: np.random.Generator | None) -> Route:
    accountant = _accountant(certificate, method, rng)
    finer = f" at rel_error {method.rel_error:g}" if isinstance(method, Deterministic) else ""
    anew = ", new samples" if isinstance(method, Certified) else ""
    return Route(f"{accountant.method}{finer}{anew}", _evaluated(accountant, certificate), 0.0)


def _integral(sensitivity: Bounds) -> Route:
    def delta(sigma: float, eps: float) -> Bounds:
        lower = gaussian_integral(sigma / sensitivity.lower, eps) if sensitivity.lower > 0.0 else 0.0
        upper = gaussian_integral(sigma / sensitivity.upper, eps)
        return Bounds(lower * (1.0 - _INTEGRAL_ERROR), min(1.0, upper * (1.0 + _INTEGRAL_ERROR)), "integral")

    return Route("integral of the Gaussian hockey stick", delta, _INTEGRAL_ERROR)


def _sample(certificate: Certificate, rng: np.random.Generator | None) -> Route:
    """An independent importance sample, as fine as the steepness of delta in sigma asks for."""
    eps, delta = certificate.budget.eps, certificate.budget.delta
    steepness = 0.01 / max(gaussian_scale(eps, delta * math.exp(-0.01)) - gaussian_scale(eps, delta), 1e-6)
    error = min(max(1e-3 * steepness, _SAMPLE_ERRORS[0]), _SAMPLE_ERRORS[1])
    accountant = _accountant(certificate, Importance(error, _SAMPLE_CONFIDENCE), rng)
    return Route(
        f"{accountant.method}, independent", _evaluated(accountant, certificate), math.inf, decides=False
    )


def _accountant(certificate: Certificate, method: Method, rng: np.random.Generator | None) -> Accountant:
    return accountant_for(certificate.mechanism, method, rng)


def _evaluated(accountant: Accountant, certificate: Certificate) -> Callable[[float, float], Bounds]:
    # The tolerance at which a calibration probes, so that a repeated evaluation sees what it saw.
    tolerance = 0.4 * certificate.evidence.rtol
    return lambda sigma, eps: accountant.delta(sigma, eps, tolerance=tolerance)


def certified_sensitivity(bracket: Bounds, participation: Participation, n: int) -> Bounds:
    """What a certificate calls sensitivity: that of one release, or of all together where none is sampled.

    Args:
        bracket: that of `participation`, per release for Poisson and CyclicPoisson.
        participation: who takes part when.
        n: number of steps.
    """
    if not participation.per_release or sampled(participation):
        return bracket
    together = bracket.scaled(math.sqrt(_releases(participation, n)))
    # The releases of one group need not all reach the largest column norm.
    lower = bracket.lower if isinstance(participation, CyclicPoisson) else together.lower
    return dataclasses.replace(together, lower=lower)


def sampled(participation: Participation) -> bool:
    """Whether anything about who takes part is random."""
    match participation:
        case Poisson() | CyclicPoisson():
            return participation.sampling_prob < 1.0
        case BallsInBins():
            return participation.bins > 1
        case _:
            return False


def _releases(participation: Participation, n: int) -> int:
    """How many releases of one sampled lot each compose: n, or those of one of `cycle` groups."""
    return -(-n // participation.cycle) if isinstance(participation, CyclicPoisson) else n
