r"""DiscreteGaussian: integer noise for counts, and its privacy cost over several releases.

The law on the integers is P(y) proportional to e^{-y^2 / (2 sigma^2)}. The loss of y + D against y, where D
is the sensitivity, is (2 y + D) D / (2 sigma^2). Its values lie on a lattice, so that no discretisation is
needed. For every threshold m the odds P(Y + d >= m) grow with d. By the monotone likelihood ratio, threshold
tests are optimal: the largest shift is the worst one in every release, and both directions are mirror images.
"""

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Self

import numpy as np

from dpmech.engines.losses import ComposedLoss, JointMoments, LatticeLoss, LossMoments, compose_all
from dpmech.engines.profiles import Composition, Curve, PrivacyProfile, curve_of_bounds
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_delta, check_integer, check_real
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import (
    BOUND,
    UNIT,
    Bounds,
    Provenance,
    bisect_boundary,
    register_words,
    rounded_up,
    typed,
)

register_words(
    {"lattice.counts": "discrete Gaussian noise on {releases} integers, on the lattice of its loss"}
)

_REACH = 37.4  # standard deviations; mass beyond it, e^(-700), is counted as loss +infinity
_LEAST_SIGMA, _LARGEST_SIGMA = 0.2, 1e5
_LARGEST_RATIO = 100.0
_LARGEST_EPS = 1e5
_RTOL = 1e-9
# The sum of all noise has a lattice point for every integer; a useful window has at least this many sigmas.
_MOST_POINTS, _LEAST_WINDOW = 2**25, 12


@dataclasses.dataclass(frozen=True)
class DiscreteGaussian:
    """Counts released with discrete Gaussian noise, and the privacy of these releases.

    It covers `releases` integers in total, each with independent noise from
    `dpmech.drawing.discrete_gaussian`; each may depend on earlier results. One person (under REPLACE_ONE, the
    exchange of one person) changes each integer by at most `sensitivity`. Integers that no person affects
    together, such as the cells of a histogram to which everyone contributes once, count as one release.

    **Guarantee:** `delta` and `epsilon` return proved lower and upper bounds. The law involves integers only,
    and a float `sigma` is interpreted as the exact fraction it represents.

    Args:
        sigma: scale of the noise, in [0.2, 1e5]: a float, an integer or a Fraction. The standard deviation is
            at most sigma.
        sensitivity: D, an integer >= 1: the largest change of one integer by one person.
        releases: number of integers that one person can change, over all releases, >= 1. The product
            sensitivity sqrt(releases) / sigma is at most 100.
        adjacency: the neighbouring relation; the numbers do not depend on it, given the sensitivity.
        unit: the unit of privacy, to which sensitivity and releases refer: one example, or with `Unit.USER`
            all examples of one user.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        Canonne, Kamath and Steinke 2020 (the law, and rho = D^2 / (2 sigma^2)).

    Examples:
        >>> import dpmech as dm
        >>> counts = dm.DiscreteGaussian(20, releases=12)
        >>> round(counts.epsilon(1e-6).upper, 3), counts.rho <= 12 / 800 * (1 + 1e-15)
        (0.715, True)
    """

    sigma: float | Fraction
    sensitivity: int = 1
    releases: int = 1
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.EXAMPLE

    def __post_init__(self) -> None:
        variance = check_variance(self.sigma)
        check_integer("sensitivity", self.sensitivity, minimum=1, maximum=10**9)
        check_integer("releases", self.releases, minimum=1, maximum=10**9)
        Adjacency.check(self.adjacency)
        Unit.check(self.unit)
        if self.sensitivity**2 * self.releases > Fraction(_LARGEST_RATIO) ** 2 * variance:
            raise InvalidParameterError(
                "sigma", self.sigma, f"at least sensitivity sqrt(releases) / {_LARGEST_RATIO:g}"
            )

    @property
    def rho(self) -> float:
        """The rho of zero-concentrated DP for all releases together, rounded up."""
        return rounded_up(self._rho)

    def delta(self, eps: float) -> Bounds:
        """Bounds on delta at eps >= 0.

        Raises:
            InvalidParameterError: on a bad eps.
            NumericalError: if the lattice of the sum has more than 2^25 points.
        """
        at = check_real("eps", eps, minimum=0.0)
        if at > _LARGEST_EPS:
            raise InvalidParameterError("eps", eps, f"at most {_LARGEST_EPS:g}")
        lower, upper = (self._end(at, upper=side) for side in (False, True))
        return Bounds(min(lower, upper), upper, BOUND, self._by)

    def epsilon(self, delta: float) -> Bounds:
        """Bounds on eps at delta, within 1e-9 relative of where the bounds on delta cross it.

        Args:
            delta: in (0, 1).

        Raises:
            InvalidParameterError: on a bad delta.
            NumericalError: if no eps up to 1e5 reaches it.
        """
        at = check_delta(delta)
        ends = [self._crossing(at, upper=side) for side in (False, True)]
        return Bounds(min(ends), ends[1], BOUND, self._by)

    def profile(self, *, rel_error: float = 0.01) -> PrivacyProfile:
        """The whole curve, to compose with a training profile: `ledger.profile().compose(...)`.

        Args:
            rel_error: largest relative excess of the hull of nodes over the curve, in [1e-4, 0.5].

        Raises:
            InvalidParameterError: on a bad argument.
            NumericalError: as for `delta`.
        """
        hull = check_real("rel_error", rel_error, minimum=1e-4, maximum=0.5)
        rho = self.rho

        def ceiling(eps: float) -> float:
            return 1.0 if eps <= rho else math.exp(-((eps - rho) ** 2) / (4.0 * rho))

        nodes = curve_of_bounds(self.delta, hull, ceiling).larger
        if nodes is None:
            raise NumericalError("the curve of counts has no lower ends")
        # Both directions have the same curve.
        parts = Composition(curves=((Curve(nodes, nodes), 1),))
        by = Provenance("profile.nodes", {"nodes": len(nodes.eps)}, (self._by,))
        return PrivacyProfile(parts, BOUND, by, self.adjacency, self.unit)

    def with_releases(self, releases: int) -> Self:
        """The same noise with another number of releases."""
        return dataclasses.replace(self, releases=releases)

    # ---- implementation

    @property
    def _rho(self) -> Fraction:
        return self.releases * Fraction(self.sensitivity) ** 2 / (2 * check_variance(self.sigma))

    @property
    def _by(self) -> Provenance:
        return Provenance("lattice.counts", {"releases": self.releases})

    def _crossing(self, delta: float, *, upper: bool) -> float:
        if self._end(0.0, upper=upper) <= delta:
            return 0.0
        high = 1e-3
        while self._end(high, upper=upper) > delta:
            high *= 4.0
            if high > _LARGEST_EPS:
                raise NumericalError(f"no eps up to {_LARGEST_EPS:g} is known to have delta {typed(delta)}")
        return bisect_boundary(
            lambda eps: self._end(eps, upper=upper) > delta, 0.0, high, safe=upper, rtol=_RTOL
        )

    def _end(self, eps: float, *, upper: bool) -> float:
        """One bound on delta: the sum of all losses under the Chernoff tilt."""
        variance = check_variance(self.sigma)
        if _LEAST_WINDOW**2 * variance * self.releases > _MOST_POINTS**2:
            raise NumericalError(
                f"the sum of {self.releases} releases of sigma {self.sigma} has too many values, "
                f"over {_MOST_POINTS} integers; rho is known"
            )
        loss = _loss(variance, self.sensitivity, upper=upper)
        theta = _moments(variance, self.sensitivity, self.releases).tilt_for_eps(eps)
        # Every tilt gives a bound. Nearby values of eps use the same tilt, so that they share its transform.
        shared = 2.0 ** (round(4.0 * math.log2(theta)) / 4.0) if theta > 1e-3 else 0.0
        return _composed(loss, self.releases, shared, upper=upper).delta(eps)


def check_variance(sigma: object) -> Fraction:
    """sigma^2, exactly.

    Raises:
        InvalidParameterError: if sigma is not a number in [0.2, 1e5].
    """
    scale = sigma if isinstance(sigma, Fraction) else Fraction(check_real("sigma", sigma))
    if not _LEAST_SIGMA <= scale <= _LARGEST_SIGMA:
        given = str(sigma) if isinstance(sigma, Fraction) else sigma
        raise InvalidParameterError("sigma", given, f"in [{_LEAST_SIGMA:g}, {_LARGEST_SIGMA:g}]")
    return scale**2


@functools.lru_cache(maxsize=4)
def _moments(variance: Fraction, shift: int, releases: int) -> JointMoments:
    return JointMoments((LossMoments.of(_loss(variance, shift, upper=True), releases),))


@functools.lru_cache(maxsize=4)
def _composed(loss: LatticeLoss, releases: int, theta: float, *, upper: bool) -> ComposedLoss:
    return compose_all([(loss, releases)], theta, upper=upper)


@functools.lru_cache(maxsize=8)
def _loss(variance: Fraction, shift: int, *, upper: bool) -> LatticeLoss:
    """The loss of one release, with masses rounded up or down.

    The exponent y^2 / (2 sigma^2) has relative error 3 u, its exponential a further 8 u. The normalising
    constant lies between sums of the bounds on its terms, tails included: the mass beyond R is at most
    e^{-R^2 / (2 sigma^2)}, as the constant is at least sigma sqrt(2 pi) (Poisson summation).
    """
    double = float(2 * variance)
    reach = max(1, math.floor(_REACH * math.sqrt(float(variance))))
    y = np.arange(-reach, reach + 1, dtype=np.float64)
    exponents = y * y / double
    weights = np.exp(-exponents)
    off = UNIT * (3.0 * exponents + 12.0)
    tail = math.exp(-0.999 * reach * reach / double) + 1e-300
    least = math.fsum(weights * (1.0 - off)) * (1.0 - 4.0 * UNIT)
    most = math.fsum(weights * (1.0 + off)) * (1.0 + 4.0 * UNIT) * (1.0 + 2.0 * tail)
    masses = (
        weights * (1.0 + off + 4.0 * UNIT) / least if upper else weights * (1.0 - off - 4.0 * UNIT) / most
    )
    # Lattice steps are D / (2 sigma^2), at 2 y + D, or twice that if D is even.
    if shift % 2:
        spread = np.zeros(2 * masses.size - 1)
        spread[::2] = masses
        step, first = Fraction(shift) / (2 * variance), -2 * reach + shift
    else:
        spread, step, first = masses, Fraction(shift) / variance, -reach + shift // 2
    return LatticeLoss(float(step), first, spread, 2.0 * tail if upper else 0.0)
