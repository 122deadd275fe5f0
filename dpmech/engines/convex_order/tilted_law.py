r"""Contribution of one bin to r under a tilt: its transforms, their traces, and the bins that add the most.

A bin at state x adds a = e^(x - V/2) W / b, W on finitely many nodes. With the tilt theta >= 0 and a sign,
E[e^(sign theta a); a <= cut] = D(x), and the law of a given x is tilted by the same factor. Every transform
at an exponent of that real part is D(x) times a number d(x) of modulus at most 1.

The sum of exponentials above the payoff v_+ is the Fourier series of e^(-tilt v) E(v + w N)_+, made periodic,
times e^(tilt v): it is above v_+ at every real v, because all copies of the payoff are >= 0
(docs/balls_in_bins_proof.md, "Small delta: a tilt").

On paths with a bin that adds more than the cut, r > cut >= tau, so that (r - tau)_+ = r - tau. With S the
step of the lattice and diagonal matrices for the increments of a bin, E[r; some a_l > cut] and
P(some a_l > cut) are traces of products over the bins; for n bins, joined in pairs, differences are sums.
"""

import dataclasses
import math
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines.convex_order.exponentials import Lattice, WhiteLaw
from dpmech.engines.convex_order.traces import DENSE, Traces
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray

Complex = npt.NDArray[np.complex128]

# Least log of a weight: smaller ones are raised to it, which raises the measure of the paths.
LEAST_TRANSFORM = -600.0
# Typical number of vectors, for each eigenvalue that counts, to which a transform applies the step.
COLUMNS = 5


@dataclasses.dataclass(frozen=True, eq=False)
class TiltedLaw:
    """The tilted laws of all states.

    Args:
        increments: shape (N,), e^(x - V/2) / b at every state.
        law: the law of W.
        tilt: theta >= 0, for both signs: it multiplies `sign` a.
        sign: 1 (REMOVE) or -1 (ADD).
        cut: larger a are omitted; infinite for no cut.
    """

    increments: FloatArray
    law: WhiteLaw
    tilt: float
    sign: float
    cut: float

    @cached_property
    def sizes(self) -> FloatArray:
        """A at every state and node, shape (N, J)."""
        return np.multiply.outer(self.increments, self.law.sizes)

    @cached_property
    def _raised(self) -> tuple[FloatArray, FloatArray]:
        """Tilted weights over e^(top), and top, for every state; raised to e^LEAST_TRANSFORM."""
        tilted = np.maximum(self.sign * self.tilt * self.sizes, LEAST_TRANSFORM)
        exponents = np.where(self.sizes <= self.cut, tilted, -np.inf)
        top = np.max(exponents, axis=1)
        return self.law.chances * np.exp(exponents - top[:, None]), top

    @cached_property
    def log_size(self) -> FloatArray:
        """Log D(x), shape (N,)."""
        raised, top = self._raised
        return np.asarray(top + np.log(np.sum(raised, axis=1)))

    @cached_property
    def chances(self) -> FloatArray:
        """The tilted laws, shape (N, J); rows of sum 1."""
        raised, _ = self._raised
        return np.asarray(raised / np.sum(raised, axis=1, keepdims=True))

    @property
    def rounding(self) -> float:
        """Bound on the relative error of D(x) times a tilted probability.

        A product of theta and a has a relative error of 3 roundings, and so has its distance from the largest
        one; sums over the nodes add less than 64 (numpy adds in pairs of short chains), exponentials,
        logarithms and quotients a few more.
        """
        largest = self.tilt * float(np.max(np.where(self.sizes <= self.cut, self.sizes, 0.0)))
        if self.sign < 0.0:
            largest = min(largest, -LEAST_TRANSFORM)
        sizes = float(np.max(np.abs(self.log_size)))
        return 1.01 * (UNIT * (12.0 * largest + 8.0 * sizes + 160.0) + 4.0 * ELEMENTARY)

    def defect(self, frequency: float) -> tuple[Complex, FloatArray]:
        """1 - d(x) at the exponent sign * (tilt + i frequency), and bounds on its errors.

        From differences to 1, so that small ones are accurate.
        """
        phase = frequency * self.sizes
        half = np.sin(0.5 * phase)
        real, imaginary = 2.0 * half * half, np.sin(phase)
        chances = self.chances
        values = np.sum(chances * real, axis=1) - self.sign * 1j * np.sum(chances * imaginary, axis=1)
        spread = np.sum(chances * (real + np.abs(imaginary) + np.abs(phase)), axis=1)
        return values, spread * (6.0 * ELEMENTARY + 64.0 * UNIT)


ComplexArray = npt.NDArray[np.complex128]


@dataclasses.dataclass(frozen=True, eq=False)
class TiltedSeries:
    """Coefficients of exponentials above v_+: e^(tilt v) times the Fourier series of its smoothed copies.

    c_k = e^(s_k^2 w^2 / 2) / (P s_k^2), s_k = tilt + 2 pi i k / P; those of negative k are the conjugates.
    """

    tilt: float
    period: float
    width: float
    count: int

    @cached_property
    def frequencies(self) -> FloatArray:
        """2 pi k / P, shape (count,)."""
        return np.asarray(2.0 * math.pi * np.arange(self.count) / self.period)

    @cached_property
    def coefficients(self) -> ComplexArray:
        """c_k, doubled for k > 0."""
        s = self.tilt + 1j * self.frequencies
        values = np.exp(0.5 * (s * self.width) ** 2) / (s * s * self.period)
        values[1:] *= 2.0
        return np.asarray(values)

    @property
    def densities(self) -> ComplexArray:
        """Coefficients of the smoothed density of v at 0, instead of the mean of v_+."""
        s = self.tilt + 1j * self.frequencies
        return np.asarray(self.coefficients * s * s)

    @cached_property
    def remainder(self) -> float:
        """Bound on the sum of the further |c_k|, and on the rounding of the first ones."""
        omega = float(self.frequencies[-1])
        front = math.exp(0.5 * (self.tilt * self.width) ** 2)
        tail = math.sqrt(2.0 * math.pi) / self.width * float(scipy.special.ndtr(-omega * self.width))
        beyond = front * tail / (math.pi * omega * omega)
        sizes = 8.0 * ELEMENTARY * (1.0 + (np.abs(self.tilt + 1j * self.frequencies) * self.width) ** 2)
        return 1.01 * (beyond + float(np.abs(self.coefficients) @ sizes))


# A bound that rounding raises by more than this power of e is useless.
MOST_LOST = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class _Scaled:
    """A matrix times e^shift."""

    values: FloatArray
    shift: float


def tilted_step(step: FloatArray, law: TiltedLaw) -> _Scaled:
    """D^(1/2) S D^(1/2), divided by a power of e."""
    shift = float(np.max(law.log_size + np.log(np.maximum(np.diag(step), 1e-300))))
    root = np.exp(0.5 * (law.log_size - shift))
    # exactly symmetric
    return _Scaled(np.multiply.outer(root, root) * step, shift)


class TiltedTraces:
    """tr (S D)^b for exponents with a common real part, over e^log_scale."""

    def __init__(self, lattice: Lattice, law: TiltedLaw) -> None:
        self.law = law
        bins = lattice.gram.bins
        scaled = tilted_step(lattice.steps[0], law)
        largest = float(np.linalg.eigvalsh(scaled.values)[-1])
        self.traces = Traces(dataclasses.replace(lattice, steps=(scaled.values / largest,)))
        self.log_scale = bins * (scaled.shift + math.log(largest)) + math.log(lattice.norm)
        # D times a probability, entries of the scaled matrix, and its scale
        lost = law.rounding + 16.0 * ELEMENTARY + UNIT * (8.0 * abs(scaled.shift) + 8.0)
        raised = 1.01 * bins * lost
        if raised > MOST_LOST:
            raise NumericalError(f"rounding may raise the transform by a factor of e^{raised:.3g}")
        self.factor = math.exp(raised)

    @property
    def seconds(self) -> float:
        """An estimate of the time of one transform, from measurements with 40 to 4,000 bins."""
        size, count = self.traces.size, self.traces.leading.vectors.shape[1]
        return 1e-3 + (1e-6 * size * COLUMNS * count if size > DENSE else 8.5e-9 * size**3)

    def transform(self, frequency: float, ceiling: float) -> tuple[complex, float]:
        """The trace at sign * (tilt + i frequency), and a bound on its error."""
        value, error = self.traces.trace(*self.law.defect(frequency))
        return (value, error) if error < ceiling else (0j, ceiling)

    def ceiling_at(self, frequency: float) -> float:
        """Upper bound on the modulus of the trace there."""
        defect, errors = self.law.defect(frequency)
        return self.ceiling(np.maximum(1.0 - np.abs(1.0 - defect) - errors - 8.0 * UNIT, 0.0))

    def ceiling(self, defect: FloatArray) -> float:
        """Upper bound on the trace of a real D in [0, 1]."""
        return self.traces.ceiling(defect)


# Above the loss of a product by underflow, with a margin.
TINY = 1e-250


@dataclasses.dataclass(frozen=True)
class LargeBins:
    """Probability, and expected r, of the paths with a bin above the cut.

    Attributes:
        mass: P(some a_l > cut).
        mean: E[r; some a_l > cut].
        error: relative error of both.
    """

    mass: float
    mean: float
    error: float

    def beyond(self, kink: float) -> float:
        """Upper bound on E[r - kink; some a_l > cut]."""
        return max(self.mean * (1.0 + self.error) - kink * self.mass * (1.0 - self.error), 0.0) + TINY


@dataclasses.dataclass(frozen=True, eq=False)
class _Chain:
    """Sums over n consecutive bins, as matrices from state to state; shape (N, N), entries >= 0.

    Attributes:
        whole: all paths.
        small: paths without a large bin.
        large: whole - small.
        mean: all paths, times the increments of the bins.
        mean_small: paths without a large bin, times the increments of the bins.
        mean_large: mean - mean_small.
    """

    whole: FloatArray
    small: FloatArray
    large: FloatArray
    mean: FloatArray
    mean_small: FloatArray
    mean_large: FloatArray

    def joined(self, other: "_Chain") -> "_Chain":
        """The bins of this chain, followed by those of the other."""
        return _Chain(
            self.whole @ other.whole,
            self.small @ other.small,
            self.large @ other.whole + self.small @ other.large,
            self.mean @ other.whole + self.whole @ other.mean,
            self.mean_small @ other.small + self.small @ other.mean_small,
            self.mean_large @ other.whole
            + self.mean_small @ other.large
            + self.large @ other.mean
            + self.small @ other.mean_large,
        )


def large_bins(lattice: Lattice, law: TiltedLaw) -> LargeBins:
    """Probability and mean of the paths on which some bin adds more than `law.cut`.

    Args:
        lattice: lattice with at most one exponential.
        law: law of a bin; its tilt is ignored.
    """
    if len(lattice.steps) > 1:
        raise NumericalError("large bins are only followed on one exponential")
    step = lattice.steps[0]
    small = law.sizes <= law.cut
    chances = np.broadcast_to(law.law.chances, small.shape)
    values = chances * law.sizes
    factors = [
        np.sum(chances, axis=1),
        np.sum(chances * small, axis=1),
        np.sum(chances * ~small, axis=1),
        np.sum(values, axis=1),
        np.sum(values * small, axis=1),
        np.sum(values * ~small, axis=1),
    ]
    power = _Chain(*(step * factor[None, :] for factor in factors))
    chain: _Chain | None = None
    left = lattice.gram.bins
    while left:
        if left % 2:
            chain = power if chain is None else chain.joined(power)
        left //= 2
        if left:
            power = power.joined(power)
    if chain is None:
        raise NumericalError("there are no bins")
    # products of matrices with entries >= 0 add N roundings each and sums two; an entry has b - 1 joins
    rounding = (lattice.gram.bins + 1.0) * (step.shape[0] + 80.0) * UNIT
    return LargeBins(
        lattice.norm * float(np.trace(chain.large)),
        lattice.norm * float(np.trace(chain.mean_large)),
        math.expm1(1.01 * rounding),
    )
