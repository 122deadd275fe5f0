"""Mechanisms as DpEvents of the package dp_accounting."""

from fractions import Fraction
from typing import TYPE_CHECKING

from dpmech.certificates import Claim
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_sigma
from dpmech.ledgers import (
    ZCDP,
    BasicMechanism,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Ledger,
    PureDP,
    RandomizedResponse,
)
from dpmech.mechanism import Adjacency, Mechanism, Participation, Strategy, mechanism_of
from dpmech.numerics import quotient_down, quotient_up, rounded_down, rounded_up
from dpmech.schemes import accountant_for, offered

if TYPE_CHECKING:
    import dp_accounting


def to_dp_event(
    mechanism: Claim | Ledger | Mechanism | Strategy,
    sigma: float | None = None,
    *,
    participation: Participation | None = None,
) -> "dp_accounting.DpEvent":
    """The DpEvent of a mechanism, for accountants of dp_accounting with ADD_OR_REMOVE_ONE.

    Without sampling, the event is one `GaussianDpEvent` for any number of steps. Its argument is sigma /
    sensitivity of the full matrix, rounded down. Under Poisson sampling, there is one `PoissonSampledDpEvent`
    per step; under CyclicPoisson, one per step that an example can join. A ledger is the `ComposedDpEvent` of
    its entries. A pure eps-DP claim is a `ZCDpEvent` with rho = eps^2 / 2, which the claim implies (Bun and
    Steinke 2016).

    Args:
        mechanism: a Calibration or a Certificate, which include sigma; a Ledger; a Mechanism, or C.
        sigma: standard deviation of Z at clip norm 1, > 0; None if the first argument includes it.
        participation: participation of C; None is EveryStep.

    Returns:
        The event. Its eps, computed by an accountant of dp_accounting, is an upper bound on that of the
        mechanism, up to the rounding of that accountant.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: if no event describes the mechanism, as under Balls-in-Bins or for an
            (eps, delta) claim; and for noise under REPLACE_ONE, which the accountants of dp_accounting
            interpret differently (the PLD accountant doubles the sensitivity of an event, but the RDP
            accountant does not).

    Examples:
        >>> import dpmech as dm
        >>> dm.interchange.to_dp_event(dm.Identity(1000), 1.1, participation=dm.Poisson(0.01))
        SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.01,
        event=GaussianDpEvent(noise_multiplier=1.1)), count=1000)
    """
    if isinstance(mechanism, Claim | Ledger):
        for name, value in (("sigma", sigma), ("participation", participation)):
            if value is not None:
                accepted = f"None with a {type(mechanism).__name__}, which says it"
                raise InvalidParameterError(name, value, accepted)
    if isinstance(mechanism, Ledger):
        return _of_ledger(mechanism)
    if isinstance(mechanism, Claim):
        return _event(mechanism.mechanism, mechanism.sigma)
    if sigma is None:
        raise InvalidParameterError("sigma", sigma, "given, where the first argument is no claim")
    return _event(mechanism_of(mechanism, participation), check_sigma(sigma))


def _of_ledger(ledger: Ledger) -> "dp_accounting.DpEvent":
    import dp_accounting

    if ledger.counts:
        raise UnsupportedCombinationError(
            f"{ledger.counts[0].name!r} is a release of counts, for whose noise there is no event",
            supported="ledgers without add_counts",
        )
    if not ledger.releases and not ledger.mechanisms:
        return dp_accounting.NoOpDpEvent()
    for one in ledger.releases:
        if one.runs is not None:
            raise UnsupportedCombinationError(
                f"{one.name!r} is a private selection, for which there is no event",
                supported="ledgers without add_tuning",
            )
    events = [_event(one.certificate.mechanism, one.certificate.sigma) for one in ledger.releases]
    for entry in ledger.mechanisms:
        event = _basic_event(entry.name, entry.mechanism)
        if entry.count == 1 or isinstance(entry.mechanism, RandomizedResponse):
            # The PLD accountant of dp_accounting 0.6 takes many copies of randomised response for one.
            events += [event] * entry.count
        else:
            events.append(dp_accounting.SelfComposedDpEvent(event, entry.count))
    return dp_accounting.ComposedDpEvent(events)


def _basic_event(name: str, mechanism: BasicMechanism) -> "dp_accounting.DpEvent":
    """The event of a mechanism without a certificate, with its noise rounded down."""
    import dp_accounting

    match mechanism:
        case RandomizedResponse(truth_prob=truth, categories=many):
            # Theirs keeps the answer with probability 1 - p, and otherwise draws any of them.
            noise = (1 - Fraction(truth)) * many / (many - 1)
            return dp_accounting.RandomizedResponseDpEvent(rounded_down(noise), many)
        case PureDP(eps=eps):
            return dp_accounting.ZCDpEvent(rounded_up(Fraction(eps) ** 2 / 2))
        case ZCDP(rho=rho):
            return dp_accounting.ZCDpEvent(rho)
    if not isinstance(mechanism, Gaussian | Laplace | DiscreteLaplace):
        raise UnsupportedCombinationError(
            f"no DpEvent says what the claim {name!r} is, {mechanism!r}",
            supported="a mechanism by its noise, pure and zCDP claims",
        )
    _check_adjacency(mechanism.adjacency)
    if isinstance(mechanism, Gaussian):
        return dp_accounting.GaussianDpEvent(quotient_down(mechanism.sigma, mechanism.sensitivity))
    if isinstance(mechanism, Laplace):
        return dp_accounting.LaplaceDpEvent(quotient_down(mechanism.scale, mechanism.sensitivity))
    rate = quotient_up(1.0, mechanism.scale)
    return dp_accounting.dp_event.DiscreteLaplaceDpEvent(rate, mechanism.sensitivity)


def _event(mechanism: Mechanism, sigma: float) -> "dp_accounting.DpEvent":
    _check_adjacency(mechanism.adjacency)
    # The default accountant accounts for this mechanism, by a theorem; the event describes the same.
    event = accountant_for(mechanism, None).dp_event(sigma)
    if event is None:
        raise UnsupportedCombinationError(
            f"no DpEvent says what {mechanism.participation!r} is", supported=offered("event")
        )
    return event


def _check_adjacency(adjacency: Adjacency) -> None:
    if adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedCombinationError(
            "accountants of dp_accounting do not agree on what a DpEvent means under REPLACE_ONE",
            supported="ADD_REMOVE and ZERO_OUT; under REPLACE_ONE randomised response, pure and zCDP claims",
        )
