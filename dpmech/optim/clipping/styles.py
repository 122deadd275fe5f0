"""Clipping styles: the whole gradient, per layer, or per matrix with proportional noise."""

import abc
import copy
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real, check_vector
from dpmech.ledgers import BlockClipping
from dpmech.numerics import UNIT

Layers: TypeAlias = Sequence[int] | Mapping[str | Tensor, int] | None
_SHORT = 1e-12  # largest relative shortfall of a joint sigma against that of the calibration


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Parameters by block; each block is clipped separately.

    Attributes:
        members: the block of every parameter.
        clip_norms: the clip norm of every block.
    """

    members: tuple[int, ...]
    clip_norms: tuple[float, ...]


class Clipping(abc.ABC):
    """Clipping of the gradient of one example. Final subclasses are frozen records."""

    @property
    @abc.abstractmethod
    def joint_norm(self) -> float:
        """Bound on the norm of one example's clipped gradient over all blocks."""

    def over(self, parameters: Sequence[Tensor], names: Sequence[str] = ()) -> "Clipping":
        """The same clipping with its blocks fixed to these parameters, independent of later order.

        Without blocks it applies to any parameters, and is returned itself.

        Args:
            parameters: the trained parameters, in the order to which blocks given in order refer.
            names: of the parameters, for blocks that are given by name; empty if no model is known.

        Raises:
            InvalidParameterError: if the clipping is for other parameters.
        """
        del parameters, names
        return self

    @abc.abstractmethod
    def blocks(self, parameters: Sequence[object]) -> Blocks:
        """The blocks of these parameters, in order.

        Raises:
            InvalidParameterError: if the clipping is for other parameters.
        """

    def noise_norms(self, parameters: Sequence[object], sigma: float) -> tuple[float, ...]:
        """For every parameter the factor that, times `sigma`, is the standard deviation of its noise.

        It is the joint norm, unless noise is divided among blocks.

        Args:
            parameters: the parameters.
            sigma: noise scale of the calibration, at clip norm 1.

        Raises:
            InvalidParameterError: if the noise would not reach `sigma`, or as for `blocks`.
        """
        del sigma
        return (self.joint_norm,) * len(parameters)


@dataclasses.dataclass(frozen=True)
class FlatClipping(Clipping):
    """Scales the whole gradient of an example to norm at most `clip_norm`.

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

    def blocks(self, parameters: Sequence[object]) -> Blocks:
        """One block."""
        return Blocks((0,) * len(parameters), (self.clip_norm,))


@dataclasses.dataclass(frozen=True)
class _InBlocks(Clipping):
    """A clipping whose blocks are given in the order of the parameters, or by parameter or name."""

    # The parameters to which the entries of `layers` refer; None until `over`.
    _keys: tuple[Tensor, ...] | None = dataclasses.field(
        default=None, init=False, repr=False, compare=False, kw_only=True
    )

    @property
    def _layers(self) -> Layers:
        """The block of every parameter, a field of the subclasses."""
        found: Layers = vars(self)["layers"]
        return found

    @property
    @abc.abstractmethod
    def _clip_norms(self) -> tuple[float, ...]:
        """The clip norm of every block."""

    def over(self, parameters: Sequence[Tensor], names: Sequence[str] = ()) -> "Clipping":
        """As in `Clipping`; parameters that are already fixed stay."""
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
        # As positions, the entries in checkpoints are the same in every process.
        in_order = members == tuple(range(len(self._clip_norms)))
        object.__setattr__(fixed, "layers", None if in_order else members)
        return fixed

    def blocks(self, parameters: Sequence[object]) -> Blocks:
        """One block per layer."""
        return Blocks(self._members(parameters), self._clip_norms)

    def _members(self, parameters: Sequence[object], names: Sequence[str] = ()) -> tuple[int, ...]:
        """The block of every parameter; raises if a parameter has none."""
        needed = f"for all {len(parameters)} parameters that get noise"
        if isinstance(self._layers, Mapping):
            block_of = _by_identity(self._layers, dict(zip(names, parameters, strict=bool(names))))
        else:
            members = tuple(range(len(self._clip_norms)) if self._layers is None else self._layers)
            keys = parameters if self._keys is None else self._keys
            if len(members) != len(keys):
                raise InvalidParameterError("clipping", f"for {len(members)} parameters", needed)
            if self._keys is None:
                return members
            block_of = dict(zip(map(id, keys), members, strict=True))
        lacking = [names[i] if names else i for i, key in enumerate(parameters) if id(key) not in block_of]
        if lacking:
            given = f"for {len(block_of)} parameters, without {', '.join(map(str, lacking[:3]))}"
            raise InvalidParameterError("clipping", given, needed)
        return tuple(block_of[id(param)] for param in parameters)


@dataclasses.dataclass(frozen=True)
class PerLayerClipping(_InBlocks):
    """Clips every layer separately; all get the noise of the joint norm, sqrt(sum of squares).

    This is one Gaussian release of the whole gradient, so that a calibration applies unchanged. For noise in
    proportion to each layer's clip norm see `PerMatrixClipping`.

    Args:
        clip_norms: one number > 0 per layer.
        layers: the layer of every parameter, in [0, number of layers - 1], each at least once; None for
            one layer per parameter. In the order of the model's parameters that require gradients, as
            in `model.named_parameters()`, regardless of how the optimizer groups them (without a model, in
            PrivateOptimizer, in the optimizer's order); or a mapping from parameters, or their names in
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
        """Clip norms of single parameters from their joint norm.

        Args:
            clip_norm: the joint norm, > 0.
            parameters: of the model; those that require gradients are used, in order.
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
    def _clip_norms(self) -> tuple[float, ...]:
        return tuple(self.clip_norms)


@dataclasses.dataclass(frozen=True)
class PerMatrixClipping(_InBlocks):
    """Clips every matrix (block) to its norm C_W, with noise in proportion to it.

    All blocks use the same batch, so that their joint sigma must reach that of the calibration.

    Args:
        block_clipping: clip norms C_W and noise sigma_W of the blocks; its joint sigma must be at least
            that of the calibration (as from `dm.ledgers.BlockClipping.from_joint`). A shortfall due to
            rounding, up to 1e-12 relative, is added to the noise of every block.
        layers: the block of every parameter, each at least once; None for one block per parameter. In order
            or as a mapping, as for `PerLayerClipping`.

    References:
        muon.joint_sigma.

    Examples:
        >>> import dpmech as dm
        >>> from dpmech.optim import PerMatrixClipping
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> clipping = PerMatrixClipping.for_model(model, sigma=0.8, clip_norm=0.1)
        >>> clipping.layers
        {'0.weight': 0, '2.weight': 1, '0.bias': 2, '2.bias': 2}
        >>> round(clipping.block_clipping.sigmas[0], 4), round(clipping.joint_norm, 4)
        (1.3856, 0.1732)
    """

    block_clipping: BlockClipping
    layers: Layers = None

    def __post_init__(self) -> None:
        if not isinstance(self.block_clipping, BlockClipping):
            raise InvalidParameterError("block_clipping", self.block_clipping, "a dm.ledgers.BlockClipping")
        _, layers = _check_blocks(self.block_clipping.clip_norms, self.layers)
        object.__setattr__(self, "layers", layers)

    @classmethod
    def for_model(
        cls,
        model: nn.Module,
        sigma: float,
        clip_norm: float,
        *,
        rest: Literal["one block", "one block each"] = "one block",
        rest_clip_norm: float | None = None,
        least_noise: bool = False,
    ) -> "PerMatrixClipping":
        """Blocks for Muon: one for every matrix, and the vectors and scalars as `rest` says.

        Matrices are the trained parameters of two or more dimensions, as for `Muon`. Blocks are given by
        name, so that the order of an optimizer does not matter.

        Args:
            model: with parameters that require gradients, of which one at least is a matrix.
            sigma: that of the calibration, which the joint sigma of all blocks reaches.
            clip_norm: of every matrix, > 0.
            rest: whether all other parameters together are one block, or each is one.
            rest_clip_norm: of these blocks, > 0; None is `clip_norm`.
            least_noise: False gives all k blocks the same sigma_W = sigma sqrt(k), as the paper does; True
                divides by the sizes of the blocks, with the least total variance of the noise.

        Raises:
            InvalidParameterError: on a bad argument, or if no matrix is trained.
        """
        named = {name: param for name, param in model.named_parameters() if param.requires_grad}
        matrices = [name for name, param in named.items() if param.ndim >= 2]
        others = [name for name in named if name not in set(matrices)]
        if not matrices:
            raise InvalidParameterError(
                "model", type(model).__name__, "a model that trains a parameter of two or more dimensions"
            )
        if rest not in ("one block", "one block each"):
            raise InvalidParameterError("rest", rest, "'one block' or 'one block each'")
        blocks = [[name] for name in matrices]
        blocks += [[name] for name in others] if rest == "one block each" else [others] if others else []
        sizes = [sum(named[name].numel() for name in block) for block in blocks]
        norm = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
        other = rest_clip_norm
        other = norm if other is None else check_real("rest_clip_norm", other, minimum=0.0, open_minimum=True)
        norms = [norm] * len(matrices) + [other] * (len(blocks) - len(matrices))
        clipping = BlockClipping.from_joint(norms, sigma, dimensions=sizes if least_noise else None)
        return cls(clipping, {name: place for place, block in enumerate(blocks) for name in block})

    @property
    def joint_norm(self) -> float:
        """sqrt(sum of squares)."""
        return self.block_clipping.joint_clip_norm

    @property
    def _clip_norms(self) -> tuple[float, ...]:
        return self.block_clipping.clip_norms

    def noise_norms(self, parameters: Sequence[object], sigma: float) -> tuple[float, ...]:
        """sigma_W C_W / sigma, rounded up."""
        joint = self.block_clipping.sigma  # rounded down
        if joint < sigma * (1.0 - _SHORT):
            raise InvalidParameterError(
                "block_clipping", joint, f"of a joint sigma >= {sigma!r}, the calibration's"
            )
        # Every sigma_W times sigma / joint has a joint sigma of at least sigma. Eight units exceed the
        # seven roundings from here to the noise.
        more = max(sigma / joint, 1.0) * (1.0 + 8.0 * UNIT)
        stddevs = self.block_clipping.noise_stddevs
        return tuple(stddevs[member] * more / sigma for member in self.blocks(parameters).members)


def _check_blocks(
    clip_norms: object, layers: Layers
) -> tuple[tuple[float, ...], tuple[int, ...] | dict[str | Tensor, int] | None]:
    """Checked clip norms, and layer numbers in order or by key."""
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
            "layers", unknown[:3], names if named else "parameters as keys, since no model is known"
        )
    block_of = {id(named[key] if isinstance(key, str) else key): layer for key, layer in layers.items()}
    if len(block_of) < len(layers):
        raise InvalidParameterError("layers", len(layers), "one key per parameter, itself or its name")
    return block_of
