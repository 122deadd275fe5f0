"""Which second routes there are to the privacy of a certified release, and the one that repeats the first.

A second route never shares the step that turns sigma into delta with the accountant that issued the
certificate: the closed form is set against an integral, the transform of a privacy loss against lattices and
another package (and against a contour integral by other code, the sharpest of the three, which rests on the
same inversion formula), the programme and the law of a sum against samples, samples against new ones.
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
    FreshEpochsAccountant,
    GaussianAccountant,
    Importance,
    IndependentAccountant,
    LatticeRoute,
    Method,
    Pld,
    PoissonAccountant,
    Prv,
    Rdp,
    accountant_for,
    gaussian_scale,
)
from dpmech.certificates import Certificate
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import (
    BallsInBins,
    CyclicPoisson,
    FixedSizeLots,
    FreshBallsInBins,
    Mechanism,
    MinSepSampling,
    Poisson,
    Registry,
    TruncatedPoisson,
    UserCyclicPoisson,
    UserPoisson,
)
from dpmech.numerics import BOUND, Bounds, Provenance
from dpmech.verifying.allocation_transform import fresh_delta
from dpmech.verifying.chain_draws import ChainDraws, chain_draws
from dpmech.verifying.fixed_integrals import replaced_delta
from dpmech.verifying.integrals import composed_delta, gaussian_integral
from dpmech.verifying.lattice_sums import LATTICE_ERROR, sampled_delta
from dpmech.verifying.truncated_integrals import joined_prob, truncated_delta
from dpmech.verifying.user_integrals import users_delta

__all__ = ["SECOND_ROUTES", "Route", "certified_sensitivity", "repeated_routes", "second_routes"]

# Of the integrals, relative in delta.
_INTEGRAL_ERROR = 1e-7
# A package's discretisation may leave this much of sigma open.
_PACKAGE_SLACK = 4e-3
# How fine the lattices are made, as a part of sigma; where that cannot be they say nothing.
_LATTICE_TOLERANCE = 2e-3
_BY_INTEGRAL = Provenance("second.integral")
# Of the transforms of fresh allocations, in sigma, and relative in delta.
_TRANSFORM_SLACK, _TRANSFORM_ERROR = 1e-4, 1e-4
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
        apart: whether its lower end is by a law of its own, which a stated lower eps has to meet.
    """

    name: str
    delta: Callable[[float, float], Bounds]
    slack: float
    decides: bool = True
    apart: bool = False


# Of a certificate whose participation is of one kind, given its recomputed sensitivity.
SecondRoutes = Callable[[Certificate, Bounds, np.random.Generator | None], tuple[Route, ...]]
SECOND_ROUTES: Registry[SecondRoutes] = Registry("second routes")


def second_routes(
    certificate: Certificate, sensitivity: Bounds, rng: np.random.Generator | None
) -> tuple[Route, ...]:
    """Routes to delta other than the issuing one, the tightest first.

    Args:
        certificate: the claim.
        sensitivity: recomputed, as `certified_sensitivity` gives it.
        rng: for sampled routes; None takes entropy from the operating system.

    Returns:
        Nothing for a participation for which no routes are registered; the claim is then not confirmed.

    Raises:
        UnsupportedCombinationError: where no theorem covers the claim.
    """
    if certificate.participation.certain:
        return (_integral(sensitivity),)
    routes = SECOND_ROUTES.find(certificate.participation)
    return () if routes is None else routes(certificate, sensitivity, rng)


def _poisson_routes(
    certificate: Certificate, sensitivity: Bounds, rng: np.random.Generator | None
) -> tuple[Route, ...]:
    del rng
    mechanism, sampling_prob = certificate.mechanism, certificate.participation.release_prob
    if sampling_prob is None:
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} is not sampled release by release",
            supported="Poisson and CyclicPoisson",
        )
    q, steps = sampling_prob, mechanism.participation.releases(mechanism.steps)

    def contour(sigma: float, eps: float) -> Bounds:
        upper = composed_delta(q, sigma / sensitivity.upper, steps, eps) * (1.0 + _INTEGRAL_ERROR)
        tight = certificate.achieved.lower > 0.0
        return Bounds(
            upper * (1.0 - 3.0 * _INTEGRAL_ERROR) if tight else 0.0, min(1.0, upper), BOUND, _BY_INTEGRAL
        )

    other = Pld() if isinstance(certificate.evidence.accountant, Prv) else Prv()
    package = _accountant(certificate, other, None)
    routes = [
        Route(f"contour integral of {steps} sampled steps", contour, _INTEGRAL_ERROR),
        Route(package.method, _evaluated(package, certificate), _PACKAGE_SLACK),
    ]
    transformed = _accountant(certificate, Pld(), None)
    # For PRV the transform itself is the other package.
    elsewhere = isinstance(certificate.evidence.accountant, Pld | Rdp)
    if isinstance(transformed, PoissonAccountant) and elsewhere:
        lattice = LatticeRoute(transformed.release)

        def convolved(sigma: float, eps: float) -> Bounds:
            return lattice.delta(sigma, eps, tolerance=_LATTICE_TOLERANCE)

        routes.insert(1, Route(lattice.method, convolved, _PACKAGE_SLACK))
    return tuple(routes)


def _user_routes(
    certificate: Certificate, sensitivity: Bounds, rng: np.random.Generator | None
) -> tuple[Route, ...]:
    """The same integral over the law of a user's loss, of which the accountant makes lattices."""
    del rng
    participation = certificate.participation
    q, examples = participation.example_prob, participation.examples
    if q is None:
        raise UnsupportedCombinationError(
            f"{participation!r} does not say how many examples a user has", supported="UserPoisson"
        )
    steps = participation.releases(certificate.mechanism.steps)
    largest = sensitivity.upper / examples
    tight = certificate.achieved.lower > 0.0

    def contour(sigma: float, eps: float) -> Bounds:
        upper = users_delta(q, examples, sigma / largest, steps, eps) * (1.0 + LATTICE_ERROR)
        lower = upper * (1.0 - 3.0 * LATTICE_ERROR) if tight else 0.0
        return Bounds(lower, min(1.0, upper), BOUND, _BY_INTEGRAL)

    return (Route(f"contour integral of {steps} steps with {examples} examples", contour, LATTICE_ERROR),)


def _truncated_routes(
    certificate: Certificate, sensitivity: Bounds, rng: np.random.Generator | None
) -> tuple[Route, ...]:
    """The integral over the law that dominates; below, over that of lots whose other gradients are zero."""
    del rng
    lots, cut = certificate.participation, certificate.participation.truncation
    if cut is None:
        raise UnsupportedCombinationError(f"{lots!r} truncates no lots", supported="TruncatedPoisson")
    steps = lots.releases(certificate.mechanism.steps)
    q, most, size = cut.sampling_prob, cut.max_lot_size, cut.dataset_size
    joined = joined_prob(q, most, size)

    def contour(sigma: float, eps: float) -> Bounds:
        multiplier = sigma / sensitivity.upper
        upper = truncated_delta(q, most, size, multiplier, steps, eps) * (1.0 + LATTICE_ERROR)
        lower = sampled_delta(joined, multiplier, steps, eps) * (1.0 - 2.0 * LATTICE_ERROR)
        return Bounds(min(lower, upper), min(1.0, upper), BOUND, _BY_INTEGRAL)

    name = f"contour integral of {steps} lots of at most {most} out of {size}"
    return (Route(name, contour, LATTICE_ERROR, apart=True),)


def _fixed_routes(
    certificate: Certificate, sensitivity: Bounds, rng: np.random.Generator | None
) -> tuple[Route, ...]:
    """The integral over the law that dominates; below, over that of one run that is possible."""
    del rng
    lots, draw = certificate.participation, certificate.participation.fixed_draw
    if draw is None:
        raise UnsupportedCombinationError(f"{lots!r} has no lots of one size", supported="FixedSizeLots")
    steps, lot, size = lots.releases(certificate.mechanism.steps), draw.lot_size, draw.dataset_size

    def contour(sigma: float, eps: float) -> Bounds:
        multiplier = sigma / sensitivity.upper
        upper = replaced_delta(lot, size, multiplier, steps, eps) * (1.0 + _INTEGRAL_ERROR)
        lower = composed_delta(lot / size, multiplier, steps, eps) * (1.0 - 2.0 * _INTEGRAL_ERROR)
        return Bounds(min(lower, upper), min(1.0, upper), BOUND, _BY_INTEGRAL)

    return (Route(f"contour integral of {steps} lots of {lot} out of {size}", contour, _INTEGRAL_ERROR),)


def repeated_routes(certificate: Certificate, rng: np.random.Generator | None) -> tuple[Route, ...]:
    """Routes that give the guarantee of the certificate anew; the first that meets the claim suffices.

    Closed forms and lattices are evaluated again; the programme runs on finer grids, then on its own;
    certified sampling draws new samples, for what it says beside its claim. An estimate has none.
    """
    participation, used = certificate.participation, certificate.evidence.accountant
    if participation.certain and isinstance(used, Exact):
        # The stated sensitivity, which has been checked: sigma is the smallest one for that bound.
        closed = GaussianAccountant(certificate.sensitivity)
        return (Route(closed.method, _evaluated(closed, certificate), 0.0),)
    if isinstance(used, Importance):
        return ()
    methods: tuple[Method, ...] = (used,)
    allocated = participation.allocation_bins is not None
    if allocated and isinstance(used, Deterministic):
        methods = (Deterministic(0.5 * used.rel_error), used)
    elif allocated and isinstance(used, Exact) and not _independent(certificate):
        methods = (Deterministic(0.5 * _EXACT_PROGRAMME), used)
    return tuple(_repeat(certificate, method, rng) for method in methods)


def _independent(certificate: Certificate) -> bool:
    """Whether the law of a sum of independent bins gives the guarantee, and no programme."""
    return isinstance(_accountant(certificate, certificate.evidence.accountant, None), IndependentAccountant)


def _repeat(certificate: Certificate, method: Method, rng: np.random.Generator | None) -> Route:
    accountant = _accountant(certificate, method, rng)
    finer = f" at rel_error {method.rel_error:g}" if isinstance(method, Deterministic) else ""
    anew = ", new samples" if isinstance(method, Certified) else ""
    return Route(f"{accountant.method}{finer}{anew}", _evaluated(accountant, certificate), 0.0)


def _integral(sensitivity: Bounds) -> Route:
    def delta(sigma: float, eps: float) -> Bounds:
        lower = gaussian_integral(sigma / sensitivity.lower, eps) if sensitivity.lower > 0.0 else 0.0
        upper = gaussian_integral(sigma / sensitivity.upper, eps)
        return Bounds(
            lower * (1.0 - _INTEGRAL_ERROR), min(1.0, upper * (1.0 + _INTEGRAL_ERROR)), BOUND, _BY_INTEGRAL
        )

    return Route("integral of the Gaussian hockey stick", delta, _INTEGRAL_ERROR)


def _sample_routes(
    certificate: Certificate, sensitivity: Bounds, rng: np.random.Generator | None
) -> tuple[Route, ...]:
    """An independent importance sample, as fine as the steepness of delta in sigma asks for."""
    del sensitivity  # inside the samples
    eps, delta = certificate.budget.eps, certificate.budget.delta
    steepness = 0.01 / max(gaussian_scale(eps, delta * math.exp(-0.01)) - gaussian_scale(eps, delta), 1e-6)
    error = min(max(1e-3 * steepness, _SAMPLE_ERRORS[0]), _SAMPLE_ERRORS[1])
    accountant = _accountant(certificate, Importance(error, _SAMPLE_CONFIDENCE), rng)
    name = f"{accountant.method}, independent"
    return (Route(name, _evaluated(accountant, certificate), math.inf, decides=False),)


def _fresh_routes(
    certificate: Certificate, sensitivity: Bounds, rng: np.random.Generator | None
) -> tuple[Route, ...]:
    """The transform of the likelihood ratio of one epoch, composed and inverted."""
    del rng
    bins = certificate.participation.epoch_bins
    accountant = _accountant(certificate, Exact(), None)
    if bins is None or not isinstance(accountant, FreshEpochsAccountant):
        raise UnsupportedCombinationError(
            f"{certificate.participation!r} allocates nobody anew every epoch", supported="FreshBallsInBins"
        )
    columns = certificate.strategy.column_norms()
    norms = columns.reshape(-1, bins).max(axis=1)
    # The sensitivity is that of as many columns as there are epochs, the largest ones. By what it is above
    # that when computed anew, each epoch counts for more.
    largest = np.sort(columns**2)[-norms.size :]
    raised = max(1.0, sensitivity.upper / math.sqrt(math.fsum(largest)))
    alike, times = np.unique(norms, return_counts=True)

    def delta(sigma: float, eps: float) -> Bounds:
        composed = accountant.composition(sigma)
        tilts = composed.tilt(eps, add=False), composed.tilt(eps, add=True)
        epochs = [
            (raised * float(norm) / sigma, int(count)) for norm, count in zip(alike, times, strict=True)
        ]
        found = fresh_delta(bins, epochs, eps, tilts)
        return Bounds(
            found * (1.0 - _TRANSFORM_ERROR), min(1.0, found * (1.0 + _TRANSFORM_ERROR)), BOUND, _BY_INTEGRAL
        )

    return (Route(f"transform of the ratio of {bins} bins, inverted", delta, _TRANSFORM_SLACK),)


def _accountant(certificate: Certificate, method: Method, rng: np.random.Generator | None) -> Accountant:
    return accountant_for(certificate.mechanism, method, rng)


def _evaluated(accountant: Accountant, certificate: Certificate) -> Callable[[float, float], Bounds]:
    # The tolerance at which a calibration probes, so that a repeated evaluation sees what it saw.
    tolerance = 0.4 * certificate.evidence.rtol
    return lambda sigma, eps: accountant.delta(sigma, eps, tolerance=tolerance)


def certified_sensitivity(bracket: Bounds, mechanism: Mechanism) -> Bounds:
    """What a certificate calls sensitivity: that of one release, or of all together where none is sampled.

    Args:
        bracket: that of `mechanism`, per release for Poisson and CyclicPoisson.
        mechanism: what runs.
    """
    participation = mechanism.participation
    if not participation.per_release or not mechanism.certain:
        return bracket
    together = bracket.times_root(participation.releases(mechanism.steps))
    # The releases of one group need not all reach the largest column norm.
    lower = together.lower if participation.groups is None else bracket.lower
    return Bounds.bracket(lower, together.upper, together.by)


SECOND_ROUTES.add(Poisson, _poisson_routes)
SECOND_ROUTES.add(UserPoisson, _user_routes)
SECOND_ROUTES.add(TruncatedPoisson, _truncated_routes)
SECOND_ROUTES.add(FixedSizeLots, _fixed_routes)
SECOND_ROUTES.add(
    MinSepSampling,
    lambda own, _, rng: (Route(ChainDraws.name, chain_draws(own, rng).delta, math.inf, decides=False),),
)
SECOND_ROUTES.add(CyclicPoisson, _poisson_routes)
SECOND_ROUTES.add(UserCyclicPoisson, _user_routes)
SECOND_ROUTES.add(BallsInBins, _sample_routes)
SECOND_ROUTES.add(FreshBallsInBins, _fresh_routes)
