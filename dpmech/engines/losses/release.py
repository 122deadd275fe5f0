r"""Releases with sampling: T releases, each of a random batch, and the loss of one of them.

**A uniform set of B of n examples, one of them replaced.** With q = B / n, s the noise over the distance
between the two replacing examples, and A_1 = (1 - q) N(0, s^2) + q N(1, s^2) against A_0 = N(0, s^2): the
hockey-stick curve is, for all gradients and in either direction, at most that of A_1 against A_0 at eps >= 0,
and at most that of A_0 against A_1 at eps < 0. The dominating law has the positive losses of the first pair,
the negative ones of the second, and the remaining mass at 0; see docs/fixed_size_batches.md for the proof.

**A Poisson sample that is truncated to B examples if more were sampled.** Let q be the sampling probability
of every example, tau the probability that B or more of the others were sampled, and p the probability that
the example is then in the batch. With probability 1 - tau the pair is that of plain Poisson sampling. With
probability tau it is the pair whose hockey-stick curve of P against Q (A_u as in `step_losses`) is that of
A_2 against A_1 at eps >= 0, and that of A_0 against A_1 at eps < 0: the largest curve over all gradients. The
dominating law has the positive losses of the first, the negative ones of the second, and the remaining mass
at 0; see docs/poisson.md#truncated-batches for the proof.
"""

import dataclasses
from typing import ClassVar

import scipy

from dpmech.engines.losses.lattice import Loss
from dpmech.engines.losses.replaced import ReplacedLoss
from dpmech.engines.losses.step_losses import MixtureLoss, OneSidedLoss, PartedLoss, StepLoss
from dpmech.numerics import (
    UNIT,
    Bounds,
    Provenance,
    at_least,
    at_most,
    product_down,
    product_up,
    quotient_down,
    quotient_up,
    register_words,
    sum_down,
    sum_up,
)

register_words(
    {
        "lattice.poisson": "PLD on a lattice, Poisson q={q}, {steps} steps, both directions",
        "lattice.replaced": "PLD on a lattice, Poisson q={q}, one example replaced, {steps} steps",
        "lattice.users": (
            "PLD on a lattice, Poisson q={q}, {examples} examples a user, {steps} steps, both ways"
        ),
        "lattice.truncated": (
            "PLD, Poisson q={q}, at most {most} of {size} kept, {steps} steps, both directions"
        ),
        "lattice.fixed": "PLD, batches of {batch} out of {size} without replacement, {steps} steps",
    }
)

Ends = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Truncation:
    """The effect of truncating batches on one example; all probabilities are lower and upper bounds.

    Args:
        sampling_prob: q in (0, 1], of each example.
        truncated_batch_size: B, in [1, n - 1].
        dataset_size: n.
        untruncated: probability that fewer than B others were sampled: the example stays if sampled.
        truncated: probability that B or more of the others were sampled.
        kept: conditional probability, given truncation, that the example was sampled and kept.
        joined: probability that the example is in the batch, unconditionally.
    """

    sampling_prob: float
    truncated_batch_size: int
    dataset_size: int
    untruncated: Ends
    truncated: Ends
    kept: Ends
    joined: Ends

    @classmethod
    def of(cls, q: float, most: int, size: int) -> "Truncation":
        """Probabilities for q, B and n, rounded outward.

        With N the binomial number of n sampled examples: p = (B / n) P(N > B) / tau, and the example is in
        the batch with probability q (1 - tau) + (B / n) P(N > B), as it is in a batch of m + 1 sampled
        examples with probability B / (m + 1).
        """
        untruncated, truncated = at_most(size - 1, q, most - 1), at_least(size - 1, q, most)
        full = at_least(size, q, most + 1)
        low = quotient_down(product_down(most, full[0]), size)
        high = quotient_up(product_up(most, full[1]), size)
        # The examples kept are uniform among B + 1 or more.
        ceiling = quotient_up(product_up(q, most), most + 1)
        kept = (
            min(ceiling, quotient_down(low, truncated[1])) if truncated[1] > 0.0 else 0.0,
            min(ceiling, quotient_up(high, truncated[0])) if truncated[0] > 0.0 else ceiling,
        )
        joined = (
            sum_down([product_down(q, untruncated[0]), low]),
            min(q, sum_up([product_up(q, untruncated[1]), high])),
        )
        return cls(q, most, size, untruncated, truncated, kept, joined)

    @property
    def expected_batch_size(self) -> float:
        """The mean size of a batch."""
        return self.dataset_size * self.joined[1]


@dataclasses.dataclass(frozen=True)
class FixedDraw:
    """Batches of fixed size, sampled without replacement, independently at every step.

    Args:
        dataset_size: n.
        batch_size: B, in [1, n].
    """

    dataset_size: int
    batch_size: int

    @property
    def joined(self) -> tuple[float, float]:
        """Lower and upper bound on B / n, the probability that the example is in a batch."""
        return quotient_down(self.batch_size, self.dataset_size), min(
            1.0, quotient_up(self.batch_size, self.dataset_size)
        )


@dataclasses.dataclass(frozen=True)
class FixedLoss(PartedLoss):
    """The law of the loss of one step, the same in both directions.

    Args:
        joined: lower and upper bound on q, in (0, 1).
        sigma_over_sensitivity: s > 0.
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    joined: tuple[float, float]
    sigma_over_sensitivity: float
    reach: float = 38.0

    def _parts(self, end: int) -> list[tuple[float, StepLoss]]:
        """Losses of both signs: the negative ones mirror the positive ones, each under its own first law."""
        q, s = self.joined[end], self.sigma_over_sensitivity
        return [(1.0, OneSidedLoss(q, 1, s, remove=sign, reach=self.reach)) for sign in (True, False)]

    def _at_zero(self, end: int) -> float:
        """The remaining mass at 0: (1 - q) P(|N(0, 1)| < 1 / (2 s)); bounds include 8 u of rounding."""
        near = 1.0 - 2.0 * float(scipy.special.ndtr(-0.5 / self.sigma_over_sensitivity))
        return max(0.0, (1.0 - self.joined[1 - end]) * near + (-8.0, 8.0)[end] * UNIT)


@dataclasses.dataclass(frozen=True)
class TruncatedLoss(PartedLoss):
    """The law of the loss of one step in one direction.

    Args:
        sampling_prob: q in (0, 1].
        untruncated: lower and upper bound on 1 - tau.
        truncated: on tau.
        kept: on p, in (0, 1).
        sigma_over_sensitivity: s > 0.
        remove: the direction: P is with the example (True) or without (False).
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    sampling_prob: float
    untruncated: Ends
    truncated: Ends
    kept: Ends
    sigma_over_sensitivity: float
    remove: bool
    reach: float = 38.0

    def _parts(self, end: int) -> list[tuple[float, StepLoss]]:
        """Poisson sampling if the batch was not full, and losses of both signs if it was."""
        s, kept, weight = self.sigma_over_sensitivity, self.kept[end], self.truncated[end]
        above, below = (2, 1) if self.remove else (1, 2)
        parts: list[tuple[float, StepLoss]] = []
        if self.untruncated[1] > 0.0:
            parts.append((self.untruncated[end], Loss(self.sampling_prob, s, self.remove, self.reach)))
        parts.append((weight, OneSidedLoss(kept, above, s, remove=True, reach=self.reach)))
        parts.append((weight, OneSidedLoss(kept, below, s, remove=False, reach=self.reach)))
        return parts

    def _at_zero(self, end: int) -> float:
        """The remaining mass at 0, tau (1 - p) P(|N(0, 1)| < 1 / (2 s) or so), with 8 u of rounding."""
        near, far = (float(scipy.special.ndtr(-k / self.sigma_over_sensitivity)) for k in (0.5, 1.5))
        aside = (-8.0, 8.0)[end] * UNIT
        return self.truncated[end] * max(0.0, (1.0 - self.kept[1 - end]) * (1.0 - near - far) + aside)


@dataclasses.dataclass(frozen=True)
class PoissonRelease:
    """T Poisson-subsampled Gaussian releases.

    Args:
        sampling_prob: q in (0, 1).
        steps: T >= 1.
        sensitivity: of one release.
        tight: whether all T releases attain that sensitivity; if not, there is no lower bound.
    """

    sampling_prob: float
    steps: int
    sensitivity: Bounds
    tight: bool = True
    symmetric: ClassVar[bool] = False

    @property
    def by_lattice(self) -> Provenance:
        """Provenance of bounds on lattices."""
        return Provenance("lattice.poisson", {"q": self.sampling_prob, "steps": self.steps})

    def loss(self, sigma_over_sensitivity: float, *, remove: bool) -> Loss:
        """The loss of one release in one direction."""
        return Loss(self.sampling_prob, sigma_over_sensitivity, remove)


@dataclasses.dataclass(frozen=True)
class ReplacedRelease:
    """T Poisson-subsampled Gaussian releases, one example of which is replaced by another one.

    Args:
        sampling_prob: q in (0, 1).
        steps: T >= 1.
        sensitivity: of one release to one example, half of that to its replacement.
        tight: whether all T releases attain that sensitivity; if not, there is no lower bound.
    """

    sampling_prob: float
    steps: int
    sensitivity: Bounds
    tight: bool = True
    symmetric: ClassVar[bool] = True

    @property
    def by_lattice(self) -> Provenance:
        """Provenance of bounds on lattices."""
        return Provenance("lattice.replaced", {"q": self.sampling_prob, "steps": self.steps})

    def loss(self, sigma_over_sensitivity: float, *, remove: bool) -> ReplacedLoss:
        """The loss of one release, in either direction."""
        del remove
        return ReplacedLoss(self.sampling_prob, sigma_over_sensitivity)


@dataclasses.dataclass(frozen=True)
class UserRelease:
    """T releases, each of a batch in which a user has a binomial number of their m examples.

    Args:
        sampling_prob: q in (0, 1), of each example.
        examples: m >= 1.
        steps: T >= 1.
        sensitivity: of one release, to one example.
        tight: whether all T releases attain that sensitivity; if not, there is no lower bound.
    """

    sampling_prob: float
    examples: int
    steps: int
    sensitivity: Bounds
    tight: bool = True
    symmetric: ClassVar[bool] = False

    @property
    def by_lattice(self) -> Provenance:
        """Provenance of bounds on lattices."""
        facts = {"q": self.sampling_prob, "examples": self.examples, "steps": self.steps}
        return Provenance("lattice.users", facts)

    def loss(self, sigma_over_sensitivity: float, *, remove: bool) -> MixtureLoss:
        """The loss of one release in one direction."""
        return MixtureLoss(self.sampling_prob, self.examples, sigma_over_sensitivity, remove)


@dataclasses.dataclass(frozen=True)
class TruncatedRelease:
    """T releases, each of a batch of at most B of n examples.

    Args:
        truncation: the effect of truncation on one example, with q, B and n.
        steps: T >= 1.
        sensitivity: of one release.
        tight: whether all T releases attain that sensitivity; if not, there is no lower bound.
    """

    truncation: Truncation
    steps: int
    sensitivity: Bounds
    tight: bool = True
    symmetric: ClassVar[bool] = False

    @property
    def by_lattice(self) -> Provenance:
        """Provenance of bounds on lattices."""
        own = self.truncation
        facts = {"q": own.sampling_prob, "most": own.truncated_batch_size, "size": own.dataset_size}
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
        tight: whether all T releases attain that sensitivity; if not, there is no lower bound.
    """

    draw: FixedDraw
    steps: int
    sensitivity: Bounds
    tight: bool = True
    symmetric: ClassVar[bool] = True

    @property
    def by_lattice(self) -> Provenance:
        """Provenance of bounds on lattices."""
        facts = {"batch": self.draw.batch_size, "size": self.draw.dataset_size, "steps": self.steps}
        return Provenance("lattice.fixed", facts)

    def loss(self, sigma_over_sensitivity: float, *, remove: bool) -> FixedLoss:
        """The loss of one release, in either direction."""
        del remove
        return FixedLoss(self.draw.joined, sigma_over_sensitivity)
