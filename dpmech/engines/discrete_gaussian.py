r"""DiscreteGaussian: integer noise for counts, and what several of them cost.

The law on the integers is P(y) proportional to e^{-y^2 / (2 sigma^2)}. The loss of y + D against y, D the
sensitivity, is (2 y + D) D / (2 sigma^2): it lies on a lattice by itself, so that nothing is discretised. For
every threshold m the odds P(Y + d >= m) grow with d, and by the monotone likelihood ratio thresholds are the
best attacks: the largest shift is the worst one, in every release, and both directions are mirror images.
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

_REACH = 37.4  # standard deviations: e^(-700) is left out, and counted as loss +infinity
_LEAST_SIGMA, _LARGEST_SIGMA = 0.2, 1e5
_LARGEST_RATIO = 100.0
_LARGEST_EPS = 1e5
_RTOL = 1e-9
# The sum of all noise has a point for every integer, and a useful window more standard deviations than this.
_MOST_POINTS, _LEAST_WINDOW = 2**25, 12


@dataclasses.dataclass(frozen=True)
class DiscreteGaussian:
    """Counts released with noise from the discrete Gaussian, and the privacy that this gives.

    What is covered: `releases` integers in all, each with noise of its own from
    `dpmech.drawing.discrete_gaussian`; each may depend on the results before. A person (under REPLACE_ONE,
    the exchange of one) changes each of them by at most `sensitivity`. Integers that no person touches
    together, such as the cells of a histogram to which everyone contributes once, count as one release.

    **Guarantee:** `delta` and `epsilon` are two proved ends. There are no real numbers in the law, and a
    float `sigma` is taken for the fraction that it is.

    Args:
        sigma: scale of the noise, in [0.2, 1e5], a float, an integer or a Fraction; its standard deviation is
            at most that.
        sensitivity: D, an integer >= 1: by how much one person changes one of the integers.
        releases: how many of the integers one person can change, over all of the work, >= 1. The product
            sensitivity sqrt(releases) / sigma is at most 100.
        adjacency: between which datasets; the numbers are the same, given the sensitivity.
        unit: whose presence is hidden, and so of whom sensitivity and releases are said: of one example, or
            with `Unit.USER` of all that one user brings.

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
        """Of zero-concentrated DP, for all releases together, rounded up."""
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
        """The whole curve, to be composed with that of training, `ledger.profile().compose(...)`.

        Args:
            rel_error: by how much, relative, the hull of nodes may be above the curve, in [1e-4, 0.5].

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
        # Both directions are the same curve.
        parts = Composition(curves=((Curve(nodes, nodes), 1),))
        by = Provenance("profile.nodes", {"nodes": len(nodes.eps)}, (self._by,))
        return PrivacyProfile(parts, BOUND, by, self.adjacency, self.unit)

    def with_releases(self, releases: int) -> Self:
        """The same noise on another number of integers."""
        return dataclasses.replace(self, releases=releases)

    # ---- the inside

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
        """One bound on delta: the sum of all losses under the tilt of Chernoff."""
        variance = check_variance(self.sigma)
        if _LEAST_WINDOW**2 * variance * self.releases > _MOST_POINTS**2:
            raise NumericalError(
                f"the sum of {self.releases} releases of sigma {self.sigma} has too many values, "
                f"over {_MOST_POINTS} integers; rho is known"
            )
        loss = _loss(variance, self.sensitivity, upper=upper)
        theta = _moments(variance, self.sensitivity, self.releases).tilt_for_eps(eps)
        # Every tilt gives a bound; those of a few eps share one, so that they share its transform.
        shared = 2.0 ** (round(4.0 * math.log2(theta)) / 4.0) if theta > 1e-3 else 0.0
        return _composed(loss, self.releases, shared, upper=upper).delta(eps)


def check_variance(sigma: object) -> Fraction:
    """sigma^2, exactly.

    Raises:
        InvalidParameterError: if sigma is no number in [0.2, 1e5].
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
    """The loss of one release, its masses rounded up or down.

    The exponent y^2 / (2 sigma^2) is off by 3 u of itself, its exponential by 8 u more; the constant by which
    masses are divided is between sums of their ends, the tails included: what is beyond R has at most
    e^{-R^2 / (2 sigma^2)} of the mass, as the constant is at least sigma sqrt(2 pi) (Poisson summation).
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
    # Steps of D / (2 sigma^2), at 2 y + D; of twice that where D is even.
    if shift % 2:
        spread = np.zeros(2 * masses.size - 1)
        spread[::2] = masses
        step, first = Fraction(shift) / (2 * variance), -2 * reach + shift
    else:
        spread, step, first = masses, Fraction(shift) / variance, -reach + shift // 2
    return LatticeLoss(float(step), first, spread, 2.0 * tail if upper else 0.0)
