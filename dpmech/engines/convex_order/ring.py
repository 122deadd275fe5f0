"""Rings (cyclic Gram matrices with one exponential) that dominate a Gram matrix entry by entry.

The pair with such a matrix is the cyclic dominating pair. Delta is monotone in every entry of the Gram
matrix, so any ring above it gives an upper bound (docs/balls_in_bins_proof.md). The best ring depends on the
sensitivity of delta to each entry, approximated by `moments.log_moment_bound`, a closed form that ranks rings
as delta does: its logarithm followed that of delta within 0.3 over rings whose deltas differ by a factor of
40. It selects among valid rings and proves nothing.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines.gaussian_mixture import ORDERS, log_tail_factor
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real, check_vector
from dpmech.numerics import UNIT


@dataclasses.dataclass(frozen=True)
class RingGram:
    """A b x b covariance, divided by sigma^2, whose entries depend only on the cyclic distance of the bins.

    At distance d = min(|i - l|, b - |i - l|) its entry is
    `white [d = 0] + amplitude (decay^d + decay^(b - d)) / (1 + decay^b) + constant`, so `amplitude` is the
    exponential part of the diagonal. Every part is a covariance, and hence so is the sum.

    Args:
        bins: b >= 1.
        white: variance of the part that is independent between bins, >= 0.
        amplitude: variance of the exponential part, >= 0.
        decay: its correlation between adjacent bins on an infinite line, in [0, 1).
        constant: variance of the part that is common to all bins, >= 0.

    Raises:
        InvalidParameterError: if a value is outside its range.

    Examples:
        >>> from dpmech.engines.convex_order.ring import RingGram
        >>> RingGram(bins=4, white=0.0, amplitude=1.0, decay=0.5, constant=0.25).profile().round(4).tolist()
        [1.25, 0.8382, 0.7206]
    """

    bins: int
    white: float
    amplitude: float
    decay: float
    constant: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=1))
        for name in ("white", "amplitude", "constant"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), minimum=0.0))
        decay = check_real("decay", self.decay, minimum=0.0, maximum=1.0, open_maximum=True)
        object.__setattr__(self, "decay", decay)

    def profile(self) -> npt.NDArray[np.float64]:
        """Entries at cyclic distances 0, 1, ..., b // 2; shape (b // 2 + 1,)."""
        values = self.amplitude * ring_shape(self.bins, self.decay) + self.constant
        values[0] += self.white
        return values

    def scaled(self, factor: float) -> "RingGram":
        """Every part times a positive factor: a change of sigma from s to t is the factor (s / t)^2.

        Raises:
            InvalidParameterError: if the factor is not positive.
        """
        factor = check_real("factor", factor, minimum=0.0, open_minimum=True)
        return dataclasses.replace(
            self,
            white=self.white * factor,
            amplitude=self.amplitude * factor,
            constant=self.constant * factor,
        )

    @property
    def diagonal(self) -> float:
        """The entry at distance 0."""
        return self.white + self.amplitude + self.constant


def ring_shape(bins: int, decay: float) -> npt.NDArray[np.float64]:
    """(decay^d + decay^(b - d)) / (1 + decay^b) for d = 0..b // 2; 1 at d = 0."""
    distance = np.arange(bins // 2 + 1, dtype=np.float64)
    shape = (decay**distance + decay ** (bins - distance)) / (1.0 + decay**bins)
    shape[0] = 1.0
    return np.asarray(shape)


Vector = npt.NDArray[np.float64]

SCAN = 24
# Relative: `RingGram.profile` has two powers (4 roundings each, as numpy states for its loops), a sum, a
# quotient by one more power and a sum, two products: at most 13 roundings for terms >= 0. Rescaling the ring
# to another sigma and back, and the profile to it, adds 12 (`DeterministicAccountant._ring`).
SAFETY = 32.0 * UNIT
# Parts and costs this close count as equal; this affects only the choice among dominating rings.
SNAP = 1e-9
TINY = 1e-250
# A constant part makes the dynamic program about ten times as costly: it must lower ln delta by this much,
# which is about 0.5 % in sigma.
CONSTANT_PRICE = 0.15
LEAST_WEIGHT = 1e-6


def dominating_ring(profile: npt.ArrayLike, bins: int, *, eps: float = 1.0) -> RingGram:
    """The ring white * I + amplitude * ring(decay) + constant above a profile, of least moment bound at eps.

    A linear program in (white, amplitude, constant) for each decay of a scan, refined around the best.

    Args:
        profile: shape (b // 2 + 1,), the largest entry of K at each cyclic distance, diagonal first; the
            first is >= 0 and the largest in absolute value. K is already divided by sigma^2.
        bins: b >= 1 (b and b + 1 may have profiles of equal length).
        eps: the privacy loss level to optimise the ring for, >= 0.

    Returns:
        A ring whose profile exceeds the given one everywhere, by a relative 3e-15 at least, with the same
        diagonal up to about 1e-6. Valid for any eps. The profile of a ring without white and constant part
        is matched without them.

    Raises:
        InvalidParameterError: if an argument is outside its range.
        NumericalError: if no dominating ring is found (a constant part alone should always dominate).
    """
    bins = check_integer("bins", bins, minimum=1)
    eps = check_real("eps", eps, minimum=0.0)
    target = _checked_profile(profile, bins)
    if target[0] == 0.0:
        return RingGram(bins=bins, white=0.0, amplitude=0.0, decay=0.0, constant=0.0)
    if bins == 1 or np.ptp(target) == 0.0:
        return _raised(
            RingGram(bins=bins, white=0.0, amplitude=0.0, decay=0.0, constant=float(target[0])), target
        )
    height = Height(bins, eps)
    prices = height.gradient(target)

    def fit_at(log_length: float) -> tuple[float, RingGram]:
        return _fit(target, bins, math.exp(-math.exp(-log_length)), prices, height)

    own = own_decay(target, bins)
    spacing = math.log(20.0 * bins) / SCAN
    scan = [math.log(0.1) + spacing * i for i in range(SCAN + 1)]
    if own > 0.0:
        scan.insert(0, -math.log(-math.log(own)))  # first: it wins a tie
    fits = [fit_at(length) for length in scan]
    best = min(range(len(fits)), key=lambda i: fits[i][0])
    found = scipy.optimize.minimize_scalar(
        lambda length: fit_at(length)[0],
        bounds=(scan[best] - spacing, scan[best] + spacing),
        method="bounded",
        options={"xatol": 1e-3, "maxiter": 24},
    )
    refined = fit_at(float(found.x))
    return refined[1] if refined[0] < fits[best][0] - SNAP else fits[best][1]


def _checked_profile(profile: npt.ArrayLike, bins: int) -> Vector:
    target = check_vector("profile", profile)
    if target.size != bins // 2 + 1 or target[0] < np.max(np.abs(target)):
        accepted = (
            f"{bins // 2 + 1} numbers for bins={bins}, the first >= 0 and none larger in absolute value"
        )
        raise InvalidParameterError("profile", target.tolist(), accepted)
    return target


def _multiplicity(bins: int) -> Vector:
    """Number of bins at each cyclic distance from one bin."""
    counts = np.full(bins // 2 + 1, 2.0)
    counts[0] = 1.0
    if bins % 2 == 0 and bins > 1:
        counts[-1] = 1.0
    return counts


class Height:
    """Log of the REMOVE moment bound of a profile, over all orders of the table."""

    def __init__(self, bins: int, eps: float) -> None:
        self.orders = np.array(ORDERS, dtype=np.float64)
        self.counts = _multiplicity(bins)
        self.tails = np.array([log_tail_factor(order, eps) for order in ORDERS])

    def of(self, profile: Vector) -> Vector:
        """One logarithm for each order, shape (orders,)."""
        means = scipy.special.logsumexp(
            0.5 * self.orders[:, None] * profile, axis=1, b=self.counts / self.counts.sum()
        )
        return np.asarray((self.orders - 1.0) * means + self.tails)

    def gradient(self, profile: Vector) -> Vector:
        """Sensitivity of the best order's bound to each entry, shape of the profile; 1 at the diagonal."""
        return self.gradient_of(float(self.orders[np.argmin(self.of(profile))]), profile)

    def gradient_of(self, order: float, profile: Vector) -> Vector:
        """The same for a given order."""
        pull = np.exp(0.5 * order * (profile - profile[0]))
        # the floor keeps every entry in the objective, so that the linear program has a unique solution
        return np.asarray((pull + LEAST_WEIGHT) * self.counts)


def own_decay(target: Vector, bins: int) -> float:
    """The decay of the ring with these first two entries; 0 if none exists."""
    ratio = target[1] / target[0]
    highest = 1.0 - 1e-12

    def miss(decay: float) -> float:
        return float(ring_shape(bins, decay)[1] - ratio)

    if ratio <= 0.0 or miss(highest) <= 0.0:
        return 0.0
    # slightly above the root: far entries are powers of it, and must stay above as well (`_raised` checks it)
    return min(
        float(scipy.optimize.brentq(miss, 0.0, highest, xtol=1e-16, rtol=1e-15)) * (1.0 + 4e-15), highest
    )


def _fit(target: Vector, bins: int, decay: float, weights: Vector, height: Height) -> tuple[float, RingGram]:
    """Cost and ring of one decay: the best of all parts, without a constant, and the exponential alone.

    A constant part makes delta several times as costly to compute and a white part somewhat, so each must
    reduce the bound enough.
    """
    shape = ring_shape(bins, decay)
    white = np.zeros_like(shape)
    white[0] = 1.0
    columns = np.stack([white, shape, np.ones_like(shape)], axis=1)
    scaled = target / target[0]
    prices = weights @ columns
    choices = []
    for top in (1.0, 0.0):
        # the diagonal is matched exactly: small deltas are most sensitive to it
        bounds = [(0.0, 1.0), (0.0, 1.0), (0.0, top)]
        solved = scipy.optimize.linprog(
            prices,
            A_ub=-columns,
            b_ub=-scaled,
            A_eq=np.ones((1, 3)),
            b_eq=np.ones(1),
            bounds=bounds,
            method="highs",
        )
        if solved.x is not None:
            choices.append(np.maximum(solved.x, 0.0))
    plain = shape > TINY
    lone = float(np.max(scaled[plain] / shape[plain]))
    if lone <= 1.0 + 1e-6:
        choices.append(np.array([0.0, lone, 0.0]))
    best: tuple[float, RingGram] = (math.inf, RingGram(bins, 0.0, 0.0, 0.0, float(target[0])))
    for choice in choices:
        parts = np.where(choice < SNAP, 0.0, choice) * target[0]
        ring = _raised(RingGram(bins, float(parts[0]), float(parts[1]), decay, float(parts[2])), target)
        cost = float(np.min(height.of(ring.profile())))
        cost += (CONSTANT_PRICE if ring.constant > 0.0 else 0.0) + (SNAP if ring.white > 0.0 else 0.0)
        if cost < best[0]:
            best = cost, ring
    return best


def _raised(ring: RingGram, target: Vector) -> RingGram:
    """Scale the ring, or else add to its constant part, until the profile exceeds the target by SAFETY."""
    goal = target + SAFETY * np.abs(target)
    for _ in range(4):
        short = goal - ring.profile()
        if np.all(short <= 0.0):
            return ring
        has = ring.profile()
        plain = has > TINY
        ratio = float(np.max(goal[plain] / has[plain]))
        if 1.0 < ratio <= 1.0 + 1e-6:
            ring = ring.scaled(ratio * (1.0 + SAFETY))
        else:
            added = float(np.max(short)) * (1.0 + SAFETY) + SAFETY * float(target[0])
            ring = RingGram(
                bins=ring.bins,
                white=ring.white,
                amplitude=ring.amplitude,
                decay=ring.decay,
                constant=ring.constant + added,
            )
    raise NumericalError(f"{ring!r} does not dominate the profile")
