r"""AdaptiveClip: a clip norm that follows a noisy count of gradients below it, accounted for with them.

Step t releases two sums over one batch: the gradients clipped to C_t, and a count of +1/2 for every example
whose gradient norm is at most C_t, -1/2 for every larger one, and 0 for a zero gradient. In units of their
noise (sigma_g C_t and the standard deviation of the count) one example adds a vector (x, y) to both, with
||x|| <= 1 / sigma_g and |y| <= 1 / sigma_b, where sigma_b is the noise of the count over 1/2. So both
together are one Gaussian release of noise scale

    sigma = (sigma_g^-2 + sigma_b^-2)^(-1/2),

the sigma of the claim: sigma (x, y) has norm at most 1. C_(t+1) is a function of C_t and the noisy count of
step t, so it follows from the releases: what example i adds at step t is an adaptively chosen vector of norm
at most 1, as all gradients of training are. Multiplying the noisy sum by C_t afterwards is post-processing. A
claim that covers adaptively chosen gradients of norm at most 1 covers this, with correlated noise too, if
gradients over C_t and counts share one C.

**Every adjacency.** An absent example adds the zero vector; so does one whose gradient is set to zero
(ZERO_OUT), since it counts 0. If it counted as at most C_t, it would add (0, 1/2), the count would move by 1,
and theorems that assume the zero vector for the neighbouring dataset (truncated batches, multi-owner data)
would not apply. Under REPLACE_ONE one vector of norm at most 1 replaces another: gradients move by 2 clip
norms, the count by 1, the joint vector by 2, as accounted for. All bounds are attained by gradients of norm
C_t or more.
"""

import dataclasses
import math
from typing import Any, Self

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_real, check_sigma
from dpmech.numerics import UNIT

# Covers the roundings of both scales, a few units together.
_UP = 1.0 + 16.0 * UNIT


@dataclasses.dataclass(frozen=True)
class AdaptiveClip:
    """A clip norm that follows a quantile of the gradient norms, through a noisy count.

    With C_t the clip norm of step t and s_t = 1/2 + (noisy count) / expected_batch_size, roughly the fraction
    of examples whose gradient norm is at most C_t, the next clip norm is C_t exp(-rate (s_t - quantile)). The
    count is as private as the gradients: it uses the fraction `count_share` of each step's sigma^-2. A zero
    gradient counts as 0, so padding adds nothing.

    Args:
        initial: the clip norm of step 0, > 0.
        quantile: target quantile of the gradient norms, in (0, 1).
        rate: learning rate of the clip norm, in (0, 100).
        count_share: fraction of sigma^-2 for the count, in (0, 1). The noise of the gradients is then sigma /
            sqrt(1 - count_share) clip norms, and the noise of the count is sigma / (2 sqrt(count_share))
            examples.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        Andrew et al. 2021, Differentially private learning with adaptive clipping (arXiv:1905.03871); their
        Theorem 1 combines both releases for independent noise.

    Examples:
        >>> from dpmech.certificates import AdaptiveClip
        >>> clip = AdaptiveClip(initial=2.0, quantile=0.5)
        >>> f"{clip.gradient_sigma(1.0):.4f}", f"{clip.count_stddev(1.0):.2f}"
        ('1.0050', '5.00')
        >>> round(clip.after(2.0, -10.0, expected_batch_size=40.0), 4)  # three quarters were longer
        2.1025
    """

    initial: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    count_share: float = 0.01

    def __init_subclass__(cls) -> None:
        # A subclass would run another rule under the description of this one, which certificates state.
        raise TypeError("AdaptiveClip is the one rule that is certified, and has no subclasses")

    def __post_init__(self) -> None:
        for name, most in (("initial", 1e30), ("quantile", 1.0), ("rate", 100.0), ("count_share", 1.0)):
            value = getattr(self, name)
            checked = check_real(name, value, minimum=0.0, maximum=most, open_minimum=True, open_maximum=True)
            object.__setattr__(self, name, checked)

    def gradient_sigma(self, sigma: float) -> float:
        """Noise of the gradients over the clip norm when both releases together have `sigma`; rounded up."""
        return check_sigma(sigma) / math.sqrt(1.0 - self.count_share) * _UP

    def count_stddev(self, sigma: float) -> float:
        """Standard deviation of the count's noise, in examples, at a row of C^-1 of norm 1; rounded up."""
        return check_sigma(sigma) / (2.0 * math.sqrt(self.count_share)) * _UP

    def after(self, clip_norm: float, count: float, *, expected_batch_size: float) -> float:
        """The clip norm of the next step.

        Args:
            clip_norm: clip norm of this step, > 0.
            count: noisy count of this step: +1/2 per example not above the clip norm, -1/2 per example above
                it, 0 per zero gradient.
            expected_batch_size: the public denominator, > 0.

        Raises:
            NumericalError: if the result leaves the range of float64.
        """
        share = 0.5 + count / expected_batch_size
        found = clip_norm * math.exp(min(-self.rate * (share - self.quantile), 700.0))
        if not 1e-30 < found < 1e30:
            raise NumericalError(
                f"the clip norm left [1e-30, 1e30]: {found!r} after {clip_norm!r} and a noised share of "
                f"{share!r}; a smaller rate (now {self.rate!r}) or larger batches keep it"
            )
        return found

    def to_dict(self, sigma: float) -> dict[str, Any]:
        """Plain data, with the two noise scales that combine to `sigma`."""
        return (
            {"type": "AdaptiveClip"}
            | dataclasses.asdict(self)
            | {"gradient_sigma": self.gradient_sigma(sigma), "count_stddev": self.count_stddev(sigma)}
            | {"count_of_zero": 0.0}
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`.

        Raises:
            InvalidParameterError: if the data are not those of an AdaptiveClip.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        stated = {"type", "gradient_sigma", "count_stddev", "count_of_zero"}
        if data.get("type") != "AdaptiveClip" or set(data) - names != stated or data["count_of_zero"] != 0.0:
            raise InvalidParameterError(
                "clip_norm",
                sorted(data),
                "a number, null or an AdaptiveClip under which gradients of zero count 0 (count_of_zero)",
            )
        return cls(**{name: data[name] for name in names})


def clip_norm_stated(value: float | AdaptiveClip | None, sigma: float) -> float | dict[str, Any] | None:
    """A clip norm as plain data."""
    return value.to_dict(sigma) if isinstance(value, AdaptiveClip) else value


def clip_norm_from(data: float | dict[str, Any] | None) -> float | AdaptiveClip | None:
    """The inverse of `clip_norm_stated`."""
    return AdaptiveClip.from_dict(data) if isinstance(data, dict) else data
