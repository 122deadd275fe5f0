"""Truncation: what becomes of one example where a lot of more than B examples is cut down to B."""

import dataclasses

from dpmech.numerics import (
    at_least,
    at_most,
    product_down,
    product_up,
    quotient_down,
    quotient_up,
    sum_down,
    sum_up,
)

__all__ = ["Truncation"]

Ends = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Truncation:
    """How a lot that is too large treats one example; all probabilities between two floats.

    Args:
        sampling_prob: q in (0, 1], of each coin.
        max_lot_size: B, in [1, n - 1].
        dataset_size: n.
        untruncated: that fewer than B of the others were drawn, so that the example stays if drawn.
        truncated: that B or more of the others were drawn.
        kept: that the example was drawn and kept, given that.
        joined: that the example is in the lot, whatever happened.
    """

    sampling_prob: float
    max_lot_size: int
    dataset_size: int
    untruncated: Ends
    truncated: Ends
    kept: Ends
    joined: Ends

    @classmethod
    def of(cls, q: float, most: int, size: int) -> "Truncation":
        """For q, B and n, rounded outward.

        With N binomial of n coins: p = (B / n) P(N > B) / tau, and the example is in the lot with probability
        q (1 - tau) + (B / n) P(N > B), as it is in a lot of m + 1 drawn ones with probability B / (m + 1).
        """
        untruncated, truncated = at_most(size - 1, q, most - 1), at_least(size - 1, q, most)
        full = at_least(size, q, most + 1)
        low = quotient_down(product_down(most, full[0]), size)
        high = quotient_up(product_up(most, full[1]), size)
        # Kept among B + 1 or more, each as likely.
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
    def expected_lot_size(self) -> float:
        """The mean size of a lot."""
        return self.dataset_size * self.joined[1]
