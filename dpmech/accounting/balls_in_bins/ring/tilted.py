r"""delta of Balls-in-Bins without sampling where it is small: transforms on a line through a saddle point.

(r - tau)_+ lies below a sum of exponentials sum_k c_k e^(s_k (r - tau)) whose exponents have the real part
theta > 0, and (tau - r)_+ below the same sum in tau - r. At the theta that fits, all terms are of the order
of delta, so that absolute errors of the traces are relative to it. E e^(theta r) is infinite for lognormal
increments: paths on which some bin adds more than the kink are summed by themselves, and there the payoff is
linear (`large_bins`). The proofs are in docs/balls_in_bins_proof.md, "Small delta: a tilt".
"""

import dataclasses
import math

from dpmech.accounting.balls_in_bins.moments import log_add_bound
from dpmech.accounting.balls_in_bins.ring.lattice import build_lattice
from dpmech.accounting.balls_in_bins.ring.mixture_gram import MixtureGram
from dpmech.accounting.balls_in_bins.ring.tilted_group import Size, TiltedGroup
from dpmech.accounting.balls_in_bins.ring.transform_parts import Parts, groups_of
from dpmech.exceptions import NumericalError

__all__ = ["tilted_delta"]

# Shares of the relative error aimed at. They steer the effort; any choice gives a bound.
RIPPLE = 0.1
WINDOW = 0.02
LEFT_OUT = 0.1
GROUP_RATIO = 1.5
MOST_STATES = 500
PASSES = 5
# A lattice for a delta this much above the right one is good enough.
NEAR = 4.0
# Errors may make up so much of the bound.
MOST_SLACK = 0.25
# What underflows adds less than this; a bound is never 0.
LEAST = 1e-300
# Nothing smaller is aimed at.
SMALLEST = 1e-290


def tilted_delta(
    gram: MixtureGram,
    eps: float,
    *,
    rel_error: float,
    remove: bool,
    floor: float = 0.0,
    guess: float = 1.0,
) -> float:
    """Upper bound on delta(eps) of the Balls-in-Bins pair with Gram matrix `gram`, in one direction.

    Args:
        gram: the Gram matrix, or one that dominates it; at most one exponential.
        eps: in [0, 500].
        rel_error: how far above the truth the bound may lie, relative to it, about; it steers the effort.
        remove: REMOVE, H_eps(P || Q), or else ADD, H_eps(Q || P).
        floor: a delta below which this direction need not be resolved, >= 0.
        guess: about delta, if it is known; it steers the effort.

    Returns:
        The bound. **Guarantee:** an upper bound, rounding included. Its relative error does not grow as
        delta falls.

    Raises:
        NumericalError: if the lattice would be too large, or errors would make up much of the bound: where
            clusters of bins may do all, at a large eps, the terms are many orders above delta.
    """
    return max(_Direction(gram, eps, rel_error, floor, remove=remove).bound(guess), LEAST)


class _Direction(Parts):
    def bound(self, known: float) -> float:
        """The bound, on a lattice for a delta that is known, or that a saddle point approximation finds."""
        self.scale = min(self.scale, max(known, self.floor))
        if not self.remove:
            closed = log_add_bound(self.gram.diagonal * (1.0 + 1e-12), self.gram.mean, self.eps)
            if math.exp(min(closed, 0.0)) <= self.floor:
                return self.floor
        best = 1.0
        for left in range(PASSES, 0, -1):
            setting = self._setting()
            if setting.ceiling() <= self.floor:
                return self.floor
            guess = setting.guess()
            self.order = max(guess.order, 2.0)
            if left > 1 and best == 1.0 == known and self.scale > NEAR * guess.size > NEAR * self.floor:
                self.scale = max(guess.size, SMALLEST)
                continue
            found = setting.bound(self.rel_error, self.scale)
            best = min(best, found)
            # charges and copies were made small beside a scale that turned out to be too large
            if NEAR * found >= self.scale or found <= self.floor:
                break
            self.scale = max(found, self.floor, SMALLEST)
        return best

    def _setting(self) -> "_Setting":
        wanted = WINDOW * self.rel_error * self.scale
        lattice = build_lattice(self.own, remove=self.remove, ripple=RIPPLE * self.rel_error, outside=wanted)
        if len(lattice.steps) > 1 or lattice.size > MOST_STATES:
            raise NumericalError(f"{lattice.size} states are too many for a tilt")
        law, top, weights_factor = self.white_law(wanted)
        common = self.common(wanted)
        groups = [
            TiltedGroup(lattice, law, common, members, self.remove)
            for members in groups_of(common.kinks, GROUP_RATIO)
        ]
        factor = math.exp(lattice.log_factor) * weights_factor * common.factor * (1.0 + 2.0 * self.shift)
        caps = [self.cap(common, group.members) for group in groups]
        charges = common.beyond * factor + lattice.outside + top * lattice.twice
        return _Setting(groups, caps, factor, charges)


@dataclasses.dataclass(frozen=True, eq=False)
class _Setting:
    """Nodes for one scale of delta.

    Attributes:
        groups: kinks that share a tilt.
        caps: what each adds at most.
        factor: by which their sum is to be raised.
        charges: what is added to it.
    """

    groups: list[TiltedGroup]
    caps: list[float]
    factor: float
    charges: float

    def ceiling(self) -> float:
        """A bound without transforms."""
        parts = [
            min(cap, group.chernoff) if cap > 0.0 else 0.0
            for group, cap in zip(self.groups, self.caps, strict=True)
        ]
        return sum(parts) * self.factor + self.charges

    def guess(self) -> Size:
        """About what all groups add together, and the order of the heaviest one."""
        sizes = []
        heaviest = 0.0
        for index in sorted(range(len(self.groups)), key=lambda index: -self.caps[index]):
            if self.caps[index] <= 1e-3 * heaviest:
                break
            sizes.append(self.groups[index].size)
            heaviest = max(heaviest, sizes[-1].size)
        most = max(sizes, key=lambda size: size.size, default=Size(0.0, 0.0))
        return Size(sum(size.size for size in sizes), most.order)

    def bound(self, rel_error: float, scale: float) -> float:
        """Sum over the groups, the least important ones by their caps, good to rel_error * scale."""
        total, slack, left = 0.0, 0.0, LEFT_OUT * rel_error * scale
        counted = [group for group, cap in zip(self.groups, self.caps, strict=True) if cap > left]
        largest = max((group.size.size for group in counted), default=0.0)
        for index in sorted(range(len(self.groups)), key=lambda index: self.caps[index]):
            group, cap = self.groups[index], self.caps[index]
            if cap > left:
                cap = min(cap, group.chernoff)
            if cap <= left:
                total, left = total + cap, left - cap
                continue
            ease = min((largest / max(group.size.size, 1e-300)) ** (1.0 / 3.0), 8.0)
            found, error = group.share(rel_error, ease, scale)
            total, slack = total + min(found, cap), slack + error
        bound = max(total, LEAST) * self.factor + self.charges
        if not math.isfinite(bound) or bound < 0.0:
            raise NumericalError(f"the transform gave {bound!r}")
        if slack > MOST_SLACK * max(total, scale / NEAR):
            raise NumericalError(f"errors of {slack:.3g} are too large beside a delta of {total:.3g}")
        return min(1.0, bound)
