"""How one example's gradient is clipped: whole, layer by layer, or matrix by matrix with noise to match."""

import abc
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Literal

from torch import Tensor

from dpmech.composition import BlockClipping
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real, check_vector

__all__ = ["Blocks", "Clipping", "FlatClipping", "PerLayerClipping", "PerMatrixClipping"]


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Parameters by block, each block clipped on its own.

    Attributes:
        members: the block of every parameter.
        clip_norms: of every block.
    """

    members: tuple[int, ...]
    clip_norms: tuple[float, ...]


class Clipping(abc.ABC):
    """How the gradient of one example is clipped. Final subclasses are frozen records."""

    @property
    @abc.abstractmethod
    def joint_norm(self) -> float:
        """Bound on the norm of one example's clipped gradient, all blocks together."""

    @abc.abstractmethod
    def blocks(self, count: int) -> Blocks:
        """The blocks of `count` parameters.

        Raises:
            InvalidParameterError: if the clipping is made for another number of parameters.
        """

    @abc.abstractmethod
    def noise_norms(self, count: int, sigma: float) -> tuple[float, ...]:
        """For every parameter the number that, times `sigma`, is the standard deviation of its noise.

        Args:
            count: number of parameters.
            sigma: noise scale of the calibration, at clip norm 1.

        Raises:
            InvalidParameterError: if the noise would not reach `sigma`, or as for `blocks`.
        """


@dataclasses.dataclass(frozen=True)
class FlatClipping(Clipping):
    """The whole gradient of an example is scaled to norm at most `clip_norm`.

    Args:
        clip_norm: > 0.
    """

    clip_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "clip_norm", check_real("clip_norm", self.clip_norm, minimum=0.0, open_minimum=True)
        )

    @property
    def joint_norm(self) -> float:
        """The clip norm."""
        return self.clip_norm

    def blocks(self, count: int) -> Blocks:
        """One block."""
        return Blocks((0,) * count, (self.clip_norm,))

    def noise_norms(self, count: int, sigma: float) -> tuple[float, ...]:
        """The clip norm."""
        return (self.clip_norm,) * count


@dataclasses.dataclass(frozen=True)
class PerLayerClipping(Clipping):
    """Every layer is clipped on its own; all get the noise of the joint norm, sqrt(sum of squares).

    One Gaussian release of the whole gradient, so that a calibration holds as it is. For noise in
    proportion to each layer's own clip norm see `PerMatrixClipping`.

    Args:
        clip_norms: one number > 0 a layer.
        layers: the layer of every parameter, in [0, number of layers - 1], each at least once; None for
            one layer a parameter.
    """

    clip_norms: Sequence[float]
    layers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        clip_norms, layers = _check_blocks(self.clip_norms, self.layers)
        object.__setattr__(self, "clip_norms", clip_norms)
        object.__setattr__(self, "layers", layers)

    @classmethod
    def split(
        cls, clip_norm: float, parameters: Iterable[Tensor], *, by: Literal["layer", "dimension"] = "layer"
    ) -> "PerLayerClipping":
        """Clip norms of single parameters from the norm that all have together.

        Args:
            clip_norm: the joint norm, > 0.
            parameters: of the model; those that require gradients count, in their order.
            by: "layer" gives every parameter clip_norm / sqrt(number of parameters); "dimension" gives one
                with d of D values clip_norm sqrt(d / D).

        Raises:
            InvalidParameterError: on a bad argument, or if no parameter requires gradients.

        Examples:
            >>> import torch
            >>> layer = torch.nn.Linear(3, 1)
            >>> [round(norm, 3) for norm in PerLayerClipping.split(1.0, layer.parameters()).clip_norms]
            [0.707, 0.707]
            >>> by_size = PerLayerClipping.split(1.0, layer.parameters(), by="dimension")
            >>> [round(norm, 3) for norm in by_size.clip_norms]
            [0.866, 0.5]
        """
        norm = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
        sizes = [param.numel() for param in parameters if param.requires_grad]
        if not sizes:
            raise InvalidParameterError("parameters", sizes, "at least one that requires gradients")
        if by not in ("layer", "dimension"):
            raise InvalidParameterError("by", by, "'layer' or 'dimension'")
        shares = sizes if by == "dimension" else [1] * len(sizes)
        return cls([norm * math.sqrt(share / sum(shares)) for share in shares])

    @property
    def joint_norm(self) -> float:
        """sqrt(sum of squares)."""
        return math.hypot(*self.clip_norms)

    def blocks(self, count: int) -> Blocks:
        """A block a layer."""
        return Blocks(_members(self.layers, len(self.clip_norms), count), tuple(self.clip_norms))

    def noise_norms(self, count: int, sigma: float) -> tuple[float, ...]:
        """The joint norm."""
        return (self.joint_norm,) * count


@dataclasses.dataclass(frozen=True)
class PerMatrixClipping(Clipping):
    """Every matrix (block) is clipped to its own norm and gets noise in proportion to it.

    All blocks read the same lot, so that their joint sigma is what must reach the calibration's.

    Args:
        block_clipping: clip norms C_W and noise sigma_W of the blocks; its joint sigma must be at least
            that of the calibration (`dm.BlockClipping.from_joint` makes such a one).
        layers: the block of every parameter, each at least once; None for one block a parameter.

    References:
        muon.joint_sigma.
    """

    block_clipping: BlockClipping
    layers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.block_clipping, BlockClipping):
            raise InvalidParameterError("block_clipping", self.block_clipping, "a dm.BlockClipping")
        _, layers = _check_blocks(self.block_clipping.clip_norms, self.layers)
        object.__setattr__(self, "layers", layers)

    @property
    def joint_norm(self) -> float:
        """sqrt(sum of squares)."""
        return self.block_clipping.joint_clip_norm

    def blocks(self, count: int) -> Blocks:
        """A block a matrix."""
        clip_norms = self.block_clipping.clip_norms
        return Blocks(_members(self.layers, len(clip_norms), count), clip_norms)

    def noise_norms(self, count: int, sigma: float) -> tuple[float, ...]:
        """sigma_W C_W / sigma."""
        if self.block_clipping.sigma < sigma:
            raise InvalidParameterError(
                "block_clipping",
                self.block_clipping.sigma,
                f"of a joint sigma >= {sigma!r}, the calibration's",
            )
        stddevs = self.block_clipping.noise_stddevs
        return tuple(stddevs[member] / sigma for member in self.blocks(count).members)


def _check_blocks(
    clip_norms: object, layers: Sequence[int] | None
) -> tuple[tuple[float, ...], tuple[int, ...] | None]:
    """Clip norms and layer numbers as tuples, checked."""
    norms = check_vector("clip_norms", clip_norms)
    if norms.min() <= 0.0:
        raise InvalidParameterError("clip_norms", clip_norms, "numbers > 0")
    if layers is None:
        return tuple(norms.tolist()), None
    last = norms.size - 1
    members = tuple(
        check_integer(f"layers[{i}]", layer, minimum=0, maximum=last) for i, layer in enumerate(layers)
    )
    if len(set(members)) != norms.size:
        raise InvalidParameterError("layers", layers, f"every number from 0 to {last} at least once")
    return tuple(norms.tolist()), members


def _members(layers: Sequence[int] | None, blocks: int, count: int) -> tuple[int, ...]:
    """The block of every parameter; refused where a parameter would have none."""
    members = tuple(range(blocks)) if layers is None else tuple(layers)
    if len(members) != count:
        raise InvalidParameterError(
            "clipping", f"for {len(members)} parameters", f"for all {count} parameters that get noise"
        )
    return members
