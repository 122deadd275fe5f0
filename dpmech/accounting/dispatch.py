"""Which theorem covers a strategy, a participation, an adjacency and a method; or a refusal."""

import math
from fractions import Fraction

import numpy as np

from dpmech.accounting.accountant import Accountant
from dpmech.accounting.balls_in_bins import (
    AllocationRenyiAccountant,
    CertifiedAccountant,
    DeterministicAccountant,
    ImportanceAccountant,
    bin_gram,
    check_nonnegative,
    ring_profile,
)
from dpmech.accounting.gaussian import GaussianAccountant
from dpmech.accounting.methods import Certified, Deterministic, Exact, Importance, Method, Pld, Prv, Rdp
from dpmech.accounting.poisson import PoissonAccountant, PoissonRelease, PrvAccountant
from dpmech.accounting.renyi import RenyiAccountant
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import (
    Adjacency,
    BallsInBins,
    CyclicPoisson,
    Participation,
    Poisson,
    Strategy,
    sensitivity,
)
from dpmech.numerics import Bounds, spend

__all__ = ["accountant_for", "effective_method"]


def accountant_for(
    strategy: Strategy,
    participation: Participation,
    adjacency: Adjacency,
    method: Method | None,
    rng: np.random.Generator | None = None,
) -> Accountant:
    """The accountant of this combination; `rng` serves randomised ones.

    Raises:
        InvalidParameterError: if the participation does not fit n.
        UnsupportedCombinationError: if no theorem covers it.
    """
    participation.pattern(strategy.n)
    if participation.random and adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedCombinationError(
            f"no bound is proved for REPLACE_ONE under {participation!r}, where doubling is no theorem",
            supported="ADD_REMOVE and ZERO_OUT under sampling; REPLACE_ONE without sampling",
        )
    match participation:
        case Poisson():
            return _poisson(_independent_release(strategy, participation), method)
        case CyclicPoisson():
            return _poisson(_cyclic_release(strategy, participation), method)
        case BallsInBins():
            return _balls_in_bins(strategy, participation, method, rng)
        case _:
            return _unsampled(sensitivity(strategy, participation, adjacency=adjacency), method)


def effective_method(participation: Participation, method: Method | None) -> Method:
    """What `accountant_for` acts on: the default in place of None, and Exact where nothing is random."""
    match participation:
        case Poisson() | CyclicPoisson():
            certain = participation.sampling_prob == 1.0
        case BallsInBins():
            certain = participation.bins == 1
        case _:
            certain = True
    if certain:
        return method if isinstance(method, Rdp) else Exact()
    if method is not None:
        return method
    return Importance() if isinstance(participation, BallsInBins) else Pld()


def _unsampled(bounds: Bounds, method: Method | None) -> Accountant:
    if method is None or isinstance(method, Exact):
        return GaussianAccountant(bounds)
    if isinstance(method, Rdp):
        return RenyiAccountant(bounds)
    raise UnsupportedCombinationError(
        f"{method!r} does not apply without sampling, where the Gaussian mechanism has an exact formula",
        supported="method=None, Exact() or Rdp()",
    )


def _independent_release(strategy: Strategy, participation: Poisson) -> PoissonRelease:
    norms = strategy.column_norms()
    if strategy.bands != 1 or np.any(np.abs(norms - norms[0]) > 1e-14 * norms[0]):
        raise UnsupportedCombinationError(
            f"{participation!r} needs independent, equal noise at every step, which {strategy!r} has not",
            supported="Identity; for correlated noise CyclicPoisson with a banded strategy, or BallsInBins",
        )
    return PoissonRelease(
        participation.sampling_prob, strategy.n, sensitivity(strategy, participation), tight=True
    )


def _cyclic_release(strategy: Strategy, participation: CyclicPoisson) -> PoissonRelease:
    """Columns a multiple of `cycle` apart are orthogonal, so that the releases of one group compose."""
    cycle = participation.cycle
    bands = strategy.n if strategy.bands is None else strategy.bands
    if bands > cycle:
        raise UnsupportedCombinationError(
            f"{participation!r} needs a strategy with at most cycle={cycle} bands, {strategy!r} has {bands}",
            supported="SquareRoot(n, bands), BandedToeplitz(n, coefs) and others with bands <= cycle",
        )
    steps = math.ceil(strategy.n / cycle)
    norms = strategy.column_norms()
    spend(1e-5 * min(cycle, strategy.n), what=f"looking at {cycle} groups")
    # The bound is tight if some group has all its columns at the largest norm.
    full = norms >= norms.max() * (1.0 - 1e-14)
    tight = any(full[start::cycle].sum() == steps for start in range(min(cycle, strategy.n)))
    return PoissonRelease(
        participation.sampling_prob, steps, sensitivity(strategy, participation), tight=tight
    )


def _balls_in_bins(
    strategy: Strategy, participation: BallsInBins, method: Method | None, rng: np.random.Generator | None
) -> Accountant:
    bounds = sensitivity(strategy, participation)
    bins = participation.bins
    if bins == 1:
        # Everyone is in the same bin: nothing is random, and the unsampled formula is exact.
        return _unsampled(bounds, method if isinstance(method, Rdp) else None)
    check_nonnegative(strategy)
    if method is None or isinstance(method, Importance):
        return ImportanceAccountant(bin_gram(strategy, bins), bounds, method or Importance(), rng)
    if isinstance(method, Certified):
        return CertifiedAccountant(bin_gram(strategy, bins), bounds, method, rng)
    if isinstance(method, Deterministic):
        return DeterministicAccountant(ring_profile(strategy, bins), bin_gram(strategy, bins), bounds, method)
    if isinstance(method, Exact) and strategy.bands == 1:
        return DeterministicAccountant(
            ring_profile(strategy, bins), bin_gram(strategy, bins), bounds, Deterministic(rel_error=0.005)
        )
    if isinstance(method, Rdp):
        return AllocationRenyiAccountant(bin_gram(strategy, bins), bounds)
    raise UnsupportedCombinationError(
        f"{method!r} does not apply to {participation!r} with {strategy!r}",
        supported="method=None, Importance(), Certified(), Deterministic(), Rdp(); Exact() for Identity",
    )


def _poisson(release: PoissonRelease, method: Method | None) -> Accountant:
    if isinstance(method, Rdp):
        return RenyiAccountant(release.sensitivity, release.sampling_prob, release.steps)
    if release.sampling_prob == 1.0:
        # Not sampled at all: T Gaussian releases are one with sensitivity sqrt(T).
        bounds = _repeated(release.sensitivity, release.steps)
        if not release.tight:
            bounds = Bounds(release.sensitivity.lower, bounds.upper, bounds.method)
        return _unsampled(bounds, None if isinstance(method, Pld | Prv) else method)
    if method is None or isinstance(method, Pld):
        return PoissonAccountant(release)
    if isinstance(method, Prv):
        return PrvAccountant(release)
    raise UnsupportedCombinationError(
        f"{method!r} does not apply to Poisson sampling", supported="method=None, Pld(), Prv() or Rdp()"
    )


def _repeated(bounds: Bounds, steps: int) -> Bounds:
    """sqrt(steps) times the bounds, rounded outward."""
    lower, upper = math.sqrt(steps) * bounds.lower, math.sqrt(steps) * bounds.upper
    while Fraction(lower) ** 2 > Fraction(bounds.lower) ** 2 * steps:
        lower = math.nextafter(lower, 0.0)
    while Fraction(upper) ** 2 < Fraction(bounds.upper) ** 2 * steps:
        upper = math.nextafter(upper, math.inf)
    return Bounds(lower, upper, bounds.method)
