"""ExecutedSteps: what a run has done so far, for ledgers and run records."""

import dataclasses
from typing import Any

from dpmech.documents import AdaptiveClip, Claim, clip_norm_stated

__all__ = ["ExecutedSteps"]


@dataclasses.dataclass(frozen=True)
class ExecutedSteps:
    """Steps executed under a claim.

    The claim holds for any number of steps up to n: stopping early is post-processing of fewer releases, and
    never costs more than the claim says.

    Attributes:
        claim: the calibration or certificate.
        steps: noisy gradients released so far, in [0, n].
        clip_norm: joint clip norm of one example's gradient; or the AdaptiveClip by which it changes.
        expected_batch_size: the public normaliser.
    """

    claim: Claim
    steps: int
    clip_norm: float | AdaptiveClip
    expected_batch_size: float

    def to_dict(self) -> dict[str, Any]:
        """The record as plain data."""
        return {
            "claim": self.claim.fingerprint(),
            "eps": self.claim.budget.eps,
            "delta": self.claim.budget.delta,
            "adjacency": self.claim.adjacency.value,
            "guarantee": str(self.claim.guarantee),
            "participation": self.claim.participation.to_dict(),
            "sigma": self.claim.sigma,
            "steps": self.steps,
            "n": self.claim.strategy.n,
            "clip_norm": clip_norm_stated(self.clip_norm, self.claim.sigma),
            "expected_batch_size": self.expected_batch_size,
        }
