"""How one example's gradient is clipped: whole, layer by layer, or matrix by matrix with noise to match."""

import abc
import copy
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from torch import Tensor

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real, check_vector
from dpmech.ledgers import BlockClipping
from dpmech.numerics import UNIT

Layers: TypeAlias = Sequence[int] | Mapping[str | Tensor, int] | None
_SHORT = 1e-12  # how far a joint sigma may be below that of the calibration, relative


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
    def over(self, parameters: Sequence[Tensor], names: Sequence[str] = ()) -> "Clipping":
        """The same clipping with its blocks fixed to these parameters, in whatever order they come later.

        Args:
            parameters: those that are trained: the order in which blocks are meant that are given in order.
            names: of the parameters, for blocks that are given by name; none where no model is known.

        Raises:
            InvalidParameterError: if the clipping is made for other parameters.
        """

    @abc.abstractmethod
    def blocks(self, parameters: Sequence[object]) -> Blocks:
        """The blocks of these parameters, in their order.

        Raises:
            InvalidParameterError: if the clipping is made for other parameters.
        """

    @abc.abstractmethod
    def noise_norms(self, parameters: Sequence[object], sigma: float) -> tuple[float, ...]:
        """For every parameter the number that, times `sigma`, is the standard deviation of its noise.

        Args:
            parameters: the parameters.
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

    def over(self, parameters: Sequence[Tensor], names: Sequence[str] = ()) -> "Clipping":
        """It is the same for all."""
        del parameters, names
        return self

    def blocks(self, parameters: Sequence[object]) -> Blocks:
        """One block."""
        return Blocks((0,) * len(parameters), (self.clip_norm,))

    def noise_norms(self, parameters: Sequence[object], sigma: float) -> tuple[float, ...]:
        """The clip norm."""
        return (self.clip_norm,) * len(parameters)


@dataclasses.dataclass(frozen=True)
class _InBlocks(Clipping):
    """A clipping whose blocks are given in the order of the parameters, or by parameter or name."""

    # The parameters to which `layers` belongs, in its order; None until `over`.
    _keys: tuple[Tensor, ...] | None = dataclasses.field(
        default=None, init=False, repr=False, compare=False, kw_only=True
    )

    @property
    @abc.abstractmethod
    def _layers(self) -> "Layers":
        """The block of every parameter."""

    @property
    @abc.abstractmethod
    def _clip_norms(self) -> tuple[float, ...]:
        """Of every block."""

    def over(self, parameters: Sequence[Tensor], names: Sequence[str] = ()) -> "Clipping":
        """As there; what was fixed before stays."""
        if self._keys is not None:
            return self
        members = self._members(parameters, names)
        if isinstance(self._layers, Mapping) and len(self._layers) > len(parameters):
            given, needed = len(self._layers), len(parameters)
            raise InvalidParameterError(
                "layers", f"for {given} parameters", f"for the {needed} that get noise"
            )
        fixed = copy.copy(self)
        object.__setattr__(fixed, "_keys", tuple(parameters))
        # As positions, what is written into checkpoints is the same in every process.
        in_order = members == tuple(range(len(self._clip_norms)))
        object.__setattr__(fixed, "layers", None if in_order else members)
        return fixed

    def blocks(self, parameters: Sequence[object]) -> Blocks:
        """A block a layer."""
        return Blocks(self._members(parameters), self._clip_norms)

    def _members(self, parameters: Sequence[object], names: Sequence[str] = ()) -> tuple[int, ...]:
        """The block of every parameter; refused where a parameter would have none."""
        needed = f"for all {len(parameters)} parameters that get noise"
        if isinstance(self._layers, Mapping):
            found = _by_identity(self._layers, dict(zip(names, parameters, strict=bool(names))))
        else:
            members = tuple(range(len(self._clip_norms)) if self._layers is None else self._layers)
            keys = parameters if self._keys is None else self._keys
            if len(members) != len(keys):
                raise InvalidParameterError("clipping", f"for {len(members)} parameters", needed)
            if self._keys is None:
                return members
            found = dict(zip(map(id, keys), members, strict=True))
        lacking = [names[at] if names else at for at, one in enumerate(parameters) if id(one) not in found]
        if lacking:
            given = f"for {len(found)} parameters, without {', '.join(map(str, lacking[:3]))}"
            raise InvalidParameterError("clipping", given, needed)
        return tuple(found[id(param)] for param in parameters)


@dataclasses.dataclass(frozen=True)
class PerLayerClipping(_InBlocks):
    """Every layer is clipped on its own; all get the noise of the joint norm, sqrt(sum of squares).

    One Gaussian release of the whole gradient, so that a calibration holds as it is. For noise in
    proportion to each layer's own clip norm see `PerMatrixClipping`.

    Args:
        clip_norms: one number > 0 a layer.
        layers: the layer of every parameter, in [0, number of layers - 1], each at least once; None for
            one layer a parameter. In the order of the model's parameters that require gradients, as
            `model.named_parameters()` has them, however the optimizer groups them (without a model, in
            PrivateOptimizer, in that of the optimizer); or a mapping from parameters, or their names in
            the model, to layers.
    """

    clip_norms: Sequence[float]
    layers: Layers = None

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

    @property
    def _layers(self) -> Layers:
        return self.layers

    @property
    def _clip_norms(self) -> tuple[float, ...]:
        return tuple(self.clip_norms)

    def noise_norms(self, parameters: Sequence[object], sigma: float) -> tuple[float, ...]:
        """The joint norm."""
        return (self.joint_norm,) * len(parameters)


@dataclasses.dataclass(frozen=True)
class PerMatrixClipping(_InBlocks):
    """Every matrix (block) is clipped to its own norm and gets noise in proportion to it.

    All blocks read the same batch, so that their joint sigma is what must reach the calibration's.

    Args:
        block_clipping: clip norms C_W and noise sigma_W of the blocks; its joint sigma must be at least
            that of the calibration (`dm.ledgers.BlockClipping.from_joint` makes such a one). What roundings
            leave it short of, up to 1e-12 of it, is added to the noise of every block.
        layers: the block of every parameter, each at least once; None for one block a parameter. In order or
            as a mapping, as for `PerLayerClipping`.

    References:
        muon.joint_sigma.
    """

    block_clipping: BlockClipping
    layers: Layers = None

    def __post_init__(self) -> None:
        if not isinstance(self.block_clipping, BlockClipping):
            raise InvalidParameterError("block_clipping", self.block_clipping, "a dm.ledgers.BlockClipping")
        _, layers = _check_blocks(self.block_clipping.clip_norms, self.layers)
        object.__setattr__(self, "layers", layers)

    @property
    def joint_norm(self) -> float:
        """sqrt(sum of squares)."""
        return self.block_clipping.joint_clip_norm

    @property
    def _layers(self) -> Layers:
        return self.layers

    @property
    def _clip_norms(self) -> tuple[float, ...]:
        return self.block_clipping.clip_norms

    def noise_norms(self, parameters: Sequence[object], sigma: float) -> tuple[float, ...]:
        """sigma_W C_W / sigma, rounded up."""
        joint = self.block_clipping.sigma  # never above the true one
        if joint < sigma * (1.0 - _SHORT):
            raise InvalidParameterError(
                "block_clipping", joint, f"of a joint sigma >= {sigma!r}, the calibration's"
            )
        # Every sigma_W times sigma / joint has a joint sigma of sigma at least. Eight units are more than the
        # seven roundings from here to the noise.
        more = max(sigma / joint, 1.0) * (1.0 + 8.0 * UNIT)
        stddevs = self.block_clipping.noise_stddevs
        return tuple(stddevs[member] * more / sigma for member in self.blocks(parameters).members)


def _check_blocks(
    clip_norms: object, layers: Layers
) -> tuple[tuple[float, ...], tuple[int, ...] | dict[str | Tensor, int] | None]:
    """Clip norms, and layer numbers in order or by their keys, checked."""
    norms = check_vector("clip_norms", clip_norms)
    if norms.min() <= 0.0:
        raise InvalidParameterError("clip_norms", clip_norms, "numbers > 0")
    if layers is None:
        return tuple(norms.tolist()), None
    last = norms.size - 1
    given = layers.values() if isinstance(layers, Mapping) else layers
    members = tuple(
        check_integer(f"layers[{i}]", layer, minimum=0, maximum=last) for i, layer in enumerate(given)
    )
    if len(set(members)) != norms.size:
        raise InvalidParameterError("layers", list(members), f"every number from 0 to {last} at least once")
    if not isinstance(layers, Mapping):
        return tuple(norms.tolist()), members
    for key in layers:
        if not isinstance(key, str | Tensor):
            raise InvalidParameterError("layers", type(key).__name__, "parameters, or their names, as keys")
    return tuple(norms.tolist()), dict(zip(layers, members, strict=True))


def _by_identity(layers: Mapping[str | Tensor, int], named: Mapping[str, object]) -> dict[int, int]:
    """The block of every parameter by its identity."""
    unknown = [key for key in layers if isinstance(key, str) and key not in named]
    if unknown:
        names = f"names of trained parameters: {', '.join([*list(named)[:5], *['...'] * (len(named) > 5)])}"
        raise InvalidParameterError(
            "layers", unknown[:3], names if named else "parameters as keys, where no model is known"
        )
    found = {id(named[key] if isinstance(key, str) else key): layer for key, layer in layers.items()}
    if len(found) < len(layers):
        raise InvalidParameterError("layers", len(layers), "one key a parameter, itself or its name")
    return found
