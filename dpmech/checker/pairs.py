"""The curves of the dominating pairs of one release of a sampled mechanism.

mu is the largest norm of one example's contribution over the noise, q a probability: docs/checker.md, 5.
"""

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
from flint import arb, arb_poly, ctx

from .losses import Curve, Law, gaussian_delta, normal_cdf, reverse
from .strategies import NotChecked

_ROWS = 64
_LEAST_MASS = 1e-290  # far above the effect of products that underflow float64

_FEW_EXAMPLES, _FEW_BITS = 1000, 512


def sampled_curve(q: arb, mu: arb) -> Curve:
    """(1 - q) N(0, 1) + q N(mu, 1) against N(0, 1): q times the Gaussian curve at 1 + (alpha - 1) / q."""

    def curve(alpha: arb) -> arb:
        inner = (alpha - (1 - q)) / q
        if inner > 0:
            return q * gaussian_delta(mu, inner)
        if inner <= 0:
            return 1 - alpha
        return (1 - alpha).union(1 - alpha + q * inner.abs_upper())  # H <= 1 for all alpha > 0

    return curve


def coins_law(q: arb, count: int) -> list[arb]:
    """Probabilities of 0, 1, ..., `count` successes with probability q each."""
    return [arb(count).bin(j) * q**j * (1 - q) ** (count - j) for j in range(count + 1)]


def user_curve(q: arb, mu: arb, examples: int, spare: float) -> tuple[Curve, Curve]:
    """sum_j Binomial(examples, q)(j) N(j mu, 1) against N(0, 1): curves (above, below).

    The largest j, of total probability at most `spare`, are an infinite loss above and omitted below.
    """
    weights, rest = coins_law(q, examples), arb(0)
    while len(weights) > 2 and float((rest + weights[-1]).upper()) <= spare:
        rest += weights.pop()
    factors = [w * (-((mu * j) ** 2) / 2).exp() for j, w in enumerate(weights)]
    ratio = arb_poly(factors)  # dP / dQ at x is this polynomial at v = e^(mu x)
    slope = ratio.derivative()

    def below(alpha: arb) -> arb:
        if alpha <= weights[0]:
            return sum(weights[1:], weights[0]) - alpha
        x = _root(ratio, slope, alpha).log() / mu
        return sum((w * normal_cdf(mu * j - x) for j, w in enumerate(weights)), -alpha * normal_cdf(-x))

    return lambda alpha: below(alpha) + rest, below


def _root(poly: arb_poly, slope: arb_poly, value: arb) -> arb:
    """A ball that contains the v >= 0 with poly(v) = value; poly has coefficients > 0 and poly(0) < value."""
    # Where one term alone is above the value, so is the sum; the least such v is near the root.
    high = value / poly[1]
    for j in range(2, poly.degree() + 1):
        other = (value / poly[j]).root(j)
        high = other if other < high else high
    high = high.upper() * (1 + arb(2) ** -30)
    if not poly(high) > value:
        raise ArithmeticError("the likelihood ratio of a user's examples is not known well enough")
    v = high
    for _ in range(200):  # for a convex function, Newton's steps from the right decrease to the root
        v = v.mid()
        step = (poly(v) - value) / slope(v)
        v = v - step
        if abs(step) < v * arb(2) ** -80:
            break
    middle, reach = v.mid(), v.mid() * arb(2) ** -70
    lower, upper = middle - reach, middle + reach
    if poly(lower) < value and poly(upper) > value:
        return lower.union(upper)
    return arb(0).union(high)


_LARGEST_SIGMA = 5000


class Truncation:
    """Batches of more than `most` of `size` examples are truncated. Probabilities: section 5.3.

    `full` is tau: `most` or more of the others are sampled; `kept` p; `joined`: the example is in the batch.
    """

    def __init__(self, q: arb, most: int, size: int) -> None:
        # P(Bin(m, q) >= k) is an incomplete beta function; lower precision only makes the balls wider.
        with ctx.workprec(ctx.prec if size <= _FEW_EXAMPLES else min(ctx.prec, _FEW_BITS)):
            self.full = q.beta_lower(most, size - most, 1)
            over = q.beta_lower(most + 1, size - most, 1)
        share = over * most / size
        self.kept = share / self.full
        self.joined = q * (1 - self.full) + share


def truncated_curve(q: arb, mu: arb, cut: Truncation) -> Curve:
    """Sampling with q if the batch cannot be full, else the pair of full batches; the case is revealed."""
    p = cut.kept
    plain, shorter = sampled_curve(q, mu), reverse(sampled_curve(p, mu))

    def longer(alpha: arb) -> arb:
        """H of (1 - p) N(0) + p N(2 mu) against (1 - p) N(0) + p N(mu) at alpha >= 1."""
        rest = (alpha - 1) * (1 / p - 1)  # weight of N(0) if that of N(mu) is alpha
        # Where N(2 mu) = rest N(0) + alpha N(mu): a quadratic equation in y = e^(mu x).
        square, linear = (-2 * mu * mu).exp(), alpha * (-mu * mu / 2).exp()
        x = ((linear + (linear * linear + 4 * square * rest).sqrt()) / (2 * square)).log() / mu
        return p * (normal_cdf(2 * mu - x) - rest * normal_cdf(-x) - alpha * normal_cdf(mu - x))

    full = _joined(longer, shorter)
    return lambda alpha: (1 - cut.full) * plain(alpha) + cut.full * full(alpha)


def replaced_curve(q: arb, mu: arb) -> Curve:
    """(1 - q) N(0, 1) + q N(mu, 1) against (1 - q) N(0, 1) + q N(-mu, 1), the same in both directions."""
    moved = q * (-mu * mu / 2).exp()

    def forward(alpha: arb) -> arb:
        rest = (1 - q) * (alpha - 1)  # moved y = rest + alpha moved / y, with y = e^(mu x)
        x = ((rest + (rest * rest + 4 * alpha * moved * moved).sqrt()) / (2 * moved)).log() / mu
        return q * (normal_cdf(mu - x) - alpha * normal_cdf(-mu - x)) - rest * normal_cdf(-x)

    return _joined(forward, reverse(forward))


def fixed_size_curve(q: arb, mu: arb) -> Curve:
    """Batches of fixed size, one example replaced: sampling at 2 mu for alpha >= 1, its reverse below."""
    forward = sampled_curve(q, 2 * mu)
    return _joined(forward, reverse(forward))


@functools.lru_cache(maxsize=8)
def counts_curve(sigma: Fraction, shift: int) -> Curve:
    """Y + shift against Y, integers with P(y) proportional to e^(-y^2 / (2 sigma^2)): section 7.2."""
    if sigma > _LARGEST_SIGMA or shift > 100 * sigma:
        raise NotChecked(f"counts of noise {float(sigma):g} and sensitivity {shift}")
    square = arb(sigma.numerator) ** 2 / arb(sigma.denominator) ** 2
    reach = math.ceil(40 * sigma) + 1
    weights, ratio, step = [arb(1)], (-1 / (2 * square)).exp(), (-1 / square).exp()
    for _ in range(reach):
        weights.append(weights[-1] * ratio)
        ratio *= step
    # Beyond `reach` every weight is at most `ratio` times the previous one.
    tail = arb(0).union(weights[-1] * ratio / (1 - ratio))
    sums = [tail]  # weights at y > reach, y >= reach, y >= reach - 1, ..., y >= -reach
    for y in range(reach, -reach - 1, -1):
        sums.append(sums[-1] + weights[abs(y)])
    whole = sums[-1] + tail

    def at_least(m: int) -> arb:
        """P(Y >= m)."""
        return sums[min(reach - m + 1, len(sums) - 1)] / whole if m <= reach else tail / whole

    def curve(alpha: arb) -> arb:
        about = math.floor(float(sigma) ** 2 * float(alpha.log().mid()) / shift + shift / 2.0)
        gains = (at_least(m - shift) - alpha * at_least(m) for m in range(about - 1, about + 4))
        return functools.reduce(arb.max, gains, arb(0))

    return curve


def _joined(from_one: Curve, below_one: Curve) -> Curve:
    """One curve at alpha >= 1 and another at alpha < 1; their union where a ball contains both cases."""

    def curve(alpha: arb) -> arb:
        if alpha >= 1:
            return from_one(alpha)
        return below_one(alpha) if alpha < 1 else from_one(alpha).union(below_one(alpha))

    return curve


# ---- One of b orthogonal means of equal length with equal probabilities: laws on a grid, section 5.5.


class _Sum:
    """Masses at values >= 0, and the part of the mean that is at infinity."""

    def __init__(self, masses: np.ndarray, values: np.ndarray, infinite: float) -> None:
        self.masses, self.values, self.infinite = masses, values, infinite


def bin_laws(
    bins: int, square: arb, cells: int, spare: float, rounds: int, *, above: bool, fewest: int = 0
) -> tuple[Law, Law]:
    """Laws of (P, Q) and of (Q, P) from above or from below, to be composed `rounds` times.

    `square` is the squared length of the means over the noise; the grid has so many `cells`, and about a mass
    of `spare` of P may be beyond it. `fewest` is the least number of bins of all laws that share this grid, 0
    for `bins`. Raises NotChecked if rounding may change the masses too much.
    """
    relative = 8.0 * bins * (cells + 3.0) ** 2 * 2.0**-53  # of masses that are sums of that many terms
    if relative * rounds > 1e-3:
        raise NotChecked(f"{rounds} rounds of {bins} bins")
    size, fewest = float(square), fewest or bins
    # Few bins are all as small as that with a probability of about `spare`, and so is their mean.
    low = -math.sqrt(2.0 * size * math.log(1.0 / spare) / fewest) - 0.5 * size
    low = min(low, math.log(0.01 * math.sqrt(math.expm1(size)))) - math.log(fewest)
    reach = math.sqrt(2.0 * size * math.log(fewest / spare)) + 0.5 * size - math.log(fewest)
    spacing = (max(reach, 0.0) + 3.0 - low) / cells
    first = math.floor(low / spacing)
    # Values e^(k spacing) bins, so that r is on the lattice of `losses`.
    losses = first + np.arange(cells + 2)
    # Each product that underflows costs Q at most 2^-1074, and P r times as much: less than `spare`.
    if not math.log(relative) + losses[-1] * spacing - 1021.0 * math.log(2.0) < math.log(spare):
        raise NotChecked("orthogonal bins so far from each other, for so small a delta")
    edges = np.concatenate([[0.0], bins * np.exp(losses * spacing)])
    found = total = _start(square, edges, above=above)
    for digit in bin(bins)[3:]:
        total = _added(total, total, edges, spacing, above=above)
        if digit == "1":
            total = _added(total, found, edges, spacing, above=above)
    factor = arb(1.0 + relative if above else 1.0 - relative)
    least = 0.0 if above else _LEAST_MASS
    masses, count = [factor * arb(m if m > least else 0.0) for m in total.masses.tolist()], len(edges) - 1
    ratios = [(arb(spacing) * k).exp() for k in range(first, first + count)]
    shares = [mass * ratio for mass, ratio in zip(masses[1:], ratios, strict=True)]
    # At infinity, the factor 1.01 exceeds that of the masses, so that products are covered. From below all
    # mass moves down to the lattice, and mass below its lowest point is dropped.
    ends = [arb(total.infinite) / bins, masses[0]]
    lost = [arb(1.01) * (end + spare) if above else arb(0) for end in ends]
    back = (masses[1:] if above else masses[:-1])[::-1]
    remove = Law(spacing, first, arb_poly(shares), lost[0], above)
    return remove, Law(spacing, 1 - first - count, arb_poly(back), lost[1], above)


def _start(square: arb, edges: np.ndarray, *, above: bool) -> _Sum:
    """The law of z: for every cell its probability, and its first moment, the probability under P."""
    length, columns = square.sqrt(), []
    points = [arb(x).log() / length for x in edges[1:].tolist()]
    for sign in (1, -1):
        low = [arb(0), *(normal_cdf(p + sign * length / 2) for p in points), arb(1)]
        high = [arb(1), *(normal_cdf(-p - sign * length / 2) for p in points), arb(0)]
        ends = zip(itertools.pairwise(low), itertools.pairwise(high), strict=True)
        masses = (b - a if b < 0.5 else over_a - over_b for (a, b), (over_a, over_b) in ends)
        columns.append([max(0.0, float(mass)) for mass in masses])
    return _gathered(np.array(columns[0]), np.array(columns[1]), edges, above=above)


def _gathered(masses: np.ndarray, moments: np.ndarray, edges: np.ndarray, *, above: bool) -> _Sum:
    """Cells [edge, next edge), the last one unbounded, from their masses and first moments."""
    means = np.divide(moments, masses, out=edges.copy(), where=masses > 0.0)
    if not above:
        return _Sum(masses, means, 0.0)
    share = np.clip((means[:-1] - edges[:-1]) / np.diff(edges), 0.0, 1.0)
    moved = np.append(masses[:-1] * (1.0 - share), masses[-1])
    moved[1:] += masses[:-1] * share
    # From the moment, because the mass may be too small for float64.
    return _Sum(moved, edges, max(0.0, float(moments[-1] - masses[-1] * edges[-1])))


def _added(one: _Sum, other: _Sum, edges: np.ndarray, spacing: float, *, above: bool) -> _Sum:
    """The sum of two independent variables."""
    masses, moments = np.zeros((2, len(edges)))
    for start in range(0, len(edges), _ROWS):
        rows = slice(start, start + _ROWS)
        values = (one.values[rows, None] + other.values).ravel()
        weights = (one.masses[rows, None] * other.masses).ravel()
        places = np.log(np.maximum(values, 0.5 * edges[1] * math.exp(-spacing)) / edges[1]) / spacing + 1.0
        cells = np.clip(np.floor(places), 0, len(edges) - 1).astype(np.int64)
        masses += np.bincount(cells, weights, len(edges))
        moments += np.bincount(cells, weights * values, len(edges))
    found = _gathered(masses, moments, edges, above=above)
    return _Sum(found.masses, found.values, found.infinite + one.infinite + other.infinite)
