"""Components of privacy profiles: sampled Gaussian releases, and curves bounded at nodes."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np

from dpmech.engines.losses import (
    Loss,
    PoissonAccountant,
    PoissonRelease,
    ReplacedAccountant,
    ReplacedLoss,
    ReplacedRelease,
)
from dpmech.engines.profiles.atoms import LossAtoms, LowerAtoms, atoms_above, atoms_below
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.numerics import (
    Bounds,
    FloatArray,
    Provenance,
    next_down,
    next_up,
    product_down,
    quotient_down,
    quotient_up,
    register_words,
)

register_words({"sensitivity.of_multiplier": "1 / (sigma / sensitivity)"})

# Bound on the rounding of lower bounds between nodes, valid for lines through nodes whose e^eps differ by
# more than `_APART`, relative.
_SLACK, _APART = 1e-9, 1e-5
# Beyond this eps, e^eps is close to overflow; lower bounds there are 0.
_LARGEST_EPS = 700.0


@dataclasses.dataclass(frozen=True)
class SampledPart:
    """Poisson-sampled Gaussian releases of one kind.

    Args:
        sampling_prob: q in (0, 1).
        sigma_over_sensitivity: > 0.
        steps: number of releases, >= 1.
        tight: whether each release attains this multiplier.
        gap: largest relative amount by which the multiplier may be below that of a release.
        replaced: whether one example is replaced by another one, instead of removed.
    """

    sampling_prob: float
    sigma_over_sensitivity: float
    steps: int
    tight: bool
    gap: float = 0.0
    replaced: bool = False

    def and_more(self, other: "SampledPart") -> "SampledPart":
        """The steps of two parts that agree in everything else, combined."""
        return dataclasses.replace(self, steps=self.steps + other.steps, gap=max(self.gap, other.gap))

    @property
    def kind(self) -> tuple[float, float, bool, bool]:
        """Parts of the same kind count as steps of one run."""
        return self.sampling_prob, self.sigma_over_sensitivity, self.tight, self.replaced

    @property
    def release(self) -> PoissonRelease | ReplacedRelease:
        """The release at sigma 1."""
        # The multiplier is rounded down, so the exact value is at most the next float. The gap, too, is
        # rounded by at most one float, and so is 1 - gap.
        bounds = Bounds.bracket(
            product_down(
                quotient_down(1.0, next_up(self.sigma_over_sensitivity)), next_down(1.0 - next_up(self.gap))
            ),
            quotient_up(1.0, self.sigma_over_sensitivity),
            Provenance("sensitivity.of_multiplier"),
        )
        kind = ReplacedRelease if self.replaced else PoissonRelease
        return kind(self.sampling_prob, self.steps, bounds, tight=self.tight)

    @property
    def accountant(self) -> PoissonAccountant | ReplacedAccountant:
        """The accountant of the release at sigma 1."""
        own = self.release
        if isinstance(own, ReplacedRelease):
            return ReplacedAccountant(own, own.sensitivity.scaled(2.0))
        return PoissonAccountant(own)

    def loss(self, sigma_over_sensitivity: float, *, remove: bool) -> Loss | ReplacedLoss:
        """The loss of one release with another multiplier."""
        return self.release.loss(sigma_over_sensitivity, remove=remove)

    @property
    def zcdp(self) -> tuple[Fraction, Fraction]:
        """Lower and upper bound on twice the smallest rho, which sampling does not lower.

        With q a step is the unsampled one. Where an example is replaced, the other one is absent with 1 - q:
        D_a is at least about that of removing it, at most log(1 / (1 - q)) more, and at most four times that.
        """
        one = self.release.sensitivity
        lower, upper = Fraction(one.lower) ** 2 * self.tight, Fraction(one.upper) ** 2
        if self.replaced:
            absent = Fraction(-2.0 * math.log1p(-self.sampling_prob) * (1.0 + 2.0**-48))
            upper = min(4 * upper, upper + absent)
        return self.steps * lower, self.steps * upper


@dataclasses.dataclass(frozen=True)
class Nodes:
    """Bounds on one direction of a hockey-stick curve at given values of eps.

    Args:
        eps: >= 0, increasing.
        lower: lower bounds on H at e^eps, non-increasing.
        upper: upper bounds, each at least the corresponding lower one.

    Raises:
        InvalidParameterError: if the arrays do not satisfy these conditions.
    """

    eps: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        eps, lower, upper = (np.asarray(one, dtype=np.float64) for one in (self.eps, self.lower, self.upper))
        if not (eps.ndim == 1 and eps.size > 0 and eps.shape == lower.shape == upper.shape):
            raise InvalidParameterError("eps", self.eps, "at least one node, with a lower and an upper bound")
        if not (np.all(np.isfinite(eps)) and eps[0] >= 0.0 and np.all(np.diff(eps) > 0.0)):
            raise InvalidParameterError("eps", self.eps, "finite, >= 0, increasing")
        for name, ends in (("lower", lower), ("upper", upper)):
            if not np.all((ends >= 0.0) & (ends <= 1.0)):
                raise InvalidParameterError(name, tuple(ends.tolist()), "in [0, 1]")
        if np.any(lower > upper):
            raise InvalidParameterError("lower", tuple(lower.tolist()), "at most `upper`")

    @classmethod
    def of(cls, eps: FloatArray, lower: FloatArray, upper: FloatArray) -> "Nodes":
        """Nodes from arrays of shape (m,), in any order; bounds are made monotone, which keeps them valid."""
        order = np.argsort(eps)
        eps, lower, upper = eps[order], lower[order], upper[order]
        upper = np.minimum(np.minimum.accumulate(upper), 1.0)
        lower = np.maximum.accumulate(np.clip(lower, 0.0, 1.0)[::-1])[::-1]
        if not np.all(lower <= upper * (1.0 + 1e-9)):
            raise NumericalError("bounds on a curve contradict each other: it would have to rise")
        ends = (eps, np.minimum(lower, upper), upper)
        return cls(*(tuple(float(number) for number in one) for one in ends))

    def lowest(self, eps: float) -> float:
        """A lower bound at any eps >= 0, rounded down.

        The curve is non-increasing, so the next node bounds it. It is convex in a = e^eps, so it is above the
        line through two nodes on one side, from an upper bound at the farther one to a lower bound at the
        nearer one.
        """
        if eps >= _LARGEST_EPS:
            return 0.0
        nodes = np.array(self.eps)
        nodes = nodes[nodes < _LARGEST_EPS]
        a, lower, upper = (
            np.exp(nodes),
            np.array(self.lower[: nodes.size]),
            np.array(self.upper[: nodes.size]),
        )
        if nodes.size == 0:
            return 0.0
        at, place = float(np.exp(eps)), int(np.searchsorted(nodes, eps))
        found = [lower[place] if place < a.size else 0.0]
        if place >= 2 and a[place - 1] - a[place - 2] > _APART * a[place - 1]:
            fall = (upper[place - 2] - lower[place - 1]) / (a[place - 1] - a[place - 2])
            found.append(lower[place - 1] - fall * (at - a[place - 1]))
        if place + 1 < a.size and a[place + 1] - a[place] > _APART * a[place + 1]:
            fall = (lower[place] - upper[place + 1]) / (a[place + 1] - a[place])
            found.append(lower[place] + max(fall, 0.0) * (a[place] - at))
        # The rounding error of a difference is below that of the larger of its terms.
        return max(0.0, float(max(found)) * (1.0 - _SLACK) - _SLACK * float(lower[max(place - 1, 0)]))


@dataclasses.dataclass(frozen=True)
class Curve:
    """A mechanism for which both directions of the hockey-stick curve are known at nodes.

    Args:
        remove: H(P || Q): the dataset with the person against the one without.
        add: H(Q || P).
        larger: the larger of both, if lower bounds are known for it only.
    """

    remove: Nodes
    add: Nodes
    larger: Nodes | None = None

    @classmethod
    def of_claim(cls, eps: float, delta: float) -> "Curve":
        """The curve implied by (eps, delta) only, in both directions.

        References:
            Kairouz, Oh and Viswanath 2015.
        """
        node = Nodes((eps,), (0.0,), (delta,))
        return cls(node, node)

    @classmethod
    def of_larger(cls, nodes: Nodes) -> "Curve":
        """From bounds on the larger direction: upper bounds hold for both, lower bounds for one of them."""
        both = dataclasses.replace(nodes, lower=(0.0,) * len(nodes.eps))
        return cls(both, both, nodes)

    def atoms(self, *, add: bool) -> LossAtoms:
        """A dominating loss of one direction; nodes of the other direction give its values below 0.

        H_{e^-eps}(P || Q) = 1 - e^-eps + e^-eps H_{e^eps}(Q || P).
        """
        own, other = (self.add, self.remove) if add else (self.remove, self.add)
        eps, upper = np.array(other.eps), np.array(other.upper)
        mirrored = (-np.expm1(-eps) + np.exp(-eps) * upper) * (1.0 + 2.0**-48)
        return atoms_above(np.concatenate([-eps, own.eps]), np.concatenate([mirrored, own.upper]))

    def atoms_below(self, *, add: bool) -> LowerAtoms:
        """A loss of one direction that the mechanism's loss dominates; uses both directions, as `atoms`."""
        own, other = (self.add, self.remove) if add else (self.remove, self.add)
        eps = np.array(other.eps)
        lower, upper = (
            -np.expm1(-eps) + np.exp(-eps) * np.array(ends) * (1.0 + side * 2.0**-48)
            for ends, side in ((other.lower, -1.0), (other.upper, 1.0))
        )
        return atoms_below(
            np.concatenate([-eps, own.eps]),
            np.concatenate([lower * (1.0 - 2.0**-48), own.lower]),
            np.concatenate([upper * (1.0 + 2.0**-48), own.upper]),
        )

    def lower(self, eps: float, *, add: bool) -> float:
        """A lower bound on one direction at any real eps, rounded down."""
        own, other = (self.add, self.remove) if add else (self.remove, self.add)
        if eps >= 0.0:
            return own.lowest(eps)
        found = -float(np.expm1(eps)) + float(np.exp(eps)) * other.lowest(-eps)
        return max(0.0, found * (1.0 - 2.0**-48))


def grouped(parts: Iterable[SampledPart]) -> tuple[SampledPart, ...]:
    """Combine parts of the same kind, in order of first occurrence."""
    kinds: dict[tuple[float, float, bool, bool], SampledPart] = {}
    for part in parts:
        known = kinds.get(part.kind)
        kinds[part.kind] = part if known is None else known.and_more(part)
    return tuple(kinds.values())


# Curves are not followed below this delta.
LEAST_DELTA = 1e-12
# Of the first search for nodes: the number of points is at most 40 times this; the range of eps.
_COARSE = 24
_SMALLEST_NODE, _LARGEST_NODE = 1e-4, 1e4


def placed_nodes(eps: FloatArray, logs: FloatArray, hull: float, steepest: float = math.inf) -> FloatArray:
    """Nodes between which the line in e^eps is at most a factor of about 1 + hull above a curve.

    Over a step h of eps the line is above by h^2 / 8 (l'^2 + l'' - l'), l the log of the curve; l'' < 0 is
    neglected.

    Args:
        eps: where the curve was evaluated, shape (m,), increasing.
        logs: approximate logs of the curve there.
        hull: > 0.
        steepest: upper limit on the slope l' that is considered: in a composition under a tilt theta, a loss
            split over h contributes h^2 / 8 (theta (theta + 1)) times its own share, however steep its curve
            is there.
    """
    if eps.size < 2:
        return eps
    slopes = np.clip(-np.gradient(logs, eps), 0.0, steepest)
    density = np.sqrt(np.maximum(slopes**2 + slopes, 0.02) / (8.0 * hull))
    steps = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(eps))])
    count = max(1, math.ceil(float(steps[-1])))
    return np.interp(np.linspace(0.0, steps[-1], count + 1), steps, eps)


def curve_of_bounds(
    bounds: Callable[[float], Bounds], hull: float, ceiling: Callable[[float], float]
) -> Curve:
    """The curve of a mechanism whose accountant bounds only the larger direction: both have its upper bound.

    Args:
        bounds: bounds on delta at eps >= 0.
        hull: approximate largest relative excess of the hull over the curve.
        ceiling: an upper bound on delta that is cheap to compute, for where the curve ends and beyond.
    """

    def log_delta(eps: float) -> float:
        return math.log(max(bounds(eps).upper, 1e-300))

    low, high = _SMALLEST_NODE, _SMALLEST_NODE
    while high < _LARGEST_NODE and ceiling(high) > LEAST_DELTA:
        high *= 2.0
    coarse = [low]
    logs = [log_delta(low)]
    width = 0.25 * min(high, 1.0)
    while logs[-1] > math.log(LEAST_DELTA) and coarse[-1] < high:
        at = min(coarse[-1] + width, high)
        coarse.append(at)
        logs.append(log_delta(at))
        fall = max((logs[-2] - logs[-1]) / (coarse[-1] - coarse[-2]), 1e-3)
        width = min(1.2 / fall, 2.0 * width)
        if len(coarse) > 40 * _COARSE:
            raise NumericalError("the bound on delta does not fall: no curve can be made of it")
    nodes = placed_nodes(np.array(coarse), np.array(logs), hull)
    found = [bounds(float(eps)) for eps in nodes]
    lower, upper = (np.array([getattr(one, end) for one in found]) for end in ("lower", "upper"))
    return Curve.of_larger(Nodes.of(nodes, lower, upper))
