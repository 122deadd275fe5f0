"""Rounds noisy sums to a lattice, so that the low bits left by rounding reveal nothing."""

import dataclasses
import math
from collections.abc import Sequence

import torch

from dpmech.exceptions import HorizonError, InvalidParameterError, NumericalError, UnsupportedCombinationError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Strategy
from dpmech.optim.noise.normals import ANGLE_BITS, RADIUS_BITS, ROUNDINGS

SHORTEST, LONGEST = 2.0**-5, 2.0**-4  # lattice steps, in standard deviations of the noise
_RANGE = 400  # exponents of two allowed for a standard deviation: no overflow or underflow


class Lattice:
    """The lattice step of every parameter at every step: a power of two derived from public values.

    Args:
        strategy: its C^-1 must be diagonal: noise that is independent between steps.
        factors: the standard deviation of Z for every parameter.

    Raises:
        UnsupportedCombinationError: for noise that is correlated between steps.
    """

    def __init__(self, strategy: Strategy, factors: Sequence[float]) -> None:
        if strategy.inverse_bands != 1:
            raise UnsupportedCombinationError(
                f"generator='secure-lattice' with {strategy!r}, whose noise is correlated over steps: the "
                "bound on rounding errors is proved for independent noise",
                supported="generator='secure', or a strategy with independent noise such as Identity",
            )
        self._factors = factors
        self._norms = strategy.noising_row_norms()

    def steps(self, step: int, scales: Sequence[float] | None) -> Sequence[float]:
        """Lattice step of every parameter in row `step`; `scales` as for NoiseRows.form.

        Raises:
            HorizonError: past the last row.
            NumericalError: if a standard deviation is outside [2^-400, 2^400].
        """
        if step >= len(self._norms):
            raise HorizonError(step, len(self._norms))
        norm = float(self._norms[step])
        shared = [1.0] * len(self._factors) if scales is None else scales
        return [
            lattice_step(factor * scale * norm) for factor, scale in zip(self._factors, shared, strict=True)
        ]


def lattice_step(stddev: float) -> float:
    """The power of two in (2^-5, 2^-4] standard deviations; NumericalError unless in [2^-400, 2^400]."""
    if not 2.0**-_RANGE <= stddev <= 2.0**_RANGE:
        raise NumericalError(f"noise of standard deviation {stddev:g} on a lattice, outside [2^-400, 2^400]")
    return math.ldexp(1.0, math.frexp(stddev)[1] - 5)


def add_on_lattice(total: torch.Tensor, noise: torch.Tensor, step: float) -> None:
    """Overwrite a sum with the multiple of `step` nearest to sum + noise, then round to the sum's dtype.

    The sum is split exactly into the nearest multiple and a remainder, and only the remainder is added to the
    noise: rounding errors are small relative to the noise however large the sum is.

    Args:
        total: float32 or float64, finite; any device.
        noise: float64, of the same shape; it is overwritten.
        step: a power of two.
    """
    rest = total.to(device=noise.device, dtype=torch.float64, copy=True).mul_(1.0 / step)
    whole = rest.round()
    noise.mul_(1.0 / step).add_(rest.sub_(whole)).round_().add_(whole)
    # Zero has two signs, and the sign would reveal on which side of zero the sum was.
    total.copy_(noise.mul_(step).add_(0.0))


_MOST = 2**62
_UP = 1.0 + 2.0**-40  # exceeds all rounding errors of a formula here


@dataclasses.dataclass(frozen=True)
class Pair:
    r"""A pair of numbers from a cell of u and a cell of the angle, with its rounding errors.

    Attributes:
        radius_bits: u is the center of a cell of 2^-radius_bits.
        angle_bits: the angle is in a cell of 2 pi / 2^angle_bits.
        relative: rounding errors in units of r.
        absolute: further rounding errors, in standard deviations.
        shortest: smallest lattice step, in standard deviations.
        longest: largest lattice step, in standard deviations.
    """

    radius_bits: int
    angle_bits: int
    relative: float
    absolute: float
    shortest: float = SHORTEST
    longest: float = LONGEST

    @property
    def radius(self) -> float:
        """The largest r."""
        return math.sqrt(2.0 * (self.radius_bits + 1) * math.log(2.0)) * _UP

    @property
    def move(self) -> float:
        """Largest distance of a number from that of the same u and any angle of the cell, rounded up."""
        return (self.radius * (2.0 * math.pi * 2.0**-self.angle_bits + self.relative) + self.absolute) * _UP

    def closeness(self) -> tuple[float, float]:
        """Return eps and delta between this pair on its lattice and true Gaussians on the same lattice.

        **Guarantee:** an upper bound, rounded up, in both directions and for every sum.

        Raises:
            InvalidParameterError: if the distance can be half a step or more.
        """
        move = self.move
        if not 2.0 * move < self.shortest:
            raise InvalidParameterError(
                "shortest", self.shortest, f"above {2.0 * move:g}, twice the largest error of a number"
            )
        reach = self.radius + self.longest + 2.0 * move
        # Relative gain of a box if its sides move: log-convex in the step, largest at an end.
        growth = max(
            math.exp(reach * (step + 2.0 * move)) / (step - 2.0 * move)
            for step in (self.shortest, self.longest)
        )
        eps = 2.0 * math.log1p(2.0 * move * growth) * _UP
        cells = 4.0 * (self.radius * math.sqrt(2.0) / self.shortest + 2.0) + 4.0
        return eps, math.exp(eps) * cells * 2.0**-self.radius_bits * _UP


# Rounding errors in addition to the pair's: three of the product with the scale, and one of the sum.
DRAWN = Pair(RADIUS_BITS, ANGLE_BITS, ROUNDINGS + 2.0**-51, 2.0**-57)


@dataclasses.dataclass(frozen=True)
class LatticeLoss:
    """Bound on the effect of rounding the noise on a claim.

    For every set S of outcomes the probabilities p with the drawn numbers and q with true Gaussians satisfy
    p <= e^eps q + delta and q <= e^eps p + delta.

    **Guarantee:** upper bounds, rounded up, if the words of the cipher were uniform and independent.

    Attributes:
        eps: >= 0.
        delta: in [0, 1].
    """

    eps: float
    delta: float

    def added_to(self, eps: float, delta: float) -> tuple[float, float]:
        r"""The budget of training with the drawn numbers, if with true Gaussians it is (eps, delta).

        $(\varepsilon + 2\varepsilon', e^{\varepsilon'}\delta + (1 + e^{\varepsilon + \varepsilon'})\delta')$.

        Args:
            eps: of the claim, >= 0.
            delta: of the claim, in [0, 1].

        Returns:
            eps and delta, rounded up; delta at most 1.
        """
        eps = check_real("eps", eps, minimum=0.0)
        delta = check_real("delta", delta, minimum=0.0, maximum=1.0)
        total = (eps + 2.0 * self.eps) * _UP
        if total > 700.0:  # e^total would overflow
            return total, 1.0 if self.delta else min(1.0, math.exp(self.eps) * delta * _UP)
        added = math.exp(self.eps) * delta + (1.0 + math.exp(eps + self.eps)) * self.delta
        return total, min(1.0, added * _UP)


def lattice_loss(values: int, steps: int, *, failure: float = 1e-15) -> LatticeLoss:
    """Bound on the effect of rounding in a run with `generator="secure-lattice"` on its claim.

    **Guarantee:** an upper bound, if the words of the cipher were uniform and independent; also for adaptive
    training. Proof: the page on rounding.

    Args:
        values: numbers that get noise in one step, in [1, 2^62]: trained weights, and one more with an
            AdaptiveClip.
        steps: in [1, 2^62].
        failure: in (0, 1): a part of the returned delta; a smaller value gives a larger eps.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        Dwork, Rothblum and Vadhan 2010, "Boosting and differential privacy", Theorem III.3.

    Examples:
        >>> loss = lattice_loss(1_000_000, 1_000)
        >>> print(f"{loss.eps:.1e} {loss.delta:.1e}")
        1.3e-05 1.6e-12
        >>> print("{:.5f} {:.5e}".format(*loss.added_to(8.0, 1e-5)))
        8.00003 1.00049e-05
    """
    # Two numbers of a tensor form a pair, the last may be single: never more pairs than values.
    pairs = check_integer("values", values, minimum=1, maximum=_MOST)
    pairs *= check_integer("steps", steps, minimum=1, maximum=_MOST)
    failure = check_real("failure", failure, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
    eps, delta = DRAWN.closeness()
    count = float(pairs) * _UP
    total = eps * math.sqrt(2.0 * count * -math.log(failure)) + count * eps * math.expm1(eps)
    return LatticeLoss(total * _UP, min(1.0, (count * delta + failure) * _UP))
