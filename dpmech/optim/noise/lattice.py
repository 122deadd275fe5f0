"""Sums with their noise on a lattice, so that low bits that roundings left say nothing."""

import math
from collections.abc import Sequence

import torch

from dpmech.exceptions import HorizonError, NumericalError, UnsupportedCombinationError
from dpmech.mechanism import Strategy

__all__ = ["LONGEST", "SHORTEST", "Lattice", "add_on_lattice", "lattice_step"]

SHORTEST, LONGEST = 2.0**-5, 2.0**-4  # steps, in standard deviations of the noise
_RANGE = 400  # powers of two that a standard deviation may have: nothing overflows or vanishes within


class Lattice:
    """The lattice of every parameter at every step: powers of two that follow from what is public.

    Args:
        strategy: of which C^-1 must be diagonal: noise that is independent from step to step.
        factors: the standard deviation of Z for every parameter.

    Raises:
        UnsupportedCombinationError: for noise that is correlated over steps.
    """

    def __init__(self, strategy: Strategy, factors: Sequence[float]) -> None:
        if strategy.inverse_bands != 1:
            raise UnsupportedCombinationError(
                f"generator='secure-lattice' with {strategy!r}, whose noise is correlated over steps: the "
                "bound on roundings is proved for independent noise",
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
    """The power of two in (2^-5, 2^-4] standard deviations.

    Raises:
        NumericalError: if the standard deviation is outside [2^-400, 2^400].
    """
    if not 2.0**-_RANGE <= stddev <= 2.0**_RANGE:
        raise NumericalError(f"noise of standard deviation {stddev:g} on a lattice, outside [2^-400, 2^400]")
    return math.ldexp(1.0, math.frexp(stddev)[1] - 5)


def add_on_lattice(total: torch.Tensor, noise: torch.Tensor, step: float) -> None:
    """Overwrite a sum by the multiple of `step` next to sum + noise, and then round to the sum's dtype.

    The sum is taken apart exactly into the next multiple and a rest, and only the rest meets the noise: so
    roundings are small beside the noise however large the sum is.

    Args:
        total: float32 or float64, finite; any device.
        noise: float64, of the same shape; its contents are lost.
        step: a power of two.
    """
    rest = total.to(device=noise.device, dtype=torch.float64, copy=True).mul_(1.0 / step)
    whole = rest.round()
    noise.mul_(1.0 / step).add_(rest.sub_(whole)).round_().add_(whole)
    # There are two zeros, and the sign of one would tell on which side of it the sum was.
    total.copy_(noise.mul_(step).add_(0.0))
