"""Compositions of one-dimensional losses: laws on a lattice from above and from below, and their powers.

A pair (P, Q) is known by its curve H(alpha) = integral of (dP - alpha dQ)_+, alpha > 0. With r = dP / dQ
under Q, H(alpha) is the mean of (r - alpha)_+, plus the mass of P where Q has none. So a pair is a measure on
[0, infinity): here on the lattice e^(k h). docs/checker.md, section 4, proves:

* Products: if one pair's curve is nowhere above another's, then so are the curves of their T-fold products.
* From above: the chords of a convex curve between the points e^(k h), and a constant after the last one.
* From below: a convex polygon under the curve with corners at these points only.

A law keeps the masses of P, so that a product of laws is a product of polynomials, with balls as
coefficients.
"""

import bisect
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence

from flint import arb, arb_poly

__all__ = [
    "Curve", "Law", "TimeIsUp", "compose", "hull", "joined", "lattice_range", "law_above", "law_below",
    "reverse", "until",
]  # fmt: skip

Curve = Callable[[arb], arb]
# Where bends grow by more than this from dot to dot, lowered dots are not convex.
_STEEP = 1.4


class TimeIsUp(Exception):
    """The CPU time that there was for one direction is used up."""


def until(end: float, curve: Curve) -> Curve:
    """The same curve, which raises `TimeIsUp` when the process has used `end` seconds of CPU time."""

    def timed(alpha: arb) -> arb:
        if time.process_time() > end:
            raise TimeIsUp("the time is up")
        return curve(alpha)

    return timed


@dataclasses.dataclass(frozen=True)
class Law:
    """Masses of P at losses (first + j) h, and where Q has none.

    Attributes:
        spacing: h, a float, taken for exact.
        first: index of the lowest loss.
        masses: one ball for every loss.
        infinite: mass of P at an infinite loss.
        above: whether moving mass up is allowed (a law from above), or down (from below).
    """

    spacing: float
    first: int
    masses: arb_poly
    infinite: arb
    above: bool

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
    """The greatest convex curve through (0, 1) and below what is known of both directions.

    Args:
        forth: losses >= 0, and delta of (P, Q) there, or more.
        back: the same of (Q, P), which is known of (P, Q) at minus these losses.

    Returns:
        A curve that is nowhere below that of (P, Q): section 4.5.
    """
    known = {loss: value for loss, value in sorted(forth, key=lambda one: -float(one[1].mid()))}
    for loss, value in back:
        shrink = (-arb(loss)).exp()
        mirrored = 1 - shrink + shrink * value
        known[-loss] = mirrored.min(known.get(-loss, mirrored))
    losses = sorted(known)
    # Losses that are told apart after a logarithm; e^710 is no float64.
    losses = [b for a, b in zip([-math.inf, *losses], losses, strict=False) if b - a > 1e-12]
    corners: list[tuple[arb, arb]] = [(arb(0), arb(1))]
    for loss in losses:
        point = (arb(loss).exp(), known[loss].min(corners[-1][1]))  # a curve does not rise
        while len(corners) > 1 and not _slope(corners[-1], point) > _slope(corners[-2], corners[-1]):
            corners.pop()
        corners.append(point)
    places = [-math.inf, *(float(alpha.log().mid()) for alpha, _ in corners[1:])]
    slopes = [_slope(one, other) for one, other in itertools.pairwise(corners)]

    def curve(alpha: arb) -> arb:
        """The largest of the lines next to alpha; the curve is the largest of all."""
        at = bisect.bisect(places, float(alpha.log().mid())) - 1
        lines = [corners[-1][1]] if at >= len(slopes) - 1 else []
        for (start, height), slope in zip(
            corners[max(0, at - 1) : at + 2], slopes[max(0, at - 1) : at + 2], strict=False
        ):
            lines.append(height + slope * (alpha - start))
        return functools.reduce(arb.max, lines)

    return curve


def _slope(one: tuple[arb, arb], other: tuple[arb, arb]) -> arb:
    return (other[1] - one[1]) / (other[0] - one[0])


def lattice_range(curve: Curve, allowance: float) -> tuple[float, float]:
    """Losses outside of which a curve is within `allowance` of 0 (above) and of 1 - alpha (below).

    Any range gives a bound; a good one gives a close bound.
    """

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


def _nodes(curve: Curve, spacing: float, losses: tuple[float, float]) -> tuple[int, list[arb], list[arb]]:
    first, last = math.floor(losses[0] / spacing), math.ceil(losses[1] / spacing)
    alphas = [(arb(spacing) * k).exp() for k in range(first, last + 1)]
    return first, alphas, [curve(alpha) for alpha in alphas]


def _slopes(alphas: list[arb], values: list[arb]) -> list[arb]:
    return [(values[k + 1] - values[k]) / (alphas[k + 1] - alphas[k]) for k in range(len(values) - 1)]


def law_above(curve: Curve, spacing: float, losses: tuple[float, float]) -> Law:
    """The law whose curve joins the dots: chords, from (0, 1) on, and a constant at the end."""
    first, alphas, values = _nodes(curve, spacing, losses)
    slopes = [(values[0] - 1) / alphas[0], *_slopes(alphas, values), arb(0)]
    masses = [alpha * (slopes[k + 1] - slopes[k]) for k, alpha in enumerate(alphas)]
    return Law(spacing, first, arb_poly(masses), values[-1], above=True)


def law_below(curve: Curve, spacing: float, losses: tuple[float, float]) -> Law | None:
    """A law whose curve is nowhere above; None where the balls are too wide to tell that masses are >= 0.

    A chord is above the curve by at most a b / (a + b) times its width, a and b the bends at its ends. Dots
    that are lowered by that much of both neighbouring chords make a polygon below the curve, and the greatest
    convex polygon below that one has masses >= 0. On the left it goes on with the slope of the first chord,
    on the right it ends at 0: a chord from a lowered dot to there is below the curve if it is where the chord
    before, prolonged, falls to the value of the last dot.
    """
    first, alphas, values = _nodes(curve, spacing, losses)
    slopes = _slopes(alphas, values)
    bends = [arb(0), *(slopes[k] - slopes[k - 1] for k in range(1, len(slopes))), arb(0)]
    # Ends where it is straight, or bends ever faster from dot to dot, are left out: see `_STEEP`.
    start, end = 1, len(bends) - 2
    while start < end and not 0 < bends[start + 1] < _STEEP * bends[start]:
        start += 1
    # On the right also where the last dot is so low that hardly a chord to 0 is below the curve.
    while start < end and not (
        0 < bends[end - 1] < _STEEP * bends[end]
        and bends[end] * (alphas[end + 1] - alphas[end]) < 8 * values[end + 1]
    ):
        end -= 1
    if end - start < 2:
        return None
    kept = slice(start - 1, end + 2)
    first, alphas, values = first + start - 1, alphas[kept], values[kept]
    count, slopes = len(values), _slopes(alphas, values)
    bends = [arb(0), *bends[start : end + 1], arb(0)]
    gaps = []
    for k in range(count - 1):
        left, right, width = bends[k], bends[k + 1], alphas[k + 1] - alphas[k]
        if k == 0:
            gaps.append(width * right)
        elif k == count - 2:  # the last dot goes to 0, further than by a gap, if not far enough alone
            gaps.append((values[k] + values[k + 1] * slopes[k - 1] / left).max(arb(0)))
        else:
            gaps.append(width * left * right / (left + right))
    lowered = [values[k] - gaps[k - 1].max(gaps[k]) for k in range(1, count - 1)] + [arb(0)]
    # A convex chain of corners: (index, height, slope of the line that leads there).
    chain: list[tuple[int, arb, arb]] = [(1, lowered[0], slopes[0])]
    for k in range(2, count):
        while True:
            index, height, before = chain[-1]
            slope = (lowered[k - 1] - height) / (alphas[k] - alphas[index])
            if slope > before:
                break
            if not slope <= before or len(chain) == 1:
                return None
            chain.pop()
        chain.append((k, lowered[k - 1], slope))
    masses = [arb(0)] * count
    for (index, _, before), after in zip(chain, [slope for _, _, slope in chain[1:]] + [arb(0)], strict=True):
        masses[index] = alphas[index] * (after - before)
    if not all(mass >= 0 for mass in masses):
        return None
    return Law(spacing, first, arb_poly(masses), arb(0), above=False)


def compose(law: Law, times: int, allowance: float, end: float = math.inf) -> Law:
    """The law of the product of so many copies, by repeated squaring, within `end` seconds of CPU time.

    Masses at the ends, of at most `allowance` in all, are moved to the safe side: from above upwards, to
    infinity at the upper end; from below to the highest loss that is kept, and dropped at the lower end.
    """
    found, done = law, 1
    for digit in bin(times)[3:]:
        if time.process_time() > end:
            raise TimeIsUp("the time is up")
        found, done = _trimmed(_product(found, found), allowance * 2 * done / times), 2 * done
        if digit == "1":
            found, done = _trimmed(_product(found, law), allowance * (done + 1) / times), done + 1
    return found


def joined(laws: Sequence[Law], allowance: float) -> Law:
    """The law of the product of laws with one spacing; masses are moved as in `compose`."""
    found = laws[0]
    for law in laws[1:]:
        found = _trimmed(_product(found, law), allowance)
    return found


def _product(one: Law, other: Law) -> Law:
    infinite = one.infinite + other.infinite - one.infinite * other.infinite
    if not one.above:
        infinite = arb(0)
    return Law(one.spacing, one.first + other.first, one.masses * other.masses, infinite, one.above)


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
