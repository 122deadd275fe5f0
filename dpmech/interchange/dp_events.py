"""Mechanisms as DpEvents of the package dp_accounting."""

from typing import TYPE_CHECKING

from dpmech.certificates import Claim
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_sigma
from dpmech.ledgers import Ledger
from dpmech.mechanism import Adjacency, Mechanism, Participation, Strategy, mechanism_of
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

    Without sampling it is one `GaussianDpEvent`, for any number of steps: its argument is sigma / sensitivity
    of the full matrix, rounded down. Under Poisson sampling it is one `PoissonSampledDpEvent` per step, under
    CyclicPoisson one per step that an example can join. A ledger is the `ComposedDpEvent` of its releases.

    Args:
        mechanism: a Calibration or a Certificate, which include sigma; a Ledger; a Mechanism, or C.
        sigma: standard deviation of Z at clip norm 1, > 0; None if the first argument includes it.
        participation: participation of C; None is EveryStep.

    Returns:
        The event; its eps by an accountant of dp_accounting is an upper bound on that of the mechanism, up to
        the rounding of that accountant.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: if no event describes the mechanism, as under Balls-in-Bins; and for
            REPLACE_ONE, which the accountants of dp_accounting interpret differently (its PLD accountant
            doubles the sensitivity of an event, its RDP accountant does not).

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
    if ledger.mechanisms:
        raise UnsupportedCombinationError(
            f"{ledger.mechanisms[0].name!r} has no certificate, and a ledger's event is made of those",
            supported="ledgers without add_mechanism",
        )
    if not ledger.releases:
        return dp_accounting.NoOpDpEvent()
    for one in ledger.releases:
        if one.runs is not None:
            raise UnsupportedCombinationError(
                f"{one.name!r} is a private selection, for which there is no event",
                supported="ledgers without add_tuning",
            )
    events = [_event(one.certificate.mechanism, one.certificate.sigma) for one in ledger.releases]
    return dp_accounting.ComposedDpEvent(events)


def _event(mechanism: Mechanism, sigma: float) -> "dp_accounting.DpEvent":
    if mechanism.adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedCombinationError(
            "accountants of dp_accounting do not agree on what a DpEvent means under REPLACE_ONE",
            supported="ADD_REMOVE and ZERO_OUT",
        )
    # The default accountant accounts for this mechanism, by a theorem; the event describes the same.
    event = accountant_for(mechanism, None).dp_event(sigma)
    if event is None:
        raise UnsupportedCombinationError(
            f"no DpEvent says what {mechanism.participation!r} is", supported=offered("event")
        )
    return event
