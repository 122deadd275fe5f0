r"""Gaussian differential privacy: a Gaussian curve that bounds a privacy profile up to a small tail.

The goal is h(a) <= G_mu(a) + tail for all a >= 0 and both directions h of the profile. For a < 1 it follows
from the other direction r at 1 / a: h(a) = 1 - a + a r(1 / a), the same for G, and a tail <= tail. So both
directions at eps >= 0 suffice. Between two nodes h is below its chord and G above each of its tangents: if a
tangent plus the tail is above the chord at both ends, it is above h between them. Where h <= tail nothing
remains to be shown.

References:
    Dong, Roth and Su 2022 (Gaussian differential privacy); Gomez, Kulynych, Kaissis, Hayes, Balle and
    Honkela 2025 (why to report mu).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from dpmech.engines.gaussian import gaussian_curve, gaussian_epsilon
from dpmech.engines.profiles.tradeoff import Stick
from dpmech.exceptions import NumericalError
from dpmech.numerics import (
    ELEMENTARY,
    UNIT,
    bisect_boundary,
    next_down,
    next_up,
    product_down,
    product_up,
    quotient_down,
    quotient_up,
    root_down,
    root_up,
    up,
)

_LARGEST_EPS = 600.0
_SMALLEST_STEP = 1e-6
# Target decrease of log h from node to node, where nodes are not refined: few of them decide.
_FALL = 4.0
# Allowed relative excess of mu over that of the nodes; number of refinement rounds; allowed growth of mu.
_RTOL, _ROUNDS, _GROWTH = 2e-4, 12, 1.0
_MOST_NODES = 2000
_LEAST_MU, _LARGEST_MU = 1e-9, 1e3


def gaussian_ends(square: float, eps: float) -> tuple[float, float]:
    """Lower and upper bound on H at e^eps, eps >= 0, for a Gaussian loss of mean square / 2."""
    if square == 0.0:
        return 0.0, 0.0
    logs, errors = gaussian_curve(math.sqrt(square), np.array([eps]))
    log_delta, error = float(logs[0]), float(errors[0])
    # The root has error u, and log h changes by at most (1 + |eps| / mu^2 + mu^2) times that, relative.
    own = ELEMENTARY + UNIT * (4.0 * abs(log_delta) + 4.0 * (1.0 + abs(eps) / square + square))
    value = math.exp(log_delta)
    if math.isinf(error):
        return 0.0, min(1.0, value * (1.0 + own) + 1e-320)
    return (
        max(0.0, next_down(value * (1.0 - error - own) - 1e-320)),
        min(1.0, value * (1.0 + error + own) + 1e-320),
    )


def gaussian_epsilon_ends(squares: tuple[float, float], delta: float) -> tuple[float, float]:
    """Lower and upper bound on eps at delta for a Gaussian loss with mu^2 between the two squares."""
    least, most = root_down(squares[0]), root_up(squares[1])
    lower = gaussian_epsilon(quotient_up(1.0, least), delta, safe=False) if least > 0.0 else 0.0
    return lower, gaussian_epsilon(quotient_down(1.0, most), delta, safe=True) if most > 0.0 else 0.0


def envelope_mu(sides: Sequence[tuple[Callable[[float], float], Stick]], tail: float) -> tuple[float, float]:
    """Lower and upper bound on the smallest mu with h <= G_mu + tail everywhere.

    Args:
        sides: both directions of the profile, or one if they are equal: the upper bound alone, and both.
        tail: in (0, 1).

    Raises:
        NumericalError: if a curve is above the tail up to eps 600, or mu is not proved between nodes.
    """
    curves = [_Followed(upper, ends, tail) for upper, ends in sides]
    for _ in range(_ROUNDS):
        mu = max(one.least_mu for one in curves) * (1.0 + _RTOL)
        if not any([one.refined(mu) for one in curves]):
            break
    # Any node of either direction gives a lower bound; the one that requires most gives the largest.
    bottom = max(curves, key=lambda one: one.least_mu).lower_mu
    limit = (1.0 + _GROWTH) * mu
    while not all(one.below(mu) for one in curves):
        mu *= 1.0 + _RTOL
        if mu > limit:
            raise NumericalError("the curve could not be shown to be below a Gaussian one between its nodes")
    return min(bottom, mu), mu


def gaussian_release_mu(square: tuple[float, float], stick: Stick, tail: float) -> tuple[float, float]:
    """Lower and upper bound on the smallest mu for a Gaussian release.

    Its own mu is valid, and a tail can only lower it. Where that mu is too large to follow the curve, one
    point of the curve gives the lower bound.

    Args:
        square: mu^2 of the release, lower and upper bound.
        stick: its curve.
        tail: in (0, 1).
    """
    own = root_up(square[1])
    try:
        lower, upper = envelope_mu([(lambda eps: stick(eps)[1], stick)], tail)
    except NumericalError:
        eps = 0.5 * square[0]
        value = next_down(gaussian_ends(square[0], eps)[0] - tail)
        return min(_raised(0.0, eps, value, safe=False), own), own
    return min(lower, own), min(upper, own)


class _Followed:
    """One direction at nodes, from eps 0 to where it falls below the tail."""

    def __init__(self, bound: Callable[[float], float], ends: Stick, tail: float) -> None:
        self.bound, self.ends, self.tail = bound, ends, tail
        # The mu required so far, by which nodes, and the node that required it.
        self._mu, self._seen, self._decisive = _LEAST_MU, set[float](), 0.0
        eps = 0.0
        self.eps, self.upper = [eps], [bound(eps)]
        step = max(_SMALLEST_STEP, 0.5 * self.upper[0])
        while self.upper[-1] > tail:
            eps += step
            if eps > _LARGEST_EPS or len(self.eps) > _MOST_NODES:
                raise NumericalError(
                    f"the curve is not followed beyond eps {_LARGEST_EPS:g}, and at eps {up(self.eps[-1])} "
                    f"delta is {up(self.upper[-1])}, above the tail {tail!r}"
                )
            self._insert(len(self.eps), eps)
            fall = math.log(self.upper[-2] / max(self.upper[-1], 1e-300)) / step
            step = min(_FALL / max(fall, 1e-9), 2.0 * step)

    def _insert(self, place: int, eps: float) -> None:
        self.eps.insert(place, eps)
        self.upper.insert(place, self.bound(eps))

    @property
    def least_mu(self) -> float:
        """The mu required at the nodes when upper bounds are taken as the curve."""
        for eps, value in zip(self.eps, self.upper, strict=True):
            if eps not in self._seen:
                before, self._mu = self._mu, _raised(self._mu, eps, value - self.tail, safe=True)
                if self._mu > before:
                    self._decisive = eps
                self._seen.add(eps)
        return self._mu

    @property
    def lower_mu(self) -> float:
        """A lower bound on mu: what the lower bound on the curve requires at the node that requires most."""
        mu = self._required(0.0, self._decisive)
        if mu < 0.98 * self._mu:  # where the bound was loose, another node requires more
            for eps in self.eps:
                mu = self._required(mu, eps)
        return mu

    def _required(self, mu: float, eps: float) -> float:
        return _raised(mu, eps, next_down(self.ends(eps)[0] - self.tail), safe=False)

    def below(self, mu: float) -> bool:
        """Whether h <= G_mu + tail is proved everywhere."""
        return not self._open(mu)

    def refined(self, mu: float) -> bool:
        """Add nodes where the bound is not proved at this mu; returns whether there was such a place."""
        places = self._open(mu)
        for place in reversed(places):
            eps = 0.5 * (self.eps[place] + self.eps[place + 1])
            self._insert(place + 1, eps)
        return bool(places)

    def _open(self, mu: float) -> list[int]:
        return [place for place in range(len(self.eps) - 1) if not self._shown(mu, place)]

    def _shown(self, mu: float, place: int) -> bool:
        """Whether the chord from this node to the next is below a tangent plus the tail."""
        low, high = self.eps[place], self.eps[place + 1]
        ends = next_up(self.upper[place] - self.tail), next_up(self.upper[place + 1] - self.tail)
        slope = (self.upper[place] - self.upper[place + 1]) / (math.exp(low) * math.expm1(high - low))
        touch = 0.5 * (low + high)
        if slope > 0.0:
            parallel = -mu * (float(scipy.special.ndtri(min(slope, 1.0))) + 0.5 * mu)
            touch = min(max(parallel, low), high)
        return any(
            first >= ends[0] and second >= ends[1]
            for first, second in (_tangent(mu, at, low, high) for at in (touch, 0.5 * (low + high)))
        )


def _tangent(mu: float, at: float, low: float, high: float) -> tuple[float, float]:
    """The tangent of G_mu at e^at, evaluated at e^low and e^high, low <= at <= high, rounded down."""
    value = gaussian_ends(product_down(mu, mu), at)[0]
    where = -(at / mu + 0.5 * mu)
    # G' = -Phi(where): `where` has error 3 u, which changes log Phi by at most that times 1 + where^2; the
    # error of Phi itself is at most 16 u times that.
    slope, error = float(scipy.special.ndtr(where)), 32.0 * UNIT * (1.0 + where**2)
    before = math.exp(low) * math.expm1(at - low) if at > low else 0.0
    after = math.exp(at) * math.expm1(high - at) if high > at else 0.0
    # Differences of nodes are rounded once, their ends twice; `at` and `high` count as exact.
    off = 1.0 - error - 64.0 * UNIT
    return (
        next_down(value + next_down(slope * before * off)) if before else value,
        next_down(value - next_up((slope * (2.0 - off) + 1e-300) * after)) if after else value,
    )


def _raised(mu: float, eps: float, value: float, *, safe: bool) -> float:
    """The smallest mu' >= mu with G_mu'(e^eps) >= value, approached from below if not `safe`.

    Raises:
        NumericalError: if it is above 1e3.
    """

    def short(point: float) -> bool:
        if safe:
            return gaussian_ends(product_down(point, point), eps)[0] < value
        return gaussian_ends(product_up(point, point), eps)[1] < value

    if value <= 0.0 or not short(mu):
        return mu
    high = max(2.0 * mu, 1e-3)
    while short(high):
        high *= 2.0
        if high > _LARGEST_MU:
            raise NumericalError("no Gaussian curve with mu below 1e3 is above this one")
    return bisect_boundary(short, mu, high, safe=safe, rtol=1e-9)
