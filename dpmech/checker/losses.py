"""Curves: of the Gaussian mechanism in closed form; of compositions, by laws on a lattice and their powers.

A pair (P, Q) is determined by its curve H(alpha) = integral of (dP - alpha dQ)_+, alpha > 0: docs/checker.md,
sections 3 and 4. A law stores the masses of P on a lattice of losses, so that a product of laws is a product
of polynomials with balls as coefficients.
"""

import bisect
import dataclasses
import decimal
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence

from flint import arb, arb_poly

Curve = Callable[[arb], arb]
# Points from below per lattice point, and the number of points without a lower slope that end a search.
_DOTS, _AHEAD = 8, 20
_MOST_NODES = 150_000
_LESS = 2.0**-50 - 1.0  # so that the end is >= 0 for every value in the balls


def normal_cdf(x: arb) -> arb:
    """Phi(x), with small relative error also in the lower tail."""
    return (-x / arb(2).sqrt()).erfc() / 2


def gaussian_delta(mu: arb, ratio: arb) -> arb:
    """Delta at e^eps = ratio > 0 of N(mu, 1) against N(0, 1), mu > 0; a ball."""
    eps = ratio.log()
    return normal_cdf(mu / 2 - eps / mu) - ratio * normal_cdf(-mu / 2 - eps / mu)


def rounded_up(value: arb, digits: int = 6) -> str:
    """Format a decimal number that is not below the ball."""
    return _decimal(value.upper(), digits, decimal.ROUND_CEILING, math.inf)


def rounded_down(value: arb, digits: int = 6) -> str:
    """Format a decimal number that is not above the ball."""
    return _decimal(value.lower(), digits, decimal.ROUND_FLOOR, -math.inf)


def _decimal(end: arb, digits: int, rounding: str, towards: float) -> str:
    if not end.is_finite():
        return str(towards)
    mantissa, exponent = (int(x) for x in end.man_exp())
    with decimal.localcontext(decimal.Context(400, rounding, -999_999, 999_999)) as context:
        exact = decimal.Decimal(mantissa) * decimal.Decimal(2) ** exponent
        context.prec = digits
        return f"{+exact:.{digits - 1}e}" if exact else "0"


def revealed_delta(weights: Sequence[arb], times: int, mu: arb, eps: float, kind: str) -> arb:
    """A bound on delta in both directions, as if it were known who takes part in what: section 5.7."""
    squares = {j * j: weight for j, weight in enumerate(weights)}
    law = arb_poly([squares.get(k, 0) for k in range(len(weights) ** 2)]) ** times
    each = functools.reduce(arb.min, ((weights[0] / weight).log() / k for k, weight in squares.items() if k))
    none = -times * weights[0].log()
    shifted = kind == "replaced" or (kind == "coins" and bool(none <= eps))
    total = times * (mu / arb(8).sqrt()).erfc() if shifted else arb(0)
    for k, mass in enumerate(law.coeffs()[1:], start=1):
        shift = k * each if kind == "replaced" else (none + k * each).max(arb(0)) if shifted else arb(0)
        total += mass * gaussian_delta(mu * arb(k).sqrt(), (eps + shift).exp())
    return total


def until(end: float, curve: Curve) -> Curve:
    """The same curve, raising `TimeoutError` once the process has used `end` seconds of CPU time."""

    def timed(alpha: arb) -> arb:
        if time.process_time() > end:
            raise TimeoutError("the time is up")
        return curve(alpha)

    return timed


@dataclasses.dataclass(frozen=True)
class Law:
    """Masses of P at losses (first + j) h, and its mass where Q has none."""

    spacing: float  # h, a float, treated as exact
    first: int  # index of the lowest loss
    masses: arb_poly  # one ball for every loss
    infinite: arb  # mass of P at an infinite loss
    above: bool  # whether mass may be moved up (a law from above) or down (from below)

    def delta(self, ratio: arb) -> arb:
        """The curve of this pair at alpha = ratio: sum of mass (1 - ratio e^-loss)_+."""
        start = math.floor(float(ratio.log().mid()) / self.spacing) - 1
        shrink = (-arb(self.spacing)).exp()
        factor = ratio * (-arb(self.spacing) * max(start, self.first)).exp()
        total = self.infinite
        for mass in self.masses.coeffs()[max(0, start - self.first) :]:
            total += mass * (1 - factor).max(arb(0))
            factor *= shrink
        return total


def reverse(curve: Curve) -> Curve:
    """The curve of (Q, P): 1 - alpha + alpha H(1 / alpha)."""
    return lambda alpha: 1 - alpha + alpha * curve(1 / alpha)


def hull(forth: Sequence[tuple[float, arb]], back: Sequence[tuple[float, arb]]) -> Curve:
    """The greatest convex curve through (0, 1) that satisfies the bounds on both directions: section 4.5.

    `forth` has losses >= 0, and upper bounds on delta of (P, Q) at them; `back` the same for (Q, P).
    """
    known = {loss: value for loss, value in sorted(forth, key=lambda one: -float(one[1].mid()))}
    for loss, value in back:
        shrink = (-arb(loss)).exp()
        mirrored = 1 - shrink + shrink * value
        known[-loss] = mirrored.min(known.get(-loss, mirrored))
    losses = sorted(known)
    # Only losses that are distinct after a logarithm; e^710 exceeds float64.
    losses = [b for a, b in zip([-math.inf, *losses], losses, strict=False) if b - a > 1e-12]
    corners: list[tuple[arb, arb]] = [(arb(0), arb(1))]
    for loss in losses:
        point = (arb(loss).exp(), known[loss].min(corners[-1][1]))  # a curve does not increase
        while len(corners) > 1 and not _slope(corners[-1], point) > _slope(corners[-2], corners[-1]):
            corners.pop()
        corners.append(point)
    places = [-math.inf, *(float(alpha.log().mid()) for alpha, _ in corners[1:])]
    slopes = [_slope(one, other) for one, other in itertools.pairwise(corners)]

    def curve(alpha: arb) -> arb:
        """The largest of the lines next to alpha; the curve is the maximum of all lines."""
        at = bisect.bisect(places, float(alpha.log().mid())) - 1
        lines = [corners[-1][1]] if at >= len(slopes) - 1 else []
        near = slice(max(0, at - 1), at + 2)
        for (start, height), slope in zip(corners[near], slopes[near], strict=False):
            lines.append(height + slope * (alpha - start))
        return functools.reduce(arb.max, lines)

    return curve


def _slope(one: tuple[arb, arb], other: tuple[arb, arb]) -> arb:
    return (other[1] - one[1]) / (other[0] - one[0])


def lattice_range(curve: Curve, allowance: float) -> tuple[float, float]:
    """Losses outside of which a curve is near to 0 (above) and 1 - alpha (below); any range gives a bound."""

    def outside(loss: float) -> bool:
        alpha = arb(loss).exp()
        rest = curve(alpha) - (0 if loss > 0.0 else 1 - alpha)
        return not float(rest.mid()) > allowance

    ends = []
    for sign in (-1.0, 1.0):
        size = 2.0**-20
        while not outside(sign * size) and size < 2.0**20:
            size *= 2.0
        low, high = size / 2.0, size
        for _ in range(12):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if outside(sign * middle) else (middle, high)
        ends.append(sign * high)
    return ends[0], ends[1]


def _nodes(
    curve: Curve, spacing: float, losses: tuple[float, float], parts: int = 1
) -> tuple[int, list[arb], list[arb]]:
    """First index on the lattice, and alpha and H there and at `parts` - 1 points in each interval."""
    first, last = math.floor(losses[0] / spacing), math.ceil(losses[1] / spacing)
    alphas = [(arb(spacing) * k / parts).exp() for k in range(first * parts, last * parts + 1)]
    return first, alphas, [curve(alpha) for alpha in alphas]


def _slopes(alphas: list[arb], values: list[arb]) -> list[arb]:
    return [(values[k + 1] - values[k]) / (alphas[k + 1] - alphas[k]) for k in range(len(values) - 1)]


def law_above(curve: Curve, spacing: float, losses: tuple[float, float]) -> Law:
    """The law whose curve joins the points: chords from (0, 1) on, and a constant after the last one."""
    first, alphas, values = _nodes(curve, spacing, losses)
    slopes = [(values[0] - 1) / alphas[0], *_slopes(alphas, values), arb(0)]
    masses = [alpha * (slopes[k + 1] - slopes[k]) for k, alpha in enumerate(alphas)]
    return Law(spacing, first, arb_poly(masses), values[-1], above=True)


def law_below(curve: Curve, spacing: float, losses: tuple[float, float]) -> Law | None:
    """A law whose curve is nowhere above: section 4.3. None if balls are too wide, or the range is short."""
    first, alphas, values = _nodes(curve, spacing, losses, _DOTS)
    slopes, places = _slopes(alphas, values), range(_DOTS, len(values) - _DOTS - 1, _DOTS)
    if not places:
        return None
    bends = [after - before for before, after in itertools.pairwise(slopes)]
    gaps = [(alphas[1] - alphas[0]) * bends[0]]
    for k, (left, right) in enumerate(zip(bends, [*bends[1:], arb(0)], strict=True), start=1):
        share = left * right / (left + right) if left > 0 and right > 0 else left.abs_upper()
        gaps.append((alphas[k + 1] - alphas[k]) * share)
    most = [one.max(two) for one, two in itertools.pairwise(gaps)]
    dots = [values[0], *(value - gap for value, gap in zip(values[1:-1], most, strict=True))]
    # Lines: (index of the corner where it begins, height there, exact slope); the first one is rotated.
    fall = slopes[0].lower()
    lines = [(1, values[1] - gaps[0] - (slopes[0] - fall) * alphas[1], fall)]

    def height(at: int) -> arb:
        corner, there, slope = lines[-1]
        return there + slope * (alphas[at] - alphas[corner])

    def tangent(at: int, low: arb) -> arb:
        """The largest slope from a corner that stays below the points ahead, and ends no lower than 0."""
        slope, worse, k = -low / (alphas[-1] - alphas[at]), 0, at + 1
        while k < len(dots) and worse <= _AHEAD:
            there = (dots[k] - low) / (alphas[k] - alphas[at])
            worse = 0 if there < slope else worse + (there < 0)
            slope, k = slope.min(there), k + 1  # for overlapping balls, a ball below both
        return (slope * (1 + arb(2) ** -50)).lower()

    end = 0
    for at in places:
        while len(lines) > 1 and not all(dots[k] >= height(k) for k in range(at + 1, at + _DOTS + 1)):
            lines.pop()
        low = height(at)
        if not low >= 0:
            break
        end, slope = at, tangent(at, low)
        if slope > lines[-1][2] and dots[at] >= low:
            lines.append((at, low, slope))
    while len(lines) > 1:
        corner, low, slope = lines.pop()
        lowest = (low * _LESS / (alphas[end] - alphas[corner])).upper() if corner < end else -arb(math.inf)
        if lowest > lines[-1][2]:
            lines.append((corner, low, lowest.min(slope)))
            break
    if not end or not height(end) >= 0:
        return None
    masses = [arb(0)] * (len(alphas) // _DOTS + 1)
    after = [*(slope for _, _, slope in lines[1:]), arb(0)]
    for corner, (_, _, slope), other in zip([*(one[0] for one in lines[1:]), end], lines, after, strict=True):
        masses[corner // _DOTS] = alphas[corner] * (other - slope)
    return Law(spacing, first, arb_poly(masses), arb(0), above=False)


def compose(law: Law, times: int, allowance: float, end: float = math.inf) -> Law:
    """The law of the product of `times` copies by squaring, in `end` seconds of CPU time: section 4.4."""
    found, done = law, 1
    for digit in bin(times)[3:]:
        found, done = _product(found, found, allowance * 2 * done / times, end), 2 * done
        if digit == "1":
            found, done = _product(found, law, allowance * (done + 1) / times, end), done + 1
    return found


def joined(laws: Sequence[Law], allowance: float, end: float = math.inf) -> Law:
    """The law of the product of laws with equal spacing; masses and time are as in `compose`."""
    return functools.reduce(lambda one, other: _product(one, other, allowance, end), laws)


def _product(one: Law, other: Law, allowance: float, end: float) -> Law:
    if time.process_time() > end:
        raise TimeoutError("the time is up")
    infinite = one.infinite + other.infinite - one.infinite * other.infinite if one.above else arb(0)
    law = Law(one.spacing, one.first + other.first, one.masses * other.masses, infinite, one.above)
    return _trimmed(law, allowance)


def _trimmed(law: Law, allowance: float) -> Law:
    masses = law.masses.coeffs()
    sizes = [float(mass.mid()) for mass in masses]
    low, high, lost = 0, len(masses), 0.0
    while low < high - 1 and lost + sizes[low] <= allowance:
        lost, low = lost + sizes[low], low + 1
    lost = 0.0
    while high > low + 1 and lost + sizes[high - 1] <= allowance:
        lost, high = lost + sizes[high - 1], high - 1
    kept, infinite = masses[low:high], law.infinite
    if law.above:
        kept[0] = sum(masses[:low], kept[0])
        infinite = sum(masses[high:], infinite)
    else:
        kept[-1] = sum(masses[high:], kept[-1])
    return Law(law.spacing, law.first + low, arb_poly(kept), infinite, law.above)


@dataclasses.dataclass(frozen=True)
class Part:
    """A curve, its number of compositions, and the range of losses to evaluate; None if it is to be found."""

    curve: Curve
    times: int
    losses: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Lattice:
    """A spacing, the range of losses of each curve, the mass that may be moved, and the time limit."""

    spacing: float
    ranges: list[tuple[float, float]]
    allowance: float
    end: float

    def law(self, parts: Sequence[Part], *, above: bool) -> Law:
        """The law of the composition of the first curves, from above or from below."""
        laws, law_of = [], law_above if above else law_below
        for part, losses in zip(parts, self.ranges, strict=False):
            law = law_of(until(self.end, part.curve), self.spacing, losses)
            if law is None:  # nothing is known from below
                return Law(self.spacing, 0, arb_poly([]), arb(0), above)
            laws.append(compose(law, part.times, self.allowance, self.end))
        return joined(laws, self.allowance, self.end)


def lattices(above: Sequence[Part], delta: float, seconds: float) -> Iterator[Lattice]:
    """Ever finer lattices for a composition, up to a limit on the work; the last may raise TimeoutError."""
    start, times, allowance = time.process_time(), sum(part.times for part in above), delta * 1e-5
    end = start + 2.0 * seconds
    ranges = [part.losses or lattice_range(until(end, part.curve), allowance / times) for part in above]
    width = max(high - low for low, high in ranges)
    spacing = 2.0 ** math.floor(math.log2(width / 500))
    while width / spacing < _MOST_NODES and time.process_time() - start < seconds:
        yield Lattice(spacing, ranges, allowance, end)
        spacing /= 2.0
