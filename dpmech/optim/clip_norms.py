"""ClipNorms: the clip norm of every step of a run, fixed or following a noised count."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpmech.documents import AdaptiveClip, Claim
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.optim.certified_settings import resolved_clipping, resolved_rule
from dpmech.optim.clipping import Clipping, FlatClipping

__all__ = ["ClipNorms"]


class ClipNorms:
    """How the coming lot is clipped, and what its noise is scaled to.

    Args:
        claim: the calibration or certificate.
        clip_norm: of one example's gradient; or an AdaptiveClip; None takes the certificate's, else 1.
        clipping: None or a Clipping, of fixed norms.
        parameters: those that are trained; counts are made on the device of the first.

    Attributes:
        clipping: of the coming lot.
        counts: a tensor in the shape of the count that is released with the gradients; none for a fixed norm.

    Raises:
        InvalidParameterError: on a bad argument.
        CertificateError: if the certificate fixes something else.
    """

    def __init__(
        self,
        claim: Claim,
        clip_norm: float | AdaptiveClip | None,
        clipping: Clipping | None,
        parameters: Sequence[Tensor],
    ) -> None:
        self._parameters = parameters
        self._rule = resolved_rule(claim, clip_norm, clipping)
        self._sigma = claim.sigma
        self._last: float | None = None
        self.counts: list[Tensor] = []
        if self._rule is None:
            fixed = None if isinstance(clip_norm, AdaptiveClip) else clip_norm
            self.clipping = resolved_clipping(claim, fixed, clipping).over(parameters)
        else:
            self.clipping = FlatClipping(self._rule.initial)
            self.counts.append(torch.zeros(1, dtype=torch.float64, device=parameters[0].device))

    @property
    def terms(self) -> float | AdaptiveClip:
        """What a certificate states."""
        return self.clipping.joint_norm if self._rule is None else self._rule

    @property
    def noise(self) -> Clipping | AdaptiveClip:
        """What a NoiseStream takes for its clip norm."""
        return self.clipping if self._rule is None else self._rule

    @property
    def of_step(self) -> float | None:
        """What NoiseStream.add_step takes for the coming step."""
        return None if self._rule is None else self.clipping.joint_norm

    def noise_stddevs(self, expected_batch_size: float) -> Sequence[float]:
        """Noise of every parameter's private gradient, at a row of C^-1 of norm 1 and `phi_scale` 1."""
        if self._rule is not None:
            return [self._rule.gradient_sigma(self._sigma) / expected_batch_size] * len(self._parameters)
        norms = self.clipping.noise_norms(self._parameters, self._sigma)
        return [self._sigma * norm / expected_batch_size for norm in norms]

    @property
    def phi_scale(self) -> float:
        """The variance of the last step's noise (before any, of the first) over that of `noise_stddevs`."""
        if self._rule is None:
            return 1.0
        return (self.clipping.joint_norm if self._last is None else self._last) ** 2

    def advance(self, sums: list[Tensor], expected_batch_size: float) -> None:
        """Take the noised count off the sums of a step, and find the next norm."""
        if self._rule is None:
            return
        count = float(sums.pop())
        self._last = self.clipping.joint_norm
        self.clipping = FlatClipping(
            self._rule.after(self._last, count, expected_batch_size=expected_batch_size)
        )

    def describe(self) -> str:
        """What must not change over a run."""
        return repr(self.clipping if self._rule is None else self._rule)

    def state_dict(self) -> dict[str, Any]:
        """The norms of the coming and of the last step; nothing for a fixed one."""
        return {} if self._rule is None else {"clip_norms": [self.clipping.joint_norm, self._last]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with saved norms."""
        if self._rule is None:
            return
        found = state.get("clip_norms")
        if not isinstance(found, list | tuple) or len(found) != 2:
            raise InvalidParameterError("clip_norms of the state", found, "two numbers")
        self.clipping = FlatClipping(found[0])
        self._last = None if found[1] is None else check_real("clip_norms of the state", found[1])
