"""RestLaw: when one example takes part where it rests after every step that it joined."""

import dataclasses

__all__ = ["RestLaw"]


@dataclasses.dataclass(frozen=True)
class RestLaw:
    """After each step that it joined an example rests for b - 1 steps; it joins every other one by a coin.

    At step 0 the rest counter has its stationary law: 0, free to join, with probability 1 / (1 + p (b - 1)),
    and each of 1, ..., b - 1 with p times that.

    Args:
        min_sep: b.
        sampling_prob: p.
    """

    min_sep: int
    sampling_prob: float

    @property
    def resting(self) -> float:
        """The probability of resting, p (b - 1) / (1 + p (b - 1)), at every step."""
        rest = self.sampling_prob * (self.min_sep - 1)
        return rest / (1.0 + rest)

    @property
    def rate(self) -> float:
        """The probability of joining, p / (1 + p (b - 1)), at every step."""
        return self.sampling_prob / (1.0 + self.sampling_prob * (self.min_sep - 1))
