"""FixedDraw: what one example meets where every lot is a uniform set of exactly B of n examples."""

import dataclasses

from dpmech.numerics import quotient_down, quotient_up

__all__ = ["FixedDraw"]


@dataclasses.dataclass(frozen=True)
class FixedDraw:
    """Lots of one size, drawn without replacement, independently at every step.

    Args:
        dataset_size: n.
        lot_size: B, in [1, n].
    """

    dataset_size: int
    lot_size: int

    @property
    def joined(self) -> tuple[float, float]:
        """B / n, the probability that the example is in a lot, between two floats."""
        return quotient_down(self.lot_size, self.dataset_size), min(
            1.0, quotient_up(self.lot_size, self.dataset_size)
        )
