"""A clip norm that changes: whether the noise of gradients and counts together is the noise of the claim."""

from collections.abc import Iterator
from fractions import Fraction

from dpmech.certificates import AdaptiveClip, Certificate
from dpmech.mechanism import Adjacency
from dpmech.numerics import up
from dpmech.verifying.report import Check

__all__ = ["clip_checks"]


def clip_checks(certificate: Certificate) -> Iterator[Check]:
    """One check where the clip norm follows a count, none where it is fixed.

    What was accounted for is one release of noise scale sigma, which one gradient moves by its norm in clip
    norms: at most 1, or 2 where one takes the place of another. Here two releases of one batch, of noise g
    and c, are moved by (x, y) between neighbouring datasets. That is no more if x^2 / g^2 + y^2 / c^2 is at
    most 1 / sigma^2, or 4 / sigma^2, for everything that an example may be in one and in the other dataset,
    which is decided exactly.
    """
    clip = certificate.clip_norm
    if not isinstance(clip, AdaptiveClip):
        return
    sigma = certificate.sigma
    stated = clip.to_dict(sigma)
    gradients, count = stated["gradient_sigma"], stated["count_stddev"]
    # What an example can add: a norm in clip norms, and a count.
    zero = (0, Fraction(stated["count_of_zero"]))
    added = [zero, (0, Fraction(1, 2)), (1, Fraction(1, 2)), (1, Fraction(-1, 2))]
    other, most = {
        Adjacency.ADD_REMOVE: ([(0, Fraction(0))], 1),
        Adjacency.ZERO_OUT: ([zero], 1),
        Adjacency.REPLACE_ONE: (added, 2),
    }[certificate.adjacency]
    spent = max(
        (Fraction(x + x_other) / Fraction(gradients)) ** 2 + ((y - y_other) / Fraction(count)) ** 2
        for x, y in added
        for x_other, y_other in other
    )
    # Where chance decides who takes part, theorems take what is zeroed out for nothing, not for a constant.
    nothing = certificate.adjacency is not Adjacency.ZERO_OUT or zero[1] == 0
    yield Check(
        "clip norm",
        ok=nothing and spent <= (most / Fraction(sigma)) ** 2,
        detail=(
            f"follows a count: noise {up(gradients)} clip norms on the gradients and {up(count)} examples on "
            f"the count of the same lot, together sigma {up(sigma)} under {certificate.adjacency.value}"
        ),
        route="two Gaussian releases of one batch, in exact arithmetic",
    )
