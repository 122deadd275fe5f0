r"""Private selection: the best of a secret, random number of runs; laws of that number; the privacy cost.

The number is sampled exactly from its law. It affects privacy through its generating function f(z) = E z^K:
the mean number of runs f'(1), and the weight f'(1 - s) / f'(1) of a run that is beaten by another one with
probability s.

One run gives a result and its score. K is sampled, K runs are made, the best is released. Write P and Q for
the laws of one run on neighbouring datasets, h for the curve of (P, Q), f(z) = E z^K, w(s) = f'(1 - s) /
f'(1), and T(s) for the largest Q(E) of an E with P(E) <= s. **Theorem.** For every a >= 1 the curve of the
released result is at most

    E K * E_P max_s [w(s) - a w(T(s)) Q/P]_+ .

*Proof.* Ties are broken by randomness independent of the data, so that the runs have a unique best. A run
gives y and beats all other runs with density p(y) sum_k k P(K = k) (1 - S_P(y))^(k - 1) = p(y) f'(1 -
S_P(y)), S_P(y) the probability of a better result than y. The same holds under Q; releasing no result has
the same probability under both. f' is non-decreasing, and S_Q(y) <= T(S_P(y)), because "better than y" is a
test. So the positive part of the difference of densities is at most p E K [w(s) - a w(T(s)) q / p]_+ at
s = S_P(y). []

The maximum, as a function of z = a q / p, is convex and falls from 1 to 0 no faster than 1 - z: it is the
curve of a separate pair, that of the rank. So the bound is E K times the curve of the composition of a run
and that rank. The rank has finite range: far in the tail the cost is a factor E K and a shift of eps.

References:
    Papernot and Steinke 2022; Koskela, Redberg and Wang 2024.
"""

import abc
import dataclasses
import decimal
import functools
import math
import secrets
from typing import ClassVar

import numpy as np

from dpmech.engines.profiles.atoms import LossAtoms, atoms_above
from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import LEAST_DELTA, Curve, Nodes
from dpmech.engines.profiles.tradeoff import Stick
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_real
from dpmech.numerics import FloatArray, next_up, total

_LARGEST_MEAN = 1e5
_LARGEST_SHAPE = 1e3
# Below this gamma, 1 / gamma and gamma^shape are close to overflow.
_LEAST_GAMMA = 1e-300
# Random bytes, and decimal digits of the probabilities they are compared with: the sampled number is within
# 1e-60 of the law in total variation.
_BYTES, _DIGITS = 32, 90


class RunCount(abc.ABC):
    """The law of a secret number of runs."""

    @property
    @abc.abstractmethod
    def mean(self) -> float:
        """The mean number of runs, with relative error below 1e-12."""

    @abc.abstractmethod
    def log_weight(self, beaten: FloatArray) -> FloatArray:
        """Log f'(1 - s) / f'(1) at s in [0, 1]; 0 at 0, non-increasing, with relative error below 1e-12."""

    @abc.abstractmethod
    def settings(self) -> dict[str, float | str]:
        """The settings as plain data, with the name of the law."""

    @abc.abstractmethod
    def _first(self) -> tuple[int, decimal.Decimal]:
        """The smallest number of runs, and its probability."""

    @abc.abstractmethod
    def _next(self, count: int, probability: decimal.Decimal) -> decimal.Decimal:
        """The probability of `count` + 1 from that of `count`."""

    def draw(self, rng: np.random.Generator | None = None) -> int:
        """Sample a number of runs. Keep it secret: the selection is not private to anyone who knows it.

        Args:
            rng: None uses the operating system; another generator's state reveals the number.
        """
        bits = secrets.token_bytes(_BYTES) if rng is None else rng.bytes(_BYTES)
        with decimal.localcontext(prec=_DIGITS):
            level = decimal.Decimal(int.from_bytes(bits, "big")) / (1 << (8 * _BYTES))
            count, probability = self._first()
            reached = probability
            # The remaining probability is below rounding.
            while reached <= level and (count < self.mean or probability > decimal.Decimal("1e-75")):
                probability = self._next(count, probability)
                count += 1
                reached += probability
        return count


@dataclasses.dataclass(frozen=True)
class PoissonRuns(RunCount):
    """A Poisson number of runs. With probability e^-mean no run is made and nothing is released.

    Args:
        mean_runs: in (0, 1e5].

    Raises:
        InvalidParameterError: if `mean_runs` is outside this range.

    Examples:
        >>> import dpmech as dm
        >>> once = dm.profile(dm.Identity(4), 5.0)
        >>> best = once.private_selection(dm.ledgers.PoissonRuns(20.0))
        >>> round(once.epsilon(1e-5).upper, 2), round(best.epsilon(1e-5).upper, 2)
        (1.55, 4.31)
    """

    law: ClassVar[str] = "poisson"

    mean_runs: float

    def __post_init__(self) -> None:
        mean = check_real("mean_runs", self.mean_runs, minimum=0.0, maximum=_LARGEST_MEAN, open_minimum=True)
        object.__setattr__(self, "mean_runs", mean)

    @property
    def mean(self) -> float:
        """The mean number of runs."""
        return self.mean_runs

    def log_weight(self, beaten: FloatArray) -> FloatArray:
        """-mean s."""
        return -self.mean_runs * beaten

    def settings(self) -> dict[str, float | str]:
        """The settings as plain data."""
        return {"law": self.law, "mean_runs": self.mean_runs}

    def _first(self) -> tuple[int, decimal.Decimal]:
        return 0, (-decimal.Decimal(self.mean_runs)).exp()

    def _next(self, count: int, probability: decimal.Decimal) -> decimal.Decimal:
        return probability * decimal.Decimal(self.mean_runs) / (count + 1)


@dataclasses.dataclass(frozen=True)
class NegativeBinomialRuns(RunCount):
    r"""A truncated negative binomial number of runs, at least one.

    P(K = k) is proportional to (1 - gamma)^k prod_{l < k} (l + shape) / (l + 1), k >= 1. Shape 1 is the
    geometric law, shape 0 the logarithmic one.

    Args:
        shape: in (-1, 1e3]. At a fixed mean, a smaller shape lowers the cost of a selection and increases the
            variance of the number of runs.
        gamma: in [1e-300, 1); a smaller gamma gives more runs. `of_mean` finds the gamma for a given mean.

    Raises:
        InvalidParameterError: if an argument is outside its range, or if the mean is above 1e5.

    Examples:
        >>> import dpmech as dm
        >>> law = dm.ledgers.NegativeBinomialRuns.of_mean(20.0, shape=1.0)
        >>> law.gamma, law.mean
        (0.05, 20.0)

    References:
        Papernot and Steinke 2022, Definition 1.
    """

    law: ClassVar[str] = "truncated negative binomial"

    shape: float
    gamma: float

    def __post_init__(self) -> None:
        shape = check_real("shape", self.shape, minimum=-1.0, maximum=_LARGEST_SHAPE, open_minimum=True)
        gamma = check_real("gamma", self.gamma, minimum=_LEAST_GAMMA, maximum=1.0, open_maximum=True)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "gamma", gamma)
        if not self.mean <= _LARGEST_MEAN * (1.0 + 1e-6):
            raise InvalidParameterError("gamma", gamma, f"one with a mean of at most {_LARGEST_MEAN:g} runs")

    @classmethod
    def of_mean(cls, mean: float, *, shape: float = 0.0) -> "NegativeBinomialRuns":
        """The law with this mean number of runs, in (1, 1e5], as closely as float64 allows.

        Raises:
            InvalidParameterError: on an invalid argument, or if no gamma attains the mean (shape near -1).
        """
        wanted = check_real("mean", mean, minimum=1.0, maximum=_LARGEST_MEAN, open_minimum=True)
        checked = check_real("shape", shape, minimum=-1.0, maximum=_LARGEST_SHAPE, open_minimum=True)
        if checked == 1.0:
            return cls(1.0, 1.0 / wanted)
        low, high = math.log(_LEAST_GAMMA) + 1e-9, math.log1p(-1e-9)
        for _ in range(100):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if _mean(checked, math.exp(middle)) > wanted else (low, middle)
        found = cls(checked, math.exp(high))
        if found.mean < wanted * (1.0 - 1e-6):
            raise InvalidParameterError("mean", wanted, f"at most {found.mean:.6g} at shape {checked!r}")
        return found

    @property
    def mean(self) -> float:
        """The mean number of runs."""
        if self.shape == 1.0:
            return 1.0 / self.gamma
        return _mean(self.shape, self.gamma)

    def log_weight(self, beaten: FloatArray) -> FloatArray:
        """-(1 + shape) log(1 + s (1 - gamma) / gamma)."""
        return -(1.0 + self.shape) * np.log1p(beaten * ((1.0 - self.gamma) / self.gamma))

    def settings(self) -> dict[str, float | str]:
        """The settings as plain data."""
        return {"law": self.law, "shape": self.shape, "gamma": self.gamma}

    def _first(self) -> tuple[int, decimal.Decimal]:
        gamma, shape = decimal.Decimal(self.gamma), decimal.Decimal(self.shape)
        if self.shape == 0.0:
            return 1, (1 - gamma) / -gamma.ln()
        # gamma^-shape - 1, without cancellation for a shape near 0.
        exponent = -shape * gamma.ln()
        power = exponent.exp() - 1
        if abs(exponent) < decimal.Decimal("1e-20"):
            power = exponent * (1 + exponent / 2 * (1 + exponent / 3 * (1 + exponent / 4)))
        return 1, shape * (1 - gamma) / power

    def _next(self, count: int, probability: decimal.Decimal) -> decimal.Decimal:
        shape, rest = decimal.Decimal(self.shape), 1 - decimal.Decimal(self.gamma)
        return probability * rest * (count + shape) / (count + 1)


def run_count_from(settings: dict[str, float | str]) -> RunCount:
    """The law described by `RunCount.settings`.

    Raises:
        InvalidParameterError: if the settings describe no known law.
    """
    given = {name: value for name, value in settings.items() if name != "law"}
    for kind, names in ((PoissonRuns, {"mean_runs"}), (NegativeBinomialRuns, {"shape", "gamma"})):
        if settings.get("law") == kind.law and set(given) == names:
            return kind(**given)  # type: ignore[arg-type]  # the constructor checks each value
    raise InvalidParameterError(
        "runs", settings, "a law of dm.ledgers.PoissonRuns or dm.ledgers.NegativeBinomialRuns"
    )


def _mean(shape: float, gamma: float) -> float:
    """Shape (1 - gamma) / (gamma (1 - gamma^shape)), or its limit at shape 0."""
    log_gamma = math.log(gamma)
    exponent = shape * log_gamma
    share = -log_gamma if abs(exponent) < 1e-300 else -math.expm1(exponent) / shape
    return (1.0 - gamma) / gamma / share


# Allowed change of log delta of a run by a lattice.
_TOLERANCE = 1e-3
# Number of values of s over which a maximum is taken, number of z, and number of values per block.
_RANKS, _PLACES, _BLOCK = 40_000, 400, 200_000
# Bound on the relative errors of weights and means.
_ROUNDING = 1e-11
# The first step along a curve, the maximum number of steps, and the largest eps.
_FIRST, _MOST, _LARGEST_EPS = 1e-3, 2000, 690.0
_LARGEST_RATIO = 1e290
# A weight below this adds less than 1e-20 to delta, for any mean.
_HARDLY = 1e-25


def selected_curve(base: Composition, law: RunCount, rel_error: float) -> Curve:
    """The curve of the best of a secret number of independent runs.

    Args:
        base: one run.
        law: the law of the number of runs.
        rel_error: approximate largest relative excess of hulls over curves.

    Raises:
        NumericalError: if the curve of one run cannot be followed.
    """
    curve = _curve(base, LEAST_DELTA / law.mean, rel_error)
    atoms = {add: curve.atoms(add=add) for add in (False, True)}
    mean = law.mean * (1.0 + _ROUNDING)
    sides = []
    for add in (False, True):
        rank = rank_atoms(atoms[not add], law)
        sides.append(_nodes(atoms[add], rank, mean, rel_error))
    return Curve(*sides)


def rank_atoms(other: LossAtoms, law: RunCount) -> LossAtoms:
    """The loss of the rank: its curve is above max_s [w(s) - e^eps w(T(s))]_+ at every eps.

    Args:
        other: the loss of one run in the other direction; it bounds T.
        law: the law of the number of runs.
    """
    beaten, powers = _tests(other, law)
    # Between two s, w is at most its value at the first, and w(T) at least its value at the second.
    own = np.exp(law.log_weight(beaten[:-1])) * (1.0 + _ROUNDING)
    rival = np.exp(law.log_weight(powers[1:])) * (1.0 - _ROUNDING)
    own[0] = 1.0
    # An s of negligible weight imposes no condition on z; its rank counts as infinite.
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.divide(own, rival, out=np.zeros_like(own), where=own > _HARDLY)
    last = min(float(ratio.max()) * (1.0 + _ROUNDING), _LARGEST_RATIO)
    places = np.append(
        np.concatenate([[1e-3], np.geomspace(0.02, max(last, 1.0 + _ROUNDING), _PLACES)[:-1]]), last
    )
    values = np.array([float(np.max(own - one * rival)) for one in places])
    values = np.clip(values * (1.0 + _ROUNDING) + 1e-15, 0.0, 1.0)
    if last < _LARGEST_RATIO:
        values[-1] = _HARDLY
    # The shift exceeds the error of e^eps where it is evaluated later; 1 - e^eps is below every curve.
    eps = np.log(places) + _ROUNDING
    return atoms_above(eps, np.maximum(values, -np.expm1(np.minimum(eps, 0.0)) * (1.0 + 1e-14)))


def followed(stick: Stick, least: float, hull: float) -> tuple[FloatArray, FloatArray]:
    """Nodes of one direction from eps 0 to where it falls below `least`, and upper bounds there.

    Raises:
        NumericalError: if the curve does not fall below `least`.
    """
    # For a curve whose log falls evenly, the relative excess of the line in e^eps is that square over 8.
    eps, upper, step, wanted = [0.0], [stick(0.0)[1]], _FIRST, math.sqrt(8.0 * hull)
    while upper[-1] > least and eps[-1] < _LARGEST_EPS:
        eps.append(min(eps[-1] + step, _LARGEST_EPS))
        upper.append(stick(eps[-1])[1])
        fall = math.log(max(upper[-2], 1e-300) / max(upper[-1], 1e-300)) / (eps[-1] - eps[-2])
        step = min(wanted / max(fall, 1e-9), 2.0 * step, 0.25 + 0.05 * eps[-1])
        if len(eps) > _MOST:
            raise NumericalError("a curve could not be followed to where it ends")
    return np.array(eps), np.array(upper)


def _curve(base: Composition, least: float, hull: float) -> Curve:
    """The curve of one run, at nodes down to a delta."""
    if base.curves and not base.sampled and base.gaussian[1] == 0.0 and base.releases == 1:
        return base.curves[0][0]

    def side(*, add: bool) -> Nodes:
        nodes, upper = followed(functools.partial(base.delta, add=add, tolerance=_TOLERANCE), least, hull)
        return Nodes.of(nodes, np.zeros(nodes.size), upper)

    return Curve(side(add=False), side(add=True))


def _tests(other: LossAtoms, law: RunCount) -> tuple[FloatArray, FloatArray]:
    """Increasing s from 0 to 1 with upper bounds on T; dense enough that both weights change little."""
    # T(s) <= h(b) + b s for every b; the b used are the kinks of the curve.
    ratios = np.append(0.0, np.exp(other.losses))
    heights = np.append(1.0, other.deltas(other.losses))
    # The best tangent changes where two neighbouring ones intersect.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        meet = -np.diff(heights) / np.diff(ratios)
    corners = np.clip(np.nan_to_num(meet, nan=0.0), 0.0, 1.0)
    fine = np.concatenate([[0.0], np.geomspace(1e-14, 1.0, _RANKS // 2), corners])
    fine = np.unique(fine)
    powers = _powers(fine, ratios, heights)
    # The spacing follows the weights as much as s.
    moved = np.abs(np.diff(law.log_weight(fine))) + np.abs(np.diff(law.log_weight(powers)))
    length = np.append(0.0, np.cumsum(moved))
    if length[-1] > 0.0:
        fine = np.unique(np.append(fine, np.interp(np.linspace(0.0, length[-1], _RANKS), length, fine)))
        powers = _powers(fine, ratios, heights)
    return fine, np.maximum.accumulate(powers)


def _powers(at: FloatArray, ratios: FloatArray, heights: FloatArray) -> FloatArray:
    """The minimum of 1 and h_j + b_j s over all j, rounded up."""
    found = np.ones(at.size)
    rows = max(1, _BLOCK // ratios.size)
    for start in range(0, at.size, rows):
        part = at[start : start + rows]
        found[start : start + rows] = np.min(heights + np.multiply.outer(part, ratios), axis=1)
    return np.minimum(found * (1.0 + 1e-14), 1.0)


def _nodes(base: LossAtoms, rank: LossAtoms, mean: float, rel_error: float) -> Nodes:
    """E K times the curve of the composition of a run and the rank, at nodes."""

    def bound(eps: float) -> tuple[float, float]:
        if base.losses.size == 0:
            return 0.0, 1.0
        curve = base.deltas(eps - rank.losses)
        # A rank beyond the last z that was evaluated counts as infinite: the run adds no further privacy.
        whole = total(rank.masses * curve) + rank.infinite
        return 0.0, min(1.0, next_up(mean * whole * (1.0 + 1e-12)))

    nodes, upper = followed(bound, LEAST_DELTA, 0.5 * rel_error)
    return Nodes.of(nodes, np.zeros(nodes.size), upper)
