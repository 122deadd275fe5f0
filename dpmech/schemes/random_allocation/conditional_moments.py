r"""The privacy loss of random allocation from above: two moments of the likelihood ratio given a statistic.

Let U = v(y_1) + ... + v(y_t), with v as in `threshold_test`, and let q(u), p(u) and r(u) be the means under Q
of 1, L and L^2 on {U = u}. L is the mean over a set S of the product of its x_i, and L^2 that over two
independent sets. Under Q, a factor x_i moves the mean of y_i from 0 to 1, and x_i^2 = e^(1 / s^2) times the
ratio that moves it to 2. With Q_j the law of v(y), y ~ N(j, s^2), and N the size of the intersection of two
sets, which is hypergeometric,

    q = Q_0^t,  p = Q_1^k Q_0^(t - k),  r = sum_N P(N) e^(N / s^2) Q_2^N Q_1^(2 (k - N)) Q_0^(t - 2 k + N),

as convolutions.

**Theorem.** On {U = u}, E_Q (L - a)_+ <= (sqrt(q (r - 2 a p + a^2 q)) + p - a q) / 2, and
E_Q (1 - a L)_+ <= (sqrt(q (q - 2 a p + a^2 r)) + q - a p) / 2.

*Proof.* w_+ = (|w| + w) / 2, and E |w| <= sqrt(E 1 E w^2) by Cauchy and Schwarz. []

The sum over u loses little, as L is nearly a function of U; but where U is far on the side that hardly
matters, the first term falls too slowly. There, blocks of steps bound the rest, by Jensen's inequality given
y (see `accountant`; U is a function of y): with A_j and U_j the mean and the sum of block j,

    E_Q (L - a)_+ 1{U < c} <= w_n a^(1 - n) e^(nu c) prod_j E A_j^n e^(-nu U_j),  n >= 2, nu >= 0,
    E_Q (1 - a L)_+ 1{U > c} <= w_(n + 1) a^(-n) e^(-nu c) prod_j E A_j^(-n) e^(nu U_j),  n > 0,

as (g - a)_+ <= w_n a^(1 - n) g^n and (1 - a g)_+ <= w_(n + 1) (a g)^-n, w_n = (n - 1)^(n - 1) / n^n. The
moments are a coefficient of a power series, and, for A^-n, a sum of moments of e^(-l A). With l = e^(i eta)
for all integers i, the sum of eta l^n e^(-l A) / Gamma(n) is A^-n but for a relative error of at most
2 sum_j |Gamma(n + 2 pi i j / eta)| / Gamma(n) (Poisson's sum). Smaller l are replaced by the constant that
A^-n is at most for large A, and larger l matter only if A is tiny, which has a probability that is added.

References:
    Scarf 1958, A min-max solution of an inventory problem, for the bound by two moments.
"""

import dataclasses
import functools
import math

import numpy as np
import scipy

from dpmech.engines import ComposedLoss, JointMoments, LatticeLoss, LossMoments, compose_all
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, IntArray, quotient_down
from dpmech.schemes.random_allocation.threshold_test import Statistic

# The step of v, over the standard deviation of one value of U given U near the threshold; limits on points.
_STEP, _MOST_VALUES, _MOST_SUMS = 0.05, 1 << 15, 1 << 18
_LEAST_SCALE, _LARGEST_SCALE, _LARGEST_EPS = 0.2, 1e4, 20.0
# Orders n of the far part, and its distances from the threshold, in units of U.
_ORDERS = (2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64, 90)
_CUTS = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.6, 2.5)
# Terms of r this far below the largest, in log, are bounded by their moments.
_NEGLIGIBLE = 45.0
# Every value of v has so many cells, an odd number, in the moments of the far part for ADD.
_CELLS = 9
# Log of the largest, and of the smallest, l over n of the sum for A^-n; and of the largest A.
_LARGEST_RATE, _SMALLEST_RATE, _LARGEST_MEAN = 8.0, -12.0, 6.0
# Most terms of these sums, over all cells.
_MOST_TERMS = 3_000_000
# Log of a moment that fits into float64.
_LARGEST_LOG = 500.0


@dataclasses.dataclass(frozen=True)
class ConditionalMoments:
    """Upper bounds on the two directions of random allocation with independent noise.

    Args:
        participations: k, in [2, t - 1].
        steps: t.
        column: norm of a column of C, > 0, rounded up.
    """

    participations: int
    steps: int
    column: float

    def delta(self, sigma: float, eps: float, *, add: bool) -> float:
        """An upper bound on H_a(P || Q), or with `add` on H_a(Q || P), at a = e^eps; 1 beyond float64."""
        scale = quotient_down(sigma, self.column)
        if not (_LEAST_SCALE <= scale <= _LARGEST_SCALE and 0.0 <= eps <= _LARGEST_EPS):
            return 1.0
        level = math.exp(eps) * (1.0 - 2.0 * ELEMENTARY)
        try:
            # Numbers beyond float64 become infinite, or NaN, which `bound` takes as infinite.
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                found = _Sums.of(self.participations, self.steps, scale, math.log(level), add=add).bound(
                    level
                )
        except (NumericalError, OverflowError):
            return 1.0
        return min(found, 1.0) if found >= 0.0 else 1.0


@dataclasses.dataclass(frozen=True)
class _Sums:
    """The laws of U near a threshold.

    Args:
        participations: k.
        steps: t.
        statistic: v.
        step: of the lattice.
        threshold: of U, about where L = a, or 1 / a for ADD.
        sign: -1 for ADD, for which U is replaced by -U.
    """

    participations: int
    steps: int
    statistic: Statistic
    step: float
    threshold: float
    sign: int

    @classmethod
    def of(cls, k: int, t: int, scale: float, log_level: float, *, add: bool) -> "_Sums":
        """With odds z such that, where L is near the threshold, the sum of z x / (1 + z x) is near k.

        Any odds and step give a bound; these are estimates.
        """
        aim = -log_level if add else log_level
        fair = k / (t - k)
        y = np.linspace(-12.0 * scale, 1.0 + 12.0 * scale, 4001)
        exponents = (y - 0.5) / scale**2
        logs = -0.5 * (y / scale) ** 2
        logs = logs - scipy.special.logsumexp(logs)

        def tilted(share: float) -> tuple[float, float, float]:
            """The sum of the probabilities at the threshold, the threshold, and the variance of U there."""
            odds = share * fair
            values = np.logaddexp(0.0, math.log(odds) + exponents)
            rate = k * math.log(share) + t * math.log1p(fair) - t * math.log1p(odds)
            threshold = aim + t * math.log1p(odds) + rate
            sign = -1.0 if add else 1.0
            moments = LossMoments(sign * values, logs, t)
            tilt = moments.tilt_for_eps(sign * threshold)
            weights = np.exp(logs + tilt * sign * values - moments.cumulants(tilt)[0])
            return t * float(weights @ -np.expm1(-values)), threshold, moments.summed(tilt)[2]

        def excess(log_share: float) -> float:
            return tilted(math.exp(log_share))[0] - k

        ends = (0.0, math.log(20.0)) if add else (math.log(0.01), 0.0)
        share = ends[0] if add else ends[1]
        if excess(ends[0]) < 0.0 < excess(ends[1]):
            share = scipy.optimize.brentq(excess, *ends, xtol=1e-3)
        _, threshold, variance = tilted(math.exp(share))
        statistic = Statistic(scale, math.exp(share) * fair)
        step = max(_STEP * math.sqrt(variance / t), statistic.largest() / _MOST_VALUES)
        return cls(k, t, statistic, step, threshold, -1 if add else 1)

    def bound(self, a: float) -> float:
        """The bound at a, a float64 number."""
        k, t = self.participations, self.steps
        present = (
            self._composed(((1, k), (0, t - k)), upper=True),
            self._composed(((1, k), (0, t - k)), upper=False),
        )
        absent = self._composed(((0, t),), upper=True), self._composed(((0, t),), upper=False)
        ends = [self._index(one, place) for one in (present[0], absent[0]) for place in (0, -1)]
        start, stop = min(ends[0], ends[2]), max(ends[1], ends[3]) + 1
        if stop - start > _MOST_SUMS:
            raise NumericalError("too many values of a statistic")
        places = np.arange(start, stop)
        q, q_low = (self._masses(one, places) for one in absent)
        p, p_low = (self._masses(one, places) for one in present)
        r = self._squares(places)
        if self.sign > 0:
            square, size = r - 2.0 * a * p_low + a * a * q, r + 2.0 * a * p + a * a * q
            signed, parts = p - a * q_low, p + a * q
        else:
            square, size = q - 2.0 * a * p_low + a * a * r, q + 2.0 * a * p + a * a * r
            signed, parts = q - a * p_low, q + a * p
        # Sums of three terms have error 4 u of their size; the root and products 4 u of the result.
        roots = np.sqrt(q * (np.maximum(square, 0.0) + 8.0 * UNIT * size)) * (1.0 + 8.0 * UNIT)
        terms = np.maximum(0.5 * (roots + signed) + 4.0 * UNIT * (roots + parts), 0.0)
        # Sums from each place to the upper end; beyond that, L (or 1) has at most the mass wrapped there.
        near = np.cumsum(terms[::-1])[::-1] * (1.0 + 2.0 * UNIT * terms.size)
        # The window holds both windows: beyond its upper end, either has at most its wrapped mass.
        decider = present[0] if self.sign > 0 else absent[0]
        beyond = decider.wrapped * math.exp(decider.log_scale - decider.theta * self.step * float(stop - 1))
        far = self._far(math.log(a), np.asarray(places * self.step, dtype=np.float64))
        total = near + far
        least = float(np.min(np.where(np.isnan(total), np.inf, total)))
        return least * (1.0 + 8.0 * UNIT) + 1.01 * beyond + 1e-300

    def _loss(self, shift: int, *, upper: bool) -> LatticeLoss:
        """The law of v, or of -v."""
        masses, errors = self._cells(shift)
        own = masses + errors if upper else np.maximum(masses - errors, 0.0)
        if self.sign > 0:
            return LatticeLoss(self.step, 0, own, 0.0)
        return LatticeLoss(self.step, 1 - own.size, own[::-1].copy(), 0.0)

    def _cells(self, shift: int) -> tuple[FloatArray, FloatArray]:
        return self.statistic.masses(self.step, shift=float(shift))

    def _composed(self, factors: tuple[tuple[int, int], ...], *, upper: bool) -> ComposedLoss:
        """The law of the sum of so many values with these shifts, tilted towards the threshold."""
        own = [(self._loss(shift, upper=upper), times) for shift, times in factors if times]
        moments = JointMoments(tuple(LossMoments.of(loss, times) for loss, times in own))
        return compose_all(own, moments.tilt_for_eps(self.sign * self.threshold), upper=upper)

    def _index(self, composed: ComposedLoss, place: int) -> int:
        return round(float(composed.losses[place]) / self.step)

    def _masses(self, composed: ComposedLoss, places: IntArray, log_weight: float = 0.0) -> FloatArray:
        """Masses at places, times a weight, rounded up or down as the law is."""
        first = self._index(composed, 0)
        inside = (places >= first) & (places < first + composed.losses.size)
        slack = composed.error + composed.wrapped
        found = np.zeros(places.size)
        found[inside] = composed.masses[places[inside] - first]
        found = np.maximum(found + slack, 0.0) if composed.upper else np.maximum(found - slack, 0.0)
        points = places * self.step
        exponents = composed.log_scale + log_weight - composed.theta * points
        # As in `ComposedLoss`: the exponent has error 4 u of its parts, the exponential 8 u.
        sizes = composed.log_size + abs(log_weight) + composed.theta * np.abs(points)
        relative = 2.0 * ELEMENTARY + 8.0 * UNIT * sizes
        scaled = np.exp(exponents) * (1.0 + (relative if composed.upper else -relative))
        return np.asarray(found * scaled)

    def _squares(self, places: IntArray) -> FloatArray:
        """r, rounded up."""
        k, t, squared = self.participations, self.steps, self.statistic.scale**-2
        sets = math.comb(t, k)
        losses = [self._loss(shift, upper=True) for shift in (0, 1, 2)]
        parts = [LossMoments.of(loss, 1) for loss in losses]
        counts = range(max(0, 2 * k - t), k + 1)
        logs = {}
        for both in counts:
            ways = math.comb(k, both) * math.comb(t - k, k - both)
            logs[both] = math.log(ways) - math.log(sets) + both * squared
        aim = self.sign * self.threshold

        def times(both: int) -> tuple[int, int, int]:
            return t - 2 * k + both, 2 * (k - both), both

        def heights_at(theta: float) -> dict[int, float]:
            own = [part.cumulants(theta)[0] for part in parts]
            return {
                both: logs[both] + sum(n * one for n, one in zip(times(both), own, strict=True))
                for both in counts
            }

        usual = heights_at(0.0)
        middle = times(max(counts, key=lambda both: usual[both]))
        moments = JointMoments(
            tuple(LossMoments.of(loss, n) for loss, n in zip(losses, middle, strict=True) if n)
        )
        theta = moments.tilt_for_eps(aim)
        heights = heights_at(theta)
        top = max(heights.values())
        total = np.zeros(places.size)
        rest = 0.0
        for both in counts:
            if heights[both] < top - _NEGLIGIBLE:
                rest += math.exp(heights[both] - top)
                continue
            factors = tuple(enumerate(times(both)))
            # The logs have an error of 2 ELEMENTARY and a few u of their size.
            total += self._masses(self._composed(factors, upper=True), places, logs[both])
        if rest > 0.0:
            total += 1.01 * rest * np.exp(top - theta * places * self.step)
        return total * (1.0 + 8.0 * ELEMENTARY + UNIT * (len(counts) + 8.0 * (math.log(sets) + k * squared)))

    # ---- Far from the threshold.

    def _far(self, log_a: float, cut: FloatArray) -> FloatArray:
        """The least bound on the part below each cut."""
        best = np.full(cut.size, np.inf)
        aim = self.sign * self.threshold
        for distance in _CUTS:
            place = aim - distance
            found: tuple[float, float, int] | None = None
            for order in _ORDERS:
                log_moment = functools.partial(self._positive if self.sign > 0 else self._negative, order)
                if log_moment(0.0) == math.inf:
                    break
                fit = scipy.optimize.minimize_scalar(
                    lambda nu, own=log_moment, at=place: own(nu) + nu * at,
                    bounds=(0.0, 4.0 * order),
                    method="bounded",
                    options={"xatol": 0.02},
                )
                n = order if self.sign > 0 else order + 1
                shape = (n - 1) * math.log(n - 1) - n * math.log(n)
                shape += (1 - n) * log_a
                nu = float(fit.x)
                constant = log_moment(nu) + shape
                if found is None or constant + nu * place < found[0] + found[1] * place:
                    found = constant, nu, order
                else:
                    break
            if found is not None:
                tiny = 0.0 if self.sign > 0 else self._tiny(found[2])
                best = np.fmin(best, np.exp(found[0] + found[1] * cut) * (1.0 + 1e-9) + tiny)
        return best

    @property
    def _sizes(self) -> tuple[tuple[int, int], ...]:
        """Sizes of blocks and how many there are."""
        block, longer = divmod(self.steps, self.participations)
        pairs = ((block, self.participations - longer), (block + 1, longer))
        return tuple(pair for pair in pairs if pair[1])

    def _positive(self, order: int, nu: float) -> float:
        """Log of the product of E A^n e^(-nu U) over the blocks, rounded up; infinite if too large."""
        squared = self.statistic.scale**-2
        if 0.5 * order * (order - 1) * squared > _LARGEST_LOG:
            return math.inf
        each = np.arange(order + 1)
        laws = self._laws[: order + 1]
        weights = np.exp(-nu * self.step * np.arange(laws.shape[1]))
        logs = np.log(laws @ weights) + 0.5 * each * (each - 1) * squared - scipy.special.gammaln(each + 1.0)
        logs, least, total = logs - logs[0], float(logs[0]), 0.0
        for size, times in self._sizes:
            # Of all ways to write n as a sum, n and 1 + ... + 1 give the largest coefficients, within n!, so
            # that these are scaled to about 1.
            aim = max(logs[-1], order * logs[1] - math.lgamma(order + 1.0) + (order - 1) * math.log(size))
            aim = float(aim) + math.log(size)
            series = np.exp(logs - aim / order * each)
            power = series
            for digit in bin(size)[3:]:
                power = np.convolve(power, power)[: order + 1]
                power = np.convolve(power, series)[: order + 1] if digit == "1" else power
            # A lost number below 1e-323 is multiplied by at most the final coefficients, summed over all
            # factors. The power is infinite or NaN beyond float64.
            if not power[-1] > 1e-200 * power.max():
                return math.inf
            own = float(np.log(power[-1])) + size * least + aim
            total += times * (own + math.lgamma(order + 1.0) - order * math.log(size))
        return total + self._far_rounding(nu, order, weights.size)

    def _negative(self, order: int, nu: float) -> float:
        """Log of the product of E A^-n e^(nu U) over the blocks, where no A is tiny, rounded up."""
        total = 0.0
        eta, rates = _rates(order)
        if rates.size * self._fine[1].size > _MOST_TERMS:
            return math.inf
        log_weights = order * rates + math.log(eta) - math.lgamma(order)
        values = np.exp(nu * self.step * self._fine[0]) * self._fine[1]
        plain = float(values.sum())
        for (size, times), decays in zip(self._sizes, self._decays(order), strict=True):
            logs = size * np.log(decays @ values + 1e-300 * plain) + log_weights
            top = float(logs.max())
            own = top + math.log(float(np.exp(logs - top).sum()))
            constant = size * math.log(plain) - order * _LARGEST_MEAN
            total += times * float(np.logaddexp(own, constant))
        return (
            total
            - self.participations * math.log1p(-_sum_error(order))
            + self._far_rounding(nu, order, values.size)
        )

    def _tiny(self, order: int) -> float:
        """Bound on the probability that A is too small for the sum of some block."""
        least = _least_mean(order)
        found = 0.0
        for size, times in self._sizes:
            y = 0.5 + self.statistic.scale**2 * math.log(size * least)
            found += times * math.exp(size * float(scipy.special.log_ndtr(y / self.statistic.scale)))
        return 1.01 * found

    def _far_rounding(self, nu: float, order: int, terms: int) -> float:
        """A bound on the relative error of the means of t steps, each over so many terms.

        The sum has an error of u for every term; products of series, and the sum over the rates, have one of
        a few hundred u, and exponentials those of their exponents.
        """
        largest = self.statistic.largest()
        exponents = nu * largest + order**2 / self.statistic.scale**2 + _LARGEST_LOG
        return self.steps * UNIT * (1000.0 + terms + 8.0 * exponents) + 1e-9

    @functools.cached_property
    def _laws(self) -> FloatArray:
        """The masses of v with every shift up to the largest order that float64 holds, rounded up."""
        squared = self.statistic.scale**-2
        orders = [n for n in _ORDERS if 0.5 * n * (n - 1) * squared <= _LARGEST_LOG]
        return np.array([sum(self._cells(shift)) for shift in range(max(orders, default=0) + 1)])

    @functools.cached_property
    def _fine(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Values of v over the step, masses, and least x, of narrower cells, under Q."""
        step = self.step / _CELLS
        masses, errors = self.statistic.masses(step, shift=0.0)
        places = np.arange(masses.size)
        least = np.expm1(np.maximum(places - 0.5, 0.0) * step) / self.statistic.odds
        values = np.rint(places / _CELLS)
        values[-1] = math.ceil(self.statistic.largest() / self.step)
        return values, masses + errors, least * (1.0 - 1e-12)

    def _decays(self, order: int) -> list[FloatArray]:
        """e^(-l x / m) for every rate l, and cell, and size m of a block."""
        if order not in self._kept:
            rates = np.exp(_rates(order)[1])[:, None]
            self._kept[order] = [np.exp(-rates * (self._fine[2] / size)) for size, _ in self._sizes]
        return self._kept[order]

    @functools.cached_property
    def _kept(self) -> dict[int, list[FloatArray]]:
        return {}


def _rates(order: int) -> tuple[float, FloatArray]:
    """eta, and the logs of l."""
    eta = min(0.25, 0.5 / math.sqrt(order))
    first = math.floor((math.log(order) + _SMALLEST_RATE) / eta)
    last = math.ceil((math.log(order) + _LARGEST_RATE) / eta)
    return eta, np.arange(first, last + 1, dtype=np.float64) * eta


def _least_mean(order: int) -> float:
    """The smallest A for which the sum over the rates holds."""
    return (1.0 + 12.0 / math.sqrt(order) + 60.0 / order) * math.exp(1.0 - _LARGEST_RATE)


def _sum_error(order: int) -> float:
    """Relative error of the sum for A^-n, for A from `_least_mean` to e^_LARGEST_MEAN.

    Terms increase up to l = n / A and then decrease, so that those that are left out are at most the mass of
    a Gamma distribution beyond one step further.
    """
    eta, rates = _rates(order)
    low = math.exp(float(rates[0]) + _LARGEST_MEAN)
    high = math.exp(float(rates[-1]) - eta) * _least_mean(order)
    left = float(scipy.special.gammainc(order, low)) + float(scipy.special.gammaincc(order, high))
    for j in (1, 2, 3):
        y = 2.0 * math.pi * j / eta
        # |Gamma(1 + i y)|^2 = pi y / sinh(pi y)
        log = 0.5 * (math.log(2.0 * math.pi * y) - math.pi * y) + sum(
            0.5 * math.log1p((y / i) ** 2) for i in range(1, order)
        )
        left += 2.0 * math.exp(log)
    return 1.01 * left + 1e-12
