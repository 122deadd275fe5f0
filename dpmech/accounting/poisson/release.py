"""What is accounted for under Poisson sampling: T releases, each of a random lot."""

import dataclasses
from typing import ClassVar

from dpmech.accounting.poisson.fixed_loss import FixedLoss
from dpmech.accounting.poisson.lattice import Loss
from dpmech.accounting.poisson.mixture_loss import MixtureLoss
from dpmech.accounting.poisson.truncated_loss import TruncatedLoss
from dpmech.mechanism import FixedDraw, Truncation
from dpmech.numerics import Bounds, Provenance

__all__ = ["FixedRelease", "PoissonRelease", "TruncatedRelease", "UserRelease"]


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
    symmetric: ClassVar[bool] = False

    @property
    def by_lattice(self) -> Provenance:
        """How it is accounted on lattices."""
        return Provenance("lattice.poisson", {"q": self.sampling_prob, "steps": self.steps})

    def loss(self, sigma_over_sensitivity: float, *, remove: bool) -> Loss:
        """The loss of one release in one direction."""
        return Loss(self.sampling_prob, sigma_over_sensitivity, remove)


@dataclasses.dataclass(frozen=True)
class UserRelease:
    """T releases, each of a lot in which a user has a binomial number of m examples.

    Args:
        sampling_prob: q in (0, 1), of each example.
        examples: m >= 1.
        steps: T >= 1.
        sensitivity: of one release, to one example.
        tight: whether all T releases reach that sensitivity; if not, there is no lower bound.
    """

    sampling_prob: float
    examples: int
    steps: int
    sensitivity: Bounds
    tight: bool = True
    symmetric: ClassVar[bool] = False

    @property
    def by_lattice(self) -> Provenance:
        """How it is accounted on lattices."""
        facts = {"q": self.sampling_prob, "examples": self.examples, "steps": self.steps}
        return Provenance("lattice.users", facts)

    def loss(self, sigma_over_sensitivity: float, *, remove: bool) -> MixtureLoss:
        """The loss of one release in one direction."""
        return MixtureLoss(self.sampling_prob, self.examples, sigma_over_sensitivity, remove)


@dataclasses.dataclass(frozen=True)
class TruncatedRelease:
    """T releases, each of a lot of at most B of n examples.

    Args:
        truncation: what truncation does to one example, with q, B and n.
        steps: T >= 1.
        sensitivity: of one release.
        tight: whether all T releases reach that sensitivity; if not, there is no lower bound.
    """

    truncation: Truncation
    steps: int
    sensitivity: Bounds
    tight: bool = True
    symmetric: ClassVar[bool] = False

    @property
    def by_lattice(self) -> Provenance:
        """How it is accounted on lattices."""
        own = self.truncation
        facts = {"q": own.sampling_prob, "most": own.max_lot_size, "size": own.dataset_size}
        return Provenance("lattice.truncated", facts | {"steps": self.steps})

    def loss(self, sigma_over_sensitivity: float, *, remove: bool) -> TruncatedLoss:
        """The loss of one release in one direction."""
        odds = self.truncation
        return TruncatedLoss(
            odds.sampling_prob, odds.untruncated, odds.truncated, odds.kept, sigma_over_sensitivity, remove
        )


@dataclasses.dataclass(frozen=True)
class FixedRelease:
    """T releases, each of a uniform set of exactly B of n examples, one of which is replaced by another one.

    Args:
        draw: B and n.
        steps: T >= 1.
        sensitivity: of one release, to the replacement.
        tight: whether all T releases reach that sensitivity; if not, there is no lower bound.
    """

    draw: FixedDraw
    steps: int
    sensitivity: Bounds
    tight: bool = True
    symmetric: ClassVar[bool] = True

    @property
    def by_lattice(self) -> Provenance:
        """How it is accounted on lattices."""
        facts = {"lot": self.draw.lot_size, "size": self.draw.dataset_size, "steps": self.steps}
        return Provenance("lattice.fixed", facts)

    def loss(self, sigma_over_sensitivity: float, *, remove: bool) -> FixedLoss:
        """The loss of one release, in either direction."""
        del remove
        return FixedLoss(self.draw.joined, sigma_over_sensitivity)
