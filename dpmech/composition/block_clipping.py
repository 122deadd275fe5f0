"""Block-wise clipping: every block of a gradient has a clip norm and noise of its own, all from one lot."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpmech.composition.lot import Join
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_sigma, positive_numbers

__all__ = ["BlockClipping"]

# Joins round down by a few of these.
_ULP = 2.0**-52


@dataclasses.dataclass(frozen=True)
class BlockClipping:
    """Clipping and noising block by block (one block a matrix), all from one lot.

    Block W of the summed gradient is clipped to C_W per example and gets Gaussian noise of standard
    deviation sigma_W C_W in every coordinate (correlated over the steps where the strategy says so).

    Args:
        clip_norms: C_W of every block, > 0.
        sigmas: sigma_W of every block, > 0; one number serves all blocks.

    Raises:
        InvalidParameterError: on values that are not > 0, or two lengths.

    References:
        muon.joint_sigma, muon.replace_one.

    Examples:
        >>> import dpmech as dm
        >>> blocks = dm.BlockClipping([0.1] * 49, 2.3395)
        >>> round(blocks.sigma, 6), round(blocks.replace_one_sigma, 6)
        (0.334214, 0.167107)
    """

    clip_norms: tuple[float, ...]
    sigmas: tuple[float, ...]

    def __post_init__(self) -> None:
        clip_norms = positive_numbers("clip_norms", self.clip_norms)
        given: object = self.sigmas
        if isinstance(given, int | float | np.integer | np.floating):
            given = [check_sigma(given)] * len(clip_norms)
        sigmas = positive_numbers("sigmas", given)
        if len(sigmas) != len(clip_norms):
            raise InvalidParameterError(
                "sigmas", given, f"one number, or one for each of {len(clip_norms)} blocks"
            )
        object.__setattr__(self, "clip_norms", clip_norms)
        object.__setattr__(self, "sigmas", sigmas)

    @classmethod
    def from_joint(
        cls,
        clip_norms: Sequence[float],
        sigma: float,
        *,
        dimensions: Sequence[int] | npt.NDArray[np.integer] | None = None,
    ) -> "BlockClipping":
        """Share a joint sigma, such as that of a calibration, among blocks.

        Args:
            clip_norms: C_W of every block, > 0.
            sigma: what the blocks together must have at least.
            dimensions: None gives every block the same sigma_W = sigma sqrt(k). Block sizes d_W give the
                shares with the least total noise variance sum d_W (sigma_W C_W)^2, namely
                sigma_W^2 proportional to 1 / (C_W sqrt(d_W)).

        Returns:
            Blocks whose joint sigma is at least `sigma`, by a few units of rounding.

        Raises:
            InvalidParameterError: on a bad argument.
        """
        norms = np.array(positive_numbers("clip_norms", clip_norms))
        target = check_sigma(sigma)
        shares = np.ones_like(norms)
        if dimensions is not None:
            if not isinstance(dimensions, Sequence | np.ndarray) or len(dimensions) != norms.size:
                raise InvalidParameterError(
                    "dimensions", dimensions, f"one integer for each of {norms.size} blocks"
                )
            sizes = np.array(
                [check_integer("dimensions", size, minimum=1) for size in dimensions], dtype=np.float64
            )
            shares = 1.0 / np.sqrt(norms / norms.max() * np.sqrt(sizes / sizes.max()))
        scale = target / Join(tuple(shares.tolist())).sigma
        return cls(tuple(norms.tolist()), tuple((shares * scale * (1.0 + 16.0 * _ULP)).tolist()))

    @property
    def sigma(self) -> float:
        """The joint sigma, whatever the clip norms: what calibrations and accountants call sigma."""
        return Join(self.sigmas).sigma

    @property
    def replace_one_sigma(self) -> float:
        """Half the joint sigma: the noise over the sensitivity 2 C_W of replacing one example.

        Exact without sampling, where `sensitivity` accounts for it by itself under REPLACE_ONE: do not
        pass this number there as well. Under sampling halving is not a theorem, and it is refused there.
        """
        return 0.5 * self.sigma

    @property
    def noise_stddevs(self) -> tuple[float, ...]:
        """sigma_W C_W of every block: the standard deviation of Z scaled for the summed gradient."""
        return tuple(sigma * norm for sigma, norm in zip(self.sigmas, self.clip_norms, strict=True))

    @property
    def effective_clip_norms(self) -> tuple[float, ...]:
        """sigma_W C_W / sigma: the clip norm at which the joint sigma gives a block its noise.

        `calibration.noise_variance(step, effective_clip_norms[w], batch_size)` is Phi_t of block w.
        """
        sigma = self.sigma
        return tuple(stddev / sigma for stddev in self.noise_stddevs)

    @property
    def joint_clip_norm(self) -> float:
        """sqrt(sum C_W^2): the largest norm of one example's clipped gradient over all blocks."""
        return math.hypot(*self.clip_norms)
