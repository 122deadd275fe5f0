r"""Common parts of the bounds by transforms: an exponential majorant of the payoff, a lattice, a white law.

The payoff (1 - r / t)_+ is smoothed by a normal law of standard deviation w t, which raises a convex
function, and the smoothed one M, times e^(kappa u), is made periodic in u: its Fourier series is a sum of
exponentials e^(-s_k u) with s_k = kappa - 2 pi i k / P. By Poisson's formula that sum is
sum_n e^(kappa n P) M(u + n P). All its terms are >= 0; those with n < 0 are at least
e^(kappa n P) (1 - (u + n P) / theta), so that this may be subtracted (docs/balls_in_bins_proof.md).

The exponentials of a mixture are defined on a lattice. Where y_l = sum_j x_(j,l) + sqrt(w) xi_l, the joint
density, as a function of the x at one bin, is that of a normal law with precision
diag((1 + lam_j^2) / q_j^2) + 1 1^T / w, for any values of the others. A sum over the lattice differs from the
integral by a factor between 1 - rho and 1 + rho, rho a theta series; so the law of y has a density that is at
most (1 - rho)^-b times that of the lattice (docs/balls_in_bins_proof.md, "Two exponentials: Laplace
transforms").
"""

import dataclasses
import itertools
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines.convex_order.arma import ArmaGram
from dpmech.engines.convex_order.grid import common_factor, law_rounding
from dpmech.engines.convex_order.mixture_ring import MixtureGram
from dpmech.engines.convex_order.node_laws import lognormal_split
from dpmech.engines.convex_order.ring import Height
from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.gaussian_mixture import ORDERS, log_add_bound
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, LONGDOUBLE_UNIT, UNIT, FloatArray, IntArray

Complex = npt.NDArray[np.complex128]

# Deviations of the smoothing law after which the series is truncated; what is cut off is bounded and added.
CUT = 7.0


@dataclasses.dataclass(frozen=True)
class Majorant:
    """Exponents for payoffs with kink theta in (0, 1], in units of the largest kink.

    Attributes:
        width: w, the ratio of the standard deviation of the smoothing law to the kink, > 0.
        period: P > 1.
        damping: kappa P, > 0.
        least: the smallest theta to cover.
    """

    width: float
    period: float
    damping: float
    least: float = 1.0

    @property
    def count(self) -> int:
        """Number of exponents k = 0, ..., count - 1; those of negative k are their conjugates."""
        return math.ceil(CUT / (self.width * self.least) * self.period / (2.0 * math.pi)) + 1

    def exponents(self) -> Complex:
        """s_k, shape (count,), real parts > 0."""
        k = np.arange(self.count)
        return np.asarray(self.damping / self.period - 2j * math.pi * k / self.period)

    def coefficients(self, theta: float) -> Complex:
        """c_k, shape (count,), doubled for k > 0: Re sum_k c_k e^(-s_k u) is the sum over all integers."""
        s = self.exponents()
        width = self.width * theta
        factor = np.exp(0.5 * (s * width) ** 2 + s * theta) / (s * s * theta * self.period)
        factor[1:] *= 2.0
        return np.asarray(factor)

    def remainder(self, theta: float) -> float:
        """Bound on the sum of the exponents beyond `count` at any u >= 0, and on rounding of the others.

        |c_k| <= e^(kappa theta) e^((kappa^2 - omega_k^2) w^2 / 2) / (P theta omega_k^2), summed by an
        integral. Exponents s w and s theta have errors of 16 roundings of their size.
        """
        kappa = self.damping / self.period
        width = self.width * theta
        omega = 2.0 * math.pi * (self.count - 1) / self.period
        front = math.exp(kappa * theta + 0.5 * (kappa * width) ** 2)
        tail = math.sqrt(2.0 * math.pi) / width * float(scipy.special.ndtr(-omega * width)) / math.pi
        sizes = 8.0 * (abs(self.exponents()) * (theta + width) + 1.0) ** 2 * ELEMENTARY
        rounding = float(np.sum(np.abs(self.coefficients(theta)) * sizes))
        return 1.01 * (front / (theta * omega * omega) * tail + rounding)

    def line(self, theta: float) -> tuple[float, float]:
        """(p, q) such that p - q u may be subtracted: the copies n < 0 are at least that."""
        ratio = math.exp(-self.damping)
        copies = ratio / -math.expm1(-self.damping)
        moved = self.period * ratio / math.expm1(-self.damping) ** 2
        return copies + moved / theta, copies / theta


# Range of exponents of the theta series in the sum; the others add less than 1e-60 (for the spacings below).
TERMS = 6
LEAST_SPACING = 0.6
MOST_SPACING = 3.0
MOST_NODES = 40_000
MOST_LINE = 2000


@dataclasses.dataclass(frozen=True, eq=False)
class Lattice:
    """Nodes and symmetric transition matrices of the exponentials, truncated to a window.

    Attributes:
        gram: the Gram matrix of the lattice, nowhere below the given one; its constant part is ignored.
        nodes: for each exponential, shape (N_j,).
        steps: for each, the symmetric matrix of a step, shape (N_j, N_j), entries >= 0.
        log_factor: log of the factor for a bound on the lattice.
        outside: bound on the expectation of r (REMOVE) or the probability (ADD) of leaving the window.
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
        """Number of states."""
        return math.prod(nodes.size for nodes in self.nodes)

    @property
    def twice(self) -> float:
        """Factor for a charge on the lattice: for the law of y, and for a mean on the lattice itself."""
        return math.exp(2.0 * self.log_factor)

    def sums(self) -> FloatArray:
        """sum_j x_j - V / 2 at every state, shape (size,)."""
        total = np.zeros(1)
        if not self.gram.parts:
            return total
        for nodes, (amplitude, _) in zip(self.nodes, self.gram.parts, strict=True):
            total = (total[:, None] + (nodes - 0.5 * amplitude)[None, :]).reshape(-1)
        return total

    def seconds(self, white: int) -> float:
        """An estimate of the time of one transform, for so many nodes of the white part, without powers."""
        return self.size * (3e-7 * white + 1e-5 if self.size > 150 else 3e-8 * white + 1e-6)

    def moments(self) -> tuple[float, float, float]:
        """E 1 and E e^(x - V / 2) over the window, and the relative error of both.

        Products of matrices with entries >= 0 have at most N roundings each, relative to each entry.
        """
        mass, mean, error = 1.0, 1.0, 0.0
        if not self.gram.parts:
            return mass, mean, error
        for nodes, step, (amplitude, decay) in zip(self.nodes, self.steps, self.gram.parts, strict=True):
            power = np.linalg.matrix_power(step.astype(np.longdouble), self.gram.bins)
            diagonal = np.diag(power)
            norm = one_less_power(np.longdouble(decay), self.gram.bins)
            mass *= float(norm * diagonal.sum())
            mean *= float(norm * (diagonal @ np.exp(nodes.astype(np.longdouble) - 0.5 * amplitude)))
            error += (self.gram.bins + 2.0) * 4.0 * (nodes.size + 16.0) * LONGDOUBLE_UNIT + 64.0 * UNIT
        return mass, mean, 1.01 * error


def build_lattice(gram: MixtureGram, *, remove: bool, ripple: float, outside: float) -> Lattice:
    """Construct a lattice for one direction.

    Args:
        gram: white part > 0.
        remove: whether the window extends as far up as the likelihood ratio shifts the bins.
        ripple: target for the log of the factor for the lattice, > 0.
        outside: target for the charge for the window, > 0.

    Raises:
        NumericalError: if this requires more than 40,000 states.
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
        # the likelihood ratio shifts a bin down where the decay is negative
        bottom = tail * sd + (amplitude * max(0.0, -decay) if remove else 0.0)
        line = spacing * np.arange(math.floor(-bottom / spacing), math.ceil(top / spacing) + 1)
        nodes.append(line)
        charge += _outside(bins, amplitude, decay, float(line[0]), float(line[-1]), remove=remove)
        # the exponent is a difference of squares with relative errors of a few roundings each
        lost += UNIT * (64.0 + 16.0 * float(np.max(line * line)) / square)
    if math.prod(one.size for one in nodes) > MOST_NODES or max(one.size for one in nodes) > MOST_LINE:
        raise NumericalError(f"a lattice for {gram!r} takes more than {MOST_NODES} states")
    steps = [
        _step(line, decay, square, spacing)
        for line, decay, square, spacing in zip(
            nodes, decays.tolist(), squares.tolist(), spacings.tolist(), strict=True
        )
    ]
    norm = math.prod(float(one_less_power(np.float64(decay), bins)) for decay in decays)
    factor = raised + 1.01 * bins * lost
    # the law of y is at most (1 - rho)^-b times that of the lattice, which leaves it (1 + rho)^b as often
    outside = 1.01 * math.exp(2.0 * raised) * charge
    return Lattice(gram, tuple(nodes), tuple(steps), factor, outside, norm)


def _raised(gram: MixtureGram) -> MixtureGram:
    """The matrix with amplitudes that compensate for the rounding of a step.

    A larger amplitude adds a covariance, which is copositive whatever the signs of its entries.
    """
    parts = tuple(
        (amplitude * (1.0 + 256.0 * UNIT / (1.0 - abs(decay))), decay) for amplitude, decay in gram.parts
    )
    return dataclasses.replace(gram, parts=parts)


def one_less_power(decay: np.floating, bins: int) -> np.floating:
    """1 - lam^b, relative to itself, in the precision of lam."""
    power = bins * np.log(np.abs(decay))
    found: np.floating = 1.0 + np.exp(power) if decay < 0.0 and bins % 2 else -np.expm1(power)
    return found


def _innovation(bins: int, amplitude: float, decay: float) -> float:
    """q^2 with q^2 (1 + lam^b) / ((1 - lam^2)(1 - lam^b)) = the amplitude."""
    # 1 + lam^b is 1 - mu^b of mu = -lam where b is odd
    sum_of_one = one_less_power(np.float64(-decay), bins) if bins % 2 else 1.0 + abs(decay) ** bins
    found = one_less_power(np.float64(decay), 2) * one_less_power(np.float64(decay), bins) / sum_of_one
    return amplitude * float(found)


def _theta(precision: FloatArray, spacings: FloatArray) -> float:
    """Sum over k != 0 of exp(-2 pi^2 (k / h)^T precision^-1 (k / h)), rounded up.

    With at most two exponentials of h_j = 1 / (f sqrt(precision_jj)), the exponent is at least
    pi^2 f^2 |k|^2: the omitted terms are below 1e-60 for f >= 0.6.
    """
    covariance = np.linalg.inv(precision)
    total = 0.0
    for k in itertools.product(range(-TERMS, TERMS + 1), repeat=spacings.size):
        if any(k):
            scaled = np.array(k) / spacings
            total += math.exp(-2.0 * math.pi**2 * float(scaled @ covariance @ scaled))
    return total * (1.0 + 1e-9) + 1e-60


def _step(line: FloatArray, decay: float, square: float, spacing: float) -> FloatArray:
    """H phi_q(x' - lam x), made symmetric: around the cycle its factors e^(...(x^2 - x'^2)) cancel."""
    own = line * line
    cross = np.multiply.outer(line, line)
    exponent = (0.5 * (1.0 + decay * decay) * np.add.outer(own, own) - 2.0 * decay * cross) / (2.0 * square)
    return np.asarray(spacing / math.sqrt(2.0 * math.pi * square) * np.exp(-exponent))


def _outside(bins: int, amplitude: float, decay: float, low: float, high: float, *, remove: bool) -> float:
    """Sum over bins of the probability of leaving the window, before the factor of the lattice.

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


ROWS = 2**19


@dataclasses.dataclass(frozen=True, eq=False)
class WhiteLaw:
    """A finite law above W = exp(sqrt(w) xi - w / 2) in convex order, except for the truncated upper tail.

    Attributes:
        sizes: shape (J,), >= 0.
        chances: shape (J,), with sum 1.
    """

    sizes: FloatArray
    chances: FloatArray

    @property
    def mean(self) -> float:
        """E W on the nodes."""
        return float(self.chances @ self.sizes)


def bin_transform(increments: FloatArray, law: WhiteLaw, exponent: complex) -> tuple[Complex, FloatArray]:
    """1 - E exp(-exponent * increment * W) for every increment, and bounds on its errors.

    From differences to 1, so that small ones are accurate. An exponent z has an error of 4 roundings of |z|,
    which changes e^-z by as much times e^(-Re z); functions have errors of ELEMENTARY, and a sum over the
    nodes adds less than 64 (numpy adds 128 numbers in 8 chains, and such blocks in pairs).
    """
    values = np.empty(increments.size, dtype=np.complex128)
    errors = np.empty(increments.size)
    rows = max(1, ROWS // law.sizes.size)
    for start in range(0, increments.size, rows):
        part = slice(start, start + rows)
        size = np.multiply.outer(increments[part], law.sizes)
        lost = np.expm1(-exponent.real * size)
        phase = exponent.imag * size
        half = np.sin(0.5 * phase)
        turned, moved = 2.0 * half * half, (1.0 + lost) * np.sin(phase)
        real = law.chances * (turned * (1.0 + lost) - lost)
        imaginary = law.chances * moved
        values[part] = np.sum(real, axis=1) + 1j * np.sum(imaginary, axis=1)
        spread = turned * (1.0 + lost) - lost + np.abs(moved) + (1.0 + lost) * abs(exponent) * size
        errors[part] = np.sum(law.chances * spread, axis=1)
    return values, errors * (6.0 * ELEMENTARY + 64.0 * UNIT)


# Shares of the relative error. They control the effort; any choice gives a bound.
NODES = 0.1
# The moment bound exceeds delta by a factor of about this or less.
LOOSE = 30.0
FREE = 5.0


@dataclasses.dataclass(frozen=True, eq=False)
class Common:
    """Nodes of the common factor: kinks in units of r, and weights of the payoff (1 - r / kink)_+."""

    kinks: FloatArray
    weights: FloatArray
    beyond: float
    factor: float


class Parts:
    """One direction of the bound for a cyclic dominating pair.

    Args:
        gram: its Gram matrix.
        eps: the privacy loss level.
        rel_error: target relative error.
        floor: a delta that need not be resolved further.
        remove: REMOVE, or else ADD.
    """

    def __init__(
        self,
        gram: MixtureGram | ArmaGram,
        eps: float,
        rel_error: float,
        floor: float,
        *,
        remove: bool,
    ) -> None:
        self.gram, self.remove, self.rel_error = gram, remove, rel_error
        self.own = gram.plain
        self.shift = self.level_shift()
        self.eps = eps - self.shift
        order, rough = self.rough(gram, max(eps, 1e-3))
        self.order, self.floor = order, floor
        self.scale = max(rough / LOOSE, floor, 1e-290)

    def level_shift(self) -> float:
        """Reduction of eps for rounding: increments are exponentials of numbers with a few roundings."""
        places = sum(60.0 * math.sqrt(part) + 2.0 * part for part in (self.gram.white, self.gram.exponential))
        size = places + 2.0 * math.log(self.gram.bins) + 60.0 * math.sqrt(self.gram.constant) + 1.0
        return 1.01 * (8.0 * ELEMENTARY + UNIT * (64.0 * size + self.gram.slopes))

    @staticmethod
    def rough(gram: MixtureGram | ArmaGram, level: float) -> tuple[float, float]:
        """Order and value of the best moment bound."""
        height = Height(gram.bins, level).of(gram.profile())
        best = int(np.argmin(height))
        return float(ORDERS[best]), math.exp(min(float(height[best]), 0.0))

    def white_law(self, wanted: float) -> tuple[WhiteLaw, float, float]:
        """The law of W, the cost of truncating it, and the factor for rounding of its weights."""
        white, root = self.gram.white, math.sqrt(self.gram.white)
        tail = min(FREE + math.sqrt(2.0 * math.log(1.0 / min(wanted, 0.1))), 37.0)
        step = math.sqrt(12.0 * NODES * self.rel_error / (self.order * (self.order - 1.0)))
        low, high = (-FREE, tail) if self.remove else (-tail, FREE)
        step = min(step, 0.5 * root)
        count = min(math.ceil(((high - low) * root + white) / step) + 1, 4000)
        logs = np.linspace(low * root, high * root + (white if self.remove else 0.0), count) - 0.5 * white
        split = lognormal_split(logs, -0.5 * white, root)
        chances = np.concatenate([[split.zero], split.weights])
        # they sum to 1 up to rounding, which is below the error of the largest that the factor below allows
        chances[np.argmax(chances)] += 1.0 - math.fsum(chances)
        law = WhiteLaw(np.concatenate([[0.0], np.exp(logs)]), chances)
        lost = law_rounding(logs + 0.5 * white, root)
        return law, 1.01 * split.excess if self.remove else 0.0, math.exp(1.01 * self.gram.bins * lost)

    def common(self, wanted: float) -> Common:
        """The nodes of the common factor of all bins."""
        constant = self.gram.constant
        kink = math.exp(self.eps if self.remove else -self.eps)
        if constant == 0.0:
            return Common(np.array([kink]), np.ones(1), 0.0, 1.0)
        root = math.sqrt(constant)
        tail = -float(np.log(min(wanted, 0.1)))
        tail = math.sqrt(2.0 * tail)
        low, high = (-FREE, tail) if self.remove else (-tail, FREE)
        step = math.sqrt(12.0 * NODES * self.rel_error / (self.order * (self.order - 1.0)))
        count = min(math.ceil(((high - low) * root + constant) / min(step, 0.5 * root)) + 1, 4000)
        logs = np.linspace(low * root, high * root + (constant if self.remove else 0.0), count)
        logs -= 0.5 * constant
        split = lognormal_split(logs, -0.5 * constant, root)
        # REMOVE: p R (r - kink / R)_+ = p kink (1 - r R / kink)_+ plus a linear part; see `_Run.share`
        weights = split.weights * np.exp(logs) if self.remove else split.weights
        beyond = split.excess if self.remove else split.zero
        return Common(kink * np.exp(-logs), weights, beyond, common_factor(logs, constant))

    def level(self, kink: float) -> float:
        """The privacy loss at a kink."""
        return math.log(kink) if self.remove else -math.log(kink)

    def spread(self) -> float:
        """Approximate standard deviation of r without the common factor."""
        counts = Height(self.own.bins, 1.0).counts
        return math.sqrt(float(counts @ np.expm1(np.minimum(self.own.profile(), 50.0))) / self.own.bins)

    def importance(self, common: Common, members: IntArray) -> tuple[float, float]:
        """Approximate share of a group, and slope of ln delta at its heaviest node, to control the effort."""
        levels = [max(self.level(kink), 1e-3) for kink in common.kinks[members].tolist()]
        found = [self.rough(self.own, level) for level in levels]
        shares = common.weights[members] * np.array([rough for _, rough in found])
        return float(shares.sum()), max(found[int(np.argmax(shares))][0] - 1.0, 1.0)

    def cap(self, common: Common, members: IntArray) -> float:
        """Bound on the share of a group: one Gaussian for each node, without amplification, or by moments."""
        scale = self.own.diagonal**-0.5
        levels = [self.level(kink) for kink in common.kinks[members].tolist()]
        deltas = [gaussian_delta(scale, level)[1] if level > 0.0 else 1.0 for level in levels]
        if self.remove:
            # a decreasing function of the level; its rounding error is about 1e-12
            moments = self.rough(self.own, min(levels))[1] * (1.0 + 1e-9)
            deltas = [min(delta, moments) for delta in deltas]
        else:
            trace, mean = self.own.diagonal * (1.0 + 1e-12), self.own.mean
            logs = [log_add_bound(trace, mean, level) if level > 0.0 else 0.0 for level in levels]
            deltas = [min(delta, math.exp(min(log, 0.0))) for delta, log in zip(deltas, logs, strict=True)]
        return float(common.weights[members] @ np.array(deltas)) * (1.0 + 1e-12)


def groups_of(kinks: FloatArray, ratio: float) -> list[IntArray]:
    """Indices of kinks within a factor `ratio` of each other."""
    numbers = np.floor(np.log(kinks / kinks.min()) / math.log(ratio)).astype(np.int64)
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
