r"""The exponentials of a mixture on a lattice: sums in place of Gaussian integrals, and their ratio.

Where y_l = sum_j x_(j,l) + sqrt(w) xi_l, the density of everything, as a function of the x at one bin, is
that of a normal law with precision diag((1 + lam_j^2) / q_j^2) + 1 1^T / w, whatever the rest is. A sum over
the lattice differs from the integral by a factor between 1 - rho and 1 + rho, rho a theta series; so the law
of y has a density that is at most (1 - rho)^-b times that of the lattice (docs/balls_in_bins_proof.md).
"""

import dataclasses
import itertools
import math

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.ring.mixture_gram import MixtureGram
from dpmech.exceptions import NumericalError
from dpmech.numerics import LONGDOUBLE_UNIT, UNIT, FloatArray

__all__ = ["Lattice", "build_lattice"]

# Of the exponents of the theta series that are summed; the others add less than 1e-60 (spacings below).
TERMS = 6
LEAST_SPACING = 0.6
MOST_SPACING = 3.0
MOST_NODES = 40_000
MOST_LINE = 2000


@dataclasses.dataclass(frozen=True, eq=False)
class Lattice:
    """Nodes and symmetric transition matrices of the exponentials, cut to a window.

    Attributes:
        gram: what it is for, nowhere smaller than what was given; its constant part is not looked at.
        nodes: for each exponential, shape (N_j,).
        steps: for each, the symmetric matrix of a step, shape (N_j, N_j), entries >= 0.
        log_factor: log of the factor by which a bound on the lattice is to be raised.
        outside: at least the expectation of r (REMOVE) or the probability (ADD) of leaving the window.
        norm: product of 1 - lam_j^b.
    """

    gram: MixtureGram
    nodes: tuple[FloatArray, ...]
    steps: tuple[FloatArray, ...]
    log_factor: float
    outside: float
    norm: float

    @property
    def size(self) -> int:
        """The number of states."""
        return math.prod(nodes.size for nodes in self.nodes)

    @property
    def twice(self) -> float:
        """Raises a charge on the lattice: for the law of y, and for a mean on the lattice itself."""
        return math.exp(2.0 * self.log_factor)

    def sums(self) -> FloatArray:
        """sum_j x_j - V / 2 at every state, shape (size,)."""
        total = np.zeros(1)
        if not self.gram.parts:
            return total
        for nodes, (amplitude, _) in zip(self.nodes, self.gram.parts, strict=True):
            total = (total[:, None] + (nodes - 0.5 * amplitude)[None, :]).reshape(-1)
        return total

    def moments(self) -> tuple[float, float, float]:
        """E 1 and E e^(x - V / 2) over the window, and the relative error of both.

        Products of matrices with entries >= 0 lose at most N roundings each, relative to each entry.
        """
        mass, mean, error = 1.0, 1.0, 0.0
        if not self.gram.parts:
            return mass, mean, error
        for nodes, step, (amplitude, decay) in zip(self.nodes, self.steps, self.gram.parts, strict=True):
            power = np.linalg.matrix_power(step.astype(np.longdouble), self.gram.bins)
            diagonal = np.diag(power)
            norm = -np.expm1(np.longdouble(self.gram.bins) * np.log(np.longdouble(decay)))
            mass *= float(norm * diagonal.sum())
            mean *= float(norm * (diagonal @ np.exp(nodes.astype(np.longdouble) - 0.5 * amplitude)))
            error += (self.gram.bins + 2.0) * 4.0 * (nodes.size + 16.0) * LONGDOUBLE_UNIT + 64.0 * UNIT
        return mass, mean, 1.01 * error


def build_lattice(gram: MixtureGram, *, remove: bool, ripple: float, outside: float) -> Lattice:
    """A lattice for one direction.

    Args:
        gram: white part > 0.
        remove: whether bins are to be followed as far up as the likelihood ratio lifts them.
        ripple: largest wanted log of the factor for the lattice, > 0.
        outside: largest wanted charge for the window, > 0.

    Raises:
        NumericalError: if that takes more than 40,000 states.
    """
    gram = _raised(gram)
    bins, parts = gram.bins, gram.parts
    if not parts:
        return Lattice(gram, (np.zeros(1),), (np.ones((1, 1)),), 0.0, 0.0, 1.0)
    squares = np.array([_innovation(bins, *part) for part in parts])
    decays = np.array([decay for _, decay in parts])
    precision = np.diag((1.0 + decays**2) / squares) + 1.0 / gram.white
    fineness, rho = LEAST_SPACING, math.inf
    while fineness <= MOST_SPACING:
        spacings = 1.0 / (fineness * np.sqrt(np.diag(precision)))
        rho = _theta(precision, spacings)
        if bins * rho <= ripple:
            break
        fineness += 0.02
    if not rho < 0.5:
        raise NumericalError(f"no lattice for {gram!r}")
    raised = bins * max(-math.log1p(-rho), math.log1p(rho))
    tail = -float(scipy.special.ndtri(max(outside / (4.0 * bins * len(parts)), 1e-290)))
    nodes, charge, lost = [], 0.0, 0.0
    for (amplitude, decay), square, spacing in zip(parts, squares.tolist(), spacings.tolist(), strict=True):
        sd = math.sqrt(amplitude)
        top = tail * sd + (amplitude if remove else 0.0)
        line = spacing * np.arange(math.floor(-tail * sd / spacing), math.ceil(top / spacing) + 1)
        nodes.append(line)
        charge += _outside(bins, amplitude, decay, float(line[0]), float(line[-1]), remove=remove)
        # the exponent is a difference of squares, each known to a few roundings of itself
        lost += UNIT * (64.0 + 16.0 * float(np.max(line * line)) / square)
    if math.prod(one.size for one in nodes) > MOST_NODES or max(one.size for one in nodes) > MOST_LINE:
        raise NumericalError(f"a lattice for {gram!r} takes more than {MOST_NODES} states")
    steps = [
        _step(line, decay, square, spacing)
        for line, decay, square, spacing in zip(
            nodes, decays.tolist(), squares.tolist(), spacings.tolist(), strict=True
        )
    ]
    norm = float(np.prod(-np.expm1(bins * np.log(decays))))
    factor = raised + 1.01 * bins * lost
    # the law of y is at most (1 - rho)^-b times that of the lattice, which leaves (1 + rho)^b as often
    outside = 1.01 * math.exp(2.0 * raised) * charge
    return Lattice(gram, tuple(nodes), tuple(steps), factor, outside, norm)


def _raised(gram: MixtureGram) -> MixtureGram:
    """With amplitudes that make up for the rounding of what a step is made of."""
    parts = tuple(
        (amplitude * (1.0 + 256.0 * UNIT / (1.0 - decay)), decay) for amplitude, decay in gram.parts
    )
    return dataclasses.replace(gram, parts=parts)


def _innovation(bins: int, amplitude: float, decay: float) -> float:
    """q^2 with q^2 (1 + lam^b) / ((1 - lam^2)(1 - lam^b)) = the amplitude."""
    log = math.log(decay)
    return amplitude * math.expm1(2.0 * log) * math.expm1(bins * log) / (1.0 + math.exp(bins * log))


def _theta(precision: FloatArray, spacings: FloatArray) -> float:
    """Sum over k != 0 of exp(-2 pi^2 (k / h)^T precision^-1 (k / h)), rounded up.

    With at most two exponentials, of h_j = 1 / (f sqrt(precision_jj)), the exponent is at least
    pi^2 f^2 |k|^2: what is not summed is below 1e-60 for f >= 0.6.
    """
    covariance = np.linalg.inv(precision)
    total = 0.0
    for k in itertools.product(range(-TERMS, TERMS + 1), repeat=spacings.size):
        if any(k):
            scaled = np.array(k) / spacings
            total += math.exp(-2.0 * math.pi**2 * float(scaled @ covariance @ scaled))
    return total * (1.0 + 1e-9) + 1e-60


def _step(line: FloatArray, decay: float, square: float, spacing: float) -> FloatArray:
    """H phi_q(x' - lam x), made symmetric: round a ring its factors e^(...(x^2 - x'^2)) cancel."""
    own = line * line
    cross = np.multiply.outer(line, line)
    exponent = (0.5 * (1.0 + decay * decay) * np.add.outer(own, own) - 2.0 * decay * cross) / (2.0 * square)
    return np.asarray(spacing / math.sqrt(2.0 * math.pi * square) * np.exp(-exponent))


def _outside(bins: int, amplitude: float, decay: float, low: float, high: float, *, remove: bool) -> float:
    """Sum over bins of the probability that one of them leaves the window, before the factor of the lattice.

    REMOVE: under the likelihood ratio the mean at distance d is amplitude * ring_d. A lattice sum over the
    decreasing side of a density is at most the integral.
    """
    sd = math.sqrt(amplitude)
    distance = np.arange(bins, dtype=np.float64)
    means = np.zeros(bins)
    if remove:
        means = amplitude * (decay**distance + decay ** (bins - distance)) / (1.0 + decay**bins)
        means[0] = amplitude
    above = scipy.special.ndtr((means - high) / sd)
    below = scipy.special.ndtr((low - means) / sd)
    return float(np.sum(above + below)) * (1.0 + 1e-9)
