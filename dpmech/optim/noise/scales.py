"""To what the noise of every parameter is scaled; refused where it is less than certified."""

from collections.abc import Sequence

from torch import Tensor

from dpmech.documents import AdaptiveClip, Claim
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.numerics import UNIT
from dpmech.optim.certified_settings import check_certified, check_reaches, check_rule
from dpmech.optim.clipping import Clipping

__all__ = ["resolved_norms"]


def resolved_norms(
    claim: Claim, value: float | Sequence[float] | Clipping | AdaptiveClip, params: Sequence[Tensor]
) -> list[float]:
    """The clip norm to which the noise of each parameter is scaled.

    Args:
        claim: what is certified.
        value: as for NoiseStream.
        params: the parameters.

    Raises:
        InvalidParameterError: on a bad value.
        CertificateError: if it is another one than certified, or smaller.
    """
    count = len(params)
    if isinstance(value, AdaptiveClip):
        check_rule(claim, value)
        scales = [value.gradient_sigma(claim.sigma)] * (count - 1) + [value.count_stddev(claim.sigma)]
        return [scale / claim.sigma * (1.0 + 4.0 * UNIT) for scale in scales]
    if isinstance(value, Clipping):
        check_certified(claim, "clip_norm", value.joint_norm)
        return list(value.noise_norms(params, claim.sigma))
    norms = _check_clip_norms(value, count)
    if isinstance(value, Sequence):
        # How gradients are clipped is not known here: noise of the whole norm serves for any way.
        check_reaches(claim, "clip_norm", min(norms))
    else:
        check_certified(claim, "clip_norm", norms[0])
    return norms


def _check_clip_norms(value: float | Sequence[float], count: int) -> list[float]:
    if not isinstance(value, Sequence):
        return [check_real("clip_norm", value, minimum=0.0, open_minimum=True)] * count
    if len(value) != count:
        raise InvalidParameterError("clip_norm", value, f"a number, or {count} numbers, one a parameter")
    return [check_real("clip_norm", one, minimum=0.0, open_minimum=True) for one in value]
