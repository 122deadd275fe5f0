r"""Delta of Balls-in-Bins without sampling, by Laplace transforms for a cyclic dominating pair.

Its Gram matrix is cyclic, with up to two exponentials. The likelihood ratio is
r = (1/b) sum_l W_l exp(sum_j x_(j,l) - V/2) times a common factor of all bins, so that E e^(-zeta r) is the
trace of a power of one matrix (`traces`) once the x are on a lattice, and (1 - r / t)_+ is below a sum of
exponentials (`exponentials` has both). Every step raises delta; proofs are in docs/balls_in_bins_proof.md.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmech.engines.convex_order.arma import ArmaGram
from dpmech.engines.convex_order.arma_lattice import ArmaLattice, build_arma
from dpmech.engines.convex_order.arma_traces import ArmaTraces
from dpmech.engines.convex_order.exponentials import (
    Lattice,
    Majorant,
    Parts,
    WhiteLaw,
    bin_transform,
    build_lattice,
    groups_of,
)
from dpmech.engines.convex_order.interpolated import InterpolatedTransform
from dpmech.engines.convex_order.mixture_ring import MixtureGram
from dpmech.engines.convex_order.pair_traces import PairTraces
from dpmech.engines.convex_order.traces import DENSE, Traces
from dpmech.engines.gaussian_mixture import log_add_bound
from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, FloatArray, spend

ComplexArray = npt.NDArray[np.complex128]

# Shares of the relative error. They control the effort; any choice gives a bound.
SMOOTHING = 0.4
RIPPLE = 0.1
WINDOW = 0.02
LEFT_OUT = 0.1
DAMPING = 4.0
GROUP_RATIO = 2.0
MOST_WIDTH = 0.5
MOST_EXPONENTS = 6000
MOST_SECONDS = 30.0
# Limit on the time for powers of a step in full, in one direction, and the error of moments above which they
# are tried.
MOST_FULL_SECONDS = 10.0
MOMENT_ERROR = 1e-10


class Transformed(NamedTuple):
    """A bound, and its part for errors.

    Attributes:
        delta: the bound, all errors included.
        errors: at least what the errors of the traces and the truncation of the laws add to it.
    """

    delta: float
    errors: float


def mixture_bound(
    gram: MixtureGram | ArmaGram,
    eps: float,
    *,
    rel_error: float,
    remove: bool,
    floor: float = 0.0,
) -> Transformed:
    """Upper bound on delta(eps) of the Balls-in-Bins pair with Gram matrix `gram`, in one direction.

    Deterministic, and the same for any number of threads up to the order of sums in the linear algebra
    library, which the bound allows for.

    Args:
        gram: the Gram matrix, or one that dominates it.
        eps: in [0, 500].
        rel_error: approximate target for the relative error of the bound; it controls the effort.
        remove: REMOVE, H_eps(P || Q), or else ADD, H_eps(Q || P).
        floor: a delta below which this direction is not resolved, >= 0.

    Returns:
        The bound, and its part for errors. **Guarantee:** an upper bound, rounding included. It is loose
        where delta is small: absolute errors are added, up to about 1e-8 e^eps (REMOVE) or 1e-8 (ADD).

    Raises:
        NumericalError: if the lattice would be too large, or no bound on its errors is found.

    References:
        docs/balls_in_bins_proof.md, "Two exponentials: Laplace transforms".
    """
    return _Direction(gram, eps, rel_error, floor, remove=remove).bound()


def mixture_delta(
    gram: MixtureGram | ArmaGram, eps: float, *, rel_error: float, remove: bool, floor: float = 0.0
) -> float:
    """The bound of `mixture_bound` alone."""
    return mixture_bound(gram, eps, rel_error=rel_error, remove=remove, floor=floor).delta


class _Direction(Parts):
    def bound(self) -> Transformed:
        """Sum over the nodes of the common factor, in groups that share their transforms."""
        if not self.remove:
            closed = log_add_bound(self.gram.diagonal * (1.0 + 1e-12), self.gram.mean, self.eps)
            if math.exp(min(closed, 0.0)) <= self.floor:
                return Transformed(self.floor, 0.0)
        wanted = WINDOW * self.rel_error * self.scale
        lattice = self._lattice(RIPPLE * self.rel_error, wanted)
        law, top, weights_factor = self.white_law(wanted)
        run = _Run(lattice, law, self.remove)
        common = self.common(wanted)
        groups = groups_of(common.kinks, GROUP_RATIO)
        caps = [self.cap(common, members) for members in groups]
        total = slack = 0.0
        sizes = [self.importance(common, members) for members in groups]
        largest = max(size for size, _ in sizes)
        order = sorted(range(len(groups)), key=lambda index: -caps[index])
        for place, index in enumerate(order):
            rest = math.fsum(caps[other] for other in order[place:])
            if rest <= LEFT_OUT * self.rel_error * max(total, self.scale):
                total += rest
                break
            members, cap = groups[index], caps[index]
            size, slope = sizes[index]
            # w^2 / 2 times the density at the kink over delta: from its slope, and near r = 1 from the spread
            width = math.sqrt(2.0 * SMOOTHING * self.rel_error)
            width *= min(1.0 / math.sqrt(slope * (slope + 1.0)), self.spread())
            width *= min((largest / max(size, 1e-300)) ** (1.0 / 3.0), 30.0)
            kinks, weights = common.kinks[members], common.weights[members]
            width = min(width, self._most_width(float(kinks.max()), float(weights.sum()), wanted))
            found, errors = run.share(kinks, weights, self._majorant(width, kinks), 0.2 * wanted)
            total, slack = total + min(found, cap), slack + errors
        factor = math.exp(lattice.log_factor) * weights_factor * common.factor * (1.0 + 2.0 * self.shift)
        charges = common.beyond * factor + lattice.outside + top * lattice.twice
        delta = total * factor + charges
        if not math.isfinite(delta) or delta < 0.0:
            raise NumericalError(f"the transform gave {delta!r} for {self.gram!r}")
        return Transformed(min(1.0, delta), slack * factor + charges)

    def _lattice(self, ripple: float, outside: float) -> Lattice | ArmaLattice:
        if isinstance(self.own, ArmaGram):
            order, rough = self.rough(self.own, self.eps)
            # the bound of this order itself is not capped at 1
            moment = (order, rough * (1.0 + 1e-6) if rough < 1.0 else math.inf)
            return build_arma(
                self.own, remove=self.remove, ripple=2.0 * ripple, outside=5.0 * outside, moment=moment
            )
        return build_lattice(self.own, remove=self.remove, ripple=ripple, outside=outside)

    def _most_width(self, kink: float, weight: float, wanted: float) -> float:
        """Limit on smoothing near r = 1, where all the mass is: kink w phi(distance / w) stays small."""
        distance = abs(1.0 - 1.0 / kink)
        height = weight * (kink if self.remove else 1.0) / wanted
        if distance < 0.3 or height <= math.e:
            return MOST_WIDTH
        return min(MOST_WIDTH, distance / math.sqrt(2.0 * math.log(height)))

    def _majorant(self, width: float, kinks: FloatArray) -> Majorant:
        """Exponents for a group; a long period or strong damping keeps the copies of the payoff small."""
        largest = float(np.max(kinks))
        period, damping = 1.0 + 8.0 * width, DAMPING
        if not self.remove:
            for _ in range(20):
                level = math.log(largest * (1.0 + period))
                rough = self.rough(self.own, level)[1] if level > 1e-3 else 1.0
                damping = max(DAMPING, math.log(rough / largest / (WINDOW * self.rel_error * self.scale)))
                if damping <= DAMPING * period:
                    break
                period *= 1.2
        return Majorant(width, period, damping, float(np.min(kinks)) / largest)


class _Run:
    """Transforms on one lattice."""

    def __init__(self, lattice: Lattice | ArmaLattice, law: WhiteLaw, remove: bool) -> None:  # noqa: FBT001 - one caller
        self.lattice, self.law, self.remove = lattice, law, remove
        self.increments = np.exp(lattice.sums()) / lattice.gram.bins
        self.traces: Traces | ArmaTraces
        self.full: PairTraces | None = None
        self.left = MOST_FULL_SECONDS
        if isinstance(lattice, ArmaLattice):
            self.traces = ArmaTraces(lattice)
            mass, mean, error = self.traces.moments()
            self.full = PairTraces(lattice) if lattice.gram.order == 2 else None
            times = lattice.gram.bins / 2.0
            if self.full is not None and error > MOMENT_ERROR and self._affords(times):
                self._announce(times)
                mass, mean, error = min((mass, mean, error), self.full.moments(), key=lambda one: one[2])
        else:
            self.traces = Traces(lattice)
            mass, mean, error = lattice.moments()
        self.mass, self.mean = mass, mean * law.mean
        self.error = error + (law.sizes.size + 64.0) * 2.0 * UNIT

    def share(
        self, kinks: FloatArray, weights: FloatArray, majorant: Majorant, negligible: float
    ) -> tuple[float, float]:
        """Sum of weights times the payoff of each kink: E (r - kink)_+ (REMOVE) or E (1 - r / kink)_+.

        The second number is the part of the sum for errors.
        """
        unit = float(np.max(kinks))
        negligible /= float(np.sum(weights)) * (unit if self.remove else 1.0)
        exponents = majorant.exponents() / unit
        if exponents.size > MOST_EXPONENTS:
            raise NumericalError(f"{exponents.size} exponents are too many")
        size, count = self.lattice.size, self.law.sizes.size
        each = self.lattice.seconds(count)
        if isinstance(self.lattice, ArmaLattice) and exponents.size * each > MOST_SECONDS:
            raise NumericalError(f"{exponents.size} transforms of {each:.2g} seconds are too slow")
        spend(exponents.size * each, 8.0 * size * 400.0 + 2e8, what=f"{exponents.size} Laplace transforms")
        # every transform is at most that of the real part, which all of them share
        ceiling = self._ceiling(float(exponents[0].real))
        if ceiling * float(np.sum(np.abs(majorant.coefficients(1.0)))) <= negligible:
            found = [(0j, ceiling)] * exponents.size
        else:
            found = self._transforms(exponents, majorant, ceiling, negligible)
        values = np.array([value for value, _ in found])
        errors = np.array([error for _, error in found])
        total = part = 0.0
        for kink, weight in zip(kinks.tolist(), weights.tolist(), strict=True):
            theta = kink / unit
            coefficients = majorant.coefficients(theta)
            sizes = np.abs(coefficients)
            high, slope = majorant.line(theta)
            put = float(np.sum((coefficients * values).real)) + majorant.remainder(theta) * self.mass
            put += -high * self.mass + slope * self.mean / unit
            slack = float(sizes @ errors) + 8.0 * UNIT * (sizes.size * float(np.sum(sizes)) + 4.0)
            slack += self.error * (high * self.mass + slope * self.mean / unit)
            put += slack
            if self.remove:
                lost = (self.error + 8.0 * UNIT) * (self.mean + kink * self.mass)
                put, slack = self.mean - kink * self.mass + kink * put + lost, kink * slack + lost
            total, part = total + weight * max(put, 0.0), part + weight * slack
        return total, part

    def _transforms(
        self, exponents: ComplexArray, majorant: Majorant, ceiling: float, negligible: float
    ) -> list[tuple[complex, float]]:
        """Transforms and their errors: 0 and the ceiling where that is sufficient."""
        sizes = np.max([np.abs(majorant.coefficients(theta)) for theta in (majorant.least, 1.0)], axis=0)
        found: list[tuple[complex, float]] = []
        # those whose error is worth more time: by `full` for all of them, or else for none
        poor: list[tuple[int, ComplexArray, FloatArray]] = []
        transform: InterpolatedTransform | None = None
        left, norm = negligible / max(ceiling, 1e-300), self.lattice.norm
        # high frequencies first: many need no transform, and if one finds no bound it is the highest
        for exponent, size in zip(exponents[::-1].tolist(), sizes[::-1].tolist(), strict=True):
            if size <= left:
                left -= size
                found.append((0j, ceiling / norm))
                continue
            if transform is None:
                transform = InterpolatedTransform(self.increments, self.law, exponent)
            defect, errors = transform(exponent)
            goal = min(negligible / (size * exponents.size), 0.5 * ceiling) / norm
            value, error = self.traces.trace(defect, errors, goal)
            if error * norm * size > negligible:
                poor.append((len(found), defect, errors))
            if self.lattice.size > DENSE and error * norm >= ceiling and not self._affords(len(poor)):
                raise NumericalError(f"no bound on the transform at {exponent!r}")
            found.append((value, error))
        if self.full is not None and self._affords(len(poor)):
            self._announce(len(poor))
            for place, defect, errors in poor:
                found[place] = min(found[place], self.full.trace(defect, errors), key=lambda pair: pair[1])
                if found[place][1] * norm >= ceiling:
                    raise NumericalError(f"no bound on transforms for {self.lattice.gram!r}")
        return [self._bounded(value, error, ceiling) for value, error in found[::-1]]

    def _bounded(self, value: complex, error: float, ceiling: float) -> tuple[complex, float]:
        """E e^(-exponent r) on the lattice from a trace, and its error, which is at most the ceiling."""
        norm = self.lattice.norm
        if not error * norm < ceiling:
            return 0j, ceiling
        return value * norm, error * norm * (1.0 + 1e-12) + 8.0 * UNIT * abs(value)

    def _affords(self, traces: float) -> bool:
        """Whether there is time for so many traces in full."""
        return self.full is not None and traces * self.full.seconds <= self.left

    def _announce(self, traces: float) -> None:
        if self.full is not None:
            spend(traces * self.full.seconds, self.full.memory, what="traces of powers in full")
            self.left -= traces * self.full.seconds

    def _ceiling(self, exponent: float) -> float:
        """Upper bound on E e^(-exponent r), exponent real."""
        defect, errors = bin_transform(self.increments, self.law, complex(exponent))
        raised = np.maximum(defect.real - errors, 0.0)
        return min(self.mass * (1.0 + self.error), self.traces.ceiling(raised) * self.lattice.norm)
