"""What a strategy is made of, as far as it decides what its vectors cost."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes that are read off the fields of a strategy: nothing of length n is formed to find them.

    Args:
        n: number of steps.
        bands: coefficients that one of C and C^-1 is given by; 0 where both have a closed form.
        buffers: exponentials.
        inverse_bands: of C^-1, None where it is full.
        scaled: how often its columns are scaled.
        dense: whether it is a matrix without structure.
        dense_prefix: whether its leading blocks are, though it is not.
    """

    n: int
    bands: int = 0
    buffers: int = 0
    inverse_bands: int | None = None
    scaled: int = 0
    dense: bool = False
    dense_prefix: bool = False
