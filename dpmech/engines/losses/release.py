r"""What is accounted for under sampling: T releases, each of a random batch, and the loss of one of them.

**A uniform set of B of n examples, one of them replaced.** With q = B / n, s the noise over the distance of
what replaces each other, and A_1 = (1 - q) N(0, s^2) + q N(1, s^2) against A_0 = N(0, s^2): no gradients have
a hockey-stick curve above that of A_1 against A_0 at eps >= 0, nor above that of A_0 against A_1 at eps < 0,
in either direction. The law with this curve has the positive losses of the one pair, the negative ones of the
other, and what is left at 0. That it dominates is shown in docs/fixed_size_batches.md.

**A Poisson sample that is cut down to B examples where more were drawn.** With q the probability of every
coin, tau that B or more of the others were drawn, and p that the example is kept if so: with probability 1 -
tau the pair is that of plain Poisson sampling. With probability tau it is the pair whose hockey-stick curve
is, of P against Q (A_u as in `step_losses`), that of A_2 against A_1 at eps >= 0, and that of A_0 against A_1
at eps < 0: the largest curve of all that gradients allow. Its law has the positive losses of the one, the
negative ones of the other, and what is left at 0. That it dominates is shown in docs/truncated_batches.md.
"""

import dataclasses
from typing import ClassVar

import scipy

from dpmech.engines.losses.lattice import Loss
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
    """How a batch that is too large treats one example; all probabilities between two floats.

    Args:
        sampling_prob: q in (0, 1], of each coin.
        truncated_batch_size: B, in [1, n - 1].
        dataset_size: n.
        untruncated: that fewer than B of the others were drawn, so that the example stays if drawn.
        truncated: that B or more of the others were drawn.
        kept: that the example was drawn and kept, given that.
        joined: that the example is in the batch, whatever happened.
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
        """For q, B and n, rounded outward.

        With N binomial of n coins: p = (B / n) P(N > B) / tau, and the example is in the batch with
        probability q (1 - tau) + (B / n) P(N > B), as it is in a batch of m + 1 drawn ones with probability B
        / (m + 1).
        """
        untruncated, truncated = at_most(size - 1, q, most - 1), at_least(size - 1, q, most)
        full = at_least(size, q, most + 1)
        low = quotient_down(product_down(most, full[0]), size)
        high = quotient_up(product_up(most, full[1]), size)
        # CheckpointMatch among B + 1 or more, each as likely.
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
    """Batches of one size, drawn without replacement, independently at every step.

    Args:
        dataset_size: n.
        batch_size: B, in [1, n].
    """

    dataset_size: int
    batch_size: int

    @property
    def joined(self) -> tuple[float, float]:
        """B / n, the probability that the example is in a batch, between two floats."""
        return quotient_down(self.batch_size, self.dataset_size), min(
            1.0, quotient_up(self.batch_size, self.dataset_size)
        )


@dataclasses.dataclass(frozen=True)
class FixedLoss(PartedLoss):
    """The law of the loss of one step, the same in both directions.

    Args:
        joined: lower and upper end of q, in (0, 1).
        sigma_over_sensitivity: s > 0.
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    joined: tuple[float, float]
    sigma_over_sensitivity: float
    reach: float = 38.0

    def _parts(self, end: int) -> list[tuple[float, StepLoss]]:
        """Of both signs: the negative losses mirror the positive ones, each under its own first law."""
        q, s = self.joined[end], self.sigma_over_sensitivity
        return [(1.0, OneSidedLoss(q, 1, s, remove=sign, reach=self.reach)) for sign in (True, False)]

    def _at_zero(self, end: int) -> float:
        """What is left at 0: (1 - q) P(|N(0, 1)| < 1 / (2 s)); its ends are 8 u further."""
        near = 1.0 - 2.0 * float(scipy.special.ndtr(-0.5 / self.sigma_over_sensitivity))
        return max(0.0, (1.0 - self.joined[1 - end]) * near + (-8.0, 8.0)[end] * UNIT)


@dataclasses.dataclass(frozen=True)
class TruncatedLoss(PartedLoss):
    """The law of the loss of one step in one direction.

    Args:
        sampling_prob: q in (0, 1].
        untruncated: lower and upper end of 1 - tau.
        truncated: of tau.
        kept: of p, in (0, 1).
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
        """Of Poisson sampling where the batch was not full, and of both signs where it was."""
        s, kept, weight = self.sigma_over_sensitivity, self.kept[end], self.truncated[end]
        above, below = (2, 1) if self.remove else (1, 2)
        parts: list[tuple[float, StepLoss]] = []
        if self.untruncated[1] > 0.0:
            parts.append((self.untruncated[end], Loss(self.sampling_prob, s, self.remove, self.reach)))
        parts.append((weight, OneSidedLoss(kept, above, s, remove=True, reach=self.reach)))
        parts.append((weight, OneSidedLoss(kept, below, s, remove=False, reach=self.reach)))
        return parts

    def _at_zero(self, end: int) -> float:
        """What is left at 0: (1 - p) P(|N(0, 1)| < 1 / (2 s) or so), tau times; its ends are 8 u further."""
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
    """T releases, each of a batch in which a user has a binomial number of m examples.

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
    """T releases, each of a batch of at most B of n examples.

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
        facts = {"batch": self.draw.batch_size, "size": self.draw.dataset_size, "steps": self.steps}
        return Provenance("lattice.fixed", facts)

    def loss(self, sigma_over_sensitivity: float, *, remove: bool) -> FixedLoss:
        """The loss of one release, in either direction."""
        del remove
        return FixedLoss(self.draw.joined, sigma_over_sensitivity)
