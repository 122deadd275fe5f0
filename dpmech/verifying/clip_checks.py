"""A clip norm that changes: whether the noise of gradients and counts together is the noise of the claim."""

from collections.abc import Iterator
from fractions import Fraction

from dpmech.certificates import AdaptiveClip, Certificate
from dpmech.numerics import up
from dpmech.verifying.report import Check

__all__ = ["clip_checks"]


def clip_checks(certificate: Certificate) -> Iterator[Check]:
    """One check where the clip norm follows a count, none where it is fixed.

    What was accounted for is one release of noise scale sigma. Two releases of one lot, of noise g and c
    over what an example adds, are such a one if 1 / g^2 + 1 / c^2 <= 1 / sigma^2, which is decided exactly.
    An example adds half a count.
    """
    clip = certificate.clip_norm
    if not isinstance(clip, AdaptiveClip):
        return
    sigma = certificate.sigma
    gradients, count = clip.gradient_sigma(sigma), clip.count_stddev(sigma)
    spent = 1 / Fraction(gradients) ** 2 + 1 / (2 * Fraction(count)) ** 2
    yield Check(
        "clip norm",
        ok=spent <= 1 / Fraction(sigma) ** 2,
        detail=(
            f"follows a count: noise {up(gradients)} clip norms on the gradients and {up(count)} examples on "
            f"the count of the same lot, together sigma {up(sigma)}"
        ),
        route="two Gaussian releases of one lot, in exact arithmetic",
    )
