"""What a verifier's own draws prove of a noise scale that somebody else's draws have sized.

A file cannot show that its random numbers were not picked. So nothing is taken from them: new ones are drawn,
and either prove of this sigma that delta(eps) <= (1 + m) delta, or the file is refused.
"""

import numpy as np

from dpmech.accounting import (
    BinGram,
    Certified,
    Judgement,
    chain_gram,
    judge_delta,
    sampling_gram,
    tuple_gram,
)
from dpmech.certificates import Certificate
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.numerics import up
from dpmech.verifying.report import Check, OwnDraw

__all__ = ["own_draw", "own_draw_check"]


def own_draw(certificate: Certificate, rng: np.random.Generator | None) -> OwnDraw:
    """What new draws say about delta at the certified eps and sigma; most draws are made where it is false.

    Args:
        certificate: under an allocation to bins, or b-min-sep sampling.
        rng: of the draws; None takes entropy from the operating system.

    Raises:
        UnsupportedCombinationError: where nobody is put into bins, nor rests.
        InvalidParameterError: if eps is beyond what can be sampled.
    """
    budget, gram = certificate.budget, _gram(certificate).scaled(certificate.sigma**-2)
    # The same rule as for a calibration, so that what is left to chance is no more than there.
    beta = Certified().settled(budget.delta).error
    return OwnDraw(judge_delta(gram, budget.eps, budget.delta, beta=beta, rng=rng), seeded=rng is not None)


def _gram(certificate: Certificate) -> BinGram:
    """Of the pair to draw from, at sigma 1."""
    participation = certificate.participation
    bins, law = participation.allocation_bins, participation.rest_law
    if bins is not None:
        return sampling_gram(certificate.strategy, bins)
    if participation.user_bins is not None:
        return tuple_gram(certificate.strategy, participation.user_bins, participation.examples)
    if law is not None:
        return chain_gram(certificate.strategy, law.min_sep, law.sampling_prob)
    raise UnsupportedCombinationError(
        f"{participation!r} puts nobody into bins, and lets nobody rest",
        supported="BallsInBins, UserBallsInBins and MinSepSampling",
    )


def own_draw_check(draw: OwnDraw) -> Check:
    """The verdict in one line."""
    found: Judgement = draw.judgement
    if found.holds:
        seed = ", which the caller seeded" if draw.seeded else ""
        detail = f"{draw}{seed}; {found.samples} draws"
    else:
        detail = (
            f"{draw.claim} could not be proved with {found.samples} draws of this check's own, which give "
            f"about {up(found.estimate, 3)}"
        )
    return Check("privacy", ok=found.holds, detail=detail, route="bets on draws of its own")
