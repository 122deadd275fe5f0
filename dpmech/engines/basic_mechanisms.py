r"""Mechanisms without training, and bare claims: noise on a number, randomised response, (eps, delta), rho.

A privacy loss is stated for an output under P, in the direction P against Q; by symmetry the other direction
has the same law. For every mechanism here, the curve of the largest shift is above that of any smaller one:
the densities are log-concave, so that likelihood ratios are monotone and threshold tests are optimal.

**Laplace.** With e = sensitivity / scale the curve of one release is 1 - e^((eps - e) / 2) for |eps| <= e.
Let w = 2 e / m. Merging the outputs whose loss is in a cell of width w, a post-processing, leaves the loss at
the middle of the cell: in the loss l, P has the density e^((l - e) / 2) / 4, and Q e^((-l - e) / 2) / 4.
Lines through the points of the curve at multiples of w are above it; they are the curve of a loss on these
points with masses e^((l - e) / 2) tanh(w / 4), and at both ends half of that and half of e^((l - e) / 2).

**Claims.** An (eps, delta) mechanism is a post-processing of one that fails with probability delta and is
randomised response otherwise (Kairouz, Oh and Viswanath 2015), so that this upper end is attained. Nothing
follows from below: a constant satisfies every claim. For rho of zero-concentrated DP the curve is bounded by
the Renyi divergences rho a of all orders a > 1, and by Pinsker's inequality, as the Kullback-Leibler
divergence is at most rho; the best order depends on eps, so that no single mechanism may attain it.

References:
    Bun and Steinke 2016; Dwork, McSherry, Nissim and Smith 2006; Ghosh, Roughgarden and Sundararajan 2012;
    Kairouz, Oh and Viswanath 2015; Warner 1965.
"""

import abc
import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from dpmech.engines.profiles import Composition, Curve, ExactLoss, Nodes, PrivacyProfile, curve_of_bounds
from dpmech.engines.renyi import RenyiComposition
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_delta, check_integer, check_real
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import (
    BOUND,
    ELEMENTARY,
    EXACT,
    UNIT,
    Bounds,
    FloatArray,
    Provenance,
    next_up,
    product_up,
    quotient_down,
    quotient_up,
    register_words,
    root_up,
    rounded_down,
    rounded_up,
)

register_words(
    {
        "mechanism.released": "{count} x {mechanism}",
        "mechanism.zcdp": "zero-concentrated differential privacy with rho = {rho}",
    }
)

# Cells of a Laplace loss: the most, for a few releases; per unit of the largest loss; the least; and the most
# for many releases.
_CELLS, _PER_UNIT, _LEAST, _FEWER = 4096, 512, 128, 512
_FEW, _MANY = 40, 10_000
# Bound on the relative error of masses and grids below, far above their few dozen roundings.
_OFF = 256.0 * UNIT
_LEAST_LOSS, _LARGEST_LOSS, _MOST = 1e-9, 500.0, 10**6
_LARGEST_SHIFT, _MOST_CATEGORIES = 100_000, 10**9
_HULL, _LARGEST_RHO = 1e-3, 1e3


@dataclasses.dataclass(frozen=True)
class BasicMechanism(abc.ABC):
    """A mechanism of a ledger that is known by its law or its claim; `Laplace` and others derive from it.

    Args:
        adjacency: the neighbouring relation, to which a sensitivity or a claim refers.
        unit: the unit of privacy, to which it refers too: one example, or all examples of one user.
    """

    adjacency: Adjacency = dataclasses.field(default=Adjacency.ADD_REMOVE, kw_only=True, repr=False)
    unit: Unit = dataclasses.field(default=Unit.EXAMPLE, kw_only=True, repr=False)
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        Adjacency.check(self.adjacency)
        Unit.check(self.unit)
        self._check()

    @property
    def claim(self) -> tuple[float, float] | None:
        """The best (eps, delta) with the smallest delta, rounded up; None if eps is not bounded."""
        return None

    @property
    def squared_mu(self) -> Fraction | None:
        """Mu^2 of a Gaussian release, exactly; None for any other mechanism."""
        return None

    @property
    def claimed_rho(self) -> Fraction | None:
        """The rho of a zCDP claim, exactly; None for any other mechanism."""
        return None

    def profile(self, count: int = 1) -> PrivacyProfile:
        """The privacy profile of `count` releases, each of which may depend on earlier results.

        Args:
            count: in [1, 1000000].

        Returns:
            Bounds on the curve; the lower ends of claims are 0.

        Raises:
            InvalidParameterError: on a bad count.
        """
        times = check_integer("count", count, minimum=1, maximum=_MOST)
        parts, by = (
            self._parts(times),
            Provenance("mechanism.released", {"count": times, "mechanism": repr(self)}),
        )
        sure = EXACT if parts.only_gaussian else BOUND
        return PrivacyProfile(parts, sure, by, self.adjacency, self.unit)

    def renyi(self, order: float) -> float:
        """An upper bound on the Renyi divergence of one release at an order > 1, or infinity."""
        del order
        return math.inf

    def settings(self) -> dict[str, Any]:
        """The fields but the adjacency, and the kind, as plain data."""
        own = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        del own["adjacency"]
        return {"kind": self.kind} | own | {"unit": self.unit.value}

    @abc.abstractmethod
    def _check(self) -> None:
        """Raise InvalidParameterError for a bad field, and make the fields floats or ints."""

    @abc.abstractmethod
    def _parts(self, count: int) -> Composition:
        """What `count` releases are composed of."""

    def _real(self, name: str, maximum: float = math.inf, *, minimum: float = 0.0) -> None:
        value = check_real(
            name, getattr(self, name), minimum=minimum, maximum=maximum, open_minimum=minimum == 0.0
        )
        object.__setattr__(self, name, value)


class BoundedLossMechanism(BasicMechanism):
    """A mechanism with a bounded loss, which is known."""

    @property
    @abc.abstractmethod
    def _largest(self) -> float:
        """The largest loss, rounded up."""

    @abc.abstractmethod
    def _loss(self, cells: int) -> ExactLoss:
        """The loss of one release."""

    @property
    def claim(self) -> tuple[float, float] | None:
        """The largest loss and 0."""
        return self._largest, 0.0

    def renyi(self, order: float) -> float:
        """The divergence of the dominating loss, at most its largest value and a eps^2 / 2."""
        atoms, less = _loss_of(self, _FEWER).atoms(add=False), order - 1.0
        if atoms.infinite > 0.0:
            return math.inf
        exponents = atoms.log_masses + less * atoms.losses
        top = float(exponents.max())
        log_moment = top + math.log(float(np.exp(exponents - top).sum()))
        size = float(np.abs(atoms.log_masses).max() + less * np.abs(atoms.losses).max())
        log_moment += UNIT * (16.0 * size + atoms.losses.size + 64.0)
        eps = self._largest
        # At most four roundings each.
        found = min(log_moment / less, 0.5 * order * eps * eps) * (1.0 + 8.0 * UNIT)
        return min(eps, next_up(max(found, 0.0)))

    def _parts(self, count: int) -> Composition:
        return Composition(exact=((_loss_of(self, _cells(self._largest, count)), count),))

    def _check_largest(self, name: str) -> None:
        if not _LEAST_LOSS <= self._largest <= _LARGEST_LOSS:
            accepted = f"such that a release has an eps in [{_LEAST_LOSS:g}, {_LARGEST_LOSS:g}]"
            raise InvalidParameterError(name, getattr(self, name), accepted)


def _cells(largest: float, count: int) -> int:
    """Number of cells of a Laplace loss, a power of 2: more would cost time and add rounding errors.

    With many releases, m cells change eps by about largest / (6 m^2), relative to it.
    """
    if count <= _FEW:
        return _CELLS
    wanted = int(2.0 ** math.ceil(math.log2(_PER_UNIT * largest)))
    return max(_LEAST, min(wanted, _CELLS if count <= _MANY else _FEWER))


@functools.lru_cache(maxsize=64)
def _loss_of(mechanism: BoundedLossMechanism, cells: int) -> ExactLoss:
    """Cached, so that equal mechanisms are composed as one loss."""
    return mechanism._loss(cells)


@dataclasses.dataclass(frozen=True)
class Laplace(BoundedLossMechanism):
    """Laplace noise on a number: density `e^(-|x| / scale) / (2 scale)`.

    The noise is that of the real numbers; adding it in floating point reveals more (Mironov 2012). For
    integers, `DiscreteLaplace` has noise that can be drawn exactly.

    Args:
        scale: of the noise, > 0, in the units of the sensitivity.
        sensitivity: > 0, the largest change of the number between two neighbours *of this adjacency*: a sum
            of values in [-C, C] has C under ADD_REMOVE and 2 C under REPLACE_ONE, one of values in [0, C] has
            C under both. Several numbers are several releases, each with its own sensitivity; a vector with
            an L1 sensitivity is a `PureDP`. The ratio sensitivity / scale is in [1e-9, 500].
        adjacency: the neighbouring relation that the sensitivity refers to.
        unit: the unit of privacy that it refers to.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> import dpmech as dm
        >>> mean_income = dm.ledgers.Laplace(scale=2.0, sensitivity=1.0)
        >>> f"{mean_income.profile().delta(0.1).upper:.6f}"
        '0.181269'
        >>> round(mean_income.profile(100).epsilon(1e-6).upper, 2)
        30.48
    """

    scale: float
    sensitivity: float
    kind: ClassVar[str] = "laplace"

    def _check(self) -> None:
        self._real("scale")
        self._real("sensitivity")
        self._check_largest("scale")

    @property
    def _largest(self) -> float:
        return quotient_up(self.sensitivity, self.scale)

    def _loss(self, cells: int) -> ExactLoss:
        high, low = self._largest, quotient_down(self.sensitivity, self.scale)
        grid = high / cells
        width = 2.0 * grid
        even = np.arange(-cells, cells + 1, 2)
        masses = np.exp(0.5 * (even * grid - high)) * math.tanh(0.25 * width)
        masses[[0, -1]] *= 0.5
        masses[0] += 0.5 * math.exp(-high)
        masses[-1] += 0.5
        odd = np.arange(1 - cells, cells, 2)
        # P of a cell: e^((l - e) / 2) sinh(w / 4), l its middle.
        inner = np.exp(0.5 * (odd * grid - high)) * math.sinh(0.25 * width)
        below = np.concatenate([[-cells], odd, [cells]])
        masses_below = np.concatenate([[0.5 * math.exp(-high)], inner, [0.5]])
        off = _OFF * (1.0 + high)

        def closed(eps: float) -> tuple[float, float]:
            lower, upper = (-math.expm1(min(0.0, 0.5 * (eps - end))) for end in (low, high))
            return lower * (1.0 - 2.0 * ELEMENTARY), min(1.0, upper * (1.0 + 2.0 * ELEMENTARY))

        return ExactLoss(
            grid, 4.0 * UNIT, even, masses * (1.0 + off), 0.0, below, masses_below * (1.0 - off), closed
        )


@dataclasses.dataclass(frozen=True)
class DiscreteLaplace(BoundedLossMechanism):
    """Discrete Laplace noise (two-sided geometric) on an integer: `P(y) ~ e^(-|y| / scale)`.

    Args:
        scale: > 0; dp_accounting's parameter is 1 / scale.
        sensitivity: an integer in [1, 100000]: the largest change of the number between two neighbours *of
            this adjacency*. The ratio sensitivity / scale is in [1e-9, 500].
        adjacency: the neighbouring relation that the sensitivity refers to.
        unit: the unit of privacy that it refers to.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> import dpmech as dm
        >>> round(dm.ledgers.DiscreteLaplace(10.0).profile(20).epsilon(1e-6).upper, 3)
        1.789
    """

    scale: float
    sensitivity: int = 1
    kind: ClassVar[str] = "discrete_laplace"

    def _check(self) -> None:
        self._real("scale")
        shift = check_integer("sensitivity", self.sensitivity, minimum=1, maximum=_LARGEST_SHIFT)
        object.__setattr__(self, "sensitivity", shift)
        self._check_largest("scale")

    @property
    def _largest(self) -> float:
        return quotient_up(float(self.sensitivity), self.scale)

    def _loss(self, cells: int) -> ExactLoss:
        del cells
        shift, halved = self.sensitivity, self.sensitivity % 2 == 0
        # From the least loss on: outputs beyond the other mean, those between the means, and the rest.
        y = np.arange(shift, -1, -1, dtype=np.float64)
        masses = np.exp(-y / self.scale)
        masses[1:-1] *= -math.expm1(-1.0 / self.scale)
        masses /= 1.0 + math.exp(-1.0 / self.scale)
        indexes = np.arange(-shift, shift + 1, 2) // (2 if halved else 1)
        grid = (2.0 if halved else 1.0) / self.scale
        return _same_law(grid, indexes, masses, _OFF * (1.0 + shift / self.scale))


@dataclasses.dataclass(frozen=True)
class RandomizedResponse(BoundedLossMechanism):
    """The true category with one probability, and each of the others with the same probability.

    Neighbours differ in the category of one person, so that the adjacency is REPLACE_ONE: under another one
    the number of answers would tell who took part. `PureDP` is for an eps that holds for another adjacency.

    Args:
        truth_prob: the probability of the true category, above 1 / categories and below 1.
        categories: in [2, 1e9].
        adjacency: REPLACE_ONE.
        unit: the unit of privacy: who gives one answer.

    Raises:
        InvalidParameterError: on a bad argument.
        UnsupportedCombinationError: for another adjacency.

    Examples:
        >>> import dpmech as dm
        >>> answer = dm.ledgers.RandomizedResponse(0.75)
        >>> round(answer.claim[0], 6), round(answer.profile(50).epsilon(1e-6).upper, 2)
        (1.098612, 52.68)
    """

    truth_prob: float
    categories: int = 2
    adjacency: Adjacency = dataclasses.field(default=Adjacency.REPLACE_ONE, kw_only=True, repr=False)
    kind: ClassVar[str] = "randomized_response"

    def _check(self) -> None:
        many = check_integer("categories", self.categories, minimum=2, maximum=_MOST_CATEGORIES)
        object.__setattr__(self, "categories", many)
        check_real("truth_prob", self.truth_prob, minimum=1.0 / many, maximum=1.0, open_maximum=True)
        object.__setattr__(self, "truth_prob", float(self.truth_prob))
        if self.adjacency is not Adjacency.REPLACE_ONE:
            raise UnsupportedCombinationError(
                f"randomised response replaces an answer, but {self.adjacency.name} adds or removes one",
                supported="REPLACE_ONE, or a claim of pure eps-DP where it holds",
            )
        self._check_largest("truth_prob")

    @property
    def _probabilities(self) -> tuple[Fraction, Fraction]:
        """Of the true category, and of one other."""
        truth = Fraction(self.truth_prob)
        return truth, (1 - truth) / (self.categories - 1)

    @property
    def _largest(self) -> float:
        truth, other = self._probabilities
        if truth <= other:
            return 0.0
        excess = float(truth / other - 1) if truth / other < 2 else None
        loss = math.log(float(truth / other)) if excess is None else math.log1p(excess)
        return next_up(loss * (1.0 + 4.0 * ELEMENTARY))

    def _loss(self, cells: int) -> ExactLoss:
        del cells
        truth, other = self._probabilities
        rest = other * (self.categories - 2)
        rows = [(-1, other), (0, rest), (1, truth)] if rest else [(-1, other), (1, truth)]
        masses = np.array([float(mass) for _, mass in rows])
        return _same_law(self._largest, np.array([index for index, _ in rows]), masses, _OFF)


@dataclasses.dataclass(frozen=True)
class PureDP(BoundedLossMechanism):
    """The claim that a mechanism is eps-differentially private, whatever it is.

    The upper end is what randomised response with this eps attains, the lower end is 0: a constant satisfies
    the claim too.

    Args:
        eps: in [1e-9, 500].
        adjacency: the neighbouring relation of the claim.
        unit: the unit of privacy of the claim.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> import dpmech as dm
        >>> round(dm.ledgers.PureDP(0.1).profile(100).epsilon(1e-6).upper, 3)
        4.775
    """

    eps: float
    kind: ClassVar[str] = "pure_dp"

    def _check(self) -> None:
        self._real("eps", _LARGEST_LOSS, minimum=_LEAST_LOSS)

    @property
    def _largest(self) -> float:
        return self.eps

    def _loss(self, cells: int) -> ExactLoss:
        del cells
        return _claimed(self.eps, 0.0)


@dataclasses.dataclass(frozen=True)
class ApproximateDP(BoundedLossMechanism):
    """The claim that a mechanism is (eps, delta)-differentially private, whatever it is.

    Args:
        eps: in [1e-9, 500].
        delta: in (0, 1).
        adjacency: the neighbouring relation of the claim.
        unit: the unit of privacy of the claim.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> import dpmech as dm
        >>> round(dm.ledgers.ApproximateDP(0.1, 1e-8).profile(100).epsilon(1e-5).upper, 2)
        4.33
    """

    eps: float
    delta: float
    kind: ClassVar[str] = "approximate_dp"

    def _check(self) -> None:
        self._real("eps", _LARGEST_LOSS, minimum=_LEAST_LOSS)
        object.__setattr__(self, "delta", check_delta(self.delta))

    @property
    def claim(self) -> tuple[float, float] | None:
        """The claim itself."""
        return self.eps, self.delta

    @property
    def _largest(self) -> float:
        return self.eps

    def _loss(self, cells: int) -> ExactLoss:
        del cells
        return _claimed(self.eps, self.delta)


@dataclasses.dataclass(frozen=True)
class ZCDP(BasicMechanism):
    """The claim that a mechanism is rho-zCDP (zero-concentrated): its Renyi divergences are at most rho a.

    Args:
        rho: in [1e-9, 500].
        adjacency: the neighbouring relation of the claim.
        unit: the unit of privacy of the claim.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> import dpmech as dm
        >>> round(dm.ledgers.ZCDP(0.01).profile(10).epsilon(1e-6).upper, 2)
        2.14
    """

    rho: float
    kind: ClassVar[str] = "zcdp"

    def _check(self) -> None:
        self._real("rho", _LARGEST_LOSS, minimum=_LEAST_LOSS)

    @property
    def claimed_rho(self) -> Fraction:
        """Rho, exactly."""
        return Fraction(self.rho)

    def renyi(self, order: float) -> float:
        """Rho times the order."""
        return product_up(self.rho, order)

    def _parts(self, count: int) -> Composition:
        return concentrated(count * self.claimed_rho)


@dataclasses.dataclass(frozen=True)
class Gaussian(BasicMechanism):
    """Gaussian noise on a vector that was calibrated elsewhere; `dm.calibrate_sigma` gives a certificate.

    Args:
        sigma: standard deviation of the noise in each coordinate, > 0, in the units of the sensitivity.
        sensitivity: > 0, the largest change of the vector in the L2 norm between two neighbours *of this
            adjacency*: that under REPLACE_ONE may be twice that under ADD_REMOVE.
        adjacency: the neighbouring relation that the sensitivity refers to.
        unit: the unit of privacy that it refers to.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> import dpmech as dm
        >>> dm.ledgers.Gaussian(sigma=5.0, sensitivity=1.0).profile(4).epsilon(1e-6).upper
        1.7...
    """

    sigma: float
    sensitivity: float
    kind: ClassVar[str] = "gaussian"

    def _check(self) -> None:
        self._real("sigma")
        self._real("sensitivity")
        if not Fraction(1, 10**30) <= self.squared_mu <= 10**6:
            raise InvalidParameterError("sigma", self.sigma, "sensitivity times a factor in [1e-3, 1e15]")

    @property
    def squared_mu(self) -> Fraction:
        """(sensitivity / sigma)^2, exactly."""
        return (Fraction(self.sensitivity) / Fraction(self.sigma)) ** 2

    def renyi(self, order: float) -> float:
        """Half the order times mu^2."""
        return product_up(rounded_up(self.squared_mu / 2), order)

    def _parts(self, count: int) -> Composition:
        square = count * self.squared_mu
        return Composition((rounded_down(square), rounded_up(square)))


_KINDS: dict[str, type[BasicMechanism]] = {
    one.kind: one
    for one in (Laplace, DiscreteLaplace, RandomizedResponse, PureDP, ApproximateDP, ZCDP, Gaussian)
}


def basic_mechanism_from(settings: dict[str, Any], adjacency: Adjacency) -> BasicMechanism:
    """The inverse of `BasicMechanism.settings`.

    Raises:
        InvalidParameterError: if there is no such kind, or its fields are others.
    """
    kind = _KINDS.get(settings["kind"])
    given = {name: value for name, value in settings.items() if name not in ("kind", "unit")}
    names = set() if kind is None else {one.name for one in dataclasses.fields(kind)} - {"adjacency", "unit"}
    if kind is None or set(given) != names:
        raise InvalidParameterError("mechanism", settings, f"one of {', '.join(_KINDS)} with its own fields")
    return kind(**given, adjacency=adjacency, unit=Unit(settings["unit"]))


def _same_law(
    grid: float, indexes: "np.ndarray[Any, np.dtype[np.int64]]", masses: FloatArray, off: float
) -> ExactLoss:
    """A loss that is known up to rounding, from above and from below."""
    return ExactLoss(grid, 64.0 * UNIT, indexes, masses * (1.0 + off), 0.0, indexes, masses * (1.0 - off))


def _claimed(eps: float, delta: float) -> ExactLoss:
    """What a claim implies: it fails with probability delta, and is randomised response otherwise."""
    high = (1.0 - delta) / (1.0 + math.exp(-eps))
    masses = np.array([high * math.exp(-eps), high]) * (1.0 + _OFF)
    nothing: FloatArray = np.zeros(0)
    return ExactLoss(eps, 0.0, np.array([-1, 1]), masses, delta, np.zeros(0, np.int64), nothing)


def concentrated(rho: Fraction) -> Composition:
    """What the rho of all releases together implies; nothing if it is above 1000, where moments suffice."""
    return _concentrated(rounded_up(rho))


@functools.lru_cache(maxsize=64)
def _concentrated(rho: float) -> Composition:
    if rho > _LARGEST_RHO:
        nothing = Nodes((0.0,), (0.0,), (1.0,))
        return Composition(curves=((Curve(nothing, nothing), 1),))
    moments = RenyiComposition([lambda order: product_up(rho, order)])
    pinsker, by = root_up(0.5 * rho), Provenance("mechanism.zcdp", {"rho": rho})

    def bounds(eps: float) -> Bounds:
        return Bounds(0.0, min(moments.delta(eps), pinsker), BOUND, by)

    def ceiling(eps: float) -> float:
        return 1.0 if eps <= rho else math.exp(-((eps - rho) ** 2) / (4.0 * rho))

    return Composition(curves=((curve_of_bounds(bounds, _HULL, ceiling), 1),))
