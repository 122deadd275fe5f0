"""What an importance sample says: its plan, each direction, and both together."""

import dataclasses

__all__ = ["DirectionEstimate", "Estimate", "SamplingPlan"]

CARRIERS = 3
LEAST_SHOWN = 0.01


@dataclasses.dataclass(frozen=True)
class SamplingPlan:
    """What a pilot decided, to be used again at nearby sigma with the same random numbers.

    Attributes:
        entropy: seeds of every block.
        remove_parts: names of the REMOVE parts.
        remove_weights: their probabilities.
        add_parts: names of the ADD parts.
        add_weights: their probabilities.
        remove_samples: size of the REMOVE run.
        add_samples: size of the ADD run.
        enlarged: whether the sizes were raised because a first sample did not show its tail; the main runs
            then have random numbers of their own.
    """

    entropy: tuple[int, ...]
    remove_parts: tuple[str, ...]
    remove_weights: tuple[float, ...]
    add_parts: tuple[str, ...]
    add_weights: tuple[float, ...]
    remove_samples: int
    add_samples: int
    enlarged: bool = False


@dataclasses.dataclass(frozen=True)
class DirectionEstimate:
    """One direction of delta (an estimate).

    Attributes:
        delta: the mean weight.
        lower: the lower end of its interval.
        upper: the upper end.
        relative_error: relative standard error.
        effective_samples: (sum w)^2 / sum w^2.
        largest_share: the largest weight over the sum.
        tail_shape: Pareto shape of the largest weights (NaN where too few are positive).
        weight_bound: a proved bound on every weight; infinite where there is none.
        samples: how many were drawn.
        carried: the share of the estimate that each part of the proposal carried.
    """

    delta: float
    lower: float
    upper: float
    relative_error: float
    effective_samples: float
    largest_share: float
    tail_shape: float
    weight_bound: float
    samples: int
    carried: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """delta(eps) with a two-sided confidence interval (an estimate, not a bound).

    Attributes:
        eps: the privacy loss level.
        delta: the larger of the two directions.
        lower: the lower end.
        upper: the upper end.
        confidence: the level that the interval aims at.
        remove: H_eps(P||Q).
        add: H_eps(Q||P).
        plan: reuse it at other sigma for common random numbers.
    """

    eps: float
    delta: float
    lower: float
    upper: float
    confidence: float
    remove: DirectionEstimate
    add: DirectionEstimate
    plan: SamplingPlan

    @property
    def samples(self) -> int:
        """Draws of the main runs, both directions."""
        return self.remove.samples + self.add.samples

    @property
    def deciding(self) -> DirectionEstimate:
        """The direction with the larger delta."""
        return self.remove if self.remove.delta >= self.add.delta else self.add

    @property
    def relative_error(self) -> float:
        """Relative standard error of the direction that decides."""
        return self.deciding.relative_error

    @property
    def carriers(self) -> dict[str, float | str]:
        """The direction that decides, and which parts of the proposal carried it, the largest share first."""
        shares = sorted(self.deciding.carried.items(), key=lambda item: -item[1])
        shown = {name: float(share) for name, share in shares[:CARRIERS] if share >= LEAST_SHOWN}
        return {"direction": "REMOVE" if self.deciding is self.remove else "ADD"} | shown
