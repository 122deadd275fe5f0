r"""A lattice for cyclic ARMA Gram matrices, with one variable v for each bin.

A state is p successive values (v_(l-p+1), ..., v_l), and a step leads from (x_1, ..., x_p) to
(x_2, ..., x_(p+1)), so that it is a product of small matrices, one for each (x_2, ..., x_p). The increments
of the likelihood ratio are split onto a grid of few values, which raises delta
(docs/balls_in_bins_proof.md, "ARMA matrices").
"""

import dataclasses
import functools
import math

import numpy as np
import scipy

from dpmech.engines.convex_order.arma import ArmaGram, precision
from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, FloatArray, IntArray

LEAST_SPACING, MOST_SPACING = 0.6, 3.0
# With more steps a trace takes seconds.
MOST_STEPS = 3_500_000
MOST_VALUES = 80
# Smaller weights are raised to this value: products of them would be denormal, and slow.
LEAST = 1e-60
# Spacing of the logarithms of increments, relative to the root of the log of the factor for the lattice. The
# split adds at most its square, divided by 8, to their relative variances.
SPLIT = 0.2


@dataclasses.dataclass(frozen=True, eq=False)
class ArmaLattice:
    """Values of v and weights of a step, truncated to a window; the attributes are those of `Lattice`.

    Attributes:
        gram: the Gram matrix of the lattice.
        nodes: values of v, shape (N,).
        steps: weights of (x_1, ..., x_(p+1)), shape (N, ..., N), entries >= 0.
        log_factor: log of the factor for a bound on the lattice.
        outside: bound on the expectation of r (REMOVE) or the probability (ADD) of leaving the window.
        norm: determinant of the recursion.
        halves: half the exponent of the density of p successive v, shape (N, ..., N).
        spacing: of `sums`.
    """

    gram: ArmaGram
    nodes: FloatArray
    steps: FloatArray
    log_factor: float
    outside: float
    norm: float
    halves: FloatArray
    spacing: float

    @property
    def size(self) -> int:
        """Number of states."""
        return self.halves.size

    @property
    def twice(self) -> float:
        """Factor for a charge on the lattice: for the law of y, and for a mean on the lattice itself."""
        return math.exp(2.0 * self.log_factor)

    def seconds(self, white: int) -> float:
        """An estimate of the time of one transform with so many nodes of the white part."""
        return 8e-8 * self.steps.size + 2e-8 * white * self.sums().size

    @functools.cached_property
    def _grid(self) -> tuple[float, float]:
        """The least and the largest value of c_0 x_(p+1) + ... + c_p x_1 - V / 2 of any step."""
        ends = np.array([float(self.nodes[0]), float(self.nodes[-1])])
        sums = np.multiply.outer(self.gram.filter, ends)
        middle = -0.5 * self.gram.exponential
        return float(sums.min(axis=1).sum()) + middle, float(sums.max(axis=1).sum()) + middle

    def sums(self) -> FloatArray:
        """The logarithms of b times the increments of the grid, without the white part."""
        low, high = self._grid
        return low + self.spacing * np.arange(-1.0, math.ceil((high - low) / self.spacing) + 2.0)

    def places(self) -> tuple[IntArray, FloatArray]:
        """For every step, the index in `sums` of the value below, and the share of the value above.

        The shares preserve the increment, e to the sum. Shapes are those of `steps`.
        """
        order = self.gram.order
        total: FloatArray = np.zeros((1,) * (order + 1))
        for lag, one in enumerate(self.gram.filter):
            shape = [1] * (order + 1)
            shape[order - lag] = -1
            total = total + (one * self.nodes).reshape(shape)
        places = (total - 0.5 * self.gram.exponential - self.sums()[0]) / self.spacing
        below = np.floor(places)
        shares = np.expm1(self.spacing * (places - below)) / math.expm1(self.spacing)
        return below.astype(np.int32), shares


def build_arma(
    gram: ArmaGram,
    *,
    remove: bool,
    ripple: float,
    outside: float,
    moment: tuple[float, float] = (0.0, math.inf),
) -> ArmaLattice:
    """Construct a lattice for one direction; arguments as for `build_lattice`.

    Args:
        gram: the Gram matrix.
        remove: whether the payoff of REMOVE is meant.
        ripple: target for the log of the factor for the lattice, > 0.
        outside: target for the charge for the window, > 0.
        moment: for REMOVE, an integer q and a bound on c E r^q, where the payoff is at most c r^q. Otherwise
            not used.

    Raises:
        NumericalError: if this requires more than 3,500,000 steps.
    """
    bins, order = gram.bins, gram.order
    fineness, rho = LEAST_SPACING, math.inf
    while fineness <= MOST_SPACING:
        rho = _theta(fineness)
        if bins * rho <= ripple:
            break
        fineness += 0.02
    spacing = 1.0 / (fineness * math.sqrt(precision(gram)))
    raised = bins * max(-math.log1p(-rho), math.log1p(rho))
    factor = 1.01 * math.exp(2.0 * raised)
    variance, means = gram.shifts()
    sd, slack = math.sqrt(variance + gram.error), gram.error
    shifts = means if remove else np.zeros(bins)

    def above(top: float) -> float:
        return factor * float(np.sum(scipy.special.ndtr((shifts + slack - top) / sd))) * (1.0 + 1e-9)

    def below(end: float) -> float:
        found = float(np.sum(scipy.special.ndtr((end - shifts + slack) / sd)))
        if remove:
            # under r^q, of q bins, v has at least q times the least shift as its mean
            least = moment[0] * min(float(np.min(means)) - slack, 0.0)
            found = min(found, bins * moment[1] * float(scipy.special.ndtr((end - least) / sd)))
        return factor * found * (1.0 + 1e-9)

    high, low = math.ceil(float(np.max(shifts)) / spacing), math.floor(float(np.min(shifts)) / spacing)
    while above(spacing * high) > 0.5 * outside and high - low < MOST_VALUES:
        high += 1
    while below(spacing * low) > 0.5 * outside and high - low < MOST_VALUES:
        low -= 1
    count = high - low + 1
    if count > MOST_VALUES or count ** (order + 1) > MOST_STEPS:
        raise NumericalError(f"a lattice for {gram!r} takes {count} values of v")
    line = np.asarray(spacing * np.arange(low, high + 1), dtype=np.float64)
    half = _halves(gram, line)
    innovation: FloatArray = np.zeros((1,) * (order + 1))
    for lag, one in enumerate((1.0, *gram.recursion)):
        shape = [1] * (order + 1)
        shape[order - lag] = -1
        innovation = innovation + (one * line).reshape(shape)
    # sqrt of the density of p successive v: around the cycle these factors cancel
    exponents = half[None, ...] - half[..., None] - 0.5 * innovation**2
    steps = np.maximum(spacing / math.sqrt(2.0 * math.pi) * np.exp(exponents), LEAST)
    scale = (1.0 + sum(abs(one) for one in gram.recursion)) * float(np.max(np.abs(line)))
    # errors of exponents, of weights and of the determinant, whose logarithms are of b values of f
    lost = UNIT * (64.0 + 16.0 * (scale * scale + float(np.max(np.abs(half)))) + 64.0 * gram.conditioning)
    return ArmaLattice(
        gram,
        line,
        steps,
        raised + 1.01 * bins * lost,
        above(float(line[-1])) + below(float(line[0])),
        gram.determinant(),
        half,
        SPLIT * math.sqrt(ripple),
    )


def _theta(fineness: float) -> float:
    """Sum over k != 0 of exp(-2 pi^2 k^2 / (h^2 precision)), with h = 1 / (f sqrt(precision)), f >= 0.6."""
    return (
        2.0 * sum(math.exp(-2.0 * (math.pi * fineness * k) ** 2) for k in range(1, 8)) * (1.0 + 1e-9) + 1e-60
    )


def _halves(gram: ArmaGram, line: FloatArray) -> FloatArray:
    """A quarter of the quadratic form of p successive v; any array would be valid."""
    order = gram.order
    inverse = np.linalg.inv(scipy.linalg.toeplitz(gram.autocovariances()[:order]))
    half: FloatArray = np.zeros((line.size,) * order)
    for one in range(order):
        for other in range(order):
            shapes = [1] * order, [1] * order
            shapes[0][one] = shapes[1][other] = -1
            half = half + 0.25 * inverse[one, other] * line.reshape(shapes[0]) * line.reshape(shapes[1])
    return half
