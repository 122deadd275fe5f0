"""The privacy of a given noise scale: eps at a delta, delta at an eps, and the whole curve."""

import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np

from dpmech.engines import Exact, Method, Pld, PrivacyProfile, check_method
from dpmech.exceptions import NumericalError
from dpmech.guards import check_delta, check_eps, check_real, check_rng, check_sigma
from dpmech.mechanism import (
    UNSTATED,
    Adjacency,
    Mechanism,
    Participation,
    Strategy,
    Unstated,
    mechanism_of,
)
from dpmech.numerics import Bounds, running_on, short, typed, within_float64
from dpmech.schemes import accountant_for, unsampled_method

# The tolerance of a calibration at the default rtol, so that delta at its sigma agrees with the calibration.
_EVALUATION_TOLERANCE = 4e-4
# Noise over sensitivity: outside, accountants of sampled runs may fail; far outside they are not called.
_LITTLE, _MUCH = 0.05, 1e6
_LEAST, _MOST = 1e-100, 1e100


@contextlib.contextmanager
def plain_scale(mechanism: Mechanism, sigma: float, other: str) -> Iterator[None]:
    """Replace failures that an extreme noise scale causes by an error that says so.

    Args:
        mechanism: the mechanism.
        sigma: > 0.
        other: the other quantity of the computation, in words.

    Raises:
        NumericalError: on entry, if nothing could be computed under sampling; inside, in place of the error
            that the scale causes.
    """
    what = f"sigma {typed(sigma)} and {other}"
    with within_float64(what):
        ratio = sigma / mechanism.sensitivity.upper
    # Without sampling eps is a formula, which is valid for all floats.
    if mechanism.participation.random and not _LEAST <= ratio <= _MOST:
        raise NumericalError(_absurd(mechanism, sigma, ratio))
    fair = _LITTLE <= ratio <= _MUCH
    try:
        with within_float64(what):
            yield
    except NumericalError as error:
        if fair:
            raise
        raise NumericalError(_absurd(mechanism, sigma, ratio)) from error


def _absurd(mechanism: Mechanism, sigma: float, ratio: float) -> str:
    times = f"sigma {typed(sigma)} is {short(ratio)} times the sensitivity"
    if ratio < 1.0:
        own = mechanism.participation
        moments = unsampled_method(own) not in {None, Exact(), Pld()}
        what = "only Rdp() has a bound" if moments else "no bound can be computed"
        return f"{times}: with so little noise a release protects nobody, and {what}"
    return f"{times}: with so much noise eps or delta leaves the range of float64"


def epsilon(
    strategy: Strategy | Mechanism,
    sigma: float,
    delta: float,
    *,
    participation: Participation | None = None,
    adjacency: Adjacency | Unstated = UNSTATED,
    method: Method | None = None,
    rng: np.random.Generator | int | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> Bounds:
    """Bounds on the smallest eps >= 0 at `delta` of C G + sigma Z.

    Args:
        strategy: C, or a Mechanism.
        sigma: standard deviation of Z at clip norm 1, > 0.
        delta: in (0, 1).
        participation: as for `calibrate_sigma`.
        adjacency: as for `calibrate_sigma`.
        method: as for `calibrate_sigma`.
        rng: as for `calibrate_sigma`.
        executor: as for `calibrate_sigma`.

    Returns:
        Bounds; exact without sampling. Errors as for `calibrate_sigma`.

    Examples:
        >>> import dpmech as dm
        >>> round(dm.epsilon(dm.Identity(1), 1.0, 1e-5, participation=dm.SingleParticipation()).upper, 4)
        4.3772
    """
    checked_sigma, checked_delta = check_sigma(sigma), check_delta(delta)
    mechanism = mechanism_of(strategy, participation, adjacency)
    other = f"delta {typed(checked_delta)}"
    with plain_scale(mechanism, checked_sigma, other), running_on(executor):
        accountant = accountant_for(mechanism, check_method(method), check_rng(rng))
        return accountant.epsilon(checked_sigma, checked_delta, tolerance=_EVALUATION_TOLERANCE)


def delta(
    strategy: Strategy | Mechanism,
    sigma: float,
    eps: float,
    *,
    participation: Participation | None = None,
    adjacency: Adjacency | Unstated = UNSTATED,
    method: Method | None = None,
    rng: np.random.Generator | int | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> Bounds:
    """Bounds on the smallest delta at `eps` >= 0 of C G + sigma Z; arguments and errors as for `epsilon`.

    Examples:
        >>> import dpmech as dm
        >>> value = dm.delta(dm.Identity(1), 0.60022907, 8.0, participation=dm.SingleParticipation())
        >>> f"{value.upper:.4g}"
        '1e-05'
    """
    checked_sigma, checked_eps = check_sigma(sigma), check_eps(eps, zero_allowed=True)
    mechanism = mechanism_of(strategy, participation, adjacency)
    with plain_scale(mechanism, checked_sigma, f"eps {typed(checked_eps)}"), running_on(executor):
        accountant = accountant_for(mechanism, check_method(method), check_rng(rng))
        return accountant.delta(checked_sigma, checked_eps, tolerance=_EVALUATION_TOLERANCE)


def profile(
    strategy: Strategy | Mechanism,
    sigma: float,
    *,
    participation: Participation | None = None,
    adjacency: Adjacency | Unstated = UNSTATED,
    rel_error: float = 0.01,
    method: Method | None = None,
    rng: np.random.Generator | int | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> PrivacyProfile:
    """The whole curve delta(eps) of C G + sigma Z in both directions, as proved bounds that can be composed.

    Without sampling and under Poisson sampling, the curve is known everywhere. Under Balls-in-Bins, it is
    bounded at about a hundred nodes, down to delta = 1e-12, and between the nodes by their convex hull. The
    default method uses samples, whose failure probability covers all nodes together and is *outside* delta.

    Args:
        strategy: C, or a Mechanism.
        sigma: standard deviation of Z at clip norm 1, > 0.
        participation: as for `calibrate_sigma`.
        adjacency: as for `calibrate_sigma`.
        rel_error: largest relative excess of the hull over the curve between nodes, in [1e-3, 0.5]; for
            bounds from samples, the target is five times this value.
        method: as for `calibrate_sigma`.
        rng: as for `calibrate_sigma`.
        executor: as for `calibrate_sigma`.

    Returns:
        A PrivacyProfile. Errors as for `calibrate_sigma`.

    Examples:
        >>> import dpmech as dm
        >>> run = dm.profile(dm.Identity(1000), 1.0, participation=dm.Poisson(0.01))
        >>> round(run.epsilon(1e-5).upper, 3), round(run.self_compose(2).epsilon(1e-5).upper, 3)
        (1.828, 2.584)
    """
    checked_sigma = check_sigma(sigma)
    hull = check_real("rel_error", rel_error, minimum=1e-3, maximum=0.5)
    mechanism = mechanism_of(strategy, participation, adjacency)
    with plain_scale(mechanism, checked_sigma, "its profile"), running_on(executor):
        accountant = accountant_for(mechanism, check_method(method), check_rng(rng))
        found = accountant.profile(checked_sigma, mechanism.adjacency, rel_error=hull)
    return dataclasses.replace(found, unit=mechanism.unit, of=(mechanism, checked_sigma))
