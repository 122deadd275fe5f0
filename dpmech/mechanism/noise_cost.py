"""The cost of a strategy's noise per training step, in vectors of the model's size."""

import dataclasses

from dpmech.mechanism.strategies import Strategy, check_strategy


@dataclasses.dataclass(frozen=True)
class NoiseCost:
    """The cost of the cheapest way to form a row of C^-1 Z in little memory.

    Attributes:
        buffers: vectors of the model's size that are stored between steps, in float64.
        regenerated: earlier vectors of noise that are regenerated at every step.
    """

    buffers: int
    regenerated: int

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes kept between steps per parameter of the model, whatever its dtype."""
        return 8 * self.buffers


def noise_cost(strategy: Strategy) -> NoiseCost:
    """The number of vectors that noise stores between steps, and regenerates at every step.

    If C^-1 has p bands, and C does not have fewer, p - 1 vectors are regenerated. Otherwise, one vector is
    stored for every band of C but one, or for every exponential of a BLT. Without structure, the last step
    regenerates all earlier vectors. `dpmech.optim.NoiseStream` does this by default. Stored vectors are
    float64, because a recursion whose state is rounded to float32 would solve with a matrix other than the
    certified C.

    References:
        lambda_cgd Algorithm 1, Table 5 (a BLT of p buffers keeps p vectors).

    Examples:
        >>> import dpmech as dm
        >>> noise_cost(dm.LambdaCGD(100, 0.9)), noise_cost(dm.SquareRoot(100, 4))
        (NoiseCost(buffers=0, regenerated=1), NoiseCost(buffers=3, regenerated=0))
        >>> noise_cost(dm.SquareRoot(100, 4)).bytes_per_parameter
        24
    """
    check_strategy(strategy)
    inverse, bands, factors = strategy.inverse_bands, strategy.bands, strategy.factored
    if inverse is not None and (bands is None or inverse <= bands):
        return NoiseCost(0, inverse - 1)
    if factors is not None and factors.exponentials is not None:
        return NoiseCost(factors.exponentials[0].size, 0)
    return NoiseCost(0, strategy.n - 1) if bands is None else NoiseCost(bands - 1, 0)
