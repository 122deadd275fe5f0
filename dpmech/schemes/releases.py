"""Mechanisms without sampling, and the column norms of releases that one unit may join, each by itself."""

from dpmech.engines import Accountant, Exact, GaussianAccountant, Method, Rdp, RenyiAccountant
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism
from dpmech.numerics import Bounds, quotient_down, spend

# Column norms this close, relative, count as equal. No guarantee rests on it: upper ends take the largest
# norm, lower ends the smallest.
CLOSE = 1e-14


def unsampled(bounds: Bounds, method: Method | None) -> Accountant:
    """The Gaussian mechanism, by its formula or its divergences.

    Raises:
        UnsupportedCombinationError: for any other method.
    """
    if method is None or isinstance(method, Exact):
        return GaussianAccountant(bounds)
    if isinstance(method, Rdp):
        return RenyiAccountant(bounds)
    raise UnsupportedCombinationError(
        f"{method!r} does not apply without sampling, where the Gaussian mechanism has an exact formula",
        supported="method=None, Exact() or Rdp()",
    )


def least_of_a_group(mechanism: Mechanism, cycle: int) -> float:
    """The smallest column norm, as a part of the largest of all, of the group that comes closest to it.

    It is 0 where no group has as many releases as one may: none costs what they may. Columns a multiple of
    `cycle` apart are orthogonal, so that the releases of one group compose.

    Raises:
        UnsupportedCombinationError: if releases of one group share noise.
    """
    strategy = mechanism.strategy
    bands = strategy.n if strategy.bands is None else strategy.bands
    if bands > cycle:
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} needs a strategy with at most cycle={cycle} bands, {strategy!r} "
            f"has {bands}",
            supported="SquareRoot(n, bands), BandedToeplitz(n, coefs) and others with bands <= cycle",
        )
    norms = strategy.column_norms()
    spend(1e-5 * min(cycle, strategy.n), what=f"looking at {cycle} groups")
    turns = mechanism.participation.releases(strategy.n)
    groups = (norms[start::cycle] for start in range(min(cycle, strategy.n)))
    least = max((float(group.min()) for group in groups if group.size == turns), default=0.0)
    return quotient_down(least, float(norms.max()))


def least_of_equals(mechanism: Mechanism) -> float:
    """The smallest column norm, as a part of the largest, of a strategy whose noise is independent and equal.

    Raises:
        UnsupportedCombinationError: if it is not.
    """
    strategy = mechanism.strategy
    norms = strategy.column_norms()
    if strategy.bands != 1 or norms.min() < norms.max() * (1.0 - CLOSE):
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} needs independent, equal noise at every step, which {strategy!r} "
            "has not",
            supported="Identity; for correlated noise CyclicPoisson with a banded strategy, or BallsInBins",
        )
    return quotient_down(float(norms.min()), float(norms.max()))
