"""What is accounted for under Poisson sampling: T releases, each of a random lot."""

import dataclasses

from dpmech.numerics import Bounds

__all__ = ["PoissonRelease"]


@dataclasses.dataclass(frozen=True)
class PoissonRelease:
    """T Poisson-subsampled Gaussian releases.

    Args:
        sampling_prob: q in (0, 1).
        steps: T >= 1.
        sensitivity: of one release.
        tight: whether all T releases reach that sensitivity; if not, there is no lower bound.
    """

    sampling_prob: float
    steps: int
    sensitivity: Bounds
    tight: bool = True
