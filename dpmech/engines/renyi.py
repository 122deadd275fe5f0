r"""Renyi accounting: divergences rounded up, their composition, and upper bounds on delta and eps.

With D(a) the divergence of order a in the worse direction, a mechanism meets (eps, delta) if
(a - 1) (D(a) - eps) - log a + (a - 1) log(1 - 1/a) <= log delta (Canonne, Kamath and Steinke 2020,
Proposition 12; Asoodeh et al. 2020). This is the best bound that follows from a single order by
E (r - e^eps)_+ <= E r^a sup_r (r - e^eps) r^-a.

For the Poisson-subsampled Gaussian the REMOVE divergence is the larger one at every order (Mironov, Talwar
and Zhang 2019, Theorem 5). At order a it is log E_Q r^a / (a - 1), where r is the density of the mixture over
that of the noise: a moment computed by `losses.transform`, with a proved error. Every order gives a bound;
the best one is searched for among all real orders above 1.

**A sample of B of n examples without replacement, one of which is replaced.** With q = B / n and E(j) = j /
(2 s^2) the divergence of the Gaussian mechanism at the distance between the two replacing examples, D(a) at
an integer order a >= 2 is at most

log(1 + q^2 C(a, 2) min(4 (e^E(2) - 1), 2 e^E(2)) + sum_{j >= 3} q^j C(a, j) min(2 e^((j-1) E(j)), 4 m(j)))

divided by a - 1. Here m(j) for even j is the j-th moment of r - 1 under N(0, s^2), r the density of N(1, s^2)
over it, and for odd j the geometric mean of its neighbours. Also, D(a) is at most E(a), as the divergence is
quasi-convex in pairs of laws. Between two integers (a - 1) D(a) is below the chord of its bounds there,
because it is convex and 0 at a = 1.

References:
    Wang, Balle and Kasiviswanathan 2019 (arXiv:1808.00087), Theorems 9 and 27, for mechanisms without a
    divergence of infinite order; van Erven and Harremoes 2014 (arXiv:1206.2459), Theorem 13, for the cap.
    Proved in docs/fixed_size_batches.md.
"""

import decimal
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.gaussian import gaussian_sigma
from dpmech.engines.gaussian_mixture import log_tail_factor
from dpmech.engines.losses import FixedDraw, Loss, transform
from dpmech.engines.sigma_search import smallest_sigma
from dpmech.exceptions import NumericalError
from dpmech.numerics import (
    BOUND,
    UNIT,
    Bounds,
    FloatArray,
    Provenance,
    next_up,
    quotient_down,
    register_words,
    spend,
    sum_up,
)

register_words(
    {
        "rdp.releases": "RDP, q={q}, {releases} releases",
        "rdp.fixed": "RDP, batches of {batch} out of {size} without replacement, {releases} releases",
    }
)

_ULP = 2.0**-52
# Integer orders: the divergence of a sampled release is then a finite sum of positive terms.
ORDERS = (*range(2, 65), *(round(64.0 * 1.05**step) for step in range(1, 105)))


def budget_at(order: float, eps: float, delta: float) -> float:
    """The largest divergence of this order that meets (eps, delta), rounded down; negative if none does."""
    needed, slack = _needed(order, delta)
    return (eps - needed) - (slack + 4.0 * _ULP * eps)


def epsilon_at(order: float, divergence: float, delta: float) -> float:
    """The eps >= 0 at delta implied by one order, rounded up."""
    needed, slack = _needed(order, delta)
    return max(0.0, (divergence + needed) + (slack + 4.0 * _ULP * divergence))


def _needed(order: float, delta: float) -> tuple[float, float]:
    """The largest excess of eps over the divergence, and a bound on the rounding error of sums with it."""
    tail, log_delta = log_tail_factor(order, 0.0), math.log(delta)
    slack = 16.0 * _ULP * (abs(log_delta) + abs(tail) + 1.0) / (order - 1.0)
    return (tail - log_delta) / (order - 1.0), slack


def delta_at(order: float, divergence: float, eps: float) -> float:
    """The delta at eps >= 0 implied by one order, rounded up, at most 1."""
    exponent = (order - 1.0) * divergence + log_tail_factor(order, eps)
    slack = 16.0 * _ULP * ((order - 1.0) * (divergence + eps) + abs(log_tail_factor(order, 0.0)) + 1.0)
    value = math.exp(min(0.0, exponent + slack)) * (1.0 + 4.0 * _ULP)
    return min(1.0, math.nextafter(value, math.inf))  # never 0 where the exponential underflows


def best_order(eps: float, delta: float) -> int | None:
    """The order at which (eps, delta) allows the most Gaussian releases; None if there is none."""
    room = {order: budget_at(order, eps, delta) / order for order in ORDERS}
    found = max(room, key=lambda order: room[order])
    return found if room[found] > 0.0 else None


# A Renyi divergence at an order > 1, rounded up; infinite if it exceeds float64.
Divergence = Callable[[float], float]

# Range of order - 1 in which the best order is searched for, and the number of coarse points, in log.
_LEAST, _MOST, _COARSE = 0.02, 1e6, 14
_RESOLUTION = 0.02


class RenyiComposition:
    """Upper bounds for the composition of independent releases, at the best order.

    Args:
        divergences: one for each release, in the worse direction; at least one.
    """

    def __init__(self, divergences: Sequence[Divergence]) -> None:
        self.divergences = tuple(divergences)

    def divergence(self, order: float) -> float:
        """The divergence of all releases together, rounded up."""
        values = [one(order) for one in self.divergences]
        return sum_up(values) if all(map(math.isfinite, values)) else math.inf

    def delta(self, eps: float) -> float:
        """An upper bound on delta at eps >= 0; 1 if no order has a finite divergence."""

        def log_delta(order: float) -> float:
            return (order - 1.0) * self.divergence(order) + log_tail_factor(order, eps)

        order = _best(log_delta)
        return 1.0 if order is None else delta_at(order, self.divergence(order), eps)

    def epsilon(self, delta: float) -> float:
        """An upper bound on eps at delta.

        Raises:
            NumericalError: if no order has a finite divergence.
        """

        def eps(order: float) -> float:
            return self.divergence(order) + (log_tail_factor(order, 0.0) - math.log(delta)) / (order - 1.0)

        order = _best(eps)
        if order is None:
            raise NumericalError("the Renyi divergences are within float64 at no order")
        return epsilon_at(order, self.divergence(order), delta)


def _best(value: Callable[[float], float]) -> float | None:
    """The order that minimises a function; None if the function is finite nowhere."""

    def at(log_excess: float) -> float:
        found = value(1.0 + math.exp(log_excess))
        return found if not math.isnan(found) else math.inf

    grid = np.linspace(math.log(_LEAST), math.log(_MOST), _COARSE)
    values = [at(float(x)) for x in grid]
    place = int(np.argmin(values))
    if not math.isfinite(values[place]):
        return None
    ends = float(grid[max(place - 1, 0)]), float(grid[min(place + 1, _COARSE - 1)])
    near = scipy.optimize.minimize_scalar(
        lambda x: min(at(float(x)), 1e300), bounds=ends, method="bounded", options={"xatol": _RESOLUTION}
    )
    best = float(near.x) if near.fun <= values[place] else float(grid[place])
    return 1.0 + math.exp(best)


# Beyond this order the sum is not computed and the cap is used.
_MOST_TERMS = 20_000
# Largest order of moments; their differences must also not need more digits than this.
_MOMENTS, _DIGITS = 128, 600
# Rounding error of an exponent relative to the sizes of its parts: 16 u for a log-gamma, twice that for the
# other terms, and sums.
_ROUNDING = 64.0 * UNIT


def replaced_divergence(sampling_prob: float, sigma_over_sensitivity: float) -> Callable[[float], float]:
    """An upper bound on the Renyi divergence of one step, rounded up, as a function of the order > 1.

    Args:
        sampling_prob: B / n or an upper bound on it, in (0, 1).
        sigma_over_sensitivity: s > 0, sigma over the distance of two examples that replace each other.
    """
    known: dict[int, float] = {1: 0.0}
    moments = functools.cache(lambda: log_even_moments(sigma_over_sensitivity))

    def log_moment(order: int) -> float:
        if order not in known:
            known[order] = _log_moment(sampling_prob, sigma_over_sensitivity, order, moments())
        return known[order]

    def divergence(order: float) -> float:
        # Rounded up before division; the cap takes three operations.
        whole = next_up(order / sigma_over_sensitivity * (0.5 / sigma_over_sensitivity) * (1.0 + 8.0 * UNIT))
        below = math.floor(order)
        if below + 1 > _MOST_TERMS:
            return whole
        part = order - below
        least, most = log_moment(below), log_moment(below + 1)
        value = ((1.0 - part) * least + part * most) / (order - 1.0)
        # A chord that starts at a = 1 is a line through 0; 1 - part and order - 1 are rounded once.
        return min(whole, next_up(value * (1.0 + 16.0 * UNIT)))

    return divergence


def log_even_moments(sigma_over_sensitivity: float) -> FloatArray:
    """Logarithms, rounded up, of E (r - 1)^l for l = 2, 4, ..., under N(0, s^2): its l-th differences at 0.

    E r^i is e^(i (i - 1) / (2 s^2)). Differences cancel, so they are computed with enough decimal digits:
    E (r - 1)^l >= (E (r - 1)^2)^(l / 2) >= s^-l, terms are at most e^(l (l - 1) / (2 s^2)) with weights that
    add up to 2^l, and 30 digits are added.

    Returns:
        Shape (m,), m <= 64; fewer if more digits than the limit are needed.
    """
    square = sigma_over_sensitivity * sigma_over_sensitivity

    def digits(order: int) -> float:
        lost = 2.0 * order * math.log(2.0) + order * order / (2.0 * square)
        return (lost + 0.5 * order * max(0.0, math.log(square))) / math.log(10.0) + 30.0

    most = max((order for order in range(2, _MOMENTS + 1, 2) if digits(order) <= _DIGITS), default=0)
    if most == 0:
        return np.zeros(0)
    with decimal.localcontext(prec=math.ceil(digits(most)), Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        multiplier = decimal.Decimal(sigma_over_sensitivity)
        growth = (1 / (multiplier * multiplier)).exp()
        row, factor = [decimal.Decimal(1), decimal.Decimal(1)], decimal.Decimal(1)
        for _ in range(most - 1):
            factor *= growth
            row.append(row[-1] * factor)
        found = []
        for order in range(1, most + 1):
            row = [after - before for before, after in itertools.pairwise(row)]
            if order % 2 == 0:
                found.append(row[0])
    with decimal.localcontext(prec=40):
        logs = np.array([float((+one).ln()) for one in found])
    return np.asarray(logs + 4.0 * UNIT * (np.abs(logs) + 1.0))


def _log_moment(q: float, s: float, order: int, moments: FloatArray) -> float:
    """A bound on (a - 1) D(a) at an integer a >= 2, rounded up."""
    j = np.arange(2.0, order + 1.0)
    gammas = [scipy.special.gammaln(at) for at in (np.float64(order + 1.0), j + 1.0, order - j + 1.0)]
    gain = j * (j - 1.0) * (0.5 / s / s)
    chosen = gammas[0] - gammas[1] - gammas[2] + j * math.log(q)
    sizes = gammas[0] + gammas[1] + gammas[2] + j * abs(math.log(q))
    factors = math.log(2.0) + gain
    # For j = 2 the even moment is e^E(2) - 1. Orders 3 and 4 need the moment of order 4, and so on.
    held = max(0, min(2 * moments.size, order) - 1)
    below, above = ((np.arange(2, held + 2) + up) // 2 - 1 for up in (0, 1))
    by_moments = math.log(4.0) + 0.5 * (moments[below] + moments[above])
    factors[:held] = np.minimum(factors[:held], by_moments)
    terms = chosen + factors
    sizes += np.abs(factors) + gain + 1.0
    top = float(terms.max())
    total = top + math.log(float(np.exp(terms - top).sum()))
    total += _ROUNDING * (float(sizes.max()) + abs(total) + math.log(order) + 1.0) + order * UNIT
    return next_up(float(np.logaddexp(0.0, total)) * (1.0 + 16.0 * UNIT))


# Largest relative error of a moment.
_SHARE = 1e-14


class RenyiAccountant(Accountant):
    """RDP of `steps` Gaussian releases, each Poisson-sampled with `sampling_prob` (1: not sampled).

    With `draw`, each batch is a sample of fixed size without replacement, and the sensitivity is that to a
    replaced example.
    """

    def __init__(
        self,
        sensitivity: Bounds,
        sampling_prob: float = 1.0,
        steps: int = 1,
        *,
        draw: FixedDraw | None = None,
    ) -> None:
        self.sensitivity = sensitivity
        self.sampling_prob = sampling_prob if draw is None else draw.joined[1]
        self.steps = steps
        self.draw = draw
        if draw is None:
            self.by = Provenance("rdp.releases", {"q": sampling_prob, "releases": steps})
        else:
            facts = {"batch": draw.batch_size, "size": draw.dataset_size, "releases": steps}
            self.by = Provenance("rdp.fixed", facts)
        self.guarantee = BOUND

    @property
    def joined(self) -> Bounds:
        """Sensitivity of all releases together."""
        return self.sensitivity.times_root(self.steps)

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """An upper bound on delta; the lower end is 0."""
        found = RenyiComposition([self.divergence(sigma)]).delta(eps)
        return Bounds(0.0, self._checked(found, sigma), self.guarantee, self.by)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """An upper bound on eps; the lower end is 0."""
        try:
            found = RenyiComposition([self.divergence(sigma)]).epsilon(delta)
        except NumericalError as error:
            raise NumericalError(
                f"{self.method} has no divergence within float64 at sigma={sigma!r}"
            ) from error
        return Bounds(0.0, self._checked(found, sigma), self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that RDP certifies, within rtol."""
        # Central limit theorem for this number of releases.
        mu = 1.0 / gaussian_sigma(eps, delta)
        start = self.sensitivity.upper / math.sqrt(math.log1p((mu / self.sampling_prob) ** 2 / self.steps))
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.1, progress=progress)

    def divergence(self, sigma: float) -> Divergence:
        """Renyi divergence of all releases at an order > 1, rounded up; infinite if it exceeds float64."""
        multiplier = quotient_down(sigma, self.sensitivity.upper)
        spend(2.0 if self.sampling_prob < 1.0 else 0.1, 1e8, what="Renyi divergences at all orders")
        replaced = None if self.draw is None else replaced_divergence(self.sampling_prob, multiplier)

        @functools.cache
        def found(order: float) -> float:
            if replaced is not None:
                value = self.steps * replaced(order)
            elif self.sampling_prob == 1.0:
                value = self.steps * (0.5 * order / multiplier / multiplier)
            else:
                loss = Loss(self.sampling_prob, multiplier, remove=True)
                whole = (-math.inf, math.inf)
                try:
                    one = transform(loss, order, whole, frequency=0.0, share=_SHARE)
                except NumericalError:
                    return math.inf
                value = self.steps * max(one.log_ends[1], 0.0) / (order - 1.0)
            return next_up(value * (1.0 + 8.0 * UNIT))

        return found

    def _checked(self, value: float, sigma: float) -> float:
        if not math.isfinite(value) or value < 0.0:
            raise NumericalError(f"{self.method} returned {value!r} at sigma={sigma!r}")
        return value
